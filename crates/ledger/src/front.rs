//! The front of a ledger: everything that is the same for every store, and who runs its batches.
//!
//! Promises: what was decided is reported to everybody whom it concerns, whoever ran the batch. An error
//! of a store is its loss, however it is driven; what was settled meanwhile is written when it is back.
//! A store that panics is lost for good. Nothing of a database that was replaced reaches the new one.
//!
//! Never: knows which store it is above, only how that store is driven.

use std::sync::Arc;

use tokio::sync::broadcast;
use tollgate_core::ask::{OwnerId, Settle};
use tollgate_core::batch::{Batch, BatchResult, QueuedSettle, Settles};
use tollgate_core::time::Span;

use crate::hub::TagId;
use crate::ledger_thread::ThreadDriver;
use crate::networked::TaskDriver;
use crate::shared::Shared;
use crate::store::{PeekQuery, PeekReply, Store, check_verdicts, saved_in, wake_owners};
use crate::threads::catch_panic;
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
    /// The store is far away: a task per provider does.
    Tasks(TaskDriver),
}

/// A store that never blocks and is lost is tried again this often, by whoever comes by.
const INLINE_RETRY: Span = Span::from_millis(200);

/// Turns of settles that a recovery writes: as many as wait at most, 1,024 in each.
const RECOVERY_TURNS_MAX: usize = 128;

impl Front {
    /// Decides a batch of this provider at once and notifies whoever it concerns. `None`: the store
    /// takes time, or cannot be used.
    pub(crate) fn commit_inline(
        &self,
        events: &broadcast::Sender<Event>,
        batch: &Batch<'_>,
    ) -> Option<BatchResult> {
        let Driver::Inline(store) = &self.driver else {
            return None;
        };
        if self.shared.loss().is_some() && !self.recover_inline() {
            return None;
        }
        if batch
            .asks
            .iter()
            .any(|ask| self.shared.former.has_asked(ask))
        {
            return None; // made again under the new number
        }
        let mut decision = self.commit_to(&**store, batch)?;
        let BatchResult {
            freed,
            changed_scopes,
            ..
        } = &mut decision;
        self.shared.hub.decided(events, freed, changed_scopes);
        Some(decision)
    }

    /// Decides a batch and notifies other owners. `None`: the store is lost, and marked as lost.
    fn commit_to(&self, store: &dyn Store, batch: &Batch<'_>) -> Option<BatchResult> {
        let dead = self.shared.dead.get(batch.owner);
        let batch = Batch {
            dead: &dead,
            ..*batch
        };
        let checked = |decision| match check_verdicts(&decision, batch.asks.len()) {
            Ok(()) => Ok(decision),
            Err(error) => Err(error),
        };
        let committed = catch_panic("the store", || store.commit(&batch)).flatten();
        let decision = match committed.and_then(checked) {
            Ok(decision) => decision,
            Err(error) => {
                self.shared.mark_lost(&error);
                return None;
            }
        };
        self.shared.dead.on_committed(&batch);
        let notified = catch_panic("the store", || {
            let dead = wake_owners(store, &decision, &saved_in(&decision, batch.asks));
            self.shared.dead.add(batch.owner, dead);
            if !decision.changed_scopes.is_empty() {
                store.notify_scopes(&decision.changed_scopes);
            }
        });
        if let Err(panicked) = notified {
            self.shared.mark_lost(&panicked); // what is decided is committed, and counts
        }
        Some(decision)
    }

    /// Reads here and now. `None`: it cannot be known, because the store is lost.
    pub(crate) fn peek_inline(&self, store: &dyn Store, query: &PeekQuery) -> Option<PeekReply> {
        // What was settled meanwhile is not in the rows of a lost store.
        if self.loss().is_some() {
            return None;
        }
        let read = catch_panic("the store", || store.peek(query)).flatten();
        read.inspect_err(|error| self.shared.mark_lost(error)).ok()
    }

    /// Is this settle about a permit of a database that was replaced?
    pub(crate) fn is_former(&self, settle: &Settle) -> bool {
        self.shared.former.has_settled(settle)
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
        shared.former.set_current(store.owner());
        shared.dead.clear();
        if let Err(panicked) = catch_panic("the store", || store.reopen()) {
            shared.mark_lost(&panicked);
            return false;
        }
        shared.former.set_current(store.owner());
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
            let mut tags = work.tags.into_iter();
            while let Some(tag) = tags.next() {
                if !self.write_settles(store, tag.tag, tag.settles) {
                    // They come again with those that have failed.
                    tags.for_each(|rest| drop(self.shared.inbox.requeue(rest.tag, rest.settles)));
                    return false;
                }
            }
        }
        true
    }

    /// Writes what was queued for a lost store that has come back since: whoever recovered it may have
    /// looked before it was queued, and nobody else looks.
    pub(crate) fn flush_inline(&self) {
        if let Driver::Inline(store) = &self.driver
            && self.shared.loss().is_none()
        {
            self.write_inbox(&**store);
        }
    }

    fn write_settles(&self, store: &dyn Store, tag: TagId, mut settles: Vec<QueuedSettle>) -> bool {
        settles.retain(|queued| !self.is_former(&queued.settle));
        if settles.is_empty() {
            return true;
        }
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

    /// This process among those that share the store.
    pub(crate) fn owner(&self) -> OwnerId {
        match &self.driver {
            Driver::Inline(store) => store.owner(),
            Driver::Thread(thread) => thread.store().owner(),
            Driver::Tasks(tasks) => tasks.owner(),
        }
    }

    /// The store, if it is of this host.
    pub(crate) fn local_store(&self) -> Option<&dyn Store> {
        match &self.driver {
            Driver::Inline(store) => Some(&**store),
            Driver::Thread(thread) => Some(thread.store()),
            Driver::Tasks(_) => None,
        }
    }

    /// The providers that are used with a store far away.
    pub(crate) fn networked_tags(&self) -> Vec<Arc<str>> {
        match &self.driver {
            Driver::Inline(_) | Driver::Thread(_) => Vec::new(),
            Driver::Tasks(tasks) => tasks.tag_names(),
        }
    }

    /// A child after `fork` has none of the threads, and must not use the parent's store. A store
    /// that never blocks is memory, of which the child has its own copy.
    pub(crate) fn is_forked(&self) -> bool {
        match &self.driver {
            Driver::Inline(_) => false,
            Driver::Thread(thread) => thread.is_forked(),
            Driver::Tasks(tasks) => tasks.is_forked(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::ask::ScopeId;

    use super::*;
    use crate::Clock;
    use crate::memory::SharedMemory;
    use crate::shared::close_settle;
    use crate::store::EventSink;

    /// One thread finds the store lost, another recovers it, and only then the first queues what it
    /// could not write: nobody looked into the inbox again.
    #[test]
    fn what_is_queued_after_a_recovery_is_written() {
        let shared = Shared::new(Clock::System);
        let store = SharedMemory::new(Clock::System).join(EventSink::new(shared.hub.clone()));
        let (tag, _, _) = shared.hub.tag("x");
        let front = Front {
            shared: shared.clone(),
            driver: Driver::Inline(Box::new(store)),
        };
        let settle = close_settle(ScopeId::named(&["x"]), Span::from_secs(60));
        let at = shared.clock.at();
        shared.inbox.settle(tag, QueuedSettle { settle, at });
        front.flush_inline();
        assert!(shared.inbox.take_ready().tags.is_empty());
        let query = PeekQuery {
            cells: Vec::new(),
            scopes: vec![ScopeId::named(&["x"])],
        };
        let Driver::Inline(store) = &front.driver else {
            panic!("an inline store");
        };
        let seen = front.peek_inline(&**store, &query).unwrap();
        assert_ne!(seen.scopes[0], tollgate_core::scope::ScopeView::Open);
    }
}
