//! Ranges: a range is served from a complete cached response, and a partial response is never
//! cached as the whole.

use crate::cache::{ManualClockGateway, NO_RETRY, assert_response};
use crate::client::{ClientResponse, Session, get_with, request};
use crate::upstream::{ReceivedRequest, Reply, Upstream, reply};

const REST: &str = "limits: [1000/1s]\ncache: {ttl: 10s, stale: 1h}\nhealth: off";

/// Ten digits, with range support and an ETag.
async fn digits(_: usize, received: ReceivedRequest) -> Reply {
    let tag = [("etag", "\"a\""), ("connection", "close")];
    let has = |name: &str, value: &str| {
        received
            .headers
            .get(name)
            .is_some_and(|found| found == value)
    };
    if has("if-none-match", "\"a\"") || has("if-none-match", "\"theirs\"") {
        return reply(304, &tag, "");
    }
    if received.headers.contains_key("range") && received.target != "/deaf" {
        let headers = [tag[0], tag[1], ("content-range", "bytes 2-4/10")];
        return reply(206, &headers, "234");
    }
    reply(200, &tag, "0123456789")
}

async fn part(
    manual: &ManualClockGateway,
    path: &str,
    range: &str,
    more: &[(&str, &str)],
) -> ClientResponse {
    let mut headers = vec![("range", range)];
    headers.extend(more);
    get_with(manual.gateway.address, path, &headers).await
}

#[tokio::test]
async fn a_partial_response_of_the_provider_is_not_cached() {
    let upstream = Upstream::start(digits).await;
    let manual = ManualClockGateway::start(&upstream, REST).await;
    for count in 1..=2 {
        let response = part(&manual, "/x/a", "bytes=2-4", &[]).await;
        assert_eq!((response.status, response.body.as_str()), (206, "234"));
        assert_eq!(
            (response.header("x-tollgate-source"), upstream.count()),
            ("upstream", count)
        );
        assert!(response.header("cache-status").contains("detail=partial"));
    }
    assert_response(
        &manual.get("/x/a", &[]).await,
        200,
        "upstream",
        "0123456789",
    );
}

/// Also if no client requested a range.
#[tokio::test]
async fn an_unrequested_partial_response_is_not_cached() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(206, &[("content-range", "bytes 0-0/2")], "a"),
            _ => reply(200, &[], "ab"),
        }
    })
    .await;
    let manual = ManualClockGateway::start(&upstream, REST).await;
    assert_response(&manual.get("/x/a", &[]).await, 206, "upstream", "a");
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "ab");
    assert_response(&manual.get("/x/a", &[]).await, 200, "cache", "ab");
}

#[tokio::test]
async fn a_single_range_is_served_from_a_complete_cached_response() {
    let upstream = Upstream::start(digits).await;
    let manual = ManualClockGateway::start(&upstream, REST).await;
    manual.get("/x/a", &[]).await;
    for (range, more, status, content_range, body) in [
        ("bytes=2-4", None, 206, "bytes 2-4/10", "234"),
        ("bytes=8-99", None, 206, "bytes 8-9/10", "89"),
        ("bytes=-1", None, 206, "bytes 9-9/10", "9"),
        ("bytes=10-", None, 416, "bytes */10", ""),
        ("bytes=0-1,4-5", None, 200, "", "0123456789"),
        ("lines=0-1", None, 200, "", "0123456789"),
        (
            "bytes=2-4",
            Some(("if-range", "\"a\"")),
            206,
            "bytes 2-4/10",
            "234",
        ),
        (
            "bytes=2-4",
            Some(("if-range", "\"b\"")),
            200,
            "",
            "0123456789",
        ),
        ("bytes=2-4", Some(("if-none-match", "\"a\"")), 304, "", ""),
    ] {
        let more: Vec<_> = more.into_iter().collect();
        let response = part(&manual, "/x/a", range, &more).await;
        assert_eq!(
            (
                response.status,
                response.header("content-range"),
                response.body.as_str()
            ),
            (status, content_range, body),
            "{range} {more:?}"
        );
        assert_eq!(response.header("x-tollgate-source"), "cache", "{range}");
        if status != 304 {
            assert_eq!(response.header("content-length"), body.len().to_string());
        }
    }
    assert_eq!(upstream.count(), 1);
    // A HEAD has no part.
    let head = request("HEAD", "/x/a", &[("range", "bytes=2-4")], "");
    let head = Session::open(manual.gateway.address).await.send(head).await;
    assert_eq!(head.headers()["x-tollgate-source"], "upstream");
}

/// A provider without range support sends the complete response, which is cached.
#[tokio::test]
async fn a_complete_response_to_a_range_request_is_cached() {
    let upstream = Upstream::start(digits).await;
    let manual = ManualClockGateway::start(&upstream, REST).await;
    let response = part(&manual, "/x/deaf", "bytes=2-4", &[]).await;
    assert_eq!(
        (response.status, response.body.as_str()),
        (200, "0123456789")
    );
    let response = part(&manual, "/x/deaf", "bytes=2-4", &[]).await;
    assert_eq!((response.status, response.body.as_str()), (206, "234"));
    assert_eq!(upstream.count(), 1);
}

/// A range of a stale response is forwarded as requested, and served stale if the provider is
/// unreachable.
#[tokio::test]
async fn a_range_of_a_stale_response_is_revalidated_or_served_on_failure() {
    let upstream = Upstream::start(digits).await;
    let rest = format!("{REST}\n{NO_RETRY}");
    let manual = ManualClockGateway::start(&upstream, &rest).await;
    manual.get("/x/a", &[]).await;
    manual.advance(11);
    let response = part(&manual, "/x/a", "bytes=2-4", &[]).await;
    assert_eq!(
        (response.status, response.header("x-tollgate-source")),
        (206, "upstream")
    );
    assert!(!upstream.requests()[1].headers.contains_key("if-none-match"));
    drop(upstream);
    let response = part(&manual, "/x/a", "bytes=3-5", &[]).await;
    assert_eq!(
        (
            response.status,
            response.header("x-tollgate-source"),
            response.body.as_str()
        ),
        (206, "stale", "345")
    );
}

/// A 304 to a client's own condition concerns the client's copy: it refreshes nothing here.
#[tokio::test]
async fn a_304_to_a_clients_own_condition_does_not_refresh_the_cache() {
    let theirs = ("if-none-match", "\"theirs\"");
    for (method, headers) in [
        ("HEAD", vec![theirs]),
        ("GET", vec![theirs, ("range", "bytes=2-4")]),
    ] {
        let upstream = Upstream::start(digits).await;
        let manual = ManualClockGateway::start(&upstream, REST).await;
        manual.get("/x/a", &[]).await;
        manual.advance(11);
        let asks = request(method, "/x/a", &headers, "");
        let response = Session::open(manual.gateway.address).await.send(asks).await;
        assert_eq!(response.status(), 304, "{method}");
        assert_eq!(response.headers()["x-tollgate-source"], "upstream");
        manual.get("/x/a", &[]).await;
        assert_eq!(upstream.count(), 3, "{method}: it is as old as before");
    }
}
