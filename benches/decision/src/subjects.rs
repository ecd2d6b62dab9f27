//! The compared tables, all with limits far above the load, so that every decision is a grant: a
//! grant writes, a rejection does not.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use governor::clock::DefaultClock;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tollgate_guard::{GuardKey, GuardPlan, GuardTable, Keys, Limit, Seed, TickClock};

/// Tokens per second of every limiter: more than any loop here can use.
pub const PLENTY: NonZeroU32 = NonZeroU32::new(1_000_000_000).expect("above zero");

/// governor with one limit per key.
pub type Governor<K> = RateLimiter<K, DefaultKeyedStateStore<K>, DefaultClock>;

pub fn governor_direct() -> DefaultDirectRateLimiter {
    RateLimiter::direct(Quota::per_second(PLENTY))
}

pub fn governor_keyed<K: Clone + Eq + std::hash::Hash>() -> Governor<K> {
    RateLimiter::dashmap(Quota::per_second(PLENTY))
}

/// The guard table with a clock, a maker of keys and plans of one and of three limits.
pub struct Ours {
    pub table: GuardTable,
    pub clock: TickClock,
    pub keys: Keys,
    pub one: GuardPlan,
    pub three: GuardPlan,
}

pub fn ours(keys_max: u64) -> Ours {
    let table = GuardTable::new(usize::try_from(keys_max).expect("fits"), Seed([11, 13]));
    let limit = |period| Limit::new(PLENTY, Duration::from_secs(period));
    Ours {
        clock: TickClock::new(),
        keys: table.keys("user"),
        one: table.plan(&[limit(1)]).expect("valid"),
        three: table.plan(&[limit(1), limit(2), limit(5)]).expect("valid"),
        table,
    }
}

impl Ours {
    /// One decision on all three limits of a key named by a number.
    #[inline]
    pub fn number(&self, name: u64) -> bool {
        self.take(self.keys.number(name))
    }

    /// One decision on all three limits of a key named by text.
    #[inline]
    pub fn text(&self, name: &str) -> bool {
        self.take(self.keys.key(name.as_bytes()))
    }

    #[inline]
    fn take(&self, key: GuardKey) -> bool {
        self.table.fetch_ahead(key);
        self.table
            .take(key, &self.three, self.clock.now())
            .is_granted()
    }
}

/// throttlecrab's limiter, which needs exclusive access: behind a lock, as in its users' code.
pub struct Crab(parking_lot::Mutex<throttlecrab::RateLimiter<throttlecrab::PeriodicStore>>);

pub fn crab(capacity: u64) -> Crab {
    let store = throttlecrab::PeriodicStore::builder()
        .capacity(usize::try_from(capacity).expect("fits"))
        .cleanup_interval(Duration::from_secs(86_400))
        .build();
    Crab(parking_lot::Mutex::new(throttlecrab::RateLimiter::new(
        store,
    )))
}

impl Crab {
    #[inline]
    pub fn text(&self, name: &str) -> bool {
        let plenty = i64::from(PLENTY.get());
        let now = SystemTime::now();
        self.0
            .lock()
            .rate_limit(name, plenty, plenty, 1, 1, now)
            .is_ok_and(|(granted, _)| granted)
    }
}

/// A name of 32 characters, like an API key or a session id, rewritten in place: in a server the
/// name has just been read from a request, so it is in the cache.
pub struct Name(String);

impl Name {
    pub fn new() -> Name {
        Name("session-9f86d081884c7d65xxxxxxxx".to_owned())
    }

    /// The name of caller `number`.
    #[inline]
    pub fn of(&mut self, number: u64) -> &String {
        let digit = |at: u32| char::from(b'a' + u8::try_from(number >> (4 * at) & 15).unwrap_or(0));
        self.0.truncate(24);
        self.0.extend((0..8).map(digit));
        &self.0
    }
}
