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
use axum::routing::{MethodRouter, any, delete, get, patch, post};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

use super::access::AccessPolicy;
use super::decisions::Peer;
use super::live::LiveEvents;
use super::{cache, charts, commands, decisions, live, metrics, openapi, page, providers, session};
use super::{sources, tasks, unread_input};
use crate::api::{ApiError, json};
use crate::daemon::Daemon;
use crate::gateway::max_admin_connections;
use crate::history::History;

/// How long a response may take. Reading some hundred files takes less than a second; a longer wait
/// means that a disk hangs.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The only route whose requests say themselves how long they wait.
const ACQUIRE: &str = "/v1/acquire";

/// The state that handlers share.
#[derive(Clone, Debug)]
pub(super) struct ApiState {
    pub(super) daemon: Daemon,
    /// Places of requests that wait. Half of the connections stay free for reports, releases and
    /// probes: those who wait may wait for them.
    pub(super) waiting: Arc<Semaphore>,
    pub(super) policy: Arc<AccessPolicy>,
    pub(super) history: Arc<History>,
    pub(super) live: Arc<LiveEvents>,
}

/// The routes, behind access.
#[derive(Clone, Debug)]
pub(super) struct AdminRoutes {
    api: ApiState,
    /// All but those that wait.
    timed: TowerToHyperService<Router>,
}

impl AdminRoutes {
    pub(super) fn new(
        daemon: Daemon,
        policy: AccessPolicy,
        history: Arc<History>,
        live: Arc<LiveEvents>,
    ) -> AdminRoutes {
        let api = ApiState {
            daemon,
            waiting: Arc::new(Semaphore::new((max_admin_connections() / 2).max(1))),
            policy: Arc::new(policy),
            history,
            live,
        };
        let timed = TowerToHyperService::new(timed_router().with_state(api.clone()));
        AdminRoutes { api, timed }
    }

    /// The response to a request of this address.
    pub(super) async fn respond(&self, peer: Peer, request: Request) -> Response {
        if let Err(error) = self.api.policy.check(&request) {
            return error.into_response();
        }
        // Whoever asks before each call pays for the way to the answer each time: no router, no boxes.
        if request.uri().path() == ACQUIRE {
            return decisions::acquire(&self.api, peer, request).await;
        }
        let mut request = request;
        request.extensions_mut().insert(peer);
        match self.timed.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

fn timed_router() -> Router<ApiState> {
    let timed = timed_routes().into_iter().chain(page_routes());
    let timed = timed.fold(Router::new(), |router, (path, methods)| {
        let strict = move |request: Request, next: Next| unread_input::reject(path, request, next);
        router.route(path, methods.layer(middleware::from_fn(strict)))
    });
    timed
        .layer(middleware::from_fn(with_timeout))
        .fallback(async || ApiError::unknown_path().into_response())
        .method_not_allowed_fallback(async || ApiError::unsupported_method().into_response())
}

/// Routes that respond within [`RESPONSE_TIMEOUT`].
fn timed_routes() -> Vec<(&'static str, MethodRouter<ApiState>)> {
    vec![
        ("/health", get(health)),
        ("/ready", get(ready)),
        ("/v1/reload", post(commands::reload)),
        ("/v1/cache", get(cache::stats).delete(cache::purge)),
        ("/v1/providers", get(providers::list)),
        ("/v1/providers/{name}", get(providers::show)),
        ("/v1/providers/{name}/settings", patch(commands::set)),
        ("/v1/providers/{name}/offline", post(commands::offline)),
        ("/v1/providers/{name}/pause", post(commands::pause)),
        (
            "/v1/providers/{name}/cache-only",
            post(commands::cache_only),
        ),
        ("/v1/providers/{name}/resume", post(commands::resume)),
        ("/v1/providers/{name}/reset", post(commands::reset)),
        ("/v1/report", any(decisions::serve)),
        ("/v1/release", any(decisions::serve)),
        ("/v1/renew", any(decisions::serve)),
        ("/v1/capacity", any(decisions::serve)),
        ("/v1/check", any(decisions::serve)),
        ("/v1/guards", get(decisions::guards)),
        ("/v1/guards/{class}", get(decisions::guard)),
        ("/v1/limiting", post(decisions::set_limiting)),
        ("/v1/sources", get(sources::list).post(sources::add)),
        ("/v1/sources/{name}", delete(sources::remove)),
        ("/v1/tasks", get(tasks::list)),
        ("/v1/tasks/can-submit", post(tasks::can_submit)),
        (
            "/v1/tasks/{queue}",
            post(tasks::on_event).delete(tasks::remove_queue),
        ),
        ("/v1/history", get(charts::history)),
        ("/v1/callers", get(charts::callers)),
        ("/v1/config", get(charts::config)),
        ("/v1/session", post(session::open).delete(session::close)),
        // Its head comes at once; its body has no end.
        ("/v1/events", get(live::serve)),
        ("/v1/decisions", get(metrics::decisions)),
        ("/api/rate-limit/metrics", get(metrics::by_entity)),
        ("/metrics", get(metrics::serve)),
        ("/openapi.json", get(openapi::serve)),
    ]
}

/// The page, which is no part of the API.
fn page_routes() -> Vec<(&'static str, MethodRouter<ApiState>)> {
    vec![("/", get(page::index)), ("/page/{file}", get(page::asset))]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A route that nobody described would be missing in every generated client.
    #[test]
    fn every_route_is_described() {
        let document = openapi::document();
        let timed = timed_routes().into_iter().map(|(path, _)| path);
        let mut routes: Vec<&str> = timed.chain([ACQUIRE]).collect();
        routes.sort_unstable();
        let described = document["paths"].as_object().unwrap();
        let mut described: Vec<&str> = described.keys().map(String::as_str).collect();
        described.sort_unstable();
        assert_eq!(routes, described);
    }
}
