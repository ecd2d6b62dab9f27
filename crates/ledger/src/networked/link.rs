//! A connection that is made again whenever it is lost.
//!
//! Promises: it connects by itself, at jittered intervals, so that many clients of a server that
//! comes back do not all arrive at once. A request waits for the connection that is being made; if
//! that fails, it gets the reason.
//!
//! Never: sends anything.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::pause;

/// A connection that takes longer to make is tried again: a round trip around the world is 0.4 s,
/// and TLS takes three.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// How long to wait before connecting again: at least half of the first, twice as long after each
/// failure, at most the second.
const RECONNECT_AFTER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A server, while it can be reached and while it cannot.
pub(crate) struct Link<C> {
    shared: Arc<LinkShared<C>>,
    task: tokio::task::AbortHandle,
}

/// A connection, with a number by which it can be dropped.
#[derive(Clone, Debug)]
pub(crate) struct Numbered<C> {
    pub(crate) connection: C,
    number: u64,
}

/// With this a connection says that it has ended.
pub(crate) struct ConnectionEnd<C> {
    shared: Weak<LinkShared<C>>,
    number: u64,
}

struct LinkShared<C> {
    state: watch::Sender<LinkState<C>>,
    /// The connection with this number is broken.
    broken: AtomicU64,
    dropped: Notify,
}

#[derive(Clone)]
enum LinkState<C> {
    Connecting,
    Up(Numbered<C>),
    Down(Arc<str>),
}

/// A connection in the making.
pub(crate) type Connecting<C> = Pin<Box<dyn Future<Output = Result<C, String>> + Send>>;

impl<C: Clone + Send + Sync + 'static> Link<C> {
    /// Connects with this, now and whenever the connection is lost.
    pub(crate) fn start(
        runtime: &Handle,
        seed: u64,
        connect: impl Fn(ConnectionEnd<C>) -> Connecting<C> + Send + Sync + 'static,
    ) -> Link<C> {
        let shared = Arc::new(LinkShared {
            state: watch::Sender::new(LinkState::Connecting),
            broken: AtomicU64::new(0),
            dropped: Notify::new(),
        });
        let dice = fastrand::Rng::with_seed(seed);
        let task = runtime.spawn(stay_connected(shared.clone(), dice, connect));
        Link {
            shared,
            task: task.abort_handle(),
        }
    }

    /// The connection. While there is none, the one that is made next, or why it could not be made.
    pub(crate) async fn connection(&self) -> Result<Numbered<C>, Arc<str>> {
        let mut state = self.shared.state.subscribe();
        if matches!(&*state.borrow_and_update(), LinkState::Down(_)) {
            drop(state.changed().await);
        }
        let is_known = |state: &LinkState<C>| !matches!(state, LinkState::Connecting);
        match state.wait_for(is_known).await.as_deref() {
            Ok(LinkState::Up(connection)) => Ok(connection.clone()),
            Ok(LinkState::Down(why)) => Err(why.clone()),
            Ok(LinkState::Connecting) | Err(_) => Err("the connection was closed".into()),
        }
    }

    /// Makes another connection instead of this one.
    pub(crate) fn drop_connection(&self, connection: &Numbered<C>) {
        self.shared.drop_connection(connection.number);
    }
}

impl<C> Numbered<C> {
    /// Each connection has another one.
    #[cfg(feature = "postgres")]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl<C> LinkShared<C> {
    fn drop_connection(&self, number: u64) {
        self.broken.fetch_max(number, Ordering::AcqRel);
        self.dropped.notify_one();
    }
}

impl<C> ConnectionEnd<C> {
    /// The connection has ended: another one is made.
    pub(crate) fn ended(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.drop_connection(self.number);
        }
    }
}

impl<C> Drop for Link<C> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<C> fmt::Debug for Link<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

async fn stay_connected<C: Clone + Send + Sync + 'static>(
    shared: Arc<LinkShared<C>>,
    mut dice: fastrand::Rng,
    connect: impl Fn(ConnectionEnd<C>) -> Connecting<C>,
) {
    let (first, longest) = RECONNECT_AFTER;
    let mut delay = first;
    for number in 1.. {
        let end = ConnectionEnd {
            shared: Arc::downgrade(&shared),
            number,
        };
        let made = tokio::time::timeout(CONNECT_WITHIN, connect(end)).await;
        match made.unwrap_or_else(|_| Err(no_connection())) {
            Ok(connection) => {
                delay = first;
                let connection = Numbered { connection, number };
                shared.state.send_replace(LinkState::Up(connection));
                while shared.broken.load(Ordering::Acquire) < number {
                    shared.dropped.notified().await;
                }
            }
            Err(why) => {
                shared.state.send_replace(LinkState::Down(why.into()));
                delay = (delay * 2).min(longest);
            }
        }
        let half = delay / 2;
        pause(half + half.mul_f64(dice.f64())).await;
        shared.state.send_replace(LinkState::Connecting);
    }
}

fn no_connection() -> String {
    let within = CONNECT_WITHIN.as_secs();
    format!(
        "no connection within {within} s; check that the server runs and can be reached from this host"
    )
}
