//! A deliberately awkward compare-and-set store, with the network in front of it: the simulator's
//! networked ledger.
//!
//! Promises: it compares and replaces as a real one would, one request after the other, and does
//! nothing else for its clients. Everything else is against them: latency in both directions,
//! conflicts without a reason, requests, replies and wake-ups that are lost, late or repeated, a
//! clock that drifts and steps, and promotions to a copy that is behind and whose clock is wrong.
//! All of it follows from the seed.
//!
//! Never: understands a row.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use tollgate_core::ask::OwnerId;
use tollgate_core::replica::{Epoch, Reply, ReplyOutcome, Request, RowKey, StoredRow, Waiting};
use tollgate_core::time::{Micros, Span};

use crate::clock::NodeClock;
use crate::world::NodeId;

mod plan;
pub use plan::{Partition, Promotion, StorePlan};

/// What the network brings to a node.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The reply to one of its requests.
    Reply(Reply),
    /// Rows that another node has replaced, and who waits for them.
    Pushed(Vec<(RowKey, StoredRow)>, Waiting),
}

/// What the store has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that replaced rows.
    pub replaced: u64,
    /// Requests that found other versions, another epoch or another time.
    pub conflicts: u64,
}

/// The store and its network.
#[derive(Debug)]
pub struct SimulatedStore {
    plan: StorePlan,
    rows: BTreeMap<RowKey, StoredRow>,
    /// When rows are deleted unless they are replaced before, in true time.
    deletions: BTreeSet<(Micros, RowKey)>,
    delete_at: BTreeMap<RowKey, Micros>,
    epoch: u64,
    /// Who waits for a row, until when, and what it has noted.
    waiting: BTreeMap<RowKey, BTreeMap<NodeId, (Micros, Vec<u8>)>>,
    /// What each replacement replaced, for promotions to a copy that is behind.
    history: Vec<(Micros, RowKey, Option<StoredRow>)>,
    /// The nodes that use it.
    nodes: BTreeSet<NodeId>,
    requests: BTreeMap<(Micros, u64), (NodeId, Request)>,
    deliveries: BTreeMap<(NodeId, Micros, u64), Delivery>,
    seq: u64,
    dice: Rng,
    counts: StoreCounts,
}

impl SimulatedStore {
    /// An empty store.
    #[must_use]
    pub fn new(plan: StorePlan) -> SimulatedStore {
        SimulatedStore {
            rows: BTreeMap::new(),
            deletions: BTreeSet::new(),
            delete_at: BTreeMap::new(),
            epoch: 1,
            waiting: BTreeMap::new(),
            history: Vec::new(),
            nodes: BTreeSet::new(),
            requests: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            seq: 0,
            dice: Rng::with_seed(plan.seed ^ 0x5707e),
            counts: StoreCounts::default(),
            plan,
        }
    }

    /// What it has done.
    #[must_use]
    pub fn counts(&self) -> StoreCounts {
        self.counts
    }

    /// Its rows at true time `truth`; a test may damage them.
    pub fn rows_mut(&mut self, truth: Micros) -> &mut BTreeMap<RowKey, StoredRow> {
        self.delete_rows(truth);
        &mut self.rows
    }

    /// A request leaves a node at true time `truth`. Returns when it arrives.
    pub fn send(&mut self, node: NodeId, request: &Request, truth: Micros) -> Vec<Micros> {
        let mut arrivals = Vec::new();
        let mut partitions = self.plan.partitions.iter();
        if partitions.any(|one| one.loses_sent(node, truth)) {
            return arrivals;
        }
        if !self.chance(self.plan.lost_requests_ppm) {
            arrivals.push(truth + self.latency());
        }
        if self.chance(self.plan.repeated_ppm) {
            arrivals.push(truth + self.latency() + self.latency());
        }
        for &at in &arrivals {
            self.seq += 1;
            self.requests
                .insert((at, self.seq), (node, request.clone()));
        }
        arrivals
    }

    /// Handles everything that has arrived by `truth`. Returns who receives something, and when.
    pub fn advance(&mut self, truth: Micros) -> Vec<(NodeId, Micros)> {
        let mut wakes = Vec::new();
        while let Some(first) = self.requests.first_entry()
            && first.key().0 <= truth
        {
            let ((at, _), (node, request)) = first.remove_entry();
            self.promote_due(at);
            self.delete_rows(at);
            self.handle(node, &request, at, &mut wakes);
        }
        wakes
    }

    /// What a node has received by `truth`.
    pub fn receive(&mut self, node: NodeId, truth: Micros) -> Vec<Delivery> {
        let due = (node, Micros(0), 0)..=(node, truth, u64::MAX);
        let keys: Vec<_> = self.deliveries.range(due).map(|(key, _)| *key).collect();
        let received = keys.iter().filter_map(|key| self.deliveries.remove(key));
        received.collect()
    }

    /// When the next message arrives, at the store or at a node.
    #[must_use]
    pub fn next_message(&self) -> Option<Micros> {
        let requests = self.requests.keys().map(|(at, _)| *at);
        let deliveries = self.deliveries.keys().map(|(_, at, _)| *at);
        requests.take(1).chain(deliveries).min()
    }

    fn handle(
        &mut self,
        node: NodeId,
        request: &Request,
        at: Micros,
        wakes: &mut Vec<(NodeId, Micros)>,
    ) {
        self.counts.requests += 1;
        self.nodes.insert(node);
        let stored_at = self.plan.time_at(at);
        self.note(node, request, at);
        let matches = self.agrees(request, stored_at);
        let expected = request.expected.iter().map(|(id, _)| *id);
        let named: Vec<RowKey> = expected.chain(request.read.iter().copied()).collect();
        let outcome = if matches && !request.replace.is_empty() {
            self.counts.replaced += 1;
            self.replace(&request.replace, at);
            for id in &request.stops {
                if let Some(owners) = self.waiting.get_mut(id) {
                    owners.remove(&node);
                }
            }
            self.push(node, &request.replace, at, wakes);
            ReplyOutcome::Replaced
        } else {
            self.counts.conflicts += u64::from(!request.replace.is_empty());
            let rows = named.iter().map(|id| (*id, self.rows.get(id).cloned()));
            ReplyOutcome::Current(rows.collect())
        };
        let reply = Reply {
            batch: request.batch,
            stored_at,
            epoch: Epoch(self.epoch),
            outcome,
            waiting: self.waiting(named.iter().copied(), at),
        };
        self.deliver(node, at, Delivery::Reply(reply), wakes);
    }

    /// Notes what a node waits for.
    fn note(&mut self, node: NodeId, request: &Request, at: Micros) {
        for (id, note) in &request.waits {
            let owners = self.waiting.entry(*id).or_default();
            owners.insert(node, (at + note.lasts, note.bytes.clone()));
        }
    }

    fn waiting(&self, rows: impl Iterator<Item = RowKey>, at: Micros) -> Waiting {
        let owners = |id: RowKey| {
            let noted = self.waiting.get(&id).into_iter().flatten();
            let noted = noted.filter(|(_, (until, _))| *until > at);
            noted
                .map(|(node, (_, bytes))| (owner_of(*node), bytes.clone()))
                .collect()
        };
        rows.map(|id| (id, owners(id))).collect()
    }

    /// Sends new rows to the nodes that wait for any of them, and those of scopes to all.
    fn push(
        &mut self,
        from: NodeId,
        rows: &[(RowKey, StoredRow)],
        at: Micros,
        wakes: &mut Vec<(NodeId, Micros)>,
    ) {
        let waiting = self.waiting(rows.iter().map(|(id, _)| *id), at);
        let owners = waiting.iter().flat_map(|(_, owners)| owners);
        let waiters =
            owners.map(|(owner, _)| NodeId(usize::try_from(owner.0).unwrap_or(usize::MAX)));
        let mut nodes: BTreeSet<NodeId> = waiters.collect();
        if rows.iter().any(|(id, _)| matches!(id, RowKey::Scope(_))) {
            nodes.extend(&self.nodes);
        }
        for node in nodes.into_iter().filter(|node| *node != from) {
            let pushed = Delivery::Pushed(rows.to_vec(), waiting.clone());
            self.deliver(node, at, pushed, wakes);
        }
    }

    fn agrees(&mut self, request: &Request, stored_at: Micros) -> bool {
        let versions = request
            .expected
            .iter()
            .all(|(id, version)| self.rows.get(id).map(|row| row.version) == *version);
        let epoch = request.epoch.is_none_or(|epoch| epoch.0 == self.epoch);
        let time = request
            .time
            .is_none_or(|(from, to)| (from..=to).contains(&stored_at));
        versions && epoch && time && !self.chance(self.plan.conflict_ppm)
    }

    fn replace(&mut self, rows: &[(RowKey, StoredRow)], at: Micros) {
        for (id, row) in rows {
            self.delete_later(*id, row.keep_for.map(|span| at + span));
            let old = self.rows.insert(*id, row.clone());
            if !self.plan.promotions.is_empty() {
                self.history.push((at, *id, old));
            }
        }
    }

    fn delete_later(&mut self, id: RowKey, delete_at: Option<Micros>) {
        if let Some(before) = self.delete_at.remove(&id) {
            self.deletions.remove(&(before, id));
        }
        if let Some(at) = delete_at {
            self.delete_at.insert(id, at);
            self.deletions.insert((at, id));
        }
    }

    /// Deletes the rows whose time is over.
    fn delete_rows(&mut self, truth: Micros) {
        while let Some(&(at, id)) = self.deletions.first()
            && at <= truth
        {
            self.delete_later(id, None);
            self.rows.remove(&id);
        }
    }

    fn deliver(
        &mut self,
        node: NodeId,
        at: Micros,
        delivery: Delivery,
        wakes: &mut Vec<(NodeId, Micros)>,
    ) {
        let lost_ppm = match delivery {
            Delivery::Reply(_) => self.plan.lost_replies_ppm,
            Delivery::Pushed(..) => self.plan.lost_pushes_ppm,
        };
        if self.chance(lost_ppm) {
            return;
        }
        let at = at + self.latency();
        let mut partitions = self.plan.partitions.iter();
        if partitions.any(|one| one.loses_received(node, at)) {
            return;
        }
        self.seq += 1;
        self.deliveries.insert((node, at, self.seq), delivery);
        wakes.push((node, at));
    }

    /// Another host takes over: its copy lacks what was written last, or everything. What was written
    /// is remembered only if the plan has promotions.
    pub fn promote(&mut self, next: Promotion) {
        self.plan.ahead += next.ahead_us;
        self.epoch += 1;
        if next.is_wiped {
            self.rows.clear();
        }
        while let Some((_, id, old)) = self
            .history
            .pop_if(|(at, _, _)| *at + next.behind > next.at)
        {
            match old {
                Some(row) => self.rows.insert(id, row),
                None => self.rows.remove(&id),
            };
        }
    }

    /// The promotions of the plan.
    fn promote_due(&mut self, truth: Micros) {
        while let Some(next) = self.plan.promotions.first().copied()
            && next.at <= truth
        {
            self.plan.promotions.remove(0);
            self.promote(next);
        }
    }

    fn latency(&mut self) -> Span {
        let (least, most) = self.plan.one_way;
        let usual = Span(self.dice.u64(least.0..=most.0.max(least.0)));
        if self.chance(self.plan.late_ppm) {
            usual + Span(self.dice.u64(0..=self.plan.late.0))
        } else {
            usual
        }
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.dice.u32(0..1_000_000) < ppm
    }
}

fn owner_of(node: NodeId) -> OwnerId {
    OwnerId(u32::try_from(node.0).unwrap_or(u32::MAX))
}

impl StorePlan {
    /// What the store's clock shows.
    #[must_use]
    pub fn time_at(&self, truth: Micros) -> Micros {
        let wall = self.clock.read(truth).wall.0;
        Micros(wall.saturating_add_signed(self.ahead))
    }
}

/// A clock that keeps true time, from the start of the worlds' calendar on.
#[must_use]
pub fn exact_clock() -> NodeClock {
    NodeClock {
        wall_start: tollgate_core::time::Wall(1_772_323_170_000_000),
        ..NodeClock::default()
    }
}
