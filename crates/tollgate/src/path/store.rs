//! The store stage: may this response be used again, by whom, and until when?
//!
//! Promises: a response is stored only when its last byte has arrived, never in part. A 304 renews
//! the cached response. If the provider fails or cannot be reached, a stale response is served
//! where there is one. A successful write invalidates the cached responses of its URL. A response
//! that is not stored reports why.
//!
//! Never: delays a response. The caller gets each byte as it arrives.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use http::header::{
    CACHE_STATUS, CONTENT_LOCATION, DATE, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LOCATION,
    TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, StatusCode};
use http_body::Body;
use tollgate_core::feedback::LimitVerdict;
use tollgate_core::fresh::{
    self, ContentChange, Freshness, FreshnessMode, FreshnessRule, NotStored, ResponseTimes,
    StoreCandidate as Facts, Varies, is_other_representation, is_replaced_by_304,
};
use tollgate_core::time::{Now, Span, Wall};

use super::cache_request::{CacheRequest, PendingStore};
use super::outcome::CallOutcome;
use super::recorder::{Recorder, on_not_stored};
use super::refresh::{self, Go};
use super::response::{self, UpstreamResponse};
use super::retry::RetryState;
use super::route::Route;
use super::serve::{self, ServeReason};
use super::{link_target, scrub};
use crate::Error;
use crate::body_memory::{BodyMemory, BodyShare};
use crate::cache::{CachedResponse, WireForm, variant};
use crate::error::Reason;
use crate::event::Event;
use crate::headers;
use crate::headers::HeaderView;
use crate::providers::CompiledPolicy;
use crate::reply::{Reply, Source};

/// Stores a response if it may be used again, and returns what became of the call.
pub(crate) fn store(
    route: &Route,
    pending: PendingStore,
    done: Result<UpstreamResponse, Error>,
    retries: RetryState,
    go: Go,
) -> CallOutcome {
    record_write(route, &done);
    let has_failed = match &done {
        Ok(response) => response.class.is_failure(),
        Err(_) => true,
    };
    let mut result = store_or_replace(route, pending, done, go);
    if let Ok(reply) = &mut result
        && route.flight.merging.is_part
    {
        reply.source = Source::Merged;
    }
    let has_another = |reply: &Reply| matches!(reply.source, Source::Cache | Source::Stale);
    CallOutcome {
        // A cached response has replaced the failure.
        is_failure: has_failed && !result.as_ref().is_ok_and(has_another),
        result,
        attempts: retries.made,
        waited: retries.permits.waited,
        rates: retries.permits.rates,
        was_queued: retries.permits.was_queued,
        queue_cause: retries.permits.queue_cause,
    }
}

/// Flights from before a write do not serve calls after it.
fn record_write(route: &Route, done: &Result<UpstreamResponse, Error>) {
    if let Ok(response) = done
        && !route.request.method.is_safe()
    {
        let provider = &route.subject.provider;
        let (status, now) = (response.head.status, provider.ledger.at());
        provider.writes.record(&route.request.path, status, now);
    }
}

fn store_or_replace(
    route: &Route,
    pending: PendingStore,
    done: Result<UpstreamResponse, Error>,
    go: Go,
) -> Result<Reply, Error> {
    let Some(mut request) = pending.0 else {
        return done.map(to_reply);
    };
    let old = request.object.take();
    match (done, old) {
        (Err(error), Some(old)) if request.fallback && error.allows_stale() => {
            Ok(serve_stale(route, &request, old, &error, go))
        }
        (Err(error), _) => {
            if matches!(error, Error::NotInCache { .. }) {
                count_miss(route, &request);
            }
            Err(error)
        }
        (Ok(response), Some(old))
            if response.head.status == StatusCode::NOT_MODIFIED
                && request.may_validate(&route.request.method) =>
        {
            Ok(revalidate(route, &request, &old, response))
        }
        (Ok(response), Some(old)) if request.fallback && response.class.is_failure() => {
            tokio::spawn(response::discard(response));
            let now = route.subject.provider.ledger.wall();
            let client = &request.client_headers;
            Ok(serve::from_cache(
                route,
                &old,
                client,
                now,
                ServeReason::Failing,
                false,
            ))
        }
        (Ok(response), old) => Ok(pass_on(route, &request, old, response)),
    }
}

/// The cache had no usable response for a caller.
fn count_miss(route: &Route, request: &CacheRequest) {
    if request.is_background {
        return;
    }
    let subject = &route.subject;
    subject.provider.savings.on_miss();
    subject.count_entity(|entity| entity.on_lookup(false));
    subject.provider.events.emit_with(|| Event::CacheMiss {
        id: subject.id.clone(),
        provider: subject.provider.label(),
    });
}

fn to_reply(response: UpstreamResponse) -> Reply {
    Reply {
        head: response.head,
        body: response.body,
        source: Source::Upstream,
        degraded: false,
    }
}

/// Serves the stale response because the provider cannot be reached. If only a permit was missing,
/// a background refresh waits for one.
fn serve_stale(
    route: &Route,
    request: &CacheRequest,
    old: Arc<CachedResponse>,
    error: &Error,
    go: Go,
) -> Reply {
    let (why, degraded) = match error {
        Error::NotInCache { reason, .. } => (ServeReason::Waiting, *reason == Reason::Degraded),
        Error::NoPermit { .. } | Error::ProviderUnavailable { .. } => (ServeReason::Waiting, false),
        _ => (ServeReason::Failing, false),
    };
    let now = route.subject.provider.ledger.wall();
    let reply = serve::from_cache(route, &old, &request.client_headers, now, why, degraded);
    if matches!(error, Error::NoPermit { .. }) && !request.is_background {
        refresh::refresh(route, request, old, go);
    }
    reply
}

/// A 304 about another response than the cached one: the cached one is removed, and the call is
/// repeated without a condition. `true` = it must be repeated.
pub(crate) fn retries_unconditionally(
    route: &mut Route,
    pending: &mut PendingStore,
    done: &Result<UpstreamResponse, Error>,
) -> bool {
    let (Some(request), Ok(response)) = (pending.0.as_deref_mut(), done) else {
        return false;
    };
    let is_about_ours = response.head.status == StatusCode::NOT_MODIFIED
        && request.may_validate(&route.request.method);
    let differs = |old: &mut Arc<CachedResponse>| {
        is_other_representation(
            &HeaderView(&old.headers),
            &HeaderView(&response.head.headers),
        )
    };
    let Some(old) = request.object.take_if(|old| is_about_ours && differs(old)) else {
        return false;
    };
    request.cache.remove(&request.key, &old, old.stored);
    (request.fallback, route.subject.fallback) = (false, false);
    for name in [IF_NONE_MATCH, IF_MODIFIED_SINCE] {
        route.request.headers.remove(name);
    }
    true
}

/// The cached response, updated with the headers of a 304.
fn updated_by_304(old: &CachedResponse, headers: &HeaderMap, now: Wall) -> CachedResponse {
    let mut object = old.clone();
    let of_connection = headers::connection_headers(headers);
    for name in headers.keys() {
        let is_named = of_connection.iter().any(|one| one == name.as_str());
        if is_replaced_by_304(name.as_str()) && !is_named {
            object.headers.remove(name);
            for value in headers.get_all(name) {
                let value = headers::detached_value(value);
                object.headers.append(name.clone(), value);
            }
        }
    }
    if !headers.contains_key(DATE) {
        // RFC 9110, 6.6.1: without a `Date`, the time of arrival counts.
        object.headers.insert(DATE, date_header(now));
    }
    object
}

/// The provider reports no change: the cached response is valid again.
fn revalidate(
    route: &Route,
    request: &CacheRequest,
    old: &CachedResponse,
    response: UpstreamResponse,
) -> Reply {
    let policy = route.subject.provider.policy();
    let now = route.subject.provider.ledger.now();
    let (sent, now) = (sent_at(request, &response, now), now.wall);
    let mut object = updated_by_304(old, &response.head.headers, now);
    tokio::spawn(response::discard(response));
    let rule = policy.cache.rule(route.subject.entity.as_deref());
    let chosen = match rule.lifetime.range() {
        Some(range) if policy.cache.adaptive => {
            fresh::adapted(old.freshness.lifetime, ContentChange::Unchanged, range)
        }
        Some(_) | None => old.freshness.lifetime,
    };
    let mut why = ServeReason::Unchanged;
    match cacheability(
        route,
        &policy,
        request,
        object.status,
        &object.headers,
        chosen,
        (sent, now),
    ) {
        Ok(freshness) => {
            object.freshness = freshness;
            object.stored = sent;
            // A 304 may change `Vary`; the response for the old variant is then removed.
            if let Varies::On(names) = fresh::varies(&HeaderView(&object.headers), &rule.vary)
                && names != old.vary_names
            {
                object.variant = variant(
                    request.cache.salt(),
                    &names,
                    &HeaderView(&request.client_headers),
                );
                object.vary_names = names;
                request.cache.remove(&request.key, old, old.stored);
            }
            scrub::scrub(route, &policy, &mut object.headers);
            let object = Arc::new(object.clone());
            if request
                .cache
                .store(request.key, &object, now, request.purges)
            {
                why = ServeReason::Revalidated;
            }
        }
        Err(why) => {
            let _deferred = not_stored(route, why);
            // A request with `no-store` does not affect what is cached for others.
            if why != NotStored::RequestNoStore {
                request.cache.remove(&request.key, old, old.stored);
            }
        }
    }
    serve::from_cache(route, &object, &request.client_headers, now, why, false)
}

/// Passes a new response to the caller and, if allowed, into the cache.
fn pass_on(
    route: &Route,
    request: &CacheRequest,
    old: Option<Arc<CachedResponse>>,
    response: UpstreamResponse,
) -> Reply {
    let status = response.head.status;
    if request.is_write {
        if status.is_success() || status.is_redirection() {
            invalidate(route, request, &response.head.headers);
        }
        return to_reply(response);
    }
    if route.request.method != Method::GET || status == StatusCode::NOT_MODIFIED {
        return to_reply(response);
    }
    let now = route.subject.provider.ledger.now();
    let (sent, now) = (sent_at(request, &response, now), now.wall);
    if let Some(old) = &old
        && is_gone(status)
    {
        // A removed resource must not reappear when the provider is slow. Everything stored before
        // this request was sent becomes invalid, but not this response.
        request.cache.remove(&request.key, old, sent - Span(1));
    }
    count_miss(route, request);
    let has_old = old.is_some();
    let recorder = record(route, request, old, &response, (sent, now));
    let mut reply = to_reply(response);
    let status = match recorder {
        Ok(recorder) => {
            reply.body = reply.body.recorded(recorder);
            // Not `stored`: it is stored when its last byte has passed, or not at all.
            HeaderValue::from_static(if has_old {
                "tollgate; fwd=stale"
            } else {
                "tollgate; fwd=miss"
            })
        }
        Err(why) => not_stored(route, why),
    };
    reply.head.headers.append(CACHE_STATUS, status);
    reply
}

/// Prepares to store a response while it passes.
fn record(
    route: &Route,
    request: &CacheRequest,
    old: Option<Arc<CachedResponse>>,
    response: &UpstreamResponse,
    (sent, now): (Wall, Wall),
) -> Result<Box<Recorder>, NotStored> {
    let policy = route.subject.provider.policy();
    let rule = policy.cache.rule(route.subject.entity.as_deref());
    let (status, headers) = (response.head.status, &response.head.headers);
    if is_limited(response) {
        return Err(NotStored::Limited);
    }
    let dice = u64::from_le_bytes(request.key.0[..8].try_into().unwrap_or_default()) ^ now.0;
    let chosen = chosen_lifetime(rule, policy.cache.adaptive, old.as_deref(), dice);
    let freshness = cacheability(
        route,
        &policy,
        request,
        status,
        headers,
        chosen,
        (sent, now),
    )?;
    let most = policy.cache.object_max;
    check_size(response, most)?;
    let names = match fresh::varies(&HeaderView(headers), &rule.vary) {
        Varies::On(names) => names,
        Varies::OnAnything => return Err(NotStored::VariesOnAnything),
    };
    let mut headers = headers::detached(headers);
    // A recipient adds the time of arrival as `Date` (RFC 9110, 6.6.1).
    headers.entry(DATE).or_insert_with(|| date_header(now));
    scrub::scrub(route, &policy, &mut headers);
    // Since its bytes left, a reload may have changed the keys.
    let under = response.sent_under.as_ref().unwrap_or(&policy);
    if !Arc::ptr_eq(under, &policy) {
        scrub::scrub(route, under, &mut headers);
    }
    let object = CachedResponse {
        url: request.url,
        stored: sent,
        variant: variant(
            request.cache.salt(),
            &names,
            &HeaderView(&request.client_headers),
        ),
        vary_names: names,
        freshness,
        status,
        headers,
        body: Bytes::new(),
        provider: route.subject.provider.name.clone(),
        entity: route.subject.entity_name(),
        wire_form: WireForm::default(),
    };
    let adapts = policy.cache.adaptive && rule.mode == FreshnessMode::Ttl && !is_gone(status);
    Ok(Box::new(Recorder {
        provider: route.subject.provider.clone(),
        id: route.subject.id.clone(),
        cache: request.cache.clone(),
        key: request.key,
        purges: request.purges,
        received: now,
        object,
        body: BytesMut::new(),
        share: BodyShare::new(BodyMemory::of_process()),
        size_max: most,
        adapts: adapts.then(|| (rule.clone(), old)),
        policy: under.clone(),
    }))
}

/// Is the body small enough to store, and is its end detectable?
fn check_size(response: &UpstreamResponse, most: usize) -> Result<(), NotStored> {
    match response.body.size_hint().exact() {
        Some(size) if size > most as u64 => Err(NotStored::TooLarge),
        Some(_) => Ok(()),
        None if response.head.headers.contains_key(TRANSFER_ENCODING) => Ok(()),
        // A body that ends with its connection may be truncated: nobody can tell.
        None => Err(NotStored::Incomplete),
    }
}

/// Is it a limit response, whatever its status? An overloaded server that reports a 5xx may also
/// state for how long (RFC 9111, 3).
fn is_limited(response: &UpstreamResponse) -> bool {
    match response.verdict {
        LimitVerdict::Passed => false,
        LimitVerdict::Overloaded => !response.head.status.is_server_error(),
        LimitVerdict::Limited | LimitVerdict::Spent => true,
    }
}

/// The lifetime of a new response, where the provider file gives a range.
fn chosen_lifetime(
    rule: &FreshnessRule,
    adaptive: bool,
    old: Option<&CachedResponse>,
    dice: u64,
) -> Span {
    match (rule.lifetime.range(), old) {
        (None, _) => Span::ZERO,
        (Some((least, _)), None) if adaptive => least,
        // The lifetime of a 404 may lie below the range.
        (Some((least, most)), Some(old)) if adaptive => {
            old.freshness.lifetime.max(least).min(most.max(least))
        }
        (Some(range), _) => fresh::spread(range, dice),
    }
}

/// May it be stored, and for how long is it fresh?
fn cacheability(
    route: &Route,
    policy: &CompiledPolicy,
    request: &CacheRequest,
    status: StatusCode,
    headers: &HeaderMap,
    chosen: Span,
    (sent, now): (Wall, Wall),
) -> Result<Freshness, NotStored> {
    let rule = policy.cache.rule(route.subject.entity.as_deref());
    let facts = Facts {
        status: status.as_u16(),
        headers: &HeaderView(headers),
        authorization: request.authorization,
        no_store: request.demand.no_store,
    };
    let times = ResponseTimes {
        requested: sent,
        received: now,
        chosen_lifetime: chosen,
    };
    fresh::check_storable(rule, &facts, times)
}

/// When the call left: time in our own queue is not part of a response's age (RFC 9111, 4.2.3).
fn sent_at(request: &CacheRequest, response: &UpstreamResponse, now: Now) -> Wall {
    response
        .granted
        .map_or(request.at, |granted| now.wall - now.at.since(granted))
}

/// The resource no longer exists.
fn is_gone(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

fn date_header(now: Wall) -> HeaderValue {
    let date = UNIX_EPOCH + Duration::from_micros(now.0);
    HeaderValue::try_from(httpdate::fmt_http_date(date))
        .unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

/// Invalidates what a write changes: its own URL and the ones that it links to, on the same origin.
fn invalidate(route: &Route, request: &CacheRequest, headers: &HeaderMap) {
    let now = route.subject.provider.ledger.wall();
    request
        .cache
        .invalidate(Some(&request.key), request.url, now);
    for name in [LOCATION, CONTENT_LOCATION] {
        let named = headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(url) =
            named.and_then(|link| link_target::url(route, link, request.cache.salt()))
        {
            request.cache.invalidate(None, url, now);
        }
    }
}

/// Reports that a response is not stored and why, in the log and in `Cache-Status` (RFC 9211).
fn not_stored(route: &Route, why: NotStored) -> HeaderValue {
    drop(on_not_stored(
        &route.subject.provider,
        &route.subject.id,
        why,
    ));
    let word = why.as_str();
    let status = HeaderValue::try_from(format!("tollgate; fwd=miss; detail={word}"));
    status.unwrap_or_else(|_| HeaderValue::from_static("tollgate; fwd=miss"))
}
