//! Stores a response while it passes to its caller.
//!
//! Promises: a response is stored only when its last byte has arrived, and only if none of our keys
//! is in it.
//!
//! Never: delays a byte.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use tollgate_core::fresh::{self, ContentChange, FreshnessRule, NotStored};
use tollgate_core::time::Wall;

use super::cache_request::is_reusable;
use super::scrub;
use crate::body::BodyRecorder;
use crate::body_memory::BodyShare;
use crate::cache::{Cache, CacheKey, CachedResponse};
use crate::event::{DeferredEvent, Event};
use crate::providers::{ActiveProvider, CompiledPolicy};

/// Stores a response while it passes to the caller. Dropped before the end, it stores nothing.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) provider: Arc<ActiveProvider>,
    pub(crate) id: Arc<str>,
    pub(crate) cache: Cache,
    pub(crate) key: CacheKey,
    pub(crate) purges: u64,
    pub(crate) received: Wall,
    pub(crate) object: CachedResponse,
    pub(crate) body: BytesMut,
    /// Its part of the memory of all bodies.
    pub(crate) share: BodyShare,
    pub(crate) size_max: usize,
    /// For adaptive lifetimes: the rule, and the response before this one.
    pub(crate) adapts: Option<(FreshnessRule, Option<Arc<CachedResponse>>)>,
    /// The policy under which the call was made.
    pub(crate) policy: Arc<CompiledPolicy>,
}

impl BodyRecorder for Recorder {
    fn is_reusable(&self) -> bool {
        is_reusable(&self.object.freshness, self.received)
    }

    fn push(&mut self, piece: &Bytes) -> bool {
        if self.body.len() + piece.len() > self.size_max || !self.share.grow(piece.len()) {
            return false;
        }
        if self.body.is_empty() {
            // All at once: a buffer that grows by doubling takes up to twice as much.
            let length = self.length().filter(|length| *length <= self.size_max);
            self.body.reserve(length.unwrap_or_default());
        }
        self.body.extend_from_slice(piece);
        true
    }

    fn finish(mut self: Box<Self>) -> Option<DeferredEvent> {
        let length = self.length();
        if length.is_some_and(|length| length != self.body.len()) {
            return None;
        }
        if let Err(why) = scrub::find_key(
            &self.provider,
            &self.policy,
            &self.object.headers,
            &self.body,
        ) {
            return on_not_stored(&self.provider, &self.id, why);
        }
        self.object.body = whole(std::mem::take(&mut self.body));
        if let Some((rule, Some(old))) = &self.adapts
            && let Some(range) = rule.lifetime.range()
            && old.status == self.object.status
        {
            let change = if old.body == self.object.body {
                ContentChange::Unchanged
            } else {
                ContentChange::Changed
            };
            let lifetime = fresh::adapted(old.freshness.lifetime, change, range);
            let freshness = self.object.freshness;
            self.object.freshness = freshness.with_lifetime(self.received, lifetime, rule.stale);
        }
        let object = Arc::new(self.object);
        let now = self.provider.ledger.wall();
        self.cache.store(self.key, &object, now, self.purges);
        None
    }
}

impl Recorder {
    /// The length that the response announces.
    fn length(&self) -> Option<usize> {
        let length = self.object.headers.get(CONTENT_LENGTH)?;
        length.to_str().ok()?.parse().ok()
    }
}

/// The body as it is, or a copy if its buffer is much larger.
fn whole(body: BytesMut) -> Bytes {
    if body.capacity() - body.len() > body.len() / 8 {
        Bytes::copy_from_slice(&body)
    } else {
        body.freeze()
    }
}

/// Counts that a response is not stored. Dropped, the returned value tells it, and why.
pub(crate) fn on_not_stored(
    live: &ActiveProvider,
    id: &Arc<str>,
    why: NotStored,
) -> Option<DeferredEvent> {
    live.savings.on_not_stored();
    live.events.defer_with(|| Event::NotStored {
        id: id.clone(),
        provider: live.label(),
        why: why.as_str(),
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use tollgate_config::{Environment, ProviderFile};
    use tollgate_core::fresh::Freshness;
    use tollgate_ledger::{Clock, Ledger};

    use super::*;
    use crate::body_memory::BodyMemory;
    use crate::cache::{UrlHash, Variant, WireForm};
    use crate::providers::{Options, ProviderRegistry};

    fn object() -> CachedResponse {
        CachedResponse {
            url: UrlHash([0; 16]),
            stored: Wall(1),
            vary_names: Vec::new(),
            variant: Variant([0; 16]),
            freshness: Freshness::default(),
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            provider: "x".to_owned(),
            entity: None,
            wire_form: WireForm::default(),
        }
    }

    /// A response that is not kept for the cache still passes to its caller.
    #[tokio::test]
    async fn a_response_is_not_kept_when_the_memory_of_all_bodies_is_used_up() {
        let file = "name: x\ndomain: api.example.org\nlimits: [5/10s]\n";
        let draft = ProviderFile::read("x.yaml", file).unwrap();
        let provider = draft.check(&Environment::empty()).provider.unwrap();
        let ledger = Ledger::memory(Clock::System);
        let registry = ProviderRegistry::build(vec![provider], ledger, Options::default());
        let provider = registry.unwrap().named("x").unwrap();
        let memory = Arc::new(BodyMemory::new(10));
        let mut recorder = Recorder {
            id: Arc::from("1"),
            cache: Cache::memory(),
            key: CacheKey([0; 32]),
            purges: 0,
            received: Wall(1),
            object: object(),
            body: BytesMut::new(),
            share: BodyShare::new(memory.clone()),
            size_max: 1_000,
            adapts: None,
            policy: provider.policy(),
            provider,
        };
        assert!(recorder.push(&Bytes::from_static(b"0123456789")));
        assert!(
            !recorder.push(&Bytes::from_static(b"x")),
            "an eleventh byte"
        );
        drop(recorder);
        assert_eq!(memory.held(), 0);
    }
}
