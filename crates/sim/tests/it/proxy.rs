//! The client's view of the fault proxy, below any protocol.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tollgate_core::time::Span;
use tollgate_sim::fault_proxy::{FaultProxy, Flow, LinkFaults};

use crate::client::with_timeout;

/// A server that echoes its input; ends with the test.
struct Echo {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Echo {
    async fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut from, mut to) = stream.split();
                    // These tests break connections on purpose.
                    tokio::io::copy(&mut from, &mut to).await.ok();
                });
            }
        });
        Echo {
            address,
            _tasks: tasks,
        }
    }
}

async fn echo_behind_proxy() -> (Echo, FaultProxy) {
    let echo = Echo::start().await;
    let proxy = FaultProxy::start(echo.address, 7)
        .await
        .expect("a free port");
    (echo, proxy)
}

async fn connect(proxy: &FaultProxy) -> TcpStream {
    TcpStream::connect(proxy.address())
        .await
        .expect("a connection")
}

/// Sends a word and reads it back.
async fn ping(stream: &mut TcpStream) {
    stream.write_all(b"ping").await.expect("sent");
    let mut back = [0; 4];
    stream.read_exact(&mut back).await.expect("an echo");
    assert_eq!(&back, b"ping");
}

fn flow(flow: Flow) -> LinkFaults {
    LinkFaults {
        flow,
        ..LinkFaults::default()
    }
}

#[tokio::test]
async fn bytes_pass_unchanged_in_order_and_the_end_is_forwarded() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut stream = connect(&proxy).await;
    let sent: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let (mut from, mut to) = stream.split();
    let write = async {
        to.write_all(&sent).await.expect("sent");
        to.shutdown().await.expect("closed");
    };
    let mut back = Vec::new();
    let read = from.read_to_end(&mut back);
    let ((), got) = tokio::join!(write, read);
    got.expect("an end");
    assert!(back == sent, "{} of {} bytes", back.len(), sent.len());
}

#[tokio::test(start_paused = true)]
async fn each_direction_has_its_own_delay() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut stream = connect(&proxy).await;
    proxy.update(|faults| {
        faults.up.delay = Span::from_secs(3);
        faults.down.delay = Span::from_secs(4);
    });
    let start = now();
    ping(&mut stream).await;
    let passed = now().duration_since(start).as_millis();
    assert!((7_000..7_100).contains(&passed), "{passed} ms");
}

#[tokio::test(start_paused = true)]
async fn jitter_keeps_the_order() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut stream = connect(&proxy).await;
    proxy.update(|faults| faults.up.jitter = Span::from_secs(1));
    for byte in 0..100 {
        stream.write_all(&[byte]).await.expect("sent");
        tokio::task::yield_now().await;
    }
    let mut back = [0; 100];
    stream.read_exact(&mut back).await.expect("an echo");
    assert!(back.is_sorted(), "{back:?}");
}

#[tokio::test]
async fn a_cut_resets_the_connection_after_so_many_bytes() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut stream = connect(&proxy).await;
    ping(&mut stream).await;
    proxy.update(|faults| faults.down.cut_after = Some(6));
    ping(&mut stream).await;
    stream.write_all(b"ping").await.expect("sent");
    // The reset may overtake forwarded bytes; only the end matters.
    let mut back = Vec::new();
    let error = with_timeout(stream.read_to_end(&mut back))
        .await
        .expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(back.len() <= 2, "{back:?}");
}

#[tokio::test]
async fn cut_now_resets_open_connections_and_leaves_new_ones_alone() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut old = connect(&proxy).await;
    ping(&mut old).await;
    proxy.cut();
    let error = with_timeout(old.read_u8()).await.expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    ping(&mut connect(&proxy).await).await;
}

#[tokio::test]
async fn a_half_closed_direction_ends_and_the_other_stays_open() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut stream = connect(&proxy).await;
    ping(&mut stream).await;
    proxy.update(|faults| faults.down = flow(Flow::HalfClose));
    assert_eq!(
        with_timeout(stream.read(&mut [0; 8]))
            .await
            .expect("an end"),
        0
    );
    stream.write_all(b"still open").await.expect("sent");
}

#[tokio::test]
async fn a_stall_holds_bytes_until_it_ends() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let (mut stalled, mut other) = (connect(&proxy).await, connect(&proxy).await);
    proxy.update(|faults| faults.down = flow(Flow::Stall));
    stalled.write_all(b"ping").await.expect("sent");
    other.write_all(b"ping").await.expect("sent");
    let mut back = [0; 4];
    // Nothing arrives although every task has run.
    for _ in 0..100 {
        tokio::task::yield_now().await;
        let error = stalled.try_read(&mut back).expect_err("nothing to read");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    proxy.clear();
    stalled.read_exact(&mut back).await.expect("an echo");
    other.read_exact(&mut back).await.expect("an echo");
}

#[tokio::test]
async fn dropped_replies_never_arrive_although_the_requests_did() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut stream = connect(&proxy).await;
    proxy.update(|faults| faults.down = flow(Flow::Drop));
    stream.write_all(b"lost").await.expect("sent");
    // The end of the stream still comes through: the server has read to the end and closed.
    stream.shutdown().await.expect("closed");
    let mut back = Vec::new();
    with_timeout(stream.read_to_end(&mut back))
        .await
        .expect("an end");
    assert_eq!(back, b"");
}

#[tokio::test]
async fn refused_connections_fail_at_once_and_open_ones_go_on() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut open = connect(&proxy).await;
    ping(&mut open).await;
    proxy.update(|faults| faults.refuse = true);
    // The port closes when the relay has applied the update; connections in its queue are reset.
    while !matches!(
        TcpStream::connect(proxy.address()).await,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused
    ) {
        tokio::task::yield_now().await;
    }
    ping(&mut open).await;
    proxy.update(|faults| faults.refuse = false);
    let mut again = loop {
        match TcpStream::connect(proxy.address()).await {
            Ok(stream) => break stream,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    ping(&mut again).await;
}

#[tokio::test]
async fn a_closed_server_resets_the_client() {
    let echo = Echo::start().await;
    let proxy = FaultProxy::start(echo.address, 7)
        .await
        .expect("a free port");
    drop(echo);
    let mut stream = connect(&proxy).await;
    // Depending on the timing, the reset appears as an error or as an end.
    let seen = with_timeout(stream.read(&mut [0; 8])).await;
    assert!(
        matches!(&seen, Err(error) if error.kind() == ErrorKind::ConnectionReset),
        "{seen:?}"
    );
}

#[tokio::test]
async fn stopping_closes_the_port_and_every_connection() {
    let (_echo, proxy) = echo_behind_proxy().await;
    let mut stream = connect(&proxy).await;
    ping(&mut stream).await;
    let address = proxy.address();
    proxy.stop().await;
    let ended = with_timeout(stream.read(&mut [0; 8])).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    TcpStream::connect(address)
        .await
        .map(|_| ())
        .expect_err("the port is closed");
}

#[expect(
    clippy::disallowed_methods,
    reason = "reads paused time to see how far it moved"
)]
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}
