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

mod book;
mod clerk;
mod glance;
mod inbox;
mod keeper;
mod lock;
mod note;
mod open;
mod page;
mod share;
mod store;
mod tables;
mod trouble;
pub use trouble::OpenError;
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
use tollgate_core::limit::{Rule, Rung, View};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Now, Span};

use crate::heirs::Heirs;
use crate::{Clock, EVENTS_MAX, Event, Events, Ledger, Loss, Lost, Offered};
use book::{Question, Reply};
use clerk::Clerk;
use glance::Glances;
use inbox::{Asked, Inbox, Offer, Told};
use open::OPEN_WAIT;
use store::Store;
use wake::Waiting;

/// Whoever looks waits this long for the ledger thread; past it everything looks used up. Longer than
/// that thread waits for the lock: what is looked at late is then a disk that hangs.
const LOOK_WAIT: Duration = Duration::from_millis(1_500);

/// A ledger in a state folder; clones share it.
#[derive(Clone, Debug)]
pub struct SqliteLedger {
    handle: Arc<Handle>,
}

/// Scopes that are closed when the store comes back: one per provider, as many as offers wait.
const ON_RETURN_MAX: usize = 1_024;

/// What handles and the ledger's threads share.
#[derive(Debug)]
struct Shared {
    clock: Clock,
    inbox: Inbox,
    events: broadcast::Sender<Event>,
    waiting: Mutex<Waiting>,
    trouble: Mutex<Option<String>>,
    /// When the store was lost, on the ledger's clock; [`NOT_LOST`] while it is there.
    lost_at: AtomicU64,
    /// It does not come back by itself.
    is_final: AtomicBool,
    on_return: Mutex<BTreeMap<ScopeId, Span>>,
    /// This process among those that share the folder; 0 until it is open.
    owner: AtomicU32,
    damaged: AtomicU64,
    /// How long the log was at the last checkpoint that could not move all of it.
    log_pages: AtomicI64,
    /// Little of the log is left to be moved: the ledger thread does it.
    is_nearly_moved: AtomicBool,
    /// The disk has failed a checkpoint.
    is_broken: AtomicBool,
    is_over: AtomicBool,
    heirs: Heirs,
    glances: Glances,
}

const NOT_LOST: u64 = u64::MAX;

/// Ends the ledger's threads when the last handle goes.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    pid: u32,
    clerk: Mutex<Option<JoinHandle<()>>>,
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
                shared.lost(now.at, error.in_full(), false);
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
        let clerk = Clerk::new(shared.clone(), folder, store);
        let clerk = spawn("tollgate-ledger", move || clerk.run())
            .map_err(|source| OpenError::from_io(folder, source))?;
        let handle = Handle {
            shared,
            pid: std::process::id(),
            clerk: Mutex::new(Some(clerk)),
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
    pub fn loss(&self) -> Option<Loss> {
        let shared = &self.handle.shared;
        let since = shared.lost_at.load(Ordering::Acquire);
        (since != NOT_LOST).then(|| Loss {
            since: Micros(since),
            is_final: shared.is_final.load(Ordering::Acquire),
        })
    }

    /// Closes a scope for so long from the moment at which the store is back, before anything is
    /// granted.
    pub(crate) fn close_on_return(&self, scope: ScopeId, rest: Span) {
        let mut closes = self.handle.shared.on_return.lock();
        if closes.len() < ON_RETURN_MAX || closes.contains_key(&scope) {
            closes.insert(scope, rest);
        }
    }

    /// Why the store cannot be reached, while it cannot.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        if self.is_forked() {
            return Some(
                "this process was forked off the one that opened the ledger; open it again here"
                    .to_owned(),
            );
        }
        self.handle.shared.trouble.lock().clone()
    }

    /// How many stored rows could not be believed since it was opened; their limits count as used
    /// up for one period.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.handle.shared.damaged.load(Ordering::Relaxed)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.handle.shared.clock.clone()
    }

    pub(crate) fn offer(&self, ledger: &Ledger, asks: Vec<Ask>) -> Offered {
        if self.is_forked() {
            return Offered::ready(ledger.clone(), Err(Lost));
        }
        let (answer, receiver) = oneshot::channel();
        self.handle.shared.inbox.offer(Offer { asks, answer });
        Offered::waiting(ledger.clone(), receiver)
    }

    pub(crate) fn heirs(&self) -> &Heirs {
        &self.handle.shared.heirs
    }

    pub(crate) fn settle(&self, settle: Settle) {
        if self.is_forked() {
            return;
        }
        let shared = &self.handle.shared;
        let at = shared.clock.at();
        shared.glances.settled(&settle, at);
        shared.inbox.settle(Told { settle, at });
    }

    pub(crate) fn left(&self, cells: &[CellId]) {
        if !self.is_forked() {
            self.handle.shared.inbox.left(cells);
        }
    }

    pub(crate) fn events(&self) -> Events {
        Events::new(self.handle.shared.events.subscribe())
    }

    pub(crate) fn look(
        &self,
        cells: Vec<(CellId, Arc<Rule>)>,
    ) -> impl Future<Output = Vec<View>> + use<> {
        let unknown: Vec<View> = cells.iter().map(|(_, rule)| used_up(rule)).collect();
        let reply = self.ask(Question::Cells(cells));
        async move {
            match reply.await {
                Some(Reply::Cells(views)) => views,
                Some(Reply::Scope(_)) | None => unknown,
            }
        }
    }

    pub(crate) fn look_then(
        &self,
        cells: Vec<(CellId, Arc<Rule>)>,
        then: impl FnOnce(Vec<View>) + Send + 'static,
    ) {
        self.ask_then(Question::Cells(cells), |reply| {
            if let Reply::Cells(views) = reply {
                then(views);
            }
        });
    }

    pub(crate) fn known_scope(
        &self,
        scope: ScopeId,
    ) -> impl Future<Output = Option<ScopeView>> + use<> {
        let reply = self.ask(Question::Scope(scope));
        async move {
            match reply.await {
                Some(Reply::Scope(view)) => Some(view),
                Some(Reply::Cells(_)) | None => None,
            }
        }
    }

    pub(crate) fn glance(&self, scope: ScopeId) -> ScopeView {
        let shared = &self.handle.shared;
        let glance = shared.glances.at(scope, shared.clock.at());
        if glance.is_to_be_asked {
            let keeper = Arc::downgrade(shared);
            self.ask_then(Question::Scope(scope), move |reply| {
                if let (Reply::Scope(view), Some(shared)) = (reply, keeper.upgrade()) {
                    shared.glances.note(scope, view, shared.clock.at());
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
    fn ask(&self, question: Question) -> impl Future<Output = Option<Reply>> + use<> {
        let (reply, answer) = oneshot::channel();
        self.ask_then(question, |seen| drop(reply.send(seen)));
        async move { tokio::time::timeout(LOOK_WAIT, answer).await.ok()?.ok() }
    }

    /// What cannot be known is not answered.
    fn ask_then(&self, question: Question, then: impl FnOnce(Reply) + Send + 'static) {
        if !self.is_forked() && self.loss().is_none() {
            let reply = Box::new(then);
            self.handle.shared.inbox.ask(Asked { question, reply });
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
            waiting: Mutex::default(),
            trouble: Mutex::default(),
            lost_at: AtomicU64::new(NOT_LOST),
            is_final: AtomicBool::new(false),
            on_return: Mutex::default(),
            owner: AtomicU32::new(0),
            damaged: AtomicU64::new(0),
            log_pages: AtomicI64::new(0),
            is_nearly_moved: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            heirs: Heirs::default(),
            glances: Glances::default(),
        })
    }

    /// Nobody listening is no error: then nobody waits.
    fn tell(&self, event: Event) {
        drop(self.events.send(event));
    }

    fn lost(&self, at: Micros, why: String, is_final: bool) {
        *self.trouble.lock() = Some(why);
        self.is_final.store(is_final, Ordering::Release);
        self.lost_at.store(at.0, Ordering::Release);
        self.tell(Event::Lost);
    }

    fn found(&self) {
        self.on_return.lock().clear();
        self.lost_at.store(NOT_LOST, Ordering::Release);
        *self.trouble.lock() = None;
        self.tell(Event::Back);
    }

    /// What is to be settled first when the store is back.
    fn on_return(&self) -> Vec<Told> {
        let at = self.clock.now().at;
        let closes = self.on_return.lock();
        let close = |(&scope, &rest): (&ScopeId, &Span)| Told {
            settle: Settle::Close {
                scope,
                age: Span::ZERO,
                rest: Some(rest),
                then: Reopen::All,
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
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.inbox.close();
        // Whoever was answered on the clerk's own thread may be the last that held this: it ends by itself.
        let is_elsewhere =
            |clerk: &JoinHandle<()>| clerk.thread().id() != std::thread::current().id();
        if let Some(clerk) = self.clerk.lock().take().filter(is_elsewhere) {
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
fn used_up(rule: &Rule) -> View {
    View {
        limit: rule.limit(),
        used: rule.limit(),
        remaining: 0,
        window_age: None,
        reset_after: None,
        rung: Rung::default(),
    }
}
