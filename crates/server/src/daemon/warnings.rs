//! Warnings about changes of a provider that do not take full effect at run time, or that let more
//! calls through.
//!
//! Promises: warns once, in the response to the change or in the log.
//!
//! Never: prevents a change.

use tollgate_config::Provider;
use tollgate_config::provider::{Limit, Per};
use tollgate_config::settings::OnStoreLoss;
use tollgate_core::health::HealthMode;
use tollgate_core::limit::{Algorithm, HoldUntil, Rule};

/// The warnings about a changed or new provider.
pub(super) fn for_change(before: Option<&Provider>, after: &Provider) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = &after.name;
    if before.is_some_and(|before| counts_other_keys(before, after)) {
        warnings.push(format!(
            "warning: `{name}`: a limit now counts by another `per`; earlier usage counts in it only as \
             far as the same calls continue"
        ));
    }
    if after.withholds_keys && before.is_none_or(|before| !before.withholds_keys) {
        warnings.push(format!(
            "warning: `{name}`: its host was changed at run time, so its keys are not sent there; change \
             the provider's file instead"
        ));
    }
    warnings
}

/// How a change at run time lets more calls through than before; `None` if it does not.
pub(super) fn loosened(before: &Provider, after: &Provider) -> Option<String> {
    let mut changes: Vec<String> = Vec::new();
    let is_as_strict = |old: &Limit| after.limits.iter().any(|new| as_strict(old, new));
    let looser = before.limits.iter().filter(|limit| !is_as_strict(limit));
    changes.extend(looser.map(|limit| format!("the limit {} is looser or gone", limit.name)));
    changes.extend(more_at_a_time(before, after));
    let other = looser_settings(before, after);
    changes.extend(other.into_iter().map(str::to_owned));
    (!changes.is_empty()).then(|| changes.join("; "))
}

/// Whether the new limit lets no call through that the old one would stop.
fn as_strict(old: &Limit, new: &Limit) -> bool {
    let spaced = |limit: &Limit| matches!(limit.rule.algorithm(), Algorithm::Paced { .. });
    (new.per, &new.unit) == (old.per, &old.unit)
        && new.rule.limit() <= old.rule.limit()
        && new.rule.period() >= old.rule.period()
        && most_in_a_period(&new.rule) <= most_in_a_period(&old.rule)
        && spaced(new) >= spaced(old)
        && new.rule.is_shadow() <= old.rule.is_shadow()
        && frees_early(new.rule.held_until()) <= frees_early(old.rule.held_until())
        && new.rule.counts_later_by() >= old.rule.counts_later_by()
        && new.reserve >= old.reserve
}

/// The most calls that a rule allows in any period of its length.
fn most_in_a_period(rule: &Rule) -> u64 {
    match rule.algorithm() {
        Algorithm::Sliding { .. } | Algorithm::Paced { .. } | Algorithm::InFlight => rule.limit(),
        // The end of one window and the start of the next.
        Algorithm::Fixed { .. } | Algorithm::Calendar(_) => rule.limit().saturating_mul(2),
        Algorithm::Bucket { burst, .. } => rule.limit().saturating_add(*burst),
    }
}

/// How early a slot frees: 0 is the latest.
fn frees_early(hold: HoldUntil) -> u8 {
    match hold {
        HoldUntil::Response => 0,
        HoldUntil::Arrived => 1,
        HoldUntil::Send => 2,
    }
}

/// More calls at a time, of all or of low priority.
fn more_at_a_time(before: &Provider, after: &Provider) -> Option<String> {
    let old = before.concurrency.as_ref()?;
    let limit = old.rule.limit();
    match &after.concurrency {
        None => Some(format!("the limit of {limit} calls at a time is gone")),
        Some(new) if new.rule.limit() > limit => Some(format!(
            "{} calls at a time are allowed, {limit} were",
            new.rule.limit()
        )),
        Some(new) if new.low > old.low => Some(format!(
            "{} calls of low priority at a time are allowed, {} were",
            new.low, old.low
        )),
        Some(_) => None,
    }
}

/// Other settings that let more calls through.
fn looser_settings(before: &Provider, after: &Provider) -> Vec<&'static str> {
    let on_loss = |provider: &Provider| match provider.on_store_loss {
        OnStoreLoss::Closed => 0,
        OnStoreLoss::LocalShare => 1,
        OnStoreLoss::Open => 2,
    };
    let health = |provider: &Provider| match provider.health.mode {
        HealthMode::Adaptive => 0,
        HealthMode::Breaker => 1,
        HealthMode::Off => 2,
    };
    let frees_sooner =
        after.arrive_within < before.arrive_within || after.late_arrival < before.late_arrival;
    let is_free = |status: &u16| !before.free_status.contains(status);
    let is_gone = |guard: &String| !after.guards.contains(guard);
    let table = [
        (before.enabled && !after.enabled, "limiting is off"),
        (
            on_loss(after) > on_loss(before),
            "`on_store_loss` lets more calls through without a store",
        ),
        (
            health(after) > health(before),
            "`health` stops fewer calls to a failing provider",
        ),
        (
            frees_sooner,
            "`arrive_within` or `late_arrival` is shorter, so slots free sooner",
        ),
        (
            after.free_status.iter().any(is_free),
            "`free_status` names more responses that are not counted",
        ),
        (
            before.guards.iter().any(is_gone),
            "a guard on its callers is gone",
        ),
        (
            before.costs != after.costs,
            "`cost` is counted in another way",
        ),
        (
            before.degrade.is_some() && after.degrade.is_none(),
            "degrade mode is off",
        ),
        (
            before.off_peak.is_some() && after.off_peak.is_none(),
            "`off_peak` is gone",
        ),
    ];
    let looser = table.into_iter().filter(|(is_looser, _)| *is_looser);
    looser.map(|(_, change)| change).collect()
}

/// Does a limit of the new version count by keys for which no old limit has the complete usage?
fn counts_other_keys(before: &Provider, after: &Provider) -> bool {
    let has_usage = |per: Per| {
        let mut old = before.limits.iter();
        old.any(|limit| limit.per == per || limit.per == Per::Provider)
    };
    !before.limits.is_empty() && after.limits.iter().any(|limit| !has_usage(limit.per))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Environment, ProviderFile};

    fn provider(text: &str) -> Provider {
        let text = format!("name: x\ndomain: api.example.org\n{text}\n");
        let draft = ProviderFile::read("x.yaml", &text).unwrap();
        draft.check(&Environment::empty()).provider.unwrap()
    }

    #[test]
    fn a_change_that_lets_more_calls_through_is_logged() {
        let is_looser =
            |before: &str, after: &str| loosened(&provider(before), &provider(after)).is_some();
        let five = "limits: [5/1s, 100/1h]";
        for looser in [
            "limits: [6/1s, 100/1h]",
            "limits: [5/1s]",
            "limits: [5/1s, 100/1m]",
            "limits: [5/1s, {limit: 100, period: 1h, per: entity}]",
            "limits: [5/1s, 100/1h]\nenabled: false",
        ] {
            assert!(is_looser(five, looser), "{looser}");
        }
        for stricter in ["limits: [5/1s, 99/1h]", "limits: [5/2s, 100/1d]", five] {
            assert!(!is_looser(five, stricter), "{stricter}");
        }
        let four = format!("{five}\nconcurrency: 4");
        assert!(is_looser(&four, five) && !is_looser(five, &four));
        assert!(is_looser(&four, &format!("{five}\nconcurrency: 5")));
    }

    /// A change of anything but the number passed without a word: a burst of 500, a limit in shadow
    /// mode, slots that free when a call is sent.
    #[test]
    fn every_setting_that_lets_more_calls_through_is_logged() {
        let bucket = |rest: &str| {
            format!("limits: [{{limit: 5, period: 1s, algorithm: token-bucket, burst: 5{rest}}}]")
        };
        let own = |rest: &str| format!("limits: [{{limit: 5, period: 1s{rest}}}]");
        let with = |rest: &str| format!("limits: [5/1s]\n{rest}");
        for (strict, loose) in [
            (bucket(""), bucket("").replace("burst: 5", "burst: 500")),
            (own(""), bucket("")),
            (own(""), own(", algorithm: fixed-window")),
            (own(", algorithm: paced"), own("")),
            (own(""), own(", shadow: true")),
            (own(", headroom: 2"), own("")),
            (own(", reserve: 2"), own("")),
            (with("hold_until: response"), with("hold_until: arrived")),
            (with(""), with("hold_until: send")),
            (with(""), with("on_store_loss: open")),
            (
                with("on_store_loss: local-share"),
                with("on_store_loss: open"),
            ),
            (with(""), with("health: off")),
            (with(""), with("health: breaker")),
            (with(""), with("arrive_within: 1s")),
            (with("counter_lag: 1s"), with("")),
            (with(""), with("free_status: [404]")),
            (with("degrade: {below: 2, recover: 4}"), with("")),
            (
                with("concurrency: {limit: 4, low: 1}"),
                with("concurrency: {limit: 4, low: 3}"),
            ),
        ] {
            let change = |from: &str, to: &str| loosened(&provider(from), &provider(to));
            assert!(change(&strict, &loose).is_some(), "{strict} -> {loose}");
            assert_eq!(change(&strict, &strict), None);
        }
        let tighter = loosened(
            &provider(&with("")),
            &provider(&with("hold_until: response")),
        );
        assert_eq!(tighter, None);
        let both = loosened(
            &provider(&own("")),
            &provider(&format!("{}\nhealth: off", own(", shadow: true"))),
        );
        let both = both.unwrap_or_default();
        assert!(
            both.contains("looser") && both.contains("`health`"),
            "{both}"
        );
    }

    #[test]
    fn a_warning_is_given_only_for_a_key_without_history() {
        let warnings =
            |before: &str, after: &str| for_change(Some(&provider(before)), &provider(after)).len();
        assert_eq!(warnings("limits: [5/1s]", "limits: [9/1s]"), 0);
        assert_eq!(warnings("limits: [5/1s]", "limits: [5/2s]"), 0);
        let entity = "limits: [{limit: 5, period: 1s, per: entity}]";
        assert_eq!(warnings("limits: [5/1s]", entity), 0);
        assert_eq!(warnings(entity, "limits: [5/1s]"), 1);
        assert_eq!(for_change(None, &provider("limits: [5/1s]")).len(), 0);
    }
}
