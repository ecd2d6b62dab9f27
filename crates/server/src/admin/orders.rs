//! What changes something: reload, settings, and what operators want of a provider.
//!
//! Promises: all or nothing; the answer says what is different and what was refused.
//!
//! Never: changes anything on a GET.

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_config::amount;
use tollgate_config::load::Change;
use tollgate_core::health::Command;

use super::answer::{Fault, json, object};
use super::routes::Desk;
use crate::daemon::{Daemon, NotSet, Outcome};

/// What an order may carry.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Detail {
    entity: Option<String>,
    /// How long cache-only lasts.
    r#for: Option<String>,
}

/// `POST /v1/reload`.
pub(super) async fn reload(State(desk): State<Desk>) -> Response {
    let Ok(outcome) = beside(desk.daemon, Daemon::reload).await else {
        return Fault::draining().into_response();
    };
    let mut response = json(&told(&outcome));
    if !outcome.refused.is_empty() {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    response
}

/// `PATCH /v1/providers/{name}/settings`.
pub(super) async fn set(
    State(desk): State<Desk>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Fault> {
    let settings: Vec<(String, Option<String>)> = object(body)
        .await?
        .into_iter()
        .map(|(key, value)| (key, written(value)))
        .collect();
    if settings.is_empty() {
        let hint = "send such as {\"sleep_max\": \"60s\"}";
        return Err(Fault::bad_request("there is nothing to set", hint));
    }
    let set = move |daemon: &Daemon| daemon.set(&name, &settings);
    match beside(desk.daemon, set).await {
        Ok(Ok(outcome)) => Ok(json(&told(&outcome))),
        Ok(Err(NotSet::Provider(error))) => Err(error.into()),
        Ok(Err(NotSet::Refused(problems))) => Err(Fault::refused(problems)),
        Ok(Err(error @ NotSet::TooMany)) => Err(Fault::bad_request(
            &error.to_string(),
            "write them to a file",
        )),
        Err(_) => Err(Fault::draining()),
    }
}

/// `POST /v1/providers/{name}/offline`.
pub(super) async fn offline(
    desk: State<Desk>,
    name: Path<String>,
    detail: Query<Detail>,
) -> Result<Response, Fault> {
    whole_only(&detail)?;
    order(desk, name, detail, Command::Offline).await
}

/// `POST /v1/providers/{name}/cache-only[?for=30m]`.
pub(super) async fn cache_only(
    desk: State<Desk>,
    name: Path<String>,
    detail: Query<Detail>,
) -> Result<Response, Fault> {
    whole_only(&detail)?;
    let lasts = match &detail.r#for {
        None => None,
        Some(text) => Some(amount::span(text).ok_or_else(|| {
            Fault::bad_request("`for` is not a length of time", "write such as for=30m")
        })?),
    };
    order(desk, name, detail, Command::CacheOnly { lasts }).await
}

/// `POST /v1/providers/{name}/resume[?entity=]`.
pub(super) async fn resume(
    desk: State<Desk>,
    name: Path<String>,
    detail: Query<Detail>,
) -> Result<Response, Fault> {
    order(desk, name, detail, Command::Resume).await
}

/// `POST /v1/providers/{name}/reset[?entity=]`.
pub(super) async fn reset(
    desk: State<Desk>,
    name: Path<String>,
    detail: Query<Detail>,
) -> Result<Response, Fault> {
    order(desk, name, detail, Command::Reset).await
}

async fn order(
    State(desk): State<Desk>,
    Path(name): Path<String>,
    Query(Detail { entity, .. }): Query<Detail>,
    command: Command,
) -> Result<Response, Fault> {
    desk.daemon.meet(&name).await?;
    let work = move |daemon: &Daemon| {
        let live = daemon.order(&name, entity.as_deref(), command)?;
        let state = live.status().state.word();
        Ok(json(
            &json!({ "name": name, "entity": entity, "state": state }),
        ))
    };
    let ordered = beside(desk.daemon, work).await;
    ordered.unwrap_or_else(|_| Err(Fault::draining()))
}

/// Health is a provider's; an entity has cool-downs and degrade modes only.
fn whole_only(detail: &Detail) -> Result<(), Fault> {
    match detail.entity {
        None => Ok(()),
        Some(_) => Err(Fault::bad_request(
            "a single entity cannot be held back",
            "leave `entity` out; `resume` and `reset` take it",
        )),
    }
}

/// A setting as somebody would write it; `null` takes it back.
fn written(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        // Lists and blocks are written in JSON, which YAML reads.
        other => Some(other.to_string()),
    }
}

fn told(outcome: &Outcome) -> Value {
    let changed: Vec<Value> = outcome.changed.iter().map(change).collect();
    json!({ "changed": changed, "refused": outcome.refused, "warnings": outcome.warnings })
}

fn change(change: &Change) -> Value {
    match change {
        Change::Added(name) => json!({ "added": name }),
        Change::Removed(name) => json!({ "removed": name }),
        Change::Renamed { from, to } => json!({ "renamed": from, "to": to }),
        Change::Changed { provider, fields } => json!({ "provider": provider, "fields": fields }),
        Change::Settings { fields } => json!({ "fields": fields }),
    }
}

/// Works beside the tasks that serve: files are read and the store is asked here. Once begun it comes
/// to its end, even if nobody waits for the answer any more. `Err`: the runtime ends.
pub(super) async fn beside<T: Send + 'static>(
    daemon: Daemon,
    work: impl FnOnce(&Daemon) -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    tokio::task::spawn_blocking(move || work(&daemon)).await
}
