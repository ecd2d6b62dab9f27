//! What the ledger is asked next, and in which order.
//!
//! Promises: the best waiters of all open lines, in order; from one place no more than its batch,
//! and nobody gets past those who stand before it at any place it must pass. Under strict arrival
//! order a batch holds only asks of one kind, so that a refusal of one is a refusal of all behind.
//!
//! Never: two offers at a time.

use crate::ask::{Ask, PermitId};
use crate::gate::line::{Key, Rank};
use crate::gate::seat::{is_asked, places};
use crate::gate::{BATCH_MAX, CallerId, Gate, Order, Place, Seat};
use crate::time::Now;

/// An ask that the ledger has.
#[derive(Debug)]
pub(super) struct Offered {
    /// As it was asked; the waiter may have left since.
    pub(super) ask: Ask,
    pub(super) caller: CallerId,
}

impl Gate {
    /// Takes the best waiters until the batch is full.
    pub(super) fn fill_offer(&mut self, now: Now) {
        while self.effects.offer.len() < BATCH_MAX {
            let Some((_, Rank { id, .. }, source)) = self.best() else {
                break;
            };
            if let Some(place) = self.closed_for(id, now) {
                self.unlink(id, source);
                self.park(id, place, now.at);
            } else if let Some(place) = self.exhausted_for(id) {
                self.unlink(id, source);
                self.link(id, Seat::Line(place));
            } else if self.is_too_late(id, now) {
                self.time_out(id, source.place());
            } else if self.mixes(id) || self.is_behind_recalled(id) {
                break;
            } else {
                self.offer(id, source, now);
            }
        }
    }

    fn offer(&mut self, id: PermitId, source: Seat, now: Now) {
        self.unlink(id, source);
        let Some(entry) = self.waiting.get_mut(&id) else {
            return;
        };
        entry.seat = Seat::Offered;
        entry.asked = true;
        entry.ask.patience = entry.deadline.since(now.at);
        let (ask, caller) = (entry.ask.clone(), entry.caller);
        self.shares.offered(caller, &ask.terms);
        for place in places(self.settings.order, &ask) {
            *self.offered_to.entry(place).or_insert(0) += 1;
        }
        self.effects.offer.push(ask.clone());
        self.offered.insert(id, Offered { ask, caller });
    }

    /// The first in order among the ready and the lines that may still offer.
    fn best(&self) -> Option<(Key, Rank, Seat)> {
        let ready = self.ready.best(&self.shares, None);
        let ready = ready.map(|(key, rank)| (key, rank, Seat::Ready));
        let lines = self.blocks.iter().filter_map(|(&place, block)| {
            if self.is_exhausted(place) {
                return None;
            }
            let (key, rank) = block.best(&self.shares)?;
            Some((key, rank, Seat::Line(place)))
        });
        ready
            .into_iter()
            .chain(lines)
            .min_by_key(|(key, _, _)| *key)
    }

    /// The place has been asked as often as its batch allows.
    fn is_exhausted(&self, place: Place) -> bool {
        let used = self.offered_to.get(&place).copied().unwrap_or(0);
        self.blocks
            .get(&place)
            .is_some_and(|block| used >= block.batch)
    }

    /// A place this one must pass that is asked no more this time: it joins that line, or it would
    /// get past those who stand there.
    fn exhausted_for(&self, id: PermitId) -> Option<Place> {
        let entry = self.waiting.get(&id)?;
        let mut places = places(self.settings.order, &entry.ask);
        places.find(|&place| self.is_exhausted(place))
    }

    /// It had its chance and was not reached in time.
    fn is_too_late(&self, id: PermitId, now: Now) -> bool {
        self.waiting
            .get(&id)
            .is_some_and(|entry| entry.asked && entry.deadline < now.at)
    }

    /// Under strict order: would a refusal of the one before leave this one a way past it?
    fn mixes(&self, id: PermitId) -> bool {
        let (Some(entry), Some(before)) = (self.waiting.get(&id), self.effects.offer.last()) else {
            return false;
        };
        self.settings.order == Order::Fifo && !is_behind(&entry.ask, before)
    }

    /// Must it wait for somebody who was called back and is about to ask again?
    fn is_behind_recalled(&self, id: PermitId) -> bool {
        let order = self.settings.order;
        self.waiting.get(&id).is_some_and(|entry| {
            self.recalled
                .goes_before(order, entry.arrival, entry.ask.priority)
        })
    }

    /// Has the ledger been asked about this place, and not answered yet?
    pub(super) fn is_offered_to(&self, place: Place) -> bool {
        let mut offered = self.offered.values();
        offered.any(|offered| is_asked(self.settings.order, &offered.ask, place))
    }
}

/// Whatever refuses `before` refuses `ask` as well.
fn is_behind(ask: &Ask, before: &Ask) -> bool {
    let cells = |ask: &Ask| ask.terms.iter().map(|term| term.cell).collect::<Vec<_>>();
    ask.priority <= before.priority && ask.scopes == before.scopes && cells(ask) == cells(before)
}
