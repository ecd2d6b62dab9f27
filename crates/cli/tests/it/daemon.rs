//! Commands against a running daemon, as a user runs them.

use std::io::{Read, Write};

use serde_json::Value;

use crate::folder::Folder;
use crate::running_daemon::{RunningDaemon, X};
use tollgate_sim::test_host::free_address;

fn folder(name: &str) -> Folder {
    Folder::new(name).file("x.yaml", X)
}

fn limit(daemon: &RunningDaemon) -> Value {
    let output = daemon.tollgate(&["status", "x", "--json"]);
    let status: Value = serde_json::from_str(&output.out).expect(&output.err);
    status["limits"][0]["limit"].clone()
}

#[test]
fn a14_a_setting_is_changed_shown_and_reverted() {
    let daemon = RunningDaemon::start(folder("set"), &[]);
    let output = daemon.tollgate(&["set", "x", "limits=[9/1s]", "sleep_max=60"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    assert_eq!(
        output.out,
        "x: limits[0] = 9/1s\nx: health.sleep_max = 60s\n"
    );
    assert_eq!(limit(&daemon), 9);
    let output = daemon.tollgate(&["set", "x", "sleep_max="]);
    assert_eq!(output.out, "x: health.sleep_max = 5m (default)\n");
    let output = daemon.tollgate(&["set", "x", "limits=[9/1s]"]);
    assert_eq!(output.out, "x: limits[0] = 9/1s\nnothing has changed\n");
    let output = daemon.tollgate(&["set", "x", "sleep_mx=60"]);
    assert_eq!(output.code, Some(1));
    assert!(
        output.err.contains("did you mean `sleep_max`?"),
        "{}",
        output.err
    );
    let output = daemon.tollgate(&["set", "y", "sleep_max=60"]);
    assert_eq!(output.code, Some(1));
    let output = daemon.tollgate(&["set", "x", "limits="]);
    assert_eq!((output.code, limit(&daemon)), (Some(0), 5.into()));
    for usage in [
        vec!["set", "x"],
        vec!["set", "x", "sleep_max"],
        vec!["cache-only", "x", "--for", "soon"],
        vec!["serve", "--auto-recover", "soon"],
    ] {
        assert_eq!(daemon.tollgate(&usage).code, Some(2), "{usage:?}");
    }
}

#[test]
fn a_daemon_reloads_by_command_by_signal_and_by_file_watch() {
    let daemon = RunningDaemon::start(folder("reload"), &[]);
    let rewrite = |limit: &str| {
        daemon.folder.rewrite("x.yaml", &X.replace("5/1s", limit));
    };
    rewrite("6/1s");
    daemon.wait_for_log("event=reloaded");
    assert_eq!(limit(&daemon), 6, "by itself");
    rewrite("many/1s");
    daemon.wait_for_log("reload_rejected");
    let output = daemon.tollgate(&["reload"]);
    assert_eq!(output.code, Some(1));
    assert!(
        output.err.contains("x.yaml:3") && output.err.contains("old version stays"),
        "{}",
        output.err
    );
    assert_eq!(limit(&daemon), 6, "the old one stays");
    let status = daemon.tollgate(&["status", "x"]);
    assert!(status.out.contains("x.yaml:3"), "{}", status.out);
    daemon.signal("-HUP");
    daemon.wait_for_log("reload_rejected");
    rewrite("7/1s");
    daemon.wait_for_log("event=reloaded");
    let output = daemon.tollgate(&["reload"]);
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(0), "nothing has changed\n")
    );
    assert_eq!(limit(&daemon), 7);
}

/// A14: the daemon watches an env file like the other files.
#[test]
fn a14_a_running_daemon_applies_a_changed_env_file() {
    let folder = folder("envfile").file("v.env", "TOLLGATE_X_QUEUE_MAX=3\n");
    let daemon = RunningDaemon::start(folder, &["--env-file", "v.env"]);
    daemon.folder.rewrite("v.env", "TOLLGATE_X_QUEUE_MAX=4\n");
    daemon.wait_for_log("event=reloaded");
    let output = daemon.tollgate(&["status", "x", "--json"]);
    let status: Value = serde_json::from_str(&output.out).expect(&output.err);
    let settings = status["settings"].as_array().expect("a list").clone();
    let found = settings.iter().find(|one| one["key"] == "queue.max");
    assert_eq!(found.expect("queue.max")["value"], "4");
}

/// A key in its own file, in a folder without any other file: a new key is used at once.
#[test]
fn a_running_daemon_applies_a_changed_key_file() {
    let text = format!("{X}api_key: \"file:keys/x\"\nauth: {{header: x-key}}\n");
    let folder = Folder::new("keyfile")
        .file("x.yaml", &text)
        .file("keys/x", "old-key");
    let daemon = RunningDaemon::start(folder, &[]);
    daemon.folder.rewrite("keys/x", "new-key");
    daemon.wait_for_log("event=reloaded");
}

/// A5, A7: `--offline` sleeps until `resume`; operator commands work in every state.
#[test]
fn a5_a_daemon_that_starts_offline_is_resumed_by_command() {
    let daemon = RunningDaemon::start(folder("offline"), &["--offline", "--auto-recover", "15"]);
    assert!(daemon.get("/x/a").starts_with("HTTP/1.1 503"));
    let output = daemon.tollgate(&["resume", "x"]);
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(0), "x: resume; its state: Flowing\n")
    );
    for (args, state) in [
        (
            vec!["cache-only", "x", "--for", "30m"],
            "Cache only, set by an operator",
        ),
        (vec!["offline", "x"], "Set offline by an operator"),
        (vec!["pause", "x"], "Paused by an operator"),
        (vec!["cache-only", "x"], "Cache only"),
        (vec!["reset", "x"], "Flowing"),
    ] {
        let output = daemon.tollgate(&args);
        assert!(
            output.out.ends_with(&format!("its state: {state}\n")),
            "{args:?}: {}",
            output.out
        );
    }
    assert_eq!(
        daemon.tollgate(&["reset", "x", "--entity", "odds"]).code,
        Some(0)
    );
    assert_eq!(
        daemon.tollgate(&["pause", "x", "--entity", "odds"]).code,
        Some(1)
    );
    let output = daemon.tollgate(&["status", "x", "--json"]);
    let status: Value = serde_json::from_str(&output.out).expect(&output.err);
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
    let address = free_address().to_string();
    for args in [
        vec!["reload"],
        vec!["set", "x", "queue.max=1"],
        vec!["resume", "x"],
        vec!["status"],
    ] {
        let mut all = args.clone();
        all.extend(["--admin", &address]);
        let output = folder.run(&all);
        assert_eq!(output.code, Some(1), "{args:?}");
        assert!(
            output.err.contains("tollgate serve") && output.err.contains("--admin"),
            "{}",
            output.err
        );
    }
    // A store given with `--store` is read directly.
    let output = folder.run(&[
        "status",
        "x",
        "--store",
        "memory:",
        "--provider",
        "x.yaml",
        "--json",
    ]);
    let status: Value = serde_json::from_str(&output.out).expect(&output.err);
    assert_eq!(status["limits"][0]["remaining"], 5);
}

/// The admin token for an address that other hosts reach is generated, printed once, stored with
/// mode 0600, and used by commands.
#[test]
fn beyond_loopback_a_token_is_generated_stored_and_printed_once() {
    let folder = folder("token").env("TOLLGATE_STATE_DIR", "state");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.args(["--admin", "0.0.0.0:0", "--provider", "x.yaml"]);
    let daemon = RunningDaemon::run(folder, command);
    let token = daemon.folder.read("state/admin.token");
    assert_eq!(token.trim().len(), 64);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let about = std::fs::metadata(daemon.folder.path().join("state/admin.token"));
        assert_eq!(about.expect("a file").permissions().mode() & 0o777, 0o600);
    }
    let own = daemon.admin.replace("0.0.0.0", "127.0.0.1");
    let mut bare = std::net::TcpStream::connect(&own).expect("a listener");
    let request = format!("GET /v1/providers HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n");
    bare.write_all(request.as_bytes()).expect("a connection");
    let mut response = String::new();
    bare.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 401"), "{response}");
    let output = daemon.folder.run(&["status", "--admin", &own]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(!format!("{}{}", output.out, output.err).contains(token.trim()));
}

/// With a generated token on the admin address, the Redis protocol on loopback took anybody for the
/// operator, and the token was wrong there.
#[test]
fn a_generated_token_is_the_operators_on_every_address() {
    let folder = folder("token-everywhere").env("TOLLGATE_STATE_DIR", "state");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.args(["--admin", "0.0.0.0:0", "--resp", "127.0.0.1:0"]);
    command.args(["--provider", "x.yaml"]);
    let daemon = RunningDaemon::run(folder, command);
    let token = daemon.folder.read("state/admin.token");
    let address = daemon.resp.as_deref().expect("an address");
    let mut client = std::net::TcpStream::connect(address).expect("a listener");
    let commands = format!("TG.STATUS\r\nAUTH {}\r\nQUIT\r\n", token.trim());
    client.write_all(commands.as_bytes()).expect("a connection");
    let mut replies = String::new();
    client.read_to_string(&mut replies).expect("replies");
    assert!(replies.starts_with("-NOAUTH"), "{replies}");
    assert!(replies.ends_with("+OK\r\n+OK\r\n"), "{replies}");
}

/// The Redis protocol beyond loopback did not know the generated token: it could not start without a
/// configured one, and `AUTH` with the generated one was wrong.
#[test]
fn the_generated_token_opens_the_redis_protocol_too() {
    let folder = folder("token-resp").env("TOLLGATE_STATE_DIR", "state");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    command.args([
        "--admin",
        "127.0.0.1:0",
        "--resp",
        "0.0.0.0:0",
        "--provider",
        "x.yaml",
    ]);
    let daemon = RunningDaemon::run(folder, command);
    let token = daemon.folder.read("state/admin.token");
    let address = daemon.resp.as_deref().expect("an address");
    let address = address.replace("0.0.0.0", "127.0.0.1");
    let mut client = std::net::TcpStream::connect(address).expect("a listener");
    for (command, expected) in [
        ("PING", "-NOAUTH"),
        (&format!("AUTH {}", token.trim()), "+OK"),
        ("PING", "+PONG"),
    ] {
        let line = format!("{command}\r\n");
        client.write_all(line.as_bytes()).expect("a connection");
        let mut reply = [0; 512];
        let length = client.read(&mut reply).expect("a reply");
        let reply = String::from_utf8_lossy(&reply[..length]);
        assert!(reply.starts_with(expected), "{command}: {reply}");
    }
}

/// `cache` asks the running daemon: it lists and purges responses cached in memory too.
#[test]
fn cache_stats_of_a_daemon_show_cached_responses_and_saved_calls() {
    let daemon = RunningDaemon::start(folder("cache-daemon"), &[]);
    daemon.get("/x/a");
    let output = daemon.tollgate(&["cache", "stats"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(
        output.out.starts_with("nothing is cached in memory"),
        "{}",
        output.out
    );
    let saved = output.out.lines().last().unwrap_or_default();
    assert!(
        output.out.contains("revalidated") && saved.starts_with("x "),
        "{}",
        output.out
    );
    let output = daemon.tollgate(&["cache", "purge", "x", "--entity", "a"]);
    assert_eq!(output.out, "0 responses purged\n", "{}", output.err);
}
