//! Answers that are kept: in memory, and in `cache.db` where they outlive the process.
//!
//! Promises: only whole answers are kept, and they are bounded in bytes, one by one and together.
//! A hit in memory neither waits nor copies a body. A `cache.db` that is damaged, newer or out of
//! reach is never an error for a call: answers are then kept in memory only, and that is told.
//! Processes share one `cache.db`; what one of them keeps the others have, and what one of them purges
//! the others forget, within a second. What nobody has kept costs no look at the disk.
//!
//! Never: decides whether an answer may be used (`core::fresh` does), or holds a credential: keys
//! are hashes with a secret salt.

mod book;
mod desk;
mod disk;
mod finder;
mod index;
mod key;
mod memory;
mod object;
mod scribe;
mod sheet;

pub use desk::{DeskError, Row, purge, rows};
pub(crate) use key::{Key, Keyed, Place, Salt, Url, Variant, variant};
pub use object::Written;
pub(crate) use object::{Form, Object, Shelf, VARIANTS_MAX};
pub use sheet::{SHEETS_MAX, Sheet, sheets_at_most};

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_core::time::Wall;

use crate::event::Fact;
use disk::Disk;
use memory::Memory;

/// The database file in a state folder.
pub const DATABASE: &str = "cache.db";

/// The largest body that is kept: one answer cannot push out thousands of others, and reading it
/// back takes milliseconds. API answers above this are exports and media, asked for once.
pub const OBJECT_MAX: usize = 8 * 1024 * 1024;

/// How much is kept, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// In memory, at most. Large bodies that are sent often are there a second time, as files in
    /// memory, up to a quarter of it.
    pub memory: u64,
    /// On disk, at most. Pages that are not full and the tables themselves come on top, up to half.
    pub disk: u64,
}

impl Default for Sizes {
    /// In memory the hot part of some hundred thousand answers, and small beside what a host has. On
    /// disk weeks of answers for a busy set-up, and small beside a disk.
    fn default() -> Sizes {
        Sizes {
            memory: 64 * 1024 * 1024,
            disk: 1024 * 1024 * 1024,
        }
    }
}

/// New answers that are fetched beside old ones, at a time. They wait in line with low priority, so
/// more of them would only wait longer.
const REFRESHING_MAX: usize = 256;

/// Kept answers. Clones share them.
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    disk: Option<Disk>,
    salt: Salt,
    refreshing: Mutex<HashMap<(Key, Variant), Arc<Beside>>>,
}

/// The right to fetch a new answer beside an old one. Others may when it is dropped.
#[derive(Debug)]
pub(crate) struct Refreshing {
    cache: Cache,
    of: (Key, Variant),
    beside: Arc<Beside>,
}

/// A new answer that is fetched beside an old one.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    newer: Notify,
    has_left: AtomicBool,
}

impl Beside {
    /// Its bytes leave now.
    pub(crate) fn leaves(&self) {
        self.has_left.store(true, Ordering::Release);
    }
}

impl Refreshing {
    /// What is fetched, for whoever sends it.
    pub(crate) fn beside(&self) -> Arc<Beside> {
        self.beside.clone()
    }

    /// Waits until somebody else has kept a newer answer to the same request headers. What has left
    /// already is paid for, and is never needless.
    pub(crate) async fn is_needless(&self) {
        self.beside.newer.notified().await;
        if self.beside.has_left.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Refreshing {
    fn drop(&mut self) {
        self.cache.shared.refreshing.lock().remove(&self.of);
    }
}

impl Default for Cache {
    fn default() -> Cache {
        Cache::memory()
    }
}

impl Cache {
    /// Answers are kept until the process ends.
    #[must_use]
    pub fn memory() -> Cache {
        Cache::memory_within(Sizes::default())
    }

    /// The same, within so many bytes.
    #[must_use]
    pub fn memory_within(sizes: Sizes) -> Cache {
        sheet::at_most_bytes(sizes.memory);
        Cache::with(Arc::new(Memory::new(sizes.memory)), None, Salt::random())
    }

    /// Answers are kept in this folder. If that cannot be, in memory, and the log says why.
    #[must_use]
    pub fn open(folder: &Path) -> Cache {
        Cache::open_within(folder, Sizes::default())
    }

    /// The same, within so many bytes.
    #[must_use]
    pub fn open_within(folder: &Path, sizes: Sizes) -> Cache {
        sheet::at_most_bytes(sizes.memory);
        let memory = Arc::new(Memory::new(sizes.memory));
        match Disk::open(folder, memory.clone(), sizes.disk) {
            Ok((disk, salt)) => Cache::with(memory, Some(disk), salt),
            Err(error) => {
                let why = &error.to_string();
                Fact::CacheOnlyInMemory { why }.tell();
                Cache::with(memory, None, Salt::random())
            }
        }
    }

    fn with(memory: Arc<Memory>, disk: Option<Disk>, salt: Salt) -> Cache {
        Cache {
            shared: Arc::new(Shared {
                memory,
                disk,
                salt,
                refreshing: Mutex::default(),
            }),
        }
    }

    pub(crate) fn salt(&self) -> &Salt {
        &self.shared.salt
    }

    /// What is in memory, without waiting.
    pub(crate) fn at_hand(&self, key: &Key, now: Wall) -> Option<Arc<Shelf>> {
        let shelf = self.shared.memory.get(key)?;
        // What is hot in memory must not be the first to go on disk.
        if let Some(disk) = &self.shared.disk
            && shelf.is_due(now, disk::USED_STEP)
        {
            disk.used(*key, now);
        }
        Some(shelf)
    }

    /// What was kept under this key, in memory or on disk.
    pub(crate) async fn find(&self, key: &Key, now: Wall) -> Option<Arc<Shelf>> {
        match self.at_hand(key, now) {
            Some(shelf) => Some(shelf),
            None => self.shared.disk.as_ref()?.find(*key, &[], now).await,
        }
    }

    /// What is on disk, where a shelf in memory may not be all, but those that were seen there.
    pub(crate) async fn find_rest(
        &self,
        key: &Key,
        seen: &[Variant],
        now: Wall,
    ) -> Option<Arc<Shelf>> {
        self.shared.disk.as_ref()?.find(*key, seen, now).await
    }

    /// Keeps an answer, in place of the one for the same request headers; unless that is newer, its
    /// URL has changed since it was asked for, or something was purged since there were so many
    /// purges. Says whether it is kept.
    pub(crate) fn keep(&self, key: Key, object: &Arc<Object>, now: Wall, purges: u64) -> bool {
        let (memory, disk) = (&self.shared.memory, &self.shared.disk);
        // Under one lock, so that the disk hears of both in the same order.
        let is_kept = memory.put(key, object, now, purges, || {
            let put = |disk: &Disk| disk.put(key, object, now);
            disk.as_ref().is_some_and(put)
        });
        let of = (key, object.variant);
        if is_kept && let Some(beside) = self.shared.refreshing.lock().get(&of) {
            beside.newer.notify_one();
        }
        is_kept
    }

    /// Keeps an answer that was asked for just now.
    #[cfg(test)]
    pub(crate) fn put(&self, key: Key, object: &Arc<Object>, now: Wall) {
        self.keep(key, object, now, self.purges());
    }

    /// A URL has changed: forgets what was kept under this key, and whatever others were told.
    pub(crate) fn invalidate(&self, key: Option<&Key>, url: Url, now: Wall) {
        self.shared.memory.invalidate(key, url, now);
        if let Some(disk) = &self.shared.disk {
            disk.invalidate(url, now);
        }
    }

    /// Forgets one answer, if it was asked for by then. Others to the same URL stay.
    pub(crate) fn forget(&self, key: &Key, object: &Object, at: Wall) {
        self.shared.memory.forget(key, object.variant, at);
        if let Some(disk) = &self.shared.disk {
            disk.forget(*key, object.variant, at);
        }
    }

    /// Was it kept before its URL changed, or it was forgotten?
    pub(crate) fn is_invalid(&self, key: &Key, object: &Object, now: Wall) -> bool {
        self.shared.memory.is_invalid(key, object, now)
    }

    /// The right to fetch a new answer beside an old one: one at a time for each.
    pub(crate) fn refresh(&self, key: Key, old: &Object) -> Option<Refreshing> {
        let of = (key, old.variant);
        let mut under_way = self.shared.refreshing.lock();
        if under_way.len() >= REFRESHING_MAX || under_way.contains_key(&of) {
            return None;
        }
        let beside = Arc::<Beside>::default();
        under_way.insert(of, beside.clone());
        drop(under_way);
        let cache = self.clone();
        Some(Refreshing { cache, of, beside })
    }

    /// How often something was purged: an answer asked for before a purge is not kept after it.
    pub(crate) fn purges(&self) -> u64 {
        self.shared.memory.purges()
    }

    /// Forgets the answers of a provider, of one of its entities, or all. Says how many were on
    /// disk, or in memory if that is all there is.
    pub async fn purge(&self, provider: Option<&str>, entity: Option<&str>) -> u64 {
        let in_memory = self.shared.memory.purge(provider, entity);
        let Some(disk) = &self.shared.disk else {
            return in_memory;
        };
        let on_disk = disk.purge(provider, entity).await;
        // What was read from the disk before it was forgotten there.
        self.shared.memory.purge(provider, entity);
        on_disk.unwrap_or(in_memory)
    }

    /// What is kept, by provider and entity: on disk, or in memory if that is all there is.
    pub async fn rows(&self) -> Vec<Row> {
        let on_disk = match &self.shared.disk {
            Some(disk) => disk.rows().await,
            None => None,
        };
        on_disk.unwrap_or_else(|| self.shared.memory.rows())
    }

    /// Waits until what was kept so far is on disk.
    pub async fn flush(&self) {
        if let Some(disk) = &self.shared.disk {
            disk.flush().await;
        }
    }

    /// The end: waits until what was kept so far is on disk and what must be forgotten is, though not
    /// for ever if somebody else holds the file.
    pub async fn close(&self) {
        if let Some(disk) = &self.shared.disk {
            disk.close().await;
        }
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod forget_tests;
#[cfg(test)]
mod tests;
