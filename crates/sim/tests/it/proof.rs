//! The guarantee: whatever the network, the clocks and the callers do, no request ever arrives
//! above the provider's limit, and no call is lost.

use proptest::prelude::*;
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;
use tollgate_sim::rule::{RuleSpec, Unit};

use crate::scenario::{
    Scenario, calendar_pair, calendar_provider_pair, config, exact_pair, in_flight_pair,
    paced_pair, with_limits, with_limits_on,
};

pub(crate) fn check_invariants(scenario: &Scenario) -> Result<(), TestCaseError> {
    let world = scenario.run();
    let checker = world.checker();
    prop_assert_eq!(world.client().limited(), [], "above the limit");
    prop_assert_eq!(checker.violations(), 0, "above the limit");
    prop_assert_eq!(checker.lost(), [], "no response");
    if scenario.faults.lost_replies_ppm == 0 {
        prop_assert_eq!(checker.duplicates(), [], "sent twice");
    }
    Ok(())
}

pub(crate) fn with_one_limit(
    pair: impl Strategy<Value = (RuleSpec, Rule)>,
) -> impl Strategy<Value = Scenario> {
    with_limits(pair.prop_map(|pair| vec![pair]))
}

pub(crate) fn with_several_limits() -> impl Strategy<Value = Scenario> {
    let pairs = (exact_pair(), exact_pair(), in_flight_pair());
    with_limits(pairs.prop_map(|(first, second, at_a_time)| vec![first, second, at_a_time]))
}

/// A limit in tokens and one in calls; up to three times the true cost is held in advance.
pub(crate) fn with_token_limit_on(nodes_max: usize) -> impl Strategy<Value = Scenario> {
    let with_tokens = with_limits_on(
        nodes_max,
        (exact_pair(), exact_pair()).prop_map(|(calls, (spec, rule))| {
            let spec = RuleSpec {
                unit: Unit::Tokens,
                ..spec
            };
            vec![
                calls,
                (spec, rule.unit(tollgate_core::ask::CostUnit::Tokens)),
            ]
        }),
    );
    (with_tokens, 100_u64..=300).prop_map(|(mut scenario, percent)| {
        let most = scenario.limits[1].rule.max_cost();
        for call in &mut scenario.calls {
            call.tokens = call.tokens.min(most);
        }
        scenario.limits[1].estimate_percent = percent;
        scenario
    })
}

proptest! {
    #![proptest_config(config(256))]

    /// M1, M4, A13: every exact pair, on one ledger shared by up to four nodes, with any jitter,
    /// lost messages, cancellations, delays between grant and write, and bad clocks.
    #[test]
    fn m1_no_request_arrives_above_the_limit(scenario in with_one_limit(exact_pair())) {
        check_invariants(&scenario)?;
    }

    /// M1: `paced` against a bucket, and against a window that opens with the first call.
    #[test]
    fn m1_paced_calls_exceed_neither_a_bucket_nor_a_first_use_window(scenario in with_one_limit(paced_pair())) {
        check_invariants(&scenario)?;
    }

    /// M1: rules without edges against a provider that counts calendar minutes.
    #[test]
    fn m1_rules_without_edges_exceed_no_calendar_window(scenario in with_one_limit(calendar_provider_pair())) {
        check_invariants(&scenario)?;
    }

    /// A12: concurrent calls.
    #[test]
    fn a12_no_more_at_a_time_than_allowed(scenario in with_one_limit(in_flight_pair())) {
        check_invariants(&scenario)?;
    }

    /// M14, C13: calendar windows, with wall clocks that are set arbitrarily.
    #[test]
    fn m14_no_calendar_window_holds_more_than_its_quota(mut scenario in with_one_limit(calendar_pair())) {
        // A host without NTP leaves the margin within the hour, and a wall clock that is wrong at
        // its first reading cannot be detected: Tollgate guarantees neither.
        let first = scenario.calls[0].at;
        scenario.clocks[0].drift_ppm = 0;
        scenario.clocks[0].wall_steps.retain(|(at, _)| *at > first + Span::from_millis(100));
        check_invariants(&scenario)?;
    }

    /// C11: several limits in one decision.
    #[test]
    fn c11_none_of_several_limits_is_exceeded(scenario in with_several_limits()) {
        check_invariants(&scenario)?;
    }

    /// C13: costs in tokens, held in advance and settled afterwards.
    #[test]
    fn c13_limits_hold_with_costs_settled_afterwards(scenario in with_token_limit_on(4)) {
        check_invariants(&scenario)?;
    }
}
