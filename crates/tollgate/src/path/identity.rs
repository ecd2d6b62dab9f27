//! Which requests are identical, and which may share a response?
//!
//! Promises: two requests are identical only if everything that a server could respond to is the
//! same: origin, method, path, parameters, and every header except the ignored ones. A header that
//! the provider file lists under `vary` is never ignored. So a call with another credential or
//! cookie is a different request, and so is one of a client that adds its own.
//!
//! Never: reads a response; `flights/sharing.rs` does.

use http::Method;
use http::header::{ACCEPT, AUTHORIZATION, COOKIE, HeaderValue};
use smallvec::SmallVec;
use tollgate_config::provider::Per;
use tollgate_config::settings::Dedup;

use super::route::Route;
use crate::flights::{FlightKey, RequestIdentity, contains, user_agent};
use crate::headers::is_ignored_header;
use crate::providers::CompiledPolicy;
use crate::query;

/// The properties of a request that decide who may share its response.
pub(crate) fn identity(route: &Route, policy: &CompiledPolicy) -> RequestIdentity {
    let headers = &route.request.headers;
    let is_authorized = headers.contains_key(AUTHORIZATION);
    // It may add a credential that is not seen here.
    let is_isolated = route.request.client_name().is_some();
    let has_key =
        route.request.is_own_origin && !(policy.keys.is_empty() && policy.accounts.is_empty());
    RequestIdentity {
        user_agent: user_agent(headers),
        is_head: route.request.method == Method::HEAD,
        is_authorized,
        names_user: is_authorized || has_key || is_isolated || headers.contains_key(COOKIE),
    }
}

/// Whether calls like this one share responses, by the provider file.
pub(crate) fn mode(route: &Route, policy: &CompiledPolicy) -> Dedup {
    let provider = &policy.provider;
    let entity = route.subject.entity.as_deref();
    let of_entity = provider
        .entity_dedup
        .iter()
        .find(|(name, _)| Some(name.as_str()) == entity);
    of_entity.map_or(provider.dedup, |(_, dedup)| *dedup)
}

/// Can this call share a response at all?
pub(crate) fn can_share(route: &Route, mode: Dedup) -> bool {
    let is_off = mode == Dedup::Off || route.request.no_dedup || route.flight.is_alone;
    let is_safe = route.request.method == Method::GET || route.request.method == Method::HEAD;
    let is_stream = |accept: &HeaderValue| contains(accept.as_bytes(), b"text/event-stream");
    !is_off
        && is_safe
        && route.request.payload.is_empty()
        && !route.request.headers.get(ACCEPT).is_some_and(is_stream)
}

/// The key of a call.
pub(crate) fn key(route: &Route, policy: &CompiledPolicy) -> FlightKey {
    key_of(route, policy, &route.request.path)
}

/// The key of a call with another path.
pub(crate) fn key_of(route: &Route, policy: &CompiledPolicy, path: &str) -> FlightKey {
    let own = |per| policy.limits.iter().any(|limit| limit.per == per);
    // A caller with its own limits does not wait under those of another.
    let part = route.subject.at_most_permille;
    let caller = route.subject.caller.as_deref();
    let caller = caller.filter(|_| part.is_some() || own(Per::Caller));
    let ip = own(Per::Ip).then(|| format!("{:?}", route.subject.ip));
    let texts = [
        route.subject.provider.name.as_str(),
        route.request.origin.host.as_str(),
        route.request.method.as_str(),
        path,
        route.subject.entity.as_deref().unwrap_or_default(),
        caller.unwrap_or_default(),
        ip.as_deref().unwrap_or_default(),
    ];
    let parameters = query::parameters(route.request.query.as_deref().unwrap_or_default());
    let port = route.request.origin.port.to_le_bytes();
    let part = part.unwrap_or(u16::MAX).to_le_bytes();
    // A call that rejects stale responses does not join calls that accept them.
    let flags = [
        u8::from(route.request.origin.tls),
        port[0],
        port[1],
        part[0],
        part[1],
        u8::from(route.subject.fallback),
        route.request.cache as u8,
        u8::from(caller.is_some()),
    ];
    // Everything of one size first, the lengths of the texts among it, so that few pieces are copied.
    let [a, b, c, d, e, f, g] = texts.map(|text| text.len() as u64);
    let sizes = [a, b, c, d, e, f, g, parameters.len() as u64];
    let conditions = route.request.conditions.0;
    let mut fixed = [flags; 10];
    for (bytes, number) in fixed[1..]
        .iter_mut()
        .zip(sizes.into_iter().chain([conditions]))
    {
        *bytes = number.to_le_bytes();
    }
    // Concatenated first and hashed at once: incremental hashing takes twice as long.
    let mut text: Vec<u8> = Vec::with_capacity(512);
    text.extend_from_slice(fixed.as_flattened());
    for part in texts {
        text.extend_from_slice(part.as_bytes());
    }
    let mut add = |part: &[u8]| {
        text.extend_from_slice(&(part.len() as u64).to_le_bytes());
        text.extend_from_slice(part);
    };
    parameters.iter().for_each(|part| add(part.as_bytes()));
    let vary = &policy.cache.rule(route.subject.entity.as_deref()).vary;
    let mut headers: SmallVec<[(&str, &[u8]); 16]> = route
        .request
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .filter(|(name, _)| !is_ignored_header(name) || vary.iter().any(|varied| varied == name))
        .collect();
    headers.sort_by_key(|(name, _)| *name);
    for (name, value) in headers {
        add(name.as_bytes());
        add(value);
    }
    // No header has an empty name.
    if let Some(client) = route.request.client_name() {
        add(b"");
        add(client.as_bytes());
    }
    let mut key = [0; 16];
    let hash = blake3::hash(&text);
    key.copy_from_slice(hash.as_bytes().split_at(16).0);
    FlightKey(key)
}
