//! The token bucket, refilled continuously or in ticks.
//!
//! Promises: no fraction is lost: the level is stored in unit·µs of the window (one unit is `W`),
//! so a refill of `limit` per `W` adds exactly `limit` per microsecond.
//!
//! Never: holds more than its depth, or less than nothing.

use tollgate_core::time::{Micros, Span};

use super::{Availability, CallId, Counter, LimitStatus};

/// A bucket that starts full.
#[derive(Debug)]
pub(super) struct Bucket {
    limit: u64,
    window: u64,
    burst: u64,
    tick: u64,
    /// Level in units · window.
    level: u128,
    filled: Micros,
}

/// The burst after the limit changed from `old` to `new`: in the same ratio and at least one unit,
/// zero at a limit of zero, and as deep as the limit when the limit rises from zero.
pub(super) fn scaled_burst(burst: u64, old: u64, new: u64) -> u64 {
    if old == 0 || new == 0 {
        return new;
    }
    let scaled = u128::from(burst) * u128::from(new) / u128::from(old);
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}

impl Bucket {
    pub(super) fn new(limit: u64, window: Span, burst: u64, tick: Option<Span>) -> Bucket {
        let window = window.0.max(1);
        let level = u128::from(burst) * u128::from(window);
        // Continuous refill is a tick of one microsecond, the resolution of the clock.
        let tick = tick.map_or(1, |tick| tick.0.max(1));
        Bucket {
            limit,
            window,
            burst,
            tick,
            level,
            filled: Micros(0),
        }
    }

    fn depth(&self) -> u128 {
        u128::from(self.burst) * u128::from(self.window)
    }

    fn per_tick(&self) -> u128 {
        u128::from(self.limit) * u128::from(self.tick)
    }

    fn refill(&mut self, now: Micros) {
        let ticks = u128::from(now.0 / self.tick) - u128::from(self.filled.0 / self.tick);
        self.level = self
            .level
            .saturating_add(ticks.saturating_mul(self.per_tick()));
        self.level = self.level.min(self.depth());
        self.filled = now;
    }

    /// Time until the level has reached `wanted`; `None` if it never does.
    fn until(&self, wanted: u128, now: Micros) -> Option<Span> {
        if wanted > self.depth() || self.limit == 0 {
            return None;
        }
        let ticks = wanted.saturating_sub(self.level).div_ceil(self.per_tick());
        let at = (u128::from(now.0 / self.tick) + ticks) * u128::from(self.tick);
        Some(Micros(u64::try_from(at).unwrap_or(u64::MAX)).since(now))
    }
}

impl Counter for Bucket {
    fn availability(&mut self, cost: u64, now: Micros) -> Availability {
        self.refill(now);
        let wanted = u128::from(cost) * u128::from(self.window);
        if wanted <= self.level {
            return Availability::Now;
        }
        self.until(wanted, now)
            .map_or(Availability::Unknown, Availability::After)
    }

    fn charge(&mut self, _id: CallId, cost: u64, now: Micros) {
        self.refill(now);
        let charged = u128::from(cost) * u128::from(self.window);
        self.level = self.level.saturating_sub(charged);
    }

    fn status(&mut self, now: Micros) -> LimitStatus {
        self.refill(now);
        LimitStatus {
            limit: self.burst,
            remaining: u64::try_from(self.level / u128::from(self.window)).unwrap_or(u64::MAX),
            reset_after: self.until(self.depth(), now).unwrap_or(Span::ZERO),
        }
    }

    fn set_limit(&mut self, limit: u64, now: Micros) {
        self.refill(now);
        self.burst = scaled_burst(self.burst, self.limit, limit);
        self.limit = limit;
        self.level = self.level.min(self.depth());
    }
}
