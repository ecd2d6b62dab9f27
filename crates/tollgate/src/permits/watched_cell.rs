//! A limit whose owner wants to hear when calls wait for it: the connections of a provider.
//!
//! Promises: the owner hears of it as soon as a call waits for this limit and for nothing else, or after
//! the patience that it asks for, if calls wait then too. If the owner raises the limit, all waiting calls
//! ask again, in their order.
//!
//! Never: calls the owner under a lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tollgate_core::ask::{Ask, BlockedBy, CellId, PermitId, Verdict};
use tollgate_core::gate::Blocker;
use tollgate_core::time::Span;

use super::Shared;
use crate::timer;

/// The owner of a watched limit.
pub(crate) trait BlockedHook: std::fmt::Debug + Send + Sync {
    /// How long calls must have waited before it wants to hear of it.
    fn patience(&self) -> Span;

    /// A call waits for it. `true`: it was raised, so calls should ask again.
    fn on_blocked(&self) -> bool;
}

/// A watched limit.
#[derive(Debug)]
pub(super) struct WatchedCell {
    cell: CellId,
    hook: Arc<dyn BlockedHook>,
    /// The owner's patience runs: one timer at a time.
    is_timed: AtomicBool,
}

impl WatchedCell {
    pub(super) fn new(cell: CellId, hook: Arc<dyn BlockedHook>) -> WatchedCell {
        WatchedCell {
            cell,
            hook,
            is_timed: AtomicBool::new(false),
        }
    }
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
    pub(super) fn on_wait(self: &Arc<Shared>, watched: Option<usize>, verdict: &Verdict) {
        if waits_for(watched, verdict) {
            self.on_watched_blocked();
        }
    }

    /// A call waits for the watched limit.
    pub(super) fn on_watched_blocked(self: &Arc<Shared>) {
        let Some(watched) = self.watched.get() else {
            return;
        };
        match watched.hook.patience() {
            Span::ZERO => self.raise_watched(watched),
            patience if !watched.is_timed.swap(true, Ordering::AcqRel) => {
                tokio::spawn(raise_later(Arc::downgrade(self), patience));
            }
            _runs => {}
        }
    }

    fn raise_watched(&self, watched: &WatchedCell) {
        if watched.hook.on_blocked() {
            self.recall(&mut self.state.lock());
            self.wake.notify_one();
        }
    }

    /// Does a call wait for this limit now?
    fn is_waited_for(&self, cell: CellId) -> bool {
        let state = self.state.lock();
        let mut blockers = state.gate.blockers().flatten();
        blockers.any(|(blocker, _)| blocker == Blocker::Cell(cell))
    }
}

/// Tells the owner after its patience, if calls wait then too.
async fn raise_later(shared: Weak<Shared>, patience: Span) {
    timer::sleep(Some(patience)).await;
    let Some(shared) = shared.upgrade() else {
        return;
    };
    if let Some(watched) = shared.watched.get() {
        watched.is_timed.store(false, Ordering::Release);
        if shared.is_waited_for(watched.cell) {
            shared.raise_watched(watched);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use smallvec::smallvec;
    use tollgate_core::ask::{Evidence, Priority, Term};
    use tollgate_core::gate::{CallerId, GateSettings};
    use tollgate_core::limit::Rule;
    use tollgate_core::time::Wall;
    use tollgate_ledger::{Clock, Ledger};

    use super::super::{PermitRequest, Permits};
    use super::*;

    /// Counts what it hears, and never raises its limit.
    #[derive(Debug)]
    struct Counter {
        patience: Span,
        heard: AtomicUsize,
    }

    impl BlockedHook for Counter {
        fn patience(&self) -> Span {
            self.patience
        }

        fn on_blocked(&self) -> bool {
            self.heard.fetch_add(1, Ordering::SeqCst);
            false
        }
    }

    fn watched(patience: Span) -> (Permits, Arc<Counter>, PermitRequest) {
        let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
        let permits = Permits::new(ledger.provider("x"), GateSettings::default());
        let heard = AtomicUsize::new(0);
        let hook = Arc::new(Counter { patience, heard });
        let cell = CellId::named(&["own"]);
        permits.watch(cell, hook.clone());
        let request = PermitRequest {
            terms: smallvec![Term {
                cell,
                rule: Arc::new(Rule::in_flight(1).unwrap().of_one_process()),
                cost: 1,
                reserve: 0,
            }],
            scopes: smallvec![],
            priority: Priority::Normal,
            caller: CallerId::default(),
            patience: Span::from_secs(60),
            evidence: Evidence::Report {
                timeout: Span::from_secs(100),
                late: Span::ZERO,
            },
            seniority: None,
            edition: 0,
        };
        (permits, hook, request)
    }

    #[tokio::test(start_paused = true)]
    async fn the_owner_hears_of_waiting_calls_after_its_patience() {
        let (permits, hook, request) = watched(Span::from_secs(5));
        let held = permits.acquire(request.clone()).await.unwrap();
        let waits = permits.acquire(request.clone());
        assert!(
            timer::within(Some(Span::from_secs(4)), waits)
                .await
                .is_err()
        );
        // Nobody waits when it ends.
        timer::sleep(Some(Span::from_secs(2))).await;
        assert_eq!(hook.heard.load(Ordering::SeqCst), 0);
        let waits = permits.acquire(request);
        assert!(
            timer::within(Some(Span::from_secs(6)), waits)
                .await
                .is_err()
        );
        assert_eq!(hook.heard.load(Ordering::SeqCst), 1);
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_without_patience_hears_of_it_at_once() {
        let (permits, hook, request) = watched(Span::ZERO);
        let _held = permits.acquire(request.clone()).await.unwrap();
        let waits = permits.acquire(request);
        assert!(
            timer::within(Some(Span::from_secs(1)), waits)
                .await
                .is_err()
        );
        assert!(hook.heard.load(Ordering::SeqCst) >= 1);
    }
}
