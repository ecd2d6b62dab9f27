//! Rejections: their statuses, JSON and headers.

use serde_json::json;
use tollgate::providers::{Options, Unknown};

use crate::client::{get, get_with, post};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

/// M10: the rejection of an open breaker, field for field. M9: five failures open it.
#[tokio::test]
async fn m10_an_open_breaker_rejects_with_its_json() {
    let upstream = Upstream::start(|_, _| async { reply(503, &[], "down") }).await;
    let rest = "health: breaker\nretry: {retries: {high: 0, normal: 0, low: 0}}\nlimits: [100/1s]";
    let gateway =
        TestGateway::start(&[file(upstream.address, rest).replace("name: x", "name: tmdb")]).await;
    for _ in 0..5 {
        assert_eq!(get(gateway.address, "/tmdb/a").await.body, "down");
    }
    let rejected = get(gateway.address, "/tmdb/a").await;
    let mut body = rejected.json();
    let reset_in = body["resetIn"].take().as_u64().expect("a number");
    assert!((290_000..=300_000).contains(&reset_in), "{reset_in}");
    let expected = json!({
        "error": "ProviderUnavailableError",
        "message": "Circuit breaker is open for tmdb",
        "provider": "tmdb",
        "state": "open",
        "failureCount": 5,
        "resetIn": null,
        "health": "sleep",
    });
    assert_eq!((rejected.status, body), (503, expected));
    let retry_after: u64 = rejected.header("retry-after").parse().unwrap();
    assert!((290..=300).contains(&retry_after), "{retry_after}");
    assert_eq!(rejected.header("x-should-retry"), "false");
    assert_eq!(upstream.count(), 5, "open rejects at once");
}

#[tokio::test]
async fn a_wait_past_the_deadline_is_rejected_at_once_with_limit_and_time() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/30s]")]).await;
    get(gateway.address, "/x/a").await;
    let rejected = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", "5s")]).await;
    let body = rejected.json();
    assert_eq!(
        (rejected.status, &body["error"]),
        (429, &json!("RateLimitExceeded"))
    );
    assert_eq!(
        (&body["limit"], &body["reason"]),
        (&json!("1/30s"), &json!("limit"))
    );
    assert_eq!(
        (&body["provider"], &body["entity"]),
        (&json!("x"), &json!("a"))
    );
    let retry_in = body["retryIn"].as_u64().unwrap();
    assert!((20_000..=30_100).contains(&retry_in), "{retry_in}");
    let after: u64 = rejected.header("retry-after").parse().unwrap();
    let after_ms: u64 = rejected.header("retry-after-ms").parse().unwrap();
    assert_eq!((after, after_ms), (retry_in.div_ceil(1_000), retry_in));
    assert_eq!(rejected.header("x-should-retry"), "");
    assert_eq!(body["id"], rejected.header("x-tollgate-id"));
    assert!(body["hint"].as_str().is_some_and(|hint| !hint.is_empty()));
}

#[tokio::test]
async fn a_cost_above_the_limit_is_rejected_without_a_retry_time() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let limits = "limits: [{name: tpm, limit: 100, period: 1m, unit: tokens}]";
    let gateway = TestGateway::start(&[file(upstream.address, limits)]).await;
    let rejected = get_with(
        gateway.address,
        "/x/a",
        &[("x-tollgate-cost", "tokens=101")],
    )
    .await;
    let body = rejected.json();
    assert_eq!(
        (rejected.status, &body["reason"], &body["limit"]),
        (429, &json!("too_costly"), &json!("tpm"))
    );
    assert_eq!(rejected.header("retry-after"), "");
}

#[tokio::test]
async fn an_unknown_provider_is_404_with_the_nearest_name() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let file = file(upstream.address, "limits: [1/1s]").replace("name: x", "name: tmdb");
    let gateway = TestGateway::start(&[file]).await;
    let rejected = get(gateway.address, "/tmbd/a").await;
    assert_eq!(
        (rejected.status, &rejected.json()["error"]),
        (404, &json!("UnknownProvider"))
    );
    assert!(
        rejected.json()["hint"].as_str().unwrap().contains("tmdb"),
        "{rejected:?}"
    );
}

/// R-E7: a URL does not reach private addresses.
#[tokio::test]
async fn a_private_address_is_403() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[]).await;
    for host in [
        upstream.address.to_string(),
        format!("localhost:{}", upstream.address.port()),
        "[::1]:9".to_owned(),
    ] {
        let rejected = get(gateway.address, &format!("/http://{host}/a")).await;
        assert_eq!(
            (rejected.status, &rejected.json()["error"]),
            (403, &json!("DomainNotAllowed")),
            "{host}"
        );
    }
    assert_eq!(upstream.count(), 0);
}

/// H4: an unknown domain is rejected with `unknown_domain: refuse`.
#[tokio::test]
async fn h4_an_unknown_domain_is_403_with_unknown_domain_refuse() {
    let options = Options {
        unknown: Unknown::Refuse,
        private: true,
        ..Options::default()
    };
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start_with(&[], options).await;
    let rejected = get(gateway.address, &format!("/http://{}/a", upstream.address)).await;
    assert_eq!(
        (rejected.status, &rejected.json()["error"]),
        (403, &json!("DomainNotAllowed"))
    );
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_call_that_loops_back_is_508() {
    let gateway = TestGateway::start_with(
        &[],
        Options {
            private: true,
            ..Options::default()
        },
    )
    .await;
    let rejected = get(gateway.address, &format!("/http://{}/a", gateway.address)).await;
    assert_eq!(
        (rejected.status, &rejected.json()["error"]),
        (508, &json!("LoopDetected"))
    );
}

#[tokio::test]
async fn a_cache_only_request_without_an_entry_is_not_in_cache() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let rejected = get_with(gateway.address, "/x/a", &[("x-tollgate-cache", "only")]).await;
    assert_eq!(
        (rejected.status, &rejected.json()["error"]),
        (504, &json!("NotInCache"))
    );
    assert_eq!(upstream.count(), 0);
}

/// A11: a POST with an unknown outcome is not retried, and neither is an error of the caller.
#[tokio::test]
async fn a11_unsafe_and_permanent_failures_are_not_retried() {
    let upstream = Upstream::start(|_, received| async move {
        match received.target.as_str() {
            "/down" => reply(503, &[], "down"),
            _ => reply(422, &[], "wrong"),
        }
    })
    .await;
    let rest = "limits: [100/1s]\nretry: {base: 1ms, max: 2ms}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    assert_eq!(
        post(gateway.address, "/x/down", &[], "{}").await.status,
        503
    );
    assert_eq!(get(gateway.address, "/x/wrong").await.status, 422);
    assert_eq!(upstream.count(), 2);
    let keyed = post(
        gateway.address,
        "/x/down",
        &[("idempotency-key", "k")],
        "{}",
    )
    .await;
    assert_eq!(
        (keyed.status, keyed.header("x-tollgate-attempts")),
        (503, "4")
    );
}

/// An option header is applied or rejected: a repeated or non-ASCII one is never ignored.
#[tokio::test]
async fn a_duplicate_or_non_ascii_tollgate_header_is_rejected() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    for (headers, expected) in [
        (vec![("x-tollgate-priority", "low")], 200),
        (
            vec![
                ("x-tollgate-priority", "low"),
                ("x-tollgate-priority", "high"),
            ],
            400,
        ),
        (
            vec![("x-tollgate-timeout", "5s"), ("x-tollgate-timeout", "5s")],
            400,
        ),
        (vec![("x-tollgate-entity", "sé")], 400),
        (
            vec![("x-tollgate-nothing", "a"), ("x-tollgate-nothing", "é")],
            200,
        ),
    ] {
        let response = get_with(gateway.address, "/x/a", &headers).await;
        assert_eq!(response.status, expected, "{headers:?} {response:?}");
    }
}
