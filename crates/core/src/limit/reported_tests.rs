//! What the provider says, what owners publish, and the ladder.

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
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(10));
    let permit = drive.try_one(&rule).unwrap();
    let reading = LimitReading {
        remaining: Some(5_000),
        limit: Some(9_000),
        ..LimitReading::default()
    };
    drive.arrive_with_reading(&permit, false, reading);
    assert_eq!(
        (drive.peek(&rule).remaining, drive.peek(&rule).limit),
        (9, 10)
    );
}

#[test]
fn use_of_the_key_outside_tollgate_is_seen_in_remaining() {
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(10));
    let permit = drive.try_one(&rule).unwrap();
    drive.arrive_with_reading(&permit, false, reported(3));
    assert_eq!(drive.peek(&rule).remaining, 3);
    assert_eq!(drive.take_all(&rule).len(), 3);
    drive.advance(s(10));
    assert_eq!(
        drive.peek(&rule).remaining,
        7,
        "their part is free after the reset"
    );
}

#[test]
fn pending_calls_are_subtracted_from_the_reported_remaining() {
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(10));
    let first = drive.try_one(&rule).unwrap();
    let second = drive.try_one(&rule).unwrap();
    drive.arrive_with_reading(&first, false, reported(4));
    assert_eq!(
        drive.peek(&rule).remaining,
        3,
        "the second may not be in that number yet"
    );
    drive.arrive_with_reading(&second, false, reported(3));
    assert_eq!(
        drive.peek(&rule).remaining,
        2,
        "the first was on its way when the second went"
    );
}

#[test]
fn without_outside_use_a_reading_blocks_nothing_however_many_are_pending() {
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(10));
    let permits = drive.take_all(&rule)[..].to_vec();
    for (index, permit) in permits.iter().enumerate() {
        drive.arrive_with_reading(permit, false, reported(9 - index as u64));
    }
    drive.advance(s(10));
    assert_eq!(drive.peek(&rule).remaining, 10);
}

#[test]
fn a_newer_reading_replaces_the_older() {
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(10));
    let first = drive.try_one(&rule).unwrap();
    drive.arrive_with_reading(&first, false, reported(2));
    let second = drive.try_one(&rule).unwrap();
    drive.arrive_with_reading(&second, false, reported(8));
    assert_eq!(
        drive.peek(&rule).remaining,
        8,
        "the strangers' calls have left the window"
    );
}

#[test]
fn a_lower_limit_applies_at_once_and_a_higher_one_after_a_full_window() {
    let mut drive = TestLedger::new();
    let rule = sliding(40, s(10));
    let tell = |drive: &mut TestLedger, limit| {
        let permit = drive.try_one(&rule).unwrap();
        drive.arrive_with_reading(
            &permit,
            false,
            LimitReading {
                limit: Some(limit),
                ..LimitReading::default()
            },
        );
        drive.peek(&rule).limit
    };
    assert_eq!(tell(&mut drive, 20), 20);
    drive.advance(s(60));
    assert_eq!(drive.peek(&rule).limit, 20, "silence raises nothing");
    assert_eq!(tell(&mut drive, 40), 20);
    drive.advance(s(9));
    assert_eq!(tell(&mut drive, 40), 20);
    drive.advance(s(1));
    assert_eq!(tell(&mut drive, 40), 40);
}

#[test]
fn headroom_is_unused_and_is_subtracted_from_a_reported_limit() {
    let mut drive = TestLedger::new();
    let rule = sliding(100, s(10)).headroom(20).unwrap();
    assert_eq!(rule.limit(), 80);
    let permit = drive.try_one(&rule).unwrap();
    drive.arrive_with_reading(
        &permit,
        false,
        LimitReading {
            limit: Some(100),
            remaining: Some(99),
            ..LimitReading::default()
        },
    );
    assert_eq!(
        (drive.peek(&rule).limit, drive.peek(&rule).remaining),
        (80, 79)
    );
    let permit = drive.try_one(&rule).unwrap();
    drive.arrive_with_reading(
        &permit,
        false,
        LimitReading {
            limit: Some(50),
            ..LimitReading::default()
        },
    );
    assert_eq!(drive.peek(&rule).limit, 30);
}

#[test]
fn during_a_rolling_reload_the_smallest_limit_applies() {
    let mut drive = TestLedger::new();
    let (old, new) = (sliding(35, s(60)), sliding(40, s(60)));
    drive.try_one(&old).unwrap();
    let mut ask = drive.ask(smallvec![TestLedger::term("x", &new)], Priority::Normal);
    ask.id.owner = OwnerId(2);
    drive.turn(&[], &[ask]);
    assert_eq!(
        drive.peek(&new).limit,
        35,
        "the first process still works with 35"
    );
    drive.try_one(&new).unwrap();
    assert_eq!(drive.peek(&new).limit, 40, "now both have reloaded");
}

#[test]
fn a_429_although_there_was_room_tightens_the_log_once_per_batch() {
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(1));
    let refuse = |drive: &mut TestLedger, permit: &Permit| {
        let outcome = Outcome::Arrived {
            age: Span::ZERO,
            limited: true,
            readings: vec![],
        };
        drive.settle(permit, outcome);
        drive.peek(&rule).strictness
    };
    let permits = drive.take_all(&rule);
    drive.advance(ms(10));
    assert_eq!(refuse(&mut drive, &permits[0]), Strictness::Eighth);
    assert_eq!(
        refuse(&mut drive, &permits[1]),
        Strictness::Eighth,
        "granted before the climb"
    );
    drive.arrive_all(&permits);
    drive.advance(s(2));
    let permits = drive.take_all(&rule);
    assert_eq!(permits.len(), 10);
    assert_eq!(refuse(&mut drive, &permits[0]), Strictness::Spaced);
    drive.advance(s(60));
    drive.table.sweep(drive.now.at, 10);
    assert_eq!(drive.peek(&rule).strictness, Strictness::Spaced, "for good");
    assert_eq!(drive.take_all(&rule).len(), 1);
}

#[test]
fn a_429_far_from_the_limit_or_by_outside_use_tightens_nothing() {
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(1));
    let permit = drive.try_one(&rule).unwrap();
    let refused = Outcome::Arrived {
        age: Span::ZERO,
        limited: true,
        readings: vec![],
    };
    drive.settle(&permit, refused);
    assert_eq!(
        drive.peek(&rule).strictness,
        Strictness::Window,
        "one of ten"
    );
    let permits: Vec<Permit> = (0..6).map(|_| drive.try_one(&rule).unwrap()).collect();
    drive.arrive_with_reading(&permits[5], true, reported(0));
    assert_eq!(
        drive.peek(&rule).strictness,
        Strictness::Window,
        "three of ten were not ours"
    );
    let verdict = drive.try_one(&rule).unwrap_err();
    assert!(matches!(verdict, Verdict::Wait { .. }), "{verdict:?}");
}

/// Room that is not ours must not make anybody ask again at the same instant, for ever.
#[test]
fn a_wait_has_a_length_even_where_nothing_of_ours_frees() {
    let rules = [
        Rule::bucket(10, s(10), 10).unwrap(),
        Rule::in_flight(10).unwrap(),
        Rule::fixed(10, s(10)).unwrap(),
        sliding(10, s(10)),
    ];
    for rule in rules {
        let mut drive = TestLedger::new();
        let first = drive.try_one(&rule).unwrap();
        let lowered = LimitReading {
            limit: Some(2),
            ..LimitReading::default()
        };
        drive.arrive_with_reading(&first, false, lowered);
        drive.settle(&first, Outcome::Finished { age: Span::ZERO });
        drive.advance(s(100));
        let mut term = TestLedger::term("x", &rule);
        term.cost = 5;
        let refused = drive.try_terms(smallvec![term], Priority::Normal);
        assert!(
            matches!(refused, Err(Verdict::Wait { after, .. }) if after >= s(1)),
            "{rule}: {refused:?}"
        );
    }
}

#[test]
fn outside_use_of_the_whole_limit_causes_no_busy_loop() {
    let mut drive = TestLedger::new();
    let rule = Rule::bucket(10, s(10), 10).unwrap();
    let first = drive.try_one(&rule).unwrap();
    drive.arrive_with_reading(&first, false, reported(0));
    let (after, _) = drive.wait(&rule);
    assert!(after >= s(1), "{after}");
}

/// Strangers' part was believed for a window; the next answer says that it is back.
#[test]
fn a_reading_with_more_remaining_wakes_the_waiters() {
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(10));
    let first = drive.try_one(&rule).unwrap();
    drive.arrive_with_reading(&first, false, reported(1));
    let second = drive.try_one(&rule).unwrap();
    drive.wait(&rule);
    let turn = drive.arrive_with_reading(&second, false, reported(8));
    assert_eq!(turn.freed.len(), 1);
    assert!(drive.try_one(&rule).is_ok());
}

/// The window is as it was believed; only its number has changed.
#[test]
fn a_429_explained_by_a_lower_limit_does_not_tighten_the_log() {
    let mut drive = TestLedger::new();
    let rule = sliding(10, s(10));
    let permits = drive.take_all(&rule);
    let halved = LimitReading {
        limit: Some(5),
        remaining: Some(0),
        ..LimitReading::default()
    };
    drive.advance(ms(30));
    for permit in &permits[5..] {
        drive.arrive_with_reading(permit, true, halved);
    }
    assert_eq!(
        (drive.peek(&rule).limit, drive.peek(&rule).strictness),
        (5, Strictness::Window)
    );
    drive.advance(s(100));
    let permits = drive.take_all(&rule);
    for permit in &permits {
        drive.arrive_with_reading(permit, true, halved);
    }
    assert_ne!(
        drive.peek(&rule).strictness,
        Strictness::Window,
        "now it has no other reason"
    );
}
