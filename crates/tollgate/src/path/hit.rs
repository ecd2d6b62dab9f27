//! Hits at hand: the first two stages of the path for the plainest call there is, in one step.
//!
//! A GET without body, conditions or wishes whose answer is in memory and fresh needs nothing that has
//! to be waited for, so it need not be a future. What is decided, told and counted is what `call` would
//! decide, tell and count: the same functions do it.
//!
//! Promises: an answer from here is the one that `call` would have given. Until it is taken, nothing
//! has happened.
//!
//! Never: an error. Whatever is not plain is left to `call`, which says what is wrong with it.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderMap, Method};
use tollgate_core::time::Span;

use super::route::{Call, CallOptions, Route, Target, route_without_body};
use super::{Reply, cache, serve};
use crate::cache::{CachedResponse, MemfdBody, PreparedHead};
use crate::providers::{ActiveProvider, ConfigVersion, ProviderRegistry};

/// What makes an answer depend on more than its question.
const CONDITIONS: [http::HeaderName; 6] = [
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
];

/// A fresh answer in memory.
#[derive(Debug)]
pub struct Hit {
    provider: Arc<ActiveProvider>,
    object: Arc<CachedResponse>,
    age: Span,
}

/// What a GET without a body means: whose it is, and what its answer is called. Who hears the same
/// again need not find that out anew.
#[derive(Debug)]
pub struct RememberedRequest {
    route: Route,
    /// What the same words may mean something else under: other providers, other callers.
    config_version: ConfigVersion,
    key: cache::RememberedKey,
}

impl RememberedRequest {
    /// What this call means, if it is plain and the cache may answer it.
    #[must_use]
    pub fn of(
        shop: &ProviderRegistry,
        target: Target,
        headers: HeaderMap,
        said: CallOptions,
    ) -> Option<RememberedRequest> {
        let is_condition = |name| CONDITIONS.contains(name);
        if headers.keys().any(is_condition) {
            return None;
        }
        // Before it is read: if both change meanwhile, it is thought older than it is.
        let setup = shop.config_version();
        let call = Call {
            target,
            method: Method::GET,
            headers,
            body: (),
            options: said,
        };
        let route = route_without_body(shop, call).ok()?;
        let named = cache::RememberedKey::of(shop, &route)?;
        Some(RememberedRequest {
            route,
            config_version: setup,
            key: named,
        })
    }

    /// Would the same call still mean this?
    #[must_use]
    pub fn is_current(&self, shop: &ProviderRegistry) -> bool {
        shop.is_current(&self.config_version)
            && self
                .route
                .provider
                .is_current_policy(|plan| self.key.is_for(plan))
    }

    /// The answer, if it is in memory and fresh.
    #[must_use]
    pub fn hit(&self, shop: &ProviderRegistry) -> Option<Hit> {
        let (object, now) = self.key.in_memory(shop, &self.route)?;
        Some(Hit {
            provider: self.route.provider.clone(),
            age: object.freshness.age(now),
            object,
        })
    }
}

impl Hit {
    /// What the caller of this name was answered with. Call it once, when it is so.
    pub fn emit(&self, id: &str) {
        serve::emit_hit(&self.provider, id, self.age);
    }

    /// Its age, in seconds.
    #[must_use]
    pub fn age(&self) -> u64 {
        self.age.0 / 1_000_000
    }

    /// The body, which is not copied.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.object.body
    }

    /// The body as a file, where that is the quicker way to a socket.
    #[must_use]
    pub fn memfd_body(&self) -> Option<Arc<MemfdBody>> {
        MemfdBody::of(&self.object)
    }

    /// Its head as it is written: made of the whole answer the first time, and kept with it.
    pub fn prepared_head(
        &self,
        write: impl FnOnce(Reply) -> Option<PreparedHead>,
    ) -> Option<&PreparedHead> {
        let head = &self.object.wire_form.head;
        head.get_or_init(|| write(serve::fresh_reply(&self.object, self.age)))
            .as_ref()
    }
}
