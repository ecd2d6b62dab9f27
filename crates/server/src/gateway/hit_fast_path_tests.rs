//! The short way beside the ordinary one: the same bytes, or it does not answer at all.

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
use crate::gateway::{Gateway, GatewayOptions, GatewayState, ListenerKind, Listeners};

const DATE_LINE: &str = "Date: Sun, 15 Nov 2026 00:00:00 GMT";

/// A gateway whose time stands still, with a lane beside its sockets.
struct FastPathGateway {
    address: SocketAddr,
    connection: Arc<ClientConnection>,
    clock: Arc<ManualClock>,
    /// Ends it when it is dropped.
    gateway: Gateway,
    _shutdown: watch::Sender<bool>,
}

fn provider(file: &str) -> Provider {
    let draft = ProviderFile::read("x.yaml", file).expect("the stage is set");
    let checked = draft.check(&Environment::empty());
    checked.provider.expect("the stage is set")
}

/// Does the short way answer, on a connection that may have asked before?
fn is_hit(lane: &mut HitFastPath, request: &str) -> bool {
    lane.respond(request.as_bytes(), &mut Vec::new()).is_some()
}

impl FastPathGateway {
    /// A provider `x` that always answers with these lines and this body, chunked if no length is
    /// said.
    async fn start(lines: &str, body: &str, rest: &str) -> FastPathGateway {
        FastPathGateway::start_kind(lines, body, rest, &ListenerKind::All).await
    }

    async fn start_kind(
        lines: &str,
        body: &str,
        rest: &str,
        door: &ListenerKind,
    ) -> FastPathGateway {
        let answer = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n{body}");
        let upstream = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the stage is set");
        let at = upstream.local_addr().expect("the stage is set");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = upstream.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut asked = [0; 4_096];
                    while stream.read(&mut asked).await.is_ok_and(|read| read > 0) {
                        stream.write_all(answer.as_bytes()).await.ok();
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
        let shop = ProviderRegistry::build(vec![provider], ledger, Options::default())
            .expect("the stage is set");
        let state = Arc::new(GatewayState::new(shop, GatewayOptions::default()));
        let mut gateway = Gateway {
            listeners: Listeners::new(state.clone()),
        };
        let free = "127.0.0.1:0".parse().expect("the stage is set");
        let address = gateway
            .listen(free, door.clone())
            .await
            .expect("the stage is set")
            .address;
        let (ending, order) = watch::channel(false);
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let visit = ClientConnection::new(state, Arc::new(door.clone()), peer, order);
        FastPathGateway {
            address,
            connection: Arc::new(visit),
            clock,
            gateway,
            _shutdown: ending,
        }
    }

    /// The answers to so many requests that come as one piece, as they stand on the wire.
    async fn send(&self, request: &str, times: usize) -> Vec<String> {
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("the stage is set");
        let requests = request.repeat(times);
        stream
            .write_all(requests.as_bytes())
            .await
            .expect("the stage is set");
        let mut answers = Vec::new();
        let mut read = String::new();
        while answers.len() < times {
            let mut piece = vec![0; 128 * 1_024];
            let came = stream.read(&mut piece).await.expect("the stage is set");
            assert_ne!(came, 0, "{read}");
            read.push_str(
                str::from_utf8(piece.get(..came).expect("the stage is set"))
                    .expect("the stage is set"),
            );
            while let Some(length) = response_length(&read).filter(|length| *length <= read.len()) {
                let rest = read.split_off(length);
                answers.push(std::mem::replace(&mut read, rest));
            }
        }
        answers
    }

    /// What the short way says to a request.
    fn fast(&self, request: &str) -> Option<String> {
        let mut out = Vec::new();
        let body = HitFastPath::new(self.connection.clone()).respond(request.as_bytes(), &mut out);
        match &body {
            Some(HitBody::Bytes(body)) => out.extend_from_slice(body),
            Some(HitBody::Memfd(sheet)) => out.extend_from_slice(&content(sheet)),
            None => assert!(out.is_empty(), "half an answer"),
        }
        body.map(|_| String::from_utf8(out).expect("the stage is set"))
    }

    /// Asserts that both ways give the same, byte for byte but for the number of the call.
    async fn assert_same(&self, request: &str) {
        let short = self.fast(request);
        let short = short.unwrap_or_else(|| panic!("not answered: {request}"));
        // Two that come together go the ordinary way; one that comes alone, the short one.
        let two = self.send(request, 2).await;
        let one = self.send(request, 1).await;
        for ordinary in two.iter().chain(&one) {
            assert_eq!(without_id(ordinary), without_id(&short), "{request}");
        }
    }
}

/// How long an answer is, once its head is there.
fn response_length(read: &str) -> Option<usize> {
    let head = read.find("\r\n\r\n")? + 4;
    let lines = read.get(..head)?.lines();
    let length = lines
        .filter_map(|line| line.strip_prefix("content-length: "))
        .next();
    match length {
        Some(length) => Some(head + length.parse::<usize>().expect("the stage is set")),
        // In chunks, as it came.
        None => Some(read.find("0\r\n\r\n")? + 5),
    }
}

fn content(sheet: &MemfdBody) -> Vec<u8> {
    let file = sheet
        .as_fd()
        .try_clone_to_owned()
        .expect("the stage is set");
    let mut read = vec![0; sheet.len()];
    std::fs::File::from(file)
        .read_exact_at(&mut read, 0)
        .expect("the stage is set");
    read
}

fn without_id(answer: &str) -> String {
    let line = |line: &str| match line.starts_with("x-tollgate-id: ") {
        true => "x-tollgate-id: N".to_owned(),
        false => line.to_owned(),
    };
    answer
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
        let stage = FastPathGateway::start(&lines, body, TTL).await;
        let request = get("/x/a?b=1", "Accept: */*\r\n");
        stage.send(&request, 1).await;
        stage.clock.pass(Span::from_secs(61));
        stage.assert_same(&request).await;
        stage
            .assert_same(&get(
                "/x/a?b=1",
                "ACCEPT: */*\r\nconnection: Keep-Alive\r\n",
            ))
            .await;
    }
}

/// The parser has never heard of a request on this connection, and yet it ends at once.
#[tokio::test]
async fn a_connection_that_only_used_the_fast_path_drains_at_once() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let stage = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    stage.send(&request, 1).await;
    let mut stream = TcpStream::connect(stage.address)
        .await
        .expect("the stage is set");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the stage is set");
    let mut read = [0; 4_096];
    assert_ne!(stream.read(&mut read).await.expect("the stage is set"), 0);
    let drained = tokio::time::timeout(Duration::from_secs(5), stage.gateway.drain());
    assert!(drained.await.is_ok(), "it waited for the grace");
    assert_eq!(stream.read(&mut read).await.expect("the stage is set"), 0);
}

#[tokio::test]
async fn a_fast_path_response_has_its_current_age_and_a_new_id() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let stage = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    stage.send(&request, 1).await;
    let mut former = String::new();
    for age in [1, 9, 90, 3_000] {
        stage.clock.pass(Span::from_secs(age));
        let answer = stage.fast(&request).expect("the stage is set");
        assert_ne!(answer, former);
        former = answer;
    }
    assert!(former.contains("\r\nage: 3100\r\n"), "{former}");
}

#[tokio::test]
async fn only_a_plain_request_uses_the_fast_path() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3\r\nETag: \"e\"");
    let stage = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    stage.send(&request, 1).await;
    assert!(stage.fast(&request).is_some());
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
        // `Cache-Control` of a request counts where the rules of HTTP do.
        let is_obeyed = !line.contains("no-cache");
        assert_eq!(stage.fast(&odd).is_none(), is_obeyed, "{line}");
    }
}

#[tokio::test]
async fn only_a_single_complete_request_uses_the_fast_path() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let stage = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    stage.send(&request, 1).await;
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
            .expect("the stage is set")
            .to_owned(),
        String::new(),
    ] {
        assert_eq!(stage.fast(&odd), None, "{odd}");
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
        let stage = FastPathGateway::start(&lines, "abc", TTL).await;
        let request = get("/x/a", "");
        stage.send(&request, 1).await;
        assert_eq!(stage.fast(&request), None, "{lines}");
        let answer = stage.send(&request, 1).await;
        assert!(
            answer.concat().contains("x-tollgate-source: cache"),
            "{lines}"
        );
    }
}

/// It is kept with the time when it came.
#[tokio::test]
async fn a_response_without_a_date_uses_the_fast_path_too() {
    let stage = FastPathGateway::start("Content-Length: 3", "abc", TTL).await;
    stage.send(&get("/x/a", ""), 1).await;
    stage.assert_same(&get("/x/a", "")).await;
}

#[tokio::test]
async fn stale_purged_and_missing_responses_use_the_normal_path() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let stage = FastPathGateway::start(&lines, "abc", TTL).await;
    let request = get("/x/a", "");
    assert_eq!(stage.fast(&request), None);
    stage.send(&request, 1).await;
    assert!(stage.fast(&request).is_some());
    let cache = stage.connection.state.registry.cache().clone();
    cache.purge(Some("x"), None).await;
    assert_eq!(stage.fast(&request), None);
    stage.send(&request, 1).await;
    stage.clock.pass(Span::from_secs(3_600));
    assert_eq!(stage.fast(&request), None);
}

#[tokio::test]
async fn provider_listeners_callers_and_encoded_paths_use_the_fast_path_too() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let door = ListenerKind::Provider("x".to_owned());
    let stage = FastPathGateway::start_kind(&lines, "abc", TTL, &door).await;
    stage.send(&get("/a", ""), 1).await;
    stage.assert_same(&get("/a", "")).await;
    let stage = FastPathGateway::start(&lines, "abc", TTL).await;
    stage.send(&get("/x@web/a", ""), 1).await;
    for path in ["/x@web/a", "/x/a", "/x/%2e%2e/a"] {
        stage.assert_same(&get(path, "")).await;
    }
}

#[tokio::test]
async fn a_remembered_request_ends_with_its_configuration() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let stage = FastPathGateway::start(&lines, "abc", TTL).await;
    let (shop, request) = (&stage.connection.state.registry, get("/x@web/a", ""));
    stage.send(&request, 1).await;
    let mut lane = HitFastPath::new(stage.connection.clone());
    assert!(is_hit(&mut lane, &request));
    assert!(is_hit(&mut lane, &request));
    assert!(!is_hit(&mut lane, &get("/x@web/b", "")));
    assert!(is_hit(&mut lane, &request));
    // Whoever calls itself `web` must prove it from now on.
    shop.set_callers(&[Caller {
        name: "web".to_owned(),
        priority: Priority::Normal,
        at_least: None,
        at_most: None,
        token: Some(Secret::new("t".to_owned())),
    }]);
    assert!(!is_hit(&mut lane, &request));
    shop.set_callers(&[]);
    assert!(is_hit(&mut lane, &request));
    // The same name is another server from now on.
    let elsewhere = format!("name: x\nupstream: http://127.0.0.1:9\n{TTL}\n");
    shop.replace(vec![provider(&elsewhere)])
        .expect("the stage is set");
    assert!(!is_hit(&mut lane, &request));
}

#[tokio::test]
async fn after_many_misses_the_fast_path_is_tried_for_one_request_in_eight() {
    let lines = format!("{DATE_LINE}\r\nContent-Length: 3");
    let stage = FastPathGateway::start(&lines, "abc", TTL).await;
    stage.send(&get("/x/kept", ""), 1).await;
    let mut lane = HitFastPath::new(stage.connection.clone());
    for number in 0..MISSES_MAX {
        assert!(!is_hit(&mut lane, &get(&format!("/x/new/{number}"), "")));
    }
    let kept = get("/x/kept", "");
    let until = (1..=MISSES_MAX).find(|_| is_hit(&mut lane, &kept));
    assert_eq!(until, Some(MISSES_MAX));
    assert!(is_hit(&mut lane, &kept), "from then on every time");
}
