//! Token buckets: refill, reservation, lag, debt, and rates and depths that change.

use crate::ask::{CostUnit, Outcome, WakeOn};
use crate::limit::Rule;
use crate::test_ledger::{TestLedger, ms, s};
use crate::time::Span;

fn bucket(limit: u64, period: Span, burst: u64) -> Rule {
    Rule::bucket(limit, period, burst).unwrap().drift_ppm(0)
}

/// A12, C1: a bucket refills in proportion to time and loses no fraction however often it is asked.
#[test]
fn a12_a_bucket_that_is_polled_often_loses_no_fraction() {
    let mut drive = TestLedger::new();
    let rule = bucket(10, s(60), 5);
    let first = drive.take_all(&rule);
    assert_eq!(first.len(), 5);
    drive.arrive_all(&first);
    let mut granted = 0;
    for _ in 0..600 {
        drive.advance(s(1));
        while let Ok(permit) = drive.try_one(&rule) {
            drive.arrive(&permit);
            granted += 1;
        }
    }
    assert_eq!(granted, 100, "ten a minute for ten minutes");
}

#[test]
fn a_bucket_reserves_pending_calls() {
    let mut drive = TestLedger::new();
    let rule = bucket(10, s(1), 10);
    let permits = drive.take_all(&rule);
    assert_eq!(permits.len(), 10);
    drive.advance(s(1));
    assert_eq!(
        drive.wait(&rule).1,
        WakeOn::Event,
        "ten may be arriving just now"
    );
    drive.arrive_all(&permits);
    assert_eq!(drive.wait(&rule), (ms(100), WakeOn::Time));
    drive.advance(ms(100));
    assert!(drive.try_one(&rule).is_ok());
}

#[test]
fn a_bucket_wait_is_exact_to_the_microsecond() {
    let mut drive = TestLedger::new();
    let rule = bucket(3, s(1), 3);
    let permits = drive.take_all(&rule);
    drive.arrive_all(&permits);
    assert_eq!(drive.wait(&rule), (Span(333_334), WakeOn::Time));
    drive.advance(Span(333_333));
    assert_eq!(drive.wait(&rule), (Span(1), WakeOn::Time));
    drive.advance(Span(1));
    assert!(drive.try_one(&rule).is_ok());
}

/// Symptom: five calls too many right after 35 → 40. Cause: a provider's bucket that grows keeps its
/// level, and ours was fuller by the difference at once.
#[test]
fn a_bucket_that_grows_or_shrinks_keeps_its_level() {
    let mut drive = TestLedger::new();
    let (small, large) = (bucket(35, s(60), 35), bucket(40, s(60), 40));
    let permits = drive.take_all(&small);
    drive.arrive_all(&permits[..30]);
    for permit in &permits[30..] {
        drive.settle(permit, Outcome::Unsent);
    }
    assert_eq!(drive.take_all(&large).len(), 5, "none more than there were");
    drive = TestLedger::new();
    let permits = drive.take_all(&large);
    drive.arrive_all(&permits);
    drive.advance(s(15));
    assert_eq!(drive.take_all(&small).len(), 10, "none less either");
}

/// Symptom: fewer calls than the limit has, until the cell was forgotten. Cause: with a lag the
/// answered call stayed a call on its way, so it was settled twice, and could be undone.
#[test]
fn a_bucket_with_a_counter_lag_settles_once() {
    let mut drive = TestLedger::new();
    let rule = Rule::bucket(2, s(10), 2)
        .unwrap()
        .drift_ppm(0)
        .counter_lag(s(3));
    let permit = drive.try_one(&rule).unwrap();
    drive.arrive(&permit);
    let before = drive.table.snapshot(drive.now.at);
    drive.settle(&permit, Outcome::Finished { age: Span::ZERO });
    drive.settle(&permit, Outcome::Unsent);
    assert_eq!(drive.table.snapshot(drive.now.at), before);
    drive.advance(s(3));
    drive.try_one(&rule).unwrap();
    assert_eq!(
        drive.peek(&rule).remaining,
        0,
        "debited three seconds after the answer, not at it"
    );
}

/// Symptom: a bucket that owed hours was full after a sweep. Cause: cells were forgotten after the
/// time that the held cost takes to come back, and the true cost was higher.
#[test]
fn a_bucket_in_debt_is_not_swept() {
    let mut drive = TestLedger::new();
    let rule = Rule::bucket(10, s(60), 5).unwrap().unit(CostUnit::Tokens);
    let mut permit = drive.try_one(&rule).unwrap();
    permit.terms[0].cost = 1_000;
    drive.settle(&permit, Outcome::Finished { age: Span::ZERO });
    drive.advance(s(600));
    drive.table.sweep(drive.now.at, 10);
    assert!(drive.try_one(&rule).is_err(), "900 of 1 000 are still owed");
    drive.advance(s(6_000));
    drive.table.sweep(drive.now.at, 10);
    assert!(drive.table.is_empty());
}

/// Symptom: after 35 → 20, tokens came back at 35 whenever an old call was answered. Cause: a
/// settle brings the rule of its grant, and the bucket followed it.
#[test]
fn a_response_to_a_call_of_an_old_rule_does_not_raise_the_rate() {
    let mut drive = TestLedger::new();
    let (old, new) = (
        Rule::bucket(36, s(3_600), 36).unwrap().drift_ppm(0),
        Rule::bucket(4, s(3_600), 36).unwrap().drift_ppm(0),
    );
    let permits = drive.take_all(&old);
    drive.arrive_all(&permits[..35]);
    assert!(drive.try_one(&new).is_err());
    drive.advance(s(100));
    drive.arrive(&permits[35]);
    drive.advance(s(1_700));
    assert_eq!(
        drive.take_all(&new).len(),
        2,
        "half an hour at four an hour"
    );
}
