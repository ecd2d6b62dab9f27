//! How much of a limit nodes use that share it through a store over a network, in virtual time.
//!
//! Promises: endless demand on every node, clocks that drift apart, and a store that behaves; the
//! same settings give the same table. The quota is what the reference rule uses in the same time
//! without any store.
//!
//! Never: counts a permit itself.

use tollgate_core::limit::{Rule, RuleError};
use tollgate_core::time::{Micros, Span};

use crate::clock::NodeClock;
use crate::governed::{Governed, GovernedPlan};
use crate::latency::Latency;
use crate::peer::{ReferenceA, ReferenceB, Saturating};
use crate::row_store::{StorePlan, exact_clock};
use crate::world::{Client, Runaway, Setup, World};

/// More waiting calls per node than a window grants at once.
const BACKLOG: usize = 100;

/// The limit of every world.
const LIMIT: u64 = 100;
const PERIOD: Span = Span::from_secs(1);

/// More than is asked for in any of them.
const PLENTY: u64 = 10_000_000;

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct UseOfStore {
    /// The round trip between a node and the store.
    pub round_trip: Span,
    /// How many nodes share the limit.
    pub nodes: usize,
    /// Calls that the provider accepted.
    pub accepted: u64,
    /// The same of the reference, without a store.
    pub reference: u64,
    /// Calls that arrived above the limit.
    pub violations: u64,
    /// Requests to the store.
    pub requests: u64,
    /// Requests that found other rows than they expected.
    pub conflicts: u64,
    /// Jain's index of what the nodes got in each second, its mean in per mille.
    pub fairness: u64,
    /// How long one in a hundred permits was waited for, or longer, in hundredths of a round trip, where
    /// quota is free and all nodes write at the same time ([`wait_p99`]).
    pub wait_p99: u64,
}

/// Round trips of a world that measures waits.
const ROUND_TRIPS: u64 = 1_000;

/// How long permits are waited for in a store of so many nodes, where quota is free and each node always
/// asks for one: 99 of 100 come sooner. In hundredths of a round trip.
///
/// # Errors
/// If the world does not come to an end.
pub fn wait_p99(nodes: usize, round_trip: Span) -> Result<u64, Runaway> {
    let rules = Rule::sliding(PLENTY, PERIOD).into_iter().collect();
    let mut plan = GovernedPlan::new(rules).on_network(StorePlan::new(3, round_trip));
    plan.records_waits = true;
    let client = Governed::new(plan.saturating(1));
    let spec = format!("sliding {PLENTY}/1s");
    let mut world = world_of(&spec, nodes, client);
    world.run_until(Micros(0) + Span(round_trip.0 * ROUND_TRIPS))?;
    let wait = world.client().wait_p99().unwrap_or_default();
    Ok(wait.0 * 100 / round_trip.0.max(1))
}

/// Which limit the nodes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedLimit {
    /// 100 in any second.
    Window,
    /// 100 a second, 100 at once.
    Bucket,
}

impl SharedLimit {
    /// As the provider counts it.
    #[must_use]
    pub fn spec(self) -> &'static str {
        match self {
            SharedLimit::Window => "sliding 100/1s",
            SharedLimit::Bucket => "bucket 100/1s burst 100",
        }
    }

    fn rule(self) -> Result<Rule, RuleError> {
        match self {
            SharedLimit::Window => Rule::sliding(LIMIT, PERIOD),
            SharedLimit::Bucket => Rule::bucket(LIMIT, PERIOD, LIMIT),
        }
    }

    /// What the reference rule uses of it, without any store.
    ///
    /// # Errors
    /// If the world does not come to an end.
    pub fn reference(self, secs: u64) -> Result<u64, Runaway> {
        let end = Micros(0) + Span::from_secs(secs);
        let accepted = match self {
            SharedLimit::Window => {
                let pace = ReferenceA::new(LIMIT, PERIOD);
                run_to(world(self, 1, Saturating::new(pace)), end)?
            }
            SharedLimit::Bucket => {
                let pace = ReferenceB::new(LIMIT, PERIOD, LIMIT);
                run_to(world(self, 1, Saturating::new(pace)), end)?
            }
        };
        Ok(accepted)
    }

    /// What so many nodes use of it for so many seconds.
    ///
    /// # Errors
    /// If the world does not come to an end.
    pub fn used_by(
        self,
        nodes: usize,
        round_trip: Span,
        secs: u64,
        reference: u64,
    ) -> Result<UseOfStore, Runaway> {
        let rules = self.rule().into_iter().collect();
        let plan = GovernedPlan::new(rules).on_network(StorePlan::new(3, round_trip));
        let mut world = world(self, nodes, Governed::new(plan.saturating(BACKLOG)));
        let (mut fairness, mut before) = (Vec::new(), vec![0; nodes]);
        for second in 1..=secs {
            world.run_until(Micros(0) + Span::from_secs(second))?;
            let sent = world.client().sent_by_node();
            let got: Vec<u64> = sent
                .iter()
                .zip(&before)
                .map(|(now, was)| now - was)
                .collect();
            // The first second is a burst of whoever is there first.
            if second > 1 {
                fairness.push(jain(&got));
            }
            before = sent;
        }
        let counts = world.client().store_counts().unwrap_or_default();
        Ok(UseOfStore {
            round_trip,
            nodes,
            accepted: world.checker().accepted() as u64,
            reference,
            violations: world.checker().violations() as u64,
            requests: counts.requests,
            conflicts: counts.conflicts,
            wait_p99: wait_p99(nodes, round_trip)?,
            fairness: fairness.iter().sum::<u64>() / (fairness.len() as u64).max(1),
        })
    }
}

impl UseOfStore {
    /// What is used of what the reference uses, in per mille.
    #[must_use]
    pub fn per_mille(&self) -> u64 {
        self.accepted * 1_000 / self.reference.max(1)
    }

    /// As a line of a markdown table.
    #[must_use]
    pub fn line(&self, limit: SharedLimit) -> String {
        let per_grant = |count: u64| {
            let hundredths = count * 100 / self.accepted.max(1);
            format!("{}.{:02}", hundredths / 100, hundredths % 100)
        };
        format!(
            "| {} | {} | {} | {}.{} % | {} | {} | 0.{:03} | {}.{:02} | {} |",
            limit.spec(),
            self.round_trip,
            self.nodes,
            self.per_mille() / 10,
            self.per_mille() % 10,
            per_grant(self.requests),
            per_grant(self.conflicts),
            self.fairness.min(999),
            self.wait_p99 / 100,
            self.wait_p99 % 100,
            self.violations,
        )
    }
}

/// The head of the table.
pub const HEAD: &str = "\
| limit | round trip | nodes | used | round trips per grant | conflicts per grant | Jain per second | wait p99 in round trips | violations |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |";

/// Jain's index of what the nodes got, in per mille: 1000 is equal, 1000/n is all for one.
#[must_use]
pub fn jain(got: &[u64]) -> u64 {
    let sum: u64 = got.iter().sum();
    let squares: u64 = got.iter().map(|one| one * one).sum();
    1_000 * sum * sum / (got.len() as u64 * squares).max(1)
}

/// Nodes whose clocks started at different times and drift apart as slewed ones do.
#[must_use]
pub fn drifting_clocks(nodes: usize) -> Vec<NodeClock> {
    let clock = |(node, drift_ppm): (u64, i32)| NodeClock {
        at_start: Micros(0) + Span::from_secs(7 * node),
        wall_start: exact_clock().wall_start,
        drift_ppm,
        ..NodeClock::default()
    };
    let drifts = [0, 200, -300, 400, -100, 50, -400, 300];
    let clocks = (0..).zip(drifts.into_iter().cycle()).map(clock);
    clocks.take(nodes).collect()
}

fn world<C: Client>(limit: SharedLimit, nodes: usize, client: C) -> World<C> {
    world_of(limit.spec(), nodes, client)
}

fn world_of<C: Client>(spec: &str, nodes: usize, client: C) -> World<C> {
    let spec = spec.parse().expect("a rule of this file");
    let mut setup = Setup::new(7, vec![spec], Latency::LAN);
    setup.clocks = drifting_clocks(nodes);
    World::new(setup, client)
}

fn run_to<C: Client>(mut world: World<C>, end: Micros) -> Result<u64, Runaway> {
    world.run_until(end)?;
    Ok(world.checker().accepted() as u64)
}
