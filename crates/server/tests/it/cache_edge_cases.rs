//! Edge cases of the cache: rate-limit errors with status 200, keys inside compressed bodies, 304s
//! with new headers, and reloads.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full};
use tollgate_ledger::Clock;

use crate::cache::{ManualClockGateway, assert_response, counting};
use crate::client::{get_with, wait_until, within_timeout};
use crate::flights::{gated, spawn_get, spawn_get_with};
use crate::raw_upstream::RawUpstream;
use crate::test_gateway::{TestGateway, file, providers};
use crate::upstream::{ReceivedRequest, Reply, Upstream, reply};

/// R-D6: a rate-limit error with status 200 is not served from the cache later.
#[tokio::test]
async fn r_d6_a_rate_limit_error_with_status_200_is_not_cached() {
    let upstream = Upstream::start(|number, _| async move {
        let body = match number {
            0 => r#"{"Response":"False","Error":"Request limit reached!"}"#,
            _ => r#"{"Title":"Heat"}"#,
        };
        reply(200, &[("content-type", "application/json")], body)
    })
    .await;
    let rest = format!(
        "dialect: omdb\nlimits: [100/1s]\ncache: {{ttl: 7d}}\ncooldown: {{base: 1s}}\nhealth: off\n{}",
        crate::cache::NO_RETRY
    );
    let manual = ManualClockGateway::start(&upstream, &rest).await;
    let rejected = get_with(manual.gateway.address, "/x/?t=heat", &[]).await;
    assert!(rejected.body.contains("limit reached"), "{rejected:?}");
    assert!(
        rejected.header("cache-status").ends_with("detail=limited"),
        "{rejected:?}"
    );
    manual.advance(2 * 86_400);
    let next = manual.get("/x/?t=heat", &[]).await;
    assert_response(&next, 200, "upstream", r#"{"Title":"Heat"}"#);
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text).unwrap();
    gzip.finish().unwrap()
}

/// Text that is hard to press, so that no bound on the ratio is met first.
fn text(length: usize, end: &str) -> Vec<u8> {
    let mut dice = 0x9e37_79b9_u32;
    let mut text: Vec<u8> = (0..length)
        .map(|_| {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b'a' + u8::try_from(dice >> 28).unwrap()
        })
        .collect();
    text.extend(end.as_bytes());
    text
}

/// R-D6: a body that cannot be decompressed completely is not cached, because it may contain a
/// configured key.
#[tokio::test]
async fn r_d6_a_compressed_body_that_cannot_be_searched_is_not_cached() {
    const KEY: &str = "k3y-of-ours-1234567890";
    fn answer(received: &ReceivedRequest) -> Reply {
        let (coding, body) = match received.target.as_str() {
            "/large" => ("gzip", gzip(&text(1_150_000, KEY))),
            "/larger" => ("gzip", gzip(&text(5_000_000, KEY))),
            "/twice" => ("gzip, gzip", gzip(&gzip(KEY.as_bytes()))),
            "/unknown" => ("x-press", text(10, "pressed")),
            "/broken" => ("gzip", gzip(&text(10_000, KEY))[..3_000].to_vec()),
            _ => ("gzip", gzip(&text(10_000, ""))),
        };
        let mut response = reply(200, &[("content-encoding", coding)], "");
        *response.body_mut() = Full::new(Bytes::from(body)).boxed();
        response
    }
    let upstream = Upstream::start(|_, received| async move { answer(&received) }).await;
    let rest = format!("limits: [100/1s]\ncache: {{ttl: 1h}}\napi_key: {KEY}");
    let manual = ManualClockGateway::start(&upstream, &rest).await;
    for (path, source) in [
        ("/x/large", "upstream"),
        ("/x/larger", "upstream"),
        ("/x/twice", "upstream"),
        ("/x/unknown", "upstream"),
        ("/x/broken", "upstream"),
        ("/x/plain", "cache"),
    ] {
        for expected in ["upstream", source] {
            let mut session = crate::client::Session::open(manual.gateway.address).await;
            let request = crate::client::request("GET", path, &[("accept-encoding", "gzip")], "");
            let answer = session.send(request).await;
            assert_eq!(answer.headers()["x-tollgate-source"], expected, "{path}");
            answer.into_body().collect().await.unwrap();
        }
    }
}

/// A reloaded file applies to responses that were cached under the old one.
#[tokio::test]
async fn a_reload_applies_to_cached_responses() {
    fn private(number: usize) -> Reply {
        let headers = [("cache-control", "private, max-age=600")];
        reply(200, &headers, &number.to_string())
    }
    let (de, en) = ([("accept-language", "de")], [("accept-language", "en")]);
    let mut sources = Vec::new();
    for (before, after, second) in [
        ("{ttl: forever, ignore: [private]}", "{mode: rfc9111}", &de),
        (
            "{ttl: 1h, ignore: [private]}",
            "{ttl: 1h, vary: [accept-language], ignore: [private]}",
            &en,
        ),
        ("{ttl: 1h, ignore: [private]}", "{ttl: 1h}", &de),
        (
            "{ttl: forever, ignore: [private]}",
            "{ttl: 24h, ignore: [private]}",
            &de,
        ),
        (
            "{ttl: 30d, ignore: [private]}",
            "{ttl: 24h, ignore: [private]}",
            &de,
        ),
    ] {
        let upstream = Upstream::start(|number, _| async move { private(number) }).await;
        let rest = |cache: &str| format!("limits: [100/1s]\ncache: {cache}");
        let manual = ManualClockGateway::start(&upstream, &rest(before)).await;
        assert_response(&manual.get("/x/a", &de).await, 200, "upstream", "0");
        assert_response(&manual.get("/x/a", &de).await, 200, "cache", "0");
        let changed = [file(upstream.address, &rest(after))];
        manual
            .gateway
            .registry
            .replace(providers(&changed))
            .unwrap();
        if after.contains("24h") {
            assert_response(&manual.get("/x/a", &de).await, 200, "cache", "0");
            manual.advance(86_401);
        }
        let answer = manual.get("/x/a", second).await;
        sources.push((after, answer.1));
    }
    assert!(
        sources.iter().all(|(_, source)| source == "upstream"),
        "{sources:?}"
    );
}

/// Responds with its number and an ETag; from the second on as `then` says.
async fn tagged(then: fn(usize, &ReceivedRequest) -> Reply) -> Upstream {
    Upstream::start(move |number, received| async move {
        match number {
            0 => reply(200, &[("etag", "\"a\"")], "0"),
            _ => then(number, &received),
        }
    })
    .await
}

/// A 304 with `Vary` restricts the cached response to matching requests.
#[tokio::test]
async fn a_304_can_add_vary_to_a_cached_response() {
    let upstream = tagged(|number, received| {
        let headers = [("etag", "\"a\""), ("vary", "accept-language")];
        let is_known = received.headers.contains_key("if-none-match");
        reply(
            if is_known { 304 } else { 200 },
            &headers,
            &number.to_string(),
        )
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 10s}").await;
    let (de, en) = ([("accept-language", "de")], [("accept-language", "en")]);
    assert_response(&manual.get("/x/a", &de).await, 200, "upstream", "0");
    manual.advance(11);
    assert_response(&manual.get("/x/a", &de).await, 200, "cache", "0");
    assert_response(&manual.get("/x/a", &en).await, 200, "upstream", "2");
    assert_response(&manual.get("/x/a", &de).await, 200, "cache", "0");
}

/// RFC 9111, 4.3.4: a 304 for another representation refreshes nothing; the current one is fetched.
#[tokio::test]
async fn a_304_with_another_strong_etag_does_not_refresh() {
    let upstream = tagged(|number, received| {
        let is_known = received.headers.contains_key("if-none-match");
        reply(
            if is_known { 304 } else { 200 },
            &[("etag", "\"b\"")],
            &number.to_string(),
        )
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 10s}").await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
    manual.advance(11);
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "2");
    assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "2");
    assert_eq!(upstream.count(), 3);
}

/// A hop-by-hop header of a 304 is not stored.
#[tokio::test]
async fn a_hop_by_hop_header_of_a_304_is_not_stored() {
    let upstream = tagged(|_, _| {
        let headers = [
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("x-stays", "1"),
            ("etag", "\"a\""),
        ];
        reply(304, &headers, "")
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 10s}").await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
    manual.advance(11);
    for _ in 0..2 {
        let kept = get_with(manual.gateway.address, "/x/a", &[]).await;
        assert_eq!(kept.header("x-tollgate-source"), "cache");
        assert_eq!((kept.header("x-stays"), kept.header("x-hop")), ("1", ""));
    }
}

/// `no-store` of one caller concerns its own response; a 304 to it does not evict the cached one.
#[tokio::test]
async fn no_store_of_one_caller_does_not_evict_for_others() {
    let upstream = tagged(|number, received| {
        let is_known = received.headers.contains_key("if-none-match");
        reply(
            if is_known { 304 } else { 200 },
            &[("etag", "\"a\"")],
            &number.to_string(),
        )
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 10s}").await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
    manual.advance(5);
    let other = [("x-user", "b")];
    assert_response(&manual.get("/x/a", &other).await, 200, "upstream", "1");
    manual.advance(6);
    let unkept = [("cache-control", "no-store")];
    assert_response(&manual.get("/x/a", &unkept).await, 200, "cache", "0");
    assert_response(&manual.get("/x/a", &other).await, 200, "cache", "1");
    assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "0");
    assert_eq!(upstream.count(), 4, "the last two were asked about");
}

/// A 404 for one caller does not evict the responses of others.
#[tokio::test]
async fn a_404_for_one_caller_does_not_evict_for_others() {
    let upstream = Upstream::start(|number, _| async move {
        let status = if number == 2 { 404 } else { 200 };
        reply(status, &[], &number.to_string())
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {ttl: 10s, stale: 1h}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    let other = [("x-user", "b")];
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
    manual.advance(5);
    assert_response(&manual.get("/x/a", &other).await, 200, "upstream", "1");
    manual.advance(6);
    assert_response(&manual.get("/x/a", &[]).await, 404, "upstream", "2");
    assert_response(&manual.get("/x/a", &other).await, 200, "cache", "1");
    let only = [("x-tollgate-cache", "only")];
    assert_eq!(manual.get("/x/a", &only).await.0, 504, "its own is gone");
}

/// A background refresh serves all callers, whatever the request headers of the one that started
/// it.
#[tokio::test]
async fn a_background_refresh_is_cached_despite_no_store_of_its_caller() {
    let upstream = Upstream::start(|number, _| async move {
        let headers = [("cache-control", "max-age=10, stale-while-revalidate=60")];
        reply(200, &headers, &number.to_string())
    })
    .await;
    let manual =
        ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {mode: rfc9111}").await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
    manual.advance(11);
    let unkept = [("cache-control", "no-store")];
    assert_response(&manual.get("/x/a", &unkept).await, 200, "stale", "0");
    wait_until(|| upstream.count() == 2).await;
    let kept = || async {
        manual
            .get("/x/a", &[("cache-control", "only-if-cached")])
            .await
    };
    for _ in 0..1_000 {
        if kept().await.1 == "cache" {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_response(&kept().await, 200, "cache", "1");
    assert_eq!(upstream.count(), 2);
}

/// A response that needs revalidation before each use is not shared between concurrent callers.
#[tokio::test]
async fn a_response_that_must_be_revalidated_is_not_shared_in_flight() {
    for control in ["no-cache", "max-age=0"] {
        let (upstream, word) = gated(|number, received| {
            let control = received.headers["say"].to_str().unwrap();
            let headers = [("cache-control", control), ("etag", "\"a\"")];
            reply(200, &headers, &number.to_string())
        })
        .await;
        let rest = "limits: [100/1s]\ncache: {mode: rfc9111}";
        let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
        let active = gateway.registry.named("x").unwrap();
        let say: &[(&str, &str)] = match control {
            "no-cache" => &[("say", "no-cache")],
            _ => &[("say", "max-age=0")],
        };
        let calls = [
            spawn_get_with(&gateway, "/x/a", say),
            spawn_get_with(&gateway, "/x/a", say),
        ];
        wait_until(|| upstream.count() == 1 && active.joined() == 1).await;
        word.notify_one();
        wait_until(|| {
            word.notify_one();
            calls.iter().all(tokio::task::JoinHandle::is_finished)
        })
        .await;
        assert_eq!(upstream.count(), 2, "{control}");
    }
}

/// The configured `vary` headers separate concurrent calls too.
#[tokio::test]
async fn configured_vary_headers_separate_calls_in_flight() {
    let (upstream, word) = gated(|_, received| {
        let agent = received.headers["user-agent"].to_str().unwrap().to_owned();
        reply(200, &[], &agent)
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h, vary: [User-Agent]}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let phone = spawn_get_with(&gateway, "/x/a", &[("user-agent", "phone")]);
    wait_until(|| upstream.count() == 1).await;
    let desktop = spawn_get_with(&gateway, "/x/a", &[("user-agent", "desktop")]);
    wait_until(|| upstream.count() == 2 || active.joined() == 1).await;
    wait_until(|| {
        word.notify_one();
        phone.is_finished() && desktop.is_finished()
    })
    .await;
    let bodies = [
        within_timeout(phone).await.unwrap(),
        within_timeout(desktop).await.unwrap(),
    ];
    assert_eq!(bodies.map(|answer| answer.body), ["phone", "desktop"]);
}

/// A response without `Date` is stored with its arrival time (RFC 9110, 6.6.1).
#[tokio::test]
async fn a_response_without_a_date_gets_its_arrival_time() {
    let host = RawUpstream::replying("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine").await;
    let now = tollgate_core::time::Wall(1_600_000_000_000_000);
    let clock = tollgate_ledger::ManualClock::new(tollgate_core::time::Now {
        at: tollgate_core::time::Micros(1_000_000_000),
        wall: now,
    });
    let files = [file(host.address, "limits: [100/1s]\ncache: {ttl: 1h}")];
    let options = tollgate::providers::Options::default();
    let gateway = TestGateway::start_on_clock(Clock::Manual(clock.clone()), &files, options).await;
    assert_eq!(
        within_timeout(spawn_get(&gateway, "/x/a"))
            .await
            .unwrap()
            .status,
        200
    );
    clock.pass(tollgate_core::time::Span::from_secs(100));
    let kept = get_with(gateway.address, "/x/a", &[]).await;
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_micros(now.0));
    assert_eq!(
        (kept.header("x-tollgate-source"), kept.header("age")),
        ("cache", "100")
    );
    assert_eq!(kept.header("date"), date);
}

/// Any header that may identify a caller is part of the cache key; headers that only count, trace
/// or name the client program are not.
#[tokio::test]
async fn every_request_header_is_part_of_the_cache_key_except_known_neutral_ones() {
    let upstream = counting().await;
    let manual = ManualClockGateway::start(&upstream, "limits: [1000/1s]\ncache: {ttl: 1h}").await;
    for name in [
        "openai-organization",
        "openai-project",
        "x-workspace-id",
        "x-project-id",
        "x-merchant-id",
        "x-credential",
        "x-uid",
        "x-actor",
        "dpop",
        "stripe-context",
        "x-anything",
    ] {
        let path = format!("/x/{name}");
        assert_eq!(manual.get(&path, &[(name, "a")]).await.1, "upstream");
        assert_eq!(manual.get(&path, &[(name, "a")]).await.1, "cache", "{name}");
        for other in [&[(name, "b")][..], &[]] {
            assert_eq!(manual.get(&path, other).await.1, "upstream", "{name}");
        }
    }
    for name in [
        "user-agent",
        "accept-encoding",
        "accept-language",
        "x-request-id",
        "traceparent",
        "x-b3-traceid",
        "x-stainless-retry-count",
        "sec-fetch-mode",
        "sec-ch-ua",
        "dnt",
        "priority",
        "cf-ray",
        "x-datadog-trace-id",
    ] {
        let path = format!("/x/{name}");
        assert_eq!(manual.get(&path, &[(name, "a")]).await.1, "upstream");
        for other in [&[(name, "b")][..], &[]] {
            assert_eq!(manual.get(&path, other).await.1, "cache", "{name}");
        }
    }
}
