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
use tollgate_core::feedback::Verdict;
use tollgate_core::fresh::{
    self, Answered as Facts, Change, Kept, Mode, NotKept, Rule, Times, Varies, is_another,
    is_replaced_by_304,
};
use tollgate_core::time::{Now, Span, Wall};

use super::cache::{Asked, Of, Question};
use super::learn::Answered;
use super::route::Route;
use super::serve::{self, Why};
use super::{Reply, Source, retry, scrub, target};
use crate::Error;
use crate::cache::{Cache, Form, Key, Object, variant};
use crate::error::Reason;
use crate::event::Fact;
use crate::shop::{Live, Plan};

/// Keeps an answer if it may be used again, and says what the caller gets.
pub(crate) fn keep(
    route: &Route,
    question: Question,
    done: Result<Answered, Error>,
) -> Result<Reply, Error> {
    let Some(mut asked) = question.0 else {
        return done.map(reply);
    };
    let old = asked.object.take();
    match (done, old) {
        (Err(error), Some(old)) if asked.fallback && may_stand_in(&error) => {
            Ok(instead(route, &asked, old, &error))
        }
        (Err(error), _) => Err(error),
        (Ok(answered), Some(old))
            if answered.head.status == StatusCode::NOT_MODIFIED
                && asked.may_validate(&route.method) =>
        {
            Ok(renew(route, &asked, &old, answered))
        }
        (Ok(answered), Some(old)) if asked.fallback && answered.class.is_failure() => {
            tokio::spawn(retry::discard(answered));
            let now = route.live.ledger.wall();
            let client = &asked.client;
            Ok(serve::from_cache(
                route,
                &old,
                client,
                now,
                Why::Failing,
                false,
            ))
        }
        (Ok(answered), old) => Ok(pass(route, &asked, old, answered)),
    }
}

fn reply(answered: Answered) -> Reply {
    Reply {
        head: answered.head,
        body: answered.body,
        source: Source::Upstream,
        degraded: false,
    }
}

/// Does an old answer help with this? Not where the call itself is wrong.
fn may_stand_in(error: &Error) -> bool {
    matches!(
        error,
        Error::NoPermit { .. }
            | Error::Asleep { .. }
            | Error::NotInCache { .. }
            | Error::TooLate { .. }
            | Error::NoAnswer { .. }
            | Error::NoCredential { .. }
    )
}

/// The old answer, because the provider cannot be asked. If that was only a matter of waiting, a
/// new one is waited for beside it.
fn instead(route: &Route, asked: &Asked, old: Arc<Object>, error: &Error) -> Reply {
    let (why, degraded) = match error {
        Error::NotInCache { reason, .. } => (Why::Waiting, *reason == Reason::Degraded),
        Error::NoPermit { .. } | Error::Asleep { .. } => (Why::Waiting, false),
        _ => (Why::Failing, false),
    };
    let now = route.live.ledger.wall();
    let reply = serve::from_cache(route, &old, &asked.client, now, why, degraded);
    if matches!(error, Error::NoPermit { .. }) && !asked.beside {
        serve::refresh(route, asked, old);
    }
    reply
}

/// A 304 about another answer than the one we have: that one is forgotten, and the call is made once
/// more without a condition. `true` = it is.
pub(crate) fn asks_again(
    route: &mut Route,
    question: &mut Question,
    done: &Result<Answered, Error>,
) -> bool {
    let (Some(asked), Ok(answered)) = (question.0.as_deref_mut(), done) else {
        return false;
    };
    let is_about_ours =
        answered.head.status == StatusCode::NOT_MODIFIED && asked.may_validate(&route.method);
    let differs =
        |old: &mut Arc<Object>| is_another(&Of(&old.headers), &Of(&answered.head.headers));
    let Some(old) = asked.object.take_if(|old| is_about_ours && differs(old)) else {
        return false;
    };
    asked.cache.forget(&asked.key, &old, old.stored);
    (asked.fallback, route.fallback) = (false, false);
    for name in [IF_NONE_MATCH, IF_MODIFIED_SINCE] {
        route.headers.remove(name);
    }
    true
}

/// What is kept, with what a 304 says of it.
fn said_again(old: &Object, answer: &HeaderMap, now: Wall) -> Object {
    let mut object = old.clone();
    let of_connection = scrub::of_connection(answer);
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
        object.headers.insert(DATE, date(now));
    }
    object
}

/// The provider says that nothing has changed: what we have is good again.
fn renew(route: &Route, asked: &Asked, old: &Object, answered: Answered) -> Reply {
    let plan = route.live.plan();
    let now = route.live.ledger.now();
    let (sent, now) = (sent(asked, &answered, now), now.wall);
    let mut object = said_again(old, &answered.head.headers, now);
    tokio::spawn(retry::discard(answered));
    let rule = plan.keeping.rule(route.entity.as_deref());
    let chosen = match rule.lifetime.range() {
        Some(range) if plan.keeping.adaptive => {
            fresh::adapted(old.kept.lifetime, Change::Unchanged, range)
        }
        Some(_) | None => old.kept.lifetime,
    };
    let mut why = Why::Unchanged;
    match judge(
        route,
        &plan,
        asked,
        object.status,
        &object.headers,
        chosen,
        (sent, now),
    ) {
        Ok(kept) => {
            object.kept = kept;
            object.stored = sent;
            // A 304 may say for whom it is as well; what is for more than that is not used any more.
            if let Varies::On(names) = fresh::varies(&Of(&object.headers), &rule.vary)
                && names != old.names
            {
                object.variant = variant(asked.cache.salt(), &names, &Of(&asked.client));
                object.names = names;
                asked.cache.forget(&asked.key, old, old.stored);
            }
            scrub::scrub(route, &plan, &mut object.headers);
            let object = Arc::new(object.clone());
            if asked.cache.keep(asked.key, &object, now, asked.purges) {
                why = Why::Renewed;
            }
        }
        Err(why) => {
            let _told = not_kept(route, why);
            // Who wants nothing kept of its call says nothing about what others have.
            if why != NotKept::RequestNoStore {
                asked.cache.forget(&asked.key, old, old.stored);
            }
        }
    }
    serve::from_cache(route, &object, &asked.client, now, why, false)
}

/// A new answer, on its way to the caller and perhaps into the cache.
fn pass(route: &Route, asked: &Asked, old: Option<Arc<Object>>, answered: Answered) -> Reply {
    let status = answered.head.status;
    if asked.changes_it {
        if status.is_success() || status.is_redirection() {
            invalidate(route, asked, &answered.head.headers);
        }
        return reply(answered);
    }
    if route.method != Method::GET || status == StatusCode::NOT_MODIFIED {
        return reply(answered);
    }
    let now = route.live.ledger.now();
    let (sent, now) = (sent(asked, &answered, now), now.wall);
    if let Some(old) = &old
        && is_gone(status)
    {
        // What is gone must not come back when the provider is slow. What was asked for before is
        // invalid, and so not what was just heard.
        asked.cache.forget(&asked.key, old, sent - Span(1));
    }
    if !asked.beside {
        route.live.saved.missed();
    }
    let has_old = old.is_some();
    let recorder = record(route, asked, old, &answered, (sent, now));
    let mut reply = reply(answered);
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
        Err(why) => not_kept(route, why),
    };
    reply.head.headers.append(CACHE_STATUS, status);
    reply
}

/// May a kept answer be used without a question?
pub(super) fn is_for_others(kept: &Kept, now: Wall) -> bool {
    !kept.ask_always && now < kept.fresh_until
}

/// Prepares to keep an answer while it passes.
fn record(
    route: &Route,
    asked: &Asked,
    old: Option<Arc<Object>>,
    answered: &Answered,
    (sent, now): (Wall, Wall),
) -> Result<Recorder, NotKept> {
    let plan = route.live.plan();
    let rule = plan.keeping.rule(route.entity.as_deref());
    let (status, headers) = (answered.head.status, &answered.head.headers);
    if is_refusal(answered) {
        return Err(NotKept::Refused);
    }
    let dice = u64::from_le_bytes(asked.key.0[..8].try_into().unwrap_or_default()) ^ now.0;
    let chosen = chosen(rule, plan.keeping.adaptive, old.as_deref(), dice);
    let kept = judge(route, &plan, asked, status, headers, chosen, (sent, now))?;
    let most = plan.keeping.object_max;
    may_be_whole(answered, most)?;
    let names = match fresh::varies(&Of(headers), &rule.vary) {
        Varies::On(names) => names,
        Varies::OnAnything => return Err(NotKept::VariesOnAnything),
    };
    let mut headers = headers.clone();
    // Whoever hands it on adds the date of its arrival (RFC 9110, 6.6.1).
    headers.entry(DATE).or_insert_with(|| date(now));
    scrub::scrub(route, &plan, &mut headers);
    // Since its bytes left, other keys may have come into force.
    let under = answered.under.as_ref().unwrap_or(&plan);
    if !Arc::ptr_eq(under, &plan) {
        scrub::scrub(route, under, &mut headers);
    }
    let object = Object {
        url: asked.url,
        stored: sent,
        variant: variant(asked.cache.salt(), &names, &Of(&asked.client)),
        names,
        kept,
        status,
        headers,
        body: Bytes::new(),
        provider: route.live.name.clone(),
        entity: route.entity.clone(),
        form: Form::default(),
    };
    let adapts = plan.keeping.adaptive && rule.mode == Mode::Ttl && !is_gone(status);
    Ok(Recorder {
        live: route.live.clone(),
        id: route.said.id.clone(),
        cache: asked.cache.clone(),
        key: asked.key,
        purges: asked.purges,
        got: now,
        object,
        body: BytesMut::new(),
        most,
        adapts: adapts.then(|| (rule.clone(), old)),
        plan: under.clone(),
    })
}

/// Can its body be kept, and its end be told?
fn may_be_whole(answered: &Answered, most: usize) -> Result<(), NotKept> {
    match answered.body.size_hint().exact() {
        Some(size) if size > most as u64 => Err(NotKept::TooLarge),
        Some(_) => Ok(()),
        None if answered.head.headers.contains_key(TRANSFER_ENCODING) => Ok(()),
        // Whether a body that ends with its connection is whole, nobody can tell.
        None => Err(NotKept::NotWhole),
    }
}

/// Whatever its status says. A server in trouble that says so by its status may say how long it will be
/// (RFC 9111, 3).
fn is_refusal(answered: &Answered) -> bool {
    match answered.verdict {
        Verdict::Passed => false,
        Verdict::Overloaded => !answered.head.status.is_server_error(),
        Verdict::Limited | Verdict::Spent => true,
    }
}

/// The lifetime of a new answer, where the file leaves a choice.
fn chosen(rule: &Rule, adaptive: bool, old: Option<&Object>, dice: u64) -> Span {
    match (rule.lifetime.range(), old) {
        (None, _) => Span::ZERO,
        (Some((least, _)), None) if adaptive => least,
        // That of an absence may lie below the range.
        (Some((least, most)), Some(old)) if adaptive => {
            old.kept.lifetime.max(least).min(most.max(least))
        }
        (Some(range), _) => fresh::spread(range, dice),
    }
}

/// May it be kept, and how long is it good?
fn judge(
    route: &Route,
    plan: &Plan,
    asked: &Asked,
    status: StatusCode,
    headers: &HeaderMap,
    chosen: Span,
    (sent, now): (Wall, Wall),
) -> Result<Kept, NotKept> {
    let rule = plan.keeping.rule(route.entity.as_deref());
    let facts = Facts {
        status: status.as_u16(),
        headers: &Of(headers),
        authorization: asked.authorization,
        no_store: asked.demand.no_store,
    };
    let times = Times {
        asked: sent,
        got: now,
        chosen,
    };
    fresh::keep(rule, &facts, times)
}

/// When the call left: time in our own queue is no part of an answer's age (RFC 9111, 4.2.3).
fn sent(asked: &Asked, answered: &Answered, now: Now) -> Wall {
    answered
        .granted
        .map_or(asked.at, |granted| now.wall - now.at.since(granted))
}

/// The answer says that there is no such thing any more.
fn is_gone(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

fn date(now: Wall) -> HeaderValue {
    let date = UNIX_EPOCH + Duration::from_micros(now.0);
    HeaderValue::try_from(httpdate::fmt_http_date(date))
        .unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

/// What a change makes invalid: its own URL and those that it names, on the same origin.
fn invalidate(route: &Route, asked: &Asked, headers: &HeaderMap) {
    let now = route.live.ledger.wall();
    asked.cache.invalidate(Some(&asked.key), asked.url, now);
    for name in [LOCATION, CONTENT_LOCATION] {
        let named = headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(url) = named.and_then(|link| target::url(route, link, asked.cache.salt())) {
            asked.cache.invalidate(None, url, now);
        }
    }
}

/// Says that an answer is not kept and why, in the log and in `Cache-Status` (RFC 9211).
fn not_kept(route: &Route, why: NotKept) -> HeaderValue {
    tell_not_kept(&route.live, &route.said.id, why);
    let word = why.word();
    let status = HeaderValue::try_from(format!("tollgate; fwd=miss; detail={word}"));
    status.unwrap_or_else(|_| HeaderValue::from_static("tollgate; fwd=miss"))
}

fn tell_not_kept(live: &Live, id: &str, why: NotKept) {
    let provider = &live.name;
    let why = why.word();
    Fact::NotKept { id, provider, why }.tell();
    live.saved.not_kept();
}

/// Keeps an answer while it passes to the caller. Dropped before the end, it keeps nothing.
#[derive(Debug)]
pub(crate) struct Recorder {
    live: Arc<Live>,
    id: String,
    cache: Cache,
    key: Key,
    purges: u64,
    got: Wall,
    object: Object,
    body: BytesMut,
    most: usize,
    /// Lifetimes follow what changes: the rule, and the answer before this one.
    adapts: Option<(Rule, Option<Arc<Object>>)>,
    /// The file that the call was made under.
    plan: Arc<Plan>,
}

impl Recorder {
    /// May what is kept be used as it is by whoever asks next?
    pub(crate) fn is_for_others(&self) -> bool {
        is_for_others(&self.object.kept, self.got)
    }

    /// One more piece. `false`: it is too large to be kept.
    pub(crate) fn push(&mut self, piece: &Bytes) -> bool {
        if self.body.len() + piece.len() > self.most {
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
        if let Err(why) = scrub::search(&self.live, &self.plan, &self.object.headers, &self.body) {
            return tell_not_kept(&self.live, &self.id, why);
        }
        self.object.body = Bytes::copy_from_slice(&self.body);
        if let Some((rule, Some(old))) = &self.adapts
            && let Some(range) = rule.lifetime.range()
            && old.status == self.object.status
        {
            let change = if old.body == self.object.body {
                Change::Unchanged
            } else {
                Change::Changed
            };
            let lifetime = fresh::adapted(old.kept.lifetime, change, range);
            let kept = self.object.kept;
            self.object.kept = kept.lasting(self.got, lifetime, rule.stale);
        }
        let object = Arc::new(self.object);
        let now = self.live.ledger.wall();
        self.cache.keep(self.key, &object, now, self.purges);
    }
}
