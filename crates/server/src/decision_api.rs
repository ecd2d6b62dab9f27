//! The decision service over HTTP: `/v1/acquire`, `report`, `release`, `renew`, `capacity`, `check`.
//!
//! The same calls on two addresses: the admin address (`/v1/…`) and, for callers with a token, the
//! gateway's (`/-/v1/…`).
//!
//! Promises: JSON in snake_case, times in seconds with three decimals, rounded up where they say when
//! to come back. A denial is 429 with `Retry-After`, replies about guards have their rate headers; a mistake is a 4xx that names the field and the
//! remedy, and nothing was counted.
//!
//! Never: decides, or repeats a value that was sent; it may be a key.

mod acquire;
mod acquire_reply;
mod capacity;
mod check;
mod fields;
mod report;
pub(crate) use acquire::ASK_FIELDS;
pub(crate) use check::guard_denial;
pub(crate) use fields::{NAME_MAX, RequestFields, URL_MAX, wrong};

use std::net::{IpAddr, Ipv4Addr};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tollgate::path::Rates;
use tollgate::rate_headers;
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::api::{ApiError, json};
use crate::decisions::{DecisionError, Decisions, LimitSummary};
use crate::guards::{self, GuardVerdict};
use crate::rejection;
use tollgate::period::period_text;

/// The largest reply: a decision has a few hundred bytes.
pub(crate) const REPLY_MAX: usize = 64 * 1_024;

/// The methods of `/v1/check`: those of requests that a proxy may hold.
pub(crate) const CHECK_METHODS: &str = "GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS";

/// How long a decision waited, beside its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited(pub(crate) Span);

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    /// The address of the connection.
    pub(crate) peer: IpAddr,
    /// A caller that its token has authenticated: it asks for itself only. `None`: the operator, whom
    /// the admin address has let in, asks for any caller.
    pub(crate) caller: Option<(String, Secret)>,
}

impl Asker {
    /// The caller, unless it is the operator.
    pub(crate) fn caller_name(&self) -> Option<&str> {
        self.caller.as_ref().map(|(name, _)| name.as_str())
    }
}

/// One request to the decision service.
#[derive(Debug)]
pub(crate) struct DecisionCall<'a> {
    pub(crate) asker: Asker,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
}

/// Serves one of the decision calls; `path` is its path below the prefix of the address.
pub(crate) async fn serve(
    decisions: &Decisions,
    call: DecisionCall<'_>,
    method: &Method,
    path: &str,
    body: Body,
) -> Response {
    let is_get = matches!(*method, Method::GET | Method::HEAD);
    let done = match path {
        "/v1/acquire" if *method == Method::POST => {
            acquire::serve(decisions, &call, body, None).await
        }
        "/v1/report" if *method == Method::POST => report::report(decisions, &call, body).await,
        "/v1/release" if *method == Method::POST => report::release(decisions, &call, body).await,
        "/v1/renew" if *method == Method::POST => report::renew(decisions, &call, body).await,
        "/v1/capacity" if is_get => capacity::serve(decisions, &call).await,
        // Proxies ask with the method of the request that they hold.
        "/v1/check" if is_held(method) => check::serve(decisions, &call).await,
        "/v1/acquire" | "/v1/report" | "/v1/release" | "/v1/renew" => {
            Err(ApiError::wrong_method("POST"))
        }
        "/v1/capacity" => Err(ApiError::wrong_method("GET,HEAD")),
        "/v1/check" => Err(ApiError::wrong_method(CHECK_METHODS)),
        _ => Err(ApiError::unknown_decision()),
    };
    done.unwrap_or_else(IntoResponse::into_response)
}

/// `/v1/acquire` on an address with so many places for requests that wait.
pub(crate) async fn acquire(
    decisions: &Decisions,
    call: DecisionCall<'_>,
    method: &Method,
    body: Body,
    places: &Semaphore,
) -> Response {
    if *method != Method::POST {
        return ApiError::wrong_method("POST").into_response();
    }
    let done = acquire::serve(decisions, &call, body, Some(places)).await;
    done.unwrap_or_else(IntoResponse::into_response)
}

/// Is it a method of a request that a proxy may hold?
fn is_held(method: &Method) -> bool {
    CHECK_METHODS.split(',').any(|name| name == method.as_str())
}

impl Decisions {
    /// A decision call without a socket, for programs that hold the service themselves: the same
    /// replies as over HTTP. `path` is such as `/v1/capacity?provider=tmdb`.
    pub async fn ask_over_http(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let (uri, headers) = (path.parse::<Uri>(), HeaderMap::new());
        let Ok(uri) = uri else {
            return into_json(ApiError::unreadable(StatusCode::BAD_REQUEST).into_response()).await;
        };
        let asker = Asker {
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            caller: None,
        };
        let call = DecisionCall {
            asker,
            uri: &uri,
            headers: &headers,
        };
        let body = Body::from(body.map(ToString::to_string).unwrap_or_default());
        into_json(serve(self, call, &method, uri.path(), body).await).await
    }
}

async fn into_json(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), REPLY_MAX).await;
    let body = serde_json::from_slice(&bytes.unwrap_or_default());
    (status, body.unwrap_or_default())
}

/// `GET /v1/guards/{class}?identifier=`.
pub(crate) async fn guard_status(
    decisions: &Decisions,
    class: &str,
    uri: &Uri,
) -> Result<Response, ApiError> {
    check::status(decisions, class, uri).await
}

impl From<DecisionError> for ApiError {
    fn from(error: DecisionError) -> ApiError {
        let (status, code) = match &error {
            DecisionError::Call(call) => (call.status(), rejection::code(call)),
            DecisionError::Guard(guards::GuardError::Unknown { .. }) => {
                (StatusCode::NOT_FOUND, "UnknownGuard")
            }
            DecisionError::Guard(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            DecisionError::GuardNotAllowed { .. } => (StatusCode::FORBIDDEN, "CallerNotAllowed"),
            DecisionError::UnknownPermit => (StatusCode::NOT_FOUND, "UnknownPermit"),
            DecisionError::AlreadyReleased => (StatusCode::CONFLICT, "AlreadyReleased"),
            DecisionError::AlreadyReported => (StatusCode::CONFLICT, "AlreadyReported"),
        };
        ApiError::mistake(status, code, &error.to_string(), &error.hint())
    }
}

/// A JSON response with a status, and the time to come back.
pub(crate) fn respond(
    status: StatusCode,
    body: &impl Serialize,
    retry_in: Option<Span>,
) -> Response {
    let mut response = json(body);
    *response.status_mut() = status;
    if let Some(wait) = retry_in {
        rejection::add_retry_after(response.headers_mut(), wait);
    }
    response
}

/// The id of a denial, which `tollgate why` explains. On the gateway it replaces that of the request.
#[derive(Clone, Debug)]
pub(crate) struct DeniedId(pub(crate) HeaderValue);

fn add_id(response: &mut Response, id: Option<&str>) {
    let id = id.and_then(|id| HeaderValue::from_str(id).ok());
    if let Some(id) = id {
        response.headers_mut().insert("x-tollgate-id", id.clone());
        response.extensions_mut().insert(DeniedId(id));
    }
}

fn decision_header(response: &mut Response, decision: &'static str) {
    let headers = response.headers_mut();
    headers.insert("x-tollgate-decision", HeaderValue::from_static(decision));
}

/// The rate headers of the guards that were asked: a middleware needs no second request for them.
fn add_rate_headers(decisions: &Decisions, response: &mut Response, verdict: &GuardVerdict) {
    let (headers, wall) = (response.headers_mut(), decisions.guards().wall());
    rate_headers::add_guards(headers, verdict, &Rates::default(), wall);
}

/// The limit of a decision.
#[derive(Serialize)]
struct LimitReply<'a> {
    name: &'a str,
    limit: Option<u64>,
    period: Option<String>,
    scope: &'a str,
}

impl<'a> From<&'a LimitSummary> for LimitReply<'a> {
    fn from(limit: &'a LimitSummary) -> LimitReply<'a> {
        LimitReply {
            name: &limit.name,
            limit: limit.limit,
            period: limit.period.map(period_text),
            scope: limit.scope,
        }
    }
}

/// Seconds with three decimals; a time to come back is rounded up.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of 285 000 years are exact"
)]
pub(crate) fn seconds_up(span: Span) -> f64 {
    span.0.div_ceil(1_000) as f64 / 1_000.0
}

/// A time that is over, or must not be exceeded, is rounded down.
fn seconds_down(span: Span) -> f64 {
    seconds_up(Span(span.0 / 1_000 * 1_000))
}
