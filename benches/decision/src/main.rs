//! `cargo run --release --manifest-path benches/decision/Cargo.toml -- --out FILE`
//!
//! Measures every row of the decision engine's table side by side with the peers, prints it as
//! markdown and writes it to FILE: between the markers `<!-- decision:begin -->` and
//! `<!-- decision:end -->` if FILE has them, else as the whole file. `--only PART` measures one part and
//! leaves the results of the others, `--processes N` sets how often, and `--quick` takes fewer rounds
//! (for trying, not for publishing).
//!
//! Promises: every figure is CPU time or a ratio taken in interleaved rounds, because machines
//! are shared. Every part is measured in several processes of its own, so that no figure
//! depends on what ran before. Goals that are missed are printed as missed.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks")]

mod growth;
mod heap;
mod hot;
mod many;
mod measure;
mod report;
mod stall;
mod subjects;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

/// How much work to spend.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Interleaved rounds per row.
    pub rounds: usize,
    /// Decisions per thread and round on one key.
    pub hot: u64,
    /// Decisions per thread and round on a million keys.
    pub cold: u64,
    /// Keys of the largest point of the growth curve.
    pub keys_max: u64,
}

/// One part of the report.
type Measured = fn(Effort, &mut report::Report);

/// The parts by name, in the order of the report.
const PARTS: [(&str, Measured); 7] = [
    ("hot", hot::run),
    ("numbers", many::numbers),
    ("strings", many::strings),
    ("snapshot", many::snapshot),
    ("sweep", stall::run),
    ("others", hot::others),
    ("growth", growth::run),
];

/// Processes per part: where the system puts a process's memory moves a figure by a tenth.
const PROCESSES: usize = 5;

/// The arguments of the command line.
struct Args {
    out: Option<PathBuf>,
    only: Option<String>,
    quick: bool,
    processes: usize,
    /// Measure this part here, and print the results for the parent.
    child: Option<String>,
}

fn main() -> io::Result<()> {
    let Some(args) = parse_args(std::env::args().skip(1)) else {
        eprintln!("use --out FILE, --only PART, --processes N (above 0), --quick; parts are:");
        PARTS.iter().for_each(|(name, _)| eprintln!("  {name}"));
        std::process::exit(2);
    };
    match &args.child {
        Some(part) => child(part, args.quick),
        None => parent(&args),
    }
}

fn parse_args(mut arguments: impl Iterator<Item = String>) -> Option<Args> {
    let mut args = Args {
        out: None,
        only: None,
        quick: false,
        processes: PROCESSES,
        child: None,
    };
    let part = |name: &String| PARTS.iter().any(|(part, _)| part == name);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--out" => args.out = Some(arguments.next()?.into()),
            "--only" => args.only = Some(arguments.next().filter(part)?),
            "--child" => args.child = Some(arguments.next().filter(part)?),
            "--quick" => args.quick = true,
            "--processes" => args.processes = arguments.next()?.parse().ok().filter(|&n| n > 0)?,
            _ => return None,
        }
    }
    Some(args)
}

/// Measures one part in this process.
fn child(part: &str, quick: bool) -> io::Result<()> {
    let effort = Effort {
        rounds: if quick { 41 } else { 101 },
        hot: 10_000,
        cold: 5_000,
        keys_max: if quick { 1_000_000 } else { 10_000_000 },
    };
    let mut report = report::Report::default();
    for (_, run) in PARTS.iter().filter(|(name, _)| *name == part) {
        run(effort, &mut report);
    }
    Ok(serde_json::to_writer(io::stdout(), &report)?)
}

/// Measures every part, each time in a new process.
fn parent(args: &Args) -> io::Result<()> {
    let mut parts = Vec::new();
    for (name, _) in PARTS {
        let wanted = args.only.as_deref().is_none_or(|only| only == name);
        let mut part = match &args.out {
            Some(out) if !wanted => report::Part::load(out, name)?,
            _ => report::Part::default(),
        };
        if wanted {
            for _ in 0..args.processes {
                part.add(measured(name, args.quick)?);
            }
            if let Some(out) = &args.out {
                part.save(out, name)?;
            }
        }
        if !part.processes.is_empty() {
            parts.push(part);
        }
    }
    let text = report::markdown(&parts);
    io::stdout().write_all(text.as_bytes())?;
    if let Some(path) = &args.out {
        std::fs::write(path, placed(path, &text))?;
    }
    Ok(())
}

/// The results of a new process.
fn measured(part: &str, quick: bool) -> io::Result<report::Report> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--child", part]).stderr(Stdio::inherit());
    if quick {
        child.arg("--quick");
    }
    let output = child.output()?;
    if !output.status.success() {
        let why = format!(
            "the process that measured `{part}` failed: {}",
            output.status
        );
        return Err(io::Error::other(why));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// `text` between the markers of the file at `path`, or alone if there are none.
fn placed(path: &Path, text: &str) -> String {
    const BEGIN: &str = "<!-- decision:begin -->";
    const END: &str = "<!-- decision:end -->";
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let parts = old
        .split_once(BEGIN)
        .and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    match parts {
        Some((head, tail)) => format!("{head}{BEGIN}\n\n{text}\n{END}{tail}"),
        None => text.to_owned(),
    }
}
