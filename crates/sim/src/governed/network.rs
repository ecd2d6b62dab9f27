//! The nodes' replicas and the networked store between them, and when a node has lost it.
//!
//! Promises: a node learns of the store only what the network brings to it, on its own clock.
//!
//! Never: decides. The replicas do.

use tollgate_core::ask::{Ask, OwnerId, Settle};
use tollgate_core::replica::{
    PastUse, Replica, ReplicaActions, ReplicaSettings, Request, RowKey, ShareRegistration,
};
use tollgate_core::store_loss::{NodeShare, SHARE_MAX};
use tollgate_core::time::{Micros, Now, Span};

use crate::row_store::{Delivery, SimulatedStore, StoreCounts, StorePlan};
use crate::world::{Effects, NodeId};

/// Without any reply for so long a node has lost the store.
const LOST_AFTER: Span = Span::from_secs(2);

/// A node that has lost it tries again this often.
const TRIAL: Span = Span::from_millis(500);

/// The number of a request that only tries whether the store is there.
const TRIAL_BATCH: u64 = u64::MAX;

/// One replica per node, and the store.
#[derive(Debug)]
pub(super) struct Network {
    plan: StorePlan,
    share: Option<NodeShare>,
    store: SimulatedStore,
    replicas: Vec<Replica>,
    losses: Vec<StoreLoss>,
}

/// What a node knows of its connection, as the driver of a networked ledger does.
#[derive(Clone, Copy, Debug, Default)]
struct StoreLoss {
    /// The request without a reply.
    awaits: Option<u64>,
    failing_since: Option<Micros>,
    lost_since: Option<Micros>,
    tried_at: Micros,
    /// It has lost the store, or has it again, since the last exchange.
    has_changed: bool,
}

impl Network {
    pub(super) fn new(plan: StorePlan, share: Option<NodeShare>) -> Network {
        Network {
            store: SimulatedStore::new(plan.clone()),
            replicas: Vec::new(),
            losses: Vec::new(),
            plan,
            share,
        }
    }

    /// Since when this node has lost the store, and whether it may use its share.
    pub(super) fn loss(&self, node: NodeId, now: Micros) -> Option<(Micros, bool)> {
        let since = self.losses.get(node.0)?.lost_since?;
        let registered_at = self.replicas.get(node.0)?.registered_at();
        Some((since, registered_at.is_some_and(|at| now < at + SHARE_MAX)))
    }

    /// Has the node lost the store, or has it again, since somebody asked?
    pub(super) fn take_change(&mut self, node: NodeId) -> bool {
        let loss = self.losses.get_mut(node.0);
        loss.is_some_and(|loss| std::mem::take(&mut loss.has_changed))
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
                Delivery::Reply(reply) => {
                    self.replied(node, reply.batch, now.at);
                    self.replica(node).reply(reply, now.at);
                }
                Delivery::Pushed(rows, waiting) => {
                    self.replica(node).pushed(&rows, &waiting, now.at);
                }
            }
        }
        let mut actions = self.replica(node).poll(now);
        let mut requests: Vec<Request> = actions.send.take().into_iter().collect();
        if self.share.is_some() {
            let sent = requests.first().map(|request| request.batch);
            let trial = self.watch(node, sent, now.at);
            if let Some(due) = trial {
                actions.wake_at = actions.wake_at.into_iter().chain([due]).min();
            }
            if trial.is_some() && self.losses[node.0].tried_at == now.at {
                requests.push(Request {
                    owner: self.replica(node).owner(),
                    batch: TRIAL_BATCH,
                    read: vec![RowKey::Provider],
                    ..Request::default()
                });
            }
        }
        for request in requests {
            for at in self.store.send(node, &request, truth) {
                wake((node, at), effects);
            }
        }
        actions
    }

    fn replied(&mut self, node: NodeId, batch: u64, now: Micros) {
        self.replica(node);
        let loss = &mut self.losses[node.0];
        if loss.awaits != Some(batch) && batch != TRIAL_BATCH {
            return;
        }
        (loss.awaits, loss.failing_since) = (None, None);
        loss.has_changed |= loss.lost_since.take().is_some();
        self.replicas[node.0].set_cut_off(false, now);
    }

    /// Watches the requests of a node. Returns when the next trial is due, if the store is lost: now, if
    /// one is to be sent.
    fn watch(&mut self, node: NodeId, sent: Option<u64>, now: Micros) -> Option<Micros> {
        let deadline = self.plan.deadline;
        let replica = &mut self.replicas[node.0];
        let loss = &mut self.losses[node.0];
        if loss.awaits.is_some() && replica.awaits() != loss.awaits {
            let since = *loss.failing_since.get_or_insert(now - deadline);
            if loss.lost_since.is_none() && now >= since + LOST_AFTER {
                (loss.lost_since, loss.has_changed) = (Some(now), true);
                replica.drop_asks(now);
                replica.set_cut_off(true, now);
            }
            loss.awaits = None;
        }
        loss.awaits = sent.or(loss.awaits);
        loss.lost_since?;
        if now >= loss.tried_at + TRIAL {
            loss.tried_at = now;
        }
        Some(loss.tried_at + TRIAL)
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
            let mut replica = replica;
            replica.register_share(self.share.map(|share| ShareRegistration {
                node: u64::from(number),
                nodes: share.nodes,
                lease: share.lease,
            }));
            self.replicas.push(replica);
            self.losses.push(StoreLoss::default());
        }
        &mut self.replicas[node.0]
    }
}
