//! One shard of the table: an open-addressed array of slots, one cache line each.
//!
//! Promises: a key that is found costs one line, seldom two. A slot is forgotten only when its
//! buckets are full again, so forgetting changes no decision. Growing, shrinking and sweeping
//! touch one shard, whose size the table bounds.
//!
//! Never: locks, reads a clock, or leaves a tombstone behind.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::key::Key;
use super::pace::Fine;
use super::plan::LIMITS_MAX;

/// Slots of an empty shard: 256 bytes, so that a table nobody uses stays small.
const SLOTS_MIN: usize = 4;

/// Slots are at most seven tenths full: a key is found in its first line three times in five, and
/// costs 91 to 97 bytes. Fuller would save memory and cost second lines.
const LOAD_NUM: usize = 7;
const LOAD_DEN: usize = 10;

/// A shard grows by a sixteenth: the memory of a grown shard differs little from that of a full
/// one. Homes keep their order when it grows, so the slots are moved in one sequential pass.
const GROWTH_DEN: usize = 16;

/// Lines that are fetched ahead of a decision. As full as above, 62 % of the keys are in their first
/// line, 83 % in the first two and 89 % in the first three; a fourth adds 3 % and costs more than it
/// saves.
const LINES_AHEAD: usize = 3;

/// All the limits of one key. 64 bytes, aligned: a decision touches one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) key: Key,
    /// When each bucket is full again: whole nanoseconds …
    pub(crate) at: [u64; LIMITS_MAX],
    /// … and parts, in the denominators of the plan.
    pub(crate) part: [u32; LIMITS_MAX],
    /// The plan that `at` and `part` are written in; 0 = nobody is here.
    pub(crate) plan: u32,
}

impl Slot {
    pub(crate) const EMPTY: Slot = Slot {
        key: Key { low: 0, high: 0 },
        at: [0; LIMITS_MAX],
        part: [0; LIMITS_MAX],
        plan: 0,
    };

    pub(crate) fn fine(&self, limit: usize) -> Fine {
        Fine {
            at: self.at[limit],
            part: self.part[limit],
        }
    }

    pub(crate) fn set(&mut self, limit: usize, full: Fine) {
        self.at[limit] = full.at;
        self.part[limit] = full.part;
    }

    /// Whether every bucket is full at `now`: forgetting the slot changes nothing.
    fn is_idle(&self, now: u64) -> bool {
        self.at.iter().all(|&at| at < now)
    }
}

/// What a visit to some slots did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) visited: usize,
    pub(crate) removed: usize,
    /// The cursor passed the end of the shard.
    pub(crate) wrapped: bool,
}

/// Slots with linear probing; always at least one is empty.
#[derive(Debug)]
pub(crate) struct Shard {
    slots: Vec<Slot>,
    used: usize,
    /// Where the next sweep goes on.
    cursor: usize,
}

impl Shard {
    pub(crate) fn new() -> Shard {
        Shard {
            slots: vec![Slot::EMPTY; SLOTS_MIN],
            used: 0,
            cursor: 0,
        }
    }

    /// A shard with room for `keys` keys.
    pub(crate) fn with_room(keys: usize) -> Shard {
        let slots = SLOTS_MIN.max(keys * LOAD_DEN / LOAD_NUM + 1);
        Shard {
            slots: vec![Slot::EMPTY; slots],
            used: 0,
            cursor: 0,
        }
    }

    /// The slot of `key` if it is under `plan`, sought from `home` on, where somebody who did not
    /// hold the lock believes it to be. A key is in its shard at most once, so whatever is found is
    /// right; a belief that was wrong finds nothing.
    #[inline]
    pub(crate) fn known(&mut self, home: usize, key: Key, plan: u32) -> Option<&mut Slot> {
        let (before, from) = self.slots.split_at_mut_checked(home)?;
        from.iter_mut()
            .chain(before)
            .find(|slot| slot.key == key || slot.plan == 0)
            .filter(|slot| slot.plan == plan)
    }

    /// The slot of `key`, or the empty slot where its probing ends.
    #[inline]
    pub(crate) fn find(&mut self, key: Key) -> &mut Slot {
        let at = self.probe(key);
        &mut self.slots[at]
    }

    /// Keys in this shard.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Every occupied slot.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.plan != 0)
    }

    /// Writes a slot, new or not.
    pub(crate) fn put(&mut self, slot: Slot) {
        let mut at = self.probe(slot.key);
        if self.slots[at].plan == 0 {
            self.used += 1;
            if self.used * LOAD_DEN > self.slots.len() * LOAD_NUM {
                self.resize(self.slots.len() + self.slots.len() / GROWTH_DEN + SLOTS_MIN);
                at = self.probe(slot.key);
            }
        }
        self.slots[at] = slot;
    }

    /// Visits at most `budget` slots from the cursor on and forgets those that are idle.
    pub(crate) fn sweep(&mut self, now: u64, budget: usize) -> Visit {
        let mut visit = Visit::default();
        while visit.visited < budget {
            if self.cursor >= self.slots.len() {
                visit.wrapped = true;
                self.cursor = 0;
                self.shrink();
                break;
            }
            visit.visited += 1;
            let slot = &self.slots[self.cursor];
            if slot.plan != 0 && slot.is_idle(now) {
                // Another slot may have moved here; it is visited next.
                self.remove(self.cursor);
                visit.removed += 1;
            } else {
                self.cursor += 1;
            }
        }
        visit
    }

    fn home(&self, key: Key) -> usize {
        home_of(key, self.slots.len())
    }

    #[inline]
    fn probe(&self, key: Key) -> usize {
        let mut at = self.home(key);
        loop {
            let slot = &self.slots[at];
            if slot.key == key || slot.plan == 0 {
                return at;
            }
            at = self.next(at);
        }
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() {
            0
        } else {
            at + 1
        }
    }

    /// Empties a slot and moves later ones back, so that every probe still ends at its key.
    fn remove(&mut self, at: usize) {
        self.used -= 1;
        let mut hole = at;
        let mut from = at;
        loop {
            from = self.next(from);
            if self.slots[from].plan == 0 {
                break;
            }
            let home = self.home(self.slots[from].key);
            // Cyclically, is the hole between the slot's home and where it stands?
            let reaches = if hole <= from {
                home <= hole || home > from
            } else {
                home <= hole && home > from
            };
            if reaches {
                self.slots[hole] = self.slots[from];
                hole = from;
            }
        }
        self.slots[hole] = Slot::EMPTY;
    }

    /// Gives memory back when under a third of it is used.
    fn shrink(&mut self) {
        let fitting = SLOTS_MIN.max(self.used + self.used / 2 + 1);
        if self.slots.len() > 2 * fitting {
            self.resize(fitting);
        }
    }

    #[cold]
    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![Slot::EMPTY; slots]);
        // Homes keep their order, so the sweep goes on among the same keys.
        self.cursor = self.cursor * slots / old.len();
        for slot in old.into_iter().filter(|slot| slot.plan != 0) {
            let at = self.probe(slot.key);
            self.slots[at] = slot;
        }
    }
}

/// Where a shard's slots were when somebody last looked: how many, and at which address. Read
/// without the shard's lock, so it may be stale or torn: whoever uses it must not rely on it.
///
/// Hints have cache lines of their own, which all cores share because they are written only when
/// a shard has moved. Beside the lock, which every decision writes, each reading would first take
/// the line away from another core, and again when the lock is taken.
#[derive(Debug, Default)]
pub(crate) struct Hint {
    slots: AtomicUsize,
    base: AtomicUsize,
}

impl Hint {
    /// Where `key` probably is.
    #[inline]
    pub(crate) fn home(&self, key: Key) -> usize {
        home_of(key, self.slots.load(Ordering::Relaxed))
    }

    /// Notes where the slots of `shard` are.
    pub(crate) fn note(&self, shard: &Shard) {
        let (slots, base) = (shard.slots.len(), shard.slots.as_ptr().addr());
        // Compared first: a line that is only read stays with every core.
        if self.slots.load(Ordering::Relaxed) != slots || self.base.load(Ordering::Relaxed) != base
        {
            self.slots.store(slots, Ordering::Relaxed);
            self.base.store(base, Ordering::Relaxed);
        }
    }

    /// Asks the processor to bring the slots of `key` closer, so that memory is waited for before
    /// the lock is taken and not under it, and for all of them at once.
    #[inline]
    pub(crate) fn fetch_ahead(&self, key: Key) {
        let home = self.home(key).wrapping_mul(size_of::<Slot>());
        let first = self.base.load(Ordering::Relaxed).wrapping_add(home);
        for line in 0..LINES_AHEAD {
            prefetch(first.wrapping_add(line * size_of::<Slot>()));
        }
    }
}

/// Where a key would like to be among `slots` slots. The high lane of the fingerprint chooses the
/// slot and the low lane the shard: they must not be the same bits.
#[inline]
fn home_of(key: Key, slots: usize) -> usize {
    let scaled = (u128::from(key.high) * slots as u128) >> 64;
    usize::try_from(scaled).unwrap_or(0)
}

/// Asks the processor to bring the cache line of an address closer.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Plan of every slot here.
    const PLAN: u32 = 7;

    /// The `number`th of some keys whose homes are spread over the shard.
    fn key(number: u64) -> Key {
        Key {
            low: number,
            high: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    fn shard(keys: u64) -> Shard {
        let mut shard = Shard::new();
        for number in 0..keys {
            shard.put(Slot {
                key: key(number),
                plan: PLAN,
                ..Slot::EMPTY
            });
        }
        shard
    }

    #[test]
    fn every_key_is_known_from_its_home() {
        // Many sizes, so that some keys stand beyond the end, at the beginning.
        for keys in 1..200 {
            let mut shard = shard(keys);
            let hint = Hint::default();
            hint.note(&shard);
            for number in 0..keys {
                let found = shard.known(hint.home(key(number)), key(number), PLAN);
                assert_eq!(found.map(|slot| slot.key.low), Some(number));
            }
        }
    }

    #[test]
    fn a_wrong_home_finds_the_key_or_nothing() {
        let mut shard = shard(100);
        for home in [
            0,
            1,
            50,
            shard.slots.len() - 1,
            shard.slots.len(),
            usize::MAX,
        ] {
            for number in 0..100 {
                let found = shard.known(home, key(number), PLAN);
                assert!(found.is_none_or(|slot| slot.key == key(number)));
            }
        }
    }

    #[test]
    fn a_stranger_and_a_key_under_another_plan_are_not_known() {
        let mut shard = shard(100);
        let hint = Hint::default();
        hint.note(&shard);
        assert!(shard.known(hint.home(key(3)), key(3), PLAN + 1).is_none());
        assert!(shard.known(hint.home(key(500)), key(500), PLAN).is_none());
    }

    #[test]
    fn a_hint_follows_a_shard_that_has_grown() {
        let (small, mut large) = (shard(2), shard(100));
        let hint = Hint::default();
        hint.note(&small);
        hint.note(&large);
        let found = large.known(hint.home(key(99)), key(99), PLAN);
        assert!(found.is_some());
    }
}
