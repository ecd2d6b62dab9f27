//! Responses of the API, on every address that has it: always JSON, errors included.
//!
//! Promises: an error names the problem and the next step. A body is read up to its bound and no
//! further.
//!
//! Never: repeats a value of a request; it may be a key.

use axum::body::{Body, to_bytes};
use axum::http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use tollgate::Error;
use tollgate_config::Secret;
use tollgate_core::time::Span;

use crate::rejection;
use crate::unique_json;

/// The largest body: a thousand settings of sixty bytes.
const BODY_MAX: usize = 64 * 1024;

/// When to come back after a shutdown: a restart takes about a second, and clients that come back
/// together should find it done.
pub(crate) const RESTART_SECONDS: u32 = 2;

/// An error response.
#[derive(Debug, Serialize)]
pub(crate) struct ApiError {
    #[serde(skip)]
    status: StatusCode,
    /// The methods of a path that has not this one.
    #[serde(skip)]
    allow: Option<&'static str>,
    error: &'static str,
    message: Box<str>,
    hint: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// In seconds; `Retry-After` has it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

impl ApiError {
    fn new(status: StatusCode, error: &'static str, message: &str, hint: &str) -> ApiError {
        ApiError {
            status,
            allow: None,
            error,
            message: message.into(),
            hint: hint.into(),
            reason: None,
            retry_in: None,
            problems: Vec::new(),
        }
    }

    /// The caller's mistake, by its name in JSON.
    pub(crate) fn mistake(
        status: StatusCode,
        error: &'static str,
        message: &str,
        hint: &str,
    ) -> ApiError {
        ApiError::new(status, error, message, hint)
    }

    pub(crate) fn bad_request(message: &str, hint: &str) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "BadRequest", message, hint)
    }

    /// Only a page of another site would send this request.
    pub(crate) fn forbidden(message: &str, hint: &str) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "Forbidden", message, hint)
    }

    pub(crate) fn unauthorized() -> ApiError {
        let message = "the admin token is missing or wrong";
        let hint = "send `Authorization: Bearer TOKEN`; the token is in admin.token of tollgate.yaml, \
                    in TOLLGATE_ADMIN_TOKEN, or in the state folder";
        ApiError::new(StatusCode::UNAUTHORIZED, "Unauthorized", message, hint)
    }

    pub(crate) fn unauthorized_metrics() -> ApiError {
        let message = "the token for metrics is missing or wrong";
        let hint =
            "send `Authorization: Bearer TOKEN`; the token is in metrics.token of tollgate.yaml";
        ApiError::new(StatusCode::UNAUTHORIZED, "Unauthorized", message, hint)
    }

    pub(crate) fn unknown_path() -> ApiError {
        let message = "this path does not exist";
        let hint = "GET /openapi.json lists every path";
        ApiError::new(StatusCode::NOT_FOUND, "NotFound", message, hint)
    }

    /// No call of the decision service, on the address of the gateway.
    pub(crate) fn unknown_decision() -> ApiError {
        let message = "this path does not exist";
        let hint = "POST /-/v1/acquire, report, release and renew, GET /-/v1/capacity and /-/v1/check; all others are on the admin address";
        ApiError::new(StatusCode::NOT_FOUND, "NotFound", message, hint)
    }

    /// `allow`: the methods that the path has.
    pub(crate) fn wrong_method(allow: &'static str) -> ApiError {
        ApiError {
            allow: Some(allow),
            ..ApiError::unsupported_method()
        }
    }

    /// The router adds the methods that the path has.
    pub(crate) fn unsupported_method() -> ApiError {
        let message = "this path does not support this method";
        let hint = "use GET to read, POST for commands, PATCH for settings, DELETE for the cache";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        ApiError::new(status, "MethodNotAllowed", message, hint)
    }

    /// The path or the query is invalid.
    pub(crate) fn unreadable(status: StatusCode) -> ApiError {
        let message = "the path or the query is invalid";
        ApiError::new(
            status,
            "BadRequest",
            message,
            "send each parameter once, in UTF-8",
        )
    }

    pub(crate) fn too_many_wait() -> ApiError {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let message = "too many requests wait for permits on this address";
        let hint = "send \"wait\": false, or try again in a second";
        ApiError::new(status, "QueueFull", message, hint)
    }

    pub(crate) fn draining() -> ApiError {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        ApiError::new(
            status,
            "Draining",
            "the daemon is shutting down",
            "try again after it has restarted",
        )
    }

    /// The grace period of a shutdown is over, and the request has no response yet.
    pub(crate) fn shutting_down() -> ApiError {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let message =
            "tollgate is shutting down, and what the request waited for did not come in time";
        let hint = "try again after it has restarted; no permit was taken, and no token";
        ApiError {
            reason: Some("shutdown"),
            retry_in: Some(RESTART_SECONDS),
            ..ApiError::new(status, "ShuttingDown", message, hint)
        }
    }

    /// The ledger's store is lost, and calls must not go on without it.
    pub(crate) fn store_lost(trouble: &str) -> ApiError {
        let message = format!("the ledger's store is lost: {trouble}");
        let hint = "calls are rejected until the store is back; on_store_loss in the provider's file sets what happens meanwhile";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "StoreLost", &message, hint);
        ApiError {
            reason: Some("store_lost"),
            ..error
        }
    }

    pub(crate) fn timed_out() -> ApiError {
        let message = "the response took longer than 30 s";
        let hint =
            "try again; if it happens again, check the disk of the configuration and the store";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "TooSlow", message, hint)
    }

    /// Nothing was changed, for these reasons.
    pub(crate) fn invalid_settings(problems: Vec<String>) -> ApiError {
        let message = problems.first().cloned().unwrap_or_default();
        let hint = "nothing was changed; GET /v1/providers/NAME lists every setting";
        let error = ApiError::new(StatusCode::BAD_REQUEST, "InvalidSetting", &message, hint);
        ApiError { problems, ..error }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        let message = error.to_string();
        let nearest = match &error {
            Error::UnknownProvider { nearest, .. } => nearest.clone(),
            _ => None,
        };
        let hint = nearest.map_or_else(
            || "GET /v1/providers lists the providers".to_owned(),
            |name| format!("did you mean `{name}`?"),
        );
        ApiError::new(StatusCode::NOT_FOUND, "UnknownProvider", &message, &hint)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json(&self);
        *response.status_mut() = self.status;
        if let Some(allow) = self.allow {
            let allow = HeaderValue::from_static(allow);
            response.headers_mut().insert(ALLOW, allow);
        }
        if let Some(seconds) = self.retry_in {
            let wait = Span::from_secs(seconds.into());
            rejection::add_retry_after(response.headers_mut(), wait);
        }
        response
    }
}

/// A caller's token, as `Authorization: Bearer` or `X-Tollgate-Token`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<Secret> {
    let text = |name: &str| {
        let mut all = headers.get_all(name).iter();
        let first = all.next()?.to_str().ok()?;
        all.next().is_none().then(|| first.trim())
    };
    let bearer = text(AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    // A proxy passes the `Authorization` of its client on: our own header is first.
    let token = text("x-tollgate-token").or(bearer)?;
    (!token.is_empty()).then(|| Secret::new(token.to_owned()))
}

/// A JSON response.
pub(crate) fn json(body: &impl Serialize) -> Response {
    let text = crate::json::to_bytes(body);
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// For a request whose body is not read: it is empty, or an object without fields.
pub(crate) async fn read_nothing(body: Body) -> Result<(), ApiError> {
    let bytes = to_bytes(body, BODY_MAX).await.ok();
    let is_empty = |bytes: &[u8]| match unique_json::parse(bytes) {
        Some(Value::Object(object)) => object.is_empty(),
        Some(value) => value.is_null(),
        None => bytes.trim_ascii().is_empty(),
    };
    match bytes.is_some_and(|bytes| is_empty(&bytes)) {
        true => Ok(()),
        false => Err(ApiError::bad_request(
            "this request has a body, which is not read",
            "send none, or {}",
        )),
    }
}

/// A body that must be a JSON object. `example` shows one that is.
pub(crate) async fn read_object(body: Body, example: &str) -> Result<Map<String, Value>, ApiError> {
    let bytes = to_bytes(body, BODY_MAX).await.map_err(|_| {
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        let message = "the body is larger than 64 KiB or incomplete";
        ApiError::new(status, "TooLarge", message, "send less at a time")
    })?;
    match unique_json::parse(&bytes) {
        Some(Value::Object(object)) => Ok(object),
        Some(_) | None => Err(ApiError::bad_request(
            "the body is not a JSON object, or a name stands twice in it",
            &format!("send for example {example}"),
        )),
    }
}
