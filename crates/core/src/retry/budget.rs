//! How many of all calls may be retries: a share of the calls, and a few per second besides.
//!
//! Promises: in any stretch of T seconds with C calls at most `depth + min_per_second × T +
//! ratio × C` retries, so an outage multiplies the load by little more than `1 + ratio`, whatever
//! the callers do. Integers: tokens are counted in millionths.
//!
//! Never: blocks a first try.

use crate::problem::Problems;
use crate::ratio::Ppm;
use crate::time::Micros;

/// One retry in the unit the budget counts in.
const TOKEN: u64 = 1_000_000;

/// How many seconds of `min_per_second` can be saved up. Ten cover one round of retries after a
/// short outage of a provider that is called rarely, and are still no storm.
const BURST_SECONDS: u64 = 10;

/// The least that can be saved up, for a budget that lives of its share alone.
const BURST_MIN: u64 = 10;

/// How much of the traffic may be retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// One more retry for so many calls: 20 %, as the common proxies have it.
    pub ratio: Ppm,
    /// And so many per second in any case: 10, so that quiet providers can be retried at all.
    pub min_per_second: u32,
}

/// The tokens that are left. One per provider.
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
    /// The most retries that can be saved up.
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
    /// A full one.
    #[must_use]
    pub fn new(settings: &BudgetSettings, now: Micros) -> Budget {
        Budget {
            millionths: settings.depth() * TOKEN,
            at: now,
        }
    }

    /// A call was made for the first time: its share is saved up.
    pub fn on_call(&mut self, settings: &BudgetSettings, now: Micros) {
        self.refill(settings, now);
        self.add(settings, u64::from(settings.ratio.0));
    }

    /// Takes one retry, if there is one.
    pub fn try_take(&mut self, settings: &BudgetSettings, now: Micros) -> bool {
        self.refill(settings, now);
        let left = self.millionths.checked_sub(TOKEN);
        self.millionths = left.unwrap_or(self.millionths);
        left.is_some()
    }

    /// Whole retries left.
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
