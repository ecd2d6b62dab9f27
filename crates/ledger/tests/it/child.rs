//! Child processes: this test binary, started again with a role.
//!
//! A child works on the given folder and reports to its standard output, a word and a number per
//! line. At a failpoint it reports and blocks, so that the parent can kill it exactly there. The
//! parent ends children by their process id, also when a test fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, failpoint};

use crate::process_group::ProcessGroup;
use crate::{conformance, role};

/// The environment variable with the role of a child and its arguments.
const ROLE: &str = "TOLLGATE_LEDGER_CHILD";

/// A child that reports nothing for this long hangs. Beside a compiler and on a busy disk the
/// longest silence is some seconds.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Reports that wait to be read. A child that is ahead by more waits, as it does for a full pipe.
const REPORTS_MAX: usize = 4_096;

/// What is kept of a child's standard error: a panic and its backtrace.
const ERRORS_MAX: usize = 64 * 1_024;

/// Called at every failpoint that the ledger or a role reaches.
static REACHED: OnceLock<Hook> = OnceLock::new();

type Hook = Box<dyn Fn(&str) + Send + Sync>;

/// A running child process.
pub(crate) struct Worker {
    child: Child,
    reports: Receiver<(String, u64)>,
    /// Reads its standard error to the end.
    errors: Option<JoinHandle<String>>,
}

impl Worker {
    pub(crate) fn start(role: &str, folder: &Path, words: &str) -> Worker {
        let command = Command::new(std::env::current_exe().unwrap());
        Worker::spawn(command, role, folder, words)
    }

    /// Starts a child under another program, whose last argument is the program to run.
    pub(crate) fn start_under(wrapper: Command, role: &str, folder: &Path, words: &str) -> Worker {
        let mut wrapper = wrapper;
        wrapper.arg(std::env::current_exe().unwrap());
        Worker::spawn(wrapper, role, folder, words)
    }

    /// Starts a child whose files may not grow beyond 600 blocks of 512 bytes: a full disk.
    pub(crate) fn start_on_a_full_disk(role: &str, folder: &Path, words: &str) -> Worker {
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' XFSZ; ulimit -f 600; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap());
        Worker::spawn(command, role, folder, words)
    }

    fn spawn(mut command: Command, role: &str, folder: &Path, words: &str) -> Worker {
        let mut child = command
            .args(["child::child_process_entry", "--exact", "--nocapture"])
            .env(ROLE, format!("{role} {} {words}", folder.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let reports = read_reports(child.stdout.take().unwrap());
        let errors = Some(read_errors(child.stderr.take().unwrap()));
        Worker {
            child,
            reports,
            errors,
        }
    }

    /// The next word and number it reports; `None` when it has ended.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<(String, u64)> {
        match self.reports.recv_timeout(SILENCE_MAX) {
            Ok(reported) => Some(reported),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!(
                    "the child {} reported nothing for {SILENCE_MAX:?}",
                    self.child.id()
                )
            }
        }
    }

    /// Skips reports until this word, and returns its number.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, word: &str) -> u64 {
        loop {
            match self.next() {
                Some((reported, number)) if reported == word => return number,
                Some(_) => {}
                None => {
                    let errors = self.errors();
                    panic!("the child ended before it reported `{word}`:\n{errors}")
                }
            }
        }
    }

    /// What an ended child wrote to its standard error.
    fn errors(&mut self) -> String {
        // It has closed its output: what still runs of it is no use.
        drop(self.child.kill());
        let errors = self.errors.take().map(JoinHandle::join);
        errors.and_then(Result::ok).unwrap_or_default()
    }

    /// Writes a line to its standard input.
    pub(crate) fn send_line(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Stops a child that has reported `at` for a failpoint with `stop:`. When it resumes, it goes on
    /// from there.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::STOP);
        // The kernel stops one thread after the other. The failpoint returns when it reads a line,
        // so no thread may be left that could.
        while !self.is_stopped() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self.send_line("continue");
    }

    /// Whether every thread is stopped. Panics if the child has ended.
    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        threads
            .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")))
            .all(|stat| {
                // "pid (name) state …"; a thread that has just ended runs nothing.
                let stat = stat.unwrap_or_default();
                let state = stat
                    .rsplit(") ")
                    .next()
                    .and_then(|rest| rest.chars().next());
                state.is_none_or(|state| "TXZ".contains(state))
            })
    }

    /// Sends SIGCONT after this time, from a thread of its own.
    pub(crate) fn resume_after(&self, time: Duration) -> JoinHandle<()> {
        let pid = self.pid();
        std::thread::spawn(move || {
            let end = Clock::System.now().at + Span::from(time);
            while Clock::System.now().at < end {
                std::thread::park_timeout(Duration::from_millis(50));
            }
            kill_process(pid, Signal::CONT).unwrap();
        })
    }

    /// Kills it with SIGKILL and returns what it reported until then.
    pub(crate) fn kill(mut self) -> Vec<(String, u64)> {
        self.signal(Signal::KILL);
        std::iter::from_fn(|| self.next()).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads what a child reports, on a thread that ends with it.
fn read_reports(stdout: ChildStdout) -> Receiver<(String, u64)> {
    let (sender, reports) = mpsc::sync_channel(REPORTS_MAX);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let Some((word, number)) = line.strip_prefix('@').and_then(|it| it.rsplit_once(' '))
            else {
                continue;
            };
            if sender
                .send((word.to_owned(), number.parse().unwrap()))
                .is_err()
            {
                return;
            }
        }
    });
    reports
}

/// Reads what a child writes to its standard error, on a thread that ends with it.
fn read_errors(stderr: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut stderr, mut kept) = (stderr, Vec::new());
        let mut part = [0; 4_096];
        // Read to its end, so that the child never waits for its reader.
        while let Ok(length @ 1..) = stderr.read(&mut part) {
            let room = ERRORS_MAX.saturating_sub(kept.len()).min(length);
            kept.extend_from_slice(&part[..room]);
        }
        String::from_utf8_lossy(&kept).into_owned()
    })
}

/// Not a test: the entry point of every child. Without a role it does nothing.
#[test]
fn child_process_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.trim().split(' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let stop = |failpoint: &str, times: &str| stop_at(failpoint, times.parse().unwrap());
    let number = |word: &str| word.parse::<u64>().unwrap();
    match words[..] {
        ["quota", folder, limit, at, times] => {
            stop(at, times);
            runtime.block_on(role::quota(folder, number(limit)));
        }
        ["ahead", folder, at, times] => {
            stop(at, times);
            runtime.block_on(role::ahead(folder));
        }
        ["spend", folder, limit, at, times, provider] => {
            stop(at, times);
            runtime.block_on(role::spend(folder, number(limit), provider));
        }
        ["hammer", folder, limit, millis, at, times] => {
            stop(at, times);
            let span = Span::from_millis(number(millis));
            runtime.block_on(role::hammer(folder, number(limit), span));
        }
        ["fill", folder, limit] => runtime.block_on(role::fill(folder, number(limit))),
        ["panic", folder, at] => {
            stop(at, "1");
            runtime.block_on(role::panics(folder));
        }
        ["hold", folder, cell] => runtime.block_on(role::hold(folder, cell)),
        ["outage", folder] => runtime.block_on(role::outage(folder)),
        ["clocks", folder, zone] => {
            runtime.block_on(role::clocks(folder, zone.parse().unwrap()));
        }
        ["connect", url] => runtime.block_on(role::connect(url)),
        ["open", folder] => role::open(folder),
        ["conform", folder, name, index, processes] => {
            let (index, processes) = (index.parse().unwrap(), processes.parse().unwrap());
            let group = ProcessGroup::member(folder, index, processes);
            runtime.block_on(conformance::run_named(name, &group));
        }
        ref other => panic!("no such role: {other:?}"),
    }
}

pub(crate) fn report(word: &str, number: u64) {
    // Bypasses the test harness, which captures only the output of the print macros.
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{word} {number}").unwrap();
    out.flush().unwrap();
}

/// The child has reached this failpoint.
pub(crate) fn reached(place: &str) {
    if let Some(hook) = REACHED.get() {
        hook(place);
    }
}

/// Reports and blocks when this failpoint is reached for the n-th time. With `stop:` before the
/// name it goes on when it reads a line, which [`Worker::stop`] writes once the process is stopped;
/// with `panic:` it panics.
fn stop_at(place: &str, times: u32) {
    let panics = place.starts_with("panic:");
    let place = place.strip_prefix("panic:").unwrap_or(place);
    let (stops, place) = match place.strip_prefix("stop:") {
        Some(place) => (true, place),
        None => (false, place),
    };
    let (place, seen) = (place.replace('-', " "), AtomicU32::new(0));
    let hook = move |reached: &str| {
        if reached == place && seen.fetch_add(1, Ordering::SeqCst) + 1 == times {
            report("at", Clock::System.now().at.0);
            assert!(!panics, "as the test says");
            if stops {
                std::io::stdin().read_line(&mut String::new()).unwrap();
                return;
            }
            loop {
                std::thread::park();
            }
        }
    };
    drop(REACHED.set(Box::new(hook)));
    failpoint::set(Box::new(reached));
}
