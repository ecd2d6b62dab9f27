//! Key pools: the key that is free first is used, a rejected one is suspended.

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full};
use std::io::Write;

use crate::client::{Session, get, get_with, post, request};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{ReceivedRequest, Reply, Upstream, ok, reply};

/// Responds by key.
async fn by_key(response: impl Fn(&str) -> Reply + Clone + Send + Sync + 'static) -> Upstream {
    Upstream::start(move |_, received: ReceivedRequest| {
        let response = response.clone();
        async move { response(received.headers["x-key"].to_str().unwrap()) }
    })
    .await
}

fn keys(upstream: &Upstream) -> Vec<String> {
    let received = upstream.requests().into_iter();
    received
        .map(|received| received.headers["x-key"].to_str().unwrap().to_owned())
        .collect()
}

const POOL: &str = "api_keys: [k1, k2]\nauth: {header: x-key}\nlimits: [{limit: 100, period: 1h, per: api_key}]\nhealth: off";

/// Before, each key was two requests.
#[tokio::test]
async fn a_pool_of_50_keys_is_one_peek() {
    let upstream = by_key(|_| ok()).await;
    let names: Vec<String> = (0..50).map(|number| format!("k{number}")).collect();
    let pool = POOL.replace("k1, k2", &names.join(", "));
    let gateway = TestGateway::start(&[file(upstream.address, &pool)]).await;
    let peeks_sent = || gateway.registry.ledger().peeks_sent();
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    let before = peeks_sent();
    assert_eq!(get(gateway.address, "/x/b").await.status, 200);
    assert_eq!(peeks_sent() - before, 1);
}

/// A key that the provider does not accept is suspended; its call is retried with the next key.
#[tokio::test]
async fn a_key_with_a_401_is_suspended_while_the_others_serve() {
    let upstream = by_key(|key| {
        if key == "k1" {
            reply(401, &[], "")
        } else {
            ok()
        }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, POOL)]).await;
    for _ in 0..6 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    }
    let used = keys(&upstream);
    assert_eq!(
        used.iter().filter(|key| *key == "k1").count(),
        1,
        "{used:?}"
    );
    assert_eq!(used.len(), 7);
}

/// A 429 cools down its key only, and whatever the method, the call is retried with another key at
/// once.
#[tokio::test]
async fn a_key_with_a_429_cools_down_while_the_others_serve() {
    let busy = |key: &str| {
        if key == "k1" {
            reply(429, &[("retry-after", "600")], "busy")
        } else {
            ok()
        }
    };
    let upstream = by_key(busy).await;
    let gateway = TestGateway::start(&[file(upstream.address, POOL)]).await;
    for _ in 0..3 {
        assert_eq!(post(gateway.address, "/x/a", &[], "b").await.status, 200);
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    }
    let used = keys(&upstream);
    assert_eq!(
        used.iter().filter(|key| *key == "k1").count(),
        1,
        "{used:?}"
    );
}

/// A quota that the provider reports as spent suspends that key only.
#[tokio::test]
async fn a_key_with_a_spent_quota_is_suspended() {
    let spent = |key: &str| {
        if key == "k1" {
            let json = [("content-type", "application/json")];
            reply(429, &json, "{\"error\":{\"code\":\"insufficient_quota\"}}")
        } else {
            ok()
        }
    };
    let upstream = by_key(spent).await;
    let pool = format!("dialect: openai\n{POOL}");
    let gateway = TestGateway::start(&[file(upstream.address, &pool)]).await;
    for _ in 0..4 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    }
    let used = keys(&upstream);
    assert_eq!(
        used.iter().filter(|key| *key == "k1").count(),
        1,
        "{used:?}"
    );
}

/// If no key is accepted, the caller gets the error; each key was tried once.
#[tokio::test]
async fn a_pool_without_a_valid_key_forwards_the_error() {
    let upstream = by_key(|_| reply(401, &[], "unknown key")).await;
    let gateway = TestGateway::start(&[file(upstream.address, POOL)]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!(
        (response.status, response.body.as_str()),
        (401, "unknown key")
    );
    let mut used = keys(&upstream);
    used.sort_unstable();
    assert_eq!(used, ["k1", "k2"]);
    assert_eq!(get(gateway.address, "/x/a").await.status, 401);
    assert_eq!(upstream.count(), 3, "there is none that is free");
}

#[tokio::test]
async fn a_single_key_is_never_suspended() {
    let upstream = by_key(|_| reply(401, &[], "")).await;
    let one = POOL.replace("[k1, k2]", "[k1]");
    let gateway = TestGateway::start(&[file(upstream.address, &one)]).await;
    for _ in 0..2 {
        assert_eq!(get(gateway.address, "/x/a").await.status, 401);
    }
    assert_eq!(upstream.count(), 2);
}

/// The second key is sent with the first, in the same style under its own name.
#[tokio::test]
async fn a_second_key_is_sent_in_its_own_header() {
    let upstream = by_key(|_| ok()).await;
    let rest = "api_key: k1\nauth: {header: x-key, also: {x-second: s2}}\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    get_with(gateway.address, "/x/a", &[("x-second", "theirs")]).await;
    let received = &upstream.requests()[0];
    assert_eq!(
        (&received.headers["x-key"], &received.headers["x-second"]),
        (&"k1".parse().unwrap(), &"s2".parse().unwrap())
    );
}

/// R-F4: the caller follows redirects: neither the call nor its key does.
#[tokio::test]
async fn a_key_is_not_sent_along_a_redirect() {
    let elsewhere = Upstream::start(|_, _| async { ok() }).await;
    let to = format!("http://{}/caught", elsewhere.address);
    let upstream = by_key(move |_| reply(307, &[("location", &to)], "")).await;
    let gateway = TestGateway::start(&[file(upstream.address, POOL)]).await;
    assert_eq!(get(gateway.address, "/x/a").await.status, 307);
    assert_eq!((upstream.count(), elsewhere.count()), (1, 0));
}

/// A provider that reports its quota in compressed bodies.
async fn compressed(json: &str) -> (Upstream, Bytes) {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(json.as_bytes()).unwrap();
    let body = Bytes::from(gzip.finish().unwrap());
    let sent = body.clone();
    let upstream = Upstream::start(move |_, _| {
        let body = sent.clone();
        async move {
            let head = [
                ("content-encoding", "gzip"),
                ("content-type", "application/json"),
            ];
            let (parts, _) = reply(200, &head, "").into_parts();
            Reply::from_parts(parts, Full::new(body).boxed())
        }
    })
    .await;
    (upstream, body)
}

async fn bytes(gateway: &TestGateway, time: &str) -> (u16, Bytes) {
    let mut session = Session::open(gateway.address).await;
    let soon = [("x-tollgate-timeout", time)];
    let response = session.send(request("GET", "/x/a", &soon, "")).await;
    let status = response.status().as_u16();
    (
        status,
        response.into_body().collect().await.unwrap().to_bytes(),
    )
}

/// S4: the quota in a compressed response is learned, and the response is forwarded unchanged.
#[tokio::test]
async fn s4_a_compressed_response_is_read_and_forwarded_unchanged() {
    let json =
        "{\"data\":[],\"rate_limit\":{\"limit\":100,\"remaining\":0,\"resets_in_seconds\":3600}}";
    let (upstream, body) = compressed(json).await;
    let gateway = TestGateway::start(&[file(
        upstream.address,
        "dialect: sportmonks\nlimits: [100/1h]",
    )])
    .await;
    assert_eq!(bytes(&gateway, "30s").await, (200, body));
    assert_ne!(bytes(&gateway, "30s").await.0, 200, "nothing remains");
    assert_eq!(upstream.count(), 1);
}

/// S4: two limits of one number, period and scope count the same calls, so what the provider reports is used.
#[tokio::test]
async fn s4_a_reported_count_is_used_with_two_equal_limits() {
    let twins = "limits:
  - {name: tokens, limit: 3000, period: 1h, algorithm: token-bucket, burst: 3000, per: entity}
  - {name: window, limit: 3000, period: 1h, per: entity}";
    let apart = twins.replacen("per: entity", "per: provider", 1);
    for (limits, expected) in [(twins, [429, 1]), (&apart, [200, 2])] {
        let headers = [
            ("x-ratelimit-limit", "3000"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "3600"),
        ];
        let upstream = Upstream::start(move |_, _| async move { reply(200, &headers, "") }).await;
        let gateway = TestGateway::start(&[file(upstream.address, limits)]).await;
        assert_eq!(bytes(&gateway, "30s").await.0, 200);
        let (status, _) = bytes(&gateway, "30s").await;
        let count = u16::try_from(upstream.count()).unwrap();
        assert_eq!([status, count], expected, "{limits}");
    }
}

/// R-D3: a decompression bomb is forwarded unchanged and teaches nothing.
#[tokio::test]
async fn r_d3_a_decompression_bomb_is_forwarded_unread() {
    let json = format!(
        "{{\"rate_limit\":{{\"remaining\":0}},\"x\":\"{}\"}}",
        "0".repeat(32 << 20)
    );
    let (upstream, body) = compressed(&json).await;
    let gateway = TestGateway::start(&[file(
        upstream.address,
        "dialect: sportmonks\nlimits: [100/1h]",
    )])
    .await;
    assert_eq!(bytes(&gateway, "30s").await, (200, body.clone()));
    assert_eq!(bytes(&gateway, "30s").await, (200, body));
}

/// If every key of a pool is rejected, however many there are, the caller gets the provider's own
/// response.
#[tokio::test]
async fn a_pool_of_rejected_keys_returns_the_providers_401() {
    let upstream = by_key(|_| reply(401, &[], "no")).await;
    let names: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
    let pool = POOL.replace("k1, k2", &names.join(", "));
    let gateway = TestGateway::start(&[file(upstream.address, &pool)]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!((response.status, response.body.as_str()), (401, "no"));
    assert_eq!(keys(&upstream).len(), 20);
}
