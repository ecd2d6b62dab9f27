//! W4: the provider is down for a while, and every caller can wait. Judged by the provider's own
//! log: nobody is lost, hardly anybody is sent into the outage, no limit is exceeded afterwards, and
//! the quota is used in full again as soon as the provider is well.

use tollgate_core::health::State;
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};
use tollgate_sim::healthy::{Healthy, Plan};
use tollgate_sim::judge::Priority;
use tollgate_sim::latency::{Delay, Latency};
use tollgate_sim::rule::{CallId, Cost, RuleSpec};
use tollgate_sim::world::{Call, NodeId, Setup, Within, World};

/// The measured setting: uplink lognormal 5 ms, answer 20 ms.
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

/// 1 200 calls in 30 s, the provider down from the tenth second on.
struct Outage {
    nodes: usize,
    lasts: Span,
    news_delay: Span,
    seed: u64,
    calls: u64,
    /// How often a call comes.
    every: Span,
    spec: &'static str,
    rule: Rule,
}

impl Outage {
    /// The token bucket of the measurements: 50/s, burst 50.
    fn of_bucket(nodes: usize) -> Outage {
        Outage {
            nodes,
            lasts: Span::from_secs(10),
            news_delay: Span::ZERO,
            seed: 7,
            calls: 1_200,
            every: Span::from_millis(25),
            spec: "bucket 50/1s burst 50",
            rule: Rule::bucket(50, Span::from_secs(1), 50).unwrap(),
        }
    }

    fn run(&self) -> World<Healthy> {
        let rules = RuleSpec::parse_all(self.spec).unwrap();
        let mut setup = Setup::new(self.seed, rules, NEAR).with_nodes(self.nodes);
        setup.faults.outages.push(Within {
            from: OUTAGE_AT,
            to: OUTAGE_AT + self.lasts,
        });
        let mut plan = Plan::new(vec![self.rule.clone()]);
        plan.seed = self.seed;
        plan.news_delay = self.news_delay;
        setup.give_up = Some(plan.give_up);
        let mut world = World::new(setup, Healthy::new(plan));
        for index in 0..self.calls {
            let call = Call {
                id: CallId(index),
                cost: Cost::CALL,
                priority: Priority::Normal,
            };
            let node = usize::try_from(index).unwrap() % self.nodes;
            world.submit(Micros(index * self.every.0), NodeId(node), call);
        }
        world.run_until(Micros(600_000_000)).unwrap();
        world
    }
}

/// When the last node was Normal again.
fn normal_at(world: &World<Healthy>) -> Micros {
    let moves = world.client().moves();
    let normal = moves.iter().filter(|moved| moved.to == State::Normal);
    normal.map(|moved| moved.at).max().unwrap()
}

fn show(name: &str, outage: &Outage) {
    let world = outage.run();
    let judge = world.judge();
    let normal = normal_at(&world);
    let after: Vec<usize> = (0..12)
        .map(|sec| {
            let from = normal + Span::from_secs(sec);
            judge
                .arrivals()
                .iter()
                .filter(|a| a.at >= from && a.at < from + Span::from_secs(1))
                .count()
        })
        .collect();
    println!(
        "{name} nodes {} seed {}: lost {} given_up {:?} turned_away {} violations {} probes {:?} normal {} moves {} after {after:?}",
        outage.nodes,
        outage.seed,
        judge.lost().len(),
        world.client().given_up().len(),
        world.turned_away(),
        judge.violations(),
        world.client().probes(),
        normal.0 as f64 / 1e6,
        world.client().moves().len()
    );
    if std::env::var("MOVES").is_ok() {
        for m in world.client().moves() {
            println!("  {:?}", m);
        }
    }
}

#[test]
fn probe() {
    for nodes in [2, 4] {
        for seed in 0..4 {
            let outage = Outage {
                seed,
                news_delay: Span::from_millis(100),
                ..Outage::of_bucket(nodes)
            };
            show("late news", &outage);
        }
    }
    for nodes in [1, 2, 4] {
        for seed in 0..3 {
            let outage = Outage {
                seed,
                lasts: Span::from_secs(70),
                ..Outage::of_bucket(nodes)
            };
            show("70s", &outage);
        }
    }
    for nodes in [1, 2] {
        for seed in 0..3 {
            let outage = Outage {
                seed,
                calls: 300,
                every: Span::from_millis(100),
                spec: "sliding 40/10s",
                rule: Rule::sliding(40, Span::from_secs(10)).unwrap(),
                ..Outage::of_bucket(nodes)
            };
            show("S", &outage);
        }
    }
    for nodes in [1] {
        for seed in 0..3 {
            let outage = Outage {
                seed,
                calls: 900,
                every: Span::from_millis(10),
                ..Outage::of_bucket(nodes)
            };
            show("saturated", &outage);
        }
    }
}
