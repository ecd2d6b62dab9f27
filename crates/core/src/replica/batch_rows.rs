//! The rows of one batch while it is decided.
//!
//! Promises: a cell without a row starts empty, or used up if rows were lost.
//!
//! Never: writes. What has changed is sent as one request.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ask::{Ask, CellId, OwnerId, ScopeId, Settle};
use crate::limit::{Cell, Rule};
use crate::scope::Scope;
use crate::time::{Micros, TimeBounds};
use crate::turn::CellStore;

use super::row::{LONG_PERIOD, Loss, Row, RowBody, RowId, RowWaiter, Version, WAITERS_MAX};

/// The rows that a batch needs, each with the rule under which it is used.
pub(super) type Needed = BTreeMap<RowId, Option<Arc<Rule>>>;

/// One row of a batch.
#[derive(Clone, Debug)]
pub(super) struct BatchRow {
    /// The version that the store must still have.
    pub(super) expected: Option<Version>,
    pub(super) revision: u64,
    pub(super) body: RowBody,
    pub(super) waiters: Vec<RowWaiter>,
    /// Must be written even if no permit came or went.
    pub(super) must_write: bool,
}

/// All rows of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchRows {
    pub(super) rows: BTreeMap<RowId, BatchRow>,
}

impl CellStore for BatchRows {
    fn cell(&mut self, id: CellId) -> &mut Cell {
        let row = self.entry(RowId::Cell(id));
        if !matches!(row.body, RowBody::Cell(_)) {
            row.body = RowBody::Cell(Cell::default());
        }
        match &mut row.body {
            RowBody::Cell(cell) => cell,
            RowBody::Provider(_) | RowBody::Scope(_) => unreachable!("just set"),
        }
    }

    fn scope(&mut self, id: ScopeId) -> &mut Scope {
        let row = self.entry(RowId::Scope(id));
        if !matches!(row.body, RowBody::Scope(_)) {
            row.body = RowBody::Scope(Scope::default());
        }
        match &mut row.body {
            RowBody::Scope(scope) => scope,
            RowBody::Provider(_) | RowBody::Cell(_) => unreachable!("just set"),
        }
    }
}

impl BatchRow {
    /// A row that the store does not have.
    pub(super) fn absent(id: RowId, rule: Option<&Rule>, loss: Loss) -> BatchRow {
        let matters = |rule: &&Rule| loss.is_all || rule.period() < LONG_PERIOD;
        let body = match (id, rule.filter(matters), loss.at) {
            (RowId::Cell(_), Some(rule), Some(at)) => RowBody::Cell(Cell::used_up(rule, at)),
            (RowId::Cell(_), _, _) => RowBody::Cell(Cell::default()),
            (RowId::Scope(_), _, _) => RowBody::Scope(Scope::default()),
            (RowId::Provider, _, _) => RowBody::Provider(loss),
        };
        BatchRow {
            expected: None,
            revision: 0,
            body,
            waiters: Vec::new(),
            must_write: false,
        }
    }

    pub(super) fn of(row: Row, expected: Option<Version>) -> BatchRow {
        BatchRow {
            expected,
            revision: row.revision,
            body: row.body,
            waiters: row.waiters,
            must_write: false,
        }
    }
}

impl BatchRows {
    fn entry(&mut self, id: RowId) -> &mut BatchRow {
        self.rows
            .entry(id)
            .or_insert_with(|| BatchRow::absent(id, None, Loss::default()))
    }

    /// The other owners that wait for a cell.
    pub(super) fn rivals(&self, cell: CellId, owner: OwnerId, now: TimeBounds) -> usize {
        self.waiters(cell)
            .filter(|waiter| waiter.owner != owner && waiter.until > now.lo)
            .count()
    }

    /// How many owners go before this one: the less served, and among equals the lower number.
    pub(super) fn rank(&self, cell: CellId, owner: OwnerId, now: TimeBounds) -> u64 {
        let own = self.waiters(cell).find(|waiter| waiter.owner == owner);
        let place = own.map_or((u64::MAX, owner), |waiter| (waiter.served, owner));
        let before = self
            .waiters(cell)
            .filter(|waiter| waiter.until > now.lo && (waiter.served, waiter.owner) < place);
        before.count() as u64
    }

    fn waiters(&self, cell: CellId) -> impl Iterator<Item = &RowWaiter> {
        let row = self.rows.get(&RowId::Cell(cell));
        row.into_iter().flat_map(|row| &row.waiters)
    }

    /// What is free in a cell for a call of high priority.
    pub(super) fn free(&self, cell: CellId, rule: &Rule, now: TimeBounds) -> u64 {
        match self.rows.get(&RowId::Cell(cell)).map(|row| &row.body) {
            Some(RowBody::Cell(cell)) => cell.peek(rule, now).remaining,
            Some(RowBody::Provider(_) | RowBody::Scope(_)) | None => rule.max_cost(),
        }
    }

    /// Registers an owner as waiting for a cell, or renews it. What it was granted counts against
    /// it; what it did not get while it was away does not count for it beyond `deficit_max`.
    pub(super) fn register(
        &mut self,
        cell: CellId,
        owner: OwnerId,
        until: (Micros, Micros),
        deficit_max: u64,
    ) {
        let (renew_before, until) = until;
        let Some(row) = self.rows.get_mut(&RowId::Cell(cell)) else {
            return;
        };
        let most = row.waiters.iter().map(|waiter| waiter.served).max();
        let least = most.unwrap_or(0).saturating_sub(deficit_max);
        let at_least = row.waiters.iter().map(|waiter| waiter.served).min();
        let has_place = row.waiters.len() < WAITERS_MAX;
        match row.waiters.iter_mut().find(|waiter| waiter.owner == owner) {
            Some(own) => {
                own.served = own.served.max(least);
                if own.until < renew_before {
                    own.until = until;
                    row.must_write = true;
                }
            }
            None if has_place => {
                row.must_write = true;
                row.waiters.push(RowWaiter {
                    owner,
                    // A newcomer has not been served less than the others.
                    served: at_least.unwrap_or(0).max(least),
                    until,
                });
            }
            None => {}
        }
    }

    /// An owner was granted this much of a cell.
    pub(super) fn served(&mut self, cell: CellId, owner: OwnerId, cost: u64) {
        if let Some(row) = self.rows.get_mut(&RowId::Cell(cell))
            && let Some(own) = row.waiters.iter_mut().find(|waiter| waiter.owner == owner)
        {
            own.served = own.served.saturating_add(cost);
        }
    }

    /// Forgets waiters that have not come.
    pub(super) fn forget_gone(&mut self, now: TimeBounds) {
        for row in self.rows.values_mut() {
            row.waiters.retain(|waiter| waiter.until > now.lo);
        }
    }
}

/// The rows that these settles and asks need.
pub(super) fn needed<'a>(
    settles: impl Iterator<Item = &'a Settle>,
    asks: impl Iterator<Item = &'a Ask>,
) -> Needed {
    let mut needed = Needed::new();
    needed.insert(RowId::Provider, None);
    for settle in settles {
        match settle {
            Settle::Permit { terms, scopes, .. } => {
                for term in terms {
                    needed.insert(RowId::Cell(term.cell), Some(term.rule.clone()));
                }
                needed.extend(scopes.iter().map(|&scope| (RowId::Scope(scope), None)));
            }
            Settle::Inherit {
                from,
                old_rule,
                to,
                rule,
            } => {
                needed.insert(RowId::Cell(*from), Some(old_rule.clone()));
                needed.insert(RowId::Cell(*to), Some(rule.clone()));
            }
            Settle::Close { scope, .. }
            | Settle::Open { scope }
            | Settle::Failed { scope, .. }
            | Settle::Succeeded { scope } => {
                needed.insert(RowId::Scope(*scope), None);
            }
        }
    }
    for ask in asks {
        for term in &ask.terms {
            needed.insert(RowId::Cell(term.cell), Some(term.rule.clone()));
        }
        needed.extend(ask.scopes.iter().map(|&scope| (RowId::Scope(scope), None)));
    }
    needed
}
