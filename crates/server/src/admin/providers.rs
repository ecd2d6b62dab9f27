//! Read access to the providers.
//!
//! Promises: reading changes nothing, except that it starts a provider requested by name.
//!
//! Never: shows a key.

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use serde_json::json;

use super::routes::ApiState;
use crate::api::{ApiError, json};
use crate::decision_api::RequestFields;

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
    uri: Uri,
) -> Result<Response, ApiError> {
    let entity = RequestFields::of_query(&uri, &["entity"])?.entity()?;
    let described = api.daemon.describe(&name, entity.as_deref()).await?;
    Ok(json(&described))
}
