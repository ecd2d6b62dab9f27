//! Several threads at once: never a token too many, never one lost, never a deadlock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tollgate_guard::{Ask, GuardTable, Seed, Tick};

use crate::behaviour::{DAY, MINUTE, SECOND, limit};
use crate::oracle::{Bucket, Truth};

/// More threads than the two cores of a small machine, so that lock holders are preempted.
const THREADS: u64 = 4;

fn table() -> GuardTable {
    GuardTable::new(10_000, Seed([1, 2]))
}

#[test]
fn at_one_moment_threads_share_exactly_one_burst() {
    let table = table();
    let plan = table
        .plan(&[limit(10, MINUTE, 5_000), limit(7, SECOND, 6_000)])
        .expect("valid");
    let key = table.keys("ip").number(1);
    let now = Tick::default().after(SECOND);
    let granted: usize = thread::scope(|scope| {
        let one = || {
            (0..3_000)
                .filter(|_| table.take(key, &plan, now).is_granted())
                .count()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    assert_eq!(granted, 5_000);
}

/// C11: grants in any interval are at most burst + rate × its length, judged by an exact bucket
/// that replays all grants in the order of their times.
#[test]
fn c11_in_any_interval_threads_get_at_most_burst_and_rate() {
    let table = table();
    let limits = [limit(35, SECOND, 50)];
    let plan = table.plan(&limits).expect("valid");
    let key = table.keys("ip").number(1);
    let clock = AtomicU64::new(1);
    let take = || {
        let ticks = (0..20_000).map(|_| clock.fetch_add(500_009, Ordering::Relaxed));
        let granted = |now: &u64| table.take(key, &plan, Tick::from_nanos(*now)).is_granted();
        ticks.filter(granted).collect::<Vec<u64>>()
    };
    // 40 virtual seconds in all: a preempted thread is stale by less than the minute after which
    // the table treats a clock as set back.
    let mut grants: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    grants.sort_unstable();
    let mut bucket = Bucket::full(limits[0], 0);
    for now in &grants {
        assert!(
            matches!(bucket.take(1, *now), Truth::Granted { .. }),
            "one too many at {now}"
        );
    }
    let ideal = 50.0 + 35.0 * 40.0;
    assert!(
        grants.len() as f64 > 0.9 * ideal,
        "{} of {ideal}",
        grants.len()
    );
}

/// C11: two keys decided as one, named in either order by different threads, while others decide
/// them alone, peek and sweep: it ends, and both keys paid for exactly what was granted.
#[test]
fn c11_decisions_on_several_keys_are_atomic_and_end() {
    const BURST: u32 = 1_000_000;
    let table = table();
    let plan = table.plan(&[limit(1_000, DAY, BURST)]).expect("valid");
    let keys = table.keys("ip");
    let names: Vec<_> = (0..8).map(|who| keys.number(who)).collect();
    let now = Tick::default().after(SECOND);
    let pairs: u64 = thread::scope(|scope| {
        let work = |thread: u64| {
            let (table, plan, names) = (&table, &plan, &names);
            move || {
                let mut granted = 0;
                for round in 0..5_000 {
                    let mut asks: Vec<Ask<'_>> = names
                        .iter()
                        .map(|&key| Ask { key, plan, cost: 1 })
                        .collect();
                    asks.rotate_left(usize::try_from((thread + round) % 8).expect("small"));
                    if thread.is_multiple_of(2) {
                        asks.reverse();
                    }
                    granted += u64::from(table.take_all(&asks, now).expect("8").is_granted());
                    table.sweep(now, 16);
                }
                granted
            }
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(work(thread)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    assert_eq!(pairs, THREADS * 5_000);
    for key in names {
        let left = table.peek(key, &plan, now).buckets()[0].micro_tokens / 1_000_000;
        assert_eq!(left, u64::from(BURST) - pairs);
    }
}

#[test]
fn threads_that_bring_new_keys_never_pass_the_bound() {
    let table = GuardTable::new(500, Seed([1, 2]));
    let plan = table.plan(&[limit(10, MINUTE, 5)]).expect("valid");
    let keys = table.keys("ip");
    let now = Tick::default().after(SECOND);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, plan, keys) = (&table, &plan, &keys);
            scope.spawn(move || {
                for who in 0..2_000 {
                    table.take(keys.number(thread * 1_000 + who), plan, now);
                    assert!(
                        table.len() <= 501 + 4,
                        "a thread may hold one place while it asks"
                    );
                }
            });
        }
    });
    assert_eq!(table.len(), 501);
}
