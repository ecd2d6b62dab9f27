//! The nodes' replicas and the networked store between them.
//!
//! Promises: a node learns of the store only what the network brings to it, on its own clock.
//!
//! Never: decides. The replicas do.

use tollgate_core::ask::{Ask, OwnerId, Settle};
use tollgate_core::replica::{PastUse, Replica, ReplicaActions, ReplicaSettings};
use tollgate_core::time::{Micros, Now};

use crate::row_store::{Delivery, SimulatedStore, StoreCounts, StorePlan};
use crate::world::{Effects, NodeId};

/// One replica per node, and the store.
#[derive(Debug)]
pub(super) struct Network {
    plan: StorePlan,
    store: SimulatedStore,
    replicas: Vec<Replica>,
}

impl Network {
    pub(super) fn new(plan: StorePlan) -> Network {
        Network {
            store: SimulatedStore::new(plan.clone()),
            replicas: Vec::new(),
            plan,
        }
    }

    pub(super) fn counts(&self) -> StoreCounts {
        self.store.counts()
    }

    pub(super) fn offer(&mut self, node: NodeId, asks: Vec<Ask>, now: Micros) {
        self.replica(node).offer(asks, now);
    }

    pub(super) fn settle(&mut self, node: NodeId, settle: Settle, now: Micros) {
        self.replica(node).settle(settle, now);
    }

    /// Brings a node what has arrived, and sends what it wants to send.
    pub(super) fn exchange(
        &mut self,
        node: NodeId,
        now: Now,
        effects: &mut Effects<'_>,
    ) -> ReplicaActions {
        let truth = effects.truth();
        let wake = |(node, at): (NodeId, Micros), effects: &mut Effects<'_>| {
            effects.nudge(node, at.since(truth));
        };
        for arrival in self.store.advance(truth) {
            wake(arrival, effects);
        }
        for delivery in self.store.receive(node, truth) {
            match delivery {
                Delivery::Reply(reply) => self.replica(node).reply(reply, now.at),
                Delivery::Pushed(rows, waiting) => {
                    self.replica(node).pushed(&rows, &waiting, now.at);
                }
            }
        }
        let mut actions = self.replica(node).poll(now);
        if let Some(request) = actions.send.take() {
            for at in self.store.send(node, &request, truth) {
                wake((node, at), effects);
            }
        }
        actions
    }

    fn replica(&mut self, node: NodeId) -> &mut Replica {
        while self.replicas.len() <= node.0 {
            let number = u32::try_from(self.replicas.len()).unwrap_or(u32::MAX);
            let replica = Replica::new(ReplicaSettings {
                owner: OwnerId(number),
                process: self.plan.seed ^ (u64::from(number) << 32) ^ 0x9e37,
                deadline: self.plan.deadline,
                durable: self.plan.durable,
                rules: self.plan.rules,
            });
            let replica = replica.used_before(match self.plan.knew_provider {
                true => PastUse::Unnamed,
                false => PastUse::Never,
            });
            self.replicas.push(replica);
        }
        &mut self.replicas[node.0]
    }
}
