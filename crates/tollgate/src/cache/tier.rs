//! The tier below the memory: `cache.db`, or Redis.
//!
//! Promises: the same rules in both.
//!
//! Never: decides which; the configuration does.

use std::sync::Arc;

use tollgate_core::time::Wall;

use super::disk::Disk;
use super::key::{UrlHash, Variant};
#[cfg(all(feature = "cache", feature = "redis"))]
use super::redis_tier::RedisTier;
use super::{CacheKey, CacheUsage, CachedResponse, VariantSet};

/// The tier below the memory.
#[derive(Debug)]
pub(super) enum StoredTier {
    /// A file of this host.
    Disk(Disk),
    /// Shared by several hosts.
    #[cfg(all(feature = "cache", feature = "redis"))]
    Redis(RedisTier),
}

/// The same call, whichever tier it is.
macro_rules! either {
    ($tier:expr, $name:ident => $call:expr) => {
        match $tier {
            StoredTier::Disk($name) => $call,
            #[cfg(all(feature = "cache", feature = "redis"))]
            StoredTier::Redis($name) => $call,
        }
    };
}

impl StoredTier {
    pub(super) async fn find(
        &self,
        key: CacheKey,
        seen: &[Variant],
        now: Wall,
    ) -> Option<Arc<VariantSet>> {
        either!(self, tier => tier.find(key, seen, now).await)
    }

    pub(super) fn touch(&self, key: CacheKey, now: Wall) {
        either!(self, tier => tier.touch(key, now));
    }

    pub(super) fn put(&self, key: CacheKey, object: &Arc<CachedResponse>, now: Wall) -> bool {
        either!(self, tier => tier.put(key, object, now))
    }

    pub(super) fn invalidate(&self, url: UrlHash, now: Wall) {
        either!(self, tier => tier.invalidate(url, now));
    }

    pub(super) fn remove(&self, key: CacheKey, variant: Variant, at: Wall) {
        either!(self, tier => tier.remove(key, variant, at));
    }

    pub(super) async fn purge(&self, provider: Option<&str>, entity: Option<&str>) -> Option<u64> {
        either!(self, tier => tier.purge(provider, entity).await)
    }

    pub(super) async fn usage(&self) -> Option<Vec<CacheUsage>> {
        either!(self, tier => tier.usage().await)
    }

    pub(super) async fn flush(&self) {
        either!(self, tier => tier.flush().await);
    }

    pub(super) async fn close(&self) {
        either!(self, tier => tier.close().await);
    }
}
