//! Owners that were found dead while somebody waited with them.
//!
//! Promises: each is named in the next batch that meets a cell for which it waits, and then it is
//! dropped. So nobody leaves anything to the dead, and nobody who is given the number of one later is
//! taken for it.
//!
//! Never: needed for safety. One that is forgotten is found dead again, or waits in the rows until its
//! time is over.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tollgate_core::ask::{CellId, OwnerId};
use tollgate_core::batch::{Batch, RowId};

/// Dead owners, with the cells for which they wait: as many as processes may have been killed on a
/// host since the cells were used.
const DEAD_MAX: usize = 1_024;

/// Owners that were found dead: nobody leaves them anything.
#[derive(Debug, Default)]
pub(crate) struct DeadOwners {
    /// Read by every batch.
    is_any: AtomicBool,
    state: Mutex<DeadState>,
}

#[derive(Debug, Default)]
struct DeadState {
    /// Who waits for what.
    waiters: Vec<(OwnerId, CellId)>,
    /// This process when they were found. Numbers count only in the database that gave them.
    found_as: OwnerId,
}

impl DeadState {
    fn forget_if_other(&mut self, owner: OwnerId) {
        if self.found_as != owner {
            self.waiters.clear();
            self.found_as = owner;
        }
    }
}

impl DeadOwners {
    /// Those that were found while this process had this number.
    pub(crate) fn get(&self, owner: OwnerId) -> Vec<OwnerId> {
        if !self.is_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        state.forget_if_other(owner);
        self.is_any
            .store(!state.waiters.is_empty(), Ordering::Release);
        let mut dead: Vec<OwnerId> = state.waiters.iter().map(|(owner, _)| *owner).collect();
        drop(state);
        dead.sort_unstable();
        dead.dedup();
        dead
    }

    /// These were found dead by this owner, each waiting for a cell.
    pub(crate) fn add(&self, by: OwnerId, found: Vec<(OwnerId, CellId)>) {
        if found.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.forget_if_other(by);
        for waiter in found {
            if state.waiters.len() < DEAD_MAX && !state.waiters.contains(&waiter) {
                state.waiters.push(waiter);
            }
        }
        self.is_any.store(true, Ordering::Release);
    }

    /// A batch that named them is committed: they wait for none of its cells any more.
    pub(crate) fn on_committed(&self, batch: &Batch<'_>) {
        if batch.dead.is_empty() {
            return;
        }
        let mut cells = Vec::new();
        let named = batch.for_each_row(|row| {
            if let RowId::Cell(cell, _) = row {
                cells.push(cell);
            }
            Ok::<(), std::convert::Infallible>(())
        });
        match named {
            Ok(()) => {}
            Err(never) => match never {},
        }
        let mut state = self.state.lock();
        let waiters = &mut state.waiters;
        waiters.retain(|(owner, cell)| !(batch.dead.contains(owner) && cells.contains(cell)));
        self.is_any
            .store(!state.waiters.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: CellId = CellId(1);

    fn stopped_waiting<'a>(cells: &'a [CellId], dead: &'a [OwnerId]) -> Batch<'a> {
        Batch {
            stopped_waiting: cells,
            dead,
            ..Batch::now(OwnerId(1), &[], &[])
        }
    }

    #[test]
    fn dead_owners_are_forgotten_with_the_database_that_numbered_them() {
        let dead = DeadOwners::default();
        assert_eq!(dead.get(OwnerId(1)), []);
        dead.add(OwnerId(1), vec![(OwnerId(7), CELL)]);
        assert_eq!(dead.get(OwnerId(1)), [OwnerId(7)]);
        assert_eq!(dead.get(OwnerId(2)), []);
        assert_eq!(dead.get(OwnerId(1)), []);
    }

    /// Before, the list only grew: whoever was given the number later was taken for dead.
    #[test]
    fn a_dead_owner_is_dropped_once_a_batch_has_met_what_it_waited_for() {
        let dead = DeadOwners::default();
        dead.add(
            OwnerId(1),
            vec![(OwnerId(7), CELL), (OwnerId(8), CellId(2))],
        );
        let named = dead.get(OwnerId(1));
        dead.on_committed(&stopped_waiting(&[CellId(3)], &named));
        assert_eq!(dead.get(OwnerId(1)), [OwnerId(7), OwnerId(8)]);
        dead.on_committed(&stopped_waiting(&[CELL], &named));
        assert_eq!(dead.get(OwnerId(1)), [OwnerId(8)]);
        dead.on_committed(&stopped_waiting(&[CellId(2)], &[]));
        assert_eq!(dead.get(OwnerId(1)), [OwnerId(8)], "that batch named none");
        dead.on_committed(&stopped_waiting(&[CellId(2)], &named));
        assert_eq!(dead.get(OwnerId(1)), []);
    }
}
