//! Calls of a governed client that are dropped, over sockets: at each point the next call goes when
//! it may.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tollgate::reqwest::Governed;
use tollgate::tower::GovernLayer;
use tollgate::{Call, Provider, RequestBody, Tollgate};
use tower_layer::Layer;

use crate::fake_client::send;

/// How long a slot is held for a call that was sent and given up: long enough to notice.
const LATE: Duration = Duration::from_secs(1);

/// A call, until its body has been read; a text says what went wrong.
type Sent = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A governed client of any kind: sends to this path, within this time.
type Sender = Box<dyn Fn(&str, Duration) -> Sent>;

/// One call at a time.
async fn senders(url: &str) -> [(&'static str, Tollgate, Sender); 2] {
    let provider = || {
        let provider = Provider::new("x").domain("api.example.org").upstream(url);
        provider.concurrency(1).set("late_arrival", "1s")
    };
    let start = async || {
        let builder = Tollgate::builder().provider(provider()).expect("valid");
        builder.build().await.expect("it starts")
    };
    let (of_reqwest, of_tower) = (start().await, start().await);
    let client = Governed::new(&of_reqwest, reqwest::Client::builder()).expect("a client");
    let governed: Sender = Box::new(move |path, most| {
        let request = client.get(format!("https://api.example.org{path}"));
        let call = request.dedup(false).timeout(most).send();
        Box::pin(async move {
            let response = call.await.map_err(|error| error.to_string())?;
            let read = response.bytes().await.map_err(|error| error.to_string());
            read.map(drop)
        })
    });
    let client = Client::builder(TokioExecutor::new()).build_http::<RequestBody>();
    let client = GovernLayer::new(&of_tower).layer(client);
    let layered: Sender = Box::new(move |path, most| {
        let call = Call::unaddressed().dedup(false).timeout(most);
        let request = http::Request::get(format!("https://api.example.org{path}"));
        let request = request.extension(call).body(Empty::<bytes::Bytes>::new());
        let (client, request) = (client.clone(), request.unwrap());
        Box::pin(async move {
            let response = send(&client, request).await;
            let body = response.map_err(|error| error.to_string())?.into_body();
            let read = body.collect().await.map_err(|error| error.to_string());
            read.map(drop)
        })
    });
    [
        ("reqwest", of_reqwest, governed),
        ("tower", of_tower, layered),
    ]
}

/// Responds to `/now` at once, to `/half` with half a response, and to everything else never.
async fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(respond(stream));
        }
    });
    format!("http://{address}")
}

async fn respond(mut stream: TcpStream) {
    let mut head = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut head).await {
        let (head, _) = head.split_at(read);
        let response: &[u8] = if head.starts_with(b"GET /now ") {
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
        } else if head.starts_with(b"GET /half ") {
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"
        } else {
            b""
        };
        if stream.write_all(response).await.is_err() {
            return;
        }
    }
}

/// A call that waits for its turn, or that nobody has polled, has taken nothing when it is dropped.
#[tokio::test]
async fn a_call_dropped_while_it_waits_takes_nothing() {
    let url = server().await;
    for (name, tollgate, send) in senders(&url).await {
        drop(send("/now", LATE));
        let held = tollgate.acquire("x").await.expect("the only slot");
        for _ in 0..3 {
            let waiting = timeout(Duration::from_millis(50), send("/now", LATE * 9));
            assert!(waiting.await.is_err(), "{name}: it waits");
        }
        held.release();
        let began = Instant::now();
        send("/now", LATE / 2).await.expect(name);
        assert!(began.elapsed() < LATE / 2, "{name}");
    }
}

/// Dropped after its bytes left, before or in the middle of its response: the call may still run at
/// the provider, so its slot comes free after `late_arrival`, and a call that cannot wait so long is
/// told when to come back.
#[tokio::test]
async fn the_slot_of_a_call_dropped_on_its_way_comes_free_at_a_known_time() {
    let url = server().await;
    for path in ["/never", "/half"] {
        for (name, _tollgate, send) in senders(&url).await {
            send("/now", LATE).await.expect("a free slot");
            let dropped = timeout(LATE / 5, send(path, LATE * 9)).await;
            assert!(dropped.is_err(), "{name} {path}: no whole response");
            let began = Instant::now();
            let error = send("/now", LATE / 5).await.expect_err("its slot is held");
            assert!(began.elapsed() < LATE / 2, "{name} {path}: {error}");
            send("/now", LATE * 5).await.expect(name);
            let waited = began.elapsed();
            assert!(
                waited > LATE / 2 && waited < LATE * 3,
                "{name} {path}: {waited:?}"
            );
        }
    }
}

/// Dropped while its client still connects: the client says of no byte that it has not left, so the
/// slot comes free as after a call that was sent.
#[tokio::test]
async fn a_call_dropped_while_it_connects_gives_its_slot_back() {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    // Nobody accepts: as soon as the backlog is full, further connections hang.
    let mut backlog = Vec::new();
    while let Ok(Ok(stream)) = timeout(LATE / 10, TcpStream::connect(address)).await {
        backlog.push(stream);
    }
    for (name, tollgate, send) in senders(&format!("http://{address}")).await {
        let dropped = timeout(LATE / 5, send("/now", LATE * 9)).await;
        assert!(dropped.is_err(), "{name}: it connects");
        let permit = tollgate
            .acquire(Call::provider("x").timeout(LATE * 5))
            .await;
        permit.expect("the slot is free again").release();
    }
}
