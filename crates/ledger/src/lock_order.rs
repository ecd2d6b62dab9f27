//! The order in which locks are taken, checked in debug builds.
//!
//! A thread that holds a lock takes only locks with a higher rank. Two threads can then never wait
//! for each other. The ranks are listed in [`rank`] and nowhere else; `ARCHITECTURE.md` has the
//! same table with the reasons.
//!
//! Promises: in debug builds a lock that is taken out of order panics before it waits, and names
//! both locks, so a test that only passes by the place in question finds the mistake; no deadlock
//! has to happen. In release builds a ranked mutex is a `parking_lot::Mutex` and nothing more.
//!
//! Never: checks `try_lock`, which cannot wait.

use std::fmt;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

/// The ranks of all locks that can nest, outermost first, below 128. Gaps leave room for new ones.
pub mod rank {
    /// One reload, pause or setting at a time (`server::daemon`).
    pub const DAEMON_CHANGE: u8 = 10;
    /// `desk.db`, while it is opened where the configuration says.
    pub const DESK: u8 = 11;
    /// The current configuration of the daemon.
    pub const DAEMON_STATE: u8 = 12;
    /// The open listeners (`server::gateway::listeners`).
    pub const LISTENERS: u8 = 14;
    /// Which alerts are active (`server::alerts`).
    pub const ALERTS: u8 = 16;
    /// Whose they are.
    pub const ALERT_OWNERS: u8 = 17;
    /// Those from before a restart of which nothing is known yet.
    pub const RESTORED_ALERTS: u8 = 18;
    /// One exchange of all providers at a time (`tollgate::providers`).
    pub const RELOAD: u8 = 20;
    /// A provider that has not been called yet.
    pub const LAZY_PROVIDER: u8 = 22;
    /// A shard of the table of flights, or another table of leaders.
    pub const FLIGHTS: u8 = 30;
    /// One flight, merged call or login: its leader and followers.
    pub const ROUND: u8 = 32;
    /// Priority and deadline of all callers of a flight.
    pub const DEMAND: u8 = 34;
    /// A body that several callers read; its last chunk releases the connection, and the whole body
    /// is searched for tokens before it is cached.
    pub const SHARED_BODY: u8 = 35;
    /// The tokens of a provider, by credential.
    pub const TOKENS: u8 = 36;
    /// One token.
    pub const TOKEN: u8 = 38;
    /// The upstreams of a provider.
    pub const UPSTREAMS: u8 = 42;
    /// The connections of one upstream.
    pub const UPSTREAM: u8 = 44;
    /// The readers that wait for the next chunk of a shared body.
    pub const BODY_WAKERS: u8 = 46;
    /// The gate of a provider: who waits for a permit.
    pub const PERMITS: u8 = 50;
    /// The health of a provider.
    pub const HEALTH: u8 = 60;
    /// Rejected keys.
    pub const SUSPENDED_KEYS: u8 = 62;
    /// Background refreshes of cached responses.
    pub const REFRESHES: u8 = 64;
    /// One writer of the memory cache at a time.
    pub const CACHE_WRITE: u8 = 66;
    /// Removals that wait for the disk.
    pub const CACHE_COMMANDS: u8 = 68;
    /// The keys of the cache on disk.
    pub const CACHE_INDEX: u8 = 70;
    /// When the store was lost.
    pub const STORE_LOSS: u8 = 80;
    /// A lost store that never blocks, while it is tried again (`ledger::front`).
    pub const RECOVERING: u8 = 81;
    /// Scopes to close when the store is back (`ledger::front`).
    pub const RECOVERY: u8 = 82;
    /// Why the store was lost (`ledger::shared`).
    pub const LOSS_REASON: u8 = 83;
    /// Cells that others have inherited from.
    pub const FORWARDINGS: u8 = 84;
    /// The providers for which it was lost.
    pub const LOST_TAGS: u8 = 85;
    /// Signals that this process waits for (`ledger::hub`).
    pub const AWAITED: u8 = 86;
    /// The providers of a ledger.
    pub const TAGS: u8 = 88;
    /// The folder of an SQLite ledger.
    pub const SQLITE: u8 = 90;
    /// What of it is on disk.
    pub const DURABLE: u8 = 92;
    /// The owners of a memory ledger.
    pub const MEMORY_OWNERS: u8 = 94;
    /// Its cells and scopes.
    pub const MEMORY_TABLE: u8 = 96;

    /// The name of a rank, for messages.
    #[cfg(debug_assertions)]
    pub(super) fn name(rank: u8) -> &'static str {
        match rank {
            DAEMON_CHANGE => "DAEMON_CHANGE",
            DESK => "DESK",
            DAEMON_STATE => "DAEMON_STATE",
            LISTENERS => "LISTENERS",
            ALERTS => "ALERTS",
            ALERT_OWNERS => "ALERT_OWNERS",
            RESTORED_ALERTS => "RESTORED_ALERTS",
            RELOAD => "RELOAD",
            LAZY_PROVIDER => "LAZY_PROVIDER",
            FLIGHTS => "FLIGHTS",
            ROUND => "ROUND",
            DEMAND => "DEMAND",
            SHARED_BODY => "SHARED_BODY",
            TOKENS => "TOKENS",
            TOKEN => "TOKEN",
            UPSTREAMS => "UPSTREAMS",
            UPSTREAM => "UPSTREAM",
            BODY_WAKERS => "BODY_WAKERS",
            PERMITS => "PERMITS",
            HEALTH => "HEALTH",
            SUSPENDED_KEYS => "SUSPENDED_KEYS",
            REFRESHES => "REFRESHES",
            CACHE_WRITE => "CACHE_WRITE",
            CACHE_COMMANDS => "CACHE_COMMANDS",
            CACHE_INDEX => "CACHE_INDEX",
            STORE_LOSS => "STORE_LOSS",
            RECOVERING => "RECOVERING",
            RECOVERY => "RECOVERY",
            LOSS_REASON => "LOSS_REASON",
            FORWARDINGS => "FORWARDINGS",
            LOST_TAGS => "LOST_TAGS",
            AWAITED => "AWAITED",
            TAGS => "TAGS",
            SQLITE => "SQLITE",
            DURABLE => "DURABLE",
            MEMORY_OWNERS => "MEMORY_OWNERS",
            MEMORY_TABLE => "MEMORY_TABLE",
            _unnamed => "a rank without a name",
        }
    }
}

/// A mutex with a place in the order of locks.
#[derive(Default)]
pub struct RankedMutex<const RANK: u8, T> {
    inner: Mutex<T>,
}

/// The right to use what a [`RankedMutex`] holds.
#[derive(Debug)]
pub struct RankedGuard<'a, T> {
    // Before the place, so that the lock is free when the thread forgets it.
    guard: MutexGuard<'a, T>,
    _place: Place,
}

impl<const RANK: u8, T> RankedMutex<RANK, T> {
    /// A mutex that holds this value.
    pub const fn new(value: T) -> RankedMutex<RANK, T> {
        const { assert!(RANK < 128, "each rank is a bit") };
        RankedMutex {
            inner: Mutex::new(value),
        }
    }

    /// Waits for the lock. Panics in debug builds if this thread holds a lock of the same or a
    /// higher rank.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let place = Place::take(RANK);
        RankedGuard {
            guard: self.inner.lock(),
            _place: place,
        }
    }

    /// The value, which nobody else can hold now.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<const RANK: u8, T: fmt::Debug> fmt::Debug for RankedMutex<RANK, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
thread_local! {
    /// The ranks of the locks that this thread holds, one bit each. Nothing is allocated, so that
    /// debug builds cost what release builds do but for a few instructions.
    static HELD: std::cell::Cell<u128> = const { std::cell::Cell::new(0) };
}

/// A place among the locks that a thread holds; nothing in release builds.
#[derive(Debug)]
struct Place {
    #[cfg(debug_assertions)]
    rank: u8,
    /// A guard belongs to the thread that took it.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Place {
    #[inline]
    #[track_caller]
    fn take(rank: u8) -> Place {
        #[cfg(debug_assertions)]
        {
            let held = HELD.get();
            if held >> rank != 0 {
                out_of_order(rank, held);
            }
            HELD.set(held | 1 << rank);
        }
        #[cfg(not(debug_assertions))]
        let _unchecked = rank;
        Place {
            #[cfg(debug_assertions)]
            rank,
            _thread: std::marker::PhantomData,
        }
    }
}

/// Does this thread hold none of these locks? For assertions: release builds do not know, and say
/// that it holds none.
#[must_use]
pub fn holds_none() -> bool {
    #[cfg(debug_assertions)]
    return HELD.get() == 0;
    #[cfg(not(debug_assertions))]
    true
}

/// Names the lock that is taken and the highest one that is held.
#[cfg(debug_assertions)]
#[cold]
#[track_caller]
fn out_of_order(rank: u8, held: u128) -> ! {
    let last = u8::try_from(u128::BITS - 1 - held.leading_zeros()).unwrap_or(u8::MAX);
    panic!(
        "lock {} (rank {rank}) is taken while lock {} (rank {last}) is held; \
         tollgate_ledger::lock_order lists the order",
        rank::name(rank),
        rank::name(last),
    );
}

#[cfg(debug_assertions)]
impl Drop for Place {
    #[inline]
    fn drop(&mut self) {
        // Also while the thread's own variables are already gone.
        let _gone = HELD.try_with(|held| held.set(held.get() & !(1 << self.rank)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outer = RankedMutex<{ rank::RELOAD }, u32>;
    type Inner = RankedMutex<{ rank::HEALTH }, u32>;

    #[test]
    fn locks_in_order_and_freed_in_any_order_are_fine() {
        let (outer, inner) = (Outer::new(1), Inner::new(2));
        let first = outer.lock();
        let second = inner.lock();
        drop(first);
        assert_eq!(*second, 2);
        drop(second);
        *outer.lock() += 1;
        assert_eq!(*outer.lock() + *inner.lock(), 4, "one after the other, too");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock RELOAD (rank 20) is taken while lock HEALTH (rank 60) is held")]
    fn a_lock_taken_out_of_order_panics_and_names_both() {
        let (outer, inner) = (Outer::new(1), Inner::new(2));
        let _held = inner.lock();
        let _wrong = outer.lock();
    }

    /// With a plain mutex the thread would wait for itself, for ever.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock HEALTH (rank 60) is taken while lock HEALTH")]
    fn a_lock_taken_twice_panics() {
        let inner = Inner::new(2);
        let _held = inner.lock();
        let _twice = inner.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_thread_knows_whether_it_holds_a_lock() {
        let (outer, inner) = (Outer::new(1), Inner::new(2));
        assert!(holds_none());
        let first = outer.lock();
        let second = inner.lock();
        drop(first);
        assert!(!holds_none());
        drop(second);
        assert!(holds_none());
    }

    /// Each thread has its own list.
    #[test]
    fn locks_of_other_threads_do_not_count() {
        let (outer, inner) = (Outer::new(1), Inner::new(2));
        let _held = inner.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(*outer.lock(), 1));
        });
    }
}
