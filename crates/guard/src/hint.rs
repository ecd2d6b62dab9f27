//! Hints: where a shard's slots probably are, readable without its lock.
//!
//! Promises: has its own cache lines, which all cores share because they are written only when a
//! shard has moved. Next to the lock, which every decision writes, each read would first take the
//! line away from another core, and again when the lock is taken.
//!
//! Never: is authoritative. It may be stale or torn, so it only says where to search first.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::key::GuardKey;
use super::shard::Shard;
use super::slots::Slot;

/// Lines that are fetched ahead of a decision. As full as above, 62 % of the keys are in their first
/// line, 83 % in the first two and 89 % in the first three; a fourth adds 3 % and costs more than it
/// saves.
const LINES_AHEAD: usize = 3;

/// The last known number of slots, and their address.
#[derive(Debug, Default)]
pub(crate) struct Hint {
    slots: AtomicUsize,
    base: AtomicUsize,
}

impl Hint {
    /// Where `key` probably is.
    #[inline]
    pub(crate) fn home(&self, key: GuardKey) -> usize {
        home_of(key, self.slots.load(Ordering::Relaxed))
    }

    /// Records where the slots of `shard` are.
    pub(crate) fn note(&self, shard: &Shard) {
        let (slots, base) = shard.slots_location();
        // Compared first: a line that is only read stays with every core.
        if self.slots.load(Ordering::Relaxed) != slots || self.base.load(Ordering::Relaxed) != base
        {
            self.slots.store(slots, Ordering::Relaxed);
            self.base.store(base, Ordering::Relaxed);
        }
    }

    /// Prefetches the slots of `key`, so that the wait for memory comes before the lock and not
    /// under it, and once for all of them.
    #[inline]
    pub(crate) fn fetch_ahead(&self, key: GuardKey) {
        let home = self.home(key).wrapping_mul(size_of::<Slot>());
        let first = self.base.load(Ordering::Relaxed).wrapping_add(home);
        for line in 0..LINES_AHEAD {
            prefetch(first.wrapping_add(line * size_of::<Slot>()));
        }
    }
}

/// The home of a key among `slots` slots. The high half of the fingerprint selects the slot and the
/// low half the shard: they must not be the same bits.
#[inline]
pub(crate) fn home_of(key: GuardKey, slots: usize) -> usize {
    let scaled = (u128::from(key.high) * slots as u128) >> 64;
    usize::try_from(scaled).unwrap_or(0)
}

/// Prefetches the cache line of an address.
#[inline]
fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint. It loads nothing into the program, cannot fault, and is
        // defined for every address, mapped or not; so a stale or torn address costs time only.
        #[expect(
            unsafe_code,
            reason = "there is no safe form of a prefetch in stable Rust"
        )]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
