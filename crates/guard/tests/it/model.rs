//! Random histories: the table and the oracle must agree to the nanosecond and the token.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tollgate_guard::{Ask, GuardPlan, GuardTable, Limit, Outcome, Seed, Tick};

use crate::oracle::{Oracle, Truth};

/// One event.
#[derive(Clone, Debug)]
enum Step {
    /// These keys with these costs, decided as one.
    Take(Vec<(u64, i64)>),
    Wait(u64),
    Sweep(usize),
    /// The process restarts: snapshot, a new clock, restore.
    Restart {
        clock: u64,
    },
}

fn limit() -> impl Strategy<Value = Limit> {
    let period = prop_oneof![
        Just(Duration::from_secs(1)),
        Just(Duration::from_secs(60)),
        Just(Duration::from_secs(86_400)),
        (1_u64..5_000).prop_map(Duration::from_nanos),
        (1_u64..1 << 40).prop_map(Duration::from_nanos),
    ];
    let count = || prop_oneof![1_u32..12, 1_u32..5_000, Just(u32::MAX)];
    (count(), period, count()).prop_filter_map("a burst that fills within 73 years", |parts| {
        let (count, period, burst) = parts;
        let limit = Limit {
            limit: NonZeroU32::new(count)?,
            period,
            burst: NonZeroU32::new(burst)?,
        };
        let full = period.as_nanos() * u128::from(burst) / u128::from(count);
        (full < 1 << 61).then_some(limit)
    })
}

fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![4 => Just(1_i64), 2 => -3_i64..8, 1 => 0_i64..6_000];
    prop_oneof![
        8 => prop::collection::vec((0_u64..4, cost), 1..5).prop_map(Step::Take),
        3 => prop_oneof![0_u64..3, 0_u64..2_000_000_000, 0_u64..1 << 45].prop_map(Step::Wait),
        1 => (0_usize..2_000).prop_map(Step::Sweep),
        1 => (0_u64..1 << 50).prop_map(|clock| Step::Restart { clock }),
    ]
}

/// The table under test, and the difference between its clock and the oracle's.
struct Subject {
    table: GuardTable,
    plans: Vec<GuardPlan>,
    /// The subject's clock minus the oracle's.
    ahead: i128,
}

impl Subject {
    fn new(sets: &[Vec<Limit>]) -> Subject {
        let table = GuardTable::new(64, Seed([3, 5]));
        let plans = sets
            .iter()
            .map(|set| table.plan(set).expect("filtered"))
            .collect();
        Subject {
            table,
            plans,
            ahead: 0,
        }
    }

    fn tick(&self, now: u64) -> Tick {
        let nanos = i128::from(now) + self.ahead;
        Tick::from_nanos(u64::try_from(nanos).expect("clocks of the test only run ahead"))
    }

    fn take(&self, wanted: &[(u64, i64)], now: u64) -> Outcome {
        let keys = self.table.keys("ip");
        let asks: Vec<Ask<'_>> = wanted
            .iter()
            .map(|&(who, cost)| Ask {
                key: keys.number(who),
                plan: &self.plans[usize::try_from(who).expect("four keys") % self.plans.len()],
                cost,
            })
            .collect();
        match asks.as_slice() {
            [ask] => self.table.take_cost(*ask, self.tick(now)),
            several => self
                .table
                .take_all(several, self.tick(now))
                .expect("few asks"),
        }
    }

    fn restart(&mut self, sets: &[Vec<Limit>], clock: u64, now: u64) {
        let mut bytes = Vec::new();
        self.table.snapshot(self.tick(now), &mut bytes);
        self.ahead = i128::from(clock);
        let table = GuardTable::restore(&bytes, 64, self.tick(now), Duration::ZERO);
        self.table = table.expect("its own snapshot");
        self.plans = sets
            .iter()
            .map(|set| self.table.plan(set).expect("filtered"))
            .collect();
    }
}

fn agree(outcome: Outcome, truth: Truth) -> bool {
    match (outcome, truth) {
        (
            Outcome::Granted { remaining },
            Truth::Granted {
                remaining: true_remaining,
            },
        ) => remaining == true_remaining,
        (Outcome::Rejected { retry_in_ns, .. }, Truth::Rejected { wait_ns }) => {
            retry_in_ns.get() == wait_ns
        }
        (Outcome::Never { .. }, Truth::Never) => true,
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        rng_seed: RngSeed::Fixed(0x7011_6a7e),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// C1, C2, C11: same grants, same remaining tokens, same waits as exact buckets, through
    /// sweeps and restarts.
    #[test]
    fn c1_c11_the_table_decides_like_exact_buckets(
        sets in prop::collection::vec(prop::collection::vec(limit(), 1..4), 1..4),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut subject = Subject::new(&sets);
        let mut oracle = Oracle::default();
        let mut now = 1_u64;
        for step in steps {
            match step {
                Step::Wait(nanos) => now += nanos,
                Step::Sweep(slots) => { subject.table.sweep(subject.tick(now), slots); }
                Step::Restart { clock } => subject.restart(&sets, clock, now),
                Step::Take(wanted) => {
                    let asks: Vec<(u64, &[Limit], i64)> = wanted
                        .iter()
                        .map(|&(who, cost)| {
                            let set = usize::try_from(who).expect("four keys") % sets.len();
                            (who, sets[set].as_slice(), cost)
                        })
                        .collect();
                    let outcome = subject.take(&wanted, now);
                    let truth = oracle.take(&asks, now);
                    prop_assert!(agree(outcome, truth), "{outcome:?} but {truth:?} at {now}");
                }
            }
        }
    }

    /// A clock that jumps anywhere never makes the table grant what exact buckets on the furthest
    /// time ever seen would reject.
    #[test]
    fn a_jumping_clock_never_frees_tokens(
        limits in prop::collection::vec(limit(), 1..4),
        jumps in prop::collection::vec((any::<bool>(), 0_u64..1 << 34), 1..200),
    ) {
        let subject = Subject::new(std::slice::from_ref(&limits));
        let mut oracle = Oracle::default();
        let (mut now, mut furthest) = (1 << 40, 0);
        let shortest = limits.iter().map(|limit| limit.period.as_nanos()).min().unwrap_or(0);
        for (back, by) in jumps {
            // Steps back of up to a period: more is a clock that was set back, which another test
            // covers.
            let by = by % u64::try_from(shortest).expect("short periods").max(1);
            now = if back { now.max(furthest) - by } else { now + by };
            furthest = furthest.max(now);
            if let Outcome::Granted { .. } = subject.take(&[(0, 1)], now) {
                let truth = oracle.take(&[(0, &limits, 1)], furthest);
                prop_assert!(matches!(truth, Truth::Granted { .. }), "{truth:?} at {furthest}");
            }
        }
    }
}
