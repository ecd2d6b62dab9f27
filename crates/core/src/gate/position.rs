//! Where each waiter is: ready, in the queue of a blocker, or offered to the ledger.
//!
//! Promises: a waiter is in exactly one of these; its deadline and its caller's account follow it.
//!
//! Never: decides who goes. `offer` does.

use smallvec::{SmallVec, smallvec};

use crate::ask::{Ask, CellId, PermitId, WakeOn};
use crate::gate::block::{Block, Closed};
use crate::gate::queue::Rank;
use crate::gate::{Blocker, Entry, Gate, Order, Position, Resolution};
use crate::time::{Micros, Now, Span};

impl Gate {
    /// Puts a waiter into the queue of its blocker, or among the ready.
    pub(super) fn enqueue(&mut self, id: PermitId, now: Now) {
        match self.closed_for(id, now) {
            Some(blocker) => self.park(id, blocker, now.at),
            None => {
                let queue = self.queue_for(id);
                self.link(id, queue);
                if queue.blocker().is_some() {
                    self.take_place(id);
                }
            }
        }
    }

    /// A new waiter joins the queue of a blocker it needs, behind those that were there before.
    fn queue_for(&self, id: PermitId) -> Position {
        let Some(entry) = self.waiting.get(&id) else {
            return Position::Ready;
        };
        let mut blockers = blockers(self.settings.order, &entry.ask);
        let blocker = blockers.find(|blocker| {
            self.blocks
                .get(blocker)
                .is_some_and(|block| block.is_open())
        });
        blocker.map_or(Position::Ready, Position::Queued)
    }

    /// The blocker that keeps this waiter from being offered, if any.
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
        blockers(self.settings.order, &entry.ask)
            .chain(release_blockers(self.settings.order, &entry.ask))
            .find(|&blocker| self.is_closed_for(entry, blocker))
    }

    fn is_closed_for(&self, entry: &Entry, blocker: Blocker) -> bool {
        self.rejection(entry, blocker).is_some()
    }

    /// Is it in a queue that is closed for it?
    pub(super) fn is_blocked(&self, entry: &Entry) -> bool {
        let Position::Queued(blocker) = entry.position else {
            return false;
        };
        let block = self.blocks.get(&blocker);
        block.is_some_and(|block| block.level() >= Some(entry.ask.priority))
    }

    fn rejection(&self, entry: &Entry, blocker: Blocker) -> Option<Closed> {
        let block = self.blocks.get(&blocker)?;
        let need = need_at(&entry.ask, blocker);
        block.closed_for(entry.ask.priority, need, entry.deadline)
    }

    /// Queues a waiter under a closed blocker, unless the queue is full or the wait is known to be
    /// too long.
    pub(super) fn park(&mut self, id: PermitId, blocker: Blocker, now: Micros) {
        let has_room = self.has_room_for(id);
        self.link(id, Position::Queued(blocker));
        if !has_room {
            self.resolve(id, Resolution::Full);
            return;
        }
        self.take_place(id);
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let rejection = self.rejection(entry, blocker);
        if let Some(closed) = rejection.filter(|closed| entry.deadline < closed.reject_before(now))
        {
            self.resolve_late(id, blocker, closed, now);
        }
    }

    /// Closes a blocker, and rejects queued waiters whose deadline is known to pass.
    pub(super) fn close(&mut self, blocker: Blocker, closed: Closed, waits: bool, now: Micros) {
        let first = self.batch_first();
        let block = self
            .blocks
            .entry(blocker)
            .or_insert_with(|| Block::new(first));
        if let Some(old) = block.wake() {
            self.wakes.remove(&(old, blocker));
        }
        match (waits, blocker) {
            (true, Blocker::Release(_)) => block.hold_for_release(closed),
            (true, _) => block.hold(closed),
            (false, _) => block.note_departed(closed),
        }
        if let Some(wake) = block.wake() {
            self.wakes.insert((wake, blocker));
        }
        for id in block.due_before(closed.reject_before(now)) {
            let rejection = self
                .waiting
                .get(&id)
                .and_then(|entry| self.rejection(entry, blocker).map(|closed| (entry, closed)));
            if let Some((entry, closed)) = rejection
                && entry.deadline < closed.reject_before(now)
            {
                self.resolve_late(id, blocker, closed, now);
            }
        }
        self.relax_block(blocker);
    }

    /// Its deadline passes before the blocker opens, or has passed. A call that does not wait learns when the blocker
    /// opens at the latest.
    fn resolve_late(&mut self, id: PermitId, blocker: Blocker, closed: Closed, now: Micros) {
        let entry = self.waiting.get(&id);
        let waits = entry.is_some_and(|entry| entry.ask.max_wait > Span::ZERO);
        let block = self.blocks.get(&blocker);
        let retry_at = entry.zip(block).map_or(closed.until, |(entry, block)| {
            block.retry_at(closed, need_at(&entry.ask, blocker))
        });
        let resolution = if closed.known || !waits {
            Resolution::Rejected {
                blocker,
                retry_in: retry_at.since(now),
            }
        } else {
            Resolution::TimedOut {
                blocker: Some(blocker),
            }
        };
        self.resolve(id, resolution);
    }

    pub(super) fn open(&mut self, blocker: Blocker) {
        if let Some(block) = self.blocks.get_mut(&blocker) {
            if let Some(wake) = block.wake() {
                self.wakes.remove(&(wake, blocker));
            }
            block.open();
            self.drop_if_idle(blocker);
        }
    }

    /// Something has come free, or may have: also those ask that only that can serve in time.
    pub(super) fn open_changed(&mut self, blocker: Blocker) {
        self.open(blocker);
        if let Blocker::Cell(cell) = blocker {
            self.open(Blocker::Release(cell));
        }
    }

    pub(super) fn open_all(&mut self) {
        let blockers: Vec<Blocker> = self.blocks.keys().copied().collect();
        for blocker in blockers {
            self.open(blocker);
        }
    }

    /// A waiter has left a queue. The queue may have been closed because of it: then the next
    /// waiter may go already, and an empty queue need not stay closed.
    pub(super) fn on_departure(&mut self, blocker: Blocker, need: u64) {
        if self.next_may_go(blocker, need) {
            self.open(blocker);
        } else {
            self.relax_block(blocker);
        }
    }

    /// A waiter that has left blocks nobody.
    fn relax_block(&mut self, blocker: Blocker) {
        let Some(block) = self.blocks.get_mut(&blocker) else {
            return;
        };
        let old = block.wake();
        block.relax(self.settings.order);
        let new = block.wake();
        if old != new {
            self.wakes.extend(new.map(|wake| (wake, blocker)));
            if let Some(old) = old {
                self.wakes.remove(&(old, blocker));
            }
        }
        self.drop_if_idle(blocker);
    }

    /// The first waiter needs less than the waiter that left, which needed `need`. In FIFO order
    /// waiters need different things, and those that hope for a permit that is returned have different
    /// deadlines, so the next one may always go.
    pub(super) fn next_may_go(&self, blocker: Blocker, need: u64) -> bool {
        let queue = self.blocks.get(&blocker).map(|block| &block.queue);
        let next = queue.and_then(|queue| queue.best(&self.callers, None));
        next.and_then(|(_, rank)| self.waiting.get(&rank.id))
            .is_some_and(|entry| match blocker {
                Blocker::Front | Blocker::Release(_) => true,
                Blocker::Cell(_) | Blocker::Scope(_) | Blocker::OffPeak => {
                    need_at(&entry.ask, blocker) < need
                }
            })
    }

    pub(super) fn remove(&mut self, id: PermitId) -> Option<Entry> {
        let position = self.waiting.get(&id)?.position;
        self.unlink(id, position);
        let entry = self.waiting.remove(&id)?;
        self.waiting_at[entry.ask.priority as usize] -= 1;
        self.places_taken -= usize::from(entry.has_place);
        self.deadlines.remove(&(entry.deadline, id));
        self.callers.departed(entry.caller);
        if let Position::Queued(blocker) = position {
            self.drop_if_idle(blocker);
        }
        Some(entry)
    }

    /// A waiter left without a verdict: it was cancelled or its deadline passed.
    pub(super) fn on_departed(&mut self, entry: &Entry) {
        if let Position::Queued(blocker) = entry.position {
            self.on_departure(blocker, need_at(&entry.ask, blocker));
            self.note_abandoned(blocker, &entry.ask);
        }
    }

    /// A rejected waiter has left. If no other waiter is queued, this gate will not ask again, and
    /// the ledger must not reserve capacity for it.
    pub(super) fn note_abandoned(&mut self, blocker: Blocker, ask: &Ask) {
        let is_waited_for = |blocker| {
            let block: Option<&Block> = self.blocks.get(&blocker);
            block.is_some_and(|block| !block.queue.is_empty())
        };
        let is_waited_for = match blocker.named() {
            Blocker::Cell(cell) => {
                is_waited_for(Blocker::Cell(cell)) || is_waited_for(Blocker::Release(cell))
            }
            other @ (Blocker::Scope(_)
            | Blocker::OffPeak
            | Blocker::Front
            | Blocker::Release(_)) => is_waited_for(other),
        };
        if is_waited_for {
            return;
        }
        let cells: SmallVec<[CellId; 4]> = match blocker {
            Blocker::Cell(cell) | Blocker::Release(cell) => smallvec![cell],
            Blocker::Front => ask.terms.iter().map(|term| term.cell).collect(),
            Blocker::Scope(_) | Blocker::OffPeak => return,
        };
        // The ledger may have just queued an ask of the current offer there.
        let offered = self.offered.values().flat_map(|one| &one.ask.terms);
        let abandoned = cells
            .into_iter()
            .filter(|cell| !offered.clone().any(|term| term.cell == *cell));
        self.effects.abandoned.extend(abandoned);
    }

    fn rank(&self, entry: &Entry) -> Rank {
        Rank::of(&entry.ask, entry.caller, entry.arrival, self.settings.order)
    }

    /// While an offer is pending, an idle block is kept because it stores the batch size.
    fn drop_if_idle(&mut self, blocker: Blocker) {
        if self.offered.is_empty() && self.blocks.get(&blocker).is_some_and(Block::is_idle) {
            self.blocks.remove(&blocker);
        }
    }

    pub(super) fn link(&mut self, id: PermitId, position: Position) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let (rank, deadline) = (self.rank(entry), entry.deadline);
        match position {
            Position::Ready => self.ready.add(rank),
            Position::Queued(blocker) => {
                let first = self.batch_first();
                let block = self
                    .blocks
                    .entry(blocker)
                    .or_insert_with(|| Block::new(first));
                block.add(rank, deadline);
            }
            Position::Offered => {}
        }
        // Whoever waits for the ledger to grant more of a limit that has room waits for no limit.
        let blocker = position.blocker();
        let block = blocker.and_then(|blocker| self.blocks.get(&blocker));
        let holds = block.is_some_and(|block| !block.has_room);
        if let Some(entry) = self.waiting.get_mut(&id) {
            entry.position = position;
            match blocker.filter(|_| holds) {
                // The front of a FIFO queue waits for a limit, which is known already.
                Some(Blocker::Front) => entry.waited_for = entry.waited_for.or(position.blocker()),
                Some(blocker) => entry.waited_for = Some(blocker.named()),
                None => {}
            }
        }
    }

    /// The ledger has rejected an ask at this blocker, or only wants to be asked again.
    pub(super) fn note_room(&mut self, blocker: Blocker, has_room: bool) {
        let first = self.batch_first();
        let block = self.blocks.entry(blocker);
        block.or_insert_with(|| Block::new(first)).has_room = has_room;
    }

    /// Something blocks it, or has blocked it before: it counts in the queue.
    pub(super) fn take_place(&mut self, id: PermitId) {
        if let Some(entry) = self.waiting.get_mut(&id)
            && !entry.has_place
        {
            entry.has_place = true;
            self.places_taken += 1;
        }
    }

    pub(super) fn unlink(&mut self, id: PermitId, position: Position) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let (rank, deadline) = (self.rank(entry), entry.deadline);
        match position {
            Position::Ready => self.ready.remove(rank),
            Position::Queued(blocker) => {
                if let Some(block) = self.blocks.get_mut(&blocker) {
                    block.remove(rank, deadline);
                }
            }
            Position::Offered => {}
        }
    }
}

/// Everything that can block an ask.
pub(super) fn blockers(order: Order, ask: &Ask) -> impl Iterator<Item = Blocker> {
    let front = (order == Order::Fifo).then_some(Blocker::Front);
    let scopes = ask.scopes.iter().map(|&scope| Blocker::Scope(scope));
    let cells = ask.terms.iter().map(|term| Blocker::Cell(term.cell));
    let cells = cells.filter(move |_| order == Order::Priority);
    front.into_iter().chain(scopes).chain(cells)
}

/// Where an ask waits that only a returned permit can serve in time.
fn release_blockers(order: Order, ask: &Ask) -> impl Iterator<Item = Blocker> {
    let terms = ask.terms.iter().filter(move |_| order == Order::Priority);
    terms.map(|term| Blocker::Release(term.cell))
}

pub(super) fn needs(order: Order, ask: &Ask, blocker: Blocker) -> bool {
    blockers(order, ask).any(|asked| asked == blocker)
}

/// What an ask needs of a blocker, including the reserve it may not use; every ask needs the same
/// of a scope.
pub(super) fn need_at(ask: &Ask, blocker: Blocker) -> u64 {
    match blocker {
        Blocker::Cell(cell) | Blocker::Release(cell) => {
            let terms = ask.terms.iter().filter(|term| term.cell == cell);
            let needs = terms.map(|term| term.cost.saturating_add(term.reserve_for(ask.priority)));
            needs.max().unwrap_or(0)
        }
        Blocker::Scope(_) | Blocker::OffPeak | Blocker::Front => 0,
    }
}
