//! A cell as bytes, for stores and snapshots.
//!
//! Instants are written as distances from a base, so an image does not depend on the clock it was
//! made on: a store of one boot uses base 0, a snapshot uses its own now and is read back with the
//! reader's now less the time that passed in between.
//!
//! Promises: what is read is what was written. A byte that was changed, lost or added is found by
//! the checksum and reported, never guessed around.
//!
//! Never: writes a format without raising [`VERSION`]; a newer one is refused, not misread.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::ask::{OwnerId, PermitId};
use crate::limit::Rung;
use crate::limit::almanac::Almanac;
use crate::limit::bucket::Bucket;
use crate::limit::calendar::Count;
use crate::limit::cell::{Cell, State, Wanted};
use crate::limit::fixed::Fixed;
use crate::limit::holds::{Done, Holds, Open, OpenSet};
use crate::limit::in_flight::InFlight;
use crate::limit::phase::Phase;
use crate::limit::sliding::Log;
use crate::limit::told::{Lowered, OwnerLimit, Told};
use crate::time::{Micros, Span, Wall};

/// The format written today.
const VERSION: u8 = 1;

/// Bytes of checksum at the end: a damaged image passes once in four thousand million.
const CHECKSUM: usize = 4;

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
        let sum = blake3::hash(&out.bytes);
        out.bytes.extend_from_slice(&sum.as_bytes()[..CHECKSUM]);
        out.bytes
    }

    /// The cell that these bytes are, with instants as distances from `base`.
    pub fn from_bytes(bytes: &[u8], base: Micros) -> Result<Cell, Damaged> {
        Cell::from_bytes_after(bytes, base, Span::ZERO)
    }

    /// The same, `elapsed` after it was written: its base may lie before the start of this clock.
    pub(crate) fn from_bytes_after(
        bytes: &[u8],
        now: Micros,
        elapsed: Span,
    ) -> Result<Cell, Damaged> {
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(Damaged::Bytes)?;
        if blake3::hash(body).as_bytes()[..CHECKSUM] != sum[..] {
            return Err(Damaged::Bytes);
        }
        let (&version, rest) = body.split_first().ok_or(Damaged::Bytes)?;
        if version != VERSION {
            return Err(Damaged::Newer(version));
        }
        let base = i128::from(now.0) - i128::from(elapsed.0);
        let mut from = Reader { rest, base };
        let told = from.told()?;
        let (granted, settled) = (from.number()?, from.number()?);
        let idle_from = from.instant()?;
        let wanted = match from.byte()? {
            0 => Wanted::No,
            1 => Wanted::Time,
            2 => Wanted::Event,
            _ => return Err(Damaged::Bytes),
        };
        let state = from.state()?;
        if !from.rest.is_empty() {
            return Err(Damaged::Bytes);
        }
        Ok(Cell {
            state,
            told,
            granted,
            settled,
            idle_from,
            wanted,
        })
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

    fn number(&mut self, value: u64) {
        self.wide(u128::from(value));
    }

    /// Ahead of the base even, behind it odd.
    fn instant(&mut self, at: Micros) {
        let (ahead, distance) = (at >= self.base, at.0.abs_diff(self.base.0));
        self.wide(u128::from(distance) << 1 | u128::from(!ahead));
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
                self.instant(fixed.earliest);
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

struct Reader<'a> {
    rest: &'a [u8],
    base: i128,
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, Damaged> {
        let (&byte, rest) = self.rest.split_first().ok_or(Damaged::Bytes)?;
        self.rest = rest;
        Ok(byte)
    }

    fn wide(&mut self) -> Result<u128, Damaged> {
        let mut value = 0;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            value |= u128::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damaged::Bytes)
    }

    fn number(&mut self) -> Result<u64, Damaged> {
        u64::try_from(self.wide()?).map_err(|_| Damaged::Bytes)
    }

    fn instant(&mut self) -> Result<Micros, Damaged> {
        Ok(self.clipped_instant()?.0)
    }

    /// An instant, and how far before the start of this clock it would lie.
    fn clipped_instant(&mut self) -> Result<(Micros, Span), Damaged> {
        let wide = self.wide()?;
        let distance = u64::try_from(wide >> 1).map_err(|_| Damaged::Bytes)?;
        let behind = wide & 1 == 1;
        let ahead = i128::from(distance) * if behind { -1 } else { 1 };
        // Beyond either end of the clock is its end: what lies there is long over, or never ends.
        let clip = |at: i128| u64::try_from(at.max(0)).unwrap_or(u64::MAX);
        let at = self.base + ahead;
        Ok((Micros(clip(at)), Span(clip(-at))))
    }

    fn maybe<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Damaged>,
    ) -> Result<Option<T>, Damaged> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(Damaged::Bytes),
        }
    }

    fn owner(&mut self) -> Result<OwnerId, Damaged> {
        u32::try_from(self.number()?)
            .map(OwnerId)
            .map_err(|_| Damaged::Bytes)
    }

    fn state(&mut self) -> Result<State, Damaged> {
        Ok(match self.byte()? {
            0 => State::Empty,
            1 => State::Log(self.log()?),
            2 => State::Bucket(Bucket {
                holds: self.holds()?,
                debt: self.wide()?,
                at: self.instant()?,
                rate: self.number()?,
                depth: self.number()?,
            }),
            3 => State::Fixed(Fixed {
                phase: self.phase()?,
                opened: self.maybe(Reader::instant)?,
                earliest: self.instant()?,
                ends: self.maybe(Reader::instant)?,
                unproved: self.maybe(Reader::instant)?,
            }),
            4 => State::Calendar(Count {
                phase: self.phase()?,
                almanac: self.maybe(Reader::almanac)?,
                edge: Wall(self.number()?),
            }),
            5 => State::InFlight(InFlight {
                holds: self.holds()?,
            }),
            _ => return Err(Damaged::Bytes),
        })
    }

    fn log(&mut self) -> Result<Log, Damaged> {
        Ok(Log {
            holds: self.holds()?,
            rung: match self.byte()? {
                0 => Rung::Window,
                1 => Rung::Eighth,
                2 => Rung::Spaced,
                _ => return Err(Damaged::Bytes),
            },
            climbed: self.instant()?,
            due: self.instant()?,
            urgent: self.maybe(Reader::instant)?,
            last: self.instant()?,
        })
    }

    fn holds(&mut self) -> Result<Holds, Damaged> {
        let open = self.open()?;
        let mut done: VecDeque<Done> = VecDeque::new();
        for _ in 0..self.number()? {
            let free_at = self.instant()?;
            let cost = self.number()?;
            if done.back().is_some_and(|last| last.free_at > free_at) {
                return Err(Damaged::Bytes);
            }
            done.push_back(Done { free_at, cost });
        }
        Ok(Holds::from_parts(open, done))
    }

    fn open(&mut self) -> Result<OpenSet, Damaged> {
        let mut open = OpenSet::default();
        for _ in 0..self.number()? {
            let id = PermitId {
                owner: self.owner()?,
                seq: self.number()?,
            };
            let cost = self.number()?;
            open.add(
                id,
                Open {
                    cost,
                    granted: self.instant()?,
                    free_at: self.instant()?,
                },
            );
        }
        Ok(open)
    }

    fn phase(&mut self) -> Result<Phase, Damaged> {
        Ok(Phase {
            used: self.number()?,
            late: self.number()?,
            late_until: self.instant()?,
            open: self.open()?,
        })
    }

    /// The pair stays a pair on a clock that is younger than it, such as after a reboot: what is
    /// cut off one clock is cut off the other.
    fn almanac(&mut self) -> Result<Almanac, Damaged> {
        let wall = Wall(self.number()?);
        let (at, before) = self.clipped_instant()?;
        Ok(Almanac {
            wall: wall + before,
            at,
            shift: self.number()?.cast_signed(),
            seen: self.instant()?,
        })
    }

    fn told(&mut self) -> Result<Told, Damaged> {
        let limit = self.maybe(|from| {
            let limit = from.number()?;
            Ok(Lowered {
                limit,
                higher: from.maybe(|from| Ok((from.instant()?, from.number()?)))?,
            })
        })?;
        let (taken, taken_until) = (self.number()?, self.instant()?);
        let taken_heard = self.number()?;
        let mut owners = SmallVec::new();
        for _ in 0..self.number()? {
            let owner = self.owner()?;
            owners.push(OwnerLimit {
                owner,
                limit: self.number()?,
                seen: self.instant()?,
            });
        }
        Ok(Told {
            limit,
            taken,
            taken_until,
            taken_heard,
            owners,
        })
    }
}
