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
use tollgate_core::health::Status;
use tollgate_core::problem::Problem;
use tollgate_ledger::Ledger;

use super::machine::Machine;
use super::plan::{OwnCells, Plan};
use super::savings::{Saved, Savings};
use super::seen::Seen;
use super::spare::{Common, Spare};
use super::via::Via;
use crate::path::permit::Permits;
use crate::path::{Aside, Items, Tokens, Writes};
use crate::pool::{Dialer, Pool};

/// One provider at run time.
#[derive(Debug)]
pub struct Live {
    pub(crate) name: String,
    plan: ArcSwap<Plan>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) permits: Permits,
    pub(crate) pool: Pool,
    pub(crate) ledger: Ledger,
    /// What goes on while the ledger's store is lost.
    pub(crate) spare: Spare,
    pub(crate) own: OwnCells,
    /// Our own name, by which a call that comes back is known.
    pub(crate) via: Via,
    pub(crate) tokens: Tokens,
    /// Keys that were refused.
    pub(crate) aside: Aside,
    /// Items that several calls may ask for at once.
    pub(crate) items: Items,
    /// What was changed lately.
    pub(crate) writes: Writes,
    /// Calls that cost nothing.
    pub(crate) saved: Saved,
    /// Entities that calls were about.
    pub(crate) seen: Seen,
    /// Whose turn it is among keys that are equally free.
    turn: AtomicUsize,
}

impl Live {
    pub(super) fn start(
        plan: Plan,
        ledger: &Ledger,
        dialer: &Arc<Dialer>,
        common: &Common,
        via: &Via,
    ) -> Result<Live, Vec<Problem>> {
        let health = (plan.health, plan.base());
        let name = plan.provider.name.clone();
        let spare = Spare::new(ledger, &plan, common);
        let ledgers = (ledger.clone(), spare.ledger.clone());
        Ok(Live {
            machine: Machine::start(&name, ledgers, health, &plan.retry.budget)?,
            permits: Permits::new(ledger.clone(), plan.gate()),
            pool: Pool::new(dialer.clone(), ledger.clone()),
            ledger: ledger.clone(),
            own: OwnCells::new(&name, ledger),
            via: via.clone(),
            spare,
            tokens: Tokens::default(),
            aside: Aside::default(),
            items: Items::default(),
            writes: Writes::default(),
            saved: Saved::default(),
            seen: Seen::default(),
            turn: AtomicUsize::new(0),
            name,
            plan: ArcSwap::from_pointee(plan),
        })
    }

    /// Another plan from now on.
    pub(super) fn follow(&self, mut plan: Plan) -> Result<(), Vec<Problem>> {
        let (gate, health, base) = (plan.gate(), plan.health, plan.base());
        let now = self.ledger.at();
        plan.succeed(&self.plan(), now);
        let carries = plan.shared_carries(now);
        self.plan.store(Arc::new(plan));
        self.spare.permits.replace(gate.clone());
        self.permits.replace(gate);
        // Calls see to it themselves; this is for those that come after a restart.
        self.permits.carry(self.permits.edition(), &carries);
        self.machine.configure(health, base)
    }

    /// The plan in force.
    pub(crate) fn plan(&self) -> Arc<Plan> {
        self.plan.load_full()
    }

    /// Is this the plan in force? Asked without taking a part in it.
    pub(crate) fn follows(&self, is_it: impl FnOnce(&Arc<Plan>) -> bool) -> bool {
        is_it(&self.plan.load())
    }

    /// What its health looks like.
    #[must_use]
    pub fn status(&self) -> Status {
        self.machine.status()
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
        self.permits.waiting(priority) + self.spare.permits.waiting(priority)
    }

    /// How many calls went on uncounted because the ledger's store was lost (`on_store_loss: open`).
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.spare.uncounted()
    }

    /// The store was lost: those who need not wait for it go on without.
    pub(super) fn store_lost(&self) {
        if self.plan().provider.on_store_loss != OnStoreLoss::Closed {
            self.permits.let_go();
        }
    }

    /// The store is back: nobody stays in the spare line.
    pub(super) fn store_back(&self) {
        self.spare.permits.let_go();
        self.machine.scope_changed();
    }

    /// How many calls cost nothing, and why.
    #[must_use]
    pub fn savings(&self) -> Savings {
        self.saved.so_far()
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
    pub fn riding(&self) -> u64 {
        self.savings().riding
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
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }
}
