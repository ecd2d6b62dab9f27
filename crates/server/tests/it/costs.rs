//! Costs: reserved before a call, settled from its response.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full};

use crate::client::{Session, get_with, post, request, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Reply, Upstream, ok, reply};

const LIMIT: &str = "limits: [{name: tpm, limit: 100, period: 1h, unit: tokens}]\ncost: {tokens: {before: [max_tokens], else: 60, after: usage.total_tokens}}";
/// A wait of an hour is known to be longer, so it is rejected at once.
const SOON: (&str, &str) = ("x-tollgate-timeout", "30s");

/// The number of calls before one is rejected, at most ten.
async fn calls_until_rejected(gateway: &TestGateway, body: &str) -> usize {
    for count in 0..10 {
        let mut session = Session::open(gateway.address).await;
        let response = session.send(request("POST", "/x/a", &[SOON], body)).await;
        let status = response.status();
        within_timeout(response.into_body().collect())
            .await
            .unwrap();
        if status == 429 {
            return count;
        }
        assert_eq!(status, 200);
    }
    10
}

async fn start(
    response: impl Fn() -> Reply + Clone + Send + Sync + 'static,
) -> (Upstream, TestGateway) {
    let upstream = Upstream::start(move |_, _| {
        let response = response.clone();
        async move { response() }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, LIMIT)]).await;
    (upstream, gateway)
}

const USAGE: &str = "{\"text\":\"hi\",\"usage\":{\"total_tokens\":10}}";

/// Each call reserves 60 and uses 10: after four calls 60 are free, after five they are not.
#[tokio::test]
async fn a_cost_is_held_before_and_settled_after() {
    let (_upstream, gateway) =
        start(|| reply(200, &[("content-type", "application/json")], USAGE)).await;
    assert_eq!(calls_until_rejected(&gateway, "{}").await, 5);
    assert_eq!(
        calls_until_rejected(&gateway, "{\"max_tokens\": 50}").await,
        1,
        "what the body says is held"
    );
}

#[tokio::test]
async fn without_usage_in_the_response_the_estimated_cost_stays() {
    let (_upstream, gateway) = start(ok).await;
    assert_eq!(calls_until_rejected(&gateway, "{}").await, 1);
}

/// The last event of a stream reports the usage.
#[tokio::test]
async fn a_stream_settles_by_its_last_event() {
    let events = format!("data: {{\"usage\":null}}\n\ndata: {USAGE}\n\ndata: [DONE]\n\n");
    let response = move || reply(200, &[("content-type", "text/event-stream")], &events);
    let (_upstream, gateway) = start(response).await;
    assert_eq!(calls_until_rejected(&gateway, "{}").await, 5);
}

#[tokio::test]
async fn a_compressed_response_settles_the_cost_too() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(USAGE.as_bytes()).unwrap();
    let body = Bytes::from(gzip.finish().unwrap());
    let response = move || {
        let head = [
            ("content-encoding", "gzip"),
            ("content-type", "application/json"),
        ];
        let (parts, _) = reply(200, &head, "").into_parts();
        Reply::from_parts(parts, Full::new(body.clone()).boxed())
    };
    let (_upstream, gateway) = start(response).await;
    assert_eq!(calls_until_rejected(&gateway, "{}").await, 5);
}

/// The cost that the caller sends is applied, and a cost above the limit is rejected permanently.
#[tokio::test]
async fn a_caller_can_send_the_cost_of_its_call() {
    let (upstream, gateway) = start(ok).await;
    for (cost, status) in [("tokens=30", 200), ("tokens=70", 200), ("tokens=1", 429)] {
        let headers = [SOON, ("x-tollgate-cost", cost)];
        assert_eq!(
            get_with(gateway.address, "/x/a", &headers).await.status,
            status,
            "{cost}"
        );
    }
    let rejected = post(
        gateway.address,
        "/x/a",
        &[("x-tollgate-cost", "tokens=101")],
        "",
    )
    .await;
    assert_eq!(
        (rejected.status, rejected.json()["reason"].as_str()),
        (429, Some("too_costly"))
    );
    assert_eq!(upstream.count(), 2);
    let wrong = get_with(gateway.address, "/x/a", &[("x-tollgate-cost", "tokens=-1")]).await;
    assert_eq!(wrong.status, 400);
}

/// A JSON body with these fields and so many bytes of padding.
fn large(fields: &str, bytes: usize) -> String {
    format!("{{{fields}, \"text\": \"{}\"}}", "x".repeat(bytes))
}

/// A body with a cost field is read further than other bodies, and beyond 1 MiB as it passes.
#[tokio::test]
async fn the_cost_in_a_large_body_is_reserved() {
    for bytes in [300 << 10, 2 << 20] {
        let (_upstream, gateway) = start(ok).await;
        let body = large("\"max_tokens\": 25", bytes);
        assert_eq!(calls_until_rejected(&gateway, &body).await, 4, "{bytes}");
    }
}

/// S1: no body size bypasses the limit of the entity that the body names: above 1 MiB it is read as it
/// passes. What cannot be known is rejected, unless a header names it.
#[tokio::test]
async fn s1_a_large_body_does_not_bypass_the_limit_of_its_entity() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "limits: [{limit: 1, period: 1h, per: entity}]\nentities: {from: 'body:model'}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let named = ("x-tollgate-entity", "other");
    let send = async |headers: &[(&str, &str)], body: &str| {
        post(gateway.address, "/x/a", headers, body).await
    };
    assert_eq!(send(&[SOON], "{\"model\": \"m\"}").await.status, 200);
    for bytes in [300 << 10, 2 << 20] {
        let same = large("\"model\": \"m\"", bytes);
        assert_eq!(send(&[SOON], &same).await.status, 429, "{bytes}");
    }
    let other = large("\"model\": \"large\"", 2 << 20);
    assert_eq!(send(&[SOON], &other).await.status, 200);
    let twice = large("\"model\": \"a\", \"Model\": \"b\"", 2 << 20);
    let hidden = format!("{{\"model\": \"{}\"}}", "m".repeat(2 << 20));
    let wrong = "no json ".repeat(1 << 18);
    for body in [twice, hidden, wrong] {
        let rejected = send(&[SOON], &body).await;
        assert_eq!(rejected.status, 400, "{rejected:?}");
        assert!(rejected.body.contains("X-Tollgate-Entity"), "{rejected:?}");
    }
    assert_eq!(send(&[SOON, named], &other).await.status, 200);
    assert_eq!(upstream.count(), 3);
}

/// A costly call that was rejected said that nothing remained, so clients that pace themselves by the
/// header stopped, although cheaper calls would have passed.
#[tokio::test]
async fn a_rejected_costly_call_says_what_remains() {
    let (_upstream, gateway) = start(ok).await;
    let call = |body: &'static str| async move {
        let mut session = Session::open(gateway.address).await;
        let response = session.send(request("POST", "/x/a", &[SOON], body)).await;
        let remaining = &response.headers()["x-ratelimit-remaining"];
        (
            response.status().as_u16(),
            remaining.to_str().unwrap().to_owned(),
        )
    };
    assert_eq!(call("{\"max_tokens\": 70}").await, (200, "30".to_owned()));
    assert_eq!(call("{\"max_tokens\": 31}").await, (429, "30".to_owned()));
}
