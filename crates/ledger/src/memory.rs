//! The store in memory: a table under a lock.
//!
//! Promises: exact within one process, and the measure for every other store. Several ledgers of one
//! process may share it; each is an owner of its own. Idle cells are forgotten a few at a time.
//!
//! Never: survives its process. Limits that must are SQLite's.

use std::sync::Arc;

use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::batch::{Batch, BatchResult, decide};
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Span};

use crate::Clock;
use crate::lock_order::{RankedMutex, rank};
use crate::store::{EventSink, Liveness, PeekQuery, PeekReply, Store, StoreError};

/// Cells looked at per batch with asks. Each of those makes at most a handful, so looking at this
/// many keeps up with any number of keys; a settle alone makes none that was not there.
const SWEEP_CELLS: usize = 8;

/// How long sweeping rests when all cells have been looked at. A cell is idle for far longer before it is
/// forgotten, and what a batch makes meanwhile is looked at afterwards, as many at a time as before.
const SWEEP_REST: Span = Span::from_millis(100);

/// Rows in this process that several ledgers may share; clones are the same rows.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    rows: Arc<MemoryRows>,
}

#[derive(Debug)]
struct MemoryRows {
    clock: Clock,
    table: RankedMutex<{ rank::MEMORY_TABLE }, SweptTable>,
    /// By the number of the owner, from 1 on. `None`: that one has gone.
    owners: RankedMutex<{ rank::MEMORY_OWNERS }, Vec<Option<EventSink>>>,
}

/// A table, and when it is swept again.
#[derive(Debug, Default)]
struct SweptTable {
    table: Table,
    sweep_at: Micros,
}

impl SweptTable {
    fn sweep(&mut self, now: Micros) {
        if self.table.is_half_swept() || now >= self.sweep_at {
            self.table.sweep(now, SWEEP_CELLS);
            self.sweep_at = now + SWEEP_REST;
        }
    }
}

impl SharedMemory {
    /// Empty rows on this clock.
    #[must_use]
    pub fn new(clock: Clock) -> SharedMemory {
        SharedMemory {
            rows: Arc::new(MemoryRows {
                clock,
                table: RankedMutex::default(),
                owners: RankedMutex::default(),
            }),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.rows.clock.clone()
    }

    /// The store of one more owner. From the second one on they are served in turn.
    pub(crate) fn join(&self, sink: EventSink) -> MemoryStore {
        let mut owners = self.rows.owners.lock();
        owners.push(Some(sink));
        let number = u32::try_from(owners.len()).unwrap_or(u32::MAX);
        if owners.len() > 1 {
            self.rows.table.lock().table.share();
        }
        drop(owners);
        MemoryStore {
            rows: self.rows.clone(),
            owner: OwnerId(number),
        }
    }
}

/// The rows as one owner uses them.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    rows: Arc<MemoryRows>,
    owner: OwnerId,
}

impl MemoryRows {
    fn sink(&self, owner: OwnerId) -> Option<EventSink> {
        let owners = self.owners.lock();
        owners.get(index_of(owner)?)?.clone()
    }
}

impl Store for MemoryStore {
    /// The clock is read under the lock, so that time never goes back between two batches.
    fn commit(&self, batch: &Batch<'_>) -> Result<BatchResult, StoreError> {
        let mut table = self.rows.table.lock();
        let now = self.rows.clock.now();
        let decision = decide(&mut table.table, now, batch);
        if !batch.asks.is_empty() {
            table.sweep(now.at);
        }
        Ok(decision)
    }

    fn peek(&self, query: &PeekQuery) -> Result<PeekReply, StoreError> {
        let rows = self.rows.table.lock();
        let table = &rows.table;
        let now = self.rows.clock.now();
        let cells = query.cells.iter();
        let scopes = query.scopes.iter();
        Ok(PeekReply {
            cells: cells.map(|(id, rule)| table.peek(*id, rule, now)).collect(),
            scopes: scopes.map(|id| table.peek_scope(*id, now.at)).collect(),
        })
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn wake(&self, owner: OwnerId, cell: CellId) -> Liveness {
        match self.rows.sink(owner) {
            Some(sink) => {
                sink.freed(vec![cell]);
                Liveness::Alive
            }
            None => Liveness::Dead,
        }
    }

    fn liveness(&self, owner: OwnerId) -> Liveness {
        match self.rows.sink(owner) {
            Some(_) => Liveness::Alive,
            None => Liveness::Dead,
        }
    }

    fn notify_scopes(&self, scopes: &[ScopeId]) {
        let others: Vec<EventSink> = {
            let owners = self.rows.owners.lock();
            let others = owners.iter().enumerate();
            let others = others.filter(|(index, _)| Some(*index) != index_of(self.owner));
            others.filter_map(|(_, sink)| sink.clone()).collect()
        };
        for sink in others {
            sink.scopes_changed(scopes.to_vec());
        }
    }

    fn is_shared_by_processes(&self) -> bool {
        false
    }

    fn cell_count(&self) -> Option<usize> {
        Some(self.rows.table.lock().table.len())
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        let mut owners = self.rows.owners.lock();
        if let Some(sink) = index_of(self.owner).and_then(|index| owners.get_mut(index)) {
            *sink = None;
        }
    }
}

/// Where the owner with this number is in the list; none has the number 0.
fn index_of(owner: OwnerId) -> Option<usize> {
    usize::try_from(owner.0.checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests {
    use tollgate_core::ask::OwnerId;

    use crate::{Clock, Ledger, SharedMemory};

    /// 0 means that a number is not known: the first owner had it.
    #[test]
    fn owners_are_numbered_from_one() {
        assert_eq!(Ledger::memory(Clock::System).owner(), OwnerId(1));
        let shared = SharedMemory::new(Clock::System);
        let owner = || Ledger::shared_memory(&shared).owner();
        assert_eq!((owner(), owner()), (OwnerId(1), OwnerId(2)));
    }
}
