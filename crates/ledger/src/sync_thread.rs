//! The sync thread: hands out permits that must survive a power cut, once they do.
//!
//! Promises: one sync serves all that came before it began (group commit). Only those wait for it
//! whose permits need it; the ledger thread goes on with all others, of the same provider too.
//!
//! If the thread panics, everybody who waits for it or comes later is answered: the store is lost.
//!
//! Never: hands out what is not durable. A disk that has failed once is not believed again: a sync
//! that is tried twice may succeed over what was lost.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::failpoint;
use crate::hand_out::HandOut;
use crate::shared::Shared;
use crate::store::{Store, StoreError};
use crate::threads::{catch_panic, spawn};

/// The name of the thread.
pub(crate) const NAME: &str = "tollgate-sync";

/// What is covered by reservations becomes durable within this time. A reservation of which half is in
/// use does not wait for it.
const SYNC_WITHIN: Duration = Duration::from_millis(100);

/// The thread, as the ledger thread uses it.
#[derive(Debug)]
pub(crate) struct SyncThread {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    wake_up: Condvar,
}

/// Bounded by the inbox: each of these is an offer that was taken from there, and its asker waits.
#[derive(Debug, Default)]
struct State {
    hand_outs: Vec<HandOut>,
    requested: Requested,
    is_over: bool,
    /// The thread has panicked: nothing becomes durable any more.
    has_panicked: bool,
}

/// What must become durable although nobody waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Requested {
    #[default]
    Nothing,
    /// Within [`SYNC_WITHIN`].
    Later,
    Now,
}

impl SyncThread {
    pub(crate) fn start(shared: Arc<Shared>, store: Arc<dyn Store>) -> std::io::Result<SyncThread> {
        let queue = Arc::new(Queue::default());
        let work = queue.clone();
        let thread = spawn(NAME, move || {
            let ran = catch_panic("the sync thread", || run(&work, &shared, &*store));
            if let Err(error) = ran {
                shared.mark_lost(&error);
                work.abandon();
            }
        })?;
        Ok(SyncThread {
            queue,
            thread: Some(thread),
        })
    }

    /// Something must become durable, but nobody waits for it.
    pub(crate) fn request(&self) {
        self.request_by(Requested::Now);
    }

    /// As [`SyncThread::request`], but it is covered by reservations of which less than half is in use:
    /// what comes within the next moments is synced with it.
    pub(crate) fn request_later(&self) {
        self.request_by(Requested::Later);
    }

    fn request_by(&self, requested: Requested) {
        let mut state = self.queue.state.lock();
        let before = state.requested;
        state.requested = before.max(requested);
        drop(state);
        if requested > before {
            self.queue.wake_up.notify_one();
        }
    }

    /// Hands out as soon as everything committed so far is durable.
    pub(crate) fn hand_out_when_durable(&self, hand_out: HandOut) {
        let mut state = self.queue.state.lock();
        if state.has_panicked {
            drop(state);
            return hand_out.fail();
        }
        state.hand_outs.push(hand_out);
        drop(state);
        self.queue.wake_up.notify_one();
    }

    /// Ends the thread when everything is handed out.
    pub(crate) fn finish(&mut self) {
        self.queue.state.lock().is_over = true;
        self.queue.wake_up.notify_one();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for SyncThread {
    /// The ledger thread may have panicked.
    fn drop(&mut self) {
        self.finish();
    }
}

impl Queue {
    /// Nobody hands anything out any more.
    fn abandon(&self) {
        let hand_outs = {
            let mut state = self.state.lock();
            state.has_panicked = true;
            std::mem::take(&mut state.hand_outs)
        };
        hand_outs.into_iter().for_each(HandOut::fail);
    }
}

fn run(queue: &Queue, shared: &Shared, store: &dyn Store) {
    loop {
        let hand_outs = {
            let mut state = queue.state.lock();
            let mut has_waited = false;
            while state.hand_outs.is_empty() && state.requested != Requested::Now {
                match state.requested {
                    Requested::Later if has_waited || state.is_over => break,
                    Requested::Later => {
                        let waited = queue.wake_up.wait_for(&mut state, SYNC_WITHIN);
                        has_waited = waited.timed_out();
                    }
                    Requested::Now | Requested::Nothing if state.is_over => return,
                    Requested::Now | Requested::Nothing => queue.wake_up.wait(&mut state),
                }
            }
            state.requested = Requested::Nothing;
            std::mem::take(&mut state.hand_outs)
        };
        match sync_once(shared, store) {
            Ok(()) => {
                failpoint::reached("synced");
                hand_outs
                    .into_iter()
                    .for_each(|hand_out| hand_out.deliver_synced(shared));
            }
            Err(error) => {
                shared.mark_lost(&error);
                hand_outs.into_iter().for_each(HandOut::fail);
            }
        }
    }
}

/// Syncs, unless a sync or the store has failed for good before. Every failure is for good.
fn sync_once(shared: &Shared, store: &dyn Store) -> Result<(), StoreError> {
    if shared.has_failed() {
        return Err(shared.failure());
    }
    let synced = catch_panic("the store", || store.sync()).flatten();
    synced.map_err(|error| StoreError {
        is_final: true,
        ..error
    })
}
