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
use tollgate_config::provider::{Per, Style};
use tollgate_core::feedback::Verdict;
use tollgate_core::health::Class;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};

use super::learn::Answered;
use super::query;
use super::retry::{self, Ended, Tries};
use super::route::Route;
use super::token::{self, Held};
use crate::Error;
use crate::event::Fact;
use crate::shop::{Plan, mark};

/// How long a refused key is left alone where the provider does not say: long enough not to annoy,
/// short enough that a repaired account serves again the same day.
const ASIDE: Span = Span::from_secs(300);

/// The credential of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    /// Whose key it is.
    pub(crate) whose: Whose,
    /// Its name in cells; `None` if there is none at all.
    pub(crate) mark: Option<Arc<str>>,
}

/// Whose key a call carries.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    /// What the client sent, or nothing.
    Clients,
    /// The key with this index in the pool.
    Ours(usize),
    /// A token of a login.
    Token(Held),
}

/// Keys that were refused, by mark, and until when they are left alone.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    until: Mutex<HashMap<String, Micros>>,
}

/// Chooses the credential of an attempt.
pub(crate) async fn choose(route: &Route, plan: &Plan) -> Result<Credential, Error> {
    if !is_ours(route, plan) {
        return Ok(Credential {
            whose: Whose::Clients,
            mark: theirs(route, plan).as_deref().map(|key| mark(key).into()),
        });
    }
    if !plan.accounts.is_empty() {
        return with_token(route, plan).await;
    }
    let index = freest(route, plan).await;
    Ok(Credential {
        whose: Whose::Ours(index),
        mark: mark_of(plan, index).cloned(),
    })
}

/// The marks of all keys and accounts of ours.
pub(crate) fn marks(plan: &Plan) -> impl Iterator<Item = &str> {
    (0..count(plan)).filter_map(|index| Some(&**mark_of(plan, index)?))
}

/// Will a key of ours go with the call?
pub(crate) fn is_ours(route: &Route, plan: &Plan) -> bool {
    let auth = &plan.provider.auth;
    let has_own = count(plan) > 0 && !matches!(auth.style, Style::Nothing) && route.is_own;
    has_own && (auth.replace || theirs(route, plan).is_none())
}

fn theirs(route: &Route, plan: &Plan) -> Option<String> {
    let style = &plan.provider.auth.style;
    sent(style, &route.headers, route.query.as_deref())
}

/// The token of the key that is free first; where its login is refused, that of the next.
async fn with_token(route: &Route, plan: &Plan) -> Result<Credential, Error> {
    let mut left = plan.accounts.len();
    loop {
        let index = freest(route, plan).await;
        let Some(account) = plan.accounts.get(index).or(plan.accounts.first()) else {
            return Err(Error::Malformed(
                "the provider has no account to log in with",
            ));
        };
        left = left.saturating_sub(1);
        match token::held(route, plan, account).await {
            Ok(held) => {
                return Ok(Credential {
                    whose: Whose::Token(held),
                    mark: Some(account.mark.clone()),
                });
            }
            Err(Error::NoCredential { why, .. }) if why.is_lasting() && left > 0 => {
                set_aside(route, plan, &account.mark, None);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What an answer says about its credential. `OtherKey`: the call is made with another one.
pub(crate) async fn heed(
    route: &Route,
    plan: &Plan,
    credential: &Credential,
    tries: &mut Tries,
    answered: Answered,
) -> Result<Answered, Ended> {
    let has_next = match &credential.whose {
        Whose::Clients => false,
        Whose::Token(held) => {
            has_new_token(route, held, tries, &answered)
                || has_other_key(route, plan, credential, tries, &answered).await
        }
        Whose::Ours(_) => has_other_key(route, plan, credential, tries, &answered).await,
    };
    // A refused call was not carried out, so whatever it was, it may be made again.
    if !has_next || !route.payload.is_left() {
        return Ok(answered);
    }
    // On the heap: its size would be that of every call.
    Box::pin(retry::discard(answered)).await;
    Err(Ended::OtherKey)
}

/// A 401 asks for a new token, once for each call.
fn has_new_token(route: &Route, held: &Held, tries: &mut Tries, answered: &Answered) -> bool {
    let is_refused = answered.head.status.as_u16() == 401;
    let now = route.live.ledger.at();
    if tries.renewed {
        held.judged(is_refused, now, route.live.machine.throw());
        return false;
    }
    tries.renewed = is_refused && held.refused(now);
    tries.renewed
}

/// A key of a pool that was refused goes aside. Is there another that is free?
async fn has_other_key(
    route: &Route,
    plan: &Plan,
    credential: &Credential,
    tries: &mut Tries,
    answered: &Answered,
) -> bool {
    let Some(mark) = credential.mark.as_deref().filter(|_| count(plan) > 1) else {
        return false;
    };
    let status = answered.head.status.as_u16();
    let is_token = matches!(credential.whose, Whose::Token(_));
    let is_refused = match answered.verdict {
        // The key's quota or its bill, in the provider's own words.
        Verdict::Spent => true,
        Verdict::Limited | Verdict::Overloaded | Verdict::Passed => status == 401 && !is_token,
    };
    let is_cooling = answered.class == Class::Refused && plan.cools_by_key();
    if is_refused {
        let provider = &route.live.name;
        Fact::SetAside { provider, status }.tell();
        set_aside(route, plan, mark, answered.retry_after);
    }
    if !(is_refused || is_cooling) || tries.moved + 1 >= count(plan) {
        return false;
    }
    tries.moved += 1;
    let next = freest(route, plan).await;
    frees(route, plan, next).await.after == Span::ZERO
}

fn set_aside(route: &Route, plan: &Plan, mark: &str, told: Option<Span>) {
    let until = route.live.ledger.at() + told.unwrap_or(ASIDE);
    let mut aside = route.live.aside.until.lock();
    // Bounded by the pool: keys of former files go.
    aside.retain(|known, _| marks(plan).any(|mark| mark == known));
    aside.insert(mark.to_owned(), until);
}

/// The credential that the client sent itself, where this provider expects one.
fn sent(style: &Style, headers: &HeaderMap, query: Option<&str>) -> Option<String> {
    let header = |name: &str| {
        let value = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    match style {
        Style::Query { name } => query::find(query?, name),
        Style::Header { name, .. } => header(name),
        Style::Bearer | Style::Basic | Style::Nothing | Style::OAuth2(_) | Style::Login(_) => {
            header(AUTHORIZATION.as_str())
        }
    }
}

/// How many keys there are to choose from.
fn count(plan: &Plan) -> usize {
    plan.accounts.len().max(match plan.provider.auth.style {
        // Without an account its keys are of no use.
        Style::OAuth2(_) | Style::Login(_) => 0,
        Style::Nothing
        | Style::Query { .. }
        | Style::Header { .. }
        | Style::Bearer
        | Style::Basic => plan.keys.len(),
    })
}

/// A key's name in cells.
fn mark_of(plan: &Plan, index: usize) -> Option<&Arc<str>> {
    let of_source = plan.accounts.get(index).map(|account| &account.mark);
    of_source.or_else(|| plan.keys.get(index).map(|key| &key.mark))
}

/// When a key may be used, and how much of its tightest limit is left.
struct Frees {
    after: Span,
    remaining: u64,
}

/// The key that is free first; of those that are free, the one with most left; among equals they
/// take turns.
async fn freest(route: &Route, plan: &Plan) -> usize {
    let count = count(plan);
    if count < 2 {
        return 0;
    }
    let turn = route.live.next_turn();
    let mut best = None;
    for step in 0..count {
        let index = turn.wrapping_add(step) % count;
        let Frees { after, remaining } = frees(route, plan, index).await;
        let rank = (Reverse(after), remaining);
        // Of equals the first one stays: it is its turn.
        if best.is_none_or(|(first, _)| rank > first) {
            best = Some((rank, index));
        }
    }
    best.map_or(0, |(_, index)| index)
}

async fn frees(route: &Route, plan: &Plan, index: usize) -> Frees {
    let (live, mark) = (&route.live, mark_of(plan, index).map(|mark| &**mark));
    let who = route.who(mark);
    let cells: Vec<_> = plan
        .meters
        .iter()
        .filter(|meter| meter.per == Per::ApiKey && meter.counts_calls())
        .map(|meter| (meter.cell_of(&who), meter.rule.clone()))
        .collect();
    let views = live.ledger.look(cells).await;
    let remaining = views.iter().map(|view| view.remaining).min();
    let empty = views.iter().filter(|view| view.remaining == 0);
    // Nobody knows when: after all others.
    let full = empty.map(|view| view.reset_after.unwrap_or(Span(u64::MAX)));
    let aside = mark.and_then(|mark| live.aside.until.lock().get(mark).copied());
    let aside = aside.map(|until| until.since(live.ledger.at()));
    let after = full.chain(aside).chain(cooling(route, plan, mark).await);
    Frees {
        after: after.max().unwrap_or(Span::ZERO),
        remaining: remaining.unwrap_or(u64::MAX),
    }
}

/// How long a key still rests after a refusal that was about it alone.
async fn cooling(route: &Route, plan: &Plan, mark: Option<&str>) -> Option<Span> {
    if !plan.cools_by_key() {
        return None;
    }
    let scope = plan.cooldown_scope(route.entity.as_deref(), mark);
    match route.live.ledger.look_scope(scope).await {
        ScopeView::Closed { left } => Some(left.unwrap_or(Span(u64::MAX))),
        ScopeView::Open | ScopeView::Probing | ScopeView::CacheOnly { .. } => None,
    }
}
