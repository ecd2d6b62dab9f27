//! The fast path against the normal path: the same bytes, or the fast path does not respond.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tollgate::ProviderRegistry;
use tollgate::providers::Options;
use tollgate_config::config::Caller;
use tollgate_config::{Environment, Provider, ProviderFile, Secret};
use tollgate_core::ask::Priority;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};

use super::*;
use crate::accept_loop::ShutdownSignal;
use crate::gateway::{Gateway, GatewayOptions, GatewayState, ListenerKind, Listeners};

const DATE_LINE: &str = "Date: Sun, 15 Nov 2026 00:00:00 GMT";

/// A gateway with a manual clock, and one connection for the fast path.
struct FastPathGateway {
    address: SocketAddr,
    connection: Arc<ClientConnection>,
    clock: Arc<ManualClock>,
    /// Dropping it stops the gateway.
    gateway: Gateway,
    _shutdown: watch::Sender<bool>,
}

fn provider(file: &str) -> Provider {
    let draft = ProviderFile::read("x.yaml", file).expect("the test is set up");
    let checked = draft.check(&Environment::empty());
    checked.provider.expect("the test is set up")
}

/// Does the fast path serve the request on this connection?
fn is_hit(fast_path: &mut HitFastPath, request: &str) -> bool {
    fast_path
        .respond(request.as_bytes(), &mut Vec::new())
        .is_some()
}

impl FastPathGateway {
    /// A provider `x` that always responds with these headers and this body, chunked without a
    /// length.
    async fn start(lines: &str, body: &str, rest: &str) -> FastPathGateway {
        FastPathGateway::start_kind(lines, body, rest, &ListenerKind::All).await
    }

    async fn start_kind(
        lines: &str,
        body: &str,
        rest: &str,
        kind: &ListenerKind,
    ) -> FastPathGateway {
        let response = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n{body}");
        let upstream = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the test is set up");
        let at = upstream.local_addr().expect("the test is set up");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = upstream.accept().await {
                let response = response.clone();
                tokio::spawn(async move {
                    let mut request = [0; 4_096];
                    while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                        stream.write_all(response.as_bytes()).await.ok();
                    }
                });
            }
        });
        let provider = provider(&format!("name: x\nupstream: http://{at}\n{rest}\n"));
        let clock = ManualClock::new(Now {
            at: Micros(1_000_000_000),
            wall: Wall(1_794_700_800_000_000),
        });
        let ledger = Ledger::memory(Clock::Manual(clock.clone()));
        let registry = ProviderRegistry::build(vec![provider], ledger, Options::default())
            .expect("the test is set up");
        let state = Arc::new(GatewayState::new(registry, GatewayOptions::default()));
        let mut gateway = Gateway {
            listeners: Listeners::new(state.clone()),
        };
        let free = "127.0.0.1:0".parse().expect("the test is set up");
        let address = gateway
            .listen(free, kind.clone())
            .await
            .expect("the test is set up")
            .address;
        let (shutdown_sender, shutdown) = watch::channel(false);
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let shutdown = ShutdownSignal::new(shutdown.clone(), shutdown);
        let connection = ClientConnection::new(state, Arc::new(kind.clone()), peer, shutdown);
        FastPathGateway {
            address,
            connection: Arc::new(connection),
            clock,
            gateway,
            _shutdown: shutdown_sender,
        }
    }

    /// The raw responses to `times` requests in one write.
    async fn send(&self, request: &str, times: usize) -> Vec<String> {
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("the test is set up");
        let requests = request.repeat(times);
        stream
            .write_all(requests.as_bytes())
            .await
            .expect("the test is set up");
        let mut responses = Vec::new();
        let mut read = String::new();
        while responses.len() < times {
            let mut piece = vec![0; 128 * 1_024];
            let came = stream.read(&mut piece).await.expect("the test is set up");
            assert_ne!(came, 0, "{read}");
            read.push_str(
                str::from_utf8(piece.get(..came).expect("the test is set up"))
                    .expect("the test is set up"),
            );
            while let Some(length) = response_length(&read).filter(|length| *length <= read.len()) {
                let rest = read.split_off(length);
                responses.push(std::mem::replace(&mut read, rest));
            }
        }
        responses
    }

    /// The response of the fast path.
    fn fast(&self, request: &str) -> Option<String> {
        let mut out = Vec::new();
        let body = HitFastPath::new(self.connection.clone()).respond(request.as_bytes(), &mut out);
        match &body {
            Some(HitBody::Bytes(body)) => out.extend_from_slice(body),
            Some(HitBody::Memfd(memfd)) => out.extend_from_slice(&content(memfd)),
            None => assert!(out.is_empty(), "a partial response"),
        }
        body.map(|_| String::from_utf8(out).expect("the test is set up"))
    }

    /// Asserts that both paths write the same bytes, except for the call id.
    async fn assert_same(&self, request: &str) {
        let fast = self.fast(request);
        let fast = fast.unwrap_or_else(|| panic!("not served: {request}"));
        // Two requests in one write take the normal path, a single one the fast path.
        let two = self.send(request, 2).await;
        let one = self.send(request, 1).await;
        for ordinary in two.iter().chain(&one) {
            assert_eq!(without_id(ordinary), without_id(&fast), "{request}");
        }
    }
}

/// The length of a response, once its head has arrived.
fn response_length(read: &str) -> Option<usize> {
    let head = read.find("\r\n\r\n")? + 4;
    let lines = read.get(..head)?.lines();
    let length = lines
        .filter_map(|line| line.strip_prefix("content-length: "))
        .next();
    match length {
        Some(length) => Some(head + length.parse::<usize>().expect("the test is set up")),
        // Chunked, as received.
        None => Some(read.find("0\r\n\r\n")? + 5),
    }
}

fn content(memfd: &MemfdBody) -> Vec<u8> {
    let file = memfd
        .as_fd()
        .try_clone_to_owned()
        .expect("the test is set up");
    let mut read = vec![0; memfd.len()];
    std::fs::File::from(file)
        .read_exact_at(&mut read, 0)
        .expect("the test is set up");
    read
}

fn without_id(response: &str) -> String {
    let line = |line: &str| match line.starts_with("x-tollgate-id: ") {
        true => "x-tollgate-id: N".to_owned(),
        false => line.to_owned(),
    };
    response
        .split("\r\n")
        .map(line)
        .collect::<Vec<_>>()
        .join("\r\n")
}

fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: g\r\n{lines}\r\n")
}

const TTL: &str = "limits: [1000/1s]\ncache: {ttl: 1h}";

#[tokio::test]
async fn the_fast_path_and_the_normal_path_write_the_same_bytes() {
    let [some, large, huge] = [20_000, 70_000, 1_000_000].map(|length| "y".repeat(length));
    for (lines, body) in [
        (format!("{DATE_LINE}\r\nContent-Length: 3"), "abc"),
        (
            format!("Content-Length: 3\r\n{DATE_LINE}\r\nX-A: 1\r\nx-a: 2\r\nETag: \"e\""),
            "abc",
        ),
        (
            format!("Age: 7\r\n{DATE_LINE}\r\nContent-Length: 3\r\nX-Tollgate-Id: lie"),
            "abc",
        ),
        (
            format!("{DATE_LINE}\r\nCache-Status: far; hit\r\nContent-Length: 3\r\nX-Z: \u{fc}"),
            "abc",
        ),
        (
            format!("{DATE_LINE}\r\nTransfer-Encoding: chunked\r\nVary: Accept-Language"),
            "3\r\nabc\r\n0\r\n\r\n",
        ),
        (
            format!("{DATE_LINE}\r\nContent-Length: 20000"),
            some.as_str(),
        ),
        (
            format!("{DATE_LINE}\r\nContent-Length: 1000000"),
            huge.as_str(),
        ),
        (
            format!("{DATE_LINE}\r\nContent-Length: 70000"),
            large.as_str(),
        ),
    ] {
        let test = FastPathGateway::start(&lines, body, TTL).await;
        let request = get("/x/a?b=1", "Accept: */*\r\n");
        test.send(&request, 1).await;
        test.clock.pass(Span::from_secs(61));
        test.assert_same(&request).await;
        test.assert_same(&get(
            "/x/a?b=1",
            "ACCEPT: */*\r\nconnection: Keep-Alive\r\n",
        ))
        .await;
    }
}

/// The parser has never seen a request on this connection, and yet it closes at once.
#[tokio::test]
async fn a_connection_that_only_used_the_fast_path_drains_at_once() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let test = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    test.send(&request, 1).await;
    let mut stream = TcpStream::connect(test.address)
        .await
        .expect("the test is set up");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the test is set up");
    let mut read = [0; 4_096];
    assert_ne!(stream.read(&mut read).await.expect("the test is set up"), 0);
    let drained = tokio::time::timeout(Duration::from_secs(5), test.gateway.drain());
    assert!(drained.await.is_ok(), "it waited for the grace period");
    assert_eq!(stream.read(&mut read).await.expect("the test is set up"), 0);
}

#[tokio::test]
async fn a_fast_path_response_has_its_current_age_and_a_new_id() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let test = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    test.send(&request, 1).await;
    let mut previous = String::new();
    for age in [1, 9, 90, 3_000] {
        test.clock.pass(Span::from_secs(age));
        let response = test.fast(&request).expect("the test is set up");
        assert_ne!(response, previous);
        previous = response;
    }
    assert!(previous.contains("\r\nage: 3100\r\n"), "{previous}");
}

#[tokio::test]
async fn only_a_plain_request_uses_the_fast_path() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3\r\nETag: \"e\"");
    let test = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    test.send(&request, 1).await;
    assert!(test.fast(&request).is_some());
    for line in [
        "Connection: close",
        "Connection: keep-alive, X-Foo",
        "Connection: upgrade",
        "Keep-Alive: 5",
        "Upgrade: websocket",
        "TE: trailers",
        "Transfer-Encoding: chunked",
        "Content-Length: 0",
        "Expect: 100-continue",
        "Host: two",
        "Range: bytes=0-1",
        "If-None-Match: \"e\"",
        "If-Modified-Since: Sun, 15 Nov 2026 00:00:00 GMT",
        "If-Match: \"e\"",
        "If-Range: \"e\"",
        "If-Unmodified-Since: Sun, 15 Nov 2026 00:00:00 GMT",
        "Cache-Control: no-cache",
        "Pragma: no-cache",
        "Proxy-Authorization: Basic YTpi",
        "X-Tollgate-Cache: no",
        "X-Tollgate-Caller: me",
        "X-Tollgate-Token: t",
        "X-Tollgate-Priority: high",
        "X-Tollgate-Unknown: 1",
        "X-Stainless-Read-Timeout: 5",
        "Authorization: Bearer another",
        "Cookie: user=2",
        "Accept: text/html",
        "X : y",
        "X: y\r\n folded",
        "X\0: y",
    ] {
        let odd = get("/x/a", &format!("{line}\r\n"));
        // `Cache-Control` of a request applies only with `mode: rfc9111`.
        let is_obeyed = !line.contains("no-cache");
        assert_eq!(test.fast(&odd).is_none(), is_obeyed, "{line}");
    }
}

#[tokio::test]
async fn only_a_single_complete_request_uses_the_fast_path() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let test = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    test.send(&request, 1).await;
    for odd in [
        request.repeat(2),
        format!("\r\n{request}"),
        format!("{request}x"),
        request.replace("\r\n", "\n"),
        request.replace("GET", "HEAD"),
        request.replace("GET", "get"),
        request.replace("HTTP/1.1", "HTTP/1.0"),
        request.replace("Host: g\r\n", ""),
        request.replace("/x/a", "/y/a"),
        request.replace("/x/a", "/x/../x/a"),
        request.replace("/x/a", "/health"),
        request.replace("/x/a", "/x@nobody:bad name/a"),
        request.replace("/x/a", "http://g/x/a"),
        request
            .get(..request.len() - 2)
            .expect("the test is set up")
            .to_owned(),
        String::new(),
    ] {
        assert_eq!(test.fast(&odd), None, "{odd}");
    }
}

#[tokio::test]
async fn a_response_that_is_not_plain_uses_the_normal_path() {
    let length = "Content-Length: 3";
    for lines in [
        format!("{DATE_LINE}\r\n{length}\r\nLink: </b>; rel=next"),
        format!("{DATE_LINE}\r\n{length}\r\nContent-Location: /b"),
        format!("{DATE_LINE}\r\n{length}\r\nX-Long: {}", "l".repeat(5_000)),
    ] {
        let test = FastPathGateway::start(&lines, "abc", TTL).await;
        let request = get("/x/a", "");
        test.send(&request, 1).await;
        assert_eq!(test.fast(&request), None, "{lines}");
        let response = test.send(&request, 1).await;
        assert!(
            response.concat().contains("x-tollgate-source: cache"),
            "{lines}"
        );
    }
}

/// It is stored with its arrival time.
#[tokio::test]
async fn a_response_without_a_date_uses_the_fast_path_too() {
    let test = FastPathGateway::start("Content-Length: 3", "abc", TTL).await;
    test.send(&get("/x/a", ""), 1).await;
    test.assert_same(&get("/x/a", "")).await;
}

#[tokio::test]
async fn stale_purged_and_missing_responses_use_the_normal_path() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let test = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    assert_eq!(test.fast(&request), None);
    test.send(&request, 1).await;
    assert!(test.fast(&request).is_some());
    let cache = test.connection.state.registry.cache().clone();
    cache.purge(Some("x"), None).await;
    assert_eq!(test.fast(&request), None);
    test.send(&request, 1).await;
    test.clock.pass(Span::from_secs(3_600));
    assert_eq!(test.fast(&request), None);
}

#[tokio::test]
async fn provider_listeners_callers_and_encoded_paths_use_the_fast_path_too() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let kind = ListenerKind::Provider("x".to_owned());
    let test = FastPathGateway::start_kind(&lines, "abc", TTL, &kind).await;
    test.send(&get("/a", ""), 1).await;
    test.assert_same(&get("/a", "")).await;
    let test = FastPathGateway::start(&lines, "abc", TTL).await;
    test.send(&get("/x@web/a", ""), 1).await;
    for path in ["/x@web/a", "/x/a", "/x/%2e%2e/a"] {
        test.assert_same(&get(path, "")).await;
    }
}

#[tokio::test]
async fn a_remembered_request_ends_with_its_configuration() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let test = FastPathGateway::start(&lines, "abc", TTL).await;
    let (registry, request) = (&test.connection.state.registry, get("/x@web/a", ""));
    test.send(&request, 1).await;
    let mut fast_path = HitFastPath::new(test.connection.clone());
    assert!(is_hit(&mut fast_path, &request));
    assert!(is_hit(&mut fast_path, &request));
    assert!(!is_hit(&mut fast_path, &get("/x@web/b", "")));
    assert!(is_hit(&mut fast_path, &request));
    // From now on the caller `web` needs a token.
    registry.set_callers(&[Caller {
        name: "web".to_owned(),
        priority: Priority::Normal,
        at_least: None,
        at_most: None,
        token: Some(Secret::new("t".to_owned())),
        guards: None,
    }]);
    assert!(!is_hit(&mut fast_path, &request));
    registry.set_callers(&[]);
    assert!(is_hit(&mut fast_path, &request));
    // From now on the same name is another upstream.
    let elsewhere = format!("name: x\nupstream: http://127.0.0.1:9\n{TTL}\n");
    registry
        .replace(vec![provider(&elsewhere)])
        .expect("the test is set up");
    assert!(!is_hit(&mut fast_path, &request));
}

#[tokio::test]
async fn after_many_misses_the_fast_path_is_tried_for_one_request_in_eight() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let test = FastPathGateway::start(&lines, "abc", TTL).await;
    test.send(&get("/x/cached", ""), 1).await;
    let mut fast_path = HitFastPath::new(test.connection.clone());
    for number in 0..MISSES_MAX {
        assert!(!is_hit(
            &mut fast_path,
            &get(&format!("/x/new/{number}"), "")
        ));
    }
    let cached = get("/x/cached", "");
    let until = (1..=MISSES_MAX).find(|_| is_hit(&mut fast_path, &cached));
    assert_eq!(until, Some(MISSES_MAX));
    assert!(is_hit(&mut fast_path, &cached), "from then on every time");
}
