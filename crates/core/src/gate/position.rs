//! Where each waiter stands: among the ready, in the line of a place, or with the ledger.
//!
//! Promises: a waiter stands in exactly one place, and its deadline and its caller's account go
//! with it.
//!
//! Never: decides who goes. `offer` does.

use smallvec::{SmallVec, smallvec};

use crate::ask::{Ask, CellId, PermitId, WakeOn};
use crate::gate::block::{Block, Closed};
use crate::gate::queue::Rank;
use crate::gate::{BATCH_FIRST, Blocker, Entry, Gate, Order, Position, Resolution};
use crate::time::{Micros, Now};

impl Gate {
    /// Puts a waiter where it must wait, or among the ready.
    pub(super) fn enqueue(&mut self, id: PermitId, now: Now) {
        match self.closed_for(id, now) {
            Some(place) => self.park(id, place, now.at),
            None => {
                let line = self.queue_for(id);
                self.link(id, line);
            }
        }
    }

    /// Arrivals join the line of a place they would pass through, so that they stand behind those
    /// who were there before.
    fn queue_for(&self, id: PermitId) -> Position {
        let Some(entry) = self.waiting.get(&id) else {
            return Position::Ready;
        };
        let mut places = blockers(self.settings.order, &entry.ask);
        let place =
            places.find(|place| self.blocks.get(place).is_some_and(|block| block.is_open()));
        place.map_or(Position::Ready, Position::Queued)
    }

    /// The place that keeps this waiter from being offered, if any.
    pub(super) fn closed_for(&mut self, id: PermitId, now: Now) -> Option<Blocker> {
        let entry = self.waiting.get(&id)?;
        if let Some(hours) = &self.settings.off_peak
            && entry.ask.priority <= hours.max_priority()
            && let Some(wait) = hours.opens_after(now.wall)
        {
            let closed = Closed::new(now.at + wait, WakeOn::Time, hours.max_priority(), 0);
            self.close(Blocker::OffPeak, closed, true, now.at);
            return Some(Blocker::OffPeak);
        }
        blockers(self.settings.order, &entry.ask).find(|&place| self.is_closed_for(entry, place))
    }

    fn is_closed_for(&self, entry: &Entry, place: Blocker) -> bool {
        self.rejection(entry, place).is_some()
    }

    /// Does it stand in a line that is closed for it?
    pub(super) fn is_blocked(&self, entry: &Entry) -> bool {
        let Position::Queued(place) = entry.position else {
            return false;
        };
        let block = self.blocks.get(&place);
        block.is_some_and(|block| block.level() >= Some(entry.ask.priority))
    }

    fn rejection(&self, entry: &Entry, place: Blocker) -> Option<Closed> {
        let block = self.blocks.get(&place)?;
        block.closed_for(entry.ask.priority, need_at(&entry.ask, place))
    }

    /// Stands in a closed line, unless that is known to take too long.
    pub(super) fn park(&mut self, id: PermitId, place: Blocker, now: Micros) {
        self.link(id, Position::Queued(place));
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let refusal = self.rejection(entry, place);
        if let Some(closed) = refusal.filter(|closed| entry.deadline < closed.reject_before(now)) {
            self.resolve_late(id, place, closed, now);
        }
    }

    /// Closes a place, and refuses those in its line whose deadline is known to pass.
    pub(super) fn close(&mut self, place: Blocker, closed: Closed, stays: bool, now: Micros) {
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
            block.note_departed(closed);
        }
        if let Some(wake) = block.wake() {
            self.wakes.insert((wake, place));
        }
        for id in block.due_before(closed.reject_before(now)) {
            let refusal = self
                .waiting
                .get(&id)
                .and_then(|entry| self.rejection(entry, place).map(|closed| (entry, closed)));
            if let Some((entry, closed)) = refusal
                && entry.deadline < closed.reject_before(now)
            {
                self.resolve_late(id, place, closed, now);
            }
        }
        self.relax_block(place);
    }

    /// Its time passes before the place opens, or has passed.
    fn resolve_late(&mut self, id: PermitId, place: Blocker, closed: Closed, now: Micros) {
        let resolution = if closed.known {
            Resolution::Rejected {
                blocker: place,
                retry_in: closed.until.since(now),
            }
        } else {
            Resolution::TimedOut {
                blocker: Some(place),
            }
        };
        self.resolve(id, resolution);
    }

    pub(super) fn open(&mut self, place: Blocker) {
        if let Some(block) = self.blocks.get_mut(&place) {
            if let Some(wake) = block.wake() {
                self.wakes.remove(&(wake, place));
            }
            block.open();
            self.drop_if_idle(place);
        }
    }

    pub(super) fn open_all(&mut self) {
        let places: Vec<Blocker> = self.blocks.keys().copied().collect();
        for place in places {
            self.open(place);
        }
    }

    /// Somebody has left a line. It may have been closed because of that one: then the next one may
    /// go already, and if it was the only one, the line is closed for nobody's sake.
    pub(super) fn on_departure(&mut self, place: Blocker, need: u64) {
        if self.next_may_go(place, need) {
            self.open(place);
        } else {
            self.relax_block(place);
        }
    }

    /// Nobody is kept by one who does not stand there any more.
    fn relax_block(&mut self, place: Blocker) {
        let Some(block) = self.blocks.get_mut(&place) else {
            return;
        };
        let old = block.wake();
        block.relax(self.settings.order);
        let new = block.wake();
        if old != new {
            self.wakes.extend(new.map(|wake| (wake, place)));
            if let Some(old) = old {
                self.wakes.remove(&(old, place));
            }
        }
        self.drop_if_idle(place);
    }

    /// The first in line needs less than one who needed `need` and has left. At the front everybody
    /// wants something else.
    pub(super) fn next_may_go(&self, place: Blocker, need: u64) -> bool {
        let line = self.blocks.get(&place).map(|block| &block.queue);
        let next = line.and_then(|line| line.best(&self.callers, None));
        next.and_then(|(_, rank)| self.waiting.get(&rank.id))
            .is_some_and(|entry| place == Blocker::Front || need_at(&entry.ask, place) < need)
    }

    pub(super) fn remove(&mut self, id: PermitId) -> Option<Entry> {
        let seat = self.waiting.get(&id)?.position;
        self.unlink(id, seat);
        let entry = self.waiting.remove(&id)?;
        self.deadlines.remove(&(entry.deadline, id));
        self.callers.departed(entry.caller);
        if let Position::Queued(place) = seat {
            self.drop_if_idle(place);
        }
        Some(entry)
    }

    /// It left without a verdict: by itself, or because its time was over.
    pub(super) fn on_left(&mut self, entry: &Entry) {
        if let Position::Queued(place) = entry.position {
            self.on_departure(place, need_at(&entry.ask, place));
            self.note_abandoned(place, &entry.ask);
        }
    }

    /// One that was refused and was to wait has left. If nobody else stands there, nobody here asks
    /// again, and the ledger would expect it in vain.
    pub(super) fn note_abandoned(&mut self, place: Blocker, ask: &Ask) {
        let line = self.blocks.get(&place).map(|block| &block.queue);
        if line.is_some_and(|line| !line.is_empty()) {
            return;
        }
        let cells: SmallVec<[CellId; 4]> = match place {
            Blocker::Cell(cell) => smallvec![cell],
            Blocker::Front => ask.terms.iter().map(|term| term.cell).collect(),
            Blocker::Scope(_) | Blocker::OffPeak => return,
        };
        // One that is with the ledger now may just have been told to wait there.
        let offered = self.offered.values().flat_map(|one| &one.ask.terms);
        let left = cells
            .into_iter()
            .filter(|cell| !offered.clone().any(|term| term.cell == *cell));
        self.effects.abandoned.extend(left);
    }

    fn rank(&self, entry: &Entry) -> Rank {
        Rank::of(&entry.ask, entry.caller, entry.arrival, self.settings.order)
    }

    /// While the ledger has an offer, an idle block still knows how large its batch was.
    fn drop_if_idle(&mut self, place: Blocker) {
        if self.offered.is_empty() && self.blocks.get(&place).is_some_and(Block::is_idle) {
            self.blocks.remove(&place);
        }
    }

    pub(super) fn link(&mut self, id: PermitId, seat: Position) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let (rank, deadline) = (self.rank(entry), entry.deadline);
        match seat {
            Position::Ready => self.ready.add(rank),
            Position::Queued(place) => {
                let block = self
                    .blocks
                    .entry(place)
                    .or_insert_with(|| Block::new(BATCH_FIRST));
                block.add(rank, deadline);
            }
            Position::Offered => {}
        }
        if let Some(entry) = self.waiting.get_mut(&id) {
            entry.position = seat;
        }
    }

    pub(super) fn unlink(&mut self, id: PermitId, seat: Position) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let (rank, deadline) = (self.rank(entry), entry.deadline);
        match seat {
            Position::Ready => self.ready.remove(rank),
            Position::Queued(place) => {
                if let Some(block) = self.blocks.get_mut(&place) {
                    block.remove(rank, deadline);
                }
            }
            Position::Offered => {}
        }
    }
}

/// The places that an ask must pass.
pub(super) fn blockers(order: Order, ask: &Ask) -> impl Iterator<Item = Blocker> {
    let front = (order == Order::Fifo).then_some(Blocker::Front);
    let scopes = ask.scopes.iter().map(|&scope| Blocker::Scope(scope));
    let cells = ask.terms.iter().map(|term| Blocker::Cell(term.cell));
    front.into_iter().chain(
        scopes
            .chain(cells)
            .filter(move |_| order == Order::Priority),
    )
}

pub(super) fn needs(order: Order, ask: &Ask, place: Blocker) -> bool {
    blockers(order, ask).any(|asked| asked == place)
}

/// What an ask needs of a place, with what it must leave; all need the same of a scope.
pub(super) fn need_at(ask: &Ask, place: Blocker) -> u64 {
    match place {
        Blocker::Cell(cell) => {
            let terms = ask.terms.iter().filter(|term| term.cell == cell);
            let needs = terms.map(|term| term.cost.saturating_add(term.reserve_for(ask.priority)));
            needs.max().unwrap_or(0)
        }
        Blocker::Scope(_) | Blocker::OffPeak | Blocker::Front => 0,
    }
}
