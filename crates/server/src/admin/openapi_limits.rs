//! Schemas of limits, keys and budgets of a provider.
//!
//! Promises: what `daemon/view.rs` and `daemon/budgets.rs` write.
//!
//! Never: a key.

use serde_json::{Value, json};

use super::openapi_schemas::{object, reference};

/// A limit of a provider, with its count.
pub(super) fn provider_limit() -> Value {
    let learned = object(
        &["limit", "period", "since", "seen"],
        json!({
            "limit": { "type": ["integer", "null"] },
            "period": { "type": "number" },
            "since": { "type": "number" },
            "seen": { "type": "number" },
        }),
    );
    let mut schema = object(
        &[
            "name",
            "algorithm",
            "limit",
            "depth",
            "period",
            "per",
            "unit",
            "used",
            "in_flight",
            "remaining",
            "own_remaining",
            "reserve",
            "window_start",
            "reset_at",
        ],
        json!({
            "name": { "type": "string" },
            "algorithm": { "type": "string" },
            "limit": { "type": "integer" },
            "depth": { "type": "integer" },
            "period": { "type": "number" },
            "per": { "enum": ["provider", "api_key", "entity", "caller", "ip", "host"] },
            "unit": { "type": "string" },
            "key": { "type": "integer", "minimum": 1 },
            "used": { "type": ["integer", "null"] },
            "in_flight": { "type": ["integer", "null"] },
            "remaining": { "type": ["integer", "null"] },
            "own_remaining": { "type": ["integer", "null"] },
            "reserve": { "type": "integer" },
            "waiting": { "type": "integer" },
            "window_start": { "type": ["number", "null"] },
            "reset_at": { "type": ["number", "null"] },
        }),
    );
    schema["properties"]["learned"] = learned;
    schema
}

/// The keys of a pool.
pub(super) fn keys() -> Value {
    let key = json!({
        "key": { "type": "integer", "minimum": 1 },
        "set_aside_until": { "type": ["number", "null"] },
        "reason": { "type": ["string", "null"] },
    });
    let key = object(&["key", "set_aside_until", "reason"], key);
    json!({ "type": "array", "items": key })
}

/// The limits per caller, by caller.
pub(super) fn budgets() -> Value {
    json!({
        "type": "object",
        "additionalProperties": { "type": "array", "items": reference("ProviderLimit") },
    })
}
