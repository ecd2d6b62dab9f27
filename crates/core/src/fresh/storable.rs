//! May an answer be kept, and how long is it good?
//!
//! Promises: an answer that is somebody's own (`private`, `Set-Cookie`, asked for with the client's
//! `Authorization`) or not to be kept (`no-store`) is not kept unless the configuration says so;
//! whatever is not kept has its reason. Ages are computed as RFC 9111, 4.2.3 has it.
//!
//! Never: keeps a part for the whole (206).

use super::control::CacheControl;
use super::fields::{self, Headers};
use super::vary::{Varies, varies};
use super::{FOREVER, Freshness, FreshnessMode, FreshnessRule};
use crate::time::{Span, Wall};

/// Of the time since an answer last changed, so much it is taken to stay as it is (RFC 9111, 4.2.2).
const HEURISTIC_DIVISOR: u64 = 10;

/// A guess is good for a day at most: beyond that providers say what they mean.
const HEURISTIC_MAX: Span = Span::from_secs(86_400);

/// How long answers are good where the configuration says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Not at all.
    #[default]
    Off,
    /// This long.
    For(Span),
    /// At least and at most this long.
    Between(Span, Span),
    /// Until they are purged.
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

/// What keeps an answer from being kept, and which of it the configuration passes over. The
/// credential is part of every key, so what is passed over still reaches nobody else.
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
    /// `Set-Cookie`; the cookie itself is never kept.
    pub set_cookie: bool,
    /// The client's own `Authorization`.
    pub authorization: bool,
}

/// An answer, and how it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct StoreCandidate<'a, H> {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: &'a H,
    /// The client's own `Authorization` went with the request.
    pub authorization: bool,
    /// The request said `no-store`.
    pub no_store: bool,
}

/// When it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct ResponseTimes {
    /// When the request left.
    pub requested: Wall,
    /// When the answer came.
    pub received: Wall,
    /// The lifetime for this answer, where the configuration leaves a choice.
    pub chosen_lifetime: Span,
}

/// Why an answer is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotStored {
    /// Its kind of status is not kept.
    Status,
    /// It is a part.
    Partial,
    /// It said `no-store`.
    NoStore,
    /// The request said `no-store`.
    RequestNoStore,
    /// It said `private`.
    Private,
    /// It sets a cookie.
    SetCookie,
    /// It was asked for with the client's own `Authorization`.
    Authorization,
    /// It varies on anything.
    VariesOnAnything,
    /// It is good for no time, and there is nothing to ask again with.
    NoLifetime,
    /// It is larger than what may be kept.
    TooLarge,
    /// It did not come whole.
    Incomplete,
    /// It repeats a key of ours.
    ContainsKey,
    /// It is compressed in a way in which keys of ours could not be looked for.
    Unreadable,
    /// It refuses the call, whatever its status says.
    Limited,
}

impl NotStored {
    /// As in logs.
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
            NotStored::Incomplete => "not_whole",
            NotStored::ContainsKey => "holds_key",
            NotStored::Unreadable => "unreadable",
            NotStored::Limited => "refused",
        }
    }
}

/// May this answer to a GET be kept, and until when is it good?
pub fn check_storable<H: Headers>(
    rule: &FreshnessRule,
    answered: &StoreCandidate<'_, H>,
    times: ResponseTimes,
) -> Result<Freshness, NotStored> {
    let control = CacheControl::read("cache-control", answered.headers);
    check_forbidden(rule, answered, &control)?;
    let age = initial_age(answered.headers, times);
    match rule.mode {
        FreshnessMode::Ttl => by_ttl(rule, answered.status, age, times),
        FreshnessMode::Rfc9111 => by_headers(rule, answered, &control, age, times),
    }
}

fn check_forbidden<H: Headers>(
    rule: &FreshnessRule,
    answered: &StoreCandidate<'_, H>,
    control: &CacheControl,
) -> Result<(), NotStored> {
    let ignore = rule.ignore;
    if matches!(answered.status, 206 | 304) || answered.status < 200 {
        return Err(NotStored::Partial);
    }
    // About this one request, whatever they say of themselves (RFC 6585).
    if matches!(answered.status, 428 | 429 | 431 | 511) {
        return Err(NotStored::Status);
    }
    if answered.no_store {
        return Err(NotStored::RequestNoStore);
    }
    // A cache that knows the status obeys `must-understand` in place of `no-store` (5.2.2.3).
    let is_understood = is_known(answered.status);
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
    let sets = |name: &str| fields::has(answered.headers, name) && !omits(name);
    if (sets("set-cookie") || sets("set-cookie2")) && !ignore.set_cookie {
        return Err(NotStored::SetCookie);
    }
    if answered.authorization && !ignore.authorization {
        let is_allowed = control.public || control.must_revalidate || control.s_maxage.is_some();
        if rule.mode == FreshnessMode::Ttl || !is_allowed {
            return Err(NotStored::Authorization);
        }
    }
    match varies(answered.headers, &rule.vary) {
        Varies::On(_) => Ok(()),
        Varies::OnAnything => Err(NotStored::VariesOnAnything),
    }
}

/// `ttl`: what went well is good for the configured time, from now on.
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
        absence if is_not_found(absence) && rule.negative > Span::ZERO => rule.negative,
        _ => return Err(NotStored::Status),
    };
    let fresh_until = cap_at_forever(times.received + lifetime);
    // What was not there yesterday may be there today.
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

/// `rfc9111`: what the answer says.
fn by_headers<H: Headers>(
    rule: &FreshnessRule,
    answered: &StoreCandidate<'_, H>,
    control: &CacheControl,
    age: Span,
    times: ResponseTimes,
) -> Result<Freshness, NotStored> {
    let headers = answered.headers;
    let is_old_style = !control.is_present && fields::has_token(headers, "pragma", "no-cache");
    let explicit = control
        .s_maxage
        .or(control.max_age)
        .or_else(|| expires(headers, times.received));
    let lifetime = match explicit {
        Some(lifetime) => lifetime,
        None if is_heuristic(answered.status) || control.public => {
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
        said if is_not_found(answered.status) => said,
        said => said.max(rule.stale),
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

/// How old the answer was when it came (RFC 9111, 4.2.3).
fn initial_age<H: Headers>(headers: &H, times: ResponseTimes) -> Span {
    let apparent = fields::date_of(headers, "date", times.received)
        .map_or(Span::ZERO, |date| times.received.since(date));
    // `Date` has whole seconds, so a part of one is no age.
    let apparent = Span(apparent.0 - apparent.0 % 1_000_000);
    let delay = times.received.since(times.requested);
    let told = fields::age(headers);
    apparent.max(told + delay)
}

/// What `Expires` says; a date that cannot be read is in the past.
fn expires<H: Headers>(headers: &H, got: Wall) -> Option<Span> {
    if !fields::has(headers, "expires") {
        return None;
    }
    let date = fields::date_of(headers, "date", got).unwrap_or(got);
    let expires = fields::date_of(headers, "expires", got);
    Some(expires.map_or(Span::ZERO, |expires| expires.since(date)))
}

/// A tenth of the time that the answer has not changed for.
fn heuristic_lifetime<H: Headers>(headers: &H, got: Wall) -> Span {
    let Some(changed) = fields::date_of(headers, "last-modified", got) else {
        return Span::ZERO;
    };
    let date = fields::date_of(headers, "date", got).unwrap_or(got);
    let part = Span(date.since(changed).0 / HEURISTIC_DIVISOR);
    part.min(HEURISTIC_MAX)
}

/// The answer says that there is no such thing.
pub(super) fn is_not_found(status: u16) -> bool {
    matches!(status, 404 | 410)
}

/// Statuses that may be kept without a word about it (RFC 9110, 15.1).
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
