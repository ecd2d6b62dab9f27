//! Ground: memory on huge pages for the shards of a table that is nearly full (ADR 0015).
//!
//! A million keys lie on 23,000 ordinary pages, far more than a processor remembers the places of,
//! so that a decision would wait for its page's place and then for its slot. On huge pages they lie
//! on 46. A shard alone is smaller than a huge page; so all shards of a table lie side by side in
//! one mapping, each on a plot of its own that is as large as it will need.
//!
//! Promises: a plot has one owner at a time. The ground is mapped when a shard first asks for its
//! plot and is given back to the system when the last plot is. Where there are no huge pages, or
//! nothing can be mapped, everything works on ordinary memory.
//!
//! Never: is mapped for a table that is far from full, or whose shards are small.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use memmap2::{MmapMut, MmapRaw};
use parking_lot::Mutex;

use super::slots::Slot;

/// Length and alignment of a huge page on x86-64, and on 64-bit ARM with pages of 4 KiB. Where it
/// is another, the ground has the pages that the system likes to give.
const HUGE: usize = 2 << 20;

/// Slots of the smallest plot: 64 KiB. Tables of smaller shards hold at most 180,000 keys, whose
/// pages a processor does remember.
const REGION_SLOTS_MIN: usize = 1_024;

/// A shard moves to its plot when it needs more than seven eighths of it: that is the most memory a
/// plot may waste, 14 %, and as all shards fill alike, it is the most that the ground may waste.
const SHARE_NUM: usize = 7;
const SHARE_DEN: usize = 8;

/// Plots are sized for a load of seven tenths when the table is full, and may be loaded to eight:
/// in a full table the fullest shard has a tenth more keys than the mean only once in 10^9.
const LOAD_NUM: usize = 7;
const ROOM_NUM: usize = 8;
const LOAD_DEN: usize = 10;

/// Nobody has the plot, and nobody ever had: it is as the system gave it, zeros.
const FRESH: u8 = 0;
/// Somebody has the plot.
const TAKEN: u8 = 1;
/// Nobody has the plot, but somebody had.
const USED: u8 = 2;

/// The ground of one table.
#[derive(Debug)]
pub(crate) struct HugePages {
    regions: usize,
    /// Slots of each plot; 0 if the shards are too small for plots.
    slots: usize,
    /// Bytes of all plots, in whole huge pages.
    length: usize,
    /// Alive while any plot is.
    mapping: Mutex<Weak<Mapping>>,
}

/// Which plot a shard may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionHandle<'g> {
    pub(crate) pages: &'g HugePages,
    /// Number of the shard, and of its plot.
    pub(crate) number: usize,
}

impl HugePages {
    /// Ground for a table of `shards` shards that hold `keys_max` keys together.
    pub(crate) fn new(shards: usize, keys_max: usize) -> HugePages {
        let slots = (keys_max * LOAD_DEN).div_ceil(LOAD_NUM * shards.max(1));
        let bytes = shards.checked_mul(slots * size_of::<Slot>());
        // None where addresses are too short for so many keys.
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
    /// The shard's plot, if it should lie there: it has `keys` keys and would like `slots` slots.
    /// None also if it lies there already.
    pub(crate) fn claim(self, keys: usize, slots: usize) -> Option<Region> {
        let plot = self.pages.slots;
        if plot == 0 || slots * SHARE_DEN <= plot * SHARE_NUM || keys > capacity(plot) {
            return None;
        }
        Region::claim(self.pages.mapping()?, self.number)
    }
}

/// Keys that a plot of `slots` slots may hold.
pub(crate) fn capacity(slots: usize) -> usize {
    slots * ROOM_NUM / LOAD_DEN
}

/// The mapping. The system gets it back when it is dropped.
#[derive(Debug)]
struct Mapping {
    map: MmapRaw,
    /// Where the first huge page can be.
    offset: usize,
    /// Slots of a plot.
    slots: usize,
    /// One per plot.
    states: Box<[AtomicU8]>,
}

impl Mapping {
    #[cold]
    fn new(plots: usize, slots: usize, length: usize) -> Option<Mapping> {
        // A huge page longer, so that there is an aligned place of this length in it wherever the
        // system puts it. What is around that place is never touched, so it costs addresses only.
        let map = MmapRaw::from(MmapMut::map_anon(length.checked_add(HUGE)?).ok()?);
        let offset = map.as_mut_ptr().addr().wrapping_neg() % HUGE;
        // A refusal (a system without huge pages) leaves ordinary pages, which will do.
        #[cfg(target_os = "linux")]
        let _refused = map
            .advise_range(memmap2::Advice::HugePage, offset, length)
            .is_err();
        Some(Mapping {
            map,
            offset,
            slots,
            states: (0..plots).map(|_| AtomicU8::new(FRESH)).collect(),
        })
    }
}

/// The memory of one shard, given back when dropped.
///
/// From [`Region::take`] until then nobody else has it: its state is [`TAKEN`], and who finds that
/// gets no plot.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Arc<Mapping>,
    number: usize,
    /// Somebody had it before, so it must be cleared.
    pub(crate) used: bool,
}

impl Region {
    fn claim(mapped: Arc<Mapping>, number: usize) -> Option<Region> {
        let before = mapped.states.get(number)?.swap(TAKEN, Ordering::Acquire);
        // Not `then_some`: a plot that is built and dropped would free what is another's.
        (before != TAKEN).then(|| Region {
            mapping: mapped,
            number,
            used: before == USED,
        })
    }

    /// The first slot and how many there are: mapped, aligned, and this plot's alone while it
    /// lives. Never overlaps another plot: plot `n` begins `n` plots behind the offset, and the
    /// mapping is at least `offset` + plots × slots long.
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
        // `take` saw that the number is one of a plot.
        if let Some(state) = self.mapping.states.get(self.number) {
            state.store(USED, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ground for four shards of 1,400 keys: plots of 2,000 slots.
    fn pages() -> HugePages {
        HugePages::new(4, 4 * 1_400)
    }

    fn region(ground: &HugePages, number: usize) -> Option<Region> {
        RegionHandle {
            pages: ground,
            number,
        }
        .claim(1_300, 1_900)
    }

    #[test]
    fn a_region_has_one_owner_at_a_time() {
        let ground = pages();
        let first = region(&ground, 2);
        assert!(first.is_some());
        assert!(region(&ground, 2).is_none());
        // Who was refused has freed nothing.
        assert!(region(&ground, 2).is_none());
        drop(first);
        assert!(region(&ground, 2).is_some());
    }

    #[test]
    fn regions_do_not_overlap_and_lie_in_the_mapping() {
        let ground = pages();
        let plots: Vec<_> = (0..4)
            .map(|number| region(&ground, number).expect("ground"))
            .collect();
        let map = &plots[0].mapping.map;
        let mut end = map.as_mut_ptr().addr();
        for plot in &plots {
            let (first, slots) = plot.slots();
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
        let ground = pages();
        let site = RegionHandle {
            pages: &ground,
            number: 0,
        };
        assert!(site.claim(1_000, 1_750).is_none());
        assert!(site.claim(1_601, 2_400).is_none());
        assert_eq!(ground.bytes(), 0);
        assert!(site.claim(1_600, 2_400).is_some());
    }

    #[test]
    fn small_shards_have_no_regions() {
        let ground = HugePages::new(256, 100_000);
        let site = RegionHandle {
            pages: &ground,
            number: 0,
        };
        assert!(site.claim(390, 558).is_none());
    }

    #[test]
    fn the_mapping_is_released_with_its_last_region() {
        let ground = pages();
        let (one, two) = (region(&ground, 1), region(&ground, 3));
        assert_eq!(ground.bytes(), HUGE);
        drop(one);
        assert_eq!(ground.bytes(), HUGE);
        drop(two);
        assert_eq!(ground.bytes(), 0);
    }
}
