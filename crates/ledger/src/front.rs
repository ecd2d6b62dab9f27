//! The front of a ledger: everything that is the same for every store, and who runs its batches.
//!
//! Promises: what was decided is told to everybody whom it concerns, whoever ran the batch. An error
//! of a store is its loss, however it is driven; what was settled meanwhile is written when it is back.
//!
//! Never: knows which store it is above, only how that store is driven.

use std::sync::Arc;

use tokio::sync::broadcast;
use tollgate_core::batch::{Batch, Decision, QueuedSettle, Settles};
use tollgate_core::time::Span;

use crate::hub::TagId;
use crate::ledger_thread::ThreadDriver;
use crate::shared::Shared;
use crate::store::{Store, check_verdicts, saved_in, wake_owners};
use crate::{Event, StoreLoss};

/// A ledger: what is shared, and who runs its batches.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) shared: Arc<Shared>,
    pub(crate) driver: Driver,
}

/// Who runs the batches of a store.
#[derive(Debug)]
pub(crate) enum Driver {
    /// The store never blocks: whoever asks does.
    Inline(Box<dyn Store>),
    /// The store may block: a thread of the ledger does.
    Thread(ThreadDriver),
}

/// A store that never blocks and is lost is tried again this often, by whoever comes by.
const INLINE_RETRY: Span = Span::from_millis(200);

/// Turns of settles that a recovery writes: as many as wait at most, 1,024 in each.
const RECOVERY_TURNS_MAX: usize = 128;

impl Front {
    /// Decides a batch of this provider here and now and tells whom it concerns. `None`: the store
    /// takes time, or cannot be used.
    pub(crate) fn commit_inline(
        &self,
        events: &broadcast::Sender<Event>,
        batch: &Batch<'_>,
    ) -> Option<Decision> {
        let Driver::Inline(store) = &self.driver else {
            return None;
        };
        if self.shared.loss().is_some() && !self.recover_inline() {
            return None;
        }
        let mut decision = self.commit_to(&**store, batch)?;
        let Decision {
            freed,
            changed_scopes,
            ..
        } = &mut decision;
        self.shared.hub.decided(events, freed, changed_scopes);
        Some(decision)
    }

    /// Decides a batch and tells other owners. `None`: the store is lost, and it is said so.
    fn commit_to(&self, store: &dyn Store, batch: &Batch<'_>) -> Option<Decision> {
        let dead = self.shared.dead.get(batch.owner);
        let batch = Batch {
            dead: &dead,
            ..*batch
        };
        let checked = |decision| match check_verdicts(&decision, batch.asks.len()) {
            Ok(()) => Ok(decision),
            Err(error) => Err(error),
        };
        let decision = match store.commit(&batch).and_then(checked) {
            Ok(decision) => decision,
            Err(error) => {
                self.shared.mark_lost(&error);
                return None;
            }
        };
        self.shared.dead.on_committed(&batch);
        let dead = wake_owners(store, &decision, &saved_in(&decision, batch.asks));
        self.shared.dead.add(batch.owner, dead);
        if !decision.changed_scopes.is_empty() {
            store.notify_scopes(&decision.changed_scopes);
        }
        Some(decision)
    }

    /// Since when the store cannot be reached, while it cannot. No thread looks after a store that
    /// never blocks: whoever asks does, now and then.
    pub(crate) fn loss(&self) -> Option<StoreLoss> {
        let loss = self.shared.loss()?;
        if matches!(self.driver, Driver::Inline(_)) && self.recover_inline() {
            return None;
        }
        Some(loss)
    }

    /// Is the store back? Then what was settled meanwhile is written, and what is to be closed is
    /// closed, before anything is granted. Tried now and then.
    fn recover_inline(&self) -> bool {
        let Driver::Inline(store) = &self.driver else {
            return false;
        };
        let shared = &self.shared;
        let mut tried_at = shared.recovery_tried_at.lock();
        if shared.loss().is_none() {
            return true;
        }
        let now = shared.clock.at();
        if shared.has_failed() || tried_at.is_some_and(|at| now.since(at) < INLINE_RETRY) {
            return false;
        }
        *tried_at = Some(now);
        store.reopen();
        let nothing = Batch::now(store.owner(), &[], &[]);
        if self.commit_to(&**store, &nothing).is_none() {
            return false;
        }
        let closes = shared.recovery_closes();
        let settles = closes.iter().map(|close| (close.tag, close.settle(now)));
        if !settles
            .into_iter()
            .all(|(tag, settle)| self.write_settles(&**store, tag, vec![settle]))
        {
            return false;
        }
        if !self.write_inbox(&**store) {
            return false;
        }
        shared.mark_recovered(&closes);
        *tried_at = None;
        // What was to be closed while it came back.
        self.write_inbox(&**store)
    }

    /// Writes the settles that waited for the store.
    fn write_inbox(&self, store: &dyn Store) -> bool {
        for _ in 0..RECOVERY_TURNS_MAX {
            let work = self.shared.inbox.take_ready();
            if work.tags.is_empty() {
                break;
            }
            for tag in work.tags {
                if !self.write_settles(store, tag.tag, tag.settles) {
                    return false;
                }
            }
        }
        true
    }

    fn write_settles(&self, store: &dyn Store, tag: TagId, settles: Vec<QueuedSettle>) -> bool {
        let batch = Batch {
            settles: Settles::Queued(&settles),
            ..Batch::now(store.owner(), &[], &[])
        };
        match self.commit_to(store, &batch) {
            Some(mut decision) => {
                self.shared.hub.decided_for_tag(tag, &mut decision);
                true
            }
            None => {
                drop(self.shared.inbox.requeue(tag, settles));
                false
            }
        }
    }

    pub(crate) fn store(&self) -> &dyn Store {
        match &self.driver {
            Driver::Inline(store) => &**store,
            Driver::Thread(thread) => thread.store(),
        }
    }

    /// A child after `fork` has none of the threads, and must not use the parent's store.
    pub(crate) fn is_forked(&self) -> bool {
        match &self.driver {
            Driver::Inline(_) => false,
            Driver::Thread(thread) => thread.is_forked(),
        }
    }
}
