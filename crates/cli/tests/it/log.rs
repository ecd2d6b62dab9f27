//! The log as a user sets it: its form, its file, and its bound.

use std::fs;

use serde_json::Value;

use crate::folder::Folder;
use crate::running_daemon::{RunningDaemon, X};

/// Nobody answers at its upstream, so the first call sends it to sleep.
fn failing_provider(rest: &str) -> String {
    format!(
        "{X}retry: {{retries: {{high: 0, normal: 0, low: 0}}}}\nhealth: {{failure_threshold: 1, when_blocked: reject}}\n{rest}"
    )
}

/// A16: logfmt by default, with every key of the standard in its order.
#[test]
fn a16_a_transition_is_a_line_of_logfmt_with_every_key() {
    let folder = Folder::new("logfmt").file("x.yaml", &failing_provider(""));
    let served = RunningDaemon::start(folder, &[]);
    served.get("/x/a");
    let line = served.wait_for_log("state_transition");
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

/// A file in place of standard error, as JSON, within its bound whatever is told; H3: with no key.
#[test]
fn h3_a_log_file_is_bounded_and_has_no_key() {
    let config = "log: {format: json, file: own.log, max_size: 2KiB, keep: 2}\n";
    let key = "api_key: s3cr3t-canary\nauth: {query: key}\n";
    let folder = Folder::new("logfile")
        .file("tollgate.yaml", config)
        .file("x.yaml", &failing_provider(key));
    let served = RunningDaemon::start_with_own_log(folder, &[]);
    for n in 0..80 {
        served.get(&format!("/x/{n}?key=s3cr3t-canary"));
    }
    let mut lines = 0;
    for name in ["own.log", "own.log.1", "own.log.2"] {
        let text = served.folder.read(name);
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
    assert!(!fs::exists(served.folder.path().join("own.log.3")).unwrap());
    served.signal("-TERM");
    assert_eq!(served.stderr_text(), "", "nothing is told twice");
}

/// A place that cannot be written is told before anything listens.
#[test]
fn a_log_file_that_cannot_be_opened_is_reported() {
    let folder = Folder::new("nolog")
        .file("tollgate.yaml", "log: {file: nowhere/own.log}\n")
        .file("x.yaml", X);
    let said = folder.run(&["serve", "--provider", "x.yaml", "--store", "memory:"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    assert!(
        said.err.contains("nowhere/own.log") && said.err.contains("log.file"),
        "{}",
        said.err
    );
}
