//! The gate on the cost of calls: instructions and allocations per call, beside a kept baseline.
//!
//! Time depends on the machine and its neighbours; instructions do not. The test runs itself under
//! cachegrind, twice per row, with few and with more calls: the difference is the cost of a call,
//! with everything that happens for it on other tasks and threads, and without starting up.
//! Allocations are counted by the allocator of this program. Nobody subscribes to events, and the
//! log is off as it is for these facts at its default level. The baseline, `tests/path_cost.txt`,
//! is of the dev profile with failpoints, as `make test` builds it. Each of its rows says why its
//! counts are what they are; a row that has risen says so in somebody's own words, or the test fails.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tollgate::event::ENDS_BACKLOG_MAX;
use tollgate::path::{CallOptions, CallTrace, HttpCall, Source, Target};
use tollgate::{Options, ProviderRegistry, decide, path};
use tollgate_config::{Environment, ProviderFile};
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};

/// Begins the line below each row of the baseline.
const WHY: &str = "# why: ";

/// Ends that line when a row has risen, until somebody goes on.
const UNSAID: &str = "because";

/// Tells the child which row to run and how often (`row_hit 100`), and the parent (as `write`) to
/// write the counts.
const VARIABLE: &str = "TOLLGATE_PATH_COST";

/// Name of the test below, for the child.
const TEST: &str = "path_cost::a_call_costs_no_more_than_it_did";

/// Calls of the shorter and of the longer run.
const COUNTS: [u64; 2] = [50, 250];

/// How far a row may be from the baseline.
#[derive(Clone, Copy)]
struct Tolerance {
    percent: u64,
    allocations: u64,
    /// The cheapest of so many runs counts.
    runs: usize,
}

/// Two runs of one program differ by less than a thousandth, and not at all in allocations. Another
/// C library's `memcpy`, a patch release of the compiler and other code of this crate, which moves
/// what is inlined where, stay below five percent; a copied head or a built event does not. As many
/// percent less must be written down, or the gate would let them be lost again.
const ONE_THREAD: Tolerance = Tolerance {
    percent: 5,
    allocations: 0,
    runs: 1,
};

/// On SQLite threads meet each other at different moments: 3 % and one allocation were seen between
/// two runs, and more on a busy machine, where a settle that waits for company (2 ms) gets none.
const THREADS: Tolerance = Tolerance {
    percent: 8,
    allocations: 2,
    runs: 3,
};

/// What somebody who listens to the ends of calls may add to each of them, in thousandths: two allocations, four steps
/// and one end in the ring.
const TRACED_PERMILLE: u64 = 30;

/// What a second one may add, such as an open page: no allocation, and no more than two runs on a busy machine differ
/// by, whose timers fire at other moments.
const WATCHED_PERMILLE: u64 = 10;

/// A row: the name of its function, the function, and its tolerance.
type Row = (&'static str, fn(u64), Tolerance);

/// The counted rows.
const ROWS: [Row; 6] = [
    ("row_proxied_call", row_proxied_call, ONE_THREAD),
    ("row_traced_call", row_traced_call, ONE_THREAD),
    ("row_watched_call", row_watched_call, ONE_THREAD),
    ("row_cache_hit", row_cache_hit, ONE_THREAD),
    ("row_queued_call", row_queued_call, ONE_THREAD),
    ("row_sqlite_permit", row_sqlite_permit, THREADS),
];

/// Allocations of this program so far.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[expect(
    unsafe_code,
    reason = "an allocator that counts can only pass on to the system's"
)]
// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[test]
fn a_call_costs_no_more_than_it_did() {
    match std::env::var(VARIABLE).ok().as_deref() {
        Some("write") => {
            let kept = std::fs::read_to_string(baseline()).unwrap_or_default();
            let renewed = renewed(&kept, &counted());
            std::fs::write(baseline(), renewed).expect("the baseline can be written");
        }
        Some(wanted) => run_row(wanted),
        None => compare(&counted()),
    }
}

/// In the child.
fn run_row(wanted: &str) {
    let (name, count) = wanted.split_once(' ').expect("a row and a count");
    let row = ROWS.iter().find(|(row, ..)| *row == name);
    let (_, run, _) = row.expect("a row of this file");
    run(count.parse().expect("a count"));
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    writeln!(io::stderr(), "Allocations: {allocations}").expect("stderr is open");
}

fn baseline() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/path_cost.txt")
}

/// `name instructions allocations` per line.
fn counted() -> String {
    let mut lines = String::from("# row, instructions per call, allocations per call\n");
    for (name, _, Tolerance { runs, .. }) in ROWS {
        let cheapest = |count| (0..runs).map(|_| measure(name, count)).min();
        let [few, many] = COUNTS.map(|count| cheapest(count).expect("at least one run"));
        let per_call = |few: u64, many: u64| many.saturating_sub(few) / (COUNTS[1] - COUNTS[0]);
        let (instructions, allocations) = (per_call(few.0, many.0), per_call(few.1, many.1));
        writeln!(lines, "{name} {instructions} {allocations}").expect("a String can be written to");
    }
    lines
}

/// The counts of a row.
fn numbers(lines: &str, name: &str) -> Vec<u64> {
    let line = lines.lines().find_map(|line| line.strip_prefix(name));
    let words = line.unwrap_or_default().split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Why a row of the baseline has its counts: the line below it.
fn why<'a>(lines: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = lines.lines().skip_while(|line| !line.starts_with(name));
    lines.nth(1)?.strip_prefix(WHY).map(str::trim)
}

/// Has somebody said why?
fn is_said(why: &str) -> bool {
    !why.is_empty() && !why.ends_with(UNSAID)
}

/// Does a count differ by more than two runs of one program do?
fn differs(now: &[u64], before: &[u64], tolerance: Tolerance) -> [bool; 2] {
    [
        now[0].abs_diff(before[0]) * 100 > before[0] * tolerance.percent,
        now[1].abs_diff(before[1]) > tolerance.allocations,
    ]
}

/// The baseline with these counts. What fell is lowered, and says from where. What rose needs a reason, which nobody
/// can give but its author; what is as far above the baseline as two runs may be keeps it, or rises would add up.
fn renewed(kept: &str, counted: &str) -> String {
    let mut lines = String::from(
        "# row, instructions per call, allocations per call, and below each row why it has them\n",
    );
    for (name, _, tolerance) in ROWS {
        let (now, before) = (numbers(counted, name), numbers(kept, name));
        let was = why(kept, name).unwrap_or_default();
        let is_new = before.len() != 2;
        let is_over =
            |index: usize| now[index] > before[index] && differs(&now, &before, tolerance)[index];
        let (shown, why) = if is_new {
            (now, format!("it is new {UNSAID}"))
        } else if is_over(0) || is_over(1) {
            let rose = format!("rose from {} and {}, {UNSAID}", before[0], before[1]);
            (now, rose)
        } else if now[0] < before[0] || now[1] < before[1] {
            let lower = vec![now[0].min(before[0]), now[1].min(before[1])];
            (lower, format!("fell from {} and {}", before[0], before[1]))
        } else {
            (before, was.to_owned())
        };
        let row = format!("{name} {} {}\n{WHY}{why}\n", shown[0], shown[1]);
        lines.push_str(&row);
    }
    lines
}

fn compare(counted: &str) {
    let kept = std::fs::read_to_string(baseline()).expect("the baseline is in the repository");
    let mut faults = String::new();
    for (row, other, permille) in [
        ("row_proxied_call", "row_traced_call", TRACED_PERMILLE),
        ("row_traced_call", "row_watched_call", WATCHED_PERMILLE),
    ] {
        let (less, more) = (numbers(counted, row)[0], numbers(counted, other)[0]);
        if more * 1_000 > less * (1_000 + permille) {
            writeln!(
                faults,
                "{other} costs more than {permille} thousandths above {row}: {less} -> {more} instructions"
            )
            .expect("a String can be written to");
        }
    }
    let [traced, watched] =
        ["row_traced_call", "row_watched_call"].map(|row| numbers(counted, row)[1]);
    assert_eq!(traced, watched, "allocations while a page is open");
    for (name, _, tolerance) in ROWS {
        let (now, before) = (numbers(counted, name), numbers(&kept, name));
        assert_eq!(
            (now.len(), before.len()),
            (2, 2),
            "{name} is counted and kept"
        );
        if !why(&kept, name).is_some_and(is_said) {
            writeln!(
                faults,
                "{name}: the line below it in the baseline does not say why (`{WHY}…`)"
            )
            .expect("a String can be written to");
        }
        let [instructions, allocations] = differs(&now, &before, tolerance);
        for (index, what, differs) in [
            (0, "instructions", instructions),
            (1, "allocations", allocations),
        ] {
            if differs {
                writeln!(
                    faults,
                    "{name}: {} -> {} {what} per call",
                    before[index], now[index]
                )
                .expect("a String can be written to");
            }
        }
    }
    assert!(
        faults.is_empty(),
        "the cost of calls has changed:\n{faults}\
         If that is meant, keep it, and say why below each row that rose: \
         {VARIABLE}=write cargo test -p tollgate --features failpoints path_cost"
    );
}

#[test]
fn a_row_that_rises_wants_a_reason() {
    let rows = |first: &str| {
        let others = ROWS[1..]
            .iter()
            .map(|(name, ..)| format!("{name} 100 1\n# why: it is so\n"));
        format!("{first}{}", others.collect::<String>())
    };
    let first = ROWS[0].0;
    let kept = rows(&format!("{first} 1000 10\n# why: it is so\n"));
    for (now, expected, reason, said) in [
        ("1000 10", [1000, 10], "it is so", true),
        // Within what two runs differ by: it stays, so that many small rises are not one large one.
        ("1049 10", [1000, 10], "it is so", true),
        ("990 10", [990, 10], "fell from 1000 and 10", true),
        (
            "1051 10",
            [1051, 10],
            "rose from 1000 and 10, because",
            false,
        ),
        ("900 11", [900, 11], "rose from 1000 and 10, because", false),
    ] {
        let renewed = renewed(&kept, &rows(&format!("{first} {now}\n")));
        assert_eq!(numbers(&renewed, first), expected, "{now}");
        assert_eq!(why(&renewed, first), Some(reason), "{now}");
        assert_eq!(is_said(reason), said, "{now}");
        assert_eq!(why(&renewed, ROWS[1].0), Some("it is so"), "{now}");
    }
    let new = renewed("", &rows(&format!("{first} 1000 10\n")));
    assert!(!is_said(why(&new, first).expect("it has a line")));
    assert_eq!(why(&kept, "row_of_nothing"), None);
}

/// Instructions and allocations of a child that runs a row so often.
fn measure(name: &str, count: u64) -> (u64, u64) {
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no"])
        .arg("--cachegrind-out-file=/dev/null")
        .arg(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", TEST, "--nocapture"])
        .env(VARIABLE, format!("{name} {count}"))
        .output()
        .expect("valgrind is missing; install it (Debian: `apt-get install valgrind`)");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "row {name} failed:\n{said}");
    let number = |mark: &str| {
        let found = said.lines().find_map(|line| line.split_once(mark));
        let number = found.and_then(|(_, number)| number.replace(',', "").trim().parse().ok());
        number.unwrap_or_else(|| panic!("nothing was counted for {name}:\n{said}"))
    };
    (number("I   refs:"), number("Allocations: "))
}

const NOON: Wall = Wall(1_772_366_400_000_000);

/// Time passes only between calls, so that no timer adds to their cost.
fn manual_clock() -> Arc<ManualClock> {
    ManualClock::new(Now {
        at: Micros(1_000_000),
        wall: NOON,
    })
}

fn runtime(paused: bool) -> Runtime {
    let mut builder = Builder::new_current_thread();
    let built = builder.enable_all().start_paused(paused).build();
    built.expect("a runtime can be built")
}

fn registry(file: &str, ledger: Ledger) -> ProviderRegistry {
    let draft = ProviderFile::read("x.yaml", file).expect("the file can be read");
    let checked = draft.check(&Environment::empty());
    let provider = checked.provider.expect("the file is valid");
    ProviderRegistry::build(vec![provider], ledger, Options::default()).expect("valid")
}

/// A provider that says the same to everybody. Returns its address.
async fn upstream() -> String {
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
        content-length: 11\r\ndate: Sun, 01 Mar 2026 12:00:00 GMT\r\n\r\n{\"ok\":true}";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.set_nodelay(true).expect("a socket of our own");
            tokio::spawn(async move {
                let mut read = [0; 4096];
                // A request without a body arrives in one piece on loopback.
                while stream.read(&mut read).await.is_ok_and(|read| read > 0) {
                    if stream.write_all(RESPONSE).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

async fn get(registry: &ProviderRegistry, path: &str) -> Source {
    let call = HttpCall {
        target: Target::Provider {
            name: "x".to_owned(),
            path: path.to_owned(),
            query: Some("page=1".to_owned()),
        },
        method: Method::GET,
        headers: HeaderMap::new(),
        body: Full::new(Bytes::new()),
        options: CallOptions::default(),
    };
    let reply = path::call(registry, call, &mut CallTrace::default()).await;
    let reply = reply.expect("the upstream responds");
    let body = reply.body.collect().await.expect("a whole body");
    assert_eq!(body.to_bytes().len(), 11);
    reply.source
}

/// A call through the whole path, over a connection that is open, under two limits.
fn row_proxied_call(count: u64) {
    proxied_call(count, 0);
}

/// The same with its steps, for somebody who wants ends of calls: the daemon, for at most a thousand
/// calls a second.
fn row_traced_call(count: u64) {
    proxied_call(count, 1);
}

/// The same while a page shows the last calls.
fn row_watched_call(count: u64) {
    proxied_call(count, 2);
}

fn proxied_call(count: u64, subscribers: usize) {
    runtime(false).block_on(async {
        let clock = manual_clock();
        let file = format!(
            "name: x\nupstream: http://{}\nlimits: [1000/1s]\nconcurrency: 10\n",
            upstream().await
        );
        let registry = registry(&file, Ledger::memory(Clock::Manual(clock.clone())));
        let events = registry.events();
        let _ends: Vec<_> = (0..subscribers)
            .map(|_| events.subscribe_to_ends())
            .collect();
        // A full backlog frees as much memory for each call as the call takes. Every row has this many calls before: what
        // differs is the subscriber, and neither the age of a connection nor that of the heap.
        for _ in 0..ENDS_BACKLOG_MAX {
            get(&registry, "/a").await;
            clock.pass(Span::from_millis(10));
        }
        for _ in 0..count {
            assert_eq!(get(&registry, "/a").await, Source::Upstream);
            clock.pass(Span::from_millis(10));
        }
    });
}

/// A call that the cache serves from memory.
fn row_cache_hit(count: u64) {
    runtime(false).block_on(async {
        let clock = Clock::Manual(manual_clock());
        let file = format!(
            "name: x\nupstream: http://{}\nlimits: [1000/1s]\ncache: {{ttl: 1h}}\n",
            upstream().await
        );
        let registry = registry(&file, Ledger::memory(clock));
        assert_eq!(get(&registry, "/a").await, Source::Upstream);
        for _ in 0..count {
            assert_eq!(get(&registry, "/a").await, Source::Cache);
        }
    });
}

/// A permit that is not free, so that the call waits in the queue until it is.
fn row_queued_call(count: u64) {
    runtime(true).block_on(async {
        let file = "name: x\ndomain: api.example.org\nlimits: [1/1s]\n";
        let registry = registry(file, Ledger::memory(Clock::tokio(NOON)));
        for number in 0..=count {
            let waited = permit(&registry).await;
            assert_eq!(waited > Span::ZERO, number > 0);
        }
    });
}

/// A permit of a ledger on disk.
fn row_sqlite_permit(count: u64) {
    let folder = std::env::temp_dir().join(format!("tollgate-path-cost-{}", std::process::id()));
    // Left by a process of this number that was killed.
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder).expect("a folder of our own");
    runtime(false).block_on(async {
        let file = "name: x\ndomain: api.example.org\n\
                    limits: [{limit: 1000000, period: 1s, algorithm: token-bucket}]\n";
        let clock = manual_clock();
        let ledger = Ledger::sqlite(&folder, Clock::Manual(clock.clone()));
        let registry = registry(file, ledger.expect("a fresh ledger"));
        for _ in 0..count {
            permit(&registry).await;
            clock.pass(Span::from_millis(10));
        }
    });
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

async fn permit(registry: &ProviderRegistry) -> Span {
    let options = CallOptions {
        timeout: Some(Span::from_secs(60)),
        ..CallOptions::default()
    };
    let decided = decide::acquire(registry, "x", None, options).await;
    let mut decision = decided.expect("a permit comes free in time");
    decision.sent().expect("it is new");
    let waited = decision.waited();
    decision.report(200, &HeaderMap::new(), b"", &[]);
    waited
}
