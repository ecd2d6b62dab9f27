//! `tollgate check --live`: checks ports, store, clock and keys.
//!
//! Promises: each finding is one line, with a remedy. A provider is called once, with a `HEAD` of
//! its base address, through the same path as every call: the permit is counted in the configured
//! store. The response does not affect its health: many providers do not support `HEAD`. A provider
//! that sleeps is not called.
//!
//! Never: keeps a port, waits longer than [`CALL_TIMEOUT`] for one provider, shows a key.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::Method;
use http::header::{DATE, HeaderMap};
use http_body_util::Empty;
use tollgate::path::{self, CallOptions, CallTrace, HttpCall, Target};
use tollgate::providers::Options;
use tollgate::{Error, ProviderRegistry};
use tollgate_config::Config;
use tollgate_config::provider::{AuthStyle, Provider};
use tollgate_core::health::{HealthMode, HealthState};
use tollgate_core::retry::Retries;
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::{Clock, Ledger};

use crate::open_ledger::try_open_ledger;

/// How long one provider may take.
const CALL_TIMEOUT: Span = Span::from_secs(10);

/// How long the owner of a port may take to respond.
const PORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Tollgate's own response has some 200 bytes.
const RESPONSE_MAX: u64 = 4_096;

/// A wall clock that is off by more than this shifts the edges of calendar windows noticeably:
/// twice their default margin.
const CLOCK_OFF: Span = Span::from_secs(4);

/// The result of one check.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) is_ok: bool,
    pub(super) text: String,
}

impl Finding {
    fn ok(text: String) -> Finding {
        Finding { is_ok: true, text }
    }

    fn failed(text: String) -> Finding {
        Finding { is_ok: false, text }
    }
}

/// Checks everything that the configuration names.
pub(super) async fn run(config: &Config) -> Vec<Finding> {
    let own = config.all_providers().filter_map(|provider| {
        let address = provider.listen?;
        Some((address, format!("the address of {}", provider.name)))
    });
    let ports = [
        (config.listen, "the gateway's address".to_owned()),
        (config.admin.listen, "the admin address".to_owned()),
    ];
    let mut found: Vec<Finding> = ports.into_iter().chain(own).map(port).collect();
    match try_open_ledger(config).await {
        // A lost store rejects every call, so no provider can be checked.
        Ok((_, Some(why))) => found.push(Finding::failed(format!("store: {why}"))),
        Ok((ledger, None)) => {
            found.push(Finding::ok("store: can be opened and written".to_owned()));
            found.extend(providers(config, ledger).await);
        }
        Err(error) => found.push(Finding::failed(format!("store: {error:#}"))),
    }
    found
}

fn port((address, what): (SocketAddr, String)) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(format!("port: {address} is free ({what})")),
        Err(_) if is_tollgate(address) => {
            Finding::ok(format!("port: tollgate listens on {address} ({what})"))
        }
        Err(error) => Finding::failed(format!(
            "port: {what}, {address}, cannot be opened: {error}; is tollgate running already? If not, choose another address"
        )),
    }
}

/// Whether a tollgate has the port: its responses have our header, or are those of the admin
/// address.
fn is_tollgate(address: SocketAddr) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream =
            TcpStream::connect_timeout(&crate::admin_client::reachable(address), PORT_TIMEOUT)?;
        stream.set_read_timeout(Some(PORT_TIMEOUT))?;
        stream.set_write_timeout(Some(PORT_TIMEOUT))?;
        // Without a Host, so that a provider's own address rejects it instead of passing it on.
        stream.write_all(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")?;
        let mut response = Vec::new();
        // A server that keeps the connection open has already sent enough.
        let _cut = stream.take(RESPONSE_MAX).read_to_end(&mut response);
        Ok(String::from_utf8_lossy(&response).to_ascii_lowercase())
    };
    ask().is_ok_and(|response| {
        let is_gateway = response.contains("\r\nx-tollgate-source:");
        response.starts_with("http/1.1 ")
            && (is_gateway || response.ends_with("{\"status\":\"ok\"}"))
    })
}

async fn providers(config: &Config, ledger: Ledger) -> Vec<Finding> {
    let all = config
        .providers
        .iter()
        .map(|provider| single_attempt(provider));
    let registry = match ProviderRegistry::build(all.collect(), ledger, Options::default()) {
        Ok(registry) => registry,
        Err(error) => return vec![Finding::failed(format!("providers: {error}"))],
    };
    let mut found = Vec::new();
    for provider in &config.providers {
        if provider.upstream.is_some() || !provider.domains.is_empty() {
            found.extend(call_provider(&registry, provider).await);
        }
    }
    found
}

/// The provider with one attempt per call and no effect on its health.
fn single_attempt(provider: &Provider) -> Provider {
    let mut provider = provider.clone();
    provider.retry.retries = Retries {
        high: 0,
        normal: 0,
        low: 0,
    };
    provider.health.mode = HealthMode::Off;
    provider
}

/// One call: does the provider respond, does it accept the key, and what is its time?
async fn call_provider(registry: &ProviderRegistry, provider: &Provider) -> Vec<Finding> {
    let name = &provider.name;
    match registry.overview_of(name).await.state {
        HealthState::Normal | HealthState::Throttle => {}
        resting @ (HealthState::Sleep | HealthState::HalfOpen | HealthState::CacheOnly) => {
            return vec![Finding::failed(format!(
                "{name}: its state is {}, so it was not called; its key was not checked",
                resting.as_str()
            ))];
        }
    }
    let call = HttpCall {
        target: Target::Provider {
            name: name.clone(),
            path: "/".to_owned(),
            query: None,
        },
        method: Method::HEAD,
        headers: HeaderMap::new(),
        body: Empty::<Bytes>::new(),
        options: CallOptions {
            id: "check".into(),
            timeout: Some(CALL_TIMEOUT),
            ..CallOptions::default()
        },
    };
    match path::call(registry, call, &mut CallTrace::default()).await {
        Err(error) => vec![Finding::failed(format!("{name}: {}", error_text(&error)))],
        Ok(reply) => {
            let status = reply.head.status.as_u16();
            let has_key = match provider.auth.style {
                AuthStyle::None => false,
                AuthStyle::OAuth2(_) => true,
                AuthStyle::Query { .. }
                | AuthStyle::Header { .. }
                | AuthStyle::Bearer
                | AuthStyle::Basic
                | AuthStyle::Login(_) => !provider.keys.is_empty(),
            };
            let key = match status {
                401 | 403 if has_key => Finding::failed(format!(
                    "{name}: the key is rejected ({status}); check that it is complete and belongs to this provider"
                )),
                401 | 403 => Finding::ok(format!(
                    "{name}: responds ({status}); there is no key, so calls must send their own"
                )),
                _ => Finding::ok(format!("{name}: responds ({status})")),
            };
            let date = reply.head.headers.get(DATE);
            let date = date.and_then(|value| parse_date(value.to_str().ok()?));
            let clock = date.and_then(|date| clock_finding(name, date, Clock::System.now().wall));
            std::iter::once(key).chain(clock).collect()
        }
    }
}

fn error_text(error: &Error) -> String {
    format!("{error}; its key was not checked")
}

fn parse_date(date: &str) -> Option<Wall> {
    let since = httpdate::parse_http_date(date)
        .ok()?
        .duration_since(UNIX_EPOCH)
        .ok()?;
    Some(Wall(u64::try_from(since.as_micros()).ok()?))
}

/// `None` where the clocks agree.
fn clock_finding(name: &str, theirs: Wall, ours: Wall) -> Option<Finding> {
    let off = Span(theirs.0.abs_diff(ours.0));
    (off > CLOCK_OFF).then(|| {
        let way = if ours > theirs { "ahead of" } else { "behind" };
        Finding::failed(format!(
            "clock: this machine is {} s {way} {name}; set the clock by NTP; otherwise calendar windows start and end at the wrong time",
            off.0 / 1_000_000
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_agree_within_seconds_are_fine() {
        let at = |secs: u64| Wall(secs * 1_000_000);
        assert_eq!(clock_finding("x", at(1_000), at(1_004)), None);
        let ahead = clock_finding("x", at(1_000), at(1_005)).unwrap();
        assert!(
            ahead
                .text
                .starts_with("clock: this machine is 5 s ahead of x"),
            "{}",
            ahead.text
        );
        let behind = clock_finding("x", at(9_000), at(1_000)).unwrap();
        assert!(behind.text.contains("8000 s behind x"), "{}", behind.text);
    }
}
