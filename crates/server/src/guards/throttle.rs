//! Limits that come with the question: `CL.THROTTLE key max_burst count period`.
//!
//! Promises: one token bucket per key, exact, as of `tollgate_guard`. A key that is asked about with
//! other limits keeps its tokens. Keys and combinations of limits are bounded, and apart from those
//! of configured guards, so that clients cannot crowd those out.
//!
//! Never: holds a key's name, only its fingerprint.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_config::config::Limiting;
use tollgate_core::time::Micros;
use tollgate_guard::{Ask, GuardPlan, GuardTable, Keys, Limit, Outcome, Remaining, Tick};
use tollgate_ledger::Ledger;

use super::{SWEEP_EVERY, SWEEP_SLOTS, new_table};

/// Buckets of keys that clients name, with limits that clients name.
#[derive(Debug)]
pub struct Throttle {
    /// Made for the first question.
    table: OnceLock<ThrottleTable>,
    decisions: AtomicU64,
    /// Its clock is the throttle's clock.
    ledger: Ledger,
}

#[derive(Debug)]
struct ThrottleTable {
    guards: GuardTable,
    keys: Keys,
}

/// Limits of one question, compiled. Make it once, use it often.
#[derive(Clone, Debug)]
pub struct ThrottleLimit {
    plan: GuardPlan,
    burst: u32,
}

/// What a question got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// No: nothing was taken.
    pub is_limited: bool,
    /// The capacity of the bucket.
    pub limit: u32,
    /// Whole tokens in it now.
    pub remaining: u64,
    /// When the same question would be granted; `None` if it was, or never will be.
    pub retry_in: Option<Duration>,
    /// When the bucket is full.
    pub reset_in: Duration,
}

/// Why limits cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThrottleError {
    /// The burst does not fit.
    #[error("max_burst must be from 0 to 4294967294")]
    Burst,
    /// The count does not fit.
    #[error("count per period must be from 1 to 4294967295; zero rates are not supported")]
    Count,
    /// The period does not fit.
    #[error("period must be a number of seconds from 1; zero rates are not supported")]
    Period,
    /// The bucket would take too long to fill.
    #[error(
        "max_burst takes more than 73 years to fill; use a smaller max_burst or a shorter period"
    )]
    TooSlow,
    /// Too many different limits since the start.
    #[error(
        "more than {0} different combinations of max_burst, count and period; use fewer of them"
    )]
    TooMany(usize),
}

impl Throttle {
    pub(crate) fn new(ledger: Ledger) -> Throttle {
        Throttle {
            table: OnceLock::new(),
            decisions: AtomicU64::new(0),
            ledger,
        }
    }

    /// `count` tokens per `period` seconds, and `max_burst` more than one at once.
    pub fn limit(
        &self,
        max_burst: i64,
        count: i64,
        period: i64,
    ) -> Result<ThrottleLimit, ThrottleError> {
        let burst = max_burst
            .checked_add(1)
            .and_then(|burst| u32::try_from(burst).ok())
            .and_then(NonZeroU32::new)
            .ok_or(ThrottleError::Burst)?;
        let count = u32::try_from(count).ok().and_then(NonZeroU32::new);
        let period = u64::try_from(period).ok().filter(|period| *period > 0);
        let limit = Limit {
            limit: count.ok_or(ThrottleError::Count)?,
            period: Duration::from_secs(period.ok_or(ThrottleError::Period)?),
            burst,
        };
        let plan = self.table().guards.plan(&[limit]);
        let plan = plan.map_err(|error| match error {
            tollgate_guard::PlanError::TableFull(plans) => ThrottleError::TooMany(plans),
            _ => ThrottleError::TooSlow,
        })?;
        Ok(ThrottleLimit {
            plan,
            burst: burst.get(),
        })
    }

    /// Takes `quantity` tokens: 0 only looks, a negative number puts tokens back. `limiting` is that
    /// of the guards: in shadow tokens are taken and nothing is denied, and off is a look.
    #[must_use]
    pub fn take(
        &self,
        key: &[u8],
        limit: &ThrottleLimit,
        quantity: i64,
        limiting: Limiting,
        now: Tick,
    ) -> Throttled {
        let table = self.table();
        self.sweep_a_part(table, now);
        let ask = Ask {
            key: table.keys.key(key),
            plan: &limit.plan,
            cost: if limiting == Limiting::Off {
                0
            } else {
                quantity
            },
        };
        let (outcome, seen) = table.guards.take_one_and_view(ask, now);
        let mut throttled = Throttled::new(limit.burst, outcome, seen);
        if limiting != Limiting::On {
            throttled.is_limited = false;
            throttled.retry_in = None;
        }
        throttled
    }

    /// The time of a decision; read once for several that come together.
    #[must_use]
    pub fn now(&self) -> Tick {
        let Micros(micros) = self.ledger.at();
        Tick::from_nanos(micros.saturating_mul(1_000))
    }

    /// Keys held now.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.table.get().map_or(0, |table| table.guards.len())
    }

    fn table(&self) -> &ThrottleTable {
        self.table.get_or_init(|| {
            let guards = new_table();
            let keys = guards.keys("throttle");
            ThrottleTable { guards, keys }
        })
    }

    /// Evicts keys whose buckets are full again.
    fn sweep_a_part(&self, table: &ThrottleTable, now: Tick) {
        let count = self.decisions.fetch_add(1, Ordering::Relaxed);
        if count.is_multiple_of(SWEEP_EVERY) {
            table.guards.sweep(now, SWEEP_SLOTS);
        }
    }
}

impl Throttled {
    fn new(limit: u32, outcome: Outcome, seen: Remaining) -> Throttled {
        let retry_in = match outcome {
            Outcome::Rejected { retry_in_ns, .. } => Some(Duration::from_nanos(retry_in_ns.get())),
            Outcome::Granted { .. } | Outcome::Never { .. } => None,
        };
        Throttled {
            is_limited: !outcome.is_granted(),
            limit,
            remaining: seen.tokens,
            retry_in,
            reset_in: seen.full_in,
        }
    }
}

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;
