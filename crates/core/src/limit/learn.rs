//! What the provider's answers teach a cell.
//!
//! Promises: lower only. Use of the key by strangers is believed only on proof: when the provider
//! has counted more than everything of ours that it can have seen. Then the bound of what is left
//! is exact among many processes (`mark`). A refusal although we had room, without strangers, means
//! that the provider's window is stricter than ours: the log climbs its ladder.
//!
//! Never: raises anything above what is configured. Never believes a reset beyond our own window,
//! whatever the provider says.

use crate::ask::LimitReading;
use crate::limit::cell::{Cell, CellState};
use crate::limit::reported::{OutsideUse, growth};
use crate::limit::{Algorithm, Rule};
use crate::time::{Micros, Now, Span};

impl Cell {
    /// Takes in what the provider said in the answer to a call that cost `cost`, granted at
    /// `granted`. Lower only. `refused`: the provider refused that very call for a limit. Returns
    /// `true` if more may go now than before.
    pub(crate) fn apply_reading(
        &mut self,
        rule: &Rule,
        reading: &LimitReading,
        cost: u64,
        granted: Micros,
        refused: bool,
        now: Now,
    ) -> bool {
        if let (CellState::Calendar(count), Some(date)) = (&mut self.state, reading.date) {
            count.confirm(now, date);
        }
        // A bucket's provider tells its depth or its rate; neither is lower than configured as
        // long as it is not below both.
        let whole = rule.limit().min(rule.max_cost());
        let told = reading.limit.map(|limit| rule.less_headroom(limit));
        let believed = self.limit(rule, now.at);
        let raised = told.is_some_and(|limit| {
            let window = rule.stretched(rule.period());
            self.reported.report_limit(limit, whole, window, now.at)
        });
        // A lower limit explains the refusals of all that was granted before it was known.
        if self.limit(rule, now.at) < believed
            && let CellState::Log(log) = &mut self.state
        {
            log.tightened_at = now.at;
        }
        // The most of ours that the provider can have counted when it wrote the answer.
        let since = growth(self.granted, reading.mark.granted);
        let ours = reading.mark.used.saturating_add(since);
        let limit = told.map_or(rule.max_cost(), |limit| limit.min(rule.max_cost()));
        let unseen = |left: u64| left.saturating_add(ours) < limit;
        let strangers = reading.remaining.is_some_and(unseen);
        let less = reading.remaining.is_some_and(|left| {
            let taken = if strangers {
                self.outside_use(rule, reading, left, cost, now.at)
            } else {
                0
            };
            let until = now.at + self.outside_use_ttl(rule, reading.reset_after, now.at);
            let taken = OutsideUse { cost: taken, until };
            self.reported
                .report_outside_use(taken, reading.mark.granted, self.granted)
        });
        if refused && !strangers && ours.saturating_mul(2) >= rule.limit() {
            self.tighten(rule, granted, now.at);
        }
        (raised || less) && self.freed(true).freed
    }

    /// The provider refused a call granted at `granted` and said nothing about this limit. If the
    /// limit is near its end, its window is not the kind we believed.
    pub(crate) fn limited_without_reading(&mut self, rule: &Rule, granted: Micros, now: Micros) {
        if self.used(rule, now).saturating_mul(2) >= rule.limit() {
            self.tighten(rule, granted, now);
        }
    }

    fn tighten(&mut self, rule: &Rule, granted: Micros, now: Micros) {
        if let CellState::Log(log) = &mut self.state {
            log.tighten(rule, granted, now);
        }
    }

    /// What we believe is left and, by what the provider said, is not.
    fn outside_use(
        &self,
        rule: &Rule,
        reading: &LimitReading,
        left: u64,
        cost: u64,
        now: Micros,
    ) -> u64 {
        // What we granted since, or had on its way, may not be in that number yet. Where a settle
        // is no proof of being counted, nothing of ours may be.
        let uncounted = if rule.lag() > Span::ZERO || rule.holds_until_send() {
            let since = growth(self.granted, reading.mark.granted);
            reading.mark.used.saturating_add(since).saturating_sub(cost)
        } else {
            growth(self.granted, reading.mark.settled.wrapping_add(cost))
        };
        let bound = left.saturating_sub(uncounted);
        self.remaining(rule, now).saturating_sub(bound)
    }

    /// How long strangers' use is believed without news: until the provider's reset, a bucket's
    /// refill, or one window.
    fn outside_use_ttl(&self, rule: &Rule, reset: Option<Span>, now: Micros) -> Span {
        let window = rule.stretched(rule.period());
        match (&self.state, rule.algorithm()) {
            (CellState::Bucket(_), _) => {
                let left = self.remaining(rule, now).max(1);
                window.scale_up(left, self.limit(rule, now).max(1))
            }
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => {
                let ours = count.reset_after(calendar, now);
                Span(reset.unwrap_or(ours).0.min(ours.0))
            }
            (
                CellState::Empty
                | CellState::Log(_)
                | CellState::Fixed(_)
                | CellState::InFlight(_)
                | CellState::Calendar(_),
                _,
            ) => Span(reset.unwrap_or(window).0.min(window.0)),
        }
    }
}
