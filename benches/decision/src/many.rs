//! A million keys: what a decision costs when its key is somewhere in memory.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tollgate::guard::{GuardTable, Tick};

use crate::measure::{Contender, Dice, compare, cpu_ns, floor, median};
use crate::report::{Goal, Report, row, side_by_side};
use crate::subjects::{Name, Ours, crab, governor_keyed, ours};
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

/// A contender that decides for the name of a random number, just written.
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
    allocations(&guard, report);
}

/// Allocations of a million decisions on known keys.
fn allocations(guard: &Ours, report: &mut Report) {
    let mut dice = Dice::new();
    let before = heap::calls();
    for _ in 0..MILLION {
        black_box(guard.number(dice.below(MILLION)));
    }
    let each = (heap::calls() - before) as f64 / MILLION as f64;
    report.goal(Goal {
        measure: "allocations per decision".into(),
        peer: "0".into(),
        floor: "0".into(),
        ours: format!("{each}"),
        value: each,
        bar: 0.0,
        unit: "",
    });
}

/// Keys named by text, and what each costs in memory.
pub fn strings(effort: Effort, report: &mut Report) {
    let (guard, govern, crab) = (ours(MILLION), governor_keyed::<String>(), crab(MILLION));
    let governor_bytes = memory(|name| govern.check_key(name).is_ok());
    let own_bytes = memory(|name| guard.text(name));
    memory(|name| crab.text(name));
    let stored: Vec<String> = (0..MILLION)
        .map(|number| Name::new().of(number).clone())
        .collect();
    let contenders = [
        random_name!("governor", name => govern.check_key(name).is_ok()),
        random_name!("Tollgate", name => guard.text(name)),
        random_name!("throttlecrab", name => crab.text(name)),
        random!("governor, names out of the cache too", at => govern.check_key(&stored[at as usize]).is_ok()),
        random!("Tollgate, names out of the cache too", at => guard.text(&stored[at as usize])),
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
        peer: format!("{governor_bytes:.1} B"),
        floor: "–".into(),
        ours: format!("{own_bytes:.1} B"),
        value: own_bytes / governor_bytes,
        bar: 0.95,
        unit: "x",
    });
    let table = side_by_side("1 M keys of 32 characters", &timings);
    report.section("All peers on a million string keys", table);
}

/// Bytes per key that `decide` keeps for a million names.
fn memory(decide: impl Fn(&String) -> bool) -> f64 {
    let before = heap::live();
    let mut name = Name::new();
    (0..MILLION).for_each(|number| assert!(decide(name.of(number))));
    (heap::live() - before) as f64 / MILLION as f64
}

/// Snapshot and restore of a million keys with three limits.
pub fn snapshot(effort: Effort, report: &mut Report) {
    let guard = ours(MILLION);
    for name in 0..MILLION {
        guard.number(name);
    }
    // Some nanoseconds of debt would be gone before the snapshot begins: look from the past.
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
        measure: "snapshot + restore of 1 M keys, three limits".into(),
        peer: "none can".into(),
        floor: "–".into(),
        ours: format!("{millis:.0} ms, {} MB", size / 1_000_000),
        value: millis,
        bar: 100.0,
        unit: " ms",
    });
}
