//! Refreshes a stale response in the background, for the callers that come next.
//!
//! Promises: one refresh at a time for each response, behind all other calls. If another call
//! fetches the response meanwhile, the refresh leaves the queue.
//!
//! Never: delays the call that triggered it.

use std::sync::Arc;

use http::header::{IF_RANGE, RANGE};
use tollgate_core::fresh::Demand;

use super::cache_request::{CacheRequest, PendingStore, add_validators};
use super::outcome::BoxedCall;
use super::route::Route;
use crate::cache::{CachedResponse, OBJECT_MAX};

/// Sends a call upstream: the rest of the path, which this stage does not know.
pub(crate) type Go = fn(Route, PendingStore) -> BoxedCall;

/// Fetches a new response in a background task that waits behind all other calls.
pub(crate) fn refresh(route: &Route, request: &CacheRequest, object: Arc<CachedResponse>, go: Go) {
    let Some(turn) = request.cache.refresh(request.key, &object) else {
        return;
    };
    let mut route = route.for_refresh();
    route.flight.refresh = Some(turn.refresh());
    add_validators(&mut route.request.headers, &object);
    let mut client = request.client_headers.clone();
    for name in [RANGE, IF_RANGE] {
        client.remove(name);
    }
    let pending = PendingStore(Some(Box::new(CacheRequest {
        cache: request.cache.clone(),
        key: request.key,
        url: request.url,
        at: request.at,
        purges: request.purges,
        is_write: false,
        object: Some(object),
        fallback: false,
        is_background: true,
        client_headers: client,
        authorization: request.authorization,
        // It is fetched for everybody, whatever the caller wants that triggered it.
        demand: Demand {
            no_store: false,
            ..request.demand
        },
    })));
    let call = go(route, pending);
    tokio::spawn(async move {
        let outcome = tokio::select! {
            biased;
            outcome = call => outcome,
            // While it waited in the queue, another call has fetched the response.
            () = turn.until_superseded() => return,
        };
        if let Ok(reply) = outcome.result {
            // Reading the body stores it.
            reply.body.drain(OBJECT_MAX).await;
        }
        drop(turn);
    });
}
