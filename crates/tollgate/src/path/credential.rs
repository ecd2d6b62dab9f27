//! The credential stage: which key or token goes with this attempt?
//!
//! Promises: of a pool, the key that is free first; one that was refused goes aside while others
//! serve. A client's own credential wins where the file says so, and is counted by its fingerprint.
//! A token that met a 401 is renewed once for the call; a second 401 is the caller's.
//!
//! Never: adds a key to a request. `send` does, and only there.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use tollgate_config::provider::{AuthStyle, Per};
use tollgate_core::feedback::LimitVerdict;
use tollgate_core::health::Class;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};

use super::learn::UpstreamResponse;
use super::query;
use super::retry::{self, AttemptError, RetryState};
use super::route::Route;
use super::token::{self, HeldToken};
use crate::Error;
use crate::event::LogEvent;
use crate::providers::{CompiledPolicy, fingerprint};

/// How long a refused key is left alone where the provider does not say: long enough not to annoy,
/// short enough that a repaired account serves again the same day.
const SUSPEND_FOR: Span = Span::from_secs(300);

/// The credential of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    /// Whose key it is.
    pub(crate) source: CredentialSource,
    /// Its name in cells; `None` if there is none at all.
    pub(crate) fingerprint: Option<Arc<str>>,
}

/// Whose key a call carries.
#[derive(Clone, Debug)]
pub(crate) enum CredentialSource {
    /// What the client sent, or nothing.
    Client,
    /// The key with this index in the pool.
    Key(usize),
    /// A token of a login.
    Token(HeldToken),
}

/// Keys that were refused, by mark, and until when they are left alone.
#[derive(Debug, Default)]
pub(crate) struct SuspendedKeys {
    until: Mutex<HashMap<String, Micros>>,
}

/// Chooses the credential of an attempt.
pub(crate) async fn choose(route: &Route, plan: &CompiledPolicy) -> Result<Credential, Error> {
    if !uses_own_key(route, plan) {
        return Ok(Credential {
            source: CredentialSource::Client,
            fingerprint: client_credential(route, plan)
                .as_deref()
                .map(|key| fingerprint(key).into()),
        });
    }
    if !plan.accounts.is_empty() {
        return with_token(route, plan).await;
    }
    let index = best_key(route, plan).await;
    Ok(Credential {
        source: CredentialSource::Key(index),
        fingerprint: fingerprint_of(plan, index).cloned(),
    })
}

/// The marks of all keys and accounts of ours.
pub(crate) fn fingerprints(plan: &CompiledPolicy) -> impl Iterator<Item = &str> {
    (0..key_count(plan)).filter_map(|index| Some(&**fingerprint_of(plan, index)?))
}

/// Will a key of ours go with the call?
pub(crate) fn uses_own_key(route: &Route, plan: &CompiledPolicy) -> bool {
    let auth = &plan.provider.auth;
    let has_own =
        key_count(plan) > 0 && !matches!(auth.style, AuthStyle::None) && route.is_own_origin;
    has_own && (auth.replace || client_credential(route, plan).is_none())
}

fn client_credential(route: &Route, plan: &CompiledPolicy) -> Option<String> {
    let style = &plan.provider.auth.style;
    find_client_credential(style, &route.headers, route.query.as_deref())
}

/// The token of the key that is free first; where its login is refused, that of the next.
async fn with_token(route: &Route, plan: &CompiledPolicy) -> Result<Credential, Error> {
    let mut left = plan.accounts.len();
    loop {
        let index = best_key(route, plan).await;
        let Some(account) = plan.accounts.get(index).or(plan.accounts.first()) else {
            return Err(Error::Malformed(
                "the provider has no account to log in with",
            ));
        };
        left = left.saturating_sub(1);
        match token::acquire(route, plan, account).await {
            Ok(held) => {
                return Ok(Credential {
                    source: CredentialSource::Token(held),
                    fingerprint: Some(account.fingerprint.clone()),
                });
            }
            Err(Error::NoCredential { why, .. }) if why.is_permanent() && left > 0 => {
                suspend_key(route, plan, &account.fingerprint, None);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What an answer says about its credential. `OtherKey`: the call is made with another one.
pub(crate) async fn on_response(
    route: &Route,
    plan: &CompiledPolicy,
    credential: &Credential,
    tries: &mut RetryState,
    answered: UpstreamResponse,
) -> Result<UpstreamResponse, AttemptError> {
    let has_next = match &credential.source {
        CredentialSource::Client => false,
        CredentialSource::Token(held) => {
            renews_token(route, held, tries, &answered)
                || switches_key(route, plan, credential, tries, &answered).await
        }
        CredentialSource::Key(_) => switches_key(route, plan, credential, tries, &answered).await,
    };
    // A refused call was not carried out, so whatever it was, it may be made again.
    if !has_next || !route.payload.is_resendable() {
        return Ok(answered);
    }
    // On the heap: its size would be that of every call.
    Box::pin(retry::discard(answered)).await;
    Err(AttemptError::OtherKey)
}

/// A 401 asks for a new token, once for each call.
fn renews_token(
    route: &Route,
    held: &HeldToken,
    tries: &mut RetryState,
    answered: &UpstreamResponse,
) -> bool {
    let is_refused = answered.head.status.as_u16() == 401;
    let now = route.provider.ledger.at();
    if tries.token_renewed {
        held.on_retry_response(is_refused, now, route.provider.health.roll_dice());
        return false;
    }
    tries.token_renewed = is_refused && held.rejected(now);
    tries.token_renewed
}

/// A key of a pool that was refused goes aside. Is there another that is free?
async fn switches_key(
    route: &Route,
    plan: &CompiledPolicy,
    credential: &Credential,
    tries: &mut RetryState,
    answered: &UpstreamResponse,
) -> bool {
    let Some(mark) = credential
        .fingerprint
        .as_deref()
        .filter(|_| key_count(plan) > 1)
    else {
        return false;
    };
    let status = answered.head.status.as_u16();
    let is_token = matches!(credential.source, CredentialSource::Token(_));
    let is_refused = match answered.verdict {
        // The key's quota or its bill, in the provider's own words.
        LimitVerdict::Spent => true,
        LimitVerdict::Limited | LimitVerdict::Overloaded | LimitVerdict::Passed => {
            status == 401 && !is_token
        }
    };
    let is_cooling = answered.class == Class::Limited && plan.cools_per_key();
    if is_refused {
        let provider = &route.provider.name;
        LogEvent::KeySuspended { provider, status }.emit();
        suspend_key(route, plan, mark, answered.retry_after);
    }
    if !(is_refused || is_cooling) || tries.key_switches + 1 >= key_count(plan) {
        return false;
    }
    tries.key_switches += 1;
    let next = best_key(route, plan).await;
    availability(route, plan, next).await.after == Span::ZERO
}

fn suspend_key(route: &Route, plan: &CompiledPolicy, mark: &str, told: Option<Span>) {
    let until = route.provider.ledger.at() + told.unwrap_or(SUSPEND_FOR);
    let mut aside = route.provider.suspended_keys.until.lock();
    // Bounded by the pool: keys of former files go.
    aside.retain(|known, _| fingerprints(plan).any(|mark| mark == known));
    aside.insert(mark.to_owned(), until);
}

/// The credential that the client sent itself, where this provider expects one.
fn find_client_credential(
    style: &AuthStyle,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Option<String> {
    let header = |name: &str| {
        let value = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    match style {
        AuthStyle::Query { name } => query::find(query?, name),
        AuthStyle::Header { name, .. } => header(name),
        AuthStyle::Bearer
        | AuthStyle::Basic
        | AuthStyle::None
        | AuthStyle::OAuth2(_)
        | AuthStyle::Login(_) => header(AUTHORIZATION.as_str()),
    }
}

/// How many keys there are to choose from.
fn key_count(plan: &CompiledPolicy) -> usize {
    plan.accounts.len().max(match plan.provider.auth.style {
        // Without an account its keys are of no use.
        AuthStyle::OAuth2(_) | AuthStyle::Login(_) => 0,
        AuthStyle::None
        | AuthStyle::Query { .. }
        | AuthStyle::Header { .. }
        | AuthStyle::Bearer
        | AuthStyle::Basic => plan.keys.len(),
    })
}

/// A key's name in cells.
fn fingerprint_of(plan: &CompiledPolicy, index: usize) -> Option<&Arc<str>> {
    let of_source = plan.accounts.get(index).map(|account| &account.fingerprint);
    of_source.or_else(|| plan.keys.get(index).map(|key| &key.fingerprint))
}

/// When a key may be used, and how much of its tightest limit is left.
struct KeyAvailability {
    after: Span,
    remaining: u64,
}

/// The key that is free first; of those that are free, the one with most left; among equals they
/// take turns.
async fn best_key(route: &Route, plan: &CompiledPolicy) -> usize {
    let count = key_count(plan);
    if count < 2 {
        return 0;
    }
    let turn = route.provider.next_key_index();
    let mut best = None;
    for step in 0..count {
        let index = turn.wrapping_add(step) % count;
        let KeyAvailability { after, remaining } = availability(route, plan, index).await;
        let rank = (Reverse(after), remaining);
        // Of equals the first one stays: it is its turn.
        if best.is_none_or(|(first, _)| rank > first) {
            best = Some((rank, index));
        }
    }
    best.map_or(0, |(_, index)| index)
}

async fn availability(route: &Route, plan: &CompiledPolicy, index: usize) -> KeyAvailability {
    let (live, mark) = (
        &route.provider,
        fingerprint_of(plan, index).map(|mark| &**mark),
    );
    let who = route.who(mark);
    let cells: Vec<_> = plan
        .limits
        .iter()
        .filter(|meter| meter.per == Per::ApiKey && meter.counts_calls())
        .map(|meter| (meter.cell_of(&who), meter.rule.clone()))
        .collect();
    let views = live.ledger.peek(cells).await;
    let remaining = views.iter().map(|view| view.remaining).min();
    let empty = views.iter().filter(|view| view.remaining == 0);
    // Nobody knows when: after all others.
    let full = empty.map(|view| view.reset_after.unwrap_or(Span(u64::MAX)));
    let aside = mark.and_then(|mark| live.suspended_keys.until.lock().get(mark).copied());
    let aside = aside.map(|until| until.since(live.ledger.at()));
    let after = full
        .chain(aside)
        .chain(cooldown_remaining(route, plan, mark).await);
    KeyAvailability {
        after: after.max().unwrap_or(Span::ZERO),
        remaining: remaining.unwrap_or(u64::MAX),
    }
}

/// How long a key still rests after a refusal that was about it alone.
async fn cooldown_remaining(
    route: &Route,
    plan: &CompiledPolicy,
    mark: Option<&str>,
) -> Option<Span> {
    if !plan.cools_per_key() {
        return None;
    }
    let scope = plan.cooldown_scope(route.entity.as_deref(), mark);
    match route.provider.ledger.peek_scope(scope).await {
        ScopeView::Closed { remaining: left } => Some(left.unwrap_or(Span(u64::MAX))),
        ScopeView::Open | ScopeView::Probing | ScopeView::CacheOnly { .. } => None,
    }
}
