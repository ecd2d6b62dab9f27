//! Requests that change something: reload, settings, and operator commands for a provider.
//!
//! Promises: all or nothing; the response lists what changed and what was rejected.
//!
//! Never: changes anything on a GET.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tollgate_config::amount;
use tollgate_config::load::Change;
use tollgate_core::health::{Command, OperatorHold};
use tollgate_core::time::Span;

use super::routes::ApiState;
use crate::api::{ApiError, json, read_object};
use crate::daemon::{Daemon, Outcome, SetError};
use crate::decision_api::RequestFields;

const SETTINGS_EXAMPLE: &str = "{\"sleep_max\": \"60s\"}";

/// The parameters of a command.
#[derive(Debug)]
struct CommandQuery {
    entity: Option<String>,
    /// How long the command lasts.
    lasts: Option<Span>,
}

impl CommandQuery {
    fn of(uri: &Uri) -> Result<CommandQuery, ApiError> {
        let fields = RequestFields::of_query(uri, &["entity", "for"])?;
        let lasts = fields.name("for")?.map(|text| {
            amount::span(&text).ok_or_else(|| {
                ApiError::bad_request("`for` is not a duration", "write for example for=30m")
            })
        });
        Ok(CommandQuery {
            entity: fields.entity()?,
            lasts: lasts.transpose()?,
        })
    }

    /// For commands that are done at once: a time would be ignored.
    fn at_once(uri: &Uri) -> Result<CommandQuery, ApiError> {
        match CommandQuery::of(uri)? {
            CommandQuery { lasts: Some(_), .. } => Err(ApiError::bad_request(
                "`for` is a duration, and this command has none",
                "leave `for` out; only `pause` and `cache-only` accept it",
            )),
            query => Ok(query),
        }
    }

    /// Health belongs to a provider; an entity has only cool-downs and degrade mode.
    fn of_provider(uri: &Uri) -> Result<CommandQuery, ApiError> {
        let query = CommandQuery::of(uri)?;
        match query.entity {
            None => Ok(query),
            Some(_) => Err(ApiError::bad_request(
                "this command applies to a whole provider",
                "leave `entity` out; only `resume` and `reset` accept it",
            )),
        }
    }
}

/// `POST /v1/reload`.
pub(super) async fn reload(State(api): State<ApiState>) -> Response {
    let Ok(outcome) = run_blocking(api.daemon, Daemon::reload).await else {
        return ApiError::draining().into_response();
    };
    let mut response = json(&outcome_json(&outcome));
    if !outcome.rejected.is_empty() {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    response
}

/// `PATCH /v1/providers/{name}/settings`.
pub(super) async fn set(
    State(api): State<ApiState>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, ApiError> {
    let settings: Vec<(String, Option<String>)> = read_object(body, SETTINGS_EXAMPLE)
        .await?
        .into_iter()
        .map(|(key, value)| (key, setting_text(value)))
        .collect();
    if settings.is_empty() {
        let hint = format!("send for example {SETTINGS_EXAMPLE}");
        return Err(ApiError::bad_request("the body contains no setting", &hint));
    }
    let keys: Vec<String> = settings.iter().map(|(key, _)| key.clone()).collect();
    let set = move |daemon: &Daemon| {
        let outcome = daemon.set(&name, &settings)?;
        Ok((outcome, daemon.settings(&name, &keys)))
    };
    match run_blocking(api.daemon, set).await {
        Ok(Ok((outcome, settings))) => {
            let mut body = outcome_json(&outcome);
            body["settings"] = json!(settings);
            Ok(json(&body))
        }
        Ok(Err(SetError::Provider(error))) => Err(error.into()),
        Ok(Err(SetError::Rejected(problems))) => Err(ApiError::invalid_settings(problems)),
        Ok(Err(error @ SetError::TooMany)) => Err(ApiError::bad_request(
            &error.to_string(),
            "write them to a provider file",
        )),
        Err(_) => Err(ApiError::draining()),
    }
}

/// `POST /v1/providers/{name}/offline`.
pub(super) async fn offline(
    api: State<ApiState>,
    name: Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = CommandQuery::of_provider(&uri)?;
    run_command(api, name, query.entity, Command::Offline).await
}

/// `POST /v1/providers/{name}/cache-only[?for=30m]`.
pub(super) async fn cache_only(
    api: State<ApiState>,
    name: Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = CommandQuery::of_provider(&uri)?;
    run_command(
        api,
        name,
        query.entity,
        Command::CacheOnly { lasts: query.lasts },
    )
    .await
}

/// `POST /v1/providers/{name}/pause[?for=30m]`.
pub(super) async fn pause(
    api: State<ApiState>,
    name: Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = CommandQuery::of_provider(&uri)?;
    run_command(
        api,
        name,
        query.entity,
        Command::Pause { lasts: query.lasts },
    )
    .await
}

/// `POST /v1/providers/{name}/resume[?entity=]`.
pub(super) async fn resume(
    api: State<ApiState>,
    name: Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = CommandQuery::at_once(&uri)?;
    run_command(api, name, query.entity, Command::Resume).await
}

/// `POST /v1/providers/{name}/reset[?entity=]`.
pub(super) async fn reset(
    api: State<ApiState>,
    name: Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = CommandQuery::at_once(&uri)?;
    run_command(api, name, query.entity, Command::Reset).await
}

async fn run_command(
    State(api): State<ApiState>,
    Path(name): Path<String>,
    entity: Option<String>,
    command: Command,
) -> Result<Response, ApiError> {
    api.daemon.catch_up(&name).await?;
    let work = move |daemon: &Daemon| {
        let provider = daemon.command(&name, entity.as_deref(), command)?;
        let status = provider.status();
        let (state, hold) = (status.state.as_str(), status.hold.map(OperatorHold::as_str));
        Ok(json(
            &json!({ "name": name, "entity": entity, "state": state, "hold": hold }),
        ))
    };
    let done = run_blocking(api.daemon, work).await;
    done.unwrap_or_else(|_| Err(ApiError::draining()))
}

/// A setting as text; `null` removes it.
fn setting_text(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        // Lists and blocks stay JSON, which YAML can parse.
        other => Some(other.to_string()),
    }
}

fn outcome_json(outcome: &Outcome) -> Value {
    let changed: Vec<Value> = outcome.changed.iter().map(change_json).collect();
    json!({ "changed": changed, "rejected": outcome.rejected, "warnings": outcome.warnings })
}

fn change_json(change: &Change) -> Value {
    match change {
        Change::Added(name) => json!({ "added": name }),
        Change::Removed(name) => json!({ "removed": name }),
        Change::Renamed { from, to } => json!({ "renamed": from, "to": to }),
        Change::Changed { provider, fields } => json!({ "provider": provider, "fields": fields }),
        Change::Settings { fields } => json!({ "fields": fields }),
    }
}

/// Runs work that reads files or the store on a blocking thread. Once started it completes, even if
/// the client disconnects. `Err`: the runtime shuts down.
pub(super) async fn run_blocking<T: Send + 'static>(
    daemon: Daemon,
    work: impl FnOnce(&Daemon) -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    tokio::task::spawn_blocking(move || work(&daemon)).await
}
