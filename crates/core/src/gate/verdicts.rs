//! What the ledger's verdicts mean for those who wait.
//!
//! Promises: each offered waiter goes, waits in the line of whoever refused it, or is told no. A
//! permit for somebody who has left goes back. The word of one who was refused and does not wait
//! binds only those who need as much; the others are asked for again.
//!
//! Never: believes a verdict that is older than an event.

use std::collections::BTreeMap;

use crate::ask::{Ask, BlockedBy, Marks, Outcome, PermitId, Priority, Settle, Verdict, WakeOn};
use crate::gate::block::{Block, Closed};
use crate::gate::position::need_at;
use crate::gate::{
    BATCH_FIRST, BATCH_MAX, Blocker, Gate, MissedEvents, Order, Position, Resolution,
};
use crate::time::{Micros, Now, Span};

/// Lines in which nobody stands that are remembered for the time they are closed, so that a flood
/// of calls that do not wait is refused here and not by the ledger. 1 024 are 256 KiB.
const IDLE_BLOCKS_MAX: usize = 1_024;

/// The first refusal of a batch at one place; those behind it were refused because of it.
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

impl Gate {
    /// The ledger has answered the offer, verdict by verdict in its order. An ask without a verdict
    /// was not decided, and is asked again.
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

    /// A permit for somebody who has left: it goes back, and with it to the next in line.
    fn return_permit(&mut self, ask: Ask) {
        self.effects.settle.push(Settle::Permit {
            id: ask.id,
            terms: ask.terms,
            scopes: ask.scopes,
            outcome: Outcome::Unsent,
        });
    }

    /// A verdict of `Wait`: into the line of whoever refused, unless that is known to be too long.
    fn on_wait(
        &mut self,
        ask: &Ask,
        wait: WaitVerdict,
        now: Micros,
        firsts: &mut BTreeMap<Blocker, FirstRejection>,
    ) {
        let order = self.settings.order;
        let Some(place) = blocker_of(order, ask, wait.by) else {
            // No such term: as good as no verdict.
            return self.undecided_one(ask.id, now);
        };
        let need = need_at(ask, place);
        let level = match order {
            Order::Priority => ask.priority,
            Order::Fifo => Priority::High,
        };
        let closed = Closed::new(now + wait.after, wait.on, level, need);
        // Those behind the first one were refused because of it. If it left, that binds only
        // those who need as much.
        let first = firsts.get(&place).copied();
        let bound = first
            .is_none_or(|first| first.waits || (order == Order::Priority && need >= first.need));
        let entry = self.waiting.get(&ask.id);
        let is_gone = entry.is_none();
        let stays =
            entry.is_some_and(|entry| !bound || entry.deadline >= closed.reject_before(now));
        firsts
            .entry(place)
            .or_insert(FirstRejection { need, waits: stays });
        if stays {
            self.link(ask.id, Position::Queued(place));
        } else {
            let retry_in = wait.after;
            self.resolve(
                ask.id,
                Resolution::Rejected {
                    blocker: place,
                    retry_in,
                },
            );
        }
        // Who leaves proves something only if it was refused for its own sake, and at the front,
        // where everybody wants something else, not even then.
        let proves = first.is_none() && order == Order::Priority;
        if (stays && bound) || (!stays && proves) {
            self.close(place, closed, stays, now);
        }
        if is_gone {
            self.note_abandoned(place, ask);
        }
    }

    /// What was offered and not answered goes back among the ready.
    fn undecided(&mut self, now: Micros) {
        for (id, offered) in std::mem::take(&mut self.offered) {
            self.callers
                .offer_decided(offered.caller, &offered.ask.terms);
            self.undecided_one(id, now);
        }
    }

    fn undecided_one(&mut self, id: PermitId, now: Micros) {
        match self.waiting.get(&id).map(|entry| entry.deadline < now) {
            Some(true) => self.time_out(id, None),
            Some(false) => self.link(id, Position::Ready),
            None => {}
        }
    }

    /// A place that granted all that it was asked for is asked for twice as much.
    fn adapt_batches(&mut self, firsts: &BTreeMap<Blocker, FirstRejection>) {
        for (place, count) in std::mem::take(&mut self.offered_to_blocker) {
            if let Some(block) = self.blocks.get_mut(&place) {
                block.batch = if firsts.contains_key(&place) {
                    BATCH_FIRST
                } else {
                    (count * 2).clamp(BATCH_FIRST, BATCH_MAX)
                };
            }
        }
    }

    /// Opens what the verdicts closed wrongly: places that changed since, and places whose first
    /// refused one left while somebody who needs less stands there now.
    fn catch_up(&mut self, firsts: &BTreeMap<Blocker, FirstRejection>) {
        let MissedEvents {
            everything,
            blockers: places,
        } = std::mem::take(&mut self.missed);
        if everything {
            self.open_all();
        }
        for place in places {
            self.open(place);
        }
        for (&place, first) in firsts.iter().filter(|(_, first)| !first.waits) {
            if self.next_may_go(place, first.need) {
                self.open(place);
            }
        }
    }

    /// Lines in which nobody stands are forgotten once they are open, or are too many.
    fn drop_idle_blocks(&mut self) {
        let too_many = self.blocks.len() > self.waiting.len() + IDLE_BLOCKS_MAX;
        let dropped = |block: &Block| block.is_idle() || (too_many && block.queue.is_empty());
        let wakes = &mut self.wakes;
        self.blocks.retain(|&place, block| {
            if !dropped(block) {
                return true;
            }
            if let Some(wake) = block.wake() {
                wakes.remove(&(wake, place));
            }
            false
        });
    }
}

/// Who refused.
fn blocker_of(order: Order, ask: &Ask, by: BlockedBy) -> Option<Blocker> {
    let place = match by {
        BlockedBy::Term(index) => Blocker::Cell(ask.terms.get(index)?.cell),
        BlockedBy::Scope(index) => Blocker::Scope(*ask.scopes.get(index)?),
    };
    Some(match order {
        Order::Fifo => Blocker::Front,
        Order::Priority => place,
    })
}
