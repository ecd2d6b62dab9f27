//! The table itself: shards, plans, the number of keys, and the sweep.
//!
//! Promises: every bound is here. A sweep holds one shard's lock for at most [`SWEEP_HOLD`] slots
//! at a time (or for one resizing of that shard), so a concurrent decision waits for microseconds.
//!
//! Never: holds the lock of the plan list while it takes a shard's lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::clock::Tick;
use super::hint::Hint;
use super::huge_pages::{HugePages, RegionHandle};
use super::key::{GuardKey, Keys, Seed};
use super::lock::Lock;
use super::plan::{GuardPlan, Limit, PlanError};
use super::shard::Shard;

/// The largest number of keys of a table: 2^28 keys are 25 GB of slots.
pub const KEYS_MAX: usize = 1 << 28;

/// Different plans that one table remembers: 65,536 plans are some 26 MB. Configuration makes tens;
/// only clients that choose their own limits (`CL.THROTTLE`) come near it.
pub const PLANS_MAX: usize = 1 << 16;

/// Fewest shards: with two threads the chance to meet in one is 1 in 256.
const SHARDS_MIN: usize = 256;

/// Keys per shard when the table is full: growing one moves 370 KiB,
/// some 100 µs with the page faults of the new memory.
const SHARD_KEYS: usize = 4_096;

/// Slots that a sweep visits under one lock: 64 lines are 4 KiB, a few microseconds.
const SWEEP_HOLD: usize = 64;

/// Slots that a decision searches for an idle one when the table is full: 2 KiB.
pub(super) const ROOM_SEARCH: usize = 32;

const _: () = assert!(
    size_of::<Lock<Shard>>() == 64,
    "a shard and its lock are one cache line"
);

/// Limits on any number of keys up to a bound, decided in nanoseconds.
pub struct GuardTable {
    pub(super) shards: Box<[Lock<Shard>]>,
    /// One per shard.
    pub(super) hints: Box<[Hint]>,
    huge_pages: HugePages,
    /// Number of shards minus one; the number is a power of two.
    pub(super) mask: u64,
    /// Keys held, shared bucket included.
    pub(super) keys: AtomicUsize,
    pub(super) keys_max: usize,
    pub(super) plans: RwLock<Plans>,
    pub(super) seed: Seed,
    overflow: Keys,
    overflowed: AtomicU64,
    /// Shard where the next sweep continues.
    sweep_at: AtomicUsize,
}

/// Every plan the table ever made; a slot names its plan by position.
#[derive(Debug, Default)]
pub(super) struct Plans {
    pub(super) list: Vec<GuardPlan>,
    by_limits: HashMap<Vec<Limit>, usize>,
}

/// What one call of [`GuardTable::sweep`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Slots visited.
    pub visited: usize,
    /// Keys evicted because all their buckets were full again.
    pub removed: usize,
    /// Shards whose end was reached; when it equals the number of shards, the sweep has visited the
    /// whole table.
    pub shards: usize,
}

impl GuardTable {
    /// An empty table for at most `keys_max` keys (itself at most [`KEYS_MAX`], at least 1).
    #[must_use]
    pub fn new(keys_max: usize, seed: Seed) -> GuardTable {
        let keys_max = keys_max.clamp(1, KEYS_MAX);
        let shards: Vec<_> = (0..shards_for(keys_max)).map(|_| Shard::new()).collect();
        let huge_pages = HugePages::new(shards.len(), keys_max);
        GuardTable::with_shards(shards, huge_pages, keys_max, seed, Plans::default())
    }

    pub(super) fn with_shards(
        shards: Vec<Shard>,
        huge_pages: HugePages,
        keys_max: usize,
        seed: Seed,
        plans: Plans,
    ) -> GuardTable {
        let keys = shards.iter().map(Shard::used).sum();
        GuardTable {
            mask: shards.len() as u64 - 1,
            hints: shards.iter().map(|_| Hint::default()).collect(),
            shards: shards.into_iter().map(Lock::new).collect(),
            huge_pages,
            keys: AtomicUsize::new(keys),
            keys_max,
            plans: RwLock::new(plans),
            seed,
            overflow: Keys::new(seed, "\0overflow"),
            overflowed: AtomicU64::new(0),
            sweep_at: AtomicUsize::new(0),
        }
    }

    /// The maker of keys for one class of callers (`ip`, `user`, …). Make it once, use it often.
    #[must_use]
    pub fn keys(&self, class: &str) -> Keys {
        Keys::new(self.seed, class)
    }

    /// The plan with these limits. The same limits give the same plan; a key that comes back with
    /// another plan keeps the tokens it had (at most the new burst), so a change of limits is
    /// neither a reset nor a burst.
    ///
    /// # Errors
    /// No limit, too many of them, an impossible one, or [`PLANS_MAX`] different plans.
    pub fn plan(&self, limits: &[Limit]) -> Result<GuardPlan, PlanError> {
        self.plans.write().plan(limits)
    }

    /// Keys held now: those that no sweep has found full again.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Decisions that were made on a shared bucket because the table was full.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Shards of this table.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Bytes that the table holds outside the allocator: huge pages, when it is nearly full. As
    /// many as a full table fills; pages that no key has used yet take no memory.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.huge_pages.bytes()
    }

    /// Visits at most about `slots` slots, continues where the last call stopped, and evicts keys
    /// whose buckets are all full again. Ends early when it has visited the whole table.
    pub fn sweep(&self, now: Tick, slots: usize) -> Swept {
        let mut swept = Swept::default();
        let mut remaining = slots;
        while remaining > 0 && swept.shards < self.shards.len() {
            let at = self.sweep_at.load(Ordering::Relaxed) % self.shards.len();
            // Lives longer than the lock: the replaced memory is dropped without it, see `Slots`.
            let step = self.shards[at]
                .lock()
                .sweep(now.nanos(), remaining.min(SWEEP_HOLD));
            self.keys.fetch_sub(step.removed, Ordering::Relaxed);
            swept.visited += step.visited;
            swept.removed += step.removed;
            remaining = remaining.saturating_sub(step.visited.max(1));
            if step.wrapped {
                swept.shards += 1;
                self.sweep_at.store(at + 1, Ordering::Relaxed);
            }
        }
        swept
    }

    #[inline]
    pub(super) fn shard_of(&self, key: GuardKey) -> usize {
        usize::try_from(key.low & self.mask).unwrap_or(0)
    }

    /// The region that shard `number` may claim.
    #[inline]
    pub(super) fn region(&self, number: usize) -> RegionHandle<'_> {
        RegionHandle {
            pages: &self.huge_pages,
            number,
        }
    }

    /// Reserves room for `new` more keys, if there is any.
    pub(super) fn reserve(&self, new: usize) -> bool {
        let held = self.keys.fetch_add(new, Ordering::Relaxed);
        let fits = held + new <= self.keys_max;
        if !fits {
            self.keys.fetch_sub(new, Ordering::Relaxed);
        }
        fits
    }

    /// The bucket that all keys of a plan share when there is no room for their own.
    pub(super) fn shared_key(&self, plan: &GuardPlan) -> GuardKey {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow.number(u64::from(plan.id))
    }
}

impl Plans {
    pub(super) fn plan(&mut self, limits: &[Limit]) -> Result<GuardPlan, PlanError> {
        if let Some(known) = self.by_limits.get(limits) {
            return Ok(self.list[*known].clone());
        }
        let at = self.list.len();
        if at >= PLANS_MAX {
            return Err(PlanError::TableFull(at));
        }
        let id = u32::try_from(at + 1).unwrap_or(u32::MAX);
        let plan = GuardPlan::new(limits, id)?;
        self.list.push(plan.clone());
        self.by_limits.insert(limits.to_vec(), at);
        Ok(plan)
    }

    /// The plan that a slot names.
    pub(super) fn named(&self, id: u32) -> Option<&GuardPlan> {
        self.list.get(usize::try_from(id).ok()?.checked_sub(1)?)
    }
}

impl fmt::Debug for GuardTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardTable")
            .field("keys", &self.len())
            .field("keys_max", &self.keys_max)
            .field("shards", &self.shards.len())
            .finish_non_exhaustive()
    }
}

/// A power of two that leaves [`SHARD_KEYS`] or fewer keys to each.
pub(super) fn shards_for(keys_max: usize) -> usize {
    keys_max
        .div_ceil(SHARD_KEYS)
        .next_power_of_two()
        .max(SHARDS_MIN)
}
