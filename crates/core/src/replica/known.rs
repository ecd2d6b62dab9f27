//! The rows that a node has seen, and how far their instants can be compared with its clock.
//!
//! A row was written on the store's clock as it was then. It is comparable if the clock has not
//! stepped since: if the node has seen an earlier version of it on its present base of time, or if
//! that base is older than anything in the row. Otherwise the row is moved to the node's own time,
//! as if it had just been written: that frees late, never early.
//!
//! Promises: at most [`ROWS_MAX`] rows.
//!
//! Never: changes what the store has.

use std::collections::BTreeMap;

use crate::ask::OwnerId;
use crate::limit::Rule;
use crate::time::{Micros, Span, TimeBounds};

use super::row::{Epoch, LONG_PERIOD, Row, RowKey, Waiting};
use super::rules::Rules;

/// Rows that are remembered: some kilobytes each at most, so tens of megabytes. A forgotten row
/// costs one more round trip.
const ROWS_MAX: usize = 4_096;

/// How a row's instants relate to the node's clock.
#[derive(Clone, Copy, Debug)]
enum Dating {
    /// They are on the same clock.
    Comparable,
    /// They are, unless the clock has stepped since the last reply: the row came with a wake-up.
    Unconfirmed,
    /// The clock has stepped since: it showed at least `then` when it showed `now`.
    Stepped { then: Micros, now: TimeBounds },
    /// Nothing is known.
    Unknown,
}

/// One row as it was seen last.
#[derive(Clone, Debug)]
pub(super) struct KnownRow {
    /// `None`: there is no such row.
    pub(super) row: Option<Row>,
    dating: Dating,
    /// The store has sent it on the present base of time.
    seen: bool,
    /// Since when it is known that there is room in it.
    pub(super) room_since: Option<Micros>,
    /// Owners that wait for it, as the store said last.
    pub(super) waiting: Vec<OwnerId>,
    /// Until when the store has noted that this node waits for it, on the local clock.
    pub(super) noted_until: Micros,
}

/// The rows of one provider.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownRows {
    rows: BTreeMap<RowKey, KnownRow>,
}

impl KnownRows {
    pub(super) fn get(&self, id: RowKey) -> Option<&KnownRow> {
        self.rows.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RowKey) -> Option<&mut KnownRow> {
        self.rows.get_mut(&id)
    }

    /// The store sent this row in a reply.
    pub(super) fn learn(&mut self, id: RowKey, row: Option<Row>) {
        let (dating, _) = self.dating_of(id, row.as_ref());
        self.insert(id, row, dating, true);
    }

    /// The node itself wrote this row; `step`: before the clock stepped.
    pub(super) fn wrote(&mut self, id: RowKey, row: Row, step: Option<(Micros, TimeBounds)>) {
        let (dating, seen) = match step {
            Some((then, now)) => (Dating::Stepped { then, now }, false),
            None => (Dating::Comparable, true),
        };
        self.insert(id, Some(row), dating, seen);
    }

    /// How a row that has just arrived is dated, and whether it was seen on this base before.
    fn dating_of(&self, id: RowKey, row: Option<&Row>) -> (Dating, bool) {
        let Some(known) = self.rows.get(&id) else {
            return (Dating::Unknown, false);
        };
        let version = |row: Option<&Row>| row.map(|row| row.version);
        let dating = if version(known.row.as_ref()) == version(row) {
            known.dating
        } else if known.seen {
            // Written after the earlier version was seen, so on the present base of time.
            Dating::Comparable
        } else {
            Dating::Unknown
        };
        (dating, known.seen)
    }

    /// The store says who waits for these rows.
    pub(super) fn note_waiting(&mut self, waiting: &Waiting) {
        for (id, owners) in waiting {
            if let Some(known) = self.rows.get_mut(id) {
                known.waiting.clone_from(owners);
            }
        }
    }

    /// A row arrived with a wake-up; late ones are dropped.
    pub(super) fn pushed(&mut self, id: RowKey, row: Row) -> bool {
        let Some(known) = self.rows.get(&id) else {
            return false;
        };
        let newer = known
            .row
            .as_ref()
            .is_none_or(|known| row.revision > known.revision || row.epoch != known.epoch);
        if newer {
            let (dating, seen) = match self.dating_of(id, Some(&row)) {
                (Dating::Comparable, seen) => (Dating::Unconfirmed, seen),
                other => other,
            };
            self.insert(id, Some(row), dating, seen);
        }
        newer
    }

    fn insert(&mut self, id: RowKey, row: Option<Row>, dating: Dating, seen: bool) {
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&id) {
            self.rows.pop_last();
        }
        let before = self.rows.remove(&id);
        let (room_since, waiting, noted_until) = before.map_or_else(Default::default, |known| {
            (known.room_since, known.waiting, known.noted_until)
        });
        let known = KnownRow {
            row,
            dating,
            seen,
            room_since,
            waiting,
            noted_until,
        };
        self.rows.insert(id, known);
    }

    /// The store's clock has stepped.
    pub(super) fn stepped(&mut self, then: Micros, now: TimeBounds) {
        for known in self.rows.values_mut() {
            known.seen = false;
            known.dating = match known.dating {
                Dating::Comparable => Dating::Stepped { then, now },
                Dating::Unconfirmed | Dating::Stepped { .. } | Dating::Unknown => Dating::Unknown,
            };
        }
    }

    /// A reply agrees with the clock: rows that came with wake-ups before are on it.
    pub(super) fn confirm(&mut self) {
        for known in self.rows.values_mut() {
            if matches!(known.dating, Dating::Unconfirmed) {
                known.dating = Dating::Comparable;
            }
        }
    }

    /// Another epoch: nothing is known.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }
}

/// What a row means now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'a> {
    pub(super) now: TimeBounds,
    /// How long the base of time has held.
    pub(super) base_age: Span,
    pub(super) epoch: Epoch,
    /// An epoch change loses nothing.
    pub(super) durable: bool,
    pub(super) late_arrival: Span,
    pub(super) rules: &'a Rules,
}

impl KnownRow {
    /// The row as it counts for a decision now, and whether it must be written as it is: a row that
    /// is moved to the present again and again would never be free.
    pub(super) fn read(&self, rule: Option<&Rule>, reading: &Reading<'_>) -> Option<(Row, bool)> {
        let row = self.row.as_ref()?;
        let now = reading.now;
        let (row, is_moved) = match self.dating {
            Dating::Stepped { then, now: stepped } => (row.moved(then, stepped), true),
            _ if row.time > now.hi => (row.moved(row.time, now), true),
            Dating::Comparable | Dating::Unconfirmed => (row.clone(), false),
            Dating::Unknown if self.is_unclear(row, rule, reading) => {
                (row.moved(row.time, now), true)
            }
            Dating::Unknown => (row.clone(), false),
        };
        if row.epoch == reading.epoch || reading.durable || !reading.rules.close_after_promotion {
            return Some((row, is_moved));
        }
        let closed = row.after_loss(rule, now.hi + reading.late_arrival);
        Some((closed, true))
    }

    /// May the clock have stepped while what is in the row still matters? Rows of long limits are
    /// believed: moved by every node that joins, they would never be free.
    fn is_unclear(&self, row: &Row, rule: Option<&Rule>, reading: &Reading<'_>) -> bool {
        let is_long = rule.is_some_and(|rule| rule.period() >= LONG_PERIOD);
        reading.rules.distrust_on_join && !is_long && reading.base_age < row.matters_for()
    }
}
