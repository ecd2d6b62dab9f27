//! `cargo run --release --manifest-path benches/gateway/Cargo.toml --target-dir target/benches -- --out docs/benchmarks.md`
//!
//! Compares our gateway with nginx, HAProxy, Envoy and a bare proxy, and with the client libraries of
//! npm, PyPI and the crate registry, and writes the results into the document. `--only a,b` runs some
//! parts and leaves the rest of the document; `--assemble` measures nothing and writes the stored
//! results; `--quick` is for trying, not for publishing. Run it from the root of the repository, after
//! `cargo build --release -p tollgate-cli -p tollgate-sim`. `--before FILE` measures nothing but our own
//! program beside an older build of it, and prints a table.
//!
//! Promises: servers on one core, callers and upstream on another; interleaved rounds, medians;
//! goals that are missed are printed as missed. Everything that was started is stopped by its id.

mod cooling;
mod floor;
mod hits;
mod identical;
mod install;
mod limit;
mod load;
mod pace;
mod paired;
mod peers;
mod plot;
mod proxied;
mod quota;
mod report;
mod server;
mod upstream;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

/// How much work to spend.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Interleaved rounds of the proxied rows.
    pub rounds: usize,
    /// How long one server is loaded in one round.
    pub span: Duration,
    pub limit_seconds: u64,
    /// Seconds of an overload.
    pub seconds: u64,
}

const FULL: Effort = Effort {
    rounds: 5,
    span: Duration::from_millis(1_500),
    limit_seconds: 10,
    seconds: 30,
};

const QUICK: Effort = Effort {
    rounds: 2,
    span: Duration::from_millis(500),
    limit_seconds: 4,
    seconds: 12,
};

/// The parts by name, in the order of the document.
const GATEWAY: [&str; 3] = ["proxied", "hits", "limit"];
const QUOTA: [&str; 14] = [
    "w1-s", "w1-t", "w1-wan", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9", "cooling", "pace",
    "all",
];
/// The parts that need the servers of the speed rows.
const SERVERS: [&str; 5] = ["proxied", "hits", "limit", "w8", "cooling"];

/// The part that needs no other program.
const PACE: &str = "pace";

/// No part: only assemble the stored results.
const NOTHING: &str = "(nothing)";

struct Args {
    only: Vec<String>,
    out: Option<PathBuf>,
    effort: Effort,
    /// An older build of `tollgate` to compare with.
    before: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["bare", listen, upstream] => floor::run(listen.parse()?, upstream.parse()?),
        ["constant", listen, bytes] => floor::constant(listen.parse()?, bytes.parse()?),
        ["client", tool, file] => quota::client::run(tool, file),
        ["pinned", ..] => run(&parse_args(&words[1..])?),
        _ => {
            // Callers and upstream run in this process, on their own core.
            parse_args(&words)?;
            let status = std::process::Command::new("taskset")
                .args(["-c", server::CALLER_CORE])
                .arg(std::env::current_exe()?)
                .arg("pinned")
                .args(&arguments)
                .status()?;
            std::process::exit(status.code().unwrap_or(1));
        }
    }
}

fn parse_args(words: &[&str]) -> anyhow::Result<Args> {
    let mut args = Args {
        only: Vec::new(),
        out: None,
        effort: FULL,
        before: None,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--quick" => args.effort = QUICK,
            "--out" => args.out = words.next().map(PathBuf::from),
            "--before" => args.before = words.next().map(PathBuf::from),
            "--assemble" => args.only = vec![NOTHING.to_owned()],
            "--only" => {
                let names = words.next().context("--only needs the names of parts")?;
                args.only = names.split(',').map(str::to_owned).collect();
            }
            other => bail!(
                "unknown argument `{other}`; use --out FILE, --quick, --only PART,PART, --assemble, --before FILE"
            ),
        }
    }
    let known = |name: &String| {
        let mut parts = GATEWAY.iter().chain(&QUOTA);
        name == NOTHING || parts.any(|part| part == name)
    };
    if let Some(wrong) = args.only.iter().find(|name| !known(name)) {
        bail!("there is no part `{wrong}`; there are {GATEWAY:?} and {QUOTA:?}");
    }
    Ok(args)
}

fn run(args: &Args) -> anyhow::Result<()> {
    let wants = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let folder = PathBuf::from("target/bench-gateway");
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let ours = built("tollgate")?;
    if let Some(before) = &args.before {
        let site = peers::Site {
            envoy: PathBuf::new(),
            folder,
            ours,
            upstream: "127.0.0.1:0".parse()?,
        };
        return local(paired::run(&site, before));
    }
    let parts = GATEWAY.into_iter().chain(QUOTA);
    let parts = parts.filter(|name| wants(name) && *name != PACE);
    let (served, governed): (Vec<&str>, Vec<&str>) = parts.partition(|name| SERVERS.contains(name));
    let save = |name: &str, part: report::Part| match &args.out {
        Some(out) => part.save(out, name),
        None => Ok(()),
    };
    if !served.is_empty() {
        install::servers()?;
        let site = peers::Site {
            envoy: install::envoy(&folder)?,
            folder: folder.clone(),
            ours: ours.clone(),
            upstream: "127.0.0.1:0".parse()?,
        };
        for name in served {
            save(name, serve(&site, name, args.effort)?)?;
        }
    }
    if wants(PACE) {
        save(PACE, pace::run()?)?;
    }
    if !governed.is_empty() {
        let tools = quota::Tools {
            python: install::python(&folder)?,
            node_modules: install::npm(&folder)?,
            scripts: PathBuf::from("benches/gateway/peers").canonicalize()?,
            sim: built("tollgate-sim")?,
            ours,
            folder: folder.clone(),
        };
        for name in governed {
            save(name, tools.part(name, args.effort)?)?;
        }
    }
    let groups = BTreeMap::from([("gateway", GATEWAY.to_vec()), ("quota", QUOTA.to_vec())]);
    match &args.out {
        Some(out) => report::assemble(&groups, out),
        None => Ok(()),
    }
}

/// A part with servers in front of an upstream of this process, on one thread with it.
fn serve(site: &peers::Site, name: &str, effort: Effort) -> anyhow::Result<report::Part> {
    local(async {
        let (upstream, log) = upstream::start(upstream::Behaviour::PLAIN).await?;
        let site = site.with_upstream(upstream);
        match name {
            "proxied" => proxied::run(&site, effort).await,
            "hits" => hits::run(&site, effort).await,
            "limit" => limit::run(&site, &log, effort).await,
            "w8" => identical::run(&site, effort).await,
            "cooling" => cooling::run(&site).await,
            other => bail!("there is no part `{other}`"),
        }
    })
}

/// Runs `work` on this thread, with the tasks that it spawns.
fn local<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// A program of the workspace.
fn built(name: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new("target/release").join(name);
    path.canonicalize().with_context(|| {
        format!("target/release/{name} is missing; run `cargo build --release -p tollgate-cli -p tollgate-sim`")
    })
}
