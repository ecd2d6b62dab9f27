//! `hold_until: arrived`: full use where responses are slow, and the promise that then holds.
//!
//! Promises: exact for providers that count a call within half of `arrive_within` after they have
//! acknowledged it, for any uplink and response time; a dead connection is an unknown outcome; a provider that delays requests before it counts them is detected at its
//! first 429.
//!
//! Never: a bound taken from a measurement.

use proptest::prelude::*;
use tollgate_core::limit::{HoldUntil, Rule};
use tollgate_core::time::{Micros, Span};
use tollgate_sim::governed::{Governed, GovernedPlan};
use tollgate_sim::latency::{Delay, Latency};
use tollgate_sim::rule::RuleSpec;
use tollgate_sim::world::{DeadConnections, Setup, World};

use crate::proof::{check_invariants, with_one_limit, with_several_limits};
use crate::scenario::{LATE, Scenario, UP_MAX, calendar_pair, config, exact_pair};

const SECOND: Span = Span::from_secs(1);

/// A world whose limits hold until the call must have arrived, less what a clock gains that is 500 ppm fast.
/// Half of the worlds deliver within the bound. In the others the bytes are with the provider's kernel, and
/// acknowledged, whenever they are, up to 60 bounds late; from then the provider takes half of the
/// bound to count them.
fn arrived(worlds: impl Strategy<Value = Scenario>) -> impl Strategy<Value = Scenario> {
    let parts = (50_000_u64..3_000_000, 0_u64..=1_000, 0_u64..=1_000);
    let worlds = (worlds, parts, any::<bool>());
    worlds.prop_map(|(mut world, (bound, least, slow), is_prompt)| {
        let bounded = |span: u64| Span(span).scale_up(999, 1_000);
        let (up, counted) = match is_prompt {
            true => {
                let up = Span(bound * slow / 1_000);
                (up, bounded(bound) - up)
            }
            false => {
                let counted = bounded(bound / 2);
                (Span((UP_MAX - counted).0 * slow / 1_000), counted)
            }
        };
        let delay = |most: Span| Delay::Uniform {
            least: Span(most.0 * least / 1_000),
            most,
        };
        (world.latency.up, world.until_counted) = (delay(up), delay(counted));
        world.arrive_within = Some(Span(bound));
        for limit in &mut world.limits {
            limit.rule = limit.rule.clone().hold_until(HoldUntil::Arrived);
        }
        world
    })
}

/// The same with connections that die: their bytes are never acknowledged, and may arrive all the same.
fn with_dead_connections(
    worlds: impl Strategy<Value = Scenario>,
) -> impl Strategy<Value = Scenario> {
    let noticed_after = 10_000_u64..8_000_000;
    (arrived(worlds), 1_u32..100_000, noticed_after).prop_map(|(mut world, ppm, noticed)| {
        world.faults.dead_connections = DeadConnections {
            ppm,
            noticed_after: Span(noticed),
            late: Span(LATE.0 * 9 / 10),
        };
        // A call whose connection died may have been answered all the same.
        world.faults.lost_replies_ppm = world.faults.lost_replies_ppm.max(1);
        world
    })
}

proptest! {
    #![proptest_config(config(256))]

    /// M1 for providers that count within half of the bound after their acknowledgement: any uplink,
    /// any response time, four nodes.
    #[test]
    fn m1_no_request_arrives_above_a_limit_held_until_arrived(
        world in arrived(with_one_limit(exact_pair()))
    ) {
        check_invariants(&world)?;
    }

    /// C11: several limits and calls at a time in one decision.
    #[test]
    fn c11_none_of_several_limits_held_until_arrived_is_exceeded(
        world in arrived(with_several_limits())
    ) {
        check_invariants(&world)?;
    }

    /// M14: calendar windows.
    #[test]
    fn m14_no_calendar_window_held_until_arrived_is_exceeded(
        mut world in arrived(with_one_limit(calendar_pair()))
    ) {
        let first = world.calls[0].at;
        world.clocks[0].drift_ppm = 0;
        world.clocks[0].wall_steps.retain(|(at, _)| *at > first + Span::from_millis(100));
        check_invariants(&world)?;
    }

    /// A dead connection is an unknown outcome, held until the call can no longer arrive.
    #[test]
    fn a_dead_connection_exceeds_no_limit_held_until_arrived(
        world in with_dead_connections(with_one_limit(exact_pair()))
    ) {
        check_invariants(&world)?;
    }
}

/// The presumed arrival that the defaults of a configuration lead to.
const ARRIVE_WITHIN: Span = Span::from_secs(2);

/// Endless demand against a provider that responds this slowly.
fn slow(rule: &Rule, spec: &str, response: Span, windows: u64) -> World<Governed> {
    let up = Delay::Uniform {
        least: Span::from_millis(5),
        most: Span::from_millis(200),
    };
    let latency = Latency {
        up,
        ..Latency::constant(SECOND, response, Span::from_millis(5))
    };
    let rule_spec: RuleSpec = spec.parse().expect("a rule");
    let window = rule_spec.counting.window().expect("a window");
    let mut plan = GovernedPlan::new(vec![rule.clone()]).saturating(200);
    plan.arrive_within = Some(ARRIVE_WITHIN);
    let setup = Setup::new(7, vec![rule_spec], latency);
    let mut world = World::new(setup, Governed::new(plan));
    world
        .run_until(Micros(window.0 * windows))
        .expect("time passes");
    world
}

/// W9: an API that responds slowly is used fully. Held until the response, these three are used to
/// 40, 67 and 33 %.
#[test]
fn w9_slow_responses_do_not_cost_quota() {
    let rows = [
        (
            Rule::sliding(40, SECOND.scale_up(10, 1)),
            "sliding 40/10s",
            15,
            80,
        ),
        (
            Rule::sliding(60, SECOND.scale_up(60, 1)),
            "sliding 60/60s",
            30,
            95,
        ),
        (Rule::bucket(2, SECOND, 10), "bucket 2/1s burst 10", 30, 97),
    ];
    for (rule, spec, secs, least) in rows {
        let rule = rule.expect("sane");
        let windows = 120;
        let response = Span::from_secs(secs);
        let quota = usize::try_from(rule.limit() * windows).expect("small");
        let world = slow(
            &rule.clone().hold_until(HoldUntil::Arrived),
            spec,
            response,
            windows,
        );
        assert_eq!(world.checker().violations(), 0, "{rule}");
        let got = world.checker().accepted();
        assert!(got * 100 >= quota * least, "{rule}: {got} of {quota}");
        let strict = slow(
            &rule.hold_until(HoldUntil::Response),
            spec,
            response,
            windows,
        );
        let strict = strict.checker().accepted();
        assert!(strict * 100 < quota * 70, "{spec}: {strict} of {quota}");
    }
}

/// A provider that queues requests for 20 seconds before it counts them: what went out before its
/// first 429 came back may be limited, and nothing after that for a day.
#[test]
fn a_provider_that_counts_late_is_detected_at_its_first_429() {
    let short = Span::from_millis(5);
    let latency = Latency::constant(short, SECOND, short);
    let rule = Rule::sliding(40, SECOND.scale_up(10, 1)).expect("sane");
    let mut plan = GovernedPlan::new(vec![rule.hold_until(HoldUntil::Arrived)]).saturating(200);
    plan.arrive_within = Some(ARRIVE_WITHIN);
    let spec = "sliding 40/10s".parse().expect("a rule");
    let mut setup = Setup::new(7, vec![spec], latency);
    setup.until_counted = Delay::Uniform {
        least: short,
        most: Span::from_secs(20),
    };
    let mut world = World::new(setup, Governed::new(plan));
    // Everything that was sent before the first 429 came has been counted by then.
    world.run_until(Micros(60_000_000)).expect("time passes");
    let first = world.checker().violations();
    assert!(first > 0, "the provider does not count late enough");
    world
        .run_until(Micros(3 * 3_600_000_000))
        .expect("time passes");
    assert_eq!(world.checker().violations(), first, "after the first 429");
}
