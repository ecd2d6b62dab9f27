//! R-E5, R-E6, adversarially: the request of one caller never changes the response of another, with
//! cache, flights and stale responses enabled.

use std::sync::Arc;

use serde_json::json;
use tollgate_core::time::Span;

use crate::cache::{ManualClockGateway, assert_response};
use crate::client::{Session, get_with, read_response, request, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{ReceivedRequest, Reply, Upstream, reply};

const OPEN: &str = "limits: [100000/1s]\ncache: {ttl: 1h}\nhealth: off";

/// Responds with the user, by every header that may identify one; slowly enough to be joined.
async fn owned(_: usize, received: ReceivedRequest) -> Reply {
    tokio::task::yield_now().await;
    let owner = owner(&received.target, &|name| {
        let value = received.headers.get(name)?;
        Some(value.to_str().unwrap().to_owned())
    });
    reply(200, &[("etag", "\"one for all\"")], &owner)
}

const NAMES: [&str; 6] = [
    "authorization",
    "cookie",
    "x-api-key",
    "x-user",
    "x-tenant-id",
    "x-forwarded-host",
];

fn owner(target: &str, header: &dyn Fn(&str) -> Option<String>) -> String {
    let named = NAMES.map(|name| header(name).unwrap_or_else(|| "-".to_owned()));
    format!("{}|{target}", named.join("|"))
}

/// Small dice, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }
}

/// R-E6: thousands of concurrent users over the whole path, with ranges, conditions that every
/// response meets, stale entries and identical requests: every body names its own user, or is
/// empty.
#[tokio::test]
async fn concurrent_users_never_receive_each_others_responses() {
    let upstream = Upstream::start(owned).await;
    let rest = "limits: [100000/1s]\ncache: {ttl: 1s, stale: 1h, ignore: [authorization, private]}\n\
                dedup: true\nauth: {replace: false}\nhealth: off";
    let manual = Arc::new(ManualClockGateway::start(&upstream, rest).await);
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let manual = manual.clone();
            tokio::spawn(async move { one_of_many(&manual, worker).await })
        })
        .collect();
    for worker in workers {
        within_timeout(worker).await.unwrap();
    }
    // Without shared calls the test would prove nothing.
    let spared = manual.gateway.registry.named("x").unwrap().savings();
    assert!(spared.hits + spared.shared > 1_000, "{spared:?}");
}

/// One connection with many users behind it.
async fn one_of_many(manual: &ManualClockGateway, worker: u64) {
    let mut dice = Random(0x9e37_79b9_7f4a_7c15 ^ (worker % 4));
    let mut session = Session::open(manual.gateway.address).await;
    for _ in 0..600 {
        let user = format!("user-{}", dice.below(3_000) / dice.below(40).max(1));
        let target = ["/me", "/me?b=2&a=1", "/me?a=1&b=2"][dice.below(3)];
        let mut headers = vec![(NAMES[dice.below(NAMES.len())], user.as_str())];
        match dice.below(6) {
            // All of the names, nothing of the target.
            0 => headers.push(("range", "bytes=0-15")),
            1 => headers.push(("if-none-match", "\"one for all\"")),
            2 => headers.push(("x-tollgate-cache", "refresh")),
            _ => {}
        }
        if dice.below(20) == 0 {
            manual.clock.pass(Span::from_secs(1));
        }
        manual.clock.pass(Span::from_millis(1));
        let response = session.get(&format!("/x{target}"), &headers).await;
        let find = |name: &str| {
            let found = headers.iter().find(|(found, _)| *found == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let expected = owner(target, &find);
        // The first request decides the order of parameters.
        let other = owner(&target.replace("b=2&a=1", "a=1&b=2"), &find);
        let body = response.body.replace("b=2&a=1", "a=1&b=2");
        match response.status {
            200 => assert!(body == other || body == expected, "{body} {expected}"),
            206 => assert!(expected.starts_with(&response.body), "{body} {expected}"),
            304 => assert_eq!(response.body, ""),
            other => panic!("{other}"),
        }
    }
}

/// Says what it was asked.
async fn echo(_: usize, received: ReceivedRequest) -> Reply {
    reply(200, &[], &received.target)
}

/// R-E5: two spellings share a cache key only if every server treats them alike.
#[tokio::test]
async fn url_spellings_share_a_cache_key_only_if_equivalent() {
    let upstream = Upstream::start(echo).await;
    let manual = ManualClockGateway::start(&upstream, OPEN).await;
    for (first, second, is_same) in [
        ("/p?a=1&b=2", "/p?b=2&a=1", true),
        ("/p?c=1&&d=2", "/p?d=2&c=1", true),
        ("/q?a=1&a=2", "/q?a=2&a=1", false),
        ("/q?%61=1&a=3", "/q?a=3&%61=1", false),
        ("/q?A=1&a=4", "/q?a=4&A=1", false),
        ("/q?a=1;b=2&b=3", "/q?b=3&a=1;b=2", false),
        ("/q?a=A", "/q?a=%41", false),
        ("/q?e", "/q?e=", false),
        ("/q?f=1%26g=2", "/q?f=1&g=2", false),
        ("/q?h=1", "/q?H=1", false),
        ("/q?i=1", "/q?i=1%00", false),
        ("/r/a%2Fb", "/r/a/b", false),
        ("/r/A", "/r/a", false),
        ("/s", "/s/", false),
    ] {
        let (one, two) = (format!("/x{first}"), format!("/x{second}"));
        assert_response(&manual.get(&one, &[]).await, 200, "upstream", first);
        let response = manual.get(&two, &[]).await;
        if is_same {
            assert_response(&response, 200, "cache", first);
        } else {
            assert_response(&response, 200, "upstream", second);
        }
    }
}

/// The `Host` header of a client never selects the upstream.
#[tokio::test]
async fn the_host_header_of_a_client_is_not_forwarded() {
    let upstream = Upstream::start(|_, received: ReceivedRequest| async move {
        let host = received.headers["host"].to_str().unwrap().to_owned();
        reply(200, &[], &host)
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, OPEN)]).await;
    let own = upstream.address.to_string();
    for (number, host) in ["evil.example", "GATEWAY", "gateway.", "gateway:81"]
        .iter()
        .enumerate()
    {
        let mut asks = request("GET", &format!("/x/{number}"), &[], "");
        asks.headers_mut().insert("host", host.parse().unwrap());
        let response = read_response(Session::open(gateway.address).await.send(asks).await).await;
        assert_eq!(response.body, own, "{host}");
        let next = get_with(gateway.address, &format!("/x/{number}"), &[]).await;
        assert_eq!(
            (next.body.as_str(), next.header("x-tollgate-source")),
            (own.as_str(), "cache")
        );
    }
}

/// A GET with a body, which some servers apply, is neither cached nor served from the cache.
#[tokio::test]
async fn a_get_with_a_body_bypasses_the_cache() {
    let upstream = Upstream::start(|_, received: ReceivedRequest| async move {
        reply(200, &[], &String::from_utf8_lossy(&received.body))
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, OPEN).await;
    let evil = request("GET", "/x/a", &[], "evil");
    let response =
        read_response(Session::open(manual.gateway.address).await.send(evil).await).await;
    assert_eq!(response.body, "evil");
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "");
}

/// A client never gets an encoding that only another client accepts.
#[tokio::test]
async fn an_encoded_response_is_served_only_to_clients_that_accept_it() {
    let upstream = Upstream::start(|_, received: ReceivedRequest| async move {
        match received.headers.get("accept-encoding") {
            Some(coding) if !coding.to_str().unwrap().contains("q=0") => {
                reply(200, &[("content-encoding", "gzip")], "zipped")
            }
            _ => reply(200, &[], "plain"),
        }
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, OPEN).await;
    let coding = |line| [("accept-encoding", line)];
    assert_response(
        &manual.get("/x/a", &coding("gzip, br")).await,
        200,
        "upstream",
        "zipped",
    );
    assert_response(
        &manual.get("/x/a", &coding("BR,gzip")).await,
        200,
        "cache",
        "zipped",
    );
    for line in ["gzip;q=0", "identity", "deflate;q=0, gzip;q=0.0"] {
        let response = manual.get("/x/a", &coding(line)).await;
        assert_ne!(
            (response.1.as_str(), response.2.as_str()),
            ("cache", "zipped"),
            "{line}"
        );
    }
    assert_ne!(manual.get("/x/a", &[]).await.2, "zipped");
}

/// A caller that names another entity does not change the TTL for others.
#[tokio::test]
async fn the_ttl_of_an_entity_named_by_one_caller_does_not_apply_to_others() {
    let upstream =
        Upstream::start(|number, _| async move { reply(200, &[], &number.to_string()) }).await;
    let rest = format!("{OPEN}\nentities: {{ttl: {{odds: 4s, teams: 24h}}}}");
    let manual = ManualClockGateway::start(&upstream, &rest).await;
    let long = [("x-tollgate-entity", "teams")];
    assert_response(&manual.get("/x/odds", &long).await, 200, "upstream", "0");
    assert_response(&manual.get("/x/odds", &[]).await, 200, "upstream", "1");
    manual.advance(5);
    assert_response(&manual.get("/x/odds", &[]).await, 200, "upstream", "2");
    assert_response(&manual.get("/x/odds", &long).await, 200, "cache", "0");
}

/// R-D6: a response that is not cached says so, with the reason.
#[tokio::test]
async fn cache_status_says_why_a_response_was_not_cached() {
    let upstream = Upstream::start(|_, received: ReceivedRequest| async move {
        let headers = match received.target.as_str() {
            "/cookie" => ("set-cookie", "sid=1"),
            "/cookie2" => ("set-cookie2", "sid=1"),
            "/private" => ("cache-control", "private"),
            "/secret" => ("cache-control", "no-store"),
            "/star" => ("vary", "*"),
            "/status" => return reply(202, &[], "later"),
            _ => ("cache-status", "cdn; hit"),
        };
        reply(200, &[headers], &"x".repeat(2_000))
    })
    .await;
    let rest = "limits: [1000/1s]\ncache: {ttl: 10s, max_object: 2KiB}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    let own = [("authorization", "Bearer mine")];
    let none: &[(&str, &str)] = &[];
    for (path, headers, why) in [
        ("/x/cookie", none, "fwd=miss; detail=set_cookie"),
        ("/x/cookie2", none, "fwd=miss; detail=set_cookie"),
        ("/x/private", none, "fwd=miss; detail=private"),
        ("/x/secret", none, "fwd=miss; detail=no_store"),
        ("/x/star", none, "fwd=miss; detail=varies_on_anything"),
        ("/x/status", none, "fwd=miss; detail=status"),
        ("/x/own", &own, "fwd=miss; detail=authorization"),
        ("/x/a", none, "fwd=miss"),
        ("/x/a", none, "hit"),
    ] {
        let response = get_with(manual.gateway.address, path, headers).await;
        let said: Vec<_> = response.headers.get_all("cache-status").iter().collect();
        let said = said.last().unwrap().to_str().unwrap();
        assert_eq!(said, format!("tollgate; {why}"), "{path}");
        assert!(!response.everything().contains("Bearer mine"));
    }
    // `Cache-Status` of other caches stays, and ours is not stored with it.
    let again = get_with(manual.gateway.address, "/x/a", &[]).await;
    assert_eq!(again.headers.get_all("cache-status").iter().count(), 2);
    assert_eq!(again.header("cache-status"), "cdn; hit");
    // Where the cache is not used it says nothing.
    let not_used = get_with(
        manual.gateway.address,
        "/x/star",
        &[("x-tollgate-cache", "no")],
    )
    .await;
    assert_eq!(not_used.header("cache-status"), "");
    assert_eq!(json!(not_used.status), 200);
}
