//! Versioned rows, and the requests that compare and replace them.
//!
//! Promises: a version is never used twice, not even after a wipe: it names the process and the
//! batch that wrote the row.
//!
//! Never: decides. The store compares, the replica decides.

use crate::ask::{CellId, OwnerId, ScopeId};
use crate::limit::{Cell, Rule};
use crate::scope::Scope;
use crate::time::{Micros, Span, TimeBounds};

/// Owners for which one row remembers what they were granted: more hosts than share one provider's
/// key. One that finds no place counts as new.
pub const SERVED_MAX: usize = 64;

/// Limits of this length or longer count on after an epoch change, however old the rows are:
/// closed for a whole day, nobody could work. They are exact only on a store that loses nothing.
pub const LONG_PERIOD: Span = Span::from_secs(60);

/// Which row of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKey {
    /// One per provider: under which epoch its rows were written last.
    Provider,
    /// One limit for one key.
    Cell(CellId),
    /// One scope.
    Scope(ScopeId),
}

/// Who wrote a row, and in which batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The owner.
    pub owner: OwnerId,
    /// A random number of its process.
    pub process: u64,
    /// Its running number.
    pub batch: u64,
}

/// The identity of a store's contents: it changes with a promotion, a restore or a wipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Who wrote it.
    pub version: Version,
    /// The epoch in which it was written.
    pub epoch: Epoch,
    /// How often it was written: tells an older copy from a newer one where that is only a hint.
    pub revision: u64,
    /// The lower bound of the store's time when it was written. Its instants are on that clock.
    pub time: Micros,
    /// What it counts.
    pub body: RowBody,
    /// What the owners that wait for it were granted.
    pub served: Vec<Served>,
}

/// The contents of a row.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly every row is a cell")]
pub enum RowBody {
    /// The provider's own row: what a missing row means.
    Provider(Loss),
    /// The state of one limit.
    Cell(Cell),
    /// The state of one scope.
    Scope(Scope),
}

/// What may have been lost before the present epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// When it was noticed that rows may be lost; `None`: nothing was ever lost.
    pub at: Option<Micros>,
    /// Everything is gone, not only what was written last.
    pub is_all: bool,
}

/// What an owner that waits was granted. The least served goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Which owner.
    pub owner: OwnerId,
    /// Since it waits.
    pub cost: u64,
}

/// The owners that wait for rows.
pub type Waiting = Vec<(RowKey, Vec<OwnerId>)>;

/// One request to the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Returned in the reply.
    pub batch: u64,
    /// Replace the rows only in this epoch; `None`: in any.
    pub epoch: Option<Epoch>,
    /// Replace the rows only while the store's clock is in this range; `None`: at any time. A
    /// writer that has not noticed a step of the clock is turned away by it.
    pub time: Option<(Micros, Micros)>,
    /// Replace the rows only if these have these versions (`None`: there is no such row).
    pub expected: Vec<(RowKey, Option<Version>)>,
    /// Rows to return in any case, besides those in `expected`.
    pub read: Vec<RowKey>,
    /// The new rows. Empty: only read.
    pub replace: Vec<(RowKey, Row)>,
    /// The rows that the sender waits for, and for how long; `None`: not any more. The store notes
    /// it whatever becomes of the rest, or an owner that loses every race would never be known.
    /// Owners that wait for a row are sent each new version of it.
    pub waits: Vec<(RowKey, Option<Span>)>,
}

/// The store's reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Of which request.
    pub batch: u64,
    /// What the store's clock showed.
    pub stored_at: Micros,
    /// The store's epoch.
    pub epoch: Epoch,
    /// What became of it.
    pub outcome: ReplyOutcome,
    /// Who waits for the rows that the request named.
    pub waiting: Waiting,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyOutcome {
    /// The rows were replaced.
    Replaced,
    /// They were not, or there were none: all rows that the request named, as they are.
    Current(Vec<(RowKey, Option<Row>)>),
}

impl Row {
    /// How long after it was written anything in it can matter.
    pub(super) fn matters_for(&self) -> Span {
        match &self.body {
            RowBody::Provider(_) => Span::ZERO,
            RowBody::Cell(cell) => cell.matters_until().since(self.time),
            RowBody::Scope(scope) => scope.matters_until(self.time).since(self.time),
        }
    }

    /// The same row on another clock, on which `then` is `now`. Nothing in it ends earlier than it
    /// would have, if the old clock showed at least `then`.
    pub(super) fn moved(&self, then: Micros, now: TimeBounds) -> Row {
        let body = match &self.body {
            RowBody::Provider(loss) => RowBody::Provider(Loss {
                at: loss.at.map(|_| now.hi),
                ..*loss
            }),
            RowBody::Cell(cell) => RowBody::Cell(cell.moved(then, now)),
            RowBody::Scope(scope) => RowBody::Scope(scope.moved(then, now.hi)),
        };
        Row {
            body,
            time: now.lo,
            ..self.clone()
        }
    }

    /// The row of another epoch: what was counted last may be lost, so a short limit is used up
    /// for one window from `at`, when the last call that nobody counts has arrived.
    pub(super) fn after_loss(mut self, rule: Option<&Rule>, at: Micros) -> Row {
        if let (RowBody::Cell(cell), Some(rule)) = (&mut self.body, rule)
            && rule.period() < LONG_PERIOD
        {
            cell.close_for_one_period(rule, at);
        }
        self
    }
}
