//! Upgrades: one permit, then a tunnel until both sides close.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_core::time::Span;
use tollgate_ledger::Clock;
use tollgate_server::GatewayOptions;

use crate::client::{get, get_with, wait_until, within_timeout};
use crate::raw_upstream::{RawUpstream, read_head};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

const UPGRADE_REQUEST: &str = "GET /x/chat HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

const UPGRADE_RESPONSE: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// An upstream that agrees to every upgrade and says everything back; other calls are fine.
async fn echo() -> RawUpstream {
    RawUpstream::start(|_, mut stream| async move {
        let received = read_head(&mut stream).await;
        if !received.to_ascii_lowercase().contains("upgrade: websocket") {
            let fine = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine";
            stream.write_all(fine.as_bytes()).await.ok();
            return;
        }
        stream.write_all(UPGRADE_RESPONSE.as_bytes()).await.ok();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.ok();
        // The other side is done; a last word, then done too.
        to.write_all(b"bye").await.ok();
        to.shutdown().await.ok();
    })
    .await
}

/// A tunnel, with the head of the response that opened it.
async fn open(gateway: &TestGateway) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(UPGRADE_REQUEST.as_bytes()).await.unwrap();
    let head = within_timeout(read_head(&mut stream)).await;
    (stream, head)
}

async fn assert_echo(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut back = vec![0; text.len()];
    within_timeout(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, text.as_bytes());
}

async fn assert_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    within_timeout(stream.read_to_end(&mut rest)).await.ok();
}

#[tokio::test]
async fn an_upgrade_costs_one_permit_and_opens_a_tunnel() {
    let upstream = echo().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
    let (mut stream, head) = open(&gateway).await;
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    for line in [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-accept: s3ppl",
        "x-tollgate-source: upstream",
        "x-ratelimit-remaining: 0",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    assert_echo(&mut stream, "hello").await;
    assert_echo(&mut stream, &"x".repeat(200_000)).await;
    let rejected = get_with(gateway.address, "/x/a", &[("x-tollgate-timeout", "30s")]).await;
    assert_eq!(rejected.status, 429, "the one permit is spent");
}

/// Each side closes its own direction and still receives from the other.
#[tokio::test]
async fn a_tunnel_may_be_half_closed() {
    let upstream = echo().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let (mut stream, _) = open(&gateway).await;
    stream.write_all(b"last words").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    within_timeout(stream.read_to_string(&mut heard))
        .await
        .unwrap();
    assert_eq!(heard, "last wordsbye");
}

/// Bytes right after the request belong to the tunnel.
#[tokio::test]
async fn early_tunnel_bytes_are_neither_lost_nor_parsed_as_requests() {
    let upstream = echo().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let early = "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
    stream
        .write_all(format!("{UPGRADE_REQUEST}{early}").as_bytes())
        .await
        .unwrap();
    assert!(
        within_timeout(read_head(&mut stream))
            .await
            .contains(" 101 ")
    );
    let mut back = vec![0; early.len()];
    within_timeout(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, early.as_bytes());
}

/// The concurrency slot is held until the tunnel ends.
#[tokio::test]
async fn a_tunnel_holds_its_concurrency_slot_until_it_ends() {
    let upstream = echo().await;
    let rest = "concurrency: 1\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&gateway).await;
    assert_echo(&mut stream, "hello").await;
    let second = tokio::spawn(get(gateway.address, "/x/a"));
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.waiting() == 1).await;
    assert_echo(&mut stream, "still here").await;
    assert_eq!(active.waiting(), 1);
    stream.shutdown().await.unwrap();
    assert_closed(&mut stream).await;
    assert_eq!(within_timeout(second).await.unwrap().status, 200);
}

#[tokio::test]
async fn an_upstream_that_declines_an_upgrade_gives_a_normal_response() {
    let response = "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno";
    let upstream = RawUpstream::replying(response).await;
    let gateway =
        TestGateway::start(&[file(upstream.address, "concurrency: 1\nlimits: [100/1s]")]).await;
    let (mut stream, head) = open(&gateway).await;
    assert!(head.starts_with("HTTP/1.1 426"), "{head}");
    let mut body = [0; 2];
    within_timeout(stream.read_exact(&mut body)).await.unwrap();
    stream
        .write_all(b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n")
        .await
        .unwrap();
    assert!(
        within_timeout(self::read_head(&mut stream))
            .await
            .contains(" 200 "),
        "the connection continues"
    );
}

/// h2c would carry requests past every limit: it is not forwarded.
#[tokio::test]
async fn an_upgrade_to_http_2_is_not_forwarded() {
    let upstream = echo().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let ask = UPGRADE_REQUEST.replace("websocket\r\n", "h2c\r\n").replace(
        "Upgrade\r\n",
        "Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n",
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    assert!(
        within_timeout(read_head(&mut stream))
            .await
            .contains(" 200 ")
    );
}

/// The client did not request it and cannot use the protocol.
#[tokio::test]
async fn an_unrequested_upgrade_is_502() {
    let upstream = RawUpstream::replying(UPGRADE_RESPONSE).await;
    let rest = "limits: [100/1s]\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!(
        (response.status, &response.json()["error"]),
        (502, &"UpstreamError".into())
    );
}

#[tokio::test]
async fn an_idle_tunnel_is_closed() {
    let upstream = echo().await;
    let rest = "concurrency: 1\ntimeout: {tunnel: 3s}\nlate_arrival: 50ms\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&gateway).await;
    assert_echo(&mut stream, "hello").await;
    assert_closed(&mut stream).await;
    assert_eq!(
        get(gateway.address, "/x/a").await.status,
        200,
        "its slot is free"
    );
}

/// On shutdown tunnels get the grace period, then both sides are closed.
#[tokio::test]
async fn draining_closes_tunnels_after_the_grace_period() {
    let upstream = echo().await;
    let options = GatewayOptions {
        grace: Span::from_millis(800),
        ..GatewayOptions::default()
    };
    let files = [file(upstream.address, "limits: [100/1s]")];
    let gateway = TestGateway::start_with_gateway(&files, options).await;
    let (mut stream, _) = open(&gateway).await;
    assert_echo(&mut stream, "hello").await;
    let began = Clock::System.now().at;
    let drained = tokio::spawn(gateway.gateway.drain());
    assert_echo(&mut stream, "in the grace").await;
    assert_closed(&mut stream).await;
    within_timeout(drained).await.unwrap();
    assert!(Clock::System.now().at.since(began) >= Span::from_millis(800));
}

/// A client disconnect closes the upstream's side too.
#[tokio::test]
async fn a_client_disconnect_ends_its_tunnel() {
    let upstream = echo().await;
    let rest = "concurrency: 1\nlate_arrival: 50ms\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&gateway).await;
    assert_echo(&mut stream, "hello").await;
    crate::raw_upstream::reset(stream);
    assert_eq!(
        within_timeout(get(gateway.address, "/x/a")).await.status,
        200
    );
}

/// An upgrade request is not served from the cache.
#[tokio::test]
async fn an_upgrade_is_not_served_from_the_cache() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "limits: [100/1s]\ncache: {mode: ttl, ttl: 1h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for _ in 0..2 {
        assert_eq!(get(gateway.address, "/x/chat").await.status, 200);
    }
    assert_eq!(upstream.count(), 1, "it is cached");
    let (_stream, head) = open(&gateway).await;
    assert!(head.contains("x-tollgate-source: upstream"), "{head}");
    assert_eq!(upstream.count(), 2);
}

/// A text frame, as the echo sends it back.
const FRAME: &[u8] = b"\x81\x05hello";

async fn echo_frame(stream: &mut TcpStream, part: &[u8]) {
    stream.write_all(part).await.unwrap();
    let mut back = vec![0; part.len()];
    within_timeout(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, part);
}

async fn rest_of(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    within_timeout(stream.read_to_end(&mut rest)).await.unwrap();
    rest
}

/// A close frame of a server: going away.
fn is_close(rest: &[u8]) -> bool {
    matches!(rest, [0x88, length, 0x03, 0xe9, ..] if usize::from(*length) <= rest.len() - 2)
}

/// `timeout.idle` is for bodies: a WebSocket that is quiet for longer stays open.
#[tokio::test]
async fn a_quiet_tunnel_is_not_cut_by_the_idle_timeout_of_bodies() {
    let upstream = echo().await;
    let rest = "timeout: {idle: 200ms}\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&gateway).await;
    echo_frame(&mut stream, FRAME).await;
    crate::client::pause(1_000).await;
    echo_frame(&mut stream, FRAME).await;
}

/// Both sides of a WebSocket learn why it ends.
#[tokio::test]
async fn a_websocket_that_the_gateway_ends_gets_a_close_frame() {
    let upstream = echo().await;
    let rest = "timeout: {tunnel: 3s}\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&gateway).await;
    echo_frame(&mut stream, FRAME).await;
    let rest = rest_of(&mut stream).await;
    assert!(is_close(&rest), "{rest:?}");

    let options = GatewayOptions {
        grace: Span::from_millis(300),
        ..GatewayOptions::default()
    };
    let files = [file(upstream.address, "limits: [100/1s]")];
    let gateway = TestGateway::start_with_gateway(&files, options).await;
    let (mut stream, _) = open(&gateway).await;
    echo_frame(&mut stream, FRAME).await;
    let drained = tokio::spawn(gateway.gateway.drain());
    let rest = rest_of(&mut stream).await;
    assert!(is_close(&rest), "{rest:?}");
    within_timeout(drained).await.unwrap();
}

/// In the middle of a frame a close frame would be taken for a part of it.
#[tokio::test]
async fn no_close_frame_is_sent_in_the_middle_of_another() {
    let upstream = echo().await;
    let rest = "timeout: {tunnel: 3s}\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&gateway).await;
    echo_frame(&mut stream, FRAME.get(..4).unwrap()).await;
    let mut rest = Vec::new();
    within_timeout(stream.read_to_end(&mut rest)).await.ok();
    assert_eq!(rest, b"");
}
