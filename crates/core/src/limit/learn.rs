//! What a cell learns from the provider's responses.
//!
//! Promises: lower only. Use of the key outside Tollgate counts only on proof: when the provider
//! has counted more than all of our calls that it can have seen. Then the bound on the remaining
//! count is exact across processes (`mark`). A 429 although we had room, without outside use, means
//! that the provider's window is stricter than ours: the log tightens.
//!
//! Never: raises anything above the configured limit. Never applies a reset beyond our own window,
//! whatever the provider says.

use crate::ask::LimitReading;
use crate::limit::cell::{Cell, CellState};
use crate::limit::reported::{OutsideUse, growth};
use crate::limit::{Algorithm, Rule};
use crate::time::{Micros, Span, TimeBounds};

impl Cell {
    /// Applies the response to a call of cost `cost`, granted at `granted`. Lower only. `limited`:
    /// the provider limited that very call. Returns `true` if more may go now than before.
    pub(crate) fn apply_reading(
        &mut self,
        rule: &Rule,
        reading: &LimitReading,
        cost: u64,
        granted: Micros,
        limited: bool,
        now: TimeBounds,
    ) -> bool {
        let learned_more = self.learn(rule, Some(reading), now);
        let rule = &*self.effective(rule);
        if let (CellState::Calendar(count), Some(date)) = (&mut self.state, reading.date) {
            count.confirm(now.freeing(), date);
        }
        // The provider of a bucket reports its depth or its rate; neither is lower than configured
        // unless it is below both.
        let whole = rule.limit().min(rule.max_cost());
        let reported = reading.limit.map(|limit| rule.less_headroom(limit));
        let before = self.limit(rule, now.lo);
        let raised = reported
            .filter(|_| !rule.is_learned())
            .is_some_and(|limit| {
                let window = rule.stretched(rule.period());
                self.reported.report_limit(limit, whole, window, now)
            });
        // A lower limit explains the 429s of all calls granted before it was known.
        if self.limit(rule, now.lo) < before
            && let CellState::Log(log) = &mut self.state
        {
            log.tightened_at = now.hi;
        }
        // The most of our calls that the provider can have counted when it wrote the response.
        let since = growth(self.granted, reading.mark.granted);
        let ours = reading.mark.used.saturating_add(since);
        let limit = reported.map_or(rule.max_cost(), |limit| limit.min(rule.max_cost()));
        let unseen = |remaining: u64| remaining.saturating_add(ours) < limit;
        let outside = reading.remaining.is_some_and(unseen);
        let less = reading.remaining.is_some_and(|remaining| {
            let outside_cost = if outside {
                self.outside_use(rule, reading, remaining, cost, now.lo)
            } else {
                0
            };
            let until = now.hi + self.outside_use_ttl(rule, reading.reset_after, now.lo);
            let outside_cost = OutsideUse {
                cost: outside_cost,
                until,
            };
            self.reported
                .report_outside_use(outside_cost, reading.mark.granted, self.granted)
        });
        if limited && !outside && self.is_half_used(rule, ours, now.lo) {
            self.tighten(rule, granted, now.hi);
        }
        ((raised || less) && self.freed(true).freed) || learned_more
    }

    /// The provider limited a call granted at `granted` and reported nothing about this limit. If
    /// at least half of the limit is used, the provider's window is stricter than configured.
    pub(crate) fn limited_without_reading(
        &mut self,
        rule: &Rule,
        granted: Micros,
        now: TimeBounds,
    ) {
        let rule = &*self.effective(rule);
        if self.is_half_used(rule, self.used(rule, now.lo), now.lo) {
            self.tighten(rule, granted, now.hi);
        }
    }

    /// With less in use, another limit is the more likely reason for a 429.
    fn is_half_used(&self, rule: &Rule, ours: u64, now: Micros) -> bool {
        let late = self.presumed_without_slot(rule, now);
        ours.saturating_add(late).saturating_mul(2) >= rule.limit()
    }

    /// The first rung of the ladder: calls that arrive later than presumed explain the 429.
    fn tighten(&mut self, rule: &Rule, granted: Micros, now: Micros) {
        if self.presumed.explains(granted, now) {
            return self.stop_presuming(now);
        }
        if let CellState::Log(log) = &mut self.state {
            log.tighten(rule, granted, now);
        }
    }

    /// What our count has remaining beyond the provider's.
    fn outside_use(
        &self,
        rule: &Rule,
        reading: &LimitReading,
        remaining: u64,
        cost: u64,
        now: Micros,
    ) -> u64 {
        // Calls granted since, or pending then, may not be in the provider's number yet. Where a
        // settle does not prove that a call was counted, none of our calls may be.
        let uncounted = if rule.lag() > Span::ZERO || rule.holds_until_send() {
            let since = growth(self.granted, reading.mark.granted);
            reading.mark.used.saturating_add(since).saturating_sub(cost)
        } else {
            growth(self.granted, reading.mark.settled.wrapping_add(cost))
        };
        let bound = remaining.saturating_sub(uncounted);
        self.remaining(rule, now).saturating_sub(bound)
    }

    /// How long outside use counts without a newer response: until the provider's reset, a bucket's
    /// refill, or one window.
    fn outside_use_ttl(&self, rule: &Rule, reset: Option<Span>, now: Micros) -> Span {
        let window = rule.stretched(rule.period());
        match (&self.state, rule.algorithm()) {
            (CellState::Bucket(_), _) => {
                let remaining = self.remaining(rule, now).max(1);
                window.scale_up(remaining, self.limit(rule, now).max(1))
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
