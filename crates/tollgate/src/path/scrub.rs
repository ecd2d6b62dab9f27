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
use tollgate_core::fresh::{Control, NotKept, is_connection_only};

use super::cache::Of;
use super::decode;
use super::route::Route;
use crate::shop::{Live, Plan, each_link};

/// How much a compressed body may open to, so that keys can be looked for in it. More takes some ten
/// milliseconds of a thread that others wait for, and such an answer is not kept.
const OPENED_MAX: usize = 4 * 1024 * 1024;

/// Takes out of a head what is not kept of it.
pub(super) fn scrub(route: &Route, plan: &Plan, headers: &mut HeaderMap) {
    let mut named = of_connection(headers);
    named.extend(Control::read("cache-control", &Of(headers)).omit);
    let links = route.live.links("");
    if !links.keys.is_empty() {
        each_link(headers, |link| links.without_key(link));
    }
    let gone: Vec<_> = headers
        .iter()
        .filter(|(name, value)| {
            let name = name.as_str();
            is_of_the_moment(name)
                || plan.dialect.tells_of_limits(name)
                || named.iter().any(|one| one == name)
                || has_key(&route.live, plan, value.as_bytes())
        })
        .map(|(name, _)| name.clone())
        .collect();
    for name in gone {
        headers.remove(name);
    }
}

/// Headers that a message names as those of its connection.
pub(super) fn of_connection(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(http::header::CONNECTION).iter();
    lines
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

fn is_of_the_moment(name: &str) -> bool {
    is_connection_only(name)
        || matches!(name, "set-cookie" | "set-cookie2" | "age" | "retry-after")
        || ["x-tollgate-", "x-ratelimit", "x-rate-limit", "ratelimit"]
            .iter()
            .any(|start| name.starts_with(start))
}

/// Stands a key or token of ours in this body, or can that not be told? A key of the file that the call
/// was made under is one too, if another file has taken its place meanwhile.
pub(super) fn search(
    live: &Live,
    made_under: &Plan,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), NotKept> {
    let plan = live.plan();
    let has_key = |text: &[u8]| {
        has_key(live, &plan, text)
            || (!std::ptr::eq(&*plan, made_under) && has_key(live, made_under, text))
    };
    if has_key(body) {
        return Err(NotKept::HoldsKey);
    }
    let has_keys = |plan: &Plan| !plan.keeping.keys.is_empty() || !plan.accounts.is_empty();
    let is_searched = has_keys(&plan) || has_keys(made_under);
    if !is_searched || body.is_empty() || !headers.contains_key(CONTENT_ENCODING) {
        return Ok(());
    }
    match decode::opened_whole(headers, body, OPENED_MAX) {
        None => Err(NotKept::Unreadable),
        Some(text) if has_key(&text) => Err(NotKept::HoldsKey),
        Some(_) => Ok(()),
    }
}

fn has_key(live: &Live, plan: &Plan, text: &[u8]) -> bool {
    plan.keeping.keys.are_in(text) || (!plan.accounts.is_empty() && live.tokens.are_in(text))
}
