//! Faults as the provider counts them and as the node sees them.

use super::tests::{MS, Scripted, run, setup};
use super::*;
use crate::rule::{Cost, RuleDecision};

fn within(from_ms: u64, to_ms: u64) -> Vec<TimeRange> {
    vec![TimeRange {
        from: Micros(from_ms * MS),
        to: Micros(to_ms * MS),
    }]
}

/// One call under faults, with a node that waits half a second for the response.
fn one_call(faults: Faults) -> World<Scripted> {
    let give_up = Some(Span::from_millis(500));
    run(
        Setup {
            faults,
            give_up,
            ..setup("sliding 9/1s")
        },
        Scripted::sends(1),
    )
}

#[test]
fn a_lost_request_is_never_counted_and_gets_no_response() {
    let world = one_call(Faults {
        lost_requests_ppm: 1_000_000,
        ..Faults::default()
    });
    assert!(world.checker().arrivals().is_empty());
    assert_eq!(world.client().responses, [(1, 500, "no response")]);
}

#[test]
fn a_lost_response_is_counted_and_the_caller_gets_none() {
    let world = one_call(Faults {
        lost_replies_ppm: 1_000_000,
        ..Faults::default()
    });
    assert_eq!(world.checker().accepted(), 1);
    assert_eq!(world.client().responses, [(1, 500, "no response")]);
}

#[test]
fn loss_of_responses_does_not_change_the_delays_of_requests() {
    let log = |lost_replies_ppm| {
        let faults = Faults {
            lost_replies_ppm,
            ..Faults::default()
        };
        let wan = Setup {
            latency: Latency::WAN,
            faults,
            ..setup("sliding 99/1s")
        };
        run(wan, Scripted::sends(99)).checker().arrivals().to_vec()
    };
    assert_eq!(log(0), log(500_000));
}

#[test]
fn a_response_after_give_up_is_ignored() {
    let give_up = Some(Span::from_millis(59));
    let world = run(
        Setup {
            give_up,
            ..setup("sliding 9/1s")
        },
        Scripted::sends(1),
    );
    assert_eq!(world.client().responses, [(1, 59, "no response")]);
}

#[test]
fn an_outage_returns_503_and_counts_nothing() {
    let faults = Faults {
        outages: within(0, 11),
        ..Faults::default()
    };
    let world = run(
        Setup {
            faults,
            ..setup("sliding 9/1s")
        },
        Scripted::sends(2),
    );
    assert_eq!(world.outage_responses(), 2);
    assert!(world.checker().arrivals().is_empty());
    assert_eq!(
        world.client().responses,
        [(1, 40, "unavailable"), (2, 40, "unavailable")]
    );
}

#[test]
fn a_hang_counts_the_request_holds_its_slot_and_never_responds() {
    let faults = Faults {
        hangs: within(0, 2_000),
        ..Faults::default()
    };
    let mut world = World::new(
        Setup {
            faults,
            ..setup("in-flight 1")
        },
        Scripted::sends(1),
    );
    world.run_until(Micros(1_999 * MS)).unwrap();
    let decision = world.provider().peek(Micros(1_999 * MS), Cost::CALL);
    assert_ne!(decision, RuleDecision::Accepted);
    world.run_until(Micros(5_000 * MS)).unwrap();
    assert_eq!(
        world.provider().peek(Micros(5_000 * MS), Cost::CALL),
        RuleDecision::Accepted
    );
    assert!(world.client().responses.is_empty());
}

#[test]
fn a_limit_changes_at_its_time() {
    let changes = vec![LimitChange {
        at: Micros(5 * MS),
        rule: 0,
        limit: 1,
    }];
    let faults = Faults {
        changes,
        ..Faults::default()
    };
    let world = run(
        Setup {
            faults,
            ..setup("sliding 3/1s")
        },
        Scripted::sends(3),
    );
    assert_eq!(
        (world.checker().accepted(), world.checker().violations()),
        (1, 2)
    );
}
