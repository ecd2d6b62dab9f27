//! The schemas of the OpenAPI document.
//!
//! Promises: what a schema allows is accepted or denied, never a mistake; `null` is allowed exactly
//! where a field may be absent.
//!
//! Never: describes a reply more loosely than a client needs it.
#![expect(
    clippy::needless_pass_by_value,
    reason = "schemas are written in place"
)]

use serde_json::{Map, Value, json};
use tollgate_config::provider::Cost;
use tollgate_guard::ASKS_MAX;

use super::{live::KINDS, openapi_limits as limits};
use crate::call_words::{COST_MAX, PRIORITIES};
use crate::decision_api::{ASK_FIELDS, NAME_MAX, URL_MAX};
use crate::decision_log::KEPT_MAX;
use crate::desk::TaskEvent;

/// A duration as a text: `10s`, `1m30s`.
const DURATION: &str = "^([0-9]{1,4}w)?([0-9]{1,4}d)?([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}(\\.[0-9]{1,3})?s)?([0-9]{1,4}ms)?$";

/// A duration within a day.
const SPAN: &str = "^([1-9][0-9]{0,2}[sm]|([1-9]|1[0-9]|2[0-4])h)$";

/// Names of sources.
const SOURCE_NAME: &str = "^[A-Za-z0-9_.\\-]{1,64}$";

/// The lists of `GET /v1/history`, one number per slot.
const HISTORY_COLUMNS: &[&str] = &[
    "state",
    "calls",
    "sent_high",
    "sent_normal",
    "sent_low",
    "success",
    "limited",
    "failed",
    "other",
    "saved",
    "misses",
    "rejected",
    "waiting",
    "wait_p50_ms",
    "wait_p99_ms",
];

/// Names of queues; `can-submit` is an operation.
const QUEUE_NAME: &str = "^(?!can-submit$)[A-Za-z0-9_.:\\-]{1,64}$";

/// The schema of a parameter of a path or a query.
pub(super) fn parameter_schema(name: &str) -> Value {
    match name {
        "span" => json!({ "type": "string", "pattern": SPAN, "default": "1h" }),
        "kinds" => json!({ "type": "string", "example": KINDS.join(",") }),
        "for" => json!({ "type": "string", "pattern": DURATION, "minLength": 2 }),
        "deny_status" => {
            json!({ "type": "integer", "minimum": 400, "maximum": 599, "default": 429 })
        }
        "priority" => json!({ "enum": PRIORITIES }),
        "cost" => cost_text(),
        "url" => url(),
        "entity" => json!({ "type": "string", "pattern": "^[!-~]{1,128}$" }),
        "caller" => json!({ "type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$" }),
        "provider" => with_example(text(), "tmdb"),
        "guard" => with_example(text(), "api"),
        "queue" => json!({ "type": "string", "pattern": QUEUE_NAME }),
        "limit" => {
            json!({ "type": "integer", "minimum": 1, "maximum": KEPT_MAX, "default": 100 })
        }
        _ => text(),
    }
}

/// Every schema by its name.
pub(super) fn all_schemas() -> Value {
    let mut all = Map::new();
    for part in [
        request_schemas(),
        reply_schemas(),
        operator_schemas(),
        page_schemas(),
        desk_schemas(),
        observation_schemas(),
    ] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    Value::Object(all)
}

fn request_schemas() -> Value {
    let request = ["provider", "url", "guard", "asks"].map(|kind| ask_schema(kind, true));
    let call = ["provider", "url"].map(|kind| ask_schema(kind, false));
    json!({
        "Cost": {
            "description": "a number of calls, numbers by unit, or a text such as tokens=1200",
            "anyOf": [
                amount(1),
                units(1),
                cost_text(),
                { "type": "null" },
            ],
        },
        "RealCost": {
            "description": "what a call has cost: perhaps nothing",
            "anyOf": [amount(0), units(0), cost_text(), { "type": "null" }],
        },
        "GuardCost": {
            "description": "how many tokens",
            "anyOf": [amount(1), { "type": "string", "pattern": "^[1-9][0-9]{0,14}$" }, { "type": "null" }],
        },
        "CallAsk": { "anyOf": call },
        "GuardAsk": ask_schema("guard", false),
        "AcquireRequest": { "anyOf": request },
        "ReportRequest": { "anyOf": [
            report_schema(json!({ "status": { "type": "integer", "minimum": 100, "maximum": 599 }, "headers": headers(), "body": {} }), &["status"]),
            report_schema(json!({ "error": { "enum": ["timeout", "dns", "connect", "reset"] } }), &["error"]),
            report_schema(json!({}), &[]),
        ] },
        "PermitRequest": strict(&["permit"], json!({ "permit": text() })),
    })
}

/// One kind of ask: the fields that it may have, and those that it must not.
fn ask_schema(kind: &str, with_request: bool) -> Value {
    let mut fields = Map::new();
    for name in ASK_FIELDS {
        fields.insert((*name).to_owned(), json!({ "type": "null" }));
    }
    let cost = if kind == "guard" { "GuardCost" } else { "Cost" };
    let allowed: &[&str] = match kind {
        "guard" => &["guard", "identifier"],
        "asks" => &[],
        _ => &["entity", "priority", "caller"],
    };
    for name in allowed {
        fields.insert((*name).to_owned(), or_null(parameter_schema(name)));
    }
    if kind == "asks" {
        let list = |of: &str, most: usize| json!({ "type": "array", "items": reference(of), "minItems": 1, "maxItems": most });
        let asks = json!({ "anyOf": [list("GuardAsk", ASKS_MAX), list("CallAsk", 1)] });
        fields.insert("asks".to_owned(), asks);
    } else {
        fields.insert(kind.to_owned(), parameter_schema(kind));
        for name in ["cost", "tokens"] {
            fields.insert(name.to_owned(), reference(cost));
        }
        if with_request {
            fields.insert("asks".to_owned(), json!({ "type": "null" }));
        }
    }
    if with_request {
        let wait = json!({ "type": ["boolean", "null"], "default": true });
        fields.insert("wait".to_owned(), wait);
        fields.insert("timeout".to_owned(), seconds());
    }
    let mut schema = strict(&[kind], Value::Object(fields));
    if kind != "asks" {
        schema["not"] = both("cost", "tokens");
    }
    schema
}

fn report_schema(outcome: Value, required: &[&str]) -> Value {
    let mut fields = json!({
        "permit": text(),
        "status": { "type": "null" },
        "headers": { "type": "null" },
        "body": { "type": "null" },
        "error": { "type": "null" },
        "latency": seconds(),
        "cost": reference("RealCost"),
        "tokens": reference("RealCost"),
    });
    for (name, schema) in outcome.as_object().into_iter().flatten() {
        fields[name] = schema.clone();
    }
    let mut required = required.to_vec();
    required.push("permit");
    let mut schema = strict(&required, fields);
    schema["not"] = both("cost", "tokens");
    schema
}

/// Headers of a response: texts by name, or lists of them.
fn headers() -> Value {
    let one = json!({ "type": ["string", "number"], "pattern": "^[\\t -~]*$" });
    json!({
        "type": ["object", "null"],
        "maxProperties": 64,
        "propertyNames": { "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z\\-]+$" },
        "additionalProperties": { "anyOf": [one, { "type": "array", "items": one, "maxItems": 8 }] },
    })
}

/// What a guard means for tasks.
fn task_settings() -> Value {
    let properties = json!({
        "max_pending": { "type": ["integer", "null"] },
        "retry_delay": { "type": "number" },
        "wait": { "type": "number" },
        "retries": { "type": "integer" },
        "factor": { "type": "number" },
    });
    object(
        &["max_pending", "retry_delay", "wait", "retries", "factor"],
        properties,
    )
}

fn reply_schemas() -> Value {
    json!({
        "Object": { "type": "object" },
        "Error": object(&["error", "message", "hint"], json!({
            "error": { "type": "string" },
            "message": { "type": "string" },
            "hint": { "type": "string" },
            "reason": { "type": "string" }, "retry_in": { "type": "number" },
            "problems": { "type": "array", "items": { "type": "string" } },
        })),
        "Acquired": object(&["granted", "permit", "waited", "retry_in", "limit", "remaining", "reason", "decision", "use_within"], json!({
            "granted": { "type": "boolean" },
            "permit": { "type": ["string", "null"] },
            "waited": { "type": "number" },
            "retry_in": { "type": ["number", "null"] },
            "limit": { "anyOf": [reference("Limit"), { "type": "null" }] },
            "remaining": { "type": ["integer", "null"] },
            "reason": { "type": ["string", "null"] },
            "decision": { "enum": ["allow", "queue", "reject"] },
            "use_within": { "type": ["number", "null"] },
            "provider": { "type": "string" },
            "guard": { "type": "string" }, "id": { "type": "string" },
            "task": task_settings(),
            "error": { "type": "string" },
            "message": { "type": "string" },
            "hint": { "type": "string" },
        })),
        "Limit": object(&["name", "limit", "period", "scope"], json!({
            "name": { "type": "string" },
            "limit": { "type": ["integer", "null"] },
            "period": { "type": ["string", "null"] },
            "scope": { "type": "string" },
        })),
        "Reported": object(&["reported", "first", "class", "retry_in"], json!({
            "reported": { "type": "boolean" },
            "first": { "type": "boolean" },
            "class": { "enum": ["success", "limited", "server_error", "network", "other"] },
            "retry_in": { "type": ["number", "null"] },
        })),
        "Released": object(&["released"], json!({ "released": { "const": true } })),
        "Renewed": object(&["renewed", "use_within"], json!({ "renewed": { "const": true }, "use_within": { "type": "number" } })),
        "Checked": object(&["granted"], json!({ "granted": { "const": true } })),
        "Capacity": object(&["available", "retry_in", "remaining", "state"], json!({
            "available": { "type": "boolean" },
            "retry_in": { "type": ["number", "null"] },
            "remaining": { "type": ["integer", "null"] },
            "state": state(),
            "provider": { "type": "string" },
            "limit": { "anyOf": [reference("Limit"), { "type": "null" }] },
            "reason": { "type": ["string", "null"] },
            "message": { "type": ["string", "null"] },
        })),
        "Guards": object(&["limiting", "keys", "store", "guards"], json!({
            "limiting": { "enum": ["on", "off", "shadow"] },
            "keys": { "type": "integer" },
            "store": { "enum": ["up", "lost"] },
            "guards": { "type": "array", "items": object(&["name", "limit", "burst", "shadow", "on_store_loss", "denied", "shadow_denied"], json!({
                "name": { "type": "string" },
                "limit": { "type": "string" },
                "burst": { "type": "integer" },
                "shadow": { "type": "boolean" },
                "on_store_loss": { "enum": ["closed", "local-share", "open"] },
                "denied": { "type": "integer" },
                "shadow_denied": { "type": "integer" },
            })) },
        })),
        "GuardStatus": object(&["tokens_available", "tokens_per_minute", "burst_size", "last_refill"], json!({
            "tokens_available": { "type": "number" },
            "tokens_per_minute": { "type": "integer" },
            "burst_size": { "type": "integer" },
            "last_refill": { "type": "number" },
        })),
        "LimitingRequest": strict(&["mode"], json!({ "mode": { "enum": ["on", "off", "shadow", null] } })),
        "Limiting": strict(&["mode"], json!({ "mode": { "enum": ["on", "off", "shadow"] } })),
        "Status": object(&["status"], json!({ "status": { "type": "string" } })),
    })
}

/// Schemas of what operators see and do.
fn operator_schemas() -> Value {
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    let objects = json!({ "type": "array", "items": { "type": "object" } });
    json!({
        "Providers": object(&["providers", "problems"], json!({ "providers": objects, "problems": texts })),
        "Provider": object(&["name", "domains", "health", "limits", "entities", "queue", "permits", "cooldown_until", "keys", "budgets", "degraded", "store", "problems"], json!({
            "name": { "type": "string" },
            "domains": texts,
            "health": object(&["state", "breaker"], json!({ "state": state(), "breaker": { "enum": ["closed", "open", "half_open"] } })),
            "limits": { "type": "array", "items": reference("ProviderLimit") }, "keys": limits::keys(), "budgets": limits::budgets(),
            "permits": object(&["open", "unreported"], json!({ "open": { "type": "integer" }, "unreported": { "type": "integer" } })),
            "degraded": { "type": "boolean" },
            "problems": texts,
        })),
        "ProviderLimit": limits::provider_limit(), "Settings": {
            "description": "settings by key, as `tollgate set` takes them; null = as configured",
            "type": "object",
            "minProperties": 1,
            "maxProperties": crate::daemon::SETTINGS_MAX,
        },
        "Changes": object(&["changed", "rejected", "warnings"], json!({ "changed": objects, "rejected": texts, "warnings": texts })),
        "CommandDone": object(&["name", "entity", "state"], json!({ "name": { "type": "string" }, "entity": { "type": ["string", "null"] }, "state": state() })),
        "Cache": object(&["responses", "bytes", "stored", "saved"], json!({
            "responses": { "type": "integer" },
            "bytes": { "type": "integer" },
            "stored": objects,
            "saved": objects,
        })),
        "Purged": object(&["purged"], json!({ "purged": { "type": "integer" } })),
    })
}

/// Schemas of what the page shows.
fn page_schemas() -> Value {
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    let objects = json!({ "type": "array", "items": { "type": "object" } });
    let mut columns = Map::new();
    for name in HISTORY_COLUMNS {
        let counts = json!({ "type": "array", "items": { "type": "integer", "minimum": 0 } });
        columns.insert((*name).to_owned(), counts);
    }
    columns.insert("provider".to_owned(), json!({ "type": ["string", "null"] }));
    columns.insert("every".to_owned(), json!({ "type": "integer" }));
    columns.insert("until".to_owned(), json!({ "type": "number" }));
    columns.insert("states".to_owned(), texts.clone());
    let fixed = ["provider", "every", "until", "states"];
    let all: Vec<&str> = fixed
        .into_iter()
        .chain(HISTORY_COLUMNS.iter().copied())
        .collect();
    json!({
        "History": object(&all, Value::Object(columns)),
        "Callers": object(&["providers"], json!({ "providers": objects })),
        "Config": object(&["problems", "notes", "store", "gateway", "nodes", "started", "settings", "providers"], json!({
            "problems": objects,
            "notes": texts,
            "gateway": { "type": ["string", "null"] },
            "nodes": { "type": "integer" }, "started": { "type": "number" },
            "settings": objects,
            "providers": objects,
        })),
        "SessionRequest": strict(&["token"], json!({ "token": text() })),
        "Session": object(&["needed", "lifetime"], json!({ "needed": { "type": "boolean" }, "lifetime": { "type": ["integer", "null"] } })),
    })
}

/// Schemas of what happened.
fn observation_schemas() -> Value {
    let (count, word) = (
        json!({ "type": "integer", "minimum": 0 }),
        json!({ "type": "string" }),
    );
    let or_none = |kind: &str| json!({ "type": [kind, "null"] });
    let step = object(
        &["at", "kind", "text"],
        json!({ "at": { "type": "number" }, "kind": word, "text": word }),
    );
    let decision = object(
        &[
            "id", "ts", "source", "decision", "wait", "attempts", "steps",
        ],
        json!({
            "id": word, "ts": { "type": "number" }, "provider": or_none("string"),
            "entity": or_none("string"), "caller": or_none("string"),
            "priority": { "enum": ["high", "normal", "low", null] },
            "method": or_none("string"), "path": or_none("string"), "source": word,
            "decision": { "enum": ["allow", "queue", "reject"] }, "reason": or_none("string"),
            "limit": or_none("string"), "wait": { "type": "number" }, "attempts": count,
            "status": or_none("integer"), "steps": { "type": "array", "items": step },
        }),
    );
    let counts = [
        "requests_in_window",
        "total_requests",
        "total_429_errors",
        "recent_429_rate",
        "cache_hits",
        "cache_misses",
    ];
    let or_unknown = [
        "tokens_remaining",
        "capacity",
        "api_remaining",
        "api_limit",
        "reset_at",
        "reset_in_seconds",
    ];
    let mut fields = json!({
        "entity": word, "is_in_cooldown": { "type": "boolean" }, "is_degraded": { "type": "boolean" },
        "cache_hit_rate": { "type": "number", "minimum": 0, "maximum": 1 },
    });
    counts.iter().for_each(|name| fields[*name] = count.clone());
    or_unknown
        .iter()
        .for_each(|name| fields[*name] = or_none("integer"));
    let required: Vec<&str> = counts.iter().chain(&or_unknown).copied().collect();
    let alert = object(
        &["level", "entity", "message"],
        json!({ "level": { "enum": ["warning", "critical"] }, "entity": word, "message": word }),
    );
    let entities = json!({ "type": "object", "additionalProperties": object(&required, fields) });
    json!({
        "Decisions": object(&["decisions", "lost", "kept_max"], json!({
            "decisions": { "type": "array", "items": decision }, "lost": count, "kept_max": count,
        })),
        "EntityMetrics": object(&["success", "metrics", "alerts"], json!({
            "success": { "const": true },
            "metrics": object(&["entities"], json!({ "entities": entities })),
            "alerts": { "type": "array", "items": alert },
        })),
        "UnknownEntity": object(&["success", "error"], json!({ "success": { "const": false }, "error": word })),
    })
}

/// Schemas of sources and tasks.
fn desk_schemas() -> Value {
    let source = |when: &str, pattern: &str| {
        let mut fields = json!({
            "name": { "type": "string", "pattern": SOURCE_NAME },
            "url": url(),
            "every": { "type": "null" },
            "cron": { "type": "null" },
            "priority": or_null(parameter_schema("priority")),
            "output": or_null(text()),
        });
        fields[when] = json!({ "type": ["string", "null"], "pattern": pattern, "minLength": 2 });
        strict(&["name", "url"], fields)
    };
    let count = json!({ "type": "integer", "minimum": 0 });
    let counts =
        json!({ "active": count, "scheduled": count, "reserved": count, "pending": count });
    let mut queue = counts.clone();
    queue["max_pending"] = json!({ "type": ["integer", "null"] });
    let mut noted = counts;
    noted["retry_in"] = json!({ "type": ["number", "null"] });
    noted["failures"] = count;
    json!({
        "SourceRequest": { "anyOf": [source("every", DURATION), source("cron", "^[0-9*/,\\-]{1,8}( [0-9*/,\\-]{1,8}){4}$")] },
        "Source": object(&["name", "url", "domain", "provider", "limited"], json!({
            "name": { "type": "string" },
            "url": { "type": "string" },
            "domain": { "type": "string" },
            "provider": { "type": ["string", "null"] },
            "limited": { "type": "boolean" },
            "next_run": { "type": ["number", "null"] },
            "queued": { "type": "boolean" },
            "failures": { "type": "integer" },
            "last": { "type": ["object", "null"] },
        })),
        "Sources": object(&["sources"], json!({ "sources": { "type": "array", "items": reference("Source") } })),
        "Tasks": object(&["queues", "active_queues"], json!({
            "queues": { "type": "object", "additionalProperties": object(&["active", "scheduled", "reserved", "pending", "max_pending"], queue) },
            "active_queues": { "type": "array", "items": { "type": "string" } },
        })),
        "TaskEvent": strict(&["id", "event"], json!({ "id": text(), "event": { "enum": TaskEvent::NAMES } })),
        "TaskNoted": object(&["active", "scheduled", "reserved", "pending", "retry_in", "failures"], noted),
        "CanSubmitRequest": strict(&["queue"], json!({
            "queue": { "type": "string", "pattern": QUEUE_NAME },
            "pending": { "type": ["integer", "null"], "minimum": 0, "maximum": COST_MAX },
        })),
        "CanSubmit": object(&["can_submit", "reason", "retry_in"], json!({
            "can_submit": { "type": "boolean" },
            "reason": { "type": ["string", "null"] },
            "retry_in": { "type": ["number", "null"] }, "guard": { "type": "string" }, "limit": { "type": "string" }, "message": { "type": "string" },
        })),
    })
}

fn with_example(mut schema: Value, example: &str) -> Value {
    schema["examples"] = json!([example]);
    schema
}

fn text() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": NAME_MAX })
}

/// An absolute URL of `http` or `https`, without a user.
fn url() -> Value {
    json!({ "type": "string", "format": "http-url", "minLength": 8, "maxLength": URL_MAX })
}

fn state() -> Value {
    json!({ "enum": ["normal", "throttle", "sleep", "half_open", "cache_only"] })
}

/// Seconds as a number, or a duration as a text.
fn seconds() -> Value {
    json!({ "anyOf": [
        { "type": "number", "minimum": 0 },
        { "type": "string", "pattern": DURATION, "minLength": 2 },
        { "type": "null" },
    ] })
}

fn amount(least: u64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": COST_MAX })
}

/// Amounts by unit; calls and requests are one unit.
fn units(least: u64) -> Value {
    let units: Vec<&str> = Cost::units().collect();
    json!({
        "type": "object",
        "propertyNames": { "enum": units },
        "additionalProperties": amount(least),
        "minProperties": 1,
        "not": { "required": ["calls", "requests"] },
    })
}

fn cost_text() -> Value {
    let units: Vec<&str> = Cost::units().collect();
    let pattern = format!("^(({})=)?[1-9][0-9]{{0,14}}$", units.join("|"));
    json!({ "type": "string", "pattern": pattern })
}

pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The same, or absent.
fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

/// Two fields are there.
fn both(one: &str, other: &str) -> Value {
    let some = json!({ "not": { "type": "null" } });
    json!({ "required": [one, other], "properties": { one: some, other: some } })
}

pub(super) fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

/// An object whose unknown fields are rejected.
fn strict(required: &[&str], properties: Value) -> Value {
    let mut schema = object(required, properties);
    schema["additionalProperties"] = json!(false);
    schema
}
