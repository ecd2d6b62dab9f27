//! One node of the healthy side: its gate, its machines, and the calls it has in hand.
//!
//! Promises: a call is in exactly one place: waiting for a permit, on its way, or resting before it
//! is tried again.
//!
//! Never: talks to the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tollgate_core::ask::{Ask, CellId, Evidence, OwnerId, PermitId, Priority, Scopes, Term, Terms};
use tollgate_core::cooldown::Cooldown;
use tollgate_core::gate::{CallerId, Gate, Settings, Waiter};
use tollgate_core::health::{Base, Health, Pace};
use tollgate_core::limit::{HoldUntil, Rule};
use tollgate_core::retry::Budget;
use tollgate_core::time::{Micros, Now, Span};

use super::Plan;
use crate::judge::Priority as Urgency;
use crate::rule::CallId;
use crate::world::{Call, NodeId};

/// How long a call given up may still be on its way.
pub(super) const LATE: Span = Span::from_secs(5);

/// A call that wants an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) call: Call,
    pub(super) deadline: Micros,
    pub(super) retries_used: u32,
    seniority: u64,
}

/// An attempt on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) wanted: Wanted,
    pub(super) permit: PermitId,
    pub(super) terms: Terms,
    pub(super) granted: Micros,
    pub(super) probe: bool,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) gate: Gate,
    pub(super) health: Health,
    pub(super) cooldown: Cooldown,
    pub(super) budget: Budget,
    pub(super) waiting: BTreeMap<PermitId, Wanted>,
    pub(super) flying: BTreeMap<CallId, Flight>,
    /// Head back, end still to come.
    pub(super) ending: BTreeMap<CallId, Flight>,
    /// When this node hears of scopes that have changed.
    pub(super) news: BTreeSet<Micros>,
    resting: BTreeMap<(Micros, u64), Wanted>,
    pace: Vec<(&'static str, Arc<Rule>)>,
    seq: u64,
}

impl Node {
    pub(super) fn new(plan: &Plan, base: Base, now: Now) -> Node {
        Node {
            gate: Gate::new(Settings::default()),
            health: Health::new(plan.health, base, now.at).expect("plans have sound settings"),
            cooldown: Cooldown::default(),
            budget: Budget::new(&plan.retry.budget, now.at),
            waiting: BTreeMap::new(),
            flying: BTreeMap::new(),
            ending: BTreeMap::new(),
            news: BTreeSet::new(),
            resting: BTreeMap::new(),
            pace: Vec::new(),
            seq: 0,
        }
    }

    pub(super) fn wanted(&mut self, call: Call, deadline: Micros) -> Wanted {
        self.seq += 1;
        Wanted {
            call,
            deadline,
            retries_used: 0,
            seniority: self.seq,
        }
    }

    /// The extra pace as limits of this node alone. The rate holds from the send on: it slows us
    /// down, it is nobody's limit.
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
            leave: 0,
        })
    }

    pub(super) fn push(
        &mut self,
        node: NodeId,
        wanted: Wanted,
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
            priority: priority(wanted.call.priority),
            patience: Span::ZERO,
            evidence: Evidence::Report {
                by: give_up,
                late: LATE,
            },
        };
        self.waiting.insert(id, wanted);
        let waiter = Waiter {
            ask,
            caller: CallerId(0),
            deadline: wanted.deadline,
            seniority: Some(wanted.seniority),
        };
        self.gate.push(waiter, now);
    }

    /// The call is tried again, but not before `until`.
    pub(super) fn rest(&mut self, wanted: Wanted, until: Micros) {
        self.resting.insert((until, wanted.seniority), wanted);
    }

    /// Calls whose rest is over.
    pub(super) fn rested(&mut self, now: Micros) -> Vec<Wanted> {
        let later = self.resting.split_off(&(now + Span(1), 0));
        let rested = std::mem::replace(&mut self.resting, later);
        rested.into_values().collect()
    }

    /// When something is due, the gate's own timer among it.
    pub(super) fn next_wake(&self, gate: Option<Micros>) -> Option<Micros> {
        let rested = self.resting.keys().next().map(|(until, _)| *until);
        let timers = [
            gate,
            rested,
            self.health.next_tick(),
            self.news.first().copied(),
        ];
        timers.into_iter().flatten().min()
    }
}

pub(super) fn priority(urgency: Urgency) -> Priority {
    match urgency {
        Urgency::High => Priority::High,
        Urgency::Normal => Priority::Normal,
        Urgency::Low => Priority::Low,
    }
}
