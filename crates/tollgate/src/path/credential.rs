//! The credential stage: which key or token is sent with this attempt?
//!
//! Promises: picks the key of a pool that has room for the call first, and among those the one
//! with the largest part of its tightest limit; suspends a rejected key while others
//! serve. A client's own credential wins where the provider file says so, and is counted by its
//! fingerprint. A 401 renews the token once per call; a second 401 goes to the caller.
//!
//! Never: adds a key to a request. Only `send` does. Never chooses a key for an origin that the policy
//! does not name.

use std::cmp::Reverse;

use tollgate_config::provider::Per;
use tollgate_core::feedback::LimitVerdict;
use tollgate_core::health::Class;
use tollgate_core::limit::CellView;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Span;
use tollgate_ledger::{PeekQuery, PeekReply};

use super::response::{self, AttemptError, UpstreamResponse};
use super::retry::RetryState;
use super::route::Route;
use super::{token, unsendable};
use crate::Error;
use crate::credentials::{Credential, CredentialSource, HeldToken, fingerprint};
use crate::event::{Event, KeyRejection, KeySuspension};
use crate::providers::{CompiledPolicy, LimitBinding};

/// How long a rejected key is suspended if the provider does not say: long enough not to annoy,
/// short enough that a fixed account serves again the same day.
const SUSPEND_FOR: Span = Span::from_secs(300);

/// Chooses the credential of an attempt.
pub(crate) async fn choose(route: &Route, policy: &CompiledPolicy) -> Result<Credential, Error> {
    route.request.reject_if_moved(policy)?;
    unsendable::check_headers(route, policy)?;
    if !route.request.uses_own_key(policy) {
        unsendable::check_account(route, policy)?;
        return Ok(Credential {
            source: CredentialSource::Client,
            fingerprint: route
                .request
                .client_credential(policy)
                .as_deref()
                .map(|key| fingerprint(key).into()),
        });
    }
    if !policy.accounts.is_empty() {
        return with_token(route, policy).await;
    }
    let index = best_key(route, policy).await;
    unsendable::check_key(policy, index)?;
    Ok(Credential {
        source: CredentialSource::Key(index),
        fingerprint: policy.key_fingerprint(index).cloned(),
    })
}

/// The token of the key that is free first. If its login is rejected, the token of the next key.
async fn with_token(route: &Route, policy: &CompiledPolicy) -> Result<Credential, Error> {
    let mut remaining = policy.accounts.len();
    loop {
        let index = best_key(route, policy).await;
        let Some(account) = policy.accounts.get(index).or(policy.accounts.first()) else {
            return Err(unsendable::account_missing(policy));
        };
        remaining = remaining.saturating_sub(1);
        match token::acquire(&route.subject, policy, account).await {
            Ok(held) => {
                return Ok(Credential {
                    source: CredentialSource::Token(held),
                    fingerprint: Some(account.fingerprint.clone()),
                });
            }
            Err(Error::NoCredential { why, .. }) if why.is_permanent() && remaining > 0 => {
                suspend_key(
                    route,
                    policy,
                    (&account.fingerprint, KeyRejection::Login),
                    None,
                );
            }
            Err(error) => return Err(error),
        }
    }
}

/// Applies what a response says about its credential. `OtherKey`: the call is made again with
/// another one.
pub(crate) async fn on_response(
    route: &Route,
    policy: &CompiledPolicy,
    credential: &Credential,
    retries: &mut RetryState,
    response: UpstreamResponse,
) -> Result<UpstreamResponse, AttemptError> {
    let has_next = match &credential.source {
        CredentialSource::Client => false,
        CredentialSource::Token(held) => {
            renews_token(route, held, retries, &response)
                || switches_key(route, policy, credential, retries, &response).await
        }
        CredentialSource::Key(_) => {
            switches_key(route, policy, credential, retries, &response).await
        }
    };
    // The provider did not carry out a rejected call, so any method may be repeated.
    if !has_next || !route.request.payload.is_resendable() {
        return Ok(response);
    }
    // The next key's failure is the same call's: health counts a call once.
    retries.permits.has_failed |= response.class.is_failure();
    // On the heap: every call's future would otherwise grow by its size.
    Box::pin(response::discard(response)).await;
    Err(AttemptError::OtherKey)
}

/// A 401 renews the token, once per call.
fn renews_token(
    route: &Route,
    held: &HeldToken,
    retries: &mut RetryState,
    response: &UpstreamResponse,
) -> bool {
    let is_rejected = response.head.status.as_u16() == 401;
    let now = route.subject.provider.ledger.at();
    if retries.token_renewed {
        held.on_retry_response(is_rejected, now, route.subject.provider.health.roll_dice());
        return false;
    }
    retries.token_renewed = is_rejected && held.rejected(now);
    retries.token_renewed
}

/// Suspends a rejected key of a pool. Is another one free?
async fn switches_key(
    route: &Route,
    policy: &CompiledPolicy,
    credential: &Credential,
    retries: &mut RetryState,
    response: &UpstreamResponse,
) -> bool {
    let Some(fingerprint) = credential
        .fingerprint
        .as_deref()
        .filter(|_| policy.key_count() > 1)
    else {
        return false;
    };
    let status = response.head.status.as_u16();
    let is_token = matches!(credential.source, CredentialSource::Token(_));
    let rejection = match response.verdict {
        // The key's quota or bill, as the provider reports it.
        LimitVerdict::Spent => Some(KeyRejection::Spent(status)),
        LimitVerdict::Limited | LimitVerdict::Overloaded | LimitVerdict::Passed => {
            let is_unauthorized = status == 401 && !is_token;
            is_unauthorized.then_some(KeyRejection::Unauthorized(status))
        }
    };
    let is_cooling = response.class == Class::Limited && policy.cools_per_key();
    if let Some(why) = rejection {
        suspend_key(route, policy, (fingerprint, why), response.retry_after);
    }
    if !(rejection.is_some() || is_cooling) || retries.key_switches + 1 >= policy.key_count() {
        return false;
    }
    retries.key_switches += 1;
    let next = best_of_pool(route, policy).await;
    next.is_some_and(|(_, next)| next.after == Span::ZERO)
}

/// Sets a key aside: for as long as the provider says, and says so.
fn suspend_key(
    route: &Route,
    policy: &CompiledPolicy,
    (fingerprint, why): (&str, KeyRejection),
    reported: Option<Span>,
) {
    let provider = &route.subject.provider;
    let lasts = reported.unwrap_or(SUSPEND_FOR);
    let until = provider.ledger.at() + lasts;
    let is_known = |known: &str| {
        policy
            .fingerprints()
            .any(|fingerprint| fingerprint == known)
    };
    let keys = &provider.suspended_keys;
    keys.suspend(fingerprint, (until, why), is_known);
    let mut keys = policy.fingerprints();
    if let Some(index) = keys.position(|known| known == fingerprint) {
        let suspension = KeySuspension {
            provider: provider.label(),
            key: index + 1,
            why,
            lasts,
        };
        let event = Event::KeySuspended(Box::new(suspension));
        provider.events.emit(event);
    }
}

/// When a key may be used, and what remains of its tightest limit, in thousandths of it: limits of
/// calls and of tokens compare only so.
#[derive(Debug, PartialEq, Eq)]
struct KeyAvailability {
    after: Span,
    remaining_permille: u64,
}

/// The key that has room for the call first; among those the one with most remaining; equal keys
/// take turns.
async fn best_key(route: &Route, policy: &CompiledPolicy) -> usize {
    if policy.key_count() < 2 {
        return 0;
    }
    let best = best_of_pool(route, policy).await;
    best.map_or(0, |(index, _)| index)
}

async fn best_of_pool(route: &Route, policy: &CompiledPolicy) -> Option<(usize, KeyAvailability)> {
    let count = policy.key_count();
    let turn = route.subject.provider.next_key_index();
    let seen = peek_keys(route, policy, count).await;
    let in_turn = (0..count).map(|step| turn.wrapping_add(step) % count);
    let keys = in_turn.filter_map(|index| {
        let seen = seen.get(index)?;
        Some((index, availability(route, policy, index, seen)))
    });
    // The first of equal keys stays: it is its turn.
    keys.reduce(|best, next| {
        if next.1.rank() > best.1.rank() {
            next
        } else {
            best
        }
    })
}

impl KeyAvailability {
    fn rank(&self) -> (Reverse<Span>, u64) {
        (Reverse(self.after), self.remaining_permille)
    }
}

/// The limits and the cool-down of every key of the pool: one peek.
async fn peek_keys(route: &Route, policy: &CompiledPolicy, count: usize) -> Vec<PeekReply> {
    let mut query = PeekQuery::default();
    for index in 0..count {
        let fingerprint = policy.key_fingerprint(index).map(|key| &**key);
        let attributes = route.subject.attributes(fingerprint);
        query.cells.extend(
            key_limits(policy).map(|limit| (limit.cell_of(&attributes), limit.rule.clone())),
        );
        if policy.cools_per_key() {
            let scope = policy.cooldown_scope(route.subject.entity.as_deref(), fingerprint);
            query.scopes.push(scope);
        }
    }
    let of_key = |rows: usize| rows.checked_div(count).unwrap_or(0);
    let (cells, scopes) = (of_key(query.cells.len()), of_key(query.scopes.len()));
    let reply = route.subject.provider.ledger.peek_or_closed(query).await;
    let (mut views, mut pauses) = (reply.cells.into_iter(), reply.scopes.into_iter());
    let mut of_key = |_| PeekReply {
        cells: views.by_ref().take(cells).collect(),
        scopes: pauses.by_ref().take(scopes).collect(),
    };
    (0..count).map(&mut of_key).collect()
}

/// The limits that a key has of its own.
fn key_limits(policy: &CompiledPolicy) -> impl Iterator<Item = &LimitBinding> {
    let limits = policy.limits.iter();
    limits.filter(|limit| limit.is_learned() || limit.per == Per::ApiKey)
}

/// What remains of a limit, in thousandths.
fn permille(view: &CellView) -> u64 {
    let remaining = u128::from(view.remaining) * 1_000 / u128::from(view.limit.max(1));
    u64::try_from(remaining).unwrap_or(u64::MAX).min(1_000)
}

/// Too little remains for a call of this cost. One that costs more than the limit waits for all of
/// it.
fn lacks_room(view: &CellView, cost: u64) -> bool {
    view.remaining < cost.min(view.limit).max(1)
}

fn availability(
    route: &Route,
    policy: &CompiledPolicy,
    index: usize,
    seen: &PeekReply,
) -> KeyAvailability {
    let live = &route.subject.provider;
    let fingerprint = policy.key_fingerprint(index).map(|key| &**key);
    let views = || seen.cells.iter().zip(key_limits(policy));
    let remaining = views().map(|(view, _)| permille(view)).min();
    let attributes = route.subject.attributes(fingerprint);
    let lacks = views().filter(|(view, limit)| {
        let cost = limit.term(&attributes).map_or(1, |term| term.cost);
        lacks_room(view, cost)
    });
    // Unknown: after all others.
    let full = lacks.map(|(view, _)| view.reset_after.unwrap_or(Span(u64::MAX)));
    let suspended = fingerprint.and_then(|fingerprint| live.suspended_keys.until(fingerprint));
    let suspended = suspended.map(|(until, _)| until.since(live.ledger.at()));
    // How long it still cools down after a 429 for this key alone.
    let cooling = seen.scopes.iter().filter_map(|view| match view {
        ScopeView::Closed { remaining } => Some(remaining.unwrap_or(Span(u64::MAX))),
        ScopeView::Paced { remaining, .. } => Some(*remaining),
        ScopeView::Open
        | ScopeView::Probing
        | ScopeView::CacheOnly { .. }
        | ScopeView::Paused { .. } => None,
    });
    let after = full.chain(suspended).chain(cooling);
    KeyAvailability {
        after: after.max().unwrap_or(Span::ZERO),
        remaining_permille: remaining.unwrap_or(1_000),
    }
}
