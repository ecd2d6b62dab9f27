//! Random histories of a gate: arrivals, cancellations, repeated asks, slow verdicts, responses,
//! events.
//!
//! In every history each waiter is resolved once or leaves, no waiter that left is offered, each
//! waiter has something to wake it, order holds, and the gate is empty in the end.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use crate::ask::{Ask, Outcome, PermitId, Priority, Verdict, WakeOn};
use crate::gate::test_gate::{TestCall, TestGate};
use crate::gate::{GateSettings, Order, Position, Resolution};
use crate::limit::Rule;
use crate::test_ledger::{ms, s};
use crate::time::{Micros, Span};

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Push {
        kind: u64,
        cost: u64,
        caller: u32,
        priority: Priority,
        max_wait: Span,
    },
    /// The n-th waiter, modulo their number.
    Cancel(usize),
    AskAgain(usize, Priority, Span),
    /// The ledger decides its offer.
    Decide,
    /// The n-th granted call gets its response and ends, or was never sent.
    Settle(usize, bool),
    Pass(Span),
    AnythingChanged,
    /// Limits have changed; no waiter asks again.
    Recall,
}

fn step() -> impl Strategy<Value = Step> {
    let priority = || {
        prop_oneof![
            Just(Priority::Low),
            Just(Priority::Normal),
            Just(Priority::High)
        ]
    };
    let max_wait = || {
        prop_oneof![
            Just(Span::ZERO),
            (1_u64..5_000).prop_map(ms),
            Just(s(1_000)),
        ]
    };
    prop_oneof![
        8 => (0_u64..4, 1_u64..=3, 0_u32..3, priority(), max_wait()).prop_map(
            |(kind, cost, caller, priority, max_wait)| Step::Push {
                kind, cost, caller, priority, max_wait,
            }
        ),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => (any::<usize>(), priority(), max_wait())
            .prop_map(|(who, priority, max_wait)| Step::AskAgain(who, priority, max_wait)),
        6 => Just(Step::Decide),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(who, sent)| Step::Settle(who, sent)),
        3 => (1_u64..3_000).prop_map(|millis| Step::Pass(ms(millis))),
        1 => Just(Step::AnythingChanged),
        1 => Just(Step::Recall),
    ]
}

/// Four kinds of calls over three limits, so that queues overlap.
fn want(kind: u64, cost: u64) -> TestCall {
    let window = Rule::sliding(4, s(2)).expect("sane");
    let at_a_time = Rule::in_flight(3).expect("sane");
    let long = Rule::sliding(300, s(60)).expect("sane");
    match kind {
        0 => TestCall::at("window", &window).cost(cost).reserve(1),
        1 => TestCall::at("at a time", &at_a_time),
        2 => TestCall::at("window", &window).and("at a time", &at_a_time),
        _ => TestCall::at("long", &long).cost(cost),
    }
}

/// The attributes that decide the order of calls.
type CallKind = (u64, u64, u32, Priority);

/// A gate with a slow ledger, and what the test knows of it.
struct Model {
    test: TestGate,
    /// Every call without a resolution that has not left.
    waiting: BTreeMap<u64, CallKind>,
    /// Granted calls that are not settled.
    in_flight: Vec<u64>,
    /// The pending offer, with the verdicts that the ledger gave.
    pending: Option<Vec<(PermitId, Verdict)>>,
    /// The last granted call of each kind.
    last: BTreeMap<CallKind, u64>,
    seen: usize,
    /// The ledger decides at once.
    prompt: bool,
}

impl Model {
    fn new(order: Order) -> Model {
        let settings = GateSettings {
            order,
            waiting_max: 30,
            ..GateSettings::default()
        };
        Model {
            test: TestGate::with(settings),
            waiting: BTreeMap::new(),
            in_flight: Vec::new(),
            pending: None,
            last: BTreeMap::new(),
            seen: 0,
            prompt: false,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Push {
                kind,
                cost,
                caller,
                priority,
                max_wait,
            } => {
                let want = want(kind, cost).with_caller(caller).priority(priority);
                let seq = self.test.push(want.max_wait(max_wait));
                self.waiting.insert(seq, (kind, cost, caller, priority));
            }
            Step::Cancel(who) => {
                if let Some(seq) = self.waiter(who) {
                    self.test.gate.cancel(TestGate::id(seq));
                    self.waiting.remove(&seq);
                }
            }
            Step::AskAgain(who, priority, max_wait) => {
                if let Some(seq) = self.waiter(who)
                    && let Some((kind, cost, caller, _)) = self.waiting.remove(&seq)
                {
                    let want = want(kind, cost.max(1))
                        .with_caller(caller)
                        .priority(priority);
                    let seq = self.test.ask_again(seq, want.max_wait(max_wait));
                    // No other call has the same history, so it is a kind of its own.
                    self.waiting.insert(seq, (seq + 10, 0, 0, priority));
                }
            }
            Step::Decide => self.deliver_verdicts(),
            Step::Settle(who, sent) => {
                if !self.in_flight.is_empty() {
                    let seq = self.in_flight.remove(who % self.in_flight.len());
                    self.settle(seq, sent);
                }
            }
            Step::Pass(span) => self.advance(span),
            Step::AnythingChanged => self.test.gate.anything_changed(),
            Step::Recall => self.test.gate.recall(),
        }
        self.tick();
    }

    fn waiter(&self, who: usize) -> Option<u64> {
        let len = self.waiting.len().max(1);
        self.waiting.keys().copied().nth(who % len)
    }

    fn settle(&mut self, seq: u64, sent: bool) {
        if sent {
            self.test.settle(seq, crate::test_ledger::arrived());
            self.test.settle(seq, Outcome::Finished { age: Span::ZERO });
        } else {
            self.test.settle(seq, Outcome::Unsent);
        }
    }

    fn deliver_verdicts(&mut self) {
        if let Some(verdicts) = self.pending.take() {
            self.test.gate.verdicts(verdicts, self.test.now);
        }
    }

    /// Timers fire at their instants, whether or not the ledger has decided.
    fn advance(&mut self, span: Span) {
        let end = self.test.now.at + span;
        while let Some(wake_at) = self.test.wake_at.filter(|&wake_at| wake_at <= end) {
            self.go_to(wake_at);
            self.tick();
        }
        self.go_to(end);
    }

    fn go_to(&mut self, at: Micros) {
        let span = at.since(self.test.now.at);
        self.test.now.at += span;
        self.test.now.wall = self.test.now.wall + span;
    }

    fn tick(&mut self) {
        for _ in 0..100 {
            let offer = self.test.tick();
            self.check_tick(&offer);
            if !offer.is_empty() {
                self.pending = Some(self.test.decide(&offer));
            }
            if self.prompt && self.pending.is_some() {
                self.deliver_verdicts();
            } else if self.test.is_quiet() {
                return self.every_waiter_can_wake();
            }
        }
        panic!("the timer does not advance");
    }

    /// Checks the output of one tick.
    fn check_tick(&mut self, offer: &[Ask]) {
        for ask in offer {
            assert!(
                self.waiting.contains_key(&ask.id.seq),
                "{} left and is offered",
                ask.id.seq
            );
        }
        assert!(offer.is_empty() || self.pending.is_none(), "two offers");
        let went: Vec<u64> = self.test.granted[self.seen..].to_vec();
        self.seen = self.test.granted.len();
        for seq in went {
            let kind = self.waiting[&seq];
            let before = self.last.insert(kind, seq).unwrap_or(0);
            assert!(before < seq, "{before} of {kind:?} went before {seq}");
            self.in_flight.push(seq);
        }
        let resolved = &self.test.resolutions;
        self.waiting.retain(|seq, _| !resolved.contains_key(seq));
    }

    /// For each waiter the ledger has an offer, a timer is armed, or its blocker waits for an
    /// event.
    fn every_waiter_can_wake(&self) {
        let gate = &self.test.gate;
        assert_eq!(gate.waiting.len(), self.waiting.len());
        let busy = self.pending.is_some() || !gate.offered.is_empty();
        for entry in gate.waiting.values() {
            let wake = match entry.position {
                Position::Ready | Position::Offered => None,
                Position::Queued(blocker) => {
                    gate.blocks.get(&blocker).and_then(|block| block.wake())
                }
            };
            // Recalled waiters are waited for, but not forever.
            let wake = wake.or(gate.recalled.until());
            assert!(busy || wake.is_some(), "nothing wakes {entry:?}");
        }
    }

    /// No new calls: the ledger decides, all calls end, and time passes.
    fn end(&mut self) {
        for _ in 0..400 {
            self.deliver_verdicts();
            self.tick();
            while let Some(seq) = self.in_flight.pop() {
                self.settle(seq, true);
            }
            self.tick();
            if self.pending.is_none() {
                self.advance(ms(500));
            }
        }
    }
}

proptest! {
    #![proptest_config(Config {
        cases: 256,
        rng_seed: RngSeed::Fixed(20_261_115),
        failure_persistence: None,
        ..Config::default()
    })]

    /// R-C3, M3, M4: the invariants of every gate.
    #[test]
    fn a_gate_keeps_its_invariants(
        steps in prop::collection::vec(step(), 1..150),
        fifo in any::<bool>(),
    ) {
        let mut model = Model::new(if fifo { Order::Fifo } else { Order::Priority });
        for step in steps {
            model.step(&step);
        }
        model.end();
        prop_assert_eq!(model.waiting.len(), 0, "still waiting");
        model.test.gate.anything_changed();
        prop_assert!(model.test.gate.is_idle(), "{:?}", model.test.gate);
    }

    /// M4: a freed permit goes to a waiter that can use it within the same instant.
    #[test]
    fn no_permit_is_free_while_a_waiter_could_use_it(
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let mut model = Model::new(Order::Priority);
        model.prompt = true;
        for step in steps {
            model.step(&step);
            let mut ledger = model.test.table.clone();
            for entry in model.test.gate.waiting.values() {
                let alone = crate::turn::turn(
                    &mut ledger,
                    model.test.now,
                    &[],
                    std::slice::from_ref(&entry.ask),
                );
                let idle = matches!(alone.verdicts[0], Verdict::Go { .. });
                let ahead = model.test.gate.waiting.values().any(|other| {
                    other.ask.priority >= entry.ask.priority && other.ask.id != entry.ask.id
                });
                let ahead = ahead || model.test.gate.recalled.until().is_some();
                prop_assert!(!idle || ahead, "{:?} could go", entry);
                if idle {
                    ledger = model.test.table.clone();
                }
            }
        }
    }
}

/// A wait that ends by an event says so; the model above relies on it.
#[test]
fn a_slot_in_flight_ends_by_an_event() {
    let mut test = TestGate::new();
    let rule = Rule::in_flight(1).expect("sane");
    test.call(TestCall::new(&rule));
    test.push(TestCall::new(&rule));
    let offer = test.tick();
    let verdicts = test.decide(&offer);
    assert!(matches!(
        verdicts[0].1,
        Verdict::Wait {
            on: WakeOn::Event,
            ..
        }
    ));
    assert!(matches!(test.resolution(1), Some(Resolution::Go { .. })));
}
