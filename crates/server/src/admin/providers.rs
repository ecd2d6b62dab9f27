//! Read access to the providers.
//!
//! Promises: reading changes nothing, except that it starts a provider requested by name.
//!
//! Never: shows a key.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::routes::ApiState;
use crate::api::{ApiError, json};

/// The parameters of a provider's details.
#[derive(Debug, Deserialize)]
pub(super) struct ProviderQuery {
    entity: Option<String>,
}

/// `GET /v1/providers`.
pub(super) async fn list(State(api): State<ApiState>) -> Result<Response, ApiError> {
    let (providers, problems) = (api.daemon.list().await, api.daemon.problems());
    Ok(json(
        &json!({ "providers": providers, "problems": problems }),
    ))
}

/// `GET /v1/providers/{name}[?entity=]`.
pub(super) async fn show(
    State(api): State<ApiState>,
    Path(name): Path<String>,
    Query(query): Query<ProviderQuery>,
) -> Result<Response, ApiError> {
    let described = api.daemon.describe(&name, query.entity.as_deref()).await?;
    Ok(json(&described))
}
