//! Small safety rules that no other test covers: drift, margins, lag, order, and what a sweep
//! keeps.
//!
//! Each rule was once removed on purpose, and every other test still passed.

use jiff::tz::TimeZone;
use smallvec::smallvec;

use crate::ask::{Evidence, LimitReading, Outcome, OwnerId, Priority, Verdict, WakeOn};
use crate::limit::{Calendar, CalendarPeriod, HoldUntil, Rule};
use crate::test_ledger::{TestLedger, ms, s};
use crate::time::{Span, TimeBounds};
use crate::turn::turn;

fn daily(limit: u64) -> Rule {
    Rule::calendar(limit, Calendar::new(CalendarPeriod::Day, TimeZone::UTC)).unwrap()
}

/// The provider's clock may run fast, and then its window ends before ours would.
#[test]
fn a_response_within_the_drift_of_the_edge_counts_in_both_windows() {
    let mut ledger = TestLedger::new();
    let rule = Rule::fixed(3, s(100)).unwrap();
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(s(1));
    ledger.arrive(&first);
    ledger.advance(ms(98_950));
    let near = ledger.try_one(&rule).unwrap();
    ledger.arrive(&near);
    ledger.advance(s(2));
    assert_eq!(ledger.take_all(&rule).len(), 2);
}

/// A call of the previous window may have been counted there, so its response opens nothing.
#[test]
fn a_response_to_a_call_of_the_previous_window_proves_nothing() {
    let mut ledger = TestLedger::new();
    let rule = Rule::fixed(3, s(10)).unwrap().drift_ppm(0);
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(s(1));
    ledger.arrive(&first);
    ledger.advance(s(8));
    let before = ledger.try_one(&rule).unwrap();
    ledger.advance(s(2));
    assert_eq!(ledger.take_all(&rule).len(), 2);
    ledger.advance(s(1));
    ledger.arrive(&before);
    assert_eq!(ledger.wait(&rule).1, WakeOn::Event, "no end is known yet");
}

/// The provider's clock may be ahead by the margin.
#[test]
fn m14_a_response_just_before_midnight_counts_on_both_days() {
    let mut ledger = TestLedger::new();
    let rule = daily(2);
    ledger.advance(s(86_399));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive(&permit);
    ledger.advance(s(3));
    assert_eq!(ledger.take_all(&rule).len(), 1);
}

/// Responses reported out of order must not refill the bucket twice for the same time.
#[test]
fn a_bucket_does_not_refill_twice_for_the_same_time() {
    let mut ledger = TestLedger::new();
    let rule = Rule::bucket(10, s(10), 10).unwrap().drift_ppm(0);
    let early = ledger.try_one(&rule).unwrap();
    let late = ledger.try_one(&rule).unwrap();
    ledger.advance(s(5));
    ledger.arrive(&late);
    let age = s(5);
    ledger.settle(
        &early,
        Outcome::Arrived {
            age,
            limited: false,
            readings: vec![],
        },
    );
    assert_eq!(ledger.peek(&rule).remaining, 8);
}

/// R-A12: waiters for a known time are woken by a permit returned before it.
#[test]
fn an_unsent_permit_wakes_those_who_wait_for_a_time() {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(2, s(10)).unwrap();
    let answered = ledger.try_one(&rule).unwrap();
    let unsent = ledger.try_one(&rule).unwrap();
    ledger.arrive(&answered);
    assert_eq!(ledger.wait(&rule).1, WakeOn::Time);
    assert_eq!(ledger.settle(&unsent, Outcome::Unsent).freed.len(), 1);
}

#[test]
fn two_calls_a_second_go_one_at_a_time_half_a_second_after_the_response() {
    let mut ledger = TestLedger::new();
    let rule = Rule::paced(2, s(1)).unwrap().drift_ppm(0);
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(ms(600));
    assert_eq!(ledger.wait(&rule).1, WakeOn::Event, "the first is pending");
    ledger.arrive(&first);
    assert_eq!(ledger.wait(&rule), (ms(500), WakeOn::Time));
}

/// One response that reports 40 does not outweigh a window of responses that report 30.
#[test]
fn the_lowest_of_the_raised_limits_reported_for_a_window_applies() {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(40, s(10)).unwrap().drift_ppm(0);
    let mut report = |after: Span, limit: u64| {
        ledger.advance(after);
        let permit = ledger.try_one(&rule).unwrap();
        let reading = LimitReading {
            limit: Some(limit),
            ..LimitReading::default()
        };
        ledger.arrive_with_reading(&permit, false, reading);
        ledger.peek(&rule).limit
    };
    assert_eq!(report(s(0), 20), 20);
    assert_eq!(report(s(1), 30), 20);
    assert_eq!(report(s(10), 40), 30);
    assert_eq!(report(s(1), 40), 30);
    assert_eq!(report(s(10), 40), 40);
}

/// Sweeping changes no decision: not after a response, not while pending, not in debt.
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
            let mut ledger = TestLedger::new();
            let permit = ledger.try_one(&rule).unwrap();
            if answered {
                ledger.arrive(&permit);
            }
            ledger.advance(s(3_000));
            ledger.table.sweep(ledger.now.at, 10);
            assert!(
                ledger.try_one(&rule).is_err(),
                "{rule}, answered {answered}"
            );
        }
    }
}

#[test]
fn a_sweep_keeps_a_stream_that_is_alive() {
    let mut ledger = TestLedger::new();
    let rule = Rule::in_flight(1).unwrap();
    let permit = ledger.try_one(&rule).unwrap();
    ledger.settle(&permit, Outcome::Alive { extend_by: s(600) });
    ledger.advance(s(599));
    ledger.table.sweep(ledger.now.at, 10);
    assert!(ledger.try_one(&rule).is_err());
}

/// The smallest N of all running owners applies, also to a cell that was unused for a while.
#[test]
fn a_sweep_keeps_the_limit_of_each_owner() {
    let mut ledger = TestLedger::new();
    let (old, new) = (
        Rule::sliding(35, s(1)).unwrap(),
        Rule::sliding(40, s(1)).unwrap(),
    );
    let mut ask = ledger.ask(smallvec![TestLedger::term("x", &old)], Priority::Normal);
    ask.id.owner = OwnerId(2);
    ask.evidence = Evidence::None { use_within: ms(1) };
    ledger.turn(&[], &[ask]);
    ledger.advance(s(30));
    ledger.table.sweep(ledger.now.at, 10);
    ledger.try_one(&new).unwrap();
    assert_eq!(ledger.peek(&new).limit, 35);
}

/// A cell of another algorithm than its rule comes from a damaged store; it is closed for one
/// window, and a sweep must not open it.
#[test]
fn a_sweep_keeps_a_cell_of_another_algorithm_closed() {
    let mut ledger = TestLedger::new();
    let permit = ledger.try_one(&Rule::sliding(5, s(1)).unwrap()).unwrap();
    ledger.arrive(&permit);
    ledger.advance(s(200));
    let rule = Rule::fixed(5, s(3_600)).unwrap();
    assert!(ledger.try_one(&rule).is_err());
    ledger.advance(s(100));
    ledger.table.sweep(ledger.now.at, 10);
    assert!(ledger.try_one(&rule).is_err());
    ledger.advance(s(3_600));
    assert_eq!(ledger.take_all(&rule).len(), 5);
}

#[test]
fn a_window_with_a_counter_lag_holds_slots_longer_by_it() {
    for rule in [
        Rule::sliding(1, s(10)).unwrap(),
        Rule::fixed(1, s(10)).unwrap(),
    ] {
        let mut ledger = TestLedger::new();
        let rule = rule.drift_ppm(0).counter_lag(s(3));
        let permit = ledger.try_one(&rule).unwrap();
        ledger.arrive(&permit);
        assert_eq!(ledger.wait(&rule), (s(13), WakeOn::Time), "{rule}");
    }
}

#[test]
fn a_day_with_a_counter_lag_counts_calls_of_the_day_before() {
    let mut ledger = TestLedger::new();
    let rule = daily(2).counter_lag(s(10));
    ledger.advance(s(86_392));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive(&permit);
    ledger.advance(s(10));
    assert_eq!(ledger.take_all(&rule).len(), 1);
}

#[test]
fn a_bucket_with_a_counter_lag_refills_after_it() {
    let mut ledger = TestLedger::new();
    let rule = Rule::bucket(2, s(10), 2)
        .unwrap()
        .drift_ppm(0)
        .counter_lag(s(3));
    let permits = ledger.take_all(&rule);
    ledger.arrive_all(&permits);
    assert_eq!(ledger.wait(&rule), (s(3 + 5), WakeOn::Time));
    ledger.advance(s(3));
    assert_eq!(ledger.wait(&rule), (s(5), WakeOn::Time));
}

#[test]
fn a_bucket_reserves_a_call_without_response_for_its_counter_lag_too() {
    let mut ledger = TestLedger::new();
    let rule = Rule::bucket(1, s(10), 1)
        .unwrap()
        .drift_ppm(0)
        .counter_lag(s(3));
    ledger.try_one(&rule).unwrap();
    assert_eq!(ledger.wait(&rule), (s(30 + 5 + 3), WakeOn::Event));
}

/// Where time is known within bounds only, a slot that counts from its sending counts from the latest
/// time at which that was, and is free at the earliest time at which that is over.
#[test]
fn a_slot_held_until_its_sending_counts_from_the_latest_time() {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(1, s(10))
        .unwrap()
        .drift_ppm(0)
        .hold_until(HoldUntil::Send);
    let start = ledger.now;
    let mut is_granted = |from: Span| {
        let ask = ledger.ask(smallvec![TestLedger::term("x", &rule)], Priority::Normal);
        let (lo, hi) = (start.at + from, start.at + from + s(1));
        let now = TimeBounds::new(lo, hi, start.wall);
        let turn = turn(&mut ledger.table, now, &[], &[ask]);
        matches!(turn.verdicts[..], [Verdict::Go { .. }])
    };
    assert!(is_granted(s(0)));
    assert!(!is_granted(ms(10_999)), "it may have left a second later");
    assert!(is_granted(ms(11_000)));
}
