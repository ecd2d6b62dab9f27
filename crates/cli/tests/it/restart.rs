//! The state that a store on disk preserves across a restart of the real gateway.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::folder::Folder;
use crate::running_daemon::RunningDaemon;

/// An upstream that responds by path; `/held` only when released.
struct Upstream {
    address: String,
    reached: Receiver<()>,
    release: SyncSender<()>,
}

impl Upstream {
    fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (notify, reached) = sync_channel(9);
        let (release, released) = sync_channel(9);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &notify, &released);
            }
        });
        Upstream {
            address,
            reached,
            release,
        }
    }

    /// A gateway in front of it, on this state.
    fn gateway(&self, name: &str, state: &Folder, rest: &str) -> RunningDaemon {
        let file = format!("name: x\nupstream: http://{}\n{rest}", self.address);
        let folder = Folder::new(name).file("x.yaml", &file);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--provider", "x.yaml", "--store"]);
        command.arg(format!("sqlite:{}", state.path().display()));
        RunningDaemon::run(folder, command)
    }
}

/// One connection, one response.
fn serve(mut stream: TcpStream, notify: &SyncSender<()>, released: &Receiver<()>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let first = lines
        .by_ref()
        .map_while(Result::ok)
        .next()
        .unwrap_or_default();
    lines.map_while(Result::ok).find(String::is_empty);
    let head = match first.split(' ').nth(1).unwrap_or_default() {
        "/refused" => "429 No\r\nRetry-After: 300",
        "/little" => {
            "200 OK\r\nX-RateLimit-Limit: 1000\r\nX-RateLimit-Remaining: 5\r\nX-RateLimit-Reset: 300"
        }
        "/broken" => "500 No",
        "/held" => {
            notify.send(()).unwrap();
            released.recv().unwrap();
            "404 No"
        }
        _ => "200 OK",
    };
    let response = format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    // A client that has disconnected does not read it.
    stream.write_all(response.as_bytes()).ok();
}

fn call(daemon: &RunningDaemon, path: &str) -> String {
    let mut stream = TcpStream::connect(&daemon.gateway).unwrap();
    let request = format!(
        "GET /x/{path} HTTP/1.1\r\nHost: g\r\nX-Tollgate-Timeout: 30s\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn end(daemon: RunningDaemon) {
    daemon.signal("-TERM");
    assert_eq!(daemon.wait(), Some(0));
}

/// The remaining pause, as callers see it.
fn retry_after(response: &str) -> u64 {
    let mut lines = response.lines().map(str::to_ascii_lowercase);
    let found = lines.find_map(|line| line.strip_prefix("retry-after:")?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no Retry-After in {response}"))
}

/// The effect of one call holds for the next gateway, for the remaining time.
fn assert_survives_restart(name: &str, rest: &str, first: &str, then: &str) {
    let upstream = Upstream::start();
    let state = Folder::new(&format!("{name}-state"));
    let remaining = |gateway: &RunningDaemon| {
        let response = call(gateway, "next");
        assert!(response.contains(then), "{response}");
        retry_after(&response)
    };
    let gateway = upstream.gateway(name, &state, rest);
    call(&gateway, first);
    let before = remaining(&gateway);
    end(gateway);
    let after = remaining(&upstream.gateway(name, &state, rest));
    // A minute is far more than a restart takes, and far less than the remaining time.
    assert!(
        before >= 250 && (before - 60..=before).contains(&after),
        "{before} {after}"
    );
}

const ONCE: &str = "retry: {retries: {high: 0, normal: 0, low: 0}}\n";

/// M14, S5: a cool-down.
#[test]
fn m14_a_cool_down_survives_a_restart() {
    let rest = format!("limits: [1000/1d]\n{ONCE}");
    assert_survives_restart("restart-rest", &rest, "refused", "\"reason\":\"cooldown\"");
}

/// M14, A5: a sleeping provider.
#[test]
fn m14_sleep_survives_a_restart() {
    let rest = format!(
        "limits: [1000/1d]\n{ONCE}health: {{scope: provider, failure_threshold: 1, sleep_first: 300s}}\n"
    );
    assert_survives_restart("restart-sleep", &rest, "broken", "\"health\":\"sleep\"");
}

/// M14, S15: degrade mode.
#[test]
fn m14_degrade_mode_survives_a_restart() {
    let rest = format!("limits: [1000/1d]\n{ONCE}degrade: {{below: 10, recover: 20}}\n");
    assert_survives_restart("restart-little", &rest, "little", "\"reason\":\"degraded\"");
}

/// M14, H9: a quota of three with one call in flight and one in the queue when the stop signal
/// arrives. The call in flight gets a status that is not counted: its permit is returned, and so it
/// is available after the restart.
#[test]
fn m14_a_permit_returned_at_shutdown_is_available_after_restart() {
    let upstream = Upstream::start();
    let state = Folder::new("restart-quota-state");
    let rest = format!("limits: [3/1d]\nconcurrency: 1\nfree_status: [404]\n{ONCE}");
    let gateway = upstream.gateway("restart-quota", &state, &rest);
    assert!(call(&gateway, "one").starts_with("HTTP/1.1 200"));
    let mut held = gateway.send("/x/held");
    upstream.reached.recv().unwrap();
    let queued = gateway.send("/x/held");
    gateway.signal("-TERM");
    gateway.wait_for_log("event=draining");
    drop(queued);
    upstream.release.send(()).unwrap();
    let mut response = String::new();
    held.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 404"), "{response}");
    assert_eq!(gateway.wait(), Some(0));

    let gateway = upstream.gateway("restart-quota", &state, &rest);
    for path in ["two", "three"] {
        let response = call(&gateway, path);
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
    }
    let response = call(&gateway, "four");
    assert!(response.contains("\"limit\":\"3/1d\""), "{response}");
}

/// A service manager that signals the process and its group sends SIGTERM twice. Before, the second
/// one dropped the calls in flight.
#[test]
fn a_repeated_stop_signal_does_not_skip_the_drain() {
    let upstream = Upstream::start();
    let state = Folder::new("restart-twice-state");
    let gateway = upstream.gateway("restart-twice", &state, "limits: [9/1s]\n");
    let mut held = gateway.send("/x/held");
    upstream.reached.recv().unwrap();
    gateway.signal("-TERM");
    gateway.wait_for_log("event=draining");
    gateway.signal("-TERM");
    gateway.wait_for_log("a repeated signal");
    upstream.release.send(()).unwrap();
    let mut response = String::new();
    held.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 404"), "{response}");
    assert_eq!(gateway.wait(), Some(0));
}

/// A permit was forgotten by a restart: the report of its 429 was a 404, and the cool-down was lost.
#[test]
fn a_permit_that_is_open_at_a_stop_is_reported_to_the_next_daemon() {
    let upstream = Upstream::start();
    let state = Folder::new("restart-permit-state");
    let rest = "limits: [3/1d]\n";
    let permit = |daemon: &RunningDaemon| {
        let granted = daemon.tollgate(&["acquire", "x"]);
        assert_eq!(granted.code, Some(0), "{granted:?}");
        granted.out.trim().to_owned()
    };
    let daemon = upstream.gateway("restart-permit", &state, rest);
    let [limited, unused, renewed] = [(); 3].map(|()| permit(&daemon));
    end(daemon);

    let daemon = upstream.gateway("restart-permit", &state, rest);
    let body = format!("{{\"permit\": \"{renewed}\"}}");
    let reply = daemon.post("/v1/renew", &body);
    assert!(reply.contains("\"renewed\":true"), "{reply}");
    let released = daemon.tollgate(&["release", &unused]);
    assert_eq!(released.code, Some(0), "{released:?}");
    let report = format!(
        "{{\"permit\": \"{limited}\", \"status\": 429, \"headers\": {{\"retry-after\": 300}}}}"
    );
    let reply = daemon.post("/v1/report", &report);
    assert!(reply.contains("\"class\":\"limited\""), "{reply}");
    let response = call(&daemon, "one");
    assert!((290..=300).contains(&retry_after(&response)), "{response}");
    end(daemon);
    assert_eq!(stopped_files(&state), 1, "the renewed one is still open");
}

fn stopped_files(state: &Folder) -> usize {
    let entries = std::fs::read_dir(state.path().join("permits")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".stopped")).count()
}
