//! Requests with input that their route does not read.
//!
//! Promises: a query where the operation has no parameters, and a body where it has none, are 400 with the
//! remedy. Without this, `?wait=false` on a path that does not read it was ignored without a word.
//!
//! Never: reads what the route reads itself. Probes (`/health`, `/ready`) may send anything.

use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::openapi::{self, OperationInput};
use crate::api::{ApiError, read_nothing};
use crate::decision_api::RequestFields;

/// Rejects it, or passes the request on to the route of this path.
pub(super) async fn reject(path: &'static str, request: Request, next: Next) -> Response {
    match checked(path, request).await {
        Ok(request) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

async fn checked(path: &str, request: Request) -> Result<Request, ApiError> {
    let Some(input) = openapi::input_of(request.method(), path) else {
        return Ok(request);
    };
    let is_probe = matches!(path, "/health" | "/ready");
    let OperationInput { has_query, body } = input;
    if !has_query && !is_probe && request.uri().query().is_some() {
        let fields = body.map(openapi::fields_of).unwrap_or_default();
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        RequestFields::no_query(request.uri(), &fields)?;
    }
    let has_no_body = !matches!(*request.method(), Method::POST | Method::DELETE);
    if body.is_some() || has_no_body {
        return Ok(request);
    }
    let (head, body) = request.into_parts();
    read_nothing(body).await?;
    Ok(Request::from_parts(head, Body::empty()))
}
