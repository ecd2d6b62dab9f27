//! The first run of the program: problems are reported where users look, read-only commands create
//! nothing and affect nobody, and messages have a subject and a next step.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::folder::Folder;
use crate::operating::upstream;
use crate::running_daemon::{RunningDaemon, X};

const DAMAGED: &str = "no database, but long enough to be one. ";

/// A folder whose configuration names an admin address without a daemon.
fn without_daemon(name: &str) -> Folder {
    // A port that the system gives to no test.
    let config = "listen: 127.0.0.1:0\nadmin: {listen: '127.0.0.1:1'}\nstore: 'sqlite:state'\n\
                  providers: [x.yaml]\n";
    let folder = Folder::new(name).file("x.yaml", X);
    folder.file("tollgate.yaml", config)
}

#[test]
fn status_reports_that_the_store_is_lost() {
    let folder = Folder::new("look-lost")
        .file("x.yaml", X)
        .file("state/ledger.db", &DAMAGED.repeat(99));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--store", "sqlite:state", "--provider", "x.yaml"]);
    let daemon = RunningDaemon::run(folder, command);
    let all = daemon.tollgate(&["status"]).out;
    assert!(!all.contains("Flowing"), "{all}");
    assert!(all.contains("error: the store is lost: "), "{all}");
    let one = daemon.tollgate(&["status", "x"]).out;
    assert!(one.contains("error: the store is lost: "), "{one}");
    let json = daemon.tollgate(&["status", "--json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["providers"][0]["store"], "lost");
    let problem = json["problems"][0].as_str().unwrap_or_default();
    assert!(problem.contains("the store is lost"), "{json}");
}

#[test]
fn status_without_a_daemon_says_so_and_creates_nothing() {
    let folder = without_daemon("look-alone");
    let output = folder.run(&["status"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("no daemon responds"), "{}", output.err);
    assert!(
        output.err.contains("there is no ledger in"),
        "{}",
        output.err
    );
    assert!(!folder.path().join("state").exists());
}

#[test]
fn status_of_a_missing_or_damaged_store_is_an_error() {
    let folder = without_daemon("look-nowhere").file("bad/ledger.db", &DAMAGED.repeat(99));
    let output = folder.run(&["status", "--store", "sqlite:nothere"]);
    assert_eq!(output.code, Some(1), "{}", output.to_snapshot());
    assert!(
        output.err.contains("no ledger in nothere"),
        "{}",
        output.err
    );
    assert!(!folder.path().join("nothere").exists());
    let output = folder.run(&["status", "--store", "sqlite:bad"]);
    assert_eq!(output.code, Some(1), "{}", output.to_snapshot());
    assert!(output.err.contains("damaged"), "{}", output.err);
}

/// An upstream that does not support HEAD, and the number of its requests.
fn upstream_without_head() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut read = [0; 4096];
            if stream.read(&mut read).is_ok_and(|length| length > 0) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            let response = b"HTTP/1.1 501 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(response).ok();
        }
    });
    (address, requests)
}

#[test]
fn a_live_check_sends_one_request_and_does_not_affect_health() {
    let (address, requests) = upstream_without_head();
    let x = X.replace("127.0.0.1:9", &address.to_string());
    let folder = without_daemon("look-live").file("x.yaml", &x.replace("5/1s", "50/1s"));
    for times in 1..=6 {
        let output = folder.run(&["check", "--live"]);
        assert!(
            output.out.contains("x: responds (501)"),
            "{}",
            output.to_snapshot()
        );
        assert_eq!(requests.load(Ordering::SeqCst), times);
    }
    let output = folder.run(&["status", "x", "--store", "sqlite:state"]);
    assert!(
        output.out.starts_with("x: Flowing\n"),
        "{}",
        output.to_snapshot()
    );
}

/// H3: the same warning wherever the key is written.
#[test]
#[cfg(unix)]
fn h3_check_warns_of_a_key_in_a_readable_tollgate_yaml() {
    use std::os::unix::fs::PermissionsExt;
    let config = "providers:\n  x: {upstream: 'http://127.0.0.1:9', limits: [5/1s], auth: {bearer: true}, api_key: literal-key}\n";
    let folder = Folder::new("look-key").file("tollgate.yaml", config);
    let quiet = folder.run(&["check"]);
    assert!(!quiet.err.contains("written out"), "{}", quiet.err);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(folder.path().join("tollgate.yaml"), open).expect("a mode");
    let output = folder.run(&["check"]);
    assert!(
        output
            .err
            .contains("providers.x.api_key: a key is written out here"),
        "{}",
        output.err
    );
    assert!(!output.err.contains("literal-key"), "{}", output.err);
}

#[test]
fn check_warns_of_a_preset_without_limits() {
    let folder = Folder::new("look-aws");
    assert_eq!(folder.run(&["init", "aws"]).code, Some(0));
    let output = folder.run(&["check"]);
    assert!(
        output.err.contains("there is no limit"),
        "{}",
        output.to_snapshot()
    );
    assert!(
        output.err.contains("tollgate provider show aws"),
        "{}",
        output.err
    );
}

#[test]
fn check_warns_of_keys_behind_an_address_that_other_hosts_reach() {
    let config = "listen: '0.0.0.0:4290'\nproviders: {x: {upstream: 'http://127.0.0.1:9', limits: [5/1s], auth: {bearer: true}, api_key: k}}\n";
    let folder = Folder::new("look-open").file("tollgate.yaml", config);
    let output = folder.run(&["check"]);
    assert!(
        output.err.contains("other hosts can reach 0.0.0.0:4290"),
        "{}",
        output.to_snapshot()
    );
    let shut =
        Folder::new("look-shut").file("tollgate.yaml", &config.replace("0.0.0.0", "127.0.0.1"));
    assert!(!shut.run(&["check"]).err.contains("other hosts"));
}

#[test]
fn a_demo_too_short_to_measure_is_rejected() {
    let output = Folder::new("look-demo").run(&["demo", "--seconds", "5"]);
    assert_eq!(output.code, Some(2), "{}", output.to_snapshot());
    assert!(output.err.contains("10..=600"), "{}", output.err);
}

#[test]
fn a_pause_by_an_operator_is_reported_as_such() {
    let daemon = RunningDaemon::start(Folder::new("look-pause").file("x.yaml", X), &[]);
    daemon.tollgate(&["offline", "x"]);
    let rejected = daemon.get("/x/a");
    assert!(
        rejected.contains("Circuit breaker is open for x: set offline by an operator"),
        "{rejected}"
    );
    assert!(rejected.contains("`tollgate resume x`"), "{rejected}");
    let status = daemon.tollgate(&["status", "x"]).out;
    assert!(
        status.starts_with("x: Set offline by an operator, until `tollgate resume x`\n"),
        "{status}"
    );
    let list = daemon.tollgate(&["status"]).out;
    assert!(
        list.contains("x                Set offline by an operator "),
        "{list}"
    );
    daemon.tollgate(&["pause", "x", "--for", "30m"]);
    let status = daemon.tollgate(&["status", "x"]).out;
    assert!(
        status.starts_with("x: Paused by an operator, for another "),
        "{status}"
    );
    let list = daemon.tollgate(&["status"]).out;
    assert!(
        list.contains("x                Paused by an operator "),
        "{list}"
    );
    daemon.tollgate(&["cache-only", "x", "--for", "30m"]);
    let status = daemon.tollgate(&["status", "x"]).out;
    let first = status.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("x: Cache only, set by an operator, for another ")
            && first.contains("min"),
        "{status}"
    );
}

#[test]
fn purging_an_unknown_provider_is_an_error() {
    let daemon = RunningDaemon::start(Folder::new("look-purge").file("x.yaml", X), &[]);
    let folder = without_daemon("look-purge-alone");
    let outcomes = [
        daemon.tollgate(&["cache", "purge", "tmbd"]),
        folder.run(&["cache", "purge", "tmbd"]),
    ];
    for output in outcomes {
        assert_eq!(output.code, Some(1), "{}", output.to_snapshot());
        assert!(output.err.contains("no provider `tmbd`"), "{}", output.err);
        assert!(
            output.err.contains("did you mean `tmdb`?"),
            "{}",
            output.err
        );
    }
    assert_eq!(daemon.tollgate(&["cache", "purge", "x"]).code, Some(0));
    assert_eq!(folder.run(&["cache", "purge", "x"]).code, Some(0));
}

#[test]
fn errors_about_addresses_show_what_an_address_looks_like() {
    let daemon = RunningDaemon::start(Folder::new("look-address").file("x.yaml", X), &[]);
    let root = daemon.get("/");
    assert!(root.contains("The path names no provider"), "{root}");
    assert!(root.contains("/tmdb/3/movie/550"), "{root}");
    let unknown = daemon.get("/nobody-at-all/a");
    assert!(
        unknown.contains("`providers:` of tollgate.yaml"),
        "{unknown}"
    );
}

#[test]
fn another_program_on_the_admin_address_is_recognised() {
    let other = upstream(200).to_string();
    let output = Folder::new("look-other").run(&["status", "--admin", &other]);
    assert_eq!(output.code, Some(1), "{}", output.to_snapshot());
    assert!(
        output.err.contains("is not an admin address of tollgate"),
        "{}",
        output.err
    );
    assert!(!output.err.contains("line 1"), "{}", output.err);
}

#[test]
fn check_names_an_invalid_provider_name() {
    let folder = Folder::new("look-name").file("bad.yaml", &X.replace("name: x", "name: sleep"));
    let output = folder.run(&["check", "bad.yaml"]);
    assert!(
        output.err.contains("the name `sleep` is the first word"),
        "{}",
        output.err
    );
}

#[test]
fn a_calendar_day_is_advertised_as_a_day() {
    let x = X.replace("127.0.0.1:9", &upstream(200).to_string());
    let x = x.replace("[5/1s]", "[{limit: 9, period: 1d, algorithm: calendar}]");
    let daemon = RunningDaemon::start(Folder::new("look-day").file("x.yaml", &x), &[]);
    let response = daemon.get("/x/a");
    assert!(response.contains(";q=9;w=86400"), "{response}");
}

#[test]
fn provider_show_points_to_the_daemons_own_settings() {
    let folder = Folder::new("look-show").file("x.yaml", X);
    let output = folder.run(&["provider", "show", "x", "--provider", "x.yaml"]);
    assert!(output.out.contains("tollgate status x"), "{}", output.out);
}

/// `status` printed nothing where nothing was configured, which looks like a command that failed.
#[test]
fn status_without_providers_says_so() {
    let folder = Folder::new("status-nothing");
    let state = folder.path().join("state").display().to_string();
    let folder = folder.env("TOLLGATE_STATE_DIR", &state);
    let shown = folder.run(&["status"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    let expected = "No provider has a file or was called; `tollgate provider list` shows";
    assert!(shown.out.starts_with(expected), "{}", shown.to_snapshot());
}
