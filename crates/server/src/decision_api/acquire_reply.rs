//! The reply to `POST /v1/acquire`.
//!
//! Promises: the fields of the contract, written from the decision in one pass. A field that does not apply to
//! the thing that was asked for is absent; every other is there, `null` if there is nothing to say.
//!
//! Never: decides.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use tollgate_config::config::Task;

use super::{LimitReply, Waited, add_id, decision_header, respond, seconds_down, seconds_up};
use crate::decisions::Acquired;

#[derive(Serialize)]
struct AcquireReply<'a> {
    granted: bool,
    permit: Option<&'a str>,
    waited: f64,
    retry_in: Option<f64>,
    limit: Option<LimitReply<'a>>,
    remaining: Option<u64>,
    reason: Option<&'a str>,
    decision: &'a str,
    use_within: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskReply>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

/// What a guard means for tasks, so that workers need no settings of their own.
#[derive(Serialize)]
struct TaskReply {
    max_pending: Option<u32>,
    retry_delay: f64,
    wait: f64,
    retries: u32,
    factor: f64,
}

impl From<&Task> for TaskReply {
    fn from(task: &Task) -> TaskReply {
        TaskReply {
            max_pending: task.max_pending,
            retry_delay: seconds_up(task.retry_delay),
            wait: seconds_up(task.wait),
            retries: task.retries,
            factor: f64::from(task.factor.0) / 1_000_000.0,
        }
    }
}

/// The response that says what was decided.
pub(super) fn reply(acquired: &Acquired) -> Response {
    let (status, decision) = match (acquired.is_granted, acquired.was_queued) {
        (true, false) => (StatusCode::OK, "allow"),
        (true, true) => (StatusCode::OK, "queue"),
        (false, _) => (StatusCode::TOO_MANY_REQUESTS, "reject"),
    };
    let body = AcquireReply {
        granted: acquired.is_granted,
        permit: acquired.permit.as_deref(),
        waited: seconds_down(acquired.waited),
        retry_in: acquired.retry_in.map(seconds_up),
        limit: acquired.limit.as_ref().map(LimitReply::from),
        remaining: acquired.remaining,
        reason: acquired.reason,
        decision,
        use_within: acquired.use_within.map(seconds_down),
        provider: acquired.provider.as_deref(),
        guard: acquired.guard.as_deref(),
        task: acquired.task.as_ref().map(TaskReply::from),
        id: acquired.id.as_deref(),
        error: (!acquired.is_granted).then_some("RateLimitExceeded"),
        message: acquired.message.as_deref(),
        hint: acquired.hint,
    };
    let retry_in = acquired.retry_in.filter(|_| !acquired.is_granted);
    let mut response = respond(status, &body, retry_in);
    response.extensions_mut().insert(Waited(acquired.waited));
    add_id(&mut response, acquired.id.as_deref());
    decision_header(&mut response, decision);
    response
}
