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
use crate::limit::cell::{Cell, Passed, State};
use crate::limit::holds::Open;
use crate::limit::told::{Taken, grown};
use crate::limit::{Algorithm, Rule};
use crate::time::{Micros, Now};

/// What one cell leaves to another.
#[derive(Debug, Default)]
pub(super) struct Estate {
    /// Calls on their way; `free_at` is the last instant at which they may still be counted.
    pub(super) open: Vec<(PermitId, Open)>,
    /// What was counted, and when at the latest; oldest first.
    pub(super) done: Vec<(Micros, u64)>,
}

impl Estate {
    /// Everything that was counted, as one sum that is no more than `most`.
    pub(super) fn lump(&self, most: u64) -> u64 {
        self.counted().min(most)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.counted() == 0
    }

    fn counted(&self) -> u64 {
        let costs = self.done.iter().map(|(_, cost)| *cost);
        costs.fold(0, u64::saturating_add)
    }

    fn on_their_way(&self) -> u64 {
        let costs = self.open.iter().map(|(_, open)| open.cost);
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
    ) -> Passed {
        let before = giver.passed.filter(|passed| passed.to == own);
        let back = self.passed.filter(|passed| passed.to == of);
        let news = before.map_or(u64::MAX, |passed| grown(giver.granted, passed.granted));
        let news = back.map_or(news, |passed| news.min(grown(giver.granted, passed.theirs)));
        let mut estate = giver.estate(former, now.at);
        estate.open.retain(|(id, _)| self.open(*id).is_none());
        estate.keep_newest(news.saturating_sub(estate.on_their_way()));
        // How strict the provider has shown itself is remembered for good.
        if let (State::Log(own), State::Log(theirs)) = (&mut self.state, &giver.state) {
            own.rung = own.rung.max(theirs.rung);
        }
        if !estate.is_empty() {
            self.take_over(rule, &estate, now);
        }
        self.take_over_told(rule, giver, now.at);
        Passed {
            to: own,
            granted: giver.granted,
            theirs: self.granted,
        }
    }

    /// Remembers who has taken over.
    pub(crate) fn pass(&mut self, passed: Passed) {
        // Nothing was ever counted here, so there is nothing to remember.
        if self.granted > 0 {
            self.passed = Some(passed);
        }
    }

    fn take_over(&mut self, rule: &Rule, estate: &Estate, now: Now) {
        let (counted, on_their_way) = (estate.counted(), estate.on_their_way());
        self.granted = self
            .granted
            .wrapping_add(counted)
            .wrapping_add(on_their_way);
        self.settled = self.settled.wrapping_add(counted);
        let bounds = estate.open.iter().map(|(_, open)| open.free_at);
        let last = bounds.chain([now.at]).max().unwrap_or(now.at);
        self.idle_from = self.idle_from.max(last + rule.longest_hold());
        let limit = self.limit(rule, now.at);
        match (&mut self.state, rule.algorithm()) {
            (State::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.take_over(rule, calendar, estate, now.at);
            }
            (State::Log(log), _) => log.take_over(rule, estate, limit, now.at),
            (State::Bucket(bucket), _) => bucket.take_over(rule, estate, now.at),
            (State::Fixed(fixed), _) => fixed.take_over(rule, estate, now.at),
            (State::InFlight(in_flight), _) => in_flight.take_over(estate),
            (State::Empty | State::Calendar(_), _) => {}
        }
    }

    /// What strangers took, or what is not known of a cell that was lost, is taken here too: for one
    /// period of this limit, because nobody knows when they did.
    fn take_over_told(&mut self, rule: &Rule, giver: &Cell, now: Micros) {
        let taken = giver.told.taken(now).min(rule.most());
        if taken > self.told.taken(now) {
            let until = now + rule.stretched(rule.period());
            self.told.close(Taken { cost: taken, until });
        }
    }

    /// What this cell leaves to another.
    fn estate(&self, rule: &Rule, now: Micros) -> Estate {
        let tail = self.tail(rule);
        let bound = |(id, open): (&PermitId, &Open)| {
            let free_at = (open.free_at - tail).max(now);
            (*id, Open { free_at, ..*open })
        };
        let open: Vec<(PermitId, Open)> = match self.open_set() {
            Some(set) => set.iter().map(bound).collect(),
            None => Vec::new(),
        };
        let done = match &self.state {
            State::Log(log) => {
                let hold = log.hold(rule);
                let slots = log.holds.done.iter();
                slots.map(|slot| (slot.free_at - hold, slot.cost)).collect()
            }
            State::Empty | State::InFlight(_) => Vec::new(),
            State::Bucket(_) | State::Fixed(_) | State::Calendar(_) => {
                let open = open.iter().map(|(_, open)| open.cost);
                let open = open.fold(0, u64::saturating_add);
                vec![(now, self.used(rule, now).saturating_sub(open))]
            }
        };
        Estate { open, done }
    }
}
