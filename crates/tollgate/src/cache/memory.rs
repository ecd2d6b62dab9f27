//! The memory tier: what is asked for again and again, bounded in bytes.
//!
//! Promises: a look takes one read lock of one shard. What is pushed out is on disk, if there is
//! one. Old answers stay until room is needed: they are wanted when a provider cannot be asked.
//!
//! Never: waits for the disk.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use quick_cache::sync::{Cache as Quick, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use tollgate_core::time::{Span, Wall};

use super::desk::Row;
use super::key::{Url, Variant};
use super::{Key, OBJECT_MAX, Object, Shelf};

/// The shards split the room evenly, and no shelf is larger than its shard: four of them are enough
/// for the threads of a gateway. Where one could not hold the largest answer, there is only one; what
/// is larger than that is on disk alone.
const SHARDS: usize = 4;

/// Answers that are expected: sizes the maps at the start, which grow if they must.
const EXPECTED: usize = 4_096;

/// URLs and single answers that are remembered as invalid, some 64 bytes each. Past that the oldest is
/// forgotten, and with it every answer that was asked for before it.
const MARKS_MAX: usize = 16_384;

/// A mark that is further ahead than this was made by a clock that has been set back since. Processes of
/// one host do not differ by as much, nor does a call take as long between its two looks at the clock.
const AHEAD_MAX: Span = Span::from_secs(60);

/// What is asked for again and again.
#[derive(Debug)]
pub(super) struct Memory {
    shelves: Quick<Key, Arc<Shelf>, ByWeight, DefaultHashBuilder>,
    /// Writers take turns, so that two answers to one URL do not lose each other.
    writing: Mutex<()>,
    /// Counts whatever was forgotten on purpose: what was read from disk before that is not put in
    /// after it.
    changes: AtomicU64,
    purges: AtomicU64,
    /// What has become invalid, and when. Answers to others are under keys that nobody can list.
    marks: RwLock<Marks>,
    has_marks: AtomicBool,
}

/// URLs that an unsafe method has made invalid, and answers that are not to be used again, under names
/// that no URL has.
#[derive(Debug, Default)]
struct Marks {
    at: HashMap<Url, Wall>,
    /// The oldest first. A mark that was made later once more stands here twice.
    order: VecDeque<(Url, Wall)>,
    /// Whatever was asked for before that may have been marked.
    floor: Option<Wall>,
}

impl Marks {
    fn add(&mut self, what: Url, at: Wall) {
        let mark = self.at.entry(what).or_insert(at);
        // Who hears of it late must not make it earlier.
        *mark = at.max(*mark);
        self.order.push_back((what, *mark));
        while self.order.len() > MARKS_MAX
            && let Some((what, at)) = self.order.pop_front()
        {
            if self.at.get(&what) == Some(&at) {
                self.at.remove(&what);
                self.floor = self.floor.max(Some(at));
            }
        }
    }

    /// Was this asked for before it became invalid? What a clock has marked that was set back since
    /// says nothing about what came after that.
    fn is_before(&self, stored: Wall, now: Wall, names: [Url; 2]) -> bool {
        let of_its_own = names.iter().map(|name| self.at.get(name).copied());
        of_its_own.chain([self.floor]).flatten().any(|mark| {
            let is_set_back = mark > now + AHEAD_MAX && stored <= now + AHEAD_MAX;
            stored <= mark && !is_set_back
        })
    }
}

#[derive(Clone, Debug)]
struct ByWeight;

impl Weighter<Key, Arc<Shelf>> for ByWeight {
    fn weight(&self, _key: &Key, shelf: &Arc<Shelf>) -> u64 {
        shelf.weight()
    }
}

impl Memory {
    pub(super) fn new(bytes: u64) -> Memory {
        let is_roomy = bytes >= (SHARDS * OBJECT_MAX) as u64;
        let options = OptionsBuilder::new()
            .shards(if is_roomy { SHARDS } else { 1 })
            .estimated_items_capacity(EXPECTED)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are given");
        Memory {
            shelves: Quick::with_options(
                options,
                ByWeight,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            writing: Mutex::new(()),
            changes: AtomicU64::new(0),
            purges: AtomicU64::new(0),
            marks: RwLock::default(),
            has_marks: AtomicBool::new(false),
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Shelf>> {
        self.shelves.get(key)
    }

    /// Puts an answer in, unless something was purged or its URL changed since it was asked for, or
    /// there is one that was asked for later. Whatever else is done with it is done before the next
    /// change, and says whether there may be more under this key elsewhere. Says whether it is in.
    pub(super) fn put(
        &self,
        key: Key,
        object: &Arc<Object>,
        now: Wall,
        purges: u64,
        also: impl FnOnce() -> bool,
    ) -> bool {
        let _turn = self.writing.lock();
        if self.purges() != purges || self.is_invalid(&key, object, now) {
            return false;
        }
        let shelf = self.shelves.peek(&key);
        // One from the future was kept by a clock that has been set back since.
        let is_newer = |old: &Arc<Object>| {
            old.variant == object.variant && old.stored > object.stored && old.stored <= now
        };
        if shelf
            .as_ref()
            .is_some_and(|shelf| shelf.objects().iter().any(is_newer))
        {
            return false;
        }
        let has_more = also();
        let shelf = match shelf {
            Some(shelf) => shelf.with(object.clone()),
            None if has_more => Shelf::new([object.clone()]).partial(),
            None => Shelf::new([object.clone()]),
        };
        shelf.note(now);
        self.shelves.insert(key, Arc::new(shelf));
        true
    }

    /// What was read from disk while nothing was forgotten.
    pub(super) fn fill(&self, key: Key, shelf: Arc<Shelf>, changes: u64) {
        let _turn = self.writing.lock();
        if self.changes() != changes {
            return;
        }
        let shelf = match self.shelves.peek(&key) {
            Some(here) => Arc::new(here.and(&shelf)),
            None => shelf,
        };
        self.shelves.insert(key, shelf);
    }

    /// Forgets what was kept under a key, and what was kept of its URL before now.
    pub(super) fn invalidate(&self, key: Option<&Key>, url: Url, now: Wall) {
        let _turn = self.writing.lock();
        self.changes.fetch_add(1, Ordering::AcqRel);
        if let Some(key) = key {
            self.shelves.remove(key);
        }
        self.mark(url, now);
    }

    /// Forgets one answer, if it was asked for by then.
    pub(super) fn forget(&self, key: &Key, variant: Variant, at: Wall) {
        let _turn = self.writing.lock();
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.mark(key.answer(variant), at);
        let Some(shelf) = self.shelves.peek(key) else {
            return;
        };
        let is_it = |object: &Object| object.variant == variant && object.stored <= at;
        match shelf.but(is_it) {
            Some(left) => self.shelves.insert(*key, Arc::new(left)),
            None => {
                self.shelves.remove(key);
            }
        }
    }

    fn mark(&self, what: Url, at: Wall) {
        self.marks.write().add(what, at);
        self.has_marks.store(true, Ordering::Release);
    }

    /// Was it asked for before its URL became invalid, or it itself?
    pub(super) fn is_invalid(&self, key: &Key, object: &Object, now: Wall) -> bool {
        self.has_marks.load(Ordering::Acquire) && {
            let names = [object.url, key.answer(object.variant)];
            self.marks.read().is_before(object.stored, now, names)
        }
    }

    pub(super) fn purge(&self, provider: Option<&str>, entity: Option<&str>) -> u64 {
        let _turn = self.writing.lock();
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.purges.fetch_add(1, Ordering::AcqRel);
        let mut gone = 0;
        let affected: Vec<(Key, Arc<Shelf>)> = self
            .shelves
            .iter()
            .filter(|(_, shelf)| {
                shelf
                    .objects()
                    .iter()
                    .any(|one| one.is_of(provider, entity))
            })
            .collect();
        for (key, shelf) in affected {
            let left = shelf.without(provider, entity);
            let count = left.as_ref().map_or(0, |left| left.objects().len());
            gone += (shelf.objects().len() - count) as u64;
            match left {
                Some(left) => self.shelves.insert(key, Arc::new(left)),
                None => {
                    self.shelves.remove(&key);
                }
            }
        }
        gone
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn purges(&self) -> u64 {
        self.purges.load(Ordering::Acquire)
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows: BTreeMap<(String, Option<String>), (u64, u64)> = BTreeMap::new();
        for (_, shelf) in self.shelves.iter() {
            for object in shelf.objects() {
                let name = (object.provider.clone(), object.entity.clone());
                let (count, bytes) = rows.entry(name).or_default();
                *count += 1;
                *bytes += object.weight();
            }
        }
        let row = |((provider, entity), (answers, bytes))| Row {
            provider,
            entity,
            answers,
            bytes,
        };
        rows.into_iter().map(row).collect()
    }
}
