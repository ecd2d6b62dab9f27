//! Sources and tasks on the admin address (H5, C6).
//!
//! Promises: adding a source says which provider will limit it, or that none will. A task may be
//! submitted if its queue has room and the guard `task` has a token; nothing waits.
//!
//! Never: runs a task or fetches a source.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tollgate::event::Event;
use tollgate_config::amount;
use tollgate_core::time::Span;

use super::commands::run_blocking;
use super::routes::ApiState;
use crate::api::{ApiError, json, read_object};
use crate::daemon::Daemon;
use crate::decision_api::{RequestFields, respond, seconds_up, wrong};
use crate::decisions::GuardQuestion;
use crate::desk::{Desk, DeskError, Source, SourceError, TaskEvent};

/// The guard whose tokens tasks take.
const TASK_GUARD: &str = "task";

const SOURCE: [&str; 6] = ["name", "url", "every", "cron", "priority", "output"];

/// `GET /v1/sources`.
pub(super) async fn sources(State(api): State<ApiState>) -> Result<Response, ApiError> {
    let sources = on_desk(&api, Desk::sources).await??;
    let shown = sources
        .iter()
        .map(|source| source_json(&api.daemon, source));
    let shown: Vec<Value> = shown.collect();
    Ok(json(&json!({ "sources": shown })))
}

/// `POST /v1/sources`.
pub(super) async fn add_source(
    State(api): State<ApiState>,
    body: Body,
) -> Result<Response, ApiError> {
    let example = "{\"name\": \"news\", \"url\": \"https://api.example.org/news\"}";
    let fields = RequestFields::new(read_object(body, example).await?, &SOURCE)?;
    let source = source(&fields)?;
    let added = source.clone();
    on_desk(&api, move |desk| desk.add_source(&added))
        .await?
        .map_err(|error| match error {
            SourceError::Desk(error) => ApiError::from(error),
            SourceError::Exists => ApiError::mistake(
                StatusCode::CONFLICT,
                "SourceExists",
                "there is a source of this name already",
                "remove it first, or choose another name",
            ),
        })?;
    let body = source_json(&api.daemon, &source);
    Ok(respond(StatusCode::CREATED, &body, None))
}

/// `DELETE /v1/sources/{name}`.
pub(super) async fn remove_source(
    State(api): State<ApiState>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    if on_desk(&api, move |desk| desk.remove_source(&name)).await?? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::mistake(
        StatusCode::NOT_FOUND,
        "UnknownSource",
        "there is no source of this name",
        "GET /v1/sources lists them",
    ))
}

/// `GET /v1/tasks`.
pub(super) async fn tasks(State(api): State<ApiState>) -> Result<Response, ApiError> {
    let queues = on_desk(&api, Desk::queues).await??;
    let max_pending = max_pending(&api.daemon);
    let shown = queues.iter().map(|(name, counts)| {
        let counts = json!({
            "active": counts.active,
            "scheduled": counts.scheduled,
            "reserved": counts.reserved,
            "pending": counts.pending(),
            "max_pending": max_pending,
        });
        (name.clone(), counts)
    });
    let shown: serde_json::Map<String, Value> = shown.collect();
    let names: Vec<&String> = queues.keys().collect();
    Ok(json(&json!({ "queues": shown, "active_queues": names })))
}

/// `POST /v1/tasks/{queue} {id, event}`.
pub(super) async fn on_task(
    State(api): State<ApiState>,
    Path(queue): Path<String>,
    body: Body,
) -> Result<Response, ApiError> {
    let example = "{\"id\": \"42\", \"event\": \"submitted\"}";
    let fields = RequestFields::new(read_object(body, example).await?, &["id", "event"])?;
    let expected = "submitted, started, scheduled, finished or failed";
    let event = fields.name("event")?;
    let event = event.and_then(|word| TaskEvent::parse(&word));
    let event = event.ok_or_else(|| wrong("event", expected))?;
    let id = fields.name("id")?;
    let id = id.ok_or_else(|| wrong("id", "the id of the task"))?;
    let queue = queue_name(queue)?;
    let counts = on_desk(&api, move |desk| {
        desk.on_task(&queue, &id, event)?;
        Ok::<_, DeskError>(desk.queues()?.remove(&queue).unwrap_or_default())
    })
    .await??;
    Ok(json(&json!({
        "active": counts.active,
        "scheduled": counts.scheduled,
        "reserved": counts.reserved,
        "pending": counts.pending(),
    })))
}

/// `POST /v1/tasks/can-submit {"queue": …, "pending"?: …}`: a count of the caller's own broker wins.
pub(super) async fn can_submit(
    State(api): State<ApiState>,
    body: Body,
) -> Result<Response, ApiError> {
    let example = "{\"queue\": \"transcribe\"}";
    let fields = RequestFields::new(read_object(body, example).await?, &["queue", "pending"])?;
    let queue = fields.name("queue")?;
    let queue = queue_name(queue.ok_or_else(|| wrong("queue", "the name of the queue"))?)?;
    let pending = match fields.get("pending") {
        None => {
            let queues = on_desk(&api, Desk::queues).await??;
            queues.get(&queue).map_or(0, |counts| counts.pending())
        }
        Some(value) => value
            .as_u64()
            .ok_or_else(|| wrong("pending", "a number from 0"))?,
    };
    let most = max_pending(&api.daemon);
    if most.is_some_and(|most| pending > u64::from(most)) {
        let delay = retry_delay(&api.daemon);
        api.daemon.registry().events().emit(Event::TaskQueueFull {
            queue: queue.into(),
            pending,
        });
        return Ok(verdict(Some("queue_full"), Some(delay)));
    }
    let question = GuardQuestion {
        guard: TASK_GUARD.to_owned(),
        identifier: Some(queue),
        cost: 1,
    };
    let decisions = api.daemon.decisions();
    let asks = decisions.guard_asks(&[question])?;
    let denied = decisions.check(&asks)?.denied;
    Ok(verdict(
        denied.as_ref().map(|denied| denied.reason()),
        denied.and_then(|denied| denied.retry_in),
    ))
}

fn verdict(reason: Option<&'static str>, retry_in: Option<Span>) -> Response {
    json(&json!({
        "can_submit": reason.is_none(),
        "reason": reason,
        "retry_in": retry_in.map(seconds_up),
    }))
}

/// The source of a request.
fn source(fields: &RequestFields) -> Result<Source, ApiError> {
    let needed = |name: &str| {
        let value = fields.name(name)?;
        value.ok_or_else(|| ApiError::bad_request(&format!("`{name}` is missing"), "send it"))
    };
    let name = needed("name")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.len() > 64 || !name.bytes().all(plain) {
        return Err(wrong(
            "name",
            "at most 64 letters, digits, `-`, `_` and `.`",
        ));
    }
    fields.target()?;
    fields.priority()?;
    let every = fields.name("every")?;
    if every
        .as_deref()
        .is_some_and(|every| amount::span(every).is_none())
    {
        return Err(wrong("every", "a duration such as \"5m\""));
    }
    let cron = fields.name("cron")?;
    if cron
        .as_deref()
        .is_some_and(|cron| cron.split_whitespace().count() != 5)
    {
        return Err(wrong("cron", "five fields such as \"0 6 * * *\""));
    }
    if every.is_some() && cron.is_some() {
        return Err(ApiError::bad_request(
            "`every` and `cron` both say when",
            "send one of them",
        ));
    }
    let url = fields.url()?.unwrap_or_default();
    if holds_key(&url) {
        return Err(ApiError::bad_request(
            "`url` holds a user, a password or a key, and sources are stored in clear",
            "write the key as `api_key` into the provider's file; calls through Tollgate carry it",
        ));
    }
    Ok(Source {
        name,
        url,
        every,
        cron,
        priority: fields.name("priority")?,
        output: fields.name("output")?,
    })
}

/// Parameters that hold keys, as APIs call them.
const KEY_PARAMETERS: [&str; 10] = [
    "api_key",
    "apikey",
    "api-key",
    "key",
    "token",
    "access_token",
    "auth",
    "secret",
    "password",
    "appid",
];

/// Does a URL hold a user or a key?
fn holds_key(url: &str) -> bool {
    let Ok(uri) = url.parse::<axum::http::Uri>() else {
        return true;
    };
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let mut parameters = uri.query().unwrap_or_default().split('&');
    let is_key = |parameter: &str| {
        let name = parameter.split('=').next().unwrap_or_default();
        KEY_PARAMETERS.contains(&name.to_ascii_lowercase().as_str())
    };
    authority.contains('@') || parameters.any(is_key)
}

/// A source, and who limits it.
fn source_json(daemon: &Daemon, source: &Source) -> Value {
    let uri: Option<axum::http::Uri> = source.url.parse().ok();
    let authority = uri.as_ref().and_then(|uri| uri.authority());
    let authority = authority.map(|authority| authority.as_str().to_owned());
    let provider = authority.as_deref();
    let provider = provider.and_then(|authority| daemon.registry().find_by_authority(authority));
    let name = provider.map(|provider| provider.name().to_owned());
    let config = daemon.config();
    let limited = name.as_deref().and_then(|name| config.provider(name));
    let limited = limited.is_some_and(|one| one.enabled && !one.limits.is_empty());
    let mut shown = json!({
        "name": source.name,
        "url": source.url,
        "domain": uri.as_ref().and_then(|uri| uri.host()),
        "provider": name,
        "limited": limited,
    });
    for (field, value) in [
        ("every", &source.every),
        ("cron", &source.cron),
        ("priority", &source.priority),
        ("output", &source.output),
    ] {
        if let Some(value) = value {
            shown[field] = json!(value);
        }
    }
    shown
}

fn queue_name(name: String) -> Result<String, ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        return Err(wrong("queue", "1 to 64 letters, digits and `-_.:`"));
    }
    Ok(name)
}

/// What the guard of tasks says.
fn task_guard<T>(daemon: &Daemon, read: impl Fn(&tollgate_config::config::Task) -> T) -> Option<T> {
    let config = daemon.config();
    let guard = config.guards.iter().find(|guard| guard.name == TASK_GUARD);
    guard.map(|guard| read(&guard.task))
}

fn max_pending(daemon: &Daemon) -> Option<u32> {
    task_guard(daemon, |task| task.max_pending).flatten()
}

fn retry_delay(daemon: &Daemon) -> Span {
    task_guard(daemon, |task| task.retry_delay).unwrap_or(Span::from_secs(60))
}

/// Runs work on the desk on a blocking thread.
async fn on_desk<T: Send + 'static>(
    api: &ApiState,
    work: impl FnOnce(&Desk) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let work = move |daemon: &Daemon| {
        let desk = daemon.desk()?;
        Ok::<_, DeskError>(work(&desk))
    };
    let done = run_blocking(api.daemon.clone(), work).await;
    Ok(done.map_err(|_| ApiError::draining())??)
}

impl From<DeskError> for ApiError {
    fn from(error: DeskError) -> ApiError {
        let status = match error {
            DeskError::Full(_) => StatusCode::CONFLICT,
            DeskError::File(_) | DeskError::Database(_) | DeskError::Newer(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        let hint = "check the state folder and its disk; the log of tollgate says more";
        ApiError::mistake(status, "DeskUnavailable", &error.to_string(), hint)
    }
}
