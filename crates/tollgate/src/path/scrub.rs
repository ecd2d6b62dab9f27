//! What of an answer is not kept: what belongs to one connection, to one client or to one moment, and
//! our keys, wherever a provider repeats them.
//!
//! Promises: nothing that is kept has a key of ours in it: links lose it, any other header with it
//! goes, and an answer with it in its body is not kept at all. A compressed body is opened for that, up
//! to a bound; one that cannot be opened whole is not kept.
//!
//! Never: changes what the caller gets.

use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use tollgate_core::fresh::{CacheControl, NotStored, is_connection_only};

use super::cache::HeaderView;
use super::decode;
use super::route::Route;
use crate::providers::{ActiveProvider, CompiledPolicy, map_links};

/// How much a compressed body may open to, so that keys can be looked for in it. More takes some ten
/// milliseconds of a thread that others wait for, and such an answer is not kept.
const DECODED_MAX: usize = 4 * 1024 * 1024;

/// Takes out of a head what is not kept of it.
pub(super) fn scrub(route: &Route, plan: &CompiledPolicy, headers: &mut HeaderMap) {
    let mut named = connection_headers(headers);
    named.extend(CacheControl::read("cache-control", &HeaderView(headers)).omit);
    let links = route.provider.links("");
    if !links.keys.is_empty() {
        map_links(headers, |link| links.without_key(link));
    }
    let gone: Vec<_> = headers
        .iter()
        .filter(|(name, value)| {
            let name = name.as_str();
            is_not_storable(name)
                || plan.dialect.is_limit_header(name)
                || named.iter().any(|one| one == name)
                || has_key(&route.provider, plan, value.as_bytes())
        })
        .map(|(name, _)| name.clone())
        .collect();
    for name in gone {
        headers.remove(name);
    }
}

/// Headers that a message names as those of its connection.
pub(super) fn connection_headers(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(http::header::CONNECTION).iter();
    lines
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

fn is_not_storable(name: &str) -> bool {
    is_connection_only(name)
        || matches!(name, "set-cookie" | "set-cookie2" | "age" | "retry-after")
        || ["x-tollgate-", "x-ratelimit", "x-rate-limit", "ratelimit"]
            .iter()
            .any(|start| name.starts_with(start))
}

/// Stands a key or token of ours in this body, or can that not be told? A key of the file that the call
/// was made under is one too, if another file has taken its place meanwhile.
pub(super) fn find_key(
    live: &ActiveProvider,
    made_under: &CompiledPolicy,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), NotStored> {
    let plan = live.policy();
    let has_key = |text: &[u8]| {
        has_key(live, &plan, text)
            || (!std::ptr::eq(&*plan, made_under) && has_key(live, made_under, text))
    };
    if has_key(body) {
        return Err(NotStored::ContainsKey);
    }
    let has_keys =
        |plan: &CompiledPolicy| !plan.cache.secrets.is_empty() || !plan.accounts.is_empty();
    let is_searched = has_keys(&plan) || has_keys(made_under);
    if !is_searched || body.is_empty() || !headers.contains_key(CONTENT_ENCODING) {
        return Ok(());
    }
    match decode::decoded_whole(headers, body, DECODED_MAX) {
        None => Err(NotStored::Unreadable),
        Some(text) if has_key(&text) => Err(NotStored::ContainsKey),
        Some(_) => Ok(()),
    }
}

fn has_key(live: &ActiveProvider, plan: &CompiledPolicy, text: &[u8]) -> bool {
    plan.cache.secrets.found_in(text) || (!plan.accounts.is_empty() && live.tokens.occur_in(text))
}
