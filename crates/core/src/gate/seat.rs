//! Where each waiter stands: among the ready, in the line of a place, or with the ledger.
//!
//! Promises: a waiter stands in exactly one place, and its deadline and its caller's account go
//! with it.
//!
//! Never: decides who goes. `offer` does.

use smallvec::{SmallVec, smallvec};

use crate::ask::{Ask, CellId, On, PermitId};
use crate::gate::block::{Block, Closed};
use crate::gate::line::Rank;
use crate::gate::{BATCH_FIRST, Entry, Gate, Order, Place, Resolution, Seat};
use crate::time::{Micros, Now};

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

    /// Arrivals join the line of a place they would pass through, so that they stand behind those
    /// who were there before.
    fn line_for(&self, id: PermitId) -> Seat {
        let Some(entry) = self.waiting.get(&id) else {
            return Seat::Ready;
        };
        let mut places = places(self.settings.order, &entry.ask);
        let place =
            places.find(|place| self.blocks.get(place).is_some_and(|block| block.is_open()));
        place.map_or(Seat::Ready, Seat::Line)
    }

    /// The place that keeps this waiter from being offered, if any.
    pub(super) fn closed_for(&mut self, id: PermitId, now: Now) -> Option<Place> {
        let entry = self.waiting.get(&id)?;
        if let Some(hours) = &self.settings.off_peak
            && entry.ask.priority <= hours.confines()
            && let Some(wait) = hours.opens_after(now.wall)
        {
            let closed = Closed::new(now.at + wait, On::Time, hours.confines(), 0);
            self.close(Place::OffPeak, closed, true, now.at);
            return Some(Place::OffPeak);
        }
        places(self.settings.order, &entry.ask).find(|&place| self.is_closed_for(entry, place))
    }

    fn is_closed_for(&self, entry: &Entry, place: Place) -> bool {
        self.refusal(entry, place).is_some()
    }

    /// Does it stand in a line that is closed for it?
    pub(super) fn is_held_up(&self, entry: &Entry) -> bool {
        let Seat::Line(place) = entry.seat else {
            return false;
        };
        let block = self.blocks.get(&place);
        block.is_some_and(|block| block.level() >= Some(entry.ask.priority))
    }

    fn refusal(&self, entry: &Entry, place: Place) -> Option<Closed> {
        let block = self.blocks.get(&place)?;
        block.closed_for(entry.ask.priority, need_at(&entry.ask, place))
    }

    /// Stands in a closed line, unless that is known to take too long.
    pub(super) fn park(&mut self, id: PermitId, place: Place, now: Micros) {
        self.link(id, Seat::Line(place));
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let refusal = self.refusal(entry, place);
        if let Some(closed) = refusal.filter(|closed| entry.deadline < closed.hopeless_before(now))
        {
            self.give_up(id, place, closed, now);
        }
    }

    /// Closes a place, and refuses those in its line whose deadline is known to pass.
    pub(super) fn close(&mut self, place: Place, closed: Closed, stays: bool, now: Micros) {
        let block = self
            .blocks
            .entry(place)
            .or_insert_with(|| Block::new(BATCH_FIRST));
        if let Some(old) = block.wake() {
            self.wakes.remove(&(old, place));
        }
        if stays {
            block.hold(closed);
        } else {
            block.prove(closed);
        }
        if let Some(wake) = block.wake() {
            self.wakes.insert((wake, place));
        }
        for id in block.due_before(closed.hopeless_before(now)) {
            let refusal = self
                .waiting
                .get(&id)
                .and_then(|entry| self.refusal(entry, place).map(|closed| (entry, closed)));
            if let Some((entry, closed)) = refusal
                && entry.deadline < closed.hopeless_before(now)
            {
                self.give_up(id, place, closed, now);
            }
        }
        self.stand_aside(place);
    }

    /// Its time passes before the place opens, or has passed.
    fn give_up(&mut self, id: PermitId, place: Place, closed: Closed, now: Micros) {
        let resolution = if closed.known {
            Resolution::Refused {
                place,
                retry_in: closed.until.since(now),
            }
        } else {
            Resolution::TimedOut { place: Some(place) }
        };
        self.resolve(id, resolution);
    }

    pub(super) fn open(&mut self, place: Place) {
        if let Some(block) = self.blocks.get_mut(&place) {
            if let Some(wake) = block.wake() {
                self.wakes.remove(&(wake, place));
            }
            block.open();
            self.forget_if_idle(place);
        }
    }

    pub(super) fn open_all(&mut self) {
        let places: Vec<Place> = self.blocks.keys().copied().collect();
        for place in places {
            self.open(place);
        }
    }

    /// Somebody has left a line. It may have been closed because of that one: then the next one may
    /// go already, and if it was the only one, the line is closed for nobody's sake.
    pub(super) fn step_up(&mut self, place: Place, need: u64) {
        if self.next_may_go(place, need) {
            self.open(place);
        } else {
            self.stand_aside(place);
        }
    }

    /// Nobody is kept by one who does not stand there any more.
    fn stand_aside(&mut self, place: Place) {
        let Some(block) = self.blocks.get_mut(&place) else {
            return;
        };
        let old = block.wake();
        block.lower(self.settings.order);
        let new = block.wake();
        if old != new {
            self.wakes.extend(new.map(|wake| (wake, place)));
            if let Some(old) = old {
                self.wakes.remove(&(old, place));
            }
        }
        self.forget_if_idle(place);
    }

    /// The first in line needs less than one who needed `need` and has left. At the front everybody
    /// wants something else.
    pub(super) fn next_may_go(&self, place: Place, need: u64) -> bool {
        let line = self.blocks.get(&place).map(|block| &block.line);
        let next = line.and_then(|line| line.best(&self.shares, None));
        next.and_then(|(_, rank)| self.waiting.get(&rank.id))
            .is_some_and(|entry| place == Place::Front || need_at(&entry.ask, place) < need)
    }

    pub(super) fn leave(&mut self, id: PermitId) -> Option<Entry> {
        let seat = self.waiting.get(&id)?.seat;
        self.unlink(id, seat);
        let entry = self.waiting.remove(&id)?;
        self.deadlines.remove(&(entry.deadline, id));
        self.shares.left(entry.caller);
        if let Seat::Line(place) = seat {
            self.forget_if_idle(place);
        }
        Some(entry)
    }

    /// It left without a verdict: by itself, or because its time was over.
    pub(super) fn gone(&mut self, entry: &Entry) {
        if let Seat::Line(place) = entry.seat {
            self.step_up(place, need_at(&entry.ask, place));
            self.leaves_nobody(place, &entry.ask);
        }
    }

    /// One that was refused and was to wait has left. If nobody else stands there, nobody here asks
    /// again, and the ledger would expect it in vain.
    pub(super) fn leaves_nobody(&mut self, place: Place, ask: &Ask) {
        let line = self.blocks.get(&place).map(|block| &block.line);
        if line.is_some_and(|line| !line.is_empty()) {
            return;
        }
        let cells: SmallVec<[CellId; 4]> = match place {
            Place::Cell(cell) => smallvec![cell],
            Place::Front => ask.terms.iter().map(|term| term.cell).collect(),
            Place::Scope(_) | Place::OffPeak => return,
        };
        // One that is with the ledger now may just have been told to wait there.
        let offered = self.offered.values().flat_map(|one| &one.ask.terms);
        let left = cells
            .into_iter()
            .filter(|cell| !offered.clone().any(|term| term.cell == *cell));
        self.effects.left.extend(left);
    }

    fn rank(&self, entry: &Entry) -> Rank {
        Rank::of(&entry.ask, entry.caller, entry.arrival, self.settings.order)
    }

    /// While the ledger has an offer, an idle block still knows how large its batch was.
    fn forget_if_idle(&mut self, place: Place) {
        if self.offered.is_empty() && self.blocks.get(&place).is_some_and(Block::is_idle) {
            self.blocks.remove(&place);
        }
    }

    pub(super) fn link(&mut self, id: PermitId, seat: Seat) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let (rank, deadline) = (self.rank(entry), entry.deadline);
        match seat {
            Seat::Ready => self.ready.add(rank),
            Seat::Line(place) => {
                let block = self
                    .blocks
                    .entry(place)
                    .or_insert_with(|| Block::new(BATCH_FIRST));
                block.add(rank, deadline);
            }
            Seat::Offered => {}
        }
        if let Some(entry) = self.waiting.get_mut(&id) {
            entry.seat = seat;
        }
    }

    pub(super) fn unlink(&mut self, id: PermitId, seat: Seat) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let (rank, deadline) = (self.rank(entry), entry.deadline);
        match seat {
            Seat::Ready => self.ready.remove(rank),
            Seat::Line(place) => {
                if let Some(block) = self.blocks.get_mut(&place) {
                    block.remove(rank, deadline);
                }
            }
            Seat::Offered => {}
        }
    }
}

/// The places that an ask must pass.
pub(super) fn places(order: Order, ask: &Ask) -> impl Iterator<Item = Place> {
    let front = (order == Order::Fifo).then_some(Place::Front);
    let scopes = ask.scopes.iter().map(|&scope| Place::Scope(scope));
    let cells = ask.terms.iter().map(|term| Place::Cell(term.cell));
    front.into_iter().chain(
        scopes
            .chain(cells)
            .filter(move |_| order == Order::Priority),
    )
}

pub(super) fn is_asked(order: Order, ask: &Ask, place: Place) -> bool {
    places(order, ask).any(|asked| asked == place)
}

/// What an ask needs of a place, with what it must leave; all need the same of a scope.
pub(super) fn need_at(ask: &Ask, place: Place) -> u64 {
    match place {
        Place::Cell(cell) => {
            let terms = ask.terms.iter().filter(|term| term.cell == cell);
            let needs = terms.map(|term| term.cost.saturating_add(term.leaves(ask.priority)));
            needs.max().unwrap_or(0)
        }
        Place::Scope(_) | Place::OffPeak | Place::Front => 0,
    }
}
