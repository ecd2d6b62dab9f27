//! R-E5, R-E6, R-D6: a cached response is served only to requests that match those of its owner.

use std::collections::HashMap;

use crate::cache::{ManualClockGateway, assert_response};
use crate::client::{Session, get, get_with, wait_until, within_timeout};
use crate::flights::{gated, spawn_get, spawn_get_with};
use crate::log;
use crate::test_gateway::{TestGateway, file, providers};
use crate::upstream::{ReceivedRequest, Reply, Upstream, reply};
use tollgate_core::time::Span;

/// Names the owner: by whatever credential came along, and the query.
async fn owned(_: usize, received: ReceivedRequest) -> Reply {
    reply(200, &[("vary", "accept-language")], &owner(&received))
}

fn owner(received: &ReceivedRequest) -> String {
    let header = |name: &str| {
        let value = received.headers.get(name);
        value
            .map_or("-", |value| value.to_str().unwrap())
            .to_owned()
    };
    let names = ["authorization", "cookie", "x-api-key", "accept-language"];
    let all: Vec<String> = names.into_iter().map(header).collect();
    format!("{}|{}", received.target, all.join("|"))
}

/// R-E6: thousands of users with random credentials, headers and queries, all cacheable: every body
/// names its own user.
#[tokio::test]
async fn a_cached_response_is_not_shared_between_users() {
    let upstream = Upstream::start(owned).await;
    let rest = "limits: [100000/1s]\ncache: {ttl: 1h, ignore: [authorization, private]}\nauth: {replace: false}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    let mut session = Session::open(manual.gateway.address).await;
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let mut roll = |most: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % most
    };
    let mut sources: HashMap<String, u32> = HashMap::new();
    for _ in 0..4_000 {
        let user = format!("user-{}", roll(1_000));
        let language = ["de", "en", "fr"][usize::try_from(roll(3)).unwrap()];
        let path = match roll(3) {
            0 => "/x/me".to_owned(),
            1 => format!("/x/me?page={}", roll(3)),
            _ => format!("/x/me?b=2&a={}", roll(2)),
        };
        let name = ["authorization", "cookie", "x-api-key"][usize::try_from(roll(3)).unwrap()];
        let mut headers = vec![(name, user.as_str())];
        if roll(2) == 0 {
            headers.push(("accept-language", language));
        }
        manual.clock.pass(Span::from_millis(1));
        let response = session.get(&path, &headers).await;
        let expected = ReceivedRequest {
            at: tollgate_core::time::Micros(0),
            method: "GET".to_owned(),
            target: path.strip_prefix("/x").unwrap().to_owned(),
            headers: headers
                .iter()
                .map(|(name, value)| {
                    (
                        http::HeaderName::try_from(*name).unwrap(),
                        http::HeaderValue::try_from(*value).unwrap(),
                    )
                })
                .collect(),
            body: bytes::Bytes::new(),
        };
        assert_eq!(response.body, owner(&expected));
        *sources
            .entry(response.header("x-tollgate-source").to_owned())
            .or_default() += 1;
    }
    // It would prove nothing if nothing had come from the cache.
    assert!(sources["cache"] > 100, "{sources:?}");
}

/// R-E5: headers that a server may apply without listing them in `Vary` cannot poison the response
/// for clients that do not send them.
#[tokio::test]
async fn headers_missing_from_vary_cannot_poison_the_cache() {
    let upstream = Upstream::start(|_, received: ReceivedRequest| async move {
        let mut seen: Vec<String> = received
            .headers
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "host" | "content-length" | "via"))
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        seen.sort();
        reply(200, &[], &seen.join(" "))
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, "limits: [1000/1s]\ncache: {ttl: 1h}").await;
    for (number, name) in [
        "x-forwarded-host",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-prefix",
        "forwarded",
        "x-original-url",
        "x-original-host",
        "x-rewrite-url",
        "x-http-method-override",
        "x-method-override",
        "x-host",
        "x-real-ip",
        "true-client-ip",
        "accept",
        "cookie",
        "x-auth-token",
        "x-amz-security-token",
        "x-session-id",
        "x-user-id",
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/x/{number}");
        let poisoned = manual.get(&path, &[(name, "evil.example")]).await;
        assert!(poisoned.2.contains("evil"), "{name} is passed on");
        assert_response(&manual.get(&path, &[]).await, 200, "upstream", "");
    }
}

/// An encoded response is not served to clients that do not accept the encoding, and a response for
/// one origin not to others.
#[tokio::test]
async fn an_implied_vary_is_applied_to_encoding_and_origin() {
    let upstream = Upstream::start(|number, received: ReceivedRequest| async move {
        let body = number.to_string();
        if received.target == "/gz" && received.headers.contains_key("accept-encoding") {
            return reply(200, &[("content-encoding", "gzip")], &body);
        }
        match received.headers.get("origin") {
            Some(origin) => {
                let origin = origin.to_str().unwrap();
                reply(200, &[("access-control-allow-origin", origin)], &body)
            }
            None => reply(200, &[], &body),
        }
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, "limits: [1000/1s]\ncache: {ttl: 1h}").await;
    let zip = [("accept-encoding", "gzip")];
    assert_response(&manual.get("/x/gz", &zip).await, 200, "upstream", "0");
    assert_response(&manual.get("/x/gz", &[]).await, 200, "upstream", "1");
    // A program: a page of another site would be rejected.
    let origin = |name| [("origin", name), ("x-tollgate-priority", "normal")];
    assert_response(
        &manual.get("/x/o", &origin("https://a")).await,
        200,
        "upstream",
        "2",
    );
    assert_response(
        &manual.get("/x/o", &origin("https://b")).await,
        200,
        "upstream",
        "3",
    );
    assert_response(
        &manual.get("/x/o", &origin("https://a")).await,
        200,
        "cache",
        "2",
    );
}

/// R-D6: a private response is not cached, and the log says why.
#[tokio::test]
async fn a_private_response_is_not_cached_and_the_log_says_why() {
    let upstream = Upstream::start(|_, received: ReceivedRequest| async move {
        let header = match received.target.as_str() {
            "/cookie" => ("set-cookie", "sid=1"),
            "/private" => ("cache-control", "private"),
            "/secret" => ("cache-control", "no-store"),
            "/star" => ("vary", "*"),
            _ => ("x-nothing", "1"),
        };
        reply(200, &[header], "mine")
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, "limits: [1000/1s]\ncache: {ttl: 1h}").await;
    let own = [("authorization", "Bearer mine")];
    for (path, headers, why) in [
        ("/x/cookie", &[][..], "set_cookie"),
        ("/x/private", &[], "private"),
        ("/x/secret", &[], "no_store"),
        ("/x/star", &[], "varies_on_anything"),
        ("/x/own", &own, "authorization"),
    ] {
        let first = get_with(manual.gateway.address, path, headers).await;
        assert_eq!(manual.get(path, headers).await.1, "upstream", "{path}");
        // The response and the log say so.
        let status = format!("tollgate; fwd=miss; detail={why}");
        assert_eq!(first.header("cache-status"), status, "{path}");
        let id = first.header("x-tollgate-id");
        let reported = log::captured();
        let line = reported
            .lines()
            .find(|line| line.contains("not_stored") && line.contains(id));
        assert!(
            line.is_some_and(|line| line.contains(why)),
            "{path}: {line:?}"
        );
    }
    assert!(!log::captured().contains("Bearer mine"));
}

/// The key that Tollgate adds is not the caller's: callers share responses under it.
#[tokio::test]
async fn responses_for_a_configured_key_are_shared_and_never_contain_the_key() {
    let upstream =
        Upstream::start(|number, _| async move { reply(200, &[], &number.to_string()) }).await;
    let rest = "limits: [1000/1s]\ncache: {ttl: 1h}\napi_key: k1\nauth: {bearer: true}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
    let theirs = [("authorization", "Bearer whatever")];
    assert_response(&manual.get("/x/a", &theirs).await, 200, "cache", "0");
    assert_eq!(upstream.requests()[0].headers["authorization"], "Bearer k1");
}

/// A response belongs to the account that it was made for: another key is another account. The old
/// responses are there again when the old key is.
#[tokio::test]
async fn a_new_key_does_not_get_the_responses_of_the_old_one() {
    let upstream = crate::cache::counting().await;
    let file = |key: &str| {
        let rest = "limits: [1000/1s]\ncache: {ttl: 1h}\nauth: {header: X-Key}";
        file(upstream.address, &format!("{rest}\napi_key: {key}"))
    };
    let gateway = TestGateway::start(&[file("one-key-1111")]).await;
    for (key, source, body) in [
        ("one-key-1111", "upstream", "0"),
        ("one-key-1111", "cache", "0"),
        ("other-key-2222", "upstream", "1"),
        ("other-key-2222", "cache", "1"),
        ("one-key-1111", "cache", "0"),
    ] {
        gateway.registry.replace(providers(&[file(key)])).unwrap();
        let response = get(gateway.address, "/x/a").await;
        let found = (response.header("x-tollgate-source"), response.body.as_str());
        assert_eq!(found, (source, body), "{key}");
    }
}

/// A reload replaces the key while a response is under way that repeats the old one in a header: the
/// header is not stored.
#[tokio::test]
async fn h3_a_key_replaced_during_a_call_is_not_stored_in_a_header() {
    fn echoing(_: usize, received: &ReceivedRequest) -> Reply {
        let key = received.headers["x-key"].to_str().unwrap();
        reply(200, &[("x-echo", key), ("x-plain", "1")], "body")
    }
    let (upstream, word) = gated(echoing).await;
    let file = |key: &str| {
        let rest = "limits: [1000/1s]\ncache: {ttl: 1h}\nauth: {header: X-Key}";
        file(upstream.address, &format!("{rest}\napi_key: {key}"))
    };
    let gateway = TestGateway::start(&[file("one-key-1111")]).await;
    let set_key = |key: &str| gateway.registry.replace(providers(&[file(key)])).unwrap();
    let first = spawn_get(&gateway, "/x/a");
    wait_until(|| upstream.count() == 1).await;
    set_key("other-key-2222");
    word.notify_one();
    let first = within_timeout(first).await.unwrap();
    assert_eq!(
        (first.status, first.header("x-echo")),
        (200, "one-key-1111")
    );
    set_key("one-key-1111");
    let stored = get(gateway.address, "/x/a").await;
    assert_eq!(stored.header("x-tollgate-source"), "cache");
    assert_eq!(stored.header("x-plain"), "1");
    assert!(!stored.headers.contains_key("x-echo"), "{stored:?}");
}

/// Many APIs select a response by a version or preference header without `Vary`: each value has its
/// own cached response.
#[tokio::test]
async fn a_version_or_preference_header_separates_cached_responses() {
    let upstream = crate::cache::counting().await;
    let manual = ManualClockGateway::start(&upstream, "limits: [1000/1s]\ncache: {ttl: 1h}").await;
    let mut received = 0;
    for name in [
        "x-github-api-version",
        "notion-version",
        "api-version",
        "prefer",
        "accept",
    ] {
        for value in ["1", "2"] {
            let fresh = manual.get("/x/a", &[(name, value)]).await;
            assert_response(&fresh, 200, "upstream", &received.to_string());
            let kept = manual.get("/x/a", &[(name, value)]).await;
            assert_response(&kept, 200, "cache", &received.to_string());
            received += 1;
        }
    }
}

/// S7: a 304 responds to a client's own condition. While the cache revalidates with its own
/// condition, the 304 is shared only with clients that sent the same condition.
#[tokio::test]
async fn s7_a_304_is_shared_only_with_callers_that_sent_the_same_condition() {
    fn by_tag(_: usize, received: &ReceivedRequest) -> Reply {
        let is_same = received.headers.get("if-none-match");
        let is_same = is_same.is_some_and(|tag| tag == "\"a\"");
        reply(if is_same { 304 } else { 200 }, &[("etag", "\"a\"")], "")
    }
    let (upstream, word) = gated(by_tag).await;
    let manual = ManualClockGateway::start(&upstream, "cache: {ttl: 10s}\nlimits: [100/1s]").await;
    let active = manual.gateway.registry.named("x").unwrap();
    word.notify_one();
    assert_eq!(
        within_timeout(spawn_get(&manual.gateway, "/x/a"))
            .await
            .unwrap()
            .status,
        200
    );
    manual.advance(11);
    let same = [("if-none-match", "\"a\"")];
    let other = [("if-none-match", "\"b\"")];
    let first = spawn_get_with(&manual.gateway, "/x/a", &same);
    wait_until(|| upstream.count() == 2).await;
    let second = spawn_get_with(&manual.gateway, "/x/a", &same);
    wait_until(|| active.joined() == 1).await;
    let third = spawn_get_with(&manual.gateway, "/x/a", &other);
    wait_until(|| upstream.count() == 3 || active.joined() == 2).await;
    let mut statuses = Vec::new();
    for call in [first, second, third] {
        wait_until(|| {
            word.notify_one();
            call.is_finished()
        })
        .await;
        statuses.push(call.await.unwrap().status);
    }
    assert_eq!((statuses, upstream.count()), (vec![304, 304, 200], 3));
}
