//! The health block: the documented names for the settings of `core`'s state machine.
//!
//! Promises: `health: adaptive`, `breaker` or `off` is the whole block with its defaults. Defaults
//! and checks are `core`'s own; here are only the names.
//!
//! Never: is the state machine, or a second set of its thresholds.

use tollgate_core::health::{
    HealthCount, HealthMode, HealthScope, HealthSettings, RampAfter, RampSettings, Rate,
    WhenBlocked,
};
use tollgate_core::ratio::Ppm;
use tollgate_core::time::Span;

use crate::field::{At, Fields};
use crate::problem::Problems;
use crate::setting::{OffOrMinutes, Setting, block, words};
use crate::shape::Shape;

words! { for HealthMode { Adaptive = "adaptive", Breaker = "breaker", Off = "off", } }
words! { for HealthScope { Path = "path", Provider = "provider", } }
words! { for HealthCount { Call = "call", Attempt = "attempt", } }
words! { for WhenBlocked { Wait = "wait", Reject = "reject", } }
words! { for RampAfter { Limited = "429", Any = "any", } }

block! {
    for RampSettings {
        /// factor by which the rate rises at each step
        factor(factor): Ppm,
        /// how long a step takes
        every(every): Span,
        /// `429` = only after 429s; `any` = after any outage
        after(after): RampAfter,
    }
}

block! {
    for HealthSettings {
        /// which state machine: `adaptive` = by error ratio, `breaker` = by consecutive failures only, `off` = none
        mode(mode): HealthMode,
        /// what consecutive failures close: `path` = the path, and the provider only if several paths fail (ids in paths are replaced by `*`; at most 64 failing paths have an entry of their own); `provider` = always the provider. Default with `mode: breaker`: `provider`
        scope(scope): HealthScope,
        /// what counts as one failure: `call` = a call, including its retries; `attempt` = each attempt. Default with `mode: breaker`: `attempt`
        count(count): HealthCount,
        /// results older than this do not count in the error ratio
        window(window): Span,
        /// only this many of the latest results count
        window_results(window_results): u32,
        /// with fewer results than this the error ratio is 0
        min_results(min_results): u32,
        /// how many evaluations in a row must agree before an error ratio has an effect
        confirm(confirm): u32,
        /// error ratio at which calls are throttled
        p_throttle(p_throttle): Ppm,
        /// 429s in a row at which calls are throttled
        n_throttle(n_throttle): u32,
        /// factor on rate and concurrency while throttled
        throttle_factor(throttle_factor): Ppm,
        /// lowest rate while throttled, in calls a second
        throttle_min_rate(throttle_min_rate): Rate,
        /// lowest concurrency while throttled
        throttle_min_concurrency(throttle_min_concurrency): u32,
        /// error ratio below which a throttled provider may recover
        p_recover(p_recover): Ppm,
        /// how many successes a throttled provider needs before it may recover
        s_recover(s_recover): u32,
        /// 429s in a row at which the provider sleeps; despite its name it does not start cache-only mode
        n_cacheonly(n_cacheonly): u32,
        /// error ratio at which the provider sleeps
        p_sleep(p_sleep): Ppm,
        /// how long the error ratio must stay at or above `p_sleep`
        p_sleep_for(p_sleep_for): Span,
        /// the shortest sleep
        sleep_min(sleep_min): Span,
        /// the longest sleep that Tollgate computes; a `Retry-After` is not capped
        sleep_max(sleep_max): Span,
        /// factor by which each further sleep is longer
        cooldown_factor(cooldown_factor): Ppm,
        /// the first sleep
        sleep_first(sleep_first): Span,
        /// the wait that a `Retry-After` of 0 stands for
        retry_after_floor(retry_after_floor): Span,
        /// how many probes must succeed until the state is normal
        probe_success(probe_success): u32,
        /// probes a second
        probe_rate(probe_rate): Rate,
        /// probes at a time
        probe_concurrency(probe_concurrency): u32,
        /// error ratio below which probes may lead to the state normal
        p_probe(p_probe): Ppm,
        /// how the rate rises after a recovery
        ramp(ramp): RampSettings,
        /// how often a provider in cache-only mode tries to recover by itself
        auto_recover(auto_recover): OffOrMinutes,
        /// how long failures must last until only the cache is used
        cache_only_after(cache_only_after): OffOrMinutes,
        /// what happens to calls while the provider sleeps; a breaker rejects by default
        when_blocked(when_blocked): WhenBlocked,
        /// how many failures of any kind in a row lead to sleep, or open the breaker
        failure_threshold(failure_threshold): Option<u32>,
        /// how long the breaker stays open
        reset_timeout(reset_timeout): Span,
        /// how many successes close the breaker again
        success_threshold(success_threshold): u32,
    }
}

/// The health block: a mode or every threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health(pub(crate) HealthSettings);

impl Setting for Health {
    const SHAPE: Shape = Shape::Either(&[HealthMode::SHAPE, HealthSettings::SHAPE]);

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Health> {
        let mut settings = if at.node.text().is_some() {
            HealthSettings {
                mode: HealthMode::read(at, problems)?,
                ..HealthSettings::default()
            }
        } else {
            HealthSettings::read(at, problems)?
        };
        let fields = Fields { at: at.clone() };
        let is_set = |name| at.node.text().is_none() && fields.get(name).is_some();
        // The breaker is the document's (M9) unless the file says otherwise: it rejects at once, and
        // each failed attempt counts against the whole provider.
        if settings.mode == HealthMode::Breaker {
            if !is_set("when_blocked") {
                settings.when_blocked = WhenBlocked::Reject;
            }
            if !is_set("scope") {
                settings.scope = HealthScope::Provider;
            }
            if !is_set("count") {
                settings.count = HealthCount::Attempt;
            }
        }
        at.add_core_problems(&settings.check(), problems);
        Some(Health(settings))
    }
}
