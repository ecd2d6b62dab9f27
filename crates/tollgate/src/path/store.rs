//! The keep stage: may this answer be used again, by whom, until when?
//!
//! Promises: nothing is kept half: an answer is kept when its last byte is here. A 304 renews what
//! we have. A provider that fails or cannot be asked is covered by an old answer where there is
//! one. A successful change makes what was kept of its URL invalid. What is not kept says why.
//!
//! Never: holds an answer back. It goes to the caller as it comes.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use http::header::{
    CACHE_STATUS, CONTENT_LENGTH, CONTENT_LOCATION, DATE, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LOCATION, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, StatusCode};
use http_body::Body;
use tollgate_core::feedback::LimitVerdict;
use tollgate_core::fresh::{
    self, ContentChange, Freshness, FreshnessMode, FreshnessRule, NotStored, ResponseTimes,
    StoreCandidate as Facts, Varies, is_other_representation, is_replaced_by_304,
};
use tollgate_core::time::{Now, Span, Wall};

use super::cache::{CacheRequest, HeaderView, PendingStore};
use super::learn::UpstreamResponse;
use super::route::Route;
use super::serve::{self, ServeReason};
use super::{Reply, Source, link_target, retry, scrub};
use crate::Error;
use crate::cache::{Cache, CacheKey, CachedResponse, WireForm, variant};
use crate::error::Reason;
use crate::event::LogEvent;
use crate::providers::{ActiveProvider, CompiledPolicy};

/// Keeps an answer if it may be used again, and says what the caller gets.
pub(crate) fn store(
    route: &Route,
    question: PendingStore,
    done: Result<UpstreamResponse, Error>,
) -> Result<Reply, Error> {
    let Some(mut asked) = question.0 else {
        return done.map(to_reply);
    };
    let old = asked.object.take();
    match (done, old) {
        (Err(error), Some(old)) if asked.fallback && allows_fallback(&error) => {
            Ok(serve_stale(route, &asked, old, &error))
        }
        (Err(error), _) => Err(error),
        (Ok(answered), Some(old))
            if answered.head.status == StatusCode::NOT_MODIFIED
                && asked.may_validate(&route.method) =>
        {
            Ok(revalidate(route, &asked, &old, answered))
        }
        (Ok(answered), Some(old)) if asked.fallback && answered.class.is_failure() => {
            tokio::spawn(retry::discard(answered));
            let now = route.provider.ledger.wall();
            let client = &asked.client_headers;
            Ok(serve::from_cache(
                route,
                &old,
                client,
                now,
                ServeReason::Failing,
                false,
            ))
        }
        (Ok(answered), old) => Ok(pass_on(route, &asked, old, answered)),
    }
}

fn to_reply(answered: UpstreamResponse) -> Reply {
    Reply {
        head: answered.head,
        body: answered.body,
        source: Source::Upstream,
        degraded: false,
    }
}

/// Does an old answer help with this? Not where the call itself is wrong.
fn allows_fallback(error: &Error) -> bool {
    matches!(
        error,
        Error::NoPermit { .. }
            | Error::Asleep { .. }
            | Error::NotInCache { .. }
            | Error::TooLate { .. }
            | Error::NoResponse { .. }
            | Error::NoCredential { .. }
    )
}

/// The old answer, because the provider cannot be asked. If that was only a matter of waiting, a
/// new one is waited for beside it.
fn serve_stale(
    route: &Route,
    asked: &CacheRequest,
    old: Arc<CachedResponse>,
    error: &Error,
) -> Reply {
    let (why, degraded) = match error {
        Error::NotInCache { reason, .. } => (ServeReason::Waiting, *reason == Reason::Degraded),
        Error::NoPermit { .. } | Error::Asleep { .. } => (ServeReason::Waiting, false),
        _ => (ServeReason::Failing, false),
    };
    let now = route.provider.ledger.wall();
    let reply = serve::from_cache(route, &old, &asked.client_headers, now, why, degraded);
    if matches!(error, Error::NoPermit { .. }) && !asked.is_background {
        serve::refresh(route, asked, old);
    }
    reply
}

/// A 304 about another answer than the one we have: that one is forgotten, and the call is made once
/// more without a condition. `true` = it is.
pub(crate) fn retries_unconditionally(
    route: &mut Route,
    question: &mut PendingStore,
    done: &Result<UpstreamResponse, Error>,
) -> bool {
    let (Some(asked), Ok(answered)) = (question.0.as_deref_mut(), done) else {
        return false;
    };
    let is_about_ours =
        answered.head.status == StatusCode::NOT_MODIFIED && asked.may_validate(&route.method);
    let differs = |old: &mut Arc<CachedResponse>| {
        is_other_representation(
            &HeaderView(&old.headers),
            &HeaderView(&answered.head.headers),
        )
    };
    let Some(old) = asked.object.take_if(|old| is_about_ours && differs(old)) else {
        return false;
    };
    asked.cache.remove(&asked.key, &old, old.stored);
    (asked.fallback, route.fallback) = (false, false);
    for name in [IF_NONE_MATCH, IF_MODIFIED_SINCE] {
        route.headers.remove(name);
    }
    true
}

/// What is kept, with what a 304 says of it.
fn updated_by_304(old: &CachedResponse, answer: &HeaderMap, now: Wall) -> CachedResponse {
    let mut object = old.clone();
    let of_connection = scrub::connection_headers(answer);
    for name in answer.keys() {
        let is_named = of_connection.iter().any(|one| one == name.as_str());
        if is_replaced_by_304(name.as_str()) && !is_named {
            object.headers.remove(name);
            for value in answer.get_all(name) {
                object.headers.append(name.clone(), value.clone());
            }
        }
    }
    if !answer.contains_key(DATE) {
        // It is as new as if it had said so (RFC 9110, 6.6.1).
        object.headers.insert(DATE, date_header(now));
    }
    object
}

/// The provider says that nothing has changed: what we have is good again.
fn revalidate(
    route: &Route,
    asked: &CacheRequest,
    old: &CachedResponse,
    answered: UpstreamResponse,
) -> Reply {
    let plan = route.provider.policy();
    let now = route.provider.ledger.now();
    let (sent, now) = (sent_at(asked, &answered, now), now.wall);
    let mut object = updated_by_304(old, &answered.head.headers, now);
    tokio::spawn(retry::discard(answered));
    let rule = plan.cache.rule(route.entity.as_deref());
    let chosen = match rule.lifetime.range() {
        Some(range) if plan.cache.adaptive => {
            fresh::adapted(old.freshness.lifetime, ContentChange::Unchanged, range)
        }
        Some(_) | None => old.freshness.lifetime,
    };
    let mut why = ServeReason::Unchanged;
    match cacheability(
        route,
        &plan,
        asked,
        object.status,
        &object.headers,
        chosen,
        (sent, now),
    ) {
        Ok(kept) => {
            object.freshness = kept;
            object.stored = sent;
            // A 304 may say for whom it is as well; what is for more than that is not used any more.
            if let Varies::On(names) = fresh::varies(&HeaderView(&object.headers), &rule.vary)
                && names != old.vary_names
            {
                object.variant = variant(
                    asked.cache.salt(),
                    &names,
                    &HeaderView(&asked.client_headers),
                );
                object.vary_names = names;
                asked.cache.remove(&asked.key, old, old.stored);
            }
            scrub::scrub(route, &plan, &mut object.headers);
            let object = Arc::new(object.clone());
            if asked.cache.store(asked.key, &object, now, asked.purges) {
                why = ServeReason::Revalidated;
            }
        }
        Err(why) => {
            let _told = not_stored(route, why);
            // Who wants nothing kept of its call says nothing about what others have.
            if why != NotStored::RequestNoStore {
                asked.cache.remove(&asked.key, old, old.stored);
            }
        }
    }
    serve::from_cache(route, &object, &asked.client_headers, now, why, false)
}

/// A new answer, on its way to the caller and perhaps into the cache.
fn pass_on(
    route: &Route,
    asked: &CacheRequest,
    old: Option<Arc<CachedResponse>>,
    answered: UpstreamResponse,
) -> Reply {
    let status = answered.head.status;
    if asked.is_write {
        if status.is_success() || status.is_redirection() {
            invalidate(route, asked, &answered.head.headers);
        }
        return to_reply(answered);
    }
    if route.method != Method::GET || status == StatusCode::NOT_MODIFIED {
        return to_reply(answered);
    }
    let now = route.provider.ledger.now();
    let (sent, now) = (sent_at(asked, &answered, now), now.wall);
    if let Some(old) = &old
        && is_gone(status)
    {
        // What is gone must not come back when the provider is slow. What was asked for before is
        // invalid, and so not what was just heard.
        asked.cache.remove(&asked.key, old, sent - Span(1));
    }
    if !asked.is_background {
        route.provider.savings.on_miss();
    }
    let has_old = old.is_some();
    let recorder = record(route, asked, old, &answered, (sent, now));
    let mut reply = to_reply(answered);
    let status = match recorder {
        Ok(recorder) => {
            reply.body = reply.body.recorded(recorder);
            // `stored` would be a promise: it is kept when its last byte has passed, or not at all.
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

/// May a kept answer be used without a question?
pub(super) fn is_reusable(kept: &Freshness, now: Wall) -> bool {
    !kept.always_revalidate && now < kept.fresh_until
}

/// Prepares to keep an answer while it passes.
fn record(
    route: &Route,
    asked: &CacheRequest,
    old: Option<Arc<CachedResponse>>,
    answered: &UpstreamResponse,
    (sent, now): (Wall, Wall),
) -> Result<Recorder, NotStored> {
    let plan = route.provider.policy();
    let rule = plan.cache.rule(route.entity.as_deref());
    let (status, headers) = (answered.head.status, &answered.head.headers);
    if is_limited(answered) {
        return Err(NotStored::Limited);
    }
    let dice = u64::from_le_bytes(asked.key.0[..8].try_into().unwrap_or_default()) ^ now.0;
    let chosen = chosen_lifetime(rule, plan.cache.adaptive, old.as_deref(), dice);
    let kept = cacheability(route, &plan, asked, status, headers, chosen, (sent, now))?;
    let most = plan.cache.object_max;
    check_size(answered, most)?;
    let names = match fresh::varies(&HeaderView(headers), &rule.vary) {
        Varies::On(names) => names,
        Varies::OnAnything => return Err(NotStored::VariesOnAnything),
    };
    let mut headers = headers.clone();
    // Whoever hands it on adds the date of its arrival (RFC 9110, 6.6.1).
    headers.entry(DATE).or_insert_with(|| date_header(now));
    scrub::scrub(route, &plan, &mut headers);
    // Since its bytes left, other keys may have come into force.
    let under = answered.sent_under.as_ref().unwrap_or(&plan);
    if !Arc::ptr_eq(under, &plan) {
        scrub::scrub(route, under, &mut headers);
    }
    let object = CachedResponse {
        url: asked.url,
        stored: sent,
        variant: variant(
            asked.cache.salt(),
            &names,
            &HeaderView(&asked.client_headers),
        ),
        vary_names: names,
        freshness: kept,
        status,
        headers,
        body: Bytes::new(),
        provider: route.provider.name.clone(),
        entity: route.entity.clone(),
        wire_form: WireForm::default(),
    };
    let adapts = plan.cache.adaptive && rule.mode == FreshnessMode::Ttl && !is_gone(status);
    Ok(Recorder {
        provider: route.provider.clone(),
        id: route.options.id.clone(),
        cache: asked.cache.clone(),
        key: asked.key,
        purges: asked.purges,
        received: now,
        object,
        body: BytesMut::new(),
        size_max: most,
        adapts: adapts.then(|| (rule.clone(), old)),
        policy: under.clone(),
    })
}

/// Can its body be kept, and its end be told?
fn check_size(answered: &UpstreamResponse, most: usize) -> Result<(), NotStored> {
    match answered.body.size_hint().exact() {
        Some(size) if size > most as u64 => Err(NotStored::TooLarge),
        Some(_) => Ok(()),
        None if answered.head.headers.contains_key(TRANSFER_ENCODING) => Ok(()),
        // Whether a body that ends with its connection is whole, nobody can tell.
        None => Err(NotStored::Incomplete),
    }
}

/// Whatever its status says. A server in trouble that says so by its status may say how long it will be
/// (RFC 9111, 3).
fn is_limited(answered: &UpstreamResponse) -> bool {
    match answered.verdict {
        LimitVerdict::Passed => false,
        LimitVerdict::Overloaded => !answered.head.status.is_server_error(),
        LimitVerdict::Limited | LimitVerdict::Spent => true,
    }
}

/// The lifetime of a new answer, where the file leaves a choice.
fn chosen_lifetime(
    rule: &FreshnessRule,
    adaptive: bool,
    old: Option<&CachedResponse>,
    dice: u64,
) -> Span {
    match (rule.lifetime.range(), old) {
        (None, _) => Span::ZERO,
        (Some((least, _)), None) if adaptive => least,
        // That of an absence may lie below the range.
        (Some((least, most)), Some(old)) if adaptive => {
            old.freshness.lifetime.max(least).min(most.max(least))
        }
        (Some(range), _) => fresh::spread(range, dice),
    }
}

/// May it be kept, and how long is it good?
fn cacheability(
    route: &Route,
    plan: &CompiledPolicy,
    asked: &CacheRequest,
    status: StatusCode,
    headers: &HeaderMap,
    chosen: Span,
    (sent, now): (Wall, Wall),
) -> Result<Freshness, NotStored> {
    let rule = plan.cache.rule(route.entity.as_deref());
    let facts = Facts {
        status: status.as_u16(),
        headers: &HeaderView(headers),
        authorization: asked.authorization,
        no_store: asked.demand.no_store,
    };
    let times = ResponseTimes {
        requested: sent,
        received: now,
        chosen_lifetime: chosen,
    };
    fresh::check_storable(rule, &facts, times)
}

/// When the call left: time in our own queue is no part of an answer's age (RFC 9111, 4.2.3).
fn sent_at(asked: &CacheRequest, answered: &UpstreamResponse, now: Now) -> Wall {
    answered
        .granted
        .map_or(asked.at, |granted| now.wall - now.at.since(granted))
}

/// The answer says that there is no such thing any more.
fn is_gone(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

fn date_header(now: Wall) -> HeaderValue {
    let date = UNIX_EPOCH + Duration::from_micros(now.0);
    HeaderValue::try_from(httpdate::fmt_http_date(date))
        .unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

/// What a change makes invalid: its own URL and those that it names, on the same origin.
fn invalidate(route: &Route, asked: &CacheRequest, headers: &HeaderMap) {
    let now = route.provider.ledger.wall();
    asked.cache.invalidate(Some(&asked.key), asked.url, now);
    for name in [LOCATION, CONTENT_LOCATION] {
        let named = headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(url) = named.and_then(|link| link_target::url(route, link, asked.cache.salt()))
        {
            asked.cache.invalidate(None, url, now);
        }
    }
}

/// Says that an answer is not kept and why, in the log and in `Cache-Status` (RFC 9211).
fn not_stored(route: &Route, why: NotStored) -> HeaderValue {
    emit_not_stored(&route.provider, &route.options.id, why);
    let word = why.as_str();
    let status = HeaderValue::try_from(format!("tollgate; fwd=miss; detail={word}"));
    status.unwrap_or_else(|_| HeaderValue::from_static("tollgate; fwd=miss"))
}

fn emit_not_stored(live: &ActiveProvider, id: &str, why: NotStored) {
    let provider = &live.name;
    let why = why.as_str();
    LogEvent::NotStored { id, provider, why }.emit();
    live.savings.on_not_stored();
}

/// Keeps an answer while it passes to the caller. Dropped before the end, it keeps nothing.
#[derive(Debug)]
pub(crate) struct Recorder {
    provider: Arc<ActiveProvider>,
    id: String,
    cache: Cache,
    key: CacheKey,
    purges: u64,
    received: Wall,
    object: CachedResponse,
    body: BytesMut,
    size_max: usize,
    /// Lifetimes follow what changes: the rule, and the answer before this one.
    adapts: Option<(FreshnessRule, Option<Arc<CachedResponse>>)>,
    /// The file that the call was made under.
    policy: Arc<CompiledPolicy>,
}

impl Recorder {
    /// May what is kept be used as it is by whoever asks next?
    pub(crate) fn is_reusable(&self) -> bool {
        is_reusable(&self.object.freshness, self.received)
    }

    /// One more piece. `false`: it is too large to be kept.
    pub(crate) fn push(&mut self, piece: &Bytes) -> bool {
        if self.body.len() + piece.len() > self.size_max {
            return false;
        }
        self.body.extend_from_slice(piece);
        true
    }

    /// That was all of it.
    pub(crate) fn finish(mut self) {
        let length = self.object.headers.get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length != self.body.len()) {
            return;
        }
        if let Err(why) = scrub::find_key(
            &self.provider,
            &self.policy,
            &self.object.headers,
            &self.body,
        ) {
            return emit_not_stored(&self.provider, &self.id, why);
        }
        self.object.body = Bytes::copy_from_slice(&self.body);
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
            let kept = self.object.freshness;
            self.object.freshness = kept.with_lifetime(self.received, lifetime, rule.stale);
        }
        let object = Arc::new(self.object);
        let now = self.provider.ledger.wall();
        self.cache.store(self.key, &object, now, self.purges);
    }
}
