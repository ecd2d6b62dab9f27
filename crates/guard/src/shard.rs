//! One shard of the table: an open-addressed array of slots, one cache line each.
//!
//! Promises: finding a key costs one cache line, seldom two. A slot is evicted only when its
//! buckets are full again, so eviction changes no decision. Growing, shrinking and sweeping touch
//! one shard, whose size the table bounds.
//!
//! Never: locks, reads a clock, or leaves a tombstone behind.

use super::hint::home_of;
use super::huge_pages::{self, RegionHandle};
use super::key::GuardKey;
use super::slots::{Slot, Slots};

/// Slots of an empty shard: 256 bytes, so that an unused table stays small.
const SLOTS_MIN: usize = 4;

/// Slots are at most seven tenths full: a key is found in its first line three times in five, and
/// costs 91 to 97 bytes. A higher load would save memory and cost second lines.
const LOAD_NUM: usize = 7;
const LOAD_DEN: usize = 10;

/// A shard grows by a sixteenth: the memory of a grown shard differs little from that of a full
/// one. Homes keep their order when it grows, so the slots are moved in one sequential pass.
const GROWTH_DEN: usize = 16;

/// The result of visiting some slots.
#[derive(Debug, Default)]
pub(crate) struct SweepStep {
    pub(crate) visited: usize,
    pub(crate) removed: usize,
    /// The cursor passed the end of the shard.
    pub(crate) wrapped: bool,
    /// Memory that was replaced, to be dropped when the lock is no longer held.
    freed: Option<Slots>,
}

/// Slots with linear probing; always at least one is empty.
#[derive(Debug)]
pub(crate) struct Shard {
    slots: Slots,
    used: usize,
    /// Where the next sweep continues.
    cursor: usize,
}

impl Shard {
    pub(crate) fn new() -> Shard {
        Shard {
            slots: Slots::new(SLOTS_MIN),
            used: 0,
            cursor: 0,
        }
    }

    /// A shard with room for `keys` keys.
    pub(crate) fn with_room(keys: usize, handle: RegionHandle<'_>) -> Shard {
        let slots = SLOTS_MIN.max(slots_for(keys));
        Shard {
            slots: handle
                .claim(keys, slots)
                .map_or_else(|| Slots::new(slots), Slots::on_region),
            used: 0,
            cursor: 0,
        }
    }

    /// The slot of `key` if it is under `plan`, searched from `home` on, a hint that was read
    /// without the lock. A key is in its shard at most once, so any match is right; a wrong hint
    /// finds nothing.
    #[inline]
    pub(crate) fn find_known(
        &mut self,
        home: usize,
        key: GuardKey,
        plan: u32,
    ) -> Option<&mut Slot> {
        let (before, from) = self.slots.split_at_mut_checked(home)?;
        from.iter_mut()
            .chain(before)
            .find(|slot| slot.key == key || slot.plan == 0)
            .filter(|slot| slot.plan == plan)
    }

    /// The slot of `key`, or the empty slot where its probing ends.
    #[inline]
    pub(crate) fn find(&mut self, key: GuardKey) -> &mut Slot {
        let at = self.probe(key);
        &mut self.slots[at]
    }

    /// The number of slots and their address, for a [`super::hint::Hint`].
    pub(crate) fn slots_location(&self) -> (usize, usize) {
        (self.slots.len(), self.slots.as_ptr().addr())
    }

    /// Keys in this shard.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Every occupied slot.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.plan != 0)
    }

    /// Writes a slot, new or not. If the shard had to grow, returns the old slots, to be dropped
    /// when the lock is no longer held.
    #[must_use]
    pub(crate) fn put(&mut self, slot: Slot, handle: RegionHandle<'_>) -> Option<Slots> {
        let mut at = self.probe(slot.key);
        let mut freed = None;
        if self.slots[at].plan == 0 {
            self.used += 1;
            if self.used > self.capacity() {
                freed = Some(self.grow(handle));
                at = self.probe(slot.key);
            }
        }
        self.slots[at] = slot;
        freed
    }

    /// Visits at most `budget` slots from the cursor on and evicts those that are idle.
    pub(crate) fn sweep(&mut self, now: u64, budget: usize) -> SweepStep {
        let mut step = SweepStep::default();
        while step.visited < budget {
            if self.cursor >= self.slots.len() {
                step.wrapped = true;
                self.cursor = 0;
                step.freed = self.shrink();
                break;
            }
            step.visited += 1;
            let slot = &self.slots[self.cursor];
            if slot.plan != 0 && slot.is_idle(now) {
                // Another slot may have moved here; it is visited next.
                self.remove(self.cursor);
                step.removed += 1;
            } else {
                self.cursor += 1;
            }
        }
        step
    }

    fn home(&self, key: GuardKey) -> usize {
        home_of(key, self.slots.len())
    }

    #[inline]
    fn probe(&self, key: GuardKey) -> usize {
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
            // Cyclically, is the hole between the slot's home and its position?
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

    /// Keys that this many slots may hold.
    fn capacity(&self) -> usize {
        if self.slots.is_on_huge_pages() {
            huge_pages::capacity(self.slots.len())
        } else {
            self.slots.len() * LOAD_NUM / LOAD_DEN
        }
    }

    /// Grows by a few slots, or to its whole region. Returns the old slots.
    #[cold]
    fn grow(&mut self, handle: RegionHandle<'_>) -> Slots {
        let few = self.slots.len() + self.slots.len() / GROWTH_DEN + SLOTS_MIN;
        let slots = few.max(slots_for(self.used));
        let region = handle.claim(self.used, slots);
        self.resize(region.map_or_else(|| Slots::new(slots), Slots::on_region))
    }

    /// Shrinks when under a third of the memory is used.
    fn shrink(&mut self) -> Option<Slots> {
        let fitting = SLOTS_MIN.max(self.used + self.used / 2 + 1);
        (self.slots.len() > 2 * fitting).then(|| self.resize(Slots::new(fitting)))
    }

    /// Moves to other, empty slots; returns the old ones, whose content is obsolete.
    #[cold]
    fn resize(&mut self, slots: Slots) -> Slots {
        let old = std::mem::replace(&mut self.slots, slots);
        // Homes keep their order, so the sweep continues among the same keys.
        self.cursor = self.cursor * self.slots.len() / old.len();
        for slot in old.iter().filter(|slot| slot.plan != 0) {
            let at = self.probe(slot.key);
            self.slots[at] = *slot;
        }
        old
    }
}

/// The slots for `keys` keys at the highest load.
fn slots_for(keys: usize) -> usize {
    keys * LOAD_DEN / LOAD_NUM + 1
}

#[cfg(test)]
mod tests {
    use super::super::hint::Hint;
    use super::super::huge_pages::HugePages;
    use super::*;

    /// Plan of every slot here.
    const PLAN: u32 = 7;

    /// The `number`th of some keys whose homes are spread over the shard.
    fn key(number: u64) -> GuardKey {
        GuardKey {
            low: number,
            high: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// Huge pages for one shard of 1,400 keys: a region of 2,000 slots.
    fn pages() -> HugePages {
        HugePages::new(1, 1_400)
    }

    fn shard(keys: u64) -> Shard {
        shard_on(&pages(), keys)
    }

    fn shard_on(pages: &HugePages, keys: u64) -> Shard {
        let mut shard = Shard::new();
        for number in 0..keys {
            let slot = Slot {
                key: key(number),
                plan: PLAN,
                ..Slot::EMPTY
            };
            drop(shard.put(slot, RegionHandle { pages, number: 0 }));
        }
        shard
    }

    fn has_all(shard: &mut Shard, keys: u64) -> bool {
        (0..keys).all(|number| shard.find(key(number)).key == key(number))
            && shard.occupied().count() as u64 == keys
    }

    #[test]
    fn every_key_is_found_from_its_home() {
        // Many sizes, so that the probing of some keys wraps around the end.
        for keys in 1..200 {
            let mut shard = shard(keys);
            let hint = Hint::default();
            hint.note(&shard);
            for number in 0..keys {
                let found = shard.find_known(hint.home(key(number)), key(number), PLAN);
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
                let found = shard.find_known(home, key(number), PLAN);
                assert!(found.is_none_or(|slot| slot.key == key(number)));
            }
        }
    }

    #[test]
    fn an_unknown_key_and_a_key_under_another_plan_are_not_found() {
        let mut shard = shard(100);
        let hint = Hint::default();
        hint.note(&shard);
        assert!(
            shard
                .find_known(hint.home(key(3)), key(3), PLAN + 1)
                .is_none()
        );
        assert!(
            shard
                .find_known(hint.home(key(500)), key(500), PLAN)
                .is_none()
        );
    }

    #[test]
    fn a_hint_follows_a_shard_that_has_grown() {
        let (small, mut large) = (shard(2), shard(100));
        let hint = Hint::default();
        hint.note(&small);
        hint.note(&large);
        let found = large.find_known(hint.home(key(99)), key(99), PLAN);
        assert!(found.is_some());
    }

    #[test]
    fn a_shard_moves_to_its_region_and_beyond_with_all_its_keys() {
        for (keys, slots) in [(1_400, 2_000), (1_600, 2_000), (1_601, 2_288)] {
            let pages = pages();
            let mut shard = shard_on(&pages, keys);
            assert_eq!(shard.slots.len(), slots);
            assert_eq!(shard.slots.is_on_huge_pages(), slots == 2_000);
            assert_eq!(pages.bytes() > 0, slots == 2_000);
            assert!(has_all(&mut shard, keys));
        }
    }

    #[test]
    fn an_emptied_shard_leaves_its_region_and_can_return() {
        let pages = pages();
        let mut shard = shard_on(&pages, 1_500);
        for number in 0..100 {
            shard.find(key(number)).at[0] = 100;
        }
        while !shard.sweep(50, usize::MAX).wrapped {}
        assert!(!shard.slots.is_on_huge_pages() && pages.bytes() == 0);
        assert!(has_all(&mut shard, 100));
        for number in 100..1_500 {
            let mut slot = *shard.find(key(0));
            slot.key = key(number);
            let handle = RegionHandle {
                pages: &pages,
                number: 0,
            };
            drop(shard.put(slot, handle));
        }
        assert!(shard.slots.is_on_huge_pages());
        assert!(has_all(&mut shard, 1_500));
    }
}
