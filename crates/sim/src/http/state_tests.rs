//! The provider's state counts at the right instants and stays within its bounds.

use tollgate_core::time::{Micros, Span, Wall};

use super::clock::Reading;
use super::request::{ScopeKey, SimRequest};
use super::state::{FaultError, LOG_LINES_MAX, ProviderState, SCOPES_MAX};
use crate::checker::Priority;
use crate::fault::{AppliedFaults, FAULTS_MAX, PlanFull, PlannedFault};
use crate::rule::{Cost, RuleSpec};

/// The provider of these tests started at this second of the epoch.
const START: u64 = 1_794_744_000;

fn at(secs: u64) -> Reading {
    let passed = Span::from_secs(secs);
    Reading {
        since_start: Micros(0) + passed,
        wall: Wall(0) + Span::from_secs(START) + passed,
    }
}

fn state(rules: &str, faults: &[&str]) -> ProviderState {
    let mut state = ProviderState::new(RuleSpec::parse_all(rules).expect("rules"), at(0));
    let faults: Vec<PlannedFault> = faults
        .iter()
        .map(|line| line.parse().expect("a fault"))
        .collect();
    state.plan(&faults, at(0)).expect("room");
    state
}

fn request(key: Option<&str>) -> SimRequest {
    SimRequest {
        scope: ScopeKey {
            entity: None,
            key: key.map(str::to_owned),
        },
        entity: String::new(),
        path: "/".to_owned(),
        head_only: false,
        call: None,
        submitted: None,
        priority: Priority::Normal,
        cost: Cost::CALL,
    }
}

fn accepted(state: &mut ProviderState, times: usize, now: Reading) -> usize {
    (0..times)
        .filter(|_| !state.count(&request(None), now).limited)
        .count()
}

#[test]
fn a_limit_changes_at_its_instant_and_not_at_the_next_request() {
    // Emptied at 0 s, refilled with 1/s until 10 s and with 3/s after it: 10 + 30 at 20 s. Had the change
    // been noticed only by the request at 20 s, there would be 20.
    let mut state = state("bucket 1/1s burst 100", &["limit 0 to 3 at 10s"]);
    assert_eq!(accepted(&mut state, 101, at(0)), 100);
    assert_eq!(accepted(&mut state, 101, at(20)), 40);
}

#[test]
fn a_scope_created_after_a_change_has_the_changed_limit() {
    let mut state = state("sliding 4/1s", &["limit 0 halve at 5s"]);
    assert_eq!(accepted(&mut state, 5, at(6)), 2);
}

#[test]
fn clearing_faults_restores_the_limit_and_a_reset_keeps_the_changed_one() {
    let mut state = state("fixed 4/1d", &["limit 0 to 1 now"]);
    assert_eq!(accepted(&mut state, 5, at(0)), 1);
    state.reset(at(1));
    assert_eq!(accepted(&mut state, 5, at(1)), 1);
    state.replan(&[], at(2)).expect("room");
    assert_eq!(accepted(&mut state, 5, at(2)), 3);
}

#[test]
fn a_fixed_window_has_the_edges_of_utc() {
    // 12:00:00 plus 59 s and plus 60 s lie in two minutes.
    let mut state = state("fixed 1/1m", &[]);
    assert_eq!(accepted(&mut state, 2, at(59)), 1);
    assert_eq!(accepted(&mut state, 2, at(60)), 1);
}

#[test]
fn keys_beyond_the_bound_share_one_scope() {
    let mut state = state("fixed 1/1d", &[]);
    for key in 0..SCOPES_MAX {
        assert!(!state.count(&request(Some(&key.to_string())), at(0)).limited);
    }
    assert!(!state.count(&request(Some("one too many")), at(0)).limited);
    assert!(state.count(&request(Some("and another")), at(0)).limited);
    assert_eq!(state.scope_records().len(), SCOPES_MAX + 1);
    assert!(
        state
            .scope_records()
            .iter()
            .any(|record| record.name == "other")
    );
}

#[test]
fn the_log_keeps_the_newest_lines() {
    let mut state = state("fixed 1/1d", &[]);
    accepted(&mut state, LOG_LINES_MAX + 1, at(0));
    assert_eq!(state.lines().count(), LOG_LINES_MAX);
    assert!(
        state.lines().all(|line| !line.accepted),
        "the first line, the accepted one, is gone"
    );
}

#[test]
fn a_call_from_before_a_reset_frees_no_slot_after_it() {
    let mut state = state("in-flight 1", &[]);
    let old = state.count(&request(None), at(0)).ticket;
    state.reset(at(1));
    assert_eq!(accepted(&mut state, 1, at(1)), 1);
    state.finish(&old, true, at(2));
    assert_eq!(accepted(&mut state, 1, at(2)), 0);
    assert_eq!(state.tally().answered, 0);
}

#[test]
fn a_list_of_faults_is_planned_whole_or_not_at_all() {
    let mut state = state("fixed 9/1d", &[]);
    let hang: PlannedFault = "hang now".parse().expect("a fault");
    assert_eq!(
        state.plan(&[hang; FAULTS_MAX + 1], at(0)),
        Err(PlanFull.into())
    );
    let stranger: PlannedFault = "limit 1 to 3 now".parse().expect("a fault");
    let error = state
        .plan(&[hang, stranger], at(0))
        .expect_err("one rule only");
    let expected = "fault `limit 1 to 3 now`: there is no rule 1; there are 1, counted from 0";
    assert_eq!(error.to_string(), expected);
    assert!(matches!(
        error,
        FaultError::NoRule {
            rule: 1,
            rules: 1,
            ..
        }
    ));
    assert_eq!(
        state.count(&request(None), at(0)).faults,
        AppliedFaults::default()
    );
}
