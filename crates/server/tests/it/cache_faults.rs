//! Bodies on their way into the cache: slow, large, truncated or abandoned. Nothing partial is
//! cached, and nobody waits for the cache.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tollgate::cache::Cache;
use tollgate::providers::Options;
use tollgate_sim::test_host::TempFolder;

use crate::cache::counting;
use crate::client::{Session, get, read_response, request, wait_until, within_timeout};
use crate::streaming::ChannelBody;
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, reply};

const REST: &str = "limits: [1000/1s]\ncache: {ttl: 1h}\nhealth: off\nretry: {retries: {high: 0, normal: 0, low: 0}}";

fn source(response: &crate::client::ClientResponse) -> &str {
    response.header("x-tollgate-source")
}

/// The first response streams frames from a channel; the others contain their number.
async fn streaming_at_first() -> (Upstream, mpsc::Sender<Frame<Bytes>>) {
    let (sender, frames) = mpsc::channel(64);
    let frames = parking_lot::Mutex::new(Some(frames));
    let upstream = Upstream::start(move |number, _| {
        let frames = frames.lock().take();
        async move {
            match frames {
                Some(frames) => Response::new(ChannelBody(frames).boxed()),
                None => reply(200, &[], &number.to_string()),
            }
        }
    })
    .await;
    (upstream, sender)
}

/// A client disconnect in the middle stores nothing partial; the next client gets a complete
/// response.
#[tokio::test]
async fn a_client_disconnect_mid_body_stores_nothing_partial() {
    let (upstream, sender) = streaming_at_first().await;
    let gateway = TestGateway::start(&[file(upstream.address, REST)]).await;
    sender.send(Frame::data(Bytes::from("half"))).await.unwrap();
    let mut session = Session::open(gateway.address).await;
    let mut body = session
        .send(request("GET", "/x/a", &[], ""))
        .await
        .into_body();
    assert_eq!(
        within_timeout(body.frame())
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "half"
    );
    drop((body, session));
    wait_until(|| sender.is_closed()).await;
    let next = get(gateway.address, "/x/a").await;
    assert_eq!((source(&next), next.body.as_str()), ("upstream", "1"));
    let kept = get(gateway.address, "/x/a").await;
    assert_eq!((source(&kept), kept.body.as_str()), ("cache", "1"));
}

/// A truncated upstream response, with and without a length, is visibly truncated for the client
/// and not cached.
#[tokio::test]
async fn a_truncated_response_is_not_cached() {
    for half in [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\n\r\nends with its connection",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = tokio::spawn(async move {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = [0; 1024];
                assert!(stream.read(&mut buffer).await.unwrap() > 0);
                stream.write_all(half.as_bytes()).await.unwrap();
            }
        });
        let gateway = TestGateway::start(&[file(address, REST)]).await;
        for _ in 0..2 {
            let mut session = Session::open(gateway.address).await;
            let response = session.send(request("GET", "/x/a", &[], "")).await;
            assert_eq!(
                response.headers()["x-tollgate-source"],
                "upstream",
                "{half}"
            );
            let is_cut = within_timeout(response.into_body().collect())
                .await
                .is_err();
            assert_eq!(is_cut, !half.contains("ends with"), "{half}");
        }
        within_timeout(cuts).await.unwrap();
        assert!(gateway.registry.cache().usage().await.is_empty(), "{half}");
    }
}

/// Sends a request and reads the beginning of the response.
async fn begun(to: std::net::SocketAddr) -> (tokio::net::TcpStream, Vec<u8>) {
    // A small receive buffer stops the response in the middle of its file.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    let request = b"GET /x/a HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut read = vec![0; 2_000];
    stream.read_exact(&mut read).await.unwrap();
    (stream, read)
}

/// Clients that disconnect or stall in the middle of a large cached response, sent as a file, do
/// not affect others, and a client that resumes reading gets the rest.
#[tokio::test]
async fn a_stalled_or_disconnected_reader_of_a_cached_file_affects_nobody() {
    let text: String = (0..170_000).map(|number| format!("{number:06}")).collect();
    let response = text.clone();
    let upstream = Upstream::start(move |_, _| {
        let response = response.clone();
        async move { reply(200, &[], &response) }
    })
    .await;
    let rest = "limits: [100/1s]\ncache: {ttl: 1h}";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    assert_eq!(get(gateway.address, "/x/a").await.body.len(), text.len());
    let (mut manual, mut read) = begun(gateway.address).await;
    for _ in 0..20 {
        drop(begun(gateway.address).await);
    }
    let other = get(gateway.address, "/x/a").await;
    assert_eq!(other.header("x-tollgate-source"), "cache");
    assert!(other.body == text);
    let head = read
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap()
        + 4;
    let mut rest = vec![0; head + text.len() - read.len()];
    within_timeout(manual.read_exact(&mut rest)).await.unwrap();
    read.extend(rest);
    assert!(read.ends_with(text.as_bytes()));
    assert_eq!(upstream.count(), 1);
}

/// A large response with a slow reader blocks nobody, is cached completely, and is on disk
/// afterwards.
#[tokio::test]
async fn a_slow_reader_of_a_large_response_blocks_nobody() {
    let (upstream, sender) = streaming_at_first().await;
    let folder = TempFolder::unmade("gateway-cache");
    let options = Options {
        cache: Cache::open(folder.path(), &tollgate::event::Events::new()),
        ..Options::default()
    };
    let gateway = TestGateway::start_with(&[file(upstream.address, REST)], options).await;
    let mut session = Session::open(gateway.address).await;
    let (pieces, piece) = (96, Bytes::from(vec![b'x'; 65_536]));
    let sending = tokio::spawn(async move {
        for _ in 0..pieces {
            sender.send(Frame::data(piece.clone())).await.unwrap();
        }
    });
    let slow = session.send(request("GET", "/x/large", &[], "")).await;
    // No client reads it, and others are served all the same.
    for number in 1..4 {
        let other = get(gateway.address, &format!("/x/{number}")).await;
        assert_eq!(other.body, number.to_string());
    }
    assert_eq!(read_response(slow).await.body.len(), pieces * 65_536);
    within_timeout(sending).await.unwrap();
    let kept = get(gateway.address, "/x/large").await;
    assert_eq!((source(&kept), kept.body.len()), ("cache", pieces * 65_536));
    gateway.registry.cache().flush().await;
    let rows = tollgate::cache::usage(folder.path()).unwrap();
    let large = rows
        .iter()
        .find(|row| row.entity.as_deref() == Some("large"));
    assert!(large.is_some_and(|row| row.bytes > 6_000_000), "{rows:?}");
}

/// An oversized response, announced or not, is forwarded completely and not cached.
#[tokio::test]
async fn an_oversized_response_is_forwarded_and_not_cached() {
    let upstream = Upstream::start(|_, received| async move {
        let text = "y".repeat(3_000);
        if received.target == "/announced" {
            return reply(200, &[], &text);
        }
        let (sender, frames) = mpsc::channel(4);
        for piece in text.as_bytes().chunks(1_000) {
            let piece = Bytes::copy_from_slice(piece);
            sender.try_send(Frame::data(piece)).unwrap();
        }
        let body = ChannelBody(frames);
        Response::new(BodyExt::map_err(body, |never: Infallible| match never {}).boxed())
    })
    .await;
    let rest = REST.replace("ttl: 1h", "ttl: 1h, max_object: 2KiB");
    let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
    for path in ["/x/announced", "/x/streamed"] {
        for _ in 0..2 {
            let response = get(gateway.address, path).await;
            assert_eq!(
                (source(&response), response.body.len()),
                ("upstream", 3_000)
            );
        }
    }
    assert!(gateway.registry.cache().usage().await.is_empty());
}

/// R-G: `cache.db` may be removed, locked or corrupted while the gateway runs: calls continue.
#[tokio::test]
async fn the_gateway_serves_while_cache_db_is_missing_locked_or_corrupt() {
    let folder = TempFolder::unmade("gateway-cache");
    let upstream = counting().await;
    let options = Options {
        cache: Cache::open(folder.path(), &tollgate::event::Events::new()),
        ..Options::default()
    };
    let gateway = TestGateway::start_with(&[file(upstream.address, REST)], options).await;
    let serves = async |path: &str| {
        let first = get(gateway.address, path).await;
        assert_eq!((first.status, source(&first)), (200, "upstream"), "{path}");
        let second = get(gateway.address, path).await;
        assert_eq!(source(&second), "cache", "{path}");
        assert_eq!(first.body, second.body);
    };
    serves("/x/before").await;
    gateway.registry.cache().flush().await;
    let database = folder.path().join(tollgate::cache::DATABASE);
    let holder = std::fs::File::options()
        .write(true)
        .open(&database)
        .unwrap();
    holder.set_len(0).unwrap();
    serves("/x/emptied").await;
    std::fs::write(&database, "rubbish").unwrap();
    serves("/x/rubbish").await;
    std::fs::remove_dir_all(folder.path()).unwrap();
    serves("/x/gone").await;
    assert!(gateway.registry.cache().purge(None, None).await > 0);
    assert_eq!(source(&get(gateway.address, "/x/before").await), "upstream");
}
