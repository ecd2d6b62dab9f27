//! A18: a gateway under load and faults for a while, watched by everything that can watch it: metrics, the live
//! stream, the access log, NDJSON and a webhook. Memory, file handles, the log of the database and the files do not
//! grow with the calls.
//!
//! Twenty seconds by default; `TOLLGATE_SOAK_SECONDS=10800` is the document's three hours. Run with
//! `--nocapture` it prints the figures of docs/faults.md.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_sim::http::{Settings, SimProvider};

use crate::folder::Folder;

/// Clients at a time: more than there are cores, so that the gateway is never idle.
const CLIENTS: usize = 8;

/// Rounds of faults, one in 20 seconds and this many at most (a plan holds 64 faults): each has an
/// outage, resets before and after a call is counted, and responses that drip.
const FAULT_ROUNDS_MAX: usize = 16;

/// The longest fault, however long the run: an eighth of the shortest round. A call waits for the end
/// of an outage, and the provider is probed once a second until then: a longer one makes the log
/// longer without one call more, and the callers wait instead of calling.
const FAULT_MS_MAX: usize = 2_500;

/// A client reconnects after this many calls.
const CALLS_PER_CONNECTION: usize = 50;

/// The log and the NDJSON file have at most this many bytes each, then they are rotated. With a line for every call
/// both reach it in the shortest run, unless the machine lets it make only a few calls.
const FILE_MAX: u64 = 64 * 1024;

/// So many calls have twice as many bytes in the log as one file may have: a line has more than 250.
const ROTATING_CALLS: usize = 500;

/// Rotated files of each.
const FILES_KEPT: u64 = 2;

/// What a file may have and all its rotated ones together; one line more, because a line is never split.
const FILES_MAX: u64 = (FILES_KEPT + 1) * FILE_MAX + 4 * 1024;

/// The bound of standard error: the log goes to its file, so only the start and the end are left.
const STDERR_MAX: usize = 4 * 1024;

/// The bound of one scrape: the labels have closed sets of values, whatever paths are called.
const METRICS_MAX: usize = 256 * 1024;

/// The bound of webhook messages: an alert of each entity when it begins, as many again for attempts that the receiver
/// fails, and none per call. The entities are the first parts of paths: one per client, and `left`. A number alone is no entity
/// but a version, as in `/v1/`, so they are `client-0` and so on.
const MESSAGES_MAX: usize = 4 * (CLIENTS + 1);

/// The bound of SQLite's log at any load.
const WAL_MAX: u64 = 64 * 1024 * 1024;

/// The variation of a sample: allocators keep pages, and timers come and go.
const KIB_SLACK: u64 = 8 * 1024;
const HANDLES_SLACK: usize = 8;

/// Handles that the gateway may have at some time in any quarter, and the table for them: its own
/// 34, and connections of callers and to the provider.
const HANDLES_MIN: usize = 64;
const TABLE_MIN: u64 = 128;

fn seconds() -> usize {
    let wanted = std::env::var("TOLLGATE_SOAK_SECONDS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// A run of its own, not one beside all other tests.
fn is_long() -> bool {
    seconds() >= 60
}

/// What the kernel says about the gateway.
#[derive(Clone, Copy, Debug)]
struct Sample {
    memory_kib: u64,
    /// The size of its table of handles, a power of two that never shrinks: a leak doubles it again
    /// and again. Every user may read it.
    handle_table: u64,
    /// Its open handles; `None`: other processes may not see them (H3), except those of root.
    handles: Option<usize>,
    /// Bytes of SQLite's log.
    wal: u64,
    /// Bytes of the log and its rotated files.
    log: u64,
    /// Bytes of the NDJSON file and its rotated files.
    ndjson: u64,
}

/// The bytes of a file and its rotated files.
fn bytes_of(folder: &Folder, name: &str) -> u64 {
    let files = fs::read_dir(folder.path()).unwrap().flatten();
    let own = files.filter(|file| file.file_name().to_string_lossy().starts_with(name));
    // One that is renamed meanwhile is counted the next time.
    own.map(|file| file.metadata().map_or(0, |file| file.len()))
        .sum()
}

fn sample(pid: u32, folder: &Folder) -> Sample {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let number = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.unwrap().parse().unwrap()
    };
    let handles = fs::read_dir(format!("/proc/{pid}/fd"));
    Sample {
        memory_kib: number("VmRSS:"),
        handle_table: number("FDSize:"),
        handles: handles.ok().map(Iterator::count),
        wal: fs::metadata(folder.path().join("state/ledger.db-wal")).map_or(0, |file| file.len()),
        log: bytes_of(folder, "gateway.log"),
        ndjson: bytes_of(folder, "own.ndjson"),
    }
}

/// One call on a connection that stays open; returns the status.
fn call(stream: &mut BufReader<TcpStream>, path: &str) -> Option<u16> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: g\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).ok()?;
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if status.is_none() {
            status = line.split(' ').nth(1).and_then(|text| text.parse().ok());
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    status
}

/// Begins a call and hangs up before its response.
fn hang_up(gateway: &str, number: usize, made: usize) {
    if let Ok(mut stream) = TcpStream::connect(gateway) {
        let request = format!("GET /x/left/{number}/{made} HTTP/1.1\r\nHost: g\r\n\r\n");
        drop(stream.write_all(request.as_bytes()));
    }
}

/// Calls until it is stopped; counts successes and failures. Hangs up on one call per connection.
fn client(gateway: &str, number: usize, stop: &AtomicBool, results: &[AtomicUsize; 2]) {
    let mut made = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(stream) = TcpStream::connect(gateway) else {
            continue;
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        hang_up(gateway, number, made);
        let mut stream = BufReader::new(stream);
        for _ in 0..CALLS_PER_CONNECTION {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            made += 1;
            // Separate paths: equal concurrent calls would be coalesced.
            let succeeded = call(&mut stream, &format!("/x/client-{number}/{made}")) == Some(200);
            results[usize::from(!succeeded)].fetch_add(1, Ordering::Relaxed);
            if !succeeded {
                break;
            }
        }
    }
}

fn median(samples: &[Sample]) -> u64 {
    let mut all: Vec<u64> = samples.iter().map(|sample| sample.memory_kib).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

#[expect(clippy::disallowed_methods, reason = "a soak runs in real time")]
fn sleep_second() {
    std::thread::sleep(Duration::from_secs(1));
}

/// A gateway, where it listens, and its standard error up to its end.
struct Gateway {
    child: Child,
    gateway: String,
    admin: String,
    stderr: JoinHandle<String>,
}

fn start(folder: &Folder) -> Gateway {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--provider", "x.yaml", "--store", "sqlite:state"]);
    let mut child = folder
        .prepare(&mut command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut address = |what: &str| {
        let mut found = lines.by_ref().map_while(Result::ok);
        let line = found.find(|line| line.contains(what)).unwrap();
        line.trim().rsplit("http://").next().unwrap().to_owned()
    };
    let (gateway, admin) = (address("listens on"), address("(admin)"));
    let mut stderr = child.stderr.take().unwrap();
    let stderr = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).ok();
        text
    });
    Gateway {
        child,
        gateway,
        admin,
        stderr,
    }
}

/// Everything that watches the gateway while it runs.
struct Watchers {
    scraper: JoinHandle<Vec<usize>>,
    stream: JoinHandle<[usize; 2]>,
}

impl Watchers {
    fn start(admin: &str, stop: &Arc<AtomicBool>) -> Watchers {
        let (of_scraper, stop) = (admin.to_owned(), stop.clone());
        let of_stream = admin.to_owned();
        Watchers {
            scraper: std::thread::spawn(move || scrape(&of_scraper, &stop)),
            stream: std::thread::spawn(move || follow(&of_stream)),
        }
    }
}

/// Reads the metrics each second, as Prometheus does; returns the sizes of the responses.
fn scrape(admin: &str, stop: &AtomicBool) -> Vec<usize> {
    let mut sizes = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(admin).unwrap();
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        sizes.push(response.len());
        sleep_second();
    }
    sizes
}

/// Holds one live stream until the gateway ends; returns how many samples and decisions it had.
fn follow(admin: &str) -> [usize; 2] {
    let mut stream = TcpStream::connect(admin).unwrap();
    let request = format!("GET /v1/events?kinds=sample,decision HTTP/1.1\r\nHost: {admin}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut counts = [0; 2];
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        counts[0] += usize::from(line == "event: sample");
        counts[1] += usize::from(line == "event: decision");
    }
    counts
}

/// A webhook that fails the first message; counts what it gets.
fn receiver(received: &Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let received = received.clone();
    // It ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = BufReader::new(stream);
            let mut length = 0;
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                    break;
                }
                let (name, value) = line.split_once(':').unwrap_or_default();
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.trim().parse().unwrap();
                }
            }
            drop(stream.read_exact(&mut vec![0; length]));
            let status = match received.fetch_add(1, Ordering::Relaxed) {
                0 => "500 Failed",
                _ => "204 Taken",
            };
            let response =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            drop(stream.get_mut().write_all(response.as_bytes()));
        }
    });
    address.to_string()
}

/// Rounds of faults in a run of this many seconds.
fn fault_rounds(seconds: usize) -> usize {
    (seconds / 20).clamp(1, FAULT_ROUNDS_MAX)
}

/// A provider that fails again and again in the given seconds, in four ways each time.
fn failing_provider(seconds: usize) -> Settings {
    let rounds = fault_rounds(seconds);
    let round = seconds * 1000 / rounds;
    let fault_ms = (round / 8).min(FAULT_MS_MAX);
    let mut settings = Settings::with_rules("sliding 200/1s").unwrap();
    for begin in (0..rounds).map(|number| number * round) {
        let part = |nth: usize| {
            let from = begin + nth * round / 8;
            format!("{from}ms..{}ms", from + fault_ms)
        };
        for fault in [
            format!("outage {} 503", part(2)),
            format!("reset-before {}", part(4)),
            format!("reset-after {}", part(5)),
            format!("drip {} 1ms", part(6)),
        ] {
            settings = settings.fault(&fault).unwrap();
        }
    }
    settings
}

/// What the watchers saw.
#[derive(Debug)]
struct Watched {
    scrapes: Vec<usize>,
    samples: usize,
    decisions: usize,
    messages: usize,
    stderr: String,
}

/// The largest of what the samples show, as the figures of docs/faults.md.
#[expect(
    clippy::print_stdout,
    reason = "the long version is run for its figures"
)]
fn print_figures(samples: &[Sample], succeeded: usize, failed: usize, watched: &Watched) {
    let most = |of: fn(&Sample) -> u64| samples.iter().map(of).max().unwrap_or_default();
    println!(
        "soak: {} s, {} rounds of faults, {succeeded} calls and {failed} failed, memory {} KiB at most and {} KiB at the end, {} handles at \
         most, SQLite's log {} bytes at most, {} bytes of log files and {} of NDJSON at most, {} scrapes of {} bytes at most, a live stream \
         with {} samples and {} decisions, {} webhook messages, {} bytes of standard error",
        samples.len(),
        fault_rounds(samples.len()),
        most(|sample| sample.memory_kib),
        samples.last().map_or(0, |sample| sample.memory_kib),
        most(|sample| sample.handles.unwrap_or_default() as u64),
        most(|sample| sample.wal),
        most(|sample| sample.log),
        most(|sample| sample.ndjson),
        watched.scrapes.len(),
        watched.scrapes.iter().max().unwrap_or(&0),
        watched.samples,
        watched.decisions,
        watched.messages,
        watched.stderr.len(),
    );
}

/// Files and messages are bounded, and everything that watches was served to the end.
fn check_watchers(samples: &[Sample], succeeded: usize, watched: &Watched) {
    for (name, of) in [
        ("log", (|one| one.log) as fn(&Sample) -> u64),
        ("NDJSON", |one| one.ndjson),
    ] {
        let most = samples.iter().map(of).max().unwrap();
        assert!(most <= FILES_MAX, "{name}: {most} bytes, not {FILES_MAX}");
        let is_rotated = is_long() || succeeded >= ROTATING_CALLS;
        assert!(
            most > FILE_MAX || !is_rotated,
            "{name}: never rotated, {most} bytes"
        );
    }
    let stderr = &watched.stderr;
    assert!(stderr.len() <= STDERR_MAX, "{stderr}");
    let seconds = samples.len();
    let largest = watched.scrapes.iter().max().unwrap();
    assert!(*largest <= METRICS_MAX, "{largest} bytes of metrics");
    // The clocks of the threads and of the gateway are not the same second.
    // In a short run beside other tests those who watch stand still for a large part of it.
    let least = |of: usize| if is_long() { of / 2 } else { 1 };
    assert!(watched.scrapes.len() >= least(seconds), "{watched:?}");
    assert!(watched.samples >= least(seconds), "{watched:?}");
    // A reader that falls behind may lose some, never most.
    assert!(watched.decisions >= least(succeeded), "{watched:?}");
    // The message that the receiver fails, and it again.
    assert!(
        (2..=MESSAGES_MAX).contains(&watched.messages),
        "{watched:?}"
    );
}

/// A18: load, faults, callers that come, go and hang up, and all who watch: in the last quarter the gateway has no more
/// memory and no more handles than in the second (in a short run: the third), and its files have not grown with the calls.
#[test]
fn a18_a_soak_leaves_memory_handles_and_log_as_they_were() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seconds = seconds();
    let provider = runtime
        .block_on(SimProvider::start(failing_provider(seconds)))
        .unwrap();
    // Less than the alert's threshold remains from the second call of an entity on.
    let file = format!(
        "name: x\nupstream: {}\nlimits: [200/1s, {{limit: 1000000, period: 1d, per: entity}}]\n\
         entities: {{from: path}}\nhealth: {{sleep_first: 1s, sleep_min: 1s}}\nalerts: {{warning: 999999}}\n",
        provider.url()
    );
    let messages: Arc<AtomicUsize> = Arc::default();
    let config = format!(
        "log: {{file: gateway.log, max_size: {FILE_MAX}, keep: {FILES_KEPT}, access: true}}\n\
         metrics: {{ndjson: own.ndjson, every: 1s}}\n\
         alerts: {{webhooks: [{{url: 'http://{}/hook', secret: webhook-secret}}]}}\n", // tidy:canary
        receiver(&messages)
    );
    let folder = Folder::new("soak")
        .file("x.yaml", &file)
        .file("tollgate.yaml", &config);
    let Gateway {
        mut child,
        gateway,
        admin,
        stderr,
    } = start(&folder);
    let stop = Arc::new(AtomicBool::new(false));
    let watchers = Watchers::start(&admin, &stop);
    let results: Arc<[AtomicUsize; 2]> = Arc::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (stop, results) = (stop.clone(), results.clone());
            let gateway = gateway.clone();
            std::thread::spawn(move || client(&gateway, number, &stop, &results))
        })
        .collect();
    let mut samples = Vec::new();
    for _ in 0..seconds {
        sleep_second();
        samples.push(sample(child.id(), &folder));
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    let report = runtime.block_on(provider.stop());
    let scrapes = watchers.scraper.join().unwrap();
    let killed = Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let [streamed, decisions] = watchers.stream.join().unwrap();
    let watched = Watched {
        scrapes,
        samples: streamed,
        decisions,
        messages: messages.load(Ordering::Relaxed),
        stderr: stderr.join().unwrap(),
    };

    let [succeeded, failed] = results
        .each_ref()
        .map(|count| count.load(Ordering::Relaxed));
    print_figures(&samples, succeeded, failed, &watched);

    check_kernel(&samples);
    check_watchers(&samples, succeeded, &watched);
    assert!(
        succeeded > if is_long() { 10 * seconds } else { seconds } && failed == 0,
        "{succeeded} succeeded, {failed} failed"
    );
    assert_eq!(report.violations, 0, "{report:?}");
}

/// Memory, handles and SQLite's log are as they were.
fn check_kernel(samples: &[Sample]) {
    let quarter = samples.len() / 4;
    // The only outage of a short run is in its second quarter: while hardly anybody calls, it needs less.
    let first = if is_long() { quarter } else { 2 * quarter };
    let (early, late) = (&samples[first..first + quarter], &samples[3 * quarter..]);
    let (before, after) = (median(early), median(late));
    assert!(after <= before + KIB_SLACK, "memory in KiB: {samples:?}");
    let table = |samples: &[Sample]| samples.iter().map(|sample| sample.handle_table).max();
    // Below its second size the table may grow at any time.
    let table_max = table(early).max(Some(TABLE_MIN));
    assert!(table(late) <= table_max, "handles: {samples:?}");
    let handles = |samples: &[Sample]| samples.iter().filter_map(|sample| sample.handles).max();
    if let (Some(before), Some(after)) = (handles(early), handles(late)) {
        let most = before.max(HANDLES_MIN) + HANDLES_SLACK;
        assert!(after <= most, "handles: {samples:?}");
    }
    let wal = samples.iter().map(|sample| sample.wal).max();
    assert!(wal <= Some(WAL_MAX), "SQLite's log: {samples:?}");
}
