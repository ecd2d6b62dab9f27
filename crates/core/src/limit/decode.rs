//! Decodes a cell.
//!
//! Promises: any bytes are a cell or [`Damaged`], in time and memory bounded by their length: every
//! item of a list takes bytes, so a count larger than the bytes ends where they end.
//!
//! Never: guesses.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::ask::{CellId, OwnerId, PermitId};
use crate::learned::{HigherLimit, LearnedLimit, ShorterWindow};
use crate::limit::bucket::Bucket;
use crate::limit::calendar::CalendarCount;
use crate::limit::cell::{Cell, CellState, HandOver, PendingWake};
use crate::limit::encode::{CHECKSUM, VERSION};
use crate::limit::fixed::Fixed;
use crate::limit::holds::{DoneSlot, Holds, PendingCall, PendingCalls};
use crate::limit::in_flight::InFlight;
use crate::limit::presumed::{PresumedCall, PresumedCalls};
use crate::limit::reported::{LoweredLimit, OwnerLimit, Reported};
use crate::limit::sliding::Log;
use crate::limit::trusted_clock::TrustedClock;
use crate::limit::window_counter::WindowCounter;
use crate::limit::{AMOUNT_MAX, Damaged, LentShares, PERIOD_MAX, Strictness};
use crate::time::{Micros, Span, Wall};

impl Cell {
    /// Decodes a cell, with instants as distances from `base`.
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
        Cell::from_checked(body, i128::from(now.0) - i128::from(elapsed.0))
    }

    /// A cell from a row, which has a checksum of its own.
    pub(crate) fn from_body(body: &[u8]) -> Result<Cell, Damaged> {
        Cell::from_checked(body, 0)
    }

    fn from_checked(body: &[u8], base: i128) -> Result<Cell, Damaged> {
        let (&version, rest) = body.split_first().ok_or(Damaged::Bytes)?;
        if !(1..=VERSION).contains(&version) {
            return Err(Damaged::Newer(version));
        }
        let mut from = Reader { rest, base };
        let reported = from.reported()?;
        let (granted, settled) = (from.number()?, from.number()?);
        let idle_from = from.instant()?;
        let pending_wake = match from.byte()? {
            0 => PendingWake::No,
            1 => PendingWake::Time,
            2 => PendingWake::Event,
            _ => return Err(Damaged::Bytes),
        };
        let mut state = from.state()?;
        // Version 1 had no hand-over.
        let hand_over = match version {
            1 => None,
            _ => from.maybe(Reader::hand_over)?,
        };
        // Until version 2 no call counted as arrived before its response.
        let presumed = match version {
            1 | 2 => PresumedCalls::default(),
            _ => from.presumed()?,
        };
        // Until version 3 no limit was learned from responses.
        let mut learned = match version {
            1..=3 => None,
            4 => Some(from.learned()?),
            _ => from.maybe(Reader::learned)?,
        };
        // Until version 4 nothing told which calls were given up: their time is known less well.
        if version > 4 {
            from.given_up(&mut state)?;
        }
        // Until version 5 no learned window got shorter.
        if version > 5 {
            let known = learned.as_mut().ok_or(Damaged::Bytes)?;
            known.shorter = Some(from.shorter()?);
        }
        if !from.rest.is_empty() {
            return Err(Damaged::Bytes);
        }
        Ok(Cell {
            state,
            reported,
            granted,
            settled,
            idle_from,
            pending_wake,
            hand_over,
            presumed,
            learned,
            lent: LentShares::default(),
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
        // An instant beyond the clock's range becomes its end: it is long over, or it never ends.
        let clip = |at: i128| u64::try_from(at.max(0)).unwrap_or(u64::MAX);
        let at = self.base + ahead;
        Ok((Micros(clip(at)), Span(clip(-at))))
    }

    fn hand_over(&mut self) -> Result<HandOver, Damaged> {
        Ok(HandOver {
            to: CellId(self.wide()?),
            granted: self.number()?,
            granted_there: self.number()?,
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

    fn state(&mut self) -> Result<CellState, Damaged> {
        Ok(match self.byte()? {
            0 => CellState::Empty,
            1 => CellState::Log(self.log()?),
            2 => CellState::Bucket(Bucket {
                holds: self.holds()?,
                debt: self.wide()?,
                at: self.instant()?,
                rate: self.number()?,
                depth: self.number()?,
            }),
            3 => CellState::Fixed(Fixed {
                counter: self.counter()?,
                opened: self.maybe(Reader::instant)?,
                earliest_end: self.instant()?,
                latest_end: self.maybe(Reader::instant)?,
                unproven_end: self.maybe(Reader::instant)?,
            }),
            4 => CellState::Calendar(CalendarCount {
                counter: self.counter()?,
                clock: self.maybe(Reader::clock)?,
                edge: Wall(self.number()?),
            }),
            5 => CellState::InFlight(InFlight {
                holds: self.holds()?,
            }),
            _ => return Err(Damaged::Bytes),
        })
    }

    fn log(&mut self) -> Result<Log, Damaged> {
        Ok(Log {
            holds: self.holds()?,
            strictness: match self.byte()? {
                0 => Strictness::Window,
                1 => Strictness::Eighth,
                2 => Strictness::Spaced,
                _ => return Err(Damaged::Bytes),
            },
            tightened_at: self.instant()?,
            due: self.instant()?,
            urgent_seen: self.maybe(Reader::instant)?,
            last_grant: self.instant()?,
        })
    }

    fn holds(&mut self) -> Result<Holds, Damaged> {
        let pending = self.pending()?;
        let mut done: VecDeque<DoneSlot> = VecDeque::new();
        for _ in 0..self.number()? {
            let free_at = self.instant()?;
            let cost = self.number()?;
            if done.back().is_some_and(|last| last.free_at > free_at) {
                return Err(Damaged::Bytes);
            }
            done.push_back(DoneSlot { free_at, cost });
        }
        Ok(Holds::from_parts(pending, done))
    }

    fn pending(&mut self) -> Result<PendingCalls, Damaged> {
        let mut pending = PendingCalls::default();
        for _ in 0..self.number()? {
            let (id, call) = self.permit()?;
            // Each is written once: of two, nobody knows which one holds.
            if pending.get(id).is_some() {
                return Err(Damaged::Bytes);
            }
            pending.add(id, call);
        }
        Ok(pending)
    }

    fn given_up(&mut self, state: &mut CellState) -> Result<(), Damaged> {
        let mut pending = state.pending_calls_mut();
        for _ in 0..self.number()? {
            let id = self.id()?;
            let calls = pending.as_mut().ok_or(Damaged::Bytes)?;
            if !calls.mark_given_up(id) {
                return Err(Damaged::Bytes);
            }
        }
        Ok(())
    }

    fn id(&mut self) -> Result<PermitId, Damaged> {
        Ok(PermitId {
            owner: self.owner()?,
            seq: self.number()?,
        })
    }

    fn permit(&mut self) -> Result<(PermitId, PendingCall), Damaged> {
        let id = self.id()?;
        let call = PendingCall {
            cost: self.number()?,
            granted: self.instant()?,
            free_at: self.instant()?,
            is_given_up: false,
        };
        Ok((id, call))
    }

    fn presumed(&mut self) -> Result<PresumedCalls, Damaged> {
        let mut presumed = PresumedCalls::default();
        for _ in 0..self.number()? {
            let (id, call) = self.permit()?;
            let arrived_by = self.instant()?;
            let call = PresumedCall { call, arrived_by };
            if !presumed.add(id, call) {
                return Err(Damaged::Bytes);
            }
        }
        presumed.matters_until = self.instant()?;
        presumed.strict_until = self.instant()?;
        Ok(presumed)
    }

    fn learned(&mut self) -> Result<LearnedLimit, Damaged> {
        let limit = self.maybe(Reader::amount)?;
        let period = Span(self.number()?);
        if period == Span::ZERO || period > PERIOD_MAX {
            return Err(Damaged::Bytes);
        }
        Ok(LearnedLimit {
            limit,
            period,
            since: self.instant()?,
            seen_at: self.instant()?,
            higher: self.maybe(|from| {
                Ok(HigherLimit {
                    since: from.instant()?,
                    least: from.amount()?,
                    responses: u32::try_from(from.number()?).map_err(|_| Damaged::Bytes)?,
                })
            })?,
            shorter: None,
        })
    }

    fn shorter(&mut self) -> Result<ShorterWindow, Damaged> {
        Ok(ShorterWindow {
            since: self.instant()?,
            furthest: Span(self.number()?),
            responses: u32::try_from(self.number()?).map_err(|_| Damaged::Bytes)?,
        })
    }

    /// A limit: at least 1, at most 2⁵³.
    fn amount(&mut self) -> Result<u64, Damaged> {
        let amount = self.number()?;
        match (1..=AMOUNT_MAX).contains(&amount) {
            true => Ok(amount),
            false => Err(Damaged::Bytes),
        }
    }

    fn counter(&mut self) -> Result<WindowCounter, Damaged> {
        Ok(WindowCounter {
            used: self.number()?,
            late: self.number()?,
            late_until: self.instant()?,
            pending: self.pending()?,
        })
    }

    /// The pair stays a pair on a younger clock, such as after a reboot: both readings are clipped
    /// by the same amount.
    fn clock(&mut self) -> Result<TrustedClock, Damaged> {
        let wall = Wall(self.number()?);
        let (at, before) = self.clipped_instant()?;
        Ok(TrustedClock {
            wall: wall + before,
            at,
            shift: self.number()?.cast_signed(),
            last_read: self.instant()?,
        })
    }

    fn reported(&mut self) -> Result<Reported, Damaged> {
        let limit = self.maybe(|from| {
            let limit = from.number()?;
            Ok(LoweredLimit {
                limit,
                higher: from.maybe(|from| Ok((from.instant()?, from.number()?)))?,
            })
        })?;
        let (outside_use, outside_until) = (self.number()?, self.instant()?);
        let outside_granted = self.number()?;
        let mut owners = SmallVec::new();
        for _ in 0..self.number()? {
            let owner = self.owner()?;
            owners.push(OwnerLimit {
                owner,
                limit: self.number()?,
                last_seen: self.instant()?,
            });
        }
        Ok(Reported {
            limit,
            outside_use,
            outside_until,
            outside_granted,
            owners,
        })
    }
}
