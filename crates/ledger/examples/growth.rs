//! How the cost of the SQLite ledger grows with processes, and that of a gate's queue with waiters.
//!
//! `cargo run --release -p tollgate-ledger --example growth -- [--out docs/benchmarks.md]`
//!
//! Promises: CPU is the kernel's count for all processes together; every permit is asked for and
//! settled. With `--out` the tables replace those between the marks in that file.
//! Never: decides whether a test passes.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot continue stops")]
#![expect(clippy::disallowed_methods, reason = "it lets real time pass")]
#![expect(clippy::cast_precision_loss, reason = "figures to read")]

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use smallvec::smallvec;
use tollgate_core::ask::{
    Ask, CellId, Evidence, Outcome, OwnerId, PermitId, Priority, Scopes, Settle, Term, Verdict,
};
use tollgate_core::gate::{CallerId, Gate, GateSettings, QueuedCall, Resolution};
use tollgate_core::limit::Rule;
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_core::turn::turn;
use tollgate_ledger::{Clock, Ledger};

const PROCESSES: [u64; 5] = [1, 2, 4, 8, 16];
const WAITERS: [u64; 5] = [10, 100, 1_000, 10_000, 100_000];

/// Calls a second of all processes together in the paced rows: a tenth of what one process can do,
/// so that the rows measure the ledger and not a lack of processors.
const PACE: u64 = 2_000;

/// How long each row is measured.
const ROW_DURATION: Span = Span::from_secs(3);

const BEGIN: &str = "<!-- ledger-growth:begin -->";
const END: &str = "<!-- ledger-growth:end -->";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["child", folder, gap_us] => child(folder, Span(gap_us.parse().unwrap())),
        ["--out", file] => write_tables(file, &tables()),
        _ => println!("{}", tables()),
    }
}

fn tables() -> String {
    let mut text = String::from(
        "| processes on one folder | paced, all together | CPU per permit | p50 | p99 | flat out | CPU per permit | p99 | least / most served |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for processes in PROCESSES {
        let paced = run_processes(processes, Span(1_000_000 * processes / PACE));
        let flat = run_processes(processes, Span::ZERO);
        writeln!(
            text,
            "| {processes} | {:.1} k/s | {:.1} µs | {:.2} ms | {:.2} ms | {:.1} k/s | {:.1} µs | {:.2} ms | {:.2} |",
            paced.rate / 1e3,
            paced.cpu,
            paced.p50 / 1e3,
            paced.p99 / 1e3,
            flat.rate / 1e3,
            flat.cpu,
            flat.p99 / 1e3,
            flat.least_of_most
        )
        .unwrap();
    }
    text.push_str(
        "\n| waiting in one queue | CPU to join | CPU to go, in order | CPU to leave | memory of each |\n|---|---|---|---|---|\n",
    );
    for waiters in WAITERS {
        let cost = queue_cost(waiters);
        writeln!(
            text,
            "| {waiters} | {:.2} µs | {:.2} µs | {:.2} µs | {} |",
            cost.join, cost.go, cost.leave, cost.memory
        )
        .unwrap();
    }
    text
}

/// Writes the tables between the marks.
fn write_tables(file: &str, tables: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    std::fs::write(file, format!("{before}{BEGIN}\n\n{tables}\n{END}{after}")).unwrap();
}

/// The figures of one row.
struct Row {
    rate: f64,
    cpu: f64,
    p50: f64,
    p99: f64,
    least_of_most: f64,
}

fn run_processes(processes: u64, gap: Span) -> Row {
    let folder = std::env::temp_dir().join(format!("tollgate-growth-{}", std::process::id()));
    let start = |_| {
        Command::new(std::env::current_exe().unwrap())
            .args(["child", &folder.display().to_string(), &gap.0.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..processes).map(start).collect();
    let (mut waits, mut cpu, mut each) = (Vec::new(), 0.0, Vec::new());
    for child in children {
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let mut numbers = output
            .split_whitespace()
            .map(|word| word.parse::<f64>().unwrap());
        cpu += numbers.next().unwrap();
        let before = waits.len();
        waits.extend(numbers);
        each.push((waits.len() - before) as f64);
    }
    std::fs::remove_dir_all(Path::new(&folder)).unwrap();
    waits.sort_by(f64::total_cmp);
    let most = each.iter().copied().fold(0.0, f64::max);
    Row {
        rate: waits.len() as f64 / (ROW_DURATION.0 as f64 / 1e6),
        cpu: cpu / waits.len() as f64,
        p50: waits[waits.len() / 2],
        p99: waits[waits.len() * 99 / 100],
        least_of_most: each.iter().copied().fold(most, f64::min) / most,
    }
}

/// One process: one call at a time, with this gap or without one. Prints its CPU time and how long
/// each call waited.
fn child(folder: &str, gap: Span) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let ledger = Ledger::sqlite(folder, Clock::System)
        .unwrap()
        .provider("example");
    let rule = Arc::new(Rule::sliding(2_000, Span::from_millis(50)).unwrap());
    let (mut seq, mut waits) = (0, Vec::new());
    let (started, began) = (cpu(), ledger.now().at);
    runtime.block_on(async {
        let mut due = began;
        while due.since(began) < ROW_DURATION {
            let pause = due.since(ledger.now().at);
            if pause > Span::ZERO {
                tokio::time::sleep(pause.into()).await;
            }
            seq += 1;
            let ask = ask(CellId(9), &rule, std::process::id(), seq);
            let at = ledger.now().at;
            let verdicts = ledger.offer(vec![ask.clone()]).await.unwrap().verdicts;
            waits.push(ledger.now().at.since(at).0);
            if let [(_, Verdict::Go { .. })] = verdicts[..] {
                ledger.settle(arrived(ask));
            }
            due = if gap == Span::ZERO {
                ledger.now().at
            } else {
                due + gap
            };
        }
    });
    let used = cpu() - started;
    let waits: Vec<String> = waits.iter().map(u64::to_string).collect();
    println!("{used} {}", waits.join(" "));
}

/// The cost of a queue per waiter.
struct QueueCost {
    join: f64,
    go: f64,
    leave: f64,
    memory: String,
}

/// These calls wait for a bucket that grants one call each millisecond, in virtual time. Measures
/// what it costs each call to join, to be granted, and (in a second queue) to leave.
fn queue_cost(waiters: u64) -> QueueCost {
    // Small queues are repeated, so that there is enough to measure.
    let rounds = (20_000 / waiters).max(1);
    let rule = Arc::new(Rule::bucket(1_000, Span::from_secs(1), 1).unwrap());
    let (mut join, mut go, mut leave, mut memory) = (0.0, 0.0, 0.0, 0);
    for _ in 0..rounds {
        let before = resident();
        let (mut gate, mut now, spent) = filled_gate(waiters, &rule);
        join += spent;
        memory = memory.max(resident().saturating_sub(before));
        let started = cpu();
        serve_all(&mut gate, &mut now, waiters);
        go += cpu() - started;
        let (mut gate, _, _) = filled_gate(waiters, &rule);
        let started = cpu();
        for seq in 1..=waiters {
            gate.cancel(id(1, seq));
        }
        leave += cpu() - started;
    }
    let each = |spent: f64| spent / (waiters * rounds) as f64;
    QueueCost {
        join: each(join),
        go: each(go),
        leave: each(leave),
        memory: match waiters {
            // Smaller queues disappear in the page size.
            ..10_000 => "–".to_owned(),
            _ => format!("{} B", memory / waiters),
        },
    }
}

fn filled_gate(waiters: u64, rule: &Arc<Rule>) -> (Gate, Now, f64) {
    let mut gate = Gate::new(GateSettings {
        waiting_max: usize::try_from(waiters).unwrap(),
        ..GateSettings::default()
    });
    let now = Now {
        at: Micros(1_000_000_000),
        wall: Wall(0),
    };
    let started = cpu();
    for seq in 1..=waiters {
        let waiter = QueuedCall {
            ask: ask(CellId(1), rule, 1, seq),
            caller: CallerId(0),
            deadline: now.at + Span::from_secs(86_400),
            seniority: None,
        };
        gate.push(waiter, now);
    }
    let spent = cpu() - started;
    (gate, now, spent)
}

/// Advances the clock from timer to timer until all calls are granted, in order of arrival.
fn serve_all(gate: &mut Gate, now: &mut Now, waiters: u64) {
    let mut table = Table::default();
    let mut went = 0;
    while went < waiters {
        let effects = gate.tick(*now);
        let has_news = !effects.resolve.is_empty();
        for resolved in effects.resolve {
            assert!(matches!(resolved.resolution, Resolution::Go { .. }));
            went += 1;
            assert_eq!(resolved.ask.id.seq, went, "in order");
            let freed = turn(&mut table, *now, &[arrived(resolved.ask)], &[]).freed;
            gate.freed(&freed);
        }
        if !effects.offer.is_empty() {
            let verdicts = turn(&mut table, *now, &[], &effects.offer).verdicts;
            let ids = effects.offer.iter().map(|ask| ask.id);
            gate.verdicts(ids.zip(verdicts).collect(), *now);
        } else if let Some(arm) = effects.wake_at.filter(|_| !has_news) {
            now.at = now.at.max(arm);
        }
    }
}

fn id(owner: u32, seq: u64) -> PermitId {
    PermitId {
        owner: OwnerId(owner),
        seq,
    }
}

fn ask(cell: CellId, rule: &Arc<Rule>, owner: u32, seq: u64) -> Ask {
    Ask {
        id: id(owner, seq),
        terms: smallvec![Term {
            cell,
            rule: rule.clone(),
            cost: 1,
            reserve: 0,
        }],
        scopes: Scopes::new(),
        priority: Priority::Normal,
        max_wait: Span::from_secs(30),
        evidence: Evidence::Report {
            timeout: Span::from_secs(30),
            late: Span::from_secs(5),
        },
    }
}

fn arrived(ask: Ask) -> Settle {
    Settle::Permit {
        id: ask.id,
        terms: ask.terms,
        scopes: ask.scopes,
        outcome: Outcome::Arrived {
            age: Span::ZERO,
            limited: false,
            readings: Vec::new(),
        },
    }
}

/// Processor time that this process has used, in microseconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}
