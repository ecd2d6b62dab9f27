//! Applies the ledger's verdicts to the waiters.
//!
//! Promises: each offered waiter goes, waits in the queue of its blocker, or is rejected. A permit
//! for a waiter that has left is returned. A rejection of an ask that does not wait applies only to
//! asks that need at least as much; the others are offered again.
//!
//! Never: applies a verdict that is older than an event.

use std::collections::BTreeMap;

use crate::ask::{
    Ask, BlockedBy, CellId, Marks, Outcome, PermitId, Priority, Settle, Verdict, WakeOn,
};
use crate::gate::block::{Block, Closed};
use crate::gate::position::need_at;
use crate::gate::{BATCH_MAX, Blocker, Gate, MissedEvents, Order, Position, Resolution};
use crate::time::{Micros, Now, Span};

/// Closed queues without waiters that are stored, so that the gate rejects a flood of calls that do
/// not wait and the ledger is not asked. 1 024 are 256 KiB.
const IDLE_BLOCKS_MAX: usize = 1_024;

/// How long a call that asks now or never is offered again if the ledger has not decided it: enough for a hundred
/// transactions, and for a slow disk; then it is told that its time is over.
const ASK_AGAIN_MAX: Span = Span::from_secs(1);

/// The first rejection of a batch at one blocker; asks behind it were rejected because of it.
#[derive(Clone, Copy, Debug)]
struct FirstRejection {
    need: u64,
    waits: bool,
}

/// One verdict of `Wait`.
#[derive(Clone, Copy, Debug)]
struct WaitVerdict {
    after: Span,
    on: WakeOn,
    by: BlockedBy,
}

impl WaitVerdict {
    /// The limit has room, but one transaction grants only some permits of a long limit; or the permit came too late
    /// from the disk.
    fn is_ask_again(self) -> bool {
        self.after == Span::ZERO && self.on == WakeOn::Time
    }
}

impl Gate {
    /// The ledger has decided the offer; verdicts come in its order. An ask without a verdict is
    /// offered again.
    pub fn verdicts(&mut self, verdicts: Vec<(PermitId, Verdict)>, now: Now) {
        let mut firsts = BTreeMap::new();
        for (id, verdict) in verdicts {
            let Some(offered) = self.offered.remove(&id) else {
                continue;
            };
            self.callers
                .offer_decided(offered.caller, &offered.ask.terms);
            match verdict {
                Verdict::Go { marks } if self.waiting.contains_key(&id) => self.go(id, marks),
                Verdict::Go { .. } => self.return_permit(offered.ask),
                Verdict::Never(why) => {
                    self.resolve(id, Resolution::Never(why));
                }
                Verdict::Wait { after, on, by } => {
                    let wait = WaitVerdict { after, on, by };
                    self.on_wait(&offered.ask, wait, now.at, &mut firsts);
                }
            }
        }
        self.undecided(now.at);
        self.adapt_batches(&firsts);
        self.catch_up(&firsts);
        self.drop_idle_blocks();
    }

    fn go(&mut self, id: PermitId, marks: Marks) {
        if let Some(entry) = self.waiting.get(&id) {
            self.callers.served(entry.caller, &entry.ask.terms);
        }
        self.resolve(id, Resolution::Go { marks });
    }

    /// A permit for a waiter that has left: it is returned and is free for the next waiter.
    fn return_permit(&mut self, ask: Ask) {
        self.effects.settle.push(Settle::Permit {
            id: ask.id,
            terms: ask.terms,
            scopes: ask.scopes,
            outcome: Outcome::Unsent,
        });
    }

    /// A verdict of `Wait`: the waiter joins the queue of its blocker, unless the wait is known to
    /// be too long.
    fn on_wait(
        &mut self,
        ask: &Ask,
        wait: WaitVerdict,
        now: Micros,
        firsts: &mut BTreeMap<Blocker, FirstRejection>,
    ) {
        let order = self.settings.order;
        let Some(named) = named_blocker(ask, wait.by) else {
            // No such term: treated as no verdict.
            return self.undecided_one(ask.id, now);
        };
        if wait.is_ask_again() && self.asks_now_or_never(ask.id) {
            return self.undecided_one(ask.id, now);
        }
        let blocker = in_order(order, named);
        let need = need_at(ask, blocker);
        let first = firsts.get(&blocker).copied();
        let level = match order {
            Order::Priority => ask.priority,
            Order::Fifo => Priority::High,
        };
        let mut closed = Closed::new(now + wait.after, wait.on, level, need);
        // Asks behind the first one were rejected because of it. If it left, that applies only to
        // asks that need at least as much.
        let bound = first
            .is_none_or(|first| first.waits || (order == Order::Priority && need >= first.need));
        let entry = self.waiting.get(&ask.id);
        let is_gone = entry.is_none();
        let may_wait =
            entry.is_some_and(|entry| !bound || entry.deadline >= closed.reject_before(now));
        let has_room = self.has_room_for(ask.id);
        let waits = may_wait && has_room;
        if let (Some(cell), Some(entry)) = (released_cell(order, named, wait.on), entry)
            && waits
            && first.is_none_or(|first| need >= first.need)
        {
            // It holds nothing back: what there is may be used up to its deadline by those who need less.
            closed.deadline = entry.deadline;
            let first = FirstRejection { need, waits: false };
            firsts.entry(blocker).or_insert(first);
            self.link(ask.id, Position::Queued(Blocker::Release(cell)));
            self.take_place(ask.id);
            return self.close(Blocker::Release(cell), closed, true, now);
        }
        firsts
            .entry(blocker)
            .or_insert(FirstRejection { need, waits });
        if waits {
            let has_room = wait.is_ask_again();
            self.note_room(blocker, has_room);
            if let Some(entry) = self.waiting.get_mut(&ask.id).filter(|_| !has_room) {
                entry.waited_for = Some(named);
            }
            self.link(ask.id, Position::Queued(blocker));
            self.take_place(ask.id);
        } else if may_wait {
            self.resolve(ask.id, Resolution::Full);
        } else {
            let block = self
                .blocks
                .get(&blocker)
                .filter(|_| !bound || first.is_some());
            let retry_at = block.map_or(closed.until, |block| block.retry_at(closed, need));
            let retry_in = retry_at.since(now);
            self.resolve(ask.id, Resolution::Rejected { blocker, retry_in });
        }
        // A rejection of a waiter that leaves is recorded only if the waiter was rejected for its
        // own cost. In FIFO order it is never recorded, because waiters at the front need different
        // things.
        let proves = first.is_none() && order == Order::Priority;
        if (waits && bound) || (!waits && proves) {
            self.close(blocker, closed, waits, now);
        }
        // The ledger takes it for a waiter that will ask again.
        if is_gone || (may_wait && !has_room) {
            self.note_abandoned(blocker, ask);
        }
    }

    /// Offered asks without a verdict become ready again.
    fn undecided(&mut self, now: Micros) {
        for (id, offered) in std::mem::take(&mut self.offered) {
            self.callers
                .offer_decided(offered.caller, &offered.ask.terms);
            self.undecided_one(id, now);
        }
    }

    /// It becomes ready again. One that asks now or never has had no verdict yet, and is offered again although its
    /// deadline has passed.
    fn undecided_one(&mut self, id: PermitId, now: Micros) {
        let Some(entry) = self.waiting.get_mut(&id) else {
            return;
        };
        let asks_again = entry.awaits_verdict && now.since(entry.deadline) < ASK_AGAIN_MAX;
        if entry.deadline < now && !asks_again {
            return self.time_out(id, None);
        }
        entry.was_offered &= !asks_again;
        self.link(id, Position::Ready);
    }

    fn asks_now_or_never(&self, id: PermitId) -> bool {
        let entry = self.waiting.get(&id);
        entry.is_some_and(|entry| entry.awaits_verdict)
    }

    /// A blocker that granted every ask gets twice as many next time.
    fn adapt_batches(&mut self, firsts: &BTreeMap<Blocker, FirstRejection>) {
        let first = self.batch_first();
        for (blocker, count) in std::mem::take(&mut self.offered_to_blocker) {
            if let Some(block) = self.blocks.get_mut(&blocker) {
                block.batch = if firsts.contains_key(&blocker) {
                    first
                } else {
                    (count * 2).clamp(first, BATCH_MAX)
                };
            }
        }
    }

    /// How many asks a queue offers when it opens.
    pub(super) fn batch_first(&self) -> usize {
        self.settings.batch_first.clamp(1, BATCH_MAX)
    }

    /// Opens blockers that the verdicts closed wrongly: those that changed since, and those whose
    /// first rejected waiter left while the next one needs less.
    fn catch_up(&mut self, firsts: &BTreeMap<Blocker, FirstRejection>) {
        let MissedEvents {
            everything,
            blockers,
        } = std::mem::take(&mut self.missed);
        if everything {
            self.open_all();
        }
        for blocker in blockers {
            self.open_changed(blocker);
        }
        for (&blocker, first) in firsts.iter().filter(|(_, first)| !first.waits) {
            if self.next_may_go(blocker, first.need) {
                self.open(blocker);
            }
        }
    }

    /// Queues without waiters are dropped when they are open, or when there are too many.
    fn drop_idle_blocks(&mut self) {
        let too_many = self.blocks.len() > self.waiting.len() + IDLE_BLOCKS_MAX;
        let dropped = |block: &Block| block.is_idle() || (too_many && block.queue.is_empty());
        let wakes = &mut self.wakes;
        self.blocks.retain(|&blocker, block| {
            if !dropped(block) {
                return true;
            }
            if let Some(wake) = block.wake() {
                wakes.remove(&(wake, blocker));
            }
            false
        });
    }
}

/// The limit of an ask that only a returned permit can serve in time. In FIFO order nobody may pass it.
fn released_cell(order: Order, named: Blocker, on: WakeOn) -> Option<CellId> {
    match (order, named, on) {
        (Order::Priority, Blocker::Cell(cell), WakeOn::Release) => Some(cell),
        _ => None,
    }
}

/// What waiters queue for. In FIFO order a limit blocks everybody, and a scope only those who need it: calls
/// to a closed path do not hold up the others.
fn in_order(order: Order, named: Blocker) -> Blocker {
    match (order, named) {
        (Order::Fifo, Blocker::Cell(_) | Blocker::Front) => Blocker::Front,
        (Order::Fifo | Order::Priority, named) => named,
    }
}

/// The blocker that the verdict names.
fn named_blocker(ask: &Ask, by: BlockedBy) -> Option<Blocker> {
    Some(match by {
        BlockedBy::Term(index) => Blocker::Cell(ask.terms.get(index)?.cell),
        BlockedBy::Scope(index) => Blocker::Scope(*ask.scopes.get(index)?),
    })
}
