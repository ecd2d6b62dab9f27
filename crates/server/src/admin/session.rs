//! Sessions of the page: a cookie in exchange for the admin token, so that no script holds the token.
//!
//! Promises: the cookie is random, `HttpOnly` and `SameSite=Strict`, and ends after [`LIFETIME`]. Token and
//! cookie are compared in constant time. At most [`SESSIONS_MAX`] are open; a new one ends the oldest.
//!
//! Never: survives the process, or is stored.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::json;
use tollgate_config::Secret;
use tollgate_core::time::{Micros, Span};

use super::routes::ApiState;
use crate::api::{ApiError, json, read_object};
use crate::decision_api::RequestFields;

/// A working day.
const LIFETIME: Span = Span::from_secs(12 * 3_600);

/// More people than operate one daemon, with a few browsers each.
const SESSIONS_MAX: usize = 32;

const SESSION_BYTES: usize = 32;

/// The open sessions, oldest first.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: Mutex<VecDeque<PageSession>>,
}

#[derive(Debug)]
struct PageSession {
    id: Secret,
    ends: Micros,
}

impl Sessions {
    /// A new session; its id.
    fn open(&self, now: Micros) -> io::Result<String> {
        let mut bytes = [0; SESSION_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let id: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut open = self.open.lock();
        open.retain(|session| session.ends > now);
        if open.len() >= SESSIONS_MAX {
            open.pop_front();
        }
        open.push_back(PageSession {
            id: Secret::new(id.clone()),
            ends: now + LIFETIME,
        });
        Ok(id)
    }

    /// Does the request show the cookie of an open session?
    pub(super) fn has(&self, headers: &HeaderMap, port: u16, now: Micros) -> bool {
        let Some(shown) = cookie(headers, port) else {
            return false;
        };
        let open = self.open.lock();
        // All of them are compared, each in constant time.
        let mut is_open = false;
        for session in open.iter().filter(|session| session.ends > now) {
            is_open |= session.id == shown;
        }
        is_open
    }

    fn close(&self, headers: &HeaderMap, port: u16) {
        if let Some(shown) = cookie(headers, port) {
            self.open.lock().retain(|session| session.id != shown);
        }
    }
}

/// Cookies belong to a host, whatever its port: two daemons of one machine have cookies of their own.
fn cookie_name(port: u16) -> String {
    format!("tollgate_session_{port}")
}

/// The longest value that is compared.
const COOKIE_MAX: usize = 2 * SESSION_BYTES;

fn cookie(headers: &HeaderMap, port: u16) -> Option<Secret> {
    let name = cookie_name(port);
    let all = headers
        .get_all("cookie")
        .iter()
        .filter_map(|line| line.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';'));
    let value = pairs.find_map(|pair| pair.trim().strip_prefix(&name)?.strip_prefix('='))?;
    (value.len() <= COOKIE_MAX).then(|| Secret::new(value.to_owned()))
}

/// `POST /v1/session {"token": "…"}`: 200 with the cookie.
pub(super) async fn open(State(api): State<ApiState>, body: Body) -> Result<Response, ApiError> {
    let fields = read_object(body, "{\"token\": \"…\"}").await?;
    let fields = RequestFields::new(fields, &["token"])?;
    let Some(shown) = fields.name("token")? else {
        return Err(ApiError::bad_request(
            "the body has no `token`",
            "send {\"token\": \"…\"} with the admin token",
        ));
    };
    let Some(token) = api.policy.token() else {
        return Ok(json(&json!({ "needed": false, "lifetime": null })));
    };
    // Secrets compare in constant time.
    if Secret::new(shown.trim().to_owned()) != *token {
        return Err(ApiError::unauthorized());
    }
    let id = api
        .policy
        .sessions
        .open(api.daemon.registry().ledger().at());
    let id = id.map_err(|_| ApiError::draining())?;
    let seconds = LIFETIME.0 / 1_000_000;
    let mut response = json(&json!({ "needed": true, "lifetime": seconds }));
    set_cookie(&mut response, api.policy.port(), &id, seconds);
    Ok(response)
}

/// `DELETE /v1/session`: 204, and the cookie is gone.
pub(super) async fn close(State(api): State<ApiState>, headers: HeaderMap) -> Response {
    api.policy.sessions.close(&headers, api.policy.port());
    let mut response = StatusCode::NO_CONTENT.into_response();
    set_cookie(&mut response, api.policy.port(), "", 0);
    response
}

fn set_cookie(response: &mut Response, port: u16, value: &str, seconds: u64) {
    let name = cookie_name(port);
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}");
    if let Ok(mut text) = HeaderValue::from_str(&text) {
        text.set_sensitive(true);
        response.headers_mut().insert(SET_COOKIE, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(id: &str, port: u16) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let text = format!("other=1; {}={id}; last=2", cookie_name(port));
        headers.insert("cookie", text.parse().unwrap());
        headers
    }

    #[test]
    fn a_session_ends_with_its_time_and_belongs_to_its_port() {
        let sessions = Sessions::default();
        let id = sessions.open(Micros(0)).unwrap();
        assert!(sessions.has(&shows(&id, 4291), 4291, Micros(1)));
        assert!(!sessions.has(&shows(&id, 4291), 4292, Micros(1)));
        assert!(!sessions.has(&shows("0000", 4291), 4291, Micros(1)));
        assert!(!sessions.has(&shows("", 4291), 4291, Micros(1)));
        assert!(!sessions.has(&shows(&id, 4291), 4291, Micros(LIFETIME.0 + 1)));
        sessions.close(&shows(&id, 4291), 4291);
        assert!(!sessions.has(&shows(&id, 4291), 4291, Micros(1)));
    }

    #[test]
    fn a_new_session_ends_the_oldest_beyond_the_bound() {
        let sessions = Sessions::default();
        let first = sessions.open(Micros(0)).unwrap();
        for _ in 0..SESSIONS_MAX {
            sessions.open(Micros(0)).unwrap();
        }
        assert!(!sessions.has(&shows(&first, 1), 1, Micros(1)));
        assert_eq!(sessions.open.lock().len(), SESSIONS_MAX);
    }
}
