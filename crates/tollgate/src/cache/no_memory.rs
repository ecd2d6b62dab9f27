//! The memory tier of a build without the feature `cache`: it holds nothing.
//!
//! Promises: every lookup misses and every store is declined, so each call goes to its provider.
//!
//! Never: keeps a response.

use std::sync::Arc;

use tollgate_core::time::Wall;

use super::key::{UrlHash, Variant};
use super::{CacheKey, CacheUsage, CachedResponse, VariantSet};

/// No memory tier.
#[derive(Debug)]
pub(super) struct MemoryTier;

impl MemoryTier {
    pub(super) fn new(_: u64) -> MemoryTier {
        MemoryTier
    }

    pub(super) fn get(&self, _: &CacheKey) -> Option<Arc<VariantSet>> {
        None
    }

    pub(super) fn put(
        &self,
        _: CacheKey,
        _: &Arc<CachedResponse>,
        _: Wall,
        _: u64,
        _: impl FnOnce() -> bool,
    ) -> bool {
        false
    }

    pub(super) fn invalidate(&self, _: Option<&CacheKey>, _: UrlHash, _: Wall) {}

    pub(super) fn remove(&self, _: &CacheKey, _: Variant, _: Wall) {}

    pub(super) fn is_invalid(&self, _: &CacheKey, _: &CachedResponse, _: Wall) -> bool {
        false
    }

    pub(super) fn purge(&self, _: Option<&str>, _: Option<&str>) -> u64 {
        0
    }

    pub(super) fn purge_count(&self) -> u64 {
        0
    }

    pub(super) fn usage(&self) -> Vec<CacheUsage> {
        Vec::new()
    }
}
