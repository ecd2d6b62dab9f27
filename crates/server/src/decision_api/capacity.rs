//! `GET /v1/capacity`: would a call get a permit now?
//!
//! Promises: takes nothing; the reply is 200 whether there is room or not.
//!
//! Never: waits.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use super::fields::RequestFields;
use super::{DecisionCall, LimitReply, acquire, respond, seconds_up};
use crate::api::ApiError;
use crate::decisions::Decisions;

const QUERY: [&str; 7] = [
    "provider", "url", "entity", "priority", "cost", "tokens", "caller",
];

pub(super) async fn serve(
    decisions: &Decisions,
    call: &DecisionCall<'_>,
) -> Result<Response, ApiError> {
    let fields = RequestFields::of_query(call.uri, &QUERY)?;
    let reply = decisions
        .capacity(acquire::call_request(decisions, call, &fields)?)
        .await?;
    let body = json!({
        "available": reply.is_available,
        "retry_in": reply.retry_in.map(seconds_up),
        "remaining": reply.remaining,
        "state": reply.state,
        "provider": reply.provider,
        "limit": reply.limit.as_ref().map(LimitReply::from),
        "reason": reply.reason,
        "message": reply.message,
    });
    Ok(respond(StatusCode::OK, &body, None))
}
