//! Rate headers: the remaining quota of the provider's limits, or of guards, for callers that pace
//! themselves.
//!
//! Promises: `RateLimit-Policy` and `RateLimit` list every configured limit in the form of the IETF
//! draft (draft-ietf-httpapi-ratelimit-headers-10). `X-RateLimit-*` reports the limit that rejected
//! the call, otherwise the one with the least remaining. Times are never too early.
//!
//! Never: changes a rate header of an upstream without guards. If the upstream sent headers of one kind, ours of
//! that kind are omitted, because SDKs read them.

use crate::path::{Rate, RateState, Rates};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use tollgate_config::provider::Per;
use tollgate_core::ask::CostUnit;
use tollgate_core::time::{Span, Wall};

#[cfg(feature = "guards")]
use crate::guards::{GuardVerdict, GuardView};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field (RFC 9651, 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// A header under construction. Most are far shorter; longer ones move to the heap.
type Text = SmallVec<[u8; 192]>;

/// Adds the headers for the known limits.
pub fn add_headers(headers: &mut HeaderMap, rates: &Rates, wall: Wall) {
    let each: SmallVec<[Rate<'_>; 4]> = rates.each(wall).collect();
    if each.is_empty() {
        return;
    }
    // One pass over the existing headers, instead of a lookup for each of ours.
    let has = |ours: &[HeaderName]| headers.keys().any(|name| ours.contains(name));
    let (has_plain, has_fields) = (has(&[LIMIT, REMAINING, RESET]), has(&[POLICY, RATE]));
    if !has_plain && let Some(rate) = tightest(&each) {
        add_x_ratelimit(headers, rate, wall);
    }
    if !has_fields {
        let policy = rates.policy_header(|| policy_list(&each));
        add_lists(headers, policy, rate_list(&each));
    }
}

/// Adds the headers of guards, in place of what the service itself sent: with guards, callers see
/// theirs. `X-RateLimit-*` is the guard that rejected, otherwise `ip`, otherwise the first.
#[cfg(feature = "guards")]
pub fn add_guards(headers: &mut HeaderMap, verdict: &GuardVerdict, limits: &Rates, wall: Wall) {
    let Some(first) = verdict.views.first() else {
        return add_headers(headers, limits, wall);
    };
    for name in [LIMIT, REMAINING, RESET, POLICY, RATE] {
        headers.remove(name);
    }
    let denied = verdict.denied.as_ref();
    let denying = denied.and_then(|denied| verdict.views.get(denied.at));
    let by_address = || verdict.views.iter().find(|view| view.class.name() == "ip");
    let shown = denying.or_else(by_address);
    let shown = shown.unwrap_or(first);
    headers.insert(LIMIT, HeaderValue::from(shown.class.tokens_per_minute()));
    headers.insert(REMAINING, HeaderValue::from(shown.remaining));
    headers.insert(RESET, unix_seconds(wall, shown.full_in));
    let guards = verdict.views.iter().map(guard_rate);
    let rates: SmallVec<[Rate<'_>; 4]> = guards.chain(limits.each(wall)).collect();
    add_ratelimit_fields(headers, &rates);
}

/// Adds one limit, of this name, number of calls and period: what remains of it, and when all of it is
/// available again, or a denied call may come back.
pub fn add_limit(
    headers: &mut HeaderMap,
    (name, limit, period): (&str, u64, Option<Span>),
    remaining: Option<u64>,
    reset_after: Option<Span>,
    wall: Wall,
) {
    headers.insert(LIMIT, HeaderValue::from(limit));
    if let Some(remaining) = remaining {
        headers.insert(REMAINING, HeaderValue::from(remaining));
    }
    if let Some(after) = reset_after {
        headers.insert(RESET, unix_seconds(wall, after));
    }
    let rate = Rate {
        name,
        limit,
        period,
        unit: CostUnit::Calls,
        per: Per::Provider,
        state: remaining.map(|remaining| RateState {
            remaining,
            reset_after,
        }),
        is_exhausted: false,
    };
    add_ratelimit_fields(headers, &[rate]);
}

/// A guard as a limit in the lists.
#[cfg(feature = "guards")]
fn guard_rate(view: &GuardView) -> Rate<'_> {
    Rate {
        name: view.class.name(),
        limit: view.class.limit().into(),
        period: Some(view.class.period()),
        unit: CostUnit::Calls,
        per: Per::Caller,
        state: Some(RateState {
            remaining: view.remaining,
            reset_after: Some(view.full_in),
        }),
        is_exhausted: false,
    }
}

/// What remains of the limit that rejected the call, of how much, and of what.
#[must_use]
pub fn remaining_of_rejecting(rates: &Rates, wall: Wall) -> Option<(u64, u64, CostUnit)> {
    let mut each = rates.each(wall);
    let rejecting = each.find(|rate| rate.is_exhausted)?;
    Some((rejecting.state?.remaining, rejecting.limit, rejecting.unit))
}

/// The limit that rejected the call, otherwise the one with the smallest remaining part. A
/// concurrency limit is not a rate.
fn tightest<'a>(each: &'a [Rate<'a>]) -> Option<&'a Rate<'a>> {
    let candidates = each
        .iter()
        .filter(|rate| rate.period.is_some() && rate.state.is_some());
    candidates.min_by_key(|rate| {
        let remaining = rate.state.map_or(0, |left| left.remaining);
        (!rate.is_exhausted, millionths(remaining, rate.limit.max(1)))
    })
}

/// The remaining part in millionths of the limit; approximate for very large limits.
fn millionths(remaining: u64, limit: u64) -> u64 {
    match remaining.checked_mul(1_000_000) {
        Some(millions) => millions / limit,
        None => remaining / (limit / 1_000_000).max(1),
    }
}

fn add_x_ratelimit(headers: &mut HeaderMap, rate: &Rate<'_>, wall: Wall) {
    let Some(left) = rate.state else {
        return;
    };
    headers.insert(LIMIT, HeaderValue::from(rate.limit));
    headers.insert(REMAINING, HeaderValue::from(left.remaining));
    if let Some(after) = left.reset_after {
        headers.insert(RESET, unix_seconds(wall, after));
    }
}

/// A time as `X-RateLimit-Reset` has it, rounded up.
fn unix_seconds(wall: Wall, after: Span) -> HeaderValue {
    HeaderValue::from(wall.0.saturating_add(after.0).div_ceil(1_000_000))
}

/// Both lists, as structured fields (RFC 9651) write them.
fn add_ratelimit_fields(headers: &mut HeaderMap, each: &[Rate<'_>]) {
    add_lists(headers, policy_list(each), rate_list(each));
}

fn add_lists(headers: &mut HeaderMap, policy: Option<HeaderValue>, rate: Option<HeaderValue>) {
    for (name, list) in [(POLICY, policy), (RATE, rate)] {
        if let Some(list) = list {
            headers.insert(name, list);
        }
    }
}

/// What the limits are. The same for every call that they apply to.
fn policy_list(each: &[Rate<'_>]) -> Option<HeaderValue> {
    let mut list = Text::new();
    for one in each {
        push_name(&mut list, one.name);
        push_parameter(&mut list, "q", one.limit);
        if let Some(unit) = unit(one) {
            list.extend_from_slice(b";qu=\"");
            list.extend_from_slice(unit.as_bytes());
            list.push(b'"');
        }
        if let Some(period) = one.period {
            push_parameter(&mut list, "w", seconds(period));
        }
    }
    to_value(&list)
}

/// What remains of them.
fn rate_list(each: &[Rate<'_>]) -> Option<HeaderValue> {
    let mut list = Text::new();
    for one in each {
        if let Some(left) = one.state {
            push_name(&mut list, one.name);
            push_parameter(&mut list, "r", left.remaining);
            if let Some(after) = left.reset_after {
                push_parameter(&mut list, "t", seconds(after));
            }
        }
    }
    to_value(&list)
}

fn to_value(list: &Text) -> Option<HeaderValue> {
    HeaderValue::from_bytes(list)
        .ok()
        .filter(|value| !value.is_empty())
}

/// What a limit counts, where it is not requests.
fn unit(rate: &Rate<'_>) -> Option<&'static str> {
    match (rate.unit, rate.period) {
        (CostUnit::Calls, Some(_)) => None,
        (CostUnit::Calls, None) => Some("concurrent-requests"),
        (CostUnit::Tokens, _) => Some("tokens"),
        (CostUnit::Points, _) => Some("points"),
        (CostUnit::Bytes, _) => Some("content-bytes"),
    }
}

/// A parameter: `;q=10`.
fn push_parameter(text: &mut Text, key: &str, number: u64) {
    text.push(b';');
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    let mut digits = itoa::Buffer::new();
    text.extend_from_slice(digits.format(number.min(INTEGER_MAX)).as_bytes());
}

/// Rounded up: a retry that is too early would be rejected again.
fn seconds(span: Span) -> u64 {
    span.0.div_ceil(1_000_000)
}

/// The next item of a list: a quoted name. Characters that a structured field does not allow become
/// `?`.
fn push_name(text: &mut Text, name: &str) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
    text.push(b'"');
    for letter in name.chars() {
        match u8::try_from(letter) {
            Ok(letter @ (b'"' | b'\\')) => text.extend_from_slice(&[b'\\', letter]),
            Ok(letter @ b' '..=b'~') => text.push(letter),
            _ => text.push(b'?'),
        }
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use sfv::{BareItem, List, ListEntry, Parser};

    fn rate(name: &str) -> Rate<'_> {
        Rate {
            name,
            limit: u64::MAX,
            period: Some(Span(1_500_000)),
            unit: CostUnit::Tokens,
            per: Per::Provider,
            state: Some(RateState {
                remaining: 7,
                reset_after: Some(Span(1)),
            }),
            is_exhausted: false,
        }
    }

    /// An independent parser reads the lists, whatever the names are.
    #[test]
    fn any_limit_name_makes_a_valid_structured_field() {
        let names = ["plain", "with \"quotes\" and \\", "größe\n", ""];
        let each: Vec<Rate<'_>> = names.into_iter().map(rate).collect();
        let mut headers = HeaderMap::new();
        add_ratelimit_fields(&mut headers, &each);
        for (header, key, expected) in [(POLICY, "q", INTEGER_MAX), (RATE, "r", 7)] {
            let list: List = Parser::new(headers[&header].as_bytes()).parse().unwrap();
            let read: Vec<String> = list
                .iter()
                .map(|entry| {
                    let ListEntry::Item(item) = entry else {
                        panic!("{entry:?}");
                    };
                    let BareItem::Integer(number) = item.params[key] else {
                        panic!("{item:?}");
                    };
                    assert_eq!(u64::try_from(i64::from(number)).unwrap(), expected);
                    let BareItem::String(name) = &item.bare_item else {
                        panic!("{item:?}");
                    };
                    name.as_str().to_owned()
                })
                .collect();
            assert_eq!(read, ["plain", "with \"quotes\" and \\", "gr??e?", ""]);
        }
    }

    #[test]
    fn millionths_do_not_overflow_for_very_large_limits() {
        assert_eq!(millionths(1, 4), 250_000);
        assert_eq!(millionths(u64::MAX, u64::MAX), 1_000_000);
    }
}
