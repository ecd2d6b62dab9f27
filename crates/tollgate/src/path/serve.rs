//! Answers out of the cache: as they go to the caller, and how they are renewed.
//!
//! Promises: `Age` is right; a client that has the answer already gets a 304; a HEAD gets no body.
//! An old answer says that it is old. A body is never copied.
//!
//! Never: decides whether an answer may be used.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{AGE, CONTENT_LENGTH, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};
use tollgate_core::fresh::is_not_modified;
use tollgate_core::time::Wall;

use super::cache::{Asked, Of, Question};
use super::route::Route;
use super::{Reply, Source};
use crate::body::ReplyBody;
use crate::cache::{OBJECT_MAX, Object};
use crate::event::Fact;

/// Why an answer is used although it may be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It is not old.
    Fresh,
    /// The provider says that it has not changed.
    Unchanged,
    /// The answer or the request allows it.
    Allowed,
    /// The caller asked for the cache only.
    Asked,
    /// A permit would have had to be waited for, or the provider rests.
    Waiting,
    /// The provider failed or refused.
    Failing,
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Why::Fresh => "fresh",
            Why::Unchanged => "unchanged",
            Why::Allowed => "allowed",
            Why::Asked => "asked",
            Why::Waiting => "waiting",
            Why::Failing => "failing",
        }
    }

    fn source(self) -> Source {
        match self {
            Why::Fresh | Why::Unchanged => Source::Cache,
            Why::Allowed | Why::Asked | Why::Waiting | Why::Failing => Source::Stale,
        }
    }
}

/// An answer that was kept, as it goes to the caller.
pub(super) fn from_cache(
    route: &Route,
    object: &Object,
    client: &HeaderMap,
    now: Wall,
    why: Why,
    degraded: bool,
) -> Reply {
    let age = object.kept.age(now);
    // Whoever asked for the cache only may have got one that is not old at all.
    let is_fresh = why == Why::Asked && now < object.kept.fresh_until;
    let source = if is_fresh {
        Source::Cache
    } else {
        why.source()
    };
    Fact::FromCache {
        id: &route.said.id,
        provider: &route.live.name,
        source: source.word(),
        age,
        why: why.word(),
    }
    .tell();
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = object.status;
    head.headers = object.headers.clone();
    head.headers
        .insert(AGE, HeaderValue::from(age.0 / 1_000_000));
    let mut body = object.body.clone();
    let is_same = object.status == StatusCode::OK
        && is_not_modified(&Of(client), &Of(&object.headers), object.stored, now);
    if is_same {
        head.status = StatusCode::NOT_MODIFIED;
        head.headers.remove(CONTENT_LENGTH);
        body = Bytes::new();
    } else if route.method == Method::HEAD {
        body = Bytes::new();
    }
    Reply {
        head,
        body: ReplyBody::whole(body),
        source,
        degraded,
    }
}

/// Fetches a new answer beside the old one, in a task of its own that waits behind everybody else.
pub(super) fn refresh(route: &Route, asked: &Asked, object: Arc<Object>) {
    let Some(turn) = asked.cache.refresh(asked.key) else {
        return;
    };
    let mut route = route.beside();
    super::cache::validate(&mut route.headers, &object);
    let question = Question(Some(Box::new(Asked {
        cache: asked.cache.clone(),
        key: asked.key,
        url: asked.url,
        at: asked.at,
        purges: asked.purges,
        changes_it: false,
        object: Some(object),
        fallback: false,
        beside: true,
        client: asked.client.clone(),
        authorization: asked.authorization,
        demand: asked.demand,
    })));
    // Boxed, because the way out leads here again.
    let way: Pin<Box<dyn Future<Output = super::Outcome> + Send>> =
        Box::pin(super::go(route, question));
    tokio::spawn(async move {
        if let Ok(reply) = way.await.answer {
            // What is read is kept on the way.
            reply.body.drain(OBJECT_MAX).await;
        }
        drop(turn);
    });
}
