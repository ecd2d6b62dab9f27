//! The rows of Tollgate: the real gate and turn, one row per algorithm.
//!
//! Promises: each row applies the limit as it is configured for that column, N and W, drift
//! included; nothing is tuned to a column beyond choosing the algorithm.
//!
//! Never: counts anything itself.

use tollgate_core::limit::{Rule, RuleError};
use tollgate_core::time::Span;

use crate::governed::{Governed, GovernedPlan};
use crate::rule::Counting;

use super::Row;

/// Waiting calls per node: more than any column grants at once.
const BACKLOG: usize = 200;

/// The rows of Tollgate.
#[must_use]
pub fn rows() -> Vec<Row> {
    vec![
        row("**Tollgate sliding-window (A)**", |limit, window, _| {
            Rule::sliding(limit, window)
        }),
        row(
            "Tollgate sliding-window, 4 nodes, one ledger",
            |limit, window, _| Rule::sliding(limit, window),
        )
        .with_nodes(4),
        row("**Tollgate paced**", |limit, window, _| {
            Rule::paced(limit, window)
        }),
        for_buckets("**Tollgate token-bucket (B)**"),
        for_buckets("Tollgate token-bucket, 4 nodes, one ledger").with_nodes(4),
        row(
            "**Tollgate fixed-window** (first-use)",
            |limit, window, counting| match counting {
                Counting::FirstUse { .. } => Rule::fixed(limit, window),
                _ => Err(RuleError::Period),
            },
        ),
    ]
}

/// A row for every column whose rule can be built; the third argument is the provider's way of
/// counting.
fn row(name: &str, rule: impl Fn(u64, Span, Counting) -> Result<Rule, RuleError> + 'static) -> Row {
    Row::new(name, move |column| {
        let counting = column.rule.counting;
        let rule = rule(counting.limit(), counting.window()?, counting).ok()?;
        Some(Box::new(Governed::new(
            GovernedPlan::new(vec![rule]).saturating(BACKLOG),
        )))
    })
}

/// A row for columns with a token bucket only; a bucket that ticks gets less depth.
fn for_buckets(name: &str) -> Row {
    row(name, |limit, window, counting| match counting {
        Counting::Bucket { burst, tick, .. } => {
            let rule = Rule::bucket(limit, window, burst)?;
            tick.map_or(Ok(rule.clone()), |tick| rule.refill_tick(tick))
        }
        _ => Err(RuleError::Burst),
    })
}
