//! `GET /metrics`, `GET /api/rate-limit/metrics` and `GET /v1/decisions`: what happened, as numbers and in words.
//!
//! Promises: S9's document, field for field. `/metrics` is open unless `metrics.token` is set; then it takes that
//! token or the admin token.
//!
//! Never: takes a permit, or shows a key.

use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tollgate::providers::EntityMetrics;
use tollgate_core::alert::{Alert, AlertKind};

use super::routes::ApiState;
use crate::api::{ApiError, json};
use crate::decision_api::{RequestFields, wrong};
use crate::decision_log::{DecisionFilter, KEPT_MAX};
use crate::metrics::{Exposition, exposition};

/// How many decisions a request gets that does not say.
const DECISIONS_DEFAULT: usize = 100;

/// `GET /metrics`.
pub(super) async fn serve(State(api): State<ApiState>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Exposition::accepted(accept);
    let prefix = api.daemon.config().metrics.prefix;
    let text = exposition(&api.daemon.metrics().await, &prefix, format);
    let headers = [
        (CONTENT_TYPE, format.content_type()),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, text).into_response()
}

/// `GET /api/rate-limit/metrics[?entity=][&provider=]` (S9).
pub(super) async fn by_entity(State(api): State<ApiState>, uri: Uri) -> Result<Response, ApiError> {
    let fields = RequestFields::of_query(&uri, &["entity", "provider"])?;
    let (entity, provider) = (fields.entity()?, fields.name("provider")?);
    if provider.is_none() {
        // Configured providers are listed before their first call.
        for one in &api.daemon.loaded().config.providers {
            api.daemon.registry().named(&one.name).ok();
        }
    }
    let registry = api.daemon.registry();
    let found = registry
        .metrics(entity.as_deref(), provider.as_deref())
        .await;
    let Ok(found) = found else {
        let body = json!({ "success": false, "error": "UnknownEntity" });
        return Ok((StatusCode::NOT_FOUND, json(&body)).into_response());
    };
    let entities: Map<String, Value> = found
        .iter()
        .map(|one| (one.key.clone(), entity_json(one)))
        .collect();
    let alerts: Vec<Value> = found
        .iter()
        .flat_map(|one| &one.alerts)
        .map(alert_json)
        .collect();
    let body = json!({ "success": true, "metrics": { "entities": entities }, "alerts": alerts });
    Ok(json(&body))
}

/// `GET /v1/decisions[?provider=][&id=][&limit=]`.
pub(super) async fn decisions(State(api): State<ApiState>, uri: Uri) -> Result<Response, ApiError> {
    let fields = RequestFields::of_query(&uri, &["provider", "id", "limit"])?;
    let limit = match fields.name("limit")? {
        None => DECISIONS_DEFAULT,
        Some(text) => text.parse().unwrap_or(0),
    };
    if !(1..=KEPT_MAX).contains(&limit) {
        return Err(wrong("limit", "a number from 1 to 1024"));
    }
    let filter = DecisionFilter {
        provider: fields.name("provider")?,
        id: fields.name("id")?,
        limit,
    };
    Ok(json(&api.daemon.decision_log().last(&filter)))
}

fn entity_json(one: &EntityMetrics) -> Value {
    let counts = &one.counts;
    let reported = one.reported.as_ref();
    let lookups = counts.cache_hits.saturating_add(counts.cache_misses);
    json!({
        "entity": one.entity.as_deref().unwrap_or(&one.provider),
        "tokens_remaining": one.tokens_remaining,
        "requests_in_window": one.requests_in_window,
        "capacity": one.capacity,
        "api_remaining": reported.map(|reported| reported.remaining),
        "api_limit": reported.and_then(|reported| reported.limit),
        "reset_at": one.reset_at.map(|reset| reset.0 / 1_000_000),
        "reset_in_seconds": one.reset_in.map(|reset| reset.0.div_ceil(1_000_000)),
        "is_in_cooldown": one.is_in_cooldown,
        "is_degraded": one.is_degraded,
        "total_requests": counts.calls,
        "total_429_errors": counts.limited,
        "recent_429_rate": counts.limited_last_minute,
        "cache_hits": counts.cache_hits,
        "cache_misses": counts.cache_misses,
        "cache_hit_rate": share(counts.cache_hits, lookups),
    })
}

/// The level, the entity, the message, and the value under the name of its kind.
fn alert_json(alert: &Alert) -> Value {
    let value = match alert.kind {
        AlertKind::Remaining | AlertKind::Rate429 => json!(alert.value),
        AlertKind::CacheHitRate => json!(share(alert.value, 1_000_000)),
    };
    json!({
        "level": alert.level.as_str(),
        "entity": alert.name,
        "message": alert.to_string(),
        alert.kind.as_str(): value,
    })
}

/// 0 to 1, with four decimals; 0 of nothing.
#[expect(clippy::cast_precision_loss, reason = "a number that is only shown")]
fn share(part: u64, of: u64) -> f64 {
    if of == 0 {
        return 0.0;
    }
    (part as f64 / of as f64 * 10_000.0).round() / 10_000.0
}
