//! One cached response, and the responses to one URL that differ by request headers.
//!
//! Promises: a cached response never changes; a renewal creates a new one.
//!
//! Never: holds a hop-by-hop header or a cookie.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tollgate_core::fresh::Freshness;
use tollgate_core::time::{Span, Wall};

use super::key::{UrlHash, Variant};
use super::memfd::MemfdSlot;

/// The approximate cost of a response beside its body and headers: its maps, counters and key.
const OVERHEAD: usize = 512;

/// What a header costs in memory beside its text: a slot of the map, which has up to twice as many
/// as it needs.
const HEADER_OVERHEAD: usize = 160;

/// The number of variants of one URL. Sixteen are more languages and encodings than one user has;
/// past that the oldest is evicted, so that no header can fill the cache.
pub(crate) const VARIANTS_MAX: usize = 16;

/// The largest variant set in bytes, unless it is a single response: less than a shard of the
/// memory, so that several large responses to one URL are not evicted together.
pub(super) const VARIANT_SET_BYTES_MAX: u64 = 12 * 1024 * 1024;

/// One cached response.
#[derive(Clone, Debug)]
pub(crate) struct CachedResponse {
    pub(crate) url: UrlHash,
    /// When it was requested: a later change of its URL makes it invalid.
    pub(crate) stored: Wall,
    /// The request headers that it varies on.
    pub(crate) vary_names: Vec<String>,
    /// Their values, as a hash.
    pub(crate) variant: Variant,
    /// How long it is fresh.
    pub(crate) freshness: Freshness,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) provider: String,
    pub(crate) entity: Option<String>,
    /// Its serialised form.
    pub(crate) wire_form: WireForm,
}

/// A response as it is written to callers, built on first use. `None` as head: it cannot be
/// prepared.
#[derive(Debug, Default)]
pub(crate) struct WireForm {
    pub(crate) head: OnceLock<Option<PreparedHead>>,
    /// Its body as a memfd, while there is room for it.
    pub(crate) memfd: MemfdSlot,
}

impl Clone for WireForm {
    /// A copy is about to be changed, and then its head differs.
    fn clone(&self) -> WireForm {
        WireForm::default()
    }
}

/// A serialised head, with gaps for the values that differ between responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedHead {
    /// From the status line to the value of `Age`.
    pub until_age: Box<[u8]>,
    /// From after it to the value of `X-Tollgate-Id`.
    pub until_id: Box<[u8]>,
    /// From after that to the empty line.
    pub rest: Box<[u8]>,
}

impl CachedResponse {
    /// Its size in bytes. The text of the head counts twice: its serialised form may be cached too.
    pub(crate) fn weight(&self) -> u64 {
        let lines = self.headers.iter();
        let head: usize = lines
            .map(|(name, value)| 2 * (name.as_str().len() + value.len()) + HEADER_OVERHEAD)
            .sum();
        (self.body.len() + head + OVERHEAD) as u64
    }

    /// Is it of this provider and entity?
    pub(crate) fn is_of(&self, provider: Option<&str>, entity: Option<&str>) -> bool {
        provider.is_none_or(|name| self.provider == name)
            && entity.is_none_or(|name| self.entity.as_deref() == Some(name))
    }
}

/// The responses to one URL, the newest first.
#[derive(Debug, Default)]
pub(crate) struct VariantSet {
    objects: SmallVec<[Arc<CachedResponse>; 2]>,
    weight: u64,
    /// There may be more responses to the same URL on disk.
    is_partial: bool,
    /// When its use was last recorded on disk.
    use_recorded: AtomicU64,
}

impl VariantSet {
    pub(crate) fn new(objects: impl IntoIterator<Item = Arc<CachedResponse>>) -> VariantSet {
        let mut variants = VariantSet::default();
        for object in objects.into_iter().take(VARIANTS_MAX) {
            let weight = variants.weight + object.weight();
            if variants.objects.is_empty() || weight <= VARIANT_SET_BYTES_MAX {
                variants.objects.push(object);
                variants.weight = weight;
            } else {
                variants.is_partial = true;
            }
        }
        variants
    }

    /// The set with one more response, in place of the one for the same headers.
    pub(crate) fn with(&self, object: Arc<CachedResponse>) -> VariantSet {
        let others = self
            .objects
            .iter()
            .filter(|old| old.variant != object.variant)
            .cloned()
            .collect::<Vec<_>>();
        let variants = VariantSet::new(std::iter::once(object).chain(others));
        VariantSet {
            is_partial: self.is_partial || variants.is_partial,
            ..variants
        }
    }

    /// The set, marked as possibly incomplete.
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

    /// The set merged with the variants found on disk.
    pub(crate) fn merge(&self, found: &VariantSet) -> VariantSet {
        let has = |variant| self.objects.iter().any(|object| object.variant == variant);
        let more = found.objects.iter().filter(|object| !has(object.variant));
        let variants = VariantSet::new(self.objects.iter().chain(more).cloned());
        variants.record_use(Wall(self.use_recorded.load(Ordering::Relaxed)));
        VariantSet {
            is_partial: found.is_partial || variants.is_partial,
            ..variants
        }
    }

    /// The set without the responses of a provider or entity; `None` if nothing remains.
    pub(crate) fn without(
        &self,
        provider: Option<&str>,
        entity: Option<&str>,
    ) -> Option<VariantSet> {
        self.without_matching(|object| object.is_of(provider, entity))
    }

    /// The set without matching responses; `None` if nothing remains.
    pub(super) fn without_matching(
        &self,
        is_gone: impl Fn(&CachedResponse) -> bool,
    ) -> Option<VariantSet> {
        let remaining = self.objects.iter();
        let remaining = remaining.filter(|object| !is_gone(object));
        let variants = VariantSet::new(remaining.cloned());
        let variants = VariantSet {
            is_partial: self.is_partial || variants.is_partial,
            ..variants
        };
        (!variants.objects.is_empty()).then_some(variants)
    }

    /// Its use has just been recorded on disk.
    pub(crate) fn record_use(&self, now: Wall) {
        self.use_recorded.store(now.0, Ordering::Relaxed);
    }

    /// It is used now: must that be recorded on disk? Returns `true` for one of several concurrent
    /// uses.
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
