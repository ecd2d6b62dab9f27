//! What the page is told: alerts, who waits, and that looking is not calling.

use std::time::Duration;

use serde_json::Value;
use tollgate::event::Event;
use tollgate_core::alert::{Alert, AlertKind, Level};

use crate::client::{get_with, within_timeout};
use crate::page::{Stream, daemon, with_provider};
use crate::upstream::{Upstream, ok, reply};

/// S10: alerts were in the log, the webhooks and S9, and never in the stream, so the page showed none.
#[tokio::test]
async fn s10_the_stream_has_alerts_and_failed_webhooks() {
    let daemon = daemon(
        "page-alerts.yaml",
        "name: x\ndomain: api.example.org\n",
        None,
    )
    .await;
    let mut stream = Stream::open(&daemon, "?kinds=alert,notice").await;
    let alert = Alert {
        level: Level::Critical,
        kind: AlertKind::Remaining,
        name: "odds".to_owned(),
        value: 3,
        threshold: 5,
    };
    for is_firing in [true, false] {
        daemon.daemon.registry().events().emit(Event::Alert {
            provider: "x".into(),
            entity: Some("odds".into()),
            alert: Box::new(alert.clone()),
            is_firing,
        });
        let seen = stream.find("alert", |_| true).await;
        let (status, level) = if is_firing {
            ("firing", "error")
        } else {
            ("resolved", "info")
        };
        assert_eq!(
            (
                &seen["kind"],
                &seen["status"],
                &seen["level"],
                &seen["entity"],
                &seen["provider"]
            ),
            (
                &"alert".into(),
                &status.into(),
                &level.into(),
                &"odds".into(),
                &"x".into()
            )
        );
        assert_eq!(seen["alert"], "odds remaining");
        let text = seen["text"].as_str().unwrap();
        assert_eq!(
            text.contains("has 3 requests remaining"),
            is_firing,
            "{text}"
        );
    }
    daemon
        .daemon
        .registry()
        .events()
        .emit(Event::WebhookFailed {
            number: 1,
            attempts: 1,
            gives_up: false,
            why: "it responded with 500".into(),
        });
    let failed = stream
        .find("notice", |event| event["kind"] == "webhook")
        .await;
    assert_eq!(
        failed["text"],
        "webhook 1: it responded with 500 (1 attempt, tried again)"
    );
}

/// A page that saw the events of an earlier process showed none of the next one, whose numbers began at 1 again.
#[tokio::test]
async fn numbers_of_events_grow_across_a_restart() {
    let mut last = 0;
    for _ in 0..2 {
        let daemon = daemon(
            "page-numbers.yaml",
            "name: x\ndomain: api.example.org\n",
            None,
        )
        .await;
        let mut stream = Stream::open(&daemon, "?kinds=notice").await;
        daemon.request("POST", "/v1/providers/x/pause", "").await;
        let event = stream
            .find("notice", |event| event["kind"] == "operator")
            .await;
        let id = event["id"].as_u64().unwrap();
        assert!(id > last, "{id} after {last}");
        last = id;
        tokio::time::timeout(Duration::from_millis(2), std::future::pending::<()>())
            .await
            .ok();
    }
}

/// S9: reading metrics, or opening a provider's page, made it "called".
#[tokio::test]
async fn s9_looking_at_a_provider_is_no_call_of_it() {
    let (_provider, daemon) =
        with_provider("page-look.yaml", "sliding 9/1s", "limits: [9/1s]").await;
    let metrics = daemon
        .request("GET", "/api/rate-limit/metrics", "")
        .await
        .json();
    let idle = &metrics["metrics"]["entities"]["x"];
    assert_eq!(idle["total_requests"], 0);
    // They were null, which S9 has only for what the provider reports.
    assert_eq!(
        (&idle["tokens_remaining"], &idle["capacity"]),
        (&9.into(), &9.into())
    );
    assert!(
        daemon.daemon.registry().started().is_empty(),
        "S9 starts nothing"
    );
    let one = daemon
        .request("GET", "/api/rate-limit/metrics?provider=x", "")
        .await;
    assert_eq!(one.status, 200);
    assert!(daemon.daemon.registry().started().is_empty());
    assert_eq!(
        daemon.request("GET", "/v1/providers/x", "").await.status,
        200
    );
    let started = || async {
        let list = daemon.request("GET", "/v1/providers", "").await.json();
        list["providers"][0]["started"].clone()
    };
    assert_eq!(started().await, false, "somebody only looked");
    get_with(daemon.gateway, "/x/items/1", &[]).await;
    assert_eq!(started().await, true);
}

/// An idle token bucket was "20 % left, provider says 20 left", and Grafana showed the same: its burst is what it can have,
/// not its limit.
#[tokio::test]
async fn an_idle_bucket_is_full_whatever_its_burst_is() {
    let (_provider, daemon) = with_provider(
        "page-bucket.yaml",
        "sliding 1000/1s",
        "limits: [{name: small, limit: 100, period: 1h, algorithm: token-bucket, burst: 20}, {name: large, limit: 2, period: 1h, algorithm: token-bucket, burst: 40}]",
    )
    .await;
    get_with(daemon.gateway, "/x/items/1", &[]).await;
    let provider = daemon.request("GET", "/v1/providers/x", "").await.json();
    let facts = |at: usize| {
        let limit = &provider["limits"][at];
        ["limit", "depth", "used", "remaining", "own_remaining"].map(|field| limit[field].as_u64())
    };
    assert_eq!(facts(0), [100, 20, 1, 19, 19].map(Some));
    assert_eq!(facts(1), [2, 40, 1, 39, 39].map(Some));
    let metrics = daemon.request("GET", "/metrics", "").await.body;
    for line in [
        "tollgate_limit_remaining{provider=\"x\",limit=\"small\"} 19",
        "tollgate_limit_max{provider=\"x\",limit=\"small\"} 20",
        "tollgate_limit_max{provider=\"x\",limit=\"large\"} 40",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}\n{metrics}");
    }
    let s9 = daemon
        .request("GET", "/api/rate-limit/metrics?provider=x", "")
        .await
        .json();
    let entity = &s9["metrics"]["entities"]["x"];
    assert_eq!(
        (&entity["tokens_remaining"], &entity["capacity"]),
        (&19.into(), &20.into())
    );
}

/// "This window" on the page was the last hour, whatever the limit was.
#[tokio::test]
async fn callers_are_counted_in_the_window_of_the_longest_limit() {
    let day = "limits: [1000/1s, {name: day, limit: 1000, period: 1d}]";
    for (file, of) in [(day, Some("day")), ("limits: [1000/1s]", None)] {
        let (_provider, daemon) = with_provider("page-window.yaml", "sliding 1000/1s", file).await;
        let caller = ("x-tollgate-caller", "web");
        get_with(daemon.gateway, "/x/items/1", &[caller]).await;
        let reply = daemon.request("GET", "/v1/callers", "").await.json();
        let provider = &reply["providers"][0];
        assert_eq!(provider["window_of"].as_str(), of);
        // It cannot be older than the daemon.
        assert!(
            provider["window"].as_u64().is_some_and(|age| age < 3_000),
            "{provider}"
        );
        let web = provider["callers"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|one| one["name"] == "web");
        assert_eq!(web.map(|one| &one["sent"]), Some(&1.into()));
    }
}

/// A caller whose calls all wait was in no list until one of them ended.
#[tokio::test]
async fn a_caller_that_only_waits_is_listed_with_its_calls() {
    let (_provider, daemon) = with_provider(
        "page-waits.yaml",
        "sliding 100/1s",
        "limits: [{limit: 1, period: 1h, algorithm: fixed-window}]\nqueue: {timeout: 2h}",
    )
    .await;
    get_with(daemon.gateway, "/x/items/0", &[]).await;
    let gateway = daemon.gateway;
    let waiting: Vec<_> = (1..=2)
        .map(|number| {
            tokio::spawn(async move {
                let caller = ("x-tollgate-caller", "backfill");
                get_with(gateway, &format!("/x/items/{number}"), &[caller]).await
            })
        })
        .collect();
    let found = within_timeout(async {
        loop {
            let reply = daemon.request("GET", "/v1/callers", "").await.json();
            let callers = reply["providers"][0]["callers"].as_array().cloned();
            let found = callers
                .into_iter()
                .flatten()
                .find(|one| one["name"] == "backfill");
            if let Some(found) = found.filter(|one| one["waiting"] == 2) {
                return found;
            }
        }
    })
    .await;
    assert_eq!(found["calls"], 0);
    // Two windows for its own calls. The caller that used this one called within half a minute, so
    // the estimate expects it to take turns: two more.
    let eta = found["eta"].as_f64().expect("a time");
    assert!((7_100.0..14_500.0).contains(&eta), "{eta}");
    let details = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(details["queue"]["callers"]["backfill"]["waiting"], 2);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The page's charts and Prometheus read the same counters: every call and every response counts once.
#[tokio::test]
async fn the_history_and_the_metrics_count_the_same() {
    let upstream = Upstream::start(|number, _| async move {
        match number % 5 {
            3 => reply(404, &[], ""),
            4 => reply(500, &[], ""),
            _ => ok(),
        }
    })
    .await;
    let file = format!(
        "name: x\nupstream: http://{}\nlimits: [25/1h]\nhealth: off\ncache: {{ttl: 1h}}\nretry: {{retries: {{high: 0, normal: 0, low: 0}}}}\n",
        upstream.address
    );
    let daemon = daemon("page-same.yaml", &file, None).await;
    for number in 0..30 {
        let no_wait = ("x-tollgate-timeout", "1ms");
        let headers: &[(&str, &str)] = if number < 25 { &[] } else { &[no_wait] };
        get_with(daemon.gateway, &format!("/x/items/{number}"), headers).await;
    }
    get_with(daemon.gateway, "/x/items/0", &[]).await;
    let sum = |column: &Value| -> u64 {
        let values = column.as_array().into_iter().flatten();
        values.filter_map(Value::as_u64).sum()
    };
    let history = within_timeout(async {
        loop {
            let path = "/v1/history?provider=x&span=5m";
            let history = daemon.request("GET", path, "").await.json();
            if sum(&history["calls"]) >= 31 {
                return history;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let metrics = daemon.request("GET", "/metrics", "").await.body;
    let count = |parts: &[&str]| -> u64 {
        let lines = metrics.lines().filter(|line| !line.starts_with('#'));
        let fit = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
        let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count"
        )]
        fit.filter_map(value).map(|value| value as u64).sum()
    };
    let responses = |code: &str| {
        let code = format!("code=\"{code}");
        count(&["tollgate_requests_total{", "provider=\"x\"", &code])
    };
    let of_history = ["success", "other", "failed", "limited", "saved", "rejected"];
    assert_eq!(
        of_history.map(|name| sum(&history[name])),
        [
            responses("2"),
            responses("404"),
            responses("5"),
            responses("429"),
            count(&["tollgate_cache_hits_total{", "provider=\"x\""]),
            count(&[
                "tollgate_permits_total{",
                "provider=\"x\"",
                "decision=\"reject\""
            ]),
        ]
    );
    let sent = ["sent_high", "sent_normal", "sent_low"].map(|name| sum(&history[name]));
    let granted = count(&[
        "tollgate_permits_total{",
        "provider=\"x\"",
        "decision=\"allow\"",
    ]);
    assert_eq!(sent.iter().sum::<u64>(), granted);
    assert_eq!((granted, sum(&history["saved"])), (25, 1));
}
