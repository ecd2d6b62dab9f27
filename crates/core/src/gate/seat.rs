//! Where each waiter stands: among the ready, in the line of a place, or with the ledger.
//!
//! Promises: a waiter stands in exactly one place, and its deadline and its caller's account go
//! with it.
//!
//! Never: decides who goes. `gate` does.

use crate::ask::{On, PermitId, Priority};
use crate::gate::block::Block;
use crate::gate::line::Rank;
use crate::gate::{BATCH_FIRST, Entry, Gate, Order, Place, Resolution, Seat};
use crate::time::{Micros, Now, Span};

impl Gate {
    /// Puts a waiter where it must wait, or among the ready.
    pub(super) fn seat(&mut self, id: PermitId, now: Now) {
        match self.closed_for(id, now) {
            Some(place) => self.park(id, place, now.at),
            None => {
                let line = self.line_for(id);
                self.link(id, line);
            }
        }
    }

    /// Arrivals join the open line of a place they would pass through, so that they stand behind
    /// those who were there before.
    fn line_for(&self, id: PermitId) -> Seat {
        let Some(entry) = self.waiting.get(&id) else {
            return Seat::Ready;
        };
        let place = self
            .places(entry)
            .into_iter()
            .find(|place| self.blocks.contains_key(place));
        place.map_or(Seat::Ready, Seat::Line)
    }

    fn places(&self, entry: &Entry) -> Vec<Place> {
        match self.settings.order {
            Order::Fifo => vec![Place::Front],
            Order::Priority => {
                let scopes = entry.ask.scopes.iter().map(|&scope| Place::Scope(scope));
                scopes
                    .chain(entry.ask.terms.iter().map(|term| Place::Cell(term.cell)))
                    .collect()
            }
        }
    }

    /// The place that keeps this waiter from being offered, if any.
    pub(super) fn closed_for(&mut self, id: PermitId, now: Now) -> Option<Place> {
        let entry = self.waiting.get(&id)?;
        let priority = entry.ask.priority;
        if priority == Priority::Low
            && let Some(wait) = self
                .settings
                .off_peak
                .as_ref()
                .and_then(|hours| hours.opens_after(now.wall))
        {
            self.close(Place::OffPeak, wait, On::Time, Priority::Low, now.at);
            return Some(Place::OffPeak);
        }
        let places = self.places(entry);
        places.into_iter().find(|place| {
            self.blocks
                .get(place)
                .is_some_and(|block| match self.settings.order {
                    Order::Fifo => !block.is_open(),
                    Order::Priority => block.blocks(priority),
                })
        })
    }

    /// Stands in a closed line, unless that is known to take too long.
    pub(super) fn park(&mut self, id: PermitId, place: Place, now: Micros) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let (deadline, until) = (
            entry.deadline,
            self.blocks.get(&place).and_then(Block::known_until),
        );
        if let Some(until) = until.filter(|&until| until > deadline) {
            return self.resolve(
                id,
                Resolution::Refused {
                    place,
                    retry_in: until.since(now),
                },
            );
        }
        self.link(id, Seat::Line(place));
    }

    /// Closes a place for everybody who is not more urgent, and refuses those in its line whose
    /// deadline is known to pass.
    pub(super) fn close(
        &mut self,
        place: Place,
        after: Span,
        on: On,
        priority: Priority,
        now: Micros,
    ) {
        let block = self
            .blocks
            .entry(place)
            .or_insert_with(|| Block::new(BATCH_FIRST));
        if let Some(old) = block.wake() {
            self.wakes.remove(&(old, place));
        }
        block.close(now + after, on, priority);
        if let Some(wake) = block.wake() {
            self.wakes.insert((wake, place));
        }
        let Some(until) = block.known_until() else {
            return;
        };
        for id in block.hopeless(until) {
            let lower = self
                .waiting
                .get(&id)
                .is_some_and(|entry| entry.ask.priority <= priority);
            if lower || place == Place::Front {
                self.resolve(
                    id,
                    Resolution::Refused {
                        place,
                        retry_in: until.since(now),
                    },
                );
            }
        }
    }

    pub(super) fn open(&mut self, place: Place) {
        if let Some(block) = self.blocks.get_mut(&place) {
            if let Some(wake) = block.wake() {
                self.wakes.remove(&(wake, place));
            }
            block.open();
        }
    }

    pub(super) fn leave(&mut self, id: PermitId) -> Option<Entry> {
        let seat = self.waiting.get(&id)?.seat;
        self.unlink(id, seat);
        let entry = self.waiting.remove(&id)?;
        self.deadlines.remove(&(entry.deadline, id));
        self.shares.left(entry.caller);
        Some(entry)
    }

    pub(super) fn link(&mut self, id: PermitId, seat: Seat) {
        let Some(entry) = self.waiting.get_mut(&id) else {
            return;
        };
        entry.seat = seat;
        let rank = Rank::of(&entry.ask, entry.caller, entry.arrival, entry.order);
        match seat {
            Seat::Ready => self.ready.add(rank),
            Seat::Line(place) => {
                let block = self
                    .blocks
                    .entry(place)
                    .or_insert_with(|| Block::new(BATCH_FIRST));
                block.add(rank, entry.deadline);
            }
            Seat::Offered => {}
        }
    }

    pub(super) fn unlink(&mut self, id: PermitId, seat: Seat) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let rank = Rank::of(&entry.ask, entry.caller, entry.arrival, entry.order);
        match seat {
            Seat::Ready => self.ready.remove(rank),
            Seat::Line(place) => {
                if let Some(block) = self.blocks.get_mut(&place) {
                    block.remove(rank, entry.deadline);
                }
            }
            Seat::Offered => {}
        }
    }
}
