//! One provider at run time: its policy, and the counts and learned state under it.
//!
//! Promises: a new policy replaces the old one between two calls; waiting calls ask again under the
//! new one and keep their position in the queue.
//!
//! Never: drops learned state because a file changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate_config::settings::{Cookies, OnStoreLoss};
use tollgate_core::ask::Priority;
use tollgate_core::health::{HealthStatus, PathStatus};
use tollgate_core::problem::Problem;
use tollgate_core::time::Micros;
use tollgate_ledger::ProviderLedger;

use super::arrivals::{ArrivalWindow, EntityDemand};
use super::call_counters::{CallCounters, CallCounts};
use super::connection_limit::ConnectionLimit;
use super::eta::CachedEta;
use super::health::ProviderHealth;
use super::lazy_provider::ProviderDeps;
use super::local_share::LocalShare;
use super::loop_detection::Via;
use super::policy::{CompiledPolicy, OwnCells};
use super::response_time::ResponseTime;
use super::retry_waits::RetryWaits;
use super::savings::{Savings, SavingsCounters};
use super::seen_entities::SeenEntities;
use crate::client_errors::ClientErrorTally;
use crate::cost_doubts::CostDoubts;
use crate::credentials::{SuspendedKeys, Tokens};
use crate::event::Events;
use crate::flights::{MergeGroups, Writes};
use crate::metrics::{PartCounts, ProviderMetrics, ResponseCounts};
use crate::permits::Permits;
use crate::pool::Pool;
use crate::token_estimates::TokenEstimates;

/// One provider at run time.
#[derive(Debug)]
pub struct ActiveProvider {
    pub(crate) name: String,
    /// Its name in events: calls share it.
    label: Arc<str>,
    /// Where its events are emitted.
    pub(crate) events: Events,
    policy: ArcSwap<CompiledPolicy>,
    pub(crate) health: Arc<ProviderHealth>,
    pub(crate) permits: Permits,
    pub(crate) pool: Pool,
    /// How many connections the pool may have.
    pub(crate) connections: Arc<ConnectionLimit>,
    pub(crate) ledger: ProviderLedger,
    /// Grants permits while the ledger's store is lost.
    pub(crate) local_share: LocalShare,
    /// The store was lost for this provider when it was last checked.
    was_lost: AtomicBool,
    pub(crate) own_cells: OwnCells,
    /// This process's name in `Via`, which detects calls that come back.
    pub(crate) via: Via,
    pub(crate) tokens: Tokens,
    /// Keys that the provider rejected.
    pub(crate) suspended_keys: SuspendedKeys,
    /// What completions of each entity used.
    pub(crate) token_estimates: Arc<TokenEstimates>,
    /// How long its responses take.
    pub(crate) response_time: ResponseTime,
    /// Says in the log that calls got a 401, 403, 404 …
    pub(crate) client_errors: ClientErrorTally,
    /// Says in the log that the cost of a call is not certain.
    pub(crate) cost_doubts: Arc<CostDoubts>,
    /// Items that several calls may request at once.
    pub(crate) items: MergeGroups,
    /// Recent writes.
    pub(crate) writes: Writes,
    /// Calls that cost no permit.
    pub(crate) savings: SavingsCounters,
    /// What became of its calls.
    pub(crate) calls: CallCounters,
    /// Its counters.
    pub(crate) metrics: Arc<ProviderMetrics>,
    /// Entities that calls have named.
    pub(crate) seen_entities: SeenEntities,
    /// Calls that wait for their next attempt.
    pub(crate) retry_waits: RetryWaits,
    /// How many calls come.
    pub(super) arrivals: Mutex<ArrivalWindow>,
    pub(crate) entity_demand: EntityDemand,
    pub(super) cached_eta: Mutex<Option<CachedEta>>,
    /// Round-robin position among equally free keys.
    next_key: AtomicUsize,
}

impl ActiveProvider {
    pub(super) fn start(
        policy: CompiledPolicy,
        deps: &ProviderDeps,
    ) -> Result<ActiveProvider, Vec<Problem>> {
        let health = (policy.health, policy.base());
        let name = policy.provider.name.clone();
        let (ledger, events) = (&deps.ledger, &deps.events);
        let local_share = LocalShare::new(ledger, &policy, &deps.loss);
        let counted = ledger.provider(&name);
        local_share.register(&policy, &counted);
        let was_lost = counted.loss().is_some();
        let ledgers = (counted.clone(), local_share.ledger.clone());
        let own_cells = OwnCells::new(&name, ledger);
        let connections = Arc::new(ConnectionLimit::new(&policy, events, &counted));
        let permits = Permits::new(counted.clone(), policy.gate_settings());
        permits.watch(own_cells.connections, connections.clone());
        let cost_doubts = Arc::new(CostDoubts::new(&name, events, &counted));
        Ok(ActiveProvider {
            health: ProviderHealth::start(
                (&name, events),
                ledgers,
                health,
                (&policy.retry.budget, deps.dice),
            )?,
            permits,
            connections,
            pool: Pool::new(deps.dialer.clone(), ledger.clone()),
            ledger: counted,
            own_cells,
            via: deps.via.clone(),
            events: events.clone(),
            was_lost: AtomicBool::new(was_lost),
            local_share,
            tokens: Tokens::default(),
            suspended_keys: SuspendedKeys::default(),
            token_estimates: Arc::default(),
            response_time: ResponseTime::default(),
            client_errors: ClientErrorTally::new(&name, events),
            cost_doubts,
            items: MergeGroups::default(),
            writes: Writes::default(),
            savings: SavingsCounters::default(),
            calls: CallCounters::default(),
            metrics: events.metrics().provider(&name),
            label: name.as_str().into(),
            seen_entities: SeenEntities::default(),
            retry_waits: RetryWaits::default(),
            arrivals: Mutex::new(ArrivalWindow::new(ledger.at())),
            entity_demand: EntityDemand::default(),
            cached_eta: Mutex::default(),
            next_key: AtomicUsize::new(0),
            name,
            policy: ArcSwap::from_pointee(policy),
        })
    }

    /// Replaces the policy.
    pub(super) fn apply(&self, mut policy: CompiledPolicy) -> Result<(), Vec<Problem>> {
        let (gate, health, base) = (policy.gate_settings(), policy.health, policy.base());
        let now = self.ledger.at();
        policy.inherit(&self.policy(), now);
        let settles = policy.shared_inherit_settles(now);
        self.connections.configure(&policy);
        self.local_share.register(&policy, &self.ledger);
        self.policy.store(Arc::new(policy));
        self.local_share.permits.replace(gate.clone());
        self.permits.replace(gate);
        // Calls do this themselves; this covers calls that come after a restart.
        self.permits.inherit(self.permits.edition(), &settles);
        self.health.configure(health, base)
    }

    /// The current policy.
    pub(crate) fn policy(&self) -> Arc<CompiledPolicy> {
        self.policy.load_full()
    }

    /// Is this the current policy? The check does not clone the policy.
    pub(crate) fn is_current_policy(
        &self,
        is_it: impl FnOnce(&Arc<CompiledPolicy>) -> bool,
    ) -> bool {
        is_it(&self.policy.load())
    }

    /// The current health status.
    #[must_use]
    pub fn status(&self) -> HealthStatus {
        self.health.status()
    }

    /// The paths that fail, closed or not.
    #[must_use]
    pub fn failing_paths(&self) -> Vec<PathStatus> {
        self.health.failing_paths()
    }

    /// How many calls wait, for a permit or for a retry.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let all = [Priority::High, Priority::Normal, Priority::Low];
        all.map(|priority| self.waiting_at(priority)).iter().sum()
    }

    /// The number of waiting calls of this priority: in the store's queue, in the queue that
    /// replaces it while the store is lost, and between two attempts.
    #[must_use]
    pub fn waiting_at(&self, priority: Priority) -> usize {
        let queued = self.permits.waiting(priority) + self.local_share.permits.waiting(priority);
        queued + self.retry_waits.count(priority)
    }

    /// The number of calls that ran uncounted because the ledger's store was lost (`on_store_loss:
    /// open`).
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.local_share.uncounted()
    }

    /// How many other nodes may be using their share of its limits (`on_store_loss: local-share`), because
    /// they are cut off from the store or were killed.
    #[must_use]
    pub fn absent_nodes(&self) -> u32 {
        self.ledger.absent_nodes()
    }

    /// Moves waiting calls if the store was lost for this provider, or is back for it.
    pub(super) fn check_store(&self) {
        let is_lost = self.ledger.loss().is_some();
        match (self.was_lost.swap(is_lost, Ordering::AcqRel), is_lost) {
            (false, true) => self.on_store_lost(),
            (true, false) => self.on_store_back(),
            (true, true) | (false, false) => {}
        }
    }

    /// The store was lost: calls that may run without it leave its queue.
    fn on_store_lost(&self) {
        if self.policy().provider.on_store_loss != OnStoreLoss::Closed {
            self.permits.release_waiters();
        }
    }

    /// The store is back: all calls leave the local queue.
    fn on_store_back(&self) {
        self.local_share.permits.release_waiters();
        self.health.on_resync();
    }

    /// The number of calls that cost no permit, by reason.
    #[must_use]
    pub fn savings(&self) -> Savings {
        self.savings.snapshot()
    }

    /// What became of the calls of each caller, since the start; those whose first call is not over have zeros.
    #[must_use]
    pub fn calls_by_caller(&self) -> Vec<(String, CallCounts)> {
        self.calls.by_caller()
    }

    /// What the provider responded, since the start.
    #[must_use]
    pub fn responses(&self) -> ResponseCounts {
        self.metrics.responses()
    }

    /// Its counts as a whole: the sums over its callers and of its cache.
    #[must_use]
    pub fn counts(&self, now: Micros) -> PartCounts {
        let saved = self.savings();
        PartCounts {
            calls: self.calls.begun(),
            cache_hits: saved.hits + saved.stale,
            // The provider was asked whether it is still the same.
            cache_misses: saved.misses + saved.revalidated,
            ..self.metrics.quota().counts(now)
        }
    }

    /// The number of calls that waited for a response that another call had requested.
    #[must_use]
    pub fn joined(&self) -> u64 {
        self.savings().joined
    }

    /// The number of calls that received a response requested by another call at the same time.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.savings().shared
    }

    /// The number of calls that waited for a part of another call's larger response.
    #[must_use]
    pub fn joined_merge(&self) -> u64 {
        self.savings().joined_merge
    }

    /// The number of calls that received a part of another call's larger response: permits saved.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.savings().merged
    }

    /// Its name in events.
    pub(crate) fn label(&self) -> Arc<str> {
        self.label.clone()
    }

    /// Its counters since the start.
    #[must_use]
    pub fn metrics(&self) -> &ProviderMetrics {
        &self.metrics
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The guards on its callers, by name: its upstream is the user's own service.
    #[must_use]
    pub fn guards(&self) -> Vec<String> {
        self.policy().provider.guards.clone()
    }

    /// What becomes of its cookies.
    #[must_use]
    pub fn cookies(&self) -> Cookies {
        self.policy().provider.cookies
    }

    /// The next round-robin index.
    pub(crate) fn next_key_index(&self) -> usize {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }
}
