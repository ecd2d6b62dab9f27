//! `cargo run --release --manifest-path benches/gateway/Cargo.toml --target-dir target/benches -- --out docs/benchmarks.md`
//!
//! Runs our gateway beside nginx, HAProxy, Envoy and a bare proxy, and beside the client libraries of
//! npm, PyPI and the crate registry, and puts what it found into the document. `--only a,b` runs some
//! parts, the rest of the document stays; `--assemble` measures nothing and writes what is there;
//! `--quick` is for trying, not for publishing. From the root of the repository, after `cargo build --release -p tollgate-cli -p tollgate-sim`.
//!
//! Promises: servers on one core, callers and upstream on another; interleaved rounds, medians; goals
//! that are missed are printed as missed. Everything that was started is stopped by its id.

mod floor;
mod install;
mod limit;
mod load;
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
const GATEWAY: [&str; 2] = ["proxied", "limit"];
const QUOTA: [&str; 9] = ["w1-s", "w1-t", "w1-wan", "w2", "w3", "w4", "w5", "w6", "w7"];

/// No part: only put together what was measured before.
const NOTHING: &str = "(nothing)";

struct Asked {
    only: Vec<String>,
    out: Option<PathBuf>,
    effort: Effort,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["bare", listen, upstream] => floor::run(listen.parse()?, upstream.parse()?),
        ["client", tool, file] => quota::client::run(tool, file),
        ["pinned", ..] => run(&asked(&words[1..])?),
        _ => {
            // Callers and upstream have a core of their own: this process's.
            asked(&words)?;
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

fn asked(words: &[&str]) -> anyhow::Result<Asked> {
    let mut asked = Asked {
        only: Vec::new(),
        out: None,
        effort: FULL,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--quick" => asked.effort = QUICK,
            "--out" => asked.out = words.next().map(PathBuf::from),
            "--assemble" => asked.only = vec![NOTHING.to_owned()],
            "--only" => {
                let names = words.next().context("--only needs the names of parts")?;
                asked.only = names.split(',').map(str::to_owned).collect();
            }
            other => bail!(
                "unknown argument `{other}`; use --out FILE, --quick, --only PART,PART, --assemble"
            ),
        }
    }
    let known = |name: &String| {
        let mut parts = GATEWAY.iter().chain(&QUOTA);
        name == NOTHING || parts.any(|part| part == name)
    };
    if let Some(wrong) = asked.only.iter().find(|name| !known(name)) {
        bail!("there is no part `{wrong}`; there are {GATEWAY:?} and {QUOTA:?}");
    }
    Ok(asked)
}

fn run(asked: &Asked) -> anyhow::Result<()> {
    let wants = |name: &str| asked.only.is_empty() || asked.only.iter().any(|only| only == name);
    let folder = PathBuf::from("target/bench-gateway");
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let ours = built("tollgate")?;
    if GATEWAY.iter().any(|name| wants(name)) {
        let site = peers::Site {
            envoy: install::envoy(&folder)?,
            folder: folder.clone(),
            ours: ours.clone(),
            upstream: "127.0.0.1:0".parse()?,
        };
        gateway(site, &wants, asked.effort)?;
    }
    if QUOTA.iter().any(|name| wants(name)) {
        let tools = quota::Tools {
            python: install::python(&folder)?,
            node_modules: install::npm(&folder)?,
            scripts: PathBuf::from("benches/gateway/peers").canonicalize()?,
            sim: built("tollgate-sim")?,
            ours,
            folder: folder.clone(),
        };
        for name in QUOTA.into_iter().filter(|name| wants(name)) {
            tools.part(name, asked.effort)?.save(&folder, name)?;
        }
    }
    let groups = BTreeMap::from([("gateway", GATEWAY.to_vec()), ("quota", QUOTA.to_vec())]);
    match &asked.out {
        Some(out) => report::assemble(&folder, &groups, out),
        None => Ok(()),
    }
}

/// The speed rows, on one thread with their upstream.
fn gateway(
    mut site: peers::Site,
    wants: &impl Fn(&str) -> bool,
    effort: Effort,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let log = upstream::Log::default();
        site.upstream = upstream::start(log.clone()).await?;
        if wants("proxied") {
            proxied::run(&site, effort)
                .await?
                .save(&site.folder, "proxied")?;
        }
        if wants("limit") {
            limit::run(&site, &log, effort)
                .await?
                .save(&site.folder, "limit")?;
        }
        Ok(())
    })
}

/// A program of the workspace.
fn built(name: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new("target/release").join(name);
    path.canonicalize().with_context(|| {
        format!("target/release/{name} is missing; run `cargo build --release -p tollgate-cli -p tollgate-sim`")
    })
}
