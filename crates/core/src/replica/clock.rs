//! The store's time, as far as a node knows it from replies.
//!
//! A reply that the store stamped T, for a request sent at s and received at r (local boot time),
//! proves for any later local x: T + (x − r) ≤ store time ≤ T + (x − s), less or plus drift. The
//! best bound of each kind is kept.
//!
//! Promises: a step of the store's clock is detected: a stamp outside the bounds starts
//! a new base, and rows written before it are no longer comparable.
//!
//! Never: reads a clock.

use crate::time::{Micros, Span, TimeBounds, Wall};

/// How fast the clocks of two hosts may drift apart: NTP slews up to 500 ppm on each of them.
pub(super) const DRIFT_PPM: u64 = 1_000;

/// One reply, on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// What the store's clock showed while it handled the request.
    pub stored_at: Micros,
    /// When the request was sent, on the local clock.
    pub sent: Micros,
    /// When the reply was received, on the local clock.
    pub received: Micros,
}

impl Stamp {
    /// At least what the store's clock shows at local time `x`, if it does not step.
    pub(super) fn lo(&self, x: Micros) -> Micros {
        lower((self.stored_at, self.received), x)
    }

    /// At most that.
    pub(super) fn hi(&self, x: Micros) -> Micros {
        upper((self.stored_at, self.sent), x)
    }

    /// Can a later one be of the same clock, if it has not stepped?
    pub(super) fn agrees(&self, later: Stamp) -> bool {
        later.stored_at >= self.lo(later.sent) && later.stored_at <= self.hi(later.received)
    }
}

/// What a stamp says about the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observed {
    /// It agrees with the earlier ones.
    Agrees,
    /// The first stamp: instants from before are not comparable.
    First,
    /// The clock has stepped.
    Stepped(Step),
}

/// A step of the store's clock, at one moment on both of its sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// What the clock would show if it had not stepped.
    pub(super) then: TimeBounds,
    /// What it shows.
    pub(super) now: TimeBounds,
}

/// Bounds of the store's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreClock {
    base: Option<Base>,
    round_trip: Span,
}

#[derive(Clone, Copy, Debug)]
struct Base {
    /// The store's clock showed at least `.0` at local time `.1`.
    lower: (Micros, Micros),
    /// The store's clock showed at most `.0` at local time `.1`.
    upper: (Micros, Micros),
    /// When the first stamp of this base was received.
    since: Micros,
    last: Micros,
    shortest: Span,
}

impl StoreClock {
    pub(super) fn new() -> StoreClock {
        StoreClock {
            base: None,
            round_trip: Span::ZERO,
        }
    }

    /// Compares a reply with the bounds so far, and tightens them. `accept_steps` takes every
    /// stamp as it is.
    pub(super) fn observe(&mut self, stamp: Stamp, accept_steps: bool) -> Observed {
        let taken = stamp.received.since(stamp.sent);
        self.round_trip = match self.base {
            Some(_) => Span((self.round_trip.0 * 7 + taken.0) / 8),
            None => taken,
        };
        let fresh = Base {
            lower: (stamp.stored_at, stamp.received),
            upper: (stamp.stored_at, stamp.sent),
            since: stamp.received,
            last: stamp.received,
            shortest: taken,
        };
        let Some(base) = &mut self.base else {
            self.base = Some(fresh);
            return Observed::First;
        };
        if accept_steps {
            *base = Base {
                since: base.since,
                ..fresh
            };
            return Observed::Agrees;
        }
        let stepped = stamp.stored_at > base.hi(stamp.received)
            || (stamp.sent >= base.last && stamp.stored_at < base.lo(stamp.sent));
        if stepped {
            let at = stamp.received;
            let then = TimeBounds::new(base.lo(at), base.hi(at), Wall(0));
            *base = fresh;
            let now = TimeBounds::new(fresh.lower.0, fresh.hi(at), Wall(0));
            return Observed::Stepped(Step { then, now });
        }
        if stamp.stored_at > base.lo(stamp.received) {
            base.lower = fresh.lower;
        }
        if fresh.hi(stamp.received) < base.hi(stamp.received) {
            base.upper = fresh.upper;
        }
        base.last = stamp.received;
        base.shortest = Span(base.shortest.0.min(taken.0));
        Observed::Agrees
    }

    /// The store's time at local time `x`; `None` before the first reply.
    pub(super) fn bounds(&self, x: Micros) -> Option<TimeBounds> {
        let base = self.base?;
        let lo = base.lo(x).min(base.hi(x));
        Some(TimeBounds::new(lo, base.hi(x), Wall(lo.0)))
    }

    /// How long the bounds have held without a step.
    pub(super) fn age(&self, x: Micros) -> Span {
        self.base.map_or(Span::ZERO, |base| x.since(base.since))
    }

    /// How long ago the last reply came.
    pub(super) fn silence(&self, x: Micros) -> Option<Span> {
        self.base.map(|base| x.since(base.last))
    }

    /// The shortest round trip of this base.
    pub(super) fn shortest_round_trip(&self) -> Span {
        self.base.map_or(self.round_trip, |base| base.shortest)
    }

    /// A smoothed round trip.
    pub(super) fn round_trip(&self) -> Span {
        self.round_trip
    }
}

impl Base {
    fn lo(&self, x: Micros) -> Micros {
        lower(self.lower, x)
    }

    fn hi(&self, x: Micros) -> Micros {
        upper(self.upper, x)
    }
}

/// At least what a clock shows at local time `x` that showed at least `at` at local time `local`.
fn lower((at, local): (Micros, Micros), x: Micros) -> Micros {
    let passed = x.since(local);
    at + (passed - passed.scale_up(DRIFT_PPM, 1_000_000))
}

/// At most what a clock shows at local time `x` that showed at most `at` at local time `local`.
fn upper((at, local): (Micros, Micros), x: Micros) -> Micros {
    let passed = x.since(local);
    at + passed + passed.scale_up(DRIFT_PPM, 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;

    fn stamp(stored_at: u64, sent: u64, received: u64) -> Stamp {
        Stamp {
            stored_at: Micros(stored_at * MS),
            sent: Micros(sent * MS),
            received: Micros(received * MS),
        }
    }

    #[test]
    fn the_bounds_contain_the_stamp_at_both_ends_of_the_round_trip() {
        let mut clock = StoreClock::new();
        assert_eq!(clock.bounds(Micros(0)), None);
        clock.observe(stamp(5_000, 10, 30), false);
        let bounds = clock.bounds(Micros(30 * MS)).unwrap();
        assert_eq!(bounds.lo, Micros(5_000 * MS));
        assert_eq!(bounds.hi, Micros(5_020 * MS + 20));
        // A faster reply tightens both.
        assert_eq!(
            clock.observe(stamp(5_100, 111, 113), false),
            Observed::Agrees
        );
        let bounds = clock.bounds(Micros(113 * MS)).unwrap();
        assert_eq!(bounds.lo, Micros(5_100 * MS));
        assert_eq!(bounds.hi, Micros(5_102 * MS + 2));
    }

    #[test]
    fn a_stamp_outside_the_bounds_starts_a_new_base() {
        for (stamp_after, stepped) in [(5_180, false), (5_221, true), (5_100, true)] {
            let mut clock = StoreClock::new();
            clock.observe(stamp(5_000, 10, 30), false);
            let seen = clock.observe(stamp(stamp_after, 200, 220), false);
            let is_step = matches!(seen, Observed::Stepped(_));
            assert_eq!(is_step, stepped, "{stamp_after}");
        }
    }
}
