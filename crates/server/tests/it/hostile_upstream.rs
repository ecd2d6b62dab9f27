//! Upstreams that break the protocol (R-D1, R-D2, R-D5): what the caller gets, and what the call
//! costs.
//!
//! A sent call counts, whatever came back. A head that arrives settles the permit, so a short
//! window frees by itself. Without a response the permit is held until the call can no longer
//! arrive.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_core::time::Span;
use tollgate_ledger::Clock;

use crate::client::{TIMEOUTS, get, get_with, pause, raw, within_timeout};
use crate::raw_upstream::{RawUpstream, read_head, reset};
use crate::test_gateway::{TestGateway, file};

/// One permit an hour: a second call shows what became of the first one's.
const ONE: &str = "limits: [1/1h]\nretry: {retries: {high: 0, normal: 0, low: 0}}\nhealth: off\n\
    late_arrival: 20s";

/// The same for upstreams that say nothing more.
const SHORT_TIMEOUTS: &str = "limits: [1/1h]\nretry: {retries: {high: 0, normal: 0, low: 0}}\nhealth: off\n\
    timeout: {first_byte: 150ms, idle: 150ms}\nlate_arrival: 20s";

/// The state of the one permit of `ONE`.
#[derive(Debug, PartialEq, Eq)]
enum Permit {
    /// It came back: nothing was sent.
    Unsent,
    /// It counts, and its end is known.
    Settled,
    /// It counts, and may still arrive.
    Unknown,
}

async fn permit(gateway: &TestGateway) -> Permit {
    let mut seen = Vec::new();
    for time in TIMEOUTS {
        let next = get_with(gateway.address, "/x/next", &[("x-tollgate-timeout", time)]).await;
        if next.header("x-tollgate-attempts") != "0" {
            return Permit::Unsent;
        }
        let retry_in = next.json()["retryIn"].as_u64();
        match (next.status, retry_in) {
            // It counts from when the call can no longer arrive: `late_arrival` longer than the period
            // and its margin for clocks that drift (3603.6 s).
            (429, Some(millis)) if millis > 3_610_000 => return Permit::Unknown,
            (429, Some(millis)) if millis > 3_000_000 => return Permit::Settled,
            (504, _) => return Permit::Unknown,
            // Its deadline passed before it reached the queue.
            other => seen.push(other),
        }
    }
    panic!("{seen:?}")
}

/// Sends an invalid response to one call: 502, and the permit is spent.
async fn is_502(bytes: impl Into<Vec<u8>>) {
    let bytes = bytes.into();
    let shown = String::from_utf8_lossy(&bytes)
        .chars()
        .take(60)
        .collect::<String>();
    let upstream = RawUpstream::replying(bytes).await;
    let gateway = TestGateway::start(&[file(upstream.address, ONE)]).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!(
        (response.status, &response.json()["error"]),
        (502, &"UpstreamError".into()),
        "{shown:?}"
    );
    assert_eq!(response.header("x-tollgate-attempts"), "1", "{shown:?}");
    assert_ne!(permit(&gateway).await, Permit::Unsent, "{shown:?}");
}

fn with_headers(lines: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: 4\r\n\r\nfine")
}

/// R-D5: framing and headers that could be read in two ways.
#[tokio::test]
async fn bad_framing_is_502_and_counts() {
    for bytes in [
        "",
        "\r\n\r\n\r\n",
        "HELLO\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 20x OK\r\n\r\n",
        "HTTP/1.1 99999 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rInjected: b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\u{0}b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nfine!",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nContent-Len",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nContent-Length: 4, 4\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: identity\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nfine\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-4\r\nfine\r\n0\r\n\r\n",
    ] {
        is_502(bytes).await;
    }
}

/// R-D1: at most 64 KiB of headers, however many they are.
#[tokio::test]
async fn too_many_or_too_large_headers_are_502_and_count() {
    let many: String = (0..7_000).map(|n| format!("X-{n}: y\r\n")).collect();
    is_502(with_headers(&many)).await;
    is_502(with_headers(&format!("X: {}\r\n", "y".repeat(70_000)))).await;
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(3_000_000));
    is_502(endless).await;
}

#[tokio::test]
async fn the_largest_allowed_headers_are_forwarded() {
    let many: String = (0..500).map(|n| format!("X-{n}: y\r\n")).collect();
    let few: String = (0..101).map(|n| format!("X-{n}: y\r\n")).collect();
    for lines in [few, many, format!("X: {}\r\n", "y".repeat(60_000))] {
        let upstream = RawUpstream::replying(with_headers(&lines)).await;
        let gateway = TestGateway::start(&[file(upstream.address, ONE)]).await;
        let call = "GET /x/a HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n";
        let response = raw(gateway.address, call).await;
        assert!(response.ends_with("fine"), "{response}");
        let passed = response.matches("\r\nx-").count() >= lines.matches("\r\nX-").count();
        assert!(passed, "{response}");
        assert_eq!(permit(&gateway).await, Permit::Settled);
    }
}

/// A status that has no standard words keeps those of the provider. Before, they were `<none>`.
#[tokio::test]
async fn an_unknown_status_keeps_its_reason() {
    for (line, expected) in [
        ("HTTP/1.1 299 Odd Thing", "HTTP/1.1 299 Odd Thing\r\n"),
        ("HTTP/1.1 299 ", "HTTP/1.1 299 \r\n"),
        ("HTTP/1.1 999", "HTTP/1.1 999 \r\n"),
    ] {
        let response = format!("{line}\r\nContent-Length: 4\r\n\r\nfine");
        let upstream = RawUpstream::replying(response).await;
        let gateway = TestGateway::start(&[file(upstream.address, ONE)]).await;
        let call = "GET /x/a HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n";
        let response = raw(gateway.address, call).await;
        assert!(response.starts_with(expected), "{response}");
    }
}

/// The size of headers is the bound, not their number: an upstream that has sent more than usual gets
/// connections that take them, with the next attempt.
#[tokio::test]
async fn thousands_of_small_headers_are_forwarded() {
    let many: String = (0..5_000).map(|n| format!("X-{n}: y\r\n")).collect();
    let upstream = RawUpstream::replying(with_headers(&many)).await;
    let rest = "limits: [9/1s]\nretry: {base: 1ms}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for attempts in ["2", "1"] {
        let call = "GET /x/a HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n";
        let response = raw(gateway.address, call).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.ends_with("fine"), "{response}");
        let attempts = format!("\r\nx-tollgate-attempts: {attempts}\r\n");
        assert!(response.contains(&attempts), "{response}");
        assert!(response.contains("\r\nx-4999: y\r\n"), "{response}");
    }
}

/// R-D1: a few 1xx responses pass, a flood of them does not.
#[tokio::test]
async fn endless_1xx_responses_are_502_long_before_the_timeout() {
    let flood = RawUpstream::start(|_, mut stream| async move {
        read_head(&mut stream).await;
        while stream
            .write_all(b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n")
            .await
            .is_ok()
        {}
    })
    .await;
    let patient = format!("{ONE}\ntimeout: {{first_byte: 600s}}");
    let gateway = TestGateway::start(&[file(flood.address, &patient)]).await;
    assert_eq!(
        within_timeout(get(gateway.address, "/x/a")).await.status,
        502
    );
    let hints = "HTTP/1.1 100 Continue\r\n\r\n".repeat(3);
    let few = RawUpstream::replying(format!("{hints}{}", with_headers(""))).await;
    let gateway = TestGateway::start(&[file(few.address, ONE)]).await;
    assert_eq!(get(gateway.address, "/x/a").await.body, "fine");
}

#[tokio::test]
async fn a_hang_before_the_head_is_502_and_the_permit_may_still_arrive() {
    for part in ["", "HTTP/1.1 200 OK\r\nContent-"] {
        let upstream = RawUpstream::start(move |_, mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(part.as_bytes()).await.ok();
            std::future::pending::<()>().await;
        })
        .await;
        let gateway = TestGateway::start(&[file(upstream.address, SHORT_TIMEOUTS)]).await;
        assert_eq!(get(gateway.address, "/x/a").await.status, 502, "{part:?}");
        assert_eq!(permit(&gateway).await, Permit::Unknown, "{part:?}");
    }
}

/// A reset at every stage.
#[tokio::test]
async fn a_reset_before_the_head_is_502_and_after_it_breaks_the_body() {
    for said in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n"] {
        let upstream = RawUpstream::start(move |_, mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(said.as_bytes()).await.ok();
            reset(stream);
        })
        .await;
        let gateway = TestGateway::start(&[file(upstream.address, ONE)]).await;
        assert_eq!(get(gateway.address, "/x/a").await.status, 502, "{said:?}");
        assert_eq!(permit(&gateway).await, Permit::Unknown, "{said:?}");
    }
}

/// Reads what the gateway passes on, to its end or its break.
async fn passed_on(gateway: &TestGateway) -> String {
    let call = "GET /x/a HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n";
    raw(gateway.address, call).await
}

/// A former bug: a body that fails before its first byte left the caller without a response, and
/// clients take that for a connection that was closed while idle, and send the call again.
#[tokio::test]
async fn a_body_that_fails_before_its_first_byte_leaves_a_head() {
    for said in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;\nab\r\n",
    ] {
        let upstream = RawUpstream::start(move |_, mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(said.as_bytes()).await.ok();
        })
        .await;
        let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
        for _ in 0..5 {
            let got = passed_on(&gateway).await;
            let is_complete = got.contains("chunked") && got.ends_with("0\r\n\r\n");
            assert!(
                got.starts_with("HTTP/1.1 ") && !is_complete,
                "{said:?}: {got:?}"
            );
        }
    }
}

/// A body that is reset, has a wrong length or stalls: the caller sees that it is incomplete.
#[tokio::test]
async fn a_truncated_body_is_visibly_truncated_for_the_caller() {
    for (said, then_resets) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour", false),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\nzz\r\n",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfourfive\r\n0\r\n\r\n",
            false,
        ),
    ] {
        let upstream = RawUpstream::start(move |_, mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(said.as_bytes()).await.ok();
            if then_resets {
                // Only once the gateway has read what was said.
                stream.flush().await.ok();
                tokio::task::yield_now().await;
                reset(stream);
            }
        })
        .await;
        let gateway = TestGateway::start(&[file(upstream.address, ONE)]).await;
        let got = passed_on(&gateway).await;
        let is_broken = got.contains(" 502 ")
            || (got.contains("content-length: 9") && !got.ends_with("fourfive!"))
            || (got.contains("chunked") && !got.ends_with("0\r\n\r\n"));
        assert!(is_broken, "{said:?}: {got:?}");
        assert_ne!(permit(&gateway).await, Permit::Unsent, "{said:?}");
    }
}

/// A response that breaks off is not stored, so the next caller gets a whole one.
#[tokio::test]
async fn a_response_that_breaks_off_is_not_cached() {
    for broken in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: identity\r\n\r\nfour",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\nzz\r\n",
    ] {
        let upstream = RawUpstream::start(move |number, mut stream| async move {
            read_head(&mut stream).await;
            let whole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole";
            let said = if number == 0 { broken } else { whole };
            stream.write_all(said.as_bytes()).await.ok();
        })
        .await;
        let rest = "limits: [9/1s]\nhealth: off\ncache: {ttl: 1h}\nretry: {retries: {normal: 0}}";
        let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
        passed_on(&gateway).await;
        let next = get(gateway.address, "/x/a").await;
        let source = next.header("x-tollgate-source");
        assert_eq!(
            (next.body.as_str(), source),
            ("whole", "upstream"),
            "{broken:?}"
        );
    }
}

/// An upstream cannot speak for Tollgate, neither directly nor out of the cache.
#[tokio::test]
async fn x_tollgate_headers_of_an_upstream_are_dropped() {
    let lines = "X-Tollgate-Id: forged\r\nX-Tollgate-Source: cache\r\nX-Tollgate-Degraded: true\r\n\
        X-Tollgate-Other: forged\r\nX-Other: passes\r\n";
    let upstream = RawUpstream::replying(with_headers(lines)).await;
    let rest = "limits: [9/1s]\ncache: {ttl: 1h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    for source in ["upstream", "cache", "cache"] {
        let response = get(gateway.address, "/x/a").await;
        assert_eq!(response.header("x-tollgate-source"), source);
        assert_eq!(response.header("x-other"), "passes");
        assert_eq!(response.headers.get_all("x-tollgate-id").iter().count(), 1);
        let everything = response.everything();
        assert!(!everything.contains("forged"), "{everything}");
        assert!(!everything.contains("degraded"), "{everything}");
    }
}

/// R-D2: a stalled body is cut, a slow one is not.
#[tokio::test]
async fn a_slow_body_is_never_cut_and_a_stalled_one_is() {
    let upstream = RawUpstream::start(|number, mut stream| async move {
        read_head(&mut stream).await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n")
            .await
            .ok();
        let drips: &[u8] = if number == 0 { b"fourfive!" } else { b"four" };
        for byte in drips {
            stream.write_all(&[*byte]).await.ok();
            pause(450).await;
        }
        std::future::pending::<()>().await;
    })
    .await;
    let rest = "concurrency: 1\nlimits: [100/1s]\nlate_arrival: 20s\ntimeout: {idle: 3s}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let began = Clock::System.now().at;
    assert!(passed_on(&gateway).await.ends_with("fourfive!"));
    let took = Clock::System.now().at.since(began);
    assert!(took > Span::from_secs(3), "longer than idle in all: {took}");
    let cut = passed_on(&gateway).await;
    assert!(cut.ends_with("four"), "{cut}");
    assert!(get_with(gateway.address, "/health", &[]).await.status == 200);
}

/// R-C9, R-D2: an endless body flows as fast as its reader, and ends when the reader disconnects.
#[tokio::test]
async fn an_endless_body_ends_when_its_client_disconnects() {
    let (gone, mut told) = tokio::sync::mpsc::channel(1);
    let upstream = RawUpstream::start(move |_, mut stream| {
        let gone = gone.clone();
        async move {
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await
                .ok();
            let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
            let mut sent = 0_u64;
            while stream.write_all(chunk.as_bytes()).await.is_ok() {
                sent += 0x4000;
            }
            gone.send(sent).await.ok();
        }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream
        .write_all(b"GET /x/a HTTP/1.1\r\nHost: g\r\n\r\n")
        .await
        .unwrap();
    let mut read = vec![0; 1_000_000];
    within_timeout(stream.read_exact(&mut read)).await.unwrap();
    drop(stream);
    let sent = within_timeout(told.recv()).await.unwrap();
    // Bytes in transit are in bounded buffers, the kernel's and ours.
    assert!(sent < 100_000_000, "{sent}");
}

/// A response before the request was read: the caller gets it, and the connection is not reused.
#[tokio::test]
async fn an_early_response_reaches_the_caller() {
    let upstream = RawUpstream::start(|_, mut stream| async move {
        read_head(&mut stream).await;
        let early = "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge";
        stream.write_all(early.as_bytes()).await.ok();
        stream.shutdown().await.ok();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.ok();
    })
    .await;
    let rest = format!("{ONE}\nupload: {{spool: 256KiB}}");
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    let body = "x".repeat(3_000_000);
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let head = format!(
        "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
        .write_all(body.get(..1_000_000).unwrap().as_bytes())
        .await
        .unwrap();
    let response = within_timeout(self::read_head(&mut stream)).await;
    assert!(response.contains(" 413 "), "{response}");
    assert_eq!(permit(&gateway).await, Permit::Settled);
}

/// The gateway handles `Expect: 100-continue`, so a provider without support never sees it.
#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let upstream = RawUpstream::start(|_, mut stream| async move {
        let received = read_head(&mut stream).await.to_ascii_lowercase();
        let body = if received.contains("expect") {
            "told"
        } else {
            "fine"
        };
        let mut four = [0; 4];
        stream.read_exact(&mut four).await.ok();
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{body}");
        stream.write_all(response.as_bytes()).await.ok();
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, ONE)]).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let ask = "POST /x/a HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
    stream.write_all(ask.as_bytes()).await.unwrap();
    assert!(
        within_timeout(read_head(&mut stream))
            .await
            .contains(" 100 ")
    );
    stream.write_all(b"body").await.unwrap();
    let mut response = String::new();
    within_timeout(stream.read_to_string(&mut response))
        .await
        .unwrap();
    assert!(
        response.starts_with("HTTP/1.1 200") && response.ends_with("fine"),
        "{response}"
    );
}
