//! What is kept, what that has saved, and out with it.
//!
//! Promises: the same numbers as `tollgate cache stats`; a purge has reached memory and disk when it
//! is answered.
//!
//! Never: shows an answer, or whose it is.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::cache::Row;
use tollgate::shop::Live;

use super::answer::{Fault, json};
use super::routes::Desk;

/// Which part of the cache.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Which {
    provider: Option<String>,
    entity: Option<String>,
}

impl Which {
    fn has(&self, row: &Row) -> bool {
        let (provider, entity) = (&self.provider, &self.entity);
        provider.as_ref().is_none_or(|name| *name == row.provider)
            && entity
                .as_ref()
                .is_none_or(|name| Some(name) == row.entity.as_ref())
    }
}

/// `GET /v1/cache[?provider=][&entity=]`.
pub(super) async fn stats(State(desk): State<Desk>, Query(which): Query<Which>) -> Response {
    let shop = desk.daemon.shop();
    let rows = shop.cache().rows().await;
    let kept: Vec<&Row> = rows.iter().filter(|row| which.has(row)).collect();
    let started = shop.started();
    let of = |live: &&Arc<Live>| {
        let name = which.provider.as_deref();
        name.is_none_or(|name| name == live.name())
    };
    let saved: Vec<Value> = started.iter().filter(of).map(|live| saved(live)).collect();
    json(&json!({
        "answers": kept.iter().map(|row| row.answers).sum::<u64>(),
        "bytes": kept.iter().map(|row| row.bytes).sum::<u64>(),
        "kept": kept.iter().map(|row| shown(row)).collect::<Vec<_>>(),
        "saved": saved,
    }))
}

/// `DELETE /v1/cache[?provider=][&entity=]`.
pub(super) async fn purge(
    State(desk): State<Desk>,
    Query(which): Query<Which>,
) -> Result<Response, Fault> {
    if which.entity.is_some() && which.provider.is_none() {
        let hint = "name the provider too, such as ?provider=tmdb&entity=movie";
        return Err(Fault::bad_request(
            "an entity is a part of a provider",
            hint,
        ));
    }
    let shop = desk.daemon.shop();
    if let Some(name) = &which.provider
        && let Err(unknown) = shop.ordered(name)
        // Answers of one that is gone from the files can still be forgotten.
        && !shop.cache().rows().await.iter().any(|row| row.provider == *name)
    {
        return Err(unknown.into());
    }
    let forgotten = shop
        .cache()
        .purge(which.provider.as_deref(), which.entity.as_deref())
        .await;
    Ok(json(&json!({ "forgotten": forgotten })))
}

fn shown(row: &Row) -> Value {
    json!({
        "provider": row.provider,
        "entity": row.entity,
        "answers": row.answers,
        "bytes": row.bytes,
    })
}

/// What a provider's calls were spared since the start.
fn saved(live: &Live) -> Value {
    let savings = live.savings();
    json!({
        "provider": live.name(),
        "hits": savings.hits,
        "stale": savings.stale,
        "revalidated": savings.revalidated,
        "misses": savings.misses,
        "not_kept": savings.not_kept,
        "shared": savings.shared,
        "merged": savings.merged,
    })
}
