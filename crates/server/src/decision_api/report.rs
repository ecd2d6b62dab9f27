//! `POST /v1/report`, `POST /v1/release` and `POST /v1/renew`: what becomes of a permit.
//!
//! Promises: a report may be sent again; the first one counts, and each reply says what it taught.
//!
//! Never: believes a report of a permit that was given back.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use tollgate_core::health::Fault;

use super::fields::{RequestFields, wrong};
use super::{DecisionCall, respond, seconds_down, seconds_up};
use crate::api::{ApiError, read_object};
use crate::decisions::{Decisions, ReportRequest, ReportedOutcome};

const REPORT: [&str; 8] = [
    "permit", "status", "headers", "body", "error", "latency", "cost", "tokens",
];

/// The most headers of a response that is reported: as many as the gateway reads of one.
const HEADERS_MAX: usize = 512;

pub(super) async fn report(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
    body: Body,
) -> Result<Response, ApiError> {
    RequestFields::no_query(call.uri, &REPORT)?;
    let example = "{\"permit\": \"…\", \"status\": 200}";
    let fields = RequestFields::new(read_object(body, example).await?, &REPORT)?;
    let request = ReportRequest {
        permit: permit(&fields)?,
        outcome: outcome(&fields)?,
        costs: fields.real_costs()?,
        latency: fields.span("latency")?,
    };
    let reply = decisions.report(&request, call.asker.caller_name())?;
    let body = json!({
        "reported": true,
        "first": reply.is_first,
        "class": reply.class,
        "retry_in": reply.retry_in.map(seconds_up),
    });
    Ok(respond(StatusCode::OK, &body, None))
}

pub(super) async fn release(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
    body: Body,
) -> Result<Response, ApiError> {
    RequestFields::no_query(call.uri, &["permit"])?;
    let object = read_object(body, "{\"permit\": \"…\"}").await?;
    let fields = RequestFields::new(object, &["permit"])?;
    decisions.release(&permit(&fields)?, call.asker.caller_name())?;
    Ok(respond(StatusCode::OK, &json!({ "released": true }), None))
}

/// `POST /v1/renew`.
pub(super) async fn renew(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
    body: Body,
) -> Result<Response, ApiError> {
    RequestFields::no_query(call.uri, &["permit"])?;
    let object = read_object(body, "{\"permit\": \"…\"}").await?;
    let fields = RequestFields::new(object, &["permit"])?;
    let use_within = decisions.renew(&permit(&fields)?, call.asker.caller_name())?;
    let body = json!({ "renewed": true, "use_within": seconds_down(use_within) });
    Ok(respond(StatusCode::OK, &body, None))
}

fn permit(fields: &RequestFields) -> Result<String, ApiError> {
    let permit = fields.name("permit")?;
    permit.ok_or_else(|| {
        ApiError::bad_request(
            "the request names no permit",
            "send the `permit` of the reply to /v1/acquire",
        )
    })
}

fn outcome(fields: &RequestFields) -> Result<ReportedOutcome, ApiError> {
    let error = fields.name("error")?;
    let status = || wrong("status", "a number from 100 to 599");
    match (fields.integer("status").ok_or_else(status)?, error) {
        (Some(_), Some(_)) => Err(ApiError::bad_request(
            "`status` and `error` both say what became of the call",
            "send `status` if there was a response, `error` if there was none",
        )),
        (None, Some(word)) => Ok(ReportedOutcome::Failed(fault(&word)?)),
        (Some(code), None) => {
            let code = Some(code).filter(|code| (100..=599).contains(code));
            let code = code.and_then(|code| u16::try_from(code).ok());
            Ok(ReportedOutcome::Response {
                status: code.ok_or_else(status)?,
                headers: headers(fields.get("headers"))?,
                body: body(fields.get("body")),
            })
        }
        (None, None) if fields.has("headers") || fields.has("body") => Err(ApiError::bad_request(
            "`headers` and `body` belong to a response, and the report has no `status`",
            "send `status` too",
        )),
        (None, None) => Ok(ReportedOutcome::Unsaid),
    }
}

fn fault(word: &str) -> Result<Fault, ApiError> {
    let all = [Fault::Timeout, Fault::Dns, Fault::Connect, Fault::Reset];
    let found = all.into_iter().find(|fault| fault.as_str() == word);
    found.ok_or_else(|| wrong("error", "timeout, dns, connect or reset"))
}

/// The headers of a response: texts by name, or lists of them.
fn headers(value: Option<&Value>) -> Result<HeaderMap, ApiError> {
    let invalid = || {
        wrong(
            "headers",
            "an object of texts such as {\"retry-after\": \"30\"}",
        )
    };
    let mut headers = HeaderMap::new();
    let Some(value) = value else {
        return Ok(headers);
    };
    for (name, value) in value.as_object().ok_or_else(invalid)? {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let values = match value {
            Value::Array(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return Err(invalid()),
            };
            let value = HeaderValue::from_str(&text).map_err(|_| invalid())?;
            if headers.len() >= HEADERS_MAX {
                return Err(wrong("headers", "at most 512 headers"));
            }
            headers.append(&name, value);
        }
    }
    Ok(headers)
}

/// The body of a response: a text, or JSON as it was.
fn body(value: Option<&Value>) -> Vec<u8> {
    match value {
        None => Vec::new(),
        Some(Value::String(text)) => text.clone().into_bytes(),
        Some(json) => json.to_string().into_bytes(),
    }
}
