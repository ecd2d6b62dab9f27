//! Background refreshes of stale responses: what cancels them, and what does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::cache::{ManualClockGateway, assert_response};
use crate::client::{get_with, wait_until, within_timeout};
use crate::flights::{spawn_get, spawn_get_with};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, reply};

/// A new response in one language does not cancel the refresh of another language.
#[tokio::test]
async fn a_response_for_other_request_headers_does_not_cancel_a_refresh() {
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
    let rest = "limits: [100/1s]\nconcurrency: 1\ncache: {ttl: 1ms, vary: [accept-language]}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let (de, en) = (("accept-language", "de"), ("accept-language", "en"));
    for language in [de, en] {
        get_with(gateway.address, "/x/a", &[language]).await;
    }
    let busy = spawn_get(&gateway, "/x/busy");
    wait_until(|| upstream.count() == 3).await;
    // Until its millisecond is over, it is fresh, and nothing comes of it.
    let old = async || get_with(gateway.address, "/x/a", &[de]).await;
    while old().await.header("x-tollgate-source") != "stale" {}
    wait_until(|| active.waiting() == 1).await;
    let newer = spawn_get_with(&gateway, "/x/a", &[en, ("x-tollgate-cache", "refresh")]);
    wait_until(|| active.waiting() == 2).await;
    word.notify_one();
    within_timeout(busy).await.unwrap();
    assert_eq!(within_timeout(newer).await.unwrap().body, "3");
    wait_until(|| upstream.count() == 5).await;
}

/// A refresh that was sent has used its permit: a newer response does not cancel it.
#[tokio::test]
async fn a_refresh_that_was_sent_is_not_cancelled() {
    let (word, is_answered) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (heard, responses) = (word.clone(), is_answered.clone());
    let upstream = Upstream::start(move |number, _| {
        let (heard, responses) = (heard.clone(), responses.clone());
        async move {
            if number == 1 {
                heard.notified().await;
                responses.store(true, Ordering::Release);
            }
            let control = "max-age=10, stale-while-revalidate=3600";
            reply(200, &[("cache-control", control)], &number.to_string())
        }
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {mode: rfc9111}";
    let manual = ManualClockGateway::start(&upstream, rest).await;
    assert_response(&manual.get("/x/a", &[]).await, 200, "upstream", "0");
    manual.advance(11);
    assert_response(&manual.get("/x/a", &[]).await, 200, "stale", "0");
    wait_until(|| upstream.count() == 2).await;
    let refresh = [("x-tollgate-cache", "refresh")];
    assert_response(&manual.get("/x/a", &refresh).await, 200, "upstream", "2");
    // A cancellation would have happened by now.
    assert_response(&manual.get("/x/b", &[]).await, 200, "upstream", "3");
    word.notify_one();
    wait_until(|| is_answered.load(Ordering::Acquire)).await;
}
