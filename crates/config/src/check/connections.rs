//! How many connections an upstream gets.
//!
//! Promises: by default connections do not limit a provider whose responses are slow: there are as
//! many as its limits let run at a time if every call takes as long as it may, within bounds.
//!
//! A number that nobody has written may grow at run time.
//!
//! Never: overrides a number that is written.

use tollgate_core::ask::CostUnit;
use tollgate_core::time::Span;

use crate::field::Fields;
use crate::problem::Problems;
use crate::provider::{Limit, Per};

/// Without limits nothing says how many are needed: what browsers and proxies allow.
const LEAST: u64 = 32;

/// A connection with TLS takes up to 64 KiB, so this is 32 MiB for a provider that uses all of
/// them, and half of the file descriptors that a process has by default.
const MOST: u64 = 512;

/// The connections of a provider, and whether they may become more at run time.
pub(super) fn connections(
    fields: &Fields<'_>,
    limits: &[Limit],
    first_byte: Span,
    problems: &mut Problems,
) -> (u64, bool) {
    let written: Option<u64> = fields.read("connections", problems);
    let by_limits = || at_a_time(limits, first_byte).clamp(LEAST, MOST);
    (written.unwrap_or_else(by_limits), written.is_none())
}

/// How many calls the limits let run at a time if each takes `first_byte`. The limits of parts of
/// the provider count where there is none of all of it.
fn at_a_time(limits: &[Limit], first_byte: Span) -> u64 {
    let counts_calls =
        |limit: &&Limit| limit.rule.cost_unit() == CostUnit::Calls && !limit.rule.is_shadow();
    let most = |limit: &Limit| {
        let windows = first_byte.0.div_ceil(limit.rule.period().0.max(1)) + 1;
        limit
            .rule
            .max_cost()
            .max(limit.rule.limit())
            .saturating_mul(windows)
    };
    let calls = || limits.iter().filter(counts_calls);
    let of_all = calls().filter(|limit| limit.per == Per::Provider);
    let lowest = of_all.map(most).min();
    lowest.or_else(|| calls().map(most).max()).unwrap_or(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::limit::Rule;

    fn limit(count: u64, secs: u64, per: Per) -> Limit {
        Limit {
            name: "x".to_owned(),
            rule: Rule::sliding(count, Span::from_secs(secs)).unwrap(),
            per,
            reserve: 0,
            unit: "calls".to_owned(),
        }
    }

    #[test]
    fn slow_responses_are_not_capped_by_connections() {
        let most = |limits: &[Limit]| at_a_time(limits, Span::from_secs(30));
        assert_eq!(most(&[]), LEAST);
        assert_eq!(most(&[limit(40, 10, Per::Provider)]), 160);
        assert_eq!(most(&[limit(60, 60, Per::Provider)]), 120);
        let both = [
            limit(40, 10, Per::Provider),
            limit(1_000, 60, Per::Provider),
        ];
        assert_eq!(most(&both), 160, "the lower limit decides");
        let of_parts = [limit(5, 60, Per::Entity), limit(40, 10, Per::Entity)];
        assert_eq!(most(&of_parts), 160);
    }
}
