//! Alerts (S10): which conditions need an operator, and when they end.
//!
//! Promises: [`AlertSettings::evaluate`] is pure and returns the current alerts, with the
//! document's messages; [`AlertTracker`] turns them into notices, one when an alert begins and one
//! when it ends. A value that fluctuates around its threshold does not alert twice: an alert ends
//! only after its condition has been gone for a minute.
//!
//! Never: sends anything.

mod tracker;
pub use tracker::{ALERTS_MAX, AlertStage, AlertTracker, Notice, QUIET_FOR};
#[cfg(test)]
mod tests;

use std::fmt;

use crate::problem::{Problem, Problems};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// The fewest lookups that give a hit rate.
pub const LOOKUPS_MIN: u64 = 20;

/// How far back 429s are counted.
pub const MINUTE: Span = Span::from_secs(60);

/// When to alert. `None` = never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertSettings {
    /// Critical below this many remaining; off unless configured, since quotas differ.
    pub critical: Option<u64>,
    /// Warning below this many remaining; off unless configured.
    pub warning: Option<u64>,
    /// Warning above this many 429s in a minute: 10.
    pub rate_429_per_minute: Option<u64>,
    /// Warning below this hit rate of the cache: 50 %.
    pub cache_hit_rate: Option<Ppm>,
}

/// The severity of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// An operator should look at it.
    Warning,
    /// An operator must look at it now.
    Critical,
}

/// The condition that an alert is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlertKind {
    /// Little remains of a limit.
    Remaining,
    /// Many 429s.
    Rate429,
    /// Few cache hits.
    CacheHitRate,
    /// A store cannot be reached.
    StoreLost,
}

/// The measurements of one entity, or of a provider without entities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlertInput<'a> {
    /// What remains of each limit, by our count and by the provider's.
    pub quotas: &'a [QuotaLeft],
    /// 429s in the last minute.
    pub limited_last_minute: u64,
    /// Lookups that found a response.
    pub cache_hits: u64,
    /// Lookups that did not.
    pub cache_misses: u64,
}

/// What remains of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaLeft {
    /// So much.
    pub remaining: u64,
    /// Of so much; `None` = the provider does not say.
    pub limit: Option<u64>,
}

/// One alert. Its `Display` is the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// The severity.
    pub level: Level,
    /// The condition.
    pub kind: AlertKind,
    /// The entity, `provider/entity`, or the provider.
    pub name: String,
    /// The measured value; a hit rate in parts per million.
    pub value: u64,
    /// The threshold that it passed, in the same unit.
    pub threshold: u64,
}

/// 429s of the last minute, in a bucket per second: exact to a second, always the same size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recent429s {
    seconds: [u32; SECONDS],
    last: u64,
}

const SECONDS: usize = 60;

impl Default for AlertSettings {
    fn default() -> AlertSettings {
        AlertSettings {
            critical: None,
            warning: None,
            rate_429_per_minute: Some(10),
            cache_hit_rate: Some(Ppm::percent(50)),
        }
    }
}

impl AlertSettings {
    /// The document's thresholds, all of them on.
    #[must_use]
    pub fn documented() -> AlertSettings {
        AlertSettings {
            critical: Some(200),
            warning: Some(500),
            ..AlertSettings::default()
        }
    }

    /// The current alerts. Below `critical` there is only the critical alert, not the warning. A limit that is
    /// smaller than a threshold is always below it, so that says nothing: 40 per 10 s next to 20,000 per day.
    #[must_use]
    pub fn evaluate(&self, name: &str, input: &AlertInput<'_>) -> Vec<Alert> {
        let alert = |level, kind, value, threshold| Alert {
            level,
            kind,
            name: name.to_owned(),
            value,
            threshold,
        };
        let low = |level, threshold: Option<u64>| {
            let threshold = threshold?;
            let quotas = input.quotas.iter();
            let meant = quotas.filter(|one| one.limit.is_none_or(|limit| limit >= threshold));
            let remaining = meant.map(|one| one.remaining).min()?;
            (remaining < threshold)
                .then(|| alert(level, AlertKind::Remaining, remaining, threshold))
        };
        let limited = self.rate_429_per_minute.and_then(|threshold| {
            let value = input.limited_last_minute;
            (value > threshold).then(|| alert(Level::Warning, AlertKind::Rate429, value, threshold))
        });
        let lookups = input.cache_hits.saturating_add(input.cache_misses);
        let cache = self.cache_hit_rate.and_then(|threshold| {
            let is_low =
                lookups >= LOOKUPS_MIN && !threshold.is_reached_by(input.cache_hits, lookups);
            let rate = Ppm::of(input.cache_hits, lookups);
            is_low.then(|| {
                let (rate, threshold) = (u64::from(rate.0), u64::from(threshold.0));
                alert(Level::Warning, AlertKind::CacheHitRate, rate, threshold)
            })
        });
        low(Level::Critical, self.critical)
            .or_else(|| low(Level::Warning, self.warning))
            .into_iter()
            .chain(limited)
            .chain(cache)
            .collect()
    }

    /// Every problem of the `alerts` block.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        let in_order = self
            .critical
            .zip(self.warning)
            .is_none_or(|(critical, warning)| critical <= warning);
        problems.unless(
            in_order,
            "alerts.critical",
            "must not be above `warning`; write `200`",
        );
        problems.unless(
            self.cache_hit_rate.is_none_or(|rate| rate <= Ppm::ONE),
            "alerts.cache_hit_rate",
            "must be between 0 and 1; write `0.5`",
        );
        problems.found()
    }
}

impl Alert {
    /// The store of this name cannot be reached.
    #[must_use]
    pub fn store_lost(name: &str) -> Alert {
        Alert {
            level: Level::Critical,
            kind: AlertKind::StoreLost,
            name: name.to_owned(),
            value: 1,
            threshold: 0,
        }
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Warning => "Warning",
            Level::Critical => "Critical",
        };
        let Alert { name, value, .. } = self;
        match self.kind {
            AlertKind::Remaining => write!(f, "{level}: {name} has {value} requests remaining"),
            AlertKind::Rate429 => write!(
                f,
                "{level}: {name} had {value} 429 errors in the last minute"
            ),
            AlertKind::CacheHitRate => {
                write!(f, "{level}: {name} cache hit rate is {}%", value / 10_000)
            }
            AlertKind::StoreLost => write!(f, "{level}: {name} cannot be reached"),
        }
    }
}

impl Level {
    /// As in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Critical => "critical",
        }
    }
}

impl AlertKind {
    /// As in JSON: the kind, and the name of the field that holds the value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AlertKind::Remaining => "remaining",
            AlertKind::Rate429 => "rate_429",
            AlertKind::CacheHitRate => "cache_hit_rate",
            AlertKind::StoreLost => "store_lost",
        }
    }
}

impl Default for Recent429s {
    fn default() -> Recent429s {
        Recent429s {
            seconds: [0; SECONDS],
            last: 0,
        }
    }
}

impl Recent429s {
    /// Counts one 429.
    pub fn record(&mut self, now: Micros) {
        self.roll(now);
        let slot = Recent429s::slot(self.last);
        self.seconds[slot] = self.seconds[slot].saturating_add(1);
    }

    /// The number of 429s in the last minute.
    #[must_use]
    pub fn count(&self, now: Micros) -> u64 {
        let mut then = self.clone();
        then.roll(now);
        then.seconds.iter().map(|&count| u64::from(count)).sum()
    }

    fn slot(second: u64) -> usize {
        usize::try_from(second % SECONDS as u64).unwrap_or(0)
    }

    /// Clears the buckets of the seconds that have passed; at most all of them.
    fn roll(&mut self, now: Micros) {
        let second = now.0 / Span::from_secs(1).0;
        let passed = second.saturating_sub(self.last).min(SECONDS as u64);
        for ago in 0..passed {
            self.seconds[Recent429s::slot(second - ago)] = 0;
        }
        self.last = self.last.max(second);
    }
}
