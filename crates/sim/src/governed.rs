//! Tollgate's decisions in a virtual world: the core's gate and turn, on any number of nodes that
//! share one ledger.
//!
//! Promises: decides nothing itself. Every permit comes from `tollgate_core`; this file only passes
//! effects between the gate, the ledger and the network, with the delays and cancellations of a
//! real process.
//!
//! Never: lets a node see the provider, or the ledger see a node's clock: the ledger runs on the
//! clock of node 0, and nodes exchange only ages and delays.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use tollgate_core::ask::Outcome as Settled;
use tollgate_core::ask::{
    Ask, CellId, CostUnit, Evidence, LimitReading, Marks, OwnerId, PermitId, Priority, Scopes,
    Settle, Term, Terms, Verdict,
};
use tollgate_core::gate::{CallerId, Gate, QueuedCall, Resolution, Resolved};
use tollgate_core::limit::{Rule, Strictness};
use tollgate_core::time::{Micros, Now, Span};
use tollgate_core::turn::turn;

use crate::checker::Priority as CheckerPriority;
use crate::row_store::StoreCounts;
use crate::rule::{CallId, LimitStatus, Unit as SimUnit};
use crate::world::{Call, Client, Effects, NodeId, Outcome};

mod client;
mod local_share;
mod network;
mod plan;
mod presume;
mod store;
use local_share::LocalLedger;
use network::Network;
pub use plan::{GovernedPlan, Limit, RuleChange};
use presume::Presumption;
use store::RestoringTable;

/// Nodes that share one ledger.
#[derive(Debug)]
pub struct Governed {
    plan: GovernedPlan,
    cells: Vec<(CellId, Arc<Rule>)>,
    store: RestoringTable,
    network: Option<Network>,
    nodes: Vec<Node>,
    calls: u64,
    dice: Rng,
    /// Calls that were never sent, and why.
    rejected: Vec<(CallId, Resolution)>,
    cancelled: u64,
    limited: Vec<(CallId, usize)>,
    /// How long each permit was waited for, if the plan says so.
    waits: Vec<Span>,
}

#[derive(Debug)]
struct Node {
    gate: Gate,
    sent: u64,
    seq: u64,
    /// Calls without a permit, and since when.
    waiting: BTreeMap<PermitId, (Call, Micros)>,
    in_flight: BTreeMap<CallId, Permit>,
    /// The head of the response has arrived, the body has not.
    streaming: BTreeMap<CallId, Vec<Permit>>,
    /// Verdicts of the ledger that have not reached this node yet.
    verdicts: Option<(Micros, Vec<(PermitId, Verdict)>)>,
    /// Limits that were reconfigured.
    rules: BTreeMap<usize, Arc<Rule>>,
    /// What it counts alone while it has lost the store.
    local: LocalLedger,
}

#[derive(Debug)]
struct Permit {
    id: PermitId,
    terms: Terms,
    marks: Marks,
    seniority: u64,
    /// How the call comes to count as arrived without a response.
    presumption: Option<Presumption>,
}

impl Governed {
    /// Nodes with this plan, and an empty ledger.
    #[must_use]
    pub fn new(plan: GovernedPlan) -> Governed {
        let cells = plan.limits.iter().enumerate().map(|(index, limit)| {
            (
                CellId::named(&["sim", &index.to_string()]),
                Arc::new(limit.rule.clone()),
            )
        });
        Governed {
            cells: cells.collect(),
            store: RestoringTable::new(plan.restore_ppm, plan.seed),
            network: plan
                .network
                .clone()
                .map(|store| Network::new(store, plan.local_share)),
            nodes: Vec::new(),
            calls: 0,
            dice: Rng::with_seed(plan.seed),
            rejected: Vec::new(),
            cancelled: 0,
            limited: Vec::new(),
            waits: Vec::new(),
            plan,
        }
    }

    /// Calls that Tollgate rejected, and why.
    #[must_use]
    pub fn rejected(&self) -> &[(CallId, Resolution)] {
        &self.rejected
    }

    /// Calls that were cancelled while they waited.
    #[must_use]
    pub fn cancelled(&self) -> u64 {
        self.cancelled
    }

    /// Calls that the provider limited, and the rule that did.
    #[must_use]
    pub fn limited(&self) -> &[(CallId, usize)] {
        &self.limited
    }

    /// How strict the provider has proved to be, by its first rule.
    #[must_use]
    pub fn strictness(&self, now: Now) -> Option<Strictness> {
        let (id, rule) = self.cells.first()?;
        let now = self.store.ledger_now(now);
        self.store
            .table()
            .get(*id)
            .map(|cell| cell.peek(rule, now).strictness)
    }

    fn node(&mut self, node: NodeId) -> &mut Node {
        while self.nodes.len() <= node.0 {
            let gate = Gate::new(self.plan.gate.clone());
            self.nodes.push(Node {
                gate,
                sent: 0,
                seq: 0,
                waiting: BTreeMap::new(),
                in_flight: BTreeMap::new(),
                streaming: BTreeMap::new(),
                verdicts: None,
                rules: BTreeMap::new(),
                local: LocalLedger::default(),
            });
        }
        &mut self.nodes[node.0]
    }

    fn push(&mut self, node: NodeId, call: Call, seniority: Option<u64>, now: Now) {
        let terms = self.terms(node, &call);
        let caller =
            CallerId(u32::try_from(call.id.0 % u64::from(self.plan.callers.max(1))).unwrap_or(0));
        let evidence = Evidence::Report {
            timeout: self.plan.give_up,
            late: self.plan.late_arrival,
        };
        let deadline = now.at + self.plan.patience;
        let priority = priority(call.priority);
        let state = self.node(node);
        state.seq += 1;
        let owner = OwnerId(u32::try_from(node.0).unwrap_or(u32::MAX));
        let id = PermitId {
            owner,
            seq: state.seq,
        };
        let ask = Ask {
            id,
            terms,
            scopes: Scopes::new(),
            priority,
            max_wait: Span::ZERO,
            evidence,
        };
        state.waiting.insert(id, (call, now.at));
        state.gate.push(
            QueuedCall {
                ask,
                caller,
                deadline,
                seniority,
            },
            now,
        );
    }

    fn terms(&self, node: NodeId, call: &Call) -> Terms {
        let rules = self.nodes.get(node.0).map(|node| &node.rules);
        let limits = self.plan.limits.iter().zip(&self.cells).enumerate();
        let terms = limits.map(|(index, (limit, (cell, rule)))| {
            let rule = rules.and_then(|rules| rules.get(&index)).unwrap_or(rule);
            let cost = cost(call, rule.cost_unit())
                .saturating_mul(limit.estimate_percent)
                .div_ceil(100);
            let leave = if call.priority == CheckerPriority::High {
                0
            } else {
                limit.reserve
            };
            Term {
                cell: *cell,
                rule: rule.clone(),
                cost: cost.min(rule.max_cost().saturating_sub(leave)),
                reserve: leave,
            }
        });
        terms.collect()
    }

    /// Applies effects until nothing is left to do at this instant.
    fn run(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        self.reconfigure(node, now);
        self.fill_backlog(node, now);
        self.presume_arrivals(node, now, effects);
        loop {
            let network_wake = self.exchange(node, now, effects);
            self.deliver_verdicts(node, now);
            let out = self.node(node).gate.tick(now);
            // The next call is asked for at once, and not with the next event: its wait is measured.
            let is_refilled = self.plan.records_waits && !out.resolve.is_empty();
            for resolved in out.resolve {
                self.resolved(node, resolved, now, effects);
            }
            self.apply(node, &out.settle, effects);
            if out.offer.is_empty() && out.settle.is_empty() && !is_refilled {
                let delivered = self.node(node).verdicts.as_ref().map(|(at, _)| *at);
                let others = delivered.into_iter().chain(self.next_change(node));
                let others = others.chain(network_wake).chain(self.next_presumed(node));
                return match out.wake_at.into_iter().chain(others).min() {
                    Some(at) => effects.wake_at(at),
                    None => effects.clear_timer(),
                };
            }
            if out.offer.is_empty() {
                continue;
            }
            if let Some((since, may_use)) = self.loss(node, now) {
                self.decide_locally(node, out.offer, now, (since, may_use));
                continue;
            }
            if let Some(network) = &mut self.network {
                network.offer(node, out.offer, now.at);
                continue;
            }
            let verdicts = self.turn(node, &[], &out.offer, effects);
            let delay = Span(self.dice.u64(0..=self.plan.ledger_delay.0));
            self.node(node).verdicts = Some((now.at + delay, verdicts));
        }
    }

    fn deliver_verdicts(&mut self, node: NodeId, now: Now) {
        let state = self.node(node);
        if let Some((_, verdicts)) = state.verdicts.take_if(|(at, _)| *at <= now.at) {
            state.gate.verdicts(verdicts, now);
        }
    }

    /// One transaction of the shared ledger, on its own clock.
    fn turn(
        &mut self,
        node: NodeId,
        settles: &[Settle],
        asks: &[Ask],
        effects: &mut Effects<'_>,
    ) -> Vec<(PermitId, Verdict)> {
        let Some(ledger) = effects.clock_of(NodeId(0)) else {
            return Vec::new();
        };
        let (table, ledger) = self.store.open(ledger);
        let out = turn(table, ledger, settles, asks);
        if !out.freed.is_empty() {
            for (index, other) in self.nodes.iter_mut().enumerate() {
                other.gate.freed(&out.freed);
                if index != node.0 {
                    effects.nudge(NodeId(index), Span::ZERO);
                }
            }
        }
        asks.iter().map(|ask| ask.id).zip(out.verdicts).collect()
    }

    fn apply(&mut self, node: NodeId, settles: &[Settle], effects: &mut Effects<'_>) {
        if let (Some(network), Some(now)) = (&mut self.network, effects.clock_of(node)) {
            for settle in settles {
                let state = &mut self.nodes[node.0];
                match state.local.settle(settle, now) {
                    Some(freed) => state.gate.freed(&freed),
                    None => network.settle(node, settle.clone(), now.at),
                }
            }
            return;
        }
        self.turn(node, settles, &[], effects);
    }

    /// Lets the node's replica receive and send. Returns when it must be polled again.
    fn exchange(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) -> Option<Micros> {
        let network = self.network.as_mut()?;
        let actions = network.exchange(node, now, effects);
        let has_changed = network.take_change(node);
        let gate = &mut self.node(node).gate;
        if has_changed {
            // What was asked there has no verdict, and what was learned there is over.
            gate.verdicts(Vec::new(), now);
            gate.anything_changed();
        }
        gate.freed(&actions.freed);
        if !actions.verdicts.is_empty() {
            let verdicts = actions.verdicts.into_iter();
            let verdicts = verdicts.map(|(id, verdict, _)| (id, verdict));
            gate.verdicts(verdicts.collect(), now);
        }
        actions.wake_at
    }

    /// How many calls each node has sent.
    #[must_use]
    pub fn sent_by_node(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.sent).collect()
    }

    /// How long permits were waited for, one in a hundred of them longer; `None` if the plan does not
    /// record it, or nobody got one.
    #[must_use]
    pub fn wait_p99(&self) -> Option<Span> {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits
            .get((waits.len() * 99 / 100).min(waits.len().checked_sub(1)?))
            .copied()
    }

    /// What the networked store has done; `None` without one.
    #[must_use]
    pub fn store_counts(&self) -> Option<StoreCounts> {
        self.network.as_ref().map(Network::counts)
    }

    fn resolved(&mut self, node: NodeId, resolved: Resolved, now: Now, effects: &mut Effects<'_>) {
        let id = resolved.ask.id;
        let Some((call, since)) = self.node(node).waiting.remove(&id) else {
            return;
        };
        if let Resolution::Go { marks } = resolved.resolution {
            let delay = Span(self.dice.u64(0..=self.plan.write_delay.0));
            let permit = Permit {
                id,
                terms: resolved.ask.terms,
                marks,
                seniority: resolved.seniority,
                presumption: self
                    .plan
                    .arrive_within
                    .map(|within| Presumption::new(within, now.at + delay)),
            };
            self.node(node).in_flight.insert(call.id, permit);
            self.node(node).sent += 1;
            if self.plan.records_waits {
                self.waits.push(now.at.since(since));
            }
            effects.send_after(delay, call);
        } else {
            effects.done(call.id);
            self.rejected.push((call.id, resolved.resolution));
        }
        self.fill_backlog(node, now);
    }

    /// Applies reconfigured limits; waiting calls are queued again under the new rules.
    fn reconfigure(&mut self, node: NodeId, now: Now) {
        let due = |change: &RuleChange| change.node == node && change.at <= now.at;
        let due: Vec<RuleChange> = self.plan.changes.extract_if(.., |c| due(c)).collect();
        if due.is_empty() {
            return;
        }
        for change in due {
            let rule = Arc::new(change.rule);
            self.node(node).rules.insert(change.limit, rule);
        }
        let waiting = std::mem::take(&mut self.node(node).waiting);
        for (id, (call, _)) in waiting {
            self.node(node).gate.cancel(id);
            self.push(node, call, None, now);
        }
    }

    /// When the next reconfiguration is due.
    fn next_change(&self, node: NodeId) -> Option<Micros> {
        let changes = self.plan.changes.iter();
        let own = changes.filter(|change| change.node == node);
        own.map(|change| change.at).min()
    }

    fn fill_backlog(&mut self, node: NodeId, now: Now) {
        while self.node(node).waiting.len() < self.plan.backlog {
            self.calls += 1;
            let id = CallId(self.calls);
            let call = Call {
                id,
                cost: self.plan.backlog_cost,
                priority: CheckerPriority::Normal,
            };
            self.push(node, call, None, now);
        }
    }

    /// A waiting call may be cancelled.
    fn maybe_cancel(&mut self, node: NodeId, effects: &mut Effects<'_>) {
        if self.plan.cancel_ppm == 0 || self.dice.u32(0..1_000_000) >= self.plan.cancel_ppm {
            return;
        }
        let waiting: Vec<PermitId> = self.node(node).waiting.keys().copied().collect();
        if let Some(id) = self.dice.choice(waiting) {
            let state = self.node(node);
            state.gate.cancel(id);
            if let Some((call, _)) = state.waiting.remove(&id) {
                effects.done(call.id);
                self.cancelled += 1;
            }
        }
    }

    fn settle(
        &mut self,
        node: NodeId,
        permit: &Permit,
        outcome: Settled,
        effects: &mut Effects<'_>,
    ) {
        let (id, terms) = (permit.id, permit.terms.clone());
        self.apply(
            node,
            &[Settle::Permit {
                id,
                terms,
                scopes: Scopes::new(),
                outcome,
            }],
            effects,
        );
    }

    fn readings(&self, permit: &Permit, statuses: &[LimitStatus]) -> Vec<LimitReading> {
        if !self.plan.use_headers {
            return Vec::new();
        }
        let each = statuses.iter().zip(&permit.marks).enumerate();
        each.map(|(term, (status, mark))| LimitReading {
            term,
            mark: *mark,
            remaining: Some(status.remaining),
            limit: Some(status.limit),
            reset_after: Some(status.reset_after),
            date: None,
        })
        .collect()
    }
}

fn priority(priority: CheckerPriority) -> Priority {
    match priority {
        CheckerPriority::High => Priority::High,
        CheckerPriority::Normal => Priority::Normal,
        CheckerPriority::Low => Priority::Low,
    }
}

fn cost(call: &Call, unit: CostUnit) -> u64 {
    call.cost.of(match unit {
        CostUnit::Calls => SimUnit::Calls,
        CostUnit::Tokens => SimUnit::Tokens,
        CostUnit::Points => SimUnit::Points,
        CostUnit::Bytes => SimUnit::Bytes,
    })
}
