//! May an answer be kept, and how long is it good?
//!
//! Promises: an answer that is somebody's own (`private`, `Set-Cookie`, asked for with the client's
//! `Authorization`) or not to be kept (`no-store`) is not kept unless the configuration says so;
//! whatever is not kept has its reason. Ages are computed as RFC 9111, 4.2.3 has it.
//!
//! Never: keeps a part for the whole (206).

use super::control::Control;
use super::fields::{self, Headers};
use super::vary::{Varies, varies};
use super::{FOREVER, Kept, Mode, Rule};
use crate::time::{Span, Wall};

/// Of the time since an answer last changed, so much it is taken to stay as it is (RFC 9111, 4.2.2).
const HEURISTIC_PART: u64 = 10;

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
pub struct Answered<'a, H> {
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
pub struct Times {
    /// When the request left.
    pub asked: Wall,
    /// When the answer came.
    pub got: Wall,
    /// The lifetime for this answer, where the configuration leaves a choice.
    pub chosen: Span,
}

/// Why an answer is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotKept {
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
    NoTime,
    /// It is larger than what may be kept.
    TooLarge,
    /// It did not come whole.
    NotWhole,
    /// It repeats a key of ours.
    HoldsKey,
    /// It is compressed in a way in which keys of ours could not be looked for.
    Unreadable,
    /// It refuses the call, whatever its status says.
    Refused,
}

impl NotKept {
    /// As in logs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            NotKept::Status => "status",
            NotKept::Partial => "partial",
            NotKept::NoStore => "no_store",
            NotKept::RequestNoStore => "request_no_store",
            NotKept::Private => "private",
            NotKept::SetCookie => "set_cookie",
            NotKept::Authorization => "authorization",
            NotKept::VariesOnAnything => "varies_on_anything",
            NotKept::NoTime => "no_lifetime",
            NotKept::TooLarge => "too_large",
            NotKept::NotWhole => "not_whole",
            NotKept::HoldsKey => "holds_key",
            NotKept::Unreadable => "unreadable",
            NotKept::Refused => "refused",
        }
    }
}

/// May this answer to a GET be kept, and until when is it good?
pub fn keep<H: Headers>(
    rule: &Rule,
    answered: &Answered<'_, H>,
    times: Times,
) -> Result<Kept, NotKept> {
    let control = Control::read("cache-control", answered.headers);
    forbidden(rule, answered, &control)?;
    let age = initial_age(answered.headers, times);
    match rule.mode {
        Mode::Ttl => by_configuration(rule, answered.status, age, times),
        Mode::Rfc9111 => by_headers(rule, answered, &control, age, times),
    }
}

fn forbidden<H: Headers>(
    rule: &Rule,
    answered: &Answered<'_, H>,
    control: &Control,
) -> Result<(), NotKept> {
    let ignore = rule.ignore;
    if matches!(answered.status, 206 | 304) || answered.status < 200 {
        return Err(NotKept::Partial);
    }
    // About this one request, whatever they say of themselves (RFC 6585).
    if matches!(answered.status, 428 | 429 | 431 | 511) {
        return Err(NotKept::Status);
    }
    if answered.no_store {
        return Err(NotKept::RequestNoStore);
    }
    // A cache that knows the status obeys `must-understand` in place of `no-store` (5.2.2.3).
    let is_understood = is_known(answered.status);
    if control.must_understand && !is_understood {
        return Err(NotKept::Status);
    }
    if control.no_store && !control.must_understand && !ignore.no_store {
        return Err(NotKept::NoStore);
    }
    if control.private && !ignore.private {
        return Err(NotKept::Private);
    }
    let omits = |name: &str| control.omit.iter().any(|omitted| omitted == name);
    let sets = |name: &str| fields::has(answered.headers, name) && !omits(name);
    if (sets("set-cookie") || sets("set-cookie2")) && !ignore.set_cookie {
        return Err(NotKept::SetCookie);
    }
    if answered.authorization && !ignore.authorization {
        let is_allowed = control.public || control.must_revalidate || control.s_maxage.is_some();
        if rule.mode == Mode::Ttl || !is_allowed {
            return Err(NotKept::Authorization);
        }
    }
    match varies(answered.headers, &rule.vary) {
        Varies::On(_) => Ok(()),
        Varies::OnAnything => Err(NotKept::VariesOnAnything),
    }
}

/// `ttl`: what went well is good for the configured time, from now on.
fn by_configuration(rule: &Rule, status: u16, age: Span, times: Times) -> Result<Kept, NotKept> {
    let lifetime = match status {
        200 | 203 | 204 | 300 | 301 | 308 => match rule.lifetime {
            Lifetime::Off => return Err(NotKept::NoTime),
            Lifetime::For(span) => span,
            Lifetime::Between(..) => times.chosen,
            Lifetime::Forever => Span(FOREVER.0),
        },
        absence if is_absence(absence) && rule.negative > Span::ZERO => rule.negative,
        _ => return Err(NotKept::Status),
    };
    let fresh_until = at_most(times.got + lifetime);
    // What was not there yesterday may be there today.
    let stale = if is_absence(status) {
        Span::ZERO
    } else {
        rule.stale
    };
    Ok(Kept {
        born: times.got - age,
        fresh_until,
        beside_until: fresh_until,
        stale_until: at_most(fresh_until + stale),
        ask_always: false,
        strict: false,
        lifetime,
    })
}

/// `rfc9111`: what the answer says.
fn by_headers<H: Headers>(
    rule: &Rule,
    answered: &Answered<'_, H>,
    control: &Control,
    age: Span,
    times: Times,
) -> Result<Kept, NotKept> {
    let headers = answered.headers;
    let is_old_style = !control.is_there && fields::has_token(headers, "pragma", "no-cache");
    let explicit = control
        .s_maxage
        .or(control.max_age)
        .or_else(|| expires(headers, times.got));
    let lifetime = match explicit {
        Some(lifetime) => lifetime,
        None if is_heuristic(answered.status) || control.public => guess(headers, times.got),
        None => return Err(NotKept::Status),
    };
    let has_validator = fields::has(headers, "etag") || fields::has(headers, "last-modified");
    if lifetime == Span::ZERO && !has_validator {
        return Err(NotKept::NoTime);
    }
    let born = times.got - age;
    let fresh_until = at_most(born + lifetime);
    let longer = |span: Option<Span>| at_most(fresh_until + span.unwrap_or(Span::ZERO));
    let stale = match control.stale_if_error.unwrap_or(Span::ZERO) {
        said if is_absence(answered.status) => said,
        said => said.max(rule.stale),
    };
    Ok(Kept {
        born,
        fresh_until,
        beside_until: longer(control.stale_while_revalidate),
        stale_until: longer(Some(stale)),
        ask_always: control.no_cache || (is_old_style && explicit.is_none()),
        strict: control.must_revalidate || control.proxy_revalidate || control.s_maxage.is_some(),
        lifetime,
    })
}

/// How old the answer was when it came (RFC 9111, 4.2.3).
fn initial_age<H: Headers>(headers: &H, times: Times) -> Span {
    let apparent = fields::date_of(headers, "date", times.got)
        .map_or(Span::ZERO, |date| times.got.since(date));
    // `Date` has whole seconds, so a part of one is no age.
    let apparent = Span(apparent.0 - apparent.0 % 1_000_000);
    let delay = times.got.since(times.asked);
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
fn guess<H: Headers>(headers: &H, got: Wall) -> Span {
    let Some(changed) = fields::date_of(headers, "last-modified", got) else {
        return Span::ZERO;
    };
    let date = fields::date_of(headers, "date", got).unwrap_or(got);
    let part = Span(date.since(changed).0 / HEURISTIC_PART);
    part.min(HEURISTIC_MAX)
}

/// The answer says that there is no such thing.
pub(super) fn is_absence(status: u16) -> bool {
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

fn at_most(at: Wall) -> Wall {
    at.min(FOREVER)
}
