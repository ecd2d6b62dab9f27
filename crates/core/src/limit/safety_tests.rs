//! Small safeties that no other test would miss: drift, margins, lag, order, and what a sweep keeps.
//!
//! Each of them was left out once, on purpose, and every other test still passed.

use jiff::tz::TimeZone;
use smallvec::smallvec;

use crate::ask::{Evidence, LimitReading, Outcome, OwnerId, Priority, WakeOn};
use crate::limit::{Calendar, CalendarPeriod, Rule};
use crate::test_ledger::{TestLedger, ms, s};
use crate::time::Span;

fn daily(limit: u64) -> Rule {
    Rule::calendar(limit, Calendar::new(CalendarPeriod::Day, TimeZone::UTC)).unwrap()
}

/// The provider's clock may run fast, and then its window ends before ours would.
#[test]
fn a_response_within_the_drift_of_the_edge_counts_in_both_windows() {
    let mut drive = TestLedger::new();
    let rule = Rule::fixed(3, s(100)).unwrap();
    let first = drive.try_one(&rule).unwrap();
    drive.advance(s(1));
    drive.arrive(&first);
    drive.advance(ms(98_950));
    let near = drive.try_one(&rule).unwrap();
    drive.arrive(&near);
    drive.advance(s(2));
    assert_eq!(drive.take_all(&rule).len(), 2);
}

/// A call of the window before may have been counted there, so its answer opens nothing.
#[test]
fn a_response_to_a_call_of_the_previous_window_proves_nothing() {
    let mut drive = TestLedger::new();
    let rule = Rule::fixed(3, s(10)).unwrap().drift_ppm(0);
    let first = drive.try_one(&rule).unwrap();
    drive.advance(s(1));
    drive.arrive(&first);
    drive.advance(s(8));
    let before = drive.try_one(&rule).unwrap();
    drive.advance(s(2));
    assert_eq!(drive.take_all(&rule).len(), 2);
    drive.advance(s(1));
    drive.arrive(&before);
    assert_eq!(drive.wait(&rule).1, WakeOn::Event, "no end is known yet");
}

/// The provider's clock may be ahead by the margin.
#[test]
fn m14_a_response_just_before_midnight_counts_on_both_days() {
    let mut drive = TestLedger::new();
    let rule = daily(2);
    drive.advance(s(86_399));
    let permit = drive.try_one(&rule).unwrap();
    drive.arrive(&permit);
    drive.advance(s(3));
    assert_eq!(drive.take_all(&rule).len(), 1);
}

/// Answers that are told out of order must not let the same time refill twice.
#[test]
fn a_bucket_does_not_refill_twice_for_the_same_time() {
    let mut drive = TestLedger::new();
    let rule = Rule::bucket(10, s(10), 10).unwrap().drift_ppm(0);
    let early = drive.try_one(&rule).unwrap();
    let late = drive.try_one(&rule).unwrap();
    drive.advance(s(5));
    drive.arrive(&late);
    let age = s(5);
    drive.settle(
        &early,
        Outcome::Arrived {
            age,
            limited: false,
            readings: vec![],
        },
    );
    assert_eq!(drive.peek(&rule).remaining, 8);
}

/// R-A12: those who wait for a time hear of a permit that came back before it.
#[test]
fn an_unsent_permit_wakes_those_who_wait_for_a_time() {
    let mut drive = TestLedger::new();
    let rule = Rule::sliding(2, s(10)).unwrap();
    let answered = drive.try_one(&rule).unwrap();
    let unsent = drive.try_one(&rule).unwrap();
    drive.arrive(&answered);
    assert_eq!(drive.wait(&rule).1, WakeOn::Time);
    assert_eq!(drive.settle(&unsent, Outcome::Unsent).freed.len(), 1);
}

#[test]
fn two_calls_a_second_go_one_at_a_time_half_a_second_after_the_response() {
    let mut drive = TestLedger::new();
    let rule = Rule::paced(2, s(1)).unwrap().drift_ppm(0);
    let first = drive.try_one(&rule).unwrap();
    drive.advance(ms(600));
    assert_eq!(
        drive.wait(&rule).1,
        WakeOn::Event,
        "the first is on its way"
    );
    drive.arrive(&first);
    assert_eq!(drive.wait(&rule), (ms(500), WakeOn::Time));
}

/// One answer that says 40 does not outweigh a window of answers that say 30.
#[test]
fn the_lowest_of_the_raised_limits_reported_for_a_window_applies() {
    let mut drive = TestLedger::new();
    let rule = Rule::sliding(40, s(10)).unwrap().drift_ppm(0);
    let mut tell = |after: Span, limit: u64| {
        drive.advance(after);
        let permit = drive.try_one(&rule).unwrap();
        let reading = LimitReading {
            limit: Some(limit),
            ..LimitReading::default()
        };
        drive.arrive_with_reading(&permit, false, reading);
        drive.peek(&rule).limit
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
            let mut drive = TestLedger::new();
            let permit = drive.try_one(&rule).unwrap();
            if answered {
                drive.arrive(&permit);
            }
            drive.advance(s(3_000));
            drive.table.sweep(drive.now.at, 10);
            assert!(drive.try_one(&rule).is_err(), "{rule}, answered {answered}");
        }
    }
}

#[test]
fn a_sweep_keeps_a_stream_that_is_alive() {
    let mut drive = TestLedger::new();
    let rule = Rule::in_flight(1).unwrap();
    let permit = drive.try_one(&rule).unwrap();
    drive.settle(&permit, Outcome::Alive { extend_by: s(600) });
    drive.advance(s(599));
    drive.table.sweep(drive.now.at, 10);
    assert!(drive.try_one(&rule).is_err());
}

/// The smallest N of all who work holds, also for a cell that nobody has used for a while.
#[test]
fn a_sweep_keeps_the_limit_of_each_owner() {
    let mut drive = TestLedger::new();
    let (old, new) = (
        Rule::sliding(35, s(1)).unwrap(),
        Rule::sliding(40, s(1)).unwrap(),
    );
    let mut ask = drive.ask(smallvec![TestLedger::term("x", &old)], Priority::Normal);
    ask.id.owner = OwnerId(2);
    ask.evidence = Evidence::None { use_within: ms(1) };
    drive.turn(&[], &[ask]);
    drive.advance(s(30));
    drive.table.sweep(drive.now.at, 10);
    drive.try_one(&new).unwrap();
    assert_eq!(drive.peek(&new).limit, 35);
}

/// A cell of another kind than its rule comes from a damaged store; it is closed for one window,
/// and a sweep must not open it.
#[test]
fn a_sweep_keeps_a_cell_of_another_algorithm_closed() {
    let mut drive = TestLedger::new();
    let permit = drive.try_one(&Rule::sliding(5, s(1)).unwrap()).unwrap();
    drive.arrive(&permit);
    drive.advance(s(200));
    let rule = Rule::fixed(5, s(3_600)).unwrap();
    assert!(drive.try_one(&rule).is_err());
    drive.advance(s(100));
    drive.table.sweep(drive.now.at, 10);
    assert!(drive.try_one(&rule).is_err());
    drive.advance(s(3_600));
    assert_eq!(drive.take_all(&rule).len(), 5);
}

#[test]
fn a_window_with_a_counter_lag_holds_slots_longer_by_it() {
    for rule in [
        Rule::sliding(1, s(10)).unwrap(),
        Rule::fixed(1, s(10)).unwrap(),
    ] {
        let mut drive = TestLedger::new();
        let rule = rule.drift_ppm(0).counter_lag(s(3));
        let permit = drive.try_one(&rule).unwrap();
        drive.arrive(&permit);
        assert_eq!(drive.wait(&rule), (s(13), WakeOn::Time), "{rule}");
    }
}

#[test]
fn a_day_with_a_counter_lag_counts_calls_of_the_day_before() {
    let mut drive = TestLedger::new();
    let rule = daily(2).counter_lag(s(10));
    drive.advance(s(86_392));
    let permit = drive.try_one(&rule).unwrap();
    drive.arrive(&permit);
    drive.advance(s(10));
    assert_eq!(drive.take_all(&rule).len(), 1);
}

#[test]
fn a_bucket_with_a_counter_lag_refills_after_it() {
    let mut drive = TestLedger::new();
    let rule = Rule::bucket(2, s(10), 2)
        .unwrap()
        .drift_ppm(0)
        .counter_lag(s(3));
    let permits = drive.take_all(&rule);
    drive.arrive_all(&permits);
    assert_eq!(drive.wait(&rule), (s(3), WakeOn::Event));
    drive.advance(s(3));
    assert_eq!(drive.wait(&rule), (s(5), WakeOn::Time));
}

#[test]
fn a_bucket_reserves_a_call_without_response_for_its_counter_lag_too() {
    let mut drive = TestLedger::new();
    let rule = Rule::bucket(1, s(10), 1)
        .unwrap()
        .drift_ppm(0)
        .counter_lag(s(3));
    drive.try_one(&rule).unwrap();
    assert_eq!(drive.wait(&rule), (s(30 + 5 + 3), WakeOn::Event));
}
