//! Sources and tasks: what survives a restart.

use serde_json::{Value, json};
use tollgate_config::{Flag, Sources};
use tollgate_core::time::{Span, Wall};
use tollgate_server::desk::{Desk, QueueCounts, Source, TaskEvent};

use crate::decisions::frozen_ledger;
use crate::test_daemon::{TestDaemon, write_file};

const CONFIG: &str = "guards: { task: { limit: 50, period: 1m, burst: 3, by: name, max_pending: 2, retry_delay: 60s } }";

async fn daemon(name: &str) -> TestDaemon {
    daemon_with(name, CONFIG).await
}

async fn daemon_with(name: &str, text: &str) -> TestDaemon {
    let (config, provider) = (format!("{name}-tollgate.yaml"), format!("{name}-x.yaml"));
    write_file(&config, text);
    write_file(
        &provider,
        "name: fmp\ndomain: api.example.org\nlimits: [5/1s]\n",
    );
    // Time stands still, so that no token comes back meanwhile.
    let (ledger, _) = frozen_ledger();
    let sources = Sources {
        only_named: true,
        config: Some(config),
        providers: vec![provider],
        flags: vec![Flag {
            name: "--store",
            path: "store",
            value: "memory:".to_owned(),
        }],
        ..Sources::default()
    };
    TestDaemon::start_on(ledger, sources, Default::default(), None).await
}

/// H5: sources are added, listed and removed; adding says who will limit it, or that nobody will.
#[tokio::test]
async fn h5_sources_are_added_listed_and_removed() {
    let daemon = daemon("desk-sources").await;
    let post = async |body: Value| {
        daemon
            .request("POST", "/v1/sources", &body.to_string())
            .await
    };
    let url = "https://api.example.org/news";
    let added = post(json!({"name": "news", "url": url, "every": "5m"})).await;
    assert_eq!(added.status, 201, "{added:?}");
    assert_eq!(
        added.json(),
        json!({"name": "news", "url": url, "domain": "api.example.org", "provider": "fmp", "limited": true, "every": "5m"})
    );
    let free = post(json!({"name": "other", "url": "https://other.example/x"}))
        .await
        .json();
    assert_eq!(
        (&free["provider"], &free["limited"]),
        (&Value::Null, &false.into())
    );
    assert_eq!(post(json!({"name": "news", "url": url})).await.status, 409);
    for wrong in [
        json!({"name": "a"}),
        json!({"url": url}),
        json!({"name": "a b", "url": url}),
        json!({"name": "a", "url": "api.example.org"}),
        json!({"name": "a", "url": "https://u:p@api.example.org/"}),
        json!({"name": "a", "url": "https://api.example.org/?apikey=1"}),
        json!({"name": "a", "url": "https://api.example.org/?q=1&api%5Fkey=1"}),
        json!({"name": "a", "url": "https://api.example.org/?api%255Fkey=1"}),
        json!({"name": "a", "url": "https://api.example.org/?auth_token=1"}),
        json!({"name": "a", "url": "https://api.example.org/?Client_Secret=1"}),
        json!({"name": "a", "url": "https://api.example.org/?subscription-key=1"}),
        json!({"name": "a", "url": "https://api.example.org/?a=1;%74oken=1"}),
        json!({"name": "a", "url": "https://api.example.org/news;api_key=1/x"}),
        json!({"name": "a", "url": url, "every": "often"}),
        json!({"name": "a", "url": url, "every": "0s"}),
        json!({"name": "a", "url": url, "cron": "daily"}),
        json!({"name": "a", "url": url, "cron": "a b c d e"}),
        json!({"name": "a", "url": url, "cron": "60 6 * * *"}),
        json!({"name": "a", "url": url, "every": "5m", "cron": "0 6 * * *"}),
        json!({"name": "a", "url": url, "priority": "urgent"}),
        json!({"name": "a", "url": url, "evry": "5m"}),
    ] {
        assert_eq!(post(wrong.clone()).await.status, 400, "{wrong}");
    }
    let list = daemon.request("GET", "/v1/sources", "").await.json();
    let names: Vec<&str> = list["sources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["news", "other"]);
    assert_eq!(
        daemon
            .request("DELETE", "/v1/sources/news", "")
            .await
            .status,
        204
    );
    assert_eq!(
        daemon
            .request("DELETE", "/v1/sources/news", "")
            .await
            .status,
        404
    );
}

/// H5: URLs with `keyword` or `author` were refused as if they held a key, and a source without a URL got
/// the hint to send `provider`, which is no field of it.
#[tokio::test]
async fn h5_a_url_is_refused_for_whole_words_that_name_a_key() {
    let daemon = daemon("desk-keys").await;
    let post = async |body: Value| {
        daemon
            .request("POST", "/v1/sources", &body.to_string())
            .await
    };
    let without = post(json!({"name": "a"})).await;
    assert!(without.body.contains("`url` is missing"), "{without:?}");
    assert!(!without.body.contains("provider"), "{without:?}");
    // Words that only contain the letters of one that names a key.
    for query in [
        "monkey=1",
        "keyword=a",
        "author=a",
        "design=a",
        "signal=a&turkey=b",
    ] {
        let name = "plain";
        let url = format!("https://api.example.org/?{query}");
        let added = post(json!({"name": name, "url": url})).await;
        assert_eq!(added.status, 201, "{query}: {added:?}");
        let removed = daemon.request("DELETE", "/v1/sources/plain", "").await;
        assert_eq!(removed.status, 204);
    }
    for query in [
        "accessToken=1",
        "appId=1",
        "X-Amz-Signature=1",
        "hapikey=1",
        "api.key=1",
    ] {
        let url = format!("https://api.example.org/?{query}");
        let held = post(json!({"name": "a", "url": url})).await;
        assert_eq!(held.status, 400, "{query}: {held:?}");
    }
}

/// A queue with a guard of its own has that guard's rules and tokens, not those of the guard `task`.
#[tokio::test]
async fn c6_a_queue_may_have_a_guard_of_its_own() {
    let config = "guards: { task: { limit: 50, period: 1m, by: name, max_pending: 2 }, \
        mail: { limit: 60, period: 1m, burst: 1, by: name, max_pending: 5, retry_delay: 7s } }";
    let daemon = daemon_with("desk-own-guard", config).await;
    let can = async |body: Value| {
        let body = body.to_string();
        let reply = daemon.request("POST", "/v1/tasks/can-submit", &body);
        reply.await.json()
    };
    assert_eq!(
        can(json!({"queue": "mail", "pending": 5})).await["can_submit"],
        true
    );
    let denied = can(json!({"queue": "mail", "pending": 5})).await;
    assert_eq!(
        (&denied["guard"], &denied["limit"]),
        (&json!("mail"), &json!("60/1m"))
    );
    let full = can(json!({"queue": "mail", "pending": 6})).await;
    assert_eq!(
        (&full["guard"], &full["retry_in"]),
        (&json!("mail"), &json!(7.0))
    );
    let of_tasks = can(json!({"queue": "other", "pending": 3})).await;
    assert_eq!(
        (&of_tasks["guard"], &of_tasks["reason"]),
        (&json!("task"), &json!("queue_full"))
    );
    let body = json!({"id": "1", "event": "submitted"}).to_string();
    daemon.request("POST", "/v1/tasks/mail", &body).await;
    let shown = daemon.request("GET", "/v1/tasks", "").await.json();
    assert_eq!(shown["queues"]["mail"]["max_pending"], 5);
}

/// C6: a queue with more pending tasks than allowed takes no more; otherwise one token is taken
/// without waiting. A count of the caller's own broker wins.
#[tokio::test]
async fn c6_a_task_may_be_submitted_if_queue_and_guard_allow_it() {
    let daemon = daemon("desk-tasks").await;
    let can = async |body: Value| {
        daemon
            .request("POST", "/v1/tasks/can-submit", &body.to_string())
            .await
            .json()
    };
    let event = async |id: &str, event: &str| {
        let body = json!({"id": id, "event": event}).to_string();
        daemon.request("POST", "/v1/tasks/transcribe", &body).await
    };
    let yes = json!({"can_submit": true, "reason": null, "retry_in": null});
    assert_eq!(can(json!({"queue": "transcribe"})).await, yes);
    for id in ["1", "2", "2", "3"] {
        assert_eq!(event(id, "submitted").await.status, 200);
    }
    let full = can(json!({"queue": "transcribe"})).await;
    assert_eq!(
        full,
        json!({"can_submit": false, "reason": "queue_full", "retry_in": 60.0, "error": "QueueFull",
            "message": "3 tasks wait in the queue `transcribe`; at most 2 may", "guard": "task", "limit": "max_pending 2",
            "hint": "submit it later, or raise `max_pending` of the guard `task`"})
    );
    assert_eq!(
        can(json!({"queue": "transcribe", "pending": 2})).await,
        yes,
        "the broker's count wins"
    );
    event("1", "started").await;
    event("2", "scheduled").await;
    let shown = daemon.request("GET", "/v1/tasks", "").await.json();
    assert_eq!(
        shown,
        json!({"queues": {"transcribe": {"active": 1, "scheduled": 1, "reserved": 1, "pending": 2, "max_pending": 2}}, "active_queues": ["transcribe"]})
    );
    assert_eq!(
        can(json!({"queue": "transcribe"})).await,
        yes,
        "2 of 2 are not more than 2"
    );
    let limited = can(json!({"queue": "transcribe"})).await;
    assert_eq!(
        (&limited["reason"], &limited["can_submit"]),
        (&"limit".into(), &false.into())
    );
    assert_eq!(
        (&limited["guard"], &limited["limit"]),
        (&"task".into(), &"50/1m".into()),
        "{limited}"
    );
    assert_eq!(
        can(json!({"queue": "other", "pending": 51})).await["reason"],
        "queue_full"
    );
    for id in ["1", "2", "3", "9"] {
        assert!(event(id, "finished").await.json()["pending"].is_u64());
    }
    let empty = daemon.request("GET", "/v1/tasks", "").await.json();
    let zeros = json!({"active": 0, "scheduled": 0, "reserved": 0, "pending": 0, "max_pending": 2});
    assert_eq!(
        empty,
        json!({"queues": {"transcribe": zeros}, "active_queues": ["transcribe"]}),
        "an empty queue stays listed"
    );
    assert_eq!(event("1", "eaten").await.status, 400);
    assert_eq!(
        can(json!({"queue": "transcribe", "pending": -1})).await["error"],
        "BadRequest"
    );
}

/// C5: a task that was put back comes back after its countdown and has used no retry; one that fails is
/// tried three more times, after 1, 2 and 4 seconds.
#[tokio::test]
async fn c5_a_task_is_put_back_with_a_countdown_and_retried_with_backoff() {
    let daemon = daemon("desk-retries").await;
    let event = async |event: &str| {
        let body = json!({"id": "1", "event": event}).to_string();
        let reply = daemon.request("POST", "/v1/tasks/transcribe", &body).await;
        let reply = reply.json();
        (reply["retry_in"].clone(), reply["failures"].clone())
    };
    event("submitted").await;
    for _ in 0..5 {
        assert_eq!(event("scheduled").await, (json!(60.0), json!(0)));
    }
    for (failures, wait) in [(1, 1.0), (2, 2.0), (3, 4.0)] {
        assert_eq!(event("started").await, (Value::Null, json!(failures - 1)));
        for _repeated in 0..2 {
            assert_eq!(event("failed").await, (json!(wait), json!(failures)));
        }
        let shown = daemon.request("GET", "/v1/tasks", "").await.json();
        assert_eq!(shown["queues"]["transcribe"]["scheduled"], 1);
    }
    event("started").await;
    assert_eq!(event("failed").await, (Value::Null, json!(4)), "no more");
    let shown = daemon.request("GET", "/v1/tasks", "").await.json();
    assert_eq!(shown["queues"]["transcribe"]["pending"], 0);
    let url = "/v1/tasks/transcribe";
    assert_eq!(daemon.request("DELETE", url, "").await.status, 204);
    assert_eq!(daemon.request("DELETE", url, "").await.status, 404);
}

/// C5, C6: a worker that reports nothing but `failed`, each time when it was told to run the task again, was told to for ever.
#[test]
fn c5_a_worker_that_reports_failures_only_uses_its_retries_up() {
    let desk = Desk::in_memory().unwrap();
    let rules = tollgate_config::config::Task {
        max_pending: None,
        retry_delay: Span::from_secs(60),
        wait: Span::ZERO,
        retries: 3,
        factor: tollgate_core::ratio::Ppm(2_000_000),
    };
    let mut now = Wall(1_000_900_000);
    let report = |event, now| desk.on_task(("q", "1"), event, Some(&rules), now).unwrap();
    report(TaskEvent::Submitted, now);
    report(TaskEvent::Scheduled, now);
    now = now + Span::from_secs(61);
    let mut reports = 0;
    while let Some(wait) = report(TaskEvent::Failed, now).retry_in {
        reports += 1;
        assert!(
            reports <= 6,
            "four failures, and at most one repetition of each"
        );
        now = now + wait;
    }
    assert_eq!(
        desk.queue("q").unwrap(),
        QueueCounts::default(),
        "it has ended"
    );
}

/// Where guards do not reject, a full queue does not either; without a guard of tasks there is no
/// limit.
#[tokio::test]
async fn c6_a_queue_rejects_only_where_guards_reject() {
    let daemon = daemon("desk-limiting").await;
    let unknown = daemon
        .request("POST", "/v1/limiting", r#"{"mode": "on", "x": 1}"#)
        .await;
    let message = unknown.json()["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(
        unknown.status == 400 && message.starts_with("`x` is not a field"),
        "{unknown:?}"
    );
    let can = async |daemon: &TestDaemon| {
        let body = json!({"queue": "q", "pending": 9}).to_string();
        let reply = daemon.request("POST", "/v1/tasks/can-submit", &body);
        reply.await.json()["can_submit"].clone()
    };
    assert_eq!(can(&daemon).await, false);
    for (mode, allowed) in [("off", true), ("shadow", true), ("on", false)] {
        let body = json!({"mode": mode}).to_string();
        daemon.request("POST", "/v1/limiting", &body).await;
        assert_eq!(can(&daemon).await, allowed, "{mode}");
    }
    let shadow = CONFIG.replace("burst: 3", "burst: 3, shadow: true");
    write_file("desk-limiting-tollgate.yaml", &shadow);
    daemon.reload().await;
    assert_eq!(can(&daemon).await, true);
    write_file("desk-limiting-tollgate.yaml", "log: {access: false}");
    daemon.reload().await;
    assert_eq!(can(&daemon).await, true, "no guard of tasks");
    let reserved = json!({"queue": "can-submit"}).to_string();
    let reserved = daemon
        .request("POST", "/v1/tasks/can-submit", &reserved)
        .await;
    assert_eq!(reserved.status, 400, "no event could name it");
}

/// Publishers report after the broker has the task, and requests are repeated: an event that comes
/// late left a task behind that nobody would ever end, and 51 of them closed the queue for ever.
#[test]
fn c6_late_and_repeated_events_leave_no_task_behind() {
    let desk = Desk::in_memory().unwrap();
    let now = std::cell::Cell::new(1_000_u64);
    let event = |id: &str, event: TaskEvent| {
        let wall = Wall(now.get() * 1_000_000);
        desk.on_task(("q", id), event, None, wall).unwrap().counts
    };
    let empty = QueueCounts::default();
    let one = |reserved, active| QueueCounts {
        reserved,
        active,
        scheduled: 0,
    };
    event("1", TaskEvent::Started);
    assert_eq!(
        event("1", TaskEvent::Submitted),
        one(0, 1),
        "it runs already"
    );
    assert_eq!(event("1", TaskEvent::Finished), empty);
    for late in [
        TaskEvent::Submitted,
        TaskEvent::Started,
        TaskEvent::Scheduled,
    ] {
        assert_eq!(event("1", late), empty, "{late:?}");
    }
    assert_eq!(event("2", TaskEvent::Finished), empty, "before its start");
    assert_eq!(event("2", TaskEvent::Submitted), empty);
    now.set(now.get() + 61);
    assert_eq!(event("1", TaskEvent::Submitted), one(1, 0), "a new task");
    now.set(now.get() + 7 * 86_400 + 1);
    assert_eq!(
        event("3", TaskEvent::Submitted),
        one(1, 0),
        "1 is forgotten"
    );
}

/// A file of the first format is read, with its counts.
#[test]
fn c6_a_desk_of_the_first_format_is_read() {
    let folder = std::env::temp_dir().join(format!("tollgate-desk-1-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let old = rusqlite::Connection::open(folder.join("desk.db")).unwrap();
    old.execute_batch(
        "CREATE TABLE tasks (queue TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL, PRIMARY KEY (queue, id)) STRICT, WITHOUT ROWID;
         INSERT INTO tasks VALUES ('q', '1', 'active'), ('q', '2', 'reserved'), ('q', '3', 'reserved');
         PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(old);
    let desk = Desk::open(&folder).unwrap();
    let counts = desk.queues().unwrap()["q"];
    assert_eq!((counts.active, counts.reserved), (1, 2));
    let now = Wall(4_000_000_000_000_000);
    let noted = desk.on_task(("q", "2"), TaskEvent::Finished, None, now);
    assert_eq!(noted.unwrap().counts.pending(), 0, "untouched for years");
    std::fs::remove_dir_all(folder).ok();
}

/// What was written is there after a restart, and a file of a newer version is left alone.
#[test]
fn h5_c6_the_desk_survives_a_restart() {
    let folder = std::env::temp_dir().join(format!("tollgate-desk-{}", std::process::id()));
    let source = Source {
        name: "news".to_owned(),
        url: "https://api.example.org/".to_owned(),
        cron: Some("0 6 * * *".to_owned()),
        ..Source::default()
    };
    {
        let desk = Desk::open(&folder).unwrap();
        desk.add_source(&source).unwrap();
        let noted = desk.on_task(("q", "1"), TaskEvent::Submitted, None, Wall(1));
        assert_eq!(noted.unwrap().counts.pending(), 1);
    }
    let desk = Desk::open(&folder).unwrap();
    assert_eq!(desk.sources().unwrap(), [source]);
    assert_eq!(desk.queues().unwrap()["q"].pending(), 1);
    drop(desk);
    let newer = rusqlite::Connection::open(folder.join("desk.db")).unwrap();
    newer.pragma_update(None, "user_version", 9).unwrap();
    drop(newer);
    assert!(
        Desk::open(&folder)
            .unwrap_err()
            .to_string()
            .contains("newer")
    );
    std::fs::remove_dir_all(folder).ok();
}
