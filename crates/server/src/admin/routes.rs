//! Every route of the admin address, in one list.
//!
//! Promises: whatever is asked passes `safety` first and has its time; what is not here is a 404 in
//! JSON, and a wrong method a 405.
//!
//! Never: answers. Each handler lives with its noun.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

use super::answer::{Fault, json};
use super::safety::{self, Safety};
use super::{cache, orders, providers};
use crate::daemon::Daemon;

/// How long an answer may take. Reading some hundred files takes less than a second; who waits
/// longer waits for a disk that hangs.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// What handlers share.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) daemon: Daemon,
    ending: watch::Receiver<bool>,
}

/// The routes. Decisions, events, metrics and the dashboard will be listed here too.
pub(super) fn router(daemon: Daemon, safety: Safety, ending: watch::Receiver<bool>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/v1/reload", post(orders::reload))
        .route("/v1/cache", get(cache::stats).delete(cache::purge))
        .route("/v1/providers", get(providers::list))
        .route("/v1/providers/{name}", get(providers::one))
        .route("/v1/providers/{name}/settings", patch(orders::set))
        .route("/v1/providers/{name}/offline", post(orders::offline))
        .route("/v1/providers/{name}/cache-only", post(orders::cache_only))
        .route("/v1/providers/{name}/resume", post(orders::resume))
        .route("/v1/providers/{name}/reset", post(orders::reset))
        .fallback(async || Fault::unknown_path().into_response())
        .method_not_allowed_fallback(async || Fault::wrong_method().into_response())
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn_with_state(
            Arc::new(safety),
            safety::check,
        ))
        .with_state(Desk { daemon, ending })
}

async fn health() -> Response {
    json(&json!({ "status": "ok" }))
}

async fn ready(State(desk): State<Desk>) -> Response {
    if *desk.ending.borrow() {
        return Fault::draining().into_response();
    }
    if let Some(trouble) = desk.daemon.shop().why_closed() {
        return Fault::store_lost(&trouble).into_response();
    }
    json(&json!({ "status": "ready" }))
}

async fn in_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(ANSWER_WAIT, next.run(request)).await;
    let answer = answer.unwrap_or_else(|_| Fault::too_slow().into_response());
    let status = answer.status();
    // What the router itself refuses, such as a path that is no text, it refuses in plain text.
    if status.is_client_error() && !is_json(&answer) {
        return Fault::unreadable(status).into_response();
    }
    answer
}

fn is_json(answer: &Response) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "application/json")
}
