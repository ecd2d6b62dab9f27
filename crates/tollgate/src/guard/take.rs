//! The questions a table answers, and the fast way to answer the usual one.
//!
//! Promises: a known key that has tokens is decided here, under one lock and in one cache line.
//! Everything else (new keys, refusals, several keys, other costs) goes the general way.
//!
//! Never: decides differently from the general way.

use std::time::Duration;

use super::clock::Tick;
use super::key::Key;
use super::pace::Fine;
use super::plan::{LIMITS_MAX, Plan};
use super::shard::Slot;
use super::table::GuardTable;

/// Asks decided as one: address, user, key, tenant, route, global and two to spare. The locks of
/// one decision are held together, so the number is small.
pub const ASKS_MAX: usize = 8;

/// `cost` tokens of every limit of `plan`, for `key`.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'p> {
    /// Who asks.
    pub key: Key,
    /// What the key may do.
    pub plan: &'p Plan,
    /// Tokens: 0 only looks, a negative number puts tokens back.
    pub cost: i64,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every limit of every ask agreed and was charged.
    Granted {
        /// Whole tokens left in the emptiest bucket.
        remaining: u32,
    },
    /// Some limit lacked tokens; nothing was charged.
    Refused(Refused),
    /// The cost is above a burst: waiting cannot help; nothing was charged.
    Never {
        /// Which ask.
        ask: usize,
        /// Which limit of its plan.
        limit: usize,
    },
}

/// The limit that keeps the caller waiting longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// When the same question would be granted if nobody else asks; never zero.
    pub retry_in: Duration,
    /// Which ask.
    pub ask: usize,
    /// Which limit of its plan.
    pub limit: usize,
}

/// More than [`ASKS_MAX`] asks in one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} asks in one decision; at most {ASKS_MAX} can be decided as one")]
pub struct TooManyAsks(pub usize);

/// The buckets of one key at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The moment up to which refill is counted.
    pub last_refill: Tick,
    seen: [Seen; LIMITS_MAX],
    count: usize,
}

/// One bucket at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Tokens available in millionths, rounded down.
    pub micro_tokens: u64,
    /// Time until the bucket is full.
    pub full_in: Duration,
}

impl GuardTable {
    /// One token for one key.
    #[inline]
    pub fn take(&self, key: Key, plan: &Plan, now: Tick) -> Outcome {
        self.take_cost(Ask { key, plan, cost: 1 }, now)
    }

    /// One ask, decided by itself.
    #[inline]
    pub fn take_cost(&self, ask: Ask<'_>, now: Tick) -> Outcome {
        let Ask { key, plan, cost } = ask;
        if cost > 0 && cost <= i64::from(plan.cost_max) {
            let cost = cost.unsigned_abs();
            let mut shard = self.shards[self.shard_of(key)].lock();
            let slot = shard.find(key);
            // A known key under the plan it is written in: all but a few decisions.
            if slot.plan == plan.id
                && plan.whole
                && let Some(remaining) = slot.spend(plan, now.nanos(), cost)
            {
                return Outcome::Granted { remaining };
            }
        }
        self.decide(&[ask], now, &mut [])
    }

    /// Several asks decided as one: every limit of every ask, or nothing. No asks are granted.
    ///
    /// # Errors
    /// More than [`ASKS_MAX`] asks.
    pub fn take_all(&self, asks: &[Ask<'_>], now: Tick) -> Result<Outcome, TooManyAsks> {
        self.take_and_look(asks, now, &mut [])
    }

    /// The same, and what each ask's buckets hold afterwards, as part of the same decision; as
    /// many as `looks` has places.
    ///
    /// # Errors
    /// More than [`ASKS_MAX`] asks.
    pub fn take_and_look(
        &self,
        asks: &[Ask<'_>],
        now: Tick,
        looks: &mut [Look],
    ) -> Result<Outcome, TooManyAsks> {
        if asks.len() > ASKS_MAX {
            return Err(TooManyAsks(asks.len()));
        }
        Ok(self.decide(asks, now, looks))
    }

    /// What a key's buckets hold, without taking anything.
    #[must_use]
    pub fn look(&self, key: Key, plan: &Plan, now: Tick) -> Look {
        let mut looks = [Look::default()];
        self.decide(&[Ask { key, plan, cost: 0 }], now, &mut looks);
        looks[0]
    }
}

impl Look {
    pub(super) fn new(slot: &Slot, plan: &Plan, now: Tick) -> Look {
        let mut look = Look {
            last_refill: now,
            ..Look::default()
        };
        for (at, pace) in plan.paces().iter().enumerate() {
            let full = slot.fine(at);
            let ahead = full.at.saturating_sub(now.nanos());
            look.seen[at] = Seen {
                micro_tokens: pace.micro_tokens(full, now.nanos()),
                full_in: Duration::from_nanos(
                    ahead + u64::from(full.part > 0 && full.at >= now.nanos()),
                ),
            };
            look.count = at + 1;
        }
        look
    }

    /// The buckets, in the order of the plan's limits.
    #[must_use]
    pub fn limits(&self) -> &[Seen] {
        self.seen.get(..self.count).unwrap_or(&self.seen)
    }

    /// Whole tokens in the emptiest bucket.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.limits()
            .iter()
            .map(|seen| seen.micro_tokens / 1_000_000)
            .min()
            .unwrap_or(0)
    }
}

impl Slot {
    /// Takes `cost` tokens of every limit of a plan without parts, or leaves all as they are.
    #[inline]
    fn spend(&mut self, plan: &Plan, now: u64, cost: u64) -> Option<u32> {
        let mut next = self.at;
        let mut agreed = true;
        for (at, pace) in next.iter_mut().zip(plan.paces()) {
            *at = now.max(*at) + pace.step * cost;
            agreed &= *at <= now + pace.reach;
        }
        if !agreed {
            return None;
        }
        self.at = next;
        let left = next.iter().zip(plan.paces());
        left.map(|(&at, pace)| pace.tokens(Fine { at, part: 0 }, now))
            .min()
    }
}
