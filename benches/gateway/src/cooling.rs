//! Cooling: the provider rejects one call with 429 and a Retry-After. What do a hundred callers get
//! meanwhile, and what does the provider receive?
//!
//! A third of the callers will not wait, a third will, and a third requests a cached and stale
//! response. The provider's own log shows what was sent.

use std::net::SocketAddr;
use std::time::Duration;

use crate::load::Caller;
use crate::peers::{ENVOY_CACHE, Site, nginx_cache};
use crate::proxied::HIGH;
use crate::report::{Part, table};
use crate::server::Server;
use crate::upstream::{self, Arrival, Behaviour, LIMITED, Log};

const CALLERS: u32 = 100;
/// The value of `Retry-After`.
const COOL_DOWN: Duration = Duration::from_secs(2);
/// The callers arrive between these two times after the 429.
const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_millis(1_800);
/// The wait until every cached response is stale.
const AGED: Duration = Duration::from_millis(2_100);
/// How soon after the cool-down the first call must be sent.
const LATE_MS: f64 = 50.0;

/// What a caller wants.
#[derive(Clone, Copy)]
enum CallerKind {
    /// A response or a rejection at once.
    NoWait,
    /// A response after any wait.
    Wait,
    /// A cached response.
    Cached,
}

const CALLER_KINDS: [CallerKind; 3] = [CallerKind::NoWait, CallerKind::Wait, CallerKind::Cached];

#[derive(Default)]
struct Figures {
    name: &'static str,
    /// Sent to the provider during the cool-down.
    during: usize,
    /// How long after the cool-down the first call was sent, in milliseconds. `None`: no call was
    /// sent.
    first_ms: Option<f64>,
    /// Callers that would not wait and got a response or a Retry-After.
    informed: usize,
    /// Responses to callers that would wait.
    waited: usize,
    /// Responses from the cache.
    cached: usize,
    callers: [usize; 3],
}

pub async fn run(site: &Site) -> anyhow::Result<Part> {
    let (address, log) = upstream::start(Behaviour {
        cache_control: Some("public, max-age=1, stale-if-error=600"),
        retry_after_seconds: COOL_DOWN.as_secs(),
        ..Behaviour::PLAIN
    })
    .await?;
    let site = site.with_upstream(address);
    let cache = nginx_cache(&site.fresh("nginx-cache")?, "on");
    let stale = format!(
        "{} proxy_cache_use_stale error updating http_429;",
        cache[1]
    );
    let mut figures = Vec::new();
    for server in [
        site.nginx("nginx", [&cache[0], &stale])?,
        site.varnish("Varnish")?,
        site.envoy("Envoy", ENVOY_CACHE)?,
        site.squid("Squid")?,
        site.tollgate("Tollgate", "memory:", HIGH, "cache: { mode: rfc9111 }\n")?,
    ] {
        log.begin();
        figures.push(one(&server, &log).await?);
    }
    Ok(report(&figures))
}

async fn one(server: &Server, log: &Log) -> anyhow::Result<Figures> {
    let path = |name: &str| format!("{}{name}", server.path);
    // Cached, and then stale.
    ask(server.address, &path("/cached"), "30s").await?;
    tokio::time::sleep(AGED).await;
    log.take();
    let limited = path(LIMITED);
    let address = server.address;
    let began = tokio::time::Instant::now();
    let first = tokio::task::spawn_local(async move { ask(address, &limited, "30s").await });
    let mut tasks = Vec::new();
    for caller in 0..CALLERS {
        let at = began + FIRST + (LAST - FIRST) * caller / CALLERS;
        let kind = CALLER_KINDS[caller as usize % CALLER_KINDS.len()];
        let (path, timeout) = match kind {
            CallerKind::Cached => (path("/cached"), "30s"),
            CallerKind::NoWait => (path(&format!("/own/{caller}")), "50ms"),
            CallerKind::Wait => (path(&format!("/own/{caller}")), "30s"),
        };
        tasks.push(tokio::task::spawn_local(async move {
            tokio::time::sleep_until(at).await;
            (kind, ask(address, &path, timeout).await)
        }));
    }
    let mut figures = Figures {
        name: server.name,
        ..Figures::default()
    };
    for task in tasks {
        let (kind, got) = task.await?;
        figures.add(kind, &got?);
    }
    first.await??;
    // Calls sent after the cool-down have arrived by now.
    tokio::time::sleep_until(began + COOL_DOWN + AGED).await;
    figures.judge(&log.take());
    Ok(figures)
}

/// What a caller got.
struct Got {
    status: u16,
    has_time: bool,
}

async fn ask(server: SocketAddr, path: &str, timeout: &str) -> anyhow::Result<Got> {
    let mut caller = Caller::connect(server).await?;
    // The last header is for Tollgate: how long this caller will wait.
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Tollgate-Timeout: {timeout}\r\n\r\n");
    let status = caller.call(request.as_bytes()).await?.status;
    let has_time = caller.header("retry-after").is_some();
    Ok(Got { status, has_time })
}

impl Figures {
    fn add(&mut self, kind: CallerKind, got: &Got) {
        let is_success = got.status == 200;
        match kind {
            CallerKind::NoWait => self.informed += usize::from(is_success || got.has_time),
            CallerKind::Wait => self.waited += usize::from(is_success),
            CallerKind::Cached => self.cached += usize::from(is_success),
        }
        self.callers[kind as usize] += 1;
    }

    fn judge(&mut self, arrivals: &[Arrival]) {
        let Some(first) = arrivals.iter().find(|one| one.limited) else {
            return;
        };
        let after = |one: &Arrival| one.at.duration_since(first.at);
        let later = || arrivals.iter().filter(|one| one.at > first.at);
        self.during = later().filter(|one| after(one) < COOL_DOWN).count();
        let next = later().map(after).find(|after| *after >= COOL_DOWN);
        self.first_ms = next.map(|after| (after - COOL_DOWN).as_secs_f64() * 1e3);
    }

    fn is_reached(&self) -> bool {
        self.during == 0
            && self.first_ms.is_some_and(|late| late <= LATE_MS)
            && [self.informed, self.waited, self.cached] == self.callers
    }
}

fn report(figures: &[Figures]) -> Part {
    let mut part = Part::default();
    let Some((ours, peers)) = figures.split_last() else {
        return part;
    };
    let peers: Vec<String> = peers
        .iter()
        .map(|one| format!("{} {}", one.name, one.during))
        .collect();
    let late = |one: &Figures| {
        one.first_ms
            .map_or("–".to_owned(), |ms| format!("{ms:.0} ms"))
    };
    part.goal(
        "cooling, 429 with Retry-After 2 s, 100 callers: sent meanwhile, first one after it",
        &format!("sent: {}", peers.join(", ")),
        format!("{}, {}", ours.during, late(ours)),
        &format!("0, ≤ {LATE_MS:.0} ms, every caller gets a response or a time"),
        ours.is_reached(),
    );
    let of = |got: usize, one: &Figures, kind: CallerKind| {
        format!("{got} of {}", one.callers[kind as usize])
    };
    let lines: Vec<Vec<String>> = figures
        .iter()
        .map(|one| {
            vec![
                one.name.to_owned(),
                one.during.to_string(),
                late(one),
                of(one.informed, one, CallerKind::NoWait),
                of(one.waited, one, CallerKind::Wait),
                of(one.cached, one, CallerKind::Cached),
            ]
        })
        .collect();
    let head = [
        "cooling",
        "sent during the cool-down",
        "first one after it",
        "would not wait: response or time",
        "would wait: response",
        "cached: response",
    ];
    part.section("Cooling", table(&head, &lines));
    part
}
