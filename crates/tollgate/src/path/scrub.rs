//! What of an answer is not kept: what belongs to one connection, to one client or to one moment, and
//! our keys, wherever a provider repeats them.
//!
//! Promises: nothing that is kept has a key of ours in it: links lose it, any other header with it
//! goes, and an answer with it in its body is not kept at all. A compressed body is opened for that, up
//! to a bound.
//!
//! Never: changes what the caller gets.

use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use tollgate_core::fresh::{Control, is_connection_only};

use super::cache::Of;
use super::decode;
use super::route::Route;
use crate::shop::{Live, Plan, each_link};

/// How much of a compressed body is opened to look for keys. Answers that repeat a request are small;
/// a megabyte takes some milliseconds.
const OPENED_MAX: usize = 1024 * 1024;

/// Takes out of a head what is not kept of it.
pub(super) fn scrub(route: &Route, plan: &Plan, headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(http::header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .chain(Control::read("cache-control", &Of(headers)).omit)
        .collect();
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

fn is_of_the_moment(name: &str) -> bool {
    is_connection_only(name)
        || matches!(name, "set-cookie" | "set-cookie2" | "age" | "retry-after")
        || ["x-tollgate-", "x-ratelimit", "x-rate-limit", "ratelimit"]
            .iter()
            .any(|start| name.starts_with(start))
}

/// Stands a key or token of ours in this body?
pub(super) fn has_key_inside(live: &Live, headers: &HeaderMap, body: &[u8]) -> bool {
    let plan = live.plan();
    if has_key(live, &plan, body) {
        return true;
    }
    let is_searched = !plan.keeping.keys.is_empty() || !plan.accounts.is_empty();
    is_searched
        && headers.contains_key(CONTENT_ENCODING)
        && has_key(live, &plan, &decode::opened(headers, body, OPENED_MAX))
}

fn has_key(live: &Live, plan: &Plan, text: &[u8]) -> bool {
    plan.keeping.keys.are_in(text) || (!plan.accounts.is_empty() && live.tokens.are_in(text))
}
