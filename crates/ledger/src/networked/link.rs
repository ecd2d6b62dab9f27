//! A connection that is made again whenever it is lost.
//!
//! Promises: it connects by itself, at jittered intervals, so that many clients of a server that
//! comes back do not all arrive at once. A request waits for the connection that is being made; if
//! that fails, it gets the reason. A connection on which a request got no reply is checked, and
//! replaced if nothing comes back on it.
//!
//! Never: sends anything but that check.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::pause;

/// A connection that takes longer to make is tried again: a round trip around the world is 0.4 s,
/// and TLS takes three.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// A connection on which a request got no reply by its deadline gets so much more time to show that
/// it works: the server may have been busy, and cancels what takes too long.
const CHECK_WITHIN: Duration = Duration::from_millis(500);

/// How long a request waits for the next attempt to connect before it gets the reason of the last.
const RECONNECTED_WITHIN: Duration = Duration::from_millis(250);

/// How long to wait before connecting again: at least half of the first, twice as long after each
/// failure, at most the second.
const RECONNECT_AFTER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A server, while it can be reached and while it cannot.
pub(crate) struct Link<C> {
    shared: Arc<LinkShared<C>>,
    runtime: Handle,
    task: tokio::task::AbortHandle,
}

/// A connection, with a number by which it can be dropped.
#[derive(Clone, Debug)]
pub(crate) struct Numbered<C> {
    pub(crate) connection: C,
    number: u64,
}

/// A connection that can show that it works.
pub(crate) trait Checked: Clone + Send + Sync + 'static {
    /// Exchanges the least that a server responds to. `false`: it does not work.
    fn check(self) -> impl Future<Output = bool> + Send;
}

/// A request under way on a connection. If this is dropped before the request has ended, at its
/// deadline, nobody waits for the reply any more: the connection is checked.
pub(crate) struct RequestGuard<'a, C: Checked> {
    link: &'a Link<C>,
    used: &'a Numbered<C>,
    has_ended: bool,
}

impl<C: Checked> RequestGuard<'_, C> {
    /// There was a reply or an error.
    pub(crate) fn end(mut self) {
        self.has_ended = true;
    }
}

impl<C: Checked> Drop for RequestGuard<'_, C> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.link.check(self.used);
        }
    }
}

/// With this a connection says that it has ended.
pub(crate) struct ConnectionEnd<C> {
    shared: Weak<LinkShared<C>>,
    number: u64,
    /// Another connection was made in its place.
    is_abandoned: Arc<AtomicBool>,
}

struct LinkShared<C> {
    state: watch::Sender<LinkState<C>>,
    /// The connection with this number is broken.
    broken: AtomicU64,
    dropped: Notify,
    /// The last connection that is being checked, or was.
    checked: AtomicU64,
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
    /// Connects with this, now and whenever the connection is lost. A connection that takes longer
    /// to make is tried again.
    pub(crate) fn start(
        runtime: &Handle,
        seed: u64,
        within: Duration,
        connect: impl Fn(ConnectionEnd<C>) -> Connecting<C> + Send + Sync + 'static,
    ) -> Link<C> {
        let shared = Arc::new(LinkShared {
            state: watch::Sender::new(LinkState::Connecting),
            broken: AtomicU64::new(0),
            dropped: Notify::new(),
            checked: AtomicU64::new(0),
        });
        let dice = fastrand::Rng::with_seed(seed);
        let task = runtime.spawn(stay_connected(shared.clone(), dice, within, connect));
        Link {
            shared,
            runtime: runtime.clone(),
            task: task.abort_handle(),
        }
    }

    /// The connection. While there is none, the one that is made next, or why it could not be made.
    pub(crate) async fn connection(&self) -> Result<Numbered<C>, Arc<str>> {
        let mut state = self.shared.state.subscribe();
        let down = match &*state.borrow_and_update() {
            LinkState::Down(why) => Some(why.clone()),
            LinkState::Connecting | LinkState::Up(_) => None,
        };
        if let Some(why) = down {
            // Who asks has a deadline, and should know the reason by then.
            let changed = tokio::time::timeout(RECONNECTED_WITHIN, state.changed()).await;
            changed.map_err(|_| why)?.ok();
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

impl<C: Checked> Link<C> {
    /// A request begins on this connection.
    pub(crate) fn request<'a>(&'a self, used: &'a Numbered<C>) -> RequestGuard<'a, C> {
        RequestGuard {
            link: self,
            used,
            has_ended: false,
        }
    }

    /// Makes another connection instead of this one if it does not work. One check at a time.
    fn check(&self, used: &Numbered<C>) {
        let shared = self.shared.clone();
        if shared.checked.swap(used.number, Ordering::AcqRel) == used.number {
            return;
        }
        let used = used.clone();
        self.runtime.spawn(async move {
            let works = tokio::time::timeout(CHECK_WITHIN, used.connection.check()).await;
            match works {
                Ok(true) => shared.checked.store(0, Ordering::Release),
                Ok(false) | Err(_) => shared.drop_connection(used.number),
            }
        });
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
    /// For another try at the same connection, and what abandons that try.
    #[cfg(feature = "postgres")]
    pub(crate) fn for_one_try(&self) -> (ConnectionEnd<C>, Arc<AtomicBool>) {
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let end = ConnectionEnd {
            shared: self.shared.clone(),
            number: self.number,
            is_abandoned: is_abandoned.clone(),
        };
        (end, is_abandoned)
    }

    /// The connection has ended: another one is made.
    pub(crate) fn ended(&self) {
        if let Some(shared) = self.shared.upgrade()
            && !self.is_abandoned.load(Ordering::Acquire)
        {
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
    within: Duration,
    connect: impl Fn(ConnectionEnd<C>) -> Connecting<C>,
) {
    let (first, longest) = RECONNECT_AFTER;
    let mut delay = first;
    for number in 1.. {
        let end = ConnectionEnd {
            shared: Arc::downgrade(&shared),
            number,
            is_abandoned: Arc::default(),
        };
        let made = tokio::time::timeout(within, connect(end)).await;
        match made.unwrap_or_else(|_| Err(no_connection(within))) {
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

/// What happened, and what to do.
pub(crate) fn no_connection(within: Duration) -> String {
    let within = within.as_secs();
    format!(
        "no connection within {within} s; check that the server runs and can be reached from this host"
    )
}
