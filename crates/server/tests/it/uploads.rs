//! Request bodies: large ones, slow ones, and their clients that leave.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::client::{Session, get_with, read_response, request, wait_until, within_timeout};
use crate::raw_upstream::read_head;
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok, reply};

/// An upload of 900 kB of which a third has been sent.
async fn unfinished(gateway: &TestGateway) -> TcpStream {
    unfinished_after(gateway, 300_000).await
}

/// An upload of 900 kB of which so much has been sent.
async fn unfinished_after(gateway: &TestGateway, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST /x/upload HTTP/1.1\r\nHost: g\r\nContent-Length: 900000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; sent]).await.unwrap();
    stream
}

/// Six uploads of a byte a second took all permits of a provider with five a second, and everybody
/// else got 504.
#[tokio::test]
async fn slow_uploads_hold_no_permits() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "limits: [5/1h]\nconcurrency: 5\nconnections: 5";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let mut uploads = Vec::new();
    for _ in 0..6 {
        uploads.push(unfinished(&gateway).await);
    }
    for number in 0..5 {
        let path = format!("/x/{number}");
        let quick = get_with(gateway.address, &path, &[("x-tollgate-timeout", "20s")]).await;
        assert_eq!(quick.status, 200, "{}", quick.body);
    }
    assert_eq!(upstream.count(), 5);
}

/// A large body arrives whole, and a retry sends all of it again.
#[tokio::test]
async fn a_large_upload_arrives_whole_and_can_be_retried() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(503, &[], "not now"),
            _ => ok(),
        }
    })
    .await;
    let rest = "limits: [99/1s]\nretry: {base: 1ms}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let body: String = ('a'..='w').cycle().take(3_000_000).collect();
    let mut session = Session::open(gateway.address).await;
    let put = request("PUT", "/x/a", &[], &body);
    let response = read_response(session.send(put).await).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let received = upstream.requests();
    assert_eq!(received.len(), 2);
    for one in received {
        assert!(one.body == body.as_bytes(), "{} bytes", one.body.len());
        assert_eq!(one.headers["content-length"], "3000000");
    }
}

/// Chunked and with `Expect: 100-continue`, as SDKs stream files.
#[tokio::test]
async fn a_streamed_upload_of_unknown_length_arrives_whole() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    for spool in ["64MiB", "512KiB"] {
        let rest = format!("limits: [99/1s]\nupload: {{spool: {spool}}}");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let head = "POST /x/a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let interim = within_timeout(read_head(&mut stream)).await;
        assert!(interim.contains(" 100 "), "{interim}");
        let chunk = format!("10000\r\n{}\r\n", "y".repeat(0x10000));
        for _ in 0..20 {
            stream.write_all(chunk.as_bytes()).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        let mut response = String::new();
        within_timeout(stream.read_to_string(&mut response))
            .await
            .unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        let received = upstream.requests();
        let length = received.last().unwrap().body.len();
        assert_eq!(length, 20 * 0x10000, "{spool}");
    }
}

/// A client that hangs up after a large upload leaves the queue at once.
#[tokio::test]
async fn a_large_upload_whose_client_leaves_is_removed_from_the_queue() {
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
    let rest = "limits: [99/1s]\nconcurrency: 1";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let address = gateway.address;
    let first = tokio::spawn(async move { get_with(address, "/x/first", &[]).await.status });
    wait_until(|| upstream.count() == 1).await;
    let mut stream = unfinished(&gateway).await;
    stream.write_all(&[b'x'; 600_000]).await.unwrap();
    wait_until(|| active.waiting() == 1).await;
    drop(stream);
    wait_until(|| active.waiting() == 0).await;
    word.notify_one();
    assert_eq!(within_timeout(first).await.unwrap(), 200);
    assert_eq!(upstream.count(), 1);
}

/// The same if its body is larger than what is read before the permit: nobody read the rest of it, so nobody
/// saw the end of the connection behind it.
#[tokio::test]
async fn an_upload_larger_than_its_spool_whose_client_leaves_is_removed_from_the_queue() {
    let upstream = Upstream::start(|_, _| std::future::pending()).await;
    let rest = "limits: [99/1s]\nconcurrency: 1\nupload: {spool: 64KiB}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let address = gateway.address;
    let first = tokio::spawn(async move { get_with(address, "/x/first", &[]).await.status });
    wait_until(|| upstream.count() == 1).await;
    // What is not read fits into the buffers of the kernel, with the end behind it.
    let stream = unfinished_after(&gateway, 100_000).await;
    wait_until(|| active.waiting() == 1).await;
    drop(stream);
    wait_until(|| active.waiting() == 0).await;
    assert_eq!(upstream.count(), 1);
    first.abort();
}

/// A caller whose time was over before its body had arrived got 400, as if the request were invalid.
#[tokio::test]
async fn a_body_that_does_not_arrive_within_the_callers_time_gets_408() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [9/1s]")]).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let head =
        "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 9\r\nX-Tollgate-Timeout: 50ms\r\n\r\nabc";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    let read = stream.read_to_string(&mut response);
    within_timeout(read).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    assert!(response.contains("RequestTimeout"), "{response}");
    assert_eq!(upstream.count(), 0);
}

/// Every request with chunks ended its connection.
#[tokio::test]
async fn a_connection_goes_on_after_plain_chunks_only() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [99/1s]")]).await;
    let chunked = "POST /x/a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n";
    let last = "GET /x/b HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n";
    for (chunks, expected) in [
        ("4\r\nfour\r\n0\r\n\r\n", 2),
        ("4;odd=1\r\nfour\r\n0\r\n\r\n", 1),
        ("4\r\nfour\r\n0\r\nX-Sum: 6\r\n\r\n", 1),
    ] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let text = format!("{chunked}{chunks}{last}");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut responses = String::new();
        let read = within_timeout(stream.read_to_string(&mut responses)).await;
        let count = responses.matches("HTTP/1.1 200").count();
        assert_eq!(count, expected, "{chunks:?}: {read:?}: {responses}");
        let closes = responses
            .to_ascii_lowercase()
            .matches("connection: close")
            .count();
        assert_eq!(closes, 1, "{responses}");
    }
}
