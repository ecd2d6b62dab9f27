//! A4 over sockets: one broken endpoint does not stop calls to the others.

use serde_json::json;
use tollgate_core::health::HealthState;

use crate::cache::NO_RETRY;
use crate::client::{get, get_with, post, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

async fn broken_endpoint() -> Upstream {
    Upstream::start(|_, received| async move {
        match received.target.as_str() {
            "/broken" => reply(500, &[], ""),
            "/gone" => reply(502, &[], ""),
            _ => ok(),
        }
    })
    .await
}

/// A4: before, the sixth call waited 30 s.
#[tokio::test]
async fn a4_five_failed_posts_to_one_url_do_not_delay_a_healthy_call() {
    let upstream = broken_endpoint().await;
    let rest = "limits: [1000/1s]\nhealth: {sleep_first: 2m}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for _ in 0..5 {
        let failed = post(gateway.address, "/x/broken", &[], "{}").await;
        assert_eq!(failed.status, 500);
    }
    let soon = [("x-tollgate-timeout", "5s")];
    let rejected = get_with(gateway.address, "/x/broken", &soon).await;
    let body = rejected.json();
    assert_eq!(
        (rejected.status, &body["error"], &body["failureCount"]),
        (503, &json!("ProviderUnavailableError"), &json!(5))
    );
    let healthy = within_timeout(get(gateway.address, "/x/ok")).await;
    assert_eq!(
        (healthy.status, healthy.header("x-tollgate-wait")),
        (200, "0.000")
    );
    let active = gateway.registry.named("x").unwrap();
    assert_eq!(active.status().state, HealthState::Normal);
    let failing = active.failing_paths();
    assert_eq!(failing.len(), 1);
    assert_eq!(failing[0].path.as_deref(), Some("/broken"));
    assert_eq!(failing[0].state, HealthState::Sleep);
    assert_eq!(upstream.count(), 6);
}

/// A4: two calls with their retries are two failures. Before, they were eight.
#[tokio::test]
async fn a4_the_retries_of_two_calls_do_not_put_a_provider_to_sleep() {
    let upstream = broken_endpoint().await;
    let rest = "limits: [1000/1s]\nretry: {base: 1ms, max: 1ms, jitter: none}\n\
        health: {sleep_first: 2m}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for _ in 0..2 {
        let failed = within_timeout(get(gateway.address, "/x/gone")).await;
        assert_eq!(failed.header("x-tollgate-attempts"), "4");
    }
    assert_eq!(
        within_timeout(get(gateway.address, "/x/ok")).await.status,
        200
    );
    let active = gateway.registry.named("x").unwrap();
    assert_eq!(active.status().state, HealthState::Normal);
    assert_eq!(active.failing_paths()[0].failures, 2);
}

/// M9, A4: the breaker and `scope: provider` close everything, attempt by attempt.
#[tokio::test]
async fn m9_a_breaker_counts_attempts_of_the_whole_provider() {
    for health in [
        "health: breaker",
        "health: {scope: provider, count: attempt, sleep_first: 2m}",
    ] {
        let upstream = broken_endpoint().await;
        let rest = format!("limits: [1000/1s]\n{NO_RETRY}\n{health}");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        for _ in 0..5 {
            assert_eq!(get(gateway.address, "/x/broken").await.status, 500);
        }
        let soon = [("x-tollgate-timeout", "5s")];
        let rejected = get_with(gateway.address, "/x/ok", &soon).await;
        assert_eq!(rejected.status, 503, "{health}");
    }
}
