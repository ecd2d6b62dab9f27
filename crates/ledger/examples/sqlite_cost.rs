//! The cost of a permit on the SQLite ledger, compared with the memory ledger in the same run.
//!
//! `cargo run --release -p tollgate-ledger --example sqlite_cost`
//!
//! Promises: figures are medians of interleaved rounds, CPU is that of the whole process, and every
//! row is also a ratio to the memory ledger. Never: decides whether a test passes.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot continue stops")]

use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use smallvec::smallvec;
use tollgate_core::ask::{
    Ask, CellId, Evidence, Outcome, OwnerId, PermitId, Priority, Scopes, Settle, Term, Verdict,
};
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger, ProviderLedger};

/// Interleaved rounds; medians of them are printed.
const ROUNDS: usize = 5;
/// Transactions per round.
const TURNS: usize = 1_000;
/// Fewer for transactions with a sync.
const LONG_TURNS: usize = 100;
/// Permits at low load.
const LOW_LOAD_PERMITS: usize = 500;

struct Row {
    cpu: Vec<f64>,
    latency: Vec<f64>,
}

fn main() {
    let folder = std::env::temp_dir().join(format!("tollgate-cost-{}", std::process::id()));
    if let Some(shared) = std::env::args().nth(1) {
        return run_child(&shared);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let sqlite = Ledger::sqlite(&folder, Clock::System)
        .unwrap()
        .provider("example");
    let memory = Ledger::memory(Clock::System).provider("example");
    println!(
        "| what one transaction carries | ledger | CPU µs | CPU µs per permit | p50 µs | p99 µs | CPU, memory = 1 |"
    );
    println!("|---|---|---|---|---|---|---|");
    let short = Arc::new(Rule::sliding(2_000, Span::from_millis(50)).unwrap());
    let long = Arc::new(Rule::sliding(1_000_000_000, Span::from_secs(86_400)).unwrap());
    let thousand = Arc::new(Rule::sliding(1_000, Span::from_secs(86_400)).unwrap());
    for (name, permits, rule, turns) in [
        ("1 permit, 1 s or less", 1, &short, TURNS),
        ("64 permits, 1 s or less", 64, &short, TURNS),
        ("1 permit of a day (synced ahead)", 1, &long, LONG_TURNS),
        ("64 permits of a day (synced ahead)", 64, &long, LONG_TURNS),
    ] {
        let (mut on_sqlite, mut on_memory) = (Row::new(), Row::new());
        for round in 0..ROUNDS {
            let cell = CellId::named(&[name, &round.to_string()]);
            runtime.block_on(on_memory.measure(&memory, cell, rule, permits, turns));
            runtime.block_on(on_sqlite.measure(&sqlite, cell, rule, permits, turns));
        }
        let floor = median(&on_memory.cpu);
        on_memory.print(name, "memory", permits, floor);
        on_sqlite.print(name, "sqlite", permits, floor);
    }
    println!(
        "\n| 64 callers, one ask each at a time | CPU µs per permit | p50 µs | p99 µs | goal |"
    );
    println!("|---|---|---|---|---|");
    for (name, cell, rule) in [
        ("1 s or less", CellId(7), &short),
        ("of a day (synced ahead)", CellId(8), &long),
    ] {
        runtime.block_on(callers(name, cell, &sqlite, rule));
    }
    println!("\n| one permit every 5 ms | ledger | p50 µs | p99 µs | goal: memory and |");
    println!("|---|---|---|---|---|");
    for (name, on, ledger, cell, rule) in [
        ("1 s or less", "memory", &memory, CellId(10), &short),
        ("1 s or less", "sqlite", &sqlite, CellId(11), &short),
        (
            "of a day (synced ahead)",
            "sqlite",
            &sqlite,
            CellId(12),
            &long,
        ),
        (
            "1,000 a day (synced ahead)",
            "sqlite",
            &sqlite,
            CellId(13),
            &thousand,
        ),
    ] {
        let (p50, p99) = runtime.block_on(low_load(ledger, cell, rule));
        println!("| {name} | {on} | {p50:.0} | {p99:.0} | 100 µs at p50, 1 000 µs at p99 |");
    }
    drop(sqlite);
    println!(
        "\n| processes | transactions/s | worst p99 µs | CPU µs each | least of most served |"
    );
    println!("|---|---|---|---|---|");
    for processes in [1, 2, 4, 8] {
        run_processes(&folder, processes);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

impl Row {
    fn new() -> Row {
        Row {
            cpu: Vec::new(),
            latency: Vec::new(),
        }
    }

    async fn measure(
        &mut self,
        ledger: &ProviderLedger,
        cell: CellId,
        rule: &Arc<Rule>,
        permits: usize,
        turns: usize,
    ) {
        let mut seq = 0;
        let started = cpu();
        for _ in 0..turns {
            let asks: Vec<Ask> = (0..permits).map(|_| ask(cell, rule, &mut seq)).collect();
            let at = ledger.now().at;
            let verdicts = ledger.offer(asks.clone()).await.unwrap().verdicts;
            self.latency.push(micros(ledger.now().at.since(at)));
            settle_all(ledger, asks, verdicts);
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
        self.cpu.push((cpu() - started) / turns as f64);
    }

    fn print(mut self, name: &str, ledger: &str, permits: usize, floor: f64) {
        self.latency.sort_by(f64::total_cmp);
        let at = |percent: usize| self.latency[self.latency.len() * percent / 100];
        let cpu = median(&self.cpu);
        #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
        let each = cpu / permits as f64;
        println!(
            "| {name} | {ledger} | {cpu:.1} | {each:.2} | {:.0} | {:.0} | {:.1} |",
            at(50),
            at(99),
            cpu / floor
        );
    }
}

/// One permit at a time, with a pause before each: what a caller waits on a host that does little else.
async fn low_load(ledger: &ProviderLedger, cell: CellId, rule: &Arc<Rule>) -> (f64, f64) {
    let (mut seq, mut latency) = (0, Vec::new());
    for _ in 0..LOW_LOAD_PERMITS {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
        let ask = ask(cell, rule, &mut seq);
        let at = ledger.now().at;
        let verdicts = ledger.offer(vec![ask.clone()]).await.unwrap().verdicts;
        latency.push(micros(ledger.now().at.since(at)));
        settle_all(ledger, vec![ask], verdicts);
    }
    latency.sort_by(f64::total_cmp);
    let at = |percent: usize| latency[latency.len() * percent / 100];
    (at(50), at(99))
}

/// 64 callers with one ask each at a time: the effect of group commit.
async fn callers(name: &str, cell: CellId, ledger: &ProviderLedger, rule: &Arc<Rule>) {
    let local = tokio::task::LocalSet::new();
    let started = cpu();
    let mut tasks = Vec::new();
    for caller in 0..64_u32 {
        let (ledger, rule) = (ledger.clone(), rule.clone());
        tasks.push(local.spawn_local(async move {
            let mut seq = u64::from(caller) << 32;
            let mut latency = Vec::new();
            for _ in 0..TURNS / 4 {
                let ask = ask(cell, &rule, &mut seq);
                let at = ledger.now().at;
                let verdicts = ledger.offer(vec![ask.clone()]).await.unwrap().verdicts;
                latency.push(micros(ledger.now().at.since(at)));
                settle_all(&ledger, vec![ask], verdicts);
            }
            latency
        }));
    }
    let mut latency = Vec::new();
    local
        .run_until(async {
            for task in tasks {
                latency.extend(task.await.unwrap());
            }
        })
        .await;
    latency.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    let each = (cpu() - started) / latency.len() as f64;
    let at = |percent: usize| latency[latency.len() * percent / 100];
    println!(
        "| {name} | {each:.2} | {:.0} | {:.0} | ≤ 30 µs, p99 ≤ 2 000 µs |",
        at(50),
        at(99)
    );
}

/// How processes share one folder: each runs transactions of one permit for two seconds.
fn run_processes(folder: &std::path::Path, processes: usize) {
    let start = |_| {
        Command::new(std::env::current_exe().unwrap())
            .arg(folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..processes).map(start).collect();
    let figures: Vec<Vec<f64>> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap().stdout;
            let output = String::from_utf8(output).unwrap();
            output
                .split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect()
        })
        .collect();
    let column = |index: usize| figures.iter().map(move |row| row[index]);
    let (total, most) = (column(0).sum::<f64>(), column(0).fold(0.0, f64::max));
    let least = column(0).fold(f64::MAX, f64::min);
    println!(
        "| {processes} | {:.0} | {:.0} | {:.1} | {:.2} |",
        total / 2.0,
        column(1).fold(0.0, f64::max),
        column(2).sum::<f64>() / total,
        least / most,
    );
}

fn run_child(folder: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let ledger = Ledger::sqlite(folder, Clock::System)
        .unwrap()
        .provider("example");
    let rule = Arc::new(Rule::sliding(2_000, Span::from_millis(50)).unwrap());
    let (mut seq, mut latency) = (0, Vec::new());
    let (started, began) = (cpu(), ledger.now().at);
    while ledger.now().at.since(began) < Span::from_secs(2) {
        let ask = ask(CellId(9), &rule, &mut seq);
        let at = ledger.now().at;
        let verdicts = runtime
            .block_on(ledger.offer(vec![ask.clone()]))
            .unwrap()
            .verdicts;
        latency.push(micros(ledger.now().at.since(at)));
        settle_all(&ledger, vec![ask], verdicts);
    }
    latency.sort_by(f64::total_cmp);
    let p99 = latency[latency.len() * 99 / 100];
    println!("{} {p99} {}", latency.len(), cpu() - started);
}

fn ask(cell: CellId, rule: &Arc<Rule>, seq: &mut u64) -> Ask {
    *seq += 1;
    Ask {
        id: PermitId {
            owner: OwnerId(std::process::id()),
            seq: *seq,
        },
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

fn settle_all(ledger: &ProviderLedger, asks: Vec<Ask>, verdicts: Vec<(PermitId, Verdict)>) {
    for (ask, (_, verdict)) in asks.into_iter().zip(verdicts) {
        if let Verdict::Go { .. } = verdict {
            ledger.settle(Settle::Permit {
                id: ask.id,
                terms: ask.terms,
                scopes: ask.scopes,
                outcome: Outcome::Arrived {
                    age: Span::ZERO,
                    limited: false,
                    readings: Vec::new(),
                },
            });
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
fn micros(span: Span) -> f64 {
    span.0 as f64
}

/// Processor time that this process has used, in microseconds.
#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
