//! Warnings about changes of a provider that do not take full effect at run time, or that let more
//! calls through.
//!
//! Promises: warns once, in the response to the change or in the log.
//!
//! Never: prevents a change.

use tollgate_config::Provider;
use tollgate_config::provider::{Limit, Per};

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
    if before.enabled && !after.enabled {
        return Some("limiting is off".to_owned());
    }
    let still_exists = |old: &Limit| {
        after.limits.iter().any(|new| {
            (new.per, &new.unit) == (old.per, &old.unit)
                && new.rule.limit() <= old.rule.limit()
                && new.rule.period() >= old.rule.period()
        })
    };
    if let Some(limit) = before.limits.iter().find(|limit| !still_exists(limit)) {
        return Some(format!("the limit {} is higher or gone", limit.name));
    }
    let most = |provider: &Provider| provider.concurrency.as_ref().map(|one| one.rule.limit());
    match (most(before), most(after)) {
        (Some(old), None) => Some(format!("the limit of {old} calls at a time is gone")),
        (Some(old), Some(new)) if new > old => {
            Some(format!("{new} calls at a time are allowed, {old} were"))
        }
        _ => None,
    }
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
