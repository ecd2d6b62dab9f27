//! Builds responses from the cache, and refreshes them.
//!
//! Promises: `Age` is correct. A client that already has the response gets a 304, a range request
//! gets its range, and a HEAD gets no body. A stale response says so, and every response states its
//! cache status (`Cache-Status`). A body is never copied.
//!
//! Never: decides whether a response may be used.

use bytes::Bytes;
use http::header::{
    AGE, CACHE_STATUS, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue,
    RANGE,
};
use http::response::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use tollgate_core::fresh::{ByteRange, is_not_modified, requested_range};
use tollgate_core::time::{Span, Wall};

use super::cache_request::is_reusable;
use super::call_end;
use super::route::Route;
use crate::body::ReplyBody;
use crate::cache::CachedResponse;
use crate::event::{Event, StepKind};
use crate::headers::HeaderView;
use crate::reply::{Reply, Source};

/// Why a response is served although it may be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServeReason {
    /// It is fresh.
    Fresh,
    /// The provider reports no change, and it is stored for another lifetime.
    Revalidated,
    /// The provider reports no change, but it may not be stored any longer.
    Unchanged,
    /// The response or the request allows it.
    Allowed,
    /// The caller asked for the cache only.
    CacheOnly,
    /// The call would have to wait for a permit, or the provider is asleep.
    Waiting,
    /// The provider failed or limited the call.
    Failing,
}

impl ServeReason {
    fn as_str(self) -> &'static str {
        match self {
            ServeReason::Fresh => "fresh",
            ServeReason::Revalidated | ServeReason::Unchanged => "unchanged",
            ServeReason::Allowed => "allowed",
            ServeReason::CacheOnly => "cache_only",
            ServeReason::Waiting => "waiting",
            ServeReason::Failing => "failing",
        }
    }

    /// The value of `Cache-Status` (RFC 9211): a hit and, if stale, why; or forwarded because it
    /// was stale, and revalidated.
    fn status(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            ServeReason::Fresh => "tollgate; hit",
            ServeReason::Revalidated => "tollgate; fwd=stale; fwd-status=304; stored",
            ServeReason::Unchanged => "tollgate; fwd=stale; fwd-status=304",
            ServeReason::Allowed => "tollgate; hit; detail=allowed",
            ServeReason::CacheOnly => "tollgate; hit; detail=cache_only",
            ServeReason::Waiting => "tollgate; hit; detail=waiting",
            ServeReason::Failing => "tollgate; hit; detail=failing",
        })
    }

    fn source(self) -> Source {
        match self {
            ServeReason::Fresh | ServeReason::Revalidated | ServeReason::Unchanged => Source::Cache,
            ServeReason::Allowed
            | ServeReason::CacheOnly
            | ServeReason::Waiting
            | ServeReason::Failing => Source::Stale,
        }
    }
}

/// Builds the reply for a caller from a cached response.
pub(crate) fn from_cache(
    route: &Route,
    object: &CachedResponse,
    client: &HeaderMap,
    now: Wall,
    why: ServeReason,
    degraded: bool,
) -> Reply {
    let age = object.freshness.age(now);
    // A caller that asked for the cache only may get a fresh response.
    let is_fresh = why == ServeReason::CacheOnly && now < object.freshness.fresh_until;
    let source = if is_fresh {
        Source::Cache
    } else {
        why.source()
    };
    route
        .subject
        .provider
        .events
        .emit_with(|| Event::FromCache {
            id: route.subject.id.clone(),
            provider: route.subject.provider.label(),
            source: source.as_str(),
            age,
            why: why.as_str(),
        });
    route.subject.add_step(|| StepKind::Cached {
        source: source.as_str(),
        age,
        why: why.as_str(),
    });
    let mut head = head(object, age);
    let mut body = object.body.clone();
    let is_same = object.status == StatusCode::OK
        && is_not_modified(
            &HeaderView(client),
            &HeaderView(&object.headers),
            object.stored,
            now,
        );
    if is_same {
        head.status = StatusCode::NOT_MODIFIED;
        head.headers.remove(CONTENT_LENGTH);
        body = Bytes::new();
    } else if route.request.method == Method::HEAD {
        body = Bytes::new();
    } else if object.status == StatusCode::OK {
        body = apply_range(&mut head, body, client, now);
    }
    let why = if is_fresh { ServeReason::Fresh } else { why };
    head.headers.append(CACHE_STATUS, why.status());
    let is_unchanged = matches!(why, ServeReason::Revalidated | ServeReason::Unchanged);
    route
        .subject
        .provider
        .savings
        .on_cached(source, is_unchanged);
    let subject = &route.subject;
    subject.count_entity(|entity| entity.on_lookup(!is_unchanged));
    // Identical calls at the same time may share it, unless each must ask the provider.
    let is_for_others = match why {
        ServeReason::Revalidated => is_reusable(&object.freshness, now),
        ServeReason::Unchanged => false,
        ServeReason::Fresh
        | ServeReason::Allowed
        | ServeReason::CacheOnly
        | ServeReason::Waiting
        | ServeReason::Failing => true,
    };
    Reply {
        head,
        body: ReplyBody::whole(body).stored(is_for_others),
        source,
        degraded,
    }
}

/// Status and headers of a cached response.
fn head(object: &CachedResponse, age: Span) -> Parts {
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = object.status;
    head.headers = object.headers.clone();
    let seconds = HeaderValue::from(age.0 / 1_000_000);
    head.headers.insert(AGE, seconds);
    head
}

/// A fresh response for every caller that requests all of it without conditions.
pub(crate) fn fresh_reply(object: &CachedResponse, age: Span) -> Reply {
    let mut head = head(object, age);
    head.headers
        .append(CACHE_STATUS, ServeReason::Fresh.status());
    Reply {
        head,
        body: ReplyBody::whole(object.body.clone()),
        source: Source::Cache,
        degraded: false,
    }
}

/// Logs and counts that a fresh response was used, and that its call is over.
pub(crate) fn emit_hit(route: &Route, id: &str, object: &CachedResponse, (now, age): (Wall, Span)) {
    let subject = &route.subject;
    let provider = &subject.provider;
    if provider.events.wants_hit(now) {
        provider.events.emit_with(|| Event::FromCache {
            id: id.into(),
            provider: provider.label(),
            source: Source::Cache.as_str(),
            age,
            why: ServeReason::Fresh.as_str(),
        });
        let end = call_end::hit(route, id, object.status.as_u16(), (now, age));
        provider.events.emit_end(end);
    }
    provider.savings.on_cached(Source::Cache, false);
    subject.count_entity(|entity| {
        entity.on_call();
        entity.on_lookup(true);
    });
}

/// The range that a client requests, and the headers for it.
fn apply_range(head: &mut Parts, body: Bytes, client: &HeaderMap, now: Wall) -> Bytes {
    if !client.contains_key(RANGE) {
        return body;
    }
    let length = body.len();
    let (status, range, body) = match requested_range(
        &HeaderView(client),
        &HeaderView(&head.headers),
        length as u64,
        now,
    ) {
        ByteRange::Whole => return body,
        ByteRange::Bytes(first, end) => {
            // Both are at most the length, which fits into memory.
            let at = |at: u64| usize::try_from(at).unwrap_or(length).min(length);
            let range = format!("bytes {first}-{}/{length}", end.saturating_sub(1));
            let body = body.slice(at(first)..at(end));
            (StatusCode::PARTIAL_CONTENT, range, body)
        }
        ByteRange::Unsatisfiable => {
            for name in [CONTENT_TYPE, CONTENT_ENCODING] {
                head.headers.remove(name);
            }
            let range = format!("bytes */{length}");
            (StatusCode::RANGE_NOT_SATISFIABLE, range, Bytes::new())
        }
    };
    head.status = status;
    if let Ok(range) = HeaderValue::try_from(range) {
        head.headers.insert(CONTENT_RANGE, range);
    }
    head.headers
        .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    body
}
