//! `cache: {mode: rfc9111}` over sockets: the rules that need two messages.

use serde_json::json;

use crate::cache::{ManualClockGateway, assert_response};
use crate::client::{get_with, wait_until};
use crate::upstream::{ReceivedRequest, Reply, Upstream, reply};

const MODE: &str = "limits: [1000/1s]\ncache: {mode: rfc9111, stale: 0s}\nhealth: off\nretry: {retries: {high: 0, normal: 0, low: 0}}";

/// The request selects the headers of the response.
async fn echo_cache_control(number: usize, received: ReceivedRequest) -> Reply {
    let said = received
        .headers
        .get("say")
        .map(|line| line.to_str().unwrap().to_owned());
    let said = said.unwrap_or_default();
    let headers = [("cache-control", said.as_str()), ("connection", "close")];
    reply(200, &headers, &number.to_string())
}

#[tokio::test]
async fn freshness_follows_the_response_headers() {
    let upstream = Upstream::start(echo_cache_control).await;
    let manual = ManualClockGateway::start(&upstream, MODE).await;
    let say = |line| [("say", line)];
    assert_response(
        &manual.get("/x/a", &say("max-age=10")).await,
        200,
        "upstream",
        "0",
    );
    manual.advance(9);
    assert_response(
        &manual.get("/x/a", &say("max-age=10")).await,
        200,
        "cache",
        "0",
    );
    manual.advance(1);
    assert_response(
        &manual.get("/x/a", &say("max-age=10")).await,
        200,
        "upstream",
        "1",
    );
    assert_response(
        &manual.get("/x/b", &say("no-store")).await,
        200,
        "upstream",
        "2",
    );
    assert_response(
        &manual.get("/x/b", &say("no-store")).await,
        200,
        "upstream",
        "3",
    );
}

#[tokio::test]
async fn request_cache_control_can_force_revalidation_or_cache_only() {
    let upstream = Upstream::start(echo_cache_control).await;
    let manual = ManualClockGateway::start(&upstream, MODE).await;
    let with = |line| [("say", "max-age=60"), ("cache-control", line)];
    assert_response(
        &manual.get("/x/a", &with("max-age=60")).await,
        200,
        "upstream",
        "0",
    );
    assert_response(
        &manual.get("/x/a", &with("max-age=60")).await,
        200,
        "cache",
        "0",
    );
    assert_response(
        &manual.get("/x/a", &with("no-cache")).await,
        200,
        "upstream",
        "1",
    );
    assert_response(
        &manual.get("/x/a", &with("only-if-cached")).await,
        200,
        "cache",
        "1",
    );
    let missing = get_with(manual.gateway.address, "/x/b", &with("only-if-cached")).await;
    assert_eq!(
        (missing.status, &missing.json()["error"]),
        (504, &json!("NotInCache"))
    );
}

/// A stale response is served during one background refresh for all callers.
#[tokio::test]
async fn stale_while_revalidate_refreshes_in_the_background() {
    let upstream = Upstream::start(echo_cache_control).await;
    let manual = ManualClockGateway::start(&upstream, MODE).await;
    let say = [("say", "max-age=10, stale-while-revalidate=60")];
    assert_response(&manual.get("/x/a", &say).await, 200, "upstream", "0");
    manual.advance(11);
    assert_response(&manual.get("/x/a", &say).await, 200, "stale", "0");
    wait_until(|| upstream.count() == 2).await;
    let mut response = manual.get("/x/a", &say).await;
    while response.1 == "stale" {
        response = manual.get("/x/a", &say).await;
    }
    assert_response(&response, 200, "cache", "1");
}

#[tokio::test]
async fn must_revalidate_is_not_served_stale_when_the_provider_is_unreachable() {
    for (line, status) in [
        ("max-age=1, stale-if-error=100", 200),
        ("max-age=1", 502),
        ("max-age=1, stale-if-error=100, must-revalidate", 502),
        ("s-maxage=1, stale-if-error=100", 502),
    ] {
        let upstream = Upstream::start(echo_cache_control).await;
        let manual = ManualClockGateway::start(&upstream, MODE).await;
        manual.get("/x/a", &[("say", line)]).await;
        drop(upstream);
        manual.advance(10);
        assert_eq!(manual.get("/x/a", &[]).await.0, status, "{line}");
    }
}

#[tokio::test]
async fn the_vary_header_selects_the_cached_response() {
    let upstream = Upstream::start(|number, _| async move {
        let headers = [("cache-control", "max-age=60"), ("vary", "Foo, Bar")];
        reply(200, &headers, &number.to_string())
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, MODE).await;
    assert_response(
        &manual.get("/x/a", &[("foo", "1")]).await,
        200,
        "upstream",
        "0",
    );
    assert_response(
        &manual.get("/x/a", &[("foo", "2")]).await,
        200,
        "upstream",
        "1",
    );
    assert_response(
        &manual.get("/x/a", &[("foo", "1"), ("bar", "")]).await,
        200,
        "upstream",
        "2",
    );
    assert_response(
        &manual.get("/x/a", &[("foo", "1"), ("baz", "9")]).await,
        200,
        "cache",
        "0",
    );
    assert_response(
        &manual.get("/x/a", &[("foo", "2")]).await,
        200,
        "cache",
        "1",
    );
}
