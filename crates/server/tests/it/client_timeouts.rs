//! Client timeouts over real sockets with short settings: slow heads, slow bodies, stalled readers,
//! floods from one address; and the errors for requests that do not parse.

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

/// A gateway with these timeouts.
async fn start_with_timeouts(files: &[String], timeouts: ClientTimeouts) -> TestGateway {
    let options = GatewayOptions {
        timeouts,
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

/// The JSON body of a raw response.
fn json(response: &str) -> Value {
    let (_, body) = response.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"))
}

/// R-E1: a slow head gets a 408 after its timeout, however many bytes follow; other clients are not
/// affected.
#[tokio::test]
async fn a_slow_head_is_408_and_closed() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let files = [file(upstream.address, "limits: [100/1s]")];
    let timeouts = ClientTimeouts {
        head: Span::from_secs(1),
        ..ClientTimeouts::default()
    };
    let gateway = start_with_timeouts(&files, timeouts).await;
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

/// R-E1: a stalled body releases its connection and its slot at the provider; a slow one is not
/// cut.
#[tokio::test]
async fn a_stalled_body_is_cut_and_a_slow_one_is_not() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest_of_file = "concurrency: 1\nlate_arrival: 50ms\nlimits: [100/1s]";
    let timeouts = ClientTimeouts {
        body: Span::from_secs(3),
        ..ClientTimeouts::default()
    };
    let gateway = start_with_timeouts(&[file(upstream.address, rest_of_file)], timeouts).await;
    let begin = "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 8\r\nConnection: close\r\n\r\n";
    let mut slow = TcpStream::connect(gateway.address).await.unwrap();
    slow.write_all(begin.as_bytes()).await.unwrap();
    for byte in *b"eight by" {
        pause(450).await; // longer than its timeout in total
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

/// R-E1: the same for a chunked body; after a complete body the response may take any time.
#[tokio::test]
async fn a_stalled_chunked_body_is_cut_and_a_slow_one_is_not() {
    let upstream = Upstream::start(|_, received| async move {
        if received.target == "/long" {
            pause(3_500).await;
        }
        ok()
    })
    .await;
    let rest_of_file = "concurrency: 1\nlate_arrival: 50ms\nlimits: [100/1s]";
    let timeouts = ClientTimeouts {
        body: Span::from_secs(3),
        ..ClientTimeouts::default()
    };
    let gateway = start_with_timeouts(&[file(upstream.address, rest_of_file)], timeouts).await;
    let begin = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\
             Connection: close\r\n\r\n"
        )
    };
    let mut slow = TcpStream::connect(gateway.address).await.unwrap();
    slow.write_all(begin("/x/long").as_bytes()).await.unwrap();
    for byte in *b"4\r\nfour\r\n" {
        pause(400).await; // longer than its timeout in total
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

/// R-C9: a client that reads nothing is disconnected after its timeout, which frees the upstream
/// too.
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
    let timeouts = ClientTimeouts {
        write: Span::from_millis(300),
        ..ClientTimeouts::default()
    };
    let gateway =
        start_with_timeouts(&[file(upstream.address, "limits: [100/1s]")], timeouts).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let ask = b"GET /x/a HTTP/1.1\r\nHost: g\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    within_timeout(wait_until(|| gone.load(Ordering::SeqCst) == 1)).await;
    drop(stream);
}

/// R-E1: one address gets its share of the connections, and further ones are rejected.
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

/// A request that does not parse is rejected in JSON too, as the first one and after a valid one.
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
        .expect("the valid one gets a response");
    assert!(first.starts_with("HTTP/1.1 200"), "{response}");
    assert!(second.starts_with("HTTP/1.1 400"), "{response}");
    assert_eq!(json(second)["error"], "BadRequest");
}

/// An upstream response that looks like the parser's own error reaches the caller unchanged.
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

/// A connection that is idle after a response slower than the idle timeout is closed all the same.
#[tokio::test]
async fn a_connection_idle_after_a_slow_response_is_closed() {
    let upstream = Upstream::start(|_, _| async {
        pause(500).await;
        ok()
    })
    .await;
    let files = [file(upstream.address, "limits: [100/1s]")];
    let timeouts = ClientTimeouts {
        idle: Span::from_millis(200),
        ..ClientTimeouts::default()
    };
    let gateway = start_with_timeouts(&files, timeouts).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let request = b"GET /x/a HTTP/1.1\r\nHost: g\r\n\r\n";
    stream.write_all(request).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
    read_to_end(&mut stream).await;
}
