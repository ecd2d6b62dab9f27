//! What limits and scopes look like in rows that were read without a decision.
//!
//! Promises: takes nothing, and changes nothing. A row that cannot be read looks used up, or closed.
//!
//! Never: is exact about rows that were written on another clock: what is only shown may be.

use std::sync::Arc;

use crate::ask::{CellId, ScopeId};
use crate::limit::{Cell, CellView, Rule};
use crate::scope::{Scope, ScopeView};
use crate::time::{TimeBounds, Wall};

use super::row::{Reply, ReplyOutcome, Request, Row, RowKey};

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct PeekRows<'a> {
    /// Limits, each with its rule.
    pub cells: &'a [(CellId, Arc<Rule>)],
    /// Scopes.
    pub scopes: &'a [ScopeId],
}

impl PeekRows<'_> {
    /// The request for it.
    #[must_use]
    pub fn request(&self) -> Request {
        let cells = self.cells.iter().map(|(cell, _)| RowKey::Cell(*cell));
        let scopes = self.scopes.iter().map(|scope| RowKey::Scope(*scope));
        Request {
            read: cells.chain(scopes).collect(),
            ..Request::default()
        }
    }
}

/// What the reply to such a request shows. `None`: it is the reply to another one.
#[must_use]
pub fn peek(asked: PeekRows<'_>, reply: &Reply) -> Option<(Vec<CellView>, Vec<ScopeView>)> {
    let ReplyOutcome::Current(rows) = &reply.outcome else {
        return None;
    };
    let at = reply.stored_at;
    let now = TimeBounds::exact(at, Wall(at.0));
    let read = |id: RowKey| {
        let found = rows.iter().find(|(of, _)| *of == id)?;
        Some(found.1.as_ref()?.read(id))
    };
    let cell = |(id, rule): &(CellId, Arc<Rule>)| match read(RowKey::Cell(*id)) {
        Some(Row::Cell(row)) => row.cell.peek(rule, now),
        Some(_) => Cell::used_up(rule, at).peek(rule, now),
        None => Cell::default().peek(rule, now),
    };
    let scope = |id: &ScopeId| match read(RowKey::Scope(*id)) {
        Some(Row::Scope(row)) => row.scope.peek(at),
        Some(_) => Scope::lost(at).peek(at),
        None => Scope::default().peek(at),
    };
    let cells = asked.cells.iter().map(cell).collect();
    Some((cells, asked.scopes.iter().map(scope).collect()))
}
