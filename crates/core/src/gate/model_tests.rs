//! Random lives of a gate: arrivals, departures, asks made anew, slow verdicts, answers, events.
//!
//! Whatever happens, each waiter is resolved once or leaves, nobody who left is asked for, nobody
//! sleeps with nothing to wake it, order holds, and nothing is left in the end.

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
        patience: Span,
    },
    /// The n-th of those who wait, counted round.
    Cancel(usize),
    AskAgain(usize, Priority, Span),
    /// The ledger answers the offer it has.
    Decide,
    /// The n-th of those who went is answered and has ended, or never left.
    Settle(usize, bool),
    Pass(Span),
    AnythingChanged,
    /// Limits have changed; nobody asks again.
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
    let patience = || {
        prop_oneof![
            Just(Span::ZERO),
            (1_u64..5_000).prop_map(ms),
            Just(s(1_000)),
        ]
    };
    prop_oneof![
        8 => (0_u64..4, 1_u64..=3, 0_u32..3, priority(), patience()).prop_map(
            |(kind, cost, caller, priority, patience)| Step::Push {
                kind, cost, caller, priority, patience,
            }
        ),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => (any::<usize>(), priority(), patience())
            .prop_map(|(who, priority, patience)| Step::AskAgain(who, priority, patience)),
        6 => Just(Step::Decide),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(who, sent)| Step::Settle(who, sent)),
        3 => (1_u64..3_000).prop_map(|millis| Step::Pass(ms(millis))),
        1 => Just(Step::AnythingChanged),
        1 => Just(Step::Recall),
    ]
}

/// Four kinds of calls over three limits, so that lines cross.
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

/// What matters for order: who may expect to go before whom.
type CallKind = (u64, u64, u32, Priority);

/// A stage whose ledger takes its time, and what the test knows of it.
struct Model {
    stage: TestGate,
    /// Every call that has not been told anything and has not left.
    waiting: BTreeMap<u64, CallKind>,
    /// Calls that went and are not settled.
    in_flight: Vec<u64>,
    /// The offer the ledger has, with the verdicts it gave when it was asked.
    pending: Option<Vec<(PermitId, Verdict)>>,
    /// The last one of each kind that went.
    last: BTreeMap<CallKind, u64>,
    seen: usize,
    /// The ledger answers at once.
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
            stage: TestGate::with(settings),
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
                patience,
            } => {
                let want = want(kind, cost).from_caller(caller).priority(priority);
                let seq = self.stage.push(want.max_wait(patience));
                self.waiting.insert(seq, (kind, cost, caller, priority));
            }
            Step::Cancel(who) => {
                if let Some(seq) = self.waiter(who) {
                    self.stage.gate.cancel(TestGate::id(seq));
                    self.waiting.remove(&seq);
                }
            }
            Step::AskAgain(who, priority, patience) => {
                if let Some(seq) = self.waiter(who)
                    && let Some((kind, cost, caller, _)) = self.waiting.remove(&seq)
                {
                    let want = want(kind, cost.max(1))
                        .from_caller(caller)
                        .priority(priority);
                    let seq = self.stage.ask_again(seq, want.max_wait(patience));
                    // It has a history now that no other one has.
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
            Step::AnythingChanged => self.stage.gate.anything_changed(),
            Step::Recall => self.stage.gate.recall(),
        }
        self.tick();
    }

    fn waiter(&self, who: usize) -> Option<u64> {
        let len = self.waiting.len().max(1);
        self.waiting.keys().copied().nth(who % len)
    }

    fn settle(&mut self, seq: u64, sent: bool) {
        if sent {
            self.stage.settle(seq, crate::test_ledger::arrived());
            self.stage
                .settle(seq, Outcome::Finished { age: Span::ZERO });
        } else {
            self.stage.settle(seq, Outcome::Unsent);
        }
    }

    fn deliver_verdicts(&mut self) {
        if let Some(verdicts) = self.pending.take() {
            self.stage.gate.verdicts(verdicts, self.stage.now);
        }
    }

    /// Timers fire at their instants, whether or not the ledger has answered.
    fn advance(&mut self, span: Span) {
        let end = self.stage.now.at + span;
        while let Some(arm) = self.stage.wake_at.filter(|&arm| arm <= end) {
            self.go_to(arm);
            self.tick();
        }
        self.go_to(end);
    }

    fn go_to(&mut self, at: Micros) {
        let span = at.since(self.stage.now.at);
        self.stage.now.at += span;
        self.stage.now.wall = self.stage.now.wall + span;
    }

    fn tick(&mut self) {
        for _ in 0..100 {
            let offer = self.stage.tick();
            self.check_tick(&offer);
            if !offer.is_empty() {
                self.pending = Some(self.stage.decide(&offer));
            }
            if self.prompt && self.pending.is_some() {
                self.deliver_verdicts();
            } else if self.stage.is_quiet() {
                return self.every_waiter_can_wake();
            }
        }
        panic!("the timer stands still");
    }

    /// Checks what one tick has said.
    fn check_tick(&mut self, offer: &[Ask]) {
        for ask in offer {
            assert!(
                self.waiting.contains_key(&ask.id.seq),
                "{} left and is asked for",
                ask.id.seq
            );
        }
        assert!(offer.is_empty() || self.pending.is_none(), "two offers");
        let went: Vec<u64> = self.stage.granted[self.seen..].to_vec();
        self.seen = self.stage.granted.len();
        for seq in went {
            let kind = self.waiting[&seq];
            let before = self.last.insert(kind, seq).unwrap_or(0);
            assert!(before < seq, "{before} of {kind:?} went before {seq}");
            self.in_flight.push(seq);
        }
        let told = &self.stage.resolutions;
        self.waiting.retain(|seq, _| !told.contains_key(seq));
    }

    /// Somebody waits: then the ledger has an offer, a timer is armed, or the place waits for an
    /// event that is still to come.
    fn every_waiter_can_wake(&self) {
        let gate = &self.stage.gate;
        assert_eq!(gate.waiting.len(), self.waiting.len());
        let busy = self.pending.is_some() || !gate.offered.is_empty();
        for entry in gate.waiting.values() {
            let wake = match entry.position {
                Position::Ready | Position::Offered => None,
                Position::Queued(place) => gate.blocks.get(&place).and_then(|block| block.wake()),
            };
            // Whoever was called back is waited for, but not for ever.
            let wake = wake.or(gate.recalled.until());
            assert!(busy || wake.is_some(), "{entry:?} sleeps for ever");
        }
    }

    /// Nobody new comes; the ledger answers, all calls end, and time passes.
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
        let mut life = Model::new(if fifo { Order::Fifo } else { Order::Priority });
        for step in steps {
            life.step(&step);
        }
        life.end();
        prop_assert_eq!(life.waiting.len(), 0, "still waiting");
        life.stage.gate.anything_changed();
        prop_assert!(life.stage.gate.is_idle(), "{:?}", life.stage.gate);
    }

    /// M4: what the ledger frees goes to somebody within the same instant, if anybody can use it.
    #[test]
    fn no_permit_is_free_while_a_waiter_could_use_it(
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let mut life = Model::new(Order::Priority);
        life.prompt = true;
        for step in steps {
            life.step(&step);
            let mut ledger = life.stage.table.clone();
            for entry in life.stage.gate.waiting.values() {
                let alone = crate::turn::turn(
                    &mut ledger,
                    life.stage.now,
                    &[],
                    std::slice::from_ref(&entry.ask),
                );
                let idle = matches!(alone.verdicts[0], Verdict::Go { .. });
                let ahead = life.stage.gate.waiting.values().any(|other| {
                    other.ask.priority >= entry.ask.priority && other.ask.id != entry.ask.id
                });
                let ahead = ahead || life.stage.gate.recalled.until().is_some();
                prop_assert!(!idle || ahead, "{:?} could go", entry);
                if idle {
                    ledger = life.stage.table.clone();
                }
            }
        }
    }
}

/// A wait that ends by an event says so; the model above relies on it.
#[test]
fn a_slot_in_flight_ends_by_an_event() {
    let mut stage = TestGate::new();
    let rule = Rule::in_flight(1).expect("sane");
    stage.call(TestCall::new(&rule));
    stage.push(TestCall::new(&rule));
    let offer = stage.tick();
    let verdicts = stage.decide(&offer);
    assert!(matches!(
        verdicts[0].1,
        Verdict::Wait {
            on: WakeOn::Event,
            ..
        }
    ));
    assert!(matches!(stage.resolution(1), Some(Resolution::Go { .. })));
}
