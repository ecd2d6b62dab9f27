//! Plans strike at the right moments and no others.

use super::*;

fn plan(lines: &[&str]) -> Plan {
    let mut plan = Plan::default();
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
fn an_outage_strikes_from_its_first_moment_until_before_its_last() {
    let mut plan = plan(&["outage 8s..11s 503"]);
    assert_eq!(plan.strike(secs(8) - Span(1)).fate, Fate::Answered);
    assert_eq!(plan.strike(secs(8)).fate, Fate::Outage(503));
    assert_eq!(plan.strike(secs(11) - Span(1)).fate, Fate::Outage(503));
    assert_eq!(plan.strike(secs(11)).fate, Fate::Answered);
}

#[test]
fn next_two_strikes_exactly_two_requests() {
    let mut plan = plan(&["outage next 2 500"]);
    let fates: Vec<Fate> = (0..3).map(|_| plan.strike(secs(1)).fate).collect();
    assert_eq!(
        fates,
        [Fate::Outage(500), Fate::Outage(500), Fate::Answered]
    );
}

#[test]
fn a_fault_hidden_behind_an_earlier_one_is_not_used_up() {
    let mut plan = plan(&["hang next 1", "reset-after next 1"]);
    assert_eq!(plan.strike(secs(0)).fate, Fate::Hang);
    assert_eq!(plan.strike(secs(0)).fate, Fate::Reset);
    assert_eq!(plan.strike(secs(0)).fate, Fate::Answered);
}

#[test]
fn a_reset_before_reading_strikes_bytes_and_not_requests() {
    let mut plan = plan(&["reset-before next 1"]);
    assert_eq!(plan.strike(secs(0)), Strike::default());
    assert!(plan.refuses_to_read(secs(0)));
    assert!(!plan.refuses_to_read(secs(0)));
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
fn telling_another_number_does_not_change_what_is_enforced() {
    let plan = plan(&["tell 0 as 20 at 5s"]);
    assert_eq!(plan.told(0, 40, secs(4)), None);
    assert_eq!(plan.told(0, 40, secs(5)), Some(20));
    assert_eq!(plan.limit(0, 40, secs(5)), 40);
}

#[test]
fn faults_about_different_things_strike_together() {
    let mut plan = plan(&["skew now +90s", "drip now 5ms", "huge-headers now"]);
    let strike = plan.strike(secs(1));
    assert_eq!(strike.skew_secs, 90);
    assert_eq!(strike.body, BodyFault::Drip(Span::from_millis(5)));
    assert!(strike.huge_headers);
    assert_eq!(strike.fate, Fate::Answered);
}

#[test]
fn a_full_plan_refuses_and_past_faults_make_room() {
    let mut plan = Plan::default();
    let short: Planned = "hang 0s..1s".parse().expect("a fault");
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
    assert_eq!(plan.strike(secs(0)), Strike::default());
    assert!(!plan.refuses_to_read(secs(0)));
}
