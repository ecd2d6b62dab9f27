//! Which requests are identical, and which responses may be shared with whom?
//!
//! Promises: two requests are identical only if everything that a server could respond to is the
//! same: origin, method, path, parameters, and every header except the ignored ones
//! (`ignored_headers.rs`). A header that the provider file lists under `vary` is never ignored. So
//! a call with another credential or cookie is a different request. A response that varies by an
//! ignored header is shared only with calls that sent the same value.
//!
//! Never: reads the body of a response.

use std::hash::Hasher;

use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, EXPIRES, HeaderMap, HeaderValue, SET_COOKIE,
    USER_AGENT, VARY,
};
use http::response::Parts;
use tollgate_config::settings::Dedup;
use tollgate_core::fresh::CacheControl;
use tollgate_core::time::Span;

use crate::body::OBJECT_MAX;
use crate::headers::{CONDITIONS, HeaderView, is_ignored_header};
use crate::reply::Reply;

/// Identifies a request. 128 bits of a cryptographic hash: nobody can construct a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlightKey(pub(crate) [u8; 16]);

/// A request header by which a response may vary although it is not in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserAgent(Option<HeaderValue>);

/// The properties of a request that decide who may share its response.
#[derive(Clone, Debug)]
pub(crate) struct RequestIdentity {
    pub(crate) user_agent: UserAgent,
    pub(crate) is_head: bool,
    /// The client has sent `Authorization`.
    pub(crate) is_authorized: bool,
    /// The request names a user: by a credential or cookie of the client, or by our own key.
    pub(crate) names_user: bool,
}

/// A fingerprint of the client's conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions(pub(crate) u64);

impl Conditions {
    /// Usually there are none, and nothing is computed.
    pub(crate) fn of(headers: &HeaderMap) -> Conditions {
        let set = || {
            CONDITIONS
                .iter()
                .filter_map(|name| Some((name, headers.get(name)?)))
        };
        if set().next().is_none() {
            return Conditions::default();
        }
        let mut hasher = blake3::Hasher::new();
        for (name, value) in set() {
            hasher.update(name.as_str().as_bytes());
            hasher.update(&(value.len() as u64).to_le_bytes());
            hasher.update(value.as_bytes());
        }
        Conditions(first_eight(&hasher.finalize()))
    }
}

/// The hasher for a map of keys, which are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // The last eight bytes: the first ones choose the shard.
        if let Some(last) = bytes.last_chunk() {
            self.0 = u64::from_le_bytes(*last);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}

impl FlightKey {
    /// The index of the shard, out of so many.
    pub(crate) fn shard(self, parts: usize) -> usize {
        let [first, second, ..] = self.0;
        usize::from(u16::from_le_bytes([first, second])) % parts
    }
}

impl RequestIdentity {
    /// Does the response vary by a header that is not in the key, and does the other call differ in
    /// it?
    pub(crate) fn varies_for(&self, head: &Parts, other: &UserAgent) -> bool {
        self.user_agent != *other
            && varies(&head.headers, |name| {
                name.eq_ignore_ascii_case("user-agent")
            })
    }
}

/// The header by which a response may vary although it is not in the key.
pub(crate) fn user_agent(headers: &HeaderMap) -> UserAgent {
    UserAgent(headers.get(USER_AGENT).cloned())
}

fn first_eight(hash: &blake3::Hash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// May this response be shared with identical calls? If the next caller may use it from the cache,
/// a caller of now may share it.
pub(crate) fn may_share_reply(identity: &RequestIdentity, mode: Dedup, reply: &Reply) -> bool {
    let is_stored = mode == Dedup::Cacheable && reply.body.is_stored();
    let mode = if is_stored { Dedup::On } else { mode };
    may_share(identity, mode, &reply.head)
}

/// Does the reason for not sharing a response apply to the next one too? A temporary failure or
/// redirect does not count.
pub(crate) fn is_never_shareable(identity: &RequestIdentity, reply: &Reply) -> bool {
    let headers = &reply.head.headers;
    let control = CacheControl::read(CACHE_CONTROL.as_str(), &HeaderView(headers));
    let is_forbidden = control.private || control.no_store || control.no_cache;
    is_forbidden
        || !control.omit.is_empty()
        || is_for_one_caller(identity, headers)
        || is_cacheable_by_default(reply.head.status)
}

/// A stream, too large, private, or varying by a header that is not compared.
fn is_for_one_caller(identity: &RequestIdentity, headers: &HeaderMap) -> bool {
    let is_stream = headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| contains(kind.as_bytes(), b"text/event-stream"));
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let is_large = !identity.is_head && length.is_some_and(|length| length > OBJECT_MAX);
    let is_personal = headers.contains_key(SET_COOKIE) || headers.contains_key("set-cookie2");
    is_stream || is_large || is_personal || varies_by_unknown(headers)
}

/// May the parts of a larger response be given to the calls that requested them?
pub(crate) fn may_share_parts(identity: &RequestIdentity, head: &Parts) -> bool {
    may_share(identity, Dedup::On, head)
}

fn may_share(identity: &RequestIdentity, mode: Dedup, head: &Parts) -> bool {
    let headers = &head.headers;
    if is_for_one_caller(identity, headers) {
        return false;
    }
    let control = CacheControl::read(CACHE_CONTROL.as_str(), &HeaderView(headers));
    // Restrictions on single headers apply to the whole response: none is removed here.
    let is_private = control.private || !control.omit.is_empty();
    match mode {
        Dedup::Off => false,
        // Calls with the same credential may share a private response; calls without any may come
        // from different users.
        Dedup::On => !is_private || identity.names_user,
        Dedup::Cacheable => {
            let is_public = control.public || control.s_maxage.is_some() || control.must_revalidate;
            is_cacheable_by_default(head.status)
                && !is_private
                && !control.no_store
                && !control.no_cache
                && !is_stale(headers, &control)
                && (!identity.is_authorized || is_public)
        }
    }
}

/// By `*`, or by a header that is neither in the key nor compared.
fn varies_by_unknown(headers: &HeaderMap) -> bool {
    varies(headers, |name| {
        let name = name.to_ascii_lowercase();
        name == "*" || (is_ignored_header(&name) && name != "user-agent")
    })
}

fn varies(headers: &HeaderMap, by: impl Fn(&str) -> bool) -> bool {
    let values = headers.get_all(VARY).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|name| by(name.trim()))
}

/// Statuses that are cacheable by default (RFC 9110, 15.1), without 206; and 304, because all that
/// share it sent the same condition.
fn is_cacheable_by_default(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 300 | 301 | 304 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// The response itself says that it is stale.
fn is_stale(headers: &HeaderMap, control: &CacheControl) -> bool {
    if let Some(age) = control.s_maxage.or(control.max_age) {
        return age == Span::ZERO;
    }
    let expires = headers.get(EXPIRES).and_then(|date| date.to_str().ok());
    let Some(expires) = expires else { return false };
    let date = headers.get(http::header::DATE);
    let date = date.and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    match (httpdate::parse_http_date(expires), date) {
        (Ok(expires), Some(date)) => expires <= date,
        (Ok(_), None) => false,
        (Err(_), _) => true,
    }
}

pub(crate) fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len())
        .any(|window| window.eq_ignore_ascii_case(part))
}

#[cfg(test)]
#[path = "sharing_tests.rs"]
pub(crate) mod tests;
