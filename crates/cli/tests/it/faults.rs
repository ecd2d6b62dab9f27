//! The whole program on a failing disk and with a clock that is set, judged by the provider's own
//! log. strace makes the disk fail, libfaketime sets the clock; without them these tests fail, so
//! that nobody believes that they ran.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::UNIX_EPOCH;

use tollgate_ledger::Clock;
use tollgate_sim::test_servers::faked_clock;

use crate::folder::Folder;
use crate::processes::{JudgedProvider, Program, as_args, get, sqlite};

const QUOTA: usize = 100;

/// Calls at a time.
const CLIENTS: usize = 4;

/// Runs under strace; the program is not its child, so a test can kill the program itself.
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

/// A judged provider, its provider file and a state folder.
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

    /// One call; it gets a response, whatever happens to the disk.
    fn call(&self, program: &Program) -> (u16, String) {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        get(&program.address, number).expect("a response")
    }

    /// Runs clients until one of them gets the status `last`, or each has made `most` calls.
    /// Returns the number of 200s, and every other response.
    fn call_until(&self, program: &Program, most: usize, last: u16) -> (usize, Vec<(u16, String)>) {
        let is_over = AtomicUsize::new(0);
        let client = || {
            let (mut succeeded, mut others) = (0, Vec::new());
            for _ in 0..most {
                if is_over.load(Ordering::Relaxed) > 0 {
                    break;
                }
                let response = self.call(program);
                is_over.fetch_add(usize::from(response.0 == last), Ordering::Relaxed);
                match response.0 {
                    200 => succeeded += 1,
                    _ => others.push(response),
                }
            }
            (succeeded, others)
        };
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            let mut all = (0, Vec::new());
            for one in clients {
                let (succeeded, others) = one.join().unwrap();
                all.0 += succeeded;
                all.1.extend(others);
            }
            all
        })
    }

    /// Calls until the quota is used up.
    fn exhaust_quota(&self, program: &Program) -> usize {
        let (succeeded, others) = self.call_until(program, QUOTA + 1, 429);
        assert!(
            others.iter().all(|(status, _)| *status == 429),
            "{others:?}"
        );
        succeeded
    }
}

/// While the store is lost, a caller's error says so.
fn assert_store_lost((status, text): &(u16, String)) {
    assert_eq!(*status, 503, "{text}");
    assert!(
        text.contains("\"StoreLost\"") && text.contains("\"reason\":\"store_lost\""),
        "{text}"
    );
}

/// R-A3, under `closed`: after a failed sync the disk is not trusted again. From then on every call
/// is rejected with the reason, and after a restart on a working disk the rest of the quota is
/// available.
#[test]
fn a_sync_that_fails_under_load_closes_the_gateway_until_it_is_restarted() {
    for error in ["EIO", "ENOSPC"] {
        let name = format!("sync-{error}");
        let test = FaultTest::new(&name, "first-use 100/1d", "limits: [100/1d]");
        let mut program = test.start(strace("fsync,fdatasync", error, "12+"));
        let (before, rejected) = test.call_until(&program, QUOTA, 503);
        assert!(before > 0 && !rejected.is_empty(), "{error}: {before}");
        rejected.iter().for_each(assert_store_lost);
        for _ in 0..3 {
            assert_store_lost(&test.call(&program));
        }
        program.kill();
        let after = test.exhaust_quota(&test.start_without_faults());
        let (arrived, violations) = test.judge.verdict();
        assert_eq!((violations, arrived), (0, before + after), "{error}");
        // Permits of the failed transaction were handed out to nobody.
        assert!(
            (QUOTA - CLIENTS..=QUOTA).contains(&arrived),
            "{error}: {arrived}"
        );
    }
}

/// R-A3, R-A4: writes fail for a while. Calls are rejected with the reason for as long, and then
/// continue by themselves; only granted permits are counted.
#[test]
fn calls_are_rejected_exactly_while_writes_fail() {
    for error in ["EIO", "ENOSPC"] {
        let name = format!("write-{error}");
        let test = FaultTest::new(&name, "first-use 100/1d", "limits: [100/1d]");
        let program = test.start(strace("pwrite64", error, "60..90"));
        let (before, rejected) = test.call_until(&program, QUOTA, 503);
        assert!(before > 0 && !rejected.is_empty(), "{error}: {before}");
        let (mid, lost) = test.call_until(&program, 10_000, 200);
        assert!(mid > 0, "{error}: calls never continued");
        rejected.iter().chain(&lost).for_each(assert_store_lost);
        let after = test.exhaust_quota(&program);
        let (arrived, violations) = test.judge.verdict();
        assert_eq!((violations, arrived), (0, before + mid + after), "{error}");
        assert!(
            (QUOTA - CLIENTS..=QUOTA).contains(&arrived),
            "{error}: {arrived}"
        );
    }
}

/// Under `open` and `local-share` calls continue while the disk fails, as the file specifies.
#[test]
fn calls_continue_on_a_failing_disk_under_open_and_local_share() {
    for policy in ["open", "local-share"] {
        let limits = format!("limits: [100/1s]\non_store_loss: {policy}");
        let test = FaultTest::new(&format!("loss-{policy}"), "sliding 100/1s", &limits);
        let program = test.start(strace("pwrite64", "EIO", "60..90"));
        let mut total = 0;
        let log = |event: &str| fs::read_to_string(test.log()).unwrap().contains(event);
        for round in 0.. {
            if log("store_back") {
                break;
            }
            assert!(round < 100_000, "{policy}: the store never comes back");
            let (succeeded, others) = test.call_until(&program, 10, 0);
            // Each node pauses before it uses its share, so that all know of the loss.
            let may_pause = policy == "local-share";
            for (status, text) in others {
                assert!(
                    may_pause && [429, 503].contains(&status),
                    "{policy}: {text}"
                );
            }
            total += succeeded;
        }
        assert!(log("store_lost"), "{policy}");
        assert!(total > 0, "{policy}: no call went through");
        let (status, text) = test.call(&program);
        assert_eq!(status, 200, "{policy}: {text}");
        // It is back when it can be written again, not earlier.
        let lines = fs::read_to_string(test.log()).unwrap();
        let losses = lines
            .lines()
            .filter(|line| line.contains("event=store_lost"));
        assert_eq!(losses.count(), 1, "{policy}: {lines}");
        drop(program);
        if policy == "local-share" {
            assert_eq!(test.judge.verdict().1, 0);
        }
    }
}

/// A program that reads its wall clock from a file. Boot time is unchanged, as on a real host.
fn with_clock(file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env_clear().envs(faked_clock(file));
    command
}

/// By how many seconds the clock of the sender of this response is ahead.
fn clock_offset(response: &str) -> i64 {
    let mut lines = response.lines();
    let date = lines.find_map(|line| line.strip_prefix("date: "));
    let date = httpdate::parse_http_date(date.expect("a date")).unwrap();
    let since = date.duration_since(UNIX_EPOCH).unwrap().as_secs();
    since.cast_signed() - now().cast_signed()
}

/// Seconds since 1970.
fn now() -> u64 {
    Clock::System.now().wall.0 / 1_000_000
}

/// A time zone in which it is noon now: no day ends during a test.
pub(crate) fn noon_time_zone() -> String {
    let hour = now() / 3_600 % 24;
    // In these names the sign is inverted.
    match hour.checked_sub(12) {
        Some(0) => "UTC".to_owned(),
        Some(behind) => format!("Etc/GMT+{behind}"),
        None => format!("Etc/GMT-{}", 12 - hour),
    }
}

/// R-A7: the wall clock is set by a day, forward and back, while the gateway runs and across its
/// restarts. A daily quota, calendar or sliding, is neither granted twice nor lost, and the bucket
/// limit of the same provider neither bursts nor stops.
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
        let test = FaultTest::new("clock", rules, &limits);
        let clock = test.folder.path().join("clock");
        let next = clock.with_extension("next");
        // In one step: the program reads this file at every look at its clock.
        let set = |offset: &str| {
            fs::write(&next, offset).unwrap();
            fs::rename(&next, &clock).unwrap();
        };
        set("+0");
        let mut program = test.start(with_clock(&clock));
        let mut succeeded = 0;
        for offset in ["+1d", "-1d", "+0", "+1d", "-1d"] {
            for step in 0..16 {
                if step == 8 {
                    set(offset);
                }
                let status = test.call(&program).0;
                assert_eq!(status, 200, "{day} at {offset}: calls continue");
                succeeded += 1;
            }
            program.kill();
            program = test.start(with_clock(&clock));
        }
        succeeded += test.exhaust_quota(&program);
        for (offset, days) in [("+1d", 1), ("-1d", -1), ("+2d", 2)] {
            set(offset);
            assert_eq!(test.call(&program).0, 429, "{day}: no quota is freed");
            program.kill();
            program = test.start(with_clock(&clock));
            let (status, text) = test.call(&program);
            assert_eq!(status, 429, "{day}: no quota is freed");
            assert!(
                (clock_offset(&text) - days * 86_400).abs() < 3_600,
                "{text}"
            );
        }
        let (arrived, violations) = test.judge.verdict();
        assert_eq!((violations, arrived), (0, succeeded), "{day}");
        assert_eq!(arrived, QUOTA, "{day}");
    }
}
