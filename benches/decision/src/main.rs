//! `cargo run --release --manifest-path benches/decision/Cargo.toml -- --out FILE`
//!
//! Runs every row of the decision engine's table side by side with the peers, prints it as
//! markdown and writes it to FILE. `--quick` takes fewer rounds and `--only PART` one part (for
//! trying, not for publishing).
//!
//! Promises: every figure is CPU time or a ratio taken in interleaved rounds, because machines
//! are shared. Goals that are missed are printed as missed.

mod growth;
mod heap;
mod measure;
mod report;
mod rows;
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
const PARTS: [(&str, Part); 7] = [
    ("hot", rows::hot),
    ("numbers", rows::numbers),
    ("strings", rows::strings),
    ("snapshot", rows::snapshot),
    ("sweep", stall::run),
    ("together", rows::together),
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
        std::fs::write(path, text)?;
    }
    Ok(())
}
