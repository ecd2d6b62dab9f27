//! Commands against a running daemon, as a user runs them.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::Value;

use crate::folder::Folder;
use crate::running_daemon::{RunningDaemon, X};

fn folder(name: &str) -> Folder {
    Folder::new(name).file("x.yaml", X)
}

fn limit(served: &RunningDaemon) -> Value {
    let said = served.tollgate(&["status", "x", "--json"]);
    let status: Value = serde_json::from_str(&said.out).expect(&said.err);
    status["limits"][0]["limit"].clone()
}

#[test]
fn a14_a_setting_is_changed_shown_and_reverted() {
    let served = RunningDaemon::start(folder("set"), &[]);
    let said = served.tollgate(&["set", "x", "limits=[9/1s]", "sleep_max=60"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    assert!(
        said.out.starts_with("x: ") && said.out.contains("health.sleep_max"),
        "{}",
        said.out
    );
    assert_eq!(limit(&served), 9);
    let said = served.tollgate(&["set", "x", "sleep_mx=60"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("did you mean `sleep_max`?"),
        "{}",
        said.err
    );
    let said = served.tollgate(&["set", "y", "sleep_max=60"]);
    assert_eq!(said.code, Some(1));
    let said = served.tollgate(&["set", "x", "limits="]);
    assert_eq!((said.code, limit(&served)), (Some(0), 5.into()));
    for usage in [
        vec!["set", "x"],
        vec!["set", "x", "sleep_max"],
        vec!["cache-only", "x", "--for", "soon"],
        vec!["serve", "--auto-recover", "soon"],
    ] {
        assert_eq!(served.tollgate(&usage).code, Some(2), "{usage:?}");
    }
}

#[test]
fn a_daemon_reloads_by_command_by_signal_and_by_file_watch() {
    let served = RunningDaemon::start(folder("reload"), &[]);
    let rewrite = |limit: &str| {
        served.folder.rewrite("x.yaml", &X.replace("5/1s", limit));
    };
    rewrite("6/1s");
    served.wait_for_log("event=reloaded");
    assert_eq!(limit(&served), 6, "by itself");
    rewrite("many/1s");
    served.wait_for_log("reload_refused");
    let said = served.tollgate(&["reload"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("x.yaml:3") && said.err.contains("old version stays"),
        "{}",
        said.err
    );
    assert_eq!(limit(&served), 6, "the old one stays");
    let status = served.tollgate(&["status", "x"]);
    assert!(status.out.contains("x.yaml:3"), "{}", status.out);
    served.signal("-HUP");
    served.wait_for_log("reload_refused");
    rewrite("7/1s");
    served.wait_for_log("event=reloaded");
    let said = served.tollgate(&["reload"]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(0), "nothing is different\n")
    );
    assert_eq!(limit(&served), 7);
}

/// A14: a file of variables is watched like the others.
#[test]
fn a14_a_running_daemon_applies_a_changed_env_file() {
    let folder = folder("envfile").file("v.env", "TOLLGATE_X_QUEUE_MAX=3\n");
    let served = RunningDaemon::start(folder, &["--env-file", "v.env"]);
    served.folder.rewrite("v.env", "TOLLGATE_X_QUEUE_MAX=4\n");
    served.wait_for_log("event=reloaded");
    let said = served.tollgate(&["status", "x", "--json"]);
    let status: Value = serde_json::from_str(&said.out).expect(&said.err);
    let settings = status["settings"].as_array().expect("a list").clone();
    let found = settings.iter().find(|one| one["key"] == "queue.max");
    assert_eq!(found.expect("queue.max")["value"], "4");
}

/// A key in a file of its own, in a folder where nothing else lies: a new key is used at once.
#[test]
fn a_running_daemon_applies_a_changed_key_file() {
    let text = format!("{X}api_key: \"file:keys/x\"\nauth: {{header: x-key}}\n");
    let folder = Folder::new("keyfile")
        .file("x.yaml", &text)
        .file("keys/x", "old-key");
    let served = RunningDaemon::start(folder, &[]);
    served.folder.rewrite("keys/x", "new-key");
    served.wait_for_log("event=reloaded");
}

/// A5, A7: `--offline` sleeps until `resume`; orders work in every state.
#[test]
fn a5_a_daemon_that_starts_offline_is_resumed_by_command() {
    let served = RunningDaemon::start(folder("offline"), &["--offline", "--auto-recover", "15"]);
    assert!(served.get("/x/a").starts_with("HTTP/1.1 503"));
    let said = served.tollgate(&["resume", "x"]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(0), "x: resume; its state is normal\n")
    );
    for (args, state) in [
        (vec!["cache-only", "x", "--for", "30m"], "cache_only"),
        (vec!["offline", "x"], "sleep"),
        (vec!["pause", "x"], "sleep"),
        (vec!["cache-only", "x"], "cache_only"),
        (vec!["reset", "x"], "normal"),
    ] {
        let said = served.tollgate(&args);
        assert!(
            said.out.ends_with(&format!("its state is {state}\n")),
            "{args:?}: {}",
            said.out
        );
    }
    assert_eq!(
        served.tollgate(&["reset", "x", "--entity", "odds"]).code,
        Some(0)
    );
    assert_eq!(
        served.tollgate(&["pause", "x", "--entity", "odds"]).code,
        Some(1)
    );
    let said = served.tollgate(&["status", "x", "--json"]);
    let status: Value = serde_json::from_str(&said.out).expect(&said.err);
    let settings = status["settings"].as_array().expect("a list").clone();
    let found = settings
        .iter()
        .find(|one| one["key"] == "health.auto_recover");
    let found = found.expect("auto_recover");
    assert_eq!(
        (&found["value"], &found["by"]),
        (&"15m".into(), &"--auto-recover".into())
    );
}

#[test]
fn commands_without_a_daemon_print_the_next_step() {
    let folder = folder("nobody").env("HOME", "home");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    for args in [
        vec!["reload"],
        vec!["set", "x", "queue.max=1"],
        vec!["resume", "x"],
        vec!["status"],
    ] {
        let mut all = args.clone();
        all.extend(["--admin", &address]);
        let said = folder.run(&all);
        assert_eq!(said.code, Some(1), "{args:?}");
        assert!(
            said.err.contains("tollgate serve") && said.err.contains("--admin"),
            "{}",
            said.err
        );
    }
    // A store that is named is looked at directly.
    let said = folder.run(&[
        "status",
        "x",
        "--store",
        "memory:",
        "--provider",
        "x.yaml",
        "--json",
    ]);
    let status: Value = serde_json::from_str(&said.out).expect(&said.err);
    assert_eq!(status["limits"][0]["remaining"], 5);
}

/// The token of an address that others reach is made, told once, kept from others, and used by
/// commands.
#[test]
fn beyond_loopback_a_token_is_generated_stored_and_printed_once() {
    let folder = folder("token").env("TOLLGATE_STATE_DIR", "state");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.args(["--admin", "0.0.0.0:0", "--provider", "x.yaml"]);
    let served = RunningDaemon::run(folder, command);
    let token = served.folder.read("state/admin.token");
    assert_eq!(token.trim().len(), 64);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let about = std::fs::metadata(served.folder.path().join("state/admin.token"));
        assert_eq!(about.expect("a file").permissions().mode() & 0o777, 0o600);
    }
    let own = served.admin.replace("0.0.0.0", "127.0.0.1");
    let mut bare = std::net::TcpStream::connect(&own).expect("a listener");
    let request = format!("GET /v1/providers HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n");
    bare.write_all(request.as_bytes()).expect("a connection");
    let mut answer = String::new();
    bare.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let said = served.folder.run(&["status", "--admin", &own]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(!format!("{}{}", said.out, said.err).contains(token.trim()));
}

/// `cache` asks the daemon that runs: what is kept in memory is seen and forgotten too.
#[test]
fn cache_stats_of_a_daemon_show_cached_responses_and_saved_calls() {
    let served = RunningDaemon::start(folder("cache-daemon"), &[]);
    served.get("/x/a");
    let said = served.tollgate(&["cache", "stats"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(
        said.out.starts_with("nothing is kept in memory"),
        "{}",
        said.out
    );
    let spared = said.out.lines().last().unwrap_or_default();
    assert!(
        said.out.contains("revalidated") && spared.starts_with("x "),
        "{}",
        said.out
    );
    let said = served.tollgate(&["cache", "purge", "x", "--entity", "a"]);
    assert_eq!(said.out, "0 answers forgotten\n", "{}", said.err);
}
