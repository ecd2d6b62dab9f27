//! Metrics and alerts of an embedded Tollgate (S9, S10, S11), in virtual time.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use http::Response;
use serde_json::json;
use tollgate::{AlertKind, AlertLevel, Call, Provider, Tollgate};

use crate::embed::{provider, tollgate_with};

const HOUR: Duration = Duration::from_secs(3_600);

async fn call(tollgate: &Tollgate, entity: &str, status: u16) {
    let call = Call::provider("x").entity(entity).timeout(HOUR);
    let permit = tollgate.acquire(call).await.expect("a permit");
    let response = Response::builder().status(status).body(()).unwrap();
    permit.report(&response);
}

fn with_entities() -> Provider {
    provider()
        .limit_with(json!({ "limit": 10, "period": "1h", "per": "entity" }))
        .set("alerts", json!({ "critical": 2, "warning": 5 }))
}

/// S11: the counts of one entity or of all, as the daemon's endpoint has them.
#[tokio::test(start_paused = true)]
async fn s11_metrics_have_the_counts_of_each_entity() {
    let tollgate = tollgate_with(with_entities()).await;
    for _ in 0..3 {
        call(&tollgate, "fixtures", 200).await;
    }
    call(&tollgate, "odds", 429).await;
    let fixtures = tollgate.metrics("fixtures").await.expect("it was called");
    let [fixtures] = fixtures.as_slice() else {
        panic!("one entity: {fixtures:?}");
    };
    assert_eq!(
        (fixtures.provider.as_str(), fixtures.key.as_str()),
        ("x", "fixtures")
    );
    assert_eq!(fixtures.tokens_remaining, Some(7));
    assert_eq!(
        (fixtures.requests_in_window, fixtures.capacity),
        (3, Some(10))
    );
    assert_eq!((fixtures.counts.calls, fixtures.counts.limited), (3, 0));
    assert!(
        fixtures.cache_hit_rate().abs() < f64::EPSILON,
        "no look-ups"
    );
    let odds = tollgate.metrics("odds").await.expect("it was called");
    assert_eq!(odds.iter().map(|one| one.counts.limited).sum::<u64>(), 1);
    assert!(odds.iter().all(|one| one.is_in_cooldown));
    let all = tollgate.metrics(None).await.expect("all of them");
    let keys: Vec<&str> = all.iter().map(|one| one.key.as_str()).collect();
    assert_eq!(keys, ["fixtures", "odds"]);
    let error = tollgate.metrics("zzz").await.unwrap_err();
    assert!(error.to_string().contains("`zzz`"), "{error}");
}

/// S11: a provider is listed before its first call; reading takes nothing.
#[tokio::test(start_paused = true)]
async fn s11_a_provider_without_entities_is_listed_under_its_name() {
    let tollgate = tollgate_with(provider().limit(5, HOUR)).await;
    let all = tollgate.metrics(None).await.expect("all");
    let [one] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!((one.key.as_str(), one.entity.as_deref()), ("x", None));
    assert_eq!(one.tokens_remaining, Some(5));
}

/// S11: an alert begins where little remains, with the words of the daemon's.
#[tokio::test(start_paused = true)]
async fn s11_alerts_say_where_little_remains() {
    let tollgate = tollgate_with(with_entities()).await;
    for _ in 0..5 {
        call(&tollgate, "fixtures", 200).await;
    }
    assert!(tollgate.alerts().await.is_empty(), "5 remain");
    call(&tollgate, "fixtures", 200).await;
    let alerts = tollgate.alerts().await;
    let [alert] = alerts.as_slice() else {
        panic!("{alerts:?}");
    };
    assert_eq!(
        (alert.kind, alert.level),
        (AlertKind::Remaining, AlertLevel::Warning)
    );
    assert_eq!(
        alert.to_string(),
        "Warning: fixtures has 4 requests remaining"
    );
}
