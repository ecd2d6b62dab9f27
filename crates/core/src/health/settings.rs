//! Every threshold of the health state machine, its default and the reason for it.
//!
//! Promises: the names are those that users write under `health:`. [`HealthSettings::check`]
//! reports every value with which the machine could flap or get stuck, all at once.
//!
//! Never: used unchecked. [`Health::new`](super::Health::new) rejects settings that have problems.

use super::window::WindowBounds;
use crate::backoff::{FACTOR_MAX, RETRY_AFTER_FLOOR, RETRY_AFTER_MAX};
use crate::problem::{Problem, Problems};
use crate::rate::Rate;
use crate::ratio::Ppm;
use crate::time::Span;

/// The most results a window may hold: at 32 bytes each with its path, and 8 bytes for each of those
/// outside the ratio, 400 KB per provider.
pub const WINDOW_RESULTS_MAX: u32 = 10_000;

/// The most concurrent probes. More than 64 are a load, not a probe.
pub const PROBE_CONCURRENCY_MAX: u32 = 64;

/// The slowest ramp: 1.01 needs about a thousand steps from 5/s to 100 000/s, which bounds the
/// work after a long suspend.
pub const RAMP_FACTOR_MIN: Ppm = Ppm(1_010_000);

/// Which state machine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthMode {
    /// All five states.
    #[default]
    Adaptive,
    /// The same machine without Throttle: a circuit breaker (M9).
    Breaker,
    /// Results change nothing; operators' commands do.
    Off,
}

/// What failures in a row close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthScope {
    /// The path first: one broken endpoint must not stop calls to all others. Failures on several
    /// paths close the provider.
    #[default]
    Path,
    /// The provider, as in the documents.
    Provider,
}

/// What counts as one failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthCount {
    /// A call, however often it was tried: otherwise the retries of two calls would be enough.
    #[default]
    Call,
    /// Each attempt, as in the documents.
    Attempt,
}

/// What happens to a call while the scope is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenBlocked {
    /// It waits if its deadline is after the end of the sleep.
    #[default]
    Wait,
    /// It is rejected at once.
    Reject,
}

/// After which outages the rate ramps up slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RampAfter {
    /// Only if the provider limited calls: after any other outage the full rate is safe.
    #[default]
    Limited,
    /// After any.
    Any,
}

/// The ramp after a recovery (A15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RampSettings {
    /// Each step up: ×1.1.
    pub factor: Ppm,
    /// How long each step lasts: 5 min, long enough for a 429 to show.
    pub every: Span,
    /// After which outages.
    pub after: RampAfter,
}

/// The settings of one provider's health state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthSettings {
    /// Which state machine runs.
    pub mode: HealthMode,
    /// What failures in a row close: the path, or the provider.
    pub scope: HealthScope,
    /// What counts as one failure: a call, or each attempt.
    pub count: HealthCount,
    /// How far back the ratio reaches: 30 s, so that an outage shows within seconds.
    pub window: Span,
    /// The most results it counts: 300, so that a busy provider is judged by its last seconds.
    pub window_results: u32,
    /// The fewest results that give a ratio: 10, so that one failure of two is not 50 %.
    pub min_results: u32,
    /// How often a ratio condition must hold in a row: 2, against flapping (A8).
    pub confirm: u32,
    /// Ratio at which Normal becomes Throttle: 20 %.
    pub p_throttle: Ppm,
    /// Consecutive 429s at which Normal becomes Throttle: 3.
    pub n_throttle: u32,
    /// The factor for rate and concurrency in Throttle: half.
    pub throttle_factor: Ppm,
    /// The lowest rate in Throttle: 5 calls per second (but never more than the base rate).
    pub throttle_min_rate: Rate,
    /// The lowest concurrency in Throttle: one call.
    pub throttle_min_concurrency: u32,
    /// Ratio below which Throttle may become HalfOpen: 10 %, half of `p_throttle`.
    pub p_recover: Ppm,
    /// Successes in Throttle, in total, before that: 10.
    pub s_recover: u32,
    /// Consecutive 429s at which Throttle becomes Sleep: 5. (The document's name; it does not mean
    /// CacheOnly.)
    pub n_cacheonly: u32,
    /// Ratio at which Throttle becomes Sleep: 60 % …
    pub p_sleep: Ppm,
    /// … if it lasts for 5 min.
    pub p_sleep_for: Span,
    /// The shortest Sleep: 2 s.
    pub sleep_min: Span,
    /// The longest computed Sleep: 300 s. It does not cap a `Retry-After`.
    pub sleep_max: Span,
    /// How much longer each Sleep is after a failed HalfOpen: ×1.2. A longer outage costs one probe
    /// per sleep in any case, and a steeper rise would only delay the recovery.
    pub cooldown_factor: Ppm,
    /// The first Sleep: 2 s, because most outages are short.
    pub sleep_first: Span,
    /// The wait for a `Retry-After` of 0 or in the past: 1 s.
    pub retry_after_floor: Span,
    /// Successes after which HalfOpen becomes Normal: 5.
    pub probe_success: u32,
    /// The rate of probes in HalfOpen: 3 calls per second.
    pub probe_rate: Rate,
    /// How many probes of this process are in flight at a time: 1.
    pub probe_concurrency: u32,
    /// Ratio below which HalfOpen may become Normal: 10 %.
    pub p_probe: Ppm,
    /// The ramp after a recovery.
    pub ramp: RampSettings,
    /// CacheOnly tries to recover this often; `None` = only an operator ends it.
    pub auto_recover: Option<Span>,
    /// Sleep and HalfOpen become CacheOnly after this long; `None` = never.
    pub cache_only_after: Option<Span>,
    /// What happens to a call while the scope is closed.
    pub when_blocked: WhenBlocked,
    /// Consecutive failures of any class that lead to Sleep: 5 (M9); `None` = off.
    pub failure_threshold: Option<u32>,
    /// How long the breaker stays open: 5 min (M9).
    pub reset_timeout: Span,
    /// Successes that close the breaker: 2 (M9).
    pub success_threshold: u32,
}

impl Default for RampSettings {
    fn default() -> RampSettings {
        RampSettings {
            factor: Ppm(1_100_000),
            every: Span::from_secs(300),
            after: RampAfter::Limited,
        }
    }
}

impl Default for HealthSettings {
    fn default() -> HealthSettings {
        HealthSettings {
            mode: HealthMode::Adaptive,
            scope: HealthScope::Path,
            count: HealthCount::Call,
            window: Span::from_secs(30),
            window_results: 300,
            min_results: 10,
            confirm: 2,
            p_throttle: Ppm::percent(20),
            n_throttle: 3,
            throttle_factor: Ppm::percent(50),
            throttle_min_rate: Rate::per_second(5),
            throttle_min_concurrency: 1,
            p_recover: Ppm::percent(10),
            s_recover: 10,
            n_cacheonly: 5,
            p_sleep: Ppm::percent(60),
            p_sleep_for: Span::from_secs(300),
            sleep_min: Span::from_secs(2),
            sleep_max: Span::from_secs(300),
            cooldown_factor: Ppm(1_200_000),
            sleep_first: Span::from_secs(2),
            retry_after_floor: RETRY_AFTER_FLOOR,
            probe_success: 5,
            probe_rate: Rate::per_second(3),
            probe_concurrency: 1,
            p_probe: Ppm::percent(10),
            ramp: RampSettings::default(),
            auto_recover: None,
            cache_only_after: None,
            when_blocked: WhenBlocked::Wait,
            failure_threshold: Some(5),
            reset_timeout: Span::from_secs(300),
            success_threshold: 2,
        }
    }
}

impl HealthSettings {
    /// Every problem of the `health` block.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        self.check_window(&mut problems);
        self.check_shares(&mut problems);
        self.check_counts(&mut problems);
        self.check_spans(&mut problems);
        problems.found()
    }

    pub(super) fn window_bounds(&self) -> WindowBounds {
        WindowBounds {
            age: self.window,
            results: usize::try_from(self.window_results).unwrap_or(usize::MAX),
            min_results: u64::from(self.min_results),
        }
    }

    fn check_window(&self, problems: &mut Problems) {
        problems.unless(
            (1..=WINDOW_RESULTS_MAX).contains(&self.window_results),
            "health.window_results",
            "must be between 1 and 10000; write `300`",
        );
        problems.unless(
            (1..=self.window_results).contains(&self.min_results),
            "health.min_results",
            "must be between 1 and `window_results`; write `10`",
        );
    }

    /// With a ratio of 0 or above 1, or thresholds in the wrong order, the machine could flap or
    /// get stuck.
    fn check_shares(&self, problems: &mut Problems) {
        let share = |ppm: Ppm| ppm > Ppm::ZERO && ppm <= Ppm::ONE;
        let shares = [
            (self.p_throttle, "health.p_throttle"),
            (self.p_recover, "health.p_recover"),
            (self.p_sleep, "health.p_sleep"),
            (self.p_probe, "health.p_probe"),
            (self.throttle_factor, "health.throttle_factor"),
        ];
        for (ppm, name) in shares {
            let remedy = "must be above 0 and not above 1; write `0.20` for 20 %";
            problems.unless(share(ppm), name, remedy);
        }
        problems.unless(
            self.p_recover <= self.p_throttle,
            "health.p_recover",
            "must not be above `p_throttle`, or the state flaps; write half of it",
        );
        problems.unless(
            self.p_throttle <= self.p_sleep,
            "health.p_sleep",
            "must not be below `p_throttle`; write `0.60`",
        );
        problems.unless(
            self.cooldown_factor >= Ppm::ONE && self.cooldown_factor <= FACTOR_MAX,
            "health.cooldown_factor",
            "must be between 1 and 100; write `1.2`",
        );
        problems.unless(
            self.ramp.factor >= RAMP_FACTOR_MIN && self.ramp.factor <= FACTOR_MAX,
            "health.ramp.factor",
            "must be between 1.01 and 100; write `1.1`",
        );
    }

    fn check_counts(&self, problems: &mut Problems) {
        let counts = [
            (self.confirm, "health.confirm"),
            (self.n_throttle, "health.n_throttle"),
            (
                self.throttle_min_concurrency,
                "health.throttle_min_concurrency",
            ),
            (self.s_recover, "health.s_recover"),
            (self.n_cacheonly, "health.n_cacheonly"),
            (self.probe_success, "health.probe_success"),
            (self.success_threshold, "health.success_threshold"),
            (
                self.failure_threshold.unwrap_or(1),
                "health.failure_threshold",
            ),
        ];
        for (count, name) in counts {
            problems.unless(count >= 1, name, "must be 1 or more");
        }
        problems.unless(
            (1..=PROBE_CONCURRENCY_MAX).contains(&self.probe_concurrency),
            "health.probe_concurrency",
            "must be between 1 and 64; write `1`",
        );
        problems.unless(
            self.mode != HealthMode::Breaker || self.failure_threshold.is_some(),
            "health.failure_threshold",
            "a breaker needs one; write `5`, or `mode: off`",
        );
        let slowest = Rate::from_millionths(1_000);
        for (rate, name) in [
            (self.throttle_min_rate, "health.throttle_min_rate"),
            (self.probe_rate, "health.probe_rate"),
        ] {
            let remedy = "must be 0.001 calls per second or more; write `3`";
            problems.unless(rate >= slowest, name, remedy);
        }
    }

    /// A timer of 0 would fire without end; one above 31 days would look stuck.
    fn check_spans(&self, problems: &mut Problems) {
        let spans = [
            (self.window, "health.window"),
            (self.p_sleep_for, "health.p_sleep_for"),
            (self.sleep_min, "health.sleep_min"),
            (self.sleep_max, "health.sleep_max"),
            (self.sleep_first, "health.sleep_first"),
            (self.retry_after_floor, "health.retry_after_floor"),
            (self.reset_timeout, "health.reset_timeout"),
            (self.ramp.every, "health.ramp.every"),
            (self.auto_recover.unwrap_or(SHORTEST), "health.auto_recover"),
            (
                self.cache_only_after.unwrap_or(SHORTEST),
                "health.cache_only_after",
            ),
        ];
        for (span, name) in spans {
            let remedy = "must be between 1ms and 31d; write `30s`, `5m`, or `off` where allowed";
            problems.unless((SHORTEST..=RETRY_AFTER_MAX).contains(&span), name, remedy);
        }
        problems.unless(
            self.sleep_min <= self.sleep_max,
            "health.sleep_min",
            "must not be above `sleep_max`; write `2s`",
        );
    }
}

/// The shortest timer.
const SHORTEST: Span = Span::from_millis(1);
