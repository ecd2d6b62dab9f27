//! A ledger over a store that compares and replaces rows: Postgres, Redis, or any other with a
//! compare-and-set.
//!
//! A new store is a [`RowStore`]: it carries one request there and one reply back, and tells
//! [`RowEvents`] what other owners have written. The protocol is `tollgate_core::replica`; nothing
//! of it is written again for a store.
//!
//! Each provider has a task of its own, so that none waits for another one's requests. It takes what
//! waits in the inbox, has one request under way, and has a deadline around it.
//!
//! Promises: an offer is decided by a request that the store has accepted, or on rows that are
//! known to be current, however often it conflicts and whatever is lost on the way. Each second
//! those who wait for a signal ask again, so that a lost wake-up costs a second and never a hang.
//!
//! Never: decides, understands a row, or blocks a thread.

mod undecided_offers;
mod task;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) mod clock_file;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod folder_writes;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) mod known_tags;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) mod link;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) mod node_slot;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) mod live_owners;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) mod open;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) mod wire;

use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tollgate_core::ask::OwnerId;
use tollgate_core::replica::{
    ClockRecord, PastUse, ReplicaSettings, Reply, Request, RowKey, StoredRow, Waiting,
};
use tollgate_core::time::Span;

use crate::hub::TagId;
use crate::shared::Shared;
use crate::store::{Liveness, StoreError};

use task::TagTask;

/// How often those who wait for a signal ask again.
const WATCHDOG: Duration = Duration::from_secs(1);

/// Pushes that a task may lag behind. A push has the rows of one batch, usually one to four of 4
/// KiB: 1 MiB. Past that it asks for everything again.
const PUSHES_MAX: usize = 64;

/// A store that compares and replaces rows, and the connection to it.
///
/// It handles one request as a whole and one after the other, as `tollgate_core::replica::Request`
/// says: note who waits; if epoch, time and versions are as expected, replace the rows, forget what
/// the sender waits for no longer, and send the new rows to all others that wait for one of them,
/// and new rows of scopes to everybody who uses this provider; otherwise return the rows as they
/// are. Its clock is read while it does so.
pub trait RowStore: Send + Sync + fmt::Debug + 'static {
    /// Sends a request about the rows of this provider and returns its reply. An error means that no
    /// reply comes: the request may have been handled, or may still be. So does dropping the future,
    /// which happens at the deadline.
    fn exchange(
        &self,
        tag: &str,
        request: Request,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// Is this owner alive, as far as is known here? It asks nobody.
    fn liveness(&self, owner: OwnerId) -> Liveness;

    /// Has this host used this provider with this store before this process started? Then a store
    /// without its rows, or with those of another incarnation, was wiped, and its limits are closed
    /// until all calls of before are counted. What to remember is `Request::incarnation` of each
    /// request that has replaced rows. A store that cannot tell says `Never`. It asks nobody.
    fn past_use(&self, tag: &str) -> PastUse;

    /// What this host knows of the store's clock from earlier processes of this boot. What to remember
    /// is `Request::clock` of each request that has replaced rows. A store that remembers nothing says
    /// `None`: each process then takes what it cannot date for used up. It asks nobody.
    fn known_clock(&self, tag: &str) -> Option<ClockRecord> {
        let _ = tag;
        None
    }

    /// The number of this node, if the next process in its place will have the same one, and no other
    /// while this one runs. `None`: each process is a node of its own.
    fn node(&self) -> Option<u64> {
        None
    }
}

/// What a networked ledger needs to know.
#[derive(Clone, Copy, Debug)]
pub struct NetworkedSettings {
    /// Of the protocol: which owner this process is, and the deadline around each request.
    pub replica: ReplicaSettings,
    /// Without any reply for so long the store counts as lost. Longer than the deadline: one request
    /// may be an accident of the network.
    pub lost_after: Span,
}

/// Through this the connection reports what other owners have written.
#[derive(Clone, Debug)]
pub struct RowEvents {
    tags: Weak<Tags>,
    shared: Weak<Shared>,
}

impl RowEvents {
    /// Rows of this provider that another owner has replaced, and who waits for them.
    pub fn pushed(&self, tag: &str, rows: Vec<(RowKey, StoredRow)>, waiting: Waiting) {
        let (Some(tags), Some(shared)) = (self.tags.upgrade(), self.shared.upgrade()) else {
            return;
        };
        let (tag, ..) = shared.hub.tag(tag);
        if let Some(slot) = tags.get(tag) {
            slot.push(rows, waiting);
        }
    }

    /// This host could not write down which providers it uses, for this reason.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(crate) fn not_remembered(&self, why: String) {
        if let Some(shared) = self.shared.upgrade() {
            let why = why.into();
            shared.hub.broadcast(&crate::Event::NotRemembered { why });
        }
    }

    /// The subscription was interrupted: anything may have been missed.
    pub fn resync(&self) {
        let (Some(tags), Some(shared)) = (self.tags.upgrade(), self.shared.upgrade()) else {
            return;
        };
        tags.all().iter().for_each(|slot| slot.miss());
        shared.hub.resync();
    }
}

/// What wakes the task of a provider.
#[derive(Debug, Default)]
pub(crate) struct TagSlot {
    wake: Notify,
    pushes: Mutex<Pushes>,
}

#[derive(Debug, Default)]
struct Pushes {
    rows: Vec<(Vec<(RowKey, StoredRow)>, Waiting)>,
    /// More came than fits, or some were missed.
    is_missed: bool,
}

impl TagSlot {
    fn push(&self, rows: Vec<(RowKey, StoredRow)>, waiting: Waiting) {
        {
            let mut pushes = self.pushes.lock();
            match pushes.rows.len() < PUSHES_MAX {
                true => pushes.rows.push((rows, waiting)),
                false => pushes.is_missed = true,
            }
        }
        self.wake.notify_one();
    }

    fn miss(&self) {
        self.pushes.lock().is_missed = true;
        self.wake.notify_one();
    }

    fn take_pushes(&self) -> Pushes {
        std::mem::take(&mut *self.pushes.lock())
    }
}

/// The tasks, by the number of their tag.
#[derive(Debug, Default)]
struct Tags {
    slots: Mutex<Vec<Option<Arc<TagSlot>>>>,
}

impl Tags {
    fn get(&self, tag: TagId) -> Option<Arc<TagSlot>> {
        self.slots.lock().get(tag.0)?.clone()
    }

    fn all(&self) -> Vec<Arc<TagSlot>> {
        self.slots.lock().iter().flatten().cloned().collect()
    }

    /// The slot of a tag, and whether it is new. Tags are bounded by the hub.
    fn get_or_add(&self, tag: TagId) -> (Arc<TagSlot>, bool) {
        let mut slots = self.slots.lock();
        if slots.len() <= tag.0 {
            slots.resize(tag.0 + 1, None);
        }
        match &slots[tag.0] {
            Some(slot) => (slot.clone(), false),
            None => {
                let slot = Arc::new(TagSlot::default());
                slots[tag.0] = Some(slot.clone());
                (slot, true)
            }
        }
    }
}

/// Drives a networked store: one task per provider.
#[derive(Debug)]
pub(crate) struct TaskDriver {
    shared: Arc<Shared>,
    tags: Arc<Tags>,
    owner: OwnerId,
    /// The process whose runtime runs the tasks.
    pid: u32,
}

impl TaskDriver {
    /// Tasks start on this runtime when their provider is first used.
    pub(crate) fn start<R: RowStore>(
        shared: Arc<Shared>,
        runtime: &Handle,
        settings: NetworkedSettings,
        store: impl FnOnce(RowEvents) -> R,
    ) -> TaskDriver {
        let tags = Arc::new(Tags::default());
        let store = Arc::new(store(RowEvents {
            tags: Arc::downgrade(&tags),
            shared: Arc::downgrade(&shared),
        }));
        let waker = Waker {
            // The inbox belongs to what this would keep alive.
            shared: Arc::downgrade(&shared),
            tags: tags.clone(),
            store,
            settings,
            runtime: runtime.clone(),
        };
        shared.inbox.on_work(Box::new(move |tag| waker.wake(tag)));
        runtime.spawn(watch(Arc::downgrade(&shared)));
        TaskDriver {
            shared,
            tags,
            owner: settings.replica.owner,
            pid: std::process::id(),
        }
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The providers that have a task.
    pub(crate) fn tag_names(&self) -> Vec<Arc<str>> {
        let slots = self.tags.slots.lock();
        let used = slots.iter().enumerate().filter(|(_, slot)| slot.is_some());
        used.map(|(index, _)| self.shared.hub.name(TagId(index)))
            .collect()
    }

    /// A child after `fork` has no thread of the runtime: its offers would never end.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    #[cfg(test)]
    pub(crate) fn fork(&mut self) {
        self.pid = self.pid.wrapping_add(1);
    }
}

impl Drop for TaskDriver {
    /// The tasks write the queued settles and end; this waits for nobody.
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.tags
            .all()
            .iter()
            .for_each(|slot| slot.wake.notify_one());
    }
}

/// Wakes the task of a provider, which is started if there is none.
struct Waker<R> {
    shared: Weak<Shared>,
    tags: Arc<Tags>,
    store: Arc<R>,
    settings: NetworkedSettings,
    runtime: Handle,
}

impl<R: RowStore> Waker<R> {
    fn wake(&self, tag: TagId) {
        let (slot, is_new) = self.tags.get_or_add(tag);
        slot.wake.notify_one();
        if let (true, Some(shared)) = (is_new, self.shared.upgrade()) {
            let task = TagTask::new(tag, shared, slot, self.store.clone(), self.settings);
            self.runtime.spawn(task.run());
        }
    }
}

/// Each second those who wait for a signal ask again.
async fn watch(shared: Weak<Shared>) {
    loop {
        pause(WATCHDOG).await;
        match shared.upgrade() {
            Some(shared) if !shared.is_closing.load(Ordering::Acquire) => shared.hub.ask_again(),
            Some(_) | None => return,
        }
    }
}

/// Deadlines of requests, and the watchdog: nobody else wakes these tasks.
#[expect(clippy::disallowed_methods, reason = "the timer of a task")]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::{Context, Poll};

    use tollgate_core::ask::{Ask, Evidence, PermitId, Priority, ScopeId, Scopes, Terms};
    use tollgate_core::replica::{Epoch, ReplyOutcome, Rules};
    use tollgate_core::scope::ScopeView;
    use tollgate_core::time::{Micros, Wall};

    use super::*;
    use crate::front::Driver;
    use crate::{Clock, Ledger, StoreLost};

    /// Rejects requests, this many, and then returns empty rows.
    #[derive(Debug, Default)]
    struct Stumbling {
        errors: AtomicU32,
    }

    impl RowStore for Stumbling {
        async fn exchange(&self, _: &str, request: Request) -> Result<Reply, StoreError> {
            let taken = |errors: u32| errors.checked_sub(1);
            let order = Ordering::Relaxed;
            if self.errors.fetch_update(order, order, taken).is_ok() {
                return Err(StoreError {
                    message: "the connection broke".into(),
                    is_final: false,
                });
            }
            let rows = request.read.into_iter().map(|key| (key, None));
            Ok(Reply {
                batch: request.batch,
                stored_at: Micros(1_772_323_200_000_000),
                epoch: Epoch(1),
                outcome: ReplyOutcome::Current(rows.collect()),
                waiting: Vec::new(),
            })
        }

        fn liveness(&self, _: OwnerId) -> Liveness {
            Liveness::Unknown
        }

        fn past_use(&self, _: &str) -> PastUse {
            PastUse::Never
        }
    }

    #[derive(Debug)]
    struct Unreachable;

    impl RowStore for Unreachable {
        async fn exchange(&self, _: &str, _: Request) -> Result<Reply, StoreError> {
            std::future::pending().await
        }

        fn liveness(&self, _: OwnerId) -> Liveness {
            Liveness::Unknown
        }

        fn past_use(&self, _: &str) -> PastUse {
            PastUse::Never
        }
    }

    fn ledger<R: RowStore>(store: R) -> Ledger {
        let settings = NetworkedSettings {
            replica: ReplicaSettings {
                owner: OwnerId(1),
                process: 1,
                deadline: Span::from_millis(100),
                durable: false,
                rules: Rules::default(),
            },
            lost_after: Span::from_secs(1),
        };
        let clock = Clock::tokio(Wall(1_772_323_200_000_000));
        Ledger::networked(clock, &Handle::current(), settings, |_| store)
    }

    /// A child after `fork` has no tasks: its offers waited for ever.
    #[tokio::test(start_paused = true)]
    async fn offers_of_a_forked_child_end_at_once() {
        let mut ledger = ledger(Unreachable);
        let front = Arc::get_mut(&mut ledger.front).expect("the only handle");
        match &mut front.driver {
            Driver::Tasks(tasks) => tasks.fork(),
            Driver::Inline(_) | Driver::Thread(_) => panic!("a networked ledger has tasks"),
        }
        let ask = Ask {
            id: PermitId::default(),
            terms: Terms::new(),
            scopes: Scopes::new(),
            priority: Priority::Normal,
            evidence: Evidence::Report {
                timeout: Span::from_secs(30),
                late: Span::from_secs(5),
            },
            max_wait: Span::ZERO,
        };
        let mut offer = std::pin::pin!(ledger.provider("p").offer(vec![ask]));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let result = offer.as_mut().poll(&mut context);
        assert!(matches!(result, Poll::Ready(Err(StoreLost))), "{result:?}");
        assert!(ledger.loss_reason().is_some());
    }

    /// A peek that got an error ended without a reply, and its caller took the store for lost; one
    /// whose reply was lost was sent again.
    #[tokio::test(start_paused = true)]
    async fn a_peek_that_gets_an_error_is_sent_again() {
        let errors = AtomicU32::new(2);
        let ledger = ledger(Stumbling { errors });
        let peek = ledger.provider("p").try_peek_scope(ScopeId::named(&["p"]));
        assert_eq!(peek.await, Some(ScopeView::Open));
        assert!(ledger.loss().is_none());
    }
}
