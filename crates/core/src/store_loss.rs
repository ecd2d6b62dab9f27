//! What a node may do while the common count cannot be reached.
//!
//! A node that has lost the store knows neither what others have granted nor what they will. So it
//! is closed until nothing granted before can matter any more, and then goes on with its part.
//!
//! Promises: the parts of all nodes are never above the limit, and no part is used before what was
//! counted together has left its window: the lease (others notice the loss within it), the window,
//! and the time for which a call may be late.
//!
//! Never: knows a store.

use crate::ask::{Evidence, Term, Terms};
use crate::time::Span;

/// One of so many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeShare {
    /// How many share the limits.
    pub nodes: u32,
    /// Within this time every node has noticed that the store is lost, or that it is back.
    pub lease: Span,
}

/// What a node has of the limits of one ask.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// Not yet anything.
    Closed {
        /// For how much longer.
        remaining: Span,
    },
    /// Nothing: a limit is smaller than the number of nodes.
    Nothing,
    /// These, and once the store is back it must stay closed for so long.
    Reduced {
        /// The limits of the ask, each cut to this node's part.
        terms: Box<Terms>,
        /// Until what was granted without the store cannot matter any more.
        closed_after: Span,
    },
}

impl NodeShare {
    /// This node's part of these limits, when the store has been lost for so long.
    #[must_use]
    pub fn allowance(self, terms: &[Term], evidence: Evidence, lost_for: Span) -> Allowance {
        let rest = terms
            .iter()
            .map(|term| self.closed_time(term, evidence))
            .max();
        let rest = rest.unwrap_or(Span::ZERO);
        if lost_for < rest {
            return Allowance::Closed {
                remaining: rest - lost_for,
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
                closed_after: rest,
            },
            None => Allowance::Nothing,
        }
    }

    /// How long nothing of this limit may be used after the common count was left.
    fn closed_time(self, term: &Term, evidence: Evidence) -> Span {
        let (by, late) = match evidence {
            Evidence::Report { timeout: by, late } => (by, late),
            Evidence::None { use_within } => (use_within, Span::ZERO),
        };
        self.lease + term.rule.usage_expires_after().unwrap_or(by) + late
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
        let part = |lost_for| SHARE.allowance(&terms, EVIDENCE, lost_for);
        let left = Span::from_secs(9);
        assert_eq!(part(Span::ZERO), Allowance::Closed { remaining: left });
        assert_eq!(
            part(left - Span(1)),
            Allowance::Closed { remaining: Span(1) }
        );
        let Allowance::Reduced {
            terms,
            closed_after: rest,
        } = part(left)
        else {
            panic!("it has its part now")
        };
        assert_eq!((terms[0].rule.limit(), terms[0].reserve), (8, 1));
        assert_eq!(rest, left);
    }

    #[test]
    fn the_longest_window_of_a_call_decides() {
        let day = term(Rule::sliding(1_000, Span::from_secs(86_400)).unwrap());
        let terms: Terms = smallvec![second(), day];
        let part = SHARE.allowance(&terms, EVIDENCE, Span::from_secs(3_600));
        assert!(matches!(part, Allowance::Closed { .. }), "{part:?}");
    }

    #[test]
    fn a_concurrency_limit_stays_closed_as_long_as_a_call_may_last() {
        let terms: Terms = smallvec![term(Rule::in_flight(8).unwrap())];
        let left = Span::from_secs(38);
        assert_eq!(
            SHARE.allowance(&terms, EVIDENCE, Span::ZERO),
            Allowance::Closed { remaining: left }
        );
    }

    #[test]
    fn a_limit_below_the_number_of_nodes_has_no_share() {
        let terms: Terms = smallvec![second(), term(Rule::in_flight(3).unwrap())];
        let part = SHARE.allowance(&terms, EVIDENCE, Span::from_secs(86_400));
        assert_eq!(part, Allowance::Nothing);
    }
}
