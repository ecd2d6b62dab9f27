//! Guarantees: what a limit ensures at the provider, in words, by the table of docs/exactness.md.
//!
//! Promises: never overstates. "Exact" means that no call arrives above the limit, whatever the
//! delays are, under the assumption that is said with it.
//!
//! Never: depends on how a limit was written.

use tollgate_core::batch::LONG_PERIOD;
use tollgate_core::limit::{Algorithm, HoldUntil, Rule};

use crate::amount::HumanSpan;
use crate::config::{Config, PostgresMode, Store};
use crate::provider::Provider;

/// What a rule ensures at the provider.
#[must_use]
pub fn guarantee(rule: &Rule) -> String {
    match rule.algorithm() {
        Algorithm::Sliding { .. } => "exact, whichever window the provider counts".to_owned(),
        Algorithm::Paced { .. } => "exact, and evenly spaced".to_owned(),
        Algorithm::InFlight => "exact: never more at a time".to_owned(),
        Algorithm::Bucket { period, burst } => format!(
            "exact if the provider has a token bucket like it; where it counts a window, up to {} in {}",
            rule.limit().saturating_add(*burst),
            HumanSpan(*period)
        ),
        Algorithm::Fixed { .. } => {
            "exact if the provider's window opens with the first call; elsewhere up to twice at an edge"
                .to_owned()
        }
        Algorithm::Calendar(_) => {
            "exact if the provider's day, hour or month begins when ours does; elsewhere up to twice at an edge"
                .to_owned()
        }
    }
}

/// What holds for the limits that are learned from a provider's responses; `None`: it learns none.
///
/// A provider without a limit of its own has a word here too: silence would look like a promise.
#[must_use]
pub fn learned_guarantee(provider: &Provider) -> Option<String> {
    let names: Vec<String> = provider
        .learned_limits()
        .into_iter()
        .map(|limit| limit.name)
        .collect();
    if !names.is_empty() {
        return Some(format!(
            "{}: learned from responses, per key and entity; one call at a time before the first response, then never more than responses have stated",
            names.join(", ")
        ));
    }
    let is_bare = provider.limits.is_empty() && provider.concurrency.is_none();
    (provider.learn && is_bare).then(|| {
        "no limit: calls slow down only after a 429; add `limits:` for a guarantee".to_owned()
    })
}

/// Further assumptions behind the guarantees of a provider's limits; `None`: there are none.
#[must_use]
pub fn assumption(provider: &Provider) -> Option<String> {
    let holds = |hold| {
        let mut limits = provider.limits.iter();
        limits.any(|limit| limit.rule.held_until() == hold)
    };
    if holds(HoldUntil::Send) {
        Some(
            "held until send: only as exact as every call takes the same time to arrive; write `hold_until: arrived` or `response` for a guarantee"
                .to_owned(),
        )
    } else if holds(HoldUntil::Arrived) {
        Some(format!(
            "held until arrived: exact for calls that reach the provider within {} (`arrive_within`) of their last byte, and used fully where responses are slow; `hold_until: response` is exact for any delay",
            HumanSpan(provider.arrive_within)
        ))
    } else {
        None
    }
}

/// What the store takes away from the guarantees of a provider's limits; `None`: nothing.
#[must_use]
pub fn store_assumption(config: &Config, provider: &Provider) -> Option<String> {
    let is_snapshot = config.postgres.mode == PostgresMode::Snapshot;
    if is_snapshot && matches!(config.store, Store::Postgres(_)) {
        return Some(format!(
            "snapshot mode: each gateway counts by itself, and after a crash up to {} of calls are not counted; only the first limit of a provider is restored; `postgres: {{mode: strict}}` loses nothing",
            HumanSpan(config.postgres.every)
        ));
    }
    soft_limits(&config.store, provider).map(str::to_owned)
}

fn soft_limits(store: &Store, provider: &Provider) -> Option<&'static str> {
    let mut limits = provider.limits.iter();
    let has_long = limits.any(|limit| limit.rule.period() >= LONG_PERIOD);
    match store {
        Store::Redis(_) if has_long => Some(
            "limits of a minute or longer are soft in Redis: a failover, or a restart without `appendfsync always`, can lose what was counted last; Postgres is exact",
        ),
        Store::Postgres(_) if has_long => Some(
            "limits of a minute or longer are soft across a promotion of a Postgres standby, unless `synchronous_standby_names` is set",
        ),
        Store::Redis(_) | Store::Postgres(_) | Store::Memory | Store::Sqlite(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::limit::Calendar;
    use tollgate_core::time::Span;

    #[test]
    fn a_guarantee_says_where_twice_the_limit_can_pass() {
        let second = Span::from_secs(1);
        let day = tollgate_core::limit::CalendarPeriod::Day;
        let calendar = Calendar::new(day, jiff::tz::TimeZone::UTC);
        for (rule, twice) in [
            (Rule::sliding(5, second).unwrap(), false),
            (Rule::paced(5, second).unwrap(), false),
            (Rule::in_flight(5).unwrap(), false),
            (Rule::fixed(5, second).unwrap(), true),
            (Rule::calendar(5, calendar).unwrap(), true),
        ] {
            assert_eq!(guarantee(&rule).contains("up to twice at an edge"), twice);
        }
        let bucket = guarantee(&Rule::bucket(35, second, 20).unwrap());
        assert!(bucket.ends_with("up to 55 in 1s"), "{bucket}");
    }
}
