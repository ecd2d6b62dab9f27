//! Rejections: the one place that maps errors to JSON and headers.
//!
//! Promises: a rejection names the problem, the number and the next step. Times are in
//! milliseconds. `Retry-After` is set whenever a time is known, and is never too early.
//!
//! Never: shows a key, a query or a header of the call.

mod hint;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;
use tollgate::Error;
use tollgate::body::ReplyBody;
use tollgate::error::Reason;
use tollgate_core::ask::CostUnit;
use tollgate_core::health::HealthStatus;
use tollgate_core::time::Span;

/// A wait above this is too long for a client's retry loop.
const LONG_WAIT: Span = Span::from_secs(60);

/// The JSON of most rejections. Empty fields are left out, except where clients expect them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rejection<'a> {
    error: &'static str,
    message: String,
    hint: String,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<&'a str>,
    /// The guard that rejected the call, in place of a provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in: Option<u64>,
    /// What remains of the limit, in its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    /// The setting that an operator must fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    setting: Option<&'a str>,
}

/// M10: the JSON of an unavailable provider, with exactly these fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Unavailable<'a> {
    error: &'static str,
    message: String,
    provider: &'a str,
    state: &'static str,
    failure_count: u32,
    reset_in: u64,
    health: &'static str,
    /// Only if an operator set the state, or if only a path of the provider fails: then it names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// What remains of the limit that rejected a call, of how much, and of what.
pub(crate) type Remaining = Option<(u64, u64, CostUnit)>;

/// The response to a caller whose call failed.
pub(crate) fn rejection(error: &Error, id: &str, remaining: Remaining) -> Response<ReplyBody> {
    if let Error::ProviderUnavailable {
        provider,
        status,
        path,
    } = error
    {
        return provider_unavailable(provider, status, path.as_deref());
    }
    let wait = error.retry_in();
    let mut rejection = describe(error, id, wait);
    if let Some(Reason::Limit | Reason::Spread | Reason::Ahead) = error.reason() {
        rejection.add_remaining(remaining);
    }
    let mut response = json(error.status(), &rejection, wait);
    if let Error::MethodNotAllowed { allowed, .. } = error
        && let Ok(allowed) = HeaderValue::try_from(allowed)
    {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// The fields of a rejection.
fn describe<'a>(error: &'a Error, id: &'a str, wait: Option<Span>) -> Rejection<'a> {
    let mut rejection = Rejection {
        error: code(error),
        message: capitalised(&error.to_string()),
        hint: hint::hint(error),
        id,
        // A shutdown may come before the call is routed.
        provider: error.provider().filter(|name| !name.is_empty()),
        guard: None,
        entity: None,
        limit: None,
        reason: error.reason().map(Reason::as_str),
        retry_in: wait.map(millis),
        remaining: None,
        setting: None,
    };
    match error {
        Error::NoPermit { entity, limit, .. } => {
            rejection.entity = Some(entity.as_deref());
            rejection.limit = Some(limit.as_deref());
        }
        Error::NotInCache { entity, .. } => rejection.entity = Some(entity.as_deref()),
        Error::Guarded { guard, limit, .. } => {
            rejection.provider = None;
            rejection.guard = Some(guard);
            rejection.limit = Some(Some(limit));
        }
        Error::Misconfigured { setting, .. } => rejection.setting = Some(setting),
        Error::DeadlineExceeded { .. } => rejection.limit = error.limit().map(Some),
        Error::ProviderUnavailable { .. }
        | Error::NoResponse { .. }
        | Error::Moved { .. }
        | Error::NoCredential { .. }
        | Error::NoUpstream { .. }
        | Error::Loop { .. }
        | Error::MethodNotAllowed { .. }
        | Error::UnknownProvider { .. }
        | Error::NotAllowed { .. }
        | Error::WrongCallerToken { .. }
        | Error::CrossSite
        | Error::Path(_)
        | Error::Host(_)
        | Error::Malformed(_)
        | Error::NotBuilt(_)
        | Error::SlowBody
        | Error::SpoolFailed
        | Error::IncompleteBody => {}
    }
    rejection
}

impl Rejection<'_> {
    /// A budget is used up long before nothing remains: a smaller call may fit.
    fn add_remaining(&mut self, remaining: Remaining) {
        let Some((remaining, limit, unit)) = remaining else {
            return;
        };
        let unit = match unit {
            CostUnit::Calls => return,
            CostUnit::Tokens => "tokens",
            CostUnit::Points => "points",
            CostUnit::Bytes => "bytes",
        };
        self.remaining = Some(remaining);
        let note = format!("; {remaining} of {limit} {unit} remain");
        self.message.push_str(&note);
    }
}

/// The next step of a caller.
pub(crate) fn hint(error: &Error) -> String {
    hint::hint(error)
}

/// A response from Tollgate itself, with a JSON body.
pub(crate) fn json(
    status: StatusCode,
    body: &impl Serialize,
    wait: Option<Span>,
) -> Response<ReplyBody> {
    let text = crate::json::to_bytes(body);
    let mut response = Response::new(ReplyBody::whole(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(wait) = wait {
        add_retry_after(headers, wait);
    }
    response
}

fn provider_unavailable(
    provider: &str,
    status: &HealthStatus,
    path: Option<&str>,
) -> Response<ReplyBody> {
    let mut message = status.breaker.message(provider);
    if let Some(hold) = status.hold {
        message.push_str(&format!(": {}", hold.words()));
    }
    let body = Unavailable {
        error: "ProviderUnavailableError",
        message,
        hint: match (status.hold, path) {
            (Some(_), _) => Some(format!(
                "`tollgate resume {provider}` lets calls through again"
            )),
            (None, Some(path)) => Some(format!(
                "only `{path}` of {provider} fails, calls to other paths go on; retry after resetIn milliseconds"
            )),
            (None, None) => None,
        },
        provider,
        state: status.breaker.as_str(),
        failure_count: status.failure_count,
        reset_in: millis(status.reset_in),
        health: status.state.as_str(),
    };
    let wait = Some(status.reset_in).filter(|wait| *wait > Span::ZERO);
    json(StatusCode::SERVICE_UNAVAILABLE, &body, wait)
}

/// When to retry: whole seconds for most clients, milliseconds for clients that read them.
pub(crate) fn add_retry_after(headers: &mut HeaderMap, wait: Span) {
    headers.insert(RETRY_AFTER, HeaderValue::from(wait.0.div_ceil(1_000_000)));
    headers.insert("retry-after-ms", HeaderValue::from(millis(wait)));
    if wait > LONG_WAIT {
        headers.insert("x-should-retry", HeaderValue::from_static("false"));
    }
}

/// The name of an error in JSON; its status is [`Error::status`].
pub(crate) fn code(error: &Error) -> &'static str {
    match error {
        Error::NoPermit { reason, .. } => match reason {
            Reason::QueueFull | Reason::PermitsOpen | Reason::NoDescriptors => "QueueFull",
            Reason::ShuttingDown => "ShuttingDown",
            Reason::StoreLost => "StoreLost",
            Reason::Sleep | Reason::Paused => "ProviderUnavailableError",
            Reason::Deadline => "DeadlineExceeded",
            Reason::Degraded | Reason::CacheOnly | Reason::CacheRequested => "NotInCache",
            Reason::Limit
            | Reason::Spread
            | Reason::Ahead
            | Reason::Cooldown
            | Reason::Concurrency
            | Reason::OffPeak
            | Reason::TooCostly
            | Reason::NoShare => "RateLimitExceeded",
        },
        Error::Guarded {
            is_store_lost: true,
            ..
        } => "StoreLost",
        Error::Guarded { .. } => "RateLimitExceeded",
        Error::ProviderUnavailable { .. } => "ProviderUnavailableError",
        Error::NotInCache { .. } => "NotInCache",
        Error::DeadlineExceeded { .. } => "DeadlineExceeded",
        Error::NoResponse { .. } | Error::Moved { .. } | Error::NoCredential { .. } => {
            "UpstreamError"
        }
        Error::UnknownProvider { .. } => "UnknownProvider",
        Error::NotAllowed { .. } => "DomainNotAllowed",
        Error::WrongCallerToken { .. } | Error::CrossSite => "CallerNotAllowed",
        Error::SlowBody => "RequestTimeout",
        Error::SpoolFailed => "QueueFull",
        Error::MethodNotAllowed { .. } => "MethodNotAllowed",
        Error::Misconfigured { .. } => "Misconfigured",
        Error::Loop { .. } => "LoopDetected",
        Error::NoUpstream { .. }
        | Error::Path(_)
        | Error::Host(_)
        | Error::Malformed(_)
        | Error::NotBuilt(_)
        | Error::IncompleteBody => "BadRequest",
    }
}

/// Rounded up: a retry that is too early would be rejected again.
fn millis(span: Span) -> u64 {
    span.0.div_ceil(1_000)
}

/// Messages begin with a capital letter.
fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn rejection_for(reason: Reason) -> (u16, serde_json::Value) {
        let error = Error::NoPermit {
            provider: "x".to_owned(),
            entity: None,
            limit: Some("1/1s".to_owned()),
            reason,
            retry_in: None,
        };
        let response = rejection(&error, "1", None);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn a_slow_body_is_408_and_a_method_405_with_those_that_are_allowed() {
        assert_eq!(rejection(&Error::SlowBody, "1", None).status(), 408);
        let error = Error::MethodNotAllowed {
            provider: Some("x".to_owned()),
            method: http::Method::TRACE,
            allowed: "GET, HEAD".to_owned(),
        };
        let response = rejection(&error, "1", None);
        assert_eq!(
            (response.status().as_u16(), &response.headers()[ALLOW]),
            (405, &"GET, HEAD".parse().unwrap())
        );
    }

    /// Rejections that Tollgate itself causes use the documented codes, but have their own hints.
    #[tokio::test]
    async fn rejections_caused_by_tollgate_have_their_own_hints() {
        for (reason, status, error, word, hint_part) in [
            (
                Reason::NoDescriptors,
                503,
                "QueueFull",
                "queue_full",
                "ulimit -n",
            ),
            (
                Reason::ShuttingDown,
                503,
                "ShuttingDown",
                "shutdown",
                "has restarted",
            ),
            (
                Reason::NoShare,
                429,
                "RateLimitExceeded",
                "too_costly",
                "`nodes`",
            ),
            (
                Reason::QueueFull,
                503,
                "QueueFull",
                "queue_full",
                "`tollgate status x` shows how many of each priority",
            ),
        ] {
            let (actual, json) = rejection_for(reason).await;
            assert_eq!(
                (actual, &json["error"], &json["reason"]),
                (status, &error.into(), &word.into())
            );
            assert!(json["hint"].as_str().unwrap().contains(hint_part), "{json}");
        }
    }
}
