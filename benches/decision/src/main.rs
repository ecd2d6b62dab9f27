//! `cargo run --release --manifest-path benches/decision/Cargo.toml -- --out FILE`
//!
//! Runs every row of the decision engine's table side by side with the peers, prints it as
//! markdown and writes it to FILE: between the markers `<!-- decision:begin -->` and
//! `<!-- decision:end -->` if FILE has them, else as the whole file. `--quick` takes fewer rounds and `--only PART` one part (for
//! trying, not for publishing).
//!
//! Promises: every figure is CPU time or a ratio taken in interleaved rounds, because machines
//! are shared. Goals that are missed are printed as missed.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads clocks")]

mod growth;
mod heap;
mod hot;
mod many;
mod measure;
mod pace;
mod report;
mod stall;
mod subjects;

use std::io::Write;

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
type Part = fn(Effort, &mut report::Report);

/// The parts by name, in the order of the report.
const PARTS: [(&str, Part); 8] = [
    ("hot", hot::run),
    ("numbers", many::numbers),
    ("strings", many::strings),
    ("snapshot", many::snapshot),
    ("sweep", stall::run),
    ("pace", pace::run),
    ("others", hot::others),
    ("growth", growth::run),
];

fn main() -> std::io::Result<()> {
    let (mut out, mut only) = (None, None);
    let mut effort = Effort {
        rounds: 201,
        hot: 10_000,
        cold: 5_000,
        keys_max: 10_000_000,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--out" => out = arguments.next(),
            "--quick" => {
                effort = Effort {
                    rounds: 41,
                    keys_max: 1_000_000,
                    ..effort
                };
            }
            "--only" => only = arguments.next(),
            other => {
                eprintln!("unknown argument `{other}`; use --out FILE, --quick, --only PART");
                std::process::exit(2);
            }
        }
    }
    let mut report = report::Report::default();
    for (name, run) in PARTS {
        if only.as_deref().is_none_or(|only| only == name) {
            run(effort, &mut report);
        }
    }
    let text = report.markdown();
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some(path) = out {
        std::fs::write(&path, placed(&path, &text))?;
    }
    Ok(())
}

/// `text` between the markers of the file at `path`, or alone if there are none.
fn placed(path: &str, text: &str) -> String {
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
