//! The gate on the cost of decisions: instructions, counted by valgrind, against a stored baseline.
//!
//! Time depends on the machine and its neighbours; instructions do not. The test runs itself once
//! per row under callgrind, which counts only inside the row's function, and compares the count
//! per decision with `tests/instructions.txt`. It speaks of the dev profile, in which tests
//! are built; the release figures are in `docs/benchmarks.md`.

use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tollgate_guard::{Ask, GuardPlan, GuardTable, Seed, Tick};

use crate::behaviour::{DAY, MINUTE, SECOND, limit};

/// Tells the child which row to run, and the parent (as `write`) to write the counts.
const VARIABLE: &str = "TOLLGATE_INSTRUCTIONS";

/// Name of the test below, for the child.
const TEST: &str = "instructions::a_decision_costs_no_more_instructions_than_it_did";

/// Decisions per row: enough that the few around the loop do not show.
const COUNT: u64 = 10_000;

/// A row may cost this many percent more than the baseline: another C library's `memcpy`, another
/// patch release of the compiler and other code of this crate, which moves what is inlined where
/// (5 % were seen), stay below it; a lost optimisation does not. As many percent less must be written
/// down, or the gate would let them be lost again.
const TOLERANCE: u64 = 8;

/// A row: the name of its function, and the function.
type Row = (&'static str, fn(&Bench));

/// The counted rows.
const ROWS: [Row; 8] = [
    ("row_known_key_one_limit", row_known_key_one_limit),
    ("row_known_key_three_limits", row_known_key_three_limits),
    ("row_known_key_with_parts", row_known_key_with_parts),
    ("row_name_of_32_characters", row_name_of_32_characters),
    ("row_rejection", row_rejection),
    ("row_three_keys_as_one", row_three_keys_as_one),
    ("row_new_key", row_new_key),
    ("row_sweep", row_sweep),
];

#[test]
fn a_decision_costs_no_more_instructions_than_it_did() {
    match std::env::var(VARIABLE).ok().as_deref() {
        Some("write") => {
            std::fs::write(baseline(), counted()).expect("the baseline can be written");
        }
        Some(name) => {
            let row = ROWS
                .iter()
                .find(|(row, _)| *row == name)
                .expect("a row of this file");
            row.1(&Bench::new());
        }
        None => compare(&counted()),
    }
}

fn baseline() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.txt")
}

/// `name count` per line.
fn counted() -> String {
    let mut lines = String::new();
    for (name, _) in ROWS {
        writeln!(lines, "{name} {}", count(name) / COUNT).expect("a String can be written to");
    }
    lines
}

fn compare(counted: &str) {
    let kept = std::fs::read_to_string(baseline()).expect("the baseline is in the repository");
    let number = |lines: &str, name: &str| -> Option<u64> {
        lines
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let mut faults = String::new();
    for (name, _) in ROWS {
        let now = number(counted, name).expect("every row was counted");
        let before = number(&kept, name).unwrap_or(0);
        if now.abs_diff(before) * 100 > before * TOLERANCE {
            writeln!(
                faults,
                "{name}: {before} -> {now} instructions per decision"
            )
            .expect("a String can be written to");
        }
    }
    assert!(
        faults.is_empty(),
        "the cost of guard decisions changed by more than {TOLERANCE} %:\n{faults}\
         If that is meant, keep it: {VARIABLE}=write cargo test -p tollgate instructions"
    );
}

/// Instructions inside the function called `name`, counted in a child.
fn count(name: &str) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{name}*"))
        .arg(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", TEST])
        .env(VARIABLE, name)
        .output()
        .expect("valgrind is missing; install it (Debian: `apt-get install valgrind`)");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "row {name} failed under valgrind:\n{said}"
    );
    said.lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
        .unwrap_or_else(|| panic!("valgrind counted nothing for {name}:\n{said}"))
}

/// A table with some thousand keys, and plans.
struct Bench {
    table: GuardTable,
    one: GuardPlan,
    three: GuardPlan,
    parts: GuardPlan,
    empty: GuardPlan,
}

impl Bench {
    fn new() -> Bench {
        let table = GuardTable::new(100_000, Seed([1, 2]));
        let plan = |limits: &[_]| table.plan(limits).expect("valid");
        let bench = Bench {
            one: plan(&[limit(1_000_000, SECOND, 1_000_000)]),
            three: plan(&[
                limit(1_000_000, SECOND, 1_000_000),
                limit(1_000_000, MINUTE, 1_000_000),
                limit(1_000_000, DAY, 1_000_000),
            ]),
            parts: plan(&[limit(35, SECOND, 1_000_000)]),
            empty: plan(&[limit(1, DAY, 1)]),
            table,
        };
        for name in 0..1_000 {
            bench
                .table
                .take(bench.table.keys("other").number(name), &bench.one, at(1));
        }
        bench
    }
}

fn at(nanos: u64) -> Tick {
    Tick::from_nanos(1_000_000_000 + nanos)
}

#[inline(never)]
fn row_known_key_one_limit(bench: &Bench) {
    let key = bench.table.keys("ip").number(1);
    for now in 0..COUNT {
        black_box(bench.table.take(key, &bench.one, at(now)).is_granted());
    }
}

#[inline(never)]
fn row_known_key_three_limits(bench: &Bench) {
    let key = bench.table.keys("ip").number(1);
    for now in 0..COUNT {
        black_box(bench.table.take(key, &bench.three, at(now)).is_granted());
    }
}

#[inline(never)]
fn row_known_key_with_parts(bench: &Bench) {
    let key = bench.table.keys("ip").number(1);
    for now in 0..COUNT {
        black_box(bench.table.take(key, &bench.parts, at(now)).is_granted());
    }
}

#[inline(never)]
fn row_name_of_32_characters(bench: &Bench) {
    let keys = bench.table.keys("user");
    for now in 0..COUNT {
        let key = keys.key(black_box(b"session-9f86d081884c7d659a2feaa0"));
        black_box(bench.table.take(key, &bench.one, at(now)).is_granted());
    }
}

#[inline(never)]
fn row_rejection(bench: &Bench) {
    let key = bench.table.keys("ip").number(1);
    for now in 0..COUNT {
        black_box(bench.table.take(key, &bench.empty, at(now)).is_granted());
    }
}

#[inline(never)]
fn row_three_keys_as_one(bench: &Bench) {
    let asks = [1, 2, 3].map(|name| Ask {
        key: bench.table.keys("ip").number(name),
        plan: &bench.one,
        cost: 1,
    });
    for now in 0..COUNT {
        black_box(bench.table.take_all(&asks, at(now)).is_ok());
    }
}

#[inline(never)]
fn row_new_key(bench: &Bench) {
    let keys = bench.table.keys("ip");
    for name in 0..COUNT {
        black_box(
            bench
                .table
                .take(keys.number(name), &bench.one, at(name))
                .is_granted(),
        );
    }
}

#[inline(never)]
fn row_sweep(bench: &Bench) {
    // Per thousand keys rather than per key: ten passes over the same thousand.
    for _ in 0..10 {
        black_box(bench.table.sweep(at(0), usize::MAX));
    }
    black_box(bench.table.sweep(
        Tick::default().after(Duration::from_secs(3_600)),
        usize::MAX,
    ));
}
