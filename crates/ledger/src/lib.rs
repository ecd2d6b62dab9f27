//! The ledger: where permits are counted.
//!
//! Promises: every backend answers `offer` by `tollgate_core::turn`, under its own lock or
//! transaction, with a `now` that was read after the lock was held. A permit is counted before it
//! is handed out. Waiting asks share one transaction.
//!
//! Never: decides anything, or reads an instant on another clock than it was taken on: what is told
//! to a ledger from outside is an age or a delay.

#![cfg_attr(
    not(feature = "sqlite"),
    allow(
        unused_variables,
        clippy::needless_pass_by_value,
        reason = "memory alone needs less than the stores do"
    )
)]

mod clock;
pub use clock::{Clock, ManualClock};
mod event;
pub use event::{EVENTS_MAX, Event, Events};
mod offer;
pub use offer::{OfferVerdicts, PendingOffer, StoreLoss, StoreLost};
mod cell_forwarding;
use cell_forwarding::CellForwarding;
mod memory;
pub use memory::MemoryLedger;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
pub use sqlite::{OpenError, SqliteLedger};
#[cfg(all(feature = "sqlite", feature = "failpoints"))]
pub mod failpoint;
#[cfg(all(feature = "sqlite", not(feature = "failpoints")))]
mod failpoint;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tollgate_core::ask::{Ask, CellId, OwnerId, ScopeId, Settle, Verdict};
use tollgate_core::limit::{CellView, Rule};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Now, Span, Wall};

/// One ledger, shared by all clones of this handle. An enum and not a trait object: backends are
/// few and known, and a new one must fail to compile wherever it matters.
#[derive(Clone, Debug)]
pub enum Ledger {
    /// In this process, gone with it.
    Memory(MemoryLedger),
    /// In a folder of this host, shared by its processes.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteLedger),
}

impl Ledger {
    /// A ledger in this process, gone with it.
    #[must_use]
    pub fn memory(clock: Clock) -> Ledger {
        Ledger::Memory(MemoryLedger::new(clock))
    }

    /// A ledger in a folder of this host, which is made if it is not there. Any number of processes
    /// may open the same one; the clock must be one that they share.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(folder: impl AsRef<std::path::Path>, clock: Clock) -> Result<Ledger, OpenError> {
        SqliteLedger::open(folder.as_ref(), clock).map(Ledger::Sqlite)
    }

    /// The same, but a folder that cannot be opened is a store that is lost from the start: the
    /// reason is told, and the store is there as soon as the folder can be opened. An error only if
    /// this process can have no more threads.
    #[cfg(feature = "sqlite")]
    pub fn sqlite_or_lost(
        folder: impl AsRef<std::path::Path>,
        clock: Clock,
    ) -> Result<(Ledger, Option<OpenError>), OpenError> {
        let (ledger, why) = SqliteLedger::open_or_lost(folder.as_ref(), clock)?;
        Ok((Ledger::Sqlite(ledger), why))
    }

    /// An empty ledger in this process on the same clock, for what must go on without the store.
    #[must_use]
    pub fn empty_in_memory(&self) -> Ledger {
        Ledger::memory(match self {
            Ledger::Memory(memory) => memory.clock(),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.clock(),
        })
    }

    /// This process among those that share the ledger. Permits carry it.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        match self {
            Ledger::Memory(_) => OwnerId::default(),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.owner(),
        }
    }

    /// Why the store cannot be reached, while it cannot: a sentence for people.
    #[must_use]
    pub fn loss_reason(&self) -> Option<String> {
        match self {
            Ledger::Memory(_) => None,
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.loss_reason(),
        }
    }

    /// Since when the store cannot be reached, while it cannot. Cheap enough to ask per call.
    #[must_use]
    pub fn loss(&self) -> Option<StoreLoss> {
        match self {
            Ledger::Memory(_) => None,
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.loss(),
        }
    }

    /// While the store is lost: closes a scope for `rest` from the moment at which it is back,
    /// before anything is granted. Said again, the last word counts. Forgotten once it is back.
    pub fn close_on_recovery(&self, scope: ScopeId, rest: Span) {
        match self {
            Ledger::Memory(_) => {}
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.close_on_recovery(scope, rest),
        }
    }

    /// Asks for permits, all in one transaction and in this order. If the answer is dropped before
    /// it is taken, what was granted comes back unsent. Everything settled before is counted first;
    /// an offer without asks is answered when it is.
    pub fn offer(&self, asks: Vec<Ask>) -> PendingOffer {
        match self {
            Ledger::Memory(memory) => memory.offer(self, asks),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.offer(self, asks),
        }
    }

    /// Asks for one permit where the answer is there at once: in memory. `None`: this store takes
    /// time, ask with [`Ledger::offer`]. What was granted is the asker's to settle. Also when it was
    /// decided.
    #[must_use]
    pub fn try_offer(&self, ask: &Ask) -> Option<(Verdict, Micros)> {
        match self {
            Ledger::Memory(memory) => memory.try_offer(ask),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(_) => None,
        }
    }

    /// Nobody of this process waits for these cells any more. Where processes share a ledger, others
    /// are held up for those who wait. Costs a transaction, so it is said only when the last one has
    /// left; who is served or waits on says so by asking.
    pub fn stop_waiting(&self, cells: &[CellId]) {
        match self {
            Ledger::Memory(_) => {}
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.stop_waiting(cells),
        }
    }

    /// The answer to an offer is not there at once: asks that are offered together are cheaper.
    #[must_use]
    pub fn takes_time(&self) -> bool {
        match self {
            Ledger::Memory(_) => false,
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(_) => true,
        }
    }

    /// Tells what became of a permit or a scope. Never waits and never fails, so that it can be
    /// called from `Drop`; a settle that is lost only delays a slot.
    pub fn settle(&self, settle: Settle) {
        let settle = self.forwarded(&settle).unwrap_or(settle);
        self.settle_in_store(settle);
    }

    fn settle_in_store(&self, settle: Settle) {
        match self {
            Ledger::Memory(memory) => memory.settle(&settle),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.settle(settle),
        }
    }

    /// A settle that concerns cells which others have taken over from, if so.
    fn forwarded(&self, settle: &Settle) -> Option<Settle> {
        let heirs: &CellForwarding = match self {
            Ledger::Memory(memory) => memory.forwarding(),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.forwarding(),
        };
        heirs.forward(settle, || self.at())
    }

    /// As [`Ledger::settle`], for those who need the terms again: memory only looks at them.
    pub fn settle_ref(&self, settle: &Settle) {
        if let Some(settle) = self.forwarded(settle) {
            return self.settle_in_store(settle);
        }
        match self {
            Ledger::Memory(memory) => memory.settle(settle),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.settle(settle.clone()),
        }
    }

    /// What others must hear of: cells that came free, scopes that changed, the store itself.
    #[must_use]
    pub fn events(&self) -> Events {
        match self {
            Ledger::Memory(memory) => memory.events(),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.events(),
        }
    }

    /// What these limits look like, without taking anything. The question is put at once, after all
    /// that was settled before; whoever awaits the answer keeps no thread. What cannot be known looks
    /// used up.
    pub fn peek(
        &self,
        cells: Vec<(CellId, Arc<Rule>)>,
    ) -> impl Future<Output = Vec<CellView>> + use<> {
        let answer: Result<_, BoxedReply<_>> = match self {
            Ledger::Memory(memory) => Ok(memory.peek(&cells)),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => Err(Box::pin(sqlite.peek(cells))),
        };
        ready_or_await(answer)
    }

    /// As [`Ledger::look`], for those who cannot wait: what is seen goes to `then`, at once where it
    /// is known at once, else on the ledger's own thread, so it must be short and must not block.
    /// What cannot be known is not told.
    pub fn peek_then(
        &self,
        cells: Vec<(CellId, Arc<Rule>)>,
        then: impl FnOnce(Vec<CellView>) + Send + 'static,
    ) {
        match self {
            Ledger::Memory(memory) => then(memory.peek(&cells)),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.peek_then(cells, then),
        }
    }

    /// What a scope looks like; the question is put at once. What cannot be known looks closed.
    pub fn peek_scope(&self, scope: ScopeId) -> impl Future<Output = ScopeView> + use<> {
        let known = self.try_peek_scope(scope);
        async move { known.await.unwrap_or(ScopeView::Closed { remaining: None }) }
    }

    /// As [`Ledger::look_scope`], for those to whom "closed" and "cannot be known now" are not the same;
    /// the latter is `None`.
    pub fn try_peek_scope(
        &self,
        scope: ScopeId,
    ) -> impl Future<Output = Option<ScopeView>> + use<> {
        let answer: Result<_, BoxedReply<_>> = match self {
            Ledger::Memory(memory) => Ok(Some(memory.peek_scope(scope))),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => Err(Box::pin(sqlite.try_peek_scope(scope))),
        };
        ready_or_await(answer)
    }

    /// What a scope looked like a moment ago, for what is told and not decided by it: nobody waits.
    /// In memory it is exact; a store that takes time is asked for the next one who glances, and a
    /// scope of which nothing is known yet looks open.
    #[must_use]
    pub fn last_seen_scope(&self, scope: ScopeId) -> ScopeView {
        match self {
            Ledger::Memory(memory) => memory.peek_scope(scope),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.last_seen_scope(scope),
        }
    }

    /// The ledger clock, without the wall clock.
    #[must_use]
    pub fn at(&self) -> Micros {
        match self {
            Ledger::Memory(memory) => memory.at(),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.at(),
        }
    }

    /// The wall clock alone.
    #[must_use]
    pub fn wall(&self) -> Wall {
        match self {
            Ledger::Memory(memory) => memory.clock().wall(),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.clock().wall(),
        }
    }

    /// Both clocks, as this ledger reads them.
    #[must_use]
    pub fn now(&self) -> Now {
        match self {
            Ledger::Memory(memory) => memory.now(),
            #[cfg(feature = "sqlite")]
            Ledger::Sqlite(sqlite) => sqlite.now(),
        }
    }
}

/// An answer of another thread.
type BoxedReply<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An answer that is there, or one that comes from another thread.
async fn ready_or_await<T>(answer: Result<T, BoxedReply<T>>) -> T {
    match answer {
        Ok(known) => known,
        Err(later) => later.await,
    }
}
