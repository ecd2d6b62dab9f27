//! The rows that a node has seen, and how far their instants can be compared with its clock.
//!
//! A row was written on the store's clock as it was then. It is comparable if the clock has not
//! stepped since: if the node has seen an earlier version of it on its present base of time, or if
//! that base is older than anything in the row. A row that was seen before a step, or whose earlier
//! version was, is of the clock before the step or of the one after it, and its own time mostly
//! tells which. Otherwise the row is moved to the node's own time, as if it had just been written:
//! that frees late, never early.
//!
//! Promises: at most [`ROWS_MAX`] rows; the one that was not used for longest is forgotten.
//!
//! Never: changes what the store has.

use std::collections::BTreeMap;

use crate::ask::{OwnerId, Priority};
use crate::batch::LONG_PERIOD;
use crate::fairness::{WAITERS_MAX, Waiter};
use crate::limit::{Cell, Rule};
use crate::row::{CellRow, Loss, OwnerRow, ProviderRow, RowVersion, ScopeRow, read_waiters};
use crate::scope::Scope;
use crate::time::{Micros, Span, TimeBounds};

use super::clock::Step;
use super::clock_record::ClockReadings;
use super::row::{Epoch, Row, RowKey, StoredRow, Waiting};
use super::rules::Rules;

/// Rows that are remembered: some kilobytes each at most, so tens of megabytes. A forgotten row
/// costs one more round trip. Four times as many as one batch needs, so that a batch never lacks a
/// row because of its others.
pub(super) const ROWS_MAX: usize = 4 * super::batch_rows::ROWS_PER_BATCH;

/// How a row's instants relate to the node's clock.
#[derive(Clone, Copy, Debug)]
enum Dating {
    /// They are on the same clock.
    Comparable,
    /// They are, unless the clock has stepped since the last reply: the row came with a wake-up.
    Unconfirmed,
    /// They are of the clock before this step.
    Stepped(Step),
    /// They are on the same clock, or on one that was ahead of it.
    Late(Step),
    /// Nothing is known.
    Unknown,
}

impl Dating {
    /// Of a row that was written on the clock before this step or on the one after it, which shows at
    /// most `now`.
    fn around(row: &Row, step: Step, now: Micros) -> Dating {
        let time = row.meta().time;
        let is_back = step.now.hi < step.then.lo;
        match is_back {
            // The clock after the step has not been there yet.
            true if time > now => Dating::Stepped(step),
            true => Dating::Late(step),
            // The clock before the step was not there yet.
            false if time > step.then.hi => Dating::Comparable,
            false => Dating::Stepped(step),
        }
    }
}

/// One row as it was seen last.
#[derive(Clone, Debug)]
pub(super) struct KnownRow {
    /// `None`: there is no such row.
    pub(super) row: Option<Row>,
    dating: Dating,
    /// On which base of time the store has sent it.
    seen_on: Option<u64>,
    /// Since when it is known that there is room in this version of it.
    pub(super) room_since: Option<Micros>,
    /// Owners that wait for it, as the store said last.
    pub(super) waiting: Vec<Waiter>,
    /// Until when the store has noted that this node waits for it, on the local clock.
    pub(super) noted_until: Micros,
    /// How urgent and how costly that wait is.
    pub(super) noted_as: Option<(Priority, u64)>,
    /// Owners that wait until then and did not come when there was room.
    passed_over: Vec<(OwnerId, Micros)>,
    /// When the request was sent whose reply said so, on the local clock.
    pub(super) checked_at: Micros,
    /// When it was last used.
    used: u64,
}

/// The rows of one provider.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownRows {
    rows: BTreeMap<RowKey, KnownRow>,
    /// The number of the present base of time, and the step with which it began.
    base: u64,
    step: Option<Step>,
    uses: u64,
    /// Versions that could not be read, since somebody asked.
    damaged: u64,
}

impl KnownRows {
    pub(super) fn get(&self, id: RowKey) -> Option<&KnownRow> {
        self.rows.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RowKey) -> Option<&mut KnownRow> {
        self.rows.get_mut(&id)
    }

    /// How many versions could not be read since the last call.
    pub(super) fn take_damaged(&mut self) -> u64 {
        std::mem::take(&mut self.damaged)
    }

    /// A batch needs these. `true`: all of them are known.
    pub(super) fn touch<'a>(&mut self, ids: impl Iterator<Item = &'a RowKey>) -> bool {
        self.uses += 1;
        let mut is_known = true;
        for id in ids {
            match self.rows.get_mut(id) {
                Some(known) => known.used = self.uses,
                None => is_known = false,
            }
        }
        is_known
    }

    /// The store sent this row in a reply to a request that was sent at this local time; its clock
    /// shows at most `now`.
    pub(super) fn learn(&mut self, id: RowKey, row: Option<&StoredRow>, sent: Micros, now: Micros) {
        let base = self.base;
        if let Some(known) = self.rows.get_mut(&id)
            && known.version() == row.map(|row| row.version)
        {
            (known.seen_on, known.checked_at) = (Some(base), sent);
            return;
        }
        let row = row.map(|row| row.read(id));
        let dating = self.dating_of(id, row.as_ref(), now);
        self.insert(id, row, dating, Some(base), sent);
    }

    /// The node itself wrote this row; `step`: before the clock stepped.
    pub(super) fn wrote(&mut self, id: RowKey, row: Row, step: Option<Step>, sent: Micros) {
        let (dating, seen_on) = match step {
            Some(step) => (Dating::Stepped(step), self.base.checked_sub(1)),
            None => (Dating::Comparable, Some(self.base)),
        };
        self.insert(id, Some(row), dating, seen_on, sent);
    }

    /// How another version of a row that has just arrived is dated.
    fn dating_of(&self, id: RowKey, row: Option<&Row>, now: Micros) -> Dating {
        let Some(known) = self.rows.get(&id) else {
            return Dating::Unknown;
        };
        match (known.seen_on, row, self.step) {
            // Written after the earlier version was seen, so on the present base of time.
            (Some(base), _, _) if base == self.base => Dating::Comparable,
            (Some(base), Some(row), Some(step)) if base + 1 == self.base => {
                Dating::around(row, step, now)
            }
            _ => Dating::Unknown,
        }
    }

    /// The store says who waits for these rows.
    pub(super) fn note_waiting(&mut self, waiting: &Waiting) {
        for (id, owners) in waiting {
            if let Some(known) = self.rows.get_mut(id) {
                let read = owners
                    .iter()
                    .filter_map(|(_, bytes)| read_waiters(bytes).ok());
                known.waiting = read.flatten().collect();
            }
        }
    }

    /// A row arrived with a wake-up, while the store's clock shows this as far as is known; late ones
    /// are dropped.
    pub(super) fn pushed(&mut self, id: RowKey, row: &StoredRow, now: TimeBounds) -> bool {
        let Some(known) = self.rows.get(&id) else {
            return false;
        };
        let (seen_on, checked_at) = (known.seen_on, known.checked_at);
        let row = row.read(id);
        let newer = known.row.as_ref().is_none_or(|known| {
            let (old, new) = (known.meta(), row.meta());
            new.revision > old.revision || new.epoch != old.epoch
        });
        if newer {
            // A clock that had stepped would show in its time, unless it came late.
            let is_prompt = (now.lo..=now.hi).contains(&row.meta().time);
            let mut dating = self.dating_of(id, Some(&row), now.hi);
            if matches!(dating, Dating::Comparable) && !is_prompt {
                dating = Dating::Unconfirmed;
            }
            self.insert(id, Some(row), dating, seen_on, checked_at);
        }
        newer
    }

    fn insert(
        &mut self,
        id: RowKey,
        row: Option<Row>,
        dating: Dating,
        seen_on: Option<u64>,
        checked_at: Micros,
    ) {
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&id) {
            self.evict_one();
        }
        self.uses += 1;
        self.damaged += u64::from(matches!(row, Some(Row::Damaged(_))));
        let uses = self.uses;
        let known = self.rows.entry(id).or_insert_with(|| KnownRow {
            row: None,
            dating,
            seen_on,
            room_since: None,
            waiting: Vec::new(),
            noted_until: Micros(0),
            noted_as: None,
            passed_over: Vec::new(),
            checked_at,
            used: uses,
        });
        (known.row, known.dating, known.used) = (row, dating, uses);
        // Somebody has had a turn.
        known.room_since = None;
        (known.seen_on, known.checked_at) = (seen_on, checked_at);
    }

    /// Forgets the row that was not used for longest. Rows of a request under way were used when it
    /// was decided.
    fn evict_one(&mut self) {
        let oldest = self.rows.iter().min_by_key(|(_, known)| known.used);
        if let Some(id) = oldest.map(|(id, _)| *id) {
            self.rows.remove(&id);
        }
    }

    /// The store's clock has stepped.
    pub(super) fn stepped(&mut self, step: Step) {
        self.base += 1;
        self.step = Some(step);
        for known in self.rows.values_mut() {
            // Who waits until when is no longer known.
            known.waiting.clear();
            known.dating = match (known.dating, &mut known.row) {
                (Dating::Comparable, _) => Dating::Stepped(step),
                (Dating::Unconfirmed, Some(row)) => Dating::around(row, step, step.now.hi),
                // Both moves, one after the other.
                (Dating::Stepped(before), Some(row)) => {
                    *row = row.moved(before.then.lo, before.now);
                    Dating::Stepped(step)
                }
                (Dating::Unconfirmed | Dating::Stepped(_) | Dating::Late(_), _)
                | (Dating::Unknown, _) => Dating::Unknown,
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

    /// New versions may have been missed.
    pub(super) fn clear_notes(&mut self) {
        for known in self.rows.values_mut() {
            (known.noted_until, known.noted_as) = (Micros(0), None);
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
    /// What is known of the store's clock from earlier processes of this host.
    pub(super) clock: &'a ClockReadings,
    /// The local time.
    pub(super) local: Micros,
    pub(super) epoch: Epoch,
    /// An epoch change loses nothing.
    pub(super) durable: bool,
    pub(super) late_arrival: Span,
    pub(super) call_timeout: Span,
    pub(super) rules: &'a Rules,
}

impl Reading<'_> {
    /// At least what the clock on which this row was written shows now, as far as earlier processes know.
    fn dated(&self, row: &Row) -> Option<Micros> {
        let time = row.meta().time;
        match self.rules.compare_clock_record {
            true => self.clock.lower_bound(time, row.matters_for(), self.local),
            false => self.clock.is_known().then_some(self.now.lo.max(time)),
        }
    }
}

impl KnownRow {
    /// It was written on the clock as it is now.
    pub(super) fn is_comparable(&self) -> bool {
        matches!(self.dating, Dating::Comparable)
    }

    fn version(&self) -> Option<RowVersion> {
        self.row.as_ref().map(|row| row.meta().version)
    }

    /// The row as it counts for a decision now, and whether it must be written as it is: a row that
    /// is moved to the present again and again would never be free.
    pub(super) fn read(
        &self,
        id: RowKey,
        rule: Option<&Rule>,
        reading: &Reading<'_>,
    ) -> Option<(Row, bool)> {
        let row = self.row.as_ref()?;
        if let Row::Damaged(_) = row {
            return Some(lost_row(id, row, rule, reading));
        }
        let now = reading.now;
        let (row, is_moved) = match self.dating {
            Dating::Stepped(step) => (row.moved(step.then.lo, step.now), true),
            _ if row.meta().time > now.hi => (row.moved(row.meta().time, now), true),
            Dating::Late(step) => {
                let mut row = row.clone();
                row.drop_lower_bounds(step.now.lo);
                (row, true)
            }
            Dating::Comparable | Dating::Unconfirmed => (row.clone(), false),
            Dating::Unknown if is_unclear(row, rule, reading) => match reading.dated(row) {
                // Not written again and again: the bound goes on with time.
                Some(then) => (row.moved(then, now), false),
                None => (row.moved(row.meta().time, now), true),
            },
            Dating::Unknown => {
                let mut row = row.clone();
                row.drop_calendar_clock();
                (row, false)
            }
        };
        let is_current = row.meta().epoch == reading.epoch.0;
        if is_current || reading.durable || !reading.rules.close_after_promotion {
            return Some((row, is_moved));
        }
        let closed = row.after_loss(rule, now.hi + reading.late_arrival, reading.call_timeout);
        Some((closed, true))
    }

    /// Is what this node has read the row of the present epoch?
    pub(super) fn is_readable(&self, epoch: Epoch) -> bool {
        match &self.row {
            None | Some(Row::Damaged(_)) => false,
            Some(row) => row.meta().epoch == epoch.0,
        }
    }

    /// The owners that wait for it, by the row and by the store's wait notes: whichever says that
    /// they wait longer. Whoever waits sees what this node sees: at the latest it comes when there
    /// is room, whenever it wanted to come.
    pub(super) fn waiters(&self, in_row: Vec<Waiter>, now: Micros, local: Micros) -> Vec<Waiter> {
        let mut waiters = in_row;
        for noted in &self.waiting {
            let known = waiters.iter_mut().find(|one| one.owner == noted.owner);
            match known {
                Some(known) if noted.until > known.until => {
                    let (granted, since) = (known.granted, known.since);
                    *known = Waiter {
                        granted,
                        since,
                        ..*noted
                    };
                }
                Some(_) => {}
                None => {
                    // Who is new here has not been served less than the others.
                    let least = waiters.iter().map(|waiter| waiter.granted).min();
                    waiters.push(Waiter {
                        granted: least.unwrap_or(0),
                        ..*noted
                    });
                }
            }
        }
        let room_at = self
            .room_since
            .map_or(now, |since| now - local.since(since));
        for waiter in &mut waiters {
            if !self.passed_over.contains(&(waiter.owner, waiter.until)) {
                waiter.due = waiter.due.max(room_at.min(now));
            }
        }
        waiters
    }

    /// There is room, and these did not come for it. They are not waited for again before they say
    /// that they wait on.
    pub(super) fn pass_over(&mut self, absent: impl Iterator<Item = Waiter>) {
        let absent: Vec<_> = absent.map(|one| (one.owner, one.until)).collect();
        self.passed_over
            .retain(|(owner, _)| absent.iter().all(|(one, _)| one != owner));
        self.passed_over.extend(absent);
        self.passed_over.truncate(WAITERS_MAX);
    }
}

/// May the clock have stepped while what is in the row still matters? Rows of long limits are
/// believed: moved by every node that joins, they would never be free.
fn is_unclear(row: &Row, rule: Option<&Rule>, reading: &Reading<'_>) -> bool {
    let is_long = rule.is_some_and(|rule| rule.period() >= LONG_PERIOD);
    reading.rules.distrust_on_join && !is_long && reading.base_age < row.matters_for()
}

/// What stands for a row that cannot be read. It is written once, so that it ends.
fn lost_row(id: RowKey, row: &Row, rule: Option<&Rule>, reading: &Reading<'_>) -> (Row, bool) {
    let meta = row.meta().clone();
    let at = reading.now.hi;
    let row = match (id, rule) {
        (RowKey::Provider, _) => Row::Provider(ProviderRow {
            loss: Loss {
                at: Some(at + reading.late_arrival),
                is_all: true,
            },
            meta,
            ..ProviderRow::default()
        }),
        (RowKey::Owner(..), _) => Row::Owner(OwnerRow {
            meta,
            presence: None,
        }),
        (RowKey::Cell(_), Some(rule)) => Row::Cell(CellRow {
            cell: Cell::used_up_by_calls(rule, at, reading.call_timeout + reading.late_arrival),
            meta,
            ..CellRow::default()
        }),
        // Nobody asks: it stays as it is.
        (RowKey::Cell(_), None) => {
            let row = CellRow {
                meta,
                ..CellRow::default()
            };
            return (Row::Cell(row), false);
        }
        (RowKey::Scope(_), _) => Row::Scope(ScopeRow {
            scope: Scope::lost(at),
            meta,
        }),
    };
    (row, true)
}
