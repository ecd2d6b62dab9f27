//! One node of the governed client: its gate, its state machines, and its calls.
//!
//! Promises: a call is in exactly one place: waiting for a permit, in flight, or waiting for its
//! retry.
//!
//! Never: talks to the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tollgate_core::ask::{
    Ask, CellId, Evidence, OwnerId, PathTag, PermitId, Priority, Scopes, Term, Terms,
};
use tollgate_core::cooldown::Cooldown;
use tollgate_core::gate::{CallerId, Gate, GateSettings, QueuedCall};
use tollgate_core::health::{BasePace, Health, Pace};
use tollgate_core::limit::{HoldUntil, Rule};
use tollgate_core::retry::Budget;
use tollgate_core::time::{Micros, Now, Span};

use super::HealthPlan;
use crate::checker::Priority as CheckerPriority;
use crate::rule::CallId;
use crate::world::{Call, NodeId};

/// How long a call given up may still arrive.
pub(super) const LATE_ARRIVAL: Span = Span::from_secs(5);

/// A call that has no response yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCall {
    pub(super) call: Call,
    pub(super) deadline: Micros,
    pub(super) retries_used: u32,
    /// An attempt of it has failed.
    pub(super) has_failed: bool,
    seniority: u64,
}

/// An attempt in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) pending: PendingCall,
    pub(super) permit: PermitId,
    pub(super) terms: Terms,
    pub(super) scopes: Scopes,
    pub(super) path: Option<PathTag>,
    pub(super) granted: Micros,
    pub(super) probe: bool,
}

#[derive(Debug)]
pub(super) struct HealthNode {
    pub(super) gate: Gate,
    pub(super) health: Health,
    pub(super) cooldown: Cooldown,
    pub(super) budget: Budget,
    pub(super) waiting: BTreeMap<PermitId, PendingCall>,
    pub(super) in_flight: BTreeMap<CallId, Flight>,
    /// The head of the response has arrived, the end has not.
    pub(super) ending: BTreeMap<CallId, Flight>,
    /// When this node learns of scopes that have changed.
    pub(super) scope_updates: BTreeSet<Micros>,
    retries: BTreeMap<(Micros, u64), PendingCall>,
    pace: Vec<(&'static str, Arc<Rule>)>,
    seq: u64,
}

impl HealthNode {
    pub(super) fn new(plan: &HealthPlan, base: BasePace, now: Now) -> HealthNode {
        HealthNode {
            gate: Gate::new(GateSettings::default()),
            health: Health::new(plan.health, base, now.at).expect("plans have sound settings"),
            cooldown: Cooldown::default(),
            budget: Budget::new(&plan.retry.budget, now.at),
            waiting: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            ending: BTreeMap::new(),
            scope_updates: BTreeSet::new(),
            retries: BTreeMap::new(),
            pace: Vec::new(),
            seq: 0,
        }
    }

    pub(super) fn new_pending(&mut self, call: Call, deadline: Micros) -> PendingCall {
        self.seq += 1;
        PendingCall {
            call,
            deadline,
            retries_used: 0,
            has_failed: false,
            seniority: self.seq,
        }
    }

    /// The extra pace as limits of this node alone. The rate limit holds from the send on: it slows
    /// this node down and is not a limit of the provider.
    pub(super) fn set_pace(&mut self, pace: Pace) {
        let rate = pace
            .rate
            .and_then(|rate| Rule::bucket(1, rate.gap(), 1).ok());
        let rate = rate.map(|rule| ("rate", Arc::new(rule.hold_until(HoldUntil::Send))));
        let most = pace
            .concurrency
            .and_then(|most| Rule::in_flight(u64::from(most)).ok());
        let most = most.map(|rule| ("concurrency", Arc::new(rule)));
        self.pace = rate.into_iter().chain(most).collect();
    }

    pub(super) fn pace_terms(&self, node: NodeId) -> impl Iterator<Item = Term> {
        self.pace.iter().map(move |(name, rule)| Term {
            cell: CellId::named(&["pace", name, &node.0.to_string()]),
            rule: rule.clone(),
            cost: 1,
            reserve: 0,
        })
    }

    pub(super) fn push(
        &mut self,
        node: NodeId,
        pending: PendingCall,
        terms: Terms,
        scopes: Scopes,
        give_up: Span,
        now: Now,
    ) {
        self.seq += 1;
        let id = PermitId {
            owner: OwnerId(u32::try_from(node.0).unwrap_or(u32::MAX)),
            seq: self.seq,
        };
        let ask = Ask {
            id,
            terms,
            scopes,
            priority: priority(pending.call.priority),
            max_wait: Span::ZERO,
            evidence: Evidence::Report {
                timeout: give_up,
                late: LATE_ARRIVAL,
            },
        };
        self.waiting.insert(id, pending);
        let waiter = QueuedCall {
            ask,
            caller: CallerId(0),
            deadline: pending.deadline,
            seniority: Some(pending.seniority),
        };
        self.gate.push(waiter, now);
    }

    /// Retries the call, but not before `until`.
    pub(super) fn schedule_retry(&mut self, pending: PendingCall, until: Micros) {
        self.retries.insert((until, pending.seniority), pending);
    }

    /// Calls whose retry is due.
    pub(super) fn due_retries(&mut self, now: Micros) -> Vec<PendingCall> {
        let later = self.retries.split_off(&(now + Span(1), 0));
        let due = std::mem::replace(&mut self.retries, later);
        due.into_values().collect()
    }

    /// When the next timer is due, the gate's own timer included.
    pub(super) fn next_wake(&self, gate: Option<Micros>) -> Option<Micros> {
        let due = self.retries.keys().next().map(|(until, _)| *until);
        let timers = [
            gate,
            due,
            self.health.next_tick(),
            self.scope_updates.first().copied(),
        ];
        timers.into_iter().flatten().min()
    }
}

pub(super) fn priority(priority: CheckerPriority) -> Priority {
    match priority {
        CheckerPriority::High => Priority::High,
        CheckerPriority::Normal => Priority::Normal,
        CheckerPriority::Low => Priority::Low,
    }
}
