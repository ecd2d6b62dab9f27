//! Callers that take their time, over real sockets with short times: slow heads, slow bodies,
//! readers that stand still, floods from one address; and what is said to requests that cannot be
//! read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_core::time::Span;
use tollgate_server::{ClientTimeouts, GatewayOptions};

use crate::client::{Session, get, pause, raw, wait_until, within_timeout};
use crate::raw_upstream::{RawUpstream, read_head};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

/// A gateway with this little patience.
async fn start_with_timeouts(files: &[String], patience: ClientTimeouts) -> TestGateway {
    let options = GatewayOptions {
        timeouts: patience,
        ..GatewayOptions::default()
    };
    TestGateway::start_with_gateway(files, options).await
}

/// Everything that still comes on a connection until it ends.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    within_timeout(stream.read_to_end(&mut bytes)).await.ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The JSON of an answer as bytes.
fn json(response: &str) -> Value {
    let (_, body) = response.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"))
}

/// R-E1: a head that dribbles is cut after its time, however many bytes still come, and told why;
/// nobody else notices.
#[tokio::test]
async fn a_slow_head_is_408_and_closed() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let files = [file(upstream.address, "limits: [100/1s]")];
    let patience = ClientTimeouts {
        head: Span::from_secs(1),
        ..ClientTimeouts::default()
    };
    let gateway = start_with_timeouts(&files, patience).await;
    let (mut read, mut write) = TcpStream::connect(gateway.address)
        .await
        .unwrap()
        .into_split();
    let dribble = tokio::spawn(async move {
        for byte in b"GET /x/a HTTP/1.1\r\nX-Long: "
            .iter()
            .chain([b'a'; 400].iter())
        {
            if write.write_all(&[*byte]).await.is_err() {
                return;
            }
            pause(20).await;
        }
    });
    assert_eq!(get(gateway.address, "/x/b").await.status, 200);
    let mut bytes = Vec::new();
    within_timeout(read.read_to_end(&mut bytes)).await.ok();
    dribble.abort();
    let response = String::from_utf8_lossy(&bytes).into_owned();
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    assert_eq!(json(&response)["error"], "BadRequest");
    assert_eq!(upstream.count(), 1);
}

/// R-E1: a body that stands still gives its connection and its place at the provider back; one that
/// flows slowly is not cut.
#[tokio::test]
async fn a_stalled_body_is_cut_and_a_slow_one_is_not() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest_of_file = "concurrency: 1\nlate_arrival: 50ms\nlimits: [100/1s]";
    let patience = ClientTimeouts {
        body: Span::from_secs(1),
        ..ClientTimeouts::default()
    };
    let gateway = start_with_timeouts(&[file(upstream.address, rest_of_file)], patience).await;
    let begin = "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 8\r\nConnection: close\r\n\r\n";
    let mut slow = TcpStream::connect(gateway.address).await.unwrap();
    slow.write_all(begin.as_bytes()).await.unwrap();
    for byte in *b"eight by" {
        pause(150).await; // longer than its patience in all
        slow.write_all(&[byte]).await.unwrap();
    }
    assert!(read_to_end(&mut slow).await.starts_with("HTTP/1.1 200"));
    let mut manual = TcpStream::connect(gateway.address).await.unwrap();
    manual.write_all(begin.as_bytes()).await.unwrap();
    manual.write_all(b"four").await.unwrap();
    let response = read_to_end(&mut manual).await;
    assert!(!response.starts_with("HTTP/1.1 2"), "{response}");
    assert_eq!(
        within_timeout(get(gateway.address, "/x/b")).await.status,
        200
    );
}

/// R-E1: the same for a body in chunks; and one that has come whole is waited with for its answer,
/// however long that takes.
#[tokio::test]
async fn a_stalled_chunked_body_is_cut_and_a_slow_one_is_not() {
    let upstream = Upstream::start(|_, received| async move {
        if received.target == "/long" {
            pause(1_500).await;
        }
        ok()
    })
    .await;
    let rest_of_file = "concurrency: 1\nlate_arrival: 50ms\nlimits: [100/1s]";
    let patience = ClientTimeouts {
        body: Span::from_secs(1),
        ..ClientTimeouts::default()
    };
    let gateway = start_with_timeouts(&[file(upstream.address, rest_of_file)], patience).await;
    let begin = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\
             Connection: close\r\n\r\n"
        )
    };
    let mut slow = TcpStream::connect(gateway.address).await.unwrap();
    slow.write_all(begin("/x/long").as_bytes()).await.unwrap();
    for byte in *b"4\r\nfour\r\n" {
        pause(120).await; // longer than its patience in all
        slow.write_all(&[byte]).await.unwrap();
    }
    slow.write_all(b"0\r\n\r\n").await.unwrap();
    let response = read_to_end(&mut slow).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let mut manual = TcpStream::connect(gateway.address).await.unwrap();
    manual.write_all(begin("/x/a").as_bytes()).await.unwrap();
    manual.write_all(b"9\r\nfour").await.unwrap();
    let response = read_to_end(&mut manual).await;
    assert!(!response.starts_with("HTTP/1.1 2"), "{response}");
    assert_eq!(
        within_timeout(get(gateway.address, "/x/b")).await.status,
        200
    );
}

/// R-C9: a client that reads nothing is let go after its time, which frees the upstream too.
#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    let gone = Arc::new(AtomicUsize::new(0));
    let count = gone.clone();
    let upstream = RawUpstream::start(move |_, mut stream| {
        let count = count.clone();
        async move {
            read_head(&mut stream).await;
            let begin = b"HTTP/1.1 200 OK\r\nContent-Length: 4000000000\r\n\r\n";
            stream.write_all(begin).await.ok();
            let piece = vec![b'x'; 65_536];
            while stream.write_all(&piece).await.is_ok() {}
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let patience = ClientTimeouts {
        write: Span::from_millis(300),
        ..ClientTimeouts::default()
    };
    let gateway =
        start_with_timeouts(&[file(upstream.address, "limits: [100/1s]")], patience).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let ask = b"GET /x/a HTTP/1.1\r\nHost: g\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    within_timeout(wait_until(|| gone.load(Ordering::SeqCst) == 1)).await;
    drop(stream);
}

/// R-E1: one address has its part of the connections, and whoever comes on top is told so.
#[tokio::test]
async fn one_address_gets_at_most_its_share_of_the_connections() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let options = GatewayOptions {
        connections_per_address_max: 3,
        counts_this_host: true,
        ..GatewayOptions::default()
    };
    let files = [file(upstream.address, "limits: [100/1s]")];
    let gateway = TestGateway::start_with_gateway(&files, options).await;
    let mut inside = Vec::new();
    for _ in 0..3 {
        let mut session = Session::open(gateway.address).await;
        assert_eq!(session.get("/health", &[]).await.status, 200);
        inside.push(session);
    }
    let rejected = get(gateway.address, "/x/a").await;
    assert_eq!(
        (rejected.status, &rejected.json()["error"]),
        (503, &"QueueFull".into())
    );
    inside.pop();
    within_timeout(async { while get(gateway.address, "/x/a").await.status != 200 {} }).await;
    assert_eq!(inside[0].get("/health", &[]).await.status, 200);
}

/// What cannot be read at all is refused in JSON too, first and behind a good request.
#[tokio::test]
async fn a_request_the_parser_rejects_gets_a_json_error() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let many: String = (0..120).map(|n| format!("X-{n}: y\r\n")).collect();
    let long = "x".repeat(70_000);
    let unreadable = [
        (400, "GET /x/a HTTP/1.1\r\nX : y\r\n\r\n".to_owned()),
        (400, "\u{16}\u{3}\u{1}\0\u{1}\r\n\r\n".to_owned()),
        (400, "GET /x/a HTTP/9.9\r\n\r\n".to_owned()),
        (431, format!("GET /x/a HTTP/1.1\r\n{many}\r\n")),
        (431, format!("GET /x/a HTTP/1.1\r\nX: {long}\r\n\r\n")),
    ];
    for (status, bytes) in unreadable {
        let response = raw(gateway.address, &bytes).await;
        let begin: String = bytes.chars().take(40).collect();
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status} ")),
            "{begin:?}: {response}"
        );
        assert_eq!(json(&response)["error"], "BadRequest", "{begin:?}");
    }
    let good = "GET /x/a HTTP/1.1\r\nHost: g\r\n\r\n";
    let response = raw(
        gateway.address,
        &format!("{good}GET /x/b HTTP/1.1\r\nX : y\r\n\r\n"),
    )
    .await;
    let (first, second) = response
        .split_once("fine")
        .expect("the good one is answered");
    assert!(first.starts_with("HTTP/1.1 200"), "{response}");
    assert!(second.starts_with("HTTP/1.1 400"), "{response}");
    assert_eq!(json(second)["error"], "BadRequest");
}

/// A provider may say whatever it likes: bytes that look like the parser's own refusal reach the
/// caller as they are.
#[tokio::test]
async fn an_upstream_response_that_looks_like_a_parser_error_is_forwarded() {
    let body = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let upstream =
        Upstream::start(move |_, _| async move { crate::upstream::reply(200, &[], body) }).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut session = Session::open(gateway.address).await;
    for path in ["/x/a", "/x/b"] {
        assert_eq!(session.get(path, &[]).await.body, body);
    }
    let last = raw(
        gateway.address,
        "GET /x/c HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert!(last.ends_with(body), "{last}");
}

/// A connection that lies idle after an answer that took longer than it may lie idle: its place is
/// given back all the same.
#[tokio::test]
async fn a_connection_idle_after_a_slow_response_is_closed() {
    let upstream = Upstream::start(|_, _| async {
        pause(500).await;
        ok()
    })
    .await;
    let files = [file(upstream.address, "limits: [100/1s]")];
    let patience = ClientTimeouts {
        idle: Span::from_millis(200),
        ..ClientTimeouts::default()
    };
    let gateway = start_with_timeouts(&files, patience).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let request = b"GET /x/a HTTP/1.1\r\nHost: g\r\n\r\n";
    stream.write_all(request).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
    read_to_end(&mut stream).await;
}
