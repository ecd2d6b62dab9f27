//! A cell as bytes, for stores and snapshots; `image_read` is the way back.
//!
//! Instants are written as distances from a base, so an image does not depend on the clock it was
//! made on: a store of one boot uses base 0, a snapshot uses its own now and is read back with the
//! reader's now less the time that passed in between.
//!
//! Promises: what is read is what was written. A byte that was changed, lost or added is found by
//! the checksum and reported, never guessed around.
//!
//! Never: writes a format without raising [`VERSION`]; a newer one is refused, not misread.

use crate::limit::Rung;
use crate::limit::almanac::Almanac;
use crate::limit::cell::{Cell, Passed, State, Wanted};
use crate::limit::holds::{Holds, OpenSet};
use crate::limit::phase::Phase;
use crate::limit::sliding::Log;
use crate::limit::told::Told;
use crate::time::Micros;

/// The format written today.
pub(super) const VERSION: u8 = 2;

/// Bytes of checksum at the end: a damaged image passes once in four thousand million.
pub(super) const CHECKSUM: usize = 4;

/// An image that cannot be believed. Treat the limit as used up, never as unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// Bytes are missing, changed or left over.
    #[error("the stored state of a limit is damaged; it counts as used up for one period")]
    Bytes,
    /// Written by a newer Tollgate.
    #[error(
        "the stored state of a limit has version {0}, this program knows {VERSION}; upgrade it"
    )]
    Newer(u8),
}

impl Cell {
    /// The cell as bytes, with instants as distances from `base`.
    #[must_use]
    pub fn to_bytes(&self, base: Micros) -> Vec<u8> {
        let mut out = Writer {
            bytes: vec![VERSION],
            base,
        };
        out.told(&self.told);
        out.number(self.granted);
        out.number(self.settled);
        out.instant(self.idle_from);
        out.bytes.push(match self.wanted {
            Wanted::No => 0,
            Wanted::Time => 1,
            Wanted::Event => 2,
        });
        out.state(&self.state);
        out.maybe(self.passed, Writer::passed);
        let sum = blake3::hash(&out.bytes);
        out.bytes.extend_from_slice(&sum.as_bytes()[..CHECKSUM]);
        out.bytes
    }
}

struct Writer {
    bytes: Vec<u8>,
    base: Micros,
}

impl Writer {
    /// Seven bits a byte, the lowest first; the high bit says that more follow.
    fn wide(&mut self, mut value: u128) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push((value & 0x7f) as u8);
    }

    /// As `wide` writes it; nearly all numbers are small, and a shared cell has thousands of them.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push((value & 0x7f) as u8);
    }

    /// Ahead of the base even, behind it odd.
    fn instant(&mut self, at: Micros) {
        let (ahead, distance) = (at >= self.base, at.0.abs_diff(self.base.0));
        if distance <= u64::MAX >> 1 {
            self.number(distance << 1 | u64::from(!ahead));
        } else {
            self.wide(u128::from(distance) << 1 | u128::from(!ahead));
        }
    }

    fn maybe<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        self.bytes.push(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn state(&mut self, state: &State) {
        match state {
            State::Empty => self.bytes.push(0),
            State::Log(log) => {
                self.bytes.push(1);
                self.log(log);
            }
            State::Bucket(bucket) => {
                self.bytes.push(2);
                self.holds(&bucket.holds);
                self.wide(bucket.debt);
                self.instant(bucket.at);
                self.number(bucket.rate);
                self.number(bucket.depth);
            }
            State::Fixed(fixed) => {
                self.bytes.push(3);
                self.phase(&fixed.phase);
                self.maybe(fixed.opened, Writer::instant);
                self.instant(fixed.touches);
                self.maybe(fixed.ends, Writer::instant);
                self.maybe(fixed.unproved, Writer::instant);
            }
            State::Calendar(count) => {
                self.bytes.push(4);
                self.phase(&count.phase);
                self.maybe(count.almanac, Writer::almanac);
                self.number(count.edge.0);
            }
            State::InFlight(in_flight) => {
                self.bytes.push(5);
                self.holds(&in_flight.holds);
            }
        }
    }

    fn log(&mut self, log: &Log) {
        self.holds(&log.holds);
        self.bytes.push(match log.rung {
            Rung::Window => 0,
            Rung::Eighth => 1,
            Rung::Spaced => 2,
        });
        self.instant(log.climbed);
        self.instant(log.due);
        self.maybe(log.urgent, Writer::instant);
        self.instant(log.last);
    }

    fn holds(&mut self, holds: &Holds) {
        self.open(&holds.open);
        self.number(holds.done.len() as u64);
        for slot in &holds.done {
            self.instant(slot.free_at);
            self.number(slot.cost);
        }
    }

    fn open(&mut self, open: &OpenSet) {
        self.number(open.iter().len() as u64);
        for (id, open) in open.iter() {
            self.number(u64::from(id.owner.0));
            self.number(id.seq);
            self.number(open.cost);
            self.instant(open.granted);
            self.instant(open.free_at);
        }
    }

    fn phase(&mut self, phase: &Phase) {
        self.number(phase.used);
        self.number(phase.late);
        self.instant(phase.late_until);
        self.open(&phase.open);
    }

    fn passed(&mut self, passed: Passed) {
        self.wide(passed.to.0);
        self.number(passed.granted);
        self.number(passed.theirs);
    }

    fn almanac(&mut self, almanac: Almanac) {
        self.number(almanac.wall.0);
        self.instant(almanac.at);
        self.number(almanac.shift.cast_unsigned());
        self.instant(almanac.seen);
    }

    fn told(&mut self, told: &Told) {
        self.maybe(told.limit, |out, lowered| {
            out.number(lowered.limit);
            out.maybe(lowered.higher, |out, (since, least)| {
                out.instant(since);
                out.number(least);
            });
        });
        self.number(told.taken);
        self.instant(told.taken_until);
        self.number(told.taken_heard);
        self.number(told.owners.len() as u64);
        for owner in &told.owners {
            self.number(u64::from(owner.owner.0));
            self.number(owner.limit);
            self.instant(owner.seen);
        }
    }
}
