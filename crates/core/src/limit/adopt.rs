//! What the provider's answers teach a cell.
//!
//! Promises: lower only. Use of the key by strangers is believed only on proof: when the provider
//! has counted more than everything of ours that it can have seen. Then the bound of what is left
//! is exact among many processes (`mark`). A refusal although we had room, without strangers, means
//! that the provider's window is stricter than ours: the log climbs its ladder.
//!
//! Never: raises anything above what is configured. Never believes a reset beyond our own window,
//! whatever the provider says.

use crate::ask::Reading;
use crate::limit::cell::{Cell, State};
use crate::limit::told::{Taken, grown};
use crate::limit::{Algorithm, Rule};
use crate::time::{Micros, Now, Span};

impl Cell {
    /// Takes in what the provider said in the answer to a call that cost `cost`, granted at
    /// `granted`. Lower only. `refused`: the provider refused that very call for a limit. Returns
    /// `true` if more may go now than before.
    pub(crate) fn adopt(
        &mut self,
        rule: &Rule,
        reading: &Reading,
        cost: u64,
        granted: Micros,
        refused: bool,
        now: Now,
    ) -> bool {
        if let (State::Calendar(count), Some(date)) = (&mut self.state, reading.date) {
            count.confirm(now, date);
        }
        // A bucket's provider tells its depth or its rate; neither is lower than configured as
        // long as it is not below both.
        let whole = rule.limit().min(rule.most());
        let told = reading.limit.map(|limit| rule.ours(limit));
        let believed = self.limit(rule, now.at);
        let raised = told.is_some_and(|limit| {
            let window = rule.stretched(rule.period());
            self.told.tell_limit(limit, whole, window, now.at)
        });
        // A lower limit explains the refusals of all that was granted before it was known.
        if self.limit(rule, now.at) < believed
            && let State::Log(log) = &mut self.state
        {
            log.climbed = now.at;
        }
        // The most of ours that the provider can have counted when it wrote the answer.
        let since = grown(self.granted, reading.mark.granted);
        let ours = reading.mark.used.saturating_add(since);
        let limit = told.map_or(rule.most(), |limit| limit.min(rule.most()));
        let unseen = |left: u64| left.saturating_add(ours) < limit;
        let strangers = reading.remaining.is_some_and(unseen);
        let less = reading.remaining.is_some_and(|left| {
            let taken = if strangers {
                self.taken_by_strangers(rule, reading, left, cost, now.at)
            } else {
                0
            };
            let until = now.at + self.forget_after(rule, reading.reset_after, now.at);
            let taken = Taken { cost: taken, until };
            self.told
                .tell_taken(taken, reading.mark.granted, self.granted)
        });
        if refused && !strangers && ours.saturating_mul(2) >= rule.limit() {
            self.climb(rule, granted, now.at);
        }
        (raised || less) && self.freed(true).freed
    }

    /// The provider refused a call granted at `granted` and said nothing about this limit. If the
    /// limit is near its end, its window is not the kind we believed.
    pub(crate) fn refused_in_silence(&mut self, rule: &Rule, granted: Micros, now: Micros) {
        if self.used(rule, now).saturating_mul(2) >= rule.limit() {
            self.climb(rule, granted, now);
        }
    }

    fn climb(&mut self, rule: &Rule, granted: Micros, now: Micros) {
        if let State::Log(log) = &mut self.state {
            log.climb(rule, granted, now);
        }
    }

    /// What we believe is left and, by what the provider said, is not.
    fn taken_by_strangers(
        &self,
        rule: &Rule,
        reading: &Reading,
        left: u64,
        cost: u64,
        now: Micros,
    ) -> u64 {
        // What we granted since, or had on its way, may not be in that number yet. Where a settle
        // is no proof of being counted, nothing of ours may be.
        let uncounted = if rule.lag() > Span::ZERO || rule.holds_until_send() {
            let since = grown(self.granted, reading.mark.granted);
            reading.mark.used.saturating_add(since).saturating_sub(cost)
        } else {
            grown(self.granted, reading.mark.settled.wrapping_add(cost))
        };
        let bound = left.saturating_sub(uncounted);
        self.left(rule, now).saturating_sub(bound)
    }

    /// How long strangers' use is believed without news: until the provider's reset, a bucket's
    /// refill, or one window.
    fn forget_after(&self, rule: &Rule, reset: Option<Span>, now: Micros) -> Span {
        let window = rule.stretched(rule.period());
        match (&self.state, rule.algorithm()) {
            (State::Bucket(_), _) => {
                let left = self.left(rule, now).max(1);
                window.scale_up(left, self.limit(rule, now).max(1))
            }
            (State::Calendar(count), Algorithm::Calendar(calendar)) => {
                let ours = count.reset_after(calendar, now);
                Span(reset.unwrap_or(ours).0.min(ours.0))
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
