//! `GET /openapi.json`: the admin API as OpenAPI 3.1, made from one table of operations.
//!
//! Promises: every route of `routes.rs` is an operation here, and each status and body that it may
//! have is described (a client that generates requests from it finds no difference). The file in
//! `docs/` is this one.
//!
//! Never: describes what does not exist.

use axum::http::Method;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::openapi_schemas::{all_schemas, parameter_schema};
use crate::api::json;
use crate::decision_api::CHECK_METHODS;

/// One operation: method, path, what it does, its parameters, the schemas of body and reply.
struct Operation {
    id: &'static str,
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    query: &'static [&'static str],
    body: Option<&'static str>,
    /// The status if all is well.
    status: &'static str,
    /// `None`: it has no body then.
    reply: Option<&'static str>,
    /// Other replies that are no mistakes: status, meaning, schema.
    also: &'static [(&'static str, &'static str, &'static str)],
    /// Operations that use a field of the reply: operation, its parameter or field, our field.
    links: &'static [(&'static str, &'static str, &'static str)],
}

const fn operation(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
) -> Operation {
    Operation {
        id,
        method,
        path,
        summary,
        query: &[],
        body: None,
        status: "200",
        reply: Some("Object"),
        also: &[],
        links: &[],
    }
}

impl Operation {
    const fn query(self, query: &'static [&'static str]) -> Operation {
        Operation { query, ..self }
    }

    const fn body(self, body: &'static str) -> Operation {
        Operation {
            body: Some(body),
            ..self
        }
    }

    const fn reply(self, reply: &'static str) -> Operation {
        Operation {
            reply: Some(reply),
            ..self
        }
    }

    const fn status(self, status: &'static str, reply: Option<&'static str>) -> Operation {
        Operation {
            status,
            reply,
            ..self
        }
    }

    const fn also(self, also: &'static [(&'static str, &'static str, &'static str)]) -> Operation {
        Operation { also, ..self }
    }

    const fn links(
        self,
        links: &'static [(&'static str, &'static str, &'static str)],
    ) -> Operation {
        Operation { links, ..self }
    }
}

/// A reply that is no JSON.
const EVENT_STREAM: &str = "EventStream";

const OPERATIONS: &[Operation] = &[
    operation(
        "post",
        "/v1/acquire",
        "acquire",
        "Get a permit for a call, or tokens of guards, all or none",
    )
    .body("AcquireRequest")
    .reply("Acquired")
    .also(&[("429", "denied", "Acquired")])
    .links(&[
        ("report", "permit", "permit"),
        ("renew", "permit", "permit"),
        ("release", "permit", "permit"),
    ]),
    operation(
        "post",
        "/v1/report",
        "report",
        "Say what became of the call of a permit; the first report counts",
    )
    .body("ReportRequest")
    .reply("Reported"),
    operation(
        "post",
        "/v1/release",
        "release",
        "Give a permit back that is not used",
    )
    .body("PermitRequest")
    .reply("Released"),
    operation(
        "post",
        "/v1/renew",
        "renew",
        "Hold a permit for as long as a new one: its call still runs",
    )
    .body("PermitRequest")
    .reply("Renewed"),
    operation(
        "get",
        "/v1/capacity",
        "capacity",
        "Would a call get a permit now? Takes nothing; needs `provider` or `url`",
    )
    .query(&["provider", "url", "entity", "priority", "cost", "caller"])
    .reply("Capacity"),
    operation(
        "get",
        "/v1/check",
        "check",
        "Forward-auth: 200, or `deny_status` (429), with rate headers",
    )
    .query(&["guard", "identifier", "deny_status"])
    .reply("Checked")
    .also(&[("5XX", "denied with a `deny_status` of 500 to 599", "Error")]),
    operation(
        "get",
        "/v1/guards",
        "guards",
        "All guards, with what each has denied since the start",
    )
    .reply("Guards"),
    operation(
        "get",
        "/v1/guards/{class}",
        "guard",
        "The tokens of one key of a guard; takes nothing",
    )
    .query(&["identifier"])
    .reply("GuardStatus"),
    operation(
        "post",
        "/v1/limiting",
        "limiting",
        "Switch guards on, off or to shadow, until the daemon ends; null = as configured",
    )
    .body("LimitingRequest")
    .reply("Limiting"),
    operation("get", "/v1/providers", "providers", "All providers").reply("Providers"),
    operation(
        "get",
        "/v1/providers/{name}",
        "provider",
        "One provider: health, limits, queue, permits, settings",
    )
    .query(&["entity"])
    .reply("Provider"),
    operation(
        "patch",
        "/v1/providers/{name}/settings",
        "set",
        "Change settings, all or none",
    )
    .body("Settings")
    .reply("Changes"),
    operation(
        "post",
        "/v1/providers/{name}/pause",
        "pause",
        "Send no calls; they wait",
    )
    .query(&["for"])
    .reply("CommandDone"),
    operation(
        "post",
        "/v1/providers/{name}/offline",
        "offline",
        "Send no calls; they are rejected",
    )
    .reply("CommandDone"),
    operation(
        "post",
        "/v1/providers/{name}/cache-only",
        "cache-only",
        "Use only the cache",
    )
    .query(&["for"])
    .reply("CommandDone"),
    operation(
        "post",
        "/v1/providers/{name}/resume",
        "resume",
        "Send calls again",
    )
    .query(&["entity"])
    .reply("CommandDone"),
    operation(
        "post",
        "/v1/providers/{name}/reset",
        "reset",
        "Clear failures, cool-downs and degrade modes",
    )
    .query(&["entity"])
    .reply("CommandDone"),
    operation(
        "get",
        "/v1/cache",
        "cache",
        "What the cache holds and saved",
    )
    .query(&["provider", "entity"])
    .reply("Cache"),
    operation(
        "delete",
        "/v1/cache",
        "purge",
        "Delete cached responses; `entity` needs `provider`",
    )
    .query(&["provider", "entity"])
    .reply("Purged"),
    operation("post", "/v1/reload", "reload", "Read every file again")
        .reply("Changes")
        .also(&[(
            "422",
            "a file was rejected; its old version stays",
            "Changes",
        )]),
    operation("get", "/v1/sources", "sources", "All sources").reply("Sources"),
    operation(
        "post",
        "/v1/sources",
        "add-source",
        "Add a source; the reply says who will limit it",
    )
    .body("SourceRequest")
    .status("201", Some("Source"))
    .links(&[("remove-source", "name", "name")]),
    operation(
        "delete",
        "/v1/sources/{name}",
        "remove-source",
        "Remove a source",
    )
    .status("204", None),
    operation(
        "get",
        "/v1/tasks",
        "tasks",
        "The tasks of each queue, as counts",
    )
    .reply("Tasks"),
    operation(
        "post",
        "/v1/tasks/{queue}",
        "task-event",
        "Note an event of a task; the reply says when to run it again",
    )
    .body("TaskEvent")
    .reply("TaskNoted"),
    operation(
        "delete",
        "/v1/tasks/{queue}",
        "remove-queue",
        "Remove a queue and its counts",
    )
    .status("204", None),
    operation(
        "post",
        "/v1/tasks/can-submit",
        "can-submit",
        "May a task be submitted now?",
    )
    .body("CanSubmitRequest")
    .reply("CanSubmit"),
    operation(
        "get",
        "/v1/history",
        "history",
        "What happened: counts per second (5m), 10 s (1h) or minute (24h), of a provider or of all",
    )
    .query(&["provider", "span"])
    .reply("History"),
    operation(
        "get",
        "/v1/callers",
        "callers",
        "What each caller of each provider did in the current window of its longest limit",
    )
    .reply("Callers"),
    operation(
        "get",
        "/v1/config",
        "config",
        "Every setting and who set it, and all problems; no keys",
    )
    .reply("Config"),
    operation(
        "get",
        "/v1/events",
        "events",
        "Server-sent events: sample (each second), transition, notice, alert, decision",
    )
    .query(&["kinds"])
    .reply(EVENT_STREAM),
    operation(
        "post",
        "/v1/session",
        "sign-in",
        "Exchange the admin token for a session cookie (the page does)",
    )
    .body("SessionRequest")
    .reply("Session"),
    operation("delete", "/v1/session", "sign-out", "End the session").status("204", None),
    operation("get", "/health", "health", "The process lives").reply("Status"),
    operation("get", "/ready", "ready", "Calls are served").reply("Status"),
    operation(
        "get",
        "/v1/decisions",
        "decisions",
        "The last calls, newest first, and why they waited, were rejected or came from the cache",
    )
    .query(&["provider", "id", "limit"])
    .reply("Decisions"),
    operation(
        "get",
        "/api/rate-limit/metrics",
        "entity-metrics",
        "Metrics of every entity, and current alerts",
    )
    .query(&["entity", "provider"])
    .reply("EntityMetrics")
    .also(&[("404", "no such entity", "UnknownEntity")]),
    operation(
        "get",
        "/metrics",
        "metrics",
        "Metrics for Prometheus, as text 0.0.4, or OpenMetrics if `Accept` prefers it",
    )
    .status("200", None),
    operation("get", "/openapi.json", "openapi", "This document"),
];

/// What an operation reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperationInput {
    pub(super) has_query: bool,
    /// The schema of its body.
    pub(super) body: Option<&'static str>,
}

/// What the operation of this method and path reads; `None`: there is none. HEAD reads what GET does.
pub(super) fn input_of(method: &Method, path: &str) -> Option<OperationInput> {
    let method = match *method {
        Method::HEAD => &Method::GET,
        _ => method,
    };
    let mut all = OPERATIONS.iter();
    let found =
        all.find(|one| one.path == path && one.method.eq_ignore_ascii_case(method.as_str()))?;
    Some(OperationInput {
        has_query: !found.query.is_empty(),
        body: found.body,
    })
}

/// The fields of a schema, or of each of its forms.
pub(super) fn fields_of(schema: &str) -> Vec<String> {
    let schema = &all_schemas()[schema];
    let forms = schema["anyOf"].as_array().into_iter().flatten();
    let forms = std::iter::once(schema).chain(forms);
    let mut fields: Vec<String> = forms
        .filter_map(|form| form["properties"].as_object())
        .flat_map(|properties| properties.keys().cloned())
        .collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

/// `GET /openapi.json`.
pub(super) async fn serve() -> Response {
    json(&document())
}

pub(super) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for one in OPERATIONS {
        let entry = paths.entry(one.path).or_insert_with(|| json!({}));
        if one.id != "check" {
            entry[one.method] = describe(one);
            continue;
        }
        // A proxy asks with the method of the request that it holds.
        for method in CHECK_METHODS.to_ascii_lowercase().split(',') {
            let mut described = describe(one);
            if method != one.method {
                described["operationId"] = json!(format!("{}-{method}", one.id));
            }
            if method == "head" {
                without_bodies(&mut described["responses"]);
            }
            entry[method] = described;
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tollgate admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Times are seconds with three decimals; `null` is the same as an absent field. Requests that change something need the header `X-Tollgate-Admin: 1`, or the admin token if one is set. The calls acquire, report, release, renew, capacity and check are also served at /-/v1/ on the gateway's address, with a caller's token.",
            "license": { "name": "Apache-2.0 OR MIT" },
        },
        "paths": paths,
        "components": {
            "schemas": all_schemas(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{ "token": [] }, {}],
    })
}

fn describe(one: &Operation) -> Value {
    let mut described = json!({
        "operationId": one.id,
        "summary": one.summary,
        "responses": replies(one),
    });
    let in_path = ["name", "class", "queue"].into_iter();
    let in_path = in_path.filter(|name| one.path.contains(&format!("{{{name}}}")));
    let in_path = in_path.map(|name| parameter(name, "path"));
    let in_query = one.query.iter().map(|name| parameter(name, "query"));
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    if !parameters.is_empty() {
        described["parameters"] = json!(parameters);
    }
    if let Some(body) = one.body {
        described["requestBody"] = json!({ "required": true, "content": content(body) });
    }
    described
}

fn parameter(name: &str, place: &str) -> Value {
    let mut parameter = json!({ "name": name, "in": place, "schema": parameter_schema(name) });
    if place == "path" {
        parameter["required"] = json!(true);
    }
    parameter
}

fn replies(one: &Operation) -> Value {
    let mut done = json!({ "description": "done" });
    if let Some(reply) = one.reply {
        done["content"] = content(reply);
    }
    for (operation, into, from) in one.links {
        done["links"][*operation] = link(operation, into, from);
    }
    let error = content("Error");
    let mistake = "a mistake of the caller, with its remedy";
    let too_large = "the head has more than 32 KiB or 100 headers";
    let unable = "not now: the daemon shuts down, or its store or disk does not work";
    let mut replies = json!({
        one.status: done,
        "4XX": { "description": mistake, "content": error },
        "431": { "description": too_large, "content": error },
        "503": { "description": unable, "content": error },
    });
    for (status, meaning, schema) in one.also {
        replies[*status] = json!({ "description": meaning, "content": content(schema) });
    }
    replies
}

/// A response to HEAD has none.
fn without_bodies(replies: &mut Value) {
    for (_, reply) in replies.as_object_mut().into_iter().flatten() {
        if let Some(reply) = reply.as_object_mut() {
            reply.remove("content");
        }
    }
}

/// The field of a reply that another operation takes: as a parameter, or in its body.
fn link(operation: &str, into: &str, from: &str) -> Value {
    let value = format!("$response.body#/{from}");
    let is_parameter = OPERATIONS
        .iter()
        .any(|one| one.id == operation && one.path.contains(&format!("{{{into}}}")));
    if is_parameter {
        json!({ "operationId": operation, "parameters": { into: value } })
    } else {
        json!({ "operationId": operation, "requestBody": { into: value } })
    }
}

fn content(schema: &str) -> Value {
    if schema == EVENT_STREAM {
        return json!({ "text/event-stream": { "schema": { "type": "string" } } });
    }
    json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } })
}
