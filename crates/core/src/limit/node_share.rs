//! One node's share of a limit, for a node that has lost the shared store.
//!
//! Promises: the shares of all nodes together never exceed the limit.
//!
//! Never: rounds up. A limit that is smaller than the number of nodes has no share.

use crate::limit::{Algorithm, Rule};
use crate::time::Span;

/// What nodes that may have lost the store may use of a limit meanwhile: nobody else does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LentShares {
    /// Of N.
    pub(crate) limit: u64,
    /// Of what can be taken at once: of the depth of a bucket, and of N elsewhere.
    pub(crate) depth: u64,
}

impl LentShares {
    /// One more of this limit's shares.
    pub(crate) fn add(&mut self, share: &Rule) {
        self.limit = self.limit.saturating_add(share.limit());
        self.depth = self.depth.saturating_add(share.max_cost());
    }
}

impl Rule {
    /// The same limit for one of `nodes` nodes; `None` if that is nothing.
    #[must_use]
    pub fn node_share(&self, nodes: u32) -> Option<Rule> {
        if self.is_learned() {
            // Each node learns it from its own responses, which count the calls of all.
            return Some(self.clone());
        }
        let nodes = u64::from(nodes.max(1));
        let burst = match self.algorithm() {
            Algorithm::Bucket { burst, .. } => Some(burst / nodes),
            Algorithm::Sliding { .. }
            | Algorithm::Fixed { .. }
            | Algorithm::Calendar(_)
            | Algorithm::Paced { .. }
            | Algorithm::InFlight => None,
        };
        let limit = self.limit() / nodes;
        (limit > 0 && burst != Some(0)).then(|| self.resized(limit, burst))
    }

    /// How long after its arrival a call can matter: after this time without calls the whole limit
    /// is free. A concurrency limit has no such time; it depends on how long a call lasts.
    #[must_use]
    pub fn usage_expires_after(&self) -> Option<Span> {
        let period = self.period();
        match self.algorithm() {
            // A bucket refills at its rate, however deep it is.
            Algorithm::Bucket { burst, .. } => {
                let depth = period.scale_up(*burst, self.limit());
                Some(self.stretched(depth.max(period)))
            }
            Algorithm::Sliding { .. }
            | Algorithm::Fixed { .. }
            | Algorithm::Calendar(_)
            | Algorithm::Paced { .. } => Some(self.stretched(period)),
            Algorithm::InFlight => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_shares_are_rounded_down_and_may_be_zero() {
        let of = |limit: u64, nodes| {
            let rule = Rule::sliding(limit, Span::from_secs(1)).unwrap();
            rule.node_share(nodes).map(|part| part.limit())
        };
        assert_eq!((of(35, 4), of(4, 4), of(3, 4)), (Some(8), Some(1), None));
        assert_eq!((of(35, 1), of(35, 0)), (Some(35), Some(35)));
        let bucket = Rule::bucket(50, Span::from_secs(1), 9).unwrap();
        assert_eq!(bucket.node_share(4).map(|part| part.max_cost()), Some(2));
        assert_eq!(bucket.node_share(10), None, "a depth of nothing");
    }

    #[test]
    fn usage_of_a_deep_bucket_expires_after_more_than_its_period() {
        let span = Span::from_secs;
        let after = |rule: Rule| rule.drift_ppm(0).usage_expires_after();
        assert_eq!(after(Rule::sliding(5, span(10)).unwrap()), Some(span(10)));
        let bucket = |burst| Rule::bucket(10, span(1), burst).unwrap();
        assert_eq!(after(bucket(100)), Some(span(10)));
        assert_eq!(after(bucket(1)), Some(span(1)));
        assert_eq!(after(Rule::in_flight(4).unwrap()), None);
    }
}
