//! Connections without a socket, in paused time: silence, cuts, and clients that do not read.

use tokio::io::DuplexStream;
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
