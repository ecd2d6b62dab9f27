//! What waits for the ledger thread: offers, settles and questions.
//!
//! Promises: whoever puts something in never waits. What waits together is taken together, so it
//! shares a transaction; settles alone wait a little for company, but not while somebody of this
//! process waits for what they free.
//!
//! Never: grows without end.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tollgate_core::ask::{Ask, CellId, Outcome, Settle};
use tollgate_core::time::Micros;

use crate::offer::OfferResult;
use crate::sqlite::database::{PeekQuery, PeekReply};

/// Offers that wait. Each gate has at most one, so this is a thousand providers.
const OFFERS_MAX: usize = 1_024;

/// Settles that wait: 10 s of 6,000 calls per second while the store is away, at 300 bytes each
/// 20 MiB. What comes on top is lost, which only delays its slots.
const SETTLES_MAX: usize = 65_536;

/// Questions that wait: one per call on its way, of as many calls as a gateway lets in, for the second
/// that a lock is waited for. At some 200 bytes each 3 MiB.
const PEEKS_MAX: usize = 16_384;

/// Asks in one transaction: four full batches, about 50 µs under the lock.
const ASKS_PER_TURN: usize = 256;

/// Settles in one transaction: about as long as its asks take.
pub(super) const SETTLES_PER_TURN: usize = 1_024;

/// Cells that this process waits for no longer, until that is written: one per provider and limit.
/// What comes on top is not told, which holds others up for a while.
const STOPPED_WAITING_MAX: usize = 4_096;

/// How long settles wait for an offer to ride with.
const SETTLE_DELAY: Duration = Duration::from_millis(2);

/// With nothing to do the thread looks around this often: is the store back?
const IDLE_WAKE_EVERY: Duration = Duration::from_secs(1);

/// While the store is lost, settles alone ask for it no more often than this.
const LOST_PAUSE: Duration = Duration::from_millis(200);

/// How long settles may wait for company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Not at all: somebody here waits for what they free.
    Hurry,
    /// A few milliseconds.
    Normal,
    /// The store is lost; there is no point in trying often.
    Slow,
}

/// One offer and whom to answer.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) asks: Vec<Ask>,
    pub(super) reply: oneshot::Sender<OfferResult>,
}

/// One settle and when it was told.
#[derive(Clone, Debug)]
pub(super) struct QueuedSettle {
    pub(super) settle: Settle,
    pub(super) at: Micros,
}

/// Something to read, and what is done with the reply, on the ledger thread. Dropped: nothing can be
/// known.
pub(super) struct PeekRequest {
    pub(super) query: PeekQuery,
    pub(super) on_reply: Box<dyn FnOnce(PeekReply) + Send>,
}

impl fmt::Debug for PeekRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Asked").field(&self.query).finish()
    }
}

/// What goes into one transaction.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) offers: Vec<Offer>,
    pub(super) settles: Vec<QueuedSettle>,
    /// Cells that this process waits for no longer.
    pub(super) stopped_waiting: Vec<CellId>,
    pub(super) peeks: Vec<PeekRequest>,
    /// Nobody will put anything in any more.
    pub(super) is_last: bool,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    wake_up: Condvar,
}

#[derive(Debug, Default)]
struct State {
    offers: VecDeque<Offer>,
    settles: VecDeque<QueuedSettle>,
    stopped_waiting: Vec<CellId>,
    peeks: Vec<PeekRequest>,
    /// Settles that somebody waits for must not wait for company.
    is_urgent: bool,
    /// So many of the settles must go with the next transaction.
    at_once: usize,
    is_closed: bool,
    /// The thread sleeps for long, so that a settle must wake it. It does so only after a while
    /// without anything to do: while calls come and go, settles cost no wake-up.
    is_sleeping: bool,
}

impl Inbox {
    /// Full means that the offer is dropped, which answers it as lost.
    pub(super) fn offer(&self, offer: Offer) {
        let mut state = self.state.lock();
        if state.offers.len() < OFFERS_MAX {
            state.offers.push_back(offer);
            self.wake_up.notify_one();
        }
    }

    pub(super) fn settle(&self, told: QueuedSettle) {
        let mut state = self.state.lock();
        // The asks that follow a carry rely on it: it is neither lost nor left for a later
        // transaction. There are as many as cells whose limits have changed.
        let is_carry = matches!(told.settle, Settle::Inherit { .. });
        if state.settles.len() < SETTLES_MAX || is_carry {
            state.is_urgent |= is_urgent(&told.settle);
            state.settles.push_back(told);
            if is_carry {
                state.at_once = state.settles.len();
            }
            if state.is_sleeping || state.is_urgent || state.settles.len() == SETTLES_PER_TURN {
                self.wake_up.notify_one();
            }
        }
    }

    /// Nobody here waits for these any more. Others may be held up for it, so it does not wait for
    /// company.
    pub(super) fn stop_waiting(&self, cells: &[CellId]) {
        let mut state = self.state.lock();
        let room = STOPPED_WAITING_MAX.saturating_sub(state.stopped_waiting.len());
        state.stopped_waiting.extend(cells.iter().take(room));
        self.wake_up.notify_one();
    }

    /// Full means that the question is dropped: what it asks about looks used up.
    pub(super) fn peek(&self, asked: PeekRequest) {
        let mut state = self.state.lock();
        if state.peeks.len() < PEEKS_MAX {
            state.peeks.push(asked);
            self.wake_up.notify_one();
        }
    }

    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake_up.notify_one();
    }

    /// Settles of a transaction that failed come again, before all later ones.
    pub(super) fn requeue(&self, settles: Vec<QueuedSettle>) {
        let mut state = self.state.lock();
        if settles
            .iter()
            .any(|told| matches!(told.settle, Settle::Inherit { .. }))
        {
            state.at_once += settles.len();
        }
        for told in settles.into_iter().rev() {
            let is_carry = matches!(told.settle, Settle::Inherit { .. });
            if is_carry || state.settles.len() < SETTLES_MAX {
                state.settles.push_front(told);
            }
        }
    }

    /// Waits for something to do. An empty batch means that a while has passed.
    pub(super) fn next(&self, pace: Pace) -> Batch {
        let mut state = self.state.lock();
        let mut is_dozing = pace == Pace::Slow;
        loop {
            let has_settles = !state.settles.is_empty();
            let at_once = match pace {
                Pace::Hurry => true,
                Pace::Normal => state.is_urgent || state.settles.len() >= SETTLES_PER_TURN,
                Pace::Slow => false,
            };
            if !state.offers.is_empty()
                || !state.peeks.is_empty()
                || (!state.stopped_waiting.is_empty() && pace != Pace::Slow)
                || state.is_closed
                || (has_settles && at_once)
            {
                return state.take();
            }
            let pause = match pace {
                _ if !has_settles && is_dozing => IDLE_WAKE_EVERY,
                Pace::Hurry | Pace::Normal => SETTLE_DELAY,
                Pace::Slow => LOST_PAUSE,
            };
            state.is_sleeping = is_dozing || pace == Pace::Hurry;
            let timed_out = self.wake_up.wait_for(&mut state, pause).timed_out();
            state.is_sleeping = false;
            if timed_out && (is_dozing || !state.settles.is_empty()) {
                return state.take();
            }
            is_dozing = timed_out;
        }
    }
}

impl State {
    fn take(&mut self) -> Batch {
        let mut offers = Vec::new();
        let mut asks = 0;
        while let Some(offer) = self.offers.front() {
            if asks > 0 && asks + offer.asks.len() > ASKS_PER_TURN {
                break;
            }
            asks += offer.asks.len();
            offers.extend(self.offers.pop_front());
        }
        let most = self.settles.len().min(SETTLES_PER_TURN.max(self.at_once));
        self.at_once = 0;
        let settles: Vec<QueuedSettle> = self.settles.drain(..most).collect();
        self.is_urgent &= !self.settles.is_empty();
        Batch {
            offers,
            settles,
            stopped_waiting: std::mem::take(&mut self.stopped_waiting),
            peeks: std::mem::take(&mut self.peeks),
            is_last: self.is_closed && self.offers.is_empty() && self.settles.is_empty(),
        }
    }
}

/// Others must hear of these at once: a scope that closes, and a permit that they may have.
fn is_urgent(settle: &Settle) -> bool {
    match settle {
        Settle::Close { .. }
        | Settle::Open { .. }
        | Settle::Failed { .. }
        | Settle::Inherit { .. } => true,
        Settle::Succeeded { .. } => false,
        Settle::Permit { outcome, .. } => matches!(outcome, Outcome::Unsent),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_core::ask::ScopeId;
    use tollgate_core::limit::Rule;
    use tollgate_core::time::Span;

    use super::*;

    fn queued(settle: Settle) -> QueuedSettle {
        let at = Micros(1);
        QueuedSettle { settle, at }
    }

    fn well() -> QueuedSettle {
        queued(Settle::Succeeded { scope: ScopeId(1) })
    }

    fn carry() -> QueuedSettle {
        let rule = Arc::new(Rule::sliding(5, Span::from_secs(1)).unwrap());
        queued(Settle::Inherit {
            from: CellId(1),
            old_rule: rule.clone(),
            to: CellId(2),
            rule,
        })
    }

    fn carries(batch: &Batch) -> usize {
        let is_carry = |told: &&QueuedSettle| matches!(told.settle, Settle::Inherit { .. });
        batch.settles.iter().filter(is_carry).count()
    }

    /// The asks that follow a carry rely on it. One whose transaction failed goes with the next one,
    /// however many settles stand before it and however full the inbox has become.
    #[test]
    fn a_requeued_carry_goes_with_the_next_transaction() {
        for others in [0, SETTLES_PER_TURN + 5, SETTLES_MAX] {
            let inbox = Inbox::default();
            for _ in 0..SETTLES_PER_TURN + 5 {
                inbox.settle(well());
            }
            inbox.settle(carry());
            let failed = inbox.next(Pace::Hurry);
            assert_eq!(carries(&failed), 1);
            for _ in 0..others {
                inbox.settle(well());
            }
            inbox.requeue(failed.settles);
            assert_eq!(carries(&inbox.next(Pace::Hurry)), 1, "{others}");
        }
    }
}
