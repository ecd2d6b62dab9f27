//! The disk tier of a build without the features `cache` and `sqlite`: there is none.
//!
//! Promises: `open` fails, so the cache uses memory only and reports it.
//!
//! Never: exists. No value of [`Disk`] can be built, so no other function of it runs.

use std::path::Path;
use std::sync::Arc;

use tollgate_core::time::{Span, Wall};

use super::key::{UrlHash, Variant};
use super::memory::MemoryTier;
use super::{CacheKey, CacheUsage, CachedResponse, Salt, VariantSet};
use crate::event::Events;

/// As in the tier that exists.
pub(super) const TOUCH_STEP: Span = Span::from_secs(3_600);

/// No disk tier.
#[derive(Clone, Copy, Debug)]
pub(super) enum Disk {}

/// Why there is no disk tier.
#[derive(Debug, thiserror::Error)]
#[error("this program was built without the features `cache` and `sqlite` of tollgate")]
pub(super) struct NoDisk;

impl Disk {
    pub(super) fn open(
        _: &Path,
        _: Arc<MemoryTier>,
        _: u64,
        _: &Events,
    ) -> Result<(Disk, Salt), NoDisk> {
        Err(NoDisk)
    }

    pub(super) async fn find(
        &self,
        _: CacheKey,
        _: &[Variant],
        _: Wall,
    ) -> Option<Arc<VariantSet>> {
        match *self {}
    }

    pub(super) fn touch(&self, _: CacheKey, _: Wall) {
        match *self {}
    }

    pub(super) fn put(&self, _: CacheKey, _: &Arc<CachedResponse>, _: Wall) -> bool {
        match *self {}
    }

    pub(super) fn invalidate(&self, _: UrlHash, _: Wall) {
        match *self {}
    }

    pub(super) fn remove(&self, _: CacheKey, _: Variant, _: Wall) {
        match *self {}
    }

    pub(super) async fn purge(&self, _: Option<&str>, _: Option<&str>) -> Option<u64> {
        match *self {}
    }

    pub(super) async fn usage(&self) -> Option<Vec<CacheUsage>> {
        match *self {}
    }

    pub(super) async fn flush(&self) {
        match *self {}
    }

    pub(super) async fn close(&self) {
        match *self {}
    }
}
