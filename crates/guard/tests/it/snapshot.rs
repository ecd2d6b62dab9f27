//! A restart through a snapshot loses no debt, and damaged bytes are rejected.

use std::time::Duration;

use tollgate_guard::{Ask, GuardPlan, GuardTable, Seed, SnapshotError, Tick};

use crate::behaviour::{IP, MINUTE, SECOND, limit};

fn at(after: Duration) -> Tick {
    Tick::default().after(after)
}

/// A table in which key `n` has spent `n % 6` tokens of C3's `ip` class at second 1.
fn spent(keys: u64) -> (GuardTable, GuardPlan, Vec<u8>) {
    let table = GuardTable::new(10_000, Seed([1, 2]));
    let plan = table.plan(&IP).expect("C3's class");
    for who in 0..keys {
        let cost = i64::try_from(who % 6).expect("small");
        table.take_cost(
            Ask {
                key: table.keys("ip").number(who),
                plan: &plan,
                cost,
            },
            at(SECOND),
        );
    }
    let mut bytes = Vec::new();
    table.snapshot(at(SECOND), &mut bytes);
    (table, plan, bytes)
}

fn tokens(table: &GuardTable, plan: &GuardPlan, who: u64, now: Tick) -> u64 {
    table
        .peek(table.keys("ip").number(who), plan, now)
        .buckets()[0]
        .micro_tokens
}

#[test]
fn a_restored_table_owes_what_the_old_one_owed() {
    let (_, _, bytes) = spent(1_000);
    let now = at(Duration::from_secs(77));
    let table = GuardTable::restore(&bytes, 10_000, now, Duration::ZERO).expect("whole");
    let plan = table.plan(&IP).expect("C3's class");
    assert_eq!(
        table.len(),
        1_000 - 167,
        "keys without debt are not written"
    );
    for who in 0..1_000 {
        assert_eq!(
            tokens(&table, &plan, who, now),
            5_000_000 - who % 6 * 1_000_000
        );
    }
}

#[test]
fn time_away_refills_as_time_does() {
    let (_, _, bytes) = spent(12);
    let now = at(10 * MINUTE);
    let away = Duration::from_secs(9);
    let table = GuardTable::restore(&bytes, 10_000, now, away).expect("whole");
    let plan = table.plan(&IP).expect("C3's class");
    assert_eq!(tokens(&table, &plan, 5, now), 1_500_000);
}

#[test]
fn a_clock_younger_than_the_time_away_does_not_underflow() {
    let (_, _, bytes) = spent(12);
    let table = GuardTable::restore(&bytes, 10_000, at(SECOND), MINUTE).expect("whole");
    let plan = table.plan(&IP).expect("C3's class");
    assert_eq!(tokens(&table, &plan, 5, at(SECOND)), 5_000_000);
}

#[test]
fn a_restored_table_still_converts_between_plans() {
    let (_, _, bytes) = spent(12);
    let now = at(SECOND);
    let table = GuardTable::restore(&bytes, 10_000, now, Duration::ZERO).expect("whole");
    let other = table.plan(&[limit(100, MINUTE, 50)]).expect("valid");
    assert_eq!(tokens(&table, &other, 4, now), 1_000_000);
}

#[test]
fn every_plan_a_key_was_ever_written_in_is_kept() {
    let table = GuardTable::new(10_000, Seed([1, 2]));
    let now = at(SECOND);
    let take = |who: u32, burst: u32| {
        let plan = table.plan(&[limit(10, MINUTE, burst)]).expect("valid");
        let key = table.keys("ip").number(who.into());
        table.take_cost(
            Ask {
                key,
                plan: &plan,
                cost: i64::from(burst),
            },
            now,
        )
    };
    assert!((0..300).all(|who| take(who, who + 1).is_granted()));
    let mut bytes = Vec::new();
    table.snapshot(now, &mut bytes);
    let back = GuardTable::restore(&bytes, 10_000, now, Duration::ZERO).expect("whole");
    for who in 0..300 {
        let plan = back.plan(&[limit(10, MINUTE, who + 1)]).expect("valid");
        assert_eq!(tokens(&back, &plan, who.into(), now), 0);
    }
}

#[test]
fn more_keys_than_allowed_are_kept_and_new_ones_share() {
    let (_, _, bytes) = spent(1_000);
    let now = at(SECOND);
    let table = GuardTable::restore(&bytes, 10, now, Duration::ZERO).expect("whole");
    let plan = table.plan(&IP).expect("C3's class");
    assert_eq!(tokens(&table, &plan, 5, now), 0);
    table.take(table.keys("ip").number(9_999), &plan, now);
    assert_eq!(table.overflowed(), 1);
}

#[test]
fn every_cut_and_every_flipped_bit_is_rejected() {
    let (_, _, bytes) = spent(20);
    let restore = |bytes: &[u8]| {
        GuardTable::restore(bytes, 10, at(SECOND), Duration::ZERO).map(|table| table.len())
    };
    assert!(restore(&bytes).is_ok());
    for end in 0..bytes.len() {
        assert!(restore(&bytes[..end]).is_err(), "cut at {end}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(restore(&bytes).is_err(), "bit {bit}");
    }
    assert_eq!(restore(b"something else"), Err(SnapshotError::Foreign));
}
