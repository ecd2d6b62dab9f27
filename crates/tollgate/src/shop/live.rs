//! One provider at run time: its plan, and what was counted and learned under it.
//!
//! Promises: a new plan replaces the old one between two calls; calls that wait look again and ask
//! under the new one with the place they had.
//!
//! Never: forgets what was learned because a file changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use tollgate_core::ask::Priority;
use tollgate_core::health::Status;
use tollgate_core::problem::Problem;
use tollgate_ledger::Ledger;

use super::machine::Machine;
use super::plan::{OwnCells, Plan};
use crate::path::permit::Permits;
use crate::path::{Aside, Tokens};
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
    pub(crate) own: OwnCells,
    pub(crate) tokens: Tokens,
    /// Keys that were refused.
    pub(crate) aside: Aside,
    /// Whose turn it is among keys that are equally free.
    turn: AtomicUsize,
}

impl Live {
    pub(super) fn start(
        plan: Plan,
        ledger: &Ledger,
        dialer: &Arc<Dialer>,
    ) -> Result<Live, Vec<Problem>> {
        let health = (plan.health, plan.base());
        let owner = ledger.owner();
        let name = plan.provider.name.clone();
        Ok(Live {
            machine: Machine::start(&name, ledger.clone(), owner, health, &plan.retry.budget)?,
            permits: Permits::new(ledger.clone(), owner, plan.gate()),
            pool: Pool::new(dialer.clone(), ledger.clone()),
            ledger: ledger.clone(),
            own: OwnCells::new(&name, owner),
            tokens: Tokens::default(),
            aside: Aside::default(),
            turn: AtomicUsize::new(0),
            name,
            plan: ArcSwap::from_pointee(plan),
        })
    }

    /// Another plan from now on.
    pub(super) fn follow(&self, plan: Plan) -> Result<(), Vec<Problem>> {
        let (gate, health, base) = (plan.gate(), plan.health, plan.base());
        self.plan.store(Arc::new(plan));
        self.permits.configure(gate);
        self.machine.configure(health, base)
    }

    /// The plan in force.
    pub(crate) fn plan(&self) -> Arc<Plan> {
        self.plan.load_full()
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
        all.map(|priority| self.permits.waiting(priority))
            .iter()
            .sum()
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
