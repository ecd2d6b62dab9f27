//! A limit that is configured anew in another shape (period, algorithm) counts in another cell; what
//! the former cell has counted is taken over here.
//!
//! Promises: no reset and no burst. What is held in the former cell is held in the new one: calls on
//! their way under the same permit, so that their answer frees them here too; counted ones from the
//! time at which they were counted where the former cell still knows it (a log does) and where the
//! new algorithm has a use for it, else as if they had been counted now. Taking over twice adds only
//! what came since, and a change that is undone gives back only what was granted in between.
//!
//! Never: knows more than the former cell. What lies further back than its period is not counted;
//! whoever names the former cell chooses one with a period as long as the new one, if there is one.

use crate::ask::{CellId, PermitId};
use crate::limit::cell::{Cell, CellState, HandOver};
use crate::limit::holds::PendingCall;
use crate::limit::reported::{OutsideUse, growth};
use crate::limit::{Algorithm, Rule};
use crate::time::{Micros, Now};

/// What one cell leaves to another.
#[derive(Debug, Default)]
pub(super) struct CarriedUsage {
    /// Calls on their way; `free_at` is the last instant at which they may still be counted.
    pub(super) pending: Vec<(PermitId, PendingCall)>,
    /// What was counted, and when at the latest; oldest first.
    pub(super) done: Vec<(Micros, u64)>,
}

impl CarriedUsage {
    /// Everything that was counted, as one sum that is no more than `most`.
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
        let costs = self.pending.iter().map(|(_, open)| open.cost);
        costs.fold(0, u64::saturating_add)
    }

    /// Keeps the newest `most` of what was counted.
    fn keep_newest(&mut self, most: u64) {
        let mut left = most;
        for (_, cost) in self.done.iter_mut().rev() {
            *cost = left.min(*cost);
            left -= *cost;
        }
        self.done.retain(|(_, cost)| *cost > 0);
    }
}

impl Cell {
    /// Takes over what `giver` has counted under `former`. Both have been brought up to now. Returns
    /// what the giver is to remember.
    pub(crate) fn inherit(
        &mut self,
        (own, rule): (CellId, &Rule),
        giver: &Cell,
        (of, former): (CellId, &Rule),
        now: Now,
    ) -> HandOver {
        let before = giver.hand_over.filter(|passed| passed.to == own);
        let back = self.hand_over.filter(|passed| passed.to == of);
        let news = before.map_or(u64::MAX, |passed| growth(giver.granted, passed.granted));
        let news = back.map_or(news, |passed| {
            news.min(growth(giver.granted, passed.granted_there))
        });
        let mut estate = giver.carried_usage(former, now.at);
        estate
            .pending
            .retain(|(id, _)| self.pending_call(*id).is_none());
        estate.keep_newest(news.saturating_sub(estate.pending_cost()));
        // How strict the provider has shown itself is remembered for good.
        if let (CellState::Log(own), CellState::Log(theirs)) = (&mut self.state, &giver.state) {
            own.strictness = own.strictness.max(theirs.strictness);
        }
        if !estate.is_empty() {
            self.take_over(rule, &estate, now);
        }
        self.take_over_reported(rule, giver, now.at);
        HandOver {
            to: own,
            granted: giver.granted,
            granted_there: self.granted,
        }
    }

    /// Remembers who has taken over.
    pub(crate) fn set_hand_over(&mut self, passed: HandOver) {
        // Nothing was ever counted here, so there is nothing to remember.
        if self.granted > 0 {
            self.hand_over = Some(passed);
        }
    }

    fn take_over(&mut self, rule: &Rule, estate: &CarriedUsage, now: Now) {
        let (counted, on_their_way) = (estate.counted(), estate.pending_cost());
        self.granted = self
            .granted
            .wrapping_add(counted)
            .wrapping_add(on_their_way);
        self.settled = self.settled.wrapping_add(counted);
        let bounds = estate.pending.iter().map(|(_, open)| open.free_at);
        let last = bounds.chain([now.at]).max().unwrap_or(now.at);
        self.idle_from = self.idle_from.max(last + rule.longest_hold());
        let limit = self.limit(rule, now.at);
        match (&mut self.state, rule.algorithm()) {
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.take_over(rule, calendar, estate, now.at);
            }
            (CellState::Log(log), _) => log.take_over(rule, estate, limit, now.at),
            (CellState::Bucket(bucket), _) => bucket.take_over(rule, estate, now.at),
            (CellState::Fixed(fixed), _) => fixed.take_over(rule, estate, now.at),
            (CellState::InFlight(in_flight), _) => in_flight.take_over(estate),
            (CellState::Empty | CellState::Calendar(_), _) => {}
        }
    }

    /// What strangers took, or what is not known of a cell that was lost, is taken here too: for one
    /// period of this limit, because nobody knows when they did.
    fn take_over_reported(&mut self, rule: &Rule, giver: &Cell, now: Micros) {
        let taken = giver.reported.outside_use(now).min(rule.max_cost());
        if taken > self.reported.outside_use(now) {
            let until = now + rule.stretched(rule.period());
            self.reported.close(OutsideUse { cost: taken, until });
        }
    }

    /// What this cell leaves to another.
    fn carried_usage(&self, rule: &Rule, now: Micros) -> CarriedUsage {
        let tail = self.tail(rule);
        let bound = |(id, open): (&PermitId, &PendingCall)| {
            let free_at = (open.free_at - tail).max(now);
            (*id, PendingCall { free_at, ..*open })
        };
        let open: Vec<(PermitId, PendingCall)> = match self.pending_calls() {
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
                let open = open.iter().map(|(_, open)| open.cost);
                let open = open.fold(0, u64::saturating_add);
                vec![(now, self.used(rule, now).saturating_sub(open))]
            }
        };
        CarriedUsage {
            pending: open,
            done,
        }
    }
}
