//! A cell or scope that rejected an ask, and the queue of its waiters.
//!
//! Promises: closed for every waiter that is not more urgent than the most urgent rejected waiter
//! in the queue. If the rejected waiter has left, closed only for asks that need at least as much.
//! Opens at its time or by an event, whichever is first.
//!
//! Never: holds a waiter whose deadline is known to pass before it opens.

use std::collections::BTreeSet;

use crate::ask::{PermitId, Priority, WakeOn};
use crate::gate::Order;
use crate::gate::callers::CallerAccounts;
use crate::gate::queue::{QueueKey, Rank, WaitQueue};
use crate::time::Micros;

/// One blocker and its queue.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) queue: WaitQueue,
    /// How many asks of the next offer this blocker may get.
    pub(super) batch: usize,
    deadlines: BTreeSet<(Micros, PermitId)>,
    /// A rejection of a waiter in the queue: nobody passes.
    held: Option<Closed>,
    /// What the least of the waiters that it holds for needs.
    held_need: u64,
    /// A rejection of a waiter that has left.
    departed: Option<Closed>,
    /// It has room: the ledger only grants some permits at a time, and wants to be asked again.
    pub(super) has_room: bool,
}

/// A rejection, and which other asks it applies to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    /// Opens by itself then.
    pub(super) until: Micros,
    /// No event can open it earlier than `until`.
    pub(super) known: bool,
    /// It does not apply to more urgent asks.
    pub(super) level: Priority,
    /// It does not apply to asks that need less.
    pub(super) need: u64,
    /// It does not apply to asks whose deadline is later.
    pub(super) deadline: Micros,
}

impl Closed {
    pub(super) fn new(until: Micros, on: WakeOn, level: Priority, need: u64) -> Closed {
        Closed {
            until,
            known: on == WakeOn::Time,
            level,
            need,
            deadline: Micros(u64::MAX),
        }
    }

    pub(super) fn blocks(&self, priority: Priority, need: u64, deadline: Micros) -> bool {
        priority <= self.level && need >= self.need && deadline <= self.deadline
    }

    /// An ask to which it applies is rejected if its deadline is before this.
    pub(super) fn reject_before(&self, now: Micros) -> Micros {
        if self.known {
            self.until
        } else {
            Micros(now.0.saturating_add(1))
        }
    }
}

impl Block {
    pub(super) fn new(batch: usize) -> Block {
        Block {
            queue: WaitQueue::default(),
            batch,
            deadlines: BTreeSet::new(),
            held: None,
            held_need: 0,
            departed: None,
            has_room: false,
        }
    }

    pub(super) fn add(&mut self, rank: Rank, deadline: Micros) {
        self.deadlines.insert((deadline, rank.id));
        self.queue.add(rank);
    }

    pub(super) fn remove(&mut self, rank: Rank, deadline: Micros) {
        self.deadlines.remove(&(deadline, rank.id));
        self.queue.remove(rank);
    }

    pub(super) fn is_open(&self) -> bool {
        self.held.is_none() && self.departed.is_none()
    }

    /// No waiters, and not closed.
    pub(super) fn is_idle(&self) -> bool {
        self.is_open() && self.queue.is_empty()
    }

    /// The rejection that applies to this ask; of two, the one that ends last.
    pub(super) fn closed_for(
        &self,
        priority: Priority,
        need: u64,
        deadline: Micros,
    ) -> Option<Closed> {
        let rejections = [self.held, self.departed].into_iter().flatten();
        rejections
            .filter(|closed| closed.blocks(priority, need, deadline))
            .max_by_key(|closed| (closed.known, closed.until))
    }

    /// Records a rejection of a waiter that stays. With earlier rejections, the earliest end and
    /// the highest priority count.
    pub(super) fn hold(&mut self, closed: Closed) {
        self.held_need = match self.held {
            Some(_) => self.held_need.min(closed.need),
            None => closed.need,
        };
        let held = self.held.get_or_insert(closed);
        held.until = held.until.min(closed.until);
        held.known &= closed.known;
        held.level = held.level.max(closed.level);
        held.need = 0;
    }

    /// Records a rejection of a waiter that only a returned permit can serve in time. Whoever needs as
    /// much and has no more time is in the same position; of two such rejections the one that says
    /// so of more asks counts.
    pub(super) fn hold_for_release(&mut self, closed: Closed) {
        let held = self.held.get_or_insert(closed);
        held.until = held.until.min(closed.until);
        held.level = held.level.max(closed.level);
        if closed.need <= held.need && closed.deadline >= held.deadline {
            (held.need, held.deadline) = (closed.need, closed.deadline);
        }
    }

    /// When an ask that this rejection applies to may come back. One that needs less than those that
    /// wait need not wait longer than they do.
    pub(super) fn retry_at(&self, closed: Closed, need: u64) -> Micros {
        let is_behind = self.held.is_some() && need < self.held_need;
        let last = self.deadlines.last().map(|(deadline, _)| *deadline);
        let last = last.filter(|_| is_behind && self.departed.is_none());
        last.map_or(closed.until, |last| closed.until.min(last))
    }

    /// A waiter may have left: the queue stays closed only for the waiters in it.
    pub(super) fn relax(&mut self, order: Order) {
        match (self.queue.most_urgent(), &mut self.held) {
            (None, held) => *held = None,
            (Some(level), Some(held)) if order == Order::Priority => {
                held.level = held.level.min(level);
            }
            (Some(_), _) => {}
        }
    }

    /// Records a rejection of a waiter that left. The newest one counts.
    pub(super) fn note_departed(&mut self, closed: Closed) {
        self.departed = Some(closed);
    }

    pub(super) fn open(&mut self) {
        self.held = None;
        self.departed = None;
    }

    /// When it opens by itself; `None` if never.
    pub(super) fn wake(&self) -> Option<Micros> {
        let rejections = [self.held, self.departed].into_iter().flatten();
        let until = rejections.map(|closed| closed.until).min();
        until.filter(|&until| until < Micros(u64::MAX))
    }

    /// While closed: only waiters more urgent than this may go.
    pub(super) fn level(&self) -> Option<Priority> {
        let rejections = [self.held, self.departed].into_iter().flatten();
        rejections.map(|closed| closed.level).max()
    }

    /// The next waiter that may go: while closed, only a more urgent one.
    pub(super) fn best(&self, callers: &CallerAccounts) -> Option<(QueueKey, Rank)> {
        self.queue.best(callers, self.level())
    }

    /// Queued waiters whose deadline is before `bound`.
    pub(super) fn due_before(&self, bound: Micros) -> Vec<PermitId> {
        let before = (bound, PermitId::default());
        self.deadlines.range(..before).map(|(_, id)| *id).collect()
    }
}
