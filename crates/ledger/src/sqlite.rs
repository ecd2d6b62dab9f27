//! The ledger in a folder: one host, any number of processes, no daemon.
//!
//! Each process has one ledger thread. It takes whatever waits (offers of all gates, settles of all
//! permits) into one transaction under a kernel lock, so waiting together is cheap and processes
//! take turns. The folder holds `ledger.db` (SQLite: a blob per cell), `ledger.lock`, and a socket
//! per living process for wake-ups.
//!
//! Promises: a permit is committed before it is handed out, so a process that is killed at any
//! instant never lets its successors exceed a limit; permits of limits of a minute or longer are on
//! disk before they are used, and survive the power as well. State that cannot be believed counts
//! as used up, or is refused with a message that says what to do.
//!
//! Never: works over a network file system, in a child after `fork`, or with clocks that processes
//! do not share (`Clock::Tokio`).

mod database;
mod ledger_thread;
mod last_seen;
mod inbox;
mod checkpointer;
mod lock;
mod generation;
mod open;
mod rows;
mod fairness;
mod store;
mod tables;
mod error;
pub use error::OpenError;
mod waiters;
mod wake;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{broadcast, oneshot};
use tollgate_core::ask::{Ask, CellId, OwnerId, Reopen, ScopeId, Settle};
use tollgate_core::limit::{CellView, Rule, Strictness};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Now, Span};

use crate::cell_forwarding::CellForwarding;
use crate::{Clock, EVENTS_MAX, Event, Events, Ledger, PendingOffer, StoreLoss, StoreLost};
use database::{PeekQuery, PeekReply};
use inbox::{Inbox, Offer, PeekRequest, QueuedSettle};
use last_seen::LastSeenScopes;
use ledger_thread::LedgerThread;
use open::OPEN_WAIT;
use store::Store;
use wake::AwaitedSignals;

/// Whoever looks waits this long for the ledger thread; past it everything looks used up. Longer than
/// that thread waits for the lock: what is looked at late is then a disk that hangs.
const PEEK_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A ledger in a state folder; clones share it.
#[derive(Clone, Debug)]
pub struct SqliteLedger {
    handle: Arc<Handle>,
}

/// Scopes that are closed when the store comes back: one per provider, as many as offers wait.
const CLOSES_MAX: usize = 1_024;

/// What handles and the ledger's threads share.
#[derive(Debug)]
struct Shared {
    clock: Clock,
    inbox: Inbox,
    events: broadcast::Sender<Event>,
    awaited_signals: Mutex<AwaitedSignals>,
    loss_reason: Mutex<Option<String>>,
    /// When the store was lost, on the ledger's clock; [`NOT_LOST`] while it is there.
    lost_at: AtomicU64,
    /// It does not come back by itself.
    is_final: AtomicBool,
    closes_on_recovery: Mutex<BTreeMap<ScopeId, Span>>,
    /// This process among those that share the folder; 0 until it is open.
    owner: AtomicU32,
    damaged_rows: AtomicU64,
    /// How long the log was at the last checkpoint that could not move all of it.
    log_pages: AtomicI64,
    /// Little of the log is left to be moved: the ledger thread does it.
    is_log_nearly_moved: AtomicBool,
    /// The disk has failed a checkpoint.
    has_disk_failed: AtomicBool,
    is_closing: AtomicBool,
    forwarding: CellForwarding,
    last_seen: LastSeenScopes,
}

const NOT_LOST: u64 = u64::MAX;

/// Ends the ledger's threads when the last handle goes.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    pid: u32,
    ledger_thread: Mutex<Option<JoinHandle<()>>>,
}

impl SqliteLedger {
    pub(crate) fn open(folder: &Path, clock: Clock) -> Result<SqliteLedger, OpenError> {
        let opened = open::open(folder, clock.now(), OPEN_WAIT, None)?;
        let shared = Shared::new(clock);
        let store = Store::start(opened, folder, &shared)?;
        SqliteLedger::start(shared, folder, Some(store))
    }

    /// Opens the folder; if that cannot be, the store is lost from the start, and comes back when
    /// the folder can be opened.
    pub(crate) fn open_or_lost(
        folder: &Path,
        clock: Clock,
    ) -> Result<(SqliteLedger, Option<OpenError>), OpenError> {
        let now = clock.now();
        let shared = Shared::new(clock);
        let opened = open::open(folder, now, OPEN_WAIT, None);
        let (store, error) = match opened.and_then(|opened| Store::start(opened, folder, &shared)) {
            Ok(store) => (Some(store), None),
            Err(error) => {
                shared.mark_lost(now.at, error.with_source(), false);
                (None, Some(error))
            }
        };
        Ok((SqliteLedger::start(shared, folder, store)?, error))
    }

    fn start(
        shared: Arc<Shared>,
        folder: &Path,
        store: Option<Store>,
    ) -> Result<SqliteLedger, OpenError> {
        let clerk = LedgerThread::new(shared.clone(), folder, store);
        let clerk = spawn("tollgate-ledger", move || clerk.run())
            .map_err(|source| OpenError::from_io(folder, source))?;
        let handle = Handle {
            shared,
            pid: std::process::id(),
            ledger_thread: Mutex::new(Some(clerk)),
        };
        Ok(SqliteLedger {
            handle: Arc::new(handle),
        })
    }

    /// This process among those that share the folder: a number that is never given twice. 0 until
    /// the folder could be opened.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        OwnerId(self.handle.shared.owner.load(Ordering::Acquire))
    }

    /// Since when the store cannot be reached, while it cannot.
    #[must_use]
    pub fn loss(&self) -> Option<StoreLoss> {
        let shared = &self.handle.shared;
        let since = shared.lost_at.load(Ordering::Acquire);
        (since != NOT_LOST).then(|| StoreLoss {
            since: Micros(since),
            is_final: shared.is_final.load(Ordering::Acquire),
        })
    }

    /// Closes a scope for so long from the moment at which the store is back, before anything is
    /// granted.
    pub(crate) fn close_on_recovery(&self, scope: ScopeId, rest: Span) {
        let mut closes = self.handle.shared.closes_on_recovery.lock();
        if closes.len() < CLOSES_MAX || closes.contains_key(&scope) {
            closes.insert(scope, rest);
        }
    }

    /// Why the store cannot be reached, while it cannot.
    #[must_use]
    pub fn loss_reason(&self) -> Option<String> {
        if self.is_forked() {
            return Some(
                "this process was forked off the one that opened the ledger; open it again here"
                    .to_owned(),
            );
        }
        self.handle.shared.loss_reason.lock().clone()
    }

    /// How many stored rows could not be believed since it was opened; their limits count as used
    /// up for one period.
    #[must_use]
    pub fn damaged_rows(&self) -> u64 {
        self.handle.shared.damaged_rows.load(Ordering::Relaxed)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.handle.shared.clock.clone()
    }

    pub(crate) fn offer(&self, ledger: &Ledger, asks: Vec<Ask>) -> PendingOffer {
        if self.is_forked() {
            return PendingOffer::ready(ledger.clone(), Err(StoreLost));
        }
        let (answer, receiver) = oneshot::channel();
        self.handle.shared.inbox.offer(Offer {
            asks,
            reply: answer,
        });
        PendingOffer::waiting(ledger.clone(), receiver)
    }

    pub(crate) fn forwarding(&self) -> &CellForwarding {
        &self.handle.shared.forwarding
    }

    pub(crate) fn settle(&self, settle: Settle) {
        if self.is_forked() {
            return;
        }
        let shared = &self.handle.shared;
        let at = shared.clock.at();
        shared.last_seen.on_settle(&settle, at);
        shared.inbox.settle(QueuedSettle { settle, at });
    }

    pub(crate) fn stop_waiting(&self, cells: &[CellId]) {
        if !self.is_forked() {
            self.handle.shared.inbox.stop_waiting(cells);
        }
    }

    pub(crate) fn events(&self) -> Events {
        Events::new(self.handle.shared.events.subscribe())
    }

    pub(crate) fn peek(
        &self,
        cells: Vec<(CellId, Arc<Rule>)>,
    ) -> impl Future<Output = Vec<CellView>> + use<> {
        let unknown: Vec<CellView> = cells.iter().map(|(_, rule)| used_up_view(rule)).collect();
        let reply = self.send_peek(PeekQuery::Cells(cells));
        async move {
            match reply.await {
                Some(PeekReply::Cells(views)) => views,
                Some(PeekReply::Scope(_)) | None => unknown,
            }
        }
    }

    pub(crate) fn peek_then(
        &self,
        cells: Vec<(CellId, Arc<Rule>)>,
        then: impl FnOnce(Vec<CellView>) + Send + 'static,
    ) {
        self.send_peek_then(PeekQuery::Cells(cells), |reply| {
            if let PeekReply::Cells(views) = reply {
                then(views);
            }
        });
    }

    pub(crate) fn try_peek_scope(
        &self,
        scope: ScopeId,
    ) -> impl Future<Output = Option<ScopeView>> + use<> {
        let reply = self.send_peek(PeekQuery::Scope(scope));
        async move {
            match reply.await {
                Some(PeekReply::Scope(view)) => Some(view),
                Some(PeekReply::Cells(_)) | None => None,
            }
        }
    }

    pub(crate) fn last_seen_scope(&self, scope: ScopeId) -> ScopeView {
        let shared = &self.handle.shared;
        let glance = shared.last_seen.get(scope, shared.clock.at());
        if glance.needs_refresh {
            let keeper = Arc::downgrade(shared);
            self.send_peek_then(PeekQuery::Scope(scope), move |reply| {
                if let (PeekReply::Scope(view), Some(shared)) = (reply, keeper.upgrade()) {
                    shared.last_seen.record(scope, view, shared.clock.at());
                }
            });
        }
        glance.view
    }

    pub(crate) fn at(&self) -> Micros {
        self.handle.shared.clock.at()
    }

    pub(crate) fn now(&self) -> Now {
        self.handle.shared.clock.now()
    }

    /// Puts a question at once; the answer comes when the ledger thread has come to it.
    fn send_peek(&self, question: PeekQuery) -> impl Future<Output = Option<PeekReply>> + use<> {
        let (reply, answer) = oneshot::channel();
        self.send_peek_then(question, |seen| drop(reply.send(seen)));
        async move { tokio::time::timeout(PEEK_TIMEOUT, answer).await.ok()?.ok() }
    }

    /// What cannot be known is not answered.
    fn send_peek_then(&self, question: PeekQuery, then: impl FnOnce(PeekReply) + Send + 'static) {
        if !self.is_forked() && self.loss().is_none() {
            let reply = Box::new(then);
            self.handle.shared.inbox.peek(PeekRequest {
                query: question,
                on_reply: reply,
            });
        }
    }

    /// A child after `fork` has none of the threads, and must not use the parent's database.
    fn is_forked(&self) -> bool {
        std::process::id() != self.handle.pid
    }
}

impl Shared {
    fn new(clock: Clock) -> Arc<Shared> {
        let (events, _) = broadcast::channel(EVENTS_MAX);
        Arc::new(Shared {
            clock,
            inbox: Inbox::default(),
            events,
            awaited_signals: Mutex::default(),
            loss_reason: Mutex::default(),
            lost_at: AtomicU64::new(NOT_LOST),
            is_final: AtomicBool::new(false),
            closes_on_recovery: Mutex::default(),
            owner: AtomicU32::new(0),
            damaged_rows: AtomicU64::new(0),
            log_pages: AtomicI64::new(0),
            is_log_nearly_moved: AtomicBool::new(false),
            has_disk_failed: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            forwarding: CellForwarding::default(),
            last_seen: LastSeenScopes::default(),
        })
    }

    /// Nobody listening is no error: then nobody waits.
    fn send_event(&self, event: Event) {
        drop(self.events.send(event));
    }

    fn mark_lost(&self, at: Micros, why: String, is_final: bool) {
        *self.loss_reason.lock() = Some(why);
        self.is_final.store(is_final, Ordering::Release);
        self.lost_at.store(at.0, Ordering::Release);
        self.send_event(Event::Lost);
    }

    fn mark_recovered(&self) {
        self.closes_on_recovery.lock().clear();
        self.lost_at.store(NOT_LOST, Ordering::Release);
        *self.loss_reason.lock() = None;
        self.send_event(Event::Recovered);
    }

    /// What is to be settled first when the store is back.
    fn recovery_settles(&self) -> Vec<QueuedSettle> {
        let at = self.clock.now().at;
        let closes = self.closes_on_recovery.lock();
        let close = |(&scope, &rest): (&ScopeId, &Span)| QueuedSettle {
            settle: Settle::Close {
                scope,
                age: Span::ZERO,
                closed_for: Some(rest),
                reopen: Reopen::All,
            },
            at,
        };
        closes.iter().map(close).collect()
    }
}

impl Drop for Handle {
    /// Waits until everything told is written. Every wait of the threads has an end, and so has
    /// this one.
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            return;
        }
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.inbox.close();
        // Whoever was answered on the clerk's own thread may be the last that held this: it ends by itself.
        let is_elsewhere =
            |clerk: &JoinHandle<()>| clerk.thread().id() != std::thread::current().id();
        if let Some(clerk) = self.ledger_thread.lock().take().filter(is_elsewhere) {
            drop(clerk.join());
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}

/// What a limit looks like of which nothing can be known now.
fn used_up_view(rule: &Rule) -> CellView {
    CellView {
        limit: rule.limit(),
        used: rule.limit(),
        remaining: 0,
        window_age: None,
        reset_after: None,
        strictness: Strictness::default(),
    }
}
