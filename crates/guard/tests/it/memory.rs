//! The guard table passes the suite of all backends.

use std::time::Duration;

use tollgate_guard::{GuardKey, GuardPlan, GuardTable, Limit, Outcome, Seed, Tick};

use crate::behaviour::{self, Ask, Decision, Guards, guard_behaviours};

struct Memory(GuardTable);

fn memory() -> Memory {
    Memory(GuardTable::new(1_000, Seed([7, 11])))
}

impl Memory {
    fn key(&self, who: &str) -> GuardKey {
        let (class, name) = who.split_once(':').expect("`class:name`");
        self.0.keys(class).key(name.as_bytes())
    }

    fn plan(&self, limits: &[Limit]) -> GuardPlan {
        self.0.plan(limits).expect("limits of tests are valid")
    }
}

impl Guards for Memory {
    const GRAIN: Duration = Duration::from_nanos(1);

    fn take(&mut self, asks: &[Ask<'_>], at: Duration) -> Decision {
        let now = Tick::default().after(at);
        let plans: Vec<GuardPlan> = asks.iter().map(|ask| self.plan(ask.limits)).collect();
        let asks: Vec<tollgate_guard::Ask<'_>> = asks
            .iter()
            .zip(&plans)
            .map(|(ask, plan)| tollgate_guard::Ask {
                key: self.key(ask.who),
                plan,
                cost: ask.cost,
            })
            .collect();
        // One ask takes the fast path, several the general one: the suite covers both.
        let outcome = match asks.as_slice() {
            [ask] => self.0.take_cost(*ask, now),
            several => self.0.take_all(several, now).expect("few asks"),
        };
        match outcome {
            Outcome::Granted { remaining } => Decision::Granted { remaining },
            Outcome::Rejected {
                retry_in_ns,
                ask,
                limit,
            } => Decision::Rejected {
                retry_in: Duration::from_nanos(retry_in_ns.get()),
                ask: ask.into(),
                limit: limit.into(),
            },
            Outcome::Never { ask, .. } => Decision::Never { ask: ask.into() },
        }
    }

    fn peek(&mut self, who: &str, limits: &[Limit], at: Duration) -> Vec<u64> {
        let view = self
            .0
            .peek(self.key(who), &self.plan(limits), Tick::default().after(at));
        view.buckets()
            .iter()
            .map(|bucket| bucket.micro_tokens)
            .collect()
    }
}

guard_behaviours!(memory;
    c3_a_class_gives_its_burst_and_then_its_rate,
    c1_polling_often_loses_no_fraction,
    c1_fractions_add_up_exactly,
    c1_a_slow_bucket_is_not_refilled_by_forgetting,
    c2_looking_takes_nothing_and_shows_fractions,
    c11_a_rejection_spends_nothing_anywhere,
    c11_a_grant_spends_everywhere,
    c11_a_key_named_twice_pays_twice,
    limits_of_one_key_are_decided_together,
    the_retry_time_of_a_rejection_is_exact,
    a_cost_above_the_burst_is_never_granted,
    cost_zero_looks_and_a_negative_cost_puts_back,
    a_clock_that_goes_back_frees_nothing,
    a_clock_that_stepped_back_blocks_for_a_bounded_time,
    callers_and_classes_are_apart,
    a_change_of_limits_keeps_the_tokens_at_hand,
    switching_limits_back_and_forth_gives_nothing,
);
