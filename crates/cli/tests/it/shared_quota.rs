//! Programs of both libraries and a gateway on one folder share one quota, judged by the provider.
//!
//! Three processes with the Rust library, three with the Python library (each with a daemon of its
//! own), and a gateway. `cargo test -p tollgate-cli --test it shared_quota -- --nocapture` prints the
//! use of the quota; `TOLLGATE_SHARED_SECONDS` makes it longer.
//!
//! Why a bucket: of a window W, rule A uses at most W / (W + RTT), and on a busy machine seven processes
//! respond in 50 ms and more: 95 % of a window of a second, whatever Tollgate does. A token of a bucket
//! that nobody takes at once stays there, up to the burst, here what comes in within a second. So
//! nothing is lost while somebody waits, and the use of the whole run, from the first arrival to the
//! last, burst included, does not depend on how fast the machine is. There is demand all that time: the
//! callers of each process alone want more than there is, and each that waits when its time is up still
//! makes its call. What remains is the error of clocks that the bucket allows for (0.1 %).

#![expect(
    clippy::print_stdout,
    reason = "workers report on their standard output, and the test prints the use of the quota"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tollgate::reqwest::Governed;
use tollgate::{Provider, Tollgate};
use tollgate_sim::http::{Settings, SimProvider};

use crate::folder::Folder;
use crate::processes::Program;
use crate::python::{python, root};

/// Which process this is: set for a worker, which is this test program started again.
const WORKER: &str = "TOLLGATE_SHARED_WORKER";
/// As the provider counts, and as the file says it.
const RULE: &str = "bucket 50/1s burst 50";
const LIMIT: &str = "{limit: 50, period: 1s, algorithm: token-bucket, burst: 50}";
/// Callers of one process: each process alone wants more than there is.
const CALLERS: usize = 4;
/// Of what the provider would have accepted from callers that know its bucket, in percent. Seven processes
/// beside other tests do not always have the processor in time: a short run must reach less.
const LEAST_USE: f64 = 98.0;
const LEAST_USE_OF_SHORT_RUNS: f64 = 80.0;
/// A machine that stops all processes for longer than a second fills the bucket, which lowers the use
/// and never raises it: one run of these must reach it. No run may exceed the limit.
const RUNS: usize = 3;

/// A process that calls until its time is up.
struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts it, and waits until it is ready.
    fn start(mut command: Command) -> Worker {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let stdin = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut worker = Worker {
            child,
            stdin,
            lines,
        };
        worker.line_with("ready");
        worker
    }

    fn go(&mut self) {
        self.stdin.write_all(b"go\n").expect("it reads");
    }

    /// The next line with this word, after it.
    fn line_with(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.lines.read_line(&mut line).expect("text");
            assert!(read > 0, "it ended without `{word}`");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// How many of its calls were accepted.
    fn accepted(&mut self) -> usize {
        self.line_with("accepted ").parse().expect("a number")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn seconds() -> u64 {
    let set = std::env::var("TOLLGATE_SHARED_SECONDS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// Three Rust processes, three Python processes and a gateway: no violation, no call is lost, and all of
/// the quota is used.
#[test]
fn both_libraries_and_a_gateway_share_one_quota() {
    let is_short = std::env::var_os("TOLLGATE_SHARED_SECONDS").is_none();
    let least = if is_short {
        LEAST_USE_OF_SHORT_RUNS
    } else {
        LEAST_USE
    };
    let mut uses = Vec::new();
    for _ in 0..RUNS {
        let used = use_of_one_run();
        println!("{used:.1} % of the quota used, no violation");
        if used >= least {
            return;
        }
        uses.push(used);
    }
    panic!("no run used {least} % of the quota: {uses:?}");
}

/// Runs all processes once, and checks that none exceeds the limit. Returns the use in percent.
fn use_of_one_run() -> f64 {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let settings = Settings::with_rules(RULE).expect("rules");
    let provider = runtime
        .block_on(SimProvider::start(settings))
        .expect("it starts");
    let file = format!(
        "name: x\nupstream: {}\ndomain: api.example.org\nlimits: [{LIMIT}]\n",
        provider.url()
    );
    let folder = Folder::new("shared-quota").file("x.yaml", &file);
    let store = folder.path().join("state");
    let store = format!("sqlite:{}", store.display());
    let gateway = Program::start(&folder, &["--provider", "x.yaml", "--store", &store]);
    let mut workers: Vec<Worker> = Vec::new();
    for _ in 0..3 {
        workers.push(Worker::start(rust_worker(&folder, &store, None)));
        workers.push(Worker::start(python_worker(&folder, &provider.url())));
    }
    // The callers of the gateway are a process too; they are not governed.
    let at_gateway = format!("http://{}/x", gateway.address);
    workers.push(Worker::start(rust_worker(
        &folder,
        "memory:",
        Some(&at_gateway),
    )));
    workers.iter_mut().for_each(Worker::go);
    let accepted: Vec<usize> = workers.iter_mut().map(Worker::accepted).collect();
    drop(workers);
    drop(gateway);
    let report = runtime.block_on(provider.stop());
    let quota = report
        .scopes
        .first()
        .and_then(|scope| scope.rules.first()?.quota);
    println!("accepted by process: {accepted:?}; use of the quota: {quota:?}");
    assert_eq!(report.violations, 0, "{report:?}");
    assert_eq!(
        accepted.iter().sum::<usize>(),
        report.accepted,
        "no call is lost"
    );
    assert_eq!(report.duplicates, 0);
    quota.expect("a bucket has a quota").percent
}

fn rust_worker(folder: &Folder, store: &str, gateway: Option<&str>) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            "shared_quota::a_worker_of_the_rust_library",
            "--exact",
            "--nocapture",
        ])
        .current_dir(folder.path())
        .env(WORKER, store)
        .env("TOLLGATE_SHARED_SECONDS", seconds().to_string());
    if let Some(gateway) = gateway {
        command.env("TOLLGATE_SHARED_GATEWAY", gateway);
    }
    command
}

fn python_worker(folder: &Folder, url: &str) -> Command {
    let clients = root().join("clients/python");
    let mut command = Command::new(python());
    command
        .arg(clients.join("tests/quota_worker.py"))
        .args(["state", "x.yaml", url, &seconds().to_string()])
        .current_dir(folder.path())
        .env("TOLLGATE_BIN", env!("CARGO_BIN_EXE_tollgate"))
        .env("PYTHONPATH", clients.join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Not a test of its own: what a process of the test above does.
#[test]
fn a_worker_of_the_rust_library() {
    let Ok(store) = std::env::var(WORKER) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(worker(store));
}

async fn worker(store: String) {
    let gateway = std::env::var("TOLLGATE_SHARED_GATEWAY").ok();
    let builder = Tollgate::builder().store(store);
    let builder = match gateway {
        Some(_) => builder.provider(Provider::new("unlimited")),
        None => builder.provider_file("x.yaml"),
    };
    let tollgate = builder.expect("valid").build().await.expect("it starts");
    let client = Governed::new(&tollgate, reqwest::Client::builder()).expect("a client");
    let base = gateway.unwrap_or_else(|| "https://api.example.org".to_owned());
    println!("\nready");
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .expect("the word to go");
    let time = Duration::from_secs(seconds());
    let mut calls = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (client, url) = (client.clone(), format!("{base}/items/{caller}"));
        calls.spawn(async move { call_until(&client, &url, time).await });
    }
    let mut accepted = 0;
    while let Some(one) = calls.join_next().await {
        accepted += one.expect("it ran");
    }
    println!("\naccepted {accepted}");
}

/// Calls until the time is up; returns how many were accepted.
#[expect(clippy::disallowed_methods, reason = "it lets real time pass")]
async fn call_until(client: &Governed, url: &str, time: Duration) -> usize {
    let end = tokio::time::Instant::now() + time;
    let mut accepted = 0;
    loop {
        let rest = end.saturating_duration_since(tokio::time::Instant::now());
        if rest.is_zero() {
            return accepted;
        }
        // Without a timeout of its own: one that is cut may have been counted.
        let request = client.get(url).dedup(false);
        match request.send().await {
            Ok(response) if response.status() == 200 => accepted += 1,
            Ok(_) | Err(_) => {}
        }
    }
}
