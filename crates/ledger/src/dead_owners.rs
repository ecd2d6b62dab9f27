//! Owners that were found dead while somebody waited with them.
//!
//! All of them are other processes. `former_owners.rs` lists the numbers that this process itself had in databases
//! that were replaced. The lists differ in two ways: using a cell drops an entry of this list only, and only an entry
//! of that list rejects a settle. A networked store never gives a number twice and knows which owners are alive, so
//! its task lists only the few that it met (`networked/task.rs`).
//!
//! Promises: the next batch that uses a cell for which a dead owner waits names that owner, and the entry is dropped.
//! No permit stays reserved for a dead owner, and a new process with the same number is not mistaken for it.
//!
//! Never: needed for safety. An owner that is missing here is found dead again, or its entry in the row expires.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tollgate_core::ask::{CellId, OwnerId};
use tollgate_core::batch::{Batch, TouchedRow};

/// Dead owners, with the cells for which they wait: as many as processes may have been killed on a
/// host since the cells were used. The oldest makes room: its cell may never be used again.
const DEAD_MAX: usize = 1_024;

/// Of one cell: a row holds about as many waiters, and other cells need room too.
const DEAD_PER_CELL_MAX: usize = 64;

/// Owners that were found dead: nobody leaves them anything.
#[derive(Debug, Default)]
pub(crate) struct DeadOwners {
    /// Read by every batch.
    is_any: AtomicBool,
    state: Mutex<DeadState>,
}

#[derive(Debug, Default)]
struct DeadState {
    /// Who waits for what, the one found first in front.
    waiters: VecDeque<(OwnerId, CellId)>,
    /// This process when they were found. Numbers count only in the database that gave them.
    found_as: OwnerId,
}

impl DeadState {
    fn clear_if_other(&mut self, owner: OwnerId) {
        if self.found_as != owner {
            self.waiters.clear();
            self.found_as = owner;
        }
    }

    fn add(&mut self, waiter: (OwnerId, CellId)) {
        if self.waiters.contains(&waiter) {
            return;
        }
        let of_cell = |(_, cell): &(OwnerId, CellId)| *cell == waiter.1;
        let oldest = if self.waiters.iter().filter(|one| of_cell(one)).count() >= DEAD_PER_CELL_MAX
        {
            self.waiters.iter().position(of_cell)
        } else {
            (self.waiters.len() >= DEAD_MAX).then_some(0)
        };
        if let Some(oldest) = oldest {
            self.waiters.remove(oldest);
        }
        self.waiters.push_back(waiter);
    }
}

impl DeadOwners {
    /// Those that were found while this process had this number.
    pub(crate) fn get(&self, owner: OwnerId) -> Vec<OwnerId> {
        if !self.is_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        state.clear_if_other(owner);
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
        state.clear_if_other(by);
        found.into_iter().for_each(|waiter| state.add(waiter));
        self.is_any.store(true, Ordering::Release);
    }

    /// The store is opened again, and may be another database: in that this process may have the
    /// same number as before, and others those of the dead.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        state.waiters.clear();
        self.is_any.store(false, Ordering::Release);
    }

    /// A batch that named them is committed: they wait for none of its cells any more.
    pub(crate) fn on_committed(&self, batch: &Batch<'_>) {
        if batch.dead.is_empty() {
            return;
        }
        let mut cells = Vec::new();
        let named = batch.for_each_row(|row| {
            if let TouchedRow::Cell(cell, _) = row {
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

    /// Before, a full table took nothing more: cells that nobody used again filled it for ever.
    #[test]
    fn the_oldest_dead_owner_makes_room_of_its_cell_first() {
        let dead = DeadOwners::default();
        let of_cell = |cell: u128, owners: std::ops::Range<u32>| {
            owners
                .map(|owner| (OwnerId(owner), CellId(cell)))
                .collect::<Vec<_>>()
        };
        dead.add(OwnerId(1), of_cell(1, 100..200));
        let named = dead.get(OwnerId(1));
        assert_eq!(named.len(), DEAD_PER_CELL_MAX);
        assert!(named.contains(&OwnerId(199)) && !named.contains(&OwnerId(100)));
        for cell in 2..2_000 {
            dead.add(OwnerId(1), of_cell(cell, 7..8));
        }
        assert_eq!(dead.state.lock().waiters.len(), DEAD_MAX);
        dead.add(OwnerId(1), of_cell(5_000, 9..10));
        assert!(dead.get(OwnerId(1)).contains(&OwnerId(9)));
    }

    /// The new database may give this process the number that it had in the old one.
    #[test]
    fn dead_owners_are_forgotten_when_the_store_is_opened_again() {
        let dead = DeadOwners::default();
        dead.add(OwnerId(1), vec![(OwnerId(7), CELL)]);
        dead.clear();
        assert_eq!(dead.get(OwnerId(1)), []);
    }
}
