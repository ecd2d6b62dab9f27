//! A ledger on a Postgres server: a table of rows, and one function call per batch that compares and
//! replaces them.
//!
//! The epoch is the server's system identifier and its timeline, which changes with every promotion
//! and restore, and stays with a restart: what was committed survives one.
//!
//! Promises: the duties of [`RowStore`]. One statement, one transaction and one round trip per
//! request, with a synchronous commit. Who waits is notified; nobody else is, because a notification
//! takes a lock of the whole server.
//!
//! Never: decides. The function compares bytes, and knows nothing of limits.

mod link;
mod state_table;
mod tls;
mod wire;

pub use link::{InvalidPostgresAddress, PostgresAddress};
pub use state_table::{DomainState, StateTable};

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_postgres::Notification;
use tollgate_core::ask::OwnerId;
use tollgate_core::replica::{ClockRecord, PastUse, Reply, ReplyOutcome, Request, RowKey};
use tollgate_core::time::Span;

use crate::networked::clock_file::ClockFiles;
use crate::networked::known_tags::KnownTags;
use crate::networked::live_owners::{LiveOwners, REPLY_WITHIN, heartbeat_of};
use crate::networked::open::{NetworkedOptions, Process, number_is_taken, passing};
use crate::networked::{RowEvents, RowStore, pause};
use crate::store::{Liveness, StoreError};
use crate::{Clock, Ledger};

use link::{PostgresConnection, PostgresLink, advice};
use wire::{Arguments, read_notification, read_reply};

/// Connections for requests: requests of one provider follow each other, those of several should
/// not wait for each other's disk. With the one that listens, a node has three; a server allows 100.
const REQUEST_LINKS: usize = 2;

/// Notifications that wait to be read. Past that everything is read again.
const NOTIFICATIONS_MAX: usize = 64;

/// A reply that says no comes at once. Without a pause it would be asked for at once again.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// How long opening waits for the server before it counts as lost.
const OPEN_WITHIN: Duration = Duration::from_secs(3);

/// What is over is deleted each so many heartbeats, by every node: each minute.
const DELETE_EVERY: u64 = 60;

/// Renews the registration unless another process has it.
const REGISTER: &str = "INSERT INTO tollgate_owners \
    VALUES ($1, $2, clock_timestamp() + $3 * interval '1 microsecond') \
    ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until \
    WHERE tollgate_owners.process = excluded.process";

const ALIVE: &str = "SELECT owner FROM tollgate_owners WHERE lease_until > clock_timestamp()";

/// Rows that nobody replaces are skipped while somebody does.
const DELETE_OLD: &str = "DELETE FROM tollgate_rows WHERE (tag, key) IN (SELECT tag, key \
    FROM tollgate_rows WHERE expires_at < clock_timestamp() LIMIT 1000 FOR UPDATE SKIP LOCKED); \
    DELETE FROM tollgate_notes WHERE (tag, key, owner) IN (SELECT tag, key, owner \
    FROM tollgate_notes WHERE lasts_until < extract(epoch FROM clock_timestamp()) * 1000000 \
    LIMIT 1000 FOR UPDATE SKIP LOCKED); \
    DELETE FROM tollgate_owners WHERE lease_until < clock_timestamp() - interval '1 hour'";

impl Ledger {
    /// A ledger on the Postgres server at this address, with tasks on the current runtime. A server
    /// that cannot be reached is a store that is lost from the start: the reason is returned, and the
    /// store recovers as soon as the server can be reached.
    pub async fn postgres_or_lost(
        address: &PostgresAddress,
        clock: Clock,
        options: &NetworkedOptions,
    ) -> (Ledger, Option<String>) {
        let (ledger, link) = Ledger::open_postgres(address, clock, options);
        let why = match tokio::time::timeout(OPEN_WITHIN, link.connection()).await {
            Ok(Ok(_)) => None,
            Ok(Err(why)) => Some(why.to_string()),
            Err(_) => Some(format!(
                "Postgres at {} does not respond; check that it runs",
                link.address()
            )),
        };
        if let Some(why) = &why {
            ledger.front.shared.mark_lost(&passing(why.as_str()));
        }
        (ledger, why)
    }

    /// The same, without waiting for the server: requests wait for its connection.
    #[must_use]
    pub fn postgres(address: &PostgresAddress, clock: Clock, options: &NetworkedOptions) -> Ledger {
        Ledger::open_postgres(address, clock, options).0
    }

    fn open_postgres(
        address: &PostgresAddress,
        clock: Clock,
        options: &NetworkedOptions,
    ) -> (Ledger, Arc<PostgresLink>) {
        let process = Process::random();
        let settings = options.settings(process, false);
        let mut listening = None;
        let ledger = Ledger::networked(clock.clone(), &Handle::current(), settings, |events| {
            let store = PostgresStore::start(address, process, clock, events, options);
            listening = Some(store.listening.clone());
            store
        });
        (ledger, listening.expect("the store was started above"))
    }
}

/// Rows on a Postgres server.
#[derive(Debug)]
struct PostgresStore {
    session: Arc<PostgresSession>,
    links: Vec<PostgresLink>,
    /// Listens, and sends heartbeats.
    listening: Arc<PostgresLink>,
    tasks: [tokio::task::AbortHandle; 2],
    runtime: Handle,
}

/// What the tasks of the store share.
#[derive(Debug)]
struct PostgresSession {
    process: Process,
    lease: Span,
    clock: Clock,
    events: RowEvents,
    known: Arc<KnownTags>,
    clocks: ClockFiles,
    live: LiveOwners,
    is_taken: AtomicBool,
    /// Tests advance the server's clock by this.
    #[cfg(feature = "failpoints")]
    test_clock: Option<Arc<crate::SlowClock>>,
}

impl PostgresStore {
    fn start(
        address: &PostgresAddress,
        process: Process,
        clock: Clock,
        events: RowEvents,
        options: &NetworkedOptions,
    ) -> PostgresStore {
        let runtime = Handle::current();
        let store = format!("postgres://{}", address.redacted());
        let session = Arc::new(PostgresSession {
            process,
            lease: options.node_lease,
            clocks: ClockFiles::of(options.state_dir.as_deref(), &store, &clock),
            clock,
            events,
            known: KnownTags::load(options.state_dir.clone(), store),
            live: LiveOwners::default(),
            is_taken: AtomicBool::new(false),
            #[cfg(feature = "failpoints")]
            test_clock: options.test_clock.clone(),
        });
        let (sender, notified) = mpsc::channel(NOTIFICATIONS_MAX);
        let on = session.clone();
        let on_notification = move |notification: &Notification| on.notified(&sender, notification);
        let start = |seed, on| PostgresLink::start(address, &runtime, seed, options.deadline, on);
        let seed = process.nonce;
        let listening = Arc::new(start(seed, Some(Arc::new(on_notification) as _)));
        let links = (1..=REQUEST_LINKS as u64).map(|number| start(seed ^ number, None));
        let weak = Arc::downgrade(&listening);
        let tasks = [
            runtime.spawn(send_heartbeats(weak.clone(), session.clone())),
            runtime.spawn(read_notified(weak, session.clone(), notified)),
        ];
        PostgresStore {
            session,
            links: links.collect(),
            listening,
            tasks: tasks.map(|task| task.abort_handle()),
            runtime,
        }
    }

    fn link_for(&self, tag: &str) -> &PostgresLink {
        let mut hasher = DefaultHasher::new();
        tag.hash(&mut hasher);
        let index = hasher.finish() % self.links.len() as u64;
        &self.links[usize::try_from(index).unwrap_or(0)]
    }
}

impl RowStore for PostgresStore {
    async fn exchange(&self, tag: &str, request: Request) -> Result<Reply, StoreError> {
        if self.session.is_taken.load(Ordering::Acquire) {
            return Err(number_is_taken());
        }
        let reply = self
            .session
            .exchange(self.link_for(tag), tag, &request)
            .await?;
        if matches!(reply.outcome, ReplyOutcome::Replaced) {
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

impl Drop for PostgresStore {
    /// Others need not wait for the lease to lapse.
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::AbortHandle::abort);
        let (link, owner) = (
            self.listening.clone(),
            i64::from(self.session.process.owner.0),
        );
        self.runtime.spawn(async move {
            if let Ok(one) = link.connection().await {
                let delete = "DELETE FROM tollgate_owners WHERE owner = $1";
                drop(one.connection.client.execute(delete, &[&owner]).await);
            }
        });
    }
}

impl PostgresSession {
    async fn exchange(
        &self,
        link: &PostgresLink,
        tag: &str,
        request: &Request,
    ) -> Result<Reply, StoreError> {
        let used = link.connection().await.map_err(passing)?;
        let PostgresConnection {
            client,
            exchange,
            system,
        } = &used.connection;
        let arguments = Arguments::new(tag, request, *system, self.offset());
        let request_guard = link.request(&used);
        let replied = client.query_one(exchange, &arguments.all()).await;
        request_guard.end();
        match replied {
            Ok(row) => read_reply(&row, request, *system)
                .ok_or_else(|| passing("Postgres: the function's reply cannot be read")),
            Err(error) => {
                let message = link.failed(&used, &error);
                pause(ERROR_PAUSE).await;
                Err(passing(message))
            }
        }
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
        if let Some(why) = self.known.remember(tag, incarnation, now).await {
            self.events.not_remembered(why);
        }
        if let Some(record) = &request.clock {
            self.clocks.store(tag, record.clone()).await;
        }
    }

    /// Which rows others have written: they are read in a task.
    fn notified(&self, sender: &mpsc::Sender<(String, Vec<RowKey>)>, notification: &Notification) {
        match read_notification(notification.payload()) {
            Some((from, ..)) if from == self.process.owner => {}
            Some((_, tag, keys)) if !keys.is_empty() => {
                if sender.try_send((tag, keys)).is_err() {
                    self.events.resync();
                }
            }
            Some(_) | None => self.events.resync(),
        }
    }

    /// Renews the registration, and learns who else is registered.
    async fn beat(&self, connection: &PostgresConnection, number: u64) -> Result<(), String> {
        let failed = |error: tokio_postgres::Error| advice(&error);
        let client = &connection.client;
        let owner = i64::from(self.process.owner.0);
        let (process, lease) = (format!("{:016x}", self.process.nonce), lease_us(self.lease));
        let registered = client.execute(REGISTER, &[&owner, &process, &lease]).await;
        if registered.map_err(failed)? == 0 {
            self.is_taken.store(true, Ordering::Release);
            return Err(number_is_taken().to_string());
        }
        let alive = client.query(ALIVE, &[]).await.map_err(failed)?;
        let alive = alive.iter().map(|row| row.get::<_, i64>(0));
        let alive = alive.filter_map(|owner| u32::try_from(owner).ok());
        self.live.set(alive.map(OwnerId).collect(), self.clock.at());
        if number % DELETE_EVERY == 1 {
            client.batch_execute(DELETE_OLD).await.map_err(failed)?;
        }
        Ok(())
    }
}

fn lease_us(lease: Span) -> f64 {
    Duration::from_micros(lease.0).as_secs_f64() * 1e6
}

/// At once and then a few in the time of a lease; a connection on which no reply comes within that time is dropped.
async fn send_heartbeats(link: Weak<PostgresLink>, session: Arc<PostgresSession>) {
    let every = heartbeat_of(session.lease);
    // A short lease is no reason to give up a connection that is slow once.
    let within = every.max(REPLY_WITHIN);
    let mut last = 0;
    for number in 1.. {
        let Some(link) = link.upgrade() else { return };
        if let Ok(used) = link.connection().await {
            // What was written before it listened was missed.
            if last != 0 && used.number() != last {
                session.events.resync();
            }
            last = used.number();
            let beat = session.beat(&used.connection, number);
            if !matches!(tokio::time::timeout(within, beat).await, Ok(Ok(()))) {
                link.drop_connection(&used);
            }
        }
        drop(link);
        pause(every).await;
    }
}

/// Reads the rows of notifications: a notification is too short for them.
async fn read_notified(
    link: Weak<PostgresLink>,
    session: Arc<PostgresSession>,
    mut notified: mpsc::Receiver<(String, Vec<RowKey>)>,
) {
    while let Some((tag, read)) = notified.recv().await {
        let Some(link) = link.upgrade() else { return };
        let request = Request {
            owner: session.process.owner,
            read,
            ..Request::default()
        };
        match session.exchange(&link, &tag, &request).await {
            Ok(Reply {
                outcome: ReplyOutcome::Current(rows),
                waiting,
                ..
            }) => {
                let rows = rows.into_iter().filter_map(|(key, row)| Some((key, row?)));
                session.events.pushed(&tag, rows.collect(), waiting);
            }
            Ok(_) | Err(_) => session.events.resync(),
        }
    }
}
