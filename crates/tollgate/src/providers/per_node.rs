//! A provider's limits divided by the number of nodes, where each node counts for itself.
//!
//! Promises: with a ledger in memory and `nodes: N`, every node grants at most ⌊limit / N⌋, so that
//! together they keep the limit without communication.
//!
//! Never: rounds up. A limit below N becomes zero, and Tollgate rejects calls under it.

use tollgate_config::Provider;

/// Divides the limits. Returns the name of one that becomes zero, if any.
pub(super) fn divide_limits(provider: &mut Provider, nodes: u32) -> Option<String> {
    let mut zero_limit = None;
    for limit in &mut provider.limits {
        match limit.rule.node_share(nodes) {
            Some(rule) => {
                limit.rule = rule;
                limit.reserve /= u64::from(nodes.max(1));
            }
            None => zero_limit = Some(limit.name.clone()),
        }
    }
    if let Some(concurrency) = &mut provider.concurrency {
        match concurrency.rule.node_share(nodes) {
            Some(rule) => {
                concurrency.low = concurrency.low.min(rule.limit());
                concurrency.rule = rule;
            }
            None => zero_limit = Some("concurrency".to_owned()),
        }
    }
    zero_limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Environment, ProviderFile};

    fn provider(rest: &str) -> Provider {
        let text = format!("name: x\ndomain: api.example.org\n{rest}");
        let draft = ProviderFile::read("x.yaml", &text).unwrap();
        draft.check(&Environment::empty()).provider.unwrap()
    }

    #[test]
    fn limits_are_divided_and_one_that_becomes_zero_is_reported() {
        let mut one = provider("limits: [{limit: 35, period: 1s, reserve: 9}]\nconcurrency: 6");
        assert_eq!(divide_limits(&mut one, 4), None);
        let limit = &one.limits[0];
        assert_eq!((limit.rule.limit(), limit.reserve), (8, 2));
        assert_eq!(one.concurrency.unwrap().rule.limit(), 1);
        let mut small = provider("limits: [35/1s, 3/1m]");
        assert_eq!(divide_limits(&mut small, 4).as_deref(), Some("3/1m"));
    }
}
