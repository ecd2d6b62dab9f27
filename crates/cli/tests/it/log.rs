//! The log as a user configures it: its format, its file, and its bound.

use std::fs;

use serde_json::Value;

use crate::folder::Folder;
use crate::running_daemon::{RunningDaemon, X};

/// Its upstream does not respond, so the first call puts it to sleep.
fn failing_provider(rest: &str) -> String {
    format!(
        "{X}retry: {{retries: {{high: 0, normal: 0, low: 0}}}}\nhealth: {{failure_threshold: 1, when_blocked: reject}}\n{rest}"
    )
}

/// A16: logfmt by default, with every key of the standard in its order.
#[test]
fn a16_a_transition_is_a_line_of_logfmt_with_every_key() {
    let folder = Folder::new("logfmt").file("x.yaml", &failing_provider(""));
    let daemon = RunningDaemon::start(folder, &[]);
    daemon.get("/x/a");
    let line = daemon.wait_for_log("state_transition");
    let keys: Vec<&str> = line
        .split(' ')
        .filter_map(|word| word.split('=').next())
        .collect();
    let standard = "ts lvl comp state event sleep consec429 err_rate_30s rate sem retry_after \
                    provider from to reason";
    assert_eq!(keys.join(" "), standard, "{line}");
    for part in [
        "comp=ratelimiter state=Sleep event=state_transition sleep=",
        "s consec429=0 err_rate_30s=0.0 rate=5rps sem=none retry_after=none provider=x from=Normal to=Sleep reason=failures",
    ] {
        assert!(line.contains(part), "{line}");
    }
}

/// A file instead of standard error, as JSON, within its bound for any number of events; H3:
/// without a key.
#[test]
fn h3_a_log_file_is_bounded_and_has_no_key() {
    let config = "log: {format: json, file: own.log, max_size: 2KiB, keep: 2}\n";
    let key = "api_key: s3cr3t-canary\nauth: {query: key}\n";
    let folder = Folder::new("logfile")
        .file("tollgate.yaml", config)
        .file("x.yaml", &failing_provider(key));
    let daemon = RunningDaemon::start_with_own_log(folder, &[]);
    for n in 0..80 {
        daemon.get(&format!("/x/{n}?key=s3cr3t-canary"));
    }
    let mut lines = 0;
    for name in ["own.log", "own.log.1", "own.log.2"] {
        let text = daemon.folder.read(name);
        assert!(text.len() <= 2 << 10, "{name}: {}", text.len());
        assert!(!text.contains("s3cr3t-canary"), "{text}");
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).expect(line);
            assert!(
                line["ts"].is_string() && line["event"].is_string(),
                "{line}"
            );
            lines += 1;
        }
    }
    assert!(lines > 10, "{lines}");
    assert!(!fs::exists(daemon.folder.path().join("own.log.3")).unwrap());
    daemon.signal("-TERM");
    assert_eq!(daemon.stderr_text(), "", "nothing is logged twice");
}

/// At `debug`, a line says what each call asks for; its id is that of the other lines. H3: without
/// the query, which may hold a key, and without one of our own keys.
#[test]
fn h3_a_debug_line_has_method_and_path_and_no_query() {
    let key = "api_key: s3cr3t-canary\nauth: {query: key}\n";
    let folder = Folder::new("debuglog")
        .file("x.yaml", &failing_provider(key))
        .env("TOLLGATE_LOG", "debug");
    let daemon = RunningDaemon::start(folder, &[]);
    daemon.get("/x/a/b?token=q-canary");
    let line = daemon.wait_for_log("event=request");
    assert!(line.contains(" method=GET path=/a/b"), "{line}");
    assert!(!line.contains("canary"), "{line}");
    daemon.get("/x/s3cr3t-canary/c");
    let line = daemon.wait_for_log("event=request");
    assert!(line.contains("path=\"(contains a key)\""), "{line}");
}

/// A path that cannot be written is reported before anything listens.
#[test]
fn a_log_file_that_cannot_be_opened_is_reported() {
    let folder = Folder::new("nolog")
        .file("tollgate.yaml", "log: {file: nowhere/own.log}\n")
        .file("x.yaml", X);
    let output = folder.run(&["serve", "--provider", "x.yaml", "--store", "memory:"]);
    assert_eq!((output.code, output.out.as_str()), (Some(1), ""));
    assert!(
        output.err.contains("nowhere/own.log") && output.err.contains("log.file"),
        "{}",
        output.err
    );
}

/// A level that does not exist is reported before anything listens.
#[test]
fn a_log_level_that_does_not_exist_is_reported() {
    let folder = Folder::new("nolevel")
        .file("x.yaml", X)
        .env("TOLLGATE_LOG", "loud");
    let output = folder.run(&["serve", "--provider", "x.yaml", "--store", "memory:"]);
    assert_eq!((output.code, output.out.as_str()), (Some(1), ""));
    assert!(
        output.err.contains("TOLLGATE_LOG is `loud`") && output.err.contains("warn,tollgate=debug"),
        "{}",
        output.err
    );
}
