//! The proxied rows: CPU per request, requests per second and memory, with our whole path on, in
//! memory and on SQLite.

use crate::Effort;
use crate::load::{self, Load};
use crate::peers::Site;
use crate::plot::Plot;
use crate::report::{Part, median, table};
use crate::server::Server;

/// Connections of callers.
pub const CALLERS: usize = 64;

/// Limits that are never reached here, but are counted.
pub const HIGH: &str = "[1000000/1s, 100000000/1m]";

/// The cache checks every response; these are not cacheable.
const CACHE_LINES: &str = "cache: { mode: rfc9111 }\n";

/// Bytes of a response with its headers.
const ROOM: usize = 16 * 1024;

/// The figures of one server, by round.
#[derive(Default)]
pub struct Rounds {
    micros: Vec<f64>,
    rate: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    busy: Vec<f64>,
    memory: f64,
}

/// The medians of one server.
pub struct Figures {
    pub name: &'static str,
    pub micros: f64,
    pub rate: f64,
    pub p50: f64,
    pub p99: f64,
    /// The used fraction of its core. Below 1 the callers were the bottleneck.
    pub busy: f64,
    pub memory: f64,
}

pub async fn run(site: &Site, effort: Effort) -> anyhow::Result<Part> {
    let sqlite = site.fresh("ledger")?;
    let on_disk = format!("sqlite:{sqlite}");
    let servers = [
        site.nginx("nginx", ["", ""])?,
        site.haproxy("HAProxy", ["", ""])?,
        site.envoy("Envoy", "")?,
        site.bare()?,
        site.tollgate("Tollgate", "memory:", HIGH, CACHE_LINES)?,
        site.tollgate("Tollgate on SQLite", &on_disk, HIGH, CACHE_LINES)?,
    ];
    let mut rounds: Vec<Rounds> = servers.iter().map(|_| Rounds::default()).collect();
    for round in 0..=effort.rounds {
        for (server, rounds) in servers.iter().zip(&mut rounds) {
            let load = Load {
                connections: CALLERS,
                span: effort.span,
                room: ROOM,
                different: true,
            };
            let measured = measure(server, load).await?;
            // The first round warms up.
            if round > 0 {
                rounds.add(&measured);
            }
        }
    }
    let figures: Vec<Figures> = servers
        .iter()
        .zip(rounds)
        .map(|(server, rounds)| rounds.figures(server.name))
        .collect();
    Ok(report(&figures))
}

/// One server under load for a while.
pub async fn measure(server: &Server, load: Load) -> anyhow::Result<Figures> {
    let before = server.cpu();
    let result = load::run(server.address, server.path, load).await?;
    let cpu = server.cpu() - before;
    anyhow::ensure!(
        result.rejected + result.failed == 0,
        "{}: {} rejected, {} failed",
        server.name,
        result.rejected,
        result.failed
    );
    Ok(Figures {
        name: server.name,
        micros: cpu.as_secs_f64() * 1e6 / result.responses as f64,
        rate: result.per_second(),
        p50: result.percentile(50.0),
        p99: result.percentile(99.0),
        busy: cpu.as_secs_f64() / result.took.as_secs_f64(),
        memory: server.memory(),
    })
}

impl Rounds {
    pub fn add(&mut self, figures: &Figures) {
        self.micros.push(figures.micros);
        self.rate.push(figures.rate);
        self.p50.push(figures.p50);
        self.p99.push(figures.p99);
        self.busy.push(figures.busy);
        self.memory = self.memory.max(figures.memory);
    }

    pub fn figures(self, name: &'static str) -> Figures {
        Figures {
            name,
            micros: median(self.micros),
            rate: median(self.rate),
            p50: median(self.p50),
            p99: median(self.p99),
            busy: median(self.busy),
            memory: self.memory,
        }
    }
}

fn report(figures: &[Figures]) -> Part {
    let [nginx, _, envoy, bare, ours, sqlite] = figures else {
        return Part::default();
    };
    let mut part = Part::default();
    let peers = |show: &dyn Fn(&Figures) -> String| {
        let each = [nginx, envoy, bare].map(|peer| format!("{} {}", peer.name, show(peer)));
        each.join(", ")
    };
    let micros = |figures: &Figures| format!("{:.1} µs", figures.micros);
    for (peer, bar) in [(nginx, 1.30), (envoy, 0.52)] {
        let ratio = ours.micros / peer.micros;
        part.goal(
            &format!("proxied GET 1 KiB, CPU per request, vs {}", peer.name),
            &peers(&micros),
            format!("{} ({ratio:.2}x)", micros(ours)),
            &format!("≤ {bar:.2}x"),
            ratio <= bar,
        );
    }
    let rate = |figures: &Figures| format!("{:.1} k/s", figures.rate / 1e3);
    for (peer, bar) in [(nginx, 0.75), (envoy, 1.6)] {
        let ratio = ours.rate / peer.rate;
        part.goal(
            &format!("proxied, requests per second, vs {}", peer.name),
            &peers(&rate),
            format!("{} ({ratio:.2}x)", rate(ours)),
            &format!("≥ {bar}x"),
            ratio >= bar,
        );
    }
    let memory = |figures: &Figures| format!("{:.1} MB", figures.memory);
    part.goal(
        "memory with 64 connections",
        &peers(&memory),
        memory(ours),
        "≤ 25 MB",
        ours.memory <= 25.0,
    );
    on_sqlite(&mut part, ours, sqlite);
    let lines: Vec<Vec<String>> = figures.iter().map(line).collect();
    let head = [
        "proxied GET 1 KiB",
        "CPU",
        "requests",
        "p50",
        "p99",
        "memory",
    ];
    part.section("Every proxy", table(&head, &lines));
    let bars = figures.iter().map(|one| (one.name.to_owned(), one.micros));
    let title = "CPU µs per proxied request (less is better)";
    part.plots
        .push(Plot::new("proxied-cpu", title, bars.collect()));
    part
}

/// The cost per call of counting on disk.
fn on_sqlite(part: &mut Part, ours: &Figures, sqlite: &Figures) {
    let cost = sqlite.micros - ours.micros;
    part.goal(
        "SQLite ledger, CPU of a permit, 64 callers",
        "–",
        format!("{cost:.1} µs more than in memory"),
        "≤ 30 µs",
        cost <= 30.0,
    );
    let wait = (sqlite.p99 - ours.p99) / 1e3;
    part.goal(
        "SQLite ledger, wait at p99, 64 callers in a closed loop",
        "–",
        format!("{wait:.1} ms more than in memory"),
        "≤ 2 ms",
        wait <= 2.0,
    );
}

pub fn line(figures: &Figures) -> Vec<String> {
    vec![
        figures.name.to_owned(),
        format!("{:.1} µs", figures.micros),
        format!("{:.1} k/s", figures.rate / 1e3),
        format!("{:.2} ms", figures.p50 / 1e3),
        format!("{:.2} ms", figures.p99 / 1e3),
        format!("{:.1} MB", figures.memory),
    ]
}
