//! Builds the next offer to the ledger: a batch of asks, in order.
//!
//! Promises: an offer has the first waiters of all open queues, in order, and for each blocker at
//! most as many as its batch allows. A waiter never overtakes a waiter that is queued before it at
//! the same blocker. In FIFO order a batch contains only asks with the same blockers: if the ledger
//! rejects one, it also rejects all that follow. Only waiters of a closed scope are overtaken, by
//! asks that do not need that scope.
//!
//! Never: makes a second offer while one is pending.

use crate::ask::{Ask, PermitId};
use crate::gate::position::{blockers, needs};
use crate::gate::queue::{QueueKey, Rank};
use crate::gate::{BATCH_MAX, Blocker, CallerId, Gate, NOW_OR_NEVER, Order, Position};
use crate::time::Now;

/// An ask that the ledger is deciding.
#[derive(Debug)]
pub(super) struct Offered {
    /// The ask as it was offered; its waiter may no longer wait.
    pub(super) ask: Ask,
    pub(super) caller: CallerId,
}

impl Gate {
    /// Adds the first waiters to the offer until it is full.
    pub(super) fn fill_offer(&mut self, now: Now) {
        while self.effects.offer.len() < BATCH_MAX {
            let Some((_, Rank { id, .. }, source)) = self.best() else {
                break;
            };
            if let Some(blocker) = self.closed_for(id, now) {
                self.unlink(id, source);
                self.park(id, blocker, now.at);
            } else if let Some(blocker) = self.exhausted_for(id) {
                self.unlink(id, source);
                self.link(id, Position::Queued(blocker));
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
        entry.ask.max_wait = entry.deadline.since(now.at);
        entry.awaits_verdict = !entry.was_offered && entry.ask.max_wait < NOW_OR_NEVER;
        entry.was_offered = true;
        let (ask, caller) = (entry.ask.clone(), entry.caller);
        self.callers.offered(caller, &ask.terms);
        for blocker in blockers(self.settings.order, &ask) {
            *self.offered_to_blocker.entry(blocker).or_insert(0) += 1;
        }
        self.effects.offer.push(ask.clone());
        self.offered.insert(id, Offered { ask, caller });
    }

    /// The first waiter in order, among the ready waiters and the queues of blockers whose batch is
    /// not full.
    fn best(&self) -> Option<(QueueKey, Rank, Position)> {
        let ready = self.ready.best(&self.callers, None);
        let ready = ready.map(|(key, rank)| (key, rank, Position::Ready));
        let queues = self.blocks.iter().filter_map(|(&blocker, block)| {
            if self.is_exhausted(blocker) {
                return None;
            }
            let (key, rank) = block.best(&self.callers)?;
            Some((key, rank, Position::Queued(blocker)))
        });
        ready
            .into_iter()
            .chain(queues)
            .min_by_key(|(key, _, _)| *key)
    }

    /// Whether the offer already has as many asks for this blocker as its batch allows.
    fn is_exhausted(&self, blocker: Blocker) -> bool {
        let used = self
            .offered_to_blocker
            .get(&blocker.named())
            .copied()
            .unwrap_or(0);
        self.blocks
            .get(&blocker)
            .is_some_and(|block| used >= block.batch)
    }

    /// A blocker of this waiter whose batch is full. The waiter must join the queue of that
    /// blocker; otherwise it would overtake the waiters there.
    fn exhausted_for(&self, id: PermitId) -> Option<Blocker> {
        let entry = self.waiting.get(&id)?;
        let mut blockers = blockers(self.settings.order, &entry.ask);
        blockers.find(|&blocker| self.is_exhausted(blocker))
    }

    /// Whether this waiter was offered before and its deadline has passed.
    fn is_too_late(&self, id: PermitId, now: Now) -> bool {
        self.waiting
            .get(&id)
            .is_some_and(|entry| entry.was_offered && entry.deadline < now.at)
    }

    /// In FIFO order: could this waiter overtake the waiter before it, if the ledger rejects that
    /// one?
    fn could_overtake(&self, id: PermitId) -> bool {
        let (Some(entry), Some(before)) = (self.waiting.get(&id), self.effects.offer.last()) else {
            return false;
        };
        self.settings.order == Order::Fifo && !shares_blockers(&entry.ask, before)
    }

    /// Must this waiter wait for a recalled waiter that is about to ask again?
    fn is_behind_recalled(&self, id: PermitId) -> bool {
        let order = self.settings.order;
        self.waiting.get(&id).is_some_and(|entry| {
            self.recalled
                .is_before(order, entry.arrival, entry.ask.priority)
        })
    }

    /// Does the pending offer include an ask with this blocker?
    pub(super) fn is_offered_to(&self, blocker: Blocker) -> bool {
        let mut offered = self.offered.values();
        offered.any(|offered| needs(self.settings.order, &offered.ask, blocker))
    }
}

/// Whether the ledger would also reject `ask` whenever it rejects `before`.
fn shares_blockers(ask: &Ask, before: &Ask) -> bool {
    let cells = |ask: &Ask| ask.terms.iter().map(|term| term.cell).collect::<Vec<_>>();
    ask.priority <= before.priority && ask.scopes == before.scopes && cells(ask) == cells(before)
}
