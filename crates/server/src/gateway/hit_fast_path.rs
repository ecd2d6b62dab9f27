//! The fast path for cache hits: if a single plain GET was read and a fresh response is in memory,
//! it is served here, before hyper sees the request (ADR 0016).
//!
//! Promises: writes, byte for byte, what the normal path would write, and emits the same events and
//! counts. The functions of the normal path prepare the head once for each cached response; each
//! hit only fills in its age and id. A body is not copied unless it is so short that one plain
//! write costs less.
//!
//! Never: serves an ambiguous request, one that guards must see, one with headers about its connection, body or call, or one
//! that arrives together with another. Those go to the normal path untouched.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    AGE, CONNECTION, CONTENT_LENGTH, DATE, HOST, HeaderMap, HeaderName, HeaderValue,
};
use http::{StatusCode, Uri};
use tollgate::body::ReplyBody;
use tollgate::cache::{MemfdBody, PreparedHead};
use tollgate::path::{CallOptions, CallTrace, RememberedRequest, Reply, Target};

use super::address::{Address, Mount};
use super::client_connection::ClientConnection;
use super::handler::{ID, add_call_headers, build_response, check_listener};
use super::watched_stream::SINGLE_WRITE_MAX;
use super::{guarded, head, links};

/// The most headers of a plain request. Browsers send some twenty.
const HEADERS_MAX: usize = 32;

/// The longest head that is prepared. Each connection holds a buffer for it, and most heads of APIs
/// have some hundred bytes.
const PREPARED_HEAD_MAX: usize = 4 * 1_024;

/// The longest request that a connection remembers. Most API requests have some hundred bytes.
const REMEMBERED_MAX: usize = 1_024;

/// After this many misses in a row, only one request in this many tries the fast path: a failed try
/// costs about a thirtieth of a call, and the normal path finds cached responses too.
const MISSES_MAX: u32 = 8;

/// The body of a hit.
#[derive(Debug)]
pub(super) enum HitBody {
    /// Bytes, perhaps none.
    Bytes(Bytes),
    /// A file in memory (memfd).
    Memfd(Arc<MemfdBody>),
}

impl Default for HitBody {
    fn default() -> HitBody {
        HitBody::Bytes(Bytes::new())
    }
}

impl HitBody {
    pub(super) fn len(&self) -> usize {
        match self {
            HitBody::Bytes(bytes) => bytes.len(),
            HitBody::Memfd(memfd) => memfd.len(),
        }
    }
}

/// Serves cache hits of one connection.
#[derive(Debug)]
pub(super) struct HitFastPath {
    connection: Arc<ClientConnection>,
    /// Consecutive requests that took the normal path.
    misses: u32,
    /// The last request: many clients repeat it.
    last: Option<LastRequest>,
}

/// A request, and its resolved form.
struct LastRequest {
    request: Vec<u8>,
    remembered: RememberedRequest,
}

impl std::fmt::Debug for LastRequest {
    /// A request may contain a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Last")
    }
}

/// A request without headers that concern Tollgate.
struct PlainRequest {
    target: Target,
    headers: HeaderMap,
    options: CallOptions,
}

impl HitFastPath {
    pub(super) fn new(connection: Arc<ClientConnection>) -> HitFastPath {
        HitFastPath {
            connection,
            misses: 0,
            last: None,
        }
    }

    /// Is the fast path worth a try? A client that always requests new URLs will do so again.
    fn should_try(&mut self) -> bool {
        self.misses = self.misses.saturating_add(1);
        self.misses <= MISSES_MAX || self.misses.is_multiple_of(MISSES_MAX)
    }

    /// Serves a request if it is plain and a fresh response is in memory: writes the head to `out`
    /// and returns the body. `None`: nothing has happened.
    pub(super) fn respond(&mut self, request: &[u8], out: &mut Vec<u8>) -> Option<HitBody> {
        if !self.should_try() {
            return None;
        }
        let connection = &*self.connection;
        let state = &connection.state;
        if state.is_draining() {
            return None;
        }
        let is_same = |last: &LastRequest| {
            last.request == request && last.remembered.is_current(&state.registry)
        };
        if !self.last.as_ref().is_some_and(is_same) {
            self.last = remember(request, connection);
        }
        let remembered = &self.last.as_ref()?.remembered;
        let hit = remembered.hit(&state.registry)?;
        let head = hit.prepared_head(prepare_head)?;
        let id = state.next_id();
        remembered.emit(&hit, &id);
        self.misses = 0;
        let mut age = itoa::Buffer::new();
        for part in [
            &*head.until_age,
            age.format(hit.age()).as_bytes(),
            &head.until_id,
            id.as_bytes(),
            &head.rest,
        ] {
            out.extend_from_slice(part);
        }
        if out.len() + hit.body().len() <= SINGLE_WRITE_MAX {
            out.extend_from_slice(hit.body());
            return Some(HitBody::default());
        }
        let memfd = hit.memfd_body().map(HitBody::Memfd);
        Some(memfd.unwrap_or_else(|| HitBody::Bytes(hit.body().clone())))
    }
}

/// Parses and resolves a plain request.
fn remember(request: &[u8], connection: &ClientConnection) -> Option<LastRequest> {
    let PlainRequest {
        target,
        headers,
        options,
    } = parse_plain(request, connection)?;
    // Not for URLs: their routing also depends on `unknown_domain`. Not for long requests: they
    // rarely repeat.
    let is_remembered =
        matches!(target, Target::Provider { .. }) && request.len() <= REMEMBERED_MAX;
    Some(LastRequest {
        request: if is_remembered {
            request.to_vec()
        } else {
            Vec::new()
        },
        remembered: RememberedRequest::of(&connection.state.registry, target, headers, options)?,
    })
}

/// Parses exactly one complete request. `None` for everything that needs the checks of the normal
/// path.
fn parse_plain(request: &[u8], connection: &ClientConnection) -> Option<PlainRequest> {
    if !request.starts_with(b"GET /") || !request.ends_with(b"\r\n\r\n") {
        return None;
    }
    // Parsers disagree whether a bare line feed ends a line.
    let is_bare = |at: usize| request.get(at.wrapping_sub(1)) != Some(&b'\r');
    if memchr::memchr_iter(b'\n', request).any(is_bare) {
        return None;
    }
    let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut lines);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(length)) if length == request.len() => {}
        Ok(_) | Err(_) => return None,
    }
    if parsed.version != Some(1) {
        return None;
    }
    let mut headers = HeaderMap::with_capacity(parsed.headers.len());
    let mut hosts = 0;
    for line in parsed.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
        if name == HOST {
            hosts += 1;
            continue;
        }
        // Keep-alive is the default.
        if name == CONNECTION && line.value.eq_ignore_ascii_case(b"keep-alive") {
            continue;
        }
        if !head::is_passed_through(&name) {
            return None;
        }
        headers.append(name, HeaderValue::from_bytes(line.value).ok()?);
    }
    if hosts != 1 {
        return None;
    }
    let uri = Uri::try_from(parsed.path?).ok()?;
    let Ok(Address::Call { target, caller, .. }) = Address::of(&uri, &connection.kind) else {
        return None;
    };
    check_listener(connection, &target).ok()?;
    if guarded::is_guarded(connection, &target) {
        return None;
    }
    let options = CallOptions {
        uses_default_priority: true,
        caller,
        ip: Some(connection.peer),
        ..CallOptions::default()
    };
    Some(PlainRequest {
        target,
        headers,
        options,
    })
}

/// The head of a response as hyper would write it; `None` if it depends on the caller or the time.
fn prepare_head(reply: Reply) -> Option<PreparedHead> {
    let length = reply_length(&reply.body);
    if reply.head.status != StatusCode::OK || length == 0 || links::has_any(&reply.head.headers) {
        return None;
    }
    let trace = CallTrace::default();
    let mut response = build_response(reply, &trace, &Mount::Proxy, None);
    add_call_headers(response.headers_mut(), "", &trace);
    let headers = response.headers();
    let says_length = match headers.get(CONTENT_LENGTH) {
        Some(value) if value.as_bytes() == length.to_string().as_bytes() => true,
        Some(_) => return None,
        None => false,
    };
    let is_once = |name| headers.get_all(name).iter().count() == 1;
    if !is_once(&DATE) || !is_once(&AGE) || (says_length && !is_once(&CONTENT_LENGTH)) {
        return None;
    }
    let mut parts = [Vec::new(), Vec::new(), Vec::new()];
    let mut at = 0;
    let mut part = b"HTTP/1.1 200 OK\r\n".to_vec();
    for (name, value) in headers {
        part.extend_from_slice(name.as_str().as_bytes());
        part.extend_from_slice(b": ");
        if name == AGE || name == ID {
            *parts.get_mut(at)? = std::mem::take(&mut part);
            at += 1;
        } else {
            part.extend_from_slice(value.as_bytes());
        }
        part.extend_from_slice(b"\r\n");
    }
    if !says_length {
        part.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
    }
    part.extend_from_slice(b"\r\n");
    *parts.get_mut(at)? = part;
    let is_short = parts.iter().map(Vec::len).sum::<usize>() <= PREPARED_HEAD_MAX;
    let [until_age, until_id, rest] = parts.map(Vec::into_boxed_slice);
    (at == 2 && is_short).then_some(PreparedHead {
        until_age,
        until_id,
        rest,
    })
}

fn reply_length(body: &ReplyBody) -> u64 {
    http_body::Body::size_hint(body).exact().unwrap_or(0)
}

#[cfg(test)]
#[path = "hit_fast_path_tests.rs"]
mod tests;
