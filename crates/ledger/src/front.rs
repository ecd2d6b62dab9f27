//! The front of a ledger: everything that is the same for every store, and who runs its batches.
//!
//! Promises: what was decided is told to everybody whom it concerns, whoever ran the batch.
//!
//! Never: knows which store it is above, only how that store is driven.

use std::sync::Arc;

use tollgate_core::ask::OwnerId;
use tollgate_core::batch::{Batch, Decision};

use crate::Event;
use crate::ledger_thread::ThreadDriver;
use crate::networked::TaskDriver;
use crate::shared::Shared;
use crate::store::{Store, wake_owners};

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

impl Front {
    /// Decides a batch of this provider here and now and tells whom it concerns. `None`: the store
    /// takes time, or cannot be used.
    pub(crate) fn commit_inline(
        &self,
        events: &tokio::sync::broadcast::Sender<Event>,
        batch: &Batch<'_>,
    ) -> Option<Decision> {
        let Driver::Inline(store) = &self.driver else {
            return None;
        };
        let decision = match self.shared.dead.get(batch.owner) {
            None => store.commit(batch),
            Some(dead) => store.commit(&Batch {
                dead: &dead,
                ..*batch
            }),
        };
        let mut decision = decision.ok()?;
        let dead = wake_owners(&**store, &decision);
        self.shared.dead.add(batch.owner, dead);
        let Decision {
            freed,
            changed_scopes,
            ..
        } = &mut decision;
        if !changed_scopes.is_empty() {
            store.notify_scopes(changed_scopes);
        }
        self.shared.hub.decided(events, freed, changed_scopes);
        Some(decision)
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

    /// A child after `fork` has none of the threads, and must not use the parent's store.
    pub(crate) fn is_forked(&self) -> bool {
        match &self.driver {
            // A child has none of the runtime's threads either: nobody answers it.
            Driver::Inline(_) | Driver::Tasks(_) => false,
            Driver::Thread(thread) => thread.is_forked(),
        }
    }
}
