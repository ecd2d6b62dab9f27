//! Memory hits: the route and cache stages of a simple request, in one step.
//!
//! A GET without body, conditions or cache options whose response is fresh and in memory waits for
//! nothing, so it need not be a future. It uses the same functions as `call`, so its decisions, log
//! events and counters are the same.
//!
//! Promises: a response from here is the one that `call` would have given. Until it is taken,
//! nothing has happened.
//!
//! Never: returns an error. Everything else is left to `call`, which reports what is wrong.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tollgate_core::time::{Span, Wall};

use super::call::{CallOptions, HttpCall, Target};
use super::route::{Route, route_without_body};
use super::{cache, serve};
use crate::cache::{CachedResponse, MemfdBody, PreparedHead};
use crate::headers::CONDITIONS;
use crate::providers::{ConfigVersion, CountedCall, ProviderRegistry};
use crate::reply::Reply;

/// A fresh response in memory.
#[derive(Debug)]
pub struct Hit {
    object: Arc<CachedResponse>,
    now: Wall,
    age: Span,
}

/// The meaning of a GET without a body: its provider and its cache key. An identical request need
/// not be parsed again.
#[derive(Debug)]
pub struct RememberedRequest {
    route: Route,
    /// The configuration under which it was parsed: providers and callers.
    config_version: ConfigVersion,
    key: cache::RememberedKey,
    /// Counts its hits.
    counted: CountedCall,
}

impl RememberedRequest {
    /// Parses a request, if it is simple and the cache may serve it.
    #[must_use]
    pub fn of(
        registry: &ProviderRegistry,
        target: Target,
        headers: HeaderMap,
        options: CallOptions,
    ) -> Option<RememberedRequest> {
        let is_condition = |name| CONDITIONS.contains(name);
        if headers.keys().any(is_condition) {
            return None;
        }
        // Read first: if both change meanwhile, the result counts as older than it is.
        let config_version = registry.config_version();
        let call = HttpCall {
            target,
            method: Method::GET,
            headers,
            body: (),
            options,
        };
        let route = route_without_body(registry, call).ok()?;
        let key = cache::RememberedKey::of(registry, &route)?;
        let counted = route.subject.remembered();
        Some(RememberedRequest {
            route,
            config_version,
            key,
            counted,
        })
    }

    /// Would an identical request still mean the same?
    #[must_use]
    pub fn is_current(&self, registry: &ProviderRegistry) -> bool {
        registry.is_current(&self.config_version)
            && self
                .route
                .subject
                .provider
                .is_current_policy(|policy| self.key.is_for(policy))
    }

    /// Logs and counts a hit for the caller with this id. Call it once, when the response is used.
    pub fn emit(&self, hit: &Hit, id: &str) {
        self.counted.on_hit();
        self.route.emit_request(id);
        serve::emit_hit(&self.route, id, &hit.object, (hit.now, hit.age));
    }

    /// The response, if it is fresh and in memory.
    #[must_use]
    pub fn hit(&self, registry: &ProviderRegistry) -> Option<Hit> {
        let (object, now) = self.key.in_memory(registry, &self.route)?;
        Some(Hit {
            now,
            age: object.freshness.age(now),
            object,
        })
    }
}

impl Hit {
    /// Its age in seconds.
    #[must_use]
    pub fn age(&self) -> u64 {
        self.age.0 / 1_000_000
    }

    /// The body, not copied.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.object.body
    }

    /// The body as a memfd, where that is faster to send to a socket.
    #[must_use]
    pub fn memfd_body(&self) -> Option<Arc<MemfdBody>> {
        MemfdBody::of(&self.object)
    }

    /// Its serialised head: built from the whole response the first time, then cached with it.
    pub fn prepared_head(
        &self,
        write: impl FnOnce(Reply) -> Option<PreparedHead>,
    ) -> Option<&PreparedHead> {
        let head = &self.object.wire_form.head;
        head.get_or_init(|| write(serve::fresh_reply(&self.object, self.age)))
            .as_ref()
    }
}
