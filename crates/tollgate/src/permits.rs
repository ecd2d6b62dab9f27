//! The permit queue of a provider: whose turn is it, and do all limits and scopes agree?
//!
//! `Gate` and `turn` in `core` decide; this module drives them. One task per provider passes
//! effects between the gate, the ledger and the waiting calls.
//!
//! Promises: a waiting call is woken once, when it is decided; there is one timer and no polling. A
//! waiting call that is dropped leaves the queue at once, and a permit that nobody takes is
//! returned. A permit dropped before a byte left is returned; after that it counts as sent. While
//! the store is lost, requests fail at once.
//!
//! Never: holds a lock across an await.

mod denied;
mod driver;
mod watched_cell;
mod permit;
#[cfg(test)]
mod edition_tests;
#[cfg(test)]
mod far_away_tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, oneshot};
use tollgate_core::ask::{
    Ask, CellId, Evidence, PermitId, Priority, Scopes, Settle, Terms, Verdict,
};
use tollgate_core::gate::{
    BATCH_FAR_AWAY, Blocker, CallerId, CallerShare, Effects, Gate, GateSettings, Order, QueuedCall,
    Resolution, Resolved, WaitingGroup,
};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::lock_order::{RankedMutex, rank};
use tollgate_ledger::{Event, OfferVerdicts, ProviderLedger, StoreLost};

pub use denied::Denied;
pub use permit::{LimitReport, Permit};
pub(crate) use watched_cell::BlockedHook;
use watched_cell::WatchedCell;

/// The sequence number of asks in this process. One for all providers, because a permit id must be
/// unique in its ledger.
static SEQ: AtomicU64 = AtomicU64::new(1);

/// Lets the numbers of this process's permits begin at a random place. For a process whose permits another
/// one settles by number, perhaps in a store that was replaced meanwhile: there the same owner and a small
/// number may be somebody else's permit.
pub fn begin_numbers_at(random: u64) {
    // 2^48 places with room for 2^15 numbers each: two processes do not meet, and none reaches the end.
    SEQ.store((random >> 16 << 15) + 1, Ordering::Relaxed);
}

/// Cells whose counts were carried over after a reload: 65,536 entries of 32 bytes. Further cells
/// are carried again with each call, which changes nothing.
const INHERITED_MAX: usize = 65_536;

/// The permit queue of one provider. Clones share it.
#[derive(Clone, Debug)]
pub struct Permits {
    shared: Arc<Shared>,
}

/// The permit that one attempt requests.
#[derive(Clone, Debug)]
pub struct PermitRequest {
    /// Every limit that must agree.
    pub terms: Terms,
    /// Every scope that must be open.
    pub scopes: Scopes,
    /// Its priority.
    pub priority: Priority,
    /// The caller that it counts for.
    pub caller: CallerId,
    /// How long it may wait; zero = now or never.
    pub patience: Span,
    /// What will be reported about it.
    pub evidence: Evidence,
    /// Its position in the order of arrival if it waited here before: a retry keeps its position.
    pub seniority: Option<u64>,
    /// The edition of the limits in `terms`, from [`Permits::edition`]; a request of an older
    /// edition is recalled.
    pub edition: u64,
}

#[derive(Debug)]
struct Shared {
    ledger: ProviderLedger,
    state: RankedMutex<{ rank::PERMITS }, State>,
    /// Counts the changes of the limits. Written under the lock, read without it.
    edition: AtomicU64,
    /// Wakes the driver task after a change to the gate.
    wake: Arc<Notify>,
    /// A limit whose owner wants to hear when calls wait for it.
    watched: OnceLock<WatchedCell>,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    /// The last position given in the order of arrival.
    last_seniority: u64,
    waiting: HashMap<PermitId, Waiting>,
    /// Cells carried over since the limits changed.
    inherited: HashSet<(CellId, CellId)>,
}

impl State {
    fn next_seniority(&mut self) -> u64 {
        self.last_seniority += 1;
        self.last_seniority
    }
}

/// The settings with a first batch that fits the ledger: what doubling it takes is lost to the quota
/// where each offer is a round trip.
fn for_ledger(settings: GateSettings, ledger: &ProviderLedger) -> GateSettings {
    GateSettings {
        batch_first: match ledger.is_far_away() {
            true => settings.batch_first.max(BATCH_FAR_AWAY),
            false => settings.batch_first,
        },
        ..settings
    }
}

/// What a waiting call gets, and what held it last.
type Waited = (Result<Permit, Denied>, Option<Blocker>);

/// A waiting call. A permit that it does not take is returned by its drop.
#[derive(Debug)]
struct Waiting {
    sender: oneshot::Sender<Waited>,
    since: Micros,
}

impl Permits {
    /// The permits of one provider on this ledger, for this process. Starts the task that hands
    /// them out, so it must be called inside a tokio runtime; the task ends with the last clone.
    #[must_use]
    pub fn new(ledger: ProviderLedger, settings: GateSettings) -> Permits {
        let state = State {
            gate: Gate::new(for_ledger(settings, &ledger)),
            last_seniority: 0,
            waiting: HashMap::new(),
            inherited: HashSet::new(),
        };
        let wake = Arc::new(Notify::new());
        let shared = Arc::new(Shared {
            ledger,
            state: RankedMutex::new(state),
            edition: AtomicU64::new(0),
            wake,
            watched: OnceLock::new(),
        });
        tokio::spawn(driver::drive(Arc::downgrade(&shared)));
        Permits { shared }
    }

    /// Sets the guaranteed and the maximum share of a caller.
    pub fn set_share(&self, caller: CallerId, share: CallerShare) {
        self.shared.state.lock().gate.set_share(caller, share);
    }

    /// Replaces the limits and the gate's settings. Recalls all waiting calls: nothing is granted
    /// under the old limits after this.
    pub fn replace(&self, settings: GateSettings) {
        let mut state = self.shared.state.lock();
        self.shared.recall(&mut state);
        state.inherited.clear();
        let settings = for_ledger(settings, &self.shared.ledger);
        state.gate.configure(settings);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Tells the owner of this limit, from now on, when calls wait for it longest. The first one who
    /// watches stays.
    pub(crate) fn watch(&self, cell: CellId, hook: Arc<dyn BlockedHook>) {
        let watched = WatchedCell::new(cell, hook);
        let _first = self.shared.watched.set(watched);
    }

    /// Carries counts of the previous limits over to those of this edition, once per cell.
    pub fn inherit(&self, edition: u64, inherits: &[Settle]) {
        let mut state = self.shared.state.lock();
        for inherit in inherits {
            if let Settle::Inherit { from, to, .. } = inherit
                && edition == self.edition()
                && (state.inherited.len() >= INHERITED_MAX || state.inherited.insert((*from, *to)))
            {
                self.shared.ledger.settle_ref(inherit);
            }
        }
    }

    /// The edition of the limits. Read it before the limits themselves: then a request can only
    /// count as older than it is, which costs another round and never a permit too many.
    #[must_use]
    pub fn edition(&self) -> u64 {
        self.shared.edition.load(Ordering::Acquire)
    }

    /// A call that has just left the queue will ask again at once: keeps its position.
    pub fn expect_return(&self, seniority: u64, (caller, priority): (CallerId, Priority)) {
        let gate = &mut self.shared.state.lock().gate;
        gate.expect_return(seniority, priority.min(gate.max_priority(caller)));
        self.shared.wake.notify_one();
    }

    /// The call does not ask again after all: nobody waits for it.
    pub fn cancel_return(&self, seniority: u64) {
        if self.shared.state.lock().gate.cancel_return(seniority) {
            self.shared.wake.notify_one();
        }
    }

    /// The throttle has changed: rejected asks may be granted now.
    pub fn recheck(&self) {
        self.shared.state.lock().gate.anything_changed();
        self.shared.wake.notify_one();
    }

    /// Releases all waiting calls with `Lost`, because the store was lost or has recovered.
    pub fn release_waiters(&self) {
        let mut state = self.shared.state.lock();
        let waiting: Vec<(PermitId, Waiting)> = state.waiting.drain().collect();
        for (id, _) in &waiting {
            state.gate.cancel(*id);
        }
        drop(state);
        for (_, waiting) in waiting {
            drop(waiting.sender.send((Err(Denied::Lost), None)));
        }
        self.shared.wake.notify_one();
    }

    /// How many calls wait at this priority.
    #[must_use]
    pub fn waiting(&self, priority: Priority) -> usize {
        self.shared.state.lock().gate.waiting(priority)
    }

    /// Who waits for what.
    pub(crate) fn waiting_groups(&self) -> Vec<WaitingGroup> {
        self.shared.state.lock().gate.waiting_groups()
    }

    /// The order of the queue.
    pub(crate) fn order(&self) -> Order {
        self.shared.state.lock().gate.order()
    }

    /// What each waiting call waits for, and whether that counts concurrent calls; `None` = it is
    /// about to be offered to the ledger.
    pub(crate) fn blockers(&self) -> Vec<Option<(Blocker, bool)>> {
        self.shared.state.lock().gate.blockers().collect()
    }

    /// A position in the order of arrival, for a call that may have to ask more than once.
    #[must_use]
    pub fn new_seniority(&self) -> u64 {
        self.shared.state.lock().next_seniority()
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub async fn acquire(&self, request: PermitRequest) -> Result<Permit, Denied> {
        match self.try_acquire(request) {
            Ok(decided) => decided,
            Err(request) => self.wait(request).await,
        }
    }

    /// Waits in the queue. Dropping the future leaves it.
    pub(crate) async fn wait(&self, request: PermitRequest) -> Result<Permit, Denied> {
        self.wait_noting(request, &mut None).await
    }

    /// The same, and notes what held the call, also if the future is dropped. Nothing held a call that only waited
    /// for the store.
    pub(crate) async fn wait_noting(
        &self,
        request: PermitRequest,
        held_by: &mut Option<Blocker>,
    ) -> Result<Permit, Denied> {
        let Some((mut guard, result)) = self.enqueue(request, held_by) else {
            return Err(Denied::Recalled);
        };
        let result = result.await;
        guard.is_over = true;
        let (result, held_by) = result.unwrap_or((Err(Denied::Closed), None));
        *guard.held_by = held_by.or(*guard.held_by);
        result
    }

    /// If nobody waits and the ledger decides at once, a call needs neither the queue nor its task.
    /// `Err`: it must wait in the queue.
    #[expect(clippy::result_large_err, reason = "the request is returned unchanged")]
    pub(crate) fn try_acquire(
        &self,
        mut request: PermitRequest,
    ) -> Result<Result<Permit, Denied>, PermitRequest> {
        let Shared { ledger, state, .. } = &*self.shared;
        let mut state = state.lock();
        if request.edition != self.edition() {
            return Ok(Err(Denied::Recalled));
        }
        if !state.gate.is_clear(request.priority) {
            return Err(request);
        }
        let highest = state.gate.max_priority(request.caller);
        let ask = Ask {
            id: self.shared.next_id(),
            terms: std::mem::take(&mut request.terms),
            scopes: std::mem::take(&mut request.scopes),
            priority: request.priority.min(highest),
            max_wait: request.patience,
            evidence: request.evidence,
        };
        match ledger.offer_at_once(&ask) {
            Some((Verdict::Go { marks }, at)) => {
                state.gate.record_bypass(request.caller, &ask.terms);
                drop(state);
                let times = (at, Span::ZERO);
                Ok(Ok(Permit::new(ledger.clone(), ask, marks, times, None)))
            }
            Some((Verdict::Never(why), _)) => Ok(Err(Denied::Never(why))),
            // It has to wait, or the store does not decide at once.
            verdict @ (Some((Verdict::Wait { .. }, _)) | None) => {
                drop(state);
                if let Some((verdict, _)) = verdict {
                    self.shared
                        .on_wait(self.shared.watched_term(&ask), &verdict);
                }
                (request.terms, request.scopes) = (ask.terms, ask.scopes);
                Err(request)
            }
        }
    }

    /// Enters the queue; `None` if the limits have changed meanwhile.
    fn enqueue<'a>(
        &self,
        request: PermitRequest,
        held_by: &'a mut Option<Blocker>,
    ) -> Option<(QueueGuard<'a>, oneshot::Receiver<Waited>)> {
        let PermitRequest {
            terms,
            scopes,
            priority,
            caller,
            patience,
            evidence,
            seniority,
            edition,
        } = request;
        let (sender, receiver) = oneshot::channel();
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
                sender,
                since: now.at,
            },
        );
        state.gate.push(
            QueuedCall {
                ask,
                caller,
                deadline: now.at + patience,
                seniority: Some(seniority),
            },
            now,
        );
        drop(state);
        self.shared.wake.notify_one();
        let guard = QueueGuard {
            shared: self.shared.clone(),
            id,
            is_over: false,
            held_by,
        };
        Some((guard, receiver))
    }
}

/// A position in the queue; leaves it when dropped before the end.
struct QueueGuard<'a> {
    shared: Arc<Shared>,
    id: PermitId,
    is_over: bool,
    held_by: &'a mut Option<Blocker>,
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.shared.state.lock();
        *self.held_by = state.gate.waited_for(self.id).or(*self.held_by);
        state.gate.cancel(self.id);
        state.waiting.remove(&self.id);
        drop(state);
        self.shared.wake.notify_one();
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

    /// Waiting calls ask again: nothing is granted to what they have asked for.
    fn recall(&self, state: &mut State) {
        self.edition.fetch_add(1, Ordering::Release);
        state.gate.recall();
    }

    /// `asks`: each with the term that is the watched limit, if it has one.
    fn on_verdicts(
        self: &Arc<Shared>,
        asks: &[(PermitId, Option<usize>)],
        result: Result<OfferVerdicts, StoreLost>,
    ) {
        let mut state = self.state.lock();
        let State { gate, waiting, .. } = &mut *state;
        let now = self.ledger.now();
        match result {
            Ok(OfferVerdicts { at, verdicts }) => {
                let waits = watched_cell::waits(asks, &verdicts);
                gate.verdicts(verdicts, now);
                let resolved = gate.resolved();
                drop(state);
                resolved.into_iter().for_each(|one| self.deliver(one, at));
                if waits {
                    self.on_watched_blocked();
                }
            }
            Err(StoreLost) => {
                let ids = || asks.iter().map(|(id, _)| id);
                let gone: Vec<_> = ids().filter_map(|id| waiting.remove(id)).collect();
                ids().for_each(|id| gate.cancel(*id));
                gate.verdicts(Vec::new(), now);
                drop(state);
                for waiting in gone {
                    drop(waiting.sender.send((Err(Denied::Lost), None)));
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
            Event::Lost
            | Event::Damaged { .. }
            | Event::LogHeld { .. }
            | Event::NotRemembered { .. } => {}
        }
    }

    /// Delivers a decision of this time to the call that waits for it. A permit that nobody takes
    /// is dropped here and so returned unsent.
    fn deliver(&self, resolved: Resolved, at: Micros) {
        let waiting = self.state.lock().waiting.remove(&resolved.ask.id);
        let since = waiting.as_ref().map_or(at, |waiting| waiting.since);
        let held_by = resolved.waited_for;
        let result = self.to_result(resolved, since, at);
        if let Some(waiting) = waiting {
            drop(waiting.sender.send((result, held_by)));
        }
    }

    fn to_result(&self, resolved: Resolved, since: Micros, at: Micros) -> Result<Permit, Denied> {
        let Resolved {
            ask,
            resolution,
            waited_for,
            ..
        } = resolved;
        match resolution {
            Resolution::Go { marks } => {
                let (ledger, times) = (self.ledger.clone(), (at, at.since(since)));
                Ok(Permit::new(ledger, ask, marks, times, waited_for))
            }
            Resolution::Rejected {
                blocker: place,
                retry_in,
            } => Err(Denied::Rejected {
                blocker: place,
                retry_in,
            }),
            // In FIFO order all wait at the front of the queue; what they wait for is named here.
            Resolution::TimedOut { blocker } => Err(Denied::TimedOut {
                blocker: waited_for.or(blocker),
            }),
            Resolution::Full => Err(Denied::Full),
            Resolution::Never(why) => Err(Denied::Never(why)),
            Resolution::Recalled => Err(Denied::Recalled),
        }
    }
}
