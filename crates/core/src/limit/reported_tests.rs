//! What the provider reports, what owners publish, and when the log tightens.

use smallvec::smallvec;

use crate::ask::{LimitReading, Outcome, OwnerId, Priority, Verdict};
use crate::limit::{Rule, Strictness};
use crate::test_ledger::{Permit, TestLedger, ms, s};
use crate::time::Span;

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

fn reported(remaining: u64) -> LimitReading {
    LimitReading {
        remaining: Some(remaining),
        reset_after: Some(s(10)),
        ..LimitReading::default()
    }
}

#[test]
fn a_reading_never_raises_the_remaining_count() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    let reading = LimitReading {
        remaining: Some(5_000),
        limit: Some(9_000),
        ..LimitReading::default()
    };
    ledger.arrive_with_reading(&permit, false, reading);
    assert_eq!(
        (ledger.peek(&rule).remaining, ledger.peek(&rule).limit),
        (9, 10)
    );
}

#[test]
fn use_of_the_key_outside_tollgate_is_seen_in_remaining() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive_with_reading(&permit, false, reported(3));
    assert_eq!(ledger.peek(&rule).remaining, 3);
    assert_eq!(ledger.take_all(&rule).len(), 3);
    ledger.advance(s(10));
    assert_eq!(
        ledger.peek(&rule).remaining,
        7,
        "the outside use is gone after the reset"
    );
}

#[test]
fn pending_calls_are_subtracted_from_the_reported_remaining() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(10));
    let first = ledger.try_one(&rule).unwrap();
    let second = ledger.try_one(&rule).unwrap();
    ledger.arrive_with_reading(&first, false, reported(4));
    assert_eq!(
        ledger.peek(&rule).remaining,
        3,
        "the second may not be in that number yet"
    );
    ledger.arrive_with_reading(&second, false, reported(3));
    assert_eq!(
        ledger.peek(&rule).remaining,
        2,
        "the first was pending when the second went"
    );
}

#[test]
fn without_outside_use_a_reading_blocks_nothing_however_many_are_pending() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(10));
    let permits = ledger.take_all(&rule)[..].to_vec();
    for (index, permit) in permits.iter().enumerate() {
        ledger.arrive_with_reading(permit, false, reported(9 - index as u64));
    }
    ledger.advance(s(10));
    assert_eq!(ledger.peek(&rule).remaining, 10);
}

#[test]
fn a_newer_reading_replaces_the_older() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(10));
    let first = ledger.try_one(&rule).unwrap();
    ledger.arrive_with_reading(&first, false, reported(2));
    let second = ledger.try_one(&rule).unwrap();
    ledger.arrive_with_reading(&second, false, reported(8));
    assert_eq!(
        ledger.peek(&rule).remaining,
        8,
        "the outside calls have left the window"
    );
}

#[test]
fn a_lower_limit_applies_at_once_and_a_higher_one_after_a_full_window() {
    let mut ledger = TestLedger::new();
    let rule = sliding(40, s(10));
    let report = |ledger: &mut TestLedger, limit| {
        let permit = ledger.try_one(&rule).unwrap();
        ledger.arrive_with_reading(
            &permit,
            false,
            LimitReading {
                limit: Some(limit),
                ..LimitReading::default()
            },
        );
        ledger.peek(&rule).limit
    };
    assert_eq!(report(&mut ledger, 20), 20);
    ledger.advance(s(60));
    assert_eq!(ledger.peek(&rule).limit, 20, "silence raises nothing");
    assert_eq!(report(&mut ledger, 40), 20);
    ledger.advance(s(9));
    assert_eq!(report(&mut ledger, 40), 20);
    ledger.advance(s(1));
    assert_eq!(report(&mut ledger, 40), 40);
}

#[test]
fn headroom_is_unused_and_is_subtracted_from_a_reported_limit() {
    let mut ledger = TestLedger::new();
    let rule = sliding(100, s(10)).headroom(20).unwrap();
    assert_eq!(rule.limit(), 80);
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive_with_reading(
        &permit,
        false,
        LimitReading {
            limit: Some(100),
            remaining: Some(99),
            ..LimitReading::default()
        },
    );
    assert_eq!(
        (ledger.peek(&rule).limit, ledger.peek(&rule).remaining),
        (80, 79)
    );
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive_with_reading(
        &permit,
        false,
        LimitReading {
            limit: Some(50),
            ..LimitReading::default()
        },
    );
    assert_eq!(ledger.peek(&rule).limit, 30);
}

#[test]
fn during_a_rolling_reload_the_smallest_limit_applies() {
    let mut ledger = TestLedger::new();
    let (old, new) = (sliding(35, s(60)), sliding(40, s(60)));
    ledger.try_one(&old).unwrap();
    let mut ask = ledger.ask(smallvec![TestLedger::term("x", &new)], Priority::Normal);
    ask.id.owner = OwnerId(2);
    ledger.turn(&[], &[ask]);
    assert_eq!(
        ledger.peek(&new).limit,
        35,
        "the first process still works with 35"
    );
    ledger.try_one(&new).unwrap();
    assert_eq!(ledger.peek(&new).limit, 40, "now both have reloaded");
}

#[test]
fn a_429_although_there_was_room_tightens_the_log_once_per_batch() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(1));
    let refuse = |ledger: &mut TestLedger, permit: &Permit| {
        let outcome = Outcome::Arrived {
            age: Span::ZERO,
            limited: true,
            readings: vec![],
        };
        ledger.settle(permit, outcome);
        ledger.peek(&rule).strictness
    };
    let permits = ledger.take_all(&rule);
    ledger.advance(ms(10));
    assert_eq!(refuse(&mut ledger, &permits[0]), Strictness::Eighth);
    assert_eq!(
        refuse(&mut ledger, &permits[1]),
        Strictness::Eighth,
        "granted before the log tightened"
    );
    ledger.arrive_all(&permits);
    ledger.advance(s(2));
    let permits = ledger.take_all(&rule);
    assert_eq!(permits.len(), 10);
    assert_eq!(refuse(&mut ledger, &permits[0]), Strictness::Spaced);
    ledger.advance(s(60));
    ledger.table.sweep(ledger.now.at, 10);
    assert_eq!(
        ledger.peek(&rule).strictness,
        Strictness::Spaced,
        "for good"
    );
    assert_eq!(ledger.take_all(&rule).len(), 1);
}

#[test]
fn a_429_far_from_the_limit_or_by_outside_use_tightens_nothing() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(1));
    let permit = ledger.try_one(&rule).unwrap();
    let refused = Outcome::Arrived {
        age: Span::ZERO,
        limited: true,
        readings: vec![],
    };
    ledger.settle(&permit, refused);
    assert_eq!(
        ledger.peek(&rule).strictness,
        Strictness::Window,
        "one of ten"
    );
    let permits: Vec<Permit> = (0..6).map(|_| ledger.try_one(&rule).unwrap()).collect();
    ledger.arrive_with_reading(&permits[5], true, reported(0));
    assert_eq!(
        ledger.peek(&rule).strictness,
        Strictness::Window,
        "three of ten were not ours"
    );
    let verdict = ledger.try_one(&rule).unwrap_err();
    assert!(matches!(verdict, Verdict::Wait { .. }), "{verdict:?}");
}

/// Room that is not ours must not cause repeated asks at the same instant.
#[test]
fn a_wait_has_a_length_even_where_nothing_of_ours_frees() {
    let rules = [
        Rule::bucket(10, s(10), 10).unwrap(),
        Rule::in_flight(10).unwrap(),
        Rule::fixed(10, s(10)).unwrap(),
        sliding(10, s(10)),
    ];
    for rule in rules {
        let mut ledger = TestLedger::new();
        let first = ledger.try_one(&rule).unwrap();
        let lowered = LimitReading {
            limit: Some(2),
            ..LimitReading::default()
        };
        ledger.arrive_with_reading(&first, false, lowered);
        ledger.settle(&first, Outcome::Finished { age: Span::ZERO });
        ledger.advance(s(100));
        let mut term = TestLedger::term("x", &rule);
        term.cost = 5;
        let refused = ledger.try_terms(smallvec![term], Priority::Normal);
        assert!(
            matches!(refused, Err(Verdict::Wait { after, .. }) if after >= s(1)),
            "{rule}: {refused:?}"
        );
    }
}

#[test]
fn outside_use_of_the_whole_limit_causes_no_busy_loop() {
    let mut ledger = TestLedger::new();
    let rule = Rule::bucket(10, s(10), 10).unwrap();
    let first = ledger.try_one(&rule).unwrap();
    ledger.arrive_with_reading(&first, false, reported(0));
    let (after, _) = ledger.wait(&rule);
    assert!(after >= s(1), "{after}");
}

/// Outside use counted for a window; the next response says that it is gone.
#[test]
fn a_reading_with_more_remaining_wakes_the_waiters() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(10));
    let first = ledger.try_one(&rule).unwrap();
    ledger.arrive_with_reading(&first, false, reported(1));
    let second = ledger.try_one(&rule).unwrap();
    ledger.wait(&rule);
    let turn = ledger.arrive_with_reading(&second, false, reported(8));
    assert_eq!(turn.freed.len(), 1);
    assert!(ledger.try_one(&rule).is_ok());
}

/// The provider's window is as configured; only its number has changed.
#[test]
fn a_429_explained_by_a_lower_limit_does_not_tighten_the_log() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(10));
    let permits = ledger.take_all(&rule);
    let halved = LimitReading {
        limit: Some(5),
        remaining: Some(0),
        ..LimitReading::default()
    };
    ledger.advance(ms(30));
    for permit in &permits[5..] {
        ledger.arrive_with_reading(permit, true, halved);
    }
    assert_eq!(
        (ledger.peek(&rule).limit, ledger.peek(&rule).strictness),
        (5, Strictness::Window)
    );
    ledger.advance(s(100));
    let permits = ledger.take_all(&rule);
    for permit in &permits {
        ledger.arrive_with_reading(permit, true, halved);
    }
    assert_ne!(
        ledger.peek(&rule).strictness,
        Strictness::Window,
        "now it has no other reason"
    );
}
