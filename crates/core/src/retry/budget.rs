//! The retry budget: a fraction of all calls, plus a few retries per second.
//!
//! Promises: in any T seconds with C calls at most `depth + min_per_second × T + ratio × C`
//! retries, so an outage multiplies the load by little more than `1 + ratio`, whatever the callers
//! do. Integers: tokens are counted in millionths.
//!
//! Never: blocks a first attempt.

use crate::problem::Problems;
use crate::ratio::Ppm;
use crate::time::Micros;

/// One retry in the unit the budget counts in.
const TOKEN: u64 = 1_000_000;

/// How many seconds of `min_per_second` can accumulate. Ten allow one round of retries after a
/// short outage of a rarely called provider, and are too few for a retry storm.
const BURST_SECONDS: u64 = 10;

/// The least depth, for a budget with a ratio only.
const BURST_MIN: u64 = 10;

/// How much of the traffic may be retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// Retries per call: 20 %, as in common proxies.
    pub ratio: Ppm,
    /// Plus this many per second: 10, so that calls to rarely used providers can be retried at all.
    pub min_per_second: u32,
}

/// The remaining tokens. One budget per provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    millionths: u64,
    at: Micros,
}

impl Default for BudgetSettings {
    fn default() -> BudgetSettings {
        BudgetSettings {
            ratio: Ppm::percent(20),
            min_per_second: 10,
        }
    }
}

impl BudgetSettings {
    /// The most retries that can accumulate.
    #[must_use]
    pub fn depth(&self) -> u64 {
        (u64::from(self.min_per_second) * BURST_SECONDS).max(BURST_MIN)
    }

    pub(super) fn check(&self, problems: &mut Problems) {
        problems.unless(
            self.ratio <= Ppm::ONE,
            "retry.budget.ratio",
            "must be between 0% and 100%; write `20%`",
        );
        problems.unless(
            self.min_per_second <= 100_000,
            "retry.budget.min_per_second",
            "must be between 0 and 100000; write `10`",
        );
    }
}

impl Budget {
    /// A full budget.
    #[must_use]
    pub fn new(settings: &BudgetSettings, now: Micros) -> Budget {
        Budget {
            millionths: settings.depth() * TOKEN,
            at: now,
        }
    }

    /// Adds the tokens for the first attempt of a call.
    pub fn on_call(&mut self, settings: &BudgetSettings, now: Micros) {
        self.refill(settings, now);
        self.add(settings, u64::from(settings.ratio.0));
    }

    /// Takes one retry, if there is one.
    pub fn try_take(&mut self, settings: &BudgetSettings, now: Micros) -> bool {
        self.refill(settings, now);
        let remaining = self.millionths.checked_sub(TOKEN);
        self.millionths = remaining.unwrap_or(self.millionths);
        remaining.is_some()
    }

    /// Whole retries remaining.
    #[must_use]
    pub fn remaining(&self, settings: &BudgetSettings, now: Micros) -> u64 {
        let mut then = *self;
        then.refill(settings, now);
        then.millionths / TOKEN
    }

    /// One token per second is one millionth per microsecond, so nothing is lost to rounding.
    fn refill(&mut self, settings: &BudgetSettings, now: Micros) {
        let elapsed = now.since(self.at).0;
        self.at = self.at.max(now);
        self.add(
            settings,
            elapsed.saturating_mul(u64::from(settings.min_per_second)),
        );
    }

    fn add(&mut self, settings: &BudgetSettings, millionths: u64) {
        let most = settings.depth() * TOKEN;
        self.millionths = self.millionths.saturating_add(millionths).min(most);
    }
}
