//! A cell or scope that refused somebody, and the line of those who wait for it.
//!
//! Promises: closed for everybody who is not more urgent than the most urgent one refused; opened
//! by its time or by an event, whichever is first.
//!
//! Never: holds a waiter whose deadline is known to pass before it opens.

use std::collections::BTreeSet;

use crate::ask::{On, PermitId, Priority};
use crate::gate::line::{Line, Rank};
use crate::time::Micros;

/// One place and its line.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) line: Line,
    /// How many of the line the next offer may hold.
    pub(super) batch: usize,
    deadlines: BTreeSet<(Micros, PermitId)>,
    closed: Option<Closed>,
}

#[derive(Clone, Copy, Debug)]
struct Closed {
    /// Opens by itself then.
    until: Micros,
    /// No event can open it earlier than `until`.
    known: bool,
    /// The most urgent one it has refused.
    level: Priority,
}

impl Block {
    pub(super) fn new(batch: usize) -> Block {
        Block {
            line: Line::default(),
            batch,
            deadlines: BTreeSet::new(),
            closed: None,
        }
    }

    pub(super) fn add(&mut self, rank: Rank, deadline: Micros) {
        self.deadlines.insert((deadline, rank.id));
        self.line.add(rank);
    }

    pub(super) fn remove(&mut self, rank: Rank, deadline: Micros) {
        self.deadlines.remove(&(deadline, rank.id));
        self.line.remove(rank);
    }

    pub(super) fn is_open(&self) -> bool {
        self.closed.is_none()
    }

    pub(super) fn blocks(&self, priority: Priority) -> bool {
        self.closed.is_some_and(|closed| priority <= closed.level)
    }

    /// Refused again, perhaps to somebody else: the earliest end counts, and the most urgent level.
    pub(super) fn close(&mut self, until: Micros, on: On, level: Priority) {
        let known = on == On::Time;
        let closed = self.closed.get_or_insert(Closed {
            until,
            known,
            level,
        });
        closed.until = closed.until.min(until);
        closed.known &= known;
        closed.level = closed.level.max(level);
    }

    pub(super) fn open(&mut self) {
        self.closed = None;
    }

    /// When it opens by itself; never if that is beyond all time.
    pub(super) fn wake(&self) -> Option<Micros> {
        self.closed
            .map(|closed| closed.until)
            .filter(|&until| until < Micros(u64::MAX))
    }

    /// When it opens, if nothing can open it earlier.
    pub(super) fn known_until(&self) -> Option<Micros> {
        self.closed
            .filter(|closed| closed.known)
            .map(|closed| closed.until)
    }

    /// Those in line whose deadline passes before `until`.
    pub(super) fn hopeless(&self, until: Micros) -> Vec<PermitId> {
        let before = (until, PermitId::default());
        self.deadlines.range(..before).map(|(_, id)| *id).collect()
    }
}
