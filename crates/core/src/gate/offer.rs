//! What the ledger is asked next, and in which order.
//!
//! Promises: the best waiters of all open lines, in order; from one place no more than its batch,
//! and nobody gets past those who stand before it at any place it must pass. Under strict arrival
//! order a batch holds only asks of one kind, so that a refusal of one is a refusal of all behind.
//!
//! Never: two offers at a time.

use crate::ask::{Ask, PermitId};
use crate::gate::position::{blockers, needs};
use crate::gate::queue::{QueueKey, Rank};
use crate::gate::{BATCH_MAX, Blocker, CallerId, Gate, Order, Position};
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
                self.link(id, Position::Queued(place));
            } else if self.is_too_late(id, now) {
                self.time_out(id, source.blocker());
            } else if self.could_overtake(id) || self.is_behind_recalled(id) {
                break;
            } else {
                self.offer(id, source, now);
            }
        }
    }

    fn offer(&mut self, id: PermitId, source: Position, now: Now) {
        self.unlink(id, source);
        let Some(entry) = self.waiting.get_mut(&id) else {
            return;
        };
        entry.position = Position::Offered;
        entry.was_offered = true;
        entry.ask.max_wait = entry.deadline.since(now.at);
        let (ask, caller) = (entry.ask.clone(), entry.caller);
        self.callers.offered(caller, &ask.terms);
        for place in blockers(self.settings.order, &ask) {
            *self.offered_to_blocker.entry(place).or_insert(0) += 1;
        }
        self.effects.offer.push(ask.clone());
        self.offered.insert(id, Offered { ask, caller });
    }

    /// The first in order among the ready and the lines that may still offer.
    fn best(&self) -> Option<(QueueKey, Rank, Position)> {
        let ready = self.ready.best(&self.callers, None);
        let ready = ready.map(|(key, rank)| (key, rank, Position::Ready));
        let lines = self.blocks.iter().filter_map(|(&place, block)| {
            if self.is_exhausted(place) {
                return None;
            }
            let (key, rank) = block.best(&self.callers)?;
            Some((key, rank, Position::Queued(place)))
        });
        ready
            .into_iter()
            .chain(lines)
            .min_by_key(|(key, _, _)| *key)
    }

    /// The place has been asked as often as its batch allows.
    fn is_exhausted(&self, place: Blocker) -> bool {
        let used = self.offered_to_blocker.get(&place).copied().unwrap_or(0);
        self.blocks
            .get(&place)
            .is_some_and(|block| used >= block.batch)
    }

    /// A place this one must pass that is asked no more this time: it joins that line, or it would
    /// get past those who stand there.
    fn exhausted_for(&self, id: PermitId) -> Option<Blocker> {
        let entry = self.waiting.get(&id)?;
        let mut places = blockers(self.settings.order, &entry.ask);
        places.find(|&place| self.is_exhausted(place))
    }

    /// It had its chance and was not reached in time.
    fn is_too_late(&self, id: PermitId, now: Now) -> bool {
        self.waiting
            .get(&id)
            .is_some_and(|entry| entry.was_offered && entry.deadline < now.at)
    }

    /// Under strict order: would a refusal of the one before leave this one a way past it?
    fn could_overtake(&self, id: PermitId) -> bool {
        let (Some(entry), Some(before)) = (self.waiting.get(&id), self.effects.offer.last()) else {
            return false;
        };
        self.settings.order == Order::Fifo && !shares_blockers(&entry.ask, before)
    }

    /// Must it wait for somebody who was called back and is about to ask again?
    fn is_behind_recalled(&self, id: PermitId) -> bool {
        let order = self.settings.order;
        self.waiting.get(&id).is_some_and(|entry| {
            self.recalled
                .is_before(order, entry.arrival, entry.ask.priority)
        })
    }

    /// Has the ledger been asked about this place, and not answered yet?
    pub(super) fn is_offered_to(&self, place: Blocker) -> bool {
        let mut offered = self.offered.values();
        offered.any(|offered| needs(self.settings.order, &offered.ask, place))
    }
}

/// Whatever refuses `before` refuses `ask` as well.
fn shares_blockers(ask: &Ask, before: &Ask) -> bool {
    let cells = |ask: &Ask| ask.terms.iter().map(|term| term.cell).collect::<Vec<_>>();
    ask.priority <= before.priority && ask.scopes == before.scopes && cells(ask) == cells(before)
}
