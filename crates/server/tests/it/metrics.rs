//! What the daemon tells about its calls: metrics, entities, decisions.

use serde_json::{Value, json};
use tollgate::providers::Options;

use crate::client::{ClientResponse, get, get_with};
use crate::test_daemon::{TestDaemon, from_file, raw_request, write_file};
use crate::upstream::{Upstream, ok, reply};

/// Every name of the contract, with its prefix.
const NAMES: [&str; 21] = [
    "rate_limit_hits_total",
    "rate_limit_waits_total",
    "rate_limit_wait_duration_seconds",
    "tollgate_requests_total",
    "tollgate_cache_hits_total",
    "tollgate_cache_miss_total",
    "tollgate_rate_current",
    "tollgate_concurrency_current",
    "tollgate_err_rate_30s",
    "tollgate_latency_ms",
    "tollgate_sleep_ms",
    "tollgate_queue_depth",
    "tollgate_tokens_available",
    "tollgate_permits_total",
    "tollgate_violations_total",
    "tollgate_health_state",
    "tollgate_store_up",
    "tollgate_fail_open_total",
    "tollgate_limit_remaining",
    "tollgate_limit_max",
    "tollgate_permit_wait_seconds",
];

/// A daemon with one provider, which has these settings.
async fn daemon(name: &str, upstream: &Upstream, settings: &str) -> TestDaemon {
    let address = upstream.address;
    let file = format!("name: x\nupstream: http://{address}\nhealth: off\n{settings}\n");
    write_file(name, &file);
    let options = Options {
        private: true,
        ..Options::default()
    };
    TestDaemon::start_with(from_file(name), options, None).await
}

async fn scrape(daemon: &TestDaemon) -> String {
    let response = daemon.request("GET", "/metrics", "").await;
    assert_eq!(response.status, 200);
    let kind = response.header("content-type");
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    response.body
}

/// The value of the sample with this name and these labels.
fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample));
    let line = line.unwrap_or_else(|| panic!("no {sample} in\n{text}"));
    line.trim().parse().unwrap()
}

/// C7, S13: Prometheus finds every name before the first call.
#[tokio::test]
async fn c7_every_name_has_a_sample_from_the_start() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let daemon = daemon("metrics-start.yaml", &upstream, "limits: [100/1s]").await;
    daemon.daemon.registry().named("x").unwrap();
    let text = scrape(&daemon).await;
    for name in NAMES {
        let is_sample = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ', '_']))
        };
        assert!(text.lines().any(|line| is_sample(&line)), "{name}\n{text}");
        assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
    }
}

#[tokio::test]
async fn counters_say_what_happened_to_calls() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            1 => reply(404, &[], ""),
            2 => reply(429, &[("retry-after", "0")], ""),
            _ => ok(),
        }
    })
    .await;
    let settings =
        "limits: [100/1s]\ncache: {ttl: 1h}\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let daemon = daemon("metrics-counts.yaml", &upstream, settings).await;
    for path in ["/x/a", "/x/a", "/x/b", "/x/c"] {
        get(daemon.gateway, path).await;
    }
    let text = scrape(&daemon).await;
    for (sample, count) in [
        ("tollgate_requests_total{provider=\"x\",code=\"200\"}", 1.0),
        ("tollgate_requests_total{provider=\"x\",code=\"404\"}", 1.0),
        ("tollgate_requests_total{provider=\"x\",code=\"429\"}", 1.0),
        ("tollgate_cache_hits_total{provider=\"x\"}", 1.0),
        ("tollgate_violations_total{provider=\"x\"}", 1.0),
        ("tollgate_latency_ms_count{provider=\"x\"}", 3.0),
        (
            "tollgate_permits_total{provider=\"x\",priority=\"normal\",decision=\"allow\",reason=\"none\"}",
            3.0,
        ),
        (
            "tollgate_health_state{provider=\"x\",state=\"normal\"}",
            1.0,
        ),
        ("tollgate_store_up", 1.0),
    ] {
        assert!(
            (value(&text, sample) - count).abs() < 0.1,
            "{sample}\n{text}"
        );
    }
}

#[tokio::test]
async fn metrics_have_a_token_of_their_own_and_openmetrics_is_served_if_preferred() {
    write_file("metrics-token.yaml", "name: x\ndomain: api.example.org\n");
    let config = "metrics: {prefix: my_, token: read-me}\nproviders: [metrics-token.yaml]\n"; // tidy:canary
    write_file("metrics-token-tollgate.yaml", config);
    let sources = tollgate_config::Sources {
        config: Some("metrics-token-tollgate.yaml".to_owned()),
        providers: Vec::new(),
        ..from_file("metrics-token.yaml")
    };
    let daemon = TestDaemon::start_with(sources, Options::default(), Some("admin")).await;
    let host = daemon.admin.to_string();
    let with = async |authorization: &str| -> ClientResponse {
        let headers = [
            ("host", host.as_str()),
            ("authorization", authorization),
            ("accept", "application/openmetrics-text;version=1.0.0"),
        ];
        raw_request(daemon.admin, "GET", "/metrics", &headers, "").await
    };
    for (authorization, status) in [
        ("Bearer wrong", 401),
        ("Bearer read-me", 200),
        ("Bearer admin", 200),
    ] {
        assert_eq!(with(authorization).await.status, status, "{authorization}");
    }
    let response = with("Bearer read-me").await;
    assert!(
        response
            .header("content-type")
            .starts_with("application/openmetrics-text")
    );
    assert!(response.body.contains("\nmy_requests_total{") && response.body.ends_with("# EOF\n"));
}

/// S9, field for field.
#[tokio::test]
async fn s9_entities_have_the_documented_fields() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(
                200,
                &[
                    ("x-ratelimit-remaining", "2500"),
                    ("x-ratelimit-limit", "3000"),
                ],
                "{}",
            ),
            _ => reply(429, &[("retry-after", "30")], ""),
        }
    })
    .await;
    let settings = "limits: [{limit: 3000, period: 1h, per: entity}]\ncache: {ttl: 1h}\n\
                    alerts: {critical: 200, warning: 2600}\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let daemon = daemon("metrics-s9.yaml", &upstream, settings).await;
    for _ in 0..2 {
        assert_eq!(get(daemon.gateway, "/x/fixtures").await.status, 200);
    }
    assert_eq!(get(daemon.gateway, "/x/odds").await.status, 429);
    let path = "/api/rate-limit/metrics";
    let all = daemon.request("GET", path, "").await.json();
    assert_eq!(all["success"], true);
    assert_eq!(
        all["metrics"]["entities"]["fixtures"],
        json!({
            "entity": "fixtures", "tokens_remaining": 2500, "requests_in_window": 1, "capacity": 3000,
            "api_remaining": 2500, "api_limit": 3000,
            "reset_at": all["metrics"]["entities"]["fixtures"]["reset_at"],
            "reset_in_seconds": all["metrics"]["entities"]["fixtures"]["reset_in_seconds"],
            "is_in_cooldown": false, "is_degraded": false, "total_requests": 2,
            "total_429_errors": 0, "recent_429_rate": 0, "cache_hits": 1, "cache_misses": 1,
            "cache_hit_rate": 0.5,
        })
    );
    let odds = &all["metrics"]["entities"]["odds"];
    assert_eq!(
        (
            &odds["total_429_errors"],
            &odds["recent_429_rate"],
            &odds["is_in_cooldown"]
        ),
        (&json!(1), &json!(1), &json!(true))
    );
    let warning = json!({ "level": "warning", "entity": "fixtures", "remaining": 2500,
                          "message": "Warning: fixtures has 2500 requests remaining" });
    assert_eq!(all["alerts"], json!([warning]));
    let one = daemon
        .request("GET", "/api/rate-limit/metrics?entity=odds&provider=x", "")
        .await
        .json();
    assert_eq!(one["metrics"]["entities"].as_object().unwrap().len(), 1);
    let unknown = daemon
        .request("GET", "/api/rate-limit/metrics?entity=none", "")
        .await;
    assert_eq!(
        (unknown.status, unknown.json()),
        (404, json!({ "success": false, "error": "UnknownEntity" }))
    );
}

/// The steps of a call, as `kind` and `text`.
fn steps(decision: &Value) -> Vec<(String, String)> {
    let steps = decision["steps"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    steps
        .map(|step| (text(&step["kind"]), text(&step["text"])))
        .collect()
}

#[tokio::test]
async fn the_last_decisions_say_why_and_in_which_steps() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(503, &[], ""),
            _ => ok(),
        }
    })
    .await;
    let settings = "limits: [{limit: 2, period: 1h}]\nretry: {base: 1ms, max: 1ms}";
    let daemon = daemon("metrics-why.yaml", &upstream, settings).await;
    let retried = get_with(
        daemon.gateway,
        "/x/a?secret=1",
        &[("x-tollgate-caller", "web")],
    )
    .await;
    let rejected = get_with(daemon.gateway, "/x/b", &[("x-tollgate-timeout", "1s")]).await;
    assert_eq!((retried.status, rejected.status), (200, 429));
    let path = format!(
        "/v1/decisions?provider=x&id={}",
        retried.header("x-tollgate-id")
    );
    let found = daemon.request("GET", &path, "").await.json();
    let one = &found["decisions"][0];
    for (field, expected) in [
        ("method", json!("GET")),
        ("path", json!("/a")),
        ("caller", json!("web")),
        ("entity", json!("a")),
        ("status", json!(200)),
        ("attempts", json!(2)),
        ("source", json!("upstream")),
        ("decision", json!("allow")),
        ("priority", json!("normal")),
    ] {
        assert_eq!(one[field], expected, "{one}");
    }
    let steps_of_one = steps(one);
    let kinds: Vec<&str> = steps_of_one.iter().map(|(kind, _)| &**kind).collect();
    assert_eq!(
        kinds,
        [
            "allow", "sent", "response", "retry", "allow", "sent", "response", "end"
        ]
    );
    assert_eq!(
        steps_of_one[2].1,
        "x responded with 503: a failure of the provider."
    );
    let all = daemon
        .request("GET", "/v1/decisions?limit=1", "")
        .await
        .json();
    let last = &all["decisions"][0];
    assert_eq!(last["id"], rejected.header("x-tollgate-id"));
    assert_eq!(
        (&last["decision"], &last["reason"], &last["limit"]),
        (&json!("reject"), &json!("limit"), &json!("2/1h"))
    );
    let texts = steps(last);
    assert_eq!(
        texts[1].1, "It got no permit: the limit 2/1h was used up.",
        "{texts:?}"
    );
    assert_eq!(
        daemon
            .request("GET", "/v1/decisions?limit=0", "")
            .await
            .status,
        400
    );
}

/// The tokens of a provider were its free slots: four calls at a time, whatever remained of its thousand.
#[tokio::test]
async fn c7_the_tokens_of_a_provider_are_no_slots() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let settings = "limits: [1000/1h]\nconcurrency: 4";
    let daemon = daemon("metrics-slots.yaml", &upstream, settings).await;
    get(daemon.gateway, "/x/a").await;
    let metrics = daemon.request("GET", "/metrics", "").await.body;
    let line = "tollgate_tokens_available{type=\"provider\",identifier=\"x\"} 999";
    assert!(metrics.lines().any(|one| one == line), "{metrics}");
}
