//! Calls that count as arrived before their response (`hold_until: arrived`).
//!
//! Promises: as in the product, the node says so once per attempt, `arrive_within` after the bytes
//! have left by its own clock, and only while there is no response.
//!
//! Never: knows whether the call has arrived.

use tollgate_core::ask::Outcome as Settled;
use tollgate_core::time::{Micros, Now};

use super::Governed;
use crate::rule::CallId;
use crate::world::{Effects, NodeId};

impl Governed {
    /// Settles every call of the node that must have arrived by now.
    pub(super) fn presume_arrivals(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        let in_flight = self.node(node).in_flight.iter();
        let due: Vec<CallId> = in_flight
            .filter(|(_, permit)| permit.presumed_at.is_some_and(|at| at <= now.at))
            .map(|(call, _)| *call)
            .collect();
        for call in due {
            let Some(mut permit) = self.node(node).in_flight.remove(&call) else {
                continue;
            };
            if let Some(at) = permit.presumed_at.take() {
                let age = now.at.since(at);
                self.settle(node, &permit, Settled::Presumed { age }, effects);
            }
            self.node(node).in_flight.insert(call, permit);
        }
    }

    /// When the next call must have arrived.
    pub(super) fn next_presumed(&self, node: NodeId) -> Option<Micros> {
        let in_flight = self.nodes.get(node.0)?.in_flight.values();
        in_flight.filter_map(|permit| permit.presumed_at).min()
    }
}
