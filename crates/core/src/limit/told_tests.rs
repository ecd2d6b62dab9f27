//! What the provider says, what owners publish, and the ladder.

use smallvec::smallvec;

use crate::ask::{Outcome, OwnerId, Priority, Reading, Verdict};
use crate::drive::{Drive, Permit, ms, s};
use crate::limit::{Rule, Rung};
use crate::time::Span;

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

fn said(remaining: u64) -> Reading {
    Reading {
        remaining: Some(remaining),
        reset_after: Some(s(10)),
        ..Reading::default()
    }
}

#[test]
fn a_reading_never_raises_what_we_believe() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(10));
    let permit = drive.try_one(&rule).unwrap();
    let reading = Reading {
        remaining: Some(5_000),
        limit: Some(9_000),
        ..Reading::default()
    };
    drive.read(&permit, false, reading);
    assert_eq!(
        (drive.look(&rule).remaining, drive.look(&rule).limit),
        (9, 10)
    );
}

#[test]
fn strangers_on_the_key_are_seen_by_what_is_left() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(10));
    let permit = drive.try_one(&rule).unwrap();
    drive.read(&permit, false, said(3));
    assert_eq!(drive.look(&rule).remaining, 3);
    assert_eq!(drive.take_all(&rule).len(), 3);
    drive.pass(s(10));
    assert_eq!(
        drive.look(&rule).remaining,
        7,
        "their part is free after the reset"
    );
}

#[test]
fn what_is_on_its_way_is_taken_off_what_the_provider_said() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(10));
    let first = drive.try_one(&rule).unwrap();
    let second = drive.try_one(&rule).unwrap();
    drive.read(&first, false, said(4));
    assert_eq!(
        drive.look(&rule).remaining,
        3,
        "the second may not be in that number yet"
    );
    drive.read(&second, false, said(3));
    assert_eq!(
        drive.look(&rule).remaining,
        2,
        "the first was on its way when the second went"
    );
}

#[test]
fn without_strangers_a_reading_costs_nothing_however_many_are_on_their_way() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(10));
    let permits = drive.take_all(&rule)[..].to_vec();
    for (index, permit) in permits.iter().enumerate() {
        drive.read(permit, false, said(9 - index as u64));
    }
    drive.pass(s(10));
    assert_eq!(drive.look(&rule).remaining, 10);
}

#[test]
fn a_newer_reading_replaces_the_older() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(10));
    let first = drive.try_one(&rule).unwrap();
    drive.read(&first, false, said(2));
    let second = drive.try_one(&rule).unwrap();
    drive.read(&second, false, said(8));
    assert_eq!(
        drive.look(&rule).remaining,
        8,
        "the strangers' calls have left the window"
    );
}

#[test]
fn a_lower_limit_holds_at_once_and_a_higher_one_after_a_full_window() {
    let mut drive = Drive::new();
    let rule = sliding(40, s(10));
    let tell = |drive: &mut Drive, limit| {
        let permit = drive.try_one(&rule).unwrap();
        drive.read(
            &permit,
            false,
            Reading {
                limit: Some(limit),
                ..Reading::default()
            },
        );
        drive.look(&rule).limit
    };
    assert_eq!(tell(&mut drive, 20), 20);
    drive.pass(s(60));
    assert_eq!(drive.look(&rule).limit, 20, "silence raises nothing");
    assert_eq!(tell(&mut drive, 40), 20);
    drive.pass(s(9));
    assert_eq!(tell(&mut drive, 40), 20);
    drive.pass(s(1));
    assert_eq!(tell(&mut drive, 40), 40);
}

#[test]
fn headroom_is_left_to_others_and_counts_against_what_the_provider_tells() {
    let mut drive = Drive::new();
    let rule = sliding(100, s(10)).headroom(20).unwrap();
    assert_eq!(rule.limit(), 80);
    let permit = drive.try_one(&rule).unwrap();
    drive.read(
        &permit,
        false,
        Reading {
            limit: Some(100),
            remaining: Some(99),
            ..Reading::default()
        },
    );
    assert_eq!(
        (drive.look(&rule).limit, drive.look(&rule).remaining),
        (80, 79)
    );
    let permit = drive.try_one(&rule).unwrap();
    drive.read(
        &permit,
        false,
        Reading {
            limit: Some(50),
            ..Reading::default()
        },
    );
    assert_eq!(drive.look(&rule).limit, 30);
}

#[test]
fn during_a_rolling_reload_the_smallest_limit_holds() {
    let mut drive = Drive::new();
    let (old, new) = (sliding(35, s(60)), sliding(40, s(60)));
    drive.try_one(&old).unwrap();
    let mut ask = drive.ask(smallvec![Drive::term("x", &new)], Priority::Normal);
    ask.id.owner = OwnerId(2);
    drive.turn(&[], &[ask]);
    assert_eq!(
        drive.look(&new).limit,
        35,
        "the first process still works with 35"
    );
    drive.try_one(&new).unwrap();
    assert_eq!(drive.look(&new).limit, 40, "now both have reloaded");
}

#[test]
fn a_refusal_although_there_was_room_climbs_the_ladder_once_per_flight() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(1));
    let refuse = |drive: &mut Drive, permit: &Permit| {
        let outcome = Outcome::Arrived {
            age: Span::ZERO,
            refused: true,
            readings: vec![],
        };
        drive.settle(permit, outcome);
        drive.look(&rule).rung
    };
    let permits = drive.take_all(&rule);
    drive.pass(ms(10));
    assert_eq!(refuse(&mut drive, &permits[0]), Rung::Eighth);
    assert_eq!(
        refuse(&mut drive, &permits[1]),
        Rung::Eighth,
        "granted before the climb"
    );
    drive.arrive_all(&permits);
    drive.pass(s(2));
    let permits = drive.take_all(&rule);
    assert_eq!(permits.len(), 10);
    assert_eq!(refuse(&mut drive, &permits[0]), Rung::Spaced);
    drive.pass(s(60));
    drive.table.sweep(drive.now.at, 10);
    assert_eq!(drive.look(&rule).rung, Rung::Spaced, "for good");
    assert_eq!(drive.take_all(&rule).len(), 1);
}

#[test]
fn a_refusal_far_from_the_limit_or_by_strangers_climbs_nothing() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(1));
    let permit = drive.try_one(&rule).unwrap();
    let refused = Outcome::Arrived {
        age: Span::ZERO,
        refused: true,
        readings: vec![],
    };
    drive.settle(&permit, refused);
    assert_eq!(drive.look(&rule).rung, Rung::Window, "one of ten");
    let permits: Vec<Permit> = (0..6).map(|_| drive.try_one(&rule).unwrap()).collect();
    drive.read(&permits[5], true, said(0));
    assert_eq!(
        drive.look(&rule).rung,
        Rung::Window,
        "three of ten were not ours"
    );
    let verdict = drive.try_one(&rule).unwrap_err();
    assert!(matches!(verdict, Verdict::Wait { .. }), "{verdict:?}");
}

/// Room that is not ours must not make anybody ask again at the same instant, for ever.
#[test]
fn where_nothing_of_ours_frees_the_wait_still_has_a_length() {
    let rules = [
        Rule::bucket(10, s(10), 10).unwrap(),
        Rule::in_flight(10).unwrap(),
        Rule::fixed(10, s(10)).unwrap(),
        sliding(10, s(10)),
    ];
    for rule in rules {
        let mut drive = Drive::new();
        let first = drive.try_one(&rule).unwrap();
        let lowered = Reading {
            limit: Some(2),
            ..Reading::default()
        };
        drive.read(&first, false, lowered);
        drive.settle(&first, Outcome::Finished { age: Span::ZERO });
        drive.pass(s(100));
        let mut term = Drive::term("x", &rule);
        term.cost = 5;
        let refused = drive.try_terms(smallvec![term], Priority::Normal);
        assert!(
            matches!(refused, Err(Verdict::Wait { after, .. }) if after >= s(1)),
            "{rule}: {refused:?}"
        );
    }
}

#[test]
fn strangers_who_took_all_make_nobody_spin() {
    let mut drive = Drive::new();
    let rule = Rule::bucket(10, s(10), 10).unwrap();
    let first = drive.try_one(&rule).unwrap();
    drive.read(&first, false, said(0));
    let (after, _) = drive.wait(&rule);
    assert!(after >= s(1), "{after}");
}

/// Strangers' part was believed for a window; the next answer says that it is back.
#[test]
fn news_that_leave_more_wake_those_who_wait() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(10));
    let first = drive.try_one(&rule).unwrap();
    drive.read(&first, false, said(1));
    let second = drive.try_one(&rule).unwrap();
    drive.wait(&rule);
    let turn = drive.read(&second, false, said(8));
    assert_eq!(turn.freed.len(), 1);
    assert!(drive.try_one(&rule).is_ok());
}

/// The window is as it was believed; only its number has changed.
#[test]
fn a_refusal_that_a_lower_limit_explains_climbs_no_ladder() {
    let mut drive = Drive::new();
    let rule = sliding(10, s(10));
    let permits = drive.take_all(&rule);
    let halved = Reading {
        limit: Some(5),
        remaining: Some(0),
        ..Reading::default()
    };
    drive.pass(ms(30));
    for permit in &permits[5..] {
        drive.read(permit, true, halved);
    }
    assert_eq!(
        (drive.look(&rule).limit, drive.look(&rule).rung),
        (5, Rung::Window)
    );
    drive.pass(s(100));
    let permits = drive.take_all(&rule);
    for permit in &permits {
        drive.read(permit, true, halved);
    }
    assert_ne!(
        drive.look(&rule).rung,
        Rung::Window,
        "now it has no other reason"
    );
}
