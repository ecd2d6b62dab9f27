//! `tollgate source`, and the protocol of a scheduler and its workers, each worker a process.

use serde_json::{Value, json};

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
    assert_eq!(list.out, format!("{}{}", added.out, free.out));
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
