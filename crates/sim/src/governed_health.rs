//! A governed client that also learns from responses: the core's health machine, cool-down, retries
//! and their budget, on nodes that share one ledger.
//!
//! Promises: decides nothing itself. Every wait, probe and retry comes from `tollgate_core`; this
//! file applies its actions to the ledger, and delivers each change of a scope to every node, late
//! if the plan says so.
//!
//! Never: lets a node see the provider, or the ledger see a node's clock: the ledger runs on the
//! clock of node 0, and nodes exchange only ages and delays.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_core::ask::Outcome as Settled;
use tollgate_core::ask::{
    Ask, CellId, PathTag, PermitId, ScopeId, Scopes, Settle, Term, Terms, Verdict,
};
use tollgate_core::backoff::Dice;
use tollgate_core::cooldown::{self, ProviderWait};
use tollgate_core::gate::{Resolution, Resolved};
use tollgate_core::health::{
    Action, Actions, AttemptResult, BasePace, Class, HealthEvent, HealthState,
};
use tollgate_core::limit::Rule;
use tollgate_core::retry::{FailedAttempt, RetryDecision, Safety};
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Span};
use tollgate_core::turn::turn;

use crate::rule::CallId;
use crate::world::{Call, Client, Effects, NodeId, Outcome};

mod node;
use node::{Flight, HealthNode, PendingCall};
mod plan;
pub use plan::{GiveUpReason, HealthPlan, HealthTransition};

/// The scope of the health machine.
const HEALTH: ScopeId = ScopeId(1);

/// The scope of the cool-down. A separate scope: after a cool-down calls go without a probe of health.
const COOLDOWN: ScopeId = ScopeId(2);

/// Nodes that share one ledger and learn from responses.
#[derive(Debug)]
pub struct GovernedWithHealth {
    plan: HealthPlan,
    limits: Vec<(CellId, Arc<Rule>)>,
    table: Table,
    nodes: Vec<HealthNode>,
    dice: Rng,
    transitions: Vec<HealthTransition>,
    given_up: Vec<(CallId, GiveUpReason)>,
    probes: u64,
    concurrent_probes_max: usize,
}

impl GovernedWithHealth {
    /// Nodes with this plan, and an empty ledger.
    #[must_use]
    pub fn new(plan: HealthPlan) -> GovernedWithHealth {
        let limits = plan.limits.iter().enumerate().map(|(index, rule)| {
            let cell = CellId::named(&["sim", &index.to_string()]);
            (cell, Arc::new(rule.clone()))
        });
        GovernedWithHealth {
            limits: limits.collect(),
            table: Table::default(),
            nodes: Vec::new(),
            dice: Rng::with_seed(plan.seed),
            transitions: Vec::new(),
            given_up: Vec::new(),
            probes: 0,
            concurrent_probes_max: 0,
            plan,
        }
    }

    /// Every transition of every node, in order.
    #[must_use]
    pub fn transitions(&self) -> &[HealthTransition] {
        &self.transitions
    }

    /// Calls whose callers got no response from the provider, and why.
    #[must_use]
    pub fn given_up(&self) -> &[(CallId, GiveUpReason)] {
        &self.given_up
    }

    /// The health state of every node that has acted.
    #[must_use]
    pub fn states(&self) -> Vec<HealthState> {
        self.nodes.iter().map(|node| node.health.state()).collect()
    }

    /// The number of attempts sent as probes, and the most of them in flight at the same time.
    #[must_use]
    pub fn probes(&self) -> (u64, usize) {
        (self.probes, self.concurrent_probes_max)
    }

    fn node(&mut self, node: NodeId, now: Now) -> &mut HealthNode {
        let base = BasePace::of(&self.plan.limits);
        while self.nodes.len() <= node.0 {
            self.nodes.push(HealthNode::new(&self.plan, base, now));
        }
        &mut self.nodes[node.0]
    }

    /// One transaction of the shared ledger, on its own clock.
    fn turn(
        &mut self,
        node: NodeId,
        settles: &[Settle],
        asks: &[Ask],
        now: Now,
        effects: &mut Effects<'_>,
    ) -> Vec<Verdict> {
        let Some(ledger) = effects.clock_of(NodeId(0)) else {
            return Vec::new();
        };
        let out = turn(&mut self.table, ledger, settles, asks);
        for index in 0..self.nodes.len() {
            let other = NodeId(index);
            if !out.freed.is_empty() {
                self.nodes[index].gate.freed(&out.freed);
            }
            if !out.changed_scopes.is_empty() {
                let delay = if other == node {
                    Span::ZERO
                } else {
                    Span(self.dice.u64(0..=self.plan.scope_update_delay.0))
                };
                let heard_at = effects.clock_of(other).map_or(now.at, |clock| clock.at) + delay;
                self.nodes[index].scope_updates.insert(heard_at);
            }
            if other != node && !(out.freed.is_empty() && out.changed_scopes.is_empty()) {
                effects.nudge(other, Span::ZERO);
            }
        }
        out.verdicts
    }

    /// Passes an event to the health machine, and applies its actions.
    fn handle_event(
        &mut self,
        node: NodeId,
        event: HealthEvent,
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        let actions = self.node(node, now).health.on(event, now.at);
        self.act(node, &actions, now, effects);
    }

    fn act(&mut self, node: NodeId, actions: &Actions, now: Now, effects: &mut Effects<'_>) {
        let settles: Vec<Settle> = actions.iter().filter_map(|a| a.settle(HEALTH)).collect();
        self.turn(node, &settles, &[], now, effects);
        for &action in actions {
            match action {
                Action::Pace(pace) => {
                    self.node(node, now).set_pace(pace);
                    self.requeue_waiting(node, now);
                }
                Action::Transition { from, to, reason } => {
                    let at = now.at;
                    self.transitions.push(HealthTransition {
                        at,
                        node,
                        from,
                        to,
                        reason,
                    });
                }
                // Waiting calls to it have asked without its scope.
                Action::ClosePath { .. } => self.requeue_waiting(node, now),
                Action::Close { .. }
                | Action::Open
                | Action::Failed { .. }
                | Action::PathFailed { .. }
                | Action::OpenPath { .. }
                | Action::Succeeded => {}
            }
        }
    }

    /// Waiting calls were queued under the old pace; queues them again.
    fn requeue_waiting(&mut self, node: NodeId, now: Now) {
        let waiting = std::mem::take(&mut self.node(node, now).waiting);
        for (id, pending) in waiting {
            self.node(node, now).gate.cancel(id);
            self.push(node, pending, now);
        }
    }

    fn push(&mut self, node: NodeId, pending: PendingCall, now: Now) {
        let shared = self.limits.iter().map(|(cell, rule)| Term {
            cell: *cell,
            rule: rule.clone(),
            cost: 1,
            reserve: 0,
        });
        let terms: Terms = shared.chain(self.nodes[node.0].pace_terms(node)).collect();
        let path = self.plan.path_of(pending.call.id);
        let path = self.nodes[node.0].health.failing_path(path);
        let path = path.map(|path| path.scope(HEALTH));
        let scopes: Scopes = [HEALTH, COOLDOWN].into_iter().chain(path).collect();
        let give_up = self.plan.give_up;
        self.node(node, now)
            .push(node, pending, terms, scopes, give_up, now);
    }

    /// Applies actions until nothing is left to do at this instant.
    fn run(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        self.deliver_scope_updates(node, now, effects);
        self.handle_event(node, HealthEvent::Tick, now, effects);
        for pending in self.node(node, now).due_retries(now.at) {
            self.push(node, pending, now);
        }
        loop {
            let out = self.node(node, now).gate.tick(now);
            for resolved in out.resolve {
                self.resolved(node, resolved, now, effects);
            }
            self.turn(node, &out.settle, &[], now, effects);
            self.deliver_scope_updates(node, now, effects);
            if !out.offer.is_empty() {
                let ids: Vec<PermitId> = out.offer.iter().map(|ask| ask.id).collect();
                let verdicts = self.turn(node, &[], &out.offer, now, effects);
                let verdicts = ids.into_iter().zip(verdicts).collect();
                self.node(node, now).gate.verdicts(verdicts, now);
                continue;
            }
            if out.settle.is_empty() {
                return match self.node(node, now).next_wake(out.wake_at) {
                    Some(at) => effects.wake_at(at),
                    None => effects.clear_timer(),
                };
            }
        }
    }

    /// Reads the changed scopes whose updates have reached this node.
    fn deliver_scope_updates(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        while self
            .node(node, now)
            .scope_updates
            .first()
            .is_some_and(|&at| at <= now.at)
        {
            self.node(node, now).scope_updates.pop_first();
            let Some(ledger) = effects.clock_of(NodeId(0)) else {
                return;
            };
            let view = self.table.peek_scope(HEALTH, ledger.at);
            let paths = self.plan.paths().map(|path| path.scope(HEALTH));
            let changed: Vec<ScopeId> = [HEALTH, COOLDOWN].into_iter().chain(paths).collect();
            self.node(node, now).gate.scopes_changed(&changed);
            self.handle_event(node, HealthEvent::ScopeChanged(view), now, effects);
            let open: Vec<PathTag> = self.node(node, now).health.failing_tags().collect();
            for path in open {
                let view = self.table.peek_scope(path.scope(HEALTH), ledger.at);
                let event = HealthEvent::PathScopeChanged(path, view);
                self.handle_event(node, event, now, effects);
            }
        }
    }

    fn resolved(&mut self, node: NodeId, resolved: Resolved, now: Now, effects: &mut Effects<'_>) {
        let Some(pending) = self.node(node, now).waiting.remove(&resolved.ask.id) else {
            return;
        };
        let call = pending.call;
        if !matches!(resolved.resolution, Resolution::Go { .. }) {
            return self.give_up(call, GiveUpReason::NoPermit(resolved.resolution), effects);
        }
        self.handle_event(node, HealthEvent::Granted, now, effects);
        let path = self.plan.path_of(call.id);
        let state = self.node(node, now);
        let probe = state.health.is_probe(path);
        let flight = Flight {
            pending,
            permit: resolved.ask.id,
            terms: resolved.ask.terms,
            scopes: resolved.ask.scopes,
            path,
            granted: now.at,
            probe,
        };
        state.in_flight.insert(call.id, flight);
        if probe {
            self.probes += 1;
            let flights = self.nodes.iter().flat_map(|node| node.in_flight.values());
            let at_once = flights.filter(|flight| flight.probe).count();
            self.concurrent_probes_max = self.concurrent_probes_max.max(at_once);
        }
        effects.send(call);
    }

    fn give_up(&mut self, call: Call, why: GiveUpReason, effects: &mut Effects<'_>) {
        self.given_up.push((call.id, why));
        effects.done(call.id);
    }

    fn settle(
        &mut self,
        node: NodeId,
        flight: &Flight,
        outcome: Settled,
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        let settle = Settle::Permit {
            id: flight.permit,
            terms: flight.terms.clone(),
            scopes: flight.scopes.clone(),
            outcome,
        };
        self.turn(node, &[settle], &[], now, effects);
    }

    /// After a 429 all calls cool down.
    fn cool_down(
        &mut self,
        node: NodeId,
        granted: Micros,
        retry_after: Option<Span>,
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        let provider_wait = ProviderWait {
            retry_after,
            reset_after: None,
        };
        let (settings, dice) = (self.plan.cooldown, Dice(self.dice.u64(..)));
        let cooldown = &mut self.node(node, now).cooldown;
        if let Some(pause) = cooldown.on_limited(&settings, granted, provider_wait, dice, now.at) {
            let settle = cooldown::settle(COOLDOWN, pause, now.at.since(granted));
            self.turn(node, &[settle], &[], now, effects);
        }
    }

    /// Retries a failed attempt, or reports the failure to the caller.
    fn retry_or_fail(
        &mut self,
        node: NodeId,
        flight: &Flight,
        (class, retry_after): (Class, Option<Span>),
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        let mut pending = flight.pending;
        pending.has_failed = true;
        let failed = FailedAttempt {
            priority: node::priority(pending.call.priority),
            used: pending.retries_used,
            class,
            timeouts: None,
            retry_after,
            safety: Safety::Idempotent,
            probe: flight.probe,
            caller_retries: false,
            time_remaining: Some(pending.deadline.since(now.at)),
        };
        let (settings, dice) = (self.plan.retry, Dice(self.dice.u64(..)));
        let budget = &mut self.node(node, now).budget;
        match settings.decide(&failed, budget, dice, now.at) {
            RetryDecision::Again { after, counts } => {
                pending.retries_used += u32::from(counts);
                self.node(node, now).schedule_retry(pending, now.at + after);
            }
            RetryDecision::Stop(stop) => {
                self.give_up(pending.call, GiveUpReason::Failed(stop), effects);
            }
        }
    }
}

impl Client for GovernedWithHealth {
    fn on_wake(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        self.run(node, now, effects);
    }

    fn on_submit(&mut self, node: NodeId, call: Call, now: Now, effects: &mut Effects<'_>) {
        let (deadline, budget) = (now.at + self.plan.patience, self.plan.retry.budget);
        let pending = self.node(node, now).new_pending(call, deadline);
        self.node(node, now).budget.on_call(&budget, now.at);
        self.push(node, pending, now);
        self.run(node, now, effects);
    }

    fn on_response(
        &mut self,
        node: NodeId,
        call: Call,
        outcome: &Outcome,
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        let Some(flight) = self.node(node, now).in_flight.remove(&call.id) else {
            return;
        };
        let arrived = |limited| Settled::Arrived {
            age: Span::ZERO,
            limited,
            readings: Vec::new(),
        };
        let (class, settled, retry_after) = match outcome {
            Outcome::Accepted { .. } => (Class::Success, arrived(false), None),
            Outcome::Limited { retry_after, .. } => (Class::Limited, arrived(true), *retry_after),
            Outcome::Unavailable => {
                let failed = Settled::Failed { age: Span::ZERO };
                (Class::ServerError, failed, None)
            }
            Outcome::NoResponse => {
                let (age, late) = (Span::ZERO, node::LATE_ARRIVAL);
                (Class::Network, Settled::Unknown { age, late }, None)
            }
        };
        self.settle(node, &flight, settled, now, effects);
        let granted = flight.granted;
        let result = AttemptResult {
            retry_after,
            path: flight.path,
            repeated: flight.pending.has_failed,
            ..AttemptResult::new(class, granted)
        };
        let event = if self.node(node, now).cooldown.is_outdated(granted) {
            HealthEvent::CompletedLate(result)
        } else {
            HealthEvent::Completed(result)
        };
        self.handle_event(node, event, now, effects);
        match class {
            Class::Success => {
                self.node(node, now).cooldown.on_success(granted);
                effects.done(call.id);
            }
            Class::Limited | Class::ServerError | Class::Network | Class::Other => {
                if class == Class::Limited {
                    self.cool_down(node, granted, retry_after, now, effects);
                }
                self.retry_or_fail(node, &flight, (class, retry_after), now, effects);
            }
        }
        if *outcome != Outcome::NoResponse {
            self.node(node, now).ending.insert(call.id, flight);
        }
        self.run(node, now, effects);
    }

    fn on_response_end(&mut self, node: NodeId, call: Call, now: Now, effects: &mut Effects<'_>) {
        if let Some(flight) = self.node(node, now).ending.remove(&call.id) {
            let finished = Settled::Finished { age: Span::ZERO };
            self.settle(node, &flight, finished, now, effects);
        }
        self.run(node, now, effects);
    }
}
