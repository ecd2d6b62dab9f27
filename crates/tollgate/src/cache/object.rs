//! One kept answer, and the answers to one URL that differ by request headers.
//!
//! Promises: an object never changes; what is renewed is a new one.
//!
//! Never: holds a header that belongs to one connection, or a cookie.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tollgate_core::fresh::Freshness;
use tollgate_core::time::{Span, Wall};

use super::key::{UrlHash, Variant};
use super::memfd::MemfdSlot;

/// What an object costs beside its body and headers, roughly: its maps, counts and key.
const OVERHEAD: usize = 512;

/// Answers to one URL that are kept side by side. Sixteen are more languages and encodings than
/// one user has; past that the oldest goes, so that no header can fill the cache.
pub(crate) const VARIANTS_MAX: usize = 16;

/// What one shelf weighs at most, unless it is a single answer: less than a shard of the memory, so
/// that several large answers to one URL do not fall out of it together.
pub(super) const VARIANT_SET_BYTES_MAX: u64 = 12 * 1024 * 1024;

/// One kept answer.
#[derive(Clone, Debug)]
pub(crate) struct CachedResponse {
    pub(crate) url: UrlHash,
    /// When it was asked for: what changes its URL later makes it invalid.
    pub(crate) stored: Wall,
    /// Which request headers it is for.
    pub(crate) vary_names: Vec<String>,
    /// Their values, as a hash.
    pub(crate) variant: Variant,
    /// Until when it is good.
    pub(crate) freshness: Freshness,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) provider: String,
    pub(crate) entity: Option<String>,
    /// How it is written.
    pub(crate) wire_form: WireForm,
}

/// An answer as it is written to callers, made when it is first wanted. No head inside: it cannot be
/// prepared.
#[derive(Debug, Default)]
pub(crate) struct WireForm {
    pub(crate) head: OnceLock<Option<PreparedHead>>,
    /// Its body as a file, while there is room for it.
    pub(crate) memfd: MemfdSlot,
}

impl Clone for WireForm {
    /// Whoever copies an object is about to change it, and then its head is another.
    fn clone(&self) -> WireForm {
        WireForm::default()
    }
}

/// A head as it is written, with gaps for what differs from one answer to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedHead {
    /// From the status line to the value of `Age`.
    pub until_age: Box<[u8]>,
    /// From behind it to the value of `X-Tollgate-Id`.
    pub until_id: Box<[u8]>,
    /// From behind that to the empty line.
    pub rest: Box<[u8]>,
}

impl CachedResponse {
    /// What it weighs, in bytes. The head counts twice: it may be kept as it is written, too.
    pub(crate) fn weight(&self) -> u64 {
        let lines = self.headers.iter();
        let head: usize = lines
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum();
        (self.body.len() + 2 * head + OVERHEAD) as u64
    }

    /// Is it of this provider and entity?
    pub(crate) fn is_of(&self, provider: Option<&str>, entity: Option<&str>) -> bool {
        provider.is_none_or(|name| self.provider == name)
            && entity.is_none_or(|name| self.entity.as_deref() == Some(name))
    }
}

/// The answers to one URL, the newest first.
#[derive(Debug, Default)]
pub(crate) struct VariantSet {
    objects: SmallVec<[Arc<CachedResponse>; 2]>,
    weight: u64,
    /// There may be more answers to the same URL on disk.
    is_partial: bool,
    /// When its use was last written down.
    use_recorded: AtomicU64,
}

impl VariantSet {
    pub(crate) fn new(objects: impl IntoIterator<Item = Arc<CachedResponse>>) -> VariantSet {
        let mut shelf = VariantSet::default();
        for object in objects.into_iter().take(VARIANTS_MAX) {
            let weight = shelf.weight + object.weight();
            if shelf.objects.is_empty() || weight <= VARIANT_SET_BYTES_MAX {
                shelf.objects.push(object);
                shelf.weight = weight;
            } else {
                shelf.is_partial = true;
            }
        }
        shelf
    }

    /// The shelf with one more object, in place of the one for the same headers.
    pub(crate) fn with(&self, object: Arc<CachedResponse>) -> VariantSet {
        let others = self
            .objects
            .iter()
            .filter(|old| old.variant != object.variant)
            .cloned()
            .collect::<Vec<_>>();
        let shelf = VariantSet::new(std::iter::once(object).chain(others));
        VariantSet {
            is_partial: self.is_partial || shelf.is_partial,
            ..shelf
        }
    }

    /// The shelf, where there may be more on disk.
    pub(crate) fn partial(self) -> VariantSet {
        VariantSet {
            is_partial: true,
            ..self
        }
    }

    /// May there be more on disk?
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// The shelf with what was found on disk beside it.
    pub(crate) fn merge(&self, found: &VariantSet) -> VariantSet {
        let has = |variant| self.objects.iter().any(|object| object.variant == variant);
        let more = found.objects.iter().filter(|object| !has(object.variant));
        let shelf = VariantSet::new(self.objects.iter().chain(more).cloned());
        shelf.record_use(Wall(self.use_recorded.load(Ordering::Relaxed)));
        VariantSet {
            is_partial: found.is_partial || shelf.is_partial,
            ..shelf
        }
    }

    /// The shelf without the objects of a provider or entity; `None` if nothing is left.
    pub(crate) fn without(
        &self,
        provider: Option<&str>,
        entity: Option<&str>,
    ) -> Option<VariantSet> {
        self.without_matching(|object| object.is_of(provider, entity))
    }

    /// The shelf without such objects; `None` if nothing is left.
    pub(super) fn without_matching(
        &self,
        is_gone: impl Fn(&CachedResponse) -> bool,
    ) -> Option<VariantSet> {
        let left = self.objects.iter();
        let left = left.filter(|object| !is_gone(object));
        let shelf = VariantSet::new(left.cloned());
        let shelf = VariantSet {
            is_partial: self.is_partial || shelf.is_partial,
            ..shelf
        };
        (!shelf.objects.is_empty()).then_some(shelf)
    }

    /// Its use has just been written down.
    pub(crate) fn record_use(&self, now: Wall) {
        self.use_recorded.store(now.0, Ordering::Relaxed);
    }

    /// It is used now: is it time to write that down? One of those who use it at once is told so.
    pub(crate) fn is_use_due(&self, now: Wall, step: Span) -> bool {
        let last = self.use_recorded.load(Ordering::Relaxed);
        now.since(Wall(last)) > step
            && self
                .use_recorded
                .compare_exchange(last, now.0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    pub(crate) fn objects(&self) -> &[Arc<CachedResponse>] {
        &self.objects
    }

    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }
}
