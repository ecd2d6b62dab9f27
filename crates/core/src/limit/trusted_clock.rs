//! The calendar time, as far as two clocks agree.
//!
//! Promises: a wall clock that jumps by more than [`CLOCK_TOLERANCE`], either way and however long
//! the clocks agreed before, neither opens nor reopens a calendar window, and a clock that runs too
//! fast cannot reach an edge in small steps.
//!
//! Never: reads a clock.

use crate::time::{Micros, Now, Span, Wall};

/// How far the wall clock and the ledger's clock may disagree before the wall clock is ignored: NTP
/// corrects up to this in one step on a healthy host.
pub const CLOCK_TOLERANCE: Span = Span::from_secs(5);

/// How fast the two clocks of one host may drift apart. Linux slews both alike; elsewhere a quartz
/// keeps 100 ppm, so twice that.
const HOST_DRIFT_PPM: u64 = 200;

/// The calendar time, as far as two clocks agree.
///
/// It stores the first pair of readings. The wall clock is trusted while it has moved as far as the
/// ledger's clock since that pair and since the last reading (within [`CLOCK_TOLERANCE`] and
/// drift). Otherwise somebody has set it, and calendar time continues as before. The pair does not
/// follow small differences; otherwise a clock that runs too fast would reach an edge in steps that
/// each look harmless. Drift since the pair alone would excuse a jump of minutes after a day of
/// uptime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrustedClock {
    pub(crate) wall: Wall,
    pub(crate) at: Micros,
    /// How far the last trusted wall reading was from the pair, in microseconds.
    pub(crate) shift: i64,
    /// When the wall clock was last read, trusted or not.
    pub(crate) last_read: Micros,
}

impl TrustedClock {
    /// The first reading is trusted: there is nothing to compare it with.
    pub(crate) fn new(now: Now) -> TrustedClock {
        TrustedClock {
            wall: now.wall,
            at: now.at,
            shift: 0,
            last_read: now.at,
        }
    }

    /// Compares a reading with the pair, and trusts it if it agrees.
    pub(crate) fn observe(&mut self, now: Now) {
        if now.at < self.at {
            return;
        }
        let agrees = |expected: Wall, elapsed: Span| {
            let tolerated = CLOCK_TOLERANCE + elapsed.scale_up(HOST_DRIFT_PPM, 1_000_000);
            expected.0.abs_diff(now.wall.0) <= tolerated.0
        };
        let paired = self.wall + now.at.since(self.at);
        if agrees(paired, now.at.since(self.at))
            && agrees(self.wall_at(now.at), now.at.since(self.last_read))
        {
            let (wall, paired) = (now.wall.0.cast_signed(), paired.0.cast_signed());
            self.shift = wall.wrapping_sub(paired);
        }
        self.last_read = now.at;
    }

    /// The provider's `Date` agrees with the wall clock: the wall clock was corrected.
    pub(crate) fn confirm(&mut self, now: Now, date: Wall) {
        if date.0.abs_diff(now.wall.0) <= CLOCK_TOLERANCE.0 {
            *self = TrustedClock::new(now);
        }
    }

    /// Calendar time at a point of the ledger's clock, before or after the pair.
    pub(crate) fn wall_at(&self, at: Micros) -> Wall {
        let wall = if at >= self.at {
            self.wall + at.since(self.at)
        } else {
            self.wall - self.at.since(at)
        };
        Wall(wall.0.saturating_add_signed(self.shift))
    }

    /// How long from `at` until calendar time is `wall`.
    pub(crate) fn until(&self, wall: Wall, at: Micros) -> Span {
        wall.since(self.wall_at(at))
    }
}
