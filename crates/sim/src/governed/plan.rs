//! Configuration of the governed client: limits, delays, load, and changes of the ledger during a
//! run.
//!
//! Promises: plain data; a plan has everything that a run depends on besides its world.
//!
//! Never: decides.

use tollgate_core::gate::{BATCH_FAR_AWAY, GateSettings};
use tollgate_core::limit::Rule;
use tollgate_core::store_loss::NodeShare;
use tollgate_core::time::{Micros, Span};

use crate::row_store::StorePlan;
use crate::rule::Cost;
use crate::world::NodeId;

/// Configuration of the governed client.
#[derive(Clone, Debug)]
pub struct GovernedPlan {
    /// Every limit, in the order of the provider's rules.
    pub limits: Vec<Limit>,
    /// Settings of the gates.
    pub gate: GateSettings,
    /// When a node gives up on a response, and how long after that the call may still arrive.
    pub give_up: Span,
    /// See `give_up`.
    pub late_arrival: Span,
    /// A call without a response counts as arrived this long after its bytes have left, for limits
    /// with `hold_until: arrived`. `None`: never.
    pub arrive_within: Option<Span>,
    /// The longest time between an offer and its verdicts, and between a permit and the write.
    /// Drawn per event.
    pub ledger_delay: Span,
    /// See `ledger_delay`.
    pub write_delay: Span,
    /// How many waiting calls are cancelled, per million responses.
    pub cancel_ppm: u32,
    /// Pass the provider's rate-limit headers to the ledger.
    pub use_headers: bool,
    /// Always keep this many calls waiting, of this cost. 0 = only submitted calls.
    pub backlog: usize,
    /// See `backlog`.
    pub backlog_cost: Cost,
    /// Record how long permits are waited for.
    pub records_waits: bool,
    /// Calls are spread over this many callers, by their number.
    pub callers: u32,
    /// How long a call may wait.
    pub patience: Span,
    /// How often the ledger is written as bytes and read back on another clock, per million
    /// transactions.
    pub restore_ppm: u32,
    /// Limits that are reconfigured while calls run.
    pub changes: Vec<RuleChange>,
    /// The ledger is a store over a network, instead of a table that all nodes share.
    pub network: Option<StorePlan>,
    /// Nodes that have lost the networked store use a share of each limit.
    pub local_share: Option<NodeShare>,
    /// Seeds delays and cancellations.
    pub seed: u64,
}

/// A node applies a different rule from `at` on.
#[derive(Clone, Debug)]
pub struct RuleChange {
    /// Which node.
    pub node: NodeId,
    /// When, on its own ledger clock.
    pub at: Micros,
    /// Which limit of the plan.
    pub limit: usize,
    /// The new rule.
    pub rule: Rule,
}

/// One limit of the plan.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The rule that the client applies.
    pub rule: Rule,
    /// What calls below high priority must leave unused.
    pub reserve: u64,
    /// How much more than the true cost is held, in percent of it. Only for costs settled at the
    /// end of the body.
    pub estimate_percent: u64,
}

impl Limit {
    /// A limit without reserve, whose costs are known in advance.
    #[must_use]
    pub fn new(rule: Rule) -> Limit {
        Limit {
            rule,
            reserve: 0,
            estimate_percent: 100,
        }
    }
}

impl GovernedPlan {
    /// These limits, no delays, no cancellations, only submitted calls.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> GovernedPlan {
        GovernedPlan {
            limits: rules.into_iter().map(Limit::new).collect(),
            gate: GateSettings::default(),
            give_up: Span::from_secs(600),
            late_arrival: Span::from_secs(5),
            arrive_within: None,
            ledger_delay: Span::ZERO,
            write_delay: Span::ZERO,
            cancel_ppm: 0,
            use_headers: false,
            backlog: 0,
            backlog_cost: Cost::CALL,
            records_waits: false,
            callers: 1,
            patience: Span::from_secs(365 * 86_400),
            restore_ppm: 0,
            changes: Vec::new(),
            network: None,
            local_share: None,
            seed: 0,
        }
    }

    /// The same on a store over a network.
    #[must_use]
    pub fn on_network(mut self, store: StorePlan) -> GovernedPlan {
        self.gate.batch_first = BATCH_FAR_AWAY;
        self.network = Some(store);
        self
    }

    /// The same with endless demand.
    #[must_use]
    pub fn saturating(self, backlog: usize) -> GovernedPlan {
        GovernedPlan { backlog, ..self }
    }
}
