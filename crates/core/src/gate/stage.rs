//! For tests: a gate, a ledger and one clock, in virtual time.
//!
//! Promises: what a test does not name is ordinary (one term in cell `x`, cost 1, normal priority,
//! caller 0, a patience of an hour). Every ask, timer and resolution is counted.
//!
//! Never: in the product.

use std::collections::BTreeMap;

use smallvec::smallvec;

use crate::ask::{
    Ask, CellId, Evidence, Outcome, OwnerId, PermitId, Priority, ScopeId, Scopes, Settle, Terms,
    Verdict,
};
use crate::drive::{Drive, START, arrived, s};
use crate::gate::{CallerId, Effects, Gate, Order, Resolution, Settings, Waiter};
use crate::limit::Rule;
use crate::table::Table;
use crate::time::{Micros, Now, Span};
use crate::turn::turn;

/// Where every stage begins. Not zero: nothing may depend on a clock that starts with the process.
pub(super) const BEGIN: Micros = Micros(7_000_000_000);

/// One call that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Want {
    pub(super) terms: Terms,
    pub(super) scopes: Scopes,
    pub(super) priority: Priority,
    pub(super) caller: u32,
    pub(super) patience: Span,
    pub(super) seniority: Option<u64>,
}

impl Want {
    pub(super) fn new(rule: &Rule) -> Want {
        Want::at("x", rule)
    }

    pub(super) fn at(cell: &str, rule: &Rule) -> Want {
        Want {
            terms: smallvec![Drive::term(cell, rule)],
            scopes: Scopes::new(),
            priority: Priority::Normal,
            caller: 0,
            patience: s(3_600),
            seniority: None,
        }
    }

    pub(super) fn and(mut self, cell: &str, rule: &Rule) -> Want {
        self.terms.push(Drive::term(cell, rule));
        self
    }

    pub(super) fn scope(mut self, scope: &str) -> Want {
        self.scopes.push(ScopeId::named(&[scope]));
        self
    }

    pub(super) fn cost(mut self, cost: u64) -> Want {
        self.terms[0].cost = cost;
        self
    }

    pub(super) fn leave(mut self, leave: u64) -> Want {
        self.terms[0].leave = leave;
        self
    }

    pub(super) fn priority(mut self, priority: Priority) -> Want {
        self.priority = priority;
        self
    }

    pub(super) fn low(self) -> Want {
        self.priority(Priority::Low)
    }

    pub(super) fn high(self) -> Want {
        self.priority(Priority::High)
    }

    pub(super) fn by(mut self, caller: u32) -> Want {
        self.caller = caller;
        self
    }

    pub(super) fn patience(mut self, patience: Span) -> Want {
        self.patience = patience;
        self
    }

    /// Go at once or be refused.
    pub(super) fn at_once(self) -> Want {
        self.patience(Span::ZERO)
    }

    pub(super) fn senior(mut self, seniority: u64) -> Want {
        self.seniority = Some(seniority);
        self
    }
}

/// A gate, its ledger and a clock.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) gate: Gate,
    pub(super) table: Table,
    pub(super) now: Now,
    /// What each call got, and when.
    pub(super) fates: BTreeMap<u64, (Micros, Resolution)>,
    pub(super) seniorities: BTreeMap<u64, u64>,
    /// Calls that went, in order.
    pub(super) went: Vec<u64>,
    /// Transactions, and asks in them.
    pub(super) offers: usize,
    pub(super) asks: usize,
    /// Timers that fired.
    pub(super) timers: usize,
    pub(super) arm: Option<Micros>,
    /// Cells of which the ledger was told that nobody waits for them any more.
    pub(super) left: Vec<CellId>,
    /// The last tick settled something, so there may be more to do.
    pub(super) settled: bool,
    flying: BTreeMap<u64, Ask>,
    seq: u64,
}

impl Stage {
    pub(super) fn new() -> Stage {
        Stage::with(Settings {
            waiting_max: 20_000,
            ..Settings::default()
        })
    }

    pub(super) fn fifo() -> Stage {
        Stage::with(Settings {
            order: Order::Fifo,
            ..Settings::default()
        })
    }

    pub(super) fn with(settings: Settings) -> Stage {
        Stage {
            gate: Gate::new(settings),
            table: Table::default(),
            now: Now {
                at: BEGIN,
                wall: START,
            },
            fates: BTreeMap::new(),
            seniorities: BTreeMap::new(),
            went: Vec::new(),
            offers: 0,
            asks: 0,
            timers: 0,
            arm: None,
            left: Vec::new(),
            settled: false,
            flying: BTreeMap::new(),
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
    pub(super) fn push(&mut self, want: Want) -> u64 {
        self.seq += 1;
        let ask = Ask {
            id: Stage::id(self.seq),
            terms: want.terms,
            scopes: want.scopes,
            priority: want.priority,
            patience: want.patience,
            evidence: Evidence::Report {
                by: s(30),
                late: s(5),
            },
        };
        let waiter = Waiter {
            ask,
            caller: CallerId(want.caller),
            deadline: self.now.at + want.patience,
            seniority: want.seniority,
        };
        self.gate.push(waiter, self.now);
        self.seq
    }

    /// A call leaves the line and asks for something else in its old place.
    pub(super) fn ask_anew(&mut self, seq: u64, want: Want) -> u64 {
        let id = Stage::id(seq);
        let seniority = self.gate.waiting[&id].arrival;
        self.gate.cancel(id);
        self.gate.returns(seniority, want.priority);
        self.push(want.senior(seniority))
    }

    /// A call arrives, and what can be done is done.
    pub(super) fn call(&mut self, want: Want) -> u64 {
        let seq = self.push(want);
        self.run();
        seq
    }

    pub(super) fn calls(&mut self, count: usize, want: &Want) -> Vec<u64> {
        let seqs = (0..count).map(|_| self.push(want.clone())).collect();
        self.run();
        seqs
    }

    /// One tick: what is told is noted, what is settled is settled, what is offered is returned.
    pub(super) fn tick(&mut self) -> Vec<Ask> {
        let Effects {
            offer,
            resolve,
            settle,
            left,
            arm,
        } = self.gate.tick(self.now);
        self.left.extend(left);
        self.arm = arm;
        for resolved in resolve {
            let seq = resolved.ask.id.seq;
            let twice = self
                .fates
                .insert(seq, (self.now.at, resolved.resolution.clone()));
            assert_eq!(twice, None, "call {seq} was resolved twice");
            self.seniorities.insert(seq, resolved.seniority);
            if let Resolution::Go { .. } = resolved.resolution {
                self.went.push(seq);
                self.flying.insert(seq, resolved.ask);
            }
        }
        self.settled = !settle.is_empty();
        if self.settled {
            self.turn(&settle, &[]);
        }
        offer
    }

    /// What the ledger says to an offer.
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
        panic!("the gate asks for ever at one instant");
    }

    /// Nothing more is to be done at this instant.
    pub(super) fn is_quiet(&self) -> bool {
        !self.settled && self.arm.is_none_or(|arm| arm > self.now.at)
    }

    /// Time passes, and each timer fires at its instant.
    pub(super) fn pass(&mut self, span: Span) {
        let end = self.now.at + span;
        while let Some(arm) = self.arm.filter(|&arm| arm <= end) {
            self.set(arm);
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
        if !out.scopes.is_empty() {
            self.gate.scopes_changed(&out.scopes);
        }
        out.verdicts
    }

    pub(super) fn settle(&mut self, seq: u64, outcome: Outcome) {
        let ask = self.flying.get(&seq).expect("it went").clone();
        let settle = Settle::Permit {
            id: ask.id,
            terms: ask.terms,
            scopes: ask.scopes,
            outcome,
        };
        self.turn(&[settle], &[]);
    }

    /// The head of its answer is here.
    pub(super) fn arrive(&mut self, seq: u64) {
        self.settle(seq, arrived());
        self.run();
    }

    /// The end of its answer is here.
    pub(super) fn finish(&mut self, seq: u64) {
        self.settle(seq, Outcome::Finished { age: Span::ZERO });
        self.run();
    }

    /// Every call that went is answered at once, from now on until nobody waits.
    pub(super) fn answer_all(&mut self, up_to: Span) {
        let end = self.now.at + up_to;
        let mut answered = 0;
        self.run();
        loop {
            while answered < self.went.len() {
                self.arrive(self.went[answered]);
                answered += 1;
            }
            let Some(arm) = self.arm.filter(|&arm| arm <= end) else {
                return;
            };
            self.set(arm);
            self.timers += 1;
            self.run();
        }
    }

    pub(super) fn fate(&self, seq: u64) -> Option<&Resolution> {
        self.fates.get(&seq).map(|(_, fate)| fate)
    }

    pub(super) fn is_gone(&self, seq: u64) -> bool {
        matches!(self.fate(seq), Some(Resolution::Go { .. }))
    }

    /// When it went, after the beginning.
    pub(super) fn went_after(&self, seq: u64) -> Option<Span> {
        let (at, fate) = self.fates.get(&seq)?;
        matches!(fate, Resolution::Go { .. }).then_some(at.since(BEGIN))
    }

    pub(super) fn since_begin(&self) -> Span {
        self.now.at.since(BEGIN)
    }
}

pub(super) fn cell(name: &str) -> CellId {
    CellId::named(&[name])
}
