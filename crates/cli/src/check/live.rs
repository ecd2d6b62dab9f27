//! `tollgate check --live`: does it also hold outside the files? Ports, store, clock, keys.
//!
//! Promises: what it finds is told in one line each, with a remedy. A provider is asked once, with a
//! `HEAD` of its base address, through the same path as every call: the permit is counted in the store
//! that is configured. What it answers to that says nothing of its health: many know no `HEAD`. One
//! that rests is not asked.
//!
//! Never: keeps a port, waits longer than [`PATIENCE`] for one provider, shows a key.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::Method;
use http::header::{DATE, HeaderMap};
use http_body_util::Empty;
use tollgate::path::{self, Call, Said, Target, Trail};
use tollgate::shop::Options;
use tollgate::{Error, Shop};
use tollgate_config::Config;
use tollgate_config::provider::{Provider, Style};
use tollgate_core::health::{Mode, State};
use tollgate_core::retry::Retries;
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::{Clock, Ledger};

use crate::serve;

/// How long one provider may take.
const PATIENCE: Span = Span::from_secs(10);

/// How long whoever has a port may take to say who it is.
const HEALTH: Duration = Duration::from_secs(2);

/// Our own answer has some 200 bytes.
const ANSWER_MAX: u64 = 4_096;

/// A wall clock that is off by more than this shifts the edges of calendar windows noticeably: twice
/// the margin that they keep by default.
const CLOCK_OFF: Span = Span::from_secs(4);

/// One thing that was tried.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) is_fine: bool,
    pub(super) text: String,
}

impl Finding {
    fn fine(text: String) -> Finding {
        Finding {
            is_fine: true,
            text,
        }
    }

    fn bad(text: String) -> Finding {
        Finding {
            is_fine: false,
            text,
        }
    }
}

/// Tries everything that the configuration names.
pub(super) async fn look(config: &Config) -> Vec<Finding> {
    let own = config.all().filter_map(|provider| {
        let address = provider.listen?;
        Some((address, format!("the address of {}", provider.name)))
    });
    let ports = [
        (config.listen, "the gateway's address".to_owned()),
        (config.admin.listen, "the admin address".to_owned()),
    ];
    let mut found: Vec<Finding> = ports.into_iter().chain(own).map(port).collect();
    match serve::try_open(&config.store) {
        // A store that is lost is a ledger too: it refuses. Whom would it ask?
        Ok((_, Some(why))) => found.push(Finding::bad(format!("store: {why}"))),
        Ok((ledger, None)) => {
            found.push(Finding::fine("store: opens, and can be written".to_owned()));
            found.extend(providers(config, ledger).await);
        }
        Err(error) => found.push(Finding::bad(format!("store: {error:#}"))),
    }
    found
}

fn port((address, what): (SocketAddr, String)) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => Finding::fine(format!("port: {address} is free ({what})")),
        Err(_) if is_ours(address) => {
            Finding::fine(format!("port: tollgate answers on {address} ({what})"))
        }
        Err(error) => Finding::bad(format!(
            "port: {what}, {address}, cannot be opened: {error}; is tollgate running already? else choose another"
        )),
    }
}

/// Is it a tollgate that has the port? Every answer of ours says so, or is that of the admin address.
fn is_ours(address: SocketAddr) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&crate::remote::reachable(address), HEALTH)?;
        stream.set_read_timeout(Some(HEALTH))?;
        stream.set_write_timeout(Some(HEALTH))?;
        // Without a Host, so that a provider's own address refuses it in place of passing it on.
        stream.write_all(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        // Whoever does not close says enough at once.
        let _cut = stream.take(ANSWER_MAX).read_to_end(&mut answer);
        Ok(String::from_utf8_lossy(&answer).to_ascii_lowercase())
    };
    ask().is_ok_and(|answer| {
        let is_gateway = answer.contains("\r\nx-tollgate-source:");
        answer.starts_with("http/1.1 ") && (is_gateway || answer.ends_with("{\"status\":\"ok\"}"))
    })
}

async fn providers(config: &Config, ledger: Ledger) -> Vec<Finding> {
    let all = config.providers.iter().map(|provider| once(provider));
    let shop = match Shop::build(all.collect(), ledger, Options::default()) {
        Ok(shop) => shop,
        Err(error) => return vec![Finding::bad(format!("providers: {error}"))],
    };
    let mut found = Vec::new();
    for provider in &config.providers {
        if provider.upstream.is_some() || !provider.domains.is_empty() {
            found.extend(ask(&shop, provider).await);
        }
    }
    found
}

/// The provider as it is asked here: one attempt, which nobody's health machine hears of.
fn once(provider: &Provider) -> Provider {
    let mut provider = provider.clone();
    provider.retry.retries = Retries {
        high: 0,
        normal: 0,
        low: 0,
    };
    provider.health.mode = Mode::Off;
    provider
}

/// One call: is it there, does it take the key, and what time is it there?
async fn ask(shop: &Shop, provider: &Provider) -> Vec<Finding> {
    let name = &provider.name;
    match shop.state_of(name).await {
        State::Normal | State::Throttle => {}
        resting @ (State::Sleep | State::HalfOpen | State::CacheOnly) => {
            return vec![Finding::bad(format!(
                "{name}: its state is {}, so it was not asked; nothing is known about its key",
                resting.word()
            ))];
        }
    }
    let call = Call {
        target: Target::Provider {
            name: name.clone(),
            path: "/".to_owned(),
            query: None,
        },
        method: Method::HEAD,
        headers: HeaderMap::new(),
        body: Empty::<Bytes>::new(),
        said: Said {
            id: "check".to_owned(),
            timeout: Some(PATIENCE),
            ..Said::default()
        },
    };
    match path::call(shop, call, &mut Trail::default()).await {
        Err(error) => vec![Finding::bad(format!("{name}: {}", told(&error)))],
        Ok(reply) => {
            let status = reply.head.status.as_u16();
            let has_key = match provider.auth.style {
                Style::Nothing => false,
                Style::OAuth2(_) => true,
                Style::Query { .. }
                | Style::Header { .. }
                | Style::Bearer
                | Style::Basic
                | Style::Login(_) => !provider.keys.is_empty(),
            };
            let key = match status {
                401 | 403 if has_key => Finding::bad(format!(
                    "{name}: the key is refused ({status}); is it complete, and of this provider?"
                )),
                401 | 403 => Finding::fine(format!(
                    "{name}: answers ({status}); there is no key, so calls must bring their own"
                )),
                _ => Finding::fine(format!("{name}: answers ({status})")),
            };
            let date = reply.head.headers.get(DATE);
            let date = date.and_then(|value| wall(value.to_str().ok()?));
            let clock = date.and_then(|date| clock(name, date, Clock::System.now().wall));
            std::iter::once(key).chain(clock).collect()
        }
    }
}

fn told(error: &Error) -> String {
    format!("{error}; nothing is known about its key")
}

fn wall(date: &str) -> Option<Wall> {
    let since = httpdate::parse_http_date(date)
        .ok()?
        .duration_since(UNIX_EPOCH)
        .ok()?;
    Some(Wall(u64::try_from(since.as_micros()).ok()?))
}

/// `None` where the clocks agree.
fn clock(name: &str, theirs: Wall, ours: Wall) -> Option<Finding> {
    let off = Span(theirs.0.abs_diff(ours.0));
    (off > CLOCK_OFF).then(|| {
        let way = if ours > theirs { "ahead of" } else { "behind" };
        Finding::bad(format!(
            "clock: this machine is {} s {way} {name}; set it by NTP, or calendar windows have wrong edges",
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
        assert_eq!(clock("x", at(1_000), at(1_004)), None);
        let ahead = clock("x", at(1_000), at(1_005)).unwrap();
        assert!(
            ahead
                .text
                .starts_with("clock: this machine is 5 s ahead of x"),
            "{}",
            ahead.text
        );
        let behind = clock("x", at(9_000), at(1_000)).unwrap();
        assert!(behind.text.contains("8000 s behind x"), "{}", behind.text);
    }
}
