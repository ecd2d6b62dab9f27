//! What a node may do while the shared store cannot be reached.
//!
//! A node that has lost the store does not know what other nodes have granted or will grant. So it
//! stays closed until no earlier grant can matter, and then uses its own share of each limit.
//!
//! Promises: the shares of all nodes together never exceed the limit. No node uses its share before
//! the jointly counted calls have left their window: the lease (within which every node notices the
//! loss), the window, and the time for which a call may be late.
//!
//! Never: knows a store.

use crate::ask::{Evidence, Term, Terms};
use crate::time::Span;

/// How long a node may use its share after a store of many hosts has last confirmed its registration.
/// A node that was killed cannot be told from one that is cut off: after this time its share comes
/// back to the others.
pub const SHARE_MAX: Span = Span::from_secs(86_400);

/// The number of nodes, and how fast they notice a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeShare {
    /// How many nodes share the limits.
    pub nodes: u32,
    /// Within this time every node has noticed that the store is lost, or that it is back.
    pub lease: Span,
}

/// What a node may use of the limits of one ask.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// Nothing yet.
    Closed {
        /// The remaining closed time.
        remaining: Span,
    },
    /// Nothing: a limit is smaller than the number of nodes.
    Nothing,
    /// These reduced limits. When the store is back, the node must stay closed for `closed_after`.
    Reduced {
        /// The limits of the ask, each reduced to this node's share.
        terms: Box<Terms>,
        /// Until no grant made without the store can matter.
        closed_after: Span,
    },
}

impl NodeShare {
    /// This node's allowance under these limits, after the store has been lost for `lost_for`.
    #[must_use]
    pub fn allowance(self, terms: &[Term], evidence: Evidence, lost_for: Span) -> Allowance {
        let closed_after = terms
            .iter()
            .map(|term| self.closed_time(term, evidence))
            .max();
        let closed_after = closed_after.unwrap_or(Span::ZERO);
        if lost_for < closed_after {
            return Allowance::Closed {
                remaining: closed_after - lost_for,
            };
        }
        let nodes = u64::from(self.nodes.max(1));
        let cut = |term: &Term| {
            let rule = term.rule.node_share(self.nodes)?;
            Some(Term {
                rule: rule.into(),
                reserve: term.reserve / nodes,
                ..term.clone()
            })
        };
        match terms.iter().map(cut).collect::<Option<Terms>>() {
            Some(terms) => Allowance::Reduced {
                terms: Box::new(terms),
                closed_after,
            },
            None => Allowance::Nothing,
        }
    }

    /// How long this limit stays closed after the store was lost.
    fn closed_time(self, term: &Term, evidence: Evidence) -> Span {
        let (timeout, late) = match evidence {
            Evidence::Report { timeout, late } => (timeout, late),
            Evidence::None { use_within } => (use_within, Span::ZERO),
        };
        self.lease + term.rule.usage_expires_after().unwrap_or(timeout) + late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::CellId;
    use crate::limit::Rule;
    use smallvec::smallvec;

    const SHARE: NodeShare = NodeShare {
        nodes: 4,
        lease: Span::from_secs(5),
    };

    const EVIDENCE: Evidence = Evidence::Report {
        timeout: Span::from_secs(30),
        late: Span::from_secs(3),
    };

    fn term(rule: Rule) -> Term {
        Term {
            cell: CellId(1),
            rule: rule.drift_ppm(0).into(),
            cost: 1,
            reserve: 5,
        }
    }

    fn second() -> Term {
        term(Rule::sliding(35, Span::from_secs(1)).unwrap())
    }

    #[test]
    fn a_node_is_closed_for_lease_window_and_late_arrivals_and_then_has_its_share() {
        let terms: Terms = smallvec![second()];
        let allowance = |lost_for| SHARE.allowance(&terms, EVIDENCE, lost_for);
        let remaining = Span::from_secs(9);
        assert_eq!(allowance(Span::ZERO), Allowance::Closed { remaining });
        assert_eq!(
            allowance(remaining - Span(1)),
            Allowance::Closed { remaining: Span(1) }
        );
        let Allowance::Reduced {
            terms,
            closed_after,
        } = allowance(remaining)
        else {
            panic!("it has its share now")
        };
        assert_eq!((terms[0].rule.limit(), terms[0].reserve), (8, 1));
        assert_eq!(closed_after, remaining);
    }

    #[test]
    fn the_longest_window_of_a_call_decides() {
        let day = term(Rule::sliding(1_000, Span::from_secs(86_400)).unwrap());
        let terms: Terms = smallvec![second(), day];
        let allowance = SHARE.allowance(&terms, EVIDENCE, Span::from_secs(3_600));
        assert!(
            matches!(allowance, Allowance::Closed { .. }),
            "{allowance:?}"
        );
    }

    #[test]
    fn a_concurrency_limit_stays_closed_as_long_as_a_call_may_last() {
        let terms: Terms = smallvec![term(Rule::in_flight(8).unwrap())];
        let remaining = Span::from_secs(38);
        assert_eq!(
            SHARE.allowance(&terms, EVIDENCE, Span::ZERO),
            Allowance::Closed { remaining }
        );
    }

    #[test]
    fn a_limit_below_the_number_of_nodes_has_no_share() {
        let terms: Terms = smallvec![second(), term(Rule::in_flight(3).unwrap())];
        let allowance = SHARE.allowance(&terms, EVIDENCE, Span::from_secs(86_400));
        assert_eq!(allowance, Allowance::Nothing);
    }
}
