//! Virtual time: nodes, a network and one provider, driven by events in order of (time, sequence).
//!
//! Promises: a run is a function of its [`Setup`] and its [`Client`]; the same seed gives the same
//! log. Each network direction has its own random stream, so a fault on responses changes nothing
//! for requests. Every request that reaches the limiter is recorded by a [`Checker`].
//!
//! Never: reads a clock, sleeps, or lets a node see true time (it sees its own [`NodeClock`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use fastrand::Rng;
use thiserror::Error;
use tollgate_core::time::{Micros, Now, Span};

use crate::checker::Checker;
use crate::clock::NodeClock;
use crate::latency::{Delay, Latency};
use crate::rule::{CallId, Provider, RuleSpec};

mod client;
mod effects;
mod event;
mod faults;
mod attempt;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod faults_tests;

pub use client::{Call, Client, NodeId, Outcome};
use effects::Effect;
pub use effects::Effects;
use event::{Attempt, Event, EventKind};
pub use faults::{DeadConnections, Faults, LimitChange, TimeRange};

/// Events that may be queued, and events handled at one instant, before a run stops with an error:
/// hundreds of times the need of the largest table, and well under a second of work. A client that
/// wakes itself forever at one instant ends here instead of hanging the test.
pub const EVENTS_MAX: usize = 1_000_000;

/// Everything that a run depends on besides its client.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Seeds every random stream.
    pub seed: u64,
    /// The rules that the provider enforces.
    pub rules: Vec<RuleSpec>,
    /// The network and the provider's work.
    pub latency: Latency,
    /// The faults.
    pub faults: Faults,
    /// One clock per node.
    pub clocks: Vec<NodeClock>,
    /// How long after sending a node stops waiting for the response; `None` waits forever.
    pub give_up: Option<Span>,
    /// How long the provider takes from acknowledging a request to counting it: its kernel has the
    /// bytes, its limiter has not met them.
    pub until_counted: Delay,
}

/// A client acted without letting time pass, or queued without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("more than {EVENTS_MAX} events at {at:?}; does the client wake itself without waiting?")]
pub struct Runaway {
    /// True time of the last event.
    pub at: Micros,
}

/// A run in progress.
#[derive(Debug)]
pub struct World<C> {
    client: C,
    checker: Checker,
    provider: Provider,
    setup: Setup,
    now: Micros,
    queue: BinaryHeap<Reverse<Event>>,
    seq: u64,
    attempts: u64,
    listening: BTreeSet<u64>,
    /// When a node's kernel learns that the peer has all bytes of a call in flight. One entry per call.
    acknowledged: BTreeMap<CallId, Micros>,
    timers: Vec<u64>,
    outage_responses: u64,
    dice: Dice,
}

/// One random stream per purpose.
#[derive(Debug)]
struct Dice {
    up: Rng,
    work: Rng,
    body: Rng,
    down: Rng,
    lost_up: Rng,
    lost_down: Rng,
    dead: Rng,
    counted: Rng,
    acknowledged: Rng,
}

impl Setup {
    /// One node with a perfect clock, no faults, and no give-up.
    #[must_use]
    pub fn new(seed: u64, rules: Vec<RuleSpec>, latency: Latency) -> Setup {
        let clocks = vec![NodeClock::default()];
        Setup {
            seed,
            rules,
            latency,
            faults: Faults::default(),
            clocks,
            give_up: None,
            until_counted: Delay::Constant(Span::ZERO),
        }
    }

    /// The same with `count` nodes, all with perfect clocks.
    #[must_use]
    pub fn with_nodes(mut self, count: usize) -> Setup {
        self.clocks = vec![NodeClock::default(); count];
        self
    }
}

impl<C: Client> World<C> {
    /// A world at true time zero; nothing has been sent.
    #[must_use]
    pub fn new(setup: Setup, client: C) -> World<C> {
        let dice = Dice::new(setup.seed);
        let mut world = World {
            client,
            checker: Checker::new(),
            provider: Provider::new(setup.rules.clone()),
            now: Micros(0),
            queue: BinaryHeap::new(),
            seq: 0,
            attempts: 0,
            listening: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            timers: vec![0; setup.clocks.len()],
            outage_responses: 0,
            dice,
            setup,
        };
        for change in world.setup.faults.changes.clone() {
            world.push(change.at, EventKind::Change(change));
        }
        for node in 0..world.timers.len() {
            world.push(
                Micros(0),
                EventKind::Wake {
                    node: NodeId(node),
                    timer: None,
                },
            );
        }
        world
    }

    /// Schedules a caller's call at true time `at`; earlier than now means now. Calls for a node
    /// that does not exist are dropped without a record.
    pub fn submit(&mut self, at: Micros, node: NodeId, call: Call) {
        if node.0 < self.timers.len() {
            self.push(at.max(self.now), EventKind::Submit { node, call });
        }
    }

    /// Handles every event before true time `end`.
    ///
    /// # Errors
    /// The client does not let time pass.
    pub fn run_until(&mut self, end: Micros) -> Result<(), Runaway> {
        let mut at_once = 0;
        while let Some(Reverse(next)) = self.queue.peek()
            && next.at < end
        {
            at_once = if next.at == self.now { at_once + 1 } else { 0 };
            self.now = next.at;
            if at_once > EVENTS_MAX || self.queue.len() > EVENTS_MAX {
                return Err(Runaway { at: self.now });
            }
            if let Some(Reverse(event)) = self.queue.pop() {
                self.handle(event.kind);
            }
        }
        self.now = self.now.max(end);
        Ok(())
    }

    /// The judge and its log.
    #[must_use]
    pub fn checker(&self) -> &Checker {
        &self.checker
    }

    /// The side under test.
    #[must_use]
    pub fn client(&self) -> &C {
        &self.client
    }

    /// The provider, for instance to ask what it would have accepted.
    pub fn provider(&mut self) -> &mut Provider {
        &mut self.provider
    }

    /// Requests that got a 503 during an outage.
    #[must_use]
    pub fn outage_responses(&self) -> u64 {
        self.outage_responses
    }

    /// True time.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.now
    }

    fn push(&mut self, at: Micros, what: EventKind) {
        self.seq += 1;
        self.queue.push(Reverse(Event {
            at,
            seq: self.seq,
            kind: what,
        }));
    }

    fn handle(&mut self, what: EventKind) {
        let node = what.node();
        if let Some(up_at) = node.and_then(|node| self.setup.clocks[node.0].resumes_at(self.now)) {
            return self.push(up_at, what);
        }
        match what {
            EventKind::Wake { node, timer } => {
                if timer.is_none_or(|timer| timer == self.timers[node.0]) {
                    self.notify_client(node, |client, now, effects| {
                        client.on_wake(node, now, effects);
                    });
                }
            }
            EventKind::Submit { node, call } => {
                self.checker.record_submit(call.id, self.now, call.priority);
                self.notify_client(node, |client, now, effects| {
                    client.on_submit(node, call, now, effects);
                });
            }
            EventKind::Send { node, call } => self.send(node, call),
            EventKind::Arrive(attempt) => self.arrive(attempt),
            EventKind::Head { attempt, statuses } => self.head(attempt, statuses),
            EventKind::Finish(attempt) => self.provider.finish(attempt.call.id, self.now),
            EventKind::Reply {
                attempt,
                outcome,
                ends,
            } => self.deliver(attempt, &outcome, ends),
            EventKind::End(Attempt { node, call, .. }) => {
                self.notify_client(node, |client, now, effects| {
                    client.on_response_end(node, call, now, effects);
                });
            }
            EventKind::Change(change) => self.provider.change(change.rule, change.limit, self.now),
        }
    }

    /// Lets the client act for a node, then applies its effects.
    fn notify_client(&mut self, node: NodeId, act: impl FnOnce(&mut C, Now, &mut Effects<'_>)) {
        let mut effects = Effects::new(&self.setup.clocks, &self.acknowledged, self.now);
        let now = self.setup.clocks[node.0].read(self.now);
        act(&mut self.client, now, &mut effects);
        for effect in effects.into_queued() {
            self.apply_effect(node, effect);
        }
    }

    fn apply_effect(&mut self, node: NodeId, effect: Effect) {
        match effect {
            Effect::Send {
                after: Span::ZERO,
                call,
            } => self.send(node, call),
            Effect::Send { after, call } => {
                self.push(self.now + after, EventKind::Send { node, call });
            }
            Effect::Timer(at) => {
                self.timers[node.0] += 1;
                let timer = Some(self.timers[node.0]);
                if let Some(at) = at {
                    let due = self.setup.clocks[node.0].true_time_of(at, self.now);
                    self.push(due, EventKind::Wake { node, timer });
                }
            }
            Effect::Nudge { node, after } => {
                if node.0 < self.timers.len() {
                    self.push(self.now + after, EventKind::Wake { node, timer: None });
                }
            }
            Effect::Done(id) => self.checker.record_response(id),
        }
    }
}

impl Dice {
    fn new(seed: u64) -> Dice {
        let mut root = Rng::with_seed(seed);
        Dice {
            up: root.fork(),
            work: root.fork(),
            body: root.fork(),
            down: root.fork(),
            lost_up: root.fork(),
            lost_down: root.fork(),
            dead: root.fork(),
            counted: root.fork(),
            acknowledged: root.fork(),
        }
    }
}
