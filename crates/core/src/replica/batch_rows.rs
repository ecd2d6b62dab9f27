//! The rows of one batch while it is decided.
//!
//! Promises: a cell without a row starts empty, or used up if rows were lost.
//!
//! Never: writes. What has changed is sent as one request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use crate::ask::{CellId, ScopeId};
use crate::batch::{Batch, LONG_PERIOD, TouchedRow};
use crate::fairness::{Rows, Waiter};
use crate::limit::{Cell, CellView, Rule};
use crate::row::{CellRow, Loss, ProviderRow, RowMeta, RowVersion, ScopeRow};
use crate::scope::Scope;
use crate::time::{Span, TimeBounds};
use crate::turn::CellStore;

use super::row::{Row, RowKey};
use super::share::MemberView;

/// Rows that one batch needs at most, about: 256 asks with four limits each. A batch that needs
/// more takes fewer asks.
pub(super) const ROWS_PER_BATCH: usize = 1_024;

/// The rows that a batch needs, each with the rule under which it is used.
pub(super) type NeededRows = BTreeMap<RowKey, Option<Arc<Rule>>>;

/// One row of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchRow<T> {
    /// The version that the store must still have.
    pub(super) expected: Option<RowVersion>,
    pub(super) row: T,
    /// Must be written even if no permit came or went.
    pub(super) must_write: bool,
}

/// All rows of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchRows {
    pub(super) provider: BatchRow<ProviderRow>,
    pub(super) cells: BTreeMap<CellId, BatchRow<CellRow>>,
    pub(super) scopes: BTreeMap<ScopeId, BatchRow<ScopeRow>>,
    /// Do owners take turns?
    pub(super) is_shared: bool,
    pub(super) turn_time: Span,
    /// Who may use a share without the store.
    pub(super) members: MemberView,
}

impl CellStore for BatchRows {
    fn cell(&mut self, id: CellId) -> &mut Cell {
        &mut self.cells.entry(id).or_default().row.cell
    }

    fn scope(&mut self, id: ScopeId) -> &mut Scope {
        &mut self.scopes.entry(id).or_default().row.scope
    }
}

impl Rows for BatchRows {
    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn waiters(&self, cell: CellId) -> &[Waiter] {
        let row = self.cells.get(&cell);
        row.map_or(&[], |row| &row.row.waiters)
    }

    fn waiters_mut(&mut self, cell: CellId) -> &mut Vec<Waiter> {
        &mut self.cells.entry(cell).or_default().row.waiters
    }

    fn peek(&self, cell: CellId, rule: &Rule, now: TimeBounds) -> CellView {
        match self.cells.get(&cell) {
            Some(row) => row.row.cell.peek(rule, now),
            None => Cell::default().peek(rule, now),
        }
    }

    fn turn_time(&self) -> Span {
        self.turn_time
    }
}

impl BatchRow<CellRow> {
    /// A cell that the store has.
    pub(super) fn present_cell(
        row: CellRow,
        expected: Option<RowVersion>,
        must_write: bool,
    ) -> BatchRow<CellRow> {
        BatchRow {
            expected,
            row,
            must_write,
        }
    }

    /// Was it written before it was noticed that everything was lost? Then it lacks what was used
    /// before, and counts as used up for one period. Where nobody asks, it stays as it is.
    pub(super) fn after_losses(
        mut self,
        rule: Option<&Rule>,
        loss: Loss,
        losses: u64,
        call_timeout: Span,
    ) -> BatchRow<CellRow> {
        if let (Some(rule), Some(at)) = (rule, loss.at)
            && self.row.losses != losses
        {
            self.row.cell.close_for_one_period(rule, at, call_timeout);
            (self.row.losses, self.must_write) = (losses, true);
        }
        self
    }

    /// A cell that the store does not have.
    pub(super) fn absent_cell(
        rule: Option<&Rule>,
        loss: Loss,
        losses: u64,
        call_timeout: Span,
    ) -> BatchRow<CellRow> {
        let matters = |rule: &&Rule| loss.is_all || rule.period() < LONG_PERIOD;
        let cell = match (rule.filter(matters), loss.at) {
            (Some(rule), Some(at)) => Cell::used_up_by_calls(rule, at, call_timeout),
            (_, _) => Cell::default(),
        };
        BatchRow {
            row: CellRow {
                cell,
                losses,
                ..CellRow::default()
            },
            ..BatchRow::default()
        }
    }
}

impl BatchRows {
    /// What the store must still have.
    pub(super) fn expected(&self) -> Vec<(RowKey, Option<RowVersion>)> {
        let provider = (RowKey::Provider, self.provider.expected);
        let cells = self.cells.iter();
        let cells = cells.map(|(id, row)| (RowKey::Cell(*id), row.expected));
        let scopes = self.scopes.iter();
        let scopes = scopes.map(|(id, row)| (RowKey::Scope(*id), row.expected));
        std::iter::once(provider)
            .chain(cells)
            .chain(scopes)
            .collect()
    }

    /// Must a row be written even if no permit came or went?
    pub(super) fn must_write(&self) -> bool {
        self.provider.must_write
            || self.cells.values().any(|row| row.must_write)
            || self.scopes.values().any(|row| row.must_write)
    }

    /// The rows that have changed, or must be written.
    pub(super) fn changed(
        self,
        before: &BatchRows,
        stamp: impl Fn(&mut RowMeta),
    ) -> Vec<(RowKey, Row)> {
        let mut changed = Vec::new();
        if self.provider.must_write {
            let mut row = self.provider.row;
            stamp(&mut row.meta);
            changed.push((RowKey::Provider, Row::Provider(row)));
        }
        for (id, mut row) in self.cells {
            let old = before.cells.get(&id).map(|old| old.row.contents());
            if row.must_write || old.unwrap_or_default() != row.row.contents() {
                stamp(&mut row.row.meta);
                changed.push((RowKey::Cell(id), Row::Cell(row.row)));
            }
        }
        for (id, mut row) in self.scopes {
            let old = before.scopes.get(&id).map(|old| old.row.scope);
            if row.must_write || old.unwrap_or_default() != row.row.scope {
                stamp(&mut row.row.meta);
                changed.push((RowKey::Scope(id), Row::Scope(row.row)));
            }
        }
        changed
    }
}

/// The rows that a batch needs.
pub(super) fn needed(batch: &Batch<'_>) -> NeededRows {
    let mut needed = NeededRows::new();
    needed.insert(RowKey::Provider, None);
    let add = |row: TouchedRow<'_>| -> Result<(), Infallible> {
        match row {
            TouchedRow::Cell(cell, Some(rule)) => {
                needed.insert(RowKey::Cell(cell), Some(rule.clone()));
            }
            TouchedRow::Cell(cell, None) => {
                needed.entry(RowKey::Cell(cell)).or_default();
            }
            TouchedRow::Scope(scope) => {
                needed.insert(RowKey::Scope(scope), None);
            }
        }
        Ok(())
    };
    match batch.for_each_row(add) {
        Ok(()) => needed,
        Err(never) => match never {},
    }
}
