//! Small safeties that no other test would miss: drift, margins, lag, order, and what a sweep keeps.
//!
//! Each of them was left out once, on purpose, and every other test still passed.

use jiff::tz::TimeZone;
use smallvec::smallvec;

use crate::ask::{Evidence, On, Outcome, OwnerId, Priority, Reading};
use crate::drive::{Drive, ms, s};
use crate::limit::{Calendar, Per, Rule};
use crate::time::Span;

fn daily(limit: u64) -> Rule {
    Rule::calendar(limit, Calendar::new(Per::Day, TimeZone::UTC)).unwrap()
}

/// The provider's clock may run fast, and then its window ends before ours would.
#[test]
fn an_answer_within_the_drift_of_the_edge_counts_twice() {
    let mut drive = Drive::new();
    let rule = Rule::fixed(3, s(100)).unwrap();
    let first = drive.try_one(&rule).unwrap();
    drive.pass(s(1));
    drive.arrive(&first);
    drive.pass(ms(98_950));
    let near = drive.try_one(&rule).unwrap();
    drive.arrive(&near);
    drive.pass(s(2));
    assert_eq!(drive.take_all(&rule).len(), 2);
}

/// A call of the window before may have been counted there, so its answer opens nothing.
#[test]
fn an_answer_to_a_call_of_the_window_before_proves_nothing() {
    let mut drive = Drive::new();
    let rule = Rule::fixed(3, s(10)).unwrap().drift_ppm(0);
    let first = drive.try_one(&rule).unwrap();
    drive.pass(s(1));
    drive.arrive(&first);
    drive.pass(s(8));
    let before = drive.try_one(&rule).unwrap();
    drive.pass(s(2));
    assert_eq!(drive.take_all(&rule).len(), 2);
    drive.pass(s(1));
    drive.arrive(&before);
    assert_eq!(drive.wait(&rule).1, On::Event, "no end is known yet");
}

/// The provider's clock may be ahead by the margin.
#[test]
fn m14_an_answer_just_before_midnight_counts_on_both_days() {
    let mut drive = Drive::new();
    let rule = daily(2);
    drive.pass(s(86_399));
    let permit = drive.try_one(&rule).unwrap();
    drive.arrive(&permit);
    drive.pass(s(3));
    assert_eq!(drive.take_all(&rule).len(), 1);
}

/// Answers that are told out of order must not let the same time refill twice.
#[test]
fn a_bucket_refills_no_time_twice() {
    let mut drive = Drive::new();
    let rule = Rule::bucket(10, s(10), 10).unwrap().drift_ppm(0);
    let early = drive.try_one(&rule).unwrap();
    let late = drive.try_one(&rule).unwrap();
    drive.pass(s(5));
    drive.arrive(&late);
    let age = s(5);
    drive.settle(
        &early,
        Outcome::Arrived {
            age,
            refused: false,
            readings: vec![],
        },
    );
    assert_eq!(drive.look(&rule).remaining, 8);
}

/// R-A12: those who wait for a time hear of a permit that came back before it.
#[test]
fn an_unsent_permit_is_told_to_those_who_wait_for_a_time() {
    let mut drive = Drive::new();
    let rule = Rule::sliding(2, s(10)).unwrap();
    let answered = drive.try_one(&rule).unwrap();
    let unsent = drive.try_one(&rule).unwrap();
    drive.arrive(&answered);
    assert_eq!(drive.wait(&rule).1, On::Time);
    assert_eq!(drive.settle(&unsent, Outcome::Unsent).freed.len(), 1);
}

#[test]
fn two_a_second_go_one_at_a_time_and_half_a_second_after_the_answer() {
    let mut drive = Drive::new();
    let rule = Rule::paced(2, s(1)).unwrap().drift_ppm(0);
    let first = drive.try_one(&rule).unwrap();
    drive.pass(ms(600));
    assert_eq!(drive.wait(&rule).1, On::Event, "the first is on its way");
    drive.arrive(&first);
    assert_eq!(drive.wait(&rule), (ms(500), On::Time));
}

/// One answer that says 40 does not outweigh a window of answers that say 30.
#[test]
fn of_higher_limits_said_for_a_window_the_least_is_believed() {
    let mut drive = Drive::new();
    let rule = Rule::sliding(40, s(10)).unwrap().drift_ppm(0);
    let mut tell = |after: Span, limit: u64| {
        drive.pass(after);
        let permit = drive.try_one(&rule).unwrap();
        let reading = Reading {
            limit: Some(limit),
            ..Reading::default()
        };
        drive.read(&permit, false, reading);
        drive.look(&rule).limit
    };
    assert_eq!(tell(s(0), 20), 20);
    assert_eq!(tell(s(1), 30), 20);
    assert_eq!(tell(s(10), 40), 30);
    assert_eq!(tell(s(1), 40), 30);
    assert_eq!(tell(s(10), 40), 40);
}

/// Sweeping changes no answer: not after an answer, not on the way, not with tokens owed.
#[test]
fn a_sweep_keeps_what_a_limit_still_counts() {
    let rules = [
        Rule::sliding(1, s(3_600)).unwrap(),
        Rule::bucket(1, s(3_600), 1).unwrap(),
        Rule::fixed(1, s(3_600)).unwrap(),
        Rule::paced(1, s(3_600)).unwrap(),
        daily(1),
    ];
    for rule in rules {
        for answered in [true, false] {
            let mut drive = Drive::new();
            let permit = drive.try_one(&rule).unwrap();
            if answered {
                drive.arrive(&permit);
            }
            drive.pass(s(3_000));
            drive.table.sweep(drive.now.at, 10);
            assert!(drive.try_one(&rule).is_err(), "{rule}, answered {answered}");
        }
    }
}

#[test]
fn a_sweep_keeps_a_stream_that_is_alive() {
    let mut drive = Drive::new();
    let rule = Rule::in_flight(1).unwrap();
    let permit = drive.try_one(&rule).unwrap();
    drive.settle(&permit, Outcome::Alive { by: s(600) });
    drive.pass(s(599));
    drive.table.sweep(drive.now.at, 10);
    assert!(drive.try_one(&rule).is_err());
}

/// The smallest N of all who work holds, also for a cell that nobody has used for a while.
#[test]
fn a_sweep_keeps_which_limit_an_owner_works_with() {
    let mut drive = Drive::new();
    let (old, new) = (
        Rule::sliding(35, s(1)).unwrap(),
        Rule::sliding(40, s(1)).unwrap(),
    );
    let mut ask = drive.ask(smallvec![Drive::term("x", &old)], Priority::Normal);
    ask.id.owner = OwnerId(2);
    ask.evidence = Evidence::None { use_within: ms(1) };
    drive.turn(&[], &[ask]);
    drive.pass(s(30));
    drive.table.sweep(drive.now.at, 10);
    drive.try_one(&new).unwrap();
    assert_eq!(drive.look(&new).limit, 35);
}

/// A cell of another kind than its rule comes from a damaged store; it is closed for one window,
/// and a sweep must not open it.
#[test]
fn a_sweep_keeps_a_cell_of_another_kind_closed() {
    let mut drive = Drive::new();
    let permit = drive.try_one(&Rule::sliding(5, s(1)).unwrap()).unwrap();
    drive.arrive(&permit);
    drive.pass(s(200));
    let rule = Rule::fixed(5, s(3_600)).unwrap();
    assert!(drive.try_one(&rule).is_err());
    drive.pass(s(100));
    drive.table.sweep(drive.now.at, 10);
    assert!(drive.try_one(&rule).is_err());
    drive.pass(s(3_600));
    assert_eq!(drive.take_all(&rule).len(), 5);
}

#[test]
fn a_window_that_counts_late_holds_its_lag_longer() {
    for rule in [
        Rule::sliding(1, s(10)).unwrap(),
        Rule::fixed(1, s(10)).unwrap(),
    ] {
        let mut drive = Drive::new();
        let rule = rule.drift_ppm(0).counter_lag(s(3));
        let permit = drive.try_one(&rule).unwrap();
        drive.arrive(&permit);
        assert_eq!(drive.wait(&rule), (s(13), On::Time), "{rule}");
    }
}

#[test]
fn a_day_that_counts_late_has_calls_of_the_day_before() {
    let mut drive = Drive::new();
    let rule = daily(2).counter_lag(s(10));
    drive.pass(s(86_392));
    let permit = drive.try_one(&rule).unwrap();
    drive.arrive(&permit);
    drive.pass(s(10));
    assert_eq!(drive.take_all(&rule).len(), 1);
}

#[test]
fn a_bucket_that_counts_late_refills_after_its_lag() {
    let mut drive = Drive::new();
    let rule = Rule::bucket(2, s(10), 2)
        .unwrap()
        .drift_ppm(0)
        .counter_lag(s(3));
    let permits = drive.take_all(&rule);
    drive.arrive_all(&permits);
    assert_eq!(drive.wait(&rule), (s(3), On::Event));
    drive.pass(s(3));
    assert_eq!(drive.wait(&rule), (s(5), On::Time));
}

#[test]
fn a_bucket_that_counts_late_reserves_an_unheard_call_for_its_lag_too() {
    let mut drive = Drive::new();
    let rule = Rule::bucket(1, s(10), 1)
        .unwrap()
        .drift_ppm(0)
        .counter_lag(s(3));
    drive.try_one(&rule).unwrap();
    assert_eq!(drive.wait(&rule), (s(30 + 5 + 3), On::Event));
}
