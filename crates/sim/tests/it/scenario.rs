//! Random worlds: a provider, the client's limits, a network, nodes with bad clocks, faults.
//!
//! Promises: bounded delays, so that give-up and late arrival can cover every call; a failing case
//! prints the whole scenario, and its seed reproduces it.
//!
//! Never: asserts. The tests do.

use jiff::tz::TimeZone;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use tollgate_core::limit::{Calendar, CalendarPeriod, Rule};
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_sim::checker::Priority;
use tollgate_sim::clock::NodeClock;
use tollgate_sim::governed::{Governed, GovernedPlan, Limit, RuleChange};
use tollgate_sim::latency::{Delay, Latency};
use tollgate_sim::row_store::StorePlan;
use tollgate_sim::rule::{CallId, Cost, RuleSpec, Unit};
use tollgate_sim::world::{Call, Faults, NodeId, Setup, World};

/// The same cases on every machine. For a longer run with other cases:
/// `PROOF_CASES=20000 PROOF_SEED=7 cargo test -p tollgate-sim --test it proof`.
pub(crate) fn config(cases: u32) -> Config {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u32>().ok())
    };
    Config {
        cases: number("PROOF_CASES").unwrap_or(cases),
        rng_seed: RngSeed::Fixed(u64::from(number("PROOF_SEED").unwrap_or(20_261_115))),
        failure_persistence: None,
        ..Config::default()
    }
}

/// One random world.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub provider: Vec<RuleSpec>,
    pub limits: Vec<Limit>,
    pub latency: Latency,
    pub clocks: Vec<NodeClock>,
    pub faults: Faults,
    pub cancel_ppm: u32,
    pub arrive_within: Option<Span>,
    pub until_counted: Delay,
    pub ledger_delay: Span,
    pub write_delay: Span,
    pub use_headers: bool,
    pub restore_ppm: u32,
    pub changes: Vec<RuleChange>,
    pub network: Option<StorePlan>,
    pub calls: Vec<Demand>,
    pub seed: u64,
}

/// One call to submit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub at: Micros,
    pub node: usize,
    pub tokens: u64,
    pub priority: Priority,
}

/// The longest uplink that any scenario draws, write and ledger delays included in `late`.
pub(crate) const UP_MAX: Span = Span::from_secs(3);
const WORK_MAX: Span = Span::from_secs(3);

/// Every response that arrives at all arrives before this.
const GIVE_UP: Span = Span::from_secs(8);

/// Every call has arrived this long after that.
pub(crate) const LATE: Span = Span::from_secs(4);

impl Scenario {
    /// Runs until every call must have its response, and a while longer.
    pub(crate) fn run(&self) -> World<Governed> {
        let mut plan = GovernedPlan::new(Vec::new());
        plan.limits.clone_from(&self.limits);
        plan.give_up = GIVE_UP;
        plan.late_arrival = LATE;
        plan.arrive_within = self.arrive_within;
        plan.ledger_delay = self.ledger_delay;
        plan.write_delay = self.write_delay;
        plan.cancel_ppm = self.cancel_ppm;
        plan.use_headers = self.use_headers;
        plan.restore_ppm = self.restore_ppm;
        plan.changes.clone_from(&self.changes);
        if let Some(store) = &self.network {
            plan = plan.on_network(store.clone());
        }
        plan.seed = self.seed;
        plan.gate.waiting_max = self.calls.len() + 1;
        let mut setup = Setup::new(self.seed, self.provider.clone(), self.latency);
        setup.clocks.clone_from(&self.clocks);
        setup.faults = self.faults.clone();
        setup.give_up = Some(GIVE_UP);
        setup.until_counted = self.until_counted;
        let mut world = World::new(setup, Governed::new(plan));
        for (index, demand) in self.calls.iter().enumerate() {
            let cost = Cost::CALL.with(Unit::Tokens, demand.tokens);
            let call = Call {
                id: CallId(index as u64),
                cost,
                priority: demand.priority,
            };
            world.submit(demand.at, NodeId(demand.node), call);
        }
        world.run_until(self.end()).expect("time passes");
        world
    }

    /// Each call takes at most a whole window of every limit, and a retry as much again. Where most
    /// calls are lost, a call needs a dozen tries.
    fn end(&self) -> Micros {
        let window = self
            .provider
            .iter()
            .filter_map(|rule| rule.counting.window())
            .max();
        let per_call = window.unwrap_or(Span::from_secs(1)) + GIVE_UP + LATE;
        let lost = self.faults.lost_requests_ppm + self.faults.lost_replies_ppm;
        let tries = if lost > 200_000 { 12 } else { 2 };
        Micros(tries * (self.calls.len() as u64 + 10) * per_call.0)
    }
}

/// A limit with its counterpart at the provider, for the exact pairs.
pub(crate) fn exact_pair() -> impl Strategy<Value = (RuleSpec, Rule)> {
    (1_u64..=30, window(), 0_u64..9, 0_u64..1_000).prop_map(|(n, window, kind, permille)| {
        let phase = Span((window.0 * permille / 1_000).max(1));
        let us = |span: Span| format!("{}us", span.0);
        let (w, p) = (us(window), us(phase));
        let sliding = Rule::sliding(n, window);
        let (spec, rule) = match kind {
            0 => (format!("sliding {n}/{w}"), sliding),
            1 => (format!("fixed {n}/{w} phase {p}"), sliding),
            2 => (format!("first-use {n}/{w}"), sliding),
            3 => (format!("bucket {n}/{w} burst {n}"), sliding),
            4 => (
                format!("bucket {n}/{w} burst {n}"),
                Rule::bucket(n, window, n),
            ),
            5 => (format!("first-use {n}/{w}"), Rule::fixed(n, window)),
            6 => (format!("sliding {n}/{w}"), Rule::paced(n, window)),
            7 => (format!("fixed {n}/{w} phase {p}"), Rule::paced(n, window)),
            _ => {
                let tick = Span((window.0 * permille / 20_000).max(1));
                let rule = Rule::bucket(n + 2, window, n + 2).expect("sane");
                let spec = format!("bucket {}/{w} burst {} tick {}", n + 2, n + 2, us(tick));
                (spec, rule.refill_tick(tick))
            }
        };
        (spec.parse().expect("a rule"), rule.expect("sane"))
    })
}

/// `paced` against providers that are no log: a bucket, and a window that opens with a call.
pub(crate) fn paced_pair() -> impl Strategy<Value = (RuleSpec, Rule)> {
    (1_u64..=30, window(), any::<bool>()).prop_map(|(n, window, is_bucket)| {
        let window_us = format!("{}us", window.0);
        let spec = if is_bucket {
            format!("bucket {n}/{window_us} burst {n}")
        } else {
            format!("first-use {n}/{window_us}")
        };
        let rule = Rule::paced(n, window).expect("sane");
        (spec.parse().expect("a rule"), rule)
    })
}

/// A provider that counts calendar minutes, wherever its edges are, against the rules that need to
/// know no edge.
pub(crate) fn calendar_provider_pair() -> impl Strategy<Value = (RuleSpec, Rule)> {
    (1_u64..=30, 1_u64..60_000, any::<bool>()).prop_map(|(n, phase, is_paced)| {
        let minute = Span::from_secs(60);
        let rule = if is_paced {
            Rule::paced(n, minute)
        } else {
            Rule::sliding(n, minute)
        };
        let spec = format!("fixed {n}/60s phase {phase}ms");
        (spec.parse().expect("a rule"), rule.expect("sane"))
    })
}

/// Concurrent calls; the provider frees up to 2 ms after the end, minus the drift of our clock.
pub(crate) fn in_flight_pair() -> impl Strategy<Value = (RuleSpec, Rule)> {
    (1_u64..=8, 0_u64..=1_900).prop_map(|(n, lag)| {
        let lag = if lag == 0 {
            String::new()
        } else {
            format!(" lag {lag}us")
        };
        let spec = format!("in-flight {n}{lag}").parse().expect("a rule");
        (spec, Rule::in_flight(n).expect("sane"))
    })
}

/// Calendar minutes; the provider's wall clock is within the margin of ours.
pub(crate) fn calendar_pair() -> impl Strategy<Value = (RuleSpec, Rule)> {
    (1_u64..=30, -1_900_i64..=1_900).prop_map(|(n, skew_ms)| {
        let phase = 60_000_i64 - 30_000 + skew_ms;
        let spec = format!("fixed {n}/60s phase {phase}ms")
            .parse()
            .expect("a rule");
        let calendar = Calendar::new(CalendarPeriod::Minute, TimeZone::UTC);
        (spec, Rule::calendar(n, calendar).expect("sane"))
    })
}

fn window() -> impl Strategy<Value = Span> {
    prop_oneof![50_000_u64..1_000_000, 1_000_000_u64..20_000_000].prop_map(Span)
}

/// Delays from none to several windows, so that calls overtake each other freely.
pub(crate) fn latency() -> impl Strategy<Value = Latency> {
    let delay = |max: Span| {
        prop_oneof![
            Just(Delay::Constant(Span(1_000))),
            (0..=max.0 / 100, 0..=max.0 / 50).prop_map(|(a, b)| between(a, b)),
            (0..=max.0, 0..=max.0).prop_map(|(a, b)| between(a, b)),
        ]
    };
    let second = Span::from_secs(1);
    (delay(UP_MAX), delay(WORK_MAX), delay(second), delay(second)).prop_map(
        |(up, work, body, down)| Latency {
            up,
            work,
            body,
            down,
        },
    )
}

fn between(a: u64, b: u64) -> Delay {
    Delay::Uniform {
        least: Span(a.min(b)),
        most: Span(a.max(b)),
    }
}

/// Nodes whose clocks started anywhere, drift up to 500 ppm, and whose wall clocks are set
/// arbitrarily. The wall clock of node 0, which hosts the ledger, starts half a minute before an
/// edge.
pub(crate) fn clocks(nodes_max: usize) -> impl Strategy<Value = Vec<NodeClock>> {
    let clock = (0_u64..1_000, -500_i32..=500, steps(), suspends());
    prop::collection::vec(clock, 1..=nodes_max).prop_map(|nodes| {
        let clock = |(start, drift_ppm, wall_steps, suspends)| NodeClock {
            at_start: Micros(0) + Span::from_secs(start),
            wall_start: Wall(1_772_323_170_000_000),
            drift_ppm,
            wall_steps,
            suspends,
            stops_in_suspend: false,
        };
        nodes.into_iter().map(clock).collect()
    })
}

fn steps() -> impl Strategy<Value = Vec<(Micros, i64)>> {
    let step = (1_u64..60, -86_400_i64..=86_400);
    prop::collection::vec(step, 0..3).prop_map(|mut steps| {
        steps.sort_unstable();
        steps
            .into_iter()
            .map(|(at, by)| (Micros(at * 1_000_000), by * 1_000_000))
            .collect()
    })
}

/// A process that is suspended between its permit and its write is the documented residual gap, so
/// a node is suspended only where writes are immediate; see `world`.
fn suspends() -> impl Strategy<Value = Vec<(Micros, Micros)>> {
    prop::option::of((1_u64..30, 1_u64..10)).prop_map(|pause| {
        let pause =
            pause.map(|(from, secs)| (Micros(from * 1_000_000), Micros((from + secs) * 1_000_000)));
        pause.into_iter().collect()
    })
}

/// Lost responses and requests.
pub(crate) fn faults() -> impl Strategy<Value = Faults> {
    prop_oneof![
        3 => Just(Faults::default()),
        1 => (0_u32..100_000, 0_u32..100_000).prop_map(|(requests, replies)| Faults {
            lost_requests_ppm: requests,
            lost_replies_ppm: replies,
            ..Faults::default()
        }),
    ]
}

/// Calls in bursts and singly.
pub(crate) fn calls(nodes: usize) -> impl Strategy<Value = Vec<Demand>> {
    let priority = prop_oneof![
        1 => Just(Priority::High),
        3 => Just(Priority::Normal),
        2 => Just(Priority::Low)
    ];
    let demand = (0_u64..40, 0..nodes, 1_u64..=5, priority);
    prop::collection::vec(demand, 1..120).prop_map(|mut calls| {
        calls.sort_by_key(|call| call.0);
        let one = |(at, node, tokens, priority)| Demand {
            // Multiples of half a second: bursts of several at one instant.
            at: Micros(at * 500_000),
            node,
            tokens,
            priority,
        };
        calls.into_iter().map(one).collect()
    })
}

/// A whole world with these limits, on up to four nodes.
pub(crate) fn with_limits(
    pairs: impl Strategy<Value = Vec<(RuleSpec, Rule)>>,
) -> impl Strategy<Value = Scenario> {
    with_limits_on(4, pairs)
}

/// A whole world with these limits.
pub(crate) fn with_limits_on(
    nodes_max: usize,
    pairs: impl Strategy<Value = Vec<(RuleSpec, Rule)>>,
) -> impl Strategy<Value = Scenario> {
    let delays = (0_u64..=20_000, 0_u64..=50_000);
    let parts = (
        pairs,
        latency(),
        clocks(nodes_max),
        faults(),
        delays,
        0_u32..300_000,
        any::<bool>(),
        any::<u64>(),
    );
    parts.prop_flat_map(
        |(pairs, latency, mut clocks, faults, delays, cancel_ppm, use_headers, seed)| {
            let write_delay = if seed % 2 == 0 {
                Span::ZERO
            } else {
                Span(delays.1)
            };
            if write_delay > Span::ZERO {
                for clock in &mut clocks {
                    clock.suspends.clear();
                }
            }
            let base = Scenario {
                provider: pairs.iter().map(|pair| pair.0).collect(),
                limits: pairs.into_iter().map(|pair| Limit::new(pair.1)).collect(),
                latency,
                faults,
                cancel_ppm,
                arrive_within: None,
                until_counted: Delay::Constant(Span::ZERO),
                ledger_delay: Span(delays.0),
                write_delay,
                use_headers,
                restore_ppm: 0,
                changes: Vec::new(),
                network: None,
                calls: Vec::new(),
                seed,
                clocks,
            };
            let nodes = base.clocks.len();
            calls(nodes).prop_map(move |calls| Scenario {
                calls,
                ..base.clone()
            })
        },
    )
}
