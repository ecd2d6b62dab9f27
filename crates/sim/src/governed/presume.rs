//! Calls that count as arrived before their response (`hold_until: arrived`, ADR 0031).
//!
//! Promises: as in the product, the node asks its kernel whether the peer has acknowledged all bytes
//! of a call, first half of `arrive_within` after they have left and then each quarter. The call
//! counts as arrived `arrive_within` after they have left and half of it after they were seen to be
//! acknowledged, whichever is later, by the node's own clock, once, and only while there is no
//! response.
//!
//! Never: knows whether the call has arrived.

use tollgate_core::ask::Outcome as Settled;
use tollgate_core::time::{Micros, Now, Span};

use super::Governed;
use crate::rule::CallId;
use crate::world::{Effects, NodeId};

/// How a call without a response comes to count as arrived, on its node's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Presumption {
    within: Span,
    sent_at: Micros,
    acknowledged: Option<Micros>,
    /// When to look, or to report.
    next: Micros,
}

impl Presumption {
    pub(super) fn new(within: Span, sent_at: Micros) -> Presumption {
        Presumption {
            within,
            sent_at,
            acknowledged: None,
            next: sent_at + Span(within.0 / 2),
        }
    }

    /// Looks, and returns since when the call counts as arrived, if it does.
    fn look(&mut self, now: Micros, is_acknowledged: bool) -> Option<Micros> {
        let half = Span(self.within.0 / 2);
        if self.acknowledged.is_none() && is_acknowledged {
            self.acknowledged = Some(now);
        }
        let Some(seen) = self.acknowledged else {
            self.next = now + Span((self.within.0 / 4).max(1));
            return None;
        };
        self.next = (self.sent_at + self.within).max(seen + half);
        (now >= self.next).then_some(self.next)
    }
}

impl Governed {
    /// Settles every call of the node that must have arrived by now.
    pub(super) fn presume_arrivals(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        let in_flight = self.node(node).in_flight.iter();
        let due: Vec<CallId> = in_flight
            .filter(|(_, permit)| permit.presumption.is_some_and(|one| one.next <= now.at))
            .map(|(call, _)| *call)
            .collect();
        for call in due {
            let Some(mut permit) = self.node(node).in_flight.remove(&call) else {
                continue;
            };
            let is_acknowledged = effects.is_acknowledged(call);
            let looks = permit.presumption.as_mut();
            if let Some(at) = looks.and_then(|one| one.look(now.at, is_acknowledged)) {
                permit.presumption = None;
                let age = now.at.since(at);
                self.settle(node, &permit, Settled::Presumed { age }, effects);
            }
            self.node(node).in_flight.insert(call, permit);
        }
    }

    /// When to look next at a call of the node.
    pub(super) fn next_presumed(&self, node: NodeId) -> Option<Micros> {
        let in_flight = self.nodes.get(node.0)?.in_flight.values();
        let looks = in_flight.filter_map(|permit| permit.presumption);
        looks.map(|one| one.next).min()
    }
}
