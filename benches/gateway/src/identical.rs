//! W8: a thousand identical GETs at once. The upstream takes 200 ms and counts what reaches it.

use std::time::{Duration, Instant};

use crate::Effort;
use crate::load::{self, CallResult, Caller};
use crate::peers::{ENVOY_CACHE, HAPROXY_CACHE, Site, nginx_cache};
use crate::plot::Plot;
use crate::proxied::HIGH;
use crate::report::{Part, median, table};
use crate::server::Server;
use crate::upstream::{self, Behaviour, Log};

const CALLERS: usize = 1_000;
const DELAY: Duration = Duration::from_millis(200);
/// How much later than the upstream's response 99 % of the callers may get theirs.
const LATE_MS: f64 = 40.0;

/// The figures of one server.
struct Figures {
    name: &'static str,
    upstream: usize,
    p50: f64,
    p99: f64,
    /// Responses other than 200.
    failed: usize,
}

pub async fn run(site: &Site, effort: Effort) -> anyhow::Result<Part> {
    let mut figures = Vec::new();
    let cacheable = Behaviour {
        cache_control: Some("public, max-age=86400"),
        delay: DELAY,
        ..Behaviour::PLAIN
    };
    let (address, log) = upstream::start(cacheable).await?;
    let site = site.with_upstream(address);
    let nginx = nginx_cache(&site.fresh("nginx-cache")?, "on");
    let cache_lines = "cache: { mode: rfc9111 }\n";
    for server in [
        site.nginx("nginx with cache lock", [&nginx[0], &nginx[1]])?,
        site.haproxy("HAProxy", HAPROXY_CACHE)?,
        site.varnish("Varnish")?,
        site.envoy("Envoy", ENVOY_CACHE)?,
        site.squid("Squid")?,
        site.tollgate("Tollgate", "memory:", HIGH, cache_lines)?,
    ] {
        figures.push(rounds(&server, &log, effort).await?);
    }
    // Responses that are not cacheable: shared only if the provider file allows it.
    let (address, log) = upstream::start(Behaviour {
        cache_control: Some("no-store"),
        ..cacheable
    })
    .await?;
    let site = site.with_upstream(address);
    let extra = "cache: { mode: rfc9111 }\ndedup: true\n";
    let server = site.tollgate("Tollgate, no-store, dedup: true", "memory:", HIGH, extra)?;
    figures.push(rounds(&server, &log, effort).await?);
    Ok(report(&figures))
}

/// Several bursts, each with its own URL: the most requests sent upstream, and the medians.
async fn rounds(server: &Server, log: &Log, effort: Effort) -> anyhow::Result<Figures> {
    let mut worst = 0;
    let mut failed = 0;
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for round in 0..effort.rounds {
        log.begin();
        let (mut took, bad) = burst(server, &format!("{}?burst={round}", server.path)).await?;
        took.sort_by(f64::total_cmp);
        worst = worst.max(log.take().len());
        failed += bad;
        let at = |percent: usize| took[(took.len() - 1) * percent / 100];
        p50.push(at(50));
        p99.push(at(99));
    }
    Ok(Figures {
        name: server.name,
        upstream: worst,
        p50: median(p50),
        p99: median(p99),
        failed,
    })
}

/// All callers send at once. Returns how long each took, in milliseconds, and how many failed.
async fn burst(server: &Server, path: &str) -> anyhow::Result<(Vec<f64>, usize)> {
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        callers.push(Caller::connect(server.address).await?);
    }
    let request = load::request(path);
    let began = Instant::now();
    let tasks: Vec<_> = callers
        .into_iter()
        .map(|mut caller| {
            let request = request.clone();
            tokio::task::spawn_local(async move {
                let result = caller.call(&request).await;
                let took = began.elapsed().as_secs_f64() * 1e3;
                (took, matches!(result, Ok(CallResult { status: 200 })))
            })
        })
        .collect();
    let (mut took, mut failed) = (Vec::new(), 0);
    for task in tasks {
        let (one, is_success) = task.await?;
        took.push(one);
        failed += usize::from(!is_success);
    }
    Ok((took, failed))
}

fn report(figures: &[Figures]) -> Part {
    let mut part = Part::default();
    let (peers, ours) = figures.split_at(figures.len() - 2);
    let most = DELAY.as_secs_f64() * 1e3 + LATE_MS;
    let peers: Vec<String> = peers
        .iter()
        .map(|one| format!("{} {} at p99 {:.0} ms", one.name, one.upstream, one.p99))
        .collect();
    let peers = peers.join(", ");
    let cases = [
        ("", peers.as_str()),
        (", not cacheable, `dedup: true`", "–"),
    ];
    for (one, (what, peers)) in ours.iter().zip(cases) {
        part.goal(
            &format!("W8 1,000 identical GETs at once, upstream 200 ms{what}: sent, p99"),
            peers,
            format!("{}, {:.0} ms", one.upstream, one.p99),
            &format!("1, ≤ {most:.0} ms"),
            one.upstream == 1 && one.p99 <= most && one.failed == 0,
        );
    }
    let lines: Vec<Vec<String>> = figures
        .iter()
        .map(|one| {
            vec![
                one.name.to_owned(),
                one.upstream.to_string(),
                format!("{:.0} ms", one.p50),
                format!("{:.0} ms", one.p99),
                one.failed.to_string(),
            ]
        })
        .collect();
    let head = ["W8", "sent upstream", "p50", "p99", "failed"];
    part.section("W8, a thousand identical GETs", table(&head, &lines));
    let bars = figures.iter().map(|one| (one.name.to_owned(), one.p99));
    let title = "p99 of 1,000 identical GETs at once, ms (upstream 200 ms)";
    part.plots.push(Plot::new("w8", title, bars.collect()));
    part
}
