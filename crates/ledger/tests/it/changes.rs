//! A limit changes its period or algorithm while calls are in flight. A simulated provider, which
//! changes its own rule at the same instant, judges the result.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use smallvec::smallvec;
use tollgate_core::ask::{CellId, Settle};
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};
use tollgate_sim::rule::{CallId, Cost, Counting, Provider, RuleDecision};

use crate::backend::{Backend, Owner, Permit, arrived, secs, sliding, term};

/// Each case has some hundred transactions.
const CASES: u32 = 48;

/// One limit, for Tollgate and for the provider.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Sliding(u64, u64),
    Bucket(u64, u64),
    Fixed(u64, u64),
}

impl Shape {
    fn rule(self) -> Arc<Rule> {
        Arc::new(match self {
            Shape::Sliding(limit, period) => Rule::sliding(limit, secs(period)).unwrap(),
            Shape::Bucket(limit, period) => Rule::bucket(limit, secs(period), limit).unwrap(),
            Shape::Fixed(limit, period) => Rule::fixed(limit, secs(period)).unwrap(),
        })
    }

    fn counting(self) -> Counting {
        match self {
            Shape::Sliding(limit, period) => {
                let window = secs(period);
                Counting::Sliding { limit, window }
            }
            Shape::Bucket(limit, period) => Counting::Bucket {
                limit,
                window: secs(period),
                burst: limit,
                tick: None,
            },
            Shape::Fixed(limit, period) => {
                let window = secs(period);
                Counting::FirstUse { limit, window }
            }
        }
    }

    /// Does a cell of this shape hold everything that the other shape has to count?
    fn covers(self, other: Shape) -> bool {
        matches!(self, Shape::Sliding(..)) && self.rule().period() >= other.rule().period()
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let numbers = || (1_u64..7, 1_u64..6);
    prop_oneof![
        numbers().prop_map(|(limit, period)| Shape::Sliding(limit, period)),
        numbers().prop_map(|(limit, period)| Shape::Bucket(limit, period)),
        numbers().prop_map(|(limit, period)| Shape::Fixed(limit, period)),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    before: Shape,
    after: Shape,
    /// When the limit changes, in milliseconds.
    change: u64,
    /// The delay of each call and of its response, used in turn, in milliseconds.
    delays: Vec<(u64, u64)>,
    /// The pauses between two rounds of calls, used in turn, in milliseconds.
    pauses: Vec<u64>,
}

fn case() -> impl Strategy<Value = Case> {
    let delays = proptest::collection::vec((0_u64..900, 0_u64..900), 1..8);
    let pauses = proptest::collection::vec(1_u64..700, 1..8);
    (shape(), shape(), 500_u64..9_000, delays, pauses).prop_map(
        |(before, after, change, delays, pauses)| Case {
            before,
            after,
            change,
            delays,
            pauses,
        },
    )
}

/// The next step of a call.
enum CallStep {
    Arrives(Permit),
    Responded(Permit),
}

/// One case on one ledger.
struct Simulation<'a, B> {
    backend: &'a B,
    owner: Owner,
    number: u32,
    /// On the ledger's clock, where that moves by itself.
    start: Option<Micros>,
    now: u64,
    provider: Provider,
    /// Every accepted call and its time.
    log: Vec<(CallId, Micros)>,
    pending: BTreeMap<(u64, u64), CallStep>,
    sent: u64,
    /// How many of them were sent under the old rule.
    sent_before: u64,
    is_changed: bool,
    case: &'a Case,
}

impl<B: Backend> Simulation<'_, B> {
    fn cell(&self, name: &str) -> String {
        format!("{name} {}", self.number)
    }

    /// Advances the clock and processes every step that becomes due.
    fn pass_to(&mut self, until: u64, delays: &[(u64, u64)]) {
        while let Some((&(at, id), _)) = self.pending.first_key_value()
            && at <= until
        {
            self.clock_to(at);
            match self.pending.remove(&(at, id)) {
                Some(CallStep::Arrives(permit)) => {
                    self.arrive(CallId(id));
                    let (_, back) = delays[usize::try_from(id).unwrap() % delays.len()];
                    self.pending
                        .insert((at + back, id), CallStep::Responded(permit));
                }
                Some(CallStep::Responded(permit)) => self.owner.settle(&permit, arrived()),
                None => {}
            }
        }
        self.clock_to(until);
    }

    fn clock_to(&mut self, at: u64) {
        self.catch_up();
        self.backend
            .pass(Span::from_millis(at.saturating_sub(self.now)));
        self.now = self.now.max(at);
        self.catch_up();
    }

    /// Time may have passed by itself.
    fn catch_up(&mut self) {
        self.now = self.now.max(self.micros().0 / 1_000);
    }

    fn micros(&self) -> Micros {
        match (self.backend.now(), self.start) {
            (Some(now), Some(start)) => Micros(0) + now.since(start),
            _ => Micros(self.now * 1_000),
        }
    }

    fn arrive(&mut self, id: CallId) {
        let now = self.micros();
        let decision = self.provider.arrive(id, now, Cost::CALL);
        if decision == RuleDecision::Accepted {
            self.log.push((id, now));
        } else {
            // Calls that were in flight when a lower limit took effect may be rejected.
            let granted_before = id.0 <= self.sent_before && self.is_changed;
            assert!(granted_before, "{} at {}: {:?}", id.0, self.now, self.case);
        }
    }

    async fn send_all(&mut self, cell: &str, rule: &Arc<Rule>, delays: &[(u64, u64)]) -> u64 {
        let cell = self.cell(cell);
        let mut sent = 0;
        while let Ok(permit) = self.owner.take(smallvec![term(&cell, rule)]).await {
            self.sent += 1;
            sent += 1;
            let (there, _) = delays[usize::try_from(self.sent).unwrap() % delays.len()];
            self.catch_up();
            let arrives = (self.now + there, self.sent);
            self.pending.insert(arrives, CallStep::Arrives(permit));
        }
        sent
    }

    /// Changes the rule in the ledger and at the provider. `replay`: the provider counts earlier
    /// calls under the new rule too; otherwise it starts from zero.
    async fn change(&mut self, case: &Case, replay: bool) {
        (self.sent_before, self.is_changed) = (self.sent, true);
        self.provider = Provider::new(vec![case.after.counting().into()]);
        if replay {
            for (id, at) in &self.log {
                let _counted = self.provider.arrive(*id, *at, Cost::CALL);
            }
        }
        self.owner.send_settle(Settle::Inherit {
            from: CellId::named(&[&self.cell("before")]),
            old_rule: case.before.rule(),
            to: CellId::named(&[&self.cell("after")]),
            rule: case.after.rule(),
        });
    }
}

/// Sends every permitted call and changes the limit in between. Returns the calls sent afterwards.
async fn run(backend: &impl Backend, number: u32, case: &Case, replay: bool) -> u64 {
    let mut world = Simulation {
        backend,
        owner: Owner::new(backend, number + 1),
        number,
        start: backend.now(),
        now: 0,
        provider: Provider::new(vec![case.before.counting().into()]),
        log: Vec::new(),
        pending: BTreeMap::new(),
        sent: 0,
        sent_before: 0,
        is_changed: false,
        case,
    };
    let (before, after) = (case.before.rule(), case.after.rule());
    let mut pauses = case.pauses.iter().cycle();
    while world.now < case.change {
        world.send_all("before", &before, &case.delays).await;
        let pause = pauses.next().copied().unwrap_or(1);
        world.pass_to((world.now + pause).min(case.change), &case.delays);
    }
    world.change(case, replay).await;
    let mut sent = 0;
    // Three periods, and the longest time that earlier calls may take.
    let end = case.change + 3 * after.period().0 / 1_000 + 4_000;
    while world.now < end {
        sent += world.send_all("after", &after, &case.delays).await;
        let pause = pauses.next().copied().unwrap_or(1);
        world.pass_to(world.now + pause, &case.delays);
    }
    sent
}

/// R-A13: no reset and no burst for any pair of periods and algorithms.
pub(crate) async fn a_limit_that_changes_its_algorithm_is_kept(backend: &impl Backend) {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    for number in 0..CASES {
        let case = case().new_tree(&mut runner).unwrap().current();
        let replay = case.before.covers(case.after);
        let sent = run(backend, number, &case, replay).await;
        assert!(sent > 0, "the limit never opens again: {case:?}");
    }
}

/// Two owners change the limit one after another. Permits that the second owner grants in between
/// are counted; permits that the first owner has carried over are not counted twice.
pub(crate) async fn owners_may_change_a_limit_one_after_another(backend: &impl Backend) {
    let (mut one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    let (before, after) = (sliding(9, secs(10)), sliding(9, secs(20)));
    let carry = || Settle::Inherit {
        from: CellId::named(&["before"]),
        old_rule: before.clone(),
        to: CellId::named(&["after"]),
        rule: after.clone(),
    };
    for owner in [&mut one, &mut two] {
        let permit = owner.take(smallvec![term("before", &before)]).await;
        owner.settle(&permit.unwrap(), arrived());
        owner.wait_settled().await;
    }
    one.send_settle(carry());
    one.wait_settled().await;
    assert_eq!(one.peek("after", &after).await.used, 2);
    let permit = two.take(smallvec![term("before", &before)]).await;
    two.settle(&permit.unwrap(), arrived());
    two.send_settle(carry());
    two.wait_settled().await;
    assert_eq!(two.peek("after", &after).await.used, 3);
}
