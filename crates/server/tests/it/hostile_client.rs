//! Clients that break the protocol, send slowly, flood or disconnect (R-C9, R-C10, R-E1 to R-E3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tollgate_server::GatewayOptions;

use crate::client::{Session, get, get_with, pause, raw, request, wait_until, within_timeout};
use crate::raw_upstream::{RawUpstream, read_head};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

async fn fine() -> Upstream {
    Upstream::start(|_, _| async { ok() }).await
}

/// A request with these lines in its head, and another one hidden behind it.
fn smuggled(lines: &str) -> String {
    format!(
        "POST /x/a HTTP/1.1\r\nHost: g\r\n{lines}\r\n\r\n0\r\n\r\nGET /x/smuggled HTTP/1.1\r\nHost: g\r\n\r\n"
    )
}

/// R-E2: requests that two servers parse differently are 400, close the connection, and are not
/// forwarded.
#[tokio::test]
async fn smuggling_attempts_are_400_and_close_the_connection() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    for lines in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "content-length: 4\r\nTRANSFER-ENCODING: chunked",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4\r\nContent-Length: 4",
        "Content-Length: 4, 4",
        "Content-Length: +4",
        "Content-Length: -4",
        "Content-Length: 0x4",
        "Content-Length: 4a",
        "Content-Length: ",
        "Content-Length: 99999999999999999999",
        "Content-Length : 4",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunked;x=y",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "X: y\r\n Transfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
        "Host: two",
        "X : y",
        "X\0: y",
    ] {
        let answer = raw(gateway.address, &smuggled(lines)).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{lines:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{lines:?}: {answer}");
    }
    let old = smuggled("Transfer-Encoding: chunked").replace(
        "HTTP/1.1\r\nHost: g\r\nTransfer",
        "HTTP/1.0\r\nHost: g\r\nTransfer",
    );
    assert!(
        !raw(gateway.address, &old).await.contains(" 200 "),
        "chunks in HTTP/1.0"
    );
    assert_eq!(upstream.count(), 0);
}

/// R-E2: a chunked request whose end another server may see elsewhere is served, and nothing may follow it.
#[tokio::test]
async fn nothing_follows_odd_chunks_on_their_connection() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let odd = smuggled("Transfer-Encoding: chunked").replacen("0\r\n\r\n", "0;odd\r\n\r\n", 1);
    let answer = raw(gateway.address, &odd).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    let received = upstream.requests();
    assert_eq!((received.len(), received[0].target.as_str()), (1, "/a"));
    assert!(!received[0].headers.contains_key("transfer-encoding"));
}

/// The same request in pieces: the ambiguity is found however the bytes are split.
#[tokio::test]
async fn a_smuggling_attempt_in_pieces_after_a_valid_request_is_400() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let good = "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\n\r\nbody";
    let bytes = format!(
        "{good}{}",
        smuggled("Transfer-Encoding: chunked\r\nContent-Length: 4")
    );
    for piece in bytes.as_bytes().chunks(7) {
        if stream.write_all(piece).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(
        within_timeout(read_head(&mut stream))
            .await
            .starts_with("HTTP/1.1 200")
    );
    let mut rest = Vec::new();
    within_timeout(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest))
        .await
        .ok();
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(
        rest.contains("HTTP/1.1 400") && rest.contains("\"BadRequest\""),
        "{rest}"
    );
    let is_signed = rest.contains("\r\nx-tollgate-id: ") && rest.contains("\"id\":");
    assert!(is_signed, "every own response has an id: {rest}");
    assert_eq!(upstream.count(), 1);
}

/// A body longer than it was declared is the next request, and a bad one.
#[tokio::test]
async fn a_body_larger_than_declared_is_not_forwarded() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let bytes = "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\n\r\nbody and more\r\n\r\n";
    let responses = raw(gateway.address, bytes).await;
    assert!(
        responses.contains("HTTP/1.1 200") && responses.contains("HTTP/1.1 400"),
        "{responses}"
    );
    assert_eq!(upstream.requests()[0].body, "body");
    assert_eq!(upstream.count(), 1);
}

/// A client that disconnects before its request is complete costs nothing.
#[tokio::test]
async fn a_client_disconnect_in_head_or_body_costs_no_permit() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
    for part in [
        "",
        "POST /x/a HT",
        "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 9\r\n\r\n",
        "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 9\r\n\r\nbody",
        "POST /x/a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n",
    ] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(part.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        within_timeout(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest))
            .await
            .ok();
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(
        get(gateway.address, "/x/a").await.status,
        200,
        "the one permit is there"
    );
}

/// A client that disconnects during a response frees its slot.
#[tokio::test]
async fn a_client_disconnect_during_a_response_frees_its_slot() {
    let upstream = RawUpstream::start(|_, mut stream| async move {
        while read_head(&mut stream).await.contains("/long") {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour")
                .await
                .ok();
            std::future::pending::<()>().await;
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .ok();
    })
    .await;
    let rest = "concurrency: 1\nlate_arrival: 50ms\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let mut session = Session::open(gateway.address).await;
    let response = session.send(request("GET", "/x/long", &[], "")).await;
    drop((response, session));
    assert_eq!(
        within_timeout(get(gateway.address, "/x/short"))
            .await
            .status,
        200
    );
}

/// R-C9: a stopped reader slows its upstream and does not fill our memory.
#[tokio::test]
async fn a_slow_reader_applies_back_pressure_to_the_upstream() {
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let upstream = RawUpstream::start(move |_, mut stream| {
        let count = count.clone();
        async move {
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                .await
                .ok();
            let piece = vec![b'x'; 16_384];
            while stream.write_all(&piece).await.is_ok() {
                count.fetch_add(16_384, Ordering::Relaxed);
            }
        }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream
        .write_all(b"GET /x/a HTTP/1.1\r\nHost: g\r\n\r\n")
        .await
        .unwrap();
    read_head(&mut stream).await;
    wait_until(|| sent.load(Ordering::Relaxed) > 0).await;
    // Until the flow has come to a stop: the kernel's buffers are full.
    let mut before = u64::MAX;
    while before != sent.load(Ordering::Relaxed) {
        before = sent.load(Ordering::Relaxed);
        pause(100).await;
    }
    assert!(before > 0 && before < 64_000_000, "{before}");
}

/// R-C10: a connection above the cap is rejected at once, and open ones continue.
#[tokio::test]
async fn a_connection_above_the_cap_is_rejected_in_json() {
    let upstream = fine().await;
    let options = GatewayOptions {
        connections_max: 2,
        ..GatewayOptions::default()
    };
    let files = [file(upstream.address, "limits: [100/1s]")];
    let gateway = TestGateway::start_with_gateway(&files, options).await;
    let mut one = Session::open(gateway.address).await;
    let mut two = Session::open(gateway.address).await;
    assert_eq!(one.get("/x/a", &[]).await.status, 200);
    assert_eq!(two.get("/x/a", &[]).await.status, 200);
    let rejected = get(gateway.address, "/x/a").await;
    assert_eq!(
        (rejected.status, &rejected.json()["error"]),
        (503, &"QueueFull".into())
    );
    let id = rejected.header("x-tollgate-id");
    assert!(
        !id.is_empty() && rejected.json()["id"] == id,
        "{rejected:?}"
    );
    assert_eq!(
        (
            rejected.header("retry-after"),
            rejected.header("x-tollgate-source")
        ),
        ("1", "tollgate")
    );
    assert_eq!(one.get("/x/a", &[]).await.status, 200);
    drop(two);
    let address = gateway.address;
    until_served(address).await;
}

async fn until_served(address: std::net::SocketAddr) {
    within_timeout(async {
        while get(address, "/health").await.status != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// R-E3: no spelling of a host bypasses its provider's limit.
#[tokio::test]
async fn h4_no_spelling_of_a_host_bypasses_its_limit() {
    let upstream = fine().await;
    let rest = "domains: [api.example.org, xn--bcher-kva.example]\nlimits: [1/1h]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    assert_eq!(
        get(gateway.address, "/https://api.example.org/a")
            .await
            .status,
        200
    );
    for url in [
        "/https://API.EXAMPLE.ORG/a",
        "/https://api.example.org./a",
        "/https://api.example.org:443/a",
        "/https://api.example.org:8443/a",
        "/http://api.example.org/a",
        "/https:/api.example.org/a",
        "/https://eu.api.example.org/a",
        "/https://user@api.example.org/a",
        "/https://user:key@api.example.org/a",
        "/https://%61pi.example.org/a",
        "/https://api.example.org%2e/a",
        "/https://api.example.org../a",
        "/https://api.example.org:/a",
        "/https://api.example.org:+443/a",
        "/https:///api.example.org/a",
        "/https://api%2eexample.org/a",
        "/https://xn--bcher-kva.example/a",
        "/https://XN--BCHER-KVA.example/a",
        "/https://b%C3%BCcher.example/a",
    ] {
        let answer = get_with(gateway.address, url, &[("x-tollgate-timeout", "30s")]).await;
        assert!([400, 429].contains(&answer.status), "{url}: {answer:?}");
    }
    assert_eq!(upstream.count(), 1);
}

/// A waiting call is dropped with its connection, at once and at every priority.
#[tokio::test]
async fn a_disconnected_waiting_call_is_removed_from_the_queue() {
    let upstream = fine().await;
    let gateway = TestGateway::start(&[file(
        upstream.address,
        "dedup: off\nlimits: [1/1h]\nqueue: {timeout: 2h}",
    )])
    .await;
    get(gateway.address, "/x/a").await;
    let active = gateway.registry.named("x").unwrap();
    let waiting: Vec<_> = ["high", "normal", "low"]
        .map(|priority| {
            tokio::spawn(async move {
                get_with(
                    gateway.address,
                    "/x/a",
                    &[
                        ("x-tollgate-priority", priority),
                        ("x-tollgate-timeout", "2h"),
                    ],
                )
                .await
            })
        })
        .into();
    wait_until(|| active.waiting() == 3).await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    wait_until(|| active.waiting() == 0).await;
    assert_eq!(upstream.count(), 1);
}
