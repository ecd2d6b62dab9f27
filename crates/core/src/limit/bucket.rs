//! Rule B, the response-clocked bucket: a token is reserved at the grant and debited at the
//! response.
//!
//! Promises: the provider's bucket (same rate, same depth) never runs dry, for any latency and
//! jitter. Proof: for the last-granted call j of any interval, every other call was either pending
//! when j was granted (reserved) or debited inside the interval; the local level bounds their
//! number by depth + rate × length. Where the time is known only within bounds, debits are stamped
//! with the upper one and the level is read at the lower one, so the same count holds: each debit
//! of the interval is stamped inside it, and no refill is used before it is there. No fraction of a token is lost: the debt is stored in
//! token-microseconds, of which N disappear each microsecond.
//!
//! A change of depth keeps the level: a provider's bucket that grows is not filled at once, so
//! neither is ours.
//!
//! Never: stores a level. The debt is a fact, and the refill since then is computed.

use crate::ask::WakeOn;
use crate::limit::AMOUNT_MAX;
use crate::limit::holds::{Holds, PendingCall, sum_of};
use crate::limit::inherit::CarriedUsage;
use crate::limit::room::{CellRequest, CellWait, Grant, RETRY_INTERVAL, Settled};
use crate::limit::rule::Rule;
use crate::time::{Micros, Span};

/// One bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Reserved: pending calls, and finished ones that the provider counts late.
    pub(crate) holds: Holds,
    /// Tokens used, times the period in microseconds, as it was at `at`.
    pub(crate) debt: u128,
    /// The time at which `debt` was exact.
    pub(crate) at: Micros,
    /// Tokens per period at which `debt` shrinks since `at`.
    pub(crate) rate: u64,
    /// The depth that `debt` is counted from; 0 until the first ask.
    pub(crate) depth: u64,
}

impl Bucket {
    /// A bucket with nothing in it at `at`.
    pub(crate) fn drained(rule: &Rule, at: Micros) -> Bucket {
        Bucket {
            holds: Holds::default(),
            debt: u128::from(rule.max_cost()) * u128::from(token(rule)),
            at,
            rate: rule.limit(),
            depth: rule.max_cost(),
        }
    }

    /// Debits calls that are surely counted by now, including calls without a response, and applies
    /// a lowered rate or depth from now on. Only an ask may raise them: a settle carries the rule
    /// of its grant.
    pub(crate) fn refresh(&mut self, rule: &Rule, limit: u64, depth: u64, now: Micros) -> u64 {
        let lapsed = self.holds.pending.drain_lapsed(now);
        for call in &lapsed {
            self.debit(rule, call.cost, call.free_at);
        }
        while let Some(slot) = self.holds.pop_free(now) {
            self.debit(rule, slot.cost, slot.free_at);
        }
        self.set_rate(rule, limit.min(self.rate), depth.min(self.depth), now);
        sum_of(&lapsed)
    }

    /// The bucket has this rate and this depth from now on.
    pub(crate) fn set_rate(&mut self, rule: &Rule, limit: u64, depth: u64, now: Micros) {
        if (self.rate, self.depth) == (limit, depth) {
            return;
        }
        self.debt = self.debt_at(now);
        self.at = now;
        self.rate = limit;
        // The first depth is that of a full bucket.
        let before = if self.depth == 0 { depth } else { self.depth };
        let token = u128::from(token(rule));
        let deeper = u128::from(depth.saturating_sub(before)) * token;
        let shallower = u128::from(before.saturating_sub(depth)) * token;
        self.debt = self.debt.saturating_add(deeper).saturating_sub(shallower);
        self.depth = depth;
    }

    /// Another rule applies from now on, because the provider has stated another number or window.
    /// What was used stays used, up to the whole bucket; a bucket that has grown is not full. The rate of a limit of
    /// which no number is stated yet means nothing, so nothing was refilled by it: its last call counts as if
    /// the stated rule had applied since.
    pub(super) fn restate(&mut self, before: &Rule, after: &Rule, now: Micros) {
        let (debt, at) = match before.limit() == AMOUNT_MAX {
            true => (self.debt, self.at),
            false => (self.debt_at(now), now),
        };
        let used = debt.div_ceil(u128::from(token(before)));
        let known = if self.depth == 0 {
            before.max_cost()
        } else {
            self.depth
        };
        let grown = after.max_cost().saturating_sub(known);
        let used = used.saturating_add(u128::from(grown));
        let depth = u128::from(after.max_cost());
        self.debt = used.min(depth) * u128::from(token(after));
        (self.at, self.rate, self.depth) = (at, after.limit(), after.max_cost());
    }

    pub(crate) fn room(&self, rule: &Rule, want: CellRequest, now: Micros) -> Result<(), CellWait> {
        let period = u128::from(token(rule));
        let wanted = (u128::from(want.cost) + u128::from(self.holds.held())) * period;
        let depth = u128::from(want.room) * period;
        let debt = self.debt_at(now);
        let total = wanted.saturating_add(debt);
        if total <= depth {
            return Ok(());
        }
        if wanted > depth
            && let Some(after) = self.wait_for_debits(rule, want, now)
        {
            let on = WakeOn::Time;
            return Err(CellWait { after, on });
        }
        if wanted > depth {
            // Even a full bucket does not suffice beside the pending calls.
            let pending = self.holds.pending.first_lapse();
            let late = self.holds.done.front().map(|slot| slot.free_at);
            let first = pending.into_iter().chain(late).min();
            return Err(CellWait {
                after: first.map_or(RETRY_INTERVAL, |at| at.since(now)),
                on: WakeOn::Event,
            });
        }
        let missing = (total - depth).div_ceil(u128::from(self.rate.max(1)));
        Err(CellWait {
            after: Span(u64::try_from(missing).unwrap_or(u64::MAX)),
            on: WakeOn::Time,
        })
    }

    /// How long even a full bucket does not suffice, and then until it has filled far enough, where
    /// every call is debited at its last instant and not before. Debits after that change nothing:
    /// what they add to the debt is no longer reserved. `None`: the end of a call is to come, and may
    /// be sooner, or no debit suffices.
    fn wait_for_debits(&self, rule: &Rule, want: CellRequest, now: Micros) -> Option<Span> {
        if self.holds.pending.awaits_end() {
            return None;
        }
        let token = u128::from(token(rule));
        let rate = u128::from(self.rate.max(1));
        let depth = u128::from(want.room) * token;
        let (mut held, mut debt, mut at) = (self.holds.held(), self.debt_at(now), now);
        for (free_at, cost) in self.holds.lapse_times() {
            debt = debt.saturating_sub(u128::from(free_at.since(at).0) * rate);
            debt = debt.saturating_add(u128::from(cost) * token);
            at = at.max(free_at);
            held = held.saturating_sub(cost);
            let wanted = (u128::from(want.cost) + u128::from(held)) * token;
            if wanted <= depth {
                let missing = wanted.saturating_add(debt).saturating_sub(depth);
                let fills = u64::try_from(missing.div_ceil(rate)).unwrap_or(u64::MAX);
                return Some(Span(at.since(now).0.saturating_add(fills)));
            }
        }
        None
    }

    pub(crate) fn take(&mut self, rule: &Rule, grant: Grant) {
        if rule.holds_until_send() {
            self.debit(rule, grant.cost, grant.latest);
        } else {
            let call = PendingCall::new(&grant, grant.arrives_by + rule.lag());
            self.holds.pending.add(grant.id, call);
        }
    }

    /// The provider had counted the call by then; with a lag, it stays reserved until it surely is.
    pub(crate) fn settle(&mut self, rule: &Rule, settled: Settled) -> bool {
        let Settled { id, cost, at, .. } = settled;
        if rule.lag() > Span::ZERO {
            return self.holds.settle(id, cost, at + rule.lag(), Span(1));
        }
        let Some(call) = self.holds.pending.remove(id) else {
            return false;
        };
        self.debit(rule, cost, at.min(call.free_at));
        true
    }

    /// Usage of another cell is debited at the time it was counted. The debt is at most the depth.
    pub(super) fn take_over(&mut self, rule: &Rule, usage: &CarriedUsage, now: Micros) {
        if self.depth == 0 {
            (self.rate, self.depth) = (rule.limit(), rule.max_cost());
        }
        for &(at, cost) in &usage.done {
            self.debit(rule, cost, at);
        }
        self.advance(now);
        self.debt = self
            .debt
            .min(u128::from(self.depth) * u128::from(token(rule)));
        for &(id, call) in &usage.pending {
            let free_at = call.free_at + rule.lag();
            self.holds.pending.add(id, PendingCall { free_at, ..call });
        }
    }

    /// Calls that are missing from it had been debited by `at`.
    pub(super) fn count_lost(&mut self, rule: &Rule, cost: u64, at: Micros) {
        if self.depth == 0 {
            (self.rate, self.depth) = (rule.limit(), rule.max_cost());
        }
        self.debit(rule, cost, at);
    }

    /// Whole tokens remaining beside the pending calls.
    pub(crate) fn remaining(&self, rule: &Rule, depth: u64, now: Micros) -> u64 {
        let period = u128::from(token(rule));
        let held = u128::from(self.holds.held()) * period;
        let used = held.saturating_add(self.debt_at(now));
        let remaining = (u128::from(depth) * period).saturating_sub(used) / period;
        u64::try_from(remaining).unwrap_or(u64::MAX)
    }

    /// When the bucket is full again if nothing else happens.
    pub(crate) fn full_after(&self, now: Micros) -> Span {
        let micros = self.debt_at(now).div_ceil(u128::from(self.rate.max(1)));
        Span(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Computes the debt at `at`, so that earlier times no longer matter.
    pub(crate) fn advance(&mut self, at: Micros) {
        self.debt = self.debt_from(at);
        self.at = self.at.max(at);
    }

    /// The debt at `now`, in token-microseconds. A debit is stamped with the latest time at which
    /// it can have happened, so `now` may lie before it: then the refill until that time is not
    /// here yet, and the debt is higher by it.
    pub(crate) fn debt_at(&self, now: Micros) -> u128 {
        let ahead = u128::from(self.at.since(now).0) * u128::from(self.rate);
        self.debt_from(now).saturating_add(ahead)
    }

    /// The debt from which the refill since `at` counts; that of `self.at` if `at` lies before it.
    fn debt_from(&self, at: Micros) -> u128 {
        let shrunk = u128::from(at.since(self.at).0) * u128::from(self.rate);
        self.debt.saturating_sub(shrunk)
    }

    /// A debit before the last one is added without refill: exact unless the bucket was full in
    /// between, and then on the safe side.
    fn debit(&mut self, rule: &Rule, cost: u64, at: Micros) {
        let used = u128::from(cost) * u128::from(token(rule));
        self.debt = self.debt_from(at).saturating_add(used);
        self.at = self.at.max(at);
    }
}

/// One token in the unit of the debt. Longer by the drift, so tokens return later than the
/// provider's.
fn token(rule: &Rule) -> u64 {
    rule.stretched(rule.period()).0.max(1)
}
