//! Who waits, and who goes next. Sans-IO: the actions are returned as [`Effects`].
//!
//! One gate per provider. A rejected waiter is queued under the cell or scope that blocks it. While
//! that blocker is closed, only more urgent waiters are offered, so order holds and a rejection
//! costs one ask, not one per waiter. Other cells and scopes are not affected.
//!
//! Promises: priority first, arrival order within it, fairness between callers, and each caller's
//! guaranteed share (`at_least`) even under a flood of urgent calls. A call that cannot meet its
//! deadline is rejected at once. A waiter that leaves is removed at once, and a permit granted to a
//! waiter that has left is returned unsent. One timer, never one per waiter, and never polling.
//! Bounded.
//!
//! Never: counts permits, reads a clock, or wakes anybody itself.

mod waiter;
pub use waiter::{
    Blocker, Effects, GateSettings, Order, QueuedCall, Resolution, Resolved, WAITING_MAX,
    WaitingGroup,
};
mod position;
mod offer;
mod verdicts;
mod queue;
mod block;
mod off_peak;
pub use off_peak::{OffPeak, OffPeakError};
mod recall;
mod callers;
pub use callers::{CALLERS_MAX, CallerId, CallerShare};
#[cfg(test)]
mod test_gate;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod release_tests;
#[cfg(test)]
mod wake_tests;
#[cfg(test)]
mod recall_tests;
#[cfg(test)]
mod model_tests;

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::ask::{Ask, CellId, PermitId, Priority, ScopeId, Scopes, Terms};
use crate::limit::Algorithm;
use crate::time::{Micros, Now, Span};

use block::Block;
use callers::CallerAccounts;
use offer::Offered;
use queue::WaitQueue;
use recall::RecalledWaiters;

/// The most asks in one offer. A transaction of 64 costs hardly more than one of 1 (14 against
/// 12 µs measured on SQLite), and larger ones would hold the lock against other processes.
pub const BATCH_MAX: usize = 64;

/// A call with less time than this when it is first offered asks "now or never": it gets the
/// verdict, or that the store is lost. A ledger on a busy disk needs this long for a decision.
const NOW_OR_NEVER: Span = Span::from_millis(10);

/// How many asks a queue offers when it opens, unless the settings say otherwise. Two, because a
/// rejection of the second says when to retry.
const BATCH_FIRST: usize = 2;

/// The same where an offer takes a round trip to another host: what the doubling takes is lost to the
/// quota, and a rejected ask is decided here and costs a microsecond.
pub const BATCH_FAR_AWAY: usize = 16;

/// Calls that only wait for the ledger's verdict: they have no place in the queue, because a burst
/// that the limits allow waits for nothing else. As many as callers may be connected by default, and
/// no fewer than may wait.
const UNDECIDED_MAX: usize = 4_096;

/// What calls of one group have in common.
type GroupKey = (CallerId, Priority, SmallVec<[CellId; 4]>, Scopes);

/// The calls that wait for one provider.
#[derive(Debug)]
pub struct Gate {
    settings: GateSettings,
    waiting: BTreeMap<PermitId, Entry>,
    /// How many of them have each priority, by its number.
    waiting_at: [usize; 3],
    /// How many of them have a place in the queue: something has blocked them.
    places_taken: usize,
    ready: WaitQueue,
    blocks: BTreeMap<Blocker, Block>,
    /// The batch that the ledger is deciding, including asks whose waiters have left.
    offered: BTreeMap<PermitId, Offered>,
    /// How many asks of the batch each blocker has to decide.
    offered_to_blocker: BTreeMap<Blocker, usize>,
    /// Changes while the ledger had the batch: its verdicts may be older.
    missed: MissedEvents,
    deadlines: BTreeSet<(Micros, PermitId)>,
    wakes: BTreeSet<(Micros, Blocker)>,
    callers: CallerAccounts,
    recalled: RecalledWaiters,
    arrivals: u64,
    effects: Effects,
}

#[derive(Debug)]
struct Entry {
    ask: Ask,
    caller: CallerId,
    deadline: Micros,
    arrival: u64,
    position: Position,
    /// The last thing that it waited for, by its own name also in FIFO order.
    waited_for: Option<Blocker>,
    /// It has a place in the queue, and is not rejected because the queue is full.
    has_place: bool,
    /// It has been offered to the ledger before.
    was_offered: bool,
    /// It has next to no time, so it has asked for one verdict, and waits for it.
    awaits_verdict: bool,
}

/// Events between an offer and its verdicts.
#[derive(Debug, Default)]
struct MissedEvents {
    everything: bool,
    /// Only blockers of the batch, so no more than the batch has.
    blockers: BTreeSet<Blocker>,
}

/// Where a waiter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Ready,
    Queued(Blocker),
    Offered,
}

impl Position {
    fn blocker(self) -> Option<Blocker> {
        match self {
            Position::Queued(blocker) => Some(blocker),
            Position::Ready | Position::Offered => None,
        }
    }
}

impl Gate {
    /// An empty gate.
    #[must_use]
    pub fn new(settings: GateSettings) -> Gate {
        Gate {
            settings,
            waiting: BTreeMap::new(),
            waiting_at: [0; 3],
            places_taken: 0,
            ready: WaitQueue::default(),
            blocks: BTreeMap::new(),
            offered: BTreeMap::new(),
            offered_to_blocker: BTreeMap::new(),
            missed: MissedEvents::default(),
            deadlines: BTreeSet::new(),
            wakes: BTreeSet::new(),
            callers: CallerAccounts::default(),
            recalled: RecalledWaiters::default(),
            arrivals: 0,
            effects: Effects::default(),
        }
    }

    /// Applies new settings. Waiters keep their seniority and are offered again, because what
    /// blocked them may be gone.
    pub fn configure(&mut self, settings: GateSettings) {
        let queued: Vec<(PermitId, Position)> = self
            .waiting
            .iter()
            .map(|(id, entry)| (*id, entry.position))
            .filter(|(_, position)| *position != Position::Offered)
            .collect();
        for &(id, position) in &queued {
            self.unlink(id, position);
        }
        self.settings = settings;
        self.blocks.clear();
        self.wakes.clear();
        for &(id, _) in &queued {
            self.link(id, Position::Ready);
        }
    }

    /// Sets a caller's share and highest priority.
    pub fn set_share(&mut self, caller: CallerId, share: CallerShare) {
        self.callers.set(caller, share);
    }

    /// The number of waiters at this priority.
    #[must_use]
    pub fn waiting(&self, priority: Priority) -> usize {
        self.waiting_at[priority as usize]
    }

    /// Who waits for what: calls of one caller and priority with the same limits and scopes, together.
    #[must_use]
    pub fn waiting_groups(&self) -> Vec<WaitingGroup> {
        let mut groups: BTreeMap<GroupKey, WaitingGroup> = BTreeMap::new();
        for entry in self.waiting.values() {
            let cells = entry.ask.terms.iter().map(|term| term.cell).collect();
            let key = (
                entry.caller,
                entry.ask.priority,
                cells,
                entry.ask.scopes.clone(),
            );
            let group = groups.entry(key).or_insert_with(|| WaitingGroup {
                caller: entry.caller,
                priority: entry.ask.priority,
                at_least_permille: self.callers.at_least_permille(entry.caller),
                terms: entry.ask.terms.clone(),
                scopes: entry.ask.scopes.clone(),
                calls: 0,
            });
            group.calls += 1;
        }
        groups.into_values().collect()
    }

    /// The order of the queue.
    #[must_use]
    pub fn order(&self) -> Order {
        self.settings.order
    }

    /// What each waiter waits for: its blocker, and whether that counts concurrent calls. `None` =
    /// nothing holds it: the ledger decides, or is about to.
    pub fn blockers(&self) -> impl Iterator<Item = Option<(Blocker, bool)>> {
        self.waiting.values().map(|entry| {
            entry.waited_for?;
            let blocker = match entry.position.blocker()? {
                // In FIFO order all wait at the front for what holds the first of them.
                Blocker::Front => entry.waited_for.unwrap_or(Blocker::Front),
                other @ (Blocker::Cell(_)
                | Blocker::Scope(_)
                | Blocker::OffPeak
                | Blocker::Release(_)) => other.named(),
            };
            let mut terms = entry.ask.terms.iter();
            let counts_concurrent = terms.any(|term| {
                let is_it = blocker == Blocker::Cell(term.cell);
                is_it && matches!(term.rule.algorithm(), Algorithm::InFlight)
            });
            Some((blocker, counts_concurrent))
        })
    }

    /// The last thing that held this waiter; `None` = nothing has yet.
    #[must_use]
    pub fn waited_for(&self, id: PermitId) -> Option<Blocker> {
        self.waiting.get(&id)?.waited_for
    }

    /// No waiters, no offer, and no state about either.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let nobody = self.waiting.is_empty() && self.offered.is_empty() && self.ready.is_empty();
        let nothing = self.blocks.is_empty() && self.wakes.is_empty() && self.deadlines.is_empty();
        let nobody = nobody && self.recalled.is_empty();
        nobody && nothing && self.offered_to_blocker.is_empty() && self.missed.blockers.is_empty()
    }

    /// A call wants a permit.
    pub fn push(&mut self, waiter: QueuedCall, now: Now) {
        let QueuedCall {
            mut ask,
            caller,
            deadline,
            seniority,
        } = waiter;
        // A call without time would otherwise be rejected by a blocker that has just opened.
        self.open_due(now.at);
        ask.priority = ask.priority.min(self.callers.max_priority(caller));
        let arrival = seniority.unwrap_or(self.arrivals);
        self.arrivals = self.arrivals.max(arrival) + 1;
        let had_place = self.recalled.returned(arrival);
        let undecided = self.waiting.len() - self.places_taken;
        if had_place.is_none()
            && (self.is_full() || undecided >= UNDECIDED_MAX.max(self.settings.waiting_max))
        {
            self.effects.resolve.push(Resolved {
                ask,
                seniority: arrival,
                waited_for: None,
                resolution: Resolution::Full,
            });
            return;
        }
        let id = ask.id;
        // The same id twice is an owner's error; the newer one replaces the older.
        self.remove(id);
        let entry = Entry {
            ask,
            caller,
            deadline,
            arrival,
            position: Position::Ready,
            waited_for: None,
            has_place: false,
            was_offered: false,
            awaits_verdict: false,
        };
        self.callers.arrived(caller);
        self.deadlines.insert((deadline, id));
        self.waiting_at[entry.ask.priority as usize] += 1;
        self.waiting.insert(id, entry);
        if had_place == Some(true) {
            self.take_place(id);
        }
        self.enqueue(id, now);
    }

    /// Every place in the queue is taken, or expected to be taken again by its waiter.
    fn is_full(&self) -> bool {
        self.places_taken + self.recalled.places() >= self.settings.waiting_max
    }

    /// May this waiter be queued?
    fn has_room_for(&self, id: PermitId) -> bool {
        let entry = self.waiting.get(&id);
        entry.is_none_or(|entry| entry.has_place) || !self.is_full()
    }

    /// Nobody waits and nothing is closed: a call of this priority may ask the ledger at once
    /// without queueing. Report such a call to [`Gate::record_bypass`].
    #[must_use]
    pub fn is_clear(&self, priority: Priority) -> bool {
        let nobody = self.waiting.is_empty()
            && self.offered.is_empty()
            && self.blocks.is_empty()
            && self.recalled.is_empty();
        let hours = self.settings.off_peak.as_ref();
        nobody && hours.is_none_or(|hours| priority > hours.max_priority())
    }

    /// The highest priority that this caller's calls may have.
    #[must_use]
    pub fn max_priority(&self, caller: CallerId) -> Priority {
        self.callers.max_priority(caller)
    }

    /// A call of this caller got its permit without queueing.
    pub fn record_bypass(&mut self, caller: CallerId, terms: &Terms) {
        self.callers.arrived(caller);
        self.callers.served(caller, terms);
        self.callers.departed(caller);
    }

    /// The call is cancelled. If the ledger has its ask, the permit is returned unsent.
    pub fn cancel(&mut self, id: PermitId) {
        if let Some(entry) = self.remove(id) {
            self.on_departed(&entry);
        }
    }

    /// The ledger reports that these cells became free earlier than expected.
    pub fn freed(&mut self, cells: &[CellId]) {
        for &cell in cells {
            self.on_change(Blocker::Cell(cell));
        }
        self.on_change(Blocker::Front);
    }

    /// The ledger reports that these scopes have changed.
    pub fn scopes_changed(&mut self, scopes: &[ScopeId]) {
        for &scope in scopes {
            self.on_change(Blocker::Scope(scope));
        }
        self.on_change(Blocker::Front);
    }

    /// Everything may have changed: the ledger was unreachable, or it reported too many events to
    /// follow.
    pub fn anything_changed(&mut self) {
        self.missed.everything = !self.offered.is_empty();
        self.open_all();
    }

    fn on_change(&mut self, blocker: Blocker) {
        self.open_changed(blocker);
        if self.is_offered_to(blocker) {
            self.missed.blockers.insert(blocker);
        }
    }

    /// Time has passed or an event arrived: returns what to do now.
    pub fn tick(&mut self, now: Now) -> Effects {
        self.open_due(now.at);
        self.expire(now.at);
        self.recalled.refresh(now.at);
        if self.offered.is_empty() {
            self.fill_offer(now);
        }
        debug_assert!(self.offered.len() <= BATCH_MAX, "an offer is bounded");
        debug_assert!(
            self.deadlines.len() <= self.waiting.len(),
            "only waiters have deadlines"
        );
        let timers = [
            self.wakes.first().map(|wake| wake.0),
            self.deadlines.first().map(|due| due.0),
            self.recalled.until(),
        ];
        let soonest = timers.into_iter().flatten().min();
        self.effects.wake_at = soonest.filter(|&at| at < Micros(u64::MAX));
        std::mem::take(&mut self.effects)
    }

    /// Opens the blockers whose time has come.
    fn open_due(&mut self, now: Micros) {
        while let Some(&(at, blocker)) = self.wakes.first() {
            if at > now {
                break;
            }
            self.open_changed(blocker);
        }
    }

    /// Returns resolutions that are already decided, before the next offer is built.
    pub fn resolved(&mut self) -> Vec<Resolved> {
        std::mem::take(&mut self.effects.resolve)
    }

    /// Resolves waiters whose deadline has passed, also while the ledger has their asks. A waiter
    /// whose blocker is open is still offered if that can be in time, or if it was never offered
    /// and nothing is pending.
    fn expire(&mut self, now: Micros) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.remove(&(deadline, id));
            let Some(entry) = self.waiting.get(&id) else {
                continue;
            };
            if entry.position == Position::Offered {
                // The ledger has it, and a permit that is still granted is returned.
                if !entry.awaits_verdict {
                    self.time_out(id, None);
                }
                continue;
            }
            let blocker = entry.position.blocker();
            let is_pending = !self.offered.is_empty();
            let too_late = if entry.was_offered {
                deadline < now || is_pending
            } else {
                // It cannot be offered in time any more. One without time asks once, however late.
                is_pending && entry.ask.max_wait > Span::ZERO
            };
            if self.is_blocked(entry) || too_late {
                self.time_out(id, blocker);
            }
        }
    }

    fn time_out(&mut self, id: PermitId, blocker: Option<Blocker>) {
        if let Some(entry) = self.resolve(id, Resolution::TimedOut { blocker }) {
            self.on_departed(&entry);
        }
    }

    fn resolve(&mut self, id: PermitId, resolution: Resolution) -> Option<Entry> {
        let entry = self.remove(id)?;
        let resolution = resolution.named();
        self.effects.resolve.push(Resolved {
            ask: entry.ask.clone(),
            seniority: entry.arrival,
            waited_for: entry.waited_for,
            resolution,
        });
        Some(entry)
    }
}
