//! A table that is nearly full uses huge pages, and its decisions are the same.

use std::time::Duration;

use tollgate_guard::{GuardPlan, GuardTable, Seed, Tick};

use crate::behaviour::{DAY, IP, SECOND};

/// Keys of a table whose shards are just large enough for regions.
const MANY: usize = 200_000;

fn at(after: Duration) -> Tick {
    Tick::default().after(after)
}

/// A table in which each of `keys` keys has spent one token of C3's `ip` class at second 1.
fn filled(keys: usize) -> (GuardTable, GuardPlan) {
    let table = GuardTable::new(MANY, Seed([1, 2]));
    let plan = table.plan(&IP).expect("C3's class");
    let names = table.keys("ip");
    for who in 0..keys as u64 {
        assert!(
            table
                .take(names.number(who), &plan, at(SECOND))
                .is_granted()
        );
    }
    (table, plan)
}

/// Whether every key has spent exactly one token of five.
fn all_owe_one(table: &GuardTable, plan: &GuardPlan) -> bool {
    let names = table.keys("ip");
    (0..MANY as u64).all(|who| {
        let view = table.peek(names.number(who), plan, at(SECOND));
        view.buckets()[0].micro_tokens == 4_000_000
    })
}

#[test]
fn a_table_far_from_full_maps_nothing() {
    let (table, _) = filled(MANY / 2);
    assert_eq!(table.mapped_bytes(), 0);
}

#[test]
fn a_full_table_is_mapped_once_and_gives_it_back_when_it_empties() {
    let (table, plan) = filled(MANY);
    let mapped = table.mapped_bytes();
    // 64 bytes per slot, ten slots for seven keys, in whole huge pages.
    assert!((MANY * 91..=MANY * 92 + (2 << 20)).contains(&mapped));
    assert!(all_owe_one(&table, &plan));
    table.sweep(at(DAY), usize::MAX);
    assert_eq!((table.len(), table.mapped_bytes()), (0, 0));
}

#[test]
fn a_full_table_is_restored_onto_huge_pages() {
    let (table, _) = filled(MANY);
    let mut bytes = Vec::new();
    table.snapshot(at(SECOND), &mut bytes);
    let back = GuardTable::restore(&bytes, MANY, at(SECOND), Duration::ZERO).expect("whole");
    let plan = back.plan(&IP).expect("C3's class");
    assert_eq!(
        (back.len(), back.mapped_bytes()),
        (MANY, table.mapped_bytes())
    );
    assert!(all_owe_one(&back, &plan));
}

#[test]
fn shards_that_move_during_a_sweep_lose_or_double_no_debt() {
    let table = GuardTable::new(MANY, Seed([1, 2]));
    let plan = table.plan(&IP).expect("C3's class");
    let names = table.keys("ip");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (table, plan, names) = (&table, &plan, &names);
            scope.spawn(move || {
                for who in (thread..MANY as u64).step_by(2) {
                    assert!(table.take(names.number(who), plan, at(SECOND)).is_granted());
                    // No key is idle at this time: the sweep only visits.
                    if who % 64 == thread {
                        table.sweep(at(SECOND), 512);
                    }
                }
            });
        }
    });
    assert_eq!(table.len(), MANY);
    assert!(all_owe_one(&table, &plan));
}
