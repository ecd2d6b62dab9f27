//! What merging leaves behind: how old parts are, and how many calls it saved.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;
use tollgate_core::time::Span;

use crate::cache::Still;
use crate::client::{get, soon, until};
use crate::desk::{Desk, from_file, write};
use crate::flights::ask;
use crate::merging::{ONE_AT_A_TIME, tmdb};
use crate::stand::file;
use crate::upstream::{Asked, Reply, Upstream};

/// The only place is busy until a word comes.
async fn busy(answer: fn(&Asked) -> Reply) -> (Upstream, Arc<Notify>) {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |_, asked| {
        let heard = heard.clone();
        async move {
            if asked.target == "/busy" {
                heard.notified().await;
            }
            answer(&asked)
        }
    })
    .await;
    (upstream, word)
}

/// RFC 9111, 4.2.3: time in our own queue is no part of the age of a part either.
#[tokio::test]
async fn m15_parts_are_as_old_as_the_call_that_brought_them() {
    let aged = |asked: &Asked| {
        let mut reply = tmdb(asked);
        let control = http::HeaderValue::from_static("max-age=3");
        reply.headers_mut().insert("cache-control", control);
        reply
    };
    let (upstream, word) = busy(aged).await;
    let rest = format!("{ONE_AT_A_TIME}\nqueue: {{timeout: 1h}}\ncache: {{mode: rfc9111}}");
    let still = Still::open(&upstream, &rest).await;
    let live = still.stand.shop.named("x").unwrap();
    let busy = ask(&still.stand, "/x/busy");
    until(|| upstream.count() == 1).await;
    let paths = ["/x/3/movie/550/credits", "/x/3/movie/550/images"];
    let first = ask(&still.stand, paths[0]);
    until(|| live.waiting() == 1).await;
    let second = ask(&still.stand, paths[1]);
    until(|| live.riding() == 1).await;
    still.pass(5);
    word.notify_one();
    soon(busy).await.unwrap();
    // A slot that comes back now is free a moment later.
    until(|| {
        still.clock.pass(Span(10));
        first.is_finished() && second.is_finished()
    })
    .await;
    assert_eq!(upstream.count(), 2);
    for path in paths {
        let kept = get(still.stand.address, path).await;
        let seen = (kept.header("x-tollgate-source"), kept.header("age"));
        assert_eq!(seen, ("cache", "0"), "{path}");
    }
}

/// M15, S7: permits that were saved are visible: in `GET /v1/cache` and in the status.
#[tokio::test]
async fn m15_s7_merged_and_shared_calls_are_counted_for_everybody_to_see() {
    let (upstream, word) = busy(tmdb).await;
    write("saved.yaml", &file(upstream.address, ONE_AT_A_TIME));
    let desk = Desk::open(from_file("saved.yaml")).await;
    let live = desk.daemon.shop().named("x").unwrap();
    let ask = |path: &'static str| tokio::spawn(get(desk.gateway, path));
    let busy = ask("/x/busy");
    until(|| upstream.count() == 1).await;
    let mut calls = vec![ask("/x/3/movie/550/credits")];
    until(|| live.waiting() == 1).await;
    calls.push(ask("/x/3/movie/550/images"));
    until(|| live.riding() == 1).await;
    calls.push(ask("/x/3/movie/550/credits"));
    until(|| live.joined() == 1).await;
    word.notify_one();
    soon(busy).await.unwrap();
    for call in calls {
        assert_eq!(soon(call).await.unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 2);
    let seen = desk.ask("GET", "/v1/cache", "").await.json();
    let saved = &seen["saved"][0];
    assert_eq!((&saved["merged"], &saved["shared"]), (&json!(1), &json!(1)));
    let status = desk.ask("GET", "/v1/providers/x", "").await.json();
    let saved = &status["saved"];
    assert_eq!((&saved["merged"], &saved["shared"]), (&json!(1), &json!(1)));
}
