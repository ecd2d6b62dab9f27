//! Disk failures and changed clocks, injected by strace, a small tmpfs and libfaketime.
//!
//! `make tools` installs these programs. Without them the tests fail, so that a missing program is
//! not mistaken for a passed test.

use std::path::Path;
use std::process::Command;
use tollgate_ledger::Clock;
use tollgate_sim::test_host::TempFolder;
use tollgate_sim::test_servers::faked_clock;

use crate::child::Worker;
use crate::processes::{BATCH_MAX, QUOTA, use_up};

/// A command under which this system call fails, from the n-th call of a thread on.
fn strace(call: &str, error: &str, from: u32) -> Command {
    let found = Command::new("strace").arg("--version").output();
    assert!(found.is_ok(), "strace is missing; `make tools` installs it");
    let mut command = Command::new("strace");
    command.args(["--follow-forks", "--quiet=all", "--output=/dev/null"]);
    command.arg(format!("--trace={call}"));
    command.arg(format!("--inject={call}:error={error}:when={from}+"));
    command
}

/// Everything that a worker reported until it ended.
fn output_of(mut worker: Worker) -> Vec<String> {
    std::iter::from_fn(|| worker.next().map(|(word, _)| word)).collect()
}

/// Spends a quota until the disk fails, then the rest of it on a working disk.
fn check_disk_failure(call: &str, error: &str, from: u32, why: &str) {
    let folder = TempFolder::unmade("ledger");
    let words = format!("{QUOTA} nowhere 1");
    let worker = Worker::start_under(strace(call, error, from), "quota", folder.path(), &words);
    let mut reported = output_of(worker);
    assert_eq!(reported.pop().as_deref(), Some("lost"), "{call} {error}");
    let trouble = reported.pop().unwrap();
    assert!(trouble.contains(why), "{call} {error}: {trouble}");
    let sent = reported.iter().filter(|word| *word == "sent").count() as u64;
    assert!(sent > 0, "{call} {error}: the disk failed from the start");
    let rest = use_up(&folder);
    assert!(sent + rest <= QUOTA, "{call} {error}: {sent} + {rest}");
    assert!(
        sent + rest >= QUOTA - BATCH_MAX,
        "{call} {error}: {sent} + {rest}"
    );
}

/// R-A3: permits that the disk did not store are not granted, and the disk is not used again.
#[test]
fn a_failed_sync_grants_nothing_and_is_final() {
    for error in ["EIO", "ENOSPC"] {
        check_disk_failure("fdatasync", error, 12, "then restart Tollgate");
    }
}

/// A disk that stands still is waited for by the first permit of a limit and by those that its
/// reservation does not cover, and by no other provider.
#[test]
fn a_covered_permit_waits_for_no_disk() {
    let folder = TempFolder::unmade("ledger");
    // The second sync begins when half of the reservation is in use, or before, and stops there.
    let mut worker = Worker::start("ahead", folder.path(), "stop:syncing 2");
    let mut reported = Vec::new();
    while !reported.contains(&"waits".to_owned()) || !reported.contains(&"at".to_owned()) {
        let (word, number) = worker.next().unwrap();
        assert!(
            word != "waits" || number == 1,
            "the eleventh is not covered"
        );
        assert_ne!(word, "served");
        reported.push(word);
    }
    let covered = reported.iter().filter(|word| *word == "covered").count();
    assert_eq!(covered, 10);
    assert!(reported.contains(&"other".to_owned()));
    worker.send_line("go on");
    worker.wait_for("served");
}

/// R-A3, R-A4: a failed write counts nothing and grants nothing.
#[test]
fn a_failed_write_counts_nothing() {
    for error in ["EIO", "ENOSPC"] {
        check_disk_failure("pwrite64", error, 120, "the database does not work");
    }
}

/// On open the error names the reason, whichever system call fails.
#[test]
fn a_disk_that_fails_on_open_is_rejected_with_the_reason() {
    for (call, error, why) in [
        ("fdatasync", "EIO", "cannot be"),
        ("pwrite64", "EIO", "cannot be"),
        ("pwrite64", "ENOSPC", "no space left"),
        ("fsync", "EIO", "cannot be"),
    ] {
        let folder = TempFolder::unmade("ledger");
        let worker = Worker::start_under(strace(call, error, 1), "open", folder.path(), "");
        let reported = output_of(worker);
        assert!(
            reported
                .last()
                .is_some_and(|reported| reported.contains(why)),
            "{call} {error}: {reported:?}"
        );
    }
}

/// A command that runs its arguments in a folder of 4 MiB, most of it used by another file, and then
/// `after`; `None` where this user may not mount one.
fn in_a_small_file_system(folder: &TempFolder, after: &str) -> Option<Command> {
    std::fs::create_dir_all(folder.path()).unwrap();
    let mount = "mount -t tmpfs -o size=4m none \"$STATE\"";
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        command.env("STATE", folder.path());
        command
    };
    let may = unshare(mount).output();
    may.is_ok_and(|output| output.status.success()).then(|| {
        unshare(&format!(
            "{mount} && head -c 3300k /dev/zero >\"$STATE/other\" && \"$0\" \"$@\"; {after}"
        ))
    })
}

/// R-A4, on a file system that really is full. Where this user may not mount one, the test injects
/// ENOSPC instead.
#[test]
fn a_full_file_system_keeps_the_quota_and_resumes_when_space_is_free() {
    let folder = TempFolder::unmade("ledger");
    let after = "rm \"$STATE/other\"; exec \"$0\" \"$@\"";
    let Some(command) = in_a_small_file_system(&folder, after) else {
        return check_disk_failure("pwrite64", "ENOSPC", 120, "the database does not work");
    };
    let words = format!("{QUOTA} nowhere 1");
    let mut reported = output_of(Worker::start_under(command, "quota", folder.path(), &words));
    assert_eq!(reported.pop().as_deref(), Some("rejected"), "{reported:?}");
    let lost = reported.iter().position(|word| word == "lost");
    assert!(
        lost.is_some_and(|at| at > 1),
        "the file system never was full: {reported:?}"
    );
    let sent = reported.iter().filter(|word| *word == "sent").count() as u64;
    assert!((QUOTA - BATCH_MAX..=QUOTA).contains(&sent), "{sent}");
}

/// R-A4: the log that a killed process has left needs no more room: it is moved and written over.
/// It needs `unshare --user --mount`; where that is not allowed the test fails, rather than passing
/// without a check.
#[test]
fn a_killed_process_is_started_again_on_a_full_file_system() {
    let folder = TempFolder::unmade("ledger");
    let Some(command) = in_a_small_file_system(&folder, "exec \"$0\" \"$@\"") else {
        panic!("this user may not mount a file system: allow user namespaces, or run as root");
    };
    let worker = Worker::start_under(command, "fill", folder.path(), "1000000");
    let mut seen = Vec::new();
    for (word, _) in std::iter::from_fn({
        let mut worker = worker;
        move || worker.next()
    }) {
        let is_enough = word == "went on";
        seen.push(word);
        if is_enough {
            break;
        }
    }
    assert!(seen.contains(&"killed".to_owned()), "it never was full");
    assert_eq!(seen.last().map(String::as_str), Some("went on"));
}

/// A child whose wall clock is read from a file. Boot time is real, as on a real host. Its days end in a
/// time zone that is so many hours ahead of UTC.
fn with_clock(file: &Path, folder: &TempFolder, zone: i64) -> Worker {
    let mut command = Command::new("env");
    command.envs(faked_clock(file));
    Worker::start_under(command, "clocks", folder.path(), &zone.to_string())
}

/// How many hours a time zone is ahead of UTC in which it is noon now: no day ends during a test.
fn noon_zone() -> i64 {
    let hour = Clock::System.now().wall.0 / 3_600_000_000 % 24;
    12 - hour.cast_signed()
}

/// The wall clock of the child, and how many permits of the day, the hour and the second it gets.
fn try_all(worker: &mut Worker) -> (u64, [u64; 3]) {
    worker.send_line("try");
    let wall = worker.wait_for("wall");
    (
        wall,
        ["day", "hour", "second"].map(|word| worker.wait_for(word)),
    )
}

/// R-A7: a used-up day stays used up at any wall clock setting, for a running process and for a new
/// one. Sliding windows are not affected.
#[test]
fn a_wall_clock_that_is_set_by_a_day_reopens_nothing_and_stops_nothing() {
    let folder = TempFolder::unmade("ledger");
    let file = std::env::temp_dir().join(format!("tollgate-clock-{}", std::process::id()));
    let next = file.with_extension("next");
    // In one step: the child reads this file at every look at its clock.
    let set = |offset: &str| {
        std::fs::write(&next, offset).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    set("+0");
    let zone = noon_zone();
    let mut running = with_clock(&file, &folder, zone);
    let (start, first) = try_all(&mut running);
    assert_eq!(first, [5, 5, 3]);
    for (offset, days) in [("+1d", 1_i64), ("-1d", -1), ("+0", 0), ("+1d", 1)] {
        set(offset);
        let (wall, [day, hour, _]) = try_all(&mut running);
        let moved = wall.cast_signed() - start.cast_signed();
        assert!(
            (moved - days * 86_400).abs() < 3_600,
            "{moved} s is no {offset}"
        );
        assert_eq!((day, hour), (0, 0), "in the running process at {offset}");
        let (_, [day, hour, _]) = try_all(&mut with_clock(&file, &folder, zone));
        assert_eq!((day, hour), (0, 0), "in a new process at {offset}");
        // The window of a second ends when a second is over.
        while try_all(&mut running).1[2] == 0 {}
    }
    std::fs::remove_file(&file).unwrap();
}
