//! `GET /openapi.json`: the admin API as OpenAPI 3.1, made from one table of operations.
//!
//! Promises: every route of `routes.rs` is an operation here, and the file in `docs/` is this one
//! (tests compare both).
//!
//! Never: describes what does not exist.

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::api::json;

/// One operation: method, path, what it does, its parameters, the schemas of body and response.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    query: &'static [&'static str],
    body: Option<&'static str>,
    reply: &'static str,
}

const fn operation(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    reply: &'static str,
) -> Operation {
    Operation {
        method,
        path,
        summary,
        query: &[],
        body: None,
        reply,
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
}

const OPERATIONS: &[Operation] = &[
    operation(
        "post",
        "/v1/acquire",
        "Get a permit for a call, or tokens of guards, all or none",
        "Acquired",
    )
    .body("AcquireRequest"),
    operation(
        "post",
        "/v1/report",
        "Say what became of the call of a permit; the first report counts",
        "Reported",
    )
    .body("ReportRequest"),
    operation(
        "post",
        "/v1/release",
        "Give a permit back that is not used",
        "Released",
    )
    .body("ReleaseRequest"),
    operation(
        "get",
        "/v1/capacity",
        "Would a call get a permit now? Takes nothing",
        "Capacity",
    )
    .query(&["provider", "url", "entity", "priority", "cost", "caller"]),
    operation(
        "get",
        "/v1/check",
        "Forward-auth: 200, or `deny_status` (429), with rate headers",
        "Object",
    )
    .query(&["guard", "identifier", "deny_status"]),
    operation(
        "get",
        "/v1/guards/{class}",
        "The tokens of one key of a guard; takes nothing",
        "GuardStatus",
    )
    .query(&["identifier"]),
    operation(
        "post",
        "/v1/limiting",
        "Switch guards on, off or to shadow, until the daemon ends",
        "Limiting",
    )
    .body("Limiting"),
    operation("get", "/v1/providers", "All providers", "Object"),
    operation(
        "get",
        "/v1/providers/{name}",
        "One provider: health, limits, queue, permits, settings",
        "Object",
    )
    .query(&["entity"]),
    operation(
        "patch",
        "/v1/providers/{name}/settings",
        "Change settings, all or none",
        "Object",
    )
    .body("Object"),
    operation(
        "post",
        "/v1/providers/{name}/pause",
        "Send no calls; they wait",
        "Object",
    )
    .query(&["for"]),
    operation(
        "post",
        "/v1/providers/{name}/offline",
        "Send no calls; they are rejected",
        "Object",
    ),
    operation(
        "post",
        "/v1/providers/{name}/cache-only",
        "Use only the cache",
        "Object",
    )
    .query(&["for"]),
    operation(
        "post",
        "/v1/providers/{name}/resume",
        "Send calls again",
        "Object",
    )
    .query(&["entity"]),
    operation(
        "post",
        "/v1/providers/{name}/reset",
        "Clear failures, cool-downs and degrade modes",
        "Object",
    )
    .query(&["entity"]),
    operation(
        "get",
        "/v1/cache",
        "What the cache holds and saved",
        "Object",
    )
    .query(&["provider", "entity"]),
    operation("delete", "/v1/cache", "Delete cached responses", "Object")
        .query(&["provider", "entity"]),
    operation("post", "/v1/reload", "Read every file again", "Object"),
    operation("get", "/v1/sources", "All sources", "Object"),
    operation(
        "post",
        "/v1/sources",
        "Add a source; the reply says who will limit it",
        "Object",
    )
    .body("SourceRequest"),
    operation("delete", "/v1/sources/{name}", "Remove a source", "Object"),
    operation(
        "get",
        "/v1/tasks",
        "The tasks of each queue, as counts",
        "Object",
    ),
    operation(
        "post",
        "/v1/tasks/{queue}",
        "Note an event of a task",
        "Object",
    )
    .body("TaskEvent"),
    operation(
        "post",
        "/v1/tasks/can-submit",
        "May a task be submitted now?",
        "CanSubmit",
    )
    .body("CanSubmitRequest"),
    operation("get", "/health", "The process lives", "Object"),
    operation("get", "/ready", "Calls are served", "Object"),
    operation("get", "/openapi.json", "This document", "Object"),
];

/// `GET /openapi.json`.
pub(super) async fn serve() -> Response {
    json(&document())
}

fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for one in OPERATIONS {
        let entry = paths.entry(one.path).or_insert_with(|| json!({}));
        entry[one.method] = describe(one);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tollgate admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Times are seconds with three decimals. The calls acquire, report, release, capacity and check are also served at /-/v1/ on the gateway's address, with a caller's token.",
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
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let content = |name: &str| json!({ "application/json": { "schema": reference(name) } });
    let text = json!({ "type": "string" });
    let in_path = ["name", "class", "queue"].into_iter();
    let in_path = in_path.filter(|name| one.path.contains(&format!("{{{name}}}")));
    let in_path =
        in_path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": text }));
    let in_query = one.query.iter();
    let in_query = in_query.map(|name| json!({ "name": name, "in": "query", "schema": text }));
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    let mut replies = json!({
        "200": { "description": "done", "content": content(one.reply) },
        "4XX": { "description": "a mistake of the caller, with its remedy", "content": content("Error") },
    });
    if one.reply == "Acquired" {
        replies["429"] = json!({ "description": "denied", "content": content("Acquired") });
    }
    let mut described = json!({ "summary": one.summary, "responses": replies });
    if !parameters.is_empty() {
        described["parameters"] = json!(parameters);
    }
    if let Some(body) = one.body {
        described["requestBody"] = json!({ "required": true, "content": content(body) });
    }
    described
}

fn schemas() -> Value {
    json!({
        "Object": { "type": "object" },
        "Error": object(&["error", "message", "hint"], &json!({
            "error": { "type": "string" },
            "message": { "type": "string" },
            "hint": { "type": "string" },
            "reason": { "type": "string" },
            "problems": { "type": "array", "items": { "type": "string" } },
        })),
        "Cost": {
            "description": "a number of calls, numbers by unit, or a text such as tokens=1200",
            "oneOf": [
                { "type": "integer", "minimum": 1, "maximum": 9_007_199_254_740_992_u64 },
                { "type": "object", "additionalProperties": { "type": "integer", "minimum": 1 } },
                { "type": "string" },
            ],
        },
        "Ask": strict(&[], &json!(ask_fields())),
        "AcquireRequest": strict(&[], &request_fields()),
        "Acquired": object(&["granted", "permit", "waited", "retry_in", "limit", "remaining", "reason", "decision", "use_within"], &json!({
            "granted": { "type": "boolean" },
            "permit": { "type": ["string", "null"] },
            "waited": { "type": "number" },
            "retry_in": { "type": ["number", "null"] },
            "limit": { "oneOf": [{ "$ref": "#/components/schemas/Limit" }, { "type": "null" }] },
            "remaining": { "type": ["integer", "null"] },
            "reason": { "type": ["string", "null"] },
            "decision": { "enum": ["allow", "queue", "reject"] },
            "use_within": { "type": ["number", "null"] },
            "provider": { "type": "string" },
            "guard": { "type": "string" },
            "error": { "type": "string" },
            "message": { "type": "string" },
            "hint": { "type": "string" },
        })),
        "Limit": object(&["name", "limit", "period", "scope"], &json!({
            "name": { "type": "string" },
            "limit": { "type": ["integer", "null"] },
            "period": { "type": ["string", "null"] },
            "scope": { "type": "string" },
        })),
        "ReportRequest": strict(&["permit"], &json!({
            "permit": { "type": "string" },
            "status": { "type": "integer", "minimum": 100, "maximum": 599 },
            "headers": { "type": "object" },
            "body": {},
            "error": { "enum": ["timeout", "dns", "connect", "reset"] },
            "latency": { "type": ["number", "string"] },
            "cost": { "$ref": "#/components/schemas/Cost" },
            "tokens": { "$ref": "#/components/schemas/Cost" },
        })),
        "Reported": object(&["reported", "first", "class", "retry_in"], &json!({
            "reported": { "type": "boolean" },
            "first": { "type": "boolean" },
            "class": { "enum": ["success", "limited", "server_error", "network", "other"] },
            "retry_in": { "type": ["number", "null"] },
        })),
        "ReleaseRequest": strict(&["permit"], &json!({ "permit": { "type": "string" } })),
        "Released": object(&["released"], &json!({ "released": { "type": "boolean" } })),
        "Capacity": object(&["available", "retry_in", "remaining", "state"], &json!({
            "available": { "type": "boolean" },
            "retry_in": { "type": ["number", "null"] },
            "remaining": { "type": ["integer", "null"] },
            "state": { "enum": ["normal", "throttle", "sleep", "half_open", "cache_only"] },
            "provider": { "type": "string" },
            "limit": { "oneOf": [{ "$ref": "#/components/schemas/Limit" }, { "type": "null" }] },
            "reason": { "type": ["string", "null"] },
        })),
        "GuardStatus": object(&["tokens_available", "tokens_per_minute", "burst_size", "last_refill"], &json!({
            "tokens_available": { "type": "number" },
            "tokens_per_minute": { "type": "integer" },
            "burst_size": { "type": "integer" },
            "last_refill": { "type": "number" },
        })),
        "Limiting": strict(&["mode"], &json!({ "mode": { "enum": ["on", "off", "shadow", null] } })),
    })
}

/// Schemas of sources and tasks.
fn desk_schemas() -> Value {
    json!({
        "SourceRequest": strict(&["name", "url"], &json!({
            "name": { "type": "string" },
            "url": { "type": "string" },
            "every": { "type": "string" },
            "cron": { "type": "string" },
            "priority": { "type": "string" },
            "output": { "type": "string" },
        })),
        "TaskEvent": strict(&["id", "event"], &json!({
            "id": { "type": "string" },
            "event": { "enum": ["submitted", "started", "scheduled", "finished", "failed"] },
        })),
        "CanSubmitRequest": strict(&["queue"], &json!({
            "queue": { "type": "string" },
            "pending": { "type": "integer", "minimum": 0 },
        })),
        "CanSubmit": object(&["can_submit", "reason", "retry_in"], &json!({
            "can_submit": { "type": "boolean" },
            "reason": { "type": ["string", "null"] },
            "retry_in": { "type": ["number", "null"] },
        })),
    })
}

fn all_schemas() -> Value {
    let (mut all, desk) = (schemas(), desk_schemas());
    for (name, schema) in desk.as_object().into_iter().flatten() {
        all[name] = schema.clone();
    }
    all
}

/// The fields of one ask.
fn ask_fields() -> Map<String, Value> {
    let mut fields = Map::new();
    for name in [
        "provider",
        "url",
        "guard",
        "identifier",
        "entity",
        "priority",
        "caller",
    ] {
        fields.insert(name.to_owned(), json!({ "type": "string" }));
    }
    for name in ["cost", "tokens"] {
        let cost = json!({ "$ref": "#/components/schemas/Cost" });
        fields.insert(name.to_owned(), cost);
    }
    fields
}

fn request_fields() -> Value {
    let mut fields = ask_fields();
    let ask = json!({ "$ref": "#/components/schemas/Ask" });
    for (name, schema) in [
        ("wait", json!({ "type": "boolean", "default": true })),
        ("timeout", json!({ "type": ["number", "string"] })),
        (
            "asks",
            json!({ "type": "array", "items": ask, "minItems": 1 }),
        ),
    ] {
        fields.insert(name.to_owned(), schema);
    }
    Value::Object(fields)
}

fn object(required: &[&str], properties: &Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

/// An object whose unknown fields are rejected.
fn strict(required: &[&str], properties: &Value) -> Value {
    let mut schema = object(required, properties);
    schema["additionalProperties"] = json!(false);
    schema
}
