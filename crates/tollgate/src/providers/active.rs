//! One provider at run time: its plan, and what was counted and learned under it.
//!
//! Promises: a new plan replaces the old one between two calls; calls that wait look again and ask
//! under the new one with the place they had.
//!
//! Never: forgets what was learned because a file changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use tollgate_config::settings::OnStoreLoss;
use tollgate_core::ask::Priority;
use tollgate_core::health::HealthStatus;
use tollgate_core::problem::Problem;
use tollgate_ledger::Ledger;

use super::health::ProviderHealth;
use super::local_share::{LocalShare, StoreLossContext};
use super::loop_detection::Via;
use super::policy::{CompiledPolicy, OwnCells};
use super::savings::{Savings, SavingsCounters};
use super::seen_entities::SeenEntities;
use crate::path::permit::Permits;
use crate::path::{MergeGroups, SuspendedKeys, Tokens, Writes};
use crate::pool::{Dialer, Pool};

/// One provider at run time.
#[derive(Debug)]
pub struct ActiveProvider {
    pub(crate) name: String,
    policy: ArcSwap<CompiledPolicy>,
    pub(crate) health: Arc<ProviderHealth>,
    pub(crate) permits: Permits,
    pub(crate) pool: Pool,
    pub(crate) ledger: Ledger,
    /// What goes on while the ledger's store is lost.
    pub(crate) local_share: LocalShare,
    pub(crate) own_cells: OwnCells,
    /// Our own name, by which a call that comes back is known.
    pub(crate) via: Via,
    pub(crate) tokens: Tokens,
    /// Keys that were refused.
    pub(crate) suspended_keys: SuspendedKeys,
    /// Items that several calls may ask for at once.
    pub(crate) items: MergeGroups,
    /// What was changed lately.
    pub(crate) writes: Writes,
    /// Calls that cost nothing.
    pub(crate) savings: SavingsCounters,
    /// Entities that calls were about.
    pub(crate) seen_entities: SeenEntities,
    /// Whose turn it is among keys that are equally free.
    next_key: AtomicUsize,
}

impl ActiveProvider {
    pub(super) fn start(
        plan: CompiledPolicy,
        ledger: &Ledger,
        dialer: &Arc<Dialer>,
        common: &StoreLossContext,
        via: &Via,
    ) -> Result<ActiveProvider, Vec<Problem>> {
        let health = (plan.health, plan.base());
        let name = plan.provider.name.clone();
        let spare = LocalShare::new(ledger, &plan, common);
        let ledgers = (ledger.clone(), spare.ledger.clone());
        Ok(ActiveProvider {
            health: ProviderHealth::start(&name, ledgers, health, &plan.retry.budget)?,
            permits: Permits::new(ledger.clone(), plan.gate_settings()),
            pool: Pool::new(dialer.clone(), ledger.clone()),
            ledger: ledger.clone(),
            own_cells: OwnCells::new(&name, ledger),
            via: via.clone(),
            local_share: spare,
            tokens: Tokens::default(),
            suspended_keys: SuspendedKeys::default(),
            items: MergeGroups::default(),
            writes: Writes::default(),
            savings: SavingsCounters::default(),
            seen_entities: SeenEntities::default(),
            next_key: AtomicUsize::new(0),
            name,
            policy: ArcSwap::from_pointee(plan),
        })
    }

    /// Another plan from now on.
    pub(super) fn apply(&self, mut plan: CompiledPolicy) -> Result<(), Vec<Problem>> {
        let (gate, health, base) = (plan.gate_settings(), plan.health, plan.base());
        let now = self.ledger.at();
        plan.inherit(&self.policy(), now);
        let carries = plan.shared_carry_settles(now);
        self.policy.store(Arc::new(plan));
        self.local_share.permits.replace(gate.clone());
        self.permits.replace(gate);
        // Calls see to it themselves; this is for those that come after a restart.
        self.permits.carry(self.permits.edition(), &carries);
        self.health.configure(health, base)
    }

    /// The plan in force.
    pub(crate) fn policy(&self) -> Arc<CompiledPolicy> {
        self.policy.load_full()
    }

    /// Is this the plan in force? Asked without taking a part in it.
    pub(crate) fn is_current_policy(
        &self,
        is_it: impl FnOnce(&Arc<CompiledPolicy>) -> bool,
    ) -> bool {
        is_it(&self.policy.load())
    }

    /// What its health looks like.
    #[must_use]
    pub fn status(&self) -> HealthStatus {
        self.health.status()
    }

    /// How many calls wait for a permit.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let all = [Priority::High, Priority::Normal, Priority::Low];
        all.map(|priority| self.waiting_at(priority)).iter().sum()
    }

    /// How many of them are of this priority, in the line of the store and in the one that stands in
    /// while it is lost.
    #[must_use]
    pub fn waiting_at(&self, priority: Priority) -> usize {
        self.permits.waiting(priority) + self.local_share.permits.waiting(priority)
    }

    /// How many calls went on uncounted because the ledger's store was lost (`on_store_loss: open`).
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.local_share.uncounted()
    }

    /// The store was lost: those who need not wait for it go on without.
    pub(super) fn on_store_lost(&self) {
        if self.policy().provider.on_store_loss != OnStoreLoss::Closed {
            self.permits.release_waiters();
        }
    }

    /// The store is back: nobody stays in the spare line.
    pub(super) fn on_store_back(&self) {
        self.local_share.permits.release_waiters();
        self.health.on_scope_changed();
    }

    /// How many calls cost nothing, and why.
    #[must_use]
    pub fn savings(&self) -> Savings {
        self.savings.snapshot()
    }

    /// How many calls have waited for an answer that another had asked for.
    #[must_use]
    pub fn joined(&self) -> u64 {
        self.savings().joined
    }

    /// How many calls were given an answer that another call had asked for at the same time.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.savings().shared
    }

    /// How many calls have waited for a part of another call's larger answer.
    #[must_use]
    pub fn joined_merge(&self) -> u64 {
        self.savings().joined_merge
    }

    /// How many calls were given a part of another call's larger answer: permits saved.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.savings().merged
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A number that goes around.
    pub(crate) fn next_key_index(&self) -> usize {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }
}
