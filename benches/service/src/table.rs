//! The tables: goals first, then all figures.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;

use crate::process::Server;

/// One round.
#[derive(Clone, Copy)]
pub struct Figure {
    /// CPU time of the server per decision.
    pub micros: f64,
    pub per_second: f64,
}

#[derive(Default)]
pub struct Tables {
    /// Tollgate's CPU time per call over gRPC with one key.
    grpc_one_key: Option<f64>,
    goals: String,
    rows: String,
}

impl Tables {
    pub fn resp(
        &mut self,
        keys: u64,
        pipeline: usize,
        servers: &[Server],
        figures: &[Vec<Figure>],
    ) {
        let what = format!("RESP, pipeline of {pipeline}, {keys} keys");
        self.figures(&what, servers, figures);
        let bar = match pipeline {
            1 => 1.20,
            _ => 2.7,
        };
        self.against_floor(&what, figures, bar);
        let cell = servers
            .iter()
            .position(|server| server.name == "redis-cell");
        if let Some(cell) = cell.filter(|_| pipeline > 1) {
            let ratio = ratio(&figures[cell], &figures[1]);
            self.goal(
                &format!("{what}: redis-cell's CPU time"),
                ratio,
                ">= 2",
                ratio >= 2.0,
            );
        }
    }

    pub fn memory(&mut self, servers: &[Server], per_key: &[f64]) {
        for (server, bytes) in servers.iter().zip(per_key) {
            let name = server.name;
            writeln!(self.rows, "| memory per key | {name} | {bytes:.0} B | |").expect("a String");
        }
        let ours = per_key[1];
        let goal = format!("memory per key: {ours:.0} B");
        self.goal(&goal, ours, "<= 110 B", ours <= 110.0);
    }

    /// The same goal: a key of a guard is a slot of the same table.
    pub fn guard_memory(&mut self, bytes: f64) {
        let what = "memory per key of a guard";
        writeln!(self.rows, "| {what} | Tollgate | {bytes:.0} B | |").expect("a String");
        self.goal(what, bytes, "<= 110 B", bytes <= 110.0);
    }

    pub fn http(&mut self, keys: u64, servers: &[Server], figures: &[Vec<Figure>]) {
        let what = format!("HTTP JSON, one guard, {keys} keys");
        self.figures(&what, servers, figures);
        self.against_floor(&what, figures, 1.18);
    }

    /// The goal of this surface is also that it is flat in the number of keys.
    pub fn grpc(&mut self, keys: u64, servers: &[Server], figures: &[Vec<Figure>]) {
        let what = format!("Envoy RLS gRPC, one guard, {keys} keys");
        self.figures(&what, servers, figures);
        self.against_floor(&what, figures, 1.15);
        let ours = middle(figures[1].iter().map(|figure| figure.micros).collect());
        let one_key = *self.grpc_one_key.get_or_insert(ours);
        if keys > 1 {
            let growth = ours / one_key;
            let what = format!("Envoy RLS gRPC, {keys} keys: CPU time of one key's");
            // Keys that do not fit into the CPU's caches cost some misses.
            self.goal(&what, growth, "<= 1.1x (flat)", growth <= 1.1);
        }
    }

    pub fn durable(&mut self, figures: &[Figure], redis: &[Figure], syncs: &[f64]) {
        let what = "TG.ACQUIRE and TG.RELEASE on SQLite";
        let rate = self.durable_row(what, "Tollgate", figures);
        if !redis.is_empty() {
            self.durable_row("INCR, appendfsync always", "Redis", redis);
        }
        let syncs = middle(syncs.to_vec());
        writeln!(
            self.rows,
            "| write and fdatasync, one after the other | the disk | | {syncs:.0}/s |"
        )
        .expect("a String");
        self.goal(
            &format!("{what}, permits per second"),
            rate,
            ">= 60000",
            rate >= 60_000.0,
        );
    }

    /// The median rate.
    fn durable_row(&mut self, what: &str, who: &str, figures: &[Figure]) -> f64 {
        let rate = middle(figures.iter().map(|figure| figure.per_second).collect());
        let micros = middle(figures.iter().map(|figure| figure.micros).collect());
        writeln!(
            self.rows,
            "| {what} | {who} | {micros:.2} µs | {rate:.0}/s |"
        )
        .expect("a String");
        rate
    }

    fn figures(&mut self, what: &str, servers: &[Server], figures: &[Vec<Figure>]) {
        for (server, figures) in servers.iter().zip(figures) {
            let micros = middle(figures.iter().map(|figure| figure.micros).collect());
            let rate = middle(figures.iter().map(|figure| figure.per_second).collect());
            let name = server.name;
            eprintln!("{what}: {name} {micros:.2} µs, {rate:.0}/s");
            writeln!(
                self.rows,
                "| {what} | {name} | {micros:.2} µs | {rate:.0}/s |"
            )
            .expect("a String");
        }
    }

    /// The floor is the first, Tollgate the second.
    fn against_floor(&mut self, what: &str, figures: &[Vec<Figure>], bar: f64) {
        let ratio = ratio(&figures[1], &figures[0]);
        let goal = format!("<= {bar}x");
        self.goal(
            &format!("{what}: CPU time of the floor's"),
            ratio,
            &goal,
            ratio <= bar,
        );
    }

    fn goal(&mut self, what: &str, value: f64, goal: &str, is_reached: bool) {
        let verdict = if is_reached { "reached" } else { "**missed**" };
        eprintln!("{what}: {value:.2} (goal {goal}) {verdict}");
        writeln!(self.goals, "| {what} | {value:.2} | {goal} | {verdict} |").expect("a String");
    }

    pub fn markdown(&self) -> String {
        format!(
            "Every server runs alone on one core, 32 connections ask from another. CPU time is the server's, per decision; \
             a ratio is the median over interleaved rounds. The floors always reply the same, with the same library for sockets; \
             that of gRPC is tonic, and hyper's HTTP/2 without a gRPC library stands beside it. \
             Limitador was not measured. Each round asks for other keys, all of which exist before.\n\n\
             | measure | result | goal | |\n|---|---|---|---|\n{}\n\
             | measure | server | CPU per decision | decisions |\n|---|---|---|---|\n{}",
            self.goals, self.rows
        )
    }
}

/// The median of the ratios of rounds.
fn ratio(of: &[Figure], to: &[Figure]) -> f64 {
    middle(
        of.iter()
            .zip(to)
            .map(|(of, to)| of.micros / to.micros)
            .collect(),
    )
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Writes the text between its markers.
pub fn place(out: &Path, text: &str) -> anyhow::Result<()> {
    let (begin, end) = ("<!-- service:begin -->", "<!-- service:end -->");
    let document = std::fs::read_to_string(out)?;
    let (before, rest) = document.split_once(begin).context("no service:begin")?;
    let (_, after) = rest.split_once(end).context("no service:end")?;
    Ok(std::fs::write(
        out,
        format!("{before}{begin}\n{text}{end}{after}"),
    )?)
}
