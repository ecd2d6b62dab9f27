//! Removes what must not be stored: headers of one connection, one client or one moment, and our
//! keys wherever a provider repeats them.
//!
//! Promises: no stored response contains one of our keys. Links lose it, any other header with it
//! is removed, and a response with it in its body is not stored. A compressed body is decoded for
//! that, up to a bound; one that cannot be decoded completely is not stored.
//!
//! Never: changes what the caller gets.

use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use tollgate_core::fresh::{CacheControl, NotStored, is_connection_only};

use super::route::Route;
use crate::decode;
use crate::headers::HeaderView;
use crate::headers::connection_headers;
use crate::providers::{ActiveProvider, CompiledPolicy, map_links};

/// The most decoded bytes of a compressed body, in which keys are searched. More would take some
/// ten milliseconds of a thread that others wait for, so such a response is not stored.
const DECODED_MAX: usize = 4 * 1024 * 1024;

/// Removes from a head what must not be stored.
pub(super) fn scrub(route: &Route, policy: &CompiledPolicy, headers: &mut HeaderMap) {
    let mut named = connection_headers(headers);
    named.extend(CacheControl::read("cache-control", &HeaderView(headers)).omit);
    let links = route.subject.provider.links("");
    if !links.keys.is_empty() {
        map_links(headers, |link| links.without_key(link));
    }
    let gone: Vec<_> = headers
        .iter()
        .filter(|(name, value)| {
            let name = name.as_str();
            is_not_storable(name)
                || policy.dialect.is_limit_header(name)
                || named.iter().any(|one| one == name)
                || has_key(&route.subject.provider, policy, value.as_bytes())
        })
        .map(|(name, _)| name.clone())
        .collect();
    for name in gone {
        headers.remove(name);
    }
}

fn is_not_storable(name: &str) -> bool {
    is_connection_only(name)
        || matches!(name, "set-cookie" | "set-cookie2" | "age" | "retry-after")
        || ["x-tollgate-", "x-ratelimit", "x-rate-limit", "ratelimit"]
            .iter()
            .any(|start| name.starts_with(start))
}

/// Does this body contain one of our keys or tokens, or can nobody tell? If a reload has replaced
/// the policy of the call, the keys of both are searched.
pub(super) fn find_key(
    provider: &ActiveProvider,
    made_under: &CompiledPolicy,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), NotStored> {
    let policy = provider.policy();
    let has_key = |text: &[u8]| {
        has_key(provider, &policy, text)
            || (!std::ptr::eq(&*policy, made_under) && has_key(provider, made_under, text))
    };
    if has_key(body) {
        return Err(NotStored::ContainsKey);
    }
    let has_keys =
        |policy: &CompiledPolicy| !policy.cache.secrets.is_empty() || !policy.accounts.is_empty();
    let is_searched = has_keys(&policy) || has_keys(made_under);
    if !is_searched || body.is_empty() || !headers.contains_key(CONTENT_ENCODING) {
        return Ok(());
    }
    match decode::decoded_whole(headers, body, DECODED_MAX) {
        None => Err(NotStored::Unreadable),
        Some(text) if has_key(&text) => Err(NotStored::ContainsKey),
        Some(_) => Ok(()),
    }
}

fn has_key(provider: &ActiveProvider, policy: &CompiledPolicy, text: &[u8]) -> bool {
    policy.cache.secrets.found_in(text)
        || (!policy.accounts.is_empty() && provider.tokens.occur_in(text))
}
