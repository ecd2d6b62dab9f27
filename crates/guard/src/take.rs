//! The operations of a table, and the fast path for the usual one.
//!
//! Promises: a known key with tokens is decided here, under one lock and in one cache line.
//! Everything else (new keys, rejections, several keys, other costs) takes the general path.
//!
//! Never: decides differently from the general path.

use std::num::NonZeroU64;
use std::time::Duration;

use super::clock::Tick;
use super::key::GuardKey;
use super::plan::{GuardPlan, LIMITS_MAX};
use super::slots::Slot;
use super::table::GuardTable;

/// Asks decided as one: address, user, key, tenant, route, global and two to spare. The locks of
/// one decision are held together, so the number is small.
pub const ASKS_MAX: usize = 8;

/// `cost` tokens of every limit of `plan`, for `key`.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'p> {
    /// The key that is charged.
    pub key: GuardKey,
    /// The limits of the key.
    pub plan: &'p GuardPlan,
    /// Tokens: 0 only peeks, a negative number puts tokens back.
    pub cost: i64,
}

impl Ask<'_> {
    /// Tokens requested; none when tokens are put back.
    pub(super) fn wanted(&self) -> u64 {
        u64::try_from(self.cost).unwrap_or(0)
    }

    /// Whether a grant changes the table: a peek does not, nor tokens put back into a bucket that
    /// is full because its key is new (`fresh`).
    pub(super) fn writes(&self, fresh: bool) -> bool {
        self.cost > 0 || self.cost < 0 && !fresh
    }
}

/// The decision. Two machine words, so that it is passed in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every limit of every ask agreed and was charged.
    Granted {
        /// Whole tokens remaining in the emptiest bucket.
        remaining: u32,
    },
    /// Some limit lacked tokens; nothing was charged. Of several, the one with the longest wait.
    Rejected {
        /// When the same ask would be granted if nobody else asks; never zero.
        retry_in_ns: NonZeroU64,
        /// Which ask.
        ask: u8,
        /// Which limit of its plan.
        limit: u8,
    },
    /// The cost is above a burst: waiting cannot help; nothing was charged.
    Never {
        /// Which ask.
        ask: u8,
        /// Which limit of its plan.
        limit: u8,
    },
}

const _: () = assert!(
    size_of::<Outcome>() == 16,
    "an outcome must fit in two registers"
);

impl Outcome {
    /// Whether the ask was granted.
    #[must_use]
    #[inline]
    pub fn is_granted(self) -> bool {
        matches!(self, Outcome::Granted { .. })
    }
}

/// More than [`ASKS_MAX`] asks in one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} asks in one decision; at most {ASKS_MAX} can be decided as one")]
pub struct TooManyAsks(pub usize);

/// The buckets of one key at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyView {
    /// The time up to which refill is counted.
    pub last_refill: Tick,
    buckets: [BucketView; LIMITS_MAX],
    count: usize,
}

/// One bucket at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketView {
    /// Tokens available in millionths, rounded down.
    pub micro_tokens: u64,
    /// Time until the bucket is full.
    pub full_in: Duration,
}

impl GuardTable {
    /// Announces a decision on `key`, so that the processor can prefetch its slot meanwhile. Worth
    /// calling as soon as the key is known, before the clock is read.
    #[inline]
    pub fn fetch_ahead(&self, key: GuardKey) {
        self.hints[self.shard_of(key)].fetch_ahead(key);
    }

    /// One token for one key.
    #[inline]
    pub fn take(&self, key: GuardKey, plan: &GuardPlan, now: Tick) -> Outcome {
        match self.take_known(key, plan, 1, now) {
            Some(remaining) => Outcome::Granted { remaining },
            None => self.take_slow(Ask { key, plan, cost: 1 }, now),
        }
    }

    /// One ask, decided by itself.
    #[inline]
    pub fn take_cost(&self, ask: Ask<'_>, now: Tick) -> Outcome {
        let cost = u32::try_from(ask.cost).ok();
        match cost.and_then(|cost| self.take_known(ask.key, ask.plan, cost, now)) {
            Some(remaining) => Outcome::Granted { remaining },
            None => self.take_slow(ask, now),
        }
    }

    /// Several asks decided as one: every limit of every ask, or nothing. A key that is named
    /// twice pays twice. No asks are granted.
    ///
    /// # Errors
    /// More than [`ASKS_MAX`] asks.
    pub fn take_all(&self, asks: &[Ask<'_>], now: Tick) -> Result<Outcome, TooManyAsks> {
        self.take_and_view(asks, now, &mut [])
    }

    /// The same, and the buckets of each ask afterwards, as part of the same decision; as many as
    /// `views` has places.
    ///
    /// # Errors
    /// More than [`ASKS_MAX`] asks.
    pub fn take_and_view(
        &self,
        asks: &[Ask<'_>],
        now: Tick,
        views: &mut [KeyView],
    ) -> Result<Outcome, TooManyAsks> {
        if asks.len() > ASKS_MAX {
            return Err(TooManyAsks(asks.len()));
        }
        Ok(self.decide(asks, now, views))
    }

    /// One ask, and its buckets afterwards, as part of the same decision.
    pub fn take_and_view_one(&self, ask: Ask<'_>, now: Tick) -> (Outcome, KeyView) {
        let mut views = [KeyView::default()];
        let outcome = self.decide(&[ask], now, &mut views);
        (outcome, views[0])
    }

    /// New keys, rejections, limits with parts; and, seldom, everything else.
    #[inline(never)]
    fn take_slow(&self, ask: Ask<'_>, now: Tick) -> Outcome {
        match self.decide_one(ask, now) {
            Some(outcome) => outcome,
            None => self.decide(&[ask], now, &mut []),
        }
    }

    /// The usual case: a known key under its current plan, with enough tokens.
    ///
    /// Always inlined: most callers ignore `remaining`, and then it is not computed.
    #[inline(always)]
    fn take_known(&self, key: GuardKey, plan: &GuardPlan, cost: u32, now: Tick) -> Option<u32> {
        if cost == 0 || cost > plan.fast_max {
            return None;
        }
        // The home is computed before the lock is held: under it, others wait for every cycle.
        let at = self.shard_of(key);
        let home = self.hints[at].home(key);
        let mut shard = self.shards[at].lock();
        let slot = shard.find_known(home, key, plan.id)?;
        slot.spend(plan, now.nanos(), u64::from(cost))
    }

    /// The buckets of a key, without taking anything.
    #[must_use]
    pub fn peek(&self, key: GuardKey, plan: &GuardPlan, now: Tick) -> KeyView {
        let mut views = [KeyView::default()];
        self.decide(&[Ask { key, plan, cost: 0 }], now, &mut views);
        views[0]
    }
}

impl KeyView {
    pub(super) fn new(slot: &Slot, plan: &GuardPlan, now: Tick) -> KeyView {
        let mut view = KeyView {
            last_refill: now,
            ..KeyView::default()
        };
        for (at, pace) in plan.paces().iter().enumerate() {
            let full = slot.full_at(at);
            let ahead = full.at.saturating_sub(now.nanos());
            view.buckets[at] = BucketView {
                micro_tokens: pace.micro_tokens(full, now.nanos()),
                full_in: Duration::from_nanos(
                    ahead + u64::from(full.part > 0 && full.at >= now.nanos()),
                ),
            };
            view.count = at + 1;
        }
        view
    }

    /// The buckets, in the order of the plan's limits.
    #[must_use]
    pub fn buckets(&self) -> &[BucketView] {
        self.buckets.get(..self.count).unwrap_or(&self.buckets)
    }

    /// Whole tokens in the emptiest bucket.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.buckets()
            .iter()
            .map(|seen| seen.micro_tokens / 1_000_000)
            .min()
            .unwrap_or(0)
    }
}

impl Slot {
    /// Takes `cost` tokens of every limit of a plan without parts, or changes nothing.
    ///
    /// Written out for one limit and for three: as a loop over an array it went through the stack
    /// and cost twice the time. The missing third limit of a plan of two never rejects.
    #[inline]
    fn spend(&mut self, plan: &GuardPlan, now: u64, cost: u64) -> Option<u32> {
        let [first, second, third] = &plan.paces;
        let [one, two, three] = self.at;
        let one = now.max(one) + first.step * cost;
        let room_one = (now + first.reach).checked_sub(one)?;
        if plan.is_single() {
            self.at[0] = one;
            return Some(first.whole_tokens(room_one));
        }
        let two = now.max(two) + second.step * cost;
        let three = now.max(three) + third.step * cost;
        let room_two = (now + second.reach).checked_sub(two)?;
        let room_three = (now + third.reach).checked_sub(three)?;
        self.at = [one, two, three];
        let remaining = first.whole_tokens(room_one);
        Some(
            remaining
                .min(second.whole_tokens(room_two))
                .min(third.whole_tokens(room_three)),
        )
    }
}
