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
mod inbox;
mod keeper;
mod lock;
mod open;
mod page;
mod share;
mod trouble;
pub use trouble::OpenError;
mod wake;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{broadcast, oneshot};
use tollgate_core::ask::{Ask, CellId, OwnerId, ScopeId, Settle};
use tollgate_core::limit::{Rule, Rung, View};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Now;

use crate::{Clock, EVENTS_MAX, Event, Events, Ledger, Lost, Offered};
use book::{Book, Question, Reply};
use clerk::Clerk;
use inbox::{Asked, Inbox, Offer, Told};
use open::Opened;
use wake::{Post, Waiting};

/// Whoever looks waits this long for the ledger thread; past it everything looks used up.
const LOOK_WAIT: Duration = Duration::from_millis(1_500);

/// A ledger in a state folder; clones share it.
#[derive(Clone, Debug)]
pub struct SqliteLedger {
    handle: Arc<Handle>,
}

/// What handles and the ledger's threads share.
#[derive(Debug)]
struct Shared {
    clock: Clock,
    inbox: Inbox,
    events: broadcast::Sender<Event>,
    waiting: Mutex<Waiting>,
    trouble: Mutex<Option<String>>,
    damaged: AtomicU64,
    /// How long the log was at the last checkpoint that could not move all of it.
    log_pages: AtomicI64,
    /// The disk has failed a checkpoint.
    is_broken: AtomicBool,
    post: Post,
    is_over: AtomicBool,
}

/// Ends the ledger's threads when the last handle goes.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    owner: OwnerId,
    pid: u32,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SqliteLedger {
    pub(crate) fn open(folder: &Path, clock: Clock) -> Result<SqliteLedger, OpenError> {
        let Opened {
            conn,
            keeper,
            lock,
            home,
            log,
            post,
            socket,
        } = open::open(folder, clock.now())?;
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let shared = Arc::new(Shared {
            clock: clock.clone(),
            inbox: Inbox::default(),
            events,
            waiting: Mutex::default(),
            trouble: Mutex::default(),
            damaged: AtomicU64::new(0),
            log_pages: AtomicI64::new(0),
            is_broken: AtomicBool::new(false),
            post,
            is_over: AtomicBool::new(false),
        });
        let book = Book::new(conn, home, clock);
        let (checkpoint, asked) = sync_channel(1);
        let clerk = Clerk::new(shared.clone(), book, lock, log, folder, checkpoint);
        let fail = |source| OpenError::from_io(folder, source);
        let (listener, kept) = (shared.clone(), shared.clone());
        let threads = vec![
            spawn("tollgate-ledger", move || clerk.run()).map_err(fail)?,
            spawn("tollgate-wake", move || {
                wake::listen(
                    &socket,
                    &listener.waiting,
                    &listener.events,
                    &listener.is_over,
                );
            })
            .map_err(fail)?,
            spawn("tollgate-keeper", move || {
                keeper::keep(&keeper, &asked, &kept);
            })
            .map_err(fail)?,
        ];
        let handle = Handle {
            shared,
            owner: home.owner,
            pid: std::process::id(),
            threads: Mutex::new(threads),
        };
        Ok(SqliteLedger {
            handle: Arc::new(handle),
        })
    }

    /// This process among those that share the folder: a number that is never given twice.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.handle.owner
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

    pub(crate) fn offer(&self, ledger: &Ledger, asks: Vec<Ask>) -> Offered {
        if self.is_forked() {
            return Offered::ready(ledger.clone(), Err(Lost));
        }
        let (answer, receiver) = oneshot::channel();
        self.handle.shared.inbox.offer(Offer { asks, answer });
        Offered::waiting(ledger.clone(), receiver)
    }

    pub(crate) fn settle(&self, settle: Settle) {
        if self.is_forked() {
            return;
        }
        let shared = &self.handle.shared;
        let at = shared.clock.now().at;
        shared.inbox.settle(Told { settle, at });
    }

    pub(crate) fn events(&self) -> Events {
        Events::new(self.handle.shared.events.subscribe())
    }

    pub(crate) fn look(&self, cells: &[(CellId, Arc<Rule>)]) -> Vec<View> {
        match self.ask(Question::Cells(cells.to_vec())) {
            Some(Reply::Cells(views)) => views,
            Some(Reply::Scope(_)) | None => cells.iter().map(|(_, rule)| used_up(rule)).collect(),
        }
    }

    pub(crate) fn look_scope(&self, scope: ScopeId) -> ScopeView {
        match self.ask(Question::Scope(scope)) {
            Some(Reply::Scope(view)) => view,
            Some(Reply::Cells(_)) | None => ScopeView::Closed { left: None },
        }
    }

    pub(crate) fn now(&self) -> Now {
        self.handle.shared.clock.now()
    }

    fn ask(&self, question: Question) -> Option<Reply> {
        if self.is_forked() {
            return None;
        }
        let (reply, answer) = sync_channel(1);
        self.handle.shared.inbox.ask(Asked { question, reply });
        answer.recv_timeout(LOOK_WAIT).ok()
    }

    /// A child after `fork` has none of the threads, and must not use the parent's database.
    fn is_forked(&self) -> bool {
        std::process::id() != self.handle.pid
    }
}

impl Shared {
    /// Nobody listening is no error: then nobody waits.
    fn tell(&self, event: Event) {
        drop(self.events.send(event));
    }
}

impl Drop for Handle {
    /// Waits until everything told is written. Every wait of the threads has an end, and so has
    /// this one.
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            return;
        }
        self.shared.inbox.close();
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.post.close();
        for thread in self.threads.lock().drain(..) {
            drop(thread.join());
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
