//! Warnings about changes of a provider that do not take full effect at run time.
//!
//! Promises: warns once, in the response to the change.
//!
//! Never: prevents a change.

use tollgate_config::Provider;
use tollgate_config::provider::Per;

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
    warnings
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
