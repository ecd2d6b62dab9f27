//! The order of calls in whole worlds: bursts, floods with urgent calls in them, long queues,
//! strict order, and providers that are stricter than they say.
//!
//! Promises: judged by the provider's log, in virtual time.
//!
//! Never: a figure without the run that gave it.

use proptest::prelude::*;
use tollgate_core::gate::Order;
use tollgate_core::limit::{Rule, Strictness};
use tollgate_core::time::{Micros, Now, Span};
use tollgate_sim::checker::{ArrivalFilter, OrderBy, Priority};
use tollgate_sim::governed::{Governed, GovernedPlan, Limit};
use tollgate_sim::latency::{Delay, Latency};
use tollgate_sim::rule::{CallId, Cost, RuleSpec, Unit};
use tollgate_sim::world::{Call, LimitChange, NodeId, Setup, World};

use crate::scenario::{Scenario, config, exact_pair, in_flight_pair, with_limits};

/// 5 ms up (lognormal), 20 ms of work, 5 ms down: the network of the peers' measurements.
const NEAR: Latency = Latency::lognormal(5, 0.5, 20, 0.0);

pub(crate) fn node(number: usize) -> NodeId {
    NodeId(number)
}

pub(crate) fn call(number: u64) -> Call {
    Call {
        id: CallId(number),
        cost: Cost::CALL,
        priority: Priority::Normal,
    }
}

fn world(provider: &str, plan: GovernedPlan, latency: Latency, nodes: usize) -> World<Governed> {
    let rules = RuleSpec::parse_all(provider).expect("rules");
    let setup = Setup::new(11, rules, latency).with_nodes(nodes);
    World::new(setup, Governed::new(plan))
}

fn plan(rule: Rule) -> GovernedPlan {
    let mut plan = GovernedPlan::new(vec![rule]);
    plan.gate.waiting_max = 100_000;
    plan
}

fn secs(secs: u64) -> Micros {
    Micros(secs * 1_000_000)
}

fn sliding_40() -> Rule {
    Rule::sliding(40, Span::from_secs(10)).expect("sane")
}

fn bucket_50() -> Rule {
    Rule::bucket(50, Span::from_secs(1), 50).expect("sane")
}

/// W2: a burst, a pause, a burst. Ideal is 40 at 0, 10, 25 and 35 s.
#[test]
fn w2_a_burst_after_a_pause_is_neither_limited_nor_late() {
    for nodes in [1, 4] {
        let mut world = world("sliding 40/10s", plan(sliding_40()), NEAR, nodes);
        for number in 0..160 {
            let at = if number < 80 { secs(0) } else { secs(25) };
            world.submit(at, node(number % nodes), call(number as u64));
        }
        world.run_until(secs(60)).expect("time passes");
        let checker = world.checker();
        assert_eq!((checker.violations(), checker.accepted()), (0, 160));
        assert_eq!(checker.lost(), []);
        let end = checker.arrivals().iter().map(|arrival| arrival.at).max();
        let drift = Span::from_millis(10);
        let latest = secs(35) + Span::from_millis(200) + drift;
        assert!(end <= Some(latest), "ended at {end:?}");
    }
}

/// A flood of low calls at three times the rate, some of them urgent.
fn flood(
    provider: &str,
    rule: Rule,
    per_second: u64,
    length: u64,
    mut is_urgent: impl FnMut(u64) -> bool,
) -> World<Governed> {
    let mut world = world(provider, plan(rule), NEAR, 1);
    let gap = 1_000_000 / per_second;
    for number in 0..length * per_second {
        let urgent = is_urgent(number);
        let priority = if urgent {
            Priority::High
        } else {
            Priority::Low
        };
        let call = Call {
            priority,
            ..call(number)
        };
        world.submit(Micros(number * gap), node(0), call);
    }
    world.run_until(secs(length)).expect("time passes");
    world
}

/// W3, M3: urgent calls in a flood hardly wait, no capacity is left unused for them, and background
/// calls keep their order.
#[track_caller]
fn assert_urgent_is_fast(world: &World<Governed>, within: Span, least_used: usize) {
    let checker = world.checker();
    assert_eq!(checker.violations(), 0);
    let waits = checker.waits(Priority::High).expect("urgent calls went");
    assert!(
        waits.p99 <= within,
        "urgent p99 {} of {}",
        waits.p99,
        within
    );
    let accepted = checker.accepted();
    assert!(accepted >= least_used, "{accepted} of {least_used} used");
    assert_eq!(checker.overtaken(OrderBy::Sent), [], "out of order");
}

fn every_tenth(number: u64) -> bool {
    number % 10 == 9
}

fn one_in_ten_by_chance() -> impl FnMut(u64) -> bool {
    let mut dice = fastrand::Rng::with_seed(3);
    move |_| dice.u32(0..10) == 0
}

/// 99 % of rule A's bound, 40 per W(1 + ε) and a round trip of 30 ms.
const SLIDING_USE: usize = 300 * 40 * 1_000 / 10_040 * 99 / 100;
const BUCKET_USE: usize = 60 * 50 * 99 / 100;

/// W3: 300 ms and the uplink delay.
#[test]
fn w3_urgent_calls_in_a_flood_hardly_wait_on_a_sliding_window() {
    let world = flood("sliding 40/10s", sliding_40(), 12, 300, every_tenth);
    assert_urgent_is_fast(&world, Span::from_millis(300 + 5), SLIDING_USE);
}

/// W3: one interval and the uplink delay.
#[test]
fn w3_urgent_calls_in_a_flood_hardly_wait_on_a_token_bucket() {
    let world = flood("bucket 50/1s burst 50", bucket_50(), 150, 60, every_tenth);
    assert_urgent_is_fast(&world, Span::from_millis(40), BUCKET_USE);
}

/// By chance up to three urgent calls arrive within one interval of 250 or 20 ms. No slot is
/// reserved for them, so the third one waits for three.
#[test]
fn w3_urgent_calls_that_come_together_wait_an_interval_each() {
    let chance = one_in_ten_by_chance;
    let world = flood("sliding 40/10s", sliding_40(), 12, 300, chance());
    assert_urgent_is_fast(&world, Span::from_millis(3 * 250 + 20), SLIDING_USE);
    let world = flood("bucket 50/1s burst 50", bucket_50(), 150, 60, chance());
    assert_urgent_is_fast(&world, Span::from_millis(3 * 20 + 20), BUCKET_USE);
}

/// Ten thousand waiters: in order, and within 2 % of the ideal time.
#[test]
fn a_queue_of_ten_thousand_keeps_order_and_time() {
    let rules = [
        (bucket_50(), "bucket 50/1s burst 50", 199),
        (
            Rule::sliding(400, Span::from_secs(10)).expect("sane"),
            "sliding 400/10s",
            240,
        ),
    ];
    for (rule, provider, ideal) in rules {
        let mut world = world(provider, plan(rule), NEAR, 1);
        for number in 0..10_000 {
            world.submit(secs(0), node(0), call(number));
        }
        world.run_until(secs(400)).expect("time passes");
        let checker = world.checker();
        assert_eq!((checker.violations(), checker.accepted()), (0, 10_000));
        assert_eq!(checker.overtaken(OrderBy::Sent), []);
        let end = checker.arrivals().iter().map(|arrival| arrival.at).max();
        let latest = Micros(ideal * 1_020_000);
        assert!(end <= Some(latest), "{provider} ended at {end:?}");
    }
}

/// Everything at one node, written as soon as it is granted, over a network that loses nothing.
fn one_node(mut scenario: Scenario, fifo: bool) -> Scenario {
    scenario.clocks.truncate(1);
    scenario.clocks[0].suspends.clear();
    scenario.cancel_ppm = 0;
    scenario.write_delay = Span::ZERO;
    scenario.faults = tollgate_sim::world::Faults::default();
    for call in &mut scenario.calls {
        call.node = 0;
        if fifo {
            call.priority = Priority::Normal;
        }
    }
    scenario
}

proptest! {
    #![proptest_config(config(128))]

    /// M3: calls of one priority are sent in the order in which they arrived, whatever the
    /// algorithm, the network and the delays of the ledger.
    #[test]
    fn m3_calls_of_one_priority_are_sent_in_order(
        scenario in with_limits(exact_pair().prop_map(|pair| vec![pair])),
        same in any::<bool>(),
    ) {
        let world = one_node(scenario, same).run();
        prop_assert_eq!(world.checker().overtaken(OrderBy::Sent), []);
        prop_assert_eq!(world.checker().lost(), []);
    }

    /// The same with several limits at once.
    #[test]
    fn m3_calls_under_several_limits_are_sent_in_order(
        scenario in with_limits((exact_pair(), in_flight_pair()).prop_map(|(a, b)| vec![a, b])),
    ) {
        let world = one_node(scenario, false).run();
        prop_assert_eq!(world.checker().overtaken(OrderBy::Sent), []);
        prop_assert_eq!(world.checker().lost(), []);
    }
}

/// The result of a run against a stricter provider.
#[derive(Debug)]
struct LadderRun {
    /// Violations until the last rung that was needed, and after it.
    before: usize,
    after: usize,
    strictness: Option<Strictness>,
    accepted: usize,
}

/// Saturates a provider for ten minutes, and reads the ladder every second.
fn run_ladder(provider: &str, rule: Rule, latency: Latency) -> LadderRun {
    let mut world = world(provider, plan(rule).saturating(200), latency, 1);
    let (mut strictness, mut before) = (None, 0);
    for second in 1..=600 {
        world.run_until(secs(second)).expect("time passes");
        let now = Now {
            at: world.now(),
            ..Now::default()
        };
        let seen = world.client().strictness(now);
        if seen != strictness {
            // Calls sent under the previous rung get their responses within the second.
            (strictness, before) = (seen, usize::MAX);
        } else if before == usize::MAX {
            before = world.checker().violations();
        }
    }
    let checker = world.checker();
    LadderRun {
        before,
        after: checker.violations() - before,
        strictness,
        accepted: checker.accepted(),
    }
}

/// Exact after the ladder: a stricter window causes a few 429s once, and then none. Windows of
/// fewer than eight bins are beyond the ladder.
#[test]
fn after_the_ladder_a_stricter_window_is_not_exceeded() {
    let second = Span::from_secs(1);
    let rule = Rule::sliding(50, second).expect("sane");
    let cases = [
        ("binned 50/1s bins 10", Strictness::Eighth),
        ("two-counter 50/1s phase 500ms", Strictness::Spaced),
    ];
    let paced = Rule::paced(50, second).expect("sane");
    let cases = cases.map(|(provider, strictness)| (provider, &rule, strictness));
    let spaced = [("binned 50/1s bins 10", &paced, Strictness::Eighth)];
    for (provider, rule, strictness) in cases.into_iter().chain(spaced) {
        let run = run_ladder(provider, rule.clone(), Latency::LAN);
        assert_eq!(
            (run.after, run.strictness),
            (0, Some(strictness)),
            "{provider}: {run:?}"
        );
        assert!(run.before > 0, "{provider} is not stricter: {run:?}");
        assert!(run.before <= 150, "{provider}: {run:?}");
    }
}

/// Paced, with jitter up to W/(N − 2), needs no ladder.
#[test]
fn paced_calls_are_exact_against_two_counters_for_small_jitter() {
    let second = Span::from_secs(1);
    let gap = Span(second.0 / 48);
    let latency = Latency {
        up: Delay::Uniform {
            least: Span::from_millis(5),
            most: Span::from_millis(5) + gap,
        },
        ..NEAR
    };
    let providers = [
        "two-counter 50/1s phase 500ms",
        "two-counter 50/1s",
        "sliding 50/1s",
    ];
    for provider in providers {
        let rule = Rule::paced(50, second).expect("sane");
        let run = run_ladder(provider, rule, latency);
        assert_eq!((run.before, run.after), (0, 0), "{provider}: {run:?}");
        assert!(run.accepted >= 600 * 40, "{provider}: {run:?}");
    }
}

/// M13: one at a time, never two within a second, and no call overtakes another, with three
/// processes.
#[test]
fn m13_no_two_calls_arrive_within_a_second() {
    let mut plan = plan(Rule::paced(1, Span::from_secs(1)).expect("sane"));
    plan.gate.order = Order::Fifo;
    plan.ledger_delay = Span::from_millis(5);
    let mut world = world("sliding 1/1s, in-flight 1", plan, Latency::WAN, 3);
    for number in 0..300 {
        let priority = match number % 7 {
            0 => Priority::High,
            1 => Priority::Low,
            _ => Priority::Normal,
        };
        let call = Call {
            priority,
            ..call(number as u64)
        };
        world.submit(Micros(number as u64 * 333_000), node(number % 3), call);
    }
    world.run_until(secs(600)).expect("time passes");
    let checker = world.checker();
    assert_eq!((checker.violations(), checker.accepted()), (0, 300));
    let most = checker.max_in_any_window(Span::from_secs(1), Unit::Calls, ArrivalFilter::Arrived);
    assert_eq!(most, 1);
    for process in 0..3 {
        let calls = checker.arrivals().iter().map(|arrival| arrival.id.0);
        let own: Vec<u64> = calls.filter(|number| number % 3 == process).collect();
        assert!(own.is_sorted(), "process {process}: {own:?}");
    }
}

/// W5: the provider halves its limit and reports it only in its headers. The remaining quota is
/// used.
#[test]
fn w5_a_halved_limit_costs_few_429s() {
    for (rule, provider, limit, least_used) in [
        (sliding_40(), "sliding 40/10s", 20, 200 * 20 * 98 / 1_000),
        (
            bucket_50(),
            "bucket 50/1s burst 50",
            25,
            200 * 25 * 98 / 100,
        ),
    ] {
        let mut plan = plan(rule).saturating(100);
        plan.limits
            .push(Limit::new(Rule::in_flight(4).expect("sane")));
        plan.use_headers = true;
        let rules = RuleSpec::parse_all(&format!("{provider}, in-flight 4")).expect("rules");
        let mut setup = Setup::new(11, rules, NEAR);
        setup.faults.changes.push(LimitChange {
            at: secs(33),
            rule: 0,
            limit,
        });
        let mut world = World::new(setup, Governed::new(plan));
        world.run_until(secs(300)).expect("time passes");
        let violations = world.checker().violations();
        assert!(violations <= 5, "{provider}: {violations} violations");
        let arrivals = world.checker().arrivals().iter();
        let used = arrivals.filter(|arrival| arrival.accepted && arrival.at > secs(100));
        let used = used.count();
        assert!(used >= least_used, "{provider}: {used} of {least_used}");
    }
}
