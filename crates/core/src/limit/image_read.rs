//! A cell from its bytes.
//!
//! Promises: any bytes are a cell or [`Damaged`], in time and memory that their length bounds: every
//! item of a list takes bytes, so a count that the bytes cannot hold ends where they end.
//!
//! Never: guesses.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::ask::{CellId, OwnerId, PermitId};
use crate::limit::almanac::Almanac;
use crate::limit::bucket::Bucket;
use crate::limit::calendar::Count;
use crate::limit::cell::{Cell, Passed, State, Wanted};
use crate::limit::fixed::Fixed;
use crate::limit::holds::{Done, Holds, Open, OpenSet};
use crate::limit::image::{CHECKSUM, VERSION};
use crate::limit::in_flight::InFlight;
use crate::limit::phase::Phase;
use crate::limit::sliding::Log;
use crate::limit::told::{Lowered, OwnerLimit, Told};
use crate::limit::{Damaged, Rung};
use crate::time::{Micros, Span, Wall};

impl Cell {
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
        if !(1..=VERSION).contains(&version) {
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
        // The first version knew no heirs.
        let passed = match version {
            1 => None,
            _ => from.maybe(Reader::passed)?,
        };
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
            passed,
        })
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

    fn passed(&mut self) -> Result<Passed, Damaged> {
        Ok(Passed {
            to: CellId(self.wide()?),
            granted: self.number()?,
            theirs: self.number()?,
        })
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
                touches: self.instant()?,
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
