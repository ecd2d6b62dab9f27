//! Cells and scopes in memory.
//!
//! Promises: idle cells are swept a few at a time, so a provider with millions of entities causes
//! no pause; sweeping changes no decision. A snapshot can be restored on another clock.
//!
//! Never: locks. The owner of a shared table brings the lock.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::ask::{CellId, ScopeId};
use crate::fairness::{Rows, Waiter};
use crate::limit::{Cell, CellView, Damaged, Rule};
use crate::scope::{Scope, ScopeView};
use crate::time::{Micros, Span, TimeBounds};
use crate::turn::CellStore;

/// Cells and scopes by their ids.
#[derive(Clone, Debug, Default)]
pub struct Table {
    cells: BTreeMap<CellId, Cell>,
    scopes: BTreeMap<ScopeId, Scope>,
    /// Scopes as sweeps have found them, and when they first did.
    seen_scopes: BTreeMap<ScopeId, (Scope, Micros)>,
    /// Only cells that somebody waits for.
    waiters: BTreeMap<CellId, Vec<Waiter>>,
    swept_to: Option<CellId>,
    /// Several owners use it.
    is_shared: bool,
}

impl CellStore for Table {
    fn cell(&mut self, id: CellId) -> &mut Cell {
        self.cells.entry(id).or_default()
    }

    fn scope(&mut self, id: ScopeId) -> &mut Scope {
        self.scopes.entry(id).or_default()
    }
}

impl Rows for Table {
    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn waiters(&self, cell: CellId) -> &[Waiter] {
        self.waiters.get(&cell).map_or(&[], Vec::as_slice)
    }

    fn waiters_mut(&mut self, cell: CellId) -> &mut Vec<Waiter> {
        self.waiters.entry(cell).or_default()
    }

    fn peek(&self, cell: CellId, rule: &Rule, now: TimeBounds) -> CellView {
        Table::peek(self, cell, rule, now)
    }
}

impl Table {
    /// Several owners use it from now on: they are served in turn.
    pub fn share(&mut self) {
        self.is_shared = true;
    }

    /// The cell, if it was ever used.
    #[must_use]
    pub fn get(&self, id: CellId) -> Option<&Cell> {
        self.cells.get(&id)
    }

    /// The visible state of a limit; an unused one has everything remaining.
    #[must_use]
    pub fn peek(&self, id: CellId, rule: &Rule, now: impl Into<TimeBounds>) -> CellView {
        let now = now.into();
        self.cells.get(&id).map_or_else(
            || Cell::default().peek(rule, now),
            |cell| cell.peek(rule, now),
        )
    }

    /// The visible state of a scope; one that was never closed is open.
    #[must_use]
    pub fn peek_scope(&self, id: ScopeId, now: Micros) -> ScopeView {
        self.scopes.get(&id).copied().unwrap_or_default().peek(now)
    }

    /// The number of stored cells.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// How many scopes are stored, for tests of the bound.
    #[cfg(test)]
    pub(crate) fn scopes_stored(&self) -> usize {
        self.scopes.len()
    }

    /// No cell is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Checks up to `at_most` cells, from where the last sweep stopped, and removes the idle ones.
    /// Open scopes are removed too: a missing scope is open.
    pub fn sweep(&mut self, now: Micros, at_most: usize) {
        let from = self.swept_to.map_or(Bound::Unbounded, Bound::Excluded);
        let visited: Vec<(CellId, bool)> = self
            .cells
            .range((from, Bound::Unbounded))
            .take(at_most)
            .map(|(id, cell)| (*id, cell.is_idle(now)))
            .collect();
        self.swept_to = visited
            .last()
            .map(|(id, _)| *id)
            .filter(|_| visited.len() == at_most);
        for (id, _) in visited.iter().filter(|(_, idle)| *idle) {
            self.cells.remove(id);
        }
        if self.swept_to.is_none() {
            self.waiters
                .retain(|_, waiters| waiters.iter().any(|waiter| waiter.until > now));
            self.sweep_scopes(now);
        }
    }

    /// Has a sweep stopped before the last cell, for the next one to go on?
    #[must_use]
    pub fn is_half_swept(&self) -> bool {
        self.swept_to.is_some()
    }

    /// A scope has no time of its last change here: that is the sweep which saw it first.
    fn sweep_scopes(&mut self, now: Micros) {
        let seen = &mut self.seen_scopes;
        seen.retain(|id, _| self.scopes.contains_key(id));
        self.scopes.retain(|id, scope| {
            let known = seen.entry(*id).or_insert((*scope, now));
            if known.0 != *scope {
                *known = (*scope, now);
            }
            let is_idle = scope.is_idle(known.1, now);
            if is_idle {
                seen.remove(id);
            }
            !is_idle
        });
    }

    /// Every cell as bytes, with instants as distances from `now`.
    #[must_use]
    pub fn snapshot(&self, now: Micros) -> Vec<(CellId, Vec<u8>)> {
        self.cells
            .iter()
            .map(|(id, cell)| (*id, cell.to_bytes(now)))
            .collect()
    }

    /// Restores a snapshot, `elapsed` after it was taken. Returns the damaged cells; they are not
    /// restored, and the caller decides how to close them.
    pub fn restore(
        &mut self,
        snapshot: &[(CellId, Vec<u8>)],
        now: Micros,
        elapsed: Span,
    ) -> Vec<(CellId, Damaged)> {
        let mut damaged = Vec::new();
        for (id, bytes) in snapshot {
            match Cell::from_bytes_after(bytes, now, elapsed) {
                Ok(cell) => {
                    self.cells.insert(*id, cell);
                }
                Err(error) => damaged.push((*id, error)),
            }
        }
        damaged
    }
}
