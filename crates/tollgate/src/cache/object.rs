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
use tollgate_core::fresh::Kept;
use tollgate_core::time::{Span, Wall};

use super::key::{Url, Variant};
use super::sheet::Shown;

/// What an object costs beside its body and headers, roughly: its maps, counts and key.
const OVERHEAD: usize = 512;

/// Answers to one URL that are kept side by side. Sixteen are more languages and encodings than
/// one user has; past that the oldest goes, so that no header can fill the cache.
pub(crate) const VARIANTS_MAX: usize = 16;

/// What one shelf weighs at most, unless it is a single answer: less than a shard of the memory, so
/// that several large answers to one URL do not fall out of it together.
pub(super) const SHELF_MAX: u64 = 12 * 1024 * 1024;

/// One kept answer.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) url: Url,
    /// When it was asked for: what changes its URL later makes it invalid.
    pub(crate) stored: Wall,
    /// Which request headers it is for.
    pub(crate) names: Vec<String>,
    /// Their values, as a hash.
    pub(crate) variant: Variant,
    /// Until when it is good.
    pub(crate) kept: Kept,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) provider: String,
    pub(crate) entity: Option<String>,
    /// How it is written.
    pub(crate) form: Form,
}

/// An answer as it is written to callers, made when it is first wanted. No head inside: it cannot be
/// prepared.
#[derive(Debug, Default)]
pub(crate) struct Form {
    pub(crate) head: OnceLock<Option<Written>>,
    /// Its body as a file, while there is room for it.
    pub(crate) shown: Shown,
}

impl Clone for Form {
    /// Whoever copies an object is about to change it, and then its head is another.
    fn clone(&self) -> Form {
        Form::default()
    }
}

/// A head as it is written, with gaps for what differs from one answer to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// From the status line to the value of `Age`.
    pub until_age: Box<[u8]>,
    /// From behind it to the value of `X-Tollgate-Id`.
    pub until_id: Box<[u8]>,
    /// From behind that to the empty line.
    pub rest: Box<[u8]>,
}

impl Object {
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
pub(crate) struct Shelf {
    objects: SmallVec<[Arc<Object>; 2]>,
    weight: u64,
    /// There may be more answers to the same URL on disk.
    is_partial: bool,
    /// When its use was last written down.
    noted: AtomicU64,
}

impl Shelf {
    pub(crate) fn new(objects: impl IntoIterator<Item = Arc<Object>>) -> Shelf {
        let mut shelf = Shelf::default();
        for object in objects.into_iter().take(VARIANTS_MAX) {
            let weight = shelf.weight + object.weight();
            if shelf.objects.is_empty() || weight <= SHELF_MAX {
                shelf.objects.push(object);
                shelf.weight = weight;
            } else {
                shelf.is_partial = true;
            }
        }
        shelf
    }

    /// The shelf with one more object, in place of the one for the same headers.
    pub(crate) fn with(&self, object: Arc<Object>) -> Shelf {
        let others = self
            .objects
            .iter()
            .filter(|old| old.variant != object.variant)
            .cloned()
            .collect::<Vec<_>>();
        let shelf = Shelf::new(std::iter::once(object).chain(others));
        Shelf {
            is_partial: self.is_partial || shelf.is_partial,
            ..shelf
        }
    }

    /// The shelf, where there may be more on disk.
    pub(crate) fn partial(self) -> Shelf {
        Shelf {
            is_partial: true,
            ..self
        }
    }

    /// May there be more on disk?
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// The shelf with what was found on disk beside it.
    pub(crate) fn and(&self, found: &Shelf) -> Shelf {
        let has = |variant| self.objects.iter().any(|object| object.variant == variant);
        let more = found.objects.iter().filter(|object| !has(object.variant));
        let shelf = Shelf::new(self.objects.iter().chain(more).cloned());
        shelf.note(Wall(self.noted.load(Ordering::Relaxed)));
        Shelf {
            is_partial: found.is_partial || shelf.is_partial,
            ..shelf
        }
    }

    /// The shelf without the objects of a provider or entity; `None` if nothing is left.
    pub(crate) fn without(&self, provider: Option<&str>, entity: Option<&str>) -> Option<Shelf> {
        self.but(|object| object.is_of(provider, entity))
    }

    /// The shelf without such objects; `None` if nothing is left.
    pub(super) fn but(&self, is_gone: impl Fn(&Object) -> bool) -> Option<Shelf> {
        let left = self.objects.iter();
        let left = left.filter(|object| !is_gone(object));
        let shelf = Shelf::new(left.cloned());
        let shelf = Shelf {
            is_partial: self.is_partial || shelf.is_partial,
            ..shelf
        };
        (!shelf.objects.is_empty()).then_some(shelf)
    }

    /// Its use has just been written down.
    pub(crate) fn note(&self, now: Wall) {
        self.noted.store(now.0, Ordering::Relaxed);
    }

    /// It is used now: is it time to write that down? One of those who use it at once is told so.
    pub(crate) fn is_due(&self, now: Wall, step: Span) -> bool {
        let last = self.noted.load(Ordering::Relaxed);
        now.since(Wall(last)) > step
            && self
                .noted
                .compare_exchange(last, now.0, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    pub(crate) fn objects(&self) -> &[Arc<Object>] {
        &self.objects
    }

    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }
}
