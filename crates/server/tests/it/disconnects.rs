//! Clients that disconnect, connections that break, gateways that shut down: no call is lost, and
//! only sent calls are counted.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::Notify;
use tollgate_core::time::Span;
use tollgate_ledger::Clock;

use crate::client::{
    Session, TIMEOUTS, get, get_until_late, get_with, read_response, request, wait_until,
    within_timeout,
};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Reply, Upstream, ok};

/// An upstream whose responses wait for a notification.
async fn gated() -> (Upstream, Arc<Notify>) {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |_, _| {
        let heard = heard.clone();
        async move {
            heard.notified().await;
            ok()
        }
    })
    .await;
    (upstream, word)
}

/// R-A12: a client that disconnects in the queue gives up its position, and its call is never sent.
#[tokio::test]
async fn a_client_that_leaves_the_queue_is_never_sent() {
    let (upstream, word) = gated().await;
    let gateway =
        TestGateway::start(&[file(upstream.address, "concurrency: 1\nlimits: [100/1s]")]).await;
    let first = tokio::spawn(get(gateway.address, "/x/first"));
    wait_until(|| upstream.count() == 1).await;
    let second = tokio::spawn(get(gateway.address, "/x/second"));
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.waiting() == 1).await;
    second.abort();
    wait_until(|| active.waiting() == 0).await;
    let third = tokio::spawn(get(gateway.address, "/x/third"));
    wait_until(|| active.waiting() == 1).await;
    word.notify_one();
    assert_eq!(within_timeout(first).await.unwrap().status, 200);
    wait_until(|| upstream.count() == 2).await;
    word.notify_one();
    assert_eq!(within_timeout(third).await.unwrap().status, 200);
    let targets: Vec<_> = upstream
        .requests()
        .iter()
        .map(|received| received.target.clone())
        .collect();
    assert_eq!(targets, ["/first", "/third"]);
}

/// R-A11: a sent call counts, even if its client did not wait for the response.
#[tokio::test]
async fn a_client_disconnect_after_the_send_uses_the_permit() {
    let (upstream, _word) = gated().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
    let first = tokio::spawn(get(gateway.address, "/x/first"));
    wait_until(|| upstream.count() == 1).await;
    first.abort();
    let rejected = get_until_late(gateway.address, "/x/second").await;
    // The end of the wait is unknown, so the deadline passes.
    assert_eq!((rejected.status, upstream.count()), (504, 1));
}

#[tokio::test]
async fn a_refused_upstream_connection_costs_no_permit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let rest = "limits: [1/1h]\nhealth: off\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let gateway = TestGateway::start(&[file(address, rest)]).await;
    let failed = get(gateway.address, "/x/a").await;
    assert_eq!(
        (failed.status, &failed.json()["error"]),
        (502, &"UpstreamError".into())
    );
    assert_eq!(failed.header("x-tollgate-attempts"), "0");
    let upstream = Upstream::on(TcpListener::bind(address).await.unwrap(), |_, _| async {
        ok()
    });
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    assert_eq!(upstream.count(), 1);
}

/// A hanging upstream times out after `first_byte`, and the call counts as sent.
#[tokio::test]
async fn a_hanging_upstream_times_out_and_uses_the_permit() {
    let (upstream, _word) = gated().await;
    let rest = "limits: [1/1h]\ntimeout: {first_byte: 50ms}\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let failed = get(gateway.address, "/x/a").await;
    assert_eq!(
        (failed.status, &failed.json()["error"]),
        (502, &"UpstreamError".into())
    );
    let rejected = get_until_late(gateway.address, "/x/a").await;
    // The end of the wait is unknown, so the deadline passes.
    assert_eq!(rejected.status, 504);
    wait_until(|| upstream.count() == 1).await;
}

#[tokio::test]
async fn a_deadline_that_passes_upstream_is_504() {
    let (upstream, _word) = gated().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    for time in TIMEOUTS {
        let late = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", time)]).await;
        assert_eq!(
            (late.status, &late.json()["error"]),
            (504, &"DeadlineExceeded".into())
        );
        if late.header("x-tollgate-attempts") == "1" {
            wait_until(|| upstream.count() == 1).await;
            return;
        }
    }
    panic!("it was never sent");
}

/// A pooled connection that the upstream has closed is not an error of the call.
#[tokio::test]
async fn a_closed_connection_is_replaced() {
    let closing = |_: usize, _| async {
        let mut reply: Reply = ok();
        reply
            .headers_mut()
            .insert("connection", "close".parse().unwrap());
        reply
    };
    let upstream = Upstream::start(closing).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    for _ in 0..5 {
        let response = get(gateway.address, "/x/a").await;
        assert_eq!((response.status, response.header("connection")), (200, ""));
    }
    assert_eq!(upstream.count(), 5, "and nothing was sent twice");
}

/// The gateway shuts down gracefully: running calls are finished.
#[tokio::test]
async fn draining_finishes_running_calls_and_accepts_no_new_ones() {
    let (upstream, word) = gated().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut session = Session::open(gateway.address).await;
    assert_eq!(session.get("/ready", &[]).await.status, 200);
    let call = tokio::spawn(async move {
        read_response(session.send(request("GET", "/x/a", &[], "")).await).await
    });
    wait_until(|| upstream.count() == 1).await;
    let began = Clock::System.now().at;
    let drained = tokio::spawn(gateway.gateway.drain());
    word.notify_one();
    assert_eq!(within_timeout(call).await.unwrap().status, 200);
    within_timeout(drained).await.unwrap();
    assert!(
        Clock::System.now().at.since(began) < Span::from_secs(9),
        "not by the grace"
    );
    assert!(
        tokio::net::TcpStream::connect(gateway.address)
            .await
            .is_err()
    );
}
