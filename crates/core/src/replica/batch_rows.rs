//! The rows of one batch while it is decided.
//!
//! Promises: a cell without a row starts empty, or used up if rows were lost.
//!
//! Never: writes. What has changed is sent as one request.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ask::{Ask, CellId, OwnerId, ScopeId, Settle, WakeOn};
use crate::limit::{Cell, Rule};
use crate::scope::Scope;
use crate::time::TimeBounds;
use crate::turn::CellStore;

use super::row::{LONG_PERIOD, Loss, Row, RowBody, RowKey, SERVED_MAX, Served, Version};

/// The rows that a batch needs, each with the rule under which it is used.
pub(super) type Needed = BTreeMap<RowKey, Option<Arc<Rule>>>;

/// One row of a batch.
#[derive(Clone, Debug)]
pub(super) struct BatchRow {
    /// The version that the store must still have.
    pub(super) expected: Option<Version>,
    pub(super) revision: u64,
    pub(super) body: RowBody,
    pub(super) served: Vec<Served>,
    /// The other owners that wait for it.
    pub(super) rivals: Vec<OwnerId>,
    /// Must be written even if no permit came or went.
    pub(super) must_write: bool,
}

/// All rows of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchRows {
    pub(super) rows: BTreeMap<RowKey, BatchRow>,
}

impl CellStore for BatchRows {
    fn cell(&mut self, id: CellId) -> &mut Cell {
        let row = self.entry(RowKey::Cell(id));
        if !matches!(row.body, RowBody::Cell(_)) {
            row.body = RowBody::Cell(Cell::default());
        }
        match &mut row.body {
            RowBody::Cell(cell) => cell,
            RowBody::Provider(_) | RowBody::Scope(_) => unreachable!("just set"),
        }
    }

    fn scope(&mut self, id: ScopeId) -> &mut Scope {
        let row = self.entry(RowKey::Scope(id));
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
    pub(super) fn absent(id: RowKey, rule: Option<&Rule>, loss: Loss) -> BatchRow {
        let matters = |rule: &&Rule| loss.is_all || rule.period() < LONG_PERIOD;
        let body = match (id, rule.filter(matters), loss.at) {
            (RowKey::Cell(_), Some(rule), Some(at)) => RowBody::Cell(Cell::used_up(rule, at)),
            (RowKey::Cell(_), _, _) => RowBody::Cell(Cell::default()),
            (RowKey::Scope(_), _, _) => RowBody::Scope(Scope::default()),
            (RowKey::Provider, _, _) => RowBody::Provider(loss),
        };
        BatchRow {
            expected: None,
            revision: 0,
            body,
            served: Vec::new(),
            rivals: Vec::new(),
            must_write: false,
        }
    }

    pub(super) fn of(row: Row, expected: Option<Version>) -> BatchRow {
        BatchRow {
            expected,
            revision: row.revision,
            body: row.body,
            served: row.served,
            rivals: Vec::new(),
            must_write: false,
        }
    }
}

impl BatchRows {
    fn entry(&mut self, id: RowKey) -> &mut BatchRow {
        self.rows
            .entry(id)
            .or_insert_with(|| BatchRow::absent(id, None, Loss::default()))
    }

    /// The other owners that wait for a cell.
    pub(super) fn rivals(&self, cell: CellId) -> &[OwnerId] {
        let row = self.rows.get(&RowKey::Cell(cell));
        row.map_or(&[], |row| &row.rivals)
    }

    /// How many of them go before this owner: the less served, and among equals the lower number.
    pub(super) fn rank(&self, cell: CellId, owner: OwnerId) -> u64 {
        let Some(row) = self.rows.get(&RowKey::Cell(cell)) else {
            return 0;
        };
        // Who is new has not been served less than the others.
        let least = row.served.iter().map(|served| served.cost).min();
        let served = |owner: OwnerId| {
            let known = row.served.iter().find(|served| served.owner == owner);
            (known.map_or(least.unwrap_or(0), |known| known.cost), owner)
        };
        let own = served(owner);
        let before = row.rivals.iter().filter(|rival| served(**rival) < own);
        before.count() as u64
    }

    /// What is free in a cell for a call of high priority.
    pub(super) fn free(&self, cell: CellId, rule: &Rule, now: TimeBounds) -> u64 {
        match self.rows.get(&RowKey::Cell(cell)).map(|row| &row.body) {
            Some(RowBody::Cell(cell)) => cell.peek(rule, now).remaining,
            Some(RowBody::Provider(_) | RowBody::Scope(_)) | None => rule.max_cost(),
        }
    }

    /// An owner was granted this much of a cell. What it did not get while others did counts for it
    /// up to `deficit_max`; who no longer waits is forgotten.
    pub(super) fn served(&mut self, cell: CellId, owner: OwnerId, cost: u64, deficit_max: u64) {
        let Some(row) = self.rows.get_mut(&RowKey::Cell(cell)) else {
            return;
        };
        if row.rivals.is_empty() {
            row.served.clear();
            return;
        }
        let rivals = &row.rivals;
        row.served
            .retain(|served| served.owner == owner || rivals.contains(&served.owner));
        let most = row.served.iter().map(|served| served.cost).max();
        let least = row.served.iter().map(|served| served.cost).min();
        // Who is new has not been served less than the others.
        let floor = most.unwrap_or(0).saturating_sub(deficit_max);
        let newcomer = least.unwrap_or(0).max(floor);
        for &one in rivals.iter().chain([&owner]) {
            let is_known = row.served.iter().any(|served| served.owner == one);
            if !is_known && row.served.len() < SERVED_MAX {
                row.served.push(Served {
                    owner: one,
                    cost: newcomer,
                });
            }
        }
        for served in &mut row.served {
            served.cost = served.cost.max(floor);
            if served.owner == owner {
                served.cost = served.cost.saturating_add(cost);
            }
        }
    }

    /// Somebody waits for this row: a settle that frees something there is to be told.
    pub(super) fn note_waiters(&mut self, is_own: impl Fn(RowKey) -> bool) {
        for (id, row) in &mut self.rows {
            if let RowBody::Cell(cell) = &mut row.body
                && (!row.rivals.is_empty() || is_own(*id))
            {
                cell.note_waiter(WakeOn::Event);
            }
        }
    }
}

/// The rows that these settles and asks need.
pub(super) fn needed<'a>(
    settles: impl Iterator<Item = &'a Settle>,
    asks: impl Iterator<Item = &'a Ask>,
) -> Needed {
    let mut needed = Needed::new();
    needed.insert(RowKey::Provider, None);
    for settle in settles {
        match settle {
            Settle::Permit { terms, scopes, .. } => {
                for term in terms {
                    needed.insert(RowKey::Cell(term.cell), Some(term.rule.clone()));
                }
                needed.extend(scopes.iter().map(|&scope| (RowKey::Scope(scope), None)));
            }
            Settle::Inherit {
                from,
                old_rule,
                to,
                rule,
            } => {
                needed.insert(RowKey::Cell(*from), Some(old_rule.clone()));
                needed.insert(RowKey::Cell(*to), Some(rule.clone()));
            }
            Settle::Close { scope, .. }
            | Settle::Open { scope }
            | Settle::Failed { scope, .. }
            | Settle::Succeeded { scope } => {
                needed.insert(RowKey::Scope(*scope), None);
            }
        }
    }
    for ask in asks {
        for term in &ask.terms {
            needed.insert(RowKey::Cell(term.cell), Some(term.rule.clone()));
        }
        needed.extend(ask.scopes.iter().map(|&scope| (RowKey::Scope(scope), None)));
    }
    needed
}
