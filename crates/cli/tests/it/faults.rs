//! The whole program on a disk that fails and under a clock that is set, judged by the provider's own
//! log. strace makes the disk fail, libfaketime sets the clock; without them these tests fail, so that
//! nobody believes that they ran.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::UNIX_EPOCH;

use tollgate_ledger::Clock;

use crate::folder::Folder;
use crate::processes::{JudgedProvider, Program, as_args, get, sqlite};

const QUOTA: usize = 100;

/// Calls at a time.
const CLIENTS: usize = 4;

/// Under strace, whose child the program is not: the program itself can be killed.
fn strace(calls: &str, error: &str, when: &str) -> Command {
    let found = Command::new("strace").arg("--version").output();
    assert!(found.is_ok(), "strace is missing; `make tools` installs it");
    let mut command = Command::new("strace");
    command
        .env_clear()
        .args(["--daemonize", "--follow-forks", "--quiet=all"])
        .args(["--output=/dev/null", &format!("--trace={calls}")])
        .arg(format!("--inject={calls}:error={error}:when={when}"))
        .arg(env!("CARGO_BIN_EXE_tollgate"));
    command
}

/// A provider's file and a state folder, and who judges.
struct FaultTest {
    judge: JudgedProvider,
    folder: Folder,
    calls: AtomicUsize,
}

impl FaultTest {
    fn new(name: &str, rules: &str, limits: &str) -> FaultTest {
        let judge = JudgedProvider::start(rules);
        let folder = Folder::new(name).file("strict.yaml", &judge.file(limits));
        FaultTest {
            judge,
            folder,
            calls: AtomicUsize::new(0),
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn start(&self, command: Command) -> Program {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        let args = sqlite(&self.folder);
        Program::start_with(command, &self.folder, &as_args(&args), Stdio::from(log))
    }

    fn start_without_faults(&self) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.env_clear();
        self.start(command)
    }

    /// One call; it has an answer, whatever happens to the disk.
    fn call(&self, program: &Program) -> (u16, String) {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        get(&program.address, number).expect("an answer")
    }

    /// Some clients that call until one of them is answered in this way, or all of them have called so
    /// often. Returns how many were answered well, and every other answer.
    fn call_until(&self, program: &Program, most: usize, last: u16) -> (usize, Vec<(u16, String)>) {
        let is_over = AtomicUsize::new(0);
        let client = || {
            let (mut well, mut others) = (0, Vec::new());
            for _ in 0..most {
                if is_over.load(Ordering::Relaxed) > 0 {
                    break;
                }
                let answer = self.call(program);
                is_over.fetch_add(usize::from(answer.0 == last), Ordering::Relaxed);
                match answer.0 {
                    200 => well += 1,
                    _ => others.push(answer),
                }
            }
            (well, others)
        };
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            let mut all = (0, Vec::new());
            for one in clients {
                let (well, others) = one.join().unwrap();
                all.0 += well;
                all.1.extend(others);
            }
            all
        })
    }

    /// Calls until the quota is used up.
    fn exhaust_quota(&self, program: &Program) -> usize {
        let (well, others) = self.call_until(program, QUOTA + 1, 429);
        assert!(
            others.iter().all(|(status, _)| *status == 429),
            "{others:?}"
        );
        well
    }
}

/// The error that a caller gets while the store is lost says so.
fn assert_store_lost((status, text): &(u16, String)) {
    assert_eq!(*status, 503, "{text}");
    assert!(
        text.contains("\"StoreLost\"") && text.contains("\"reason\":\"store_lost\""),
        "{text}"
    );
}

/// R-A3, under `closed`: a disk that does not keep what was written is not believed again. From then on
/// every call is refused with the reason, and after a restart on a sound disk the rest of the quota is
/// there.
#[test]
fn a_sync_that_fails_under_load_closes_the_gateway_until_it_is_restarted() {
    for error in ["EIO", "ENOSPC"] {
        let name = format!("sync-{error}");
        let scene = FaultTest::new(&name, "first-use 100/1d", "limits: [100/1d]");
        let mut program = scene.start(strace("fsync,fdatasync", error, "12+"));
        let (before, refused) = scene.call_until(&program, QUOTA, 503);
        assert!(before > 0 && !refused.is_empty(), "{error}: {before}");
        refused.iter().for_each(assert_store_lost);
        for _ in 0..3 {
            assert_store_lost(&scene.call(&program));
        }
        program.kill();
        let after = scene.exhaust_quota(&scene.start_without_faults());
        let (arrived, violations) = scene.judge.verdict();
        assert_eq!((violations, arrived), (0, before + after), "{error}");
        // What was granted in the transaction that failed was handed out to nobody.
        assert!(
            (QUOTA - CLIENTS..=QUOTA).contains(&arrived),
            "{error}: {arrived}"
        );
    }
}

/// R-A3, R-A4: writes fail for a while. Calls are refused with the reason for as long, and go on by
/// themselves; nothing is counted that was not granted.
#[test]
fn calls_are_rejected_exactly_while_writes_fail() {
    for error in ["EIO", "ENOSPC"] {
        let name = format!("write-{error}");
        let scene = FaultTest::new(&name, "first-use 100/1d", "limits: [100/1d]");
        let program = scene.start(strace("pwrite64", error, "60..90"));
        let (before, refused) = scene.call_until(&program, QUOTA, 503);
        assert!(before > 0 && !refused.is_empty(), "{error}: {before}");
        let (mid, lost) = scene.call_until(&program, 10_000, 200);
        assert!(mid > 0, "{error}: it never went on");
        refused.iter().chain(&lost).for_each(assert_store_lost);
        let after = scene.exhaust_quota(&program);
        let (arrived, violations) = scene.judge.verdict();
        assert_eq!((violations, arrived), (0, before + mid + after), "{error}");
        assert!(
            (QUOTA - CLIENTS..=QUOTA).contains(&arrived),
            "{error}: {arrived}"
        );
    }
}

/// Under `open` and `local-share` calls go on while the disk fails, as the file has asked for.
#[test]
fn calls_continue_on_a_failing_disk_under_open_and_local_share() {
    for policy in ["open", "local-share"] {
        let limits = format!("limits: [100/1s]\non_store_loss: {policy}");
        let scene = FaultTest::new(&format!("loss-{policy}"), "sliding 100/1s", &limits);
        let program = scene.start(strace("pwrite64", "EIO", "60..90"));
        let mut answered = 0;
        let log = |event: &str| fs::read_to_string(scene.log()).unwrap().contains(event);
        for round in 0.. {
            if log("store_back") {
                break;
            }
            assert!(round < 1_000, "{policy}: the store never comes back");
            let (well, others) = scene.call_until(&program, 10, 0);
            // Each node rests before it uses its share, so that all know of the loss.
            let rests = policy == "local-share";
            for (status, text) in others {
                assert!(rests && [429, 503].contains(&status), "{policy}: {text}");
            }
            answered += well;
        }
        assert!(log("store_lost"), "{policy}");
        assert!(answered > 0 && scene.call(&program).0 == 200, "{policy}");
        drop(program);
        if policy == "local-share" {
            assert_eq!(scene.judge.verdict().1, 0);
        }
    }
}

/// The library that sets a process's clocks.
fn libfaketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = |folder: fs::DirEntry| folder.path().join("faketime/libfaketime.so.1");
    let found = folders.map(library).find(|path| path.exists());
    found.expect("libfaketime is missing; `make tools` installs it")
}

/// A program whose wall clock is what a file says. Boot time stays as it is, as on a real host.
fn with_clock(file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .env_clear()
        .env("LD_PRELOAD", libfaketime())
        .env("FAKETIME_TIMESTAMP_FILE", file)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    command
}

/// By how many seconds the clock of whoever gave this answer is ahead.
fn clock_offset(answer: &str) -> i64 {
    let mut lines = answer.lines();
    let date = lines.find_map(|line| line.strip_prefix("date: "));
    let date = httpdate::parse_http_date(date.expect("a date")).unwrap();
    let since = date.duration_since(UNIX_EPOCH).unwrap().as_secs();
    since.cast_signed() - now().cast_signed()
}

/// Seconds since 1970.
fn now() -> u64 {
    Clock::System.now().wall.0 / 1_000_000
}

/// A time zone in which it is noon: no day ends while a test runs.
fn noon_time_zone() -> String {
    let hour = now() / 3_600 % 24;
    // In these names the sign is that of the way to Greenwich.
    match hour.checked_sub(12) {
        Some(0) => "UTC".to_owned(),
        Some(behind) => format!("Etc/GMT+{behind}"),
        None => format!("Etc/GMT-{}", 12 - hour),
    }
}

/// R-A7: the wall clock is set by a day, forth and back, while the gateway runs and across its
/// restarts. A daily quota, by the calendar or sliding, is neither given out again nor lost, and the
/// bucket beside it neither bursts nor stops.
#[test]
fn a_wall_clock_set_by_a_day_neither_frees_nor_loses_a_daily_quota() {
    let noon = noon_time_zone();
    for day in [
        format!("{{limit: 100, period: 1d, algorithm: calendar, timezone: {noon}}}"),
        "100/1d".to_owned(),
    ] {
        let limits = format!(
            "limits: [{day}, {{limit: 50, period: 1s, algorithm: token-bucket, burst: 10}}]"
        );
        let rules = "first-use 100/1d, bucket 50/1s burst 10";
        let scene = FaultTest::new("clock", rules, &limits);
        let clock = scene.folder.path().join("clock");
        let set = |offset: &str| fs::write(&clock, offset).unwrap();
        set("+0");
        let mut program = scene.start(with_clock(&clock));
        let mut well = 0;
        for offset in ["+1d", "-1d", "+0", "+1d", "-1d"] {
            for step in 0..16 {
                if step == 8 {
                    set(offset);
                }
                let status = scene.call(&program).0;
                assert_eq!(status, 200, "{day} at {offset}: nothing stops");
                well += 1;
            }
            program.kill();
            program = scene.start(with_clock(&clock));
        }
        well += scene.exhaust_quota(&program);
        for (offset, days) in [("+1d", 1), ("-1d", -1), ("+2d", 2)] {
            set(offset);
            assert_eq!(scene.call(&program).0, 429, "{day}: nothing opens");
            program.kill();
            program = scene.start(with_clock(&clock));
            let (status, text) = scene.call(&program);
            assert_eq!(status, 429, "{day}: nothing opens");
            assert!(
                (clock_offset(&text) - days * 86_400).abs() < 3_600,
                "{text}"
            );
        }
        let (arrived, violations) = scene.judge.verdict();
        assert_eq!((violations, arrived), (0, well), "{day}");
        assert_eq!(arrived, QUOTA, "{day}");
    }
}
