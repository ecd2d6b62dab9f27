//! Access to the admin address: R-E8. It is for the operator, not for web pages in a browser on the
//! same machine.
//!
//! | | without a token | with a token |
//! |---|---|---|
//! | who | loopback only | `Authorization: Bearer`, or the cookie of a session (`session.rs`), compared in constant time |
//! | mutating calls | need `X-Tollgate-Admin: 1`, which no cross-site page can send | as above; with a cookie the header too |
//! | `/metrics` | open, or `metrics.token` | open, or one of both tokens |
//! | `Host` | an own address or `localhost`: a rebound name is rejected | any |
//! | `Origin` | if sent, the own one | if sent, the own one |
//!
//! A proxy that asks about a request it holds (`/v1/check`) passes on what its client sent: `Host` and
//! `Origin` say nothing then.
//!
//! The files of the page need no token and may be opened from anywhere, by a link for example: they
//! contain no data, and what the page then asks for is checked as above.
//!
//! Promises: `/health` and `/ready` need no token. A rejected request is not routed.
//!
//! Never: reads a body.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, Method, Request};
use tollgate_config::Secret;
use tollgate_core::time::Micros;

use super::session::Sessions;
use crate::api::ApiError;
use crate::daemon::Daemon;

/// The longest `Authorization` that is compared, so that the comparison is cheap.
const BEARER_MAX: usize = 16 * 1024;

/// The rules for access.
#[derive(Debug)]
pub(super) struct AccessPolicy {
    address: SocketAddr,
    token: Option<Secret>,
    pub(super) sessions: Sessions,
    /// Knows `metrics.token`, which a reload may change; the clock of its ledger ends sessions.
    daemon: Daemon,
}

impl AccessPolicy {
    pub(super) fn new(address: SocketAddr, token: Option<Secret>, daemon: Daemon) -> AccessPolicy {
        AccessPolicy {
            address,
            token,
            sessions: Sessions::default(),
            daemon,
        }
    }

    /// The token that clients must show.
    pub(super) fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// The port of the address, which the cookie of a session is named after.
    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// May this request be routed?
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let now = self.daemon.registry().ledger().at();
        let asked = (request.method(), request.uri().path());
        self.authorize(asked, request.headers(), now)
    }

    fn authorize(
        &self,
        (method, path): (&Method, &str),
        headers: &HeaderMap,
        now: Micros,
    ) -> Result<(), ApiError> {
        if matches!(path, "/health" | "/ready") {
            return Ok(());
        }
        if path == "/metrics" && self.may_read_metrics(headers)? {
            return Ok(());
        }
        let host = text(headers, HOST.as_str()).unwrap_or_default();
        let is_held = is_held_request(path, headers);
        if self.token.is_none() && !is_held && !self.is_own_host(host) {
            return Err(ApiError::forbidden(
                "this Host is not an address of the daemon",
                "use 127.0.0.1 or localhost, or set admin.token",
            ));
        }
        if is_page(path) && is_read_only(method) {
            return Ok(());
        }
        let is_foreign = |origin: &str| !is_same_origin(origin, host);
        let fetched = text(headers, "sec-fetch-site");
        let mut origins = headers.get_all(ORIGIN).iter();
        let is_cross_site = origins.any(|origin| origin.to_str().map_or(true, is_foreign))
            || fetched.is_some_and(|site| !matches!(site, "same-origin" | "none"));
        if is_cross_site && !is_held {
            return Err(ApiError::forbidden(
                "a page of another site may not use the admin address",
                "call it from a program, or from its own pages",
            ));
        }
        match &self.token {
            Some(token) if has_bearer_token(headers, token) => return Ok(()),
            // The token is in its body.
            Some(_) if path == "/v1/session" && method == Method::POST => {}
            Some(_) if !self.sessions.has(headers, self.port(), now) => {
                return Err(ApiError::unauthorized());
            }
            Some(_) => {}
            None if is_held => return Ok(()),
            None => {}
        }
        match text(headers, "x-tollgate-admin") {
            Some("1") => Ok(()),
            _ if is_read_only(method) => Ok(()),
            _ => Err(ApiError::forbidden(
                "a request that changes something needs the header `X-Tollgate-Admin: 1`",
                "add it, or use the `tollgate` commands",
            )),
        }
    }

    /// `Ok(false)`: without a token of their own, metrics are open where the admin token protects them from
    /// pages in a browser; without that token, the other rules apply to them too.
    fn may_read_metrics(&self, headers: &HeaderMap) -> Result<bool, ApiError> {
        let loaded = self.daemon.loaded();
        let Some(own) = &loaded.config.metrics.token else {
            return Ok(self.token.is_some());
        };
        let admin = self.token.as_ref();
        if has_bearer_token(headers, own)
            || admin.is_some_and(|token| has_bearer_token(headers, token))
        {
            return Ok(true);
        }
        Err(ApiError::unauthorized_metrics())
    }

    /// Against DNS rebinding: any DNS name may resolve to this host, an IP address cannot be
    /// rebound.
    fn is_own_host(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
            _ => (host, Some(80)),
        };
        let bare = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        let ip: Option<IpAddr> = bare.unwrap_or(name).parse().ok();
        let is_name = name.eq_ignore_ascii_case("localhost");
        let is_ip = ip.is_some_and(|ip| ip.is_loopback() || ip == self.address.ip());
        (is_name || is_ip) && port == Some(self.address.port())
    }
}

/// A proxy asks about a request that it holds, with the headers of that request: `Origin` and others
/// are those of its client. A page of another site cannot send the header that tells it.
fn is_held_request(path: &str, headers: &HeaderMap) -> bool {
    let tells = ["x-original-uri", "x-forwarded-uri"];
    path == "/v1/check" && tells.iter().any(|name| headers.contains_key(*name))
}

/// A file of the page.
fn is_page(path: &str) -> bool {
    path == "/" || path.starts_with("/page/")
}

fn is_read_only(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn has_bearer_token(headers: &HeaderMap, token: &Secret) -> bool {
    let sent = text(headers, AUTHORIZATION.as_str()).filter(|sent| sent.len() <= BEARER_MAX);
    let (scheme, rest) = sent
        .and_then(|sent| sent.split_once(' '))
        .unwrap_or_default();
    // Secrets compare in constant time.
    scheme.eq_ignore_ascii_case("bearer") && Secret::new(rest.trim().to_owned()) == *token
}

fn is_same_origin(origin: &str, host: &str) -> bool {
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    !host.is_empty() && authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

/// A header that occurs once; a repeated one counts as absent.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    match all.next() {
        None => first.to_str().ok(),
        Some(_) => None,
    }
}
