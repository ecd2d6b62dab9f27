//! `GET /v1/check`: forward-auth for nginx, Traefik and Caddy, and the status of a guard.
//!
//! A proxy asks for each request that it holds. Without `guard`, every configured guard that applies
//! to the request is asked: its path is that of `X-Original-URI` or `X-Forwarded-Uri`, its address
//! that of `X-Forwarded-For` if the proxy is trusted, its headers are those that the proxy passes on.
//!
//! Promises: 200, or `deny_status` (429; nginx needs 401 or 403), each with the rate headers. A client
//! cannot choose its guard.
//!
//! Never: waits for tokens.

use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::fields::{RequestFields, wrong};
use super::{DecisionCall, add_rate_headers, decision_header, respond, seconds_up};
use crate::api::ApiError;
use crate::decisions::{DecisionError, Decisions, GuardRequest};
use crate::guards::{GuardAsk, GuardDenied, GuardVerdict, GuardedRequest};

/// Where a proxy writes the URI of the request that it holds.
const HELD_URIS: [&str; 2] = ["x-original-uri", "x-forwarded-uri"];

pub(super) async fn serve(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
) -> Result<Response, ApiError> {
    let known = ["guard", "identifier", "deny_status"];
    let fields = if has_clients_query(call) {
        RequestFields::new(Map::new(), &known)?
    } else {
        RequestFields::of_query(call.uri, &known)?
    };
    let deny_status = deny_status(&fields)?;
    let asks = asks(decisions, call, &fields)?;
    let verdict = decisions.check(&asks).await?;
    Ok(reply(decisions, &verdict, deny_status))
}

/// `GET /v1/guards/{class}?identifier=`.
pub(super) async fn status(
    decisions: &Decisions,
    class: &str,
    uri: &Uri,
) -> Result<Response, ApiError> {
    let fields = RequestFields::of_query(uri, &["identifier"])?;
    let identifier = fields.name("identifier")?;
    let status = decisions.guard_status(class, identifier.as_deref());
    let status = status.await?;
    let body = json!({
        "tokens_available": decimals(status.micro_tokens, 1_000_000),
        "tokens_per_minute": status.tokens_per_minute,
        "burst_size": status.burst,
        "last_refill": decimals(status.last_refill.0 / 1_000, 1_000),
    });
    Ok(respond(StatusCode::OK, &body, None))
}

fn asks(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
    fields: &RequestFields,
) -> Result<Vec<GuardAsk>, ApiError> {
    let identifier = fields.name("identifier")?;
    let guards = decisions.guards();
    let ip = guards.client_ip(call.asker.peer, call.headers);
    let path = original_path(call.headers)?;
    let request = |names| GuardedRequest {
        guards: names,
        path: &path,
        is_exact: true,
        ip,
        headers: call.headers,
    };
    let asks = match fields.name("guard")? {
        Some(guard) if identifier.is_some() => {
            let request = GuardRequest {
                guard,
                identifier,
                cost: 1,
            };
            decisions.guard_asks(&[request])?
        }
        Some(guard) => {
            let names = [guard];
            let asks = guards.asks_of(&request(Some(&names)));
            asks.map_err(DecisionError::from)?
        }
        None if identifier.is_some() => {
            return Err(ApiError::bad_request(
                "`identifier` belongs to a guard, and the request names none",
                "send `guard` too, or leave `identifier` out",
            ));
        }
        None => guards
            .asks_of(&request(None))
            .map_err(DecisionError::from)?,
    };
    decisions.allow_guards(call.asker.caller_name(), asks.iter().map(GuardAsk::guard))?;
    Ok(asks)
}

/// Caddy adds the query of the request that it holds to a `uri` without one: then the client must not
/// choose its guard with it.
fn has_clients_query(call: &DecisionCall<'_>) -> bool {
    let Some(query) = call.uri.query() else {
        return false;
    };
    let mut held = HELD_URIS
        .iter()
        .flat_map(|name| call.headers.get_all(*name));
    held.any(|uri| {
        let uri = uri.as_bytes();
        let at = uri.iter().position(|byte| *byte == b'?');
        at.and_then(|at| uri.get(at + 1..)) == Some(query.as_bytes())
    })
}

fn deny_status(fields: &RequestFields) -> Result<StatusCode, ApiError> {
    let Some(text) = fields.name("deny_status")? else {
        return Ok(StatusCode::TOO_MANY_REQUESTS);
    };
    let status = text
        .parse()
        .ok()
        .filter(|status| (400..=599).contains(status));
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    status.ok_or_else(|| wrong("deny_status", "a status from 400 to 599"))
}

/// The path of the request that the proxy holds. A client may add the header that its proxy does not
/// set, to look exempt: two different paths are rejected.
fn original_path(headers: &HeaderMap) -> Result<String, ApiError> {
    let uris = HELD_URIS.iter().flat_map(|name| headers.get_all(*name));
    let mut paths = uris.map(|uri| {
        let path = uri
            .to_str()
            .ok()
            .and_then(|uri| uri.split(['?', '#']).next());
        path.filter(|path| path.starts_with('/')).unwrap_or("/")
    });
    let path = paths.next().unwrap_or("/");
    if paths.any(|other| other != path) {
        return Err(ApiError::bad_request(
            "X-Original-URI and X-Forwarded-Uri name two paths",
            "let the proxy set one of them and remove the other",
        ));
    }
    Ok(path.to_owned())
}

/// What the caller of a proxy gets when a guard rejects its request.
pub(crate) fn guard_denial(denied: &GuardDenied) -> Value {
    let mut body = json!({
        "granted": false,
        "error": denied.code(),
        "message": denied.message(),
        "hint": denied.hint(),
        "guard": denied.class.name(),
        "limit": denied.class.limit_name(),
        "reason": denied.reason(),
        "retry_in": denied.retry_in.map(seconds_up),
    });
    if let Some(id) = &denied.id {
        body["id"] = json!(**id);
    }
    body
}

fn reply(decisions: &Decisions, verdict: &GuardVerdict, deny_status: StatusCode) -> Response {
    let mut response = match &verdict.denied {
        None => respond(StatusCode::OK, &json!({ "granted": true }), None),
        Some(denied) => respond(deny_status, &guard_denial(denied), denied.retry_in),
    };
    let decision = if verdict.denied.is_some() {
        "reject"
    } else {
        "allow"
    };
    let id = verdict
        .denied
        .as_ref()
        .and_then(|denied| denied.id.as_deref());
    super::add_id(&mut response, id);
    decision_header(&mut response, decision);
    add_rate_headers(decisions, &mut response, verdict);
    response
}

/// A number with decimals, for showing.
#[expect(clippy::cast_precision_loss, reason = "a number that is only shown")]
fn decimals(amount: u64, per_unit: u32) -> f64 {
    amount as f64 / f64::from(per_unit)
}
