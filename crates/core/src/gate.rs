//! Who waits, and who goes next. Sans-IO: what to do goes out as [`Effects`].
//!
//! One gate per provider. A waiter that was refused stands in the line of the cell or scope that
//! refused it; while that place is closed, nobody who is not more urgent is even offered, so order
//! holds and a refusal costs one ask, not one per waiter. Places that did not refuse go on.
//!
//! Promises: priority first, arrival order inside it, fair between callers, and what a caller was
//! promised (`at_least`) even under a flood of urgent calls. A call that cannot make its deadline
//! is refused at once. A waiter that leaves is unlinked at once, and a permit granted to one that
//! has left comes back unsent. One timer, never one per waiter, and never polling. Bounded.
//!
//! Never: counts permits, reads a clock, or wakes anybody itself.

mod waiter;
pub use waiter::{
    Blocker, Effects, GateSettings, Order, Resolution, Resolved, WAITING_MAX, Waiter,
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
mod wake_tests;
#[cfg(test)]
mod recall_tests;
#[cfg(test)]
mod model_tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::ask::{Ask, CellId, PermitId, Priority, ScopeId, Terms};
use crate::time::{Micros, Now};

use block::Block;
use callers::CallerAccounts;
use offer::Offered;
use queue::WaitQueue;
use recall::RecalledWaiters;

/// The most asks in one offer. A transaction of 64 costs hardly more than one of 1 (14 against
/// 12 µs measured on SQLite), and larger ones would hold the lock against other processes.
pub const BATCH_MAX: usize = 64;

/// How many a line offers when it opens. Two, because the second one's refusal says when to come
/// back; it doubles while all are granted.
const BATCH_FIRST: usize = 2;

/// The calls that wait for one provider.
#[derive(Debug)]
pub struct Gate {
    settings: GateSettings,
    waiting: BTreeMap<PermitId, Entry>,
    ready: WaitQueue,
    blocks: BTreeMap<Blocker, Block>,
    /// The batch that the ledger has now, whether or not those who asked still wait.
    offered: BTreeMap<PermitId, Offered>,
    /// How many of the batch each place has to decide.
    offered_to_blocker: BTreeMap<Blocker, usize>,
    /// What changed while the ledger had the batch: its verdicts may be older than that.
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
    /// It has had a chance.
    was_offered: bool,
}

/// Events that came between an offer and its verdicts.
#[derive(Debug, Default)]
struct MissedEvents {
    everything: bool,
    /// Only places that the batch asks, so no more than a batch has.
    blockers: BTreeSet<Blocker>,
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Ready,
    Queued(Blocker),
    Offered,
}

impl Position {
    fn blocker(self) -> Option<Blocker> {
        match self {
            Position::Queued(place) => Some(place),
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

    /// Changes how it works from now on. Those who wait keep their seniority and are asked for
    /// anew, because what kept them may not be there any more.
    pub fn configure(&mut self, settings: GateSettings) {
        let seated: Vec<(PermitId, Position)> = self
            .waiting
            .iter()
            .map(|(id, entry)| (*id, entry.position))
            .filter(|(_, seat)| *seat != Position::Offered)
            .collect();
        for &(id, seat) in &seated {
            self.unlink(id, seat);
        }
        self.settings = settings;
        self.blocks.clear();
        self.wakes.clear();
        for &(id, _) in &seated {
            self.link(id, Position::Ready);
        }
    }

    /// What a caller is promised and allowed.
    pub fn set_share(&mut self, caller: CallerId, share: CallerShare) {
        self.callers.set(caller, share);
    }

    /// How many wait, at this priority.
    #[must_use]
    pub fn waiting(&self, priority: Priority) -> usize {
        self.waiting
            .values()
            .filter(|entry| entry.ask.priority == priority)
            .count()
    }

    /// Nobody waits, nothing is asked, nothing is remembered of either.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let nobody = self.waiting.is_empty() && self.offered.is_empty() && self.ready.is_empty();
        let nothing = self.blocks.is_empty() && self.wakes.is_empty() && self.deadlines.is_empty();
        let nobody = nobody && self.recalled.is_empty();
        nobody && nothing && self.offered_to_blocker.is_empty() && self.missed.blockers.is_empty()
    }

    /// A call wants a permit.
    pub fn push(&mut self, waiter: Waiter, now: Now) {
        let Waiter {
            mut ask,
            caller,
            deadline,
            seniority,
        } = waiter;
        ask.priority = ask.priority.min(self.callers.max_priority(caller));
        let arrival = seniority.unwrap_or(self.arrivals);
        self.arrivals = self.arrivals.max(arrival) + 1;
        let is_back = self.recalled.returned(arrival);
        let expected = if is_back { 0 } else { self.recalled.len() };
        if self.waiting.len() + expected >= self.settings.waiting_max {
            self.effects.resolve.push(Resolved {
                ask,
                seniority: arrival,
                resolution: Resolution::Full,
            });
            return;
        }
        let id = ask.id;
        // The same id twice is an owner's mistake; the newer one stands.
        self.remove(id);
        let entry = Entry {
            ask,
            caller,
            deadline,
            arrival,
            position: Position::Ready,
            was_offered: false,
        };
        self.callers.arrived(caller);
        self.deadlines.insert((deadline, id));
        self.waiting.insert(id, entry);
        self.enqueue(id, now);
    }

    /// Nobody waits and nothing is known to be closed: a call of this priority may be asked for at
    /// once, without standing in line. Whoever goes so is told to [`Gate::went_past`].
    #[must_use]
    pub fn is_clear(&self, priority: Priority) -> bool {
        let nobody = self.waiting.is_empty()
            && self.offered.is_empty()
            && self.blocks.is_empty()
            && self.recalled.is_empty();
        let hours = self.settings.off_peak.as_ref();
        nobody && hours.is_none_or(|hours| priority > hours.max_priority())
    }

    /// The priority that this caller's calls have at most.
    #[must_use]
    pub fn max_priority(&self, caller: CallerId) -> Priority {
        self.callers.max_priority(caller)
    }

    /// A call of this caller got its permit without standing in line.
    pub fn record_bypass(&mut self, caller: CallerId, terms: &Terms) {
        self.callers.arrived(caller);
        self.callers.served(caller, terms);
        self.callers.departed(caller);
    }

    /// The call is no longer wanted. If the ledger has it, its permit comes back unsent.
    pub fn cancel(&mut self, id: PermitId) {
        if let Some(entry) = self.remove(id) {
            self.on_left(&entry);
        }
    }

    /// The ledger says that these cells have come free earlier than their time.
    pub fn freed(&mut self, cells: &[CellId]) {
        for &cell in cells {
            self.on_change(Blocker::Cell(cell));
        }
        self.on_change(Blocker::Front);
    }

    /// The ledger says that these scopes have changed.
    pub fn scopes_changed(&mut self, scopes: &[ScopeId]) {
        for &scope in scopes {
            self.on_change(Blocker::Scope(scope));
        }
        self.on_change(Blocker::Front);
    }

    /// Everything may have changed: the ledger was away, or its events were too many to follow.
    pub fn anything_changed(&mut self) {
        self.missed.everything = !self.offered.is_empty();
        self.open_all();
    }

    fn on_change(&mut self, place: Blocker) {
        self.open(place);
        if self.is_offered_to(place) {
            self.missed.blockers.insert(place);
        }
    }

    /// Time has passed or something was said: what is to be done now?
    pub fn tick(&mut self, now: Now) -> Effects {
        while let Some(&(at, place)) = self.wakes.first() {
            if at > now.at {
                break;
            }
            self.open(place);
        }
        self.expire(now.at);
        self.recalled.refresh(now.at);
        if self.offered.is_empty() {
            self.fill_offer(now);
        }
        let timers = [
            self.wakes.first().map(|wake| wake.0),
            self.deadlines.first().map(|due| due.0),
            self.recalled.until(),
        ];
        let soonest = timers.into_iter().flatten().min();
        self.effects.wake_at = soonest.filter(|&at| at < Micros(u64::MAX));
        std::mem::take(&mut self.effects)
    }

    /// What is decided already, for those who must not wait until the next offer is made up.
    pub fn resolved(&mut self) -> Vec<Resolved> {
        std::mem::take(&mut self.effects.resolve)
    }

    /// Resolves those whose time ran out. One whose place is open goes on to be asked if that can
    /// still be in time, or if it never was asked: that is its one chance.
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
                continue;
            }
            let place = entry.position.blocker();
            let too_late = deadline < now || !self.offered.is_empty();
            if self.is_blocked(entry) || (entry.was_offered && too_late) {
                self.time_out(id, place);
            }
        }
    }

    fn time_out(&mut self, id: PermitId, place: Option<Blocker>) {
        if let Some(entry) = self.resolve(id, Resolution::TimedOut { blocker: place }) {
            self.on_left(&entry);
        }
    }

    fn resolve(&mut self, id: PermitId, resolution: Resolution) -> Option<Entry> {
        let entry = self.remove(id)?;
        self.effects.resolve.push(Resolved {
            ask: entry.ask.clone(),
            seniority: entry.arrival,
            resolution,
        });
        Some(entry)
    }
}
