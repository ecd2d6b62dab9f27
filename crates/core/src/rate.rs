//! Calls per second, as a whole number.
//!
//! Promises: nothing here is a float, and arithmetic saturates. A rate is never rounded to zero
//! where a call may go at all.
//!
//! Never: limits anything itself.

use std::fmt;

use crate::ratio::Ppm;
use crate::time::Span;

/// Calls per second, in millionths of a call, so that 1 000 a day is not rounded to 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

/// One call per second in the unit of [`Rate`].
const CALL: u64 = 1_000_000;

impl Rate {
    /// Whole calls per second.
    #[must_use]
    pub const fn per_second(calls: u32) -> Rate {
        Rate(calls as u64 * CALL)
    }

    /// Millionths of a call per second.
    #[must_use]
    pub const fn from_millionths(millionths: u64) -> Rate {
        Rate(millionths)
    }

    /// `limit` calls in `period`. Rounded down, but never to zero.
    #[must_use]
    pub fn of(limit: u64, period: Span) -> Rate {
        let second = u128::from(Span::from_secs(1).0);
        let scaled = u128::from(limit) * u128::from(CALL) * second / u128::from(period.0.max(1));
        Rate(u64::try_from(scaled).unwrap_or(u64::MAX).max(1))
    }

    /// Millionths of a call per second.
    #[must_use]
    pub fn millionths(self) -> u64 {
        self.0
    }

    /// The time from one call to the next, rounded up.
    #[must_use]
    pub fn gap(self) -> Span {
        Span((CALL * Span::from_secs(1).0).div_ceil(self.0.max(1)))
    }

    pub(crate) fn times(self, factor: Ppm) -> Rate {
        Rate(factor.times(self.0))
    }

    /// This one part of it, but never zero.
    pub(crate) fn divided(self, parts: u64) -> Rate {
        Rate((self.0 / parts.max(1)).max(1))
    }

    pub(crate) fn plus(self, other: Rate) -> Rate {
        Rate(self.0.saturating_add(other.0))
    }

    pub(crate) fn whole(self) -> Rate {
        Rate(self.0 / CALL * CALL)
    }
}

impl fmt::Display for Rate {
    /// Calls per second: `17`, `18.7`, `0.011574`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{}.{:06}", self.0 / CALL, self.0 % CALL);
        f.write_str(digits.trim_end_matches('0').trim_end_matches('.'))
    }
}
