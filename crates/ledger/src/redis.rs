//! A ledger on a Redis server: rows are strings, and one script per batch compares and replaces
//! them.
//!
//! All keys of a provider share a hash tag, `tg:{tmdb}:…`. The epoch is the server's
//! `master_replid`, which changes with every promotion and restart.
//!
//! Promises: the duties of [`RowStore`]. Where a reply must not be lost with the server, it comes when
//! all replicas that follow the server have the rows (`WAIT`). A server that evicts keys is not used.
//!
//! Never: decides. The scripts compare bytes, and know nothing of limits.

mod link;
mod replicas;
mod wire;

pub use link::{InvalidAddress, RedisAddress, RedisConnection, RedisLink, RedisSession};

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{PushInfo, PushKind, Script};
use tokio::runtime::Handle;
use tollgate_core::ask::OwnerId;
use tollgate_core::replica::{ClockRecord, PastUse, Reply, ReplyOutcome, Request};
use tollgate_core::time::Span;

use crate::networked::clock_file::ClockFiles;
use crate::networked::known_tags::KnownTags;
use crate::networked::live_owners::{LiveOwners, REPLY_WITHIN, heartbeat_of};
use crate::networked::open::{NetworkedOptions, Process, number_is_taken, passing};
use crate::networked::{RowEvents, RowStore, pause};
use crate::store::{Liveness, StoreError};
use crate::{Clock, Ledger};

use link::advice;
use wire::{channel, invoke, read_push, read_reply};

/// Who is registered, and until when.
const OWNERS: &str = "tg:owners";

/// A registration that has lapsed for so long is deleted. Until then its number is not given again.
const DELETE_LAPSED_MS: u64 = 3_600_000;

/// A reply that says no comes at once. Without a pause it would be asked for at once again.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// How long opening waits for the server before it counts as lost.
const OPEN_WITHIN: Duration = Duration::from_secs(3);

impl Ledger {
    /// A ledger on the Redis server at this address, with tasks on the current runtime. Requests wait
    /// for its connection.
    #[must_use]
    pub fn redis(
        address: &RedisAddress,
        clock: Clock,
        options: &NetworkedOptions,
    ) -> (Ledger, Arc<RedisLink>) {
        let process = Process::random();
        let settings = options.settings(process, false);
        let runtime = Handle::current();
        let session = LedgerSession::new(address, process, clock.clone(), options);
        let link = RedisLink::start(address, &runtime, process.nonce, session.clone());
        let link = Arc::new(link);
        let store = RedisStore::new(address, session.clone(), link.clone(), options);
        let ledger = Ledger::networked(clock, &runtime, settings, |events| {
            drop(session.events.set(events));
            store
        });
        (ledger, link)
    }

    /// The same, but a server that cannot be reached is a store that is lost from the start: the
    /// reason is returned, and the store recovers as soon as the server can be reached.
    pub async fn redis_or_lost(
        address: &RedisAddress,
        clock: Clock,
        options: &NetworkedOptions,
    ) -> (Ledger, Option<String>) {
        let (ledger, link) = Ledger::redis(address, clock, options);
        let why = reason(&link).await;
        if let Some(why) = &why {
            ledger.front.shared.mark_lost(&passing(why.as_str()));
        }
        (ledger, why)
    }
}

/// Why the server cannot be reached, if it cannot.
async fn reason(link: &RedisLink) -> Option<String> {
    match tokio::time::timeout(OPEN_WITHIN, link.connection()).await {
        Ok(Ok(_)) => None,
        Ok(Err(why)) => Some(why.to_string()),
        Err(_) => Some(format!(
            "Redis at {} does not respond; check that it runs",
            link.address()
        )),
    }
}

/// Rows on a Redis server.
#[derive(Debug)]
struct RedisStore {
    address: RedisAddress,
    runtime: Handle,
    link: Arc<RedisLink>,
    /// For requests that wait for replicas: those behind them on the connection wait too.
    durable_link: OnceLock<RedisLink>,
    session: Arc<LedgerSession>,
    exchange: Script,
    heartbeats: tokio::task::AbortHandle,
}

/// What each connection of the ledger needs.
#[derive(Debug)]
struct LedgerSession {
    process: Process,
    lease: Span,
    clock: Clock,
    /// Set once, before the first request.
    events: OnceLock<RowEvents>,
    heartbeat: Script,
    /// The providers that are used: the channels to listen on. The front bounds them.
    tags: Mutex<BTreeSet<String>>,
    known: Arc<KnownTags>,
    clocks: ClockFiles,
    live: LiveOwners,
    is_taken: AtomicBool,
    was_connected: AtomicBool,
    replicas: AtomicU32,
    /// Providers of which a write that had to be durable was not confirmed: nothing of theirs counts until the replicas
    /// have all of it, because the next request may find out that the write was applied. The front bounds them.
    unconfirmed: Mutex<BTreeSet<String>>,
    /// Tests advance the server's clock by this.
    #[cfg(feature = "failpoints")]
    test_clock: Option<Arc<crate::SlowClock>>,
}

impl RedisStore {
    fn new(
        address: &RedisAddress,
        session: Arc<LedgerSession>,
        link: Arc<RedisLink>,
        options: &NetworkedOptions,
    ) -> RedisStore {
        let runtime = Handle::current();
        let beats = send_heartbeats(Arc::downgrade(&link), session.clone());
        RedisStore {
            address: address.clone(),
            heartbeats: runtime.spawn(beats).abort_handle(),
            runtime,
            link,
            durable_link: OnceLock::new(),
            session,
            exchange: Script::new(&exchange_script(options)),
        }
    }

    /// The connection for a request.
    fn link_for(&self, waits: bool) -> &RedisLink {
        match waits && self.session.replicas.load(Ordering::Relaxed) > 0 {
            false => &self.link,
            true => self.durable_link.get_or_init(|| {
                let seed = self.session.process.nonce;
                RedisLink::start(&self.address, &self.runtime, seed, Arc::new(NoSession))
            }),
        }
    }

    /// Listens to what others write about this provider.
    async fn subscribe(&self, tag: &str) {
        let is_new = self.session.tags.lock().insert(tag.to_owned());
        if is_new && let Ok(mut connection) = self.link.connection().await {
            // If it fails, the next connection subscribes.
            let subscribed = connection.requests().subscribe(channel(tag)).await;
            if let Err(error) = subscribed {
                self.link.failed(&connection, &error);
            }
        }
    }

    async fn failure(
        &self,
        link: &RedisLink,
        connection: &RedisConnection,
        error: &redis::RedisError,
    ) -> StoreError {
        let message = link.failed(connection, error);
        pause(ERROR_PAUSE).await;
        passing(message)
    }

    /// Sends a request and waits for its reply, which must come before the deadline.
    async fn send(
        &self,
        link: &RedisLink,
        connection: &mut RedisConnection,
        tag: &str,
        request: &Request,
    ) -> Result<(Reply, u32), StoreError> {
        let sent = invoke(&self.exchange, tag, request, self.session.offset());
        let value = match sent.invoke_async(connection.requests()).await {
            Ok(value) => value,
            Err(error) => return Err(self.failure(link, connection, &error).await),
        };
        let read = read_reply(value, request);
        read.ok_or_else(|| passing("Redis: the script's reply cannot be read"))
    }
}

impl RowStore for RedisStore {
    async fn exchange(&self, tag: &str, request: Request) -> Result<Reply, StoreError> {
        if self.session.is_taken.load(Ordering::Acquire) {
            return Err(number_is_taken());
        }
        self.subscribe(tag).await;
        let session = &self.session;
        // Peeks hand out nothing.
        let is_peek = request.batch == 0 && !request.must_be_durable;
        let was_confirmed = !session.unconfirmed.lock().contains(tag);
        let waits = !is_peek && (request.must_be_durable || !was_confirmed);
        let marks = request.must_be_durable && !request.replace.is_empty();
        if marks {
            // Before it is sent: at the deadline nobody knows whether it was applied.
            session.unconfirmed.lock().insert(tag.to_owned());
        }
        let link = self.link_for(waits);
        let mut connection = link.connection().await.map_err(passing)?;
        let used = connection.clone();
        let request_guard = link.request(&used);
        let sent = self.send(link, &mut connection, tag, &request).await;
        let (reply, replicas) = match sent {
            Ok(sent) => sent,
            Err(error) => {
                request_guard.end();
                return Err(error);
            }
        };
        session.replicas.store(replicas, Ordering::Relaxed);
        let is_replaced = matches!(reply.outcome, ReplyOutcome::Replaced);
        let must_confirm = !is_peek && (!was_confirmed || is_replaced && request.must_be_durable);
        let confirmed = match must_confirm && replicas > 0 {
            true => {
                self.confirm(link, &mut connection, tag, replicas, is_replaced)
                    .await
            }
            false => Ok(()),
        };
        request_guard.end();
        confirmed?;
        // A late write of before cannot be applied any more when another one was, or none was under way.
        // A request that only reads says nothing about a write that was sent meanwhile.
        if !is_peek && (is_replaced || marks && was_confirmed || replicas == 0) {
            session.unconfirmed.lock().remove(tag);
        }
        if is_replaced {
            self.session.remember(tag, &request).await;
        }
        Ok(reply)
    }

    fn liveness(&self, owner: OwnerId) -> Liveness {
        let session = &self.session;
        session.live.liveness(owner, session.clock.at())
    }

    fn past_use(&self, tag: &str) -> PastUse {
        self.session.known.past_use(tag)
    }

    fn known_clock(&self, tag: &str) -> Option<ClockRecord> {
        self.session.clocks.load(tag)
    }

    fn node(&self) -> Option<u64> {
        self.session.known.node(self.session.process.nonce)
    }
}

impl Drop for RedisStore {
    /// Others need not wait for the lease to lapse.
    fn drop(&mut self) {
        self.heartbeats.abort();
        let (link, owner) = (self.link.clone(), self.session.process.owner.0);
        self.runtime.spawn(async move {
            if let Ok(mut connection) = link.connection().await {
                let mut delete = redis::cmd("HDEL");
                delete.arg(OWNERS).arg(owner);
                drop(delete.exec_async(connection.requests()).await);
            }
        });
    }
}

impl LedgerSession {
    fn new(
        address: &RedisAddress,
        process: Process,
        clock: Clock,
        options: &NetworkedOptions,
    ) -> Arc<LedgerSession> {
        let store = format!("redis://{}", address.redacted());
        Arc::new(LedgerSession {
            process,
            lease: options.node_lease,
            events: OnceLock::new(),
            heartbeat: Script::new(include_str!("redis/heartbeat.lua")),
            tags: Mutex::default(),
            clocks: ClockFiles::of(options.state_dir.as_deref(), &store, &clock),
            known: KnownTags::load(options.state_dir.clone(), store),
            live: LiveOwners::default(),
            clock,
            is_taken: AtomicBool::new(false),
            was_connected: AtomicBool::new(false),
            replicas: AtomicU32::new(0),
            unconfirmed: Mutex::default(),
            #[cfg(feature = "failpoints")]
            test_clock: options.test_clock.clone(),
        })
    }

    #[cfg(not(feature = "failpoints"))]
    fn offset(&self) -> Span {
        Span::ZERO
    }

    #[cfg(feature = "failpoints")]
    fn offset(&self) -> Span {
        crate::networked::open::offset(self.test_clock.as_ref())
    }

    async fn remember(&self, tag: &str, request: &Request) {
        let (incarnation, now) = (request.incarnation, self.clock.at());
        let failed = self.known.remember(tag, incarnation, now).await;
        if let (Some(why), Some(events)) = (failed, self.events.get()) {
            events.not_remembered(why);
        }
        if let Some(record) = &request.clock {
            self.clocks.store(tag, record.clone()).await;
        }
    }

    fn resync(&self) {
        if let Some(events) = self.events.get() {
            events.resync();
        }
    }

    /// Renews the registration, and learns who else is registered.
    async fn beat(&self, connection: &mut impl ConnectionLike) -> Result<(), String> {
        let mut sent = self.heartbeat.prepare_invoke();
        sent.key(OWNERS)
            .arg(self.process.owner.0)
            .arg(self.process.nonce)
            .arg(self.lease.0 / 1_000)
            .arg(DELETE_LAPSED_MS);
        let reply = sent.invoke_async(connection).await;
        let (is_ours, memory, alive): (bool, String, Vec<u32>) =
            reply.map_err(|error| advice(&error))?;
        if !is_ours {
            self.is_taken.store(true, Ordering::Release);
            return Err(number_is_taken().to_string());
        }
        if let Some(policy) = evicting_policy(&memory) {
            return Err(format!(
                "its maxmemory-policy is {policy}, which may delete what limits count; set \
                 maxmemory-policy noeviction"
            ));
        }
        let alive = alive.into_iter().map(OwnerId).collect();
        self.live.set(alive, self.clock.at());
        Ok(())
    }
}

impl RedisSession for LedgerSession {
    fn prepare(
        &self,
        mut connection: MultiplexedConnection,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async move {
            self.beat(&mut connection).await?;
            let tags = self.tags.lock().clone();
            for tag in tags {
                let subscribed = connection.subscribe(channel(&tag)).await;
                subscribed.map_err(|error| advice(&error))?;
            }
            // What others wrote while there was no connection was missed.
            if self.was_connected.swap(true, Ordering::AcqRel) {
                self.resync();
            }
            Ok(())
        })
    }

    fn pushed(&self, push: PushInfo) {
        if push.kind != PushKind::Message {
            return;
        }
        let Some((tag, from, rows, waiting)) = read_push(&push.data) else {
            return self.resync();
        };
        if from != self.process.owner
            && let Some(events) = self.events.get()
        {
            events.pushed(&tag, rows, waiting);
        }
    }
}

/// A connection that is only written on.
#[derive(Debug)]
struct NoSession;

impl RedisSession for NoSession {
    fn prepare(
        &self,
        _: MultiplexedConnection,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async { Ok(()) })
    }

    fn pushed(&self, _: PushInfo) {}
}

/// A few in the time of a lease; a connection on which no reply comes within that time is dropped.
async fn send_heartbeats(link: std::sync::Weak<RedisLink>, session: Arc<LedgerSession>) {
    let every = heartbeat_of(session.lease);
    // A short lease is no reason to give up a connection that is slow once.
    let within = every.max(REPLY_WITHIN);
    loop {
        pause(every).await;
        let Some(link) = link.upgrade() else { return };
        let Ok(mut connection) = link.connection().await else {
            continue;
        };
        let beat = session.beat(connection.requests());
        if !matches!(tokio::time::timeout(within, beat).await, Ok(Ok(()))) {
            link.drop_connection(&connection);
        }
    }
}

/// The policy by which the server evicts keys, if it may.
fn evicting_policy(memory: &str) -> Option<&str> {
    let field = |name: &str| {
        let mut lines = memory.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let policy = field("maxmemory_policy")?;
    (policy != "noeviction" && field("maxmemory") != Some("0")).then_some(policy)
}

#[cfg(not(feature = "failpoints"))]
fn exchange_script(_: &NetworkedOptions) -> String {
    include_str!("redis/exchange.lua").to_owned()
}

/// In tests the server's clock may be slow.
#[cfg(feature = "failpoints")]
fn exchange_script(options: &NetworkedOptions) -> String {
    let script = include_str!("redis/exchange.lua");
    let Some(clock) = &options.test_clock else {
        return script.to_owned();
    };
    let (origin, slowness) = (clock.origin.wall.0, clock.slowness);
    let slow = format!("local now = {origin} + math.floor((machine - {origin}) / {slowness})");
    script.replace("local now = machine", &slow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_may_evict_is_recognised() {
        let info = |max: &str, policy: &str| {
            format!("# Memory\r\nmaxmemory:{max}\r\nmaxmemory_policy:{policy}\r\n")
        };
        for (max, policy, evicts) in [
            ("0", "allkeys-lru", false),
            ("1000000", "noeviction", false),
            ("1000000", "volatile-ttl", true),
            ("1000000", "allkeys-lru", true),
        ] {
            let info = info(max, policy);
            assert_eq!(evicting_policy(&info).is_some(), evicts, "{info}");
        }
    }
}
