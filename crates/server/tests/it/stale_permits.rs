//! A stale permit is not used: the call asks for a new one.

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tollgate_core::time::Span;
use tollgate_ledger::Clock;

use crate::client::{get, pause, wait_until, within_timeout};
use crate::log;
use crate::raw_upstream::read_head;
use crate::test_gateway::{TestGateway, file};

/// A listener whose queue two connections fill: the kernel accepts a third one only when it retries
/// again, a second later.
fn listener_with_backlog_one() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(1).unwrap()
}

async fn answer(stream: &mut TcpStream, more: &str) {
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{more}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Nothing is written under a permit older than 500 ms. The connection that was ready dies while
/// its call waits, and the next one takes a second to open: the permit goes back, the call asks
/// again, and is sent once.
#[tokio::test]
async fn a_permit_older_than_500_ms_is_not_used() {
    let listener = listener_with_backlog_one();
    let rest = "name: slow\nconcurrency: 1\nlimits: [2/1h]\nhealth: off";
    let address = listener.local_addr().unwrap();
    let gateway = TestGateway::start(&[file(address, rest).replacen("name: x\n", "", 1)]).await;
    let active = gateway.registry.named("slow").unwrap();
    let first = tokio::spawn(get(gateway.address, "/slow/first"));
    let (mut one, _) = within_timeout(listener.accept()).await.unwrap();
    read_head(&mut one).await;
    let second = tokio::spawn(get(gateway.address, "/slow/second"));
    let (two, _) = within_timeout(listener.accept()).await.unwrap();
    wait_until(|| active.waiting() == 1).await;
    drop(two);
    let mut fillers = Vec::new();
    for _ in 0..2 {
        fillers.push(within_timeout(TcpStream::connect(address)).await.unwrap());
    }
    answer(&mut one, "Connection: close\r\n").await;
    assert_eq!(within_timeout(first).await.unwrap().status, 200);
    let granted = Clock::System.now().at;
    pause(300).await;
    for _ in 0..2 {
        drop(within_timeout(listener.accept()).await.unwrap());
    }
    let (mut three, _) = within_timeout(listener.accept()).await.unwrap();
    assert!(read_head(&mut three).await.starts_with("GET /second"));
    let later = Clock::System.now().at.since(granted);
    assert!(
        later > Span::from_millis(500),
        "a test must be able to fail: {later}"
    );
    answer(&mut three, "").await;
    let answer = within_timeout(second).await.unwrap();
    assert_eq!(
        (answer.status, answer.header("x-tollgate-attempts")),
        (200, "1")
    );
    let log = log::captured();
    let line = log.lines().find(|line| line.contains("stale_permit"));
    assert!(line.is_some_and(|line| line.contains("slow")), "{log}");
}
