//! The results of merging: the age of parts, and the number of saved calls.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;
use tollgate_core::time::Span;

use crate::cache::ManualClockGateway;
use crate::client::{get, wait_until, within_timeout};
use crate::flights::spawn_get;
use crate::merging::{ONE_AT_A_TIME, tmdb};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::test_gateway::file;
use crate::upstream::{ReceivedRequest, Reply, Upstream};

/// The only slot is busy until a notification.
async fn busy(response: fn(&ReceivedRequest) -> Reply) -> (Upstream, Arc<Notify>) {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |_, received| {
        let heard = heard.clone();
        async move {
            if received.target == "/busy" {
                heard.notified().await;
            }
            response(&received)
        }
    })
    .await;
    (upstream, word)
}

/// RFC 9111, 4.2.3: time in our queue does not count as the age of a part either.
#[tokio::test]
async fn m15_merged_parts_have_the_age_of_the_call_that_fetched_them() {
    let aged = |received: &ReceivedRequest| {
        let mut reply = tmdb(received);
        let control = http::HeaderValue::from_static("max-age=3");
        reply.headers_mut().insert("cache-control", control);
        reply
    };
    let (upstream, word) = busy(aged).await;
    let rest = format!("{ONE_AT_A_TIME}\nqueue: {{timeout: 1h}}\ncache: {{mode: rfc9111}}");
    let manual = ManualClockGateway::start(&upstream, &rest).await;
    let active = manual.gateway.registry.named("x").unwrap();
    let busy = spawn_get(&manual.gateway, "/x/busy");
    wait_until(|| upstream.count() == 1).await;
    let paths = ["/x/3/movie/550/credits", "/x/3/movie/550/images"];
    let first = spawn_get(&manual.gateway, paths[0]);
    wait_until(|| active.waiting() == 1).await;
    let second = spawn_get(&manual.gateway, paths[1]);
    wait_until(|| active.joined_merge() == 1).await;
    manual.advance(5);
    word.notify_one();
    within_timeout(busy).await.unwrap();
    // A slot that comes back now is free a moment later.
    wait_until(|| {
        manual.clock.pass(Span(10));
        first.is_finished() && second.is_finished()
    })
    .await;
    assert_eq!(upstream.count(), 2);
    for path in paths {
        let kept = get(manual.gateway.address, path).await;
        let seen = (kept.header("x-tollgate-source"), kept.header("age"));
        assert_eq!(seen, ("cache", "0"), "{path}");
    }
}

/// M15, S7: saved permits are visible in `GET /v1/cache` and in the status.
#[tokio::test]
async fn m15_s7_merged_and_shared_calls_are_counted_in_the_status() {
    let (upstream, word) = busy(tmdb).await;
    write_file("saved.yaml", &file(upstream.address, ONE_AT_A_TIME));
    let daemon = TestDaemon::start(from_file("saved.yaml")).await;
    let active = daemon.daemon.registry().named("x").unwrap();
    let ask = |path: &'static str| tokio::spawn(get(daemon.gateway, path));
    let busy = ask("/x/busy");
    wait_until(|| upstream.count() == 1).await;
    let mut calls = vec![ask("/x/3/movie/550/credits")];
    wait_until(|| active.waiting() == 1).await;
    calls.push(ask("/x/3/movie/550/images"));
    wait_until(|| active.joined_merge() == 1).await;
    calls.push(ask("/x/3/movie/550/credits"));
    wait_until(|| active.joined() == 1).await;
    word.notify_one();
    within_timeout(busy).await.unwrap();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 2);
    let seen = daemon.request("GET", "/v1/cache", "").await.json();
    let saved = &seen["saved"][0];
    assert_eq!((&saved["merged"], &saved["shared"]), (&json!(1), &json!(1)));
    let status = daemon.request("GET", "/v1/providers/x", "").await.json();
    let saved = &status["saved"];
    assert_eq!((&saved["merged"], &saved["shared"]), (&json!(1), &json!(1)));
}
