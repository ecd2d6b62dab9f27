//! What the store must know of this node's waits.
//!
//! Promises: nobody is rejected by rows that others may have changed unseen.
//!
//! Never: decides.

use crate::ask::{Ask, BlockedBy, OwnerId, Verdict, WakeOn};
use crate::fairness::{GRACE, Rows, Waiter, will_wait};
use crate::row::write_waiters;
use crate::time::{Micros, Span, TimeBounds};

use super::batch_rows::BatchRows;
use super::decide::{BatchInput, DecisionContext};
use super::known::{KnownRow, KnownRows};
use super::row::{RowKey, WaitNote};

/// A wait is noted for no longer than this: whoever waits on says so again.
const NOTE_MAX: Span = Span::from_secs(600);

/// Who waits for a signal and asks again, as everybody does each second, is noted anew if so little is
/// left of its note: so a signal that was lost costs a second.
const NOTE_RENEW_BELOW: Span = Span::from_millis(600);

impl DecisionContext<'_> {
    /// The wait notes for the store, and whether they must be sent (or rows read) before
    /// the asks hear that they wait. A node that is not noted is not sent new rows, so it must not
    /// reject by those that it has.
    pub(super) fn waits(
        &self,
        known: &mut KnownRows,
        rows: &BatchRows,
        asks: &[Ask],
        verdicts: &[Verdict],
        now: TimeBounds,
    ) -> (Vec<(RowKey, WaitNote)>, bool) {
        let mut waits: Vec<(RowKey, WaitNote)> = Vec::new();
        let mut must_ask = false;
        for (ask, verdict) in asks.iter().zip(verdicts) {
            let Verdict::Wait { after, on, by } = verdict else {
                continue;
            };
            let id = match *by {
                BlockedBy::Term(index) => ask.terms.get(index).map(|term| RowKey::Cell(term.cell)),
                BlockedBy::Scope(index) => ask.scopes.get(index).copied().map(RowKey::Scope),
            };
            let Some((id, known)) = id.and_then(|id| Some((id, known.get_mut(id)?))) else {
                continue;
            };
            if !will_wait(ask, *after, *on) {
                must_ask |= !self.is_current(known);
                continue;
            }
            let needed = match on {
                WakeOn::Time => (*after).min(NOTE_MAX),
                WakeOn::Event | WakeOn::Release => NOTE_RENEW_BELOW,
            };
            let own = self
                .own_waiter(rows, id)
                .map(|own| (own.priority, own.cost));
            must_ask |= known.noted_until < self.local + needed || own != known.noted_as;
            if !waits.iter().any(|(noted, _)| *noted == id) {
                waits.push((id, self.note(rows, id, needed, now)));
            }
        }
        (waits, must_ask)
    }

    /// Is what is known of a row from after the asks came, or does the store send each new version?
    fn is_current(&self, known: &KnownRow) -> bool {
        known.noted_until > self.local || known.checked_at >= self.asked_at
    }

    /// How this process waits for a row after the decision.
    fn own_waiter<'a>(&self, rows: &'a BatchRows, id: RowKey) -> Option<&'a Waiter> {
        let waiters = match id {
            RowKey::Cell(cell) => rows.waiters(cell),
            RowKey::Provider | RowKey::Owner(..) | RowKey::Scope(_) => &[],
        };
        waiters.iter().find(|one| one.owner == self.settings.owner)
    }

    fn note(&self, rows: &BatchRows, id: RowKey, needed: Span, now: TimeBounds) -> WaitNote {
        let own = self.own_waiter(rows, id);
        let lasts = own.map_or(needed + GRACE, |own| own.until.since(now.lo));
        let mut bytes = Vec::new();
        write_waiters(&mut bytes, own.map_or(&[], std::slice::from_ref));
        WaitNote {
            lasts: lasts
                .max(needed + GRACE - NOTE_RENEW_BELOW)
                .min(NOTE_MAX + GRACE),
            bytes,
        }
    }
}

/// Rows for which this node was noted as waiting and waits no longer.
pub(super) fn stops(
    known: &KnownRows,
    rows: &BatchRows,
    input: BatchInput<'_>,
    owner: OwnerId,
) -> Vec<RowKey> {
    let terms = input.asks.iter().flat_map(|ask| &ask.terms);
    let cells = terms
        .map(|term| term.cell)
        .chain(input.stopped.iter().copied());
    let mut stops: Vec<RowKey> = Vec::new();
    for cell in cells {
        let id = RowKey::Cell(cell);
        let was_noted = known.get(id).is_some_and(|row| row.noted_until > Micros(0));
        let waits = rows.waiters(cell).iter().any(|one| one.owner == owner);
        if was_noted && !waits && !stops.contains(&id) {
            stops.push(id);
        }
    }
    stops
}
