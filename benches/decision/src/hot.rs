//! A few keys used by every thread: the cost of a decision when memory access is cheap.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use leaky_bucket::RateLimiter as Leaky;
use ratelimit::Ratelimiter;
use tollgate_guard::{Ask, Limit};

use crate::Effort;
use crate::measure::{Contender, compare, floor};
use crate::report::{Report, row, side_by_side};
use crate::subjects::{Ours, PLENTY, crab, governor_direct, governor_keyed, ours};

/// A contender that makes the same decision again and again.
macro_rules! again {
    ($name:expr, $decision:expr) => {
        Contender {
            name: $name,
            work: &|n| {
                (0..n).for_each(|_| {
                    black_box($decision);
                })
            },
        }
    };
}

/// One key, with one limit and with three.
pub fn run(effort: Effort, report: &mut Report) {
    one_limit(effort, report);
    three_limits(effort, report);
}

fn one_limit(effort: Effort, report: &mut Report) {
    let guard = ours(1_000);
    let Ours {
        table, clock, one, ..
    } = &guard;
    let key = guard.keys.number(1);
    let govern = governor_direct();
    let cell = AtomicU64::new(0);
    let plenty = u64::from(PLENTY.get());
    let leaky = Leaky::builder()
        .max(1 << 40)
        .initial(1 << 40)
        .refill(1 << 30)
        .build();
    let rate = Ratelimiter::builder(plenty)
        .max_tokens(plenty)
        .initial_available(plenty)
        .build();
    let rate = rate.expect("valid");
    let crab = crab(1_000);
    let contenders = [
        again!("governor", govern.check().is_ok()),
        again!("Tollgate", table.take(key, one, clock.now()).is_granted()),
        again!("floor", floor(&cell, clock.now().nanos())),
        again!("ratelimit", rate.try_wait().is_ok()),
        again!("leaky-bucket", leaky.try_acquire(1)),
        again!("throttlecrab", crab.text("hot")),
    ];
    let timings = [1, 2].map(|threads| compare(threads, effort.rounds, effort.hot, &contenders));
    report.goal(row("one hot key, 1 thread", &timings[0], Some(2), 1.05));
    report.goal(row("one hot key, 2 threads", &timings[1], Some(2), 1.0));
    report.table(side_by_side(
        "All peers on one key",
        "one hot key",
        &timings,
    ));
}

fn three_limits(effort: Effort, report: &mut Report) {
    let guard = ours(1_000);
    let Ours {
        table,
        clock,
        three,
        ..
    } = &guard;
    let key = guard.keys.number(1);
    let [first, second, third] = [governor_direct(), governor_direct(), governor_direct()];
    let contenders = [
        // `&`, not `&&`: all three are checked, as the table checks all three.
        again!(
            "governor",
            first.check().is_ok() & second.check().is_ok() & third.check().is_ok()
        ),
        again!("Tollgate", table.take(key, three, clock.now()).is_granted()),
    ];
    for (threads, bar) in [(1, 0.4), (2, 0.2)] {
        let timings = compare(threads, effort.rounds, effort.hot, &contenders);
        let measure = format!("three limits of one key vs three governors, {threads} thread(s)");
        report.goal(row(&measure, &timings, None, bar));
    }
}

/// Figures without a goal: several keys in one decision, fractional limits, rejections.
pub fn others(effort: Effort, report: &mut Report) {
    let guard = ours(1_000);
    let Ours {
        table,
        clock,
        keys,
        one,
        ..
    } = &guard;
    let [first, second, third] = [
        governor_keyed::<u64>(),
        governor_keyed::<u64>(),
        governor_keyed::<u64>(),
    ];
    let asks = [1, 2, 3].map(|name| Ask {
        key: keys.number(name),
        plan: one,
        cost: 1,
    });
    let seven = NonZeroU32::new(7).expect("above zero");
    let parts = Limit::new(seven, Duration::from_secs(1)).with_burst(PLENTY);
    let parts = table.plan(&[parts]).expect("valid");
    let empty = table.plan(&[Limit::new(NonZeroU32::MIN, Duration::from_secs(86_400))]);
    let empty = empty.expect("valid");
    let (fourth, fifth) = (keys.number(4), keys.number(5));
    let contenders = [
        again!(
            "three keyed governors, one after the other",
            first.check_key(&1).is_ok()
                & second.check_key(&2).is_ok()
                & third.check_key(&3).is_ok()
        ),
        again!(
            "Tollgate, three keys as one decision",
            table.take_all(&asks, clock.now()).is_ok()
        ),
        again!(
            "Tollgate, a limit with a fractional interval (7 a second)",
            table.take(fourth, &parts, clock.now()).is_granted()
        ),
        again!(
            "Tollgate, a rejection",
            table.take(fifth, &empty, clock.now()).is_granted()
        ),
    ];
    let timings =
        [1, 2].map(|threads| compare(threads, effort.rounds, effort.hot / 4, &contenders));
    report.table(side_by_side(
        "Without a goal",
        "decision on hot keys",
        &timings,
    ));
}
