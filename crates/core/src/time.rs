//! Points and lengths of time, in whole microseconds.
//!
//! Promises: arithmetic saturates and never panics, so a hostile `Retry-After` or a clock that
//! jumps cannot take the process down. A [`Micros`] is a point on the ledger's own clock (boot
//! time, or virtual time in tests), a [`Wall`] is a point on the calendar, a [`Span`] is a length.
//! The three cannot be mixed up.
//!
//! Never: reads a clock. The one module that does is `clock` in the ledger crate.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point on the ledger's clock in microseconds. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

/// A point on the calendar: microseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub u64);

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

/// One reading of both clocks, taken together: rates use `at`, calendar windows use `wall`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Ledger clock: counts through suspend, never steps.
    pub at: Micros,
    /// Calendar clock: may step either way at any moment.
    pub wall: Wall,
}

/// Bounds of the store's time, for a node that knows it only from replies: `lo ≤ store time ≤ hi`.
///
/// What *frees* (is there room, has a slot come back, is a scope open again) uses `lo`; what
/// *stamps* (settles, debits, give-up times, closes) uses `hi`. So nothing that was stamped is free
/// before its time, however late a reply was. A ledger that reads its own clock under its lock
/// knows the time exactly: `lo = hi`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeBounds {
    /// The ledger's clock shows at least this.
    pub lo: Micros,
    /// The ledger's clock shows at most this.
    pub hi: Micros,
    /// Calendar clock, read together with `lo`.
    pub wall: Wall,
}

impl From<Now> for TimeBounds {
    fn from(now: Now) -> TimeBounds {
        TimeBounds::exact(now.at, now.wall)
    }
}

impl TimeBounds {
    /// The time is known exactly.
    #[must_use]
    pub const fn exact(at: Micros, wall: Wall) -> TimeBounds {
        TimeBounds {
            lo: at,
            hi: at,
            wall,
        }
    }

    /// Bounds in the right order: a `hi` below `lo` is `lo`.
    #[must_use]
    pub fn new(lo: Micros, hi: Micros, wall: Wall) -> TimeBounds {
        TimeBounds {
            lo,
            hi: hi.max(lo),
            wall,
        }
    }

    /// The reading with which calendar time is compared.
    pub(crate) fn freeing(self) -> Now {
        Now {
            at: self.lo,
            wall: self.wall,
        }
    }
}

impl Micros {
    /// Time passed since `earlier`; zero if `earlier` lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Micros) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Wall {
    /// Time passed since `earlier`; zero if `earlier` lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Wall) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);

    /// A length in whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Span {
        Span(secs.saturating_mul(1_000_000))
    }

    /// A length in whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Span {
        Span(millis.saturating_mul(1_000))
    }

    /// `self × num / den`, rounded up; saturates.
    #[must_use]
    pub fn scale_up(self, num: u64, den: u64) -> Span {
        let scaled = (u128::from(self.0) * u128::from(num)).div_ceil(u128::from(den.max(1)));
        Span(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// The larger of both.
    #[must_use]
    pub fn max(self, other: Span) -> Span {
        Span(self.0.max(other.0))
    }
}

impl Add<Span> for Micros {
    type Output = Micros;
    fn add(self, span: Span) -> Micros {
        Micros(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Micros {
    type Output = Micros;
    fn sub(self, span: Span) -> Micros {
        Micros(self.0.saturating_sub(span.0))
    }
}

impl Add<Span> for Wall {
    type Output = Wall;
    fn add(self, span: Span) -> Wall {
        Wall(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Wall {
    type Output = Wall;
    fn sub(self, span: Span) -> Wall {
        Wall(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl Sub for Span {
    type Output = Span;
    fn sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl AddAssign<Span> for Micros {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Span {
        Span(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Duration {
        Duration::from_micros(span.0)
    }
}

impl Span {
    /// For people: `350 ms`, `12 s`, `1 min 30 s`, `23 h 58 min`, `3 d 4 h`. Rounded up, so a
    /// client that returns after it is never too early.
    #[must_use]
    pub fn in_words(self) -> String {
        /// A unit in microseconds, its name, the next smaller unit and its name.
        const UNITS: [(u64, &str, u64, &str); 3] = [
            (86_400_000_000, "d", 3_600_000_000, "h"),
            (3_600_000_000, "h", 60_000_000, "min"),
            (60_000_000, "min", 1_000_000, "s"),
        ];
        if self < Span::from_secs(1) {
            return format!("{} ms", self.0.div_ceil(1_000));
        }
        let found = UNITS.into_iter().find(|(unit, ..)| self.0 >= *unit);
        let Some((unit, large, part, small)) = found else {
            return format!("{} s", self.0.div_ceil(1_000_000));
        };
        let parts = self.0.div_ceil(part);
        let (whole, rest) = (parts / (unit / part), parts % (unit / part));
        if rest == 0 {
            format!("{whole} {large}")
        } else {
            format!("{whole} {large} {rest} {small}")
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Micros(5).since(Micros(9)), Span::ZERO);
        assert_eq!(Micros(u64::MAX) + Span(1), Micros(u64::MAX));
        assert_eq!(Micros(1) - Span(2), Micros(0));
        assert_eq!(Span::from_secs(u64::MAX), Span(u64::MAX));
        assert_eq!(Span(u64::MAX).scale_up(3, 2), Span(u64::MAX));
    }

    #[test]
    fn a_duration_for_people_has_two_units_and_is_rounded_up() {
        for (micros, words) in [
            (350_000, "350 ms"),
            (999_001, "1000 ms"),
            (12_000_001, "13 s"),
            (90_000_000, "1 min 30 s"),
            (3_600_000_000, "1 h"),
            (86_295_525_036, "23 h 59 min"),
            (86_399_999_999, "24 h"),
            (273_600_000_000, "3 d 4 h"),
        ] {
            assert_eq!(Span(micros).in_words(), words);
        }
    }

    #[test]
    fn scaling_rounds_up_and_survives_a_zero_divisor() {
        assert_eq!(Span(1_000).scale_up(1_001, 1_000), Span(1_001));
        assert_eq!(Span(1).scale_up(1_001, 1_000), Span(2));
        assert_eq!(Span(7).scale_up(1, 0), Span(7));
    }
}
