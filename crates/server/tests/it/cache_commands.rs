//! Cached responses in degrade mode, by operator commands, and by request headers, over sockets.

use serde_json::json;
use tollgate::providers::Options;
use tollgate_core::health::Command;
use tollgate_core::time::Span;
use tollgate_ledger::Clock;
use tollgate_sim::test_host::TempFolder;

use crate::cache::{ManualClockGateway, assert_response, counting};
use crate::client::{get, get_with};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::test_gateway::file;
use crate::upstream::{Upstream, reply};

const DEGRADE: &str = "degrade: {below: 200, recover: 400}\ncache: {ttl: 10s}";

/// Says 100 of 3000 until an hour from now, and afterwards that nothing is used.
async fn low_quota_at_first() -> Upstream {
    Upstream::start(|number, _| async move {
        // By the clock of the `Date` header.
        let reset = Clock::System.now().wall.0 / 1_000_000 + 3_600;
        let remaining = if number == 0 { "100" } else { "3000" };
        let headers = [
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-limit", "3000"),
            ("x-ratelimit-reset", &reset.to_string()),
        ];
        reply(200, &headers, &number.to_string())
    })
    .await
}

/// Is the miss rejected, and is the stale response served and marked?
async fn is_degraded(manual: &ManualClockGateway) -> bool {
    let old = get(manual.gateway.address, "/x/odds/1").await;
    let missing = get(manual.gateway.address, "/x/odds/2").await;
    let marked = (
        old.header("x-tollgate-source"),
        old.header("x-tollgate-degraded"),
    );
    if missing.status == 200 {
        return false;
    }
    assert_eq!((marked, old.body.as_str()), (("stale", "true"), "0"));
    assert!(old.header("cache-status").contains("hit"));
    let body = missing.json();
    assert_eq!(
        (missing.status, &body["error"], &body["reason"]),
        (504, &json!("NotInCache"), &json!("degraded"))
    );
    true
}

/// S6: degrade mode never sticks: the provider's reset ends it without an operator or a call.
#[tokio::test]
async fn s6_the_provider_reset_ends_degrade_mode_over_sockets() {
    let upstream = low_quota_at_first().await;
    let rest = format!("limits: [{{limit: 3000, period: 1h, per: entity}}]\n{DEGRADE}");
    let manual = ManualClockGateway::start(&upstream, &rest).await;
    // A `Date` that is more than a day off is not believed.
    manual.clock.set_wall(Clock::System.now().wall);
    assert_response(&manual.get("/x/odds/1", &[]).await, 200, "upstream", "0");
    manual.advance(3_500);
    assert!(is_degraded(&manual).await);
    // Another entity is not concerned.
    assert_eq!(manual.get("/x/teams/1", &[]).await.1, "upstream");
    // A minute more than the rest of the hour: the provider's clock continues while a busy machine
    // calls.
    manual.advance(160);
    assert!(!is_degraded(&manual).await);
}

/// S6: an operator ends degrade mode for one entity.
#[tokio::test]
async fn s6_an_operator_ends_degrade_mode_over_sockets() {
    let upstream = low_quota_at_first().await;
    let rest = format!("limits: [{{limit: 3000, period: 1h, per: entity}}]\n{DEGRADE}");
    write_file("degraded.yaml", &file(upstream.address, &rest));
    let daemon = TestDaemon::start(from_file("degraded.yaml")).await;
    assert_eq!(get(daemon.gateway, "/x/odds/1").await.body, "0");
    assert_eq!(get(daemon.gateway, "/x/odds/2").await.status, 504);
    let status = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(status["entities"]["odds"]["degraded"], true, "{status}");
    let done = daemon
        .request("POST", "/v1/providers/x/reset?entity=odds", "")
        .await;
    assert_eq!(done.status, 200);
    assert_eq!(get(daemon.gateway, "/x/odds/2").await.status, 200);
}

/// A5, A7: an operator restricts the provider to the cache: fresh and stale responses are served
/// and marked, a miss is rejected, and afterwards everything is as before.
#[tokio::test]
async fn a5_a7_an_operator_can_restrict_a_provider_to_the_cache() {
    for (order, status, error) in [
        (Command::Offline, 503, "ProviderUnavailableError"),
        (Command::CacheOnly { lasts: None }, 504, "NotInCache"),
    ] {
        let upstream = counting().await;
        let rest = "limits: [100/1s]\ncache: {ttl: 10s, stale: 1h}";
        let manual = ManualClockGateway::start(&upstream, rest).await;
        let active = manual.gateway.registry.named("x").unwrap();
        assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
        active.apply_command(order);
        assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "0");
        manual.advance(11);
        assert_response(&manual.get("/x/a", &[]).await, 200, "stale", "0");
        let with_part = [("range", "bytes=0-0")];
        assert_response(&manual.get("/x/a", &with_part).await, 206, "stale", "0");
        let missing = get_with(manual.gateway.address, "/x/b", &[]).await;
        assert_eq!(
            (missing.status, &missing.json()["error"]),
            (status, &json!(error))
        );
        manual.advance(3_600);
        assert_eq!(manual.get("/x/a", &[]).await.0, status, "too old");
        assert_eq!(upstream.count(), 1, "no upstream call was made");
        active.apply_command(Command::Resume);
        assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "1");
    }
}

/// `--offline`: responses that an earlier run cached are served from the start.
#[tokio::test]
async fn a5_a_gateway_started_offline_serves_responses_cached_earlier() {
    let folder = TempFolder::unmade("gateway-cache");
    let upstream = counting().await;
    for (offline, source) in [(false, "upstream"), (true, "cache")] {
        let options = Options {
            cache: tollgate::cache::Cache::open(folder.path(), &tollgate::event::Events::new()),
            offline,
            ..Options::default()
        };
        let manual = ManualClockGateway::start_with(
            &upstream,
            "limits: [9/1s]\ncache: {ttl: forever}",
            options,
        )
        .await;
        assert_response(&manual.get("/x/a", &[]).await, 200, source, "0");
        manual.gateway.registry.cache().flush().await;
    }
}

/// S11: each call can name its entity and opt out of sharing.
#[tokio::test]
async fn s11_a_request_can_name_its_entity_and_opt_out_of_dedup() {
    let upstream = counting().await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}\nentities: {ttl: {odds: 4s}}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    let as_odds = [("x-tollgate-entity", "odds")];
    assert_response(&manual.get("/x/a", &as_odds).await, 200, "upstream", "0");
    manual.clock.pass(Span::from_secs(5));
    assert_response(&manual.get("/x/a", &as_odds).await, 200, "upstream", "1");
    // It concerns the call, not the cached response.
    let own = [("x-tollgate-entity", "odds"), ("x-tollgate-dedup", "no")];
    assert_response(&manual.get("/x/a", &own).await, 200, "cache", "1");
    let odd = get_with(
        manual.gateway.address,
        "/x/a",
        &[("x-tollgate-dedup", "maybe")],
    )
    .await;
    assert_eq!(odd.status, 400);
}

/// The counts of `tollgate cache stats` and `GET /v1/cache`, and the purge.
#[tokio::test]
async fn the_admin_api_counts_and_purges_cached_responses() {
    let upstream = Upstream::start(|_, received| async move {
        match received.target.as_str() {
            "/odds/mine" => reply(200, &[("set-cookie", "a=b")], "x"),
            _ => reply(200, &[], "12345"),
        }
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}";
    write_file("counted.yaml", &file(upstream.address, rest));
    let daemon = TestDaemon::start(from_file("counted.yaml")).await;
    for path in ["/x/odds/1", "/x/odds/1", "/x/teams/1", "/x/odds/mine"] {
        get(daemon.gateway, path).await;
    }
    let seen = daemon.request("GET", "/v1/cache", "").await.json();
    assert_eq!(seen["responses"], 2);
    assert_eq!(
        seen["saved"],
        json!([{"provider": "x", "hits": 1, "stale": 0, "revalidated": 0, "misses": 3, "not_stored": 1,
            "shared": 0, "merged": 0}])
    );
    let rows = |seen: &serde_json::Value| {
        let kept = seen["stored"].as_array().unwrap().iter();
        kept.map(|row| row["entity"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(&seen), ["odds", "teams"]);
    let odds = daemon
        .request("GET", "/v1/cache?provider=x&entity=odds", "")
        .await;
    assert_eq!(rows(&odds.json()), ["odds"]);
    for (method, path, body, status) in [
        ("DELETE", "/v1/cache?entity=odds", "", 400),
        ("GET", "/v1/cache?entity=odds", "", 400),
        ("GET", "/v1/cache?provider=nope", "", 404),
        ("DELETE", "/v1/cache?provider=nope", "", 404),
        // It was ignored, and everything was purged.
        ("DELETE", "/v1/cache", "{\"provider\": \"other\"}", 400),
    ] {
        let wrong = daemon.request(method, path, body).await;
        assert_eq!(wrong.status, status, "{method} {path}: {wrong:?}");
    }
    let gone = daemon
        .request("DELETE", "/v1/cache?provider=x&entity=odds", "")
        .await;
    assert_eq!(gone.json(), json!({"purged": 1}));
    assert_eq!(
        get(daemon.gateway, "/x/odds/1")
            .await
            .header("x-tollgate-source"),
        "upstream"
    );
    assert_eq!(
        get(daemon.gateway, "/x/teams/1")
            .await
            .header("x-tollgate-source"),
        "cache"
    );
    assert_eq!(daemon.request("POST", "/v1/cache", "").await.status, 405);
}
