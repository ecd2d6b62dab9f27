//! Cached responses over sockets: what they save, how long they live, and when they are served
//! stale.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::json;
use tollgate::cache::Cache;
use tollgate::providers::Options;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, ManualClock};
use tollgate_sim::test_host::TempFolder;

use crate::client::{Session, get, get_with, pause, post, request, wait_until};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{ReceivedRequest, Reply, Upstream, ok, reply};

pub(crate) const NO_RETRY: &str = "retry: {retries: {high: 0, normal: 0, low: 0}}";

/// A gateway with a manual clock.
pub(crate) struct ManualClockGateway {
    pub(crate) gateway: TestGateway,
    pub(crate) clock: Arc<ManualClock>,
}

impl ManualClockGateway {
    pub(crate) async fn start(upstream: &Upstream, rest: &str) -> ManualClockGateway {
        ManualClockGateway::start_with(upstream, rest, Options::default()).await
    }

    pub(crate) async fn start_with(
        upstream: &Upstream,
        rest: &str,
        options: Options,
    ) -> ManualClockGateway {
        // Ids of calls begin with the time, and the log is shared by all tests.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let apart = NUMBER.fetch_add(1_000, Ordering::Relaxed);
        // An hour behind the upstreams' clock, so that their responses are new, and not by days:
        // times of theirs that are too far away mean nothing.
        static START: OnceLock<u64> = OnceLock::new();
        let start = START.get_or_init(|| Clock::System.now().wall.0 - 3_600_000_000);
        let clock = ManualClock::new(Now {
            at: Micros(1_000_000_000),
            wall: Wall(start + apart),
        });
        let files = [file(upstream.address, rest)];
        let gateway =
            TestGateway::start_on_clock(Clock::Manual(clock.clone()), &files, options).await;
        ManualClockGateway { gateway, clock }
    }

    pub(crate) fn advance(&self, secs: u64) {
        self.clock.pass(Span::from_secs(secs));
    }

    /// Status, source and body of a GET.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String, String) {
        // A slot that comes back now is free a moment later.
        self.clock.pass(Span::from_millis(1));
        let response = get_with(self.gateway.address, path, headers).await;
        let source = response.header("x-tollgate-source").to_owned();
        (response.status, source, response.body)
    }
}

pub(crate) fn assert_response(
    response: &(u16, String, String),
    status: u16,
    source: &str,
    body: &str,
) {
    assert_eq!(
        (response.0, response.1.as_str(), response.2.as_str()),
        (status, source, body)
    );
}

/// Each response contains its number and closes its connection.
pub(crate) async fn counting() -> Upstream {
    let close = [("connection", "close")];
    Upstream::start(move |number, _| async move { reply(200, &close, &number.to_string()) }).await
}

/// S3, S8: the cache comes before the permit: a hit costs nothing, for the entity's TTL.
#[tokio::test]
async fn s3_s8_a_cached_response_costs_no_permit_and_lives_for_the_ttl_of_its_entity() {
    let upstream = counting().await;
    let rest = "limits: [2/1h]\ncache: {ttl: 1h}\nentities: {ttl: {odds: 4s}}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    assert_response(&manual.get("/x/odds", &[]).await, 200, "upstream", "0");
    assert_response(&manual.get("/x/teams", &[]).await, 200, "upstream", "1");
    for _ in 0..10 {
        assert_response(&manual.get("/x/odds", &[]).await, 200, "cache", "0");
        assert_response(&manual.get("/x/teams?", &[]).await, 200, "cache", "1");
    }
    manual.advance(3);
    let aged = get(manual.gateway.address, "/x/odds").await;
    assert_eq!(
        (aged.header("x-tollgate-source"), aged.header("age")),
        ("cache", "3")
    );
    assert_eq!(aged.header("x-tollgate-attempts"), "0");
    manual.advance(1);
    // The limit is used up: the stale response is served and marked.
    assert_response(&manual.get("/x/odds", &[]).await, 200, "stale", "0");
    assert_response(&manual.get("/x/teams", &[]).await, 200, "cache", "1");
    assert_eq!(upstream.count(), 2);
}

/// M11: a response with `ttl: forever` survives a restart, and so does one with a TTL range.
#[tokio::test]
async fn m11_ttl_forever_survives_a_restart() {
    let folder = TempFolder::unmade("gateway-cache");
    let upstream = counting().await;
    for (round, source) in ["upstream", "cache", "cache"].into_iter().enumerate() {
        let options = Options {
            cache: Cache::open(folder.path(), &tollgate::event::Events::new()),
            ..Options::default()
        };
        let rest = "limits: [100/1s]\ncache: {ttl: forever}\nentities: {ttl: {a: 24h..48h}}";
        let manual = ManualClockGateway::start_with(&upstream, rest, options).await;
        manual.advance(round as u64 * 10 * 365 * 86_400);
        assert_response(&manual.get("/x/b", &[]).await, 200, source, "0");
        if round == 0 {
            assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "1");
            manual.advance(86_400 - 1);
            assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "1");
        }
        manual.gateway.registry.cache().flush().await;
    }
    assert_eq!(upstream.count(), 2);
}

/// S11: each call can use, skip, require or refresh the cache.
#[tokio::test]
async fn s11_a_request_header_selects_the_cache_mode() {
    let upstream = counting().await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 10s}").await;
    let with = |word| [("x-tollgate-cache", word)];
    let missing = get_with(manual.gateway.address, "/x/a", &with("only")).await;
    assert_eq!(
        (
            missing.status,
            &missing.json()["error"],
            &missing.json()["reason"]
        ),
        (504, &json!("NotInCache"), &json!("cache_only"))
    );
    assert_response(&manual.get("/x/a", &with("no")).await, 200, "upstream", "0");
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "1");
    assert_response(&manual.get("/x/a", &with("no")).await, 200, "upstream", "2");
    assert_response(&manual.get("/x/a", &with("only")).await, 200, "cache", "1");
    assert_response(
        &manual.get("/x/a", &with("refresh")).await,
        200,
        "upstream",
        "3",
    );
    assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "3");
    manual.advance(60);
    assert_response(&manual.get("/x/a", &with("only")).await, 200, "stale", "3");
    let odd = get_with(manual.gateway.address, "/x/a", &with("maybe")).await;
    assert_eq!(odd.status, 400);
    assert_eq!(upstream.count(), 4);
}

pub(crate) async fn tagged(_: usize, received: ReceivedRequest) -> Reply {
    match received.headers.get("if-none-match") {
        Some(tag) if tag == "\"a\"" => reply(304, &[("x-new", "1"), ("etag", "\"a\"")], ""),
        _ => reply(200, &[("etag", "\"a\""), ("x-old", "1")], "body"),
    }
}

/// A stale response is revalidated; a 304 refreshes it and, if the provider does not count 304s,
/// costs no permit.
#[tokio::test]
async fn a_stale_response_is_revalidated_by_a_304_that_costs_no_permit() {
    let upstream = Upstream::start(tagged).await;
    let rest = "limits: [2/1h]\nfree_status: [304]\ncache: {ttl: 10s}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "body");
    for _ in 0..5 {
        manual.advance(10);
        let renewed = get(manual.gateway.address, "/x/a").await;
        assert_eq!(
            (
                renewed.status,
                renewed.header("x-tollgate-source"),
                renewed.body.as_str()
            ),
            (200, "cache", "body")
        );
        assert_eq!(
            (renewed.header("x-new"), renewed.header("x-old")),
            ("1", "1")
        );
        assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "body");
    }
    assert_eq!(upstream.count(), 6);
}

/// A stale response avoids the wait: it is served at once, and the refresh waits behind all other
/// calls.
#[tokio::test]
async fn a_stale_response_is_served_instead_of_waiting_and_refreshed_later() {
    for period in ["300ms", "3s", "10s"] {
        let upstream = counting().await;
        let rest = format!("limits: [1/{period}]\ncache: {{ttl: 1ms}}");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        assert_eq!(get(gateway.address, "/x/a").await.body, "0");
        pause(2).await; // longer than it is good
        let response = get(gateway.address, "/x/a").await;
        let source = response.header("x-tollgate-source");
        if source == "upstream" {
            continue; // its turn had come already: a longer period
        }
        assert_eq!((source, response.body.as_str()), ("stale", "0"));
        assert_eq!(response.header("x-tollgate-wait"), "0.000");
        assert_eq!(
            response.header("cache-status"),
            "tollgate; hit; detail=waiting"
        );
        wait_until(|| upstream.count() == 2).await; // without another request
        return;
    }
    panic!("there was never anything to wait for");
}

/// If the provider fails, limits or is unreachable, the cached response is served.
#[tokio::test]
async fn a_stale_response_is_served_when_the_provider_fails() {
    for (status, rest) in [(503, NO_RETRY), (429, NO_RETRY), (500, "")] {
        let upstream = Upstream::start(move |number, _| async move {
            match number {
                0 => ok(),
                _ => reply(status, &[], "sorry"),
            }
        })
        .await;
        let rest = format!("limits: [100/1s]\ncache: {{ttl: 10s, stale: 1h}}\n{rest}");
        let manual = ManualClockGateway::start(&upstream, &rest).await;
        assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "fine");
        manual.advance(11);
        assert_response(&manual.get("/x/a", &[]).await, 200, "stale", "fine");
        // Nothing is tried twice while there is something to fall back to.
        assert_eq!(upstream.count(), 2);
        manual.advance(3_600);
        let late = manual.get("/x/a", &[("x-tollgate-timeout", "100ms")]).await;
        assert_ne!(late.1, "stale", "{status}: too old to be served stale");
    }
}

#[tokio::test]
async fn a_stale_response_is_served_when_the_provider_is_unreachable() {
    let upstream = counting().await;
    let rest =
        "limits: [100/1s]\ncache: {ttl: 10s}\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
    drop(upstream);
    manual.advance(11);
    assert_response(&manual.get("/x/a", &[]).await, 200, "stale", "0");
    assert_response(&manual.get("/x/a", &[]).await, 200, "stale", "0");
}

/// S6: below the threshold the entity is served from the cache only, stale responses included and
/// marked; a miss is 504.
#[tokio::test]
async fn s6_a_degraded_entity_is_served_from_the_cache_only() {
    let upstream = Upstream::start(|number, _| async move {
        let remaining = (300 - number * 200).to_string();
        // By the clock of the `Date` header.
        let reset = (Clock::System.now().wall.0 / 1_000_000 + 3_600).to_string();
        let headers = [
            ("x-ratelimit-remaining", remaining.as_str()),
            ("x-ratelimit-limit", "3000"),
            ("x-ratelimit-reset", reset.as_str()),
        ];
        reply(200, &headers, &number.to_string())
    })
    .await;
    let rest = "limits: [{limit: 3000, period: 1h, per: entity}]\ndegrade: {below: 200, recover: 400}\ncache: {ttl: 10s}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    assert_response(&manual.get("/x/odds/1", &[]).await, 200, "upstream", "0");
    assert_response(&manual.get("/x/odds/2", &[]).await, 200, "upstream", "1");
    let fresh = get(manual.gateway.address, "/x/odds/1").await;
    assert_eq!(
        (
            fresh.header("x-tollgate-source"),
            fresh.header("x-tollgate-degraded")
        ),
        ("cache", "true")
    );
    manual.advance(11);
    let old = get(manual.gateway.address, "/x/odds/1").await;
    assert_eq!(
        (
            old.header("x-tollgate-source"),
            old.header("x-tollgate-degraded"),
            old.header("age")
        ),
        ("stale", "true", "11")
    );
    let missing = get(manual.gateway.address, "/x/odds/3").await;
    assert_eq!(
        (
            missing.status,
            &missing.json()["error"],
            &missing.json()["reason"]
        ),
        (504, &json!("NotInCache"), &json!("degraded"))
    );
    assert_eq!(upstream.count(), 2);
}

/// S13: lifetimes grow while nothing changes, shrink when it does, and stay in their range.
#[tokio::test]
async fn s13_an_adaptive_ttl_follows_how_often_a_response_changes() {
    let upstream = Upstream::start(|number, _| async move {
        reply(200, &[], if number < 3 { "same" } else { "other" })
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {ttl: 100s..1000s, adaptive: true}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    // 100, unchanged: 150, unchanged: 225, changed: 112.
    for (lifetime, count) in [(100, 1), (150, 2), (225, 3), (112, 4)] {
        manual.get("/x/a", &[]).await;
        assert_eq!(upstream.count(), count);
        manual.advance(lifetime - 1);
        assert_eq!(manual.get("/x/a", &[]).await.1, "cache", "{lifetime}");
        manual.advance(2);
    }
}

/// S13: while little quota remains, a response is fresh for twice its TTL.
#[tokio::test]
async fn s13_the_ttl_doubles_while_little_quota_remains() {
    let upstream = counting().await;
    let rest = "limits: [10/1h]\ncache: {ttl: 100s..1000s, adaptive: true}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    manual.get("/x/a", &[]).await;
    for other in 0..8 {
        manual.get(&format!("/x/{other}"), &[]).await;
    }
    manual.advance(150);
    assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "0");
    manual.advance(60);
    assert_eq!(manual.get("/x/a", &[]).await.1, "upstream");
}

#[tokio::test]
async fn a_404_is_cached_only_if_configured() {
    let upstream = Upstream::start(|_, _| async { reply(404, &[], "no such thing") }).await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 1h}").await;
    manual.get("/x/a", &[]).await;
    assert_response(
        &manual.get("/x/a", &[]).await,
        404,
        "upstream",
        "no such thing",
    );
    let negative = "limits: [100/1s]\ncache: {ttl: 1h, negative: 5s}";
    let manual = ManualClockGateway::start(&upstream, negative).await;
    manual.get("/x/a", &[]).await;
    assert_response(
        &manual.get("/x/a", &[]).await,
        404,
        "cache",
        "no such thing",
    );
    manual.advance(5);
    assert_response(
        &manual.get("/x/a", &[]).await,
        404,
        "upstream",
        "no such thing",
    );
}

/// A HEAD is served from the cached GET; a client with the current version gets a 304.
#[tokio::test]
async fn head_and_conditional_requests_are_served_from_the_cache() {
    let upstream = Upstream::start(tagged).await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 1h}").await;
    manual.get("/x/a", &[]).await;
    let mut session = Session::open(manual.gateway.address).await;
    let head = session.send(request("HEAD", "/x/a", &[], "")).await;
    assert_eq!(head.headers()["x-tollgate-source"], "cache");
    assert_eq!(head.headers()["content-length"], "4");
    let same = get_with(
        manual.gateway.address,
        "/x/a",
        &[("if-none-match", "\"a\"")],
    )
    .await;
    assert_eq!(
        (same.status, same.header("etag"), same.body.as_str()),
        (304, "\"a\"", "")
    );
    assert_response(
        &manual.get("/x/a", &[("if-none-match", "\"b\"")]).await,
        200,
        "cache",
        "body",
    );
    assert_eq!(upstream.count(), 1);
}

/// A successful write invalidates the cached responses of its URL for all callers; a failed one
/// does not.
#[tokio::test]
async fn a_successful_write_invalidates_the_cached_response() {
    let upstream = Upstream::start(|number, received| async move {
        match received.method.as_str() {
            "POST" if received.body == "bad" => reply(400, &[], ""),
            "POST" => reply(201, &[("location", "b")], ""),
            _ => reply(200, &[], &number.to_string()),
        }
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 1h}").await;
    let other = [("x-api-key", "other")];
    for path in ["/x/a", "/x/b", "/x/c"] {
        manual.get(path, &[]).await;
    }
    manual.get("/x/a", &other).await;
    post(manual.gateway.address, "/x/a", &[], "bad").await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "0");
    manual.advance(1);
    post(manual.gateway.address, "/x/a", &[], "good").await;
    manual.advance(1);
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "6");
    assert_response(&manual.get("/x/a", &other).await, 200, "upstream", "7");
    assert_response(&manual.get("/x/b", &[]).await, 200, "upstream", "8");
    assert_response(&manual.get("/x/c", &[]).await, 200, "cache", "2");
    assert_response(&manual.get("/x/a", &other).await, 200, "cache", "7");
}

/// Partial and oversized responses are not cached.
#[tokio::test]
async fn a_truncated_or_oversized_body_is_not_cached() {
    let large = "x".repeat(3_000);
    let upstream = Upstream::start(move |_, _| {
        let large = large.clone();
        async move { reply(200, &[], &large) }
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h, max_object: 2KiB}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    manual.get("/x/a", &[]).await;
    assert_eq!(manual.get("/x/a", &[]).await.1, "upstream");
    drop(upstream);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let broken = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 1024];
            assert!(stream.read(&mut buffer).await.unwrap() > 0);
            let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
            stream.write_all(half).await.unwrap();
        }
    });
    let gateway = TestGateway::start(&[file(address, "limits: [100/1s]\ncache: {ttl: 1h}")]).await;
    for _ in 0..2 {
        let mut session = Session::open(gateway.address).await;
        let response = session.send(request("GET", "/x/a", &[], "")).await;
        assert_eq!(response.headers()["x-tollgate-source"], "upstream");
        drop(response);
    }
    broken.await.unwrap();
}

/// A purge removes by provider and entity, and a response in flight at that time is not cached.
#[tokio::test]
async fn a_purge_removes_cached_responses() {
    let upstream = counting().await;
    let manual = ManualClockGateway::start(&upstream, "limits: [100/1s]\ncache: {ttl: 1h}").await;
    manual.get("/x/odds", &[]).await;
    manual.get("/x/teams", &[]).await;
    let cache = manual.gateway.registry.cache();
    assert_eq!(cache.purge(Some("x"), Some("odds")).await, 1);
    assert_eq!(manual.get("/x/odds", &[]).await.1, "upstream");
    assert_eq!(manual.get("/x/teams", &[]).await.1, "cache");
}
