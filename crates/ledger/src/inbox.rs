//! What waits for the store: the offers, settles and peeks of each provider.
//!
//! Promises: whoever puts something in never waits. What waits together is taken together, so it
//! shares a transaction; settles alone wait a little for further work, but not while a call of this
//! process waits for what they free. Providers are taken in turn, so that none waits for the others'
//! queues.
//!
//! Never: grows without end, or hands out an offer or a peek before what was settled before it.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tollgate_core::ask::{Ask, CellId, Outcome, Settle};
use tollgate_core::batch::QueuedSettle;

use crate::hub::TagId;
use crate::offer::OfferResult;
use crate::store::{LOST_RETRY, PeekQuery, PeekReply};

/// Offers that wait. Each gate has at most one, so this is a thousand providers.
const OFFERS_MAX: usize = 1_024;

/// Settles that wait: 10 s of 6,000 calls per second while the store is away, at 300 bytes each
/// 20 MiB. What comes on top is lost: a permit's slot comes free late, and others do not
/// hear of a failure, or of a scope that closed or opened.
const SETTLES_MAX: usize = 65_536;

/// Peeks that wait: one per call in flight, of as many calls as a gateway admits, for the second
/// that a lock is waited for. At some 200 bytes each 3 MiB.
const PEEKS_MAX: usize = 16_384;

/// Asks in one transaction: four full batches, about 50 µs under the lock.
const ASKS_PER_TURN: usize = 256;

/// Settles in one transaction: about as long as its asks take.
pub(crate) const SETTLES_PER_TURN: usize = 1_024;

/// Cells that this process waits for no longer, until that is written: one per provider and limit.
/// More than that are not reported, which delays other owners until their wait expires.
const STOPPED_WAITING_MAX: usize = 4_096;

/// How long settles wait for an offer that can share their transaction.
const SETTLE_DELAY: Duration = Duration::from_millis(2);

/// An idle thread wakes this often and checks whether a lost store is back.
const IDLE_WAKE_EVERY: Duration = Duration::from_micros(LOST_RETRY.0);

/// While the store is lost, settles alone ask for it no more often than this.
const LOST_PAUSE: Duration = Duration::from_millis(200);

/// How long settles may wait for further work to share a transaction with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettleDelay {
    /// Not at all: somebody here waits for what they free.
    Hurry,
    /// A few milliseconds.
    Normal,
    /// The store is lost; there is no point in trying often.
    Slow,
}

/// One offer and where its verdicts go.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) asks: Vec<Ask>,
    pub(crate) reply: oneshot::Sender<OfferResult>,
}

/// An offer in its queue.
#[derive(Debug)]
struct QueuedOffer {
    offer: Offer,
    /// It is decided after so many settles of its provider, counted from the first.
    after: u64,
}

/// A peek in its queue.
#[derive(Debug)]
struct QueuedPeek {
    request: PeekRequest,
    /// It is read after so many settles of its provider, counted from the first.
    after: u64,
}

/// What waited for settles that failed: it has failed with them.
#[derive(Debug, Default)]
pub(crate) struct FailedDependents {
    pub(crate) offers: Vec<Offer>,
    /// Dropped by whoever gets this, which says that nothing can be known.
    pub(crate) peeks: Vec<PeekRequest>,
}

/// Something to read, and what is done with the reply, on the ledger thread. Dropped: nothing can be
/// known.
pub(crate) struct PeekRequest {
    /// What is still to be read.
    pub(crate) query: PeekQuery,
    /// What was read so far.
    pub(crate) reply: PeekReply,
    pub(crate) on_reply: Box<dyn FnOnce(PeekReply) + Send>,
}

impl fmt::Debug for PeekRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeekRequest").field(&self.query).finish()
    }
}

/// What of one provider goes into one batch.
#[derive(Debug)]
pub(crate) struct TagWork {
    pub(crate) tag: TagId,
    pub(crate) offers: Vec<Offer>,
    pub(crate) settles: Vec<QueuedSettle>,
    /// Cells that this process waits for no longer.
    pub(crate) stopped_waiting: Vec<CellId>,
    /// Read when all of this is committed.
    pub(crate) peeks: Vec<PeekRequest>,
}

/// What goes into one transaction.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) tags: Vec<TagWork>,
    /// Nobody will put anything in any more.
    pub(crate) is_last: bool,
}

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    wake_up: Condvar,
    /// Where tasks take what waits, each that of its provider, instead of a thread.
    on_work: OnceLock<OnWork>,
}

/// Says that there is something of a provider.
type OnWork = Box<dyn Fn(TagId) + Send + Sync>;

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inbox").field(&self.state).finish()
    }
}

#[derive(Debug, Default)]
struct State {
    /// By the number of the tag.
    tags: Vec<TagQueue>,
    /// Tags with something in their queues: the next one first.
    ready: VecDeque<TagId>,
    /// Of all tags together.
    offers: usize,
    settles: usize,
    peeks: usize,
    stopped_waiting: usize,
    /// Settles that somebody waits for must not wait for company.
    is_urgent: bool,
    is_closed: bool,
    /// The thread has ended: what is put in is dropped, so its sender gets `StoreLost`.
    is_abandoned: bool,
    /// The thread sleeps for long, so that a settle must wake it. It does so only after a while
    /// without anything to do: while calls come and go, settles cost no wake-up.
    is_sleeping: bool,
}

/// What waits of one provider.
#[derive(Debug, Default)]
struct TagQueue {
    offers: VecDeque<QueuedOffer>,
    settles: VecDeque<QueuedSettle>,
    stopped_waiting: Vec<CellId>,
    peeks: VecDeque<QueuedPeek>,
    /// So many of the settles must go with the next transaction.
    at_once: usize,
    /// How many settles were taken so far.
    taken: u64,
    /// So many offers wait for settles that did not fit into the last transaction.
    held_back: usize,
    is_ready: bool,
}

impl Inbox {
    /// From now on this is called for everything that is put in, without a lock.
    pub(crate) fn on_work(&self, on_work: OnWork) {
        drop(self.on_work.set(on_work));
    }

    /// The task of this provider must look at what is shared.
    pub(crate) fn wake(&self, tag: TagId) {
        self.notify(tag);
    }

    fn notify(&self, tag: TagId) {
        if let Some(on_work) = self.on_work.get() {
            on_work(tag);
        }
    }

    /// If the inbox is full, the offer is dropped and its sender gets `StoreLost`.
    pub(crate) fn offer(&self, tag: TagId, offer: Offer) {
        let mut state = self.state.lock();
        if state.offers < OFFERS_MAX && !state.is_abandoned {
            state.offers += 1;
            let queue = state.queue(tag);
            let after = queue.taken + queue.settles.len() as u64;
            queue.offers.push_back(QueuedOffer { offer, after });
            self.wake_up.notify_one();
        }
        drop(state);
        self.notify(tag);
    }

    pub(crate) fn settle(&self, tag: TagId, queued: QueuedSettle) {
        let mut state = self.state.lock();
        // The asks that follow an inheritance rely on it: it is neither lost nor left for a later
        // transaction. There are as many as cells whose limits have changed.
        let is_inherit = matches!(queued.settle, Settle::Inherit { .. });
        if (state.settles < SETTLES_MAX || is_inherit) && !state.is_abandoned {
            state.is_urgent |= is_urgent(&queued.settle);
            state.settles += 1;
            let queue = state.queue(tag);
            queue.settles.push_back(queued);
            if is_inherit {
                queue.at_once = queue.settles.len();
            }
            if state.is_sleeping || state.is_urgent || state.settles == SETTLES_PER_TURN {
                self.wake_up.notify_one();
            }
        }
        drop(state);
        self.notify(tag);
    }

    /// Nobody here waits for these any more. Others may be held up for it, so it does not wait for
    /// company.
    pub(crate) fn stop_waiting(&self, tag: TagId, cells: &[CellId]) {
        let mut state = self.state.lock();
        let room = STOPPED_WAITING_MAX.saturating_sub(state.stopped_waiting);
        let cells = &cells[..cells.len().min(room)];
        if cells.is_empty() || state.is_abandoned {
            return;
        }
        state.stopped_waiting += cells.len();
        state.queue(tag).stopped_waiting.extend(cells);
        self.wake_up.notify_one();
        drop(state);
        self.notify(tag);
    }

    /// If the inbox is full, the peek is dropped: its rows look used up.
    pub(crate) fn peek(&self, tag: TagId, request: PeekRequest) {
        let mut state = self.state.lock();
        if state.peeks < PEEKS_MAX && !state.is_abandoned {
            state.peeks += 1;
            let queue = state.queue(tag);
            let after = queue.taken + queue.settles.len() as u64;
            queue.peeks.push_back(QueuedPeek { request, after });
            self.wake_up.notify_one();
        }
        drop(state);
        self.notify(tag);
    }

    /// Takes what waits of one provider without waiting: all settles, offers with up to so many asks
    /// after them, and peeks.
    pub(crate) fn take_tag(&self, tag: TagId, asks: usize) -> TagWork {
        let mut state = self.state.lock();
        let mut room = Room {
            asks,
            settles: usize::MAX,
            // An offer that is larger than what there is room for waits.
            is_first: false,
        };
        let queue = state.queue(tag);
        let work = queue.take(tag, &mut room);
        queue.is_ready = false;
        state.ready.retain(|ready| *ready != tag);
        state.offers -= work.offers.len();
        state.settles -= work.settles.len();
        state.stopped_waiting -= work.stopped_waiting.len();
        state.peeks -= work.peeks.len();
        work
    }

    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake_up.notify_one();
    }

    /// Nobody takes anything any more: what waits is dropped, so its senders get `StoreLost`.
    pub(crate) fn abandon(&self) {
        let abandoned = State {
            is_abandoned: true,
            ..State::default()
        };
        let rest = std::mem::replace(&mut *self.state.lock(), abandoned);
        drop(rest);
    }

    /// What there is to do, without waiting for any.
    pub(crate) fn take_ready(&self) -> Work {
        self.state.lock().take()
    }

    /// Queues the settles of a failed batch again, before all later ones. Offers and peeks that
    /// waited for these settles have failed with them, and are returned.
    pub(crate) fn requeue(&self, tag: TagId, settles: Vec<QueuedSettle>) -> FailedDependents {
        let is_inherit = |queued: &QueuedSettle| matches!(queued.settle, Settle::Inherit { .. });
        let mut state = self.state.lock();
        let (mut room, mut added) = (SETTLES_MAX.saturating_sub(state.settles), 0);
        if settles.is_empty() || state.is_abandoned {
            return FailedDependents::default();
        }
        let has_inherit = settles.iter().any(is_inherit);
        let queue = state.queue(tag);
        for queued in settles.into_iter().rev() {
            if is_inherit(&queued) || room > 0 {
                room = room.saturating_sub(1);
                added += 1;
                queue.settles.push_front(queued);
            }
        }
        // An inheritance that waits stands behind all of these now.
        if has_inherit || queue.at_once > 0 {
            queue.at_once += added;
        }
        queue.taken = queue.taken.saturating_sub(added as u64);
        let held_back = std::mem::take(&mut queue.held_back).min(queue.offers.len());
        let offers = queue.offers.drain(..held_back);
        let failed = FailedDependents {
            offers: offers.map(|queued| queued.offer).collect(),
            peeks: queue.peeks.drain(..).map(|one| one.request).collect(),
        };
        state.settles += added;
        state.offers -= held_back;
        state.peeks -= failed.peeks.len();
        failed
    }

    /// Waits for something to do. Empty work means that a while has passed.
    pub(crate) fn next(&self, pace: SettleDelay) -> Work {
        let mut state = self.state.lock();
        let mut is_dozing = pace == SettleDelay::Slow;
        // What comes meanwhile does not put off the next look at a lost store.
        let began = now();
        loop {
            let has_settles = state.settles > 0;
            let at_once = match pace {
                SettleDelay::Hurry => true,
                SettleDelay::Normal => state.is_urgent || state.settles >= SETTLES_PER_TURN,
                SettleDelay::Slow => false,
            };
            if state.offers > 0
                || state.peeks > 0
                || (state.stopped_waiting > 0 && pace != SettleDelay::Slow)
                || state.is_closed
                || (has_settles && at_once)
            {
                return state.take();
            }
            let pause = match pace {
                _ if !has_settles && is_dozing => IDLE_WAKE_EVERY,
                SettleDelay::Hurry | SettleDelay::Normal => SETTLE_DELAY,
                SettleDelay::Slow => LOST_PAUSE,
            };
            state.is_sleeping = is_dozing || pace == SettleDelay::Hurry;
            let from = if pace == SettleDelay::Slow {
                began
            } else {
                now()
            };
            let woken = self.wake_up.wait_until(&mut state, from + pause);
            let timed_out = woken.timed_out();
            state.is_sleeping = false;
            if timed_out && (is_dozing || state.settles > 0) {
                return state.take();
            }
            is_dozing = timed_out || pace == SettleDelay::Slow;
        }
    }
}

impl State {
    /// The queue of a tag, which is about to get something.
    fn queue(&mut self, tag: TagId) -> &mut TagQueue {
        if self.tags.len() <= tag.0 {
            self.tags.resize_with(tag.0 + 1, TagQueue::default);
        }
        let queue = &mut self.tags[tag.0];
        if !queue.is_ready {
            queue.is_ready = true;
            self.ready.push_back(tag);
        }
        queue
    }

    /// Takes from one provider after the other until the transaction is full.
    fn take(&mut self) -> Work {
        let mut room = Room {
            asks: ASKS_PER_TURN,
            settles: SETTLES_PER_TURN,
            is_first: true,
        };
        let mut work = Work::default();
        for _ in 0..self.ready.len() {
            // A provider whose settles do not fit any more keeps its asks back as well: they come
            // after its settles.
            if room.asks == 0 || room.settles == 0 {
                break;
            }
            let Some(tag) = self.ready.pop_front() else {
                break;
            };
            let queue = &mut self.tags[tag.0];
            if queue.is_empty() {
                queue.is_ready = false;
                continue;
            }
            let taken = queue.take(tag, &mut room);
            self.offers -= taken.offers.len();
            self.settles -= taken.settles.len();
            self.stopped_waiting -= taken.stopped_waiting.len();
            self.peeks -= taken.peeks.len();
            queue.is_ready = !queue.is_empty();
            if taken.is_empty() {
                // It did not fit any more: it is the first next time.
                self.ready.push_front(tag);
                break;
            }
            if queue.is_ready {
                self.ready.push_back(tag);
            }
            work.tags.push(taken);
        }
        self.is_urgent &= self.settles > 0;
        let is_empty = self.offers == 0 && self.settles == 0 && self.peeks == 0;
        work.is_last = self.is_closed && is_empty;
        work
    }
}

/// What still fits into a transaction.
struct Room {
    asks: usize,
    settles: usize,
    /// No offer is in it: one goes, however large it is.
    is_first: bool,
}

impl TagQueue {
    fn is_empty(&self) -> bool {
        self.offers.is_empty()
            && self.settles.is_empty()
            && self.stopped_waiting.is_empty()
            && self.peeks.is_empty()
    }

    fn take(&mut self, tag: TagId, room: &mut Room) -> TagWork {
        let most = self.settles.len().min(room.settles.max(self.at_once));
        room.settles = room.settles.saturating_sub(most);
        self.at_once = self.at_once.saturating_sub(most);
        self.taken += most as u64;
        self.held_back = 0;
        let mut offers = Vec::new();
        while let Some(QueuedOffer { offer, after }) = self.offers.front() {
            if *after > self.taken {
                self.held_back = self.offers.len();
                break;
            }
            if !room.is_first && offer.asks.len() > room.asks {
                break;
            }
            room.asks = room.asks.saturating_sub(offer.asks.len());
            room.is_first &= offer.asks.is_empty();
            offers.extend(self.offers.pop_front().map(|queued| queued.offer));
        }
        let ready = self.peeks.iter();
        let ready = ready.take_while(|peek| peek.after <= self.taken).count();
        let peeks = self.peeks.drain(..ready);
        TagWork {
            tag,
            offers,
            peeks: peeks.map(|one| one.request).collect(),
            settles: self.settles.drain(..most).collect(),
            stopped_waiting: std::mem::take(&mut self.stopped_waiting),
        }
    }
}

impl TagWork {
    fn is_empty(&self) -> bool {
        self.offers.is_empty()
            && self.settles.is_empty()
            && self.stopped_waiting.is_empty()
            && self.peeks.is_empty()
    }
}

/// Only for the waits of the thread itself, which are real whatever the ledger's clock is.
#[expect(
    clippy::disallowed_methods,
    reason = "a deadline for a condition variable"
)]
fn now() -> Instant {
    Instant::now()
}

/// Other owners need these at once: a scope that changes, and a permit that becomes free.
fn is_urgent(settle: &Settle) -> bool {
    match settle {
        Settle::Close { .. }
        | Settle::Limited { .. }
        | Settle::Open { .. }
        | Settle::Failed { .. }
        | Settle::Inherit { .. } => true,
        Settle::Succeeded { .. } => false,
        Settle::Permit { outcome, .. } => matches!(outcome, Outcome::Unsent),
    }
}
