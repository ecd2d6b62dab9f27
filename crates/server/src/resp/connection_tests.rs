//! Connections without a socket, in paused time: silence, cuts, and clients that do not read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};
use tokio::task::JoinHandle;
use tollgate_core::time::Wall;
use tollgate_ledger::{Clock, Ledger};

use super::super::fuzzing;
use super::*;

/// A connection, and its task; with a token, if there is one.
fn connection(token: Option<&str>, capacity: usize) -> (DuplexStream, JoinHandle<()>) {
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    let (client, serving) = fuzzing::connection(ledger, token, capacity);
    (client, tokio::spawn(serving))
}

/// How long the task runs, in virtual time.
async fn ends_after(task: JoinHandle<()>) -> Duration {
    #[expect(clippy::disallowed_methods, reason = "virtual time")]
    let began = tokio::time::Instant::now();
    timeout(Duration::from_secs(3_600), task)
        .await
        .expect("it ends")
        .expect("no panic");
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_disconnected_after_five_minutes() {
    let (mut client, task) = connection(None, 1_024);
    client.write_all(b"PING\r\n").await.unwrap();
    let mut reply = [0; 7];
    client.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
    let after = ends_after(task).await;
    assert!((300..=320).contains(&after.as_secs()), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_in_a_command_is_disconnected_soon() {
    let (mut client, task) = connection(None, 1_024);
    client.write_all(b"*1\r\n$4\r\nPI").await.unwrap();
    let after = ends_after(task).await;
    assert!((10..=40).contains(&after.as_secs()), "{after:?}");
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_say_who_it_is_is_disconnected_soon() {
    let (client, task) = connection(Some("canary"), 1_024);
    let after = ends_after(task).await;
    assert!((10..=40).contains(&after.as_secs()), "{after:?}");
    drop(client);
}

/// A stranger that sent something every few seconds kept its place for ever.
#[tokio::test(start_paused = true)]
async fn a_client_that_talks_and_does_not_say_who_it_is_is_disconnected_soon() {
    let (client, task) = connection(Some("canary"), 1 << 20);
    let (mut replies, mut client) = tokio::io::split(client);
    let reading = tokio::spawn(async move { replies.read_to_end(&mut Vec::new()).await });
    let talking = tokio::spawn(async move {
        let mut pause = interval(Duration::from_secs(3));
        for _ in 0..1_000 {
            pause.tick().await;
            if client.write_all(b"PING\r\n").await.is_err() {
                return;
            }
        }
    });
    let after = ends_after(task).await;
    assert!((10..=40).contains(&after.as_secs()), "{after:?}");
    talking.abort();
    reading.abort();
}

/// Nobody read its socket any more, so nobody saw that it had left: a wait of 24 hours stayed.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_behind_a_full_input_is_noticed() {
    let (mut client, task) = connection(None, 1 << 20);
    let take = b"TG.ACQUIRE GUARD task a WAIT 86400000\r\n";
    client.write_all(take).await.unwrap();
    client.write_all(take).await.unwrap();
    // Runs after what waits.
    let behind = b"PING\r\n".repeat(30_000);
    client.write_all(&behind).await.unwrap();
    client.shutdown().await.unwrap();
    let after = ends_after(task).await;
    assert!((50..=90).contains(&after.as_secs()), "{after:?}");
    let mut replies = String::new();
    client.read_to_string(&mut replies).await.unwrap();
    assert!(replies.contains("-ERR more than 144 KiB"), "{replies}");
}

/// Commands that waited made `NOWAIT` an error whose remedy was to send `NOWAIT`.
#[tokio::test(start_paused = true)]
async fn only_a_command_that_waits_takes_a_place() {
    // This listener has one place.
    let (mut client, task) = connection(None, 1 << 20);
    let ask = |rest: &str| format!("TG.ACQUIRE GUARD task a {rest}\r\n");
    let batch = ["", "WAIT 86400000", "NOWAIT", "WAIT 86400000"].map(ask);
    client.write_all(batch.concat().as_bytes()).await.unwrap();
    client.write_all(b"QUIT\r\n").await.unwrap();
    let mut replies = String::new();
    client.read_to_string(&mut replies).await.unwrap();
    let granted: Vec<_> = replies.match_indices("$7\r\ngranted\r\n:1").collect();
    let denied: Vec<_> = replies.match_indices("$7\r\ngranted\r\n:0").collect();
    assert_eq!((granted.len(), denied.len()), (2, 1), "{replies}");
    assert!(replies.ends_with("(nothing was counted)\r\n+OK\r\n"));
    task.await.unwrap();
}

/// Its replies would fill the memory otherwise.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_disconnected() {
    let (mut client, task) = connection(None, 64);
    // The replies do not fit into the pipe, and nobody takes them.
    client.write_all(b"PING\r\nINFO\r\n").await.unwrap();
    let after = ends_after(task).await;
    assert!((25..=45).contains(&after.as_secs()), "{after:?}");
    drop(client);
}

/// As many replies as one write takes are written in the middle of a batch.
#[tokio::test(start_paused = true)]
async fn a_batch_with_large_replies_is_written_in_parts() {
    let (mut client, task) = connection(None, 1 << 20);
    let batch = b"INFO\r\n".repeat(2_000);
    client.write_all(&batch).await.unwrap();
    client.write_all(b"QUIT\r\n").await.unwrap();
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).await.unwrap();
    let count = replies
        .windows(13)
        .filter(|one| one == b"redis_version")
        .count();
    assert_eq!(count, 2_000);
    assert!(replies.ends_with(b"+OK\r\n"));
    task.await.unwrap();
}

/// A stream that counts the writes.
struct CountedWrites {
    stream: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl ClientStream for CountedWrites {
    fn hung_up(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

impl AsyncRead for CountedWrites {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountedWrites {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// All that is buffered is decided, then written at once: a write is a packet and a system call.
#[tokio::test(start_paused = true)]
async fn a_pipeline_is_one_write() {
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = CountedWrites {
        stream,
        writes: writes.clone(),
    };
    let task = tokio::spawn(fuzzing::serving(ledger, None, counted));
    let throttle = b"CL.THROTTLE k 15 30 60\r\n";
    for batch in 1..=3 {
        client.write_all(&throttle.repeat(100)).await.unwrap();
        // Each reply is an array of five integers.
        let mut lines = 0;
        while lines < 600 {
            let mut some = [0; 4_096];
            let read = client.read(&mut some).await.unwrap();
            lines += some[..read].iter().filter(|byte| **byte == b'\n').count();
        }
        assert_eq!(writes.load(Ordering::Relaxed), batch);
    }
    drop(client);
    task.await.unwrap();
}
