//! What a store is: where the rows are. Everything else of a ledger is above it, once for all stores.
//!
//! A store reads the rows of a batch, has `tollgate_core::batch::decide` decide it, and writes the
//! rows that changed, all of it or nothing. It is driven in one of two ways: inline, on the thread
//! of whoever asks, if it never blocks; or by a thread of the ledger, if it does.
//!
//! Promises: the duties are those of [`Store`], the same for every store; the conformance suite tests
//! them.
//!
//! Never: decides anything, wakes anybody of its own process (the front does), or hands out.

use std::fmt;
use std::sync::Arc;

use tollgate_core::ask::{Ask, CellId, OwnerId, ScopeId};
use tollgate_core::batch::{Batch, BatchResult};
use tollgate_core::limit::{CellView, Rule};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Span;

use crate::event::Event;
use crate::hub::Hub;

/// How often a lost store is tried again. Nothing changes earlier, so rejected calls are sent away
/// for this long.
pub const LOST_RETRY: Span = Span::from_secs(1);

/// Where permits are counted.
///
/// The duties of every store, whatever it is built on:
///
/// - **All or nothing.** A batch that returns an error has changed nothing, or it cannot be known
///   whether it did; then the store itself must recognise it when its settles come again.
/// - **Counted before it is handed out.** When `commit` returns, everybody who commits later sees what
///   was decided, other owners too.
/// - **One clock.** `now` is read after the lock is held, or inside the transaction, and never goes
///   back between two batches.
/// - **A doubtful row counts as used up.** A row that is damaged, or that should be there and is
///   not, is used up (`Cell::used_up`) or closed (`Scope::lost`), never empty, and is counted in
///   `damaged_rows`.
/// - **Numbers are owners.** `owner` is never given to two processes that use the same rows. If it
///   changes, the rows are others: whatever was counted under the former number is not in them.
/// - **No call waits without end.** An error is better than a wait of more than a second.
/// - **A panic is a loss.** The front takes a store that has panicked for failed for good.
pub trait Store: Send + Sync + fmt::Debug {
    /// Decides one batch with `tollgate_core::batch::decide` and writes it. One verdict per ask, in
    /// their order. An empty batch checks whether the store can be written again after a
    /// loss: it writes something, so that it fails where a batch would.
    fn commit(&self, batch: &Batch<'_>) -> Result<BatchResult, StoreError>;

    /// Decides the batches of several providers and returns one result per batch, in their order.
    /// Those that succeed are committed, whatever becomes of the others. A store that makes one
    /// transaction of them, which is cheaper, fails all of them or none.
    fn commit_together(&self, batches: &[Batch<'_>]) -> Vec<Result<BatchResult, StoreError>> {
        batches.iter().map(|batch| self.commit(batch)).collect()
    }

    /// When this returns, everything that was committed before it was called and must survive a power
    /// cut does. Called on a thread of its own while other batches are committed. One that has failed
    /// is not tried again. Who waits for it: `BatchResult::sync_ahead`.
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Reads rows and changes nothing; sees every batch that this owner has committed. One view per
    /// row, in the order of the query. What cannot be believed looks used up, or closed.
    fn peek(&self, query: &PeekQuery) -> Result<PeekReply, StoreError>;

    /// This process among those that share the store. Permits carry it.
    /// [`OwnerId::UNKNOWN`] until it is known; real numbers start at 1.
    fn owner(&self) -> OwnerId;

    /// The last batch failed, and another one is about to be made: what must be opened again is
    /// opened here. [`Store::owner`] is then the number that the batch is made with.
    fn reopen(&self) {}

    /// Tells another owner that this cell has come free, without waiting for it. Says what is known
    /// of that owner.
    fn wake(&self, owner: OwnerId, cell: CellId) -> Liveness;

    /// Is this owner alive? Says nothing to it.
    fn liveness(&self, owner: OwnerId) -> Liveness;

    /// Tells every other owner that these scopes have changed.
    fn notify_scopes(&self, scopes: &[ScopeId]);

    /// A batch is over and its verdicts are delivered: time for work that may take a while.
    fn maintain(&self) {}

    /// Nothing is asked any more.
    fn close(&self) {}

    /// Why it could not be opened, if so: then it is lost from the start.
    fn not_open(&self) -> Option<StoreError> {
        None
    }

    /// Do other processes count in it as well?
    fn is_shared_by_processes(&self) -> bool {
        true
    }

    /// How many rows could not be believed since it was opened; their limits count as used up for
    /// one period.
    fn damaged_rows(&self) -> u64 {
        0
    }

    /// The length of a log that grows because a reader of another program keeps it from being
    /// shortened.
    fn held_log_bytes(&self) -> Option<u64> {
        None
    }

    /// How many cells are stored, where that is known without reading them all.
    fn cell_count(&self) -> Option<usize> {
        None
    }
}

/// What is known of another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It lives, and a wake-up has reached it or will.
    Alive,
    /// It has ended: no capacity is left or saved for it.
    Dead,
    /// It could not be reached, which says nothing. It keeps its place, and somebody else is woken
    /// too.
    Unknown,
}

/// Wakes the first of those who wait, as many as there is room for; the dead are passed over.
/// Returns the owners that are dead, each with a cell that it waits for.
pub(crate) fn wake_owners(
    store: &dyn Store,
    decision: &BatchResult,
    saved_in: &[CellId],
) -> Vec<(OwnerId, CellId)> {
    let mut dead = Vec::new();
    for wake in &decision.wakes {
        let mut room = wake.at_most;
        for &owner in &wake.owners {
            if room == 0 {
                break;
            }
            match store.wake(owner, wake.cell) {
                Liveness::Alive => room -= 1,
                Liveness::Dead => dead.push((owner, wake.cell)),
                Liveness::Unknown => {}
            }
        }
    }
    let saved_for = decision.saved_for.iter();
    for &owner in saved_for.filter(|owner| store.liveness(**owner) == Liveness::Dead) {
        dead.extend(saved_in.iter().map(|cell| (owner, *cell)));
    }
    dead
}

/// The cells of these asks, if something is saved up in one of them; in which is not known.
pub(crate) fn saved_in(decision: &BatchResult, asks: &[Ask]) -> Vec<CellId> {
    if decision.saved_for.is_empty() {
        return Vec::new();
    }
    let terms = asks.iter().flat_map(|ask| &ask.terms);
    terms.map(|term| term.cell).collect()
}

/// One verdict per ask: what a store has decided otherwise cannot be handed out.
pub(crate) fn check_verdicts(decision: &BatchResult, asks: usize) -> Result<(), StoreError> {
    let verdicts = decision.verdicts.len();
    if verdicts == asks {
        return Ok(());
    }
    Err(StoreError {
        message: format!(
            "the store decided {verdicts} of {asks} asks, which is an error in Tollgate; restart it \
             and report this"
        )
        .into(),
        is_final: true,
    })
}

/// What to read, of one provider: any number of cells and scopes are one request.
#[derive(Clone, Debug, Default)]
pub struct PeekQuery {
    /// Limits, each with its rule.
    pub cells: Vec<(CellId, Arc<Rule>)>,
    /// Scopes.
    pub scopes: Vec<ScopeId>,
}

impl PeekQuery {
    /// Takes so many rows off its beginning.
    pub(crate) fn split_off_rows(&mut self, rows: usize) -> PeekQuery {
        let cells = self.cells.len().min(rows);
        let scopes = self.scopes.len().min(rows - cells);
        PeekQuery {
            cells: self.cells.drain(..cells).collect(),
            scopes: self.scopes.drain(..scopes).collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.scopes.is_empty()
    }
}

/// What was read, in the order of the query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeekReply {
    /// One view per cell.
    pub cells: Vec<CellView>,
    /// One view per scope.
    pub scopes: Vec<ScopeView>,
}

/// Why a store cannot be used now: a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    /// What happened, and what to do.
    pub message: Arc<str>,
    /// Nothing but a restart helps.
    pub is_final: bool,
}

/// Through this a store reports to its own process what other owners did.
#[derive(Clone, Debug)]
pub struct EventSink {
    hub: Arc<Hub>,
}

impl EventSink {
    pub(crate) fn new(hub: Arc<Hub>) -> EventSink {
        EventSink { hub }
    }

    /// Another owner has freed these.
    pub fn freed(&self, cells: Vec<CellId>) {
        self.hub.freed_elsewhere(cells);
    }

    /// Another owner has changed these.
    pub fn scopes_changed(&self, scopes: Vec<ScopeId>) {
        self.hub.scopes_changed_elsewhere(scopes);
    }

    /// So many stored rows could not be believed.
    pub fn rows_damaged(&self, rows: u64) {
        self.hub.broadcast(&Event::Damaged { rows });
    }

    /// The store's log grows: a reader of another program keeps it from being shortened.
    pub fn log_held(&self, bytes: u64) {
        self.hub.broadcast(&Event::LogHeld { bytes });
    }

    /// Too much happened to follow.
    pub fn resync(&self) {
        self.hub.resync();
    }

    /// To be called each second: those who wait for a signal ask again, so that one that was lost
    /// costs a second and never a hang.
    pub fn ask_again(&self) {
        self.hub.ask_again();
    }
}
