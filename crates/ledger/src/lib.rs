//! The ledger: where permits are counted.
//!
//! Promises: every backend answers `offer` by `tollgate_core::turn`, under its own lock or
//! transaction, with a `now` that was read after the lock was held. A permit is counted before it
//! is handed out. Waiting asks share one transaction.
//!
//! Never: decides anything, and never lets an instant cross: clocks of processes and stores differ.

mod clock;
pub use clock::{Clock, ManualClock};
mod event;
pub use event::{EVENTS_MAX, Event, Events};
mod offered;
pub use offered::{Lost, Offered};
mod memory;
pub use memory::MemoryLedger;

use std::sync::Arc;

use tollgate_core::ask::{Ask, CellId, ScopeId, Settle};
use tollgate_core::limit::{Rule, View};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Now;

/// One ledger, shared by all clones of this handle. An enum and not a trait object: backends are
/// few and known, and a new one must fail to compile wherever it matters.
#[derive(Clone, Debug)]
pub enum Ledger {
    /// In this process, gone with it.
    Memory(MemoryLedger),
}

impl Ledger {
    /// A ledger in this process, gone with it.
    #[must_use]
    pub fn memory(clock: Clock) -> Ledger {
        Ledger::Memory(MemoryLedger::new(clock))
    }

    /// Asks for permits, all in one transaction and in this order. If the answer is dropped before
    /// it is taken, what was granted comes back unsent.
    pub fn offer(&self, asks: Vec<Ask>) -> Offered {
        match self {
            Ledger::Memory(memory) => memory.offer(self, asks),
        }
    }

    /// Tells what became of a permit or a scope. Never waits and never fails, so that it can be
    /// called from `Drop`; a settle that is lost only delays a slot.
    pub fn settle(&self, settle: Settle) {
        match self {
            Ledger::Memory(memory) => memory.settle(settle),
        }
    }

    /// What others must hear of: cells that came free, scopes that changed, the store itself.
    #[must_use]
    pub fn events(&self) -> Events {
        match self {
            Ledger::Memory(memory) => memory.events(),
        }
    }

    /// What these limits look like, without taking anything.
    #[must_use]
    pub fn look(&self, cells: &[(CellId, Arc<Rule>)]) -> Vec<View> {
        match self {
            Ledger::Memory(memory) => memory.look(cells),
        }
    }

    /// What a scope looks like.
    #[must_use]
    pub fn look_scope(&self, scope: ScopeId) -> ScopeView {
        match self {
            Ledger::Memory(memory) => memory.look_scope(scope),
        }
    }

    /// Both clocks, as this ledger reads them.
    #[must_use]
    pub fn now(&self) -> Now {
        match self {
            Ledger::Memory(memory) => memory.now(),
        }
    }
}
