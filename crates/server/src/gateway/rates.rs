//! Rate headers: what is left of the provider's limits, for callers that pace themselves.
//!
//! Promises: `RateLimit-Policy` and `RateLimit` name every limit of ours as the IETF draft
//! (draft-ietf-httpapi-ratelimit-headers-10) writes them; `X-RateLimit-*` tells of the one that
//! refused, else of the one with the least left. Times are never too early.
//!
//! Never: touches a rate header of the upstream: where it sent its own, ours of that kind stay away,
//! because its SDKs read them.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
use tollgate::path::{Rate, Rates};
use tollgate_core::ask::Unit;
use tollgate_core::time::{Span, Wall};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// Adds what is known.
pub(super) fn say(headers: &mut HeaderMap, rates: &Rates, wall: Wall) {
    let has = |names: &[HeaderName]| names.iter().any(|name| headers.contains_key(name));
    let (has_plain, has_fields) = (has(&[LIMIT, REMAINING, RESET]), has(&[POLICY, RATE]));
    if !has_plain && let Some(rate) = tightest(rates, wall) {
        plain(headers, &rate, wall);
    }
    if !has_fields {
        fields(headers, rates, wall);
    }
}

/// The one that refused, else the one with the smallest part left. Calls at a time are no rate.
fn tightest(rates: &Rates, wall: Wall) -> Option<Rate<'_>> {
    let candidates = rates
        .each(wall)
        .filter(|rate| rate.period.is_some() && rate.left.is_some());
    candidates.min_by_key(|rate| {
        let remaining = rate.left.map_or(0, |left| u128::from(left.remaining));
        let part = remaining * 1_000_000 / u128::from(rate.limit.max(1));
        (!rate.is_refusing, part)
    })
}

fn plain(headers: &mut HeaderMap, rate: &Rate<'_>, wall: Wall) {
    let Some(left) = rate.left else {
        return;
    };
    headers.insert(LIMIT, HeaderValue::from(rate.limit));
    headers.insert(REMAINING, HeaderValue::from(left.remaining));
    if let Some(after) = left.reset_after {
        let reset = wall.0.saturating_add(after.0).div_ceil(1_000_000);
        headers.insert(RESET, HeaderValue::from(reset));
    }
}

fn fields(headers: &mut HeaderMap, rates: &Rates, wall: Wall) {
    let mut policy = ListSerializer::new();
    let mut rate = ListSerializer::new();
    for each in rates.each(wall) {
        let name = named(each.name);
        let Ok(name) = StringRef::from_str(&name) else {
            continue;
        };
        let item = policy
            .bare_item(name)
            .parameter(key("q"), integer(each.limit));
        let item = match unit(&each) {
            Some(unit) => item.parameter(key("qu"), unit),
            None => item,
        };
        if let Some(period) = each.period {
            let _item = item.parameter(key("w"), seconds(period));
        }
        if let Some(left) = each.left {
            let item = rate
                .bare_item(name)
                .parameter(key("r"), integer(left.remaining));
            if let Some(after) = left.reset_after {
                let _item = item.parameter(key("t"), seconds(after));
            }
        }
    }
    for (name, list) in [(POLICY, policy.finish()), (RATE, rate.finish())] {
        if let Some(value) = list.and_then(|list| HeaderValue::try_from(list).ok()) {
            headers.insert(name, value);
        }
    }
}

fn key(name: &'static str) -> &'static KeyRef {
    KeyRef::constant(name)
}

/// What a limit counts, where it is not requests.
fn unit(rate: &Rate<'_>) -> Option<&'static StringRef> {
    let word = match (rate.unit, rate.period) {
        (Unit::Calls, Some(_)) => return None,
        (Unit::Calls, None) => "concurrent-requests",
        (Unit::Tokens, _) => "tokens",
        (Unit::Points, _) => "points",
        (Unit::Bytes, _) => "content-bytes",
    };
    Some(StringRef::constant(word))
}

fn integer(number: u64) -> Integer {
    Integer::try_from(number.min(INTEGER_MAX)).unwrap_or(Integer::MAX)
}

/// Rounded up: early is refused again.
fn seconds(span: Span) -> Integer {
    integer(span.0.div_ceil(1_000_000))
}

/// A name as a string of a structured field: other letters have no place in one.
fn named(name: &str) -> String {
    let plain = |letter: char| {
        if (' '..='~').contains(&letter) {
            letter
        } else {
            '?'
        }
    };
    name.chars().map(plain).collect()
}
