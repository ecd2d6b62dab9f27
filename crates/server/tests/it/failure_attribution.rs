//! Failure attribution: deadlines and uploads of callers are not provider failures, and reading a
//! body for feedback does not delay its caller.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_core::health::HealthState;

use crate::client::{Session, get_with, pause, request, within_timeout};
use crate::raw_upstream::{RawUpstream, read_head};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, reply};

/// Two failures put it to sleep, and nothing is tried twice.
const SENSITIVE: &str = "limits: [100/1s]\nretry: {retries: {high: 0, normal: 0, low: 0}}\n\
    health: {failure_threshold: 2}\nlate_arrival: 50ms\n";

fn assert_healthy(gateway: &TestGateway) {
    let status = gateway.registry.named("x").unwrap().status();
    let (state, failures) = (status.state, status.failure_count);
    assert_eq!((state, failures), (HealthState::Normal, 0));
}

/// A caller that disconnects before the upstream connection is open is no sign of a provider
/// failure.
#[tokio::test]
async fn impatient_callers_do_not_put_a_healthy_provider_to_sleep() {
    // It accepts, and takes its time for the TLS handshake.
    let upstream = RawUpstream::start(|_, stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let text = format!(
        "name: x\nupstream: https://{}\n{SENSITIVE}",
        upstream.address
    );
    let gateway = TestGateway::start(&[text]).await;
    for number in 0..5 {
        let path = format!("/x/{number}");
        let answer = get_with(gateway.address, &path, &[("x-tollgate-timeout", "60ms")]).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, error), (504, "DeadlineExceeded".into()));
    }
    assert_healthy(&gateway);
}

/// Uploads of more than this are streamed.
const STREAMED: &str = "upload: {spool: 256KiB}\n";

/// An upload too large to be read beforehand, of which so much is sent.
async fn upload(gateway: &TestGateway) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let begin = "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 400000\r\n\r\n";
    stream.write_all(begin.as_bytes()).await.unwrap();
    stream.write_all(&[b'x'; 300_000]).await.unwrap();
    stream
}

/// A provider that reads and never responds, and the number of heads it has received.
async fn listener() -> RawUpstream {
    RawUpstream::start(|_, mut stream| async move {
        read_head(&mut stream).await;
        let mut piece = [0; 65_536];
        while matches!(stream.read(&mut piece).await, Ok(read) if read > 0) {}
    })
    .await
}

/// R-C10: an aborted upload is not the provider's failure.
#[tokio::test]
async fn an_aborted_upload_is_not_a_provider_failure() {
    let upstream = listener().await;
    let rest = format!("{SENSITIVE}{STREAMED}");
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    for _ in 0..3 {
        let mut stream = upload(&gateway).await;
        // Time for the first part to leave: only then is it an attempt.
        pause(50).await;
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        within_timeout(stream.read_to_end(&mut rest)).await.ok();
    }
    assert_healthy(&gateway);
}

/// R-C10: nor is a stalled upload. Its client gets a 400.
#[tokio::test]
async fn a_stalled_upload_is_400_and_not_a_provider_failure() {
    let upstream = listener().await;
    let rest = format!("{SENSITIVE}{STREAMED}timeout: {{first_byte: 800ms}}\n");
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    for _ in 0..3 {
        let mut stream = upload(&gateway).await;
        let answer = within_timeout(read_head(&mut stream)).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_healthy(&gateway);
}

/// A provider that says this and then a byte now and then.
async fn slow_body(begin: &'static str) -> RawUpstream {
    RawUpstream::start(move |_, mut stream| async move {
        read_head(&mut stream).await;
        stream.write_all(begin.as_bytes()).await.ok();
        while stream.write_all(b" ").await.is_ok() {
            pause(40).await;
        }
    })
    .await
}

/// The head of a response whose body takes minutes reaches the caller at its deadline.
#[tokio::test]
async fn a_slow_response_body_is_not_read_past_the_callers_deadline() {
    for (begin, rest) in [
        (
            "HTTP/1.1 500 Oh\r\nContent-Length: 60000\r\n\r\n",
            "dialect: generic\n",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n",
            "dialect: sportmonks\n",
        ),
    ] {
        let upstream = slow_body(begin).await;
        let gateway =
            TestGateway::start(&[file(upstream.address, &format!("{SENSITIVE}{rest}"))]).await;
        let mut statuses = Vec::new();
        // The longer one is for a machine so busy that nothing was sent in the shorter.
        for time in ["300ms", "5s"] {
            let mut session = Session::open(gateway.address).await;
            let said = [("x-tollgate-timeout", time)];
            let response = session.send(request("GET", "/x/a", &said, "")).await;
            statuses.push(format!("HTTP/1.1 {}", response.status().as_u16()));
            if begin.starts_with(statuses.last().unwrap()) {
                break;
            }
        }
        assert!(
            begin.starts_with(statuses.last().unwrap()),
            "{begin:?}: {statuses:?}"
        );
    }
}

/// Trailers of a small request reach the provider, although the body is buffered first.
#[tokio::test]
async fn trailers_of_a_small_request_are_forwarded() {
    let upstream = RawUpstream::start(|_, mut stream| async move {
        let received = read_head(&mut stream).await.to_lowercase();
        let rest = read_head(&mut stream).await;
        let is_whole = rest == "4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n";
        let status = if is_whole && received.contains("\r\ntrailer: x-sum\r\n") {
            "200 OK"
        } else {
            "418 No"
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.ok();
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, SENSITIVE)]).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let bytes = "POST /x/a HTTP/1.1\r\nHost: g\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
        4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n";
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let answer = within_timeout(read_head(&mut stream)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A provider that fails while its limit leaves no room for a further attempt: the caller gets the provider's
/// failure, with the time at which there is room. Before, it got 429 `RateLimitExceeded`, as if it had called too often.
#[tokio::test]
async fn a_failure_is_forwarded_if_no_limit_leaves_room_for_a_retry() {
    let upstream = Upstream::start(|_, _| async { reply(503, &[], "it is down") }).await;
    let rest =
        "limits: [2/1h]\nhealth: off\nretry: {base: 1ms, max: 2ms, budget: {min_per_second: 100}}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let failed = get_with(gateway.address, "/x/a", &[]).await;
    assert_eq!(
        (failed.status, failed.body.as_str()),
        (503, "it is down"),
        "{failed:?}"
    );
    assert_eq!(failed.header("x-tollgate-source"), "upstream");
    assert_eq!(failed.header("x-tollgate-attempts"), "2");
    let wait: u64 = failed.header("retry-after").parse().unwrap();
    assert!((3_590..=3_700).contains(&wait), "{failed:?}");
    assert_eq!(upstream.count(), 2);
    let rejected = get_with(gateway.address, "/x/a", &[]).await;
    assert_eq!(
        rejected.status, 429,
        "without an attempt of its own: {rejected:?}"
    );
}
