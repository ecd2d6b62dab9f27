//! A limit whose owner wants to hear when calls wait for it: the connections of a provider.
//!
//! Promises: the owner hears of it as soon as a call has to wait for this limit longer than for any
//! other. If the owner raises the limit, all waiting calls ask again, in their order.
//!
//! Never: calls the owner under a lock.

use std::sync::Arc;

use tollgate_core::ask::{Ask, BlockedBy, CellId, PermitId, Verdict};

use super::Shared;

/// The owner of a watched limit.
pub(crate) trait BlockedHook: std::fmt::Debug + Send + Sync {
    /// A call waits for it. `true`: it was raised, so calls should ask again.
    fn on_blocked(&self) -> bool;
}

/// A watched limit.
#[derive(Debug)]
pub(super) struct WatchedCell {
    pub(super) cell: CellId,
    pub(super) hook: Arc<dyn BlockedHook>,
}

/// Does one of these asks wait for the watched limit?
pub(super) fn waits(asks: &[(PermitId, Option<usize>)], verdicts: &[(PermitId, Verdict)]) -> bool {
    let mut both = asks.iter().zip(verdicts);
    both.any(|((_, watched), (_, verdict))| waits_for(*watched, verdict))
}

fn waits_for(watched: Option<usize>, verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Wait {
            by: BlockedBy::Term(term),
            ..
        } => watched == Some(*term),
        Verdict::Wait {
            by: BlockedBy::Scope(_),
            ..
        }
        | Verdict::Go { .. }
        | Verdict::Never(_) => false,
    }
}

impl Shared {
    /// Which term of an ask is the watched limit.
    pub(super) fn watched_term(&self, ask: &Ask) -> Option<usize> {
        let watched = self.watched.get()?;
        ask.terms.iter().position(|term| term.cell == watched.cell)
    }

    /// A call may have to wait for the watched limit, which is this term of its ask.
    pub(super) fn on_wait(&self, watched: Option<usize>, verdict: &Verdict) {
        if waits_for(watched, verdict) {
            self.on_watched_blocked();
        }
    }

    /// A call waits for the watched limit.
    pub(super) fn on_watched_blocked(&self) {
        let is_raised = |watched: &WatchedCell| watched.hook.on_blocked();
        if self.watched.get().is_some_and(is_raised) {
            self.recall(&mut self.state.lock());
            self.wake.notify_one();
        }
    }
}
