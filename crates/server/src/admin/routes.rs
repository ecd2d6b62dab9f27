//! Every route of the admin address, in one list.
//!
//! Promises: every request passes `access` first and has a timeout; only `acquire` brings its own. An
//! unknown path is a 404 in JSON, a wrong method a 405.
//!
//! Never: handles a request. Each handler lives with its noun.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, patch, post};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

use super::access::{self, AccessPolicy};
use super::{cache, commands, decisions, desk, openapi, providers};
use crate::api::{ApiError, json};
use crate::daemon::Daemon;
use crate::gateway::max_admin_connections;

/// How long a response may take. Reading some hundred files takes less than a second; a longer wait
/// means that a disk hangs.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The state that handlers share.
#[derive(Clone, Debug)]
pub(super) struct ApiState {
    pub(super) daemon: Daemon,
    /// Places of requests that wait. Half of the connections stay free for reports, releases and
    /// probes: those who wait may wait for them.
    pub(super) waiting: Arc<Semaphore>,
}

/// The routes. Events, metrics and the dashboard will be listed here too.
pub(super) fn router(daemon: Daemon, policy: AccessPolicy) -> Router {
    let timed = Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/v1/reload", post(commands::reload))
        .route("/v1/cache", get(cache::stats).delete(cache::purge))
        .route("/v1/providers", get(providers::list))
        .route("/v1/providers/{name}", get(providers::show))
        .route("/v1/providers/{name}/settings", patch(commands::set))
        .route("/v1/providers/{name}/offline", post(commands::offline))
        .route("/v1/providers/{name}/pause", post(commands::pause))
        .route(
            "/v1/providers/{name}/cache-only",
            post(commands::cache_only),
        )
        .route("/v1/providers/{name}/resume", post(commands::resume))
        .route("/v1/providers/{name}/reset", post(commands::reset))
        .route("/v1/report", any(decisions::serve))
        .route("/v1/release", any(decisions::serve))
        .route("/v1/capacity", any(decisions::serve))
        .route("/v1/check", any(decisions::serve))
        .route("/v1/guards/{class}", get(decisions::guard))
        .route("/v1/limiting", post(decisions::set_limiting))
        .route("/v1/sources", get(desk::sources).post(desk::add_source))
        .route("/v1/sources/{name}", delete(desk::remove_source))
        .route("/v1/tasks", get(desk::tasks))
        .route("/v1/tasks/can-submit", post(desk::can_submit))
        .route("/v1/tasks/{queue}", post(desk::on_task))
        .route("/openapi.json", get(openapi::serve))
        .layer(middleware::from_fn(with_timeout));
    // A request says itself how long it waits.
    let waiting = Router::new().route("/v1/acquire", any(decisions::acquire));
    timed
        .merge(waiting)
        .fallback(async || ApiError::unknown_path().into_response())
        .method_not_allowed_fallback(async || ApiError::wrong_method().into_response())
        .layer(middleware::from_fn_with_state(
            Arc::new(policy),
            access::check,
        ))
        .with_state(ApiState {
            daemon,
            waiting: Arc::new(Semaphore::new((max_admin_connections() / 2).max(1))),
        })
}

async fn health() -> Response {
    json(&json!({ "status": "ok" }))
}

async fn ready(State(api): State<ApiState>) -> Response {
    if api.daemon.is_draining() {
        return ApiError::draining().into_response();
    }
    if let Some(trouble) = api.daemon.registry().closed_reason() {
        return ApiError::store_lost(&trouble).into_response();
    }
    json(&json!({ "status": "ready" }))
}

async fn with_timeout(request: Request, next: Next) -> Response {
    let response = tokio::time::timeout(RESPONSE_TIMEOUT, next.run(request)).await;
    let response = response.unwrap_or_else(|_| ApiError::timed_out().into_response());
    let status = response.status();
    // axum rejects some requests itself, such as a path that is not UTF-8, in plain text.
    if status.is_client_error() && !is_json(&response) {
        return ApiError::unreadable(status).into_response();
    }
    response
}

fn is_json(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "application/json")
}
