//! How soon responses alone could free what a cost needs: a bound from below.
//!
//! Promises: earlier only if a permit is returned unsent, or turns out to have cost less. A wait that
//! ends after the caller's patience by this bound holds nothing back for others. Zero where nothing
//! is known.
//!
//! Never: decides about a grant.

use crate::limit::bucket::Bucket;
use crate::limit::cell::{Cell, CellState};
use crate::limit::fixed::Fixed;
use crate::limit::node_share::LentShares;
use crate::limit::sliding::Log;
use crate::limit::{Rule, SettleAt};
use crate::time::{Micros, Span, TimeBounds};

impl Cell {
    /// The earliest time from now at which this cost may fit, if every pending call has arrived as
    /// early as it can have and has cost what was reserved for it.
    pub(crate) fn soonest(&self, rule: &Rule, cost: u64, leave: u64, now: TimeBounds) -> Span {
        let rule = &*self.effective(rule);
        let is_certain = rule.settles_at() == SettleAt::Head
            && !rule.is_learned()
            && self.lent == LentShares::default();
        if !is_certain {
            return Span::ZERO;
        }
        let room = self.max_cost(rule, now.lo).saturating_sub(leave);
        match &self.state {
            CellState::Log(log) => log.soonest(rule, cost, room, now.lo),
            CellState::Bucket(bucket) => bucket.soonest(rule, cost, room, now.lo),
            CellState::Fixed(fixed) => fixed.soonest(cost, room, now.lo),
            CellState::Empty | CellState::InFlight(_) | CellState::Calendar(_) => Span::ZERO,
        }
    }
}

impl Log {
    fn soonest(&self, rule: &Rule, cost: u64, room: u64, now: Micros) -> Span {
        let mut over = self.holds.held().saturating_add(cost).saturating_sub(room);
        for (free_at, freed) in self.holds.release_times(self.hold(rule)) {
            if over <= freed {
                return match over {
                    0 => Span::ZERO,
                    _ => free_at.since(now),
                };
            }
            over -= freed;
        }
        Span::ZERO
    }
}

impl Bucket {
    fn soonest(&self, rule: &Rule, cost: u64, room: u64, now: Micros) -> Span {
        let token = u128::from(rule.stretched(rule.period()).0.max(1));
        let rate = u128::from(self.rate.max(1));
        let pending = self.holds.pending.iter().map(|(_, call)| call.granted);
        let refilled = pending
            .min()
            .map_or(0, |first| u128::from(now.since(first).0))
            * rate;
        let wanted = (u128::from(cost) + u128::from(self.holds.held())) * token;
        let wanted = wanted.saturating_add(self.debt_at(now));
        let missing = wanted
            .saturating_sub(u128::from(room) * token)
            .saturating_sub(refilled);
        Span(u64::try_from(missing.div_ceil(rate)).unwrap_or(u64::MAX))
    }
}

impl Fixed {
    fn soonest(&self, cost: u64, room: u64, now: Micros) -> Span {
        match self.opened {
            Some(_) if self.counter.used.saturating_add(cost) > room => {
                self.earliest_end.since(now)
            }
            Some(_) | None => Span::ZERO,
        }
    }
}
