//! A cell whose limit is learned from responses: its rule is what the provider last stated.
//!
//! Promises: before the first response one call goes at a time. Every decision uses the learned
//! number and window; a cost above the number is capped, so that no call waits for ever. What a
//! bucket has used stays used when its limit changes: a lower one has less remaining, a higher one
//! is not full.
//!
//! Never: keeps a limit that nobody has reported for a day.

use std::borrow::Cow;

use crate::ask::{CostUnit, LimitReading, WakeOn};
use crate::learned::{LearnedChange, LearnedLimit, LimitReport};
use crate::limit::bucket::Bucket;
use crate::limit::cell::{Cell, CellState};
use crate::limit::reported::Reported;
use crate::limit::room::{CellWait, RETRY_INTERVAL};
use crate::limit::{AMOUNT_MAX, Algorithm, Rule};
use crate::time::{Micros, TimeBounds};

impl Cell {
    /// The rule that applies: the configured one, or what the provider has stated.
    #[inline]
    pub(crate) fn effective<'r>(&self, rule: &'r Rule) -> Cow<'r, Rule> {
        match self.learned {
            Some(known) if rule.is_learned() => Cow::Owned(rule.stated(known.limit, known.period)),
            Some(_) | None => Cow::Borrowed(rule),
        }
    }

    /// What an ask of this cost takes here: never more than a learned limit ever grants.
    pub(crate) fn capped_cost(&self, rule: &Rule, cost: u64) -> u64 {
        match rule.is_learned() {
            true => cost.min(self.effective(rule).max_cost()),
            false => cost,
        }
    }

    /// What a call that has used so much takes here. In a bucket at most what a period refills, or its
    /// depth if that is more: nothing else bounds a debt, and one usage that is a lie must not close
    /// it for ages. Exact where no call at the provider can use more than that: one that wants more is
    /// rejected there. A provider that lets a call overdraw its bucket further limits the calls that
    /// follow (429), which closes it here too. Windows forget a usage with their end, and calls cost
    /// one each: they need no bound.
    pub(super) fn believed_cost(&self, rule: &Rule, cost: u64) -> u64 {
        let is_bucket = matches!(rule.algorithm(), Algorithm::Bucket { .. });
        if !is_bucket || rule.cost_unit() == CostUnit::Calls {
            return self.capped_cost(rule, cost);
        }
        let rule = self.effective(rule);
        cost.min(rule.max_cost().max(rule.limit()))
    }

    /// Forgets a limit that nobody has reported for a day, with the usage that it counted.
    #[inline]
    pub(super) fn forget_learned(&mut self, now: Micros) {
        if !self.learned.is_some_and(|known| known.is_forgotten(now)) {
            return;
        }
        self.unlearn();
    }

    /// The limit is not known any more: the next call goes alone.
    pub(super) fn unlearn(&mut self) {
        self.learned = None;
        self.reported = Reported::default();
        if let CellState::Bucket(bucket) = &mut self.state {
            let holds = std::mem::take(&mut bucket.holds);
            *bucket = Bucket {
                holds,
                ..Bucket::default()
            };
        }
    }

    /// Before the first response one call goes at a time.
    pub(super) fn check_alone(&self, rule: &Rule, now: Micros) -> Result<(), CellWait> {
        if !rule.is_learned() || self.learned.is_some() {
            return Ok(());
        }
        let presumed = self.presumed.calls().values();
        let presumed = presumed.map(|call| call.call.free_at).min();
        let pending = self.pending_calls().and_then(|calls| calls.first_lapse());
        match pending.into_iter().chain(presumed).min() {
            None => Ok(()),
            Some(lapse) => Err(CellWait {
                after: lapse.since(now).max(RETRY_INTERVAL),
                on: WakeOn::Event,
            }),
        }
    }

    /// A response has come that says this about the limit; `None`: nothing. Returns `true` if
    /// more may go now than before.
    pub(crate) fn learn(
        &mut self,
        rule: &Rule,
        reading: Option<&LimitReading>,
        now: TimeBounds,
    ) -> bool {
        if !rule.is_learned() {
            return false;
        }
        let report = reading.map_or(LimitReport::default(), |reading| LimitReport {
            limit: reading.limit.map(|limit| limit.clamp(1, AMOUNT_MAX)),
            reset_after: reading.reset_after,
        });
        let before = self.effective(rule).into_owned();
        let change = match &mut self.learned {
            Some(known) => known.on_report(report, rule.period(), now),
            None => {
                self.learned = Some(LearnedLimit::first(report, rule.period(), now.hi));
                LearnedChange::More
            }
        };
        let after = self.effective(rule).into_owned();
        if let CellState::Bucket(bucket) = &mut self.state
            && before != after
        {
            bucket.restate(&before, &after, now.lo);
        }
        self.idle_from = self.idle_from.max(now.hi + after.longest_hold());
        change == LearnedChange::More && self.freed(true).freed
    }
}
