//! Connections without a socket, in paused time: silence, cuts, and clients that do not read.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::io::{DuplexStream, duplex};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tollgate::ProviderRegistry;
use tollgate::providers::Options;
use tollgate_config::{Config, Environment, PathKind, Secret, Sources};
use tollgate_core::time::Wall;
use tollgate_ledger::{Clock, Ledger};

use super::super::session::Door;
use super::*;
use crate::daemon::Daemon;
use crate::gateway::ConnectionCap;

fn world() -> Environment<'static> {
    Environment {
        env: &|_| None,
        env_names: &Vec::new,
        read_file: &|_| Err("there is no file".to_owned()),
        path_kind: &|_| Ok(PathKind::Nothing),
    }
}

/// A connection of a daemon without providers, and its task; with a token, if there is one.
fn connection(token: Option<&str>, capacity: usize) -> (DuplexStream, JoinHandle<()>) {
    let sources = Sources {
        only_named: true,
        ..Sources::default()
    };
    let loaded = Config::load(&sources, &world()).expect("no files");
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    let registry = ProviderRegistry::build(Vec::new(), ledger, Options::default());
    let daemon = Daemon::new(registry.expect("no providers"), sources, loaded, world);
    let door = Arc::new(Door {
        daemon,
        token: token.map(|token| Secret::new(token.to_owned())),
        is_open: token.is_none(),
        clients: AtomicUsize::new(0),
        waiting: Arc::new(Semaphore::new(1)),
    });
    let cap = Arc::new(ConnectionCap::new(1, 1, false));
    let slot = cap.try_acquire([127, 0, 0, 1].into()).expect("a place");
    let place = door.place(slot);
    let session = Session::new(door, 1, None);
    let (client, server) = duplex(capacity);
    let (shutdown, over) = (watch::Sender::new(false), watch::Sender::new(false));
    let signal = ShutdownSignal::new(shutdown.subscribe(), over.subscribe());
    let task = tokio::spawn(async move {
        serve(server, session, place, signal).await;
        drop((shutdown, over));
    });
    (client, task)
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
