//! The short way of the plainest request: a GET that stands alone in what was read and whose answer is
//! in memory and fresh is answered here, before the HTTP library hears of it (ADR 0016).
//!
//! Promises: what goes out is, byte for byte, what the ordinary way would have written, and everything
//! that is told and counted is the same. The head of an answer is written by the ordinary functions,
//! once for each kept answer, and used again with its gaps filled. A body is not copied, unless it is
//! so short that one plain write costs less.
//!
//! Never: answers a request that could be read differently by anybody, that says anything about its
//! connection, its body or its call, or that comes with another one. Those are not even begun here.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    AGE, CONNECTION, CONTENT_LENGTH, DATE, HOST, HeaderMap, HeaderName, HeaderValue,
};
use http::{StatusCode, Uri};
use tollgate::body::ReplyBody;
use tollgate::cache::{Sheet, Written};
use tollgate::path::{Known, Reply, Said, Target, Trail};

use super::address::{Address, Mount};
use super::answer::{ID, dress, sign, within};
use super::line::SHORT;
use super::visit::Visit;
use super::{head, links};

/// Headers of a plain request, at most. Browsers send some twenty.
const HEADERS_MAX: usize = 32;

/// The longest head that is prepared. Its gaps are filled in a buffer that each connection keeps, and
/// most heads of APIs have some hundred bytes.
const WRITTEN_MAX: usize = 4 * 1_024;

/// The longest request that a connection remembers. Most of APIs' clients have some hundred bytes.
const REMEMBERED_MAX: usize = 1_024;

/// After so many requests in a row that were not answered here, only one in so many is looked at: a
/// look that finds nothing costs about a thirtieth of a call, and the ordinary way finds what is kept too.
const MISSES_MAX: u32 = 8;

/// What follows the head of an answer.
#[derive(Debug)]
pub(super) enum Rest {
    /// These bytes, which may be none.
    Bytes(Bytes),
    /// A file in memory.
    Sheet(Arc<Sheet>),
}

impl Default for Rest {
    fn default() -> Rest {
        Rest::Bytes(Bytes::new())
    }
}

impl Rest {
    pub(super) fn len(&self) -> usize {
        match self {
            Rest::Bytes(bytes) => bytes.len(),
            Rest::Sheet(sheet) => sheet.len(),
        }
    }
}

/// Answers what can be answered at once, for one connection.
#[derive(Debug)]
pub(super) struct Lane {
    visit: Arc<Visit>,
    /// Requests in a row that went the ordinary way.
    misses: u32,
    /// What came last: many ask for the same again.
    last: Option<Last>,
}

/// A request, and what it means.
struct Last {
    request: Vec<u8>,
    known: Known,
}

impl std::fmt::Debug for Last {
    /// A request may hold a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Last")
    }
}

/// A request that says nothing but what it wants.
struct Plain {
    target: Target,
    headers: HeaderMap,
    said: Said,
}

impl Lane {
    pub(super) fn new(visit: Arc<Visit>) -> Lane {
        Lane {
            visit,
            misses: 0,
            last: None,
        }
    }

    /// Is a look worth its time? Who asks for new things every time will do so the next time.
    fn looks(&mut self) -> bool {
        self.misses = self.misses.saturating_add(1);
        self.misses <= MISSES_MAX || self.misses.is_multiple_of(MISSES_MAX)
    }

    /// Answers a request, if it is plain and its answer at hand: the head goes into `out`, and what is
    /// given back follows it. `None`: nothing has happened.
    pub(super) fn answer(&mut self, request: &[u8], out: &mut Vec<u8>) -> Option<Rest> {
        if !self.looks() {
            return None;
        }
        let visit = &*self.visit;
        let state = &visit.state;
        if state.is_draining() {
            return None;
        }
        let is_same = |last: &Last| last.request == request && last.known.holds(&state.shop);
        if !self.last.as_ref().is_some_and(is_same) {
            self.last = read(request, visit);
        }
        let hit = self.last.as_ref()?.known.at_hand(&state.shop)?;
        let written = hit.written(written)?;
        let id = state.next_id();
        hit.told(&id);
        self.misses = 0;
        let mut age = itoa::Buffer::new();
        for part in [
            &*written.until_age,
            age.format(hit.age()).as_bytes(),
            &written.until_id,
            id.as_bytes(),
            &written.rest,
        ] {
            out.extend_from_slice(part);
        }
        if out.len() + hit.body().len() <= SHORT {
            out.extend_from_slice(hit.body());
            return Some(Rest::default());
        }
        let sheet = hit.sheet().map(Rest::Sheet);
        Some(sheet.unwrap_or_else(|| Rest::Bytes(hit.body().clone())))
    }
}

/// Finds out what a request means, if it is plain.
fn read(request: &[u8], visit: &Visit) -> Option<Last> {
    let Plain {
        target,
        headers,
        said,
    } = plain(request, visit)?;
    // What becomes of a URL also depends on whether unknown domains are served, and one that is so
    // long does not come again.
    let lasts = matches!(target, Target::Provider { .. }) && request.len() <= REMEMBERED_MAX;
    Some(Last {
        request: if lasts { request.to_vec() } else { Vec::new() },
        known: Known::of(&visit.state.shop, target, headers, said)?,
    })
}

/// Reads a request that is all there and nothing more. Everything that the ordinary way would look at
/// twice makes it not plain.
fn plain(request: &[u8], visit: &Visit) -> Option<Plain> {
    if !request.starts_with(b"GET /") || !request.ends_with(b"\r\n\r\n") {
        return None;
    }
    // Some end a line at a bare line feed, others do not.
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
        // What it asks for is what happens anyway.
        if name == CONNECTION && line.value.eq_ignore_ascii_case(b"keep-alive") {
            continue;
        }
        if !head::is_plain(&name) {
            return None;
        }
        headers.append(name, HeaderValue::from_bytes(line.value).ok()?);
    }
    if hosts != 1 {
        return None;
    }
    let uri = Uri::try_from(parsed.path?).ok()?;
    let Ok(Address::Call { target, caller, .. }) = Address::of(&uri, &visit.door) else {
        return None;
    };
    within(visit, &target).ok()?;
    let said = Said {
        takes_default: true,
        caller,
        ip: Some(visit.peer),
        ..Said::default()
    };
    Some(Plain {
        target,
        headers,
        said,
    })
}

/// The head of an answer as the HTTP library would write it; `None` if that depends on who asks, or on
/// when.
fn written(reply: Reply) -> Option<Written> {
    let length = reply_length(&reply.body);
    if reply.head.status != StatusCode::OK || length == 0 || links::has_any(&reply.head.headers) {
        return None;
    }
    let trail = Trail::default();
    let mut response = dress(reply, &trail, &Mount::Proxy, None);
    sign(response.headers_mut(), "", &trail);
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
    let is_short = parts.iter().map(Vec::len).sum::<usize>() <= WRITTEN_MAX;
    let [until_age, until_id, rest] = parts.map(Vec::into_boxed_slice);
    (at == 2 && is_short).then_some(Written {
        until_age,
        until_id,
        rest,
    })
}

fn reply_length(body: &ReplyBody) -> u64 {
    http_body::Body::size_hint(body).exact().unwrap_or(0)
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
