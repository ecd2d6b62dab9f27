//! Rows around a step of the store's clock, and rows that are forgotten.

use super::clock::Step;
use super::clock_record::ClockReadings;
use super::known::{KnownRows, ROWS_MAX, Reading};
use super::row::{Epoch, Row, RowKey, StoredRow};
use super::rules::Rules;
use crate::ask::{Reopen, ScopeId};
use crate::row::{RowMeta, RowVersion, ScopeRow};
use crate::scope::{Scope, ScopeView};
use crate::time::{Micros, Span, TimeBounds, Wall};

const SECOND: u64 = 1_000_000;
const ID: RowKey = RowKey::Scope(ScopeId(1));

fn secs(secs: u64) -> Micros {
    Micros(secs * SECOND)
}

fn bounds(secs: u64) -> TimeBounds {
    TimeBounds::new(
        Micros(secs * SECOND),
        Micros(secs * SECOND + 1_000),
        Wall(0),
    )
}

/// A scope that was closed at `time` until `until`.
fn closed(batch: u64, time: u64, until: u64) -> StoredRow {
    let mut scope = Scope::default();
    scope.close(Some(secs(until)), Reopen::All);
    let version = RowVersion {
        batch,
        ..RowVersion::default()
    };
    let meta = RowMeta {
        version,
        time: secs(time),
        epoch: 1,
        revision: batch,
        ..RowMeta::default()
    };
    let bytes = ScopeRow { scope, meta }.to_bytes();
    StoredRow {
        version,
        bytes,
        keep_for: None,
    }
}

/// For how long the scope stays closed, as a node sees it whose clock shows `now`.
fn remaining(rows: &KnownRows, now: u64) -> Option<Span> {
    let rules = Rules::default();
    let reading = Reading {
        now: bounds(now),
        base_age: Span::from_secs(1),
        clock: &ClockReadings::default(),
        local: secs(1),
        epoch: Epoch(1),
        durable: false,
        late_arrival: Span::ZERO,
        call_timeout: Span::ZERO,
        rules: &rules,
    };
    let known = rows.get(ID).expect("a known row");
    let Some((Row::Scope(row), _)) = known.read(ID, None, &reading) else {
        panic!("a row of a scope");
    };
    match row.scope.peek(secs(now)) {
        ScopeView::Closed { remaining } | ScopeView::Paused { remaining } => remaining,
        ScopeView::Open
        | ScopeView::Paced { .. }
        | ScopeView::Probing
        | ScopeView::CacheOnly { .. } => Some(Span::ZERO),
    }
}

/// A node that has seen the row, and then a step of the clock.
fn stepped(then: u64, now: u64) -> KnownRows {
    let mut rows = KnownRows::default();
    rows.learn(
        ID,
        Some(&closed(1, then - 5, then + 1)),
        secs(1),
        secs(then),
    );
    rows.stepped(Step {
        then: bounds(then),
        now: bounds(now),
    });
    rows
}

fn about(remaining: Option<Span>, secs: u64) -> bool {
    remaining.is_some_and(|span| span.0.abs_diff(secs * SECOND) <= 2_000)
}

#[test]
fn a_row_from_before_a_step_is_moved_by_it() {
    for now in [100, 300] {
        // Closed for 10 s more on the clock before the step.
        let mut rows = stepped(200, now);
        rows.learn(ID, Some(&closed(2, 199, 210)), secs(2), secs(now));
        assert!(about(remaining(&rows, now), 10), "{now}");
        // The same if it came with a wake-up, promptly or late, before the step was noticed.
        let seen = if now == 100 { 199 } else { 200 };
        let mut rows = KnownRows::default();
        rows.learn(ID, Some(&closed(1, 195, 201)), secs(1), secs(199));
        assert!(rows.pushed(ID, &closed(2, 199, 210), bounds(seen)));
        rows.stepped(Step {
            then: bounds(200),
            now: bounds(now),
        });
        assert!(about(remaining(&rows, now), 10), "pushed, {now}");
    }
}

#[test]
fn a_row_from_after_a_step_is_not_moved() {
    for now in [100, 300] {
        let mut rows = stepped(200, now);
        // Written after the step, and met 5 s later: the clock before a step back was there too.
        rows.learn(
            ID,
            Some(&closed(2, now + 3, now + 15)),
            secs(2),
            secs(now + 5),
        );
        assert!(about(remaining(&rows, now + 5), 10), "{now}");
    }
}

#[test]
fn a_row_is_moved_by_both_of_two_steps() {
    let mut rows = KnownRows::default();
    rows.learn(ID, Some(&closed(1, 195, 201)), secs(1), secs(199));
    rows.wrote(ID, closed(2, 199, 210).read(ID), None, secs(1));
    for (then, now) in [(200, 100), (101, 300)] {
        rows.stepped(Step {
            then: bounds(then),
            now: bounds(now),
        });
    }
    assert!(
        about(remaining(&rows, 300), 9),
        "{:?}",
        remaining(&rows, 300)
    );
    // Reading the same version again does not bring back what it said before.
    rows.learn(ID, Some(&closed(2, 199, 210)), secs(3), secs(300));
    assert!(about(remaining(&rows, 300), 9));
}

#[test]
fn the_row_that_was_not_used_for_longest_is_forgotten() {
    let mut rows = KnownRows::default();
    let key = |number: usize| RowKey::Scope(ScopeId(number as u128));
    for number in 0..ROWS_MAX {
        rows.learn(key(number), None, secs(1), secs(1));
    }
    assert!(rows.touch([key(0), key(ROWS_MAX - 1)].iter()));
    for number in ROWS_MAX..ROWS_MAX + 3 {
        rows.learn(key(number), None, secs(1), secs(1));
    }
    assert!(rows.get(key(0)).is_some() && rows.get(key(ROWS_MAX - 1)).is_some());
    let forgotten = (0..ROWS_MAX).filter(|number| rows.get(key(*number)).is_none());
    assert_eq!(forgotten.collect::<Vec<_>>(), [1, 2, 3]);
}

/// A wake-up that came promptly: a step back that is shorter than the row's age leaves no doubt on
/// which clock it was written.
#[test]
fn a_prompt_wake_up_is_of_the_clock_that_it_fits() {
    for (seen, expected) in [(199, 10), (205, 60)] {
        let mut rows = KnownRows::default();
        rows.learn(ID, Some(&closed(1, 195, 201)), secs(1), secs(199));
        assert!(rows.pushed(ID, &closed(2, 199, 290), bounds(seen)));
        rows.stepped(Step {
            then: bounds(280),
            now: bounds(230),
        });
        let remaining = remaining(&rows, 230);
        assert!(about(remaining, expected), "{seen}: {remaining:?}");
    }
}

/// Wake-ups may overtake each other, and replies.
#[test]
fn a_row_that_comes_late_does_not_replace_a_newer_one() {
    let mut rows = KnownRows::default();
    rows.learn(ID, Some(&closed(2, 100, 130)), Micros(0), secs(100));
    assert!(!rows.pushed(ID, &closed(1, 99, 110), bounds(100)));
    assert!(rows.pushed(ID, &closed(3, 100, 140), bounds(100)));
}
