//! Time for guards: points on one process's clock, in nanoseconds, and the clock that reads them.
//!
//! Promises: a [`Tick`] is small enough that adding any plan's reach to it cannot overflow. The
//! clock reads the processor's time-stamp counter where that is steady (a few nanoseconds a
//! reading) and the operating system's monotonic clock elsewhere.
//!
//! Never: is read by the guard table itself; the table takes `now` as an argument.

use std::time::Duration;

use super::pace::high_half;

/// The last point a [`Tick`] can name: 146 years after the clock's start. Half the range of `u64`
/// is left free above it, so sums of a tick and a plan's reach need no overflow check.
const TICK_MAX: u64 = 1 << 62;

/// A point on the clock of one process, in nanoseconds since some start. Only differences mean
/// anything; snapshots carry ages, never ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(u64);

impl Tick {
    /// The point `nanos` after the clock's start; points beyond 146 years become that point.
    #[must_use]
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Tick {
        Tick(if nanos < TICK_MAX { nanos } else { TICK_MAX })
    }

    /// Nanoseconds since the clock's start.
    #[must_use]
    #[inline]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The point `length` later; saturates.
    #[must_use]
    pub fn after(self, length: Duration) -> Tick {
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        Tick::from_nanos(self.0.saturating_add(length))
    }
}

/// The clock that guards run on in production. Cheap to clone; clones agree with each other.
#[derive(Clone, Debug)]
pub struct TickClock {
    clock: quanta::Clock,
    start: u64,
    /// Nanoseconds per count of the source, as a fraction of 2^64.
    scale: u64,
    /// Counts after the start up to which the scale may be used: until the last [`Tick`]. 0 when a
    /// count is a nanosecond or longer and the crate must do the scaling.
    counts_max: u64,
}

/// Counts over which the scale is taken: 2^52 counts are over a week, so its error is below
/// 10^-15, far below that of the calibration itself.
const SCALE_BITS: u32 = 52;

impl TickClock {
    /// A clock that starts now. The first one in a process calibrates for up to 200 ms.
    #[must_use]
    pub fn new() -> TickClock {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        let nanos = clock.delta_as_nanos(0, 1 << SCALE_BITS);
        let fits = nanos < 1 << SCALE_BITS;
        TickClock {
            clock,
            start,
            scale: if fits { nanos << (64 - SCALE_BITS) } else { 0 },
            // A count is shorter than a nanosecond, so these are at most `TICK_MAX` nanoseconds.
            counts_max: if fits { TICK_MAX } else { 0 },
        }
    }

    /// The current time.
    ///
    /// Scaled by one multiplication: the crate's own scaling takes four times as long, and every
    /// decision waits for it. One comparison finds all unusual cases: a count from before the start
    /// (which wraps to a huge one), one too late for a tick, and a clock without a scale.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Tick {
        let raw = self.clock.raw();
        let counts = raw.wrapping_sub(self.start);
        if counts > self.counts_max {
            return self.now_slow(raw);
        }
        Tick(high_half(counts, self.scale))
    }

    #[cold]
    fn now_slow(&self, raw: u64) -> Tick {
        Tick::from_nanos(self.clock.delta_as_nanos(self.start, raw))
    }
}

impl Default for TickClock {
    fn default() -> TickClock {
        TickClock::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_saturates_instead_of_overflowing() {
        let last = Tick::from_nanos(u64::MAX);
        assert_eq!(last, Tick::from_nanos(TICK_MAX));
        assert_eq!(last.after(Duration::MAX), last);
    }

    #[test]
    fn the_clock_does_not_run_backwards_within_a_thread() {
        let clock = TickClock::new();
        let mut before = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= before);
            before = now;
        }
    }

    #[test]
    fn a_reading_from_before_the_start_is_the_start() {
        let clock = TickClock::new();
        let early = TickClock {
            start: clock.start + (1 << 50),
            ..clock
        };
        assert_eq!(early.now(), Tick::default());
    }

    #[test]
    fn a_clock_without_a_scale_tells_the_same_time() {
        let quick = TickClock::new();
        let slow = TickClock {
            counts_max: 0,
            ..quick.clone()
        };
        let (before, between, after) = (quick.now(), slow.now(), quick.now());
        // Both scales are rounded: a nanosecond is no difference.
        assert!(before.nanos() <= between.nanos() + 1 && between.nanos() <= after.nanos() + 1);
    }
}
