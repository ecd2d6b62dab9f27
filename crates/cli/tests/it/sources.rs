//! `tollgate source`, and the protocol of a scheduler and its workers, each worker a process.

use std::process::Command;

use serde_json::{Value, json};
use tollgate_sim::http::{Settings, SimProvider};
use tollgate_sim::test_host::free_address;

use crate::folder::Folder;
use crate::running_daemon::RunningDaemon;

const X: &str = "name: fmp\ndomain: api.example.org\nlimits: [3/1h]\n";

const CONFIG: &str =
    "guards: { task: { limit: 50, period: 1m, burst: 15, by: name, max_pending: 3 } }\n";

fn daemon(name: &str) -> RunningDaemon {
    let folder = Folder::new(name)
        .file("x.yaml", X)
        .file("tollgate.yaml", CONFIG)
        .file(
            "news.yaml",
            "name: news\nurl: https://api.example.org/news\nevery: 5m\n",
        )
        .file(
            "other.yaml",
            "{name: other, url: 'https://other.example/x'}",
        )
        .file(
            "wrong.yaml",
            "name: a\nurl: https://api.example.org/\nevry: 5m\n",
        );
    RunningDaemon::start(folder, &[])
}

/// A request with curl, as a scheduler in any language sends it.
fn request(daemon: &RunningDaemon, path: &str, body: &Value) -> Value {
    let url = format!("http://{}{path}", daemon.admin);
    let mut curl = std::process::Command::new("curl");
    curl.args(["-s", "-m", "30", "-H", "X-Tollgate-Admin: 1", &url]);
    if !body.is_null() {
        curl.args(["-d", &body.to_string()]);
    }
    let output = curl.output().expect("curl runs");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// H5: sources are added, listed and removed; adding prints which provider will limit it, or that none
/// will. They survive a restart.
#[test]
fn h5_adding_a_source_prints_who_limits_it() {
    let daemon = daemon("source");
    let added = daemon.tollgate(&["source", "add", "news.yaml"]);
    assert_eq!(
        (added.code, added.out.as_str()),
        (
            Some(0),
            "news: https://api.example.org/news, every 5m; limited by fmp\n"
        ),
        "{}",
        added.err
    );
    let free = daemon.tollgate(&["source", "add", "other.yaml"]);
    assert_eq!(
        free.out,
        "other: https://other.example/x; not limited: no provider has this domain\n"
    );
    for (file, why) in [
        ("news.yaml", "already"),
        ("wrong.yaml", "did you mean `every`?"),
        ("none.yaml", "cannot be read"),
    ] {
        let failed = daemon.tollgate(&["source", "add", file]);
        assert_eq!(failed.code, Some(1));
        assert!(failed.err.contains(why), "{file}: {}", failed.err);
    }
    let list = daemon.tollgate(&["source", "list"]);
    for (line, added) in list.out.lines().zip([&added.out, &free.out]) {
        assert!(line.starts_with(added.trim_end()), "{line}");
    }
    assert_eq!(list.out.lines().count(), 2);
    let json = daemon.tollgate(&["source", "list", "--json"]);
    let json: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(json["sources"][0]["provider"], "fmp");
    assert_eq!(
        daemon.tollgate(&["source", "remove", "other"]).code,
        Some(0)
    );
    let again = daemon.tollgate(&["source", "remove", "other"]);
    assert_eq!(again.code, Some(1));
    assert!(again.err.contains("GET /v1/sources"), "{}", again.err);
}

/// H6, C6: the scheduler asks for capacity, which takes nothing, and queues at most so many, with those that
/// are queued and not acquired yet; each worker acquires; a denial is `RateLimitExceeded`, no failure,
/// costs no retry, and its task is queued again.
#[test]
fn h6_a_scheduler_asks_and_workers_acquire() {
    let daemon = daemon("scheduler");
    let capacity = || {
        let reply = daemon.tollgate(&["capacity", "https://api.example.org/news", "--json"]);
        let reply: Value = serde_json::from_str(&reply.out).expect("JSON");
        reply["remaining"].as_u64().expect("a number")
    };
    let event = |id: usize, event: &str| {
        let body = json!({"id": id.to_string(), "event": event});
        request(&daemon, "/v1/tasks/fetch", &body)
    };
    let pending = || {
        let queues = request(&daemon, "/v1/tasks", &Value::Null);
        queues["queues"]["fetch"]["pending"].as_u64().unwrap_or(0)
    };
    // Two cycles, and five sources are due in each.
    let mut queued = 0;
    for _cycle in 0..2 {
        let room = usize::try_from(capacity().saturating_sub(pending())).expect("few");
        for _source in 0..room.min(5) {
            queued += 1;
            event(queued, "submitted");
        }
    }
    assert_eq!((queued, capacity()), (3, 3), "asking took nothing");
    // A source that somebody adds by hand makes one too many.
    queued += 1;
    event(queued, "submitted");
    let full = request(&daemon, "/v1/tasks/can-submit", &json!({"queue": "fetch"}));
    assert_eq!(full["reason"], "queue_full");
    daemon.wait_for_log("event=task_queue_full queue=fetch pending=4");
    let worker = |id: usize| {
        let reply = daemon.tollgate(&["acquire", "fmp", "--json"]);
        let decided: Value = serde_json::from_str(&reply.out).expect("JSON");
        match reply.code {
            Some(0) => {
                let permit = decided["permit"].as_str().expect("a permit");
                event(id, "started");
                let reported = daemon.tollgate(&["report", permit, "--status", "200"]);
                assert_eq!(reported.code, Some(0), "{}", reported.err);
                event(id, "finished");
                None
            }
            code => Some((code, decided["error"].clone(), event(id, "scheduled"))),
        }
    };
    let denied: Vec<_> = (1..=queued).filter_map(worker).collect();
    let [(code, error, put_back)] = denied.as_slice() else {
        panic!("{denied:?}");
    };
    assert_eq!((*code, error), (Some(75), &json!("RateLimitExceeded")));
    assert_eq!(put_back["failures"], 0, "it is no failure");
    assert_eq!((&put_back["retry_in"], pending()), (&json!(60.0), 1));
    let shown = request(&daemon, "/v1/providers/fmp", &Value::Null);
    assert_eq!(shown["health"]["failure_count"], 0);
    assert_eq!(shown["health"]["state"], "normal");
}

/// A daemon on this state, whose provider is at this address.
fn on_state(
    name: &str,
    state: &Folder,
    address: std::net::SocketAddr,
    limits: &str,
) -> RunningDaemon {
    let provider = format!(
        "name: x\ndomain: api.example.org\nupstream: http://{address}\nlimits: [{limits}]\n"
    );
    let path = state.path().display().to_string();
    let folder = Folder::new(name)
        .file("x.yaml", &provider)
        .file("tollgate.yaml", "scheduler: { cycle: 100ms, workers: 2 }\n")
        .env("TOLLGATE_STATE_DIR", &path);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--provider", "x.yaml", "--store"]);
    command.arg(format!("sqlite:{path}"));
    RunningDaemon::run(folder, command)
}

fn add(daemon: &RunningDaemon, source: &Value) {
    let added = request(daemon, "/v1/sources", source);
    assert_eq!(added["provider"], "x", "{added}");
}

fn sources(daemon: &RunningDaemon) -> Vec<Value> {
    let list = daemon.tollgate(&["source", "list", "--json"]);
    let list: Value = serde_json::from_str(&list.out).expect(&list.err);
    list["sources"].as_array().expect("a list").clone()
}

/// Waits until every source has a result.
fn wait_until_all_are_fetched(daemon: &RunningDaemon) {
    let is_fetched = |one: &Value| one["last"]["result"].is_string();
    for _ in 0..600 {
        if sources(daemon).iter().all(is_fetched) {
            return;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    panic!("not fetched in time: {:?}", sources(daemon));
}

/// H5, H6: a daemon is killed while sources are queued: the next one fetches those that were not, each once, within the limit by
/// the provider's own log; what was fetched is not fetched again; a time that was missed is made up for once.
#[test]
fn h6_sources_survive_a_kill_and_the_limit_holds() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let settings = Settings::with_rules("sliding 2/1s").expect("a rule");
    let provider = runtime
        .block_on(SimProvider::start(settings))
        .expect("a port");
    let state = Folder::new("sources-state");
    let killed = on_state("sources-killed", &state, provider.address(), "2/1s");
    let url = |name: &str| format!("http://api.example.org/{name}");
    for number in 0..6 {
        let name = format!("s{number}");
        add(
            &killed,
            &json!({"name": name, "url": url(&name), "output": "{name}.{ext}"}),
        );
    }
    add(
        &killed,
        &json!({"name": "z-hourly", "url": url("hourly"), "every": "1h"}),
    );
    killed.wait_for_log("event=source_fetched");
    killed.signal("-KILL");
    drop(killed);
    let daemon = on_state("sources-next", &state, provider.address(), "2/1s");
    // Which ones are still due depends on how far the first daemon came before it was killed.
    wait_until_all_are_fetched(&daemon);
    daemon.signal("-TERM");
    assert_eq!(daemon.wait(), Some(0));
    // Nothing is due: another start fetches nothing.
    let daemon = on_state("sources-last", &state, provider.address(), "2/1s");
    let all = sources(&daemon);
    assert_eq!(all.len(), 7);
    for one in &all {
        assert_eq!(
            (&one["last"]["result"], &one["failures"]),
            (&json!("ok"), &json!(0)),
            "{one}"
        );
        let is_hourly = one["name"] == "z-hourly";
        assert_eq!(one["next_run"].is_number(), is_hourly, "{one}");
        if !is_hourly {
            let file = state
                .path()
                .join(one["last"]["output"].as_str().expect("a file"));
            let bytes = std::fs::metadata(file).expect("a file").len();
            assert_eq!(json!(bytes), one["last"]["bytes"]);
        }
    }
    let line = daemon.tollgate(&["source", "list"]).out;
    assert!(
        line.contains("; next run ") && line.contains("last: 200, "),
        "{line}"
    );
    let status = daemon.tollgate(&["status"]).out;
    assert!(
        status.contains("7 sources: 0 queued, 0 failing; next run "),
        "{status}"
    );
    drop(daemon);
    let report = runtime.block_on(provider.stop());
    assert_eq!(report.violations, 0, "{report:?}");
    // At most the two that were under way when it was killed were fetched twice.
    assert!((7..=9).contains(&report.accepted), "{report:?}");
}

/// H5: results on standard output are one line of JSON each.
#[test]
fn h5_results_on_standard_output_are_lines_of_json() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let settings = Settings::with_rules("sliding 9/1s").expect("a rule");
    let provider = runtime
        .block_on(SimProvider::start(settings))
        .expect("a port");
    let address = provider.address();
    let folder = Folder::new("sources-stdout")
        .file(
            "x.yaml",
            &format!("name: x\ndomain: api.example.org\nupstream: http://{address}\n"),
        )
        .file(
            "news.yaml",
            "name: news\nurl: http://api.example.org/news\noutput: '-'\n",
        );
    let admin = free_address().to_string();
    let out = std::fs::File::create(folder.path().join("out")).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "memory:",
        "--admin",
        &admin,
    ]);
    command.args(["--provider", "x.yaml"]).stdout(out);
    let mut child = folder
        .prepare(&mut command)
        .spawn()
        .expect("the program runs");
    let wait_for = |what: &dyn Fn() -> bool| {
        let mut tries = (0..200).take_while(|_| !what());
        tries
            .by_ref()
            .for_each(|_| std::thread::park_timeout(std::time::Duration::from_millis(50)));
        assert!(what(), "in time");
    };
    wait_for(&|| {
        folder
            .run(&["source", "add", "news.yaml", "--admin", &admin])
            .code
            == Some(0)
            || folder
                .run(&["source", "list", "--admin", &admin])
                .out
                .contains("news")
    });
    wait_for(&|| folder.read("out").contains("\"source\":\"news\""));
    child.kill().expect("a child");
    child.wait().expect("a child");
    let printed = folder.read("out");
    let line = printed
        .lines()
        .find(|line| line.starts_with('{'))
        .expect("a line");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(
        (&line["source"], &line["status"]),
        (&json!("news"), &json!(200))
    );
    assert!(line["body"].is_string() && line["ts"].is_number(), "{line}");
    runtime.block_on(provider.stop());
}

/// H10, scenario 4, H7: a service that crashes after 45 calls goes on at 45, in the same window.
#[test]
fn h10_after_a_crash_the_count_continues_in_its_window() {
    let upstream = crate::operating::upstream(204);
    let state = Folder::new("crash-state");
    let fixed = "{limit: 300, period: 10m, algorithm: fixed-window}";
    let limit = |daemon: &RunningDaemon| {
        let status = daemon.tollgate(&["status", "x", "--json"]);
        let status: Value = serde_json::from_str(&status.out).expect(&status.err);
        let limit = &status["limits"][0];
        let start = limit["window_start"].as_f64().expect("a window");
        (limit["used"].as_u64().expect("a count"), start)
    };
    let crashed = on_state("crash-before", &state, upstream, fixed);
    for _ in 0..45 {
        assert!(crashed.get("/x/a").starts_with("HTTP/1.1 204"));
    }
    let before = limit(&crashed);
    assert_eq!(before.0, 45);
    crashed.signal("-KILL");
    drop(crashed);
    let daemon = on_state("crash-after", &state, upstream, fixed);
    let after = limit(&daemon);
    assert_eq!(after.0, 45, "no call is forgotten");
    assert!((after.1 - before.1).abs() < 1.0, "{before:?} {after:?}");
    daemon.get("/x/a");
    assert_eq!(limit(&daemon).0, 46);
}
