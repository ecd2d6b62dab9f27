//! A18: a gateway under load for a while: memory, file handles and log do not grow with the calls.
//!
//! Twenty seconds by default; `TOLLGATE_SOAK_SECONDS=10800` is the document's three hours.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_sim::http::{Settings, SimProvider};

use crate::folder::Folder;

/// Clients at a time: more than there are cores, so that the gateway is never idle.
const CLIENTS: usize = 8;

/// A client reconnects after this many calls.
const CALLS_PER_CONNECTION: usize = 50;

/// The bound of the log: events of an outage and of the start, and nothing per call.
const LOG_MAX: usize = 64 * 1024;

/// The variation of a sample: allocators keep pages, and timers come and go.
const KIB_SLACK: u64 = 8 * 1024;
const HANDLES_SLACK: usize = 8;

fn seconds() -> usize {
    let wanted = std::env::var("TOLLGATE_SOAK_SECONDS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(20)
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
}

fn sample(pid: u32) -> Sample {
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

/// Calls until it is stopped; counts successes and failures.
fn client(gateway: &str, number: usize, stop: &AtomicBool, results: &[AtomicUsize; 2]) {
    let mut made = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(stream) = TcpStream::connect(gateway) else {
            continue;
        };
        let mut stream = BufReader::new(stream);
        for _ in 0..CALLS_PER_CONNECTION {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            made += 1;
            // Separate paths: equal concurrent calls would be coalesced.
            let succeeded = call(&mut stream, &format!("/x/{number}/{made}")) == Some(200);
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

/// The gateway, its address, and its log up to its end.
fn start(folder: &Folder) -> (Child, String, JoinHandle<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--provider", "x.yaml", "--store", "sqlite:state"]);
    let mut child = folder
        .prepare(&mut command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut first).unwrap();
    let gateway = first.trim().rsplit("http://").next().unwrap().to_owned();
    let mut stderr = child.stderr.take().unwrap();
    let log = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).ok();
        text
    });
    (child, gateway, log)
}

/// A18: load, an outage, callers that come and go: in the last quarter the gateway has no more
/// memory and no more handles than in the second, and its log has not grown with the calls.
#[test]
fn a18_a_soak_leaves_memory_handles_and_log_as_they_were() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seconds = seconds();
    let outage = format!("outage {}s..{}s 503", seconds / 4, seconds / 4 + 2);
    let settings = Settings::with_rules("sliding 1000/1s").unwrap();
    let settings = settings.fault(&outage).unwrap();
    let provider = runtime.block_on(SimProvider::start(settings)).unwrap();
    let file = format!(
        "name: x\nupstream: {}\nlimits: [1000/1s]\nhealth: {{sleep_first: 1s, sleep_min: 1s}}\n",
        provider.url()
    );
    let folder = Folder::new("soak").file("x.yaml", &file);
    let (mut child, gateway, log) = start(&folder);
    let stop = Arc::new(AtomicBool::new(false));
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
        samples.push(sample(child.id()));
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    let report = runtime.block_on(provider.stop());
    let killed = Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let log = log.join().unwrap();

    let quarter = samples.len() / 4;
    let (early, late) = (&samples[quarter..2 * quarter], &samples[3 * quarter..]);
    let (before, after) = (median(early), median(late));
    assert!(after <= before + KIB_SLACK, "memory in KiB: {samples:?}");
    let table = |samples: &[Sample]| samples.iter().map(|sample| sample.handle_table).max();
    assert!(table(late) <= table(early), "handles: {samples:?}");
    let handles = |samples: &[Sample]| samples.iter().filter_map(|sample| sample.handles).max();
    if let (Some(before), Some(after)) = (handles(early), handles(late)) {
        assert!(after <= before + HANDLES_SLACK, "handles: {samples:?}");
    }
    assert!(log.len() <= LOG_MAX, "{} bytes of log: {log}", log.len());
    let [succeeded, failed] = results
        .each_ref()
        .map(|count| count.load(Ordering::Relaxed));
    assert!(
        succeeded > 1_000 && failed == 0,
        "{succeeded} succeeded, {failed} failed"
    );
    assert_eq!(report.violations, 0, "{report:?}");
}
