//! Tasks on the admin address (C5, C6).
//!
//! Promises: a task may be submitted if its queue has room and the guard of the queue has a token; nothing
//! waits. A queue's guard is the guard `by: name` with the name of the queue, otherwise the guard `task`.
//! A denial names the guard and the limit. Where guards do not reject (`limiting: off`, `shadow`), queues
//! do not either. Without a guard there is no limit.
//!
//! Never: runs a task.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use tollgate::event::Event;
use tollgate_config::config::{Guard, GuardKey, Limiting};

use super::desk::on_desk;
use super::routes::ApiState;
use crate::api::{ApiError, json, read_object};
use crate::daemon::Daemon;
use crate::decision_api::{RequestFields, guard_denial, seconds_up, wrong};
use crate::decisions::GuardRequest;
use crate::desk::{Desk, QueueCounts, TaskEvent};

/// The guard whose tokens tasks take, if their queue has no guard of its own.
const TASK_GUARD: &str = "task";

/// An operation: no queue can have this name.
const CAN_SUBMIT: &str = "can-submit";

/// `GET /v1/tasks`.
pub(super) async fn list(State(api): State<ApiState>) -> Result<Response, ApiError> {
    let queues = on_desk(&api, |desk, _| desk.queues()).await?;
    let shown = queues.iter().map(|(name, counts)| {
        let guard = guard_of(&api.daemon, name);
        let mut shown = counts_json(counts);
        shown["max_pending"] = json!(guard.and_then(|guard| guard.task.max_pending));
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
        let rules = guard_of(daemon, &queue).map(|guard| guard.task);
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
    let Some(guard) = guard_of(&api.daemon, &queue) else {
        return Ok(may_submit());
    };
    let limiting = decisions.guards().limiting();
    let full = guard
        .task
        .max_pending
        .filter(|most| pending > u64::from(*most));
    if let Some(max_pending) = full.filter(|_| limiting != Limiting::Off) {
        let shadow = limiting == Limiting::Shadow || guard.shadow;
        api.daemon.registry().events().emit(Event::TaskQueueFull {
            queue: queue.as_str().into(),
            pending,
            shadow,
        });
        if !shadow {
            return Ok(queue_full(&guard, &queue, pending, max_pending));
        }
    }
    let request = GuardRequest {
        guard: guard.name,
        identifier: Some(queue),
        cost: 1,
    };
    let asks = decisions.guard_asks(&[request])?;
    Ok(match decisions.check(&asks).await?.denied {
        None => may_submit(),
        Some(denied) => may_not_submit(guard_denial(&denied)),
    })
}

fn may_submit() -> Response {
    json(&json!({ "can_submit": true, "reason": null, "retry_in": null }))
}

/// A denial says what every denial of a guard says.
fn may_not_submit(mut denial: Value) -> Response {
    if let Some(fields) = denial.as_object_mut() {
        fields.remove("granted");
        fields.insert("can_submit".to_owned(), false.into());
    }
    json(&denial)
}

fn queue_full(guard: &Guard, queue: &str, pending: u64, max_pending: u32) -> Response {
    let retry_in = guard.task.retry_delay;
    may_not_submit(json!({
        "error": "QueueFull",
        "message": format!("{pending} tasks wait in the queue `{queue}`; at most {max_pending} may"),
        "hint": format!("submit it later, or raise `max_pending` of the guard `{}`", guard.name),
        "guard": guard.name,
        "limit": format!("max_pending {max_pending}"),
        "reason": "queue_full",
        "retry_in": seconds_up(retry_in),
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

/// The guard of a queue: one by name that is called like it, or the guard of all tasks.
fn guard_of(daemon: &Daemon, queue: &str) -> Option<Guard> {
    let loaded = daemon.loaded();
    let guards = &loaded.config.guards;
    let own = guards
        .iter()
        .find(|guard| guard.name == queue && guard.by == GuardKey::Name);
    let of_tasks = || guards.iter().find(|guard| guard.name == TASK_GUARD);
    own.or_else(of_tasks).cloned()
}
