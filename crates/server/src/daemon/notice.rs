//! What a new version of a provider cannot do while the process runs, said in words.
//!
//! Promises: says it once, in the answer to the change.
//!
//! Never: keeps anything from being obeyed.

use std::mem::{Discriminant, discriminant};

use tollgate_config::Provider;
use tollgate_config::provider::Per;
use tollgate_core::limit::Algorithm;
use tollgate_core::time::Span;

/// What the counts of a limit are kept under, beside its number, which may change.
type Identity = (Per, Span, Discriminant<Algorithm>);

/// What is to be said about a provider that has changed, or is new.
pub(super) fn of_change(before: Option<&Provider>, after: &Provider) -> Vec<String> {
    let mut said = Vec::new();
    let name = &after.name;
    if after.listen != before.and_then(|before| before.listen) {
        said.push(format!(
            "warning: `{name}`: `listen` takes effect only at the next start"
        ));
    }
    if before.is_some_and(|before| counts_anew(before, after)) {
        said.push(format!(
            "warning: `{name}`: a limit with another period, algorithm or `per` counts from now on; \
             what was used before the change is not counted in it"
        ));
    }
    said
}

/// A limit of the new version is none of the old one, and so has counted nothing yet.
fn counts_anew(before: &Provider, after: &Provider) -> bool {
    let old = identities(before);
    !old.is_empty() && identities(after).iter().any(|new| !old.contains(new))
}

fn identities(provider: &Provider) -> Vec<Identity> {
    let limits = provider.limits.iter();
    limits
        .map(|limit| {
            let algorithm = discriminant(limit.rule.algorithm());
            (limit.per, limit.rule.period(), algorithm)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Draft, World};

    fn provider(text: &str) -> Provider {
        let text = format!("name: x\ndomain: api.example.org\n{text}\n");
        let draft = Draft::read("x.yaml", &text).unwrap();
        draft.check(&World::empty()).provider.unwrap()
    }

    #[test]
    fn only_what_counts_anew_or_later_is_said() {
        let said =
            |before: &str, after: &str| of_change(Some(&provider(before)), &provider(after)).len();
        assert_eq!(said("limits: [5/1s]", "limits: [9/1s]"), 0);
        assert_eq!(said("limits: [5/1s, 9/1m]", "limits: [5/1s]"), 0);
        assert_eq!(said("limits: [5/1s]", "limits: [5/2s]"), 1);
        let bucket = "limits: [{limit: 5, period: 1s, algorithm: token-bucket}]";
        assert_eq!(said("limits: [5/1s]", bucket), 1);
        assert_eq!(
            said("limits: [5/1s]", "limits: [5/1s]\nlisten: 127.0.0.1:4301"),
            1
        );
        assert_eq!(of_change(None, &provider("limits: [5/1s]")).len(), 0);
    }
}
