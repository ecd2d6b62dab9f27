//! The decision service on the admin address.
//!
//! Promises: the operator asks for any caller.
//!
//! Never: decides; `crate::decisions` does.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Response;
use serde_json::{Value, json};
use std::net::IpAddr;
use tollgate_config::config::Limiting;

use super::routes::ApiState;
use crate::api::{ApiError, json, read_object};
use crate::decision_api::{self, Asker, DecisionCall, RequestFields};

/// The address of the connection that a request came by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

/// `/v1/acquire`, as long as there is room for those who wait.
pub(super) async fn acquire(api: &ApiState, Peer(peer): Peer, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let call = call(peer, &head);
    let decisions = api.daemon.decisions();
    decision_api::acquire(decisions, call, &head.method, body, &api.waiting).await
}

/// `/v1/report`, `/v1/release`, `/v1/capacity`, `/v1/check`.
pub(super) async fn serve(
    State(api): State<ApiState>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let call = call(peer, &head);
    let decisions = api.daemon.decisions();
    decision_api::serve(decisions, call, &head.method, head.uri.path(), body).await
}

/// The operator asks, for any caller.
fn call(peer: IpAddr, head: &Parts) -> DecisionCall<'_> {
    DecisionCall {
        asker: Asker { peer, caller: None },
        uri: &head.uri,
        headers: &head.headers,
    }
}

/// `GET /v1/guards`.
pub(super) async fn guards(State(api): State<ApiState>) -> Response {
    let guards = api.daemon.decisions().guards();
    let all = guards.all();
    let shown = all.iter().map(|class| {
        let counts = class.counts();
        json!({
            "name": class.name(),
            "limit": class.limit_name(),
            "burst": class.burst(),
            "shadow": class.is_shadow(),
            "on_store_loss": class.on_store_loss().word(),
            "denied": counts.denied,
            "shadow_denied": counts.shadow_denied,
        })
    });
    let shown: Vec<Value> = shown.collect();
    let mode = guards.limiting().word();
    let store = match guards.store_loss() {
        None => "up",
        Some(_) => "lost",
    };
    json(&json!({ "limiting": mode, "keys": guards.keys(), "store": store, "guards": shown }))
}

/// `GET /v1/guards/{class}?identifier=`.
pub(super) async fn guard(
    State(api): State<ApiState>,
    Path(class): Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    decision_api::guard_status(api.daemon.decisions(), &class, &uri).await
}

/// `POST /v1/limiting {"mode": "off"}`: whether guards reject; `null` = as configured.
pub(super) async fn set_limiting(
    State(api): State<ApiState>,
    body: Body,
) -> Result<Response, ApiError> {
    let object = read_object(body, "{\"mode\": \"off\"}").await?;
    let all = [Limiting::On, Limiting::Off, Limiting::Shadow];
    let word = |word: &str| all.into_iter().find(|mode| mode.word() == word);
    // `null` has a meaning here, so the value is read as it was sent.
    let value = object.get("mode").cloned();
    RequestFields::new(object, &["mode"])?;
    let mode = match &value {
        Some(Value::Null) => None,
        Some(Value::String(text)) if word(text).is_some() => word(text),
        Some(_) | None => {
            return Err(ApiError::bad_request(
                "`mode` is not on, off or shadow",
                "send for example {\"mode\": \"off\"}; null = as configured",
            ));
        }
    };
    let guards = api.daemon.decisions().guards();
    guards.set_limiting(mode);
    Ok(json(&json!({ "mode": guards.limiting().word() })))
}
