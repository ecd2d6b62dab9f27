//! The quota is used fully: under endless demand, the provider accepts as much as the rule allows.
//!
//! Promises: the reference is either the rule in its smallest form (`peer::ReferenceA`,
//! `ReferenceB`) on the same network, or a bound in closed form for a constant round trip.
//!
//! Never: a bound taken from a measurement.

use jiff::tz::TimeZone;
use tollgate_core::limit::{Calendar, CalendarPeriod, HoldUntil, Rule};
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_sim::clock::NodeClock;
use tollgate_sim::governed::{Governed, GovernedPlan};
use tollgate_sim::latency::Latency;
use tollgate_sim::peer::{Pace, ReferenceA, ReferenceB, Saturating};
use tollgate_sim::rule::RuleSpec;
use tollgate_sim::world::{Client, Setup, World};

const SECOND: Span = Span::from_secs(1);

/// 50 per second for 200 s: one lump more or less is half a percent.
const LIMIT: u64 = 50;
const LENGTH: Span = Span::from_secs(200);

/// More waiting calls per node than any window grants at once.
const BACKLOG: usize = 100;

/// 5 ms up, 20 ms of work, 5 ms down.
const CONSTANT: Latency = Latency::constant(
    Span::from_millis(5),
    Span::from_millis(20),
    Span::from_millis(5),
);
const ROUND_TRIP: Span = Span::from_millis(30);

/// Nodes whose clocks started at different times and drift apart as slewed ones do; node 0, which
/// hosts the ledger, is exact.
fn clocks(nodes: usize) -> Vec<NodeClock> {
    let clock = |(node, drift_ppm): (u64, i32)| NodeClock {
        at_start: Micros(0) + Span::from_secs(7 * node),
        wall_start: Wall(1_772_323_200_000_000),
        drift_ppm,
        ..NodeClock::default()
    };
    (0..)
        .zip([0, 200, -300, 400])
        .take(nodes)
        .map(clock)
        .collect()
}

fn run<C: Client>(client: C, spec: &str, latency: Latency, nodes: usize, length: Span) -> World<C> {
    let rule: RuleSpec = spec.parse().expect("a rule");
    let mut setup = Setup::new(7, vec![rule], latency);
    setup.clocks = clocks(nodes);
    let mut world = World::new(setup, client);
    world.run_until(Micros(0) + length).expect("time passes");
    world
}

/// What the provider accepts from Tollgate; nothing may be limited.
fn accepted(rule: &Rule, spec: &str, latency: Latency, nodes: usize, length: Span) -> usize {
    let client = Governed::new(GovernedPlan::new(vec![rule.clone()]).saturating(BACKLOG));
    let world = run(client, spec, latency, nodes, length);
    assert_eq!(world.checker().violations(), 0, "{rule} against {spec}");
    world.checker().accepted()
}

fn reference(pace: impl Pace, spec: &str, latency: Latency, nodes: usize) -> usize {
    let world = run(Saturating::new(pace), spec, latency, nodes, LENGTH);
    world.checker().accepted()
}

#[track_caller]
fn at_least_99_percent(got: usize, of: usize, what: &str) {
    assert!(got * 100 >= of * 99, "{what}: {got} of {of}");
}

/// The number of calls of a rule that grants `count` per `cycle`.
fn bound(count: u64, cycle: Span) -> usize {
    usize::try_from(LENGTH.0 * count / cycle.0).expect("small")
}

/// W(1 + ε).
fn stretched(window: Span) -> Span {
    window.scale_up(1_001, 1_000)
}

fn networks() -> [(&'static str, Latency); 2] {
    [("LAN", Latency::LAN), ("WAN", Latency::WAN)]
}

/// W1: a sliding window gets what rule A in its smallest form gets.
#[test]
fn a_sliding_window_is_used_as_fully_as_rule_a_allows() {
    let rule = Rule::sliding(LIMIT, SECOND).expect("sane");
    for (name, latency) in networks() {
        for nodes in 1..=4 {
            let of = reference(
                ReferenceA::new(LIMIT, SECOND),
                "sliding 50/1s",
                latency,
                nodes,
            );
            let got = accepted(&rule, "sliding 50/1s", latency, nodes, LENGTH);
            at_least_99_percent(got, of, &format!("{name}, {nodes} nodes"));
        }
    }
}

/// W1, A12: a token bucket loses nothing to the round trip.
#[test]
fn a_token_bucket_is_used_as_fully_as_rule_b_allows() {
    let rule = Rule::bucket(LIMIT, SECOND, LIMIT).expect("sane");
    for (name, latency) in networks() {
        for nodes in 1..=4 {
            let spec = "bucket 50/1s burst 50";
            let of = reference(ReferenceB::new(LIMIT, SECOND, LIMIT), spec, latency, nodes);
            let got = accepted(&rule, spec, latency, nodes, LENGTH);
            at_least_99_percent(got, of, &format!("{name}, {nodes} nodes"));
            at_least_99_percent(got, bound(LIMIT, SECOND), &format!("{name}, {nodes} nodes"));
        }
    }
}

/// Windows of every kind, for a constant round trip: N per W(1 + ε) + RTT.
#[test]
fn windows_are_used_as_fully_as_a_constant_round_trip_allows() {
    let of = bound(LIMIT, stretched(SECOND) + ROUND_TRIP);
    let sliding = Rule::sliding(LIMIT, SECOND).expect("sane");
    let fixed = Rule::fixed(LIMIT, SECOND).expect("sane");
    let pairs = [
        (&sliding, "sliding 50/1s"),
        (&sliding, "fixed 50/1s phase 500ms"),
        (&sliding, "first-use 50/1s"),
        (&sliding, "bucket 50/1s burst 50"),
        (&fixed, "first-use 50/1s"),
    ];
    for (rule, spec) in pairs {
        for nodes in [1, 3] {
            let got = accepted(rule, spec, CONSTANT, nodes, LENGTH);
            at_least_99_percent(got, of, &format!("{rule} on {spec}, {nodes} nodes"));
        }
    }
}

/// A slot that is freed a window after the grant loses nothing to the round trip. Safe only because
/// the delay is constant here.
#[test]
fn a_limit_held_until_send_is_used_fully_for_any_round_trip() {
    let send = |rule: Result<Rule, _>| rule.expect("sane").hold_until(HoldUntil::Send);
    let rules = [
        (send(Rule::sliding(LIMIT, SECOND)), "sliding 50/1s"),
        (send(Rule::fixed(LIMIT, SECOND)), "first-use 50/1s"),
        (
            send(Rule::bucket(LIMIT, SECOND, LIMIT)),
            "bucket 50/1s burst 50",
        ),
    ];
    for (rule, spec) in rules {
        for nodes in [1, 4] {
            let got = accepted(&rule, spec, CONSTANT, nodes, LENGTH);
            let of = bound(LIMIT, stretched(SECOND));
            at_least_99_percent(got, of, &format!("{rule} on {spec}, {nodes} nodes"));
        }
    }
}

/// Spacing costs two in N, and no more.
#[test]
fn a_paced_limit_is_used_as_fully_as_its_spacing_allows() {
    let rule = Rule::paced(LIMIT, SECOND).expect("sane");
    for nodes in [1, 4] {
        let got = accepted(&rule, "sliding 50/1s", CONSTANT, nodes, LENGTH);
        let of = bound(LIMIT - 2, stretched(SECOND));
        at_least_99_percent(got, of, &format!("{nodes} nodes"));
    }
}

/// One a second, one at a time: the next call is sent one second after the response.
#[test]
fn a_paced_limit_of_one_sends_a_second_after_each_response() {
    let rule = Rule::paced(1, SECOND).expect("sane");
    for nodes in [1, 3] {
        let got = accepted(&rule, "sliding 1/1s", CONSTANT, nodes, LENGTH);
        let of = bound(1, stretched(SECOND) + ROUND_TRIP);
        at_least_99_percent(got, of, &format!("{nodes} nodes"));
    }
}

/// A12: calls at a time are all in use, but for the 2 ms after each.
#[test]
fn a12_calls_at_a_time_are_all_in_use() {
    let rule = Rule::in_flight(4).expect("sane");
    for nodes in [1, 2] {
        let got = accepted(&rule, "in-flight 4", CONSTANT, nodes, LENGTH);
        let of = bound(4, ROUND_TRIP + Span::from_millis(2));
        at_least_99_percent(got, of, &format!("{nodes} nodes"));
    }
}

/// M14: every minute of the calendar gives its whole quota.
#[test]
fn m14_a_calendar_window_gives_its_whole_quota() {
    let calendar = Calendar::new(CalendarPeriod::Minute, TimeZone::UTC);
    let rule = Rule::calendar(30, calendar).expect("sane");
    for nodes in [1, 4] {
        let got = accepted(
            &rule,
            "fixed 30/60s",
            CONSTANT,
            nodes,
            Span::from_secs(3_600),
        );
        at_least_99_percent(got, 60 * 30, &format!("{nodes} nodes"));
    }
}

/// W6: all demand may be at one node.
#[test]
fn a_node_that_has_all_the_demand_gets_all_of_the_quota() {
    let rule = Rule::sliding(40, Span::from_secs(10)).expect("sane");
    let spec = "sliding 40/10s";
    let mut plan = GovernedPlan::new(vec![rule]);
    plan.gate.waiting_max = 10_000;
    let setup = Setup::new(7, vec![spec.parse().expect("a rule")], CONSTANT).with_nodes(4);
    let mut world = World::new(setup, Governed::new(plan));
    for number in 0..1_300 {
        world.submit(Micros(0), crate::order::node(3), crate::order::call(number));
    }
    world.run_until(Micros(0) + LENGTH).expect("time passes");
    let cycle = stretched(Span::from_secs(10)) + ROUND_TRIP;
    at_least_99_percent(world.checker().accepted(), bound(40, cycle), "node 3");
    assert_eq!(world.checker().violations(), 0);
}
