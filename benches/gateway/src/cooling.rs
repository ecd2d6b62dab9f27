//! Cooling: the provider refuses one call and says for how long it will refuse all of them. What do
//! a hundred callers get meanwhile, and what does the provider get?
//!
//! A third of the callers will not wait, a third will, and a third asks for something that was kept
//! and is past its time. The provider's own log says what was sent.

use std::net::SocketAddr;
use std::time::Duration;

use crate::load::Caller;
use crate::peers::{ENVOY_CACHE, Site, nginx_cache};
use crate::proxied::HIGH;
use crate::report::{Part, table};
use crate::server::Server;
use crate::upstream::{self, Came, Log, Manner, REFUSED};

const CALLERS: u32 = 100;
/// What `Retry-After` says.
const REST: Duration = Duration::from_secs(2);
/// The callers come between these two, after the refusal.
const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_millis(1_800);
/// How long answers are fresh, and how long it takes until what was kept is old for everybody.
const AGED: Duration = Duration::from_millis(2_100);
/// How soon after the rest the first call must go out.
const LATE_MS: f64 = 50.0;

/// What a caller wants.
#[derive(Clone, Copy)]
enum Wish {
    /// An answer or a refusal at once.
    Now,
    /// An answer, whenever.
    Wait,
    /// Something that was kept.
    Kept,
}

const WISHES: [Wish; 3] = [Wish::Now, Wish::Wait, Wish::Kept];

#[derive(Default)]
struct Figures {
    name: &'static str,
    /// Sent to the provider while it rested.
    during: usize,
    /// How long after the rest the first one came, in milliseconds. None did: everybody had gone.
    first_ms: Option<f64>,
    /// Refused with the time to come back, by us or by the provider.
    told: usize,
    /// Answers by those who would wait.
    waited: usize,
    /// Answers out of what was kept.
    kept: usize,
    callers: [usize; 3],
}

pub async fn run(site: &Site) -> anyhow::Result<Part> {
    let (address, log) = upstream::start(Manner {
        cache_control: Some("public, max-age=1, stale-if-error=600"),
        rest_seconds: REST.as_secs(),
        ..Manner::PLAIN
    })
    .await?;
    let site = site.before(address);
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
    // Kept, and then past its time.
    ask(server.address, &path("/kept"), "30s").await?;
    tokio::time::sleep(AGED).await;
    log.take();
    let refused = path(REFUSED);
    let address = server.address;
    let began = tokio::time::Instant::now();
    let first = tokio::task::spawn_local(async move { ask(address, &refused, "30s").await });
    let mut tasks = Vec::new();
    for caller in 0..CALLERS {
        let at = began + FIRST + (LAST - FIRST) * caller / CALLERS;
        let wish = WISHES[caller as usize % WISHES.len()];
        let (path, timeout) = match wish {
            Wish::Kept => (path("/kept"), "30s"),
            Wish::Now => (path(&format!("/own/{caller}")), "50ms"),
            Wish::Wait => (path(&format!("/own/{caller}")), "30s"),
        };
        tasks.push(tokio::task::spawn_local(async move {
            tokio::time::sleep_until(at).await;
            (wish, ask(address, &path, timeout).await)
        }));
    }
    let mut figures = Figures {
        name: server.name,
        ..Figures::default()
    };
    for task in tasks {
        let (wish, got) = task.await?;
        figures.add(wish, &got?);
    }
    first.await??;
    // Whoever is sent after the rest has come by now.
    tokio::time::sleep_until(began + REST + AGED).await;
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
    // The last line is for ours: how long this caller will wait.
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Tollgate-Timeout: {timeout}\r\n\r\n");
    let status = caller.call(request.as_bytes()).await?.status;
    let has_time = caller.header("retry-after").is_some();
    Ok(Got { status, has_time })
}

impl Figures {
    fn add(&mut self, wish: Wish, got: &Got) {
        let is_answer = got.status == 200;
        match wish {
            Wish::Now => self.told += usize::from(is_answer || got.has_time),
            Wish::Wait => self.waited += usize::from(is_answer),
            Wish::Kept => self.kept += usize::from(is_answer),
        }
        self.callers[wish as usize] += 1;
    }

    fn judge(&mut self, came: &[Came]) {
        let Some(first) = came.iter().find(|one| one.refused) else {
            return;
        };
        let after = |one: &Came| one.at.duration_since(first.at);
        let later = || came.iter().filter(|one| one.at > first.at);
        self.during = later().filter(|one| after(one) < REST).count();
        let next = later().map(after).find(|after| *after >= REST);
        self.first_ms = next.map(|after| (after - REST).as_secs_f64() * 1e3);
    }

    fn is_reached(&self) -> bool {
        self.during == 0
            && self.first_ms.is_some_and(|late| late <= LATE_MS)
            && [self.told, self.waited, self.kept] == self.callers
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
        &format!("0, ≤ {LATE_MS:.0} ms, nobody left without an answer or a time"),
        ours.is_reached(),
    );
    let of =
        |got: usize, one: &Figures, wish: Wish| format!("{got} of {}", one.callers[wish as usize]);
    let lines: Vec<Vec<String>> = figures
        .iter()
        .map(|one| {
            vec![
                one.name.to_owned(),
                one.during.to_string(),
                late(one),
                of(one.told, one, Wish::Now),
                of(one.waited, one, Wish::Wait),
                of(one.kept, one, Wish::Kept),
            ]
        })
        .collect();
    let head = [
        "cooling",
        "sent during the rest",
        "first one after it",
        "would not wait: answered or told when",
        "would wait: answered",
        "something that was kept: answered",
    ];
    part.section("Cooling", table(&head, &lines));
    part
}
