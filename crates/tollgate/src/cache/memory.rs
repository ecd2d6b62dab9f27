//! The memory tier: frequently requested responses, bounded in bytes.
//!
//! Promises: a lookup takes one read lock of one shard. Evicted responses are on disk, if there is
//! one. Stale responses stay until room is needed: they serve calls when a provider is unavailable.
//!
//! Never: waits for the disk.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;
use quick_cache::sync::{Cache as Quick, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::lock_order::{RankedMutex, rank};

use super::key::{UrlHash, Variant};
use super::{CacheKey, CacheUsage, CachedResponse, OBJECT_MAX, VariantSet};

/// The shards split the room evenly, and no variant set is larger than its shard: four shards are
/// enough for the threads of a gateway. If a shard could not hold the largest response, there is
/// only one; anything larger is on disk alone.
const SHARDS: usize = 4;

/// The expected number of responses: sizes the maps at the start; they grow if needed.
const EXPECTED: usize = 4_096;

/// Remembered invalidations of URLs and single responses, some 64 bytes each. Past that the oldest
/// is dropped, and every response requested before it becomes invalid.
const INVALIDATIONS_MAX: usize = 16_384;

/// An invalidation further ahead than this was recorded by a clock that has been set back since.
/// Processes of one host do not differ by that much, nor does a call take that long between its two
/// readings of the clock.
const CLOCK_AHEAD_MAX: Span = Span::from_secs(60);

/// Frequently requested responses.
#[derive(Debug)]
pub(super) struct MemoryTier {
    entries: Quick<CacheKey, Arc<VariantSet>, ByWeight, DefaultHashBuilder>,
    /// Writers take turns, so that two responses to one URL do not overwrite each other.
    write_lock: RankedMutex<{ rank::CACHE_WRITE }, ()>,
    /// Counts explicit removals: a response read from disk before a removal is not inserted after
    /// it.
    removals: AtomicU64,
    purges: AtomicU64,
    /// The invalidations and their times. Responses of other callers are under keys that cannot be
    /// listed.
    invalidations: RwLock<Invalidations>,
    has_invalidations: AtomicBool,
}

/// URLs that an unsafe method has invalidated, and single responses that must not be used again,
/// under identifiers that no URL has.
#[derive(Debug, Default)]
struct Invalidations {
    times: HashMap<UrlHash, Wall>,
    /// The oldest first. An invalidation that was repeated later is listed twice.
    order: VecDeque<(UrlHash, Wall)>,
    /// Any response requested before this may have been invalidated.
    floor: Option<Wall>,
}

impl Invalidations {
    fn add(&mut self, what: UrlHash, at: Wall) {
        let mark = self.times.entry(what).or_insert(at);
        // A late report must not move the time back.
        *mark = at.max(*mark);
        self.order.push_back((what, *mark));
        while self.order.len() > INVALIDATIONS_MAX
            && let Some((what, at)) = self.order.pop_front()
        {
            if self.times.get(&what) == Some(&at) {
                self.times.remove(&what);
                self.floor = self.floor.max(Some(at));
            }
        }
    }

    /// Was this response requested before it became invalid? An invalidation by a clock that was
    /// set back since says nothing about later responses.
    fn covers(&self, stored: Wall, now: Wall, names: [UrlHash; 2]) -> bool {
        let of_its_own = names.iter().map(|name| self.times.get(name).copied());
        of_its_own.chain([self.floor]).flatten().any(|mark| {
            let is_set_back = mark > now + CLOCK_AHEAD_MAX && stored <= now + CLOCK_AHEAD_MAX;
            stored <= mark && !is_set_back
        })
    }
}

#[derive(Clone, Debug)]
struct ByWeight;

impl Weighter<CacheKey, Arc<VariantSet>> for ByWeight {
    fn weight(&self, _key: &CacheKey, variants: &Arc<VariantSet>) -> u64 {
        variants.weight()
    }
}

impl MemoryTier {
    pub(super) fn new(bytes: u64) -> MemoryTier {
        let is_roomy = bytes >= (SHARDS * OBJECT_MAX) as u64;
        let options = OptionsBuilder::new()
            .shards(if is_roomy { SHARDS } else { 1 })
            .estimated_items_capacity(EXPECTED)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are given");
        MemoryTier {
            entries: Quick::with_options(
                options,
                ByWeight,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            write_lock: RankedMutex::new(()),
            removals: AtomicU64::new(0),
            purges: AtomicU64::new(0),
            invalidations: RwLock::default(),
            has_invalidations: AtomicBool::new(false),
        }
    }

    pub(super) fn get(&self, key: &CacheKey) -> Option<Arc<VariantSet>> {
        self.entries.get(key)
    }

    /// Stores a response, unless a purge or a change of its URL came after the request, or a
    /// response requested later exists. `also` runs before the next change and returns whether
    /// there may be more under this key elsewhere. Returns whether the response is stored.
    pub(super) fn put(
        &self,
        key: CacheKey,
        object: &Arc<CachedResponse>,
        now: Wall,
        purges: u64,
        also: impl FnOnce() -> bool,
    ) -> bool {
        let _turn = self.write_lock.lock();
        if self.purge_count() != purges || self.is_invalid(&key, object, now) {
            return false;
        }
        let variants = self.entries.peek(&key);
        // A response from the future was stored by a clock that has been set back since.
        let is_newer = |old: &Arc<CachedResponse>| {
            old.variant == object.variant && old.stored > object.stored && old.stored <= now
        };
        if variants
            .as_ref()
            .is_some_and(|variants| variants.objects().iter().any(is_newer))
        {
            return false;
        }
        let has_more = also();
        let variants = match variants {
            Some(variants) => variants.with(object.clone()),
            None if has_more => VariantSet::new([object.clone()]).partial(),
            None => VariantSet::new([object.clone()]),
        };
        variants.record_use(now);
        self.entries.insert(key, Arc::new(variants));
        true
    }

    /// Inserts responses read from disk, if nothing was removed meanwhile.
    pub(super) fn insert_from_disk(&self, key: CacheKey, variants: Arc<VariantSet>, changes: u64) {
        let _turn = self.write_lock.lock();
        if self.removals() != changes {
            return;
        }
        let variants = match self.entries.peek(&key) {
            Some(here) => Arc::new(here.merge(&variants)),
            None => variants,
        };
        self.entries.insert(key, variants);
    }

    /// Removes the responses under a key, and invalidates those of its URL that were stored before
    /// now.
    pub(super) fn invalidate(&self, key: Option<&CacheKey>, url: UrlHash, now: Wall) {
        let _turn = self.write_lock.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        if let Some(key) = key {
            self.entries.remove(key);
        }
        self.record_invalidation(url, now);
    }

    /// Removes one response if it was requested by then.
    pub(super) fn remove(&self, key: &CacheKey, variant: Variant, at: Wall) {
        let _turn = self.write_lock.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        self.record_invalidation(key.response_id(variant), at);
        let Some(variants) = self.entries.peek(key) else {
            return;
        };
        let is_it = |object: &CachedResponse| object.variant == variant && object.stored <= at;
        match variants.without_matching(is_it) {
            Some(remaining) => self.entries.insert(*key, Arc::new(remaining)),
            None => {
                self.entries.remove(key);
            }
        }
    }

    fn record_invalidation(&self, what: UrlHash, at: Wall) {
        self.invalidations.write().add(what, at);
        self.has_invalidations.store(true, Ordering::Release);
    }

    /// Was it requested before its URL, or it itself, became invalid?
    pub(super) fn is_invalid(&self, key: &CacheKey, object: &CachedResponse, now: Wall) -> bool {
        self.has_invalidations.load(Ordering::Acquire) && {
            let names = [object.url, key.response_id(object.variant)];
            self.invalidations.read().covers(object.stored, now, names)
        }
    }

    pub(super) fn purge(&self, provider: Option<&str>, entity: Option<&str>) -> u64 {
        let _turn = self.write_lock.lock();
        self.removals.fetch_add(1, Ordering::AcqRel);
        self.purges.fetch_add(1, Ordering::AcqRel);
        let mut gone = 0;
        let affected: Vec<(CacheKey, Arc<VariantSet>)> = self
            .entries
            .iter()
            .filter(|(_, variants)| {
                variants
                    .objects()
                    .iter()
                    .any(|one| one.is_of(provider, entity))
            })
            .collect();
        for (key, variants) in affected {
            let remaining = variants.without(provider, entity);
            let count = remaining
                .as_ref()
                .map_or(0, |remaining| remaining.objects().len());
            gone += (variants.objects().len() - count) as u64;
            match remaining {
                Some(remaining) => self.entries.insert(key, Arc::new(remaining)),
                None => {
                    self.entries.remove(&key);
                }
            }
        }
        gone
    }

    pub(super) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    pub(super) fn purge_count(&self) -> u64 {
        self.purges.load(Ordering::Acquire)
    }

    pub(super) fn usage(&self) -> Vec<CacheUsage> {
        let mut rows: BTreeMap<(String, Option<String>), (u64, u64)> = BTreeMap::new();
        for (_, variants) in self.entries.iter() {
            for object in variants.objects() {
                let name = (object.provider.clone(), object.entity.clone());
                let (count, bytes) = rows.entry(name).or_default();
                *count += 1;
                *bytes += object.weight();
            }
        }
        let row = |((provider, entity), (responses, bytes))| CacheUsage {
            provider,
            entity,
            responses,
            bytes,
        };
        rows.into_iter().map(row).collect()
    }
}
