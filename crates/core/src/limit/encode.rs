//! A cell as bytes, for stores and snapshots; `decode` reads them.
//!
//! Instants are written as distances from a base, so the bytes do not depend on the clock: a store
//! of one boot uses base 0; a snapshot uses its own `now`, and the reader passes its `now` less the
//! time that has passed.
//!
//! Promises: a cell reads back as it was written. The checksum detects every changed, lost or added
//! byte; it is reported, never guessed around.
//!
//! Never: writes another format without raising [`VERSION`]. A newer one is rejected, not misread.

use crate::ask::PermitId;
use crate::learned::LearnedLimit;
use crate::limit::Strictness;
use crate::limit::cell::{Cell, CellState, HandOver, PendingWake};
use crate::limit::holds::{Holds, PendingCall, PendingCalls};
use crate::limit::presumed::PresumedCalls;
use crate::limit::reported::Reported;
use crate::limit::sliding::Log;
use crate::limit::trusted_clock::TrustedClock;
use crate::limit::window_counter::WindowCounter;
use crate::time::Micros;

/// The newest format.
pub(super) const VERSION: u8 = 6;

/// The format of a cell whose learned window does not get shorter.
const WITHOUT_SHORTER: u8 = 5;

/// The format of a cell in which no call was given up either.
const WITHOUT_GIVEN_UP: u8 = 4;

/// The format of a cell whose limit is not learned from responses either.
const WITHOUT_LEARNED: u8 = 3;

/// The format of a cell in which no call counts as arrived before its response: programs that do
/// not know of such calls read it.
const WITHOUT_PRESUMED: u8 = 2;

/// Bytes of checksum at the end: damaged bytes pass once in four thousand million.
pub(super) const CHECKSUM: usize = 4;

/// Bytes that cannot be decoded. Treat the limit as used up, never as unused.
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
    /// Written by a newer Tollgate, which counts in a way that this one does not know.
    #[error(
        "the stored state of a limit has a field {0} that this program must know and does not; upgrade it"
    )]
    UnknownField(u64),
}

impl Cell {
    /// The cell as bytes, with instants as distances from `base`.
    #[must_use]
    pub fn to_bytes(&self, base: Micros) -> Vec<u8> {
        let mut bytes = self.body_onto(Vec::new(), base);
        let sum = blake3::hash(&bytes);
        bytes.extend_from_slice(&sum.as_bytes()[..CHECKSUM]);
        bytes
    }

    /// The cell without a checksum, for a row that has one of its own; instants are those of the
    /// store's clock.
    pub(crate) fn write_body(&self, bytes: &mut Vec<u8>) {
        *bytes = self.body_onto(std::mem::take(bytes), Micros(0));
    }

    fn body_onto(&self, mut bytes: Vec<u8>, base: Micros) -> Vec<u8> {
        let pending = self.pending_calls().into_iter();
        let given_up = pending.flat_map(PendingCalls::given_up);
        let given_up: Vec<PermitId> = given_up.collect();
        let shorter = self.learned.and_then(|known| known.shorter);
        let version = if shorter.is_some() {
            VERSION
        } else if !given_up.is_empty() {
            WITHOUT_SHORTER
        } else if self.learned.is_some() {
            WITHOUT_GIVEN_UP
        } else if self.presumed != PresumedCalls::default() {
            WITHOUT_LEARNED
        } else {
            WITHOUT_PRESUMED
        };
        bytes.push(version);
        let mut out = Writer { bytes, base };
        out.reported(&self.reported);
        out.number(self.granted);
        out.number(self.settled);
        out.instant(self.idle_from);
        out.bytes.push(match self.pending_wake {
            PendingWake::No => 0,
            PendingWake::Time => 1,
            PendingWake::Event => 2,
        });
        out.state(&self.state);
        out.maybe(self.hand_over, Writer::hand_over);
        if version > WITHOUT_PRESUMED {
            out.presumed(&self.presumed);
        }
        match self.learned {
            Some(known) if version == WITHOUT_GIVEN_UP => out.learned(known),
            learned if version > WITHOUT_GIVEN_UP => out.maybe(learned, Writer::learned),
            _ => {}
        }
        if version > WITHOUT_GIVEN_UP {
            out.given_up(&given_up);
        }
        if let Some(shorter) = shorter {
            out.instant(shorter.since);
            out.number(shorter.furthest.0);
            out.number(u64::from(shorter.responses));
        }
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

    /// The same format as `wide`; nearly all numbers are small, and a shared cell has thousands of
    /// them.
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

    fn state(&mut self, state: &CellState) {
        match state {
            CellState::Empty => self.bytes.push(0),
            CellState::Log(log) => {
                self.bytes.push(1);
                self.log(log);
            }
            CellState::Bucket(bucket) => {
                self.bytes.push(2);
                self.holds(&bucket.holds);
                self.wide(bucket.debt);
                self.instant(bucket.at);
                self.number(bucket.rate);
                self.number(bucket.depth);
            }
            CellState::Fixed(fixed) => {
                self.bytes.push(3);
                self.counter(&fixed.counter);
                self.maybe(fixed.opened, Writer::instant);
                self.instant(fixed.earliest_end);
                self.maybe(fixed.latest_end, Writer::instant);
                self.maybe(fixed.unproven_end, Writer::instant);
            }
            CellState::Calendar(count) => {
                self.bytes.push(4);
                self.counter(&count.counter);
                self.maybe(count.clock, Writer::clock);
                self.number(count.edge.0);
            }
            CellState::InFlight(in_flight) => {
                self.bytes.push(5);
                self.holds(&in_flight.holds);
            }
        }
    }

    fn log(&mut self, log: &Log) {
        self.holds(&log.holds);
        self.bytes.push(match log.strictness {
            Strictness::Window => 0,
            Strictness::Eighth => 1,
            Strictness::Spaced => 2,
        });
        self.instant(log.tightened_at);
        self.instant(log.due);
        self.maybe(log.urgent_seen, Writer::instant);
        self.instant(log.last_grant);
    }

    fn holds(&mut self, holds: &Holds) {
        self.pending(&holds.pending);
        self.number(holds.done.len() as u64);
        for slot in &holds.done {
            self.instant(slot.free_at);
            self.number(slot.cost);
        }
    }

    fn pending(&mut self, calls: &PendingCalls) {
        self.number(calls.iter().len() as u64);
        for (id, call) in calls.iter() {
            self.permit(*id, call);
        }
    }

    fn given_up(&mut self, ids: &[PermitId]) {
        self.number(ids.len() as u64);
        for id in ids {
            self.id(*id);
        }
    }

    fn id(&mut self, id: PermitId) {
        self.number(u64::from(id.owner.0));
        self.number(id.seq);
    }

    fn permit(&mut self, id: PermitId, call: &PendingCall) {
        self.id(id);
        self.number(call.cost);
        self.instant(call.granted);
        self.instant(call.free_at);
    }

    fn counter(&mut self, phase: &WindowCounter) {
        self.number(phase.used);
        self.number(phase.late);
        self.instant(phase.late_until);
        self.pending(&phase.pending);
    }

    fn hand_over(&mut self, hand_over: HandOver) {
        self.wide(hand_over.to.0);
        self.number(hand_over.granted);
        self.number(hand_over.granted_there);
    }

    fn presumed(&mut self, presumed: &PresumedCalls) {
        self.number(presumed.calls().len() as u64);
        for (id, call) in presumed.calls() {
            self.permit(*id, &call.call);
            self.instant(call.arrived_by);
        }
        self.instant(presumed.matters_until);
        self.instant(presumed.strict_until);
    }

    fn learned(&mut self, known: LearnedLimit) {
        self.maybe(known.limit, Writer::number);
        self.number(known.period.0);
        self.instant(known.since);
        self.instant(known.seen_at);
        self.maybe(known.higher, |out, higher| {
            out.instant(higher.since);
            out.number(higher.least);
            out.number(u64::from(higher.responses));
        });
    }

    fn clock(&mut self, clock: TrustedClock) {
        self.number(clock.wall.0);
        self.instant(clock.at);
        self.number(clock.shift.cast_unsigned());
        self.instant(clock.last_read);
    }

    fn reported(&mut self, reported: &Reported) {
        self.maybe(reported.limit, |out, lowered| {
            out.number(lowered.limit);
            out.maybe(lowered.higher, |out, (since, least)| {
                out.instant(since);
                out.number(least);
            });
        });
        self.number(reported.outside_use);
        self.instant(reported.outside_until);
        self.number(reported.outside_granted);
        self.number(reported.owners.len() as u64);
        for owner in &reported.owners {
            self.number(u64::from(owner.owner.0));
            self.number(owner.limit);
            self.instant(owner.last_seen);
        }
    }
}
