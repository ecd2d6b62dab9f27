//! Limits that come with the request: `CL.THROTTLE key max_burst count period`.
//!
//! Promises: one token bucket per key, exact: times are counted in parts of a nanosecond that a token
//! takes a whole number of. A bucket carries its own limits, so any number of combinations is in use,
//! and a key that is asked about with other limits keeps its tokens. Looking leaves nothing behind.
//! Keys are bounded, and apart from those of configured guards, so that clients cannot crowd those out.
//!
//! Never: holds a key's name, only its fingerprint.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_config::config::Limiting;
use tollgate_core::time::Micros;
use tollgate_guard::Tick;
use tollgate_ledger::Ledger;

use super::shared;
use super::{Guards, KEYS_MAX, SWEEP_EVERY};

/// Parts of the table, each with its lock: a full one has 4,096 keys, which a sweep visits in some
/// ten microseconds.
const SHARDS: usize = 256;

/// A full table is swept so much more often.
const FULL_SWEEP_EVERY: u64 = 16;

/// Owners of keys that are told apart: the operator, and callers by a hash of their names. Two callers
/// with the same number, one pair in 255, share their part of the table.
const OWNERS: usize = 256;

/// Where a fingerprint has its owner: between the bits that choose a place in a shard and those that
/// tell its neighbours apart.
const OWNER_SHIFT: u32 = 48;

/// Buckets of each shard that keys share when the table is full, chosen by their limits.
const SHARED: u64 = 64;

/// The longest time a bucket may take to fill: 73 years, as of guards.
const FILL_MAX: u128 = 1 << 61;

/// A bucket that is full so much later than its limits allow is from a clock that was set back. A
/// thread that was preempted between reading the clock and deciding is not.
const STALE_NANOS: u128 = 60_000_000_000;

/// Buckets of keys that clients name, with limits that clients name.
#[derive(Debug)]
pub struct Throttle {
    /// Made for the first request.
    table: OnceLock<ThrottleTable>,
    /// Where it counts, if it is not the table.
    shared: Option<Arc<shared::SharedGuards>>,
    decisions: AtomicU64,
    /// Its clock is the throttle's clock.
    ledger: Ledger,
}

#[derive(Debug)]
struct ThrottleTable {
    shards: Box<[Mutex<Shard>]>,
    /// Nobody who does not know them can aim at another key.
    seeds: [RandomState; 2],
    /// Keys held, shared ones included.
    keys: AtomicUsize,
    /// The same by owner.
    keys_of: [AtomicUsize; OWNERS],
    /// The shard that is swept next.
    sweep_at: AtomicUsize,
}

type Shard = HashMap<Fingerprint, Bucket, BuildHasherDefault<FirstHalf>>;

/// Stands for the name of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint([u64; 2]);

/// A fingerprint is a hash already.
#[derive(Default)]
struct FirstHalf(u64);

/// Limits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleLimit {
    /// In nanoseconds: the time of one token, in parts of which a nanosecond has `count`.
    pub(super) period: u64,
    pub(super) count: u32,
    pub(super) burst: u32,
}

/// The tokens of one key.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    limit: ThrottleLimit,
    /// When it is full, in parts of its limit.
    full_at: u128,
}

/// What a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// No: nothing was taken.
    pub is_limited: bool,
    /// The capacity of the bucket.
    pub limit: u32,
    /// Whole tokens in it now.
    pub remaining: u64,
    /// When the same request would be granted; `None` if it was, or never will be.
    pub retry_in: Option<Duration>,
    /// When the bucket is full.
    pub reset_in: Duration,
}

/// Why limits cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThrottleError {
    /// The burst does not fit.
    #[error("max_burst must be from 0 to 4294967294")]
    Burst,
    /// The count does not fit.
    #[error("count per period must be from 1 to 4294967295; zero rates are not supported")]
    Count,
    /// The period does not fit.
    #[error("period must be a number of seconds from 1; zero rates are not supported")]
    Period,
    /// The bucket would take too long to fill.
    #[error(
        "max_burst takes more than 73 years to fill; use a smaller max_burst or a shorter period"
    )]
    TooSlow,
}

impl Throttle {
    /// Nothing is counted so far. It counts where the guards count. The clock is the ledger's.
    #[must_use]
    pub fn new(ledger: Ledger, guards: &Guards) -> Throttle {
        Throttle {
            table: OnceLock::new(),
            shared: guards.shared.clone(),
            decisions: AtomicU64::new(0),
            ledger,
        }
    }

    /// Whether it counts in a store, so that [`Throttle::take_shared`] decides.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The same as [`Throttle::take`] in the store of the guards. While that is lost, in this process with the
    /// part of this node.
    pub async fn take_shared(
        &self,
        key: &[u8],
        limit: &ThrottleLimit,
        quantity: i64,
        limiting: Limiting,
        now: Tick,
    ) -> Throttled {
        let Some(shared) = &self.shared else {
            return self.take(key, limit, quantity, limiting, now);
        };
        match self
            .try_shared(shared, key, limit, quantity, limiting)
            .await
        {
            Some(throttled) => throttled,
            None => {
                let share = limit.share_of(shared.nodes());
                self.take(key, &share, quantity, limiting, now)
            }
        }
    }

    /// Takes `quantity` tokens: 0 only looks, a negative number puts tokens back. `limiting` is that
    /// of the guards: in shadow tokens are taken and nothing is denied, and off is a look.
    #[must_use]
    pub fn take(
        &self,
        key: &[u8],
        limit: &ThrottleLimit,
        quantity: i64,
        limiting: Limiting,
        now: Tick,
    ) -> Throttled {
        self.take_for(None, key, limit, quantity, limiting, now)
    }

    /// The same for keys of a caller; `None` is the operator. No caller has more than a quarter of the
    /// keys, and the last quarter is the operator's: beyond that, keys of the caller share buckets.
    #[must_use]
    pub fn take_for(
        &self,
        caller: Option<&str>,
        key: &[u8],
        limit: &ThrottleLimit,
        quantity: i64,
        limiting: Limiting,
        now: Tick,
    ) -> Throttled {
        let table = self.table();
        let owner = table.owner(caller);
        self.sweep_a_part(table, now);
        let quantity = match limiting {
            Limiting::Off => 0,
            Limiting::On | Limiting::Shadow => quantity,
        };
        let mut throttled = table.take(owner, key, *limit, quantity, now);
        if limiting != Limiting::On {
            throttled.is_limited = false;
            throttled.retry_in = None;
        }
        throttled
    }

    /// The time of a decision; read once for several that come together.
    #[must_use]
    pub fn now(&self) -> Tick {
        let Micros(micros) = self.ledger.at();
        Tick::from_nanos(micros.saturating_mul(1_000))
    }

    /// Keys held now.
    #[must_use]
    pub fn keys(&self) -> usize {
        let keys = |table: &ThrottleTable| table.keys.load(Ordering::Relaxed);
        self.table.get().map_or(0, keys)
    }

    fn table(&self) -> &ThrottleTable {
        self.table.get_or_init(|| ThrottleTable {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            seeds: [RandomState::new(), RandomState::new()],
            keys: AtomicUsize::new(0),
            keys_of: [const { AtomicUsize::new(0) }; OWNERS],
            sweep_at: AtomicUsize::new(0),
        })
    }

    /// Evicts keys whose buckets are full again.
    fn sweep_a_part(&self, table: &ThrottleTable, now: Tick) {
        let count = self.decisions.fetch_add(1, Ordering::Relaxed);
        let every = if table.is_full() {
            FULL_SWEEP_EVERY
        } else {
            SWEEP_EVERY
        };
        if count.is_multiple_of(every) {
            table.sweep_one(now);
        }
    }
}

impl ThrottleTable {
    fn is_full(&self) -> bool {
        self.keys.load(Ordering::Relaxed) >= KEYS_MAX
    }

    /// The number of an owner; 0 is the operator.
    fn owner(&self, caller: Option<&str>) -> usize {
        let number = |name: &str| self.seeds[0].hash_one(name) % (OWNERS as u64 - 1) + 1;
        usize::try_from(caller.map_or(0, number)).unwrap_or(0)
    }

    /// Is there no place for another key of this owner?
    fn is_full_for(&self, owner: usize) -> bool {
        let own = || self.keys_of[owner].load(Ordering::Relaxed);
        let all = self.keys.load(Ordering::Relaxed);
        let quarter = KEYS_MAX / 4;
        all >= KEYS_MAX || owner > 0 && (all >= KEYS_MAX - quarter || own() >= quarter)
    }

    fn take(
        &self,
        owner: usize,
        key: &[u8],
        limit: ThrottleLimit,
        quantity: i64,
        now: Tick,
    ) -> Throttled {
        let [first, second] = [0, 1].map(|half: usize| self.seeds[half].hash_one(key));
        let mut key = Fingerprint([first, second]).of(owner);
        let at = usize::try_from(second).unwrap_or(usize::MAX) % SHARDS;
        let mut shard = self.shards[at].lock();
        if self.is_full_for(owner) && !shard.contains_key(&key) {
            key = Fingerprint([limit.shared(), 0]).of(owner);
        }
        let held = shard.get(&key);
        let is_new = held.is_none();
        let mut bucket = held.map_or_else(|| Bucket::full(limit), |held| held.under(limit, now));
        let (throttled, is_changed) = bucket.take(quantity, now);
        // What is full needs no place.
        if is_changed && !(is_new && bucket.is_full(now)) {
            shard.insert(key, bucket);
            self.keys.fetch_add(usize::from(is_new), Ordering::Relaxed);
            self.keys_of[owner].fetch_add(usize::from(is_new), Ordering::Relaxed);
        }
        throttled
    }

    fn sweep_one(&self, now: Tick) {
        let at = self.sweep_at.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.shards[at].lock();
        let before = shard.len();
        shard.retain(|key, bucket| {
            let is_full = bucket.is_full(now);
            if is_full {
                self.keys_of[key.owner()].fetch_sub(1, Ordering::Relaxed);
            }
            !is_full
        });
        let removed = before - shard.len();
        if shard.len() < shard.capacity() / 4 {
            let wanted = shard.len() * 2;
            shard.shrink_to(wanted);
        }
        self.keys.fetch_sub(removed, Ordering::Relaxed);
    }
}

impl Fingerprint {
    fn of(self, owner: usize) -> Fingerprint {
        let Fingerprint([first, second]) = self;
        let mask = (OWNERS as u64 - 1) << OWNER_SHIFT;
        Fingerprint([first & !mask | (owner as u64) << OWNER_SHIFT, second])
    }

    fn owner(self) -> usize {
        let number = self.0[0] >> OWNER_SHIFT & (OWNERS as u64 - 1);
        usize::try_from(number).unwrap_or(0)
    }
}

impl ThrottleLimit {
    /// How long its bucket takes to fill.
    #[must_use]
    pub fn fill_time(&self) -> Duration {
        self.time(self.capacity())
    }

    /// `count` tokens per `period` seconds, and `max_burst` more than one at once.
    ///
    /// # Errors
    /// A number does not fit, or the bucket would take too long to fill.
    pub fn new(max_burst: i64, count: i64, period: i64) -> Result<ThrottleLimit, ThrottleError> {
        let burst = max_burst
            .checked_add(1)
            .and_then(|burst| u32::try_from(burst).ok())
            .and_then(NonZeroU32::new)
            .ok_or(ThrottleError::Burst)?;
        let count = u32::try_from(count).ok().and_then(NonZeroU32::new);
        let count = count.ok_or(ThrottleError::Count)?;
        let period = u64::try_from(period).ok().filter(|period| *period > 0);
        let period = period.ok_or(ThrottleError::Period)?;
        let period = period.checked_mul(1_000_000_000);
        let limit = ThrottleLimit {
            period: period.ok_or(ThrottleError::TooSlow)?,
            count: count.get(),
            burst: burst.get(),
        };
        if limit.capacity() / u128::from(limit.count) > FILL_MAX {
            return Err(ThrottleError::TooSlow);
        }
        Ok(limit)
    }

    /// The part of one of several nodes: as much less often, and of the burst at least one token.
    fn share_of(self, nodes: u32) -> ThrottleLimit {
        let nodes = nodes.max(1);
        ThrottleLimit {
            period: self.period.saturating_mul(u64::from(nodes)),
            burst: (self.burst / nodes).max(1),
            ..self
        }
    }

    /// The parts that an empty bucket lacks.
    fn capacity(&self) -> u128 {
        u128::from(self.period) * u128::from(self.burst)
    }

    /// A time in parts. A tick has 62 bits and a count 32, so all sums here fit.
    fn parts(&self, nanos: u128) -> u128 {
        nanos.saturating_mul(u128::from(self.count))
    }

    /// So many parts as a time; a started nanosecond counts, so that nobody comes back too early.
    fn time(&self, parts: u128) -> Duration {
        let nanos = parts.div_ceil(u128::from(self.count.max(1)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The number of the bucket that it uses in a full table.
    fn shared(&self) -> u64 {
        ((self.period / 1_000_000_000) ^ u64::from(self.count) ^ u64::from(self.burst)) % SHARED
    }
}

impl Bucket {
    fn full(limit: ThrottleLimit) -> Bucket {
        Bucket { limit, full_at: 0 }
    }

    fn is_full(&self, now: Tick) -> bool {
        self.full_at <= self.limit.parts(now.nanos().into())
    }

    /// The parts that it lacks.
    fn lacking(&self, now: Tick) -> u128 {
        let lacking = self
            .full_at
            .saturating_sub(self.limit.parts(now.nanos().into()));
        let capacity = self.limit.capacity();
        if lacking > capacity.saturating_add(self.limit.parts(STALE_NANOS)) {
            return capacity;
        }
        lacking
    }

    /// The bucket under other limits: as many tokens as before, at most the new burst.
    fn under(&self, limit: ThrottleLimit, now: Tick) -> Bucket {
        if self.limit == limit {
            return *self;
        }
        let held = self.limit.capacity().saturating_sub(self.lacking(now));
        let (old, new) = (u128::from(self.limit.period), u128::from(limit.period));
        // Both periods have 64 bits. Rounding down is the strict direction.
        let (whole, part) = (held / old.max(1), held % old.max(1));
        let held = whole.saturating_mul(new) + part * new / old.max(1);
        let lacking = limit.capacity().saturating_sub(held);
        Bucket {
            limit,
            full_at: limit.parts(now.nanos().into()) + lacking,
        }
    }

    /// Takes tokens, and whether that changed it.
    fn take(&mut self, quantity: i64, now: Tick) -> (Throttled, bool) {
        let (limit, capacity) = (self.limit, self.limit.capacity());
        let lacking = self.lacking(now);
        let amount = u128::from(quantity.unsigned_abs()) * u128::from(limit.period);
        let next = if quantity < 0 {
            lacking.saturating_sub(amount)
        } else {
            lacking.saturating_add(amount)
        };
        let missing = next.saturating_sub(capacity);
        let is_limited = quantity > 0 && missing > 0;
        let is_changed = quantity != 0 && !is_limited;
        if is_changed {
            self.full_at = limit.parts(now.nanos().into()) + next;
        }
        let lacking = if is_limited { lacking } else { next }.min(capacity);
        let throttled = Throttled {
            is_limited,
            limit: limit.burst,
            remaining: u64::try_from((capacity - lacking) / u128::from(limit.period.max(1)))
                .unwrap_or(u64::MAX),
            retry_in: (is_limited && amount <= capacity).then(|| limit.time(missing)),
            reset_in: limit.time(lacking),
        };
        (throttled, is_changed)
    }
}

impl Hash for Fingerprint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

impl Hasher for FirstHalf {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;
