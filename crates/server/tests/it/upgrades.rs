//! Upgrades: one permit, then bytes both ways until both sides are done.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_core::time::Span;
use tollgate_ledger::Clock;
use tollgate_server::GatewayOptions;

use crate::client::{get, get_with, soon, until};
use crate::rawhost::{RawHost, head};
use crate::stand::{Stand, file};
use crate::upstream::{Upstream, ok};

const ASK: &str = "GET /x/chat HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// An upstream that agrees to every upgrade and says everything back; other calls are fine.
async fn echo() -> RawHost {
    RawHost::start(|_, mut stream| async move {
        let asked = head(&mut stream).await;
        if !asked.to_ascii_lowercase().contains("upgrade: websocket") {
            let fine = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine";
            stream.write_all(fine.as_bytes()).await.ok();
            return;
        }
        stream.write_all(AGREED.as_bytes()).await.ok();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.ok();
        // The other side is done; a last word, then done too.
        to.write_all(b"bye").await.ok();
        to.shutdown().await.ok();
    })
    .await
}

/// A tunnel, with the head of the answer that opened it.
async fn open(stand: &Stand) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    stream.write_all(ASK.as_bytes()).await.unwrap();
    let head = soon(head(&mut stream)).await;
    (stream, head)
}

async fn says_back(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut back = vec![0; text.len()];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, text.as_bytes());
}

async fn closes(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    soon(stream.read_to_end(&mut rest)).await.ok();
}

#[tokio::test]
async fn an_upgrade_costs_one_permit_and_then_bytes_go_both_ways() {
    let upstream = echo().await;
    let stand = Stand::open(&[file(upstream.address, "limits: [1/1h]")]).await;
    let (mut stream, head) = open(&stand).await;
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
    says_back(&mut stream, "hello").await;
    says_back(&mut stream, &"x".repeat(200_000)).await;
    let refused = get_with(stand.address, "/x/a", &[("x-tollgate-timeout", "30s")]).await;
    assert_eq!(refused.status, 429, "the one permit is spent");
}

/// Each side closes its own direction and still hears the other.
#[tokio::test]
async fn a_tunnel_may_be_half_closed() {
    let upstream = echo().await;
    let stand = Stand::open(&[file(upstream.address, "limits: [100/1s]")]).await;
    let (mut stream, _) = open(&stand).await;
    stream.write_all(b"last words").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    soon(stream.read_to_string(&mut heard)).await.unwrap();
    assert_eq!(heard, "last wordsbye");
}

/// Bytes that come right behind the request are the tunnel's.
#[tokio::test]
async fn bytes_that_come_early_are_not_lost_and_not_read_as_requests() {
    let upstream = echo().await;
    let stand = Stand::open(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    let early = "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
    stream
        .write_all(format!("{ASK}{early}").as_bytes())
        .await
        .unwrap();
    assert!(soon(head(&mut stream)).await.contains(" 101 "));
    let mut back = vec![0; early.len()];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, early.as_bytes());
}

/// The place among the calls at a time is held until the tunnel ends.
#[tokio::test]
async fn a_tunnel_holds_its_place_until_it_ends() {
    let upstream = echo().await;
    let rest = "concurrency: 1\nlimits: [100/1s]";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&stand).await;
    says_back(&mut stream, "hello").await;
    let second = tokio::spawn(get(stand.address, "/x/a"));
    let live = stand.shop.named("x").unwrap();
    until(|| live.waiting() == 1).await;
    says_back(&mut stream, "still here").await;
    assert_eq!(live.waiting(), 1);
    stream.shutdown().await.unwrap();
    closes(&mut stream).await;
    assert_eq!(soon(second).await.unwrap().status, 200);
}

#[tokio::test]
async fn an_upstream_that_does_not_agree_gives_an_ordinary_answer() {
    let answer = "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno";
    let upstream = RawHost::saying(answer).await;
    let stand = Stand::open(&[file(upstream.address, "concurrency: 1\nlimits: [100/1s]")]).await;
    let (mut stream, head) = open(&stand).await;
    assert!(head.starts_with("HTTP/1.1 426"), "{head}");
    let mut body = [0; 2];
    soon(stream.read_exact(&mut body)).await.unwrap();
    stream
        .write_all(b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n")
        .await
        .unwrap();
    assert!(
        soon(self::head(&mut stream)).await.contains(" 200 "),
        "the connection goes on"
    );
}

/// H2c would carry requests past every limit: it is not passed on.
#[tokio::test]
async fn an_upgrade_to_http_2_is_not_passed_on() {
    let upstream = echo().await;
    let stand = Stand::open(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    let ask = ASK.replace("websocket\r\n", "h2c\r\n").replace(
        "Upgrade\r\n",
        "Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n",
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    assert!(soon(head(&mut stream)).await.contains(" 200 "));
}

/// Nobody asked, so nobody could speak what follows.
#[tokio::test]
async fn an_upgrade_that_nobody_asked_for_is_502() {
    let upstream = RawHost::saying(AGREED).await;
    let rest = "limits: [100/1s]\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    let answer = get(stand.address, "/x/a").await;
    assert_eq!(
        (answer.status, &answer.json()["error"]),
        (502, &"UpstreamError".into())
    );
}

#[tokio::test]
async fn a_tunnel_in_which_nothing_moves_is_closed() {
    let upstream = echo().await;
    let rest = "concurrency: 1\ntimeout: {idle: 800ms}\nlate_arrival: 50ms\nlimits: [100/1s]";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&stand).await;
    says_back(&mut stream, "hello").await;
    closes(&mut stream).await;
    assert_eq!(
        get(stand.address, "/x/a").await.status,
        200,
        "its place is free"
    );
}

/// The gateway ends: tunnels get the grace, then both sides are closed.
#[tokio::test]
async fn draining_closes_tunnels_after_the_grace() {
    let upstream = echo().await;
    let options = GatewayOptions {
        grace: Span::from_millis(800),
        ..GatewayOptions::default()
    };
    let files = [file(upstream.address, "limits: [100/1s]")];
    let stand = Stand::with_gateway(&files, options).await;
    let (mut stream, _) = open(&stand).await;
    says_back(&mut stream, "hello").await;
    let began = Clock::System.now().at;
    let drained = tokio::spawn(stand.gateway.drain());
    says_back(&mut stream, "in the grace").await;
    closes(&mut stream).await;
    soon(drained).await.unwrap();
    assert!(Clock::System.now().at.since(began) >= Span::from_millis(800));
}

/// A client that goes away ends the upstream's side too.
#[tokio::test]
async fn a_client_that_breaks_off_ends_its_tunnel() {
    let upstream = echo().await;
    let rest = "concurrency: 1\nlate_arrival: 50ms\nlimits: [100/1s]";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    let (mut stream, _) = open(&stand).await;
    says_back(&mut stream, "hello").await;
    crate::rawhost::reset(stream);
    assert_eq!(soon(get(stand.address, "/x/a")).await.status, 200);
}

/// Whoever wants to speak another protocol is not answered with what was kept of the plain one.
#[tokio::test]
async fn an_upgrade_is_not_answered_from_the_cache() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "limits: [100/1s]\ncache: {mode: ttl, ttl: 1h}";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    for _ in 0..2 {
        assert_eq!(get(stand.address, "/x/chat").await.status, 200);
    }
    assert_eq!(upstream.count(), 1, "it is kept");
    let (_stream, head) = open(&stand).await;
    assert!(head.contains("x-tollgate-source: upstream"), "{head}");
    assert_eq!(upstream.count(), 2);
}
