//! Clients that disconnect, connections that break, gateways that shut down: no call is lost, and
//! only sent calls are counted.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tollgate_core::time::Span;
use tollgate_ledger::Clock;
use tollgate_server::{Admin, AdminOptions, Gateway, GatewayOptions, ListenerKind};

use crate::client::{
    Session, TIMEOUTS, get, get_until_late, get_with, read_response, request, wait_until,
    within_timeout,
};
use crate::raw_upstream::read_head;
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Reply, Upstream, ok};
use tollgate_sim::test_host::free_address;

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
    // It may still arrive, but the end of the wait is known: no call waits for it in vain.
    assert_eq!((rejected.status, upstream.count()), (429, 1));
}

#[tokio::test]
async fn a_refused_upstream_connection_costs_no_permit() {
    let address = free_address();
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
    // It may still arrive, but the end of the wait is known: no call waits for it in vain.
    assert_eq!(rejected.status, 429);
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

/// Every call that waits at the end of the grace period gets a rejection, and the log has it.
/// Before, its connection was closed without a byte.
#[tokio::test]
async fn calls_that_wait_at_the_end_of_a_shutdown_get_503() {
    let (upstream, _word) = gated().await;
    let options = GatewayOptions {
        grace: Span::from_millis(300),
        ..GatewayOptions::default()
    };
    let files = [file(upstream.address, "limits: [100/1s]\nconcurrency: 1")];
    let gateway = TestGateway::start_with_gateway(&files, options).await;
    let active = gateway.registry.named("x").unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        let address = gateway.address;
        calls.spawn(async move { get(address, &format!("/x/{number}")).await });
    }
    wait_until(|| upstream.count() == 1 && active.waiting() == 19).await;
    within_timeout(gateway.gateway.drain()).await;
    let mut ids = Vec::new();
    while let Some(call) = within_timeout(calls.join_next()).await {
        let response = call.unwrap();
        assert_eq!(response.status, 503, "{}", response.body);
        assert_eq!(response.header("retry-after"), "2");
        assert_eq!(response.header("connection"), "close");
        assert_eq!(response.json()["provider"], "x");
        ids.push(response.header("x-tollgate-id").to_owned());
    }
    assert_eq!(ids.len(), 20);
    let log = crate::log::captured();
    for id in ids {
        let is_logged = |line: &str| line.contains("rejected") && line.contains(&id);
        assert!(log.lines().any(is_logged), "{id}");
    }
}

/// Requests that wait for a permit, or for tokens of a guard, get their 503 when the grace period is over,
/// on the admin address too and in the form of its replies. Before, their connections were closed without a
/// byte there, and the gateway's reply named no provider: it "no longer calls ``".
#[tokio::test]
async fn acquires_that_wait_at_the_end_of_a_shutdown_get_503() {
    let config = "guards: { one: { limit: 1, period: 1m, burst: 1, by: global } }
callers: { app: { token: canary-app-token } }
"; // tidy:canary
    let provider = "name: x\ndomain: api.example.org\nlimits: [100/1s]\nconcurrency: 1\n";
    let daemon = crate::guards::daemon("drain-acquires", config, provider).await;
    let grace = Span::from_millis(300);
    let free = "127.0.0.1:0".parse().unwrap();
    let options = AdminOptions {
        grace,
        ..AdminOptions::default()
    };
    let listener = TcpListener::bind(free).await.unwrap();
    let admin = Admin::serve(&daemon.daemon, listener, options).unwrap();
    let options = GatewayOptions {
        grace,
        decisions: Some(daemon.daemon.decisions().clone()),
        ..GatewayOptions::default()
    };
    let mut gateway = Gateway::new(daemon.daemon.registry().clone(), options);
    let address = gateway
        .listen(free, ListenerKind::All)
        .await
        .unwrap()
        .address;
    let of_provider = r#"{"provider": "x", "timeout": 50}"#;
    let of_guard = r#"{"guard": "one", "timeout": 100}"#;
    for taken in [of_provider, of_guard] {
        let granted = daemon.request("POST", "/v1/acquire", taken).await;
        assert_eq!(granted.status, 200, "{granted:?}");
    }
    let mut waiting = tokio::task::JoinSet::new();
    for body in [of_guard, of_provider] {
        let host = admin.address().to_string();
        let to_admin = ("x-tollgate-admin", "1");
        let to_gateway = ("authorization", "Bearer canary-app-token"); // tidy:canary
        for (address, path, header) in [
            (admin.address(), "/v1/acquire", to_admin),
            (address, "/-/v1/acquire", to_gateway),
        ] {
            let mut session = Session::open(address).await;
            let mut request = request("POST", path, &[header], body);
            let host = host.parse().unwrap();
            request.headers_mut().insert("host", host);
            waiting.spawn(async move { read_response(session.send(request).await).await });
        }
    }
    let active = daemon.daemon.registry().named("x").unwrap();
    wait_until(|| active.waiting() == 2).await;
    within_timeout(admin.drain_beside(gateway.drain())).await;
    for _ in 0..4 {
        let response = within_timeout(waiting.join_next()).await.unwrap().unwrap();
        let body = response.json();
        assert_eq!(response.status, 503, "{response:?}");
        assert_eq!(response.header("retry-after"), "2");
        assert_eq!(
            (&body["error"], &body["reason"], &body["retry_in"]),
            (&"ShuttingDown".into(), &"shutdown".into(), &2.into())
        );
        assert!(!response.body.contains("``"), "{}", response.body);
    }
    assert_eq!(active.waiting(), 0, "no permit was taken");
}

/// A request that has arrived before the shutdown is served, on whatever connection. Before, an
/// idle connection was closed with the request unread.
#[tokio::test]
async fn requests_that_arrived_before_a_shutdown_are_served() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut used = tokio::net::TcpStream::connect(gateway.address)
        .await
        .unwrap();
    let request = b"GET /x/a HTTP/1.1\r\nHost: g\r\n\r\n";
    used.write_all(request).await.unwrap();
    within_timeout(read_head(&mut used)).await;
    within_timeout(used.read_exact(&mut [0; 4])).await.unwrap();
    let fresh = tokio::net::TcpStream::connect(gateway.address)
        .await
        .unwrap();
    let mut streams = [used, fresh];
    // No task runs between these writes and the shutdown.
    for stream in &streams {
        assert_eq!(stream.try_write(request).unwrap(), request.len());
    }
    let drained = tokio::spawn(gateway.gateway.drain());
    for stream in &mut streams {
        let mut response = String::new();
        within_timeout(stream.read_to_string(&mut response))
            .await
            .unwrap();
        assert!(response.contains("HTTP/1.1 200"), "{response}");
        assert!(response.contains("connection: close"), "{response}");
    }
    within_timeout(drained).await.unwrap();
}
