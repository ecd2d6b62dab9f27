//! For tests: a gate, a ledger and one clock, in virtual time.
//!
//! Promises: defaults are ordinary (one term in cell `x`, cost 1, normal priority, caller 0, a wait
//! of at most an hour). Every ask, timer and resolution is counted.
//!
//! Never: in the product.

use std::collections::BTreeMap;

use smallvec::smallvec;

use crate::ask::{
    Ask, CellId, Evidence, Outcome, OwnerId, PermitId, Priority, ScopeId, Scopes, Settle, Terms,
    Verdict,
};
use crate::gate::{CallerId, Effects, Gate, GateSettings, Order, QueuedCall, Resolution};
use crate::limit::Rule;
use crate::table::Table;
use crate::test_ledger::{START, TestLedger, arrived, s};
use crate::time::{Micros, Now, Span};
use crate::turn::turn;

/// The start of every test. Not zero: no code may depend on a clock that starts with the process.
pub(super) const BEGIN: Micros = Micros(7_000_000_000);

/// One call.
#[derive(Clone, Debug)]
pub(super) struct TestCall {
    pub(super) terms: Terms,
    pub(super) scopes: Scopes,
    pub(super) priority: Priority,
    pub(super) caller: u32,
    pub(super) max_wait: Span,
    pub(super) seniority: Option<u64>,
}

impl TestCall {
    pub(super) fn new(rule: &Rule) -> TestCall {
        TestCall::at("x", rule)
    }

    pub(super) fn at(cell: &str, rule: &Rule) -> TestCall {
        TestCall {
            terms: smallvec![TestLedger::term(cell, rule)],
            scopes: Scopes::new(),
            priority: Priority::Normal,
            caller: 0,
            max_wait: s(3_600),
            seniority: None,
        }
    }

    pub(super) fn and(mut self, cell: &str, rule: &Rule) -> TestCall {
        self.terms.push(TestLedger::term(cell, rule));
        self
    }

    pub(super) fn scope(mut self, scope: &str) -> TestCall {
        self.scopes.push(ScopeId::named(&[scope]));
        self
    }

    pub(super) fn cost(mut self, cost: u64) -> TestCall {
        self.terms[0].cost = cost;
        self
    }

    pub(super) fn reserve(mut self, leave: u64) -> TestCall {
        self.terms[0].reserve = leave;
        self
    }

    pub(super) fn priority(mut self, priority: Priority) -> TestCall {
        self.priority = priority;
        self
    }

    pub(super) fn low(self) -> TestCall {
        self.priority(Priority::Low)
    }

    pub(super) fn high(self) -> TestCall {
        self.priority(Priority::High)
    }

    pub(super) fn with_caller(mut self, caller: u32) -> TestCall {
        self.caller = caller;
        self
    }

    pub(super) fn max_wait(mut self, max_wait: Span) -> TestCall {
        self.max_wait = max_wait;
        self
    }

    /// Go at once or be rejected.
    pub(super) fn no_wait(self) -> TestCall {
        self.max_wait(Span::ZERO)
    }

    pub(super) fn senior(mut self, seniority: u64) -> TestCall {
        self.seniority = Some(seniority);
        self
    }
}

/// A gate, its ledger and a clock.
#[derive(Debug)]
pub(super) struct TestGate {
    pub(super) gate: Gate,
    pub(super) table: Table,
    pub(super) now: Now,
    /// The resolution of each call, and when.
    pub(super) resolutions: BTreeMap<u64, (Micros, Resolution)>,
    pub(super) seniorities: BTreeMap<u64, u64>,
    /// Calls that got a permit, in order.
    pub(super) granted: Vec<u64>,
    /// Transactions, and asks in them.
    pub(super) offers: usize,
    pub(super) asks: usize,
    /// Timers that fired.
    pub(super) timers: usize,
    pub(super) wake_at: Option<Micros>,
    /// Cells reported to the ledger as no longer waited for.
    pub(super) abandoned: Vec<CellId>,
    /// The last tick settled something, so there may be more to do.
    pub(super) settled: bool,
    in_flight: BTreeMap<u64, Ask>,
    seq: u64,
}

impl TestGate {
    pub(super) fn new() -> TestGate {
        TestGate::with(GateSettings {
            waiting_max: 20_000,
            ..GateSettings::default()
        })
    }

    pub(super) fn fifo() -> TestGate {
        TestGate::with(GateSettings {
            order: Order::Fifo,
            ..GateSettings::default()
        })
    }

    pub(super) fn with(settings: GateSettings) -> TestGate {
        TestGate {
            gate: Gate::new(settings),
            table: Table::default(),
            now: Now {
                at: BEGIN,
                wall: START,
            },
            resolutions: BTreeMap::new(),
            seniorities: BTreeMap::new(),
            granted: Vec::new(),
            offers: 0,
            asks: 0,
            timers: 0,
            wake_at: None,
            abandoned: Vec::new(),
            settled: false,
            in_flight: BTreeMap::new(),
            seq: 0,
        }
    }

    pub(super) fn id(seq: u64) -> PermitId {
        PermitId {
            owner: OwnerId(1),
            seq,
        }
    }

    /// A call arrives; nothing is decided yet.
    pub(super) fn push(&mut self, want: TestCall) -> u64 {
        self.seq += 1;
        let ask = Ask {
            id: TestGate::id(self.seq),
            terms: want.terms,
            scopes: want.scopes,
            priority: want.priority,
            max_wait: want.max_wait,
            evidence: Evidence::Report {
                timeout: s(30),
                late: s(5),
            },
        };
        let waiter = QueuedCall {
            ask,
            caller: CallerId(want.caller),
            deadline: self.now.at + want.max_wait,
            seniority: want.seniority,
        };
        self.gate.push(waiter, self.now);
        self.seq
    }

    /// A call leaves the queue and asks for something else with its seniority.
    pub(super) fn ask_again(&mut self, seq: u64, want: TestCall) -> u64 {
        let id = TestGate::id(seq);
        let seniority = self.gate.waiting[&id].arrival;
        self.gate.cancel(id);
        self.gate.expect_return(seniority, want.priority);
        self.push(want.senior(seniority))
    }

    /// A call arrives, and everything that can happen now happens.
    pub(super) fn call(&mut self, want: TestCall) -> u64 {
        let seq = self.push(want);
        self.run();
        seq
    }

    pub(super) fn calls(&mut self, count: usize, want: &TestCall) -> Vec<u64> {
        let seqs = (0..count).map(|_| self.push(want.clone())).collect();
        self.run();
        seqs
    }

    /// One tick: records resolutions, applies settles, returns the offer.
    pub(super) fn tick(&mut self) -> Vec<Ask> {
        let Effects {
            offer,
            resolve,
            settle,
            abandoned,
            wake_at,
        } = self.gate.tick(self.now);
        self.abandoned.extend(abandoned);
        self.wake_at = wake_at;
        for resolved in resolve {
            let seq = resolved.ask.id.seq;
            let twice = self
                .resolutions
                .insert(seq, (self.now.at, resolved.resolution.clone()));
            assert_eq!(twice, None, "call {seq} was resolved twice");
            self.seniorities.insert(seq, resolved.seniority);
            if let Resolution::Go { .. } = resolved.resolution {
                self.granted.push(seq);
                self.in_flight.insert(seq, resolved.ask);
            }
        }
        self.settled = !settle.is_empty();
        if self.settled {
            self.turn(&settle, &[]);
        }
        offer
    }

    /// The ledger's verdicts on an offer.
    pub(super) fn decide(&mut self, asks: &[Ask]) -> Vec<(PermitId, Verdict)> {
        self.offers += 1;
        self.asks += asks.len();
        let verdicts = self.turn(&[], asks);
        asks.iter().map(|ask| ask.id).zip(verdicts).collect()
    }

    /// Everything that can be done at this instant.
    pub(super) fn run(&mut self) {
        for _ in 0..10_000 {
            let asks = self.tick();
            if !asks.is_empty() {
                let verdicts = self.decide(&asks);
                self.gate.verdicts(verdicts, self.now);
            } else if self.is_quiet() {
                return;
            }
        }
        panic!("the gate offers forever at one instant");
    }

    /// Nothing more is to be done at this instant.
    pub(super) fn is_quiet(&self) -> bool {
        !self.settled && self.wake_at.is_none_or(|wake_at| wake_at > self.now.at)
    }

    /// Time passes, and each timer fires at its instant.
    pub(super) fn advance(&mut self, span: Span) {
        let end = self.now.at + span;
        while let Some(wake_at) = self.wake_at.filter(|&wake_at| wake_at <= end) {
            self.set(wake_at);
            self.timers += 1;
            self.run();
        }
        self.set(end);
    }

    fn set(&mut self, at: Micros) {
        let span = at.since(self.now.at);
        self.now.at += span;
        self.now.wall = self.now.wall + span;
    }

    pub(super) fn turn(&mut self, settles: &[Settle], asks: &[Ask]) -> Vec<Verdict> {
        let out = turn(&mut self.table, self.now, settles, asks);
        if !out.freed.is_empty() {
            self.gate.freed(&out.freed);
        }
        if !out.changed_scopes.is_empty() {
            self.gate.scopes_changed(&out.changed_scopes);
        }
        out.verdicts
    }

    pub(super) fn settle(&mut self, seq: u64, outcome: Outcome) {
        let ask = self
            .in_flight
            .get(&seq)
            .expect("the call got a permit")
            .clone();
        let settle = Settle::Permit {
            id: ask.id,
            terms: ask.terms,
            scopes: ask.scopes,
            outcome,
        };
        self.turn(&[settle], &[]);
    }

    /// The head of its response arrives.
    pub(super) fn arrive(&mut self, seq: u64) {
        self.settle(seq, arrived());
        self.run();
    }

    /// Its response ends.
    pub(super) fn finish(&mut self, seq: u64) {
        self.settle(seq, Outcome::Finished { age: Span::ZERO });
        self.run();
    }

    /// Every granted call gets its response at once, from now on until nobody waits.
    pub(super) fn respond_all(&mut self, up_to: Span) {
        let end = self.now.at + up_to;
        let mut answered = 0;
        self.run();
        loop {
            while answered < self.granted.len() {
                self.arrive(self.granted[answered]);
                answered += 1;
            }
            let Some(wake_at) = self.wake_at.filter(|&wake_at| wake_at <= end) else {
                return;
            };
            self.set(wake_at);
            self.timers += 1;
            self.run();
        }
    }

    pub(super) fn resolution(&self, seq: u64) -> Option<&Resolution> {
        self.resolutions.get(&seq).map(|(_, resolution)| resolution)
    }

    pub(super) fn was_granted(&self, seq: u64) -> bool {
        matches!(self.resolution(seq), Some(Resolution::Go { .. }))
    }

    /// When it got its permit, after the start.
    pub(super) fn granted_after(&self, seq: u64) -> Option<Span> {
        let (at, resolution) = self.resolutions.get(&seq)?;
        matches!(resolution, Resolution::Go { .. }).then_some(at.since(BEGIN))
    }

    pub(super) fn since_begin(&self) -> Span {
        self.now.at.since(BEGIN)
    }
}

pub(super) fn cell(name: &str) -> CellId {
    CellId::named(&[name])
}
