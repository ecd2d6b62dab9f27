//! W4: the provider is down for a while, and every caller can wait. By the provider's own log: no
//! call is lost, hardly any is sent into the outage, no limit is exceeded afterwards, and the quota
//! is used in full again as soon as the provider has recovered.

use proptest::prelude::*;
use tollgate_core::health::{HealthCount, HealthState};
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};
use tollgate_sim::checker::Priority;
use tollgate_sim::governed_health::{GovernedWithHealth, HealthPlan};
use tollgate_sim::latency::{Delay, Latency};
use tollgate_sim::rule::{CallId, Cost, RuleSpec};
use tollgate_sim::world::{Call, NodeId, Setup, TimeRange, World};

use crate::scenario::config;

/// The measured setting: uplink lognormal 5 ms, response after 20 ms.
const NEAR: Latency = Latency {
    up: Delay::Lognormal {
        median: Span::from_millis(5),
        sigma: 0.5,
    },
    work: Delay::Constant(Span::from_millis(20)),
    body: Delay::Constant(Span::ZERO),
    down: Delay::Constant(Span::ZERO),
};

const OUTAGE_AT: Micros = Micros(10_000_000);

/// Calls at an even pace, and a provider that is down from the tenth second on.
#[derive(Debug)]
struct Outage {
    nodes: usize,
    length: Span,
    scope_update_delay: Span,
    /// The drift of each node's clock; empty = no drift.
    drift_ppm: Vec<i32>,
    seed: u64,
    calls: u64,
    /// The time between two calls.
    every: Span,
    /// The number of paths that calls go to; 0 = unknown.
    paths: u64,
    count: HealthCount,
    spec: &'static str,
    rule: Rule,
}

impl Outage {
    /// The token bucket of the measurements, 50/s and burst 50; 1 200 calls in 30 s.
    fn of_bucket(nodes: usize) -> Outage {
        Outage {
            nodes,
            length: Span::from_secs(10),
            scope_update_delay: Span::ZERO,
            drift_ppm: Vec::new(),
            seed: 7,
            calls: 1_200,
            every: Span::from_millis(25),
            paths: 0,
            count: HealthCount::Call,
            spec: "bucket 50/1s burst 50",
            rule: Rule::bucket(50, Span::from_secs(1), 50).expect("a bucket"),
        }
    }

    fn run(&self) -> World<GovernedWithHealth> {
        let rules = RuleSpec::parse_all(self.spec).expect("a rule");
        let mut setup = Setup::new(self.seed, rules, NEAR).with_nodes(self.nodes);
        for (clock, ppm) in setup.clocks.iter_mut().zip(&self.drift_ppm) {
            clock.drift_ppm = *ppm;
        }
        setup.faults.outages.push(TimeRange {
            from: OUTAGE_AT,
            to: OUTAGE_AT + self.length,
        });
        let mut plan = HealthPlan::new(vec![self.rule.clone()]);
        plan.seed = self.seed;
        plan.scope_update_delay = self.scope_update_delay;
        plan.paths = self.paths;
        plan.health.count = self.count;
        setup.give_up = Some(plan.give_up);
        let mut world = World::new(setup, GovernedWithHealth::new(plan));
        for (index, node) in (0..self.calls).zip((0..self.nodes).cycle()) {
            let at = Micros(index * self.every.0);
            world.submit(at, NodeId(node), call(index));
        }
        world.run_until(Micros(600_000_000)).expect("time passes");
        world
    }
}

fn call(index: u64) -> Call {
    Call {
        id: CallId(index),
        cost: Cost::CALL,
        priority: Priority::Normal,
    }
}

/// When the last node was back in Normal.
fn normal_at(world: &World<GovernedWithHealth>) -> Micros {
    let moves = world.client().transitions();
    let normal = moves.iter().filter(|moved| moved.to == HealthState::Normal);
    normal
        .map(|moved| moved.at)
        .max()
        .expect("a transition to Normal")
}

/// Requests that reached the provider in the second that starts `second` seconds after `from`.
fn arrived_in_second(world: &World<GovernedWithHealth>, from: Micros, second: u64) -> usize {
    let from = from + Span::from_secs(second);
    let until = from + Span::from_secs(1);
    let arrivals = world.checker().arrivals().iter();
    arrivals.filter(|a| (from..until).contains(&a.at)).count()
}

/// How many sleeps end within an outage of this length: 2 s, each 1.2 times as long as the one
/// before, and a moment for each probe.
fn too_short_sleeps(outage: Span) -> usize {
    let mut ends = Span::ZERO;
    let sleeps = std::iter::successors(Some(2_000_000_u64), |sleep| Some(sleep * 6 / 5));
    let fits = |sleep: &u64| {
        ends = ends + Span(*sleep) + Span::from_millis(5);
        ends < outage
    };
    sleeps.take_while(fits).count()
}

/// W4's guarantees about sent calls, except how many met the outage.
fn assert_nothing_lost(outage: &Outage, world: &World<GovernedWithHealth>) {
    let checker = world.checker();
    assert_eq!(checker.lost(), [], "{outage:?}");
    assert_eq!(world.client().given_up(), [], "{outage:?}");
    assert_eq!(checker.accepted() as u64, outage.calls, "{outage:?}");
    assert_eq!(checker.violations(), 0, "{outage:?}");
    let (_, at_once) = world.client().probes();
    assert_eq!(at_once, 1, "one probe at a time: {outage:?}");
}

/// W4, A4, A5, A6, A15: an outage of ten seconds costs five failures and nothing else; the token
/// bucket is used in full from the very second in which the health machine is Normal.
#[test]
fn w4_every_call_gets_its_response_after_an_outage() {
    for seed in 0..8 {
        let outage = Outage {
            seed,
            ..Outage::of_bucket(1)
        };
        let world = outage.run();
        assert_nothing_lost(&outage, &world);
        assert!(
            world.outage_responses() <= 15,
            "{}",
            world.outage_responses()
        );
        let normal = normal_at(&world);
        assert!(arrived_in_second(&world, normal, 0) >= 50);
        for second in 1..12 {
            let arrived = arrived_in_second(&world, normal, second);
            assert!(arrived >= 49, "second {second}: {arrived}");
        }
        let reasons: Vec<String> = world
            .client()
            .transitions()
            .iter()
            .map(|moved| moved.reason.to_string())
            .collect();
        assert_eq!(reasons[..2], ["failures", "sleep_over"]);
        assert_eq!(
            reasons
                .iter()
                .filter(|reason| *reason == "probe_ok")
                .count(),
            1
        );
    }
}

/// W4, A6: two, four and eight nodes on one ledger sleep, probe and wake together, with one probe
/// at a time among them. The nodes count consecutive failures together, so the number of calls that
/// meet the outage does not grow with the nodes.
#[test]
fn w4_nodes_on_one_ledger_probe_once() {
    for nodes in [2, 4, 8] {
        for seed in 0..4 {
            let outage = Outage {
                seed,
                ..Outage::of_bucket(nodes)
            };
            let world = outage.run();
            assert_nothing_lost(&outage, &world);
            assert!(
                world.outage_responses() <= 15,
                "{}",
                world.outage_responses()
            );
            let moves = world.client().transitions().len();
            assert_eq!(moves, (3 + 2 * too_short_sleeps(outage.length)) * nodes);
            for second in 1..8 {
                let arrived = arrived_in_second(&world, normal_at(&world), second);
                assert!(arrived >= 49, "second {second}: {arrived}");
            }
        }
    }
}

/// W4, A4, A5, A6: five seconds after the provider is back everything is Normal, and no more than 15
/// calls met the outage, whatever is known of paths: nothing, one path, or several.
#[test]
fn w4_normal_again_within_five_seconds_of_the_end_of_an_outage() {
    for paths in [0, 1, 3, 10] {
        for (seed, nodes) in [(0, 1), (1, 1), (2, 2), (3, 4)] {
            let outage = Outage {
                seed,
                paths,
                ..Outage::of_bucket(nodes)
            };
            let world = outage.run();
            assert_nothing_lost(&outage, &world);
            assert!(world.outage_responses() <= 15, "{outage:?}");
            let late = normal_at(&world).since(OUTAGE_AT + outage.length);
            assert!(late <= Span::from_secs(5), "{late}: {outage:?}");
        }
    }
}

/// A4: one broken path of four. Calls to the other paths are sent as if nothing had happened, the
/// broken path gets five calls and one probe per sleep, and the provider never sleeps.
#[test]
fn a4_one_broken_path_does_not_hold_calls_to_the_others() {
    for nodes in [1, 3] {
        let rules = RuleSpec::parse_all("bucket 50/1s burst 50").unwrap();
        let mut setup = Setup::new(5, rules, NEAR).with_nodes(nodes);
        setup.faults.broken = Some((1, 4));
        let limit = Rule::bucket(50, Span::from_secs(1), 50).unwrap();
        let mut plan = HealthPlan::new(vec![limit]);
        plan.paths = 4;
        plan.patience = Span::from_secs(60);
        setup.give_up = Some(plan.give_up);
        let mut world = World::new(setup, GovernedWithHealth::new(plan));
        let submitted = |index: u64| Micros(index * 50_000);
        for (index, node) in (0..800).zip((0..nodes).cycle()) {
            world.submit(submitted(index), NodeId(node), call(index));
        }
        world.run_until(Micros(40_000_000)).unwrap();
        assert_eq!(world.client().transitions(), []);
        let arrivals = world.checker().arrivals();
        assert_eq!(arrivals.len(), 600, "every call to another path");
        for arrival in arrivals {
            let waited = arrival.at.since(submitted(arrival.id.0));
            assert!(waited < Span::from_millis(500), "{arrival:?} {waited}");
        }
        let sent = world.outage_responses();
        let (failures, retries, probes) = (4 + nodes as u64, 10, 10);
        assert!(sent <= failures + retries + probes, "{sent}");
    }
}

/// W4, A5: nodes that learn of each other up to 100 ms late, as with a polled store, send no more
/// calls into the outage: the ledger itself grants none after the fifth failure.
#[test]
fn w4_late_scope_updates_lose_no_call() {
    for seed in 0..4 {
        let outage = Outage {
            seed,
            scope_update_delay: Span::from_millis(100),
            ..Outage::of_bucket(4)
        };
        let world = outage.run();
        assert_nothing_lost(&outage, &world);
        assert!(
            world.outage_responses() <= 15,
            "{}",
            world.outage_responses()
        );
    }
}

/// W4, A5: an outage longer than the first sleep costs one probe per sleep.
#[test]
fn w4_a_long_outage_costs_one_probe_per_sleep() {
    let outage = Outage {
        length: Span::from_secs(200),
        ..Outage::of_bucket(1)
    };
    let world = outage.run();
    assert_nothing_lost(&outage, &world);
    let failed_probes = too_short_sleeps(outage.length) as u64;
    assert!(world.outage_responses() <= 6 + failed_probes);
    assert!(failed_probes <= 17, "{failed_probes}");
}

/// W4: the same on a sliding log of 40 per 10 s.
#[test]
fn w4_a_sliding_log_is_not_exceeded_after_an_outage() {
    for seed in 0..4 {
        let outage = Outage {
            seed,
            calls: 110,
            every: Span::from_millis(270),
            spec: "sliding 40/10s",
            rule: Rule::sliding(40, Span::from_secs(10)).unwrap(),
            // With four calls a second, one call could use up its retries before five have failed.
            count: HealthCount::Attempt,
            ..Outage::of_bucket(1)
        };
        let world = outage.run();
        assert_nothing_lost(&outage, &world);
        assert!(
            world.outage_responses() <= 15,
            "{}",
            world.outage_responses()
        );
        let used = (0..10).map(|second| arrived_in_second(&world, normal_at(&world), second));
        let probes = 5;
        assert!(used.sum::<usize>() + probes >= 40);
    }
}

/// A18, scenario 1, and S5: after a 429 no call is sent before the provider's time, and one is sent
/// right after it, however many wait.
#[test]
fn a18_1_a_429_stops_all_calls_for_as_long_as_it_says() {
    let rules = RuleSpec::parse_all("sliding 10/10s").unwrap();
    let setup = Setup::new(3, rules, NEAR);
    // The configured limit is far too high: only the provider's 429 can help.
    let wrong = Rule::bucket(1_000, Span::from_secs(1), 1_000).unwrap();
    let mut world = World::new(setup, GovernedWithHealth::new(HealthPlan::new(vec![wrong])));
    for index in 0..120 {
        let at = Micros(if index < 20 { 0 } else { 1_000_000 });
        world.submit(at, NodeId(0), call(index));
    }
    world.run_until(Micros(30_000_000)).unwrap();
    let arrivals = world.checker().arrivals();
    let (first, later) = arrivals.split_at(20);
    let limited = first.iter().filter(|arrival| !arrival.accepted);
    assert_eq!(limited.count(), 10);
    let free_again = first[0].at + Span::from_secs(10);
    let next = later[0].at;
    assert!(next >= free_again, "{next:?} is before {free_again:?}");
    assert!(next.since(free_again) <= Span::from_millis(50), "{next:?}");
}

/// Any outage, any number of nodes, drifting clocks, and late scope updates.
fn any_outage() -> impl Strategy<Value = Outage> {
    let news_delay = prop::sample::select(&[0, 50, 300, 1_500][..]);
    let drift_ppm = prop::collection::vec(-500..=500_i32, 1..=4);
    let shape = (500..100_000_u64, 20..150_u64, news_delay, drift_ppm);
    (shape, any::<u64>()).prop_map(|((lasts, every, news_delay, drift_ppm), seed)| Outage {
        nodes: drift_ppm.len(),
        length: Span::from_millis(lasts),
        scope_update_delay: Span::from_millis(news_delay),
        drift_ppm,
        seed,
        calls: 400,
        every: Span::from_millis(every),
        ..Outage::of_bucket(1)
    })
}

proptest! {
    #![proptest_config(config(48))]

    /// W4, A5, A6, A8: no call is lost, no limit is exceeded, every node ends in Normal, and the
    /// machine does not flap: three transitions per node, and two more for each sleep that was too
    /// short.
    #[test]
    fn w4_after_any_outage_every_node_returns_to_normal(outage in any_outage()) {
        let world = outage.run();
        let checker = world.checker();
        prop_assert_eq!(checker.lost(), []);
        prop_assert_eq!(world.client().given_up(), []);
        prop_assert_eq!(checker.violations(), 0);
        prop_assert!(world.client().states().iter().all(|state| *state == HealthState::Normal));
        let most = (3 + 2 * (too_short_sleeps(outage.length) + 1)) * outage.nodes;
        prop_assert!(world.client().transitions().len() <= most, "{:?}", world.client().transitions());
    }
}
