//! The judge against cases counted by hand.

use super::*;
use crate::rule::RuleSpec;

fn arrival(id: u64, at: u64, accepted: bool) -> Arrival {
    let cost = Cost::CALL.with(Unit::Tokens, 10 * id);
    Arrival {
        id: CallId(id),
        at: Micros(at),
        cost,
        priority: Priority::Normal,
        accepted,
    }
}

/// Ids, instants and whether accepted.
fn checker(log: &[(u64, u64, bool)]) -> Checker {
    let mut checker = Checker::new();
    for &(id, at, accepted) in log {
        checker.record_arrival(arrival(id, at, accepted));
    }
    checker
}

fn ids(calls: &[CallId]) -> Vec<u64> {
    calls.iter().map(|id| id.0).collect()
}

#[test]
fn an_empty_log_gives_empty_results() {
    let checker = Checker::new();
    assert_eq!(checker.violations(), 0);
    assert!(checker.violations_per_1000().abs() < f64::EPSILON);
    assert_eq!(
        checker.max_in_any_window(Span(10), Unit::Calls, ArrivalFilter::Arrived),
        0
    );
    assert_eq!(checker.waits(Priority::High), None);
    assert!(checker.duplicates().is_empty() && checker.lost().is_empty());
    assert!(checker.overtaken(OrderBy::Arrived).is_empty());
}

#[test]
fn each_429_is_a_violation() {
    let checker = checker(&[(1, 0, true), (2, 1, false), (3, 2, true), (4, 3, true)]);
    assert_eq!((checker.violations(), checker.accepted()), (1, 3));
    assert!((checker.violations_per_1000() - 250.0).abs() < 1e-9);
}

#[test]
fn the_fullest_window_is_half_open_and_found_in_any_order() {
    let checker = checker(&[(3, 20, true), (1, 0, true), (2, 10, true), (4, 29, false)]);
    let most = |span, unit, which| checker.max_in_any_window(Span(span), unit, which);
    assert_eq!(most(10, Unit::Calls, ArrivalFilter::Accepted), 1);
    assert_eq!(most(11, Unit::Calls, ArrivalFilter::Accepted), 2);
    assert_eq!(most(10, Unit::Calls, ArrivalFilter::Arrived), 2);
    assert_eq!(most(20, Unit::Calls, ArrivalFilter::Arrived), 3);
    assert_eq!(most(20, Unit::Tokens, ArrivalFilter::Arrived), 90);
}

#[test]
fn waits_run_from_submission_to_the_first_accepted_arrival() {
    let mut checker = checker(&[(1, 10, false), (1, 50, true), (1, 70, true), (2, 30, true)]);
    checker.record_submit(CallId(1), Micros(0), Priority::High);
    checker.record_submit(CallId(2), Micros(5), Priority::High);
    checker.record_submit(CallId(3), Micros(6), Priority::High);
    let waits = Waits {
        calls: 2,
        p50: Span(25),
        p99: Span(50),
        max: Span(50),
    };
    assert_eq!(checker.waits(Priority::High), Some(waits));
    assert_eq!(checker.waits(Priority::Low), None);
}

#[test]
fn percentiles_are_nearest_rank() {
    let hundred: Vec<Span> = (1..=100).map(Span).collect();
    assert_eq!(
        (rank(&hundred, 50), rank(&hundred, 99)),
        (Span(50), Span(99))
    );
    let more: Vec<Span> = (1..=101).map(Span).collect();
    assert_eq!((rank(&more, 50), rank(&more, 99)), (Span(51), Span(100)));
    assert_eq!(rank(&[Span(7)], 1), Span(7));
}

#[test]
fn only_a_call_accepted_twice_is_a_duplicate() {
    let checker = checker(&[
        (1, 0, true),
        (2, 1, false),
        (2, 2, true),
        (1, 3, true),
        (1, 4, true),
    ]);
    assert_eq!(ids(&checker.duplicates()), [1]);
}

#[test]
fn a_call_without_a_response_is_lost() {
    let mut checker = Checker::new();
    for id in [4, 2, 3] {
        checker.record_submit(CallId(id), Micros(0), Priority::Normal);
    }
    checker.record_response(CallId(2));
    checker.record_response(CallId(99));
    assert_eq!(ids(&checker.lost()), [3, 4]);
}

#[test]
fn a_call_is_overtaken_by_a_later_one_of_its_own_priority_only() {
    let mut checker = Checker::new();
    let calls = [
        (1, Priority::Low),
        (2, Priority::High),
        (3, Priority::Low),
        (4, Priority::High),
    ];
    for (id, priority) in calls {
        checker.record_submit(CallId(id), Micros(id), priority);
    }
    for id in [4, 2, 1, 3, 1] {
        checker.record_send(CallId(id));
    }
    assert_eq!(ids(&checker.overtaken(OrderBy::Sent)), [2]);
}

#[test]
fn order_by_arrival_follows_the_time_not_the_order_of_recording() {
    let mut checker = checker(&[(2, 20, true), (1, 10, true), (3, 5, true)]);
    for id in 1..=3 {
        checker.record_submit(CallId(id), Micros(0), Priority::Normal);
    }
    assert_eq!(ids(&checker.overtaken(OrderBy::Arrived)), [1, 2]);
}

#[test]
fn allowance_counts_started_windows_in_full() {
    let allowed = |text: &str, from: u64, to: u64| {
        let rule: RuleSpec = text.parse().unwrap();
        allowance(&rule.counting, Micros(from), Micros(to))
    };
    assert_eq!(allowed("sliding 40/10us", 0, 0), Some(0));
    assert_eq!(allowed("sliding 40/10us", 0, 1), Some(40));
    assert_eq!(allowed("sliding 40/10us", 3, 13), Some(40));
    assert_eq!(allowed("sliding 40/10us", 3, 14), Some(80));
    assert_eq!(allowed("fixed 40/10us", 9, 11), Some(80));
    assert_eq!(allowed("fixed 40/10us phase 4us", 0, 5), Some(80));
    assert_eq!(allowed("fixed 40/10us phase 4us", 4, 14), Some(40));
    assert_eq!(allowed("bucket 5/10us burst 7", 0, 1), Some(7));
    assert_eq!(allowed("bucket 5/10us burst 7", 100, 121), Some(17));
    assert_eq!(
        allowed("bucket 5/10us burst 7 tick 10us", 105, 121),
        Some(17)
    );
    assert_eq!(
        allowed("bucket 5/10us burst 7 tick 10us", 105, 120),
        Some(12)
    );
    assert_eq!(allowed("in-flight 4", 0, 100), None);
}

#[test]
fn use_counts_accepted_units_inside_the_span() {
    let checker = checker(&[
        (1, 9, true),
        (2, 10, true),
        (3, 15, false),
        (4, 19, true),
        (5, 20, true),
    ]);
    let rule: RuleSpec = "sliding 4/10us".parse().unwrap();
    let used = checker.quota_used(&rule, Micros(10), Micros(20)).unwrap();
    assert_eq!(
        used,
        QuotaUse {
            accepted: 2,
            allowed: 4
        }
    );
    assert!((used.percent() - 50.0).abs() < 1e-9);
    let tokens: RuleSpec = "sliding 100/10us unit tokens".parse().unwrap();
    assert_eq!(
        checker
            .quota_used(&tokens, Micros(10), Micros(20))
            .unwrap()
            .accepted,
        60
    );
    assert_eq!(
        checker.quota_used(&"in-flight 4".parse().unwrap(), Micros(0), Micros(9)),
        None
    );
}
