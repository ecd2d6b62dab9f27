//! The rows of cache hits: requests per second when every response comes from the cache, of 1 KiB
//! and of 64 KiB.
//!
//! Promises: every server fetches each response once before it is measured, and a round in which
//! any request reaches the upstream fails the run. The first rounds warm up.

use std::time::Duration;

use anyhow::ensure;

use crate::Effort;
use crate::load::Load;
use crate::peers::{ENVOY_CACHE, HAPROXY_CACHE, Site, nginx_cache};
use crate::plot::Plot;
use crate::proxied::{CALLERS, Figures, HIGH, Rounds, line, measure};
use crate::report::{Part, table};
use crate::server::Server;
use crate::upstream::{self, Behaviour, Log};

/// One row: the request, and the goal as a multiple of the rates of nginx and of Envoy.
struct Row {
    name: &'static str,
    word: &'static str,
    bytes: usize,
    /// Every connection requests another URL; otherwise all request the same.
    different: bool,
    nginx: f64,
    envoy: f64,
}

const SMALL: Row = Row {
    name: "1 KiB",
    word: "hits-1k",
    bytes: 1_024,
    different: false,
    nginx: 1.8,
    envoy: 1.8,
};

const LARGE: Row = Row {
    name: "64 KiB",
    word: "hits-64k",
    bytes: 64 * 1_024,
    different: false,
    nginx: 1.0,
    envoy: 1.4,
};

const ROWS: [Row; 3] = [
    SMALL,
    LARGE,
    Row {
        name: "64 KiB, 64 different responses",
        word: "hits-64k-different",
        different: true,
        ..LARGE
    },
];

/// Rounds, at most: all rows together stay below two minutes.
const ROUNDS: usize = 4;

/// How long one server is loaded in one round: some 50,000 responses.
const SPAN: Duration = Duration::from_secs(1);

/// The most bytes of the headers of a response.
const HEAD: usize = 4 * 1_024;

/// Tollgate caches what the responses allow, as the others do.
const CACHE_LINES: &str = "cache: { mode: rfc9111 }\n";

pub async fn run(site: &Site, effort: Effort) -> anyhow::Result<Part> {
    let mut part = Part::default();
    for row in &ROWS {
        let (address, log) = upstream::start(Behaviour {
            bytes: row.bytes,
            cache_control: Some("public, max-age=86400"),
            ..Behaviour::PLAIN
        })
        .await?;
        let figures = one(&site.with_upstream(address), &log, row, effort).await?;
        report(&mut part, row, &figures);
    }
    Ok(part)
}

async fn one(site: &Site, log: &Log, row: &Row, effort: Effort) -> anyhow::Result<Vec<Figures>> {
    let nginx = nginx_cache(&site.fresh("nginx-cache")?, "on");
    let other = nginx_cache(&site.fresh("nginx-cache-off")?, "off");
    let servers: [Server; 7] = [
        site.nginx("nginx", [&nginx[0], &nginx[1]])?,
        site.nginx("nginx without sendfile", [&other[0], &other[1]])?,
        site.haproxy("HAProxy", HAPROXY_CACHE)?,
        site.varnish("Varnish")?,
        site.envoy("Envoy", ENVOY_CACHE)?,
        site.constant(row.bytes)?,
        site.tollgate("Tollgate", "memory:", HIGH, CACHE_LINES)?,
    ];
    let mut rounds: Vec<Rounds> = servers.iter().map(|_| Rounds::default()).collect();
    for round in 0..=effort.rounds.min(ROUNDS) {
        for (server, rounds) in servers.iter().zip(&mut rounds) {
            log.begin();
            let load = Load {
                connections: CALLERS,
                span: effort.span.min(SPAN),
                room: row.bytes + HEAD,
                different: row.different,
            };
            let measured = measure(server, load).await?;
            // The first round fills the caches.
            if round > 0 {
                let sent = log.take().len();
                ensure!(sent == 0, "{} sent {sent} requests upstream", server.name);
                rounds.add(&measured);
            }
        }
    }
    let named = servers.iter().zip(rounds);
    Ok(named
        .map(|(server, rounds)| rounds.figures(server.name))
        .collect())
}

fn report(part: &mut Part, row: &Row, figures: &[Figures]) {
    let [nginx, other, haproxy, varnish, envoy, bare, ours] = figures else {
        return;
    };
    let rate = |figures: &Figures| format!("{:.1} k/s", figures.rate / 1e3);
    let peers = [nginx, other, envoy, varnish, haproxy, bare]
        .map(|one| format!("{} {}", one.name, rate(one)));
    for (peer, bar) in [(nginx, row.nginx), (envoy, row.envoy)] {
        let ratio = ours.rate / peer.rate;
        part.goal(
            &format!(
                "cache hit {}, requests per second, vs {}",
                row.name, peer.name
            ),
            &peers.join(", "),
            format!("{} ({ratio:.2}x)", rate(ours)),
            &format!("≥ {bar:.1}x"),
            ratio >= bar,
        );
    }
    let lines: Vec<Vec<String>> = figures
        .iter()
        .map(|one| {
            let mut line = line(one);
            line.push(format!("{:.0} %", one.busy * 100.0));
            line
        })
        .collect();
    let title = format!("Cache hits of {}", row.name);
    let head = [
        &title,
        "CPU",
        "requests",
        "p50",
        "p99",
        "memory",
        "core busy",
    ];
    part.section(&title, table(&head, &lines));
    let bars = figures.iter().map(|one| (one.name.to_owned(), one.rate));
    let title = format!("cache hits of {} per second (more is better)", row.name);
    part.plots.push(Plot::new(row.word, &title, bars.collect()));
}
