//! The ledger: where permits are counted.
//!
//! One front for every store. The front has the inbox, batches per provider, fairness between owners
//! (decided in `tollgate_core::batch`), forwarding of changed limits, last-seen scopes, loss and
//! return, events and peeks. A [`Store`] only reads and writes rows.
//!
//! Promises: every batch is decided by `tollgate_core::batch::decide`, under the store's lock or in
//! its transaction, with a `now` that was read after the lock was held. A permit is counted before
//! it is handed out. Waiting asks share one transaction. Providers do not wait for each other.
//!
//! Never: decides anything, or reads an instant on another clock than it was taken on: what is
//! reported to a ledger from outside is an age or a delay.

#![cfg_attr(
    not(feature = "sqlite"),
    allow(
        unused_variables,
        clippy::needless_pass_by_value,
        reason = "memory alone needs less than the stores do"
    )
)]

mod clock;
pub use clock::{Clock, ManualClock, SlowClock};
mod event;
pub use event::{EVENTS_MAX, Event, EventReceiver};
mod offer;
pub use offer::{OfferVerdicts, StoreLoss, StoreLost};
mod store;
pub use store::{EventSink, LOST_RETRY, Liveness, PeekQuery, PeekReply, Store, StoreError};
mod provider;
pub use provider::{PendingOffer, ProviderLedger};
mod front;
mod shared;
mod hub;
mod inbox;
mod cell_forwarding;
mod last_seen;
mod dead_owners;
mod former_owners;
mod hand_out;
mod threads;
mod ledger_thread;
mod sync_thread;
pub mod lock_order;
mod memory;
pub use memory::SharedMemory;
mod networked;
#[cfg(any(feature = "redis", feature = "postgres"))]
pub use networked::open::NetworkedOptions;
pub use networked::{NetworkedSettings, RowEvents, RowStore};
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
pub use sqlite::OpenError;
#[cfg(feature = "failpoints")]
pub mod failpoint;
#[cfg(not(feature = "failpoints"))]
mod failpoint;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_core::ask::OwnerId;
use tollgate_core::time::{Micros, Now, Wall};

use front::{Driver, Front};
use ledger_thread::ThreadDriver;
use networked::TaskDriver;
use shared::Shared;

/// One ledger, shared by all clones of this handle.
#[derive(Clone, Debug)]
pub struct Ledger {
    front: Arc<Front>,
}

impl Ledger {
    /// A ledger in this process, gone with it.
    #[must_use]
    pub fn memory(clock: Clock) -> Ledger {
        Ledger::shared_memory(&SharedMemory::new(clock))
    }

    /// One more owner of these rows: like another process, but in this one.
    #[must_use]
    pub fn shared_memory(memory: &SharedMemory) -> Ledger {
        Ledger::inline(memory.clock(), |sink| memory.join(sink))
    }

    /// A ledger in a folder of this host, which is made if it is not there. Any number of processes
    /// may open the same one; the clock must be one that they share.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(folder: impl AsRef<std::path::Path>, clock: Clock) -> Result<Ledger, OpenError> {
        let folder = folder.as_ref();
        let on = clock.clone();
        let open = |sink| sqlite::SqliteStore::open(folder, on, sink);
        let no_thread = |source| OpenError::from_io(folder, source);
        Ledger::blocking(clock, open, no_thread)
    }

    /// The same, but a folder that cannot be opened is a store that is lost from the start: the
    /// reason is returned, and the store recovers as soon as the folder can be opened. An error
    /// only if this process can have no more threads.
    #[cfg(feature = "sqlite")]
    pub fn sqlite_or_lost(
        folder: impl AsRef<std::path::Path>,
        clock: Clock,
    ) -> Result<(Ledger, Option<OpenError>), OpenError> {
        let folder = folder.as_ref();
        let (mut why, on) = (None, clock.clone());
        let open = |sink| {
            let (store, error) = sqlite::SqliteStore::open_or_lost(folder, on, sink);
            why = error;
            Ok(store)
        };
        let no_thread = |source| OpenError::from_io(folder, source);
        let ledger = Ledger::blocking(clock, open, no_thread)?;
        Ok((ledger, why))
    }

    /// A ledger on a store that never blocks: whoever asks runs it.
    pub fn inline<S: Store + 'static>(clock: Clock, store: impl FnOnce(EventSink) -> S) -> Ledger {
        let shared = Shared::new(clock);
        let store = store(EventSink::new(shared.hub.clone()));
        Ledger::of(Arc::new(Front {
            shared,
            driver: Driver::Inline(Box::new(store)),
        }))
    }

    /// A ledger on a store that may block: it has a thread of its own. A store that cannot be used
    /// yet is lost from the start if its first batch fails.
    pub fn blocking<S: Store + 'static, E>(
        clock: Clock,
        store: impl FnOnce(EventSink) -> Result<S, E>,
        no_thread: impl FnOnce(std::io::Error) -> E,
    ) -> Result<Ledger, E> {
        let shared = Shared::new(clock);
        let store = Arc::new(store(EventSink::new(shared.hub.clone()))?);
        if let Some(error) = store.not_open() {
            shared.mark_lost(&error);
        }
        let driver = ThreadDriver::start(shared.clone(), store).map_err(no_thread)?;
        Ok(Ledger::of(Arc::new(Front {
            shared,
            driver: Driver::Thread(driver),
        })))
    }

    /// A ledger on a store that compares and replaces rows, far away: a task per provider on this
    /// runtime. Settings say which owner this process is: a number from 1 on.
    pub fn networked<R: RowStore>(
        clock: Clock,
        runtime: &tokio::runtime::Handle,
        settings: NetworkedSettings,
        store: impl FnOnce(RowEvents) -> R,
    ) -> Ledger {
        debug_assert_ne!(settings.replica.owner, OwnerId::UNKNOWN);
        let shared = Shared::new(clock);
        let driver = TaskDriver::start(shared.clone(), runtime, settings, store);
        Ledger::of(Arc::new(Front {
            shared,
            driver: Driver::Tasks(driver),
        }))
    }

    fn of(front: Arc<Front>) -> Ledger {
        Ledger { front }
    }

    /// The ledger as this provider uses it. The tag is the provider's name: what has another tag
    /// never waits for this one.
    #[must_use]
    pub fn provider(&self, tag: &str) -> ProviderLedger {
        ProviderLedger::new(self.front.clone(), tag)
    }

    /// Waits until everything that was settled so far is stored, where other hosts can see it. A store
    /// of this host has it when the last handle is dropped. While the store is lost, this ends at
    /// once.
    pub async fn flush(&self) {
        for tag in self.front.networked_tags() {
            drop(self.provider(&tag).offer(Vec::new()).await);
        }
    }

    /// An empty ledger in this process on the same clock, for what must go on without the store.
    #[must_use]
    pub fn empty_in_memory(&self) -> Ledger {
        Ledger::memory(self.front.shared.clock.clone())
    }

    /// Do other processes count in it as well?
    #[must_use]
    pub fn is_shared_by_processes(&self) -> bool {
        let store = self.front.local_store();
        store.is_none_or(Store::is_shared_by_processes)
    }

    /// This process among those that share the ledger. Permits carry it.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.front.owner()
    }

    /// Why the store cannot be reached, while it cannot: a sentence for people.
    #[must_use]
    pub fn loss_reason(&self) -> Option<String> {
        if self.front.is_forked() {
            return Some(
                "this process was forked off the one that opened the ledger; open it again here"
                    .to_owned(),
            );
        }
        self.front.shared.loss_reason()
    }

    /// Since when the store cannot be reached, by at least one provider, while it cannot. Cheap enough
    /// to ask per call.
    #[must_use]
    pub fn loss(&self) -> Option<StoreLoss> {
        self.front.loss()
    }

    /// Scopes that have changed, of every provider, and the store itself. What cells have come free
    /// only their provider hears.
    #[must_use]
    pub fn events(&self) -> EventReceiver {
        self.front.shared.hub.events()
    }

    /// How many stored rows could not be believed since it was opened; their limits count as used
    /// up for one period.
    #[must_use]
    pub fn damaged_rows(&self) -> u64 {
        match self.front.local_store() {
            Some(store) => store.damaged_rows(),
            None => self.front.shared.damaged_rows(),
        }
    }

    /// The length of the store's log, if it grows because a reader of another program keeps it from
    /// being shortened.
    #[must_use]
    pub fn held_log_bytes(&self) -> Option<u64> {
        self.front.local_store()?.held_log_bytes()
    }

    /// How many cells are stored, where that is known without reading them all.
    #[must_use]
    pub fn cell_count(&self) -> Option<usize> {
        self.front.local_store()?.cell_count()
    }

    /// How many peeks were sent to the store so far.
    #[must_use]
    pub fn peeks_sent(&self) -> u64 {
        self.front.shared.peeks_sent.load(Ordering::Relaxed)
    }

    /// Its clock, for whoever must not keep the ledger open.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.front.shared.clock
    }

    /// The ledger clock, without the wall clock.
    #[must_use]
    pub fn at(&self) -> Micros {
        self.front.shared.clock.at()
    }

    /// The wall clock alone.
    #[must_use]
    pub fn wall(&self) -> Wall {
        self.front.shared.clock.wall()
    }

    /// Both clocks, as this ledger reads them.
    #[must_use]
    pub fn now(&self) -> Now {
        self.front.shared.clock.now()
    }
}
