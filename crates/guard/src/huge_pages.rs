//! Huge pages for the shards of a table that is nearly full (ADR 0015).
//!
//! A million keys take 23,000 ordinary pages, far more than the TLB of a processor holds, so a
//! decision would wait for the address translation and then for its slot. On huge pages they take
//! 46. A shard alone is smaller than a huge page; so all shards of a table share one mapping, each
//! in its own region that is as large as it will need.
//!
//! Promises: a region has one owner at a time. The mapping is created when a shard first claims its
//! region and is released with the last region. Where there are no huge pages, or mapping fails,
//! everything works on ordinary memory.
//!
//! Never: maps memory for a table that is far from full, or whose shards are small.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use memmap2::{MmapMut, MmapRaw};
use parking_lot::Mutex;

use super::slots::Slot;

/// Length and alignment of a huge page on x86-64, and on 64-bit ARM with pages of 4 KiB. Where the
/// size differs, the mapping has whatever pages the system provides.
const HUGE: usize = 2 << 20;

/// Slots of the smallest region: 64 KiB. Tables of smaller shards hold at most 180,000 keys, whose
/// pages fit in the TLB.
const REGION_SLOTS_MIN: usize = 1_024;

/// A shard moves to its region when it needs more than seven eighths of it: that bounds the waste
/// of a region to 14 %, and as all shards fill alike, that of the mapping too.
const SHARE_NUM: usize = 7;
const SHARE_DEN: usize = 8;

/// Regions are sized for a load of seven tenths when the table is full, and may be loaded to eight:
/// in a full table the fullest shard has a tenth more keys than the mean only once in 10^9.
const LOAD_NUM: usize = 7;
const ROOM_NUM: usize = 8;
const LOAD_DEN: usize = 10;

/// The region is free and was never used: it is zeros, as the system mapped it.
const FRESH: u8 = 0;
/// The region has an owner.
const TAKEN: u8 = 1;
/// The region is free, but was used before.
const USED: u8 = 2;

/// The huge pages of one table.
#[derive(Debug)]
pub(crate) struct HugePages {
    regions: usize,
    /// Slots of each region; 0 if the shards are too small for regions.
    slots: usize,
    /// Bytes of all regions, in whole huge pages.
    length: usize,
    /// Alive while any region is.
    mapping: Mutex<Weak<Mapping>>,
}

/// The region that a shard may claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionHandle<'g> {
    pub(crate) pages: &'g HugePages,
    /// Number of the shard, and of its region.
    pub(crate) number: usize,
}

impl HugePages {
    /// Huge pages for a table of `shards` shards that hold `keys_max` keys together.
    pub(crate) fn new(shards: usize, keys_max: usize) -> HugePages {
        let slots = (keys_max * LOAD_DEN).div_ceil(LOAD_NUM * shards.max(1));
        let bytes = shards.checked_mul(slots * size_of::<Slot>());
        // `None` where addresses are too short for so many keys.
        let length = bytes.and_then(|bytes| bytes.checked_next_multiple_of(HUGE));
        let suits = slots >= REGION_SLOTS_MIN && length.is_some();
        HugePages {
            regions: shards,
            slots: if suits { slots } else { 0 },
            length: length.unwrap_or(0),
            mapping: Mutex::default(),
        }
    }

    /// Bytes that are mapped now, in whole huge pages.
    pub(crate) fn bytes(&self) -> usize {
        let mapped = self.mapping.lock();
        if mapped.strong_count() > 0 {
            self.length
        } else {
            0
        }
    }

    fn mapping(&self) -> Option<Arc<Mapping>> {
        let mut mapped = self.mapping.lock();
        if let Some(mapped) = mapped.upgrade() {
            return Some(mapped);
        }
        let new = Arc::new(Mapping::new(self.regions, self.slots, self.length)?);
        *mapped = Arc::downgrade(&new);
        Some(new)
    }
}

impl RegionHandle<'_> {
    /// The shard's region, if the shard should use it: it has `keys` keys and needs `slots` slots.
    /// `None` also if the region is already claimed.
    pub(crate) fn claim(self, keys: usize, slots: usize) -> Option<Region> {
        let most = self.pages.slots;
        if most == 0 || slots * SHARE_DEN <= most * SHARE_NUM || keys > capacity(most) {
            return None;
        }
        Region::claim(self.pages.mapping()?, self.number)
    }
}

/// Keys that a region of `slots` slots may hold.
pub(crate) fn capacity(slots: usize) -> usize {
    slots * ROOM_NUM / LOAD_DEN
}

/// The mapping. Dropping it releases the memory.
#[derive(Debug)]
struct Mapping {
    map: MmapRaw,
    /// Where the first huge page can start.
    offset: usize,
    /// Slots of a region.
    slots: usize,
    /// One per region.
    states: Box<[AtomicU8]>,
}

impl Mapping {
    #[cold]
    fn new(regions: usize, slots: usize, length: usize) -> Option<Mapping> {
        // One huge page longer, so that it contains an aligned range of this length wherever the
        // system puts it. The memory around that range is never touched, so it costs addresses
        // only.
        let map = MmapRaw::from(MmapMut::map_anon(length.checked_add(HUGE)?).ok()?);
        let offset = map.as_mut_ptr().addr().wrapping_neg() % HUGE;
        // If this fails (a system without huge pages), ordinary pages remain, which work too.
        #[cfg(target_os = "linux")]
        let _failed = map
            .advise_range(memmap2::Advice::HugePage, offset, length)
            .is_err();
        Some(Mapping {
            map,
            offset,
            slots,
            states: (0..regions).map(|_| AtomicU8::new(FRESH)).collect(),
        })
    }
}

/// The memory of one shard, released when dropped.
///
/// From [`Region::claim`] until then it has no other owner: its state is [`TAKEN`], and a claim
/// that finds that state gets no region.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Arc<Mapping>,
    number: usize,
    /// It was used before, so it must be cleared.
    pub(crate) used: bool,
}

impl Region {
    fn claim(mapped: Arc<Mapping>, number: usize) -> Option<Region> {
        let before = mapped.states.get(number)?.swap(TAKEN, Ordering::Acquire);
        // Not `then_some`: a region that is built and dropped would free another owner's memory.
        (before != TAKEN).then(|| Region {
            mapping: mapped,
            number,
            used: before == USED,
        })
    }

    /// The first slot and their number: mapped, aligned, and owned by this region alone while it
    /// lives. Never overlaps another region: region `n` begins `n` regions after the offset, and
    /// the mapping is at least `offset` + regions × slots long.
    pub(crate) fn slots(&self) -> (NonNull<Slot>, usize) {
        let Mapping {
            map, offset, slots, ..
        } = &*self.mapping;
        let at = offset + self.number * slots * size_of::<Slot>();
        let first = map.as_mut_ptr().wrapping_add(at).cast();
        let first = NonNull::new(first).expect("memory is not mapped at zero");
        (first, *slots)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // `claim` has checked the number.
        if let Some(state) = self.mapping.states.get(self.number) {
            state.store(USED, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Huge pages for four shards of 1,400 keys: regions of 2,000 slots.
    fn pages() -> HugePages {
        HugePages::new(4, 4 * 1_400)
    }

    fn region(pages: &HugePages, number: usize) -> Option<Region> {
        RegionHandle { pages, number }.claim(1_300, 1_900)
    }

    #[test]
    fn a_region_has_one_owner_at_a_time() {
        let pages = pages();
        let first = region(&pages, 2);
        assert!(first.is_some());
        assert!(region(&pages, 2).is_none());
        // A failed claim has freed nothing.
        assert!(region(&pages, 2).is_none());
        drop(first);
        assert!(region(&pages, 2).is_some());
    }

    #[test]
    fn regions_do_not_overlap_and_lie_in_the_mapping() {
        let pages = pages();
        let regions: Vec<_> = (0..4)
            .map(|number| region(&pages, number).expect("a region"))
            .collect();
        let map = &regions[0].mapping.map;
        let mut end = map.as_mut_ptr().addr();
        for region in &regions {
            let (first, slots) = region.slots();
            assert_eq!(slots, 2_000);
            assert!(first.addr().get() >= end && first.is_aligned());
            end = first.addr().get() + slots * size_of::<Slot>();
        }
        assert!(end <= map.as_mut_ptr().addr() + map.len());
    }

    #[test]
    fn there_is_no_region_beyond_the_last_shard() {
        assert!(region(&pages(), 4).is_none());
    }

    #[test]
    fn a_shard_gets_a_region_only_near_its_expected_size() {
        let pages = pages();
        let handle = RegionHandle {
            pages: &pages,
            number: 0,
        };
        assert!(handle.claim(1_000, 1_750).is_none());
        assert!(handle.claim(1_601, 2_400).is_none());
        assert_eq!(pages.bytes(), 0);
        assert!(handle.claim(1_600, 2_400).is_some());
    }

    #[test]
    fn small_shards_have_no_regions() {
        let pages = HugePages::new(256, 100_000);
        let handle = RegionHandle {
            pages: &pages,
            number: 0,
        };
        assert!(handle.claim(390, 558).is_none());
    }

    #[test]
    fn the_mapping_is_released_with_its_last_region() {
        let pages = pages();
        let (one, two) = (region(&pages, 1), region(&pages, 3));
        assert_eq!(pages.bytes(), HUGE);
        drop(one);
        assert_eq!(pages.bytes(), HUGE);
        drop(two);
        assert_eq!(pages.bytes(), 0);
    }
}
