//! Two builds of Tollgate side by side, so that a change can show that nothing got slower:
//! `--before FILE` names the `tollgate` program of the older build.
//!
//! Promises: both builds run the same rows in interleaved rounds, in alternating order, on the same
//! core; the printed ratio is the median of the ratios of the rounds. Never writes a document.

use std::path::Path;
use std::time::Duration;

use crate::load::Load;
use crate::peers::Site;
use crate::proxied::{CALLERS, Figures, HIGH, measure};
use crate::report::median;
use crate::server::Server;
use crate::upstream::{self, Behaviour};

/// Odd, so that a median is a round that was measured; with two builds, four rows and one second
/// each, the run takes under two minutes.
const ROUNDS: usize = 11;

/// How long one server is loaded in one round.
const SPAN: Duration = Duration::from_secs(1);

/// The most bytes of the headers of a response.
const HEAD: usize = 16 * 1_024;

const CACHE_LINES: &str = "cache: { mode: rfc9111 }\n";

/// One kind of call: its response, whether it may be cached, and the ledger.
struct Row {
    name: &'static str,
    bytes: usize,
    cache_control: Option<&'static str>,
    on_disk: bool,
}

const PROXIED: Row = Row {
    name: "proxied GET 1 KiB",
    bytes: 1_024,
    cache_control: None,
    on_disk: false,
};

const HIT: Row = Row {
    name: "cache hit 1 KiB",
    cache_control: Some("public, max-age=86400"),
    ..PROXIED
};

const ROWS: [Row; 4] = [
    PROXIED,
    Row {
        name: "proxied GET 1 KiB, SQLite",
        on_disk: true,
        ..PROXIED
    },
    HIT,
    Row {
        name: "cache hit 64 KiB",
        bytes: 64 * 1_024,
        ..HIT
    },
];

/// Measures `site.ours` beside the program `before` and prints a table.
pub async fn run(site: &Site, before: &Path) -> anyhow::Result<()> {
    println!("| row | before | after | CPU after / before | before | after | p99 before | after |");
    println!("|---|---|---|---|---|---|---|---|");
    for row in &ROWS {
        let behaviour = Behaviour {
            bytes: row.bytes,
            cache_control: row.cache_control,
            ..Behaviour::PLAIN
        };
        let (upstream, _log) = upstream::start(behaviour).await?;
        let after = site.with_upstream(upstream);
        let mut former = after.clone();
        former.ours = before.canonicalize()?;
        let servers = [start(&former, "before", row)?, start(&after, "after", row)?];
        print(row.name, &rounds(&servers, row).await?);
    }
    Ok(())
}

fn start(site: &Site, name: &'static str, row: &Row) -> anyhow::Result<Server> {
    let store = match row.on_disk {
        true => format!("sqlite:{}", site.fresh(&format!("ledger-{name}"))?),
        false => "memory:".to_owned(),
    };
    site.tollgate(name, &store, HIGH, CACHE_LINES)
}

/// The rounds of both builds; the first one warms up.
async fn rounds(servers: &[Server; 2], row: &Row) -> anyhow::Result<[Vec<Figures>; 2]> {
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for build in order {
            let load = Load {
                connections: CALLERS,
                span: SPAN,
                room: row.bytes + HEAD,
                different: row.cache_control.is_none(),
            };
            let figures = measure(&servers[build], load).await?;
            if round > 0 {
                rounds[build].push(figures);
            }
        }
    }
    Ok(rounds)
}

fn print(name: &str, [before, after]: &[Vec<Figures>; 2]) {
    let of =
        |rounds: &[Figures], pick: fn(&Figures) -> f64| median(rounds.iter().map(pick).collect());
    let pairs = before.iter().zip(after);
    let ratio = median(
        pairs
            .map(|(before, after)| after.micros / before.micros)
            .collect(),
    );
    println!(
        "| {name} | {:.1} µs | {:.1} µs | {ratio:.3} | {:.1} k/s | {:.1} k/s | {:.2} ms | {:.2} ms |",
        of(before, |figures| figures.micros),
        of(after, |figures| figures.micros),
        of(before, |figures| figures.rate / 1e3),
        of(after, |figures| figures.rate / 1e3),
        of(before, |figures| figures.p99 / 1e3),
        of(after, |figures| figures.p99 / 1e3),
    );
}
