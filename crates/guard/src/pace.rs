//! The arithmetic of one limit: a token bucket represented by the time when it is full again.
//!
//! A bucket of `burst` tokens that gains `limit` tokens per `period` is described by one point in
//! time, `full` (the "theoretical arrival time" of GCRA). A token moves that point by `period /
//! limit`; the bucket is empty when it lies `burst × period / limit` ahead.
//!
//! Promises: exact. `period / limit` is stored as whole nanoseconds plus a part over a whole
//! denominator, so spending a token rounds nothing, and frequent asks lose nothing: a peek writes
//! nothing. `now` may run backwards; that never adds tokens and never panics.
//!
//! Never: uses a float, a clock or a lock.

use std::num::NonZeroU64;

use super::plan::Limit;

/// The longest time a bucket may take to fill, in nanoseconds: 73 years. With ticks below 2^62
/// every sum of a tick and a reach stays below 2^63.
const REACH_MAX: u128 = 1 << 61;

/// A reading that lies further back than this is from a clock that was set back. Anything closer
/// may come from a thread that was preempted between reading the clock and deciding, or from two
/// cores whose counters differ; treating those as set back would grant tokens twice.
const STALE_MAX: u64 = 60_000_000_000;

/// A point or a length of time: whole nanoseconds and `part` over the pace's `parts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FineTime {
    pub(crate) at: u64,
    pub(crate) part: u32,
}

/// One limit, compiled for the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Time that one token takes to come back.
    pub(crate) step: u64,
    step_part: u32,
    /// Denominator of every `part` of this pace; 1 when a token takes whole nanoseconds.
    parts: u32,
    /// Time that the whole burst takes to come back.
    pub(crate) reach: u64,
    reach_part: u32,
    /// Capacity in tokens.
    pub(crate) burst: u32,
    /// How far ahead a bucket may lie before the clock counts as set back.
    ahead_max: u64,
    /// `⌊(2^64 - 1) / (one token in parts)⌋`; 0 if a full bucket in parts does not fit in 64 bits.
    reciprocal: u64,
}

impl Pace {
    /// The pace of a limit that does not exist: always full, never rejects.
    pub(crate) const NONE: Pace = Pace {
        step: 0,
        step_part: 0,
        parts: 1,
        reach: 1 << 61,
        reach_part: 0,
        burst: u32::MAX,
        ahead_max: u64::MAX,
        reciprocal: u64::MAX,
    };

    /// Compiles a limit; `None` if the period is zero or the burst takes over 73 years to fill.
    pub(crate) fn new(limit: &Limit) -> Option<Pace> {
        let period = u64::try_from(limit.period.as_nanos()).ok()?;
        if period == 0 {
            return None;
        }
        let shared = gcd(period, u64::from(limit.limit.get()));
        let (token, parts) = (period / shared, u64::from(limit.limit.get()) / shared);
        let burst = limit.burst.get();
        let full = u128::from(token) * u128::from(burst);
        if full / u128::from(parts) > REACH_MAX {
            return None;
        }
        let reach = u64::try_from(full / u128::from(parts)).ok()?;
        Some(Pace {
            step: token / parts,
            step_part: narrow(token % parts),
            parts: narrow(parts),
            reach,
            reach_part: u32::try_from(full % u128::from(parts)).ok()?,
            burst,
            ahead_max: reach.saturating_add(period.max(STALE_MAX)),
            reciprocal: if full < 1 << 63 { u64::MAX / token } else { 0 },
        })
    }

    /// Whether every token takes whole nanoseconds, so that parts are always zero.
    pub(crate) fn is_whole(&self) -> bool {
        self.parts == 1
    }

    /// The bucket after `cost` tokens (at most `burst`) are taken, and how long it lacks them if
    /// it does.
    pub(crate) fn spend(
        &self,
        full: FineTime,
        now: u64,
        cost: u32,
    ) -> (FineTime, Option<NonZeroU64>) {
        let spent = self.add(full.max(FineTime { at: now, part: 0 }), self.charge(cost));
        let empty = FineTime {
            at: now + self.reach,
            part: self.reach_part,
        };
        // A started nanosecond counts, so the wait is never too short and never zero.
        let lack =
            (spent > empty).then(|| spent.at - empty.at + u64::from(spent.part > empty.part));
        (spent, lack.and_then(NonZeroU64::new))
    }

    /// The bucket after `cost` tokens are put back; never more than full.
    pub(crate) fn refund(&self, full: FineTime, now: u64, cost: u64) -> FineTime {
        if cost >= u64::from(self.burst) {
            return full.min(FineTime { at: now, part: 0 });
        }
        let back = self.charge(narrow(cost));
        let (part, borrow) = match full.part.checked_sub(back.part) {
            Some(part) => (part, 0),
            None => (full.part + (self.parts - back.part), 1),
        };
        match full.at.checked_sub(back.at + borrow) {
            Some(at) => FineTime { at, part },
            None => FineTime::default(),
        }
    }

    /// Whole tokens in `room` nanoseconds, for a pace without parts.
    #[inline]
    pub(crate) fn whole_tokens(&self, room: u64) -> u32 {
        let estimate = high_half(room, self.reciprocal);
        let exact = estimate + u64::from((estimate + 1).wrapping_mul(self.step) <= room);
        u32::try_from(exact).unwrap_or(u32::MAX)
    }

    /// Whole tokens in the bucket.
    #[inline]
    pub(crate) fn tokens(&self, full: FineTime, now: u64) -> u32 {
        let room = self.headroom(full, now);
        if self.reciprocal == 0 {
            return u32::try_from(self.tokens_in(room, 1)).unwrap_or(u32::MAX);
        }
        // One division less on the hot path: the estimate is exact or one too small.
        let units = room.at * u64::from(self.parts) + u64::from(room.part);
        let token = self.step * u64::from(self.parts) + u64::from(self.step_part);
        let estimate = high_half(units, self.reciprocal);
        let exact = estimate + u64::from((estimate + 1) * token <= units);
        u32::try_from(exact).unwrap_or(u32::MAX)
    }

    /// Millionths of a token in the bucket, rounded down.
    pub(crate) fn micro_tokens(&self, full: FineTime, now: u64) -> u64 {
        u64::try_from(self.tokens_in(self.headroom(full, now), 1_000_000)).unwrap_or(u64::MAX)
    }

    /// The bucket of `self` that holds as many tokens as `old` held (at most its own burst), so
    /// that a change of limits neither refills a bucket nor empties it.
    pub(crate) fn carry(&self, old: &Pace, full: FineTime, now: u64) -> FineTime {
        // 32 binary places of a token; rounding down is the strict direction.
        let held = old.tokens_in(old.headroom(full, now), 1 << 32);
        let most = u128::from(self.burst) << 32;
        let token = u128::from(self.step) * u128::from(self.parts) + u128::from(self.step_part);
        let missing = ((most - held.min(most)) * token).div_ceil(1 << 32);
        let parts = u128::from(self.parts);
        let ahead = u64::try_from(missing / parts)
            .unwrap_or(self.reach)
            .min(self.reach);
        FineTime {
            at: now + ahead,
            part: u32::try_from(missing % parts).unwrap_or(0),
        }
    }

    /// A clock that was set back must not block a key for longer than a period (or a minute, if
    /// that is longer) beyond the time it takes to fill: such a bucket counts as empty from now on.
    pub(crate) fn repair(&self, full: FineTime, now: u64) -> Option<FineTime> {
        let set_back = full.at.saturating_sub(now) > self.ahead_max;
        set_back.then_some(FineTime {
            at: now + self.reach,
            part: self.reach_part,
        })
    }

    /// Time until the bucket is full, at most its reach; zero when it is full.
    pub(crate) fn debt(&self, full: FineTime, now: u64) -> FineTime {
        if full.at < now {
            return FineTime::default();
        }
        let debt = FineTime {
            at: full.at - now,
            part: full.part,
        };
        debt.min(FineTime {
            at: self.reach,
            part: self.reach_part,
        })
    }

    /// The bucket that lacked `debt` when it was saved `away` ago; `None` if no bucket of this pace
    /// can lack that.
    pub(crate) fn restore_debt(&self, debt: FineTime, now: u64, away: u64) -> Option<FineTime> {
        let possible = debt
            <= FineTime {
                at: self.reach,
                part: self.reach_part,
            };
        let full = FineTime {
            at: (now + debt.at.min(self.reach)).saturating_sub(away),
            ..debt
        };
        (possible && debt.part < self.parts).then_some(full)
    }

    /// How far the bucket is from empty, as time.
    #[inline]
    fn headroom(&self, full: FineTime, now: u64) -> FineTime {
        let full = full.max(FineTime { at: now, part: 0 });
        let empty = FineTime {
            at: now + self.reach,
            part: self.reach_part,
        };
        if full > empty {
            return FineTime::default();
        }
        match empty.part.checked_sub(full.part) {
            Some(part) => FineTime {
                at: empty.at - full.at,
                part,
            },
            None => FineTime {
                at: empty.at - full.at - 1,
                part: empty.part + (self.parts - full.part),
            },
        }
    }

    /// `room` counted in tokens × `scale`, rounded down.
    fn tokens_in(&self, room: FineTime, scale: u64) -> u128 {
        let parts = u128::from(self.parts);
        let units = u128::from(room.at) * parts + u128::from(room.part);
        let token = u128::from(self.step) * parts + u128::from(self.step_part);
        units * u128::from(scale) / token.max(1)
    }

    /// The time that `cost` tokens (at most `burst`) stand for.
    fn charge(&self, cost: u32) -> FineTime {
        let parts = u64::from(self.step_part) * u64::from(cost);
        let whole = self.step * u64::from(cost);
        if self.parts == 1 || parts < u64::from(self.parts) {
            return FineTime {
                at: whole,
                part: narrow(parts),
            };
        }
        let per = u64::from(self.parts);
        FineTime {
            at: whole + parts / per,
            part: narrow(parts % per),
        }
    }

    fn add(&self, from: FineTime, length: FineTime) -> FineTime {
        let part = u64::from(from.part) + u64::from(length.part);
        let carry = u64::from(part >= u64::from(self.parts));
        let part = part - carry * u64::from(self.parts);
        FineTime {
            at: from.at + length.at + carry,
            part: narrow(part),
        }
    }
}

/// High half of a 128-bit product.
#[inline]
pub(crate) fn high_half(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// A value that is known to be a part of a 32-bit denominator, or at most a burst.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "asserted: parts and bursts have 32 bits"
)]
fn narrow(value: u64) -> u32 {
    debug_assert!(
        value <= u64::from(u32::MAX),
        "parts and bursts are 32-bit by construction"
    );
    value as u32
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
