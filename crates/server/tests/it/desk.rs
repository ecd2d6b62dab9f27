//! Sources and tasks: what survives a restart.

use serde_json::{Value, json};
use tollgate_config::{Flag, Sources};
use tollgate_server::desk::{Desk, Source, TaskEvent};

use crate::decisions::frozen_ledger;
use crate::test_daemon::{TestDaemon, write_file};

const CONFIG: &str = "guards: { task: { limit: 50, period: 1m, burst: 3, by: name, max_pending: 2, retry_delay: 60s } }";

async fn daemon(name: &str) -> TestDaemon {
    let (config, provider) = (format!("{name}-tollgate.yaml"), format!("{name}-x.yaml"));
    write_file(&config, CONFIG);
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
        json!({"name": "a", "url": url, "every": "often"}),
        json!({"name": "a", "url": url, "cron": "daily"}),
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
        json!({"can_submit": false, "reason": "queue_full", "retry_in": 60.0})
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
        can(json!({"queue": "other", "pending": 51})).await["reason"],
        "queue_full"
    );
    for (id, word) in [
        ("1", "finished"),
        ("2", "failed"),
        ("3", "finished"),
        ("9", "finished"),
    ] {
        assert!(event(id, word).await.json()["pending"].is_u64());
    }
    let empty = daemon.request("GET", "/v1/tasks", "").await.json();
    assert_eq!(empty, json!({"queues": {}, "active_queues": []}));
    assert_eq!(event("1", "eaten").await.status, 400);
    assert_eq!(
        can(json!({"queue": "transcribe", "pending": -1})).await["error"],
        "BadRequest"
    );
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
        desk.on_task("q", "1", TaskEvent::Submitted).unwrap();
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
