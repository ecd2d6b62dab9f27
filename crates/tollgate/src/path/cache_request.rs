//! A request, as the cache sees it: made by the lookup, used by the store stage.
//!
//! Promises: holds what the client asked for, whatever is sent in its place.
//!
//! Never: looks anything up.

use std::sync::Arc;

use http::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, RANGE};
use http::{HeaderMap, Method};
use tollgate_core::fresh::{Demand, Freshness};
use tollgate_core::time::Wall;

use crate::cache::{Cache, CacheKey, CachedResponse, UrlHash};

/// Passed to the store stage with the response. Empty: nothing is stored.
#[derive(Debug, Default)]
pub(crate) struct PendingStore(pub(crate) Option<Box<CacheRequest>>);

/// A request, as the cache sees it.
#[derive(Debug)]
pub(crate) struct CacheRequest {
    pub(crate) cache: Cache,
    pub(crate) key: CacheKey,
    pub(crate) url: UrlHash,
    pub(crate) at: Wall,
    /// The purge count when the request began.
    pub(crate) purges: u64,
    /// The response is not stored, but it invalidates others.
    pub(crate) is_write: bool,
    /// The cached response, stale.
    pub(crate) object: Option<Arc<CachedResponse>>,
    /// It may be used if the provider cannot be reached.
    pub(crate) fallback: bool,
    /// A background refresh: no caller waits for it.
    pub(crate) is_background: bool,
    /// The request headers as the client sent them.
    pub(crate) client_headers: HeaderMap,
    /// The client's own `Authorization` is sent with the call.
    pub(crate) authorization: bool,
    pub(crate) demand: Demand,
}

impl CacheRequest {
    /// May we ask the provider whether the cached response is still valid? Otherwise the conditions
    /// are the client's, and a 304 refers to the client's own copy.
    pub(crate) fn may_validate(&self, method: &Method) -> bool {
        method == Method::GET && !self.client_headers.contains_key(RANGE)
    }
}

/// Asks whether the cached response is still valid, in place of the client's own conditions.
pub(crate) fn add_validators(headers: &mut HeaderMap, object: &CachedResponse) {
    for (ours, theirs) in [(ETAG, IF_NONE_MATCH), (LAST_MODIFIED, IF_MODIFIED_SINCE)] {
        headers.remove(&theirs);
        if let Some(value) = object.headers.get(ours) {
            headers.insert(theirs, value.clone());
        }
    }
}

/// May a cached response be used without asking the provider?
pub(crate) fn is_reusable(freshness: &Freshness, now: Wall) -> bool {
    !freshness.always_revalidate && now < freshness.fresh_until
}
