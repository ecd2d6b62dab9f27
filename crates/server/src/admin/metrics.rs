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
use tollgate::providers::{EntityMetrics, share};
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
    let registry = api.daemon.registry();
    let idle = idle_providers(&api, entity.as_deref(), provider.as_deref()).await;
    let found = match provider.as_deref() {
        Some(name) if idle.iter().any(|(known, _)| known == name) => Ok(Vec::new()),
        name => registry.metrics(entity.as_deref(), name).await,
    };
    let found = found.or_else(|unknown| {
        if idle.is_empty() {
            Err(unknown)
        } else {
            Ok(Vec::new())
        }
    });
    let Ok(found) = found else {
        let body = json!({ "success": false, "error": "UnknownEntity" });
        return Ok((StatusCode::NOT_FOUND, json(&body)).into_response());
    };
    let entities: Map<String, Value> = found
        .iter()
        .map(|one| (one.key.clone(), entity_json(one)))
        .chain(idle)
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
    let provider = fields.name("provider")?;
    if let Some(name) = &provider {
        api.daemon.registry().named_or_unknown(name)?;
    }
    let filter = DecisionFilter {
        provider,
        id: fields.name("id")?,
        limit,
    };
    Ok(json(&api.daemon.decision_log().last(&filter)))
}

/// Configured providers that nobody has called: they are listed, and not started by it. Other processes may have used
/// their limits.
async fn idle_providers(
    api: &ApiState,
    entity: Option<&str>,
    provider: Option<&str>,
) -> Vec<(String, Value)> {
    let started = api.daemon.registry().started();
    let is_started = |name: &str| started.iter().any(|active| active.name() == name);
    let loaded = api.daemon.loaded();
    let all = loaded.config.providers.iter().map(|one| one.name.clone());
    let wanted = all.filter(|name| {
        let is_asked = |asked: Option<&str>| asked.is_none_or(|asked| asked == name);
        is_asked(entity) && is_asked(provider) && !is_started(name)
    });
    let none = json!(null);
    let mut idle = Vec::new();
    for name in wanted {
        let quota = api.daemon.registry().idle_quota(&name).await;
        let value = json!({
                "entity": name, "tokens_remaining": quota.map(|(remaining, _)| remaining),
                "requests_in_window": quota.map_or(0, |(remaining, all)| all.saturating_sub(remaining)),
                "capacity": quota.map(|(_, all)| all),
                "api_remaining": none, "api_limit": none, "reset_at": none, "reset_in_seconds": none,
                "is_in_cooldown": false, "is_degraded": false, "total_requests": 0,
                "total_429_errors": 0, "recent_429_rate": 0, "cache_hits": 0, "cache_misses": 0,
                "cache_hit_rate": 0.0,
        });
        idle.push((name, value));
    }
    idle
}

fn entity_json(one: &EntityMetrics) -> Value {
    let counts = &one.counts;
    let reported = one.reported.as_ref();
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
        "cache_hit_rate": one.cache_hit_rate(),
    })
}

/// The level, the entity, the message, and the value under the name of its kind.
fn alert_json(alert: &Alert) -> Value {
    let value = match alert.kind {
        AlertKind::Remaining | AlertKind::Rate429 | AlertKind::StoreLost => json!(alert.value),
        AlertKind::CacheHitRate => json!(share(alert.value, 1_000_000)),
    };
    json!({
        "level": alert.level.as_str(),
        "entity": alert.name,
        "message": alert.to_string(),
        alert.kind.as_str(): value,
    })
}
