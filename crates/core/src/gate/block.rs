//! A cell or scope that refused somebody, and the line of those who wait for it.
//!
//! Promises: closed for everybody who is not more urgent than the most urgent one that was refused
//! and waits; after one that was refused and left, only for those who need as much as it did.
//! Opened by its time or by an event, whichever is first.
//!
//! Never: holds a waiter whose deadline is known to pass before it opens.

use std::collections::BTreeSet;

use crate::ask::{PermitId, Priority, WakeOn};
use crate::gate::Order;
use crate::gate::callers::CallerAccounts;
use crate::gate::queue::{QueueKey, Rank, WaitQueue};
use crate::time::Micros;

/// One place and its line.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) queue: WaitQueue,
    /// How many the next offer may ask this place for.
    pub(super) batch: usize,
    deadlines: BTreeSet<(Micros, PermitId)>,
    /// Refused to somebody who stands in line: nobody passes.
    held: Option<Closed>,
    /// Refused to somebody who left.
    departed: Option<Closed>,
}

/// A refusal and for whom else it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    /// Opens by itself then.
    pub(super) until: Micros,
    /// No event can open it earlier than `until`.
    pub(super) known: bool,
    /// It stands for nobody who is more urgent.
    pub(super) level: Priority,
    /// It stands for nobody who needs less.
    pub(super) need: u64,
}

impl Closed {
    pub(super) fn new(until: Micros, on: WakeOn, level: Priority, need: u64) -> Closed {
        Closed {
            until,
            known: on == WakeOn::Time,
            level,
            need,
        }
    }

    pub(super) fn blocks(&self, priority: Priority, need: u64) -> bool {
        priority <= self.level && need >= self.need
    }

    /// Whoever it stands for and whose deadline is before this has no hope.
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
            departed: None,
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

    /// Nobody stands here and nothing is known.
    pub(super) fn is_idle(&self) -> bool {
        self.is_open() && self.queue.is_empty()
    }

    /// The refusal that stands for this one, the one that ends last if there are two.
    pub(super) fn closed_for(&self, priority: Priority, need: u64) -> Option<Closed> {
        let refusals = [self.held, self.departed].into_iter().flatten();
        refusals
            .filter(|closed| closed.blocks(priority, need))
            .max_by_key(|closed| (closed.known, closed.until))
    }

    /// Refused to one who waits. If it was refused to others before, the earliest end counts and
    /// the most urgent level.
    pub(super) fn hold(&mut self, closed: Closed) {
        let held = self.held.get_or_insert(closed);
        held.until = held.until.min(closed.until);
        held.known &= closed.known;
        held.level = held.level.max(closed.level);
        held.need = 0;
    }

    /// Somebody may have left the line: it is held for those who stand in it, and no others.
    pub(super) fn relax(&mut self, order: Order) {
        match (self.queue.most_urgent(), &mut self.held) {
            (None, held) => *held = None,
            (Some(level), Some(held)) if order == Order::Priority => {
                held.level = held.level.min(level);
            }
            (Some(_), _) => {}
        }
    }

    /// Refused to one who left. The newest such refusal counts.
    pub(super) fn note_departed(&mut self, closed: Closed) {
        self.departed = Some(closed);
    }

    pub(super) fn open(&mut self) {
        self.held = None;
        self.departed = None;
    }

    /// When it opens by itself; never if that is beyond all time.
    pub(super) fn wake(&self) -> Option<Micros> {
        let refusals = [self.held, self.departed].into_iter().flatten();
        let until = refusals.map(|closed| closed.until).min();
        until.filter(|&until| until < Micros(u64::MAX))
    }

    /// While closed: nobody in line goes who is not more urgent than this.
    pub(super) fn level(&self) -> Option<Priority> {
        let refusals = [self.held, self.departed].into_iter().flatten();
        refusals.map(|closed| closed.level).max()
    }

    /// The next one who may go: while closed, only somebody more urgent.
    pub(super) fn best(&self, shares: &CallerAccounts) -> Option<(QueueKey, Rank)> {
        self.queue.best(shares, self.level())
    }

    /// Those in line whose deadline is before `bound`.
    pub(super) fn due_before(&self, bound: Micros) -> Vec<PermitId> {
        let before = (bound, PermitId::default());
        self.deadlines.range(..before).map(|(_, id)| *id).collect()
    }
}
