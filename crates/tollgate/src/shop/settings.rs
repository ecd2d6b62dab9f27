//! From the settings of a provider file to those of the machines that obey them.
//!
//! Promises: every setting arrives; a number too large for its machine becomes the largest it has.
//!
//! Never: a default of its own. Those are the file's.

use tollgate_config::Provider;
use tollgate_config::amount::Millionths;
use tollgate_config::settings as file;
use tollgate_core::backoff::{Backoff, Jitter};
use tollgate_core::cooldown::{CooldownSettings, JitterOn};
use tollgate_core::degrade::DegradeSettings;
use tollgate_core::gate::{OffPeak, Order, Settings as GateSettings};
use tollgate_core::health::{HealthSettings, Mode, RampAfter, RampSettings, Rate, WhenBlocked};
use tollgate_core::ratio::Ppm;
use tollgate_core::retry::{BudgetSettings, Retries, RetrySettings};

/// How the gate of a provider works.
pub(super) fn gate(provider: &Provider) -> GateSettings {
    let off_peak = provider.off_peak.as_ref().and_then(|hours| {
        // The check of the file has refused hours that do not exist.
        OffPeak::new(hours.from_minute, hours.to_minute, hours.zone.clone()).ok()
    });
    GateSettings {
        waiting_max: usize::try_from(provider.queue.max).unwrap_or(usize::MAX),
        order: match provider.queue.order {
            file::Order::Priority => Order::Priority,
            file::Order::Fifo => Order::Fifo,
        },
        off_peak,
    }
}

/// When and how often a failed call is tried again.
pub(super) fn retry(provider: &Provider) -> RetrySettings {
    let retry = &provider.retry;
    RetrySettings {
        backoff: Backoff {
            base: retry.base,
            factor: ppm(retry.factor),
            max: retry.max,
            jitter: jitter(retry.jitter),
        },
        retries: Retries {
            high: count(retry.retries.high),
            normal: count(retry.retries.normal),
            low: count(retry.retries.low),
        },
        budget: BudgetSettings {
            ratio: ppm(retry.budget.ratio),
            min_per_second: count(retry.budget.min_per_second),
        },
        retry_after_floor: provider.health.0.retry_after_floor,
    }
}

/// How long a scope rests after a refusal.
pub(super) fn cooldown(provider: &Provider) -> CooldownSettings {
    let cooldown = &provider.cooldown;
    CooldownSettings {
        backoff: Backoff {
            base: cooldown.base,
            factor: ppm(cooldown.factor),
            max: cooldown.max,
            jitter: jitter(cooldown.jitter),
        },
        on: match cooldown.on {
            file::JitterOn::Backoff => JitterOn::Backoff,
            file::JitterOn::All => JitterOn::All,
        },
        retry_after_floor: provider.health.0.retry_after_floor,
    }
}

/// When only the cache is used because little is left.
pub(super) fn degrade(provider: &Provider) -> Option<DegradeSettings> {
    provider.degrade.as_ref().map(|degrade| DegradeSettings {
        below: degrade.below,
        recover: degrade.recover,
    })
}

/// Every threshold of the health machine.
pub(super) fn health(provider: &Provider) -> HealthSettings {
    let from = &provider.health.0;
    HealthSettings {
        mode: match from.mode {
            file::Mode::Adaptive => Mode::Adaptive,
            file::Mode::Breaker => Mode::Breaker,
            file::Mode::Off => Mode::Off,
        },
        window: from.window,
        window_results: count(from.window_results),
        min_results: count(from.min_results),
        confirm: count(from.confirm),
        p_throttle: ppm(from.p_throttle),
        n_throttle: count(from.n_throttle),
        throttle_factor: ppm(from.throttle_factor),
        throttle_min_rate: Rate::per_second(count(from.throttle_min_rate)),
        throttle_min_concurrency: count(from.throttle_min_concurrency),
        p_recover: ppm(from.p_recover),
        s_recover: count(from.s_recover),
        n_cacheonly: count(from.n_cacheonly),
        p_sleep: ppm(from.p_sleep),
        p_sleep_for: from.p_sleep_for,
        sleep_min: from.sleep_min,
        sleep_max: from.sleep_max,
        cooldown_factor: ppm(from.cooldown_factor),
        sleep_first: from.sleep_first,
        retry_after_floor: from.retry_after_floor,
        probe_success: count(from.probe_success),
        probe_rate: Rate::per_second(count(from.probe_rate)),
        probe_concurrency: count(from.probe_concurrency),
        p_probe: ppm(from.p_probe),
        ramp: RampSettings {
            factor: ppm(from.ramp.factor),
            every: from.ramp.every,
            after: match from.ramp.after {
                file::After::Refusals => RampAfter::Refusals,
                file::After::Any => RampAfter::Any,
            },
        },
        auto_recover: from.auto_recover.map(|minutes| minutes.0),
        cache_only_after: from.cache_only_after.map(|minutes| minutes.0),
        when_blocked: match from.when_blocked {
            file::WhenBlocked::Wait => WhenBlocked::Wait,
            file::WhenBlocked::Reject => WhenBlocked::Reject,
        },
        failure_threshold: from.failure_threshold.map(count),
        reset_timeout: from.reset_timeout,
        success_threshold: count(from.success_threshold),
    }
}

fn jitter(from: file::Jitter) -> Jitter {
    match from {
        file::Jitter::None => Jitter::None,
        file::Jitter::Full => Jitter::Full,
        file::Jitter::Additive(share) => Jitter::Additive(ppm(share)),
    }
}

fn ppm(from: Millionths) -> Ppm {
    Ppm(count(from.0))
}

fn count(from: u64) -> u32 {
    u32::try_from(from).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Draft, World};

    /// The defaults of a file and those of the machines are one set of numbers.
    #[test]
    fn a_file_that_says_nothing_gets_what_the_machines_default_to() {
        let draft =
            Draft::read("x.yaml", "domain: api.example.org\nlimit: 5\nperiod: 1s\n").unwrap();
        let provider = draft.check(&World::empty()).provider.unwrap();
        assert_eq!(health(&provider), HealthSettings::default());
        assert_eq!(retry(&provider), RetrySettings::default());
        assert_eq!(cooldown(&provider), CooldownSettings::default());
        assert_eq!(degrade(&provider), None);
        assert_eq!(
            gate(&provider).waiting_max,
            GateSettings::default().waiting_max
        );
    }
}
