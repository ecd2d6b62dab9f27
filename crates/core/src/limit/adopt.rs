//! What the provider's answers teach a cell.
//!
//! Promises: lower only. Use of the key by strangers is believed only on proof: when the provider
//! has counted more than everything of ours that it can have seen. Then the bound of what is left
//! is exact among many processes (`mark`). A refusal although we had room, without strangers, means
//! that the provider's window is stricter than ours: the log climbs its ladder.
//!
//! Never: raises anything.

use crate::ask::Reading;
use crate::limit::cell::{Cell, State};
use crate::limit::{Algorithm, Rule};
use crate::time::{Micros, Now, Span};

impl Cell {
    /// Takes in what the provider said in the answer to a call that cost `cost`, granted at
    /// `granted`. Lower only. `refused`: the provider refused that very call for a limit.
    pub(crate) fn adopt(
        &mut self,
        rule: &Rule,
        reading: &Reading,
        cost: u64,
        granted: Micros,
        refused: bool,
        now: Now,
    ) {
        if let (State::Calendar(count), Some(date)) = (&mut self.state, reading.date) {
            count.confirm(now, date);
        }
        if let Some(limit) = reading.limit {
            self.told.tell_limit(
                rule.ours(limit),
                rule.limit(),
                rule.stretched(rule.period()),
                now.at,
            );
        }
        // The most of ours that the provider can have counted when it wrote the answer.
        let ours = reading.mark.used + self.granted.saturating_sub(reading.mark.granted);
        let limit = reading.limit.unwrap_or(rule.limit());
        let strangers = reading.remaining.is_some_and(|left| left + ours < limit);
        if let Some(left) = reading.remaining {
            // What we granted since, or had on its way, may not be in that number yet.
            let uncounted = self.granted.saturating_sub(reading.mark.settled + cost);
            let bound = left.saturating_sub(uncounted);
            let believed = self.left(rule, now.at);
            let until = now.at + self.forget_after(rule, believed, reading.reset_after, now.at);
            let strangers_took = if strangers {
                believed.saturating_sub(bound)
            } else {
                0
            };
            self.told.tell_taken(strangers_took, until);
        }
        if refused && !strangers && ours.saturating_mul(2) >= rule.limit() {
            self.climb(granted, now.at);
        }
    }

    /// The provider refused a call granted at `granted` and said nothing about this limit. If the
    /// limit is near its end, its window is not the kind we believed.
    pub(crate) fn refused_in_silence(&mut self, rule: &Rule, granted: Micros, now: Micros) {
        if self.used(rule, now).saturating_mul(2) >= rule.limit() {
            self.climb(granted, now);
        }
    }

    fn climb(&mut self, granted: Micros, now: Micros) {
        if let State::Log(log) = &mut self.state {
            log.climb(granted, now);
        }
    }

    /// How long strangers' use is believed without news: until the provider's reset, a bucket's
    /// refill, or one window.
    fn forget_after(&self, rule: &Rule, believed: u64, reset: Option<Span>, now: Micros) -> Span {
        let window = rule.stretched(rule.period());
        match (&self.state, rule.algorithm()) {
            (State::Bucket(_), _) => window.scale_up(believed.max(1), self.limit(rule, now).max(1)),
            (State::Calendar(count), Algorithm::Calendar(calendar)) => {
                reset.unwrap_or_else(|| count.reset_after(calendar, now))
            }
            (
                State::Empty
                | State::Log(_)
                | State::Fixed(_)
                | State::InFlight(_)
                | State::Calendar(_),
                _,
            ) => Span(reset.unwrap_or(window).0.min(window.0)),
        }
    }
}
