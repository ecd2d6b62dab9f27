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

mod database;
mod admin;
mod disk;
mod reader;
mod index;
mod key;
mod memory;
mod object;
mod writer;
mod memfd;

pub use admin::{CacheAdminError, CacheUsage, purge, usage};
pub(crate) use key::{CacheKey, KeyInputs, RequestUrl, Salt, UrlHash, Variant, variant};
pub use memfd::{MEMFDS_MAX, MemfdBody, set_memfds_max};
pub use object::PreparedHead;
pub(crate) use object::{CachedResponse, VARIANTS_MAX, VariantSet, WireForm};

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_core::time::Wall;

use crate::event::LogEvent;
use disk::Disk;
use memory::MemoryTier;

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
    shared: Arc<CacheState>,
}

#[derive(Debug)]
struct CacheState {
    memory: Arc<MemoryTier>,
    disk: Option<Disk>,
    salt: Salt,
    refreshes: Mutex<HashMap<(CacheKey, Variant), Arc<BackgroundRefresh>>>,
}

/// The right to fetch a new answer beside an old one. Others may when it is dropped.
#[derive(Debug)]
pub(crate) struct RefreshGuard {
    cache: Cache,
    target: (CacheKey, Variant),
    refresh: Arc<BackgroundRefresh>,
}

/// A new answer that is fetched beside an old one.
#[derive(Debug, Default)]
pub(crate) struct BackgroundRefresh {
    superseded: Notify,
    is_sent: AtomicBool,
}

impl BackgroundRefresh {
    /// Its bytes leave now.
    pub(crate) fn mark_sent(&self) {
        self.is_sent.store(true, Ordering::Release);
    }
}

impl RefreshGuard {
    /// What is fetched, for whoever sends it.
    pub(crate) fn refresh(&self) -> Arc<BackgroundRefresh> {
        self.refresh.clone()
    }

    /// Waits until somebody else has kept a newer answer to the same request headers. What has left
    /// already is paid for, and is never needless.
    pub(crate) async fn until_superseded(&self) {
        self.refresh.superseded.notified().await;
        if self.refresh.is_sent.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for RefreshGuard {
    fn drop(&mut self) {
        self.cache.shared.refreshes.lock().remove(&self.target);
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
        memfd::set_memory_bytes(sizes.memory);
        Cache::with(
            Arc::new(MemoryTier::new(sizes.memory)),
            None,
            Salt::random(),
        )
    }

    /// Answers are kept in this folder. If that cannot be, in memory, and the log says why.
    #[must_use]
    pub fn open(folder: &Path) -> Cache {
        Cache::open_within(folder, Sizes::default())
    }

    /// The same, within so many bytes.
    #[must_use]
    pub fn open_within(folder: &Path, sizes: Sizes) -> Cache {
        memfd::set_memory_bytes(sizes.memory);
        let memory = Arc::new(MemoryTier::new(sizes.memory));
        match Disk::open(folder, memory.clone(), sizes.disk) {
            Ok((disk, salt)) => Cache::with(memory, Some(disk), salt),
            Err(error) => {
                let why = &error.to_string();
                LogEvent::CacheOnlyInMemory { why }.emit();
                Cache::with(memory, None, Salt::random())
            }
        }
    }

    fn with(memory: Arc<MemoryTier>, disk: Option<Disk>, salt: Salt) -> Cache {
        Cache {
            shared: Arc::new(CacheState {
                memory,
                disk,
                salt,
                refreshes: Mutex::default(),
            }),
        }
    }

    pub(crate) fn salt(&self) -> &Salt {
        &self.shared.salt
    }

    /// What is in memory, without waiting.
    pub(crate) fn get_from_memory(&self, key: &CacheKey, now: Wall) -> Option<Arc<VariantSet>> {
        let shelf = self.shared.memory.get(key)?;
        // What is hot in memory must not be the first to go on disk.
        if let Some(disk) = &self.shared.disk
            && shelf.is_use_due(now, disk::TOUCH_STEP)
        {
            disk.touch(*key, now);
        }
        Some(shelf)
    }

    /// What was kept under this key, in memory or on disk.
    pub(crate) async fn find(&self, key: &CacheKey, now: Wall) -> Option<Arc<VariantSet>> {
        match self.get_from_memory(key, now) {
            Some(shelf) => Some(shelf),
            None => self.shared.disk.as_ref()?.find(*key, &[], now).await,
        }
    }

    /// What is on disk, where a shelf in memory may not be all, but those that were seen there.
    pub(crate) async fn find_other_variants(
        &self,
        key: &CacheKey,
        seen: &[Variant],
        now: Wall,
    ) -> Option<Arc<VariantSet>> {
        self.shared.disk.as_ref()?.find(*key, seen, now).await
    }

    /// Keeps an answer, in place of the one for the same request headers; unless that is newer, its
    /// URL has changed since it was asked for, or something was purged since there were so many
    /// purges. Says whether it is kept.
    pub(crate) fn store(
        &self,
        key: CacheKey,
        object: &Arc<CachedResponse>,
        now: Wall,
        purges: u64,
    ) -> bool {
        let (memory, disk) = (&self.shared.memory, &self.shared.disk);
        // Under one lock, so that the disk hears of both in the same order.
        let is_kept = memory.put(key, object, now, purges, || {
            let put = |disk: &Disk| disk.put(key, object, now);
            disk.as_ref().is_some_and(put)
        });
        let of = (key, object.variant);
        if is_kept && let Some(beside) = self.shared.refreshes.lock().get(&of) {
            beside.superseded.notify_one();
        }
        is_kept
    }

    /// Keeps an answer that was asked for just now.
    #[cfg(test)]
    pub(crate) fn store_now(&self, key: CacheKey, object: &Arc<CachedResponse>, now: Wall) {
        self.store(key, object, now, self.purge_count());
    }

    /// A URL has changed: forgets what was kept under this key, and whatever others were told.
    pub(crate) fn invalidate(&self, key: Option<&CacheKey>, url: UrlHash, now: Wall) {
        self.shared.memory.invalidate(key, url, now);
        if let Some(disk) = &self.shared.disk {
            disk.invalidate(url, now);
        }
    }

    /// Forgets one answer, if it was asked for by then. Others to the same URL stay.
    pub(crate) fn remove(&self, key: &CacheKey, object: &CachedResponse, at: Wall) {
        self.shared.memory.remove(key, object.variant, at);
        if let Some(disk) = &self.shared.disk {
            disk.remove(*key, object.variant, at);
        }
    }

    /// Was it kept before its URL changed, or it was forgotten?
    pub(crate) fn is_invalid(&self, key: &CacheKey, object: &CachedResponse, now: Wall) -> bool {
        self.shared.memory.is_invalid(key, object, now)
    }

    /// The right to fetch a new answer beside an old one: one at a time for each.
    pub(crate) fn refresh(&self, key: CacheKey, old: &CachedResponse) -> Option<RefreshGuard> {
        let of = (key, old.variant);
        let mut under_way = self.shared.refreshes.lock();
        if under_way.len() >= REFRESHING_MAX || under_way.contains_key(&of) {
            return None;
        }
        let beside = Arc::<BackgroundRefresh>::default();
        under_way.insert(of, beside.clone());
        drop(under_way);
        let cache = self.clone();
        Some(RefreshGuard {
            cache,
            target: of,
            refresh: beside,
        })
    }

    /// How often something was purged: an answer asked for before a purge is not kept after it.
    pub(crate) fn purge_count(&self) -> u64 {
        self.shared.memory.purge_count()
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
    pub async fn usage(&self) -> Vec<CacheUsage> {
        let on_disk = match &self.shared.disk {
            Some(disk) => disk.usage().await,
            None => None,
        };
        on_disk.unwrap_or_else(|| self.shared.memory.usage())
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
mod removal_tests;
#[cfg(test)]
mod tests;
