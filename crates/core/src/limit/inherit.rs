//! Takes over usage when a limit changes its shape (period, algorithm) and so gets another cell.
//!
//! Promises: no reset and no burst. What the old cell holds is held in the new one. Pending calls
//! keep their permit, so their response frees them here too. Counted calls count from their own
//! time if the old cell still knows it (a log does) and the new algorithm uses it, else from now.
//! Taking over twice adds only usage since the first time, and a change that is undone brings back
//! only what was granted in between.
//!
//! Never: knows more than the old cell. Usage older than its period is not counted; whoever names
//! the old cell chooses one with a period as long as the new one, if there is one.

use crate::ask::{CellId, PermitId};
use crate::limit::cell::{Cell, CellState, HandOver};
use crate::limit::holds::PendingCall;
use crate::limit::reported::{OutsideUse, growth};
use crate::limit::{Algorithm, Rule};
use crate::time::{Micros, TimeBounds};

/// The usage that one cell passes to another.
#[derive(Debug, Default)]
pub(super) struct CarriedUsage {
    /// Pending calls; `free_at` is the last instant at which they may still be counted.
    pub(super) pending: Vec<(PermitId, PendingCall)>,
    /// Counted costs, and when at the latest; oldest first.
    pub(super) done: Vec<(Micros, u64)>,
}

impl CarriedUsage {
    /// One counted cost.
    pub(super) fn counted_at(at: Micros, cost: u64) -> CarriedUsage {
        CarriedUsage {
            done: vec![(at, cost)],
            ..CarriedUsage::default()
        }
    }

    /// The sum of the counted costs, at most `most`.
    pub(super) fn counted_up_to(&self, most: u64) -> u64 {
        self.counted().min(most)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.counted() == 0
    }

    fn counted(&self) -> u64 {
        let costs = self.done.iter().map(|(_, cost)| *cost);
        costs.fold(0, u64::saturating_add)
    }

    fn pending_cost(&self) -> u64 {
        let costs = self.pending.iter().map(|(_, call)| call.cost);
        costs.fold(0, u64::saturating_add)
    }

    /// Keeps the newest `most` of the counted costs.
    fn retain_newest(&mut self, most: u64) {
        let mut remaining = most;
        for (_, cost) in self.done.iter_mut().rev() {
            *cost = remaining.min(*cost);
            remaining -= *cost;
        }
        self.done.retain(|(_, cost)| *cost > 0);
    }
}

impl Cell {
    /// Takes over the usage of `old` under `old_rule`. Both cells are brought up to now. Returns
    /// what the old cell must store.
    pub(crate) fn inherit(
        &mut self,
        (own, rule): (CellId, &Rule),
        old: &Cell,
        (of, old_rule): (CellId, &Rule),
        now: TimeBounds,
    ) -> HandOver {
        let before = old.hand_over.filter(|hand_over| hand_over.to == own);
        let back = self.hand_over.filter(|hand_over| hand_over.to == of);
        let news = before.map_or(u64::MAX, |hand_over| growth(old.granted, hand_over.granted));
        let news = back.map_or(news, |hand_over| {
            news.min(growth(old.granted, hand_over.granted_there))
        });
        let mut usage = old.carried_usage(old_rule, now);
        usage
            .pending
            .retain(|(id, _)| self.pending_call(*id).is_none());
        usage.retain_newest(news.saturating_sub(usage.pending_cost()));
        // How strict the provider's window is stays known for good.
        if let (CellState::Log(own), CellState::Log(theirs)) = (&mut self.state, &old.state) {
            own.strictness = own.strictness.max(theirs.strictness);
        }
        self.presumed.inherit(&old.presumed);
        if !usage.is_empty() {
            self.take_over(rule, &usage, now);
        }
        self.take_over_reported(rule, old, now);
        HandOver {
            to: own,
            granted: old.granted,
            granted_there: self.granted,
        }
    }

    /// Stores which cell has taken over.
    pub(crate) fn set_hand_over(&mut self, hand_over: HandOver) {
        // Nothing was ever counted here, so there is nothing to store.
        if self.granted > 0 {
            self.hand_over = Some(hand_over);
        }
    }

    fn take_over(&mut self, rule: &Rule, usage: &CarriedUsage, now: TimeBounds) {
        let (counted, pending) = (usage.counted(), usage.pending_cost());
        self.granted = self.granted.wrapping_add(counted).wrapping_add(pending);
        self.settled = self.settled.wrapping_add(counted);
        let bounds = usage.pending.iter().map(|(_, call)| call.free_at);
        let last = bounds.chain([now.hi]).max().unwrap_or(now.hi);
        self.idle_from = self.idle_from.max(last + rule.longest_hold());
        let limit = self.limit(rule, now.lo);
        match (&mut self.state, rule.algorithm()) {
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.take_over(rule, calendar, usage, now.hi);
            }
            (CellState::Log(log), _) => log.take_over(rule, usage, limit, now),
            (CellState::Bucket(bucket), _) => bucket.take_over(rule, usage, now.hi),
            (CellState::Fixed(fixed), _) => fixed.take_over(rule, usage, now),
            (CellState::InFlight(in_flight), _) => in_flight.take_over(usage),
            (CellState::Empty | CellState::Calendar(_), _) => {}
        }
    }

    /// Outside use, or the unknown usage of a lost cell, counts here too: for one period of this
    /// limit, because its time is unknown.
    fn take_over_reported(&mut self, rule: &Rule, old: &Cell, now: TimeBounds) {
        let outside = old.reported.outside_use(now.lo).min(rule.max_cost());
        if outside > self.reported.outside_use(now.lo) {
            let until = now.hi + rule.stretched(rule.period());
            self.reported.close(OutsideUse {
                cost: outside,
                until,
            });
        }
    }

    /// The usage that this cell passes to another.
    fn carried_usage(&self, rule: &Rule, now: TimeBounds) -> CarriedUsage {
        let tail = self.tail(rule);
        let bound = |(id, call): (&PermitId, &PendingCall)| {
            let free_at = (call.free_at - tail).max(now.hi);
            (*id, PendingCall { free_at, ..*call })
        };
        let pending: Vec<(PermitId, PendingCall)> = match self.pending_calls() {
            Some(set) => set.iter().map(bound).collect(),
            None => Vec::new(),
        };
        let done = match &self.state {
            CellState::Log(log) => {
                let hold = log.hold(rule);
                let slots = log.holds.done.iter();
                slots.map(|slot| (slot.free_at - hold, slot.cost)).collect()
            }
            CellState::Empty | CellState::InFlight(_) => Vec::new(),
            CellState::Bucket(_) | CellState::Fixed(_) | CellState::Calendar(_) => {
                let costs = pending.iter().map(|(_, call)| call.cost);
                let held = costs.fold(0, u64::saturating_add);
                vec![(now.hi, self.used(rule, now.lo).saturating_sub(held))]
            }
        };
        CarriedUsage { pending, done }
    }
}
