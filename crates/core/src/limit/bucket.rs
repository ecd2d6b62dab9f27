//! Rule B, the response-clocked bucket: a token is reserved at the grant and debited at the answer.
//!
//! Promises: the provider's bucket (same rate, same depth) never runs dry, for any latency and
//! jitter. Proof: for the last-granted call j of any interval, every other call was either on its
//! way when j was granted (reserved) or debited inside the interval; the local level bounds their
//! number by depth + rate × length. No fraction of a token is lost: the debt is kept in
//! token-microseconds, of which N disappear each microsecond.
//!
//! Never: stores a level. The debt is a fact; a changed depth is another comparison.

use crate::ask::{On, PermitId};
use crate::limit::holds::{Open, OpenSet};
use crate::limit::room::{Grant, Wait, Want};
use crate::limit::rule::Rule;
use crate::time::{Micros, Span};

/// One bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Calls on their way; each reserves its cost.
    pub(crate) open: OpenSet,
    /// Tokens used, times the period in microseconds, as it was at `at`.
    pub(crate) debt: u128,
    /// When `debt` was true.
    pub(crate) at: Micros,
    /// Tokens per period at which `debt` shrinks since `at`.
    pub(crate) rate: u64,
}

impl Bucket {
    /// A bucket with nothing in it at `at`.
    pub(crate) fn drained(rule: &Rule, at: Micros) -> Bucket {
        Bucket {
            open: OpenSet::default(),
            debt: u128::from(rule.most()) * u128::from(token(rule)),
            at,
            rate: rule.limit(),
        }
    }

    /// Debits calls of which nothing was heard, and follows a changed rate from now on.
    pub(crate) fn refresh(&mut self, rule: &Rule, limit: u64, now: Micros) -> u64 {
        let mut lapsed = 0;
        for open in self.open.lapsed(now) {
            lapsed += open.cost;
            self.debit(rule, open.cost, open.free_at);
        }
        if self.rate != limit {
            self.debt = self.debt_at(now);
            self.at = self.at.max(now);
            self.rate = limit;
        }
        lapsed
    }

    pub(crate) fn room(&self, rule: &Rule, want: Want, now: Micros) -> Result<(), Wait> {
        let period = u128::from(token(rule));
        let wanted = u128::from(want.cost + self.open.cost()) * period;
        let depth = u128::from(want.room) * period;
        let debt = self.debt_at(now);
        if wanted + debt <= depth {
            return Ok(());
        }
        if wanted > depth {
            // Even a full bucket has not enough beside the calls on their way.
            let lapse = self
                .open
                .first_lapse()
                .map_or(Span::ZERO, |at| at.since(now));
            return Err(Wait {
                after: lapse,
                on: On::Event,
            });
        }
        let missing = (wanted + debt - depth).div_ceil(u128::from(self.rate.max(1)));
        Err(Wait {
            after: Span(u64::try_from(missing).unwrap_or(u64::MAX)),
            on: On::Time,
        })
    }

    pub(crate) fn take(&mut self, rule: &Rule, grant: Grant) {
        if rule.holds_until_send() {
            self.debit(rule, grant.cost, grant.at);
        } else {
            let free_at = grant.arrives_by + rule.lag();
            self.open.add(
                grant.id,
                Open {
                    cost: grant.cost,
                    granted: grant.at,
                    free_at,
                },
            );
        }
    }

    /// The call had been counted by `at`; with a lag, it stays reserved until it surely is.
    pub(crate) fn settle(&mut self, rule: &Rule, id: PermitId, cost: u64, at: Micros) -> bool {
        let Some(open) = self.open.remove(id) else {
            return false;
        };
        if rule.lag() == Span::ZERO {
            self.debit(rule, cost, at.min(open.free_at));
        } else {
            let free_at = (at + rule.lag()).min(open.free_at);
            self.open.add(
                id,
                Open {
                    cost,
                    free_at,
                    ..open
                },
            );
        }
        true
    }

    /// Whole tokens left beside the calls on their way.
    pub(crate) fn left(&self, rule: &Rule, depth: u64, now: Micros) -> u64 {
        let period = u128::from(token(rule));
        let used = u128::from(self.open.cost()) * period + self.debt_at(now);
        let left = (u128::from(depth) * period).saturating_sub(used) / period;
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// When the bucket is full again if nothing else happens.
    pub(crate) fn full_after(&self, now: Micros) -> Span {
        let micros = self.debt_at(now).div_ceil(u128::from(self.rate.max(1)));
        Span(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Writes down what is owed at `at`, so that nothing before it matters any more.
    pub(crate) fn carry(&mut self, at: Micros) {
        self.debt = self.debt_at(at);
        self.at = self.at.max(at);
    }

    fn debt_at(&self, now: Micros) -> u128 {
        let shrunk = u128::from(now.since(self.at).0) * u128::from(self.rate);
        self.debt.saturating_sub(shrunk)
    }

    /// A debit in the past of the last one is added as it stands: exact unless the bucket was full
    /// in between, and then to the safe side.
    fn debit(&mut self, rule: &Rule, cost: u64, at: Micros) {
        self.debt = self.debt_at(at) + u128::from(cost) * u128::from(token(rule));
        self.at = self.at.max(at);
    }
}

/// One token in the unit of the debt. Longer by the drift, so that tokens come back later than the
/// provider's.
fn token(rule: &Rule) -> u64 {
    rule.stretched(rule.period()).0.max(1)
}
