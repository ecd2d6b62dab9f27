//! Token buckets: refill, reservation, lag, debt, and rates and depths that change.

use crate::ask::{CostUnit, Outcome, WakeOn};
use crate::limit::{Cell, Rule};
use crate::test_ledger::{TestLedger, ms, s};
use crate::time::{Micros, Span};

fn bucket(limit: u64, period: Span, burst: u64) -> Rule {
    Rule::bucket(limit, period, burst).unwrap().drift_ppm(0)
}

/// A12, C1: a bucket refills in proportion to time and loses no fraction however often it is
/// checked.
#[test]
fn a12_a_bucket_that_is_polled_often_loses_no_fraction() {
    let mut ledger = TestLedger::new();
    let rule = bucket(10, s(60), 5);
    let first = ledger.take_all(&rule);
    assert_eq!(first.len(), 5);
    ledger.arrive_all(&first);
    let mut granted = 0;
    for _ in 0..600 {
        ledger.advance(s(1));
        while let Ok(permit) = ledger.try_one(&rule) {
            ledger.arrive(&permit);
            granted += 1;
        }
    }
    assert_eq!(granted, 100, "ten a minute for ten minutes");
}

#[test]
fn a_bucket_reserves_pending_calls() {
    let mut ledger = TestLedger::new();
    let rule = bucket(10, s(1), 10);
    let permits = ledger.take_all(&rule);
    assert_eq!(permits.len(), 10);
    ledger.advance(s(1));
    assert_eq!(
        ledger.wait(&rule).1,
        WakeOn::Event,
        "ten may be arriving just now"
    );
    ledger.arrive_all(&permits);
    assert_eq!(ledger.wait(&rule), (ms(100), WakeOn::Time));
    ledger.advance(ms(100));
    assert!(ledger.try_one(&rule).is_ok());
}

#[test]
fn a_bucket_wait_is_exact_to_the_microsecond() {
    let mut ledger = TestLedger::new();
    let rule = bucket(3, s(1), 3);
    let permits = ledger.take_all(&rule);
    ledger.arrive_all(&permits);
    assert_eq!(ledger.wait(&rule), (Span(333_334), WakeOn::Time));
    ledger.advance(Span(333_333));
    assert_eq!(ledger.wait(&rule), (Span(1), WakeOn::Time));
    ledger.advance(Span(1));
    assert!(ledger.try_one(&rule).is_ok());
}

/// Symptom: five calls too many right after 35 → 40. Cause: a provider's bucket that grows keeps
/// its level, but ours was fuller by the difference at once.
#[test]
fn a_bucket_that_grows_or_shrinks_keeps_its_level() {
    let mut ledger = TestLedger::new();
    let (small, large) = (bucket(35, s(60), 35), bucket(40, s(60), 40));
    let permits = ledger.take_all(&small);
    ledger.arrive_all(&permits[..30]);
    for permit in &permits[30..] {
        ledger.settle(permit, Outcome::Unsent);
    }
    assert_eq!(ledger.take_all(&large).len(), 5, "no more than before");
    ledger = TestLedger::new();
    let permits = ledger.take_all(&large);
    ledger.arrive_all(&permits);
    ledger.advance(s(15));
    assert_eq!(ledger.take_all(&small).len(), 10, "no fewer than before");
}

/// Symptom: fewer calls than the limit allows, until the cell was swept. Cause: with a lag a
/// finished call stayed pending, so it was settled twice, and could be undone.
#[test]
fn a_bucket_with_a_counter_lag_settles_once() {
    let mut ledger = TestLedger::new();
    let rule = Rule::bucket(2, s(10), 2)
        .unwrap()
        .drift_ppm(0)
        .counter_lag(s(3));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive(&permit);
    let before = ledger.table.snapshot(ledger.now.at);
    ledger.settle(&permit, Outcome::Finished { age: Span::ZERO });
    ledger.settle(&permit, Outcome::Unsent);
    assert_eq!(ledger.table.snapshot(ledger.now.at), before);
    ledger.advance(s(3));
    ledger.try_one(&rule).unwrap();
    assert_eq!(
        ledger.peek(&rule).remaining,
        0,
        "debited three seconds after the response, not at it"
    );
}

/// Symptom: a bucket with hours of debt was full after a sweep. Cause: cells were swept after the
/// refill time of the held cost, and the actual cost was higher.
#[test]
fn a_bucket_in_debt_is_not_swept() {
    let mut ledger = TestLedger::new();
    let rule = Rule::bucket(10, s(60), 5).unwrap().unit(CostUnit::Tokens);
    for mut permit in ledger.take_all(&rule) {
        permit.terms[0].cost = 10;
        ledger.settle(&permit, Outcome::Finished { age: Span::ZERO });
    }
    ledger.advance(s(200));
    ledger.table.sweep(ledger.now.at, 10);
    assert!(ledger.try_one(&rule).is_err(), "17 of 50 are still in debt");
    ledger.advance(s(6_000));
    ledger.table.sweep(ledger.now.at, 10);
    assert!(ledger.table.is_empty());
}

/// Symptom: after 35 → 20, tokens refilled at 35 whenever an old call got its response. Cause: a
/// settle carries the rule of its grant, and the bucket applied it.
#[test]
fn a_response_to_a_call_of_an_old_rule_does_not_raise_the_rate() {
    let mut ledger = TestLedger::new();
    let (old, new) = (
        Rule::bucket(36, s(3_600), 36).unwrap().drift_ppm(0),
        Rule::bucket(4, s(3_600), 36).unwrap().drift_ppm(0),
    );
    let permits = ledger.take_all(&old);
    ledger.arrive_all(&permits[..35]);
    assert!(ledger.try_one(&new).is_err());
    ledger.advance(s(100));
    ledger.arrive(&permits[35]);
    ledger.advance(s(1_700));
    assert_eq!(
        ledger.take_all(&new).len(),
        2,
        "half an hour at four an hour"
    );
}

/// A loss of long ago emptied the bucket then; it has refilled, and what was used since must still count. The older debt
/// replaced the newer one, and the whole burst was granted again.
#[test]
fn a_loss_of_long_ago_does_not_refill_a_bucket() {
    let rule = bucket(10, s(10), 10);
    let lost_at = Micros(0) + s(1);
    let now = lost_at + s(3_600);
    let mut cell = Cell::used_up(&rule, now);
    let remaining = cell.remaining(&rule, now);
    assert_eq!(remaining, 0);
    cell.close_for_one_period(&rule, lost_at, Span::ZERO);
    assert_eq!(cell.remaining(&rule, now), 0);
    // A loss of now still empties it.
    let mut full = Cell::used_up(&rule, lost_at);
    full.close_for_one_period(&rule, now, Span::ZERO);
    assert_eq!(full.remaining(&rule, now), 0);
}

/// A former bug: one response that reported a usage of 2⁵³ tokens closed a configured bucket for ages,
/// because the debt had no bound.
#[test]
fn a_usage_beyond_the_whole_bucket_closes_it_for_one_window_at_most() {
    for (limit, period, burst) in [(200, s(60), 200), (200, s(60), 500), (200, s(60), 50)] {
        let mut ledger = TestLedger::new();
        let rule = bucket(limit, period, burst).unit(CostUnit::Tokens);
        let mut permit = ledger.try_one(&rule).unwrap();
        permit.terms[0].cost = u64::MAX;
        ledger.settle(&permit, Outcome::Finished { age: Span::ZERO });
        assert!(ledger.try_one(&rule).is_err(), "all of it is used");
        ledger.advance(period.scale_up(limit.max(burst), limit));
        assert_eq!(ledger.peek(&rule).remaining, burst, "no quota is stuck");
    }
}

/// With a counter lag too, and for each of several such calls no more than once.
#[test]
fn each_usage_beyond_a_late_bucket_counts_as_the_bucket_once() {
    let mut ledger = TestLedger::new();
    let rule = bucket(200, s(60), 200)
        .unit(CostUnit::Tokens)
        .counter_lag(s(2));
    let mut permits: Vec<_> = (0..2).map(|_| ledger.try_one(&rule).unwrap()).collect();
    for permit in &mut permits {
        permit.terms[0].cost = 10_000_000;
        ledger.settle(permit, Outcome::Finished { age: Span::ZERO });
    }
    ledger.advance(s(2 + 120));
    assert_eq!(ledger.peek(&rule).remaining, 200);
}
