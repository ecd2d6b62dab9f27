//! The cache: its contents, the calls it saved, and the purge.
//!
//! Promises: the same numbers as `tollgate cache stats`. When a purge responds, memory and disk are
//! purged.
//!
//! Never: shows a cached response or its owner.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::cache::CacheUsage;
use tollgate::providers::ActiveProvider;

use super::response::{ApiError, json};
use super::routes::ApiState;

/// Which part of the cache.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CacheFilter {
    provider: Option<String>,
    entity: Option<String>,
}

impl CacheFilter {
    fn matches(&self, row: &CacheUsage) -> bool {
        let (provider, entity) = (&self.provider, &self.entity);
        provider.as_ref().is_none_or(|name| *name == row.provider)
            && entity
                .as_ref()
                .is_none_or(|name| Some(name) == row.entity.as_ref())
    }
}

/// `GET /v1/cache[?provider=][&entity=]`.
pub(super) async fn stats(
    State(desk): State<ApiState>,
    Query(which): Query<CacheFilter>,
) -> Response {
    let shop = desk.daemon.registry();
    let rows = shop.cache().usage().await;
    let kept: Vec<&CacheUsage> = rows.iter().filter(|row| which.matches(row)).collect();
    let started = shop.started();
    let of = |live: &&Arc<ActiveProvider>| {
        let name = which.provider.as_deref();
        name.is_none_or(|name| name == live.name())
    };
    let saved: Vec<Value> = started
        .iter()
        .filter(of)
        .map(|live| savings_json(live))
        .collect();
    json(&json!({
        "answers": kept.iter().map(|row| row.responses).sum::<u64>(),
        "bytes": kept.iter().map(|row| row.bytes).sum::<u64>(),
        "kept": kept.iter().map(|row| row_json(row)).collect::<Vec<_>>(),
        "saved": saved,
    }))
}

/// `DELETE /v1/cache[?provider=][&entity=]`.
pub(super) async fn purge(
    State(desk): State<ApiState>,
    Query(which): Query<CacheFilter>,
) -> Result<Response, ApiError> {
    if which.entity.is_some() && which.provider.is_none() {
        let hint = "add the provider, for example ?provider=tmdb&entity=movie";
        return Err(ApiError::bad_request("`entity` needs `provider`", hint));
    }
    let shop = desk.daemon.registry();
    if let Some(name) = &which.provider
        && let Err(unknown) = shop.named_or_unknown(name)
        // Responses of a provider that is no longer configured can still be purged.
        && !shop.cache().usage().await.iter().any(|row| row.provider == *name)
    {
        return Err(unknown.into());
    }
    let forgotten = shop
        .cache()
        .purge(which.provider.as_deref(), which.entity.as_deref())
        .await;
    Ok(json(&json!({ "forgotten": forgotten })))
}

fn row_json(row: &CacheUsage) -> Value {
    json!({
        "provider": row.provider,
        "entity": row.entity,
        "answers": row.responses,
        "bytes": row.bytes,
    })
}

/// What the cache, flights and merging saved a provider since the start.
fn savings_json(live: &ActiveProvider) -> Value {
    let savings = live.savings();
    json!({
        "provider": live.name(),
        "hits": savings.hits,
        "stale": savings.stale,
        "revalidated": savings.revalidated,
        "misses": savings.misses,
        "not_kept": savings.not_stored,
        "shared": savings.shared,
        "merged": savings.merged,
    })
}
