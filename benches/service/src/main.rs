//! `cargo run --release --manifest-path benches/service/Cargo.toml -- --out FILE`
//!
//! Measures the decision service side by side with its peers and with floors that always reply the
//! same, and writes the tables to FILE between the markers `<!-- service:begin -->` and
//! `<!-- service:end -->`. `--quick` measures each
//! figure for a moment (for trying, not for publishing), and `--without-peers` leaves out what must be
//! installed.
//!
//! Promises: every server runs alone on one core, the callers on another. Figures are CPU time of the
//! server per decision, medians of interleaved rounds. Goals that are missed are printed as missed.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks")]

mod disk;
mod floor;
mod floor_grpc;
mod load;
mod peers;
mod process;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use load::{Grpc, Http, Load, Resp};
use process::Server;
use table::{Figure, Tables};

/// How much work to spend.
#[derive(Clone, Copy)]
pub struct Effort {
    rounds: usize,
    /// How long each figure of a round is measured.
    each: Duration,
    keys_max: u64,
}

struct Args {
    out: Option<PathBuf>,
    tollgate: PathBuf,
    effort: Effort,
    with_peers: bool,
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [floor, kind, port] = words.as_slice()
        && floor == "--floor"
    {
        return floor::serve(kind, port.parse()?);
    }
    let args = parse(&words)?;
    process::pin_callers()?;
    let mut tables = Tables::default();
    resp(&args, &mut tables)?;
    http(&args, &mut tables)?;
    grpc(&args, &mut tables)?;
    durable(&args, &mut tables)?;
    let text = tables.markdown();
    println!("{text}");
    match &args.out {
        Some(out) => table::place(out, &text),
        None => Ok(()),
    }
}

fn parse(words: &[String]) -> anyhow::Result<Args> {
    let mut args = Args {
        out: None,
        tollgate: "target/release/tollgate".into(),
        effort: Effort {
            rounds: 5,
            each: Duration::from_millis(700),
            keys_max: 1_000_000,
        },
        with_peers: true,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" => args.out = Some(words.next().context("--out FILE")?.into()),
            "--tollgate" => args.tollgate = words.next().context("--tollgate FILE")?.into(),
            "--without-peers" => args.with_peers = false,
            "--quick" => {
                args.effort = Effort {
                    rounds: 1,
                    each: Duration::from_millis(50),
                    keys_max: 100_000,
                }
            }
            _ => anyhow::bail!("use --out FILE, --tollgate FILE, --quick, --without-peers"),
        }
    }
    Ok(args)
}

/// The Redis protocol: one at a time and in pipelines, for few and for many keys.
fn resp(args: &Args, tables: &mut Tables) -> anyhow::Result<()> {
    let effort = args.effort;
    let mut servers = vec![Server::floor("resp")?, tollgate(args, "memory:")?];
    if args.with_peers {
        servers.extend(peers::resp()?);
    }
    let empty: Vec<u64> = servers
        .iter()
        .map(Server::memory)
        .collect::<Result<_, _>>()?;
    for keys in [1, 1_000, effort.keys_max] {
        for server in &servers {
            Resp::new(server, keys, 64, 0)?.every_key()?;
        }
        for pipeline in [1, 16] {
            let mut figures = vec![Vec::new(); servers.len()];
            for round in 0..effort.rounds {
                for (server, figures) in servers.iter().zip(&mut figures) {
                    let mut load = Resp::new(server, keys, pipeline, round)?;
                    figures.push(measure(server, &mut load, effort.each)?);
                }
            }
            tables.resp(keys, pipeline, &servers, &figures);
        }
    }
    let full: Vec<u64> = servers
        .iter()
        .map(Server::memory)
        .collect::<Result<_, _>>()?;
    let grown = full
        .iter()
        .zip(&empty)
        .map(|(full, empty)| full.saturating_sub(*empty));
    let per_key: Vec<f64> = grown
        .map(|bytes| bytes as f64 / effort.keys_max as f64)
        .collect();
    tables.memory(&servers, &per_key);
    Ok(())
}

/// HTTP with JSON: tokens of a guard. The keys of each row are there before.
fn http(args: &Args, tables: &mut Tables) -> anyhow::Result<()> {
    let effort = args.effort;
    let mut servers = vec![Server::floor("http")?, tollgate(args, "memory:")?];
    if args.with_peers {
        servers.extend(peers::http());
    }
    let ours = &servers[1];
    let empty = ours.memory()?;
    for keys in [1, 1_000, effort.keys_max] {
        // The floor, the first, has no keys. Ours, the second, last: its tokens come back.
        for peer in servers.iter().skip(2) {
            Http::new(peer, keys, 0)?.every_key()?;
        }
        load::fill_guard(ours, keys)?;
        let mut figures = vec![Vec::new(); servers.len()];
        for round in 0..effort.rounds {
            for (server, figures) in servers.iter().zip(&mut figures) {
                let mut load = Http::new(server, keys, round)?;
                figures.push(measure(server, &mut load, effort.each)?);
            }
        }
        tables.http(keys, &servers, &figures);
    }
    let grown = ours.memory()?.saturating_sub(empty);
    tables.guard_memory(grown as f64 / effort.keys_max as f64);
    Ok(())
}

/// Envoy's rate limit service: one descriptor, one guard. The keys of each row are there before.
fn grpc(args: &Args, tables: &mut Tables) -> anyhow::Result<()> {
    let effort = args.effort;
    let servers = [
        Server::floor("grpc")?,
        tollgate(args, "memory:")?,
        Server::floor("http2")?,
    ];
    for keys in [1, 1_000, effort.keys_max] {
        load::fill_guard(&servers[1], keys)?;
        let mut figures = vec![Vec::new(); servers.len()];
        for round in 0..effort.rounds {
            for (server, figures) in servers.iter().zip(&mut figures) {
                let mut load = Grpc::new(server, keys, round)?;
                figures.push(measure(server, &mut load, effort.each)?);
            }
        }
        tables.grpc(keys, &servers, &figures);
    }
    Ok(())
}

/// Permits that are on the disk before the reply: pipelines of many callers share a transaction. Beside it
/// a Redis that syncs each batch of commands, and what the disk itself can do.
fn durable(args: &Args, tables: &mut Tables) -> anyhow::Result<()> {
    let folder = disk::Folder::new()?;
    let server = tollgate(args, &format!("sqlite:{}", folder.join("state").display()))?;
    let redis = args.with_peers.then(|| peers::syncing_redis(&folder));
    let redis = redis.transpose().unwrap_or_else(|error| {
        eprintln!("Redis that syncs is left out: {error:#}");
        None
    });
    let (mut figures, mut redis_figures, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.effort.rounds {
        syncs.push(disk::syncs_per_second(&folder, args.effort.each)?);
        let mut load = load::Permits::new(&server)?;
        figures.push(measure(&server, &mut load, args.effort.each)?);
        if let Some(redis) = &redis {
            let mut load = load::Increments::new(redis)?;
            redis_figures.push(measure(redis, &mut load, args.effort.each)?);
        }
    }
    tables.durable(&figures, &redis_figures, &syncs);
    Ok(())
}

/// CPU time of the server per decision, and decisions per second.
fn measure(server: &Server, load: &mut impl Load, each: Duration) -> anyhow::Result<Figure> {
    /// Decisions between two looks at the clock: some milliseconds.
    const SLICE: u64 = 1_000;
    load.run(SLICE)?;
    let (before, began) = (server.cpu_nanos()?, std::time::Instant::now());
    let mut made = 0;
    while began.elapsed() < each {
        made += load.run(SLICE)?;
    }
    let (after, took) = (server.cpu_nanos()?, began.elapsed());
    let made = made as f64;
    Ok(Figure {
        micros: (after - before) as f64 / 1_000.0 / made,
        per_second: made / took.as_secs_f64(),
    })
}

fn tollgate(args: &Args, store: &str) -> anyhow::Result<Server> {
    let folder = std::env::temp_dir().join(format!("tollgate-bench-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (config, provider) = (folder.join("tollgate.yaml"), folder.join("x.yaml"));
    // A token takes 20 s, longer than a row: a key whose bucket is full again would be swept.
    let guards = "guards: { api: { limit: 3, period: 1m, burst: 1500000, by: name } }\n";
    std::fs::write(&config, guards)?;
    let limit = "{ limit: 1000000000, period: 1h, algorithm: token-bucket, burst: 1000000000 }";
    std::fs::write(
        &provider,
        format!(
            "name: x\ndomain: api.example.org\nlimits:\n  - {limit}\nqueue: {{ max: 100000 }}\n"
        ),
    )?;
    let resp = process::free_port()?;
    let admin = process::free_port()?;
    let grpc = process::free_port()?;
    let words = [
        "serve".to_owned(),
        "--config".to_owned(),
        config.display().to_string(),
        "--provider".to_owned(),
        provider.display().to_string(),
        "--listen".to_owned(),
        "127.0.0.1:0".to_owned(),
        "--admin".to_owned(),
        format!("127.0.0.1:{admin}"),
        "--resp".to_owned(),
        format!("127.0.0.1:{resp}"),
        "--grpc".to_owned(),
        format!("127.0.0.1:{grpc}"),
        "--store".to_owned(),
        store.to_owned(),
    ];
    let mut server = Server::start("Tollgate", &args.tollgate, &words, resp)?;
    server.http_port = admin;
    server.grpc_port = grpc;
    Ok(server)
}
