//! Faults are active at their times and at no others.

use super::*;

fn plan(lines: &[&str]) -> FaultPlan {
    let mut plan = FaultPlan::default();
    for line in lines {
        plan.add(line.parse().expect("a fault of this test"), Micros(0))
            .expect("room");
    }
    plan
}

fn secs(secs: u64) -> Micros {
    Micros(0) + Span::from_secs(secs)
}

#[test]
fn an_outage_starts_at_its_first_instant_and_ends_before_its_last() {
    let mut plan = plan(&["outage 8s..11s 503"]);
    assert_eq!(
        plan.apply_to_request(secs(8) - Span(1)).response_fault,
        ResponseFault::Unaffected
    );
    assert_eq!(
        plan.apply_to_request(secs(8)).response_fault,
        ResponseFault::Outage(503)
    );
    assert_eq!(
        plan.apply_to_request(secs(11) - Span(1)).response_fault,
        ResponseFault::Outage(503)
    );
    assert_eq!(
        plan.apply_to_request(secs(11)).response_fault,
        ResponseFault::Unaffected
    );
}

#[test]
fn next_two_affects_exactly_two_requests() {
    let mut plan = plan(&["outage next 2 500"]);
    let fates: Vec<ResponseFault> = (0..3)
        .map(|_| plan.apply_to_request(secs(1)).response_fault)
        .collect();
    assert_eq!(
        fates,
        [
            ResponseFault::Outage(500),
            ResponseFault::Outage(500),
            ResponseFault::Unaffected
        ]
    );
}

#[test]
fn a_fault_hidden_behind_an_earlier_one_is_not_used_up() {
    let mut plan = plan(&["hang next 1", "reset-after next 1"]);
    assert_eq!(
        plan.apply_to_request(secs(0)).response_fault,
        ResponseFault::Hang
    );
    assert_eq!(
        plan.apply_to_request(secs(0)).response_fault,
        ResponseFault::Reset
    );
    assert_eq!(
        plan.apply_to_request(secs(0)).response_fault,
        ResponseFault::Unaffected
    );
}

#[test]
fn a_reset_before_reading_affects_bytes_and_not_requests() {
    let mut plan = plan(&["reset-before next 1"]);
    assert_eq!(plan.apply_to_request(secs(0)), AppliedFaults::default());
    assert!(plan.resets_unread(secs(0)));
    assert!(!plan.resets_unread(secs(0)));
}

#[test]
fn a_limit_changes_at_its_time_and_returns_when_the_change_ends() {
    let plan = plan(&["limit 0 halve 15s..30s", "limit 0 to 7 at 60s"]);
    assert_eq!(plan.limit(0, 40, secs(14)), 40);
    assert_eq!(plan.limit(0, 40, secs(15)), 20);
    assert_eq!(plan.limit(0, 40, secs(30)), 40);
    assert_eq!(plan.limit(0, 40, secs(60)), 7);
    assert_eq!(plan.limit(1, 99, secs(60)), 99);
}

#[test]
fn an_advertised_limit_does_not_change_the_enforced_one() {
    let plan = plan(&["tell 0 as 20 at 5s"]);
    assert_eq!(plan.advertised(0, 40, secs(4)), None);
    assert_eq!(plan.advertised(0, 40, secs(5)), Some(20));
    assert_eq!(plan.limit(0, 40, secs(5)), 40);
}

#[test]
fn faults_of_different_kinds_apply_together() {
    let mut plan = plan(&["skew now +90s", "drip now 5ms", "huge-headers now"]);
    let faults = plan.apply_to_request(secs(1));
    assert_eq!(faults.skew_secs, 90);
    assert_eq!(faults.body, BodyFault::Drip(Span::from_millis(5)));
    assert!(faults.huge_headers);
    assert_eq!(faults.response_fault, ResponseFault::Unaffected);
}

#[test]
fn a_full_plan_rejects_new_faults_until_old_ones_end() {
    let mut plan = FaultPlan::default();
    let short: PlannedFault = "hang 0s..1s".parse().expect("a fault");
    for _ in 0..FAULTS_MAX {
        plan.add(short, Micros(0)).expect("room");
    }
    assert_eq!(plan.add(short, Micros(0)), Err(PlanFull));
    assert_eq!(plan.add(short, secs(2)), Ok(()));
}

#[test]
fn clearing_ends_every_fault() {
    let mut plan = plan(&["hang now", "reset-before now"]);
    plan.clear();
    assert_eq!(plan.apply_to_request(secs(0)), AppliedFaults::default());
    assert!(!plan.resets_unread(secs(0)));
}
