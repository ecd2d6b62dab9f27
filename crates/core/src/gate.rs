//! Who waits, and who goes next. Sans-IO: what to do goes out as [`Effects`].
//!
//! One gate per provider. A waiter that was refused stands in the line of the cell or scope that
//! refused it; while that place is closed, nobody who is not more urgent is even offered, so order
//! holds and a refusal costs one ask, not one per waiter. Places that did not refuse go on.
//!
//! Promises: priority first, arrival order inside it, fair between callers, and what a caller was
//! promised (`at_least`) even under a flood of urgent calls. A call that cannot make its deadline
//! is refused at once. A waiter that leaves is unlinked at once, and a permit granted to one that
//! has left comes back unsent. One timer, never one per waiter, and never polling. Bounded.
//!
//! Never: counts permits, reads a clock, or wakes anybody itself.

mod waiter;
pub use waiter::{Effects, Order, Place, Resolution, Resolved, Settings, WAITING_MAX, Waiter};
mod seat;
mod line;
mod block;
mod off_peak;
pub use off_peak::{OffPeak, OffPeakError};
mod share;
pub use share::{CALLERS_MAX, CallerId, Share};
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::ask::{
    Ask, By, CellId, Marks, On, Outcome, PermitId, Priority, ScopeId, Settle, Verdict,
};
use crate::time::{Micros, Now, Span};

use block::Block;
use line::{Key, Line, Rank};
use share::Shares;

/// The most asks in one offer. A transaction of 64 costs hardly more than one of 1 (14 against
/// 12 µs measured on SQLite), and larger ones would hold the lock against other processes.
pub const BATCH_MAX: usize = 64;

/// How many a line offers when it opens. Two, because the second one's refusal says when to come
/// back; it doubles while all are granted.
const BATCH_FIRST: usize = 2;

/// The calls that wait for one provider.
#[derive(Debug)]
pub struct Gate {
    settings: Settings,
    waiting: BTreeMap<PermitId, Entry>,
    ready: Line,
    blocks: BTreeMap<Place, Block>,
    /// The batch that the ledger has now, whether or not those who asked still wait.
    offered: BTreeMap<PermitId, Ask>,
    offered_from: BTreeMap<Place, usize>,
    deadlines: BTreeSet<(Micros, PermitId)>,
    wakes: BTreeSet<(Micros, Place)>,
    shares: Shares,
    arrivals: u64,
    effects: Effects,
}

#[derive(Debug)]
struct Entry {
    ask: Ask,
    /// The order under which it came; its rank must not change when settings do.
    order: Order,
    caller: CallerId,
    deadline: Micros,
    arrival: u64,
    seat: Seat,
    asked: bool,
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Ready,
    Line(Place),
    Offered,
}

impl Gate {
    /// An empty gate.
    #[must_use]
    pub fn new(settings: Settings) -> Gate {
        Gate {
            settings,
            waiting: BTreeMap::new(),
            ready: Line::default(),
            blocks: BTreeMap::new(),
            offered: BTreeMap::new(),
            offered_from: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            wakes: BTreeSet::new(),
            shares: Shares::default(),
            arrivals: 0,
            effects: Effects::default(),
        }
    }

    /// Changes how it works from now on. Those who wait keep their places.
    pub fn configure(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// What a caller is promised and allowed.
    pub fn set_share(&mut self, caller: CallerId, share: Share) {
        self.shares.set(caller, share);
    }

    /// How many wait, at this priority.
    #[must_use]
    pub fn waiting(&self, priority: Priority) -> usize {
        self.waiting
            .values()
            .filter(|entry| entry.ask.priority == priority)
            .count()
    }

    /// A call wants a permit.
    pub fn push(&mut self, waiter: Waiter, now: Now) {
        let Waiter {
            mut ask,
            caller,
            deadline,
            seniority,
        } = waiter;
        ask.priority = ask.priority.min(self.shares.highest(caller));
        let arrival = seniority.unwrap_or(self.arrivals);
        self.arrivals = self.arrivals.max(arrival) + 1;
        if self.waiting.len() >= self.settings.waiting_max {
            self.effects.resolve.push(Resolved {
                ask,
                seniority: arrival,
                resolution: Resolution::Full,
            });
            return;
        }
        let id = ask.id;
        let order = self.settings.order;
        let entry = Entry {
            ask,
            order,
            caller,
            deadline,
            arrival,
            seat: Seat::Ready,
            asked: false,
        };
        self.shares.arrived(caller);
        self.deadlines.insert((deadline, id));
        self.waiting.insert(id, entry);
        self.seat(id, now);
    }

    /// The call is no longer wanted. If the ledger has it, its permit comes back unsent.
    pub fn cancel(&mut self, id: PermitId) {
        self.leave(id);
    }

    /// Somebody more urgent, or more patient, joined this call.
    pub fn promote(&mut self, id: PermitId, priority: Priority, deadline: Micros, now: Now) {
        let Some(entry) = self.waiting.get(&id) else {
            return;
        };
        let (old, seat) = (entry.deadline, entry.seat);
        self.unlink(id, seat);
        let Some(entry) = self.waiting.get_mut(&id) else {
            return;
        };
        entry.ask.priority = entry
            .ask
            .priority
            .max(priority.min(self.shares.highest(entry.caller)));
        entry.deadline = entry.deadline.max(deadline);
        let deadline = entry.deadline;
        if self.deadlines.remove(&(old, id)) || deadline > now.at {
            self.deadlines.insert((deadline, id));
        }
        if seat != Seat::Offered {
            self.seat(id, now);
        }
    }

    /// The ledger says that these cells have come free earlier than their time.
    pub fn freed(&mut self, cells: &[CellId]) {
        for &cell in cells {
            self.open(Place::Cell(cell));
        }
        self.open(Place::Front);
    }

    /// The ledger says that these scopes have changed.
    pub fn scopes_changed(&mut self, scopes: &[ScopeId]) {
        for &scope in scopes {
            self.open(Place::Scope(scope));
        }
        self.open(Place::Front);
    }

    /// Everything may have changed: the ledger was away, or its events were too many to follow.
    pub fn anything_changed(&mut self) {
        let places: Vec<Place> = self.blocks.keys().copied().collect();
        for place in places {
            self.open(place);
        }
    }

    /// The ledger has answered the offer, verdict by verdict in its order.
    pub fn verdicts(&mut self, verdicts: Vec<(PermitId, Verdict)>, now: Now) {
        let mut refused = BTreeSet::new();
        for (id, verdict) in verdicts {
            match verdict {
                Verdict::Go { marks } if self.waiting.contains_key(&id) => self.go(id, marks),
                Verdict::Go { .. } => self.unsent(id),
                Verdict::Never(why) => self.resolve(id, Resolution::Never(why)),
                Verdict::Wait { after, on, by } => {
                    if let Some(place) = self.refused(id, after, on, by, now) {
                        refused.insert(place);
                    }
                }
            }
        }
        for (place, count) in std::mem::take(&mut self.offered_from) {
            if let Some(block) = self.blocks.get_mut(&place) {
                block.batch = if refused.contains(&place) {
                    BATCH_FIRST
                } else {
                    (count * 2).clamp(BATCH_FIRST, BATCH_MAX)
                };
            }
        }
        self.offered.clear();
        self.drop_empty_blocks();
    }

    /// Time has passed or something was said: what is to be done now?
    pub fn tick(&mut self, now: Now) -> Effects {
        while let Some(&(at, place)) = self.wakes.first() {
            if at > now.at {
                break;
            }
            self.open(place);
        }
        self.expire(now.at);
        if self.offered.is_empty() {
            self.fill_offer(now);
        }
        let timers = [
            self.wakes.first().map(|wake| wake.0),
            self.deadlines.first().map(|due| due.0),
        ];
        self.effects.arm = timers.into_iter().flatten().min();
        std::mem::take(&mut self.effects)
    }

    /// Takes the best waiters of all open lines, in order, until the batch is full.
    fn fill_offer(&mut self, now: Now) {
        while self.effects.offer.len() < BATCH_MAX {
            let Some((_, rank, source)) = self.best() else {
                break;
            };
            let id = rank.id;
            if let Some(place) = self.closed_for(id, now) {
                self.unlink(id, source);
                self.park(id, place, now.at);
                continue;
            }
            self.unlink(id, source);
            if let Seat::Line(place) = source {
                *self.offered_from.entry(place).or_insert(0) += 1;
            }
            let Some(entry) = self.waiting.get_mut(&id) else {
                continue;
            };
            entry.seat = Seat::Offered;
            entry.asked = true;
            self.effects.offer.push(entry.ask.clone());
            self.offered.insert(id, entry.ask.clone());
        }
    }

    /// The first in order among the ready and the open lines that may still offer.
    fn best(&self) -> Option<(Key, Rank, Seat)> {
        let ready = self
            .ready
            .best(&self.shares)
            .map(|(key, rank)| (key, rank, Seat::Ready));
        let open = self
            .blocks
            .iter()
            .filter(|(_, block)| block.is_open())
            .filter_map(|(&place, block)| {
                let used = self.offered_from.get(&place).copied().unwrap_or(0);
                let (key, rank) = block
                    .line
                    .best(&self.shares)
                    .filter(|_| used < block.batch)?;
                Some((key, rank, Seat::Line(place)))
            });
        ready.into_iter().chain(open).min_by_key(|(key, _, _)| *key)
    }

    fn go(&mut self, id: PermitId, marks: Marks) {
        if let Some(entry) = self.waiting.get(&id) {
            self.shares.served(entry.caller, &entry.ask.terms);
        }
        self.resolve(id, Resolution::Go { marks });
    }

    /// A verdict of `Wait`: back into the line of whoever refused. Returns that place.
    fn refused(&mut self, id: PermitId, after: Span, on: On, by: By, now: Now) -> Option<Place> {
        let entry = self.waiting.get(&id)?;
        let place = match (self.settings.order, by) {
            (Order::Fifo, _) => Place::Front,
            (Order::Priority, By::Term(index)) => Place::Cell(entry.ask.terms.get(index)?.cell),
            (Order::Priority, By::Scope(index)) => Place::Scope(*entry.ask.scopes.get(index)?),
        };
        let (deadline, priority) = (entry.deadline, entry.ask.priority);
        let until = now.at + after;
        self.close(place, after, on, priority, now.at);
        if deadline <= now.at || (on == On::Time && until > deadline) {
            self.resolve(
                id,
                Resolution::Refused {
                    place,
                    retry_in: after,
                },
            );
        } else {
            self.link(id, Seat::Line(place));
        }
        Some(place)
    }

    /// Resolves those whose time ran out. One that was never asked gets its one chance first.
    fn expire(&mut self, now: Micros) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.remove(&(deadline, id));
            let Some(entry) = self.waiting.get(&id) else {
                continue;
            };
            let place = match entry.seat {
                Seat::Line(place) => Some(place),
                Seat::Ready if entry.asked => None,
                Seat::Ready | Seat::Offered => continue,
            };
            self.resolve(id, Resolution::TimedOut { place });
        }
    }

    fn resolve(&mut self, id: PermitId, resolution: Resolution) {
        if let Some(Entry { ask, arrival, .. }) = self.leave(id) {
            self.effects.resolve.push(Resolved {
                ask,
                seniority: arrival,
                resolution,
            });
        }
    }

    /// A permit for somebody who has left: it goes back, and with it to the next in line.
    fn unsent(&mut self, id: PermitId) {
        if let Some(Ask { terms, scopes, .. }) = self.offered.remove(&id) {
            self.effects.settle.push(Settle::Permit {
                id,
                terms,
                scopes,
                outcome: Outcome::Unsent,
            });
        }
    }

    /// An open line in which nobody stands is forgotten.
    fn drop_empty_blocks(&mut self) {
        self.blocks
            .retain(|_, block| !(block.is_open() && block.line.is_empty()));
    }
}
