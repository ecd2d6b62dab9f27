//! The credential stage: which key goes with this attempt?
//!
//! Promises: of a pool, the key that is free first; a client's own credential wins where the file
//! says so, and is counted by its fingerprint. A key leaves this module only as an index.
//!
//! Never: adds a key to a request. `send` does, and only there.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tollgate_config::provider::{Per, Style};
use tollgate_core::time::Span;

use super::query;
use super::route::Route;
use crate::Error;
use crate::shop::{Plan, mark};

/// The credential of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credential {
    /// Whose key it is.
    pub(crate) whose: Whose,
    /// Its name in cells; `None` if there is none at all.
    pub(crate) mark: Option<String>,
}

/// Whose key a call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// What the client sent, or nothing.
    Clients,
    /// The key with this index in the pool.
    Ours(usize),
}

/// Chooses the credential of an attempt.
pub(crate) fn choose(route: &Route, plan: &Plan) -> Result<Credential, Error> {
    let needs = match &plan.provider.auth.style {
        Style::OAuth2(_) => Some("a token of OAuth 2"),
        Style::Login(_) => Some("a login"),
        Style::Nothing
        | Style::Query { .. }
        | Style::Header { .. }
        | Style::Bearer
        | Style::Basic => None,
    };
    if let Some(needs) = needs {
        let provider = route.live.name.clone();
        return Err(Error::NoCredential { provider, needs });
    }
    if !is_ours(route, plan) {
        return Ok(Credential {
            whose: Whose::Clients,
            mark: theirs(route, plan).as_deref().map(mark),
        });
    }
    let index = freest(route, plan);
    Ok(Credential {
        whose: Whose::Ours(index),
        mark: plan.keys.get(index).map(|key| key.mark.clone()),
    })
}

/// Will a key of ours go with the call?
pub(crate) fn is_ours(route: &Route, plan: &Plan) -> bool {
    let auth = &plan.provider.auth;
    let has_own = !plan.keys.is_empty() && !matches!(auth.style, Style::Nothing) && route.is_own;
    has_own && (auth.replace || theirs(route, plan).is_none())
}

fn theirs(route: &Route, plan: &Plan) -> Option<String> {
    let style = &plan.provider.auth.style;
    sent(style, &route.headers, route.query.as_deref())
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

/// The key with most left of its tightest limit; where none has anything, the one that is free
/// first; among equals they take turns.
fn freest(route: &Route, plan: &Plan) -> usize {
    let count = plan.keys.len();
    if count < 2 {
        return 0;
    }
    let turn = route.live.next_turn();
    let meters: Vec<_> = plan
        .meters
        .iter()
        .filter(|meter| meter.per == Per::ApiKey && meter.counts_calls())
        .collect();
    let left = |index: usize| {
        let who = route.who(plan.keys.get(index).map(|key| key.mark.as_str()));
        let cells: Vec<_> = meters
            .iter()
            .map(|meter| (meter.cell_of(&who), meter.rule.clone()))
            .collect();
        let views = route.live.ledger.look(&cells);
        let remaining = views.iter().map(|view| view.remaining).min();
        let frees = views.iter().filter_map(|view| view.reset_after).max();
        (
            remaining.unwrap_or(u64::MAX),
            std::cmp::Reverse(frees.unwrap_or(Span::ZERO)),
        )
    };
    let order = (0..count).map(|step| (turn + step) % count);
    // `max_by_key` keeps the last of equals, so the one whose turn it is comes last.
    order.rev().max_by_key(|index| left(*index)).unwrap_or(0)
}
