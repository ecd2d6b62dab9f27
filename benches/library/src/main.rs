//! `cargo run --release --manifest-path benches/library/Cargo.toml -- --out FILE`
//!
//! What a governed call costs above the call itself: the reqwest client and the tower layer beside
//! reqwest-ratelimit with governor and tower's own `RateLimit`, in one run, and writes the table to
//! FILE between the markers `<!-- library:begin -->` and `<!-- library:end -->`. `--quick` makes fewer
//! calls (for trying, not for publishing).
//!
//! Promises: every subject makes the same calls, one at a time, in interleaved rounds. Figures are CPU
//! time of this process per call, medians of the rounds; for reqwest the server that responds is in
//! another process. No limit is ever reached: the figures are the price of being limited, not of waiting.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks")]

mod clients;
mod server;
mod services;

use std::path::{Path, PathBuf};

use anyhow::Context;

/// How much work to spend.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    /// Calls of a round without sockets, and with.
    plain: u64,
    sockets: u64,
}

/// A subject and its CPU time per call in each round, in nanoseconds.
pub struct Row {
    pub name: &'static str,
    pub rounds: Vec<f64>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["--server"] {
        return server::serve().await;
    }
    let mut effort = Effort {
        rounds: 9,
        plain: 100_000,
        sockets: 5_000,
    };
    let mut out: Option<PathBuf> = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" => out = Some(words.next().context("--out FILE")?.into()),
            "--quick" => {
                effort = Effort {
                    rounds: 3,
                    plain: 10_000,
                    sockets: 500,
                }
            }
            _ => anyhow::bail!("use --out FILE, --quick"),
        }
    }
    let services = services::measure(effort).await?;
    let clients = clients::measure(effort).await?;
    let text = format!(
        "{}\n{}",
        table("tower service that responds at once", &services),
        table("reqwest, HTTP/1.1 over loopback", &clients)
    );
    println!("{text}");
    match out {
        Some(out) => place(&out, &text),
        None => Ok(()),
    }
}

/// CPU time of this process in nanoseconds.
pub fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The first row is the call without any limit.
fn table(title: &str, rows: &[Row]) -> String {
    let bare = rows.first().map_or(0.0, |row| median(&row.rounds));
    let mut text = format!("| {title} | µs CPU per call | above the bare call |\n|---|---|---|\n");
    for row in rows {
        let all = median(&row.rounds);
        let above = (all - bare) / 1e3;
        text += &format!("| {} | {:.2} | {above:.2} |\n", row.name, all / 1e3);
    }
    text
}

/// Writes `text` between the markers of the file.
fn place(path: &Path, text: &str) -> anyhow::Result<()> {
    const BEGIN: &str = "<!-- library:begin -->";
    const END: &str = "<!-- library:end -->";
    let page = std::fs::read_to_string(path)?;
    let (before, rest) = page.split_once(BEGIN).context("no begin marker")?;
    let (_, after) = rest.split_once(END).context("no end marker")?;
    std::fs::write(path, format!("{before}{BEGIN}\n{text}\n{END}{after}"))?;
    Ok(())
}
