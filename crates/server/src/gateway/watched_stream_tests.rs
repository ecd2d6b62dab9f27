//! The timeouts of a watched stream on its own.
#![expect(
    clippy::disallowed_methods,
    reason = "tokio's own time, which is paused here"
)]

use std::time::Duration;

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tollgate::cache::MemfdBody;

/// Not a socket, so no sendfile.
impl SendFile for DuplexStream {
    fn give_handle(&self, _to: &SocketHandle) {}

    fn poll_send_more(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(cx, bytes)
    }

    fn poll_sendfile(
        &mut self,
        _cx: &mut Context<'_>,
        _memfd: &MemfdBody,
        _from: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

async fn dribble(progress: &Arc<RequestProgress>, gap: Duration) -> io::Result<usize> {
    let (mut client, server) = tokio::io::duplex(64);
    let mut stream = WatchedStream::new(server, progress.clone(), ClientTimeouts::default());
    let sending = tokio::spawn(async move {
        for byte in "GET / HTTP/1.1\r\nX-Long: aaaaaaaa".bytes() {
            client.write_all(&[byte]).await.ok();
            tokio::time::sleep(gap).await;
        }
    });
    let mut read = Vec::new();
    let outcome = stream.read_to_end(&mut read).await;
    sending.abort();
    outcome
}

/// R-E1: a slow head times out ten seconds after its first byte.
#[tokio::test(start_paused = true)]
async fn a_slow_head_times_out() {
    let began = tokio::time::Instant::now();
    let error = dribble(&Arc::default(), Duration::from_secs(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn slow_tunnel_bytes_do_not_time_out() {
    let progress = Arc::new(RequestProgress::default());
    progress.become_tunnel();
    let read = dribble(&progress, Duration::from_secs(1)).await.unwrap();
    assert_eq!(read, 32);
}

#[tokio::test(start_paused = true)]
async fn an_idle_start_and_a_slow_body_do_not_time_out() {
    let (mut client, server) = tokio::io::duplex(64);
    let mut stream = WatchedStream::new(server, Arc::default(), ClientTimeouts::default());
    let sending = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(90)).await;
        client
            .write_all(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
            .await
            .unwrap();
        for byte in *b"abc" {
            tokio::time::sleep(Duration::from_secs(20)).await;
            client.write_all(&[byte]).await.unwrap();
        }
    });
    let mut read = String::new();
    stream.read_to_string(&mut read).await.unwrap();
    assert!(read.ends_with("abc"));
    sending.await.unwrap();
}

/// R-C9: a client that reads nothing times out; one that reads slowly does not.
#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_times_out_and_a_slow_one_does_not() {
    let (mut client, server) = tokio::io::duplex(8);
    let mut stream = WatchedStream::new(server, Arc::default(), ClientTimeouts::default());
    let slow = tokio::spawn(async move {
        let mut eight = [0; 8];
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            client.read_exact(&mut eight).await.unwrap();
        }
        client
    });
    stream.write_all(&[0; 40]).await.unwrap();
    let _client = slow.await.unwrap();
    let began = tokio::time::Instant::now();
    let error = stream.write_all(&[0; 40]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), Duration::from_secs(60));
}

/// R-C9: the idle timeout counts from the last request.
#[tokio::test(start_paused = true)]
async fn the_idle_timeout_restarts_after_each_response() {
    let (mut client, server) = tokio::io::duplex(64);
    let progress = Arc::new(RequestProgress::default());
    let mut stream = WatchedStream::new(server, progress.clone(), ClientTimeouts::default());
    let began = tokio::time::Instant::now();
    let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut buffer = [0; 64];
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(40)).await;
        client.write_all(request).await.unwrap();
        let read = stream.read(&mut buffer).await.unwrap();
        assert_eq!(buffer.get(..read), Some(&request[..]));
        assert!(progress.begin_request());
        progress.end_response();
        stream.flush().await.unwrap();
    }
    let error = stream.read(&mut buffer).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), Duration::from_secs(220));
}

#[tokio::test(start_paused = true)]
async fn a_slow_response_is_not_idle_time() {
    let (mut client, server) = tokio::io::duplex(64);
    let progress = Arc::new(RequestProgress::default());
    let mut stream = WatchedStream::new(server, progress.clone(), ClientTimeouts::default());
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        .await
        .unwrap();
    let mut buffer = [0; 64];
    assert_ne!(stream.read(&mut buffer).await.unwrap(), 0);
    assert!(progress.begin_request());
    stream.flush().await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_secs(1_000), stream.read(&mut buffer));
    assert!(waiting.await.is_err(), "timed out during the response");
}
