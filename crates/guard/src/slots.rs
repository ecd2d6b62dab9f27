//! The slots of one shard: an allocated array, or one in a region of huge pages.
//!
//! Promises: a slot is one cache line. Access costs the same wherever it lies, because address and
//! count are stored here. New slots are empty.
//!
//! Never: moves a slot.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use super::huge_pages::Region;
use super::key::GuardKey;
use super::pace::FineTime;
use super::plan::LIMITS_MAX;

/// All the limits of one key. 64 bytes, aligned: a decision touches one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) key: GuardKey,
    /// When each bucket is full again: whole nanoseconds …
    pub(crate) at: [u64; LIMITS_MAX],
    /// … and parts, in the denominators of the plan.
    pub(crate) part: [u32; LIMITS_MAX],
    /// The plan that `at` and `part` refer to; 0 = the slot is empty.
    pub(crate) plan: u32,
}

impl Slot {
    /// All zeros, as the system maps memory: see [`Slots::on_region`].
    pub(crate) const EMPTY: Slot = Slot {
        key: GuardKey { low: 0, high: 0 },
        at: [0; LIMITS_MAX],
        part: [0; LIMITS_MAX],
        plan: 0,
    };

    pub(crate) fn full_at(&self, limit: usize) -> FineTime {
        FineTime {
            at: self.at[limit],
            part: self.part[limit],
        }
    }

    pub(crate) fn set(&mut self, limit: usize, full: FineTime) {
        self.at[limit] = full.at;
        self.part[limit] = full.part;
    }

    /// Whether every bucket is full at `now`: evicting the slot changes nothing.
    pub(crate) fn is_idle(&self, now: u64) -> bool {
        self.at.iter().all(|&at| at < now)
    }
}

/// Slots by number. Code that replaces them under a lock should drop them without it: freeing them
/// may make the allocator return other memory to the system too, which takes milliseconds.
pub(crate) struct Slots {
    first: NonNull<Slot>,
    count: usize,
    /// The region that holds them; `None`: they are a boxed slice.
    region: Option<Region>,
}

// SAFETY: slots are plain numbers and are owned by this value alone: a boxed slice was leaked for
// them (`Slots::new`), or the region is in `self` and has no other owner (`Region::slots`). So they
// may move to another thread, as a `Box<[Slot]>` may.
#[expect(unsafe_code, reason = "a pointer is Send by proof only, see above")]
unsafe impl Send for Slots {}

impl Slots {
    /// Empty slots from the allocator.
    pub(crate) fn new(count: usize) -> Slots {
        let slots = Box::leak(vec![Slot::EMPTY; count].into_boxed_slice());
        Slots {
            first: NonNull::from_mut(slots).cast(),
            count,
            region: None,
        }
    }

    /// The empty slots of a region.
    pub(crate) fn on_region(region: Region) -> Slots {
        let (first, count) = region.slots();
        let used = region.used;
        let mut slots = Slots {
            first,
            count,
            region: Some(region),
        };
        // A region that was never used is zeros, thus empty, and is better not touched before its
        // time.
        if used {
            slots.fill(Slot::EMPTY);
        }
        slots
    }

    /// Whether they lie in a region of huge pages.
    pub(crate) fn is_on_huge_pages(&self) -> bool {
        self.region.is_some()
    }
}

impl Deref for Slots {
    type Target = [Slot];

    #[inline]
    fn deref(&self) -> &[Slot] {
        // SAFETY: `first` and `count` are those of a boxed slice that was leaked for this value, or
        // of the region in it: `count` slots, aligned, allocated or mapped until `drop`, and
        // initialised (the system maps zeros, everything else was written as slots, and any bits
        // are numbers). They are reached through this value only, whose borrow the reference
        // carries.
        #[expect(unsafe_code, reason = "a part of a mapping has no safe owner")]
        unsafe {
            std::slice::from_raw_parts(self.first.as_ptr(), self.count)
        }
    }
}

impl DerefMut for Slots {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Slot] {
        // SAFETY: as in `deref`; the borrow is exclusive, so the reference is.
        #[expect(unsafe_code, reason = "a part of a mapping has no safe owner")]
        unsafe {
            std::slice::from_raw_parts_mut(self.first.as_ptr(), self.count)
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if self.region.is_some() {
            // The region releases itself.
            return;
        }
        let slots = ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.count);
        // SAFETY: without a region this is the slice that `new` leaked, whole, and it is freed
        // once: a dropped value is not used again.
        #[expect(unsafe_code, reason = "the leaked slice must be freed")]
        unsafe {
            drop(Box::from_raw(slots));
        }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("count", &self.count)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::huge_pages::{HugePages, RegionHandle};
    use super::*;

    #[test]
    fn slots_are_empty_also_on_a_reused_region() {
        let pages = HugePages::new(2, 2 * 1_400);
        let handle = RegionHandle {
            pages: &pages,
            number: 1,
        };
        // The other region keeps the pages mapped, so that this one is not new the second time.
        let other = RegionHandle {
            number: 0,
            ..handle
        }
        .claim(1_300, 1_900);
        for turn in 0..2 {
            let mut slots = Slots::on_region(handle.claim(1_300, 1_900).expect("a region"));
            assert_eq!(
                slots.region.as_ref().map(|region| region.used),
                Some(turn > 0)
            );
            assert_eq!(slots.len(), 2_000);
            assert!(slots.iter().all(|slot| slot.plan == 0));
            slots.iter_mut().for_each(|slot| slot.plan = 1);
        }
        drop(other);
    }

    #[test]
    fn allocated_slots_are_empty_and_independent() {
        for count in [0, 1, 4, 100] {
            let mut slots = Slots::new(count);
            assert!(slots.iter().all(|slot| slot.plan == 0));
            (1..)
                .zip(slots.iter_mut())
                .for_each(|(plan, slot)| slot.plan = plan);
            assert!(slots.iter().map(|slot| slot.plan as usize).eq(1..=count));
        }
    }
}
