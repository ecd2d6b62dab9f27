//! The permit stage: whose turn is it, and do all limits and scopes agree?
//!
//! The decisions are the core's (`Gate` and `turn`); this is their shell. One task per provider
//! carries effects between the gate, the ledger and those who wait.
//!
//! Promises: a waiter is woken once, when it is decided; there is one timer and no polling. A
//! waiter that is dropped leaves at once, and a permit that nobody takes goes back. A permit that
//! is dropped before a byte left is given back; after that it counts as sent. Whoever asks while
//! the store is lost hears so at once.
//!
//! Never: holds a lock across an await.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tollgate_core::ask::{
    Ask, CellId, Evidence, PermitId, Priority, Scopes, Settle, Terms, Verdict,
};
use tollgate_core::gate::{
    CallerId, CallerShare, Effects, Gate, GateSettings, Resolution, Resolved, Waiter,
};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{Event, Ledger, OfferVerdicts, StoreLost};

pub use super::denied::Denied;
use crate::Permit;

/// The running number of asks in this process. One for all providers, because a permit's name must
/// be unique in its ledger.
static SEQ: AtomicU64 = AtomicU64::new(1);

/// Cells that are known to have taken over after a reload: 65,536 keys at 32 bytes. What comes on top
/// is told again with each call, which changes nothing.
const CARRIED_MAX: usize = 65_536;

/// The permits of one provider. Clones share them.
#[derive(Clone, Debug)]
pub struct Permits {
    shared: Arc<Shared>,
}

/// What one attempt wants.
#[derive(Clone, Debug)]
pub struct PermitRequest {
    /// Every limit that must agree.
    pub terms: Terms,
    /// Every scope that must be open.
    pub scopes: Scopes,
    /// How urgent it is.
    pub priority: Priority,
    /// For whom.
    pub caller: CallerId,
    /// How long it may wait; zero = now or not at all.
    pub patience: Span,
    /// What will be heard of it.
    pub evidence: Evidence,
    /// Its place in the order of arrival if it waited here before: a retry keeps its own.
    pub seniority: Option<u64>,
    /// Of which edition of the limits the terms are, by [`Permits::edition`]; an older one is
    /// recalled.
    pub edition: u64,
}

#[derive(Debug)]
struct Shared {
    ledger: Ledger,
    state: Mutex<State>,
    /// Counts how often the limits have changed. Changed under the lock, read without it.
    edition: AtomicU64,
    /// Something was said to the gate: the driver must look.
    wake: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    /// The next place in the order of arrival.
    last_seniority: u64,
    waiting: HashMap<PermitId, Waiting>,
    /// What was taken over since the limits changed.
    carried: HashSet<(CellId, CellId)>,
}

impl State {
    fn next_seniority(&mut self) -> u64 {
        self.last_seniority += 1;
        self.last_seniority
    }
}

/// Somebody who waits. What it is sent gives itself back if nobody takes it.
#[derive(Debug)]
struct Waiting {
    sender: oneshot::Sender<Result<Permit, Denied>>,
    since: Micros,
}

impl Permits {
    /// The permits of one provider on this ledger, for this process. Starts the task that hands
    /// them out, so it must be called inside a tokio runtime; the task ends with the last clone.
    #[must_use]
    pub fn new(ledger: Ledger, settings: GateSettings) -> Permits {
        let state = State {
            gate: Gate::new(settings),
            last_seniority: 0,
            waiting: HashMap::new(),
            carried: HashSet::new(),
        };
        let poke = Arc::new(Notify::new());
        let shared = Arc::new(Shared {
            ledger,
            state: Mutex::new(state),
            edition: AtomicU64::new(0),
            wake: poke,
        });
        tokio::spawn(drive(Arc::downgrade(&shared)));
        Permits { shared }
    }

    /// What a caller is promised and allowed.
    pub fn set_share(&self, caller: CallerId, share: CallerShare) {
        self.shared.state.lock().gate.set_share(caller, share);
    }

    /// Other limits hold, and the gate works like this from now on. Everybody who waits is recalled:
    /// nobody is granted anything under the old limits after this.
    pub fn replace(&self, settings: GateSettings) {
        let mut state = self.shared.state.lock();
        self.shared.edition.fetch_add(1, Ordering::Release);
        state.carried.clear();
        state.gate.recall();
        state.gate.configure(settings);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// What was counted under limits of before counts under those of this edition, once.
    pub fn carry(&self, edition: u64, carries: &[Settle]) {
        let mut state = self.shared.state.lock();
        for carry in carries {
            if let Settle::Inherit { from, to, .. } = carry
                && edition == self.edition()
                && (state.carried.len() >= CARRIED_MAX || state.carried.insert((*from, *to)))
            {
                self.shared.ledger.settle_ref(carry);
            }
        }
    }

    /// The edition of the limits. Read it before the limits themselves: then an ask can only be
    /// thought older than it is, which costs one more round and never a permit too many.
    #[must_use]
    pub fn edition(&self) -> u64 {
        self.shared.edition.load(Ordering::Acquire)
    }

    /// A call that has just left the line asks again at once and must find its place.
    pub fn expect_return(&self, seniority: u64, (caller, priority): (CallerId, Priority)) {
        let gate = &mut self.shared.state.lock().gate;
        gate.expect_return(seniority, priority.min(gate.max_priority(caller)));
        self.shared.wake.notify_one();
    }

    /// It does not ask again after all: nobody is to wait for it.
    pub fn cancel_return(&self, seniority: u64) {
        if self.shared.state.lock().gate.cancel_return(seniority) {
            self.shared.wake.notify_one();
        }
    }

    /// The pace has changed: what was refused before may go now.
    pub fn recheck(&self) {
        self.shared.state.lock().gate.anything_changed();
        self.shared.wake.notify_one();
    }

    /// Nobody waits here any longer: all who do are told that the store was lost or is back.
    pub fn release_waiters(&self) {
        let mut state = self.shared.state.lock();
        let waiting: Vec<(PermitId, Waiting)> = state.waiting.drain().collect();
        for (id, _) in &waiting {
            state.gate.cancel(*id);
        }
        drop(state);
        for (_, waiting) in waiting {
            drop(waiting.sender.send(Err(Denied::Lost)));
        }
        self.shared.wake.notify_one();
    }

    /// How many wait, at this priority.
    #[must_use]
    pub fn waiting(&self, priority: Priority) -> usize {
        self.shared.state.lock().gate.waiting(priority)
    }

    /// A place in the order of arrival, for a call that may have to ask more than once.
    #[must_use]
    pub fn new_seniority(&self) -> u64 {
        self.shared.state.lock().next_seniority()
    }

    /// Waits for a permit. Dropping the future leaves the line.
    pub async fn acquire(&self, wanted: PermitRequest) -> Result<Permit, Denied> {
        match self.try_acquire(wanted) {
            Ok(decided) => decided,
            Err(wanted) => self.wait(wanted).await,
        }
    }

    /// Stands in line. Dropping the future leaves it.
    pub(crate) async fn wait(&self, wanted: PermitRequest) -> Result<Permit, Denied> {
        let Some((mut line, answer)) = self.enqueue(wanted) else {
            return Err(Denied::Recalled);
        };
        let answer = answer.await;
        line.is_over = true;
        answer.unwrap_or(Err(Denied::Closed))
    }

    /// Where nobody waits and the ledger answers at once, a call that may go needs neither the line
    /// nor the task that drives it. `Err`: it must stand in line like everybody.
    #[expect(
        clippy::result_large_err,
        reason = "what is wanted goes back as it came"
    )]
    pub(crate) fn try_acquire(
        &self,
        mut wanted: PermitRequest,
    ) -> Result<Result<Permit, Denied>, PermitRequest> {
        let Shared { ledger, state, .. } = &*self.shared;
        let mut state = state.lock();
        if wanted.edition != self.edition() {
            return Ok(Err(Denied::Recalled));
        }
        if !state.gate.is_clear(wanted.priority) {
            return Err(wanted);
        }
        let highest = state.gate.max_priority(wanted.caller);
        let ask = Ask {
            id: self.shared.next_id(),
            terms: std::mem::take(&mut wanted.terms),
            scopes: std::mem::take(&mut wanted.scopes),
            priority: wanted.priority.min(highest),
            max_wait: wanted.patience,
            evidence: wanted.evidence,
        };
        match ledger.try_offer(&ask) {
            Some((Verdict::Go { marks }, at)) => {
                state.gate.record_bypass(wanted.caller, &ask.terms);
                drop(state);
                let times = (at, Span::ZERO);
                Ok(Ok(Permit::new(ledger.clone(), ask, marks, times)))
            }
            Some((Verdict::Never(why), _)) => Ok(Err(Denied::Never(why))),
            // It has to wait, or the store takes its time.
            Some((Verdict::Wait { .. }, _)) | None => {
                (wanted.terms, wanted.scopes) = (ask.terms, ask.scopes);
                Err(wanted)
            }
        }
    }

    /// Stands in line; `None` if the limits have changed meanwhile.
    fn enqueue(
        &self,
        wanted: PermitRequest,
    ) -> Option<(QueueGuard, oneshot::Receiver<Result<Permit, Denied>>)> {
        let PermitRequest {
            terms,
            scopes,
            priority,
            caller,
            patience,
            evidence,
            seniority,
            edition,
        } = wanted;
        let (answer, receiver) = oneshot::channel();
        let now = self.shared.ledger.now();
        let mut state = self.shared.state.lock();
        if edition != self.edition() {
            return None;
        }
        let id = self.shared.next_id();
        let seniority = seniority.unwrap_or_else(|| state.next_seniority());
        let ask = Ask {
            id,
            terms,
            scopes,
            priority,
            max_wait: patience,
            evidence,
        };
        state.waiting.insert(
            id,
            Waiting {
                sender: answer,
                since: now.at,
            },
        );
        state.gate.push(
            Waiter {
                ask,
                caller,
                deadline: now.at + patience,
                seniority: Some(seniority),
            },
            now,
        );
        drop(state);
        self.shared.wake.notify_one();
        let line = QueueGuard {
            shared: self.shared.clone(),
            id,
            is_over: false,
        };
        Some((line, receiver))
    }
}

/// A place in line; leaves it when dropped before it is over.
struct QueueGuard {
    shared: Arc<Shared>,
    id: PermitId,
    is_over: bool,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.shared.state.lock();
        state.gate.cancel(self.id);
        state.waiting.remove(&self.id);
        drop(state);
        self.shared.wake.notify_one();
    }
}

/// Carries effects until the last handle is gone.
async fn drive(shared: Weak<Shared>) {
    let Some((mut events, poke)) = shared
        .upgrade()
        .map(|shared| (shared.ledger.events(), shared.wake.clone()))
    else {
        return;
    };
    loop {
        let Some(strong) = shared.upgrade() else {
            return;
        };
        if strong.ledger.takes_time() {
            // Whoever is about to ask joins this offer: a transaction costs the same for all of
            // them. With nothing else to run this goes on at once.
            tokio::task::yield_now().await;
        }
        let Effects {
            offer,
            resolve,
            settle,
            abandoned: left,
            wake_at: arm,
        } = strong.tick();
        for settle in settle {
            strong.ledger.settle(settle);
        }
        if !left.is_empty() {
            strong.ledger.stop_waiting(&left);
        }
        for resolved in resolve {
            strong.deliver(resolved, strong.ledger.at());
        }
        if !offer.is_empty() {
            strong.ask_ledger(offer).await;
            continue;
        }
        let pause = arm.map(|at| at.since(strong.ledger.at()));
        drop(strong);
        tokio::select! {
            () = poke.notified() => {}
            () = sleep(pause) => {}
            event = events.next() => {
                let Some(strong) = shared.upgrade() else { return };
                strong.on_event(event.unwrap_or(Event::Resync));
            }
        }
    }
}

/// The one timer of a gate.
#[expect(clippy::disallowed_methods, reason = "the timer that the gate armed")]
async fn sleep(pause: Option<Span>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause.into()).await,
        None => std::future::pending().await,
    }
}

impl Shared {
    fn next_id(&self) -> PermitId {
        PermitId {
            owner: self.ledger.owner(),
            seq: SEQ.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn tick(&self) -> Effects {
        self.state.lock().gate.tick(self.ledger.now())
    }

    async fn ask_ledger(&self, asks: Vec<Ask>) {
        let ids: Vec<PermitId> = asks.iter().map(|ask| ask.id).collect();
        let answer = self.ledger.offer(asks).await;
        let mut state = self.state.lock();
        let State { gate, waiting, .. } = &mut *state;
        let now = self.ledger.now();
        match answer {
            Ok(OfferVerdicts { at, verdicts }) => {
                gate.verdicts(verdicts, now);
                let resolved = gate.resolved();
                drop(state);
                resolved.into_iter().for_each(|one| self.deliver(one, at));
            }
            Err(StoreLost) => {
                let gone: Vec<_> = ids.iter().filter_map(|id| waiting.remove(id)).collect();
                ids.iter().for_each(|id| gate.cancel(*id));
                gate.verdicts(Vec::new(), now);
                drop(state);
                for waiting in gone {
                    drop(waiting.sender.send(Err(Denied::Lost)));
                }
            }
        }
    }

    fn on_event(&self, event: Event) {
        let gate = &mut self.state.lock().gate;
        match event {
            Event::Freed(cells) => gate.freed(&cells),
            Event::Scopes(scopes) => gate.scopes_changed(&scopes),
            Event::Recovered | Event::Resync => gate.anything_changed(),
            Event::Lost => {}
        }
    }

    /// Hands a decision of this time to whoever waits for it. A permit that nobody takes is dropped on the way
    /// and so goes back unsent.
    fn deliver(&self, resolved: Resolved, at: Micros) {
        let waiting = self.state.lock().waiting.remove(&resolved.ask.id);
        let since = waiting.as_ref().map_or(at, |waiting| waiting.since);
        let answer = self.to_result(resolved, since, at);
        if let Some(waiting) = waiting {
            drop(waiting.sender.send(answer));
        }
    }

    fn to_result(&self, resolved: Resolved, since: Micros, at: Micros) -> Result<Permit, Denied> {
        let Resolved {
            ask, resolution, ..
        } = resolved;
        match resolution {
            Resolution::Go { marks } => {
                let times = (at, at.since(since));
                Ok(Permit::new(self.ledger.clone(), ask, marks, times))
            }
            Resolution::Rejected {
                blocker: place,
                retry_in,
            } => Err(Denied::Rejected {
                blocker: place,
                retry_in,
            }),
            Resolution::TimedOut { blocker: place } => Err(Denied::TimedOut { blocker: place }),
            Resolution::Full => Err(Denied::Full),
            Resolution::Never(why) => Err(Denied::Never(why)),
            Resolution::Recalled => Err(Denied::Recalled),
        }
    }
}
