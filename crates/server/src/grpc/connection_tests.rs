//! A connection without a socket, in paused time.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2 as client;
use tokio::sync::watch;
use tollgate_ledger::{Clock, Ledger};

use super::*;
use crate::test_config;

/// A health watch needs no token and never ends: its connection kept its place for ever.
#[tokio::test(start_paused = true)]
async fn a_connection_with_nothing_but_a_health_watch_is_closed() {
    let ledger = Ledger::memory(Clock::Manual(test_config::clock()));
    let state = Arc::new(GrpcState {
        daemon: test_config::daemon(ledger, ""),
        token: Some(Secret::new("admin".to_owned())),
    });
    let table = ConnectionTable::new(1);
    let (near, far) = tokio::io::duplex(64 * 1_024);
    let (_sender, never) = watch::channel(false);
    let shutdown = ShutdownSignal::new(never.clone(), never);
    let peer = SocketAddr::from(([203, 0, 113, 7], 1));
    let place = table.open().unwrap();
    let serving = tokio::spawn(serve(far, state, peer, place, shutdown));
    let executor = TokioExecutor::new();
    let (mut sender, connection) = client::handshake(executor, TokioIo::new(near))
        .await
        .unwrap();
    tokio::spawn(connection);
    let watch = Request::post("http://x/grpc.health.v1.Health/Watch")
        .header(CONTENT_TYPE, "application/grpc")
        .body(Full::new(Bytes::from_static(&[0; FRAME_PREFIX])))
        .unwrap();
    let response = sender.send_request(watch).await.unwrap();
    let mut stream = response.into_body();
    assert!(stream.frame().await.unwrap().is_ok(), "it says how it is");
    let checks = u32::try_from(IDLE_CHECKS).unwrap() + 2;
    let bound = IDLE_CHECK * checks + CLOSE_TIMEOUT;
    let ended = tokio::time::timeout(bound, serving).await;
    assert!(
        ended.is_ok(),
        "the connection is closed although the watch goes on"
    );
}
