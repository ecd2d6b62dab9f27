//! A million keys: the cost of a decision when its key is not in the cache.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tollgate_guard::{GuardTable, Tick};

use crate::measure::{Contender, Dice, compare, cpu_ns, floor, median};
use crate::report::{Goal, Report, row, side_by_side};
use crate::subjects::{Name, crab, governor_keyed, ours};
use crate::{Effort, heap};

/// Keys of these rows.
const MILLION: u64 = 1_000_000;

/// A contender that decides for a random number below a million.
macro_rules! random {
    ($name:expr, $number:ident => $decision:expr) => {
        Contender {
            name: $name,
            work: &|n| {
                let mut dice = Dice::new();
                (0..n).for_each(|_| {
                    let $number = dice.below(MILLION);
                    black_box($decision);
                })
            },
        }
    };
}

/// A contender that decides for the freshly written name of a random number.
macro_rules! random_name {
    ($contender:expr, $name:ident => $decision:expr) => {
        Contender {
            name: $contender,
            work: &|n| {
                let (mut dice, mut buffer) = (Dice::new(), Name::new());
                (0..n).for_each(|_| {
                    let $name = buffer.of(dice.below(MILLION));
                    black_box($decision);
                })
            },
        }
    };
}

/// Keys named by numbers: ours with three limits, governor with one.
pub fn numbers(effort: Effort, report: &mut Report) {
    let guard = ours(MILLION);
    let govern = governor_keyed::<u64>();
    let cells: Vec<AtomicU64> = (0..MILLION).map(AtomicU64::new).collect();
    for name in 0..MILLION {
        assert!(guard.number(name) && govern.check_key(&name).is_ok());
    }
    let contenders = [
        random!("governor", name => govern.check_key(&name).is_ok()),
        random!("Tollgate", name => guard.number(name)),
        random!("floor", name => floor(&cells[name as usize], guard.clock.now().nanos())),
    ];
    for (threads, bar) in [(1, 0.65), (2, 0.45)] {
        let timings = compare(threads, effort.rounds, effort.cold, &contenders);
        let measure = format!("1 M keys, three limits vs one, {threads} thread(s)");
        report.goal(row(&measure, &timings, Some(2), bar));
    }
    let peer = allocations(|name| govern.check_key(&name).is_ok());
    let each = allocations(|name| guard.number(name));
    report.goal(Goal {
        measure: "allocations per decision".into(),
        unit: String::new(),
        peer: Some(peer),
        floor: Some(0.0),
        ours: each,
        value: each,
        bar: 0.0,
        bar_unit: String::new(),
    });
}

/// Allocations per decision of a million decisions on known keys.
fn allocations(decide: impl Fn(u64) -> bool) -> f64 {
    let mut dice = Dice::new();
    let before = heap::calls();
    for _ in 0..MILLION {
        black_box(decide(dice.below(MILLION)));
    }
    (heap::calls() - before) as f64 / MILLION as f64
}

/// Keys named by text, and the memory of each.
pub fn strings(effort: Effort, report: &mut Report) {
    let (guard, govern, crab) = (ours(MILLION), governor_keyed::<String>(), crab(MILLION));
    let governor_bytes = memory(|name| govern.check_key(name).is_ok());
    // All mapped memory counts, touched or not.
    let own_bytes =
        memory(|name| guard.text(name)) + guard.table.mapped_bytes() as f64 / MILLION as f64;
    memory(|name| crab.text(name));
    let stored: Vec<String> = (0..MILLION)
        .map(|number| Name::new().of(number).clone())
        .collect();
    let contenders = [
        random_name!("governor", name => govern.check_key(name).is_ok()),
        random_name!("Tollgate", name => guard.text(name)),
        random_name!("throttlecrab", name => crab.text(name)),
        random!("governor, names not in the CPU cache", at => govern.check_key(&stored[at as usize]).is_ok()),
        random!("Tollgate, names not in the CPU cache", at => guard.text(&stored[at as usize])),
    ];
    let timings = [1, 2].map(|threads| compare(threads, effort.rounds, effort.cold, &contenders));
    report.goal(row(
        "1 M string keys, three limits vs one, 1 thread",
        &timings[0],
        None,
        0.6,
    ));
    report.goal(row(
        "1 M string keys, three limits vs one, 2 threads",
        &timings[1],
        None,
        0.6,
    ));
    report.goal(Goal {
        measure: "memory per string key at 1 M, three limits vs one".into(),
        unit: "B".into(),
        peer: Some(governor_bytes),
        floor: None,
        ours: own_bytes,
        value: own_bytes / governor_bytes,
        bar: 0.95,
        bar_unit: "x".into(),
    });
    report.table(side_by_side(
        "All peers on a million string keys",
        "1 M keys of 32 characters",
        &timings,
    ));
}

/// Bytes per key that `decide` allocates for a million names.
fn memory(decide: impl Fn(&String) -> bool) -> f64 {
    let before = heap::live();
    let mut name = Name::new();
    (0..MILLION).for_each(|number| assert!(decide(name.of(number))));
    // Negative if it freed more than it allocated: memory that it mapped itself is not counted
    // here.
    (heap::live() as f64 - before as f64) / MILLION as f64
}

/// Snapshot and restore of a million keys with three limits.
pub fn snapshot(effort: Effort, report: &mut Report) {
    let guard = ours(MILLION);
    for name in 0..MILLION {
        guard.number(name);
    }
    // A debt of some nanoseconds would be gone before the snapshot begins: use a time in the past.
    let then = Tick::default();
    let mut times = Vec::new();
    let mut size = 0;
    for _ in 0..effort.rounds.min(15) {
        let start = cpu_ns();
        let mut bytes = Vec::new();
        guard.table.snapshot(then, &mut bytes);
        let back = GuardTable::restore(&bytes, 1_000_000, then, Duration::ZERO);
        times.push((cpu_ns() - start) as f64 / 1_000_000.0);
        assert_eq!(back.expect("its own bytes").len(), 1_000_000);
        size = bytes.len();
    }
    let millis = median(times);
    report.goal(Goal {
        measure: format!(
            "snapshot + restore of 1 M keys, three limits, {} MB (no peer can)",
            size / 1_000_000
        ),
        unit: "ms".into(),
        peer: None,
        floor: None,
        ours: millis,
        value: millis,
        bar: 100.0,
        bar_unit: " ms".into(),
    });
}
