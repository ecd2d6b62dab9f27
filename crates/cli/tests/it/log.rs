//! The log as a user configures it: its format, its file, and its bound.

use std::fs;
use std::io::Read;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::folder::Folder;
use crate::operating::upstream_with;
use crate::running_daemon::{RunningDaemon, X};

/// Turns a test that would hang into one that fails.
const PATIENCE: Duration = Duration::from_secs(120);

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
    daemon.signal("-TERM");
    assert_eq!(daemon.stderr_text(), "", "nothing is logged twice");
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

/// A11: responses 401, 403, 404 and 422 are logged: at most one line a second, with how many there were. H3: no path and no
/// query. A 2xx, a 429 and a 5xx have none.
#[test]
fn a11_client_errors_are_logged_with_a_count_and_without_a_path() {
    let upstream = |status: &str| {
        let head = format!("{status}\r\nContent-Length: 2");
        upstream_with(head, "no")
    };
    let file = |name: &str, status: &str| {
        let address = upstream(status);
        format!(
            "name: {name}\nupstream: http://{address}\nlimits: [1000/1s]\nhealth: {{mode: off}}\nretry: {{retries: {{high: 0, normal: 0, low: 0}}}}\n"
        )
    };
    let statuses = [
        ("missing", "404 Not Found"),
        ("wrong", "422 Unprocessable Content"),
        ("good", "200 OK"),
        ("limited", "429 Too Many Requests"),
        ("broken", "503 Service Unavailable"),
    ];
    let mut folder = Folder::new("clienterrors");
    for (name, status) in statuses {
        folder = folder.file(&format!("files/{name}.yaml"), &file(name, status));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--provider-dir", "files", "--store", "memory:"]);
    let daemon = RunningDaemon::run(folder, command);
    for (name, _) in statuses {
        // A provider that limits is waited for.
        let calls = if name == "limited" { 1 } else { 20 };
        for number in 0..calls {
            daemon.get(&format!("/{name}/secret-path/{number}?key=q-canary"));
        }
    }
    daemon.signal("-TERM");
    let log = daemon.stderr_text();
    let lines = log.split("ts=20");
    let lines = lines.filter(|line| line.contains("event=client_error"));
    let lines: Vec<&str> = lines.collect();
    for (name, status) in [("missing", 404), ("wrong", 422)] {
        let part = format!("provider={name} status={status} count=");
        let own = lines.iter().filter(|line| line.contains(&part)).count();
        assert!(
            (1..20).contains(&own),
            "{name}: {own} lines of 20 calls\n{log}"
        );
    }
    for line in lines {
        assert!(line.contains(" lvl=INFO "), "{line}");
        let is_other = ["good", "limited", "broken"]
            .iter()
            .any(|name| line.contains(name));
        assert!(!is_other && !line.contains("secret-path"), "{line}");
        assert!(!line.contains("canary"), "{line}");
    }
}

/// `pretty` was written by another formatter, which escaped nothing. H3: a path of a stranger neither starts a line nor
/// colours the terminal, and one of our keys in it is not shown.
#[test]
fn h3_a_pretty_line_escapes_what_strangers_send() {
    let key = "api_key: s3cr3t-canary\nauth: {query: key}\n";
    let folder = Folder::new("prettylog")
        .file("x.yaml", &failing_provider(key))
        .file("tollgate.yaml", "log: {format: pretty, access: true}\n")
        .env("TOLLGATE_LOG", "debug");
    let daemon = RunningDaemon::start_with_own_log(folder, &[]);
    daemon.wait_for_log(" reloaded");
    daemon.get("/x/lvl=ERROR?token=q-canary");
    let line = daemon.wait_for_log(" request ");
    assert!(line.contains(" method=GET path=\"/lvl=ERROR\""), "{line}");
    assert!(
        !line.contains("canary") && !line.chars().any(char::is_control),
        "{line}"
    );
    daemon.get("/x/s3cr3t-canary/c");
    let line = daemon.wait_for_log(" request ");
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

/// Standard error is often a pipe to a log collector: one that has stopped must not stop the calls.
#[test]
fn a_reader_of_the_log_that_stalls_stops_no_call() {
    let serve = "mkfifo stalled && exec 3<>stalled && exec \"$0\" serve --listen 127.0.0.1:0 \
                 --admin 127.0.0.1:0 --store memory: --provider x.yaml --offline 2>stalled";
    let mut command = Command::new("sh");
    command.args(["-c", serve, env!("CARGO_BIN_EXE_tollgate")]);
    let mut daemon = RunningDaemon::spawn(Folder::new("stalledlog").file("x.yaml", X), command);
    // A pipe takes 64 KiB; each of these calls is a line of more than 100 bytes.
    for _ in 0..1_500 {
        let mut stream = daemon.send("/x/a");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    }
    assert_eq!(daemon.tollgate(&["status"]).code, Some(0));
    daemon.signal("-TERM");
    assert_eq!(daemon.ended_within(PATIENCE), Some(0));
}
