//! `POST /v1/acquire`: a permit for a call, or tokens of guards.
//!
//! Promises: `asks` are guards only, all or none, or one provider.
//!
//! Never: waits longer than the request says, or for a body that does not come. A request takes a
//! place of those who wait only while it waits: one that is decided at once needs none.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tollgate_config::Secret;

use super::acquire_reply::reply;
use super::fields::{RequestFields, wrong};
use super::{Asker, DecisionCall, add_rate_headers};
use crate::api::{ApiError, read_object};
use crate::decisions::{
    AcquireKind, AcquireRequest, Acquired, CallRequest, DecisionError, Decisions, GuardRequest,
};

/// How long a body of at most 64 KiB may take to arrive, as long as a head.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

const EXAMPLE: &str = "{\"provider\": \"tmdb\"}";

/// The fields of one ask.
pub(crate) const ASK_FIELDS: &[&str] = FIELDS.split_at(9).0;

/// The fields of a request: those of its only ask, or `asks`.
const FIELDS: &[&str] = &[
    "provider",
    "url",
    "guard",
    "identifier",
    "entity",
    "priority",
    "cost",
    "tokens",
    "caller",
    "wait",
    "timeout",
    "asks",
];

/// `places`: those of requests that wait; `None` = as many as there are connections.
pub(super) async fn serve(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
    body: Body,
    places: Option<&Semaphore>,
) -> Result<Response, ApiError> {
    RequestFields::no_query(call.uri, FIELDS)?;
    let object = timeout(BODY_TIMEOUT, read_object(body, EXAMPLE)).await;
    let object = object.unwrap_or_else(|_| Err(body_too_slow()))?;
    let fields = RequestFields::new(object, FIELDS)?;
    let request = AcquireRequest {
        wait: fields.boolean("wait")?.unwrap_or(true),
        timeout: fields.span("timeout")?,
        of: acquire_kind(decisions, call, &fields)?,
    };
    let places = places.filter(|_| request.wait);
    let acquired = decide(decisions, request, places).await??;
    let mut response = reply(&acquired);
    if let Some(verdict) = &acquired.guards {
        add_rate_headers(decisions, &mut response, verdict);
    }
    Ok(response)
}

/// Decides at once if it can; else waits, if there is a place for it.
async fn decide(
    decisions: &Decisions,
    request: AcquireRequest,
    places: Option<&Semaphore>,
) -> Result<Result<Acquired, DecisionError>, ApiError> {
    let mut decision = pin!(decisions.acquire(request));
    if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(decision.as_mut().poll(cx))).await {
        return Ok(done);
    }
    let place = places.map(Semaphore::try_acquire).transpose();
    // Without a place it gives up its turn, and nothing was counted.
    let _place = place.map_err(|_| ApiError::too_many_wait())?;
    Ok(decision.await)
}

fn body_too_slow() -> ApiError {
    ApiError::mistake(
        StatusCode::REQUEST_TIMEOUT,
        "TooSlow",
        "the body did not arrive within 10 s",
        "send the whole body at once; nothing was counted",
    )
}

/// What is asked for: one thing, or a list of them.
fn acquire_kind(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
    fields: &RequestFields,
) -> Result<AcquireKind, ApiError> {
    let Some(asks) = fields.get("asks") else {
        return one(decisions, call, fields);
    };
    if ASK_FIELDS.iter().any(|name| fields.has(name)) {
        return Err(ApiError::bad_request(
            "`asks` stands beside fields of a single ask",
            "move them into `asks`; only `wait` and `timeout` stand beside it",
        ));
    }
    let Some(asks) = asks.as_array().filter(|asks| !asks.is_empty()) else {
        let expected = "a list such as [{\"guard\": \"ip\", \"identifier\": \"203.0.113.7\"}]";
        return Err(wrong("asks", expected));
    };
    let mut guards = Vec::new();
    for ask in asks {
        let ask: Map<String, Value> = match ask {
            Value::Object(ask) => ask.clone(),
            _ => return Err(wrong("asks", "a list of objects")),
        };
        match one(decisions, call, &RequestFields::new(ask, ASK_FIELDS)?)? {
            AcquireKind::Guards(more) => guards.extend(more),
            AcquireKind::Call(_) if asks.len() > 1 => {
                return Err(ApiError::bad_request(
                    "a provider stands beside other asks",
                    "ask for guards only, or for one provider, in one request",
                ));
            }
            alone @ AcquireKind::Call(_) => return Ok(alone),
        }
    }
    Ok(AcquireKind::Guards(guards))
}

/// One ask: a guard, or a call.
fn one(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
    fields: &RequestFields,
) -> Result<AcquireKind, ApiError> {
    let Some(guard) = fields.name("guard")? else {
        if fields.has("identifier") {
            return Err(ApiError::bad_request(
                "`identifier` belongs to a guard, and the ask names none",
                "send `guard` too, or leave `identifier` out",
            ));
        }
        return Ok(AcquireKind::Call(call_request(decisions, call, fields)?));
    };
    let of_calls = ["provider", "url", "entity", "priority", "caller"];
    if let Some(other) = of_calls.iter().find(|name| fields.has(name)) {
        return Err(ApiError::bad_request(
            &format!("`{other}` stands beside `guard`"),
            "a guard has `identifier` and `cost` only",
        ));
    }
    decisions.allow_guards(call.asker.caller_name(), [guard.as_str()])?;
    Ok(AcquireKind::Guards(vec![GuardRequest {
        guard,
        identifier: fields.name("identifier")?,
        cost: tokens(&fields.costs()?)?,
    }]))
}

/// The tokens of a guard have no unit.
fn tokens(costs: &[(String, u64)]) -> Result<u64, ApiError> {
    match costs {
        [] => Ok(1),
        [(unit, amount)] if unit == "calls" => Ok(*amount),
        _ => Err(ApiError::bad_request(
            "the cost of a guard has no unit",
            "send a number from 1",
        )),
    }
}

/// The call that a permit is for.
pub(super) fn call_request(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
    fields: &RequestFields,
) -> Result<CallRequest, ApiError> {
    let named = fields.caller()?;
    let (caller, token) = caller(&call.asker, named)?;
    Ok(CallRequest {
        id: decisions.next_id(),
        target: fields.target()?,
        entity: fields.entity()?,
        priority: fields.priority()?,
        costs: fields.costs()?,
        caller,
        token,
        is_operator: call.asker.caller.is_none(),
        ip: Some(decisions.guards().client_ip(call.asker.peer, call.headers)),
    })
}

/// Who calls: the caller that its token has authenticated, or the one that the operator names.
fn caller(
    asker: &Asker,
    named: Option<String>,
) -> Result<(Option<String>, Option<Secret>), ApiError> {
    match (&asker.caller, named) {
        (Some((own, _)), Some(named)) if *own != named => Err(ApiError::mistake(
            StatusCode::FORBIDDEN,
            "CallerNotAllowed",
            "the token belongs to another caller",
            "leave `caller` out, or send the token of that caller",
        )),
        (Some((own, token)), _) => Ok((Some(own.clone()), Some(token.clone()))),
        (None, named) => Ok((named, None)),
    }
}

#[cfg(test)]
#[path = "acquire_tests.rs"]
mod tests;
