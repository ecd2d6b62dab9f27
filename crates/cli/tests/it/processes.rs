//! Several programs on one folder, killed and restarted, judged by the provider's own log.
//!
//! These tests assert only safety; other tests measure what a busy machine can slow down.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tollgate_sim::http::{KeyLocation, Settings, SimProvider};

use crate::faults::noon_time_zone;
use crate::folder::Folder;

/// A running `tollgate serve`, killed when the test ends.
pub(crate) struct Program {
    child: Child,
    pub(crate) address: String,
    /// Held open, so that it can continue to print.
    lines: Option<BufReader<ChildStdout>>,
}

impl Program {
    pub(crate) fn start(folder: &Folder, args: &[&str]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.env_clear();
        Program::start_with(command, folder, args, Stdio::null())
    }

    /// Runs a command that ends with the program's name; its log goes to `log`.
    pub(crate) fn start_with(
        mut command: Command,
        folder: &Folder,
        args: &[&str],
        log: Stdio,
    ) -> Program {
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(args)
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let address = first.trim().rsplit("http://").next().unwrap().to_owned();
        Program {
            child,
            address,
            lines: Some(lines),
        }
    }

    /// Closes its standard output.
    fn close_stdout(mut self) -> Program {
        self.lines = None;
        self
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The status of one call; `None` where the program has ended.
fn call(address: &str, number: usize) -> Option<u16> {
    Some(get(address, number)?.0)
}

/// Status and text of one call; `None` where the program has ended.
pub(crate) fn get(address: &str, number: usize) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .ok()?;
    let request = format!(
        "GET /strict/items/{number} HTTP/1.1\r\nHost: g\r\nX-Call-Id: {number}\r\nX-Tollgate-Timeout: 20s\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let status = response.get(9..12)?.parse().ok()?;
    Some((status, response))
}

/// Clients that send one call after the other until they are stopped.
struct Flood {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Flood {
    fn start(addresses: &[&str], clients: usize) -> Flood {
        let (stop, answered) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let next = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for address in addresses {
            for _ in 0..clients {
                let (address, stop) = ((*address).to_owned(), stop.clone());
                let (answered, next) = (answered.clone(), next.clone());
                threads.push(thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match call(&address, next.fetch_add(1, Ordering::Relaxed)) {
                            Some(200) => answered.fetch_add(1, Ordering::Relaxed),
                            // Another process holds the lock for long: it may go on.
                            Some(503) => continue,
                            Some(_) => return, // rejected: the quota is used up
                            None => return,    // killed
                        };
                    }
                }));
            }
        }
        Flood {
            stop,
            answered,
            threads,
        }
    }

    /// Waits until `calls` calls got a 200, or every client has ended.
    fn until(&self, calls: usize) {
        while self.answered.load(Ordering::Relaxed) < calls
            && self.threads.iter().any(|thread| !thread.is_finished())
        {
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.answered.load(Ordering::Relaxed)
    }
}

/// A provider that judges its requests, with its own runtime.
pub(crate) struct JudgedProvider {
    runtime: tokio::runtime::Runtime,
    provider: SimProvider,
}

impl JudgedProvider {
    pub(crate) fn start(rules: &str) -> JudgedProvider {
        JudgedProvider::start_with(Settings::with_rules(rules).unwrap())
    }

    fn start_with(settings: Settings) -> JudgedProvider {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let provider = runtime.block_on(SimProvider::start(settings)).unwrap();
        JudgedProvider { runtime, provider }
    }

    pub(crate) fn file(&self, rest: &str) -> String {
        format!("name: strict\nupstream: {}\n{rest}\n", self.provider.url())
    }

    /// The number of requests that arrived in each scope.
    fn arrived(&self) -> Vec<usize> {
        let judges = self.provider.judges().into_iter();
        judges.map(|(_, judge)| judge.arrivals().len()).collect()
    }

    /// The number of requests that arrived, and the number of violations.
    pub(crate) fn verdict(self) -> (usize, usize) {
        let arrived = self.arrived().into_iter().sum();
        let report = self.runtime.block_on(self.provider.stop());
        (arrived, report.violations)
    }
}

pub(crate) fn sqlite(folder: &Folder) -> Vec<String> {
    let folder: &Path = folder.path();
    vec![
        "--provider".into(),
        "strict.yaml".into(),
        "--store".into(),
        format!("sqlite:{}", folder.join("state").display()),
    ]
}

pub(crate) fn as_args(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// A13, A18 scenario 6: three programs share one bucket of 35/s and 3 concurrent calls without a
/// daemon, at a provider that allows 4; one is killed during the run. The provider limits nothing.
/// The next test, and a machine that keeps up (`docs/benchmarks.md`), show that they use all of it.
#[test]
fn a13_a18_6_three_programs_share_one_bucket_and_one_is_killed() {
    let judge = JudgedProvider::start("bucket 35/1s burst 35, in-flight 4");
    let yaml =
        "limits: [{limit: 35, period: 1s, algorithm: token-bucket, burst: 35}]\nconcurrency: 3";
    let folder = Folder::new("a13").file("strict.yaml", &judge.file(yaml));
    let args = sqlite(&folder);
    let mut programs = [0, 1, 2].map(|_| Program::start(&folder, &as_args(&args)));
    let addresses: Vec<&str> = programs
        .iter()
        .map(|program| program.address.as_str())
        .collect();
    let flood = Flood::start(&addresses, 4);
    flood.until(40);
    programs[0].kill();
    flood.until(110);
    let answered = flood.end();
    let (arrived, violations) = judge.verdict();
    assert_eq!(violations, 0);
    assert!(
        answered >= 110 && arrived >= answered,
        "{answered} of {arrived}"
    );
}

/// A13: together they use the whole quota, to the last call, however slow the machine.
#[test]
fn a13_three_programs_together_use_all_of_one_quota() {
    const QUOTA: usize = 60;
    let judge = JudgedProvider::start("first-use 60/1d");
    let folder = Folder::new("a13-all").file("strict.yaml", &judge.file("limits: [60/1d]"));
    let args = sqlite(&folder);
    let programs = [0, 1, 2].map(|_| Program::start(&folder, &as_args(&args)));
    let addresses: Vec<&str> = programs
        .iter()
        .map(|program| program.address.as_str())
        .collect();
    let flood = Flood::start(&addresses, 4);
    flood.until(usize::MAX);
    assert_eq!((flood.end(), judge.verdict()), (QUOTA, (QUOTA, 0)));
}

/// A13: one is killed during the run, and the others use what is left to the last call. Only what the
/// killed one had in flight may be wasted: nobody knows whether it was sent.
#[test]
fn a13_the_others_use_the_rest_of_a_quota_after_a_kill() {
    const QUOTA: usize = 120;
    const CLIENTS: usize = 4;
    let judge = JudgedProvider::start("first-use 120/1d");
    let folder = Folder::new("a13-kill").file("strict.yaml", &judge.file("limits: [120/1d]"));
    let args = sqlite(&folder);
    let mut programs = [0, 1, 2].map(|_| Program::start(&folder, &as_args(&args)));
    let addresses: Vec<&str> = programs
        .iter()
        .map(|program| program.address.as_str())
        .collect();
    let flood = Flood::start(&addresses, CLIENTS);
    flood.until(30);
    programs[0].kill();
    flood.until(usize::MAX);
    flood.end();
    let (arrived, violations) = judge.verdict();
    assert_eq!(violations, 0);
    assert!(
        arrived <= QUOTA && arrived + CLIENTS >= QUOTA,
        "{arrived} of {QUOTA}"
    );
}

/// A program that was killed three times under load, after some more calls each time, and has then
/// used all that was left.
fn killed_three_times(folder: &Folder, clients: usize, calls: usize) -> Program {
    let args = sqlite(folder);
    for kill in 1..=3 {
        let mut program = Program::start(folder, &as_args(&args));
        let flood = Flood::start(&[&program.address], clients);
        flood.until(calls * kill);
        program.kill();
        flood.end();
    }
    let program = Program::start(folder, &as_args(&args));
    Flood::start(&[&program.address], clients).until(usize::MAX);
    program
}

/// M14: OMDb's quota is that of a calendar day and of each key. Both keys' quotas survive three
/// kills under load: never exceeded, and used except for the calls in flight at each kill.
#[test]
fn m14_a_calendar_day_of_each_key_survives_kills_under_load() {
    const QUOTA: usize = 60;
    const CLIENTS: usize = 6;
    let settings = Settings::with_rules("fixed 60/1d").unwrap();
    let place = KeyLocation::Query("apikey".to_owned());
    let judge = JudgedProvider::start_with(settings.per_key(place));
    let noon = noon_time_zone();
    let rest = format!(
        "preset: omdb\napi_keys: [one, two]\ncache: {{ttl: 0s}}\n\
        limits: [{{limit: 60, period: 1d, algorithm: calendar, timezone: {noon}, per: api_key}}]"
    );
    let folder = Folder::new("m14-key").file("strict.yaml", &judge.file(&rest));
    let program = killed_three_times(&folder, CLIENTS, 10);
    assert_eq!(call(&program.address, 9_999), Some(429));
    let arrived = judge.arrived();
    let (total, violations) = judge.verdict();
    assert_eq!((violations, arrived.len()), (0, 2), "{arrived:?}");
    assert!(
        arrived.iter().all(|key| *key <= QUOTA) && total + 3 * CLIENTS >= 2 * QUOTA,
        "{arrived:?}"
    );
}

/// M14, H9: a daily quota of 200 survives three kills under load: never exceeded, and at the end
/// used except for the calls in flight at each kill.
#[test]
fn m14_h9_a_daily_quota_survives_kills_under_load() {
    const QUOTA: usize = 200;
    const CLIENTS: usize = 8;
    let judge = JudgedProvider::start("first-use 200/1d");
    let folder = Folder::new("m14").file("strict.yaml", &judge.file("limits: [200/1d]"));
    let program = killed_three_times(&folder, CLIENTS, 20);
    let rejected = call(&program.address, 9_999);
    let (arrived, violations) = judge.verdict();
    assert_eq!((violations, rejected), (0, Some(429)));
    // A permit held at the kill counts as used, whether its bytes were sent or not.
    assert!(
        arrived <= QUOTA && arrived + 3 * CLIENTS >= QUOTA,
        "{arrived} of {QUOTA}"
    );
}

/// The reader of its output may stop reading: the program continues.
#[test]
fn a_program_with_closed_output_keeps_running() {
    let judge = JudgedProvider::start("sliding 9/1s");
    let folder = Folder::new("unread").file("strict.yaml", &judge.file("limits: [9/1s]"));
    let args = sqlite(&folder);
    let program = Program::start(&folder, &as_args(&args)).close_stdout();
    assert_eq!(call(&program.address, 1), Some(200));
}
