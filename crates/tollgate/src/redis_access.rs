//! A Redis server that calls can do without: for guards and for cached responses.
//!
//! Promises: a request has a deadline. When one fails, the server counts as lost, and from then on nobody
//! waits for it: one task per process tries it, at growing and random intervals, so that many nodes do
//! not all return at once. A server is back when it takes a write.
//!
//! Never: sends a request twice. What was sent before a deadline may have been done.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, RedisError};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::Ledger;
use tollgate_ledger::redis::{RedisAddress, RedisConnection, RedisLink, RedisSession};

/// How long the task waits before it tries a lost server: at least half of the first, twice as long after
/// each failure, at most the second.
const TRY_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// How long the key exists that is written to see whether the server takes writes, in milliseconds.
const PROBE_EXPIRY_MS: u64 = 1_000;

/// The server is lost. What to do meanwhile is the caller's matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable;

/// What has become of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessChange {
    /// It is lost, and why.
    Lost(Arc<str>),
    /// It is back after so long.
    Back(Span),
}

/// A server that is lost.
#[derive(Clone, Debug)]
pub(crate) struct RedisLoss {
    pub(crate) since: Micros,
    pub(crate) why: Arc<str>,
}

/// Hears of changes.
type Report = Box<dyn Fn(&AccessChange) + Send + Sync>;

/// A Redis server, while it can be reached and while it cannot.
pub(crate) struct RedisAccess {
    address: RedisAddress,
    deadline: Duration,
    /// Written to see whether the server takes writes, by whether it is a node of a Redis Cluster.
    probe_key: fn(bool) -> &'static str,
    /// Made with the first request, which runs in a runtime.
    link: OnceLock<RedisLink>,
    session: Arc<AccessSession>,
    is_lost: AtomicBool,
    loss: Mutex<Option<RedisLoss>>,
    /// Its clock tells how long the server was lost.
    ledger: Ledger,
    report: Report,
}

impl fmt::Debug for RedisAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisAccess");
        shown.field("address", &self.address);
        shown
            .field("is_lost", &self.is_lost)
            .finish_non_exhaustive()
    }
}

impl RedisAccess {
    /// Connects with the first request. `probe_key` is one that nobody else uses,
    /// on a plain server and (`true`) on a node of a Redis Cluster.
    pub(crate) fn new(
        address: RedisAddress,
        deadline: Duration,
        probe_key: fn(bool) -> &'static str,
        ledger: Ledger,
        report: impl Fn(&AccessChange) + Send + Sync + 'static,
    ) -> Arc<RedisAccess> {
        Arc::new(RedisAccess {
            address,
            deadline,
            probe_key,
            link: OnceLock::new(),
            session: Arc::default(),
            is_lost: AtomicBool::new(false),
            loss: Mutex::new(None),
            ledger,
            report: Box::new(report),
        })
    }

    /// Connects now, in the current runtime, with this hook.
    #[cfg(feature = "cache")]
    pub(crate) fn connect(&self, hook: Arc<dyn SessionHook>) {
        let _first = self.session.hook.set(hook);
        self.link();
    }

    /// Sends a request on a connection, and waits for its reply until the deadline.
    pub(crate) async fn request<T, F>(
        self: &Arc<Self>,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, Unavailable>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        if self.is_lost.load(Ordering::Acquire) {
            return Err(Unavailable);
        }
        self.attempt(send).await.map_err(|why| {
            self.lose(&why);
            Unavailable
        })
    }

    /// Why the server is lost, if it is.
    pub(crate) fn loss(&self) -> Option<RedisLoss> {
        self.loss.lock().clone()
    }

    /// Whether the server is a node of a Redis Cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.session.is_cluster.load(Ordering::Relaxed)
    }

    async fn attempt<T, F>(
        &self,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, String>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let link = self.link();
        let mut used = None;
        let replied = timeout(self.deadline, async {
            let mut connection = link.connection().await.map_err(|why| why.to_string())?;
            let requests = connection.requests().clone();
            let connection: &RedisConnection = used.insert(connection);
            let reply = send(requests).await;
            reply.map_err(|error| link.failed(connection, &error))
        });
        let Ok(replied) = replied.await else {
            if let Some(connection) = &used {
                link.drop_connection(connection);
            }
            return Err(format!(
                "Redis at {} did not reply within {} ms; check that it runs and can be reached from this host",
                link.address(),
                self.deadline.as_millis()
            ));
        };
        replied
    }

    fn link(&self) -> &RedisLink {
        self.link.get_or_init(|| {
            let seed = RandomState::new().hash_one(0_u8);
            RedisLink::start(
                &self.address,
                &Handle::current(),
                seed,
                self.session.clone(),
            )
        })
    }

    /// From now on nobody waits for the server, until a task finds that it is back.
    fn lose(self: &Arc<Self>, why: &str) {
        let mut loss = self.loss.lock();
        if loss.is_some() {
            return;
        }
        let why: Arc<str> = why.into();
        *loss = Some(RedisLoss {
            since: self.ledger.at(),
            why: why.clone(),
        });
        self.is_lost.store(true, Ordering::Release);
        drop(loss);
        (self.report)(&AccessChange::Lost(why));
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut dice = fastrand::Rng::with_seed(RandomState::new().hash_one(1_u8));
            let (mut delay, longest) = TRY_AFTER;
            loop {
                let half = delay / 2;
                pause(half + half.mul_f64(dice.f64())).await;
                let Some(access) = weak.upgrade() else { return };
                if access.is_back().await {
                    return;
                }
                delay = (delay * 2).min(longest);
            }
        });
    }

    /// Writes something. If that works, the server is used again.
    async fn is_back(&self) -> bool {
        let mut write = redis::cmd("SET");
        write
            .arg((self.probe_key)(self.is_cluster()))
            .arg(1)
            .arg("PX")
            .arg(PROBE_EXPIRY_MS);
        let written =
            self.attempt(|mut connection| async move { write.exec_async(&mut connection).await });
        if written.await.is_err() {
            return false;
        }
        let mut loss = self.loss.lock();
        self.is_lost.store(false, Ordering::Release);
        let since = loss.take().map(|loss| loss.since);
        drop(loss);
        let away = since.map_or(Span::ZERO, |since| self.ledger.at().since(since));
        (self.report)(&AccessChange::Back(away));
        true
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "only a request shows that a server is back"
)]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// What else is done with each new connection, and with what the server pushes.
pub(crate) trait SessionHook: Send + Sync + fmt::Debug + 'static {
    /// A new connection. An error makes another one, later.
    fn prepare(
        &self,
        connection: MultiplexedConnection,
    ) -> Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send + '_>>;

    /// The server has pushed something.
    fn pushed(&self, push: &PushInfo);
}

/// What is known of the server.
#[derive(Debug, Default)]
struct AccessSession {
    is_cluster: AtomicBool,
    hook: OnceLock<Arc<dyn SessionHook>>,
}

impl RedisSession for AccessSession {
    fn prepare(
        &self,
        mut connection: MultiplexedConnection,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async move {
            let mut info = redis::cmd("INFO");
            info.arg("cluster");
            // A user that may not ask for it is taken for one of a plain server.
            let info: Result<String, RedisError> = info.query_async(&mut connection).await;
            let is_cluster = info.is_ok_and(|info| info.contains("cluster_enabled:1"));
            self.is_cluster.store(is_cluster, Ordering::Relaxed);
            match self.hook.get() {
                Some(hook) => hook
                    .prepare(connection)
                    .await
                    .map_err(|error| error.to_string()),
                None => Ok(()),
            }
        })
    }

    fn pushed(&self, push: PushInfo) {
        if let Some(hook) = self.hook.get() {
            hook.pushed(&push);
        }
    }
}
