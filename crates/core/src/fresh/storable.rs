//! May a response be stored, and how long is it fresh?
//!
//! Promises: a response for one user (`private`, `Set-Cookie`, requested with the client's
//! `Authorization`) or with `no-store` is not stored unless the configuration says so. Every
//! response that is not stored has a reason. Ages are computed as in RFC 9111, 4.2.3.
//!
//! Never: stores a partial response (206) as a complete one.

use super::control::CacheControl;
use super::fields::{self, Headers};
use super::vary::{Varies, varies};
use super::{FOREVER, Freshness, FreshnessMode, FreshnessRule};
use crate::time::{Span, Wall};

/// The heuristic lifetime is the time since the last change, divided by this (RFC 9111, 4.2.2).
const HEURISTIC_DIVISOR: u64 = 10;

/// The longest heuristic lifetime is a day: for longer lifetimes, providers send explicit headers.
const HEURISTIC_MAX: Span = Span::from_secs(86_400);

/// The configured lifetime of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Responses are not stored.
    #[default]
    Off,
    /// Responses are fresh for this long.
    For(Span),
    /// Responses are fresh for a time between these two.
    Between(Span, Span),
    /// Responses are fresh until they are purged.
    Forever,
}

impl Lifetime {
    /// The range in which a lifetime may adapt.
    #[must_use]
    pub fn range(self) -> Option<(Span, Span)> {
        match self {
            Lifetime::Between(least, most) => Some((least, most)),
            Lifetime::Off | Lifetime::For(_) | Lifetime::Forever => None,
        }
    }
}

/// Reasons against storing a response; `true` = the configuration ignores this reason. The
/// credential is part of every cache key, so callers with another credential do not get such a
/// response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four switches that do not depend on each other"
)]
pub struct Ignore {
    /// `Cache-Control: private`.
    pub private: bool,
    /// `Cache-Control: no-store`.
    pub no_store: bool,
    /// `Set-Cookie`; the cookie itself is never stored.
    pub set_cookie: bool,
    /// The client's own `Authorization`.
    pub authorization: bool,
}

/// A response that may be stored, and facts about its request.
#[derive(Clone, Copy, Debug)]
pub struct StoreCandidate<'a, H> {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: &'a H,
    /// The request carried the client's own `Authorization`.
    pub authorization: bool,
    /// The request has `no-store`.
    pub no_store: bool,
}

/// When a response was requested and received.
#[derive(Clone, Copy, Debug)]
pub struct ResponseTimes {
    /// When the request was sent.
    pub requested: Wall,
    /// When the response was received.
    pub received: Wall,
    /// The lifetime of this response, if the configuration gives a range.
    pub chosen_lifetime: Span,
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotStored {
    /// Responses with this status are not stored.
    Status,
    /// It is partial.
    Partial,
    /// It has `no-store`.
    NoStore,
    /// The request has `no-store`.
    RequestNoStore,
    /// It has `private`.
    Private,
    /// It sets a cookie.
    SetCookie,
    /// It was requested with the client's own `Authorization`.
    Authorization,
    /// It has `Vary: *`, or its `Vary` names too many headers.
    VariesOnAnything,
    /// It has no lifetime and no validator.
    NoLifetime,
    /// It is larger than the limit for stored responses.
    TooLarge,
    /// Its body is incomplete.
    Incomplete,
    /// It contains one of our API keys.
    ContainsKey,
    /// Its compression does not allow a search for our API keys.
    Unreadable,
    /// The provider limited the call, whatever the status says.
    Limited,
}

impl NotStored {
    /// The word in logs and in `Cache-Status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NotStored::Status => "status",
            NotStored::Partial => "partial",
            NotStored::NoStore => "no_store",
            NotStored::RequestNoStore => "request_no_store",
            NotStored::Private => "private",
            NotStored::SetCookie => "set_cookie",
            NotStored::Authorization => "authorization",
            NotStored::VariesOnAnything => "varies_on_anything",
            NotStored::NoLifetime => "no_lifetime",
            NotStored::TooLarge => "too_large",
            NotStored::Incomplete => "incomplete",
            NotStored::ContainsKey => "contains_key",
            NotStored::Unreadable => "unreadable",
            NotStored::Limited => "limited",
        }
    }
}

/// May this response to a GET be stored, and until when is it fresh?
pub fn check_storable<H: Headers>(
    rule: &FreshnessRule,
    candidate: &StoreCandidate<'_, H>,
    times: ResponseTimes,
) -> Result<Freshness, NotStored> {
    let control = CacheControl::read("cache-control", candidate.headers);
    check_forbidden(rule, candidate, &control)?;
    let age = initial_age(candidate.headers, times);
    match rule.mode {
        FreshnessMode::Ttl => by_ttl(rule, candidate.status, age, times),
        FreshnessMode::Rfc9111 => by_headers(rule, candidate, &control, age, times),
    }
}

fn check_forbidden<H: Headers>(
    rule: &FreshnessRule,
    candidate: &StoreCandidate<'_, H>,
    control: &CacheControl,
) -> Result<(), NotStored> {
    let ignore = rule.ignore;
    if matches!(candidate.status, 206 | 304) || candidate.status < 200 {
        return Err(NotStored::Partial);
    }
    // These statuses are about one request, whatever their headers say (RFC 6585).
    if matches!(candidate.status, 428 | 429 | 431 | 511) {
        return Err(NotStored::Status);
    }
    if candidate.no_store {
        return Err(NotStored::RequestNoStore);
    }
    // A cache that knows the status obeys `must-understand` in place of `no-store` (5.2.2.3).
    let is_understood = is_known(candidate.status);
    if control.must_understand && !is_understood {
        return Err(NotStored::Status);
    }
    if control.no_store && !control.must_understand && !ignore.no_store {
        return Err(NotStored::NoStore);
    }
    if control.private && !ignore.private {
        return Err(NotStored::Private);
    }
    let omits = |name: &str| control.omit.iter().any(|omitted| omitted == name);
    let sets = |name: &str| fields::has(candidate.headers, name) && !omits(name);
    if (sets("set-cookie") || sets("set-cookie2")) && !ignore.set_cookie {
        return Err(NotStored::SetCookie);
    }
    if candidate.authorization && !ignore.authorization {
        let is_allowed = control.public || control.must_revalidate || control.s_maxage.is_some();
        if rule.mode == FreshnessMode::Ttl || !is_allowed {
            return Err(NotStored::Authorization);
        }
    }
    match varies(candidate.headers, &rule.vary) {
        Varies::On(_) => Ok(()),
        Varies::OnAnything => Err(NotStored::VariesOnAnything),
    }
}

/// Mode `ttl`: a successful response is fresh for the configured time after it was received.
fn by_ttl(
    rule: &FreshnessRule,
    status: u16,
    age: Span,
    times: ResponseTimes,
) -> Result<Freshness, NotStored> {
    let lifetime = match status {
        200 | 203 | 204 | 300 | 301 | 308 => match rule.lifetime {
            Lifetime::Off => return Err(NotStored::NoLifetime),
            Lifetime::For(span) => span,
            Lifetime::Between(..) => times.chosen_lifetime,
            Lifetime::Forever => Span(FOREVER.0),
        },
        missing if is_not_found(missing) && rule.negative > Span::ZERO => rule.negative,
        _ => return Err(NotStored::Status),
    };
    let fresh_until = cap_at_forever(times.received + lifetime);
    // A missing resource may have been created since, so a 404 is never served stale.
    let stale = if is_not_found(status) {
        Span::ZERO
    } else {
        rule.stale
    };
    Ok(Freshness {
        generated_at: times.received - age,
        fresh_until,
        revalidate_until: fresh_until,
        stale_until: cap_at_forever(fresh_until + stale),
        always_revalidate: false,
        must_revalidate: false,
        lifetime,
    })
}

/// Mode `rfc9111`: the headers of the response decide.
fn by_headers<H: Headers>(
    rule: &FreshnessRule,
    candidate: &StoreCandidate<'_, H>,
    control: &CacheControl,
    age: Span,
    times: ResponseTimes,
) -> Result<Freshness, NotStored> {
    let headers = candidate.headers;
    let is_old_style = !control.is_present && fields::has_token(headers, "pragma", "no-cache");
    let explicit = control
        .s_maxage
        .or(control.max_age)
        .or_else(|| expires(headers, times.received));
    let lifetime = match explicit {
        Some(lifetime) => lifetime,
        None if is_heuristic(candidate.status) || control.public => {
            heuristic_lifetime(headers, times.received)
        }
        None => return Err(NotStored::Status),
    };
    let has_validator = fields::has(headers, "etag") || fields::has(headers, "last-modified");
    if lifetime == Span::ZERO && !has_validator {
        return Err(NotStored::NoLifetime);
    }
    let born = times.received - age;
    let fresh_until = cap_at_forever(born + lifetime);
    let longer = |span: Option<Span>| cap_at_forever(fresh_until + span.unwrap_or(Span::ZERO));
    let stale = match control.stale_if_error.unwrap_or(Span::ZERO) {
        by_header if is_not_found(candidate.status) => by_header,
        by_header => by_header.max(rule.stale),
    };
    Ok(Freshness {
        generated_at: born,
        fresh_until,
        revalidate_until: longer(control.stale_while_revalidate),
        stale_until: longer(Some(stale)),
        always_revalidate: control.no_cache || (is_old_style && explicit.is_none()),
        must_revalidate: control.must_revalidate
            || control.proxy_revalidate
            || control.s_maxage.is_some(),
        lifetime,
    })
}

/// The age of the response when it was received (RFC 9111, 4.2.3).
fn initial_age<H: Headers>(headers: &H, times: ResponseTimes) -> Span {
    let apparent = fields::date_of(headers, "date", times.received)
        .map_or(Span::ZERO, |date| times.received.since(date));
    // `Date` has whole seconds, so a fraction of a second does not count as age.
    let apparent = Span(apparent.0 - apparent.0 % 1_000_000);
    let delay = times.received.since(times.requested);
    let reported = fields::age(headers);
    apparent.max(reported + delay)
}

/// The lifetime that `Expires` gives; a date that cannot be parsed counts as past.
fn expires<H: Headers>(headers: &H, received: Wall) -> Option<Span> {
    if !fields::has(headers, "expires") {
        return None;
    }
    let date = fields::date_of(headers, "date", received).unwrap_or(received);
    let expires = fields::date_of(headers, "expires", received);
    Some(expires.map_or(Span::ZERO, |expires| expires.since(date)))
}

/// A tenth of the time since the response last changed.
fn heuristic_lifetime<H: Headers>(headers: &H, received: Wall) -> Span {
    let Some(changed) = fields::date_of(headers, "last-modified", received) else {
        return Span::ZERO;
    };
    let date = fields::date_of(headers, "date", received).unwrap_or(received);
    let part = Span(date.since(changed).0 / HEURISTIC_DIVISOR);
    part.min(HEURISTIC_MAX)
}

/// The resource does not exist.
pub(super) fn is_not_found(status: u16) -> bool {
    matches!(status, 404 | 410)
}

/// Statuses that may be stored without explicit freshness (RFC 9110, 15.1).
fn is_heuristic(status: u16) -> bool {
    matches!(
        status,
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// Statuses whose meaning is known (RFC 9110, 15).
fn is_known(status: u16) -> bool {
    matches!(
        status,
        200..=205 | 300..=305 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 500..=505
    )
}

fn cap_at_forever(at: Wall) -> Wall {
    at.min(FOREVER)
}
