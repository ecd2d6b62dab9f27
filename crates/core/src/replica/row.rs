//! Versioned rows, and the requests that compare and replace them.
//!
//! Promises: a version is never used twice, not even after a wipe: it names the process and the
//! batch that wrote the row. A store needs to know nothing of a row but its key, its version and
//! its bytes, which are those of `core::row`.
//!
//! Never: decides. The store compares, the replica decides.

use crate::ask::{CellId, OwnerId, ScopeId};
use crate::batch::LONG_PERIOD;
use crate::fairness::Waiter;
use crate::limit::Rule;
use crate::row::{
    CellRow, Incarnation, Loss, OwnerRow, ProviderRow, RowMeta, RowVersion, ScopeRow,
};
use crate::time::{Micros, Span, TimeBounds};

use super::clock_record::ClockRecord;

/// Which row of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKey {
    /// One per provider: under which epoch its rows were written last.
    Provider,
    /// One per process of an owner: the last of its batches that was stored.
    Owner(OwnerId, u64),
    /// One limit for one key.
    Cell(CellId),
    /// One scope.
    Scope(ScopeId),
}

/// The identity of a store's contents: it changes with a promotion, a restore or a wipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A row as a store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow {
    /// Who wrote it: the store compares this.
    pub version: RowVersion,
    /// The row: the store does not read it.
    pub bytes: Vec<u8>,
    /// A store deletes the row when nobody has replaced it for so long: it counts nothing any more,
    /// and a row that is missing counts nothing either. `None`: it stays.
    pub keep_for: Option<Span>,
}

/// Rows stay this much longer than anything in them matters: the clock by which a store deletes them
/// may step ahead, and what a row counts must not be free because of that.
const KEEP_MARGIN: Span = Span::from_secs(86_400);

/// Rows are kept for a time of this series, each twice as long as the one before: an hour to half a
/// year. What matters for longer stays.
const KEEP_FIRST: Span = Span::from_secs(3_600);
const KEEP_STEPS: u32 = 13;

/// That a node may use a share is remembered for much longer than it may ([`SHARE_MAX`]).
///
/// [`SHARE_MAX`]: crate::store_loss::SHARE_MAX
const KEEP_PRESENCE: Span = Span::from_secs(30 * 86_400);

/// That an owner waits for a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitNote {
    /// For how long: then the store forgets it.
    pub lasts: Span,
    /// For what: the store does not read it.
    pub bytes: Vec<u8>,
}

/// The owners that wait for rows, with what they have noted.
pub type Waiting = Vec<(RowKey, Vec<(OwnerId, Vec<u8>)>)>;

/// One request to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Whose it is.
    pub owner: OwnerId,
    /// Returned in the reply.
    pub batch: u64,
    /// Replace the rows only in this epoch; `None`: in any.
    pub epoch: Option<Epoch>,
    /// Replace the rows only while the store's clock is in this range; `None`: at any time. A
    /// writer that has not noticed a step of the clock is turned away by it, and one that has
    /// decided for the moment at which its request arrives must not be early.
    pub time: Option<(Micros, Micros)>,
    /// Replace the rows only if these have these versions (`None`: there is no such row).
    pub expected: Vec<(RowKey, Option<RowVersion>)>,
    /// Rows to return in any case, besides those in `expected`.
    pub read: Vec<RowKey>,
    /// The new rows. Empty: only read.
    pub replace: Vec<(RowKey, StoredRow)>,
    /// The rows that the sender waits for. The store notes it whatever becomes of the rest, or an
    /// owner that loses every race would never be known. Owners that wait for a row are sent each
    /// new version of it.
    pub waits: Vec<(RowKey, WaitNote)>,
    /// The rows that it waits for no longer, if the rows are replaced.
    pub stops: Vec<RowKey>,
    /// A limit of a minute or longer is granted: the reply must not come before the new rows would
    /// survive the loss of a host, where the store can promise that.
    pub must_be_durable: bool,
    /// Whose contents are replaced. The store does not read it: it is remembered on this host before
    /// a permit is used, so that a wiped store is recognised ([`PastUse`]).
    pub incarnation: Option<Incarnation>,
    /// What this host knows of the store's clock, if it has changed. The store does not read it: if the
    /// rows are replaced, it is remembered on this host for the next process.
    pub clock: Option<ClockRecord>,
}

/// What this host knows of a provider's rows in a store from before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PastUse {
    /// It has not used them: a store without them is new.
    #[default]
    Never,
    /// It has used them: a store without them was wiped.
    Unnamed,
    /// It has used those of this incarnation: a store without them, or with those of another one,
    /// was wiped.
    Of(Incarnation),
}

impl PastUse {
    /// It is used now.
    pub(super) fn some(self) -> PastUse {
        match self {
            PastUse::Never => PastUse::Unnamed,
            PastUse::Unnamed | PastUse::Of(_) => self,
        }
    }
}

/// The store's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// The rows were replaced.
    Replaced,
    /// They were not, or there were none: all rows that the request named, as they are.
    Current(Vec<(RowKey, Option<StoredRow>)>),
}

/// A row as a node reads it.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every row is a cell")]
pub(super) enum Row {
    Provider(ProviderRow),
    Owner(OwnerRow),
    Cell(CellRow),
    Scope(ScopeRow),
    /// It cannot be read: what it counted is used up.
    Damaged(RowMeta),
}

impl StoredRow {
    /// Reads the row of this key.
    pub(super) fn read(&self, id: RowKey) -> Row {
        let bytes = &self.bytes;
        let row = match id {
            RowKey::Provider => ProviderRow::from_bytes(bytes).map(Row::Provider),
            RowKey::Owner(..) => OwnerRow::from_bytes(bytes).map(Row::Owner),
            RowKey::Cell(_) => CellRow::from_bytes(bytes).map(Row::Cell),
            RowKey::Scope(_) => ScopeRow::from_bytes(bytes).map(Row::Scope),
        };
        let damaged = || {
            Row::Damaged(RowMeta {
                version: self.version,
                ..RowMeta::default()
            })
        };
        match row {
            Ok(row) if row.meta().version == self.version => row,
            Ok(_) | Err(_) => damaged(),
        }
    }
}

impl Row {
    pub(super) fn meta(&self) -> &RowMeta {
        match self {
            Row::Provider(row) => &row.meta,
            Row::Owner(row) => &row.meta,
            Row::Cell(row) => &row.meta,
            Row::Scope(row) => &row.meta,
            Row::Damaged(meta) => meta,
        }
    }

    fn meta_mut(&mut self) -> &mut RowMeta {
        match self {
            Row::Provider(row) => &mut row.meta,
            Row::Owner(row) => &mut row.meta,
            Row::Cell(row) => &mut row.meta,
            Row::Scope(row) => &mut row.meta,
            Row::Damaged(meta) => meta,
        }
    }

    /// The row for a store.
    pub(super) fn stored(&self) -> StoredRow {
        let bytes = match self {
            Row::Provider(row) => row.to_bytes(),
            Row::Owner(row) => row.to_bytes(),
            Row::Cell(row) => row.to_bytes(),
            Row::Scope(row) => row.to_bytes(),
            Row::Damaged(_) => Vec::new(),
        };
        StoredRow {
            version: self.meta().version,
            bytes,
            keep_for: self.keep_for(),
        }
    }

    /// How long a store keeps it.
    fn keep_for(&self) -> Option<Span> {
        if let Row::Owner(OwnerRow {
            presence: Some(_), ..
        }) = self
        {
            return Some(KEEP_PRESENCE);
        }
        let spans = (0..KEEP_STEPS).map(|step| Span(KEEP_FIRST.0 << step));
        let is_idle = |span: &Span| self.is_idle(self.meta().time + *span);
        spans
            .into_iter()
            .find(is_idle)
            .map(|span| span + KEEP_MARGIN)
    }

    /// Nothing is lost with it at this time, and nothing is in it that a newer program would miss.
    fn is_idle(&self, now: Micros) -> bool {
        let is_over = match self {
            Row::Cell(row) => {
                row.cell.is_idle(now) && row.waiters.iter().all(|waiter| waiter.until <= now)
            }
            Row::Scope(row) => row.scope.is_idle(row.meta.time, now),
            // A request of that process that is still under way is long over.
            Row::Owner(_) => true,
            Row::Provider(_) | Row::Damaged(_) => false,
        };
        is_over && self.meta().unknown.is_empty()
    }

    /// How long after it was written anything in it can matter.
    pub(super) fn matters_for(&self) -> Span {
        let time = self.meta().time;
        match self {
            Row::Provider(_) | Row::Owner(_) | Row::Damaged(_) => Span::ZERO,
            Row::Cell(row) => row.cell.matters_until().since(time),
            Row::Scope(row) => row.scope.matters_until(time).since(time),
        }
    }

    /// The same row on another clock, on which `then` is `now`. Nothing in it ends earlier than it
    /// would have, if the old clock showed at least `then`.
    pub(super) fn moved(&self, then: Micros, now: TimeBounds) -> Row {
        let mut row = match self {
            Row::Provider(row) => Row::Provider(ProviderRow {
                loss: Loss {
                    at: row.loss.at.map(|_| now.hi),
                    ..row.loss
                },
                incarnation: row.incarnation,
                losses: row.losses,
                clock_changes: row.clock_changes,
                members: row.members.clone(),
                meta: row.meta.clone(),
            }),
            Row::Cell(row) => Row::Cell(CellRow {
                cell: row.cell.moved(then, now),
                waiters: row
                    .waiters
                    .iter()
                    .map(|one| moved_waiter(*one, then, now.hi))
                    .collect(),
                reservation: row.reservation,
                losses: row.losses,
                meta: row.meta.clone(),
            }),
            Row::Scope(row) => Row::Scope(ScopeRow {
                scope: row.scope.moved(then, now.hi),
                meta: row.meta.clone(),
            }),
            Row::Owner(_) | Row::Damaged(_) => self.clone(),
        };
        row.meta_mut().time = now.lo;
        row
    }

    /// The store's clock may have stepped since it was written: calendar time is read anew.
    pub(super) fn drop_calendar_clock(&mut self) {
        if let Row::Cell(row) = self {
            row.cell.drop_calendar_clock();
        }
    }

    /// The row may be of a clock that was ahead of this one, which shows at least `now`: its
    /// instants stay, which frees late, but none of them is a lower bound any more.
    pub(super) fn drop_lower_bounds(&mut self, now: Micros) {
        if let Row::Cell(row) = self {
            row.cell.drop_lower_bounds(now);
        }
    }

    /// The row of another epoch: what was counted last may be lost, so a short limit is used up
    /// for one window from `at`, when the last call that nobody counts has arrived, and concurrent
    /// calls until those have ended.
    pub(super) fn after_loss(mut self, rule: Option<&Rule>, at: Micros, call_timeout: Span) -> Row {
        if let (Row::Cell(row), Some(rule)) = (&mut self, rule)
            && rule.period() < LONG_PERIOD
        {
            row.cell.close_for_one_period(rule, at, call_timeout);
        }
        self
    }
}

fn moved_waiter(waiter: Waiter, then: Micros, now: Micros) -> Waiter {
    let moved = |at: Micros| match at < then {
        true => now - then.since(at),
        false => now + at.since(then),
    };
    Waiter {
        since: moved(waiter.since),
        due: moved(waiter.due),
        until: moved(waiter.until),
        ..waiter
    }
}
