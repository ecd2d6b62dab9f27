//! The cost curve: time and memory from one key to ten million.

use std::hint::black_box;

use crate::measure::{Contender, Dice, compare, cpu_ns};
use crate::report::{Report, Table};
use crate::subjects::{governor_keyed, ours};
use crate::{Effort, heap};

/// Below the table.
const NOTE: &str = "Bytes are the memory requested from the allocator plus the memory that the table maps itself. A \
    table for ten million keys starts with 4,096 nearly empty shards. The work is O(1) in the number of keys; the \
    time rises because the slots no longer fit into the next level of the CPU caches. The slowest insertion grows a \
    shard, touches a new huge page and frees the old slots.";

pub fn run(effort: Effort, report: &mut Report) {
    let column = |name: &str, unit: &str| (name.to_owned(), unit.to_owned(), 0);
    let mut rows = Vec::new();
    let mut count = 1;
    while count <= effort.keys_max {
        rows.push((count.to_string(), point(effort, count)));
        count *= 10;
    }
    report.table(Table {
        title: "Growth".into(),
        head: "keys".into(),
        columns: vec![
            column("Tollgate, three limits", " ns"),
            column("bytes per key", ""),
            column("slowest insertion of a new key", " µs"),
            column("governor, one limit", " ns"),
            column("bytes per key", ""),
        ],
        rows,
        note: NOTE.into(),
    });
}

fn point(effort: Effort, count: u64) -> Vec<f64> {
    let before = heap::live();
    let guard = ours(effort.keys_max);
    let mut worst = 0;
    for name in 0..count {
        // CPU time, so that another program's turn on this core does not count.
        let start = cpu_ns();
        black_box(guard.number(name));
        worst = worst.max(cpu_ns() - start);
    }
    let own_bytes = (heap::live() + guard.table.mapped_bytes() as u64 - before) / count;
    let before = heap::live();
    let govern = governor_keyed::<u64>();
    for name in 0..count {
        black_box(govern.check_key(&name).is_ok());
    }
    let governor_bytes = (heap::live() - before) / count;
    let contenders = [
        Contender {
            name: "governor",
            work: &|n| {
                let mut dice = Dice::new();
                (0..n).for_each(|_| {
                    black_box(govern.check_key(&dice.below(count)).is_ok());
                });
            },
        },
        Contender {
            name: "Tollgate",
            work: &|n| {
                let mut dice = Dice::new();
                (0..n).for_each(|_| {
                    black_box(guard.number(dice.below(count)));
                });
            },
        },
    ];
    let timings = compare(1, effort.rounds.min(31), effort.cold, &contenders);
    vec![
        timings[1].ns,
        own_bytes as f64,
        worst as f64 / 1_000.0,
        timings[0].ns,
        governor_bytes as f64,
    ]
}
