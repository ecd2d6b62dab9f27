//! The cache: its contents, the calls it saved, and the purge.
//!
//! Promises: the same numbers as `tollgate cache stats`. When a purge responds, memory and disk are
//! purged.
//!
//! Never: shows a cached response or its owner.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde_json::{Value, json};
use tollgate::ProviderRegistry;
use tollgate::cache::CacheUsage;
use tollgate::providers::ActiveProvider;

use super::routes::ApiState;
use crate::api::{ApiError, json};
use crate::decision_api::RequestFields;

/// Which part of the cache.
#[derive(Debug)]
struct CacheFilter {
    provider: Option<String>,
    entity: Option<String>,
}

impl CacheFilter {
    /// A mistyped parameter must not mean everything.
    fn of(uri: &Uri) -> Result<CacheFilter, ApiError> {
        let fields = RequestFields::of_query(uri, &["provider", "entity"])?;
        let filter = CacheFilter {
            provider: fields.name("provider")?,
            entity: fields.entity()?,
        };
        if filter.entity.is_some() && filter.provider.is_none() {
            let hint = "add the provider, for example ?provider=tmdb&entity=movie";
            return Err(ApiError::bad_request("`entity` needs `provider`", hint));
        }
        Ok(filter)
    }

    /// A provider that exists, or one that is no longer configured and has responses yet.
    fn check_provider(
        &self,
        registry: &ProviderRegistry,
        rows: &[CacheUsage],
    ) -> Result<(), ApiError> {
        let Some(name) = &self.provider else {
            return Ok(());
        };
        match registry.named_or_unknown(name) {
            Err(unknown) if !rows.iter().any(|row| row.provider == *name) => Err(unknown.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn matches(&self, row: &CacheUsage) -> bool {
        let (provider, entity) = (&self.provider, &self.entity);
        provider.as_ref().is_none_or(|name| *name == row.provider)
            && entity
                .as_ref()
                .is_none_or(|name| Some(name) == row.entity.as_ref())
    }
}

/// `GET /v1/cache[?provider=][&entity=]`.
pub(super) async fn stats(State(api): State<ApiState>, uri: Uri) -> Result<Response, ApiError> {
    let filter = CacheFilter::of(&uri)?;
    let registry = api.daemon.registry();
    let rows = registry.cache().usage().await;
    filter.check_provider(registry, &rows)?;
    let matching: Vec<&CacheUsage> = rows.iter().filter(|row| filter.matches(row)).collect();
    let started = registry.started();
    let of = |provider: &&Arc<ActiveProvider>| {
        let name = filter.provider.as_deref();
        name.is_none_or(|name| name == provider.name())
    };
    let saved: Vec<Value> = started
        .iter()
        .filter(of)
        .map(|provider| savings_json(provider))
        .collect();
    Ok(json(&json!({
        "responses": matching.iter().map(|row| row.responses).sum::<u64>(),
        "bytes": matching.iter().map(|row| row.bytes).sum::<u64>(),
        "stored": matching.iter().map(|row| row_json(row)).collect::<Vec<_>>(),
        "saved": saved,
    })))
}

/// `DELETE /v1/cache[?provider=][&entity=]`.
pub(super) async fn purge(State(api): State<ApiState>, uri: Uri) -> Result<Response, ApiError> {
    let filter = CacheFilter::of(&uri)?;
    let registry = api.daemon.registry();
    if filter.provider.is_some() {
        filter.check_provider(registry, &registry.cache().usage().await)?;
    }
    let purged = registry
        .cache()
        .purge(filter.provider.as_deref(), filter.entity.as_deref())
        .await;
    Ok(json(&json!({ "purged": purged })))
}

fn row_json(row: &CacheUsage) -> Value {
    json!({
        "provider": row.provider,
        "entity": row.entity,
        "responses": row.responses,
        "bytes": row.bytes,
    })
}

/// What the cache, flights and merging saved a provider since the start.
fn savings_json(provider: &ActiveProvider) -> Value {
    let savings = provider.savings();
    json!({
        "provider": provider.name(),
        "hits": savings.hits,
        "stale": savings.stale,
        "revalidated": savings.revalidated,
        "misses": savings.misses,
        "not_stored": savings.not_stored,
        "shared": savings.shared,
        "merged": savings.merged,
    })
}
