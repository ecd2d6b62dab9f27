//! Sources on the admin address (H5).
//!
//! Promises: adding a source says which provider will limit it, or that none will.
//!
//! Never: fetches a source, or stores a key.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tollgate_config::{Config, amount};

use super::desk::on_desk;
use super::routes::ApiState;
use crate::api::{ApiError, json, read_object};
use crate::daemon::Daemon;
use crate::decision_api::{RequestFields, respond, wrong};
use crate::desk::{Desk, Source};

const SOURCE: [&str; 6] = ["name", "url", "every", "cron", "priority", "output"];

/// `GET /v1/sources`.
pub(super) async fn list(State(api): State<ApiState>) -> Result<Response, ApiError> {
    let work = |desk: &Desk, daemon: &Daemon| {
        let config = daemon.loaded();
        let sources = desk.sources()?;
        let shown = sources.iter();
        let shown = shown.map(|source| source_json(daemon, &config.config, source));
        Ok(shown.collect::<Vec<Value>>())
    };
    let shown = on_desk(&api, work).await?;
    Ok(json(&json!({ "sources": shown })))
}

/// `POST /v1/sources`.
pub(super) async fn add(State(api): State<ApiState>, body: Body) -> Result<Response, ApiError> {
    let example = "{\"name\": \"news\", \"url\": \"https://api.example.org/news\"}";
    let fields = RequestFields::new(read_object(body, example).await?, &SOURCE)?;
    let source = source(&fields)?;
    let added = source.clone();
    if !on_desk(&api, move |desk, _| desk.add_source(&added)).await? {
        return Err(ApiError::mistake(
            StatusCode::CONFLICT,
            "SourceExists",
            "there is a source of this name already",
            "remove it first, or choose another name",
        ));
    }
    let body = source_json(&api.daemon, &api.daemon.loaded().config, &source);
    Ok(respond(StatusCode::CREATED, &body, None))
}

/// `DELETE /v1/sources/{name}`.
pub(super) async fn remove(
    State(api): State<ApiState>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    if on_desk(&api, move |desk, _| desk.remove_source(&name)).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::mistake(
        StatusCode::NOT_FOUND,
        "UnknownSource",
        "there is no source of this name",
        "GET /v1/sources lists them",
    ))
}

/// The source of a request.
fn source(fields: &RequestFields) -> Result<Source, ApiError> {
    let needed = |name: &str| {
        let value = fields.name(name)?;
        value.ok_or_else(|| ApiError::bad_request(&format!("`{name}` is missing"), "send it"))
    };
    let name = needed("name")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.len() > 64 || !name.bytes().all(plain) {
        return Err(wrong(
            "name",
            "at most 64 letters, digits, `-`, `_` and `.`",
        ));
    }
    fields.target()?;
    fields.priority()?;
    let every = fields.name("every")?;
    if every
        .as_deref()
        .is_some_and(|every| amount::span(every).is_none())
    {
        return Err(wrong("every", "a duration such as \"5m\""));
    }
    let cron = fields.name("cron")?;
    if cron
        .as_deref()
        .is_some_and(|cron| cron.split_whitespace().count() != 5)
    {
        return Err(wrong("cron", "five fields such as \"0 6 * * *\""));
    }
    if every.is_some() && cron.is_some() {
        return Err(ApiError::bad_request(
            "`every` and `cron` both say when",
            "send one of them",
        ));
    }
    let url = fields.url()?.unwrap_or_default();
    if holds_key(&url) {
        return Err(ApiError::bad_request(
            "`url` holds a user, a password or a key, and sources are stored in clear",
            "write the key as `api_key` into the provider's file; calls through Tollgate carry it",
        ));
    }
    Ok(Source {
        name,
        url,
        every,
        cron,
        priority: fields.name("priority")?,
        output: fields.name("output")?,
    })
}

/// Parameters that hold keys, as APIs call them.
const KEY_PARAMETERS: [&str; 10] = [
    "api_key",
    "apikey",
    "api-key",
    "key",
    "token",
    "access_token",
    "auth",
    "secret",
    "password",
    "appid",
];

/// Does a URL hold a user or a key?
fn holds_key(url: &str) -> bool {
    let Ok(uri) = url.parse::<axum::http::Uri>() else {
        return true;
    };
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let mut parameters = uri.query().unwrap_or_default().split('&');
    let is_key = |parameter: &str| {
        let name = parameter.split('=').next().unwrap_or_default();
        KEY_PARAMETERS.contains(&name.to_ascii_lowercase().as_str())
    };
    authority.contains('@') || parameters.any(is_key)
}

/// A source, and who limits it.
fn source_json(daemon: &Daemon, config: &Config, source: &Source) -> Value {
    let uri: Option<axum::http::Uri> = source.url.parse().ok();
    let authority = uri.as_ref().and_then(|uri| uri.authority());
    let authority = authority.map(|authority| authority.as_str().to_owned());
    let provider = authority.as_deref();
    let provider = provider.and_then(|authority| daemon.registry().find_by_authority(authority));
    let name = provider.map(|provider| provider.name().to_owned());
    let limited = name.as_deref().and_then(|name| config.provider(name));
    let limited = limited.is_some_and(|one| one.enabled && !one.limits.is_empty());
    let mut shown = json!({
        "name": source.name,
        "url": source.url,
        "domain": uri.as_ref().and_then(|uri| uri.host()),
        "provider": name,
        "limited": limited,
    });
    for (field, value) in [
        ("every", &source.every),
        ("cron", &source.cron),
        ("priority", &source.priority),
        ("output", &source.output),
    ] {
        if let Some(value) = value {
            shown[field] = json!(value);
        }
    }
    shown
}
