//! Tasks on the admin address (C5, C6).
//!
//! Promises: a task may be submitted if its queue has room and the guard `task` has a token; nothing
//! waits. Where guards do not reject (`limiting: off`, `shadow`), queues do not either. Without a
//! guard `task` there is no limit.
//!
//! Never: runs a task.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use tollgate::event::Event;
use tollgate_config::config::{Guard, Limiting};
use tollgate_core::time::Span;

use super::desk::on_desk;
use super::routes::ApiState;
use crate::api::{ApiError, json, read_object};
use crate::daemon::Daemon;
use crate::decision_api::{RequestFields, seconds_up, wrong};
use crate::decisions::GuardRequest;
use crate::desk::{Desk, QueueCounts, TaskEvent};

/// The guard whose tokens tasks take.
const TASK_GUARD: &str = "task";

/// An operation: no queue can have this name.
const CAN_SUBMIT: &str = "can-submit";

/// `GET /v1/tasks`.
pub(super) async fn list(State(api): State<ApiState>) -> Result<Response, ApiError> {
    let queues = on_desk(&api, |desk, _| desk.queues()).await?;
    let max_pending = task_guard(&api.daemon).and_then(|guard| guard.task.max_pending);
    let shown = queues.iter().map(|(name, counts)| {
        let mut shown = counts_json(counts);
        shown["max_pending"] = json!(max_pending);
        (name.clone(), shown)
    });
    let shown: Map<String, Value> = shown.collect();
    let names: Vec<&String> = queues.keys().collect();
    Ok(json(&json!({ "queues": shown, "active_queues": names })))
}

/// `POST /v1/tasks/{queue} {id, event}`.
pub(super) async fn on_event(
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
    let work = move |desk: &Desk, daemon: &Daemon| {
        let rules = task_guard(daemon).map(|guard| guard.task);
        let now = daemon.registry().ledger().wall();
        desk.on_task((&queue, &id), event, rules.as_ref(), now)
    };
    let noted = on_desk(&api, work).await?;
    let mut shown = counts_json(&noted.counts);
    shown["failures"] = json!(noted.failures);
    shown["retry_in"] = json!(noted.retry_in.map(seconds_up));
    Ok(json(&shown))
}

/// `DELETE /v1/tasks/{queue}`: for a queue whose workers are gone.
pub(super) async fn remove_queue(
    State(api): State<ApiState>,
    Path(queue): Path<String>,
) -> Result<StatusCode, ApiError> {
    if on_desk(&api, move |desk, _| desk.remove_queue(&queue)).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::mistake(
        StatusCode::NOT_FOUND,
        "UnknownQueue",
        "there is no queue of this name",
        "GET /v1/tasks lists them",
    ))
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
    let pending = fields.integer("pending");
    let pending = pending.ok_or_else(|| wrong("pending", "a number from 0"))?;
    let pending = match pending {
        Some(pending) => pending,
        None => {
            let name = queue.clone();
            let counts = on_desk(&api, move |desk, _| desk.queue(&name)).await?;
            counts.pending()
        }
    };
    let decisions = api.daemon.decisions();
    let Some(guard) = task_guard(&api.daemon) else {
        return Ok(verdict(None, None));
    };
    let limiting = decisions.guards().limiting();
    let is_full = guard
        .task
        .max_pending
        .is_some_and(|most| pending > u64::from(most));
    if is_full && limiting != Limiting::Off {
        let shadow = limiting == Limiting::Shadow || guard.shadow;
        api.daemon.registry().events().emit(Event::TaskQueueFull {
            queue: queue.as_str().into(),
            pending,
            shadow,
        });
        if !shadow {
            return Ok(verdict(Some("queue_full"), Some(guard.task.retry_delay)));
        }
    }
    let request = GuardRequest {
        guard: guard.name,
        identifier: Some(queue),
        cost: 1,
    };
    let asks = decisions.guard_asks(&[request])?;
    let denied = decisions.check(&asks).await?.denied;
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

fn counts_json(counts: &QueueCounts) -> Value {
    json!({
        "active": counts.active,
        "scheduled": counts.scheduled,
        "reserved": counts.reserved,
        "pending": counts.pending(),
    })
}

fn queue_name(name: String) -> Result<String, ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if name.is_empty() || name.len() > 64 || name == CAN_SUBMIT || !name.bytes().all(plain) {
        let expected = "1 to 64 letters, digits and `-_.:`, and not `can-submit`";
        return Err(wrong("queue", expected));
    }
    Ok(name)
}

/// The guard of tasks.
fn task_guard(daemon: &Daemon) -> Option<Guard> {
    let loaded = daemon.loaded();
    let mut guards = loaded.config.guards.iter();
    guards.find(|guard| guard.name == TASK_GUARD).cloned()
}
