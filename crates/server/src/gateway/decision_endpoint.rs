//! The decision service on the gateway's address: `/-/v1/…`, for callers with a token.
//!
//! Promises: the same calls and replies as on the admin address. The token says who asks, and a
//! caller asks for itself only. Without a token nothing is decided.
//!
//! Never: serves anything but decisions: no status, no settings, no commands.

use axum::body::{Body, to_bytes};
use axum::response::IntoResponse;
use http::header::HeaderValue;
use http::{Response, StatusCode, request};
use hyper::body::Incoming;
use tollgate::body::ReplyBody;
use tollgate::path::CallTrace;

use super::client_connection::ClientConnection;
use super::handler::{DECISION, SOURCE};
use crate::api::{ApiError, bearer};
use crate::decision_api::{self, Asker, DecisionCall, REPLY_MAX, Waited};

/// Serves one decision call; `path` is its path below `/-`.
pub(super) async fn serve(
    connection: &ClientConnection,
    head: &request::Parts,
    path: &str,
    body: Incoming,
    trace: &mut CallTrace,
) -> Response<ReplyBody> {
    // Here and not in the handler, whose rejections have another form than these replies.
    let decided = connection.unless_cut(false, decide(connection, head, path, Body::new(body)));
    let response = match decided.await {
        Ok(response) => response,
        Err(_grace_over) => ApiError::shutting_down().into_response(),
    };
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, REPLY_MAX).await.unwrap_or_default();
    let mut response = Response::from_parts(parts, ReplyBody::whole(bytes));
    if let Some(Waited(waited)) = response.extensions().get() {
        trace.waited = *waited;
    }
    let decision = if response.status().is_success() {
        "allow"
    } else {
        "reject"
    };
    let headers = response.headers_mut();
    headers.insert(SOURCE, HeaderValue::from_static("tollgate"));
    headers
        .entry(DECISION)
        .or_insert(HeaderValue::from_static(decision));
    response
}

async fn decide(
    connection: &ClientConnection,
    head: &request::Parts,
    path: &str,
    body: Body,
) -> axum::response::Response {
    let Some(decisions) = &connection.state.options.decisions else {
        return ApiError::unknown_decision().into_response();
    };
    let token = bearer(&head.headers);
    let caller = token.and_then(|token| Some((decisions.caller_of(&token)?, token)));
    let Some(caller) = caller else {
        return no_token().into_response();
    };
    let asker = Asker {
        peer: connection.peer,
        caller: Some(caller),
    };
    let call = DecisionCall {
        asker,
        uri: &head.uri,
        headers: &head.headers,
    };
    decision_api::serve(decisions, call, &head.method, path, body).await
}

fn no_token() -> ApiError {
    ApiError::mistake(
        StatusCode::UNAUTHORIZED,
        "Unauthorized",
        "decisions on this address need a caller's token",
        "send `Authorization: Bearer TOKEN` with the `token` of a caller under `callers:` in tollgate.yaml, or ask on the admin address",
    )
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    /// A proxy in between may check one of two headers and Tollgate the other: neither counts.
    #[test]
    fn a_repeated_token_is_none() {
        for name in ["authorization", "x-tollgate-token"] {
            let mut headers = HeaderMap::new();
            headers.append(name, HeaderValue::from_static("Bearer one"));
            assert!(bearer(&headers).is_some(), "{name}");
            headers.append(name, HeaderValue::from_static("Bearer two"));
            assert!(bearer(&headers).is_none(), "{name}");
        }
    }
}
