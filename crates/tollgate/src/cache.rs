//! The response cache: in memory, and in `cache.db`, which outlives the process, or in Redis, which several
//! hosts share.
//!
//! Promises: only whole responses are cached, bounded in bytes, each and together. A hit in memory
//! neither waits nor copies a body. A `cache.db` that is damaged, newer or out of reach is never an
//! error for a call: the cache then uses memory only and reports it. Processes share one
//! `cache.db`; a response that one process stores or purges is stored or purged for the others
//! within a second. A key that nobody has stored costs no disk read.
//!
//! Never: decides whether a response may be used (`core::fresh` does), or holds a credential: keys
//! are hashes with a secret salt.

#[cfg(all(feature = "cache", feature = "sqlite"))]
mod database;
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod admin;
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod disk;
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod reader;
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod index;
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod statements;
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod writer;
#[cfg(not(all(feature = "cache", feature = "sqlite")))]
#[path = "cache/no_disk.rs"]
mod disk;
mod key;
#[cfg(all(feature = "cache", feature = "redis"))]
mod redis_tier;
#[cfg(all(feature = "cache", feature = "redis"))]
mod redis_wire;
#[cfg(all(feature = "cache", any(feature = "redis", feature = "sqlite")))]
mod stored_form;
mod tier;
#[cfg(feature = "cache")]
mod memory;
#[cfg(not(feature = "cache"))]
#[path = "cache/no_memory.rs"]
mod memory;
mod object;
mod memfd;

#[cfg(all(feature = "cache", feature = "sqlite"))]
pub use admin::{CacheAdminError, purge, usage};
pub(crate) use key::{CacheKey, KeyInputs, RequestUrl, Salt, UrlHash, Variant, variant};
pub use memfd::{MEMFDS_MAX, MemfdBody, set_memfds_max};
pub use object::PreparedHead;
pub(crate) use object::{CachedResponse, VARIANTS_MAX, VariantSet, WireForm};

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tollgate_core::time::Wall;
use tollgate_ledger::lock_order::rank;

use crate::event::{Event, Events};
use crate::single_flight::{Join, Leader, Leaders, Role};
use disk::Disk;
use memory::MemoryTier;
#[cfg(all(feature = "cache", feature = "redis"))]
use redis_tier::RedisTier;
use tier::StoredTier;

/// The database file in a state folder.
pub const DATABASE: &str = "cache.db";

/// The largest cached body: one response cannot evict thousands of others, and reading it back
/// takes milliseconds. Larger API responses are exports and media, requested once.
pub const OBJECT_MAX: usize = 8 * 1024 * 1024;

/// The size of the cache, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// At most this much in memory. Large bodies that are sent often have a second copy as memfds,
    /// up to a quarter of it.
    pub memory: u64,
    /// At most this much on disk. Pages that are not full and the tables themselves come on top, up
    /// to half.
    pub disk: u64,
}

impl Default for Sizes {
    /// Memory: the hot part of some hundred thousand responses, and little of a host's memory.
    /// Disk: weeks of responses for a busy installation, and little of a disk.
    fn default() -> Sizes {
        Sizes {
            memory: 64 * 1024 * 1024,
            disk: 1024 * 1024 * 1024,
        }
    }
}

/// The cached responses of one provider and entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUsage {
    /// The provider.
    pub provider: String,
    /// The entity, if the provider has any.
    pub entity: Option<String>,
    /// The number of responses.
    pub responses: u64,
    /// Their size.
    pub bytes: u64,
}

/// Concurrent background refreshes. They queue with low priority, so more of them would only wait
/// longer.
const REFRESHING_MAX: usize = 256;

/// The response cache. Clones share it.
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<CacheState>,
}

#[derive(Debug)]
struct CacheState {
    memory: Arc<MemoryTier>,
    stored: Option<StoredTier>,
    salt: Salt,
    refreshes: Leaders<(CacheKey, Variant), BackgroundRefresh, { rank::REFRESHES }>,
}

/// The right to refresh a response in the background. Dropping it frees the right for others.
#[derive(Debug)]
pub(crate) struct RefreshGuard {
    leader: Leader<(CacheKey, Variant), BackgroundRefresh, { rank::REFRESHES }>,
}

/// A response that is being refreshed in the background.
#[derive(Debug, Default)]
pub(crate) struct BackgroundRefresh {
    superseded: Notify,
    is_sent: AtomicBool,
}

impl BackgroundRefresh {
    /// Its request is being sent now.
    pub(crate) fn mark_sent(&self) {
        self.is_sent.store(true, Ordering::Release);
    }
}

impl RefreshGuard {
    /// The refresh, for the stage that sends it.
    pub(crate) fn refresh(&self) -> Arc<BackgroundRefresh> {
        self.leader.round().clone()
    }

    /// Waits until another call has stored a newer response to the same request headers. A request
    /// that has been sent has used its permit, so it is never superseded.
    pub(crate) async fn until_superseded(&self) {
        let refresh = self.leader.round();
        refresh.superseded.notified().await;
        if refresh.is_sent.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }
}

impl Default for Cache {
    fn default() -> Cache {
        Cache::memory()
    }
}

impl Cache {
    /// A cache that lasts until the process ends.
    #[must_use]
    pub fn memory() -> Cache {
        Cache::memory_within(Sizes::default())
    }

    /// The same, within these sizes.
    #[must_use]
    pub fn memory_within(sizes: Sizes) -> Cache {
        memfd::set_memory_bytes(sizes.memory);
        Cache::with(
            Arc::new(MemoryTier::new(sizes.memory)),
            None,
            Salt::random(),
        )
    }

    /// A cache in this folder. If the folder cannot be used, the cache is in memory only, and it
    /// says why on this bus, as all its facts.
    #[must_use]
    pub fn open(folder: &Path, events: &Events) -> Cache {
        Cache::open_within(folder, Sizes::default(), events)
    }

    /// The same, within these sizes.
    #[must_use]
    pub fn open_within(folder: &Path, sizes: Sizes, events: &Events) -> Cache {
        memfd::set_memory_bytes(sizes.memory);
        let memory = Arc::new(MemoryTier::new(sizes.memory));
        match Disk::open(folder, memory.clone(), sizes.disk, events) {
            Ok((disk, salt)) => Cache::with(memory, Some(StoredTier::Disk(disk)), salt),
            Err(error) => {
                let why = error.to_string().into();
                events.emit(Event::CacheOnlyInMemory { why });
                Cache::with(memory, None, Salt::random())
            }
        }
    }

    /// A cache that several hosts share, in the Redis at this address. While Redis cannot be reached, the cache is in
    /// memory. Must be called in a runtime.
    #[cfg(all(feature = "cache", feature = "redis"))]
    #[must_use]
    pub fn open_redis(
        address: tollgate_ledger::redis::RedisAddress,
        sizes: Sizes,
        ledger: tollgate_ledger::Ledger,
        events: &Events,
    ) -> Cache {
        memfd::set_memory_bytes(sizes.memory);
        let memory = Arc::new(MemoryTier::new(sizes.memory));
        let tier = RedisTier::open(address, memory.clone(), sizes.disk, ledger, events);
        Cache::with(memory, Some(StoredTier::Redis(tier)), Salt::random())
    }

    fn with(memory: Arc<MemoryTier>, stored: Option<StoredTier>, salt: Salt) -> Cache {
        Cache {
            shared: Arc::new(CacheState {
                memory,
                stored,
                salt,
                refreshes: Leaders::default(),
            }),
        }
    }

    pub(crate) fn salt(&self) -> &Salt {
        let own = &self.shared.salt;
        match &self.shared.stored {
            // As soon as Redis has told it. Responses of before are evicted with time.
            #[cfg(all(feature = "cache", feature = "redis"))]
            Some(StoredTier::Redis(tier)) => tier.salt().unwrap_or(own),
            Some(StoredTier::Disk(_)) | None => own,
        }
    }

    /// The responses in memory, without waiting.
    pub(crate) fn get_from_memory(&self, key: &CacheKey, now: Wall) -> Option<Arc<VariantSet>> {
        let variants = self.shared.memory.get(key)?;
        // A response that is hot in memory must not be evicted first on disk.
        if let Some(tier) = &self.shared.stored
            && variants.is_use_due(now, disk::TOUCH_STEP)
        {
            tier.touch(*key, now);
        }
        Some(variants)
    }

    /// The responses under this key, in memory or on disk.
    pub(crate) async fn find(&self, key: &CacheKey, now: Wall) -> Option<Arc<VariantSet>> {
        match self.get_from_memory(key, now) {
            Some(variants) => Some(variants),
            None => self.shared.stored.as_ref()?.find(*key, &[], now).await,
        }
    }

    /// The variants on disk except those already seen, where the set in memory may be incomplete.
    pub(crate) async fn find_other_variants(
        &self,
        key: &CacheKey,
        seen: &[Variant],
        now: Wall,
    ) -> Option<Arc<VariantSet>> {
        self.shared.stored.as_ref()?.find(*key, seen, now).await
    }

    /// Stores a response in place of the one for the same request headers; unless that one is
    /// newer, the URL has changed since the request, or the purge count is no longer `purges`.
    /// Returns whether it is stored.
    pub(crate) fn store(
        &self,
        key: CacheKey,
        object: &Arc<CachedResponse>,
        now: Wall,
        purges: u64,
    ) -> bool {
        let (memory, stored) = (&self.shared.memory, &self.shared.stored);
        // Under one lock, so that the disk receives both in the same order.
        let is_stored = memory.put(key, object, now, purges, || {
            let put = |tier: &StoredTier| tier.put(key, object, now);
            stored.as_ref().is_some_and(put)
        });
        if is_stored && let Some(refresh) = self.shared.refreshes.get(&(key, object.variant)) {
            refresh.superseded.notify_one();
        }
        is_stored
    }

    /// Stores a response that was requested just now.
    #[cfg(test)]
    #[cfg(all(feature = "cache", feature = "sqlite"))]
    pub(crate) fn store_now(&self, key: CacheKey, object: &Arc<CachedResponse>, now: Wall) {
        self.store(key, object, now, self.purge_count());
    }

    /// A URL has changed: removes the responses under this key and invalidates those of other
    /// callers.
    pub(crate) fn invalidate(&self, key: Option<&CacheKey>, url: UrlHash, now: Wall) {
        self.shared.memory.invalidate(key, url, now);
        if let Some(tier) = &self.shared.stored {
            tier.invalidate(url, now);
        }
    }

    /// Removes one response if it was requested by then. Others to the same URL stay.
    pub(crate) fn remove(&self, key: &CacheKey, object: &CachedResponse, at: Wall) {
        self.shared.memory.remove(key, object.variant, at);
        if let Some(tier) = &self.shared.stored {
            tier.remove(*key, object.variant, at);
        }
    }

    /// Was it stored before its URL changed or before it was removed?
    pub(crate) fn is_invalid(&self, key: &CacheKey, object: &CachedResponse, now: Wall) -> bool {
        self.shared.memory.is_invalid(key, object, now)
    }

    /// The right to refresh a response in the background: one refresh at a time for each response.
    pub(crate) fn refresh(&self, key: CacheKey, old: &CachedResponse) -> Option<RefreshGuard> {
        let key = (key, old.variant);
        let others = |_: &Arc<BackgroundRefresh>| Join::<()>::Alone;
        let refreshes = &self.shared.refreshes;
        match refreshes.join_or_lead(key, REFRESHING_MAX, others, BackgroundRefresh::default) {
            Role::Leader(leader) => Some(RefreshGuard { leader }),
            Role::Alone | Role::Follower(()) => None,
        }
    }

    /// The number of purges: a response requested before a purge is not stored after it.
    pub(crate) fn purge_count(&self) -> u64 {
        self.shared.memory.purge_count()
    }

    /// Purges the responses of a provider, of one of its entities, or all. Returns how many were on
    /// disk, or in memory if there is no disk tier.
    pub async fn purge(&self, provider: Option<&str>, entity: Option<&str>) -> u64 {
        let in_memory = self.shared.memory.purge(provider, entity);
        let Some(tier) = &self.shared.stored else {
            return in_memory;
        };
        let on_disk = tier.purge(provider, entity).await;
        // Removes responses that were read from the disk before they were purged there.
        self.shared.memory.purge(provider, entity);
        on_disk.unwrap_or(in_memory)
    }

    /// The cached responses by provider and entity: on disk, or in memory if there is no disk tier.
    pub async fn usage(&self) -> Vec<CacheUsage> {
        let on_disk = match &self.shared.stored {
            Some(tier) => tier.usage().await,
            None => None,
        };
        on_disk.unwrap_or_else(|| self.shared.memory.usage())
    }

    /// Waits until all responses stored before are on disk.
    pub async fn flush(&self) {
        if let Some(tier) = &self.shared.stored {
            tier.flush().await;
        }
    }

    /// Shuts down: waits until stores and removals are on disk, but not forever if another process
    /// holds the file.
    pub async fn close(&self) {
        if let Some(tier) = &self.shared.stored {
            tier.close().await;
        }
    }
}

#[cfg(test)]
#[cfg(all(feature = "cache", feature = "sqlite", feature = "redis"))]
mod redis_tests;
#[cfg(test)]
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod fault_tests;
#[cfg(test)]
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod removal_tests;
#[cfg(test)]
#[cfg(all(feature = "cache", feature = "sqlite"))]
mod tests;
