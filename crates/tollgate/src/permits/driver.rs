//! The task that passes effects between the gate, the ledger and the waiting calls of a provider.
//!
//! Promises: at most one offer is on its way. Meanwhile deadlines, cancellations, timers and events
//! are served. It ends with the last handle; a permit that is still granted then is returned.
//!
//! Never: holds a lock, or the provider's queue, across an await.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use tollgate_core::ask::{Ask, PermitId};
use tollgate_core::gate::Effects;
use tollgate_core::time::Span;
use tollgate_ledger::{Event, OfferVerdicts, PendingOffer, StoreLost};

use super::Shared;

/// Passes effects until the last handle is gone.
pub(super) async fn drive(shared: Weak<Shared>) {
    let Some((mut events, wake)) = shared
        .upgrade()
        .map(|shared| (shared.ledger.events(), shared.wake.clone()))
    else {
        return;
    };
    // At most one at a time; while it is on its way, deadlines, cancellations and events are served.
    let mut pending: Option<Offered> = None;
    // Whoever was granted a permit may be gone: it is returned before the queue goes.
    let mut decided_for: Option<Arc<Shared>> = None;
    loop {
        let Some(strong) = decided_for.take().or_else(|| shared.upgrade()) else {
            return;
        };
        if pending.is_none() && strong.ledger.takes_time() {
            // Calls that are about to ask join this offer: one transaction costs the same for all
            // of them. If nothing else is runnable, this continues at once.
            tokio::task::yield_now().await;
        }
        let Effects {
            offer,
            resolve,
            settle,
            abandoned,
            wake_at,
        } = strong.tick();
        for settle in settle {
            strong.ledger.settle(settle);
        }
        if !abandoned.is_empty() {
            strong.ledger.stopped_waiting(&abandoned);
        }
        for resolved in resolve {
            strong.deliver(resolved, strong.ledger.at());
        }
        if !offer.is_empty() {
            pending = Some(Offered::new(&strong, offer));
        }
        let pause = wake_at.map(|at| at.since(strong.ledger.at()));
        drop(strong);
        tokio::select! {
            biased;
            decided = decided(&shared, &mut pending) => {
                // Dropped, the pending offer gives its permits back.
                let Some((strong, verdicts)) = decided else { return };
                let asked = pending.take().map(|offered| offered.asks).unwrap_or_default();
                strong.on_verdicts(&asked, verdicts);
                decided_for = Some(strong);
            }
            event = events.next() => {
                let Some(strong) = shared.upgrade() else { return };
                strong.on_event(event.unwrap_or(Event::Resync));
            }
            () = wake.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

/// An offer that the ledger has.
struct Offered {
    /// Each with the term that is the watched limit, if it has one.
    asks: Vec<(PermitId, Option<usize>)>,
    verdicts: PendingOffer,
}

impl Offered {
    fn new(shared: &Shared, asks: Vec<Ask>) -> Offered {
        Offered {
            asks: asks
                .iter()
                .map(|ask| (ask.id, shared.watched_term(ask)))
                .collect(),
            verdicts: shared.ledger.offer(asks),
        }
    }
}

/// What the ledger decides of the pending offer, and the queue to which it goes. Dropped and awaited
/// again, nothing is lost. `None`: the queue is gone, and the verdicts were not taken.
async fn decided(
    shared: &Weak<Shared>,
    pending: &mut Option<Offered>,
) -> Option<(Arc<Shared>, Result<OfferVerdicts, StoreLost>)> {
    let Some(offered) = pending else {
        return std::future::pending().await;
    };
    poll_fn(|context| match shared.upgrade() {
        Some(strong) => Pin::new(&mut offered.verdicts)
            .poll(context)
            .map(|verdicts| Some((strong, verdicts))),
        None => std::task::Poll::Ready(None),
    })
    .await
}

/// The one timer of a gate.
#[expect(clippy::disallowed_methods, reason = "the timer that the gate armed")]
async fn sleep(pause: Option<Span>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause.into()).await,
        None => std::future::pending().await,
    }
}
