//! Consistency of the cache: responses that overtake each other, and the headers that are stored,
//! over sockets.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tollgate_core::time::Span;
use tollgate_sim::test_host::TempFolder;

use crate::cache::{ManualClockGateway, NO_RETRY, assert_response, counting};
use crate::client::{get, get_with, post, wait_until, within_timeout};
use crate::flights::{gated, spawn_get, spawn_get_with};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, reply};

/// Responds with the number of the request; GETs of `/slow` wait for a notification, writes
/// succeed.
async fn slow_first() -> (Upstream, Arc<Notify>) {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |number, received| {
        let heard = heard.clone();
        async move {
            if number == 0 {
                heard.notified().await;
            }
            match received.method.as_str() {
                "GET" => reply(200, &[], &number.to_string()),
                _ => reply(201, &[], ""),
            }
        }
    })
    .await;
    (upstream, word)
}

/// A read that a write overtook is neither shared nor cached.
#[tokio::test]
async fn a_read_overtaken_by_a_write_is_neither_shared_nor_cached() {
    for rest in ["", "cache: {ttl: 1h}"] {
        let (upstream, word) = slow_first().await;
        let rest = format!("limits: [100/1s]\n{rest}");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let early = spawn_get(&gateway, "/x/a");
        wait_until(|| upstream.count() == 1).await;
        assert_eq!(post(gateway.address, "/x/a", &[], "new").await.status, 201);
        let joiner = spawn_get(&gateway, "/x/a");
        let joiner = within_timeout(joiner).await.unwrap();
        assert_eq!(joiner.body, "2", "it asks for itself");
        word.notify_one();
        assert_eq!(within_timeout(early).await.unwrap().body, "0");
        let after = get(gateway.address, "/x/a").await;
        assert_ne!(after.body, "0", "{rest}");
    }
}

/// The same without a request in between: a response requested before the write is not cached.
#[tokio::test]
async fn a_response_requested_before_a_write_is_not_cached() {
    let (upstream, word) = slow_first().await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let early = spawn_get(&gateway, "/x/a");
    wait_until(|| upstream.count() == 1).await;
    // A caller that does not use the cache changes things all the same.
    let unused = [("x-tollgate-cache", "no")];
    assert_eq!(
        post(gateway.address, "/x/a", &unused, "new").await.status,
        201
    );
    word.notify_one();
    assert_eq!(within_timeout(early).await.unwrap().body, "0");
    let after = get(gateway.address, "/x/a").await;
    assert_eq!(
        (after.header("x-tollgate-source"), after.body.as_str()),
        ("upstream", "2")
    );
}

/// Of two responses the one requested later stays.
#[tokio::test]
async fn a_late_response_to_an_earlier_request_does_not_replace_a_newer_one() {
    let (upstream, word) = slow_first().await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}\ndedup: off";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let early = spawn_get(&gateway, "/x/a");
    wait_until(|| upstream.count() == 1).await;
    assert_eq!(get(gateway.address, "/x/a").await.body, "1");
    word.notify_one();
    assert_eq!(within_timeout(early).await.unwrap().body, "0");
    assert_eq!(get(gateway.address, "/x/a").await.body, "1");
}

/// A cacheable response may be shared, whatever size its head announces.
#[tokio::test]
async fn a_cacheable_response_is_shared_up_to_the_same_size() {
    let (upstream, word) = gated(|_, _| {
        let mut response = reply(200, &[], "");
        *response.body_mut() = Full::new(vec![b'x'; 6 << 20].into()).boxed();
        response
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let calls: Vec<_> = (0..4).map(|_| spawn_get(&gateway, "/x/a")).collect();
    wait_until(|| upstream.count() == 1 && active.joined() == 3).await;
    word.notify_one();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().body.len(), 6 << 20);
    }
    assert_eq!(upstream.count(), 1);
}

/// A follower that leaves a flight without a response checks the cache.
#[tokio::test]
async fn a_follower_without_a_response_checks_the_cache() {
    let (upstream, word) = gated(|_, _| reply(200, &[("vary", "traceparent")], "same")).await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let calls = [spawn_get(&gateway, "/x/a"), spawn_get(&gateway, "/x/a")];
    wait_until(|| upstream.count() == 1 && active.joined() == 1).await;
    word.notify_one();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().body, "same");
    }
    assert_eq!(upstream.count(), 1);
}

/// A newer response cancels the waiting background refresh.
#[tokio::test]
async fn a_newer_response_cancels_the_waiting_background_refresh() {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |number, received| {
        let heard = heard.clone();
        async move {
            if received.target == "/busy" {
                heard.notified().await;
            }
            reply(200, &[], &number.to_string())
        }
    })
    .await;
    let rest = "limits: [100/1s]\nconcurrency: 1\ncache: {ttl: 1ms}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    get(gateway.address, "/x/a").await;
    let busy = spawn_get(&gateway, "/x/busy");
    wait_until(|| upstream.count() == 2).await;
    // Fresh for a millisecond.
    while get(gateway.address, "/x/a")
        .await
        .header("x-tollgate-source")
        != "stale"
    {}
    wait_until(|| active.waiting() == 1).await;
    let newer = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-cache", "refresh")]);
    wait_until(|| active.waiting() == 2).await;
    word.notify_one();
    within_timeout(busy).await.unwrap();
    assert_eq!(within_timeout(newer).await.unwrap().body, "2");
    wait_until(|| active.waiting() == 0).await;
    assert_eq!(
        get(gateway.address, "/x/b").await.body,
        "3",
        "no other call in between"
    );
}

/// RFC 9111, 4.2.3: the age of a response counts from the send of its request, not from our queue.
#[tokio::test]
async fn time_in_our_queue_does_not_count_as_age() {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |_, received| {
        let heard = heard.clone();
        async move {
            if received.target == "/busy" {
                heard.notified().await;
            }
            reply(200, &[("cache-control", "max-age=3")], "a")
        }
    })
    .await;
    let rest = "limits: [100/1s]\nconcurrency: 1\nqueue: {timeout: 1h}\ncache: {mode: rfc9111}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    let active = manual.gateway.registry.named("x").unwrap();
    let busy = spawn_get(&manual.gateway, "/x/busy");
    wait_until(|| upstream.count() == 1).await;
    let patient = spawn_get(&manual.gateway, "/x/a");
    wait_until(|| active.waiting() == 1).await;
    manual.advance(5);
    word.notify_one();
    within_timeout(busy).await.unwrap();
    // A slot that comes back now is free a moment later.
    wait_until(|| {
        manual.clock.pass(Span(10));
        patient.is_finished()
    })
    .await;
    assert_eq!(within_timeout(patient).await.unwrap().status, 200);
    let kept = get(manual.gateway.address, "/x/a").await;
    assert_eq!(
        (kept.header("x-tollgate-source"), kept.header("age")),
        ("cache", "0")
    );
}

/// A 404 is cached also after a 200, and each time.
#[tokio::test]
async fn a_404_is_cached_after_a_200_and_again() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(200, &[], "there"),
            _ => reply(404, &[], "gone"),
        }
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {ttl: 10s, negative: 5s}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "there");
    manual.advance(11);
    for _ in 0..3 {
        assert_response(&manual.get("/x/a", &[]).await, 404, "upstream", "gone");
        assert_response(&manual.get("/x/a", &[]).await, 404, "cache", "gone");
        manual.advance(6);
    }
}

/// S13: only the TTL of a 200 adapts, not that of a 404.
#[tokio::test]
async fn s13_the_ttl_of_a_404_does_not_adapt() {
    let upstream = Upstream::start(|_, _| async { reply(404, &[], "gone") }).await;
    let rest = "limits: [100/1s]\ncache: {ttl: 100s..1000s, adaptive: true, negative: 5s}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    for _ in 0..3 {
        assert_response(&manual.get("/x/a", &[]).await, 404, "upstream", "gone");
        manual.advance(6);
    }
}

/// A 304 without a date is dated now.
#[tokio::test]
async fn a_304_without_a_date_refreshes_the_cached_response() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let mut count = 0;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 2_048];
            let read = stream.read(&mut buffer).await.unwrap();
            let received = String::from_utf8_lossy(&buffer[..read]).to_ascii_lowercase();
            let answer = if received.contains("if-none-match") {
                "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n"
            } else {
                "HTTP/1.1 200 OK\r\ndate: Sun, 15 Nov 2026 00:00:00 GMT\r\ncache-control: max-age=60\r\netag: \"a\"\r\ncontent-length: 1\r\nconnection: close\r\n\r\na"
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
            count += 1;
            if count == 2 {
                return;
            }
        }
    });
    let upstream = Upstream::start(|_, _| async { reply(500, &[], "") }).await;
    let manual = ManualClockGateway::start(&upstream, "limits: [1/1s]").await;
    let rest = "limits: [100/1s]\ncache: {mode: rfc9111}";
    let clock = tollgate_ledger::Clock::Manual(manual.clock.clone());
    let gateway =
        TestGateway::start_on_clock(clock, &[file(address, rest)], Default::default()).await;
    let ask = || get(gateway.address, "/x/a");
    assert_eq!(ask().await.header("x-tollgate-source"), "upstream");
    manual.advance(61);
    assert_eq!(
        ask().await.header("cache-status"),
        "tollgate; fwd=stale; fwd-status=304; stored"
    );
    served.await.unwrap();
    let kept = ask().await;
    assert_eq!(
        (kept.header("x-tollgate-source"), kept.header("age")),
        ("cache", "0")
    );
}

/// S13: a low quota doubles a TTL also without a long `stale`, and never a lifetime that the
/// response sets.
#[tokio::test]
async fn s13_a_low_quota_extends_configured_ttls_only() {
    for (cache, source) in [
        ("ttl: 100s..1000s, adaptive: true, stale: 0s", "cache"),
        (
            "mode: rfc9111, ttl: 100s..1000s, adaptive: true",
            "upstream",
        ),
    ] {
        let upstream = Upstream::start(|number, _| async move {
            reply(
                200,
                &[("cache-control", "max-age=100")],
                &number.to_string(),
            )
        })
        .await;
        let rest = format!("limits: [10/1h]\ncache: {{{cache}}}");
        let manual = ManualClockGateway::start(&upstream, &rest).await;
        manual.get("/x/a", &[]).await;
        for other in 0..8 {
            manual.get(&format!("/x/{other}"), &[]).await;
        }
        manual.advance(150);
        assert_eq!(manual.get("/x/a", &[]).await.1, source, "{cache}");
    }
}

/// S11: a cache-only request starts no upstream call, and its rejection says so.
#[tokio::test]
async fn s11_a_cache_only_request_starts_no_upstream_call() {
    let upstream = Upstream::start(|number, _| async move {
        let good = [("cache-control", "max-age=1, stale-while-revalidate=100")];
        reply(200, &good, &number.to_string())
    })
    .await;
    let rest = "limits: [100/1s]\nconcurrency: 1\ncache: {mode: rfc9111}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    manual.get("/x/a", &[]).await;
    manual.advance(10);
    for only in [
        ("x-tollgate-cache", "only"),
        ("cache-control", "only-if-cached"),
    ] {
        assert_response(&manual.get("/x/a", &[only]).await, 200, "stale", "0");
    }
    assert_response(&manual.get("/x/b", &[]).await, 200, "upstream", "1");
    let only = [("x-tollgate-cache", "only")];
    let missing = get_with(manual.gateway.address, "/x/c", &only).await;
    assert_eq!(
        (missing.status, &missing.json()["reason"]),
        (504, &json!("cache_only"))
    );
    let reported = missing.everything();
    assert!(reported.contains("asked for the cache only"), "{reported}");
    assert!(reported.contains("X-Tollgate-Cache: only"), "{reported}");
}

/// Rate-limit headers describe one moment and are not stored; neither is what a 304 forbids to
/// store.
#[tokio::test]
async fn rate_limit_headers_are_not_stored() {
    let upstream = Upstream::start(|number, _| async move {
        let headers = [
            ("x-rate-limit-remaining", "5"),
            ("x-shopify-shop-api-call-limit", "1/40"),
            ("retry-after", "7"),
            ("etag", "\"a\""),
            ("x-stays", "1"),
        ];
        match number {
            0 => reply(200, &headers, "a"),
            _ => reply(
                304,
                &[("cache-control", "no-cache=\"x-new\""), ("x-new", "1")],
                "",
            ),
        }
    })
    .await;
    let rest = "limits: [100/1s]\ndialect: shopify_rest\ncache: {ttl: 10s}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    manual.get("/x/a", &[]).await;
    let kept = get(manual.gateway.address, "/x/a").await;
    assert_eq!(kept.header("x-tollgate-source"), "cache");
    assert_eq!(kept.header("x-stays"), "1");
    for name in [
        "x-rate-limit-remaining",
        "x-shopify-shop-api-call-limit",
        "retry-after",
    ] {
        assert_eq!(kept.header(name), "", "{name}");
    }
    manual.advance(11);
    manual.get("/x/a", &[]).await;
    let renewed = get(manual.gateway.address, "/x/a").await;
    assert_eq!(renewed.header("x-tollgate-source"), "cache");
    assert_eq!(
        (renewed.header("x-stays"), renewed.header("x-new")),
        ("1", "")
    );
}

/// A temporary 429 does not prevent later calls from sharing a response.
#[tokio::test]
async fn s7_a_temporary_429_does_not_end_sharing() {
    let (upstream, word) = gated(|number, _| match number {
        0 | 1 => reply(403, &[], "not now"),
        _ => reply(200, &[], "fine"),
    })
    .await;
    let rest = format!("limits: [100/1s]\n{NO_RETRY}");
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let both = [spawn_get(&gateway, "/x/a"), spawn_get(&gateway, "/x/a")];
    wait_until(|| active.joined() == 1).await;
    for count in [1, 2] {
        wait_until(|| upstream.count() == count).await;
        word.notify_one();
    }
    for call in both {
        assert_eq!(within_timeout(call).await.unwrap().status, 403);
    }
    let both = [spawn_get(&gateway, "/x/a"), spawn_get(&gateway, "/x/a")];
    wait_until(|| active.joined() == 2).await;
    word.notify_one();
    for call in both {
        assert_eq!(within_timeout(call).await.unwrap().body, "fine");
    }
    assert_eq!(upstream.count(), 3);
}

/// A configured request header is part of the cache key.
#[tokio::test]
async fn configured_request_headers_are_part_of_the_cache_key() {
    let folder = TempFolder::unmade("gateway-cache");
    let upstream = counting().await;
    for (language, source) in [("de", "upstream"), ("en", "upstream"), ("de", "cache")] {
        let options = tollgate::providers::Options {
            cache: tollgate::cache::Cache::open(folder.path(), &tollgate::event::Events::new()),
            ..Default::default()
        };
        let rest = format!(
            "limits: [100/1s]\ncache: {{ttl: forever}}\nheaders: {{accept-language: {language}}}"
        );
        let manual = ManualClockGateway::start_with(&upstream, &rest, options).await;
        assert_eq!(manual.get("/x/a", &[]).await.1, source, "{language}");
        manual.gateway.registry.cache().flush().await;
    }
}
