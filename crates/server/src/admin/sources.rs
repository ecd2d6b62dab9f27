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
use tollgate_core::schedule::{Cron, RESULT_PATH_FORM};
use tollgate_core::time::{Span, Wall};

use super::desk::on_desk;
use super::routes::ApiState;
use crate::api::{ApiError, json, read_object};
use crate::daemon::Daemon;
use crate::decision_api::{RequestFields, respond, wrong};
use crate::desk::{Desk, Source, SourceRun};
use crate::json::epoch;
use crate::scheduler::Output;

const SOURCE: [&str; 6] = ["name", "url", "every", "cron", "priority", "output"];

/// The shortest time between two fetches: a scheduler looks each second.
const EVERY_MIN: Span = Span(1_000_000);

/// `GET /v1/sources`.
pub(super) async fn list(State(api): State<ApiState>) -> Result<Response, ApiError> {
    let work = |desk: &Desk, daemon: &Daemon| {
        let config = daemon.loaded();
        let sources = desk.sources()?;
        let runs = desk.source_runs()?;
        let shown = sources.iter().map(|source| {
            let mut shown = source_json(daemon, &config.config, source);
            add_run(&mut shown, runs.get(&source.name));
            shown
        });
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
    if fields.url()?.is_none() {
        let hint = "send the URL that the source reads, such as \"https://api.example.org/v1/x\"";
        return Err(ApiError::bad_request("`url` is missing", hint));
    }
    fields.target()?;
    fields.priority()?;
    let every = fields.name("every")?;
    if every
        .as_deref()
        .is_some_and(|every| amount::span(every).is_none_or(|span| span < EVERY_MIN))
    {
        return Err(wrong("every", "a duration of at least 1s such as \"5m\""));
    }
    let cron = fields.name("cron")?;
    if cron
        .as_deref()
        .is_some_and(|cron| Cron::parse(cron).is_none())
    {
        return Err(wrong("cron", "five fields such as \"0 6 * * *\", in UTC"));
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
        priority: fields.name("priority")?,
        output: output(fields, &name)?,
        name,
        url,
        every,
        cron,
    })
}

/// Where results go.
fn output(fields: &RequestFields, name: &str) -> Result<Option<String>, ApiError> {
    let output = fields.name("output")?;
    let Some(text) = &output else {
        return Ok(None);
    };
    // A name such as `..` is none for a file.
    let is_usable = |output: &Output| match output {
        Output::File(path) => path.expand(name, "bin", Wall(0)).is_some(),
        Output::Nowhere | Output::Stdout | Output::Webhook(_) => true,
    };
    if !Output::parse(Some(text)).as_ref().is_some_and(is_usable) {
        return Err(wrong("output", RESULT_PATH_FORM));
    }
    if text.contains("://") && holds_key(text) {
        return Err(ApiError::bad_request(
            "`output` holds a user, a password or a key, and sources are stored in clear",
            "use an address without it",
        ));
    }
    Ok(output)
}

/// Words of the name of a parameter that holds a key, as APIs call them.
const KEY_WORDS: [&str; 10] = [
    "key",
    "auth",
    "authorization",
    "oauth",
    "sig",
    "signature",
    "appid",
    "pass",
    "pwd",
    "jwt",
];

/// Beginnings and ends of such words: `accesstoken`, `hapikey`, `passwd`, `credentials`. No ordinary word
/// has them.
const KEY_PARTS: [&str; 8] = [
    "token",
    "secret",
    "passw",
    "credential",
    "apikey",
    "accesskey",
    "authkey",
    "appkey",
];

/// Does a URL hold a user or a key?
fn holds_key(url: &str) -> bool {
    let Ok(uri) = url.parse::<axum::http::Uri>() else {
        return true;
    };
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let query = uri.query().unwrap_or_default();
    // A path may have parameters too: `/news;api_key=…`.
    let in_path = uri.path().split('/').flat_map(|part| part.split(';'));
    let mut parameters = query
        .split(['&', ';'])
        .chain(in_path.filter(|part| part.contains('=')));
    let is_key = |parameter: &str| {
        let name = parameter.split('=').next().unwrap_or_default();
        let words = words(&decoded(name));
        let is_part = |word: &str| KEY_PARTS.iter().any(|part| word.contains(part));
        let is_key = |word: &String| KEY_WORDS.contains(&word.as_str()) || is_part(word);
        // The same word in pieces: `api.key`, `appId`.
        words.iter().any(is_key) || KEY_WORDS.contains(&words.concat().as_str())
    };
    authority.contains('@') || parameters.any(is_key)
}

/// The words of a name, in lower case: `X-Api-Key`, `api_key` and `apiKey` have the word `key`, and
/// `monkey` has not.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        let begins = was_lower && letter.is_ascii_uppercase();
        was_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
        if begins || !letter.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if letter.is_ascii_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(letter.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A name with its `%5F` as letters, also if they were written so twice.
fn decoded(name: &str) -> String {
    let mut name = name.to_owned();
    for _ in 0..2 {
        let mut parts = name.split('%');
        let mut plain = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let code = part
                .get(..2)
                .and_then(|code| u8::from_str_radix(code, 16).ok());
            match (code, part.get(2..)) {
                (Some(code), Some(rest)) => {
                    plain.push(char::from(code));
                    plain.push_str(rest);
                }
                _ => plain.push_str(part),
            }
        }
        name = plain;
    }
    name
}

/// When it runs next, and how its last fetch went.
fn add_run(shown: &mut Value, run: Option<&SourceRun>) {
    let default = SourceRun::default();
    let run = run.unwrap_or(&default);
    let state = run.state;
    let next = state
        .next
        .map(|next| next.max(state.not_before.unwrap_or(next)));
    shown["next_run"] = json!(next.map(epoch));
    shown["queued"] = json!(run.is_queued);
    shown["failures"] = json!(state.failures);
    shown["last"] = json!(run.result.as_ref().map(|result| json!({
        "at": state.last.map(epoch),
        "result": result.outcome,
        "status": result.status,
        "bytes": result.bytes,
        "output": result.output,
        "error": result.error,
    })));
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
