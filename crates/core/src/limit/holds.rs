//! Slots that are taken: by calls still on their way, and by calls that were counted.
//!
//! Promises: nothing is given back before its time; a call that is never settled comes back by
//! itself at the last instant at which it can still have mattered, so no reaper is needed for dead
//! processes. Large limits keep sub-windows, rounded so that slots come back late, never early.
//!
//! Never: knows a limit's N. Comparing with N is the algorithm's business, so a changed N is only
//! another comparison.

use std::collections::{BTreeMap, VecDeque};

use crate::ask::{PermitId, WakeOn};
use crate::limit::room::CellWait;
use crate::time::{Micros, Span};

/// A call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingCall {
    /// What it takes.
    pub(crate) cost: u64,
    /// When it was granted.
    pub(crate) granted: Micros,
    /// When it comes back if nothing is ever heard of it.
    pub(crate) free_at: Micros,
}

/// Calls on their way, by permit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingCalls {
    by_id: BTreeMap<PermitId, PendingCall>,
    /// Wide, because costs are told from outside: no sum of them may overflow, nor be clipped and so
    /// come free early when they leave one by one.
    cost: u128,
    /// No member comes back before this; saves the walk when nothing can have lapsed.
    lapse_from: Option<Micros>,
}

impl PendingCalls {
    pub(crate) fn add(&mut self, id: PermitId, open: PendingCall) {
        self.cost += u128::from(open.cost);
        self.lapse_from = Some(
            self.lapse_from
                .map_or(open.free_at, |from| from.min(open.free_at)),
        );
        if let Some(old) = self.by_id.insert(id, open) {
            // The same permit twice is an owner's mistake; the newer one stands.
            self.cost -= u128::from(old.cost);
        }
    }

    pub(crate) fn remove(&mut self, id: PermitId) -> Option<PendingCall> {
        let open = self.by_id.remove(&id)?;
        self.cost -= u128::from(open.cost);
        Some(open)
    }

    pub(crate) fn get(&self, id: PermitId) -> Option<&PendingCall> {
        self.by_id.get(&id)
    }

    /// Holds a member for longer: it is alive.
    pub(crate) fn extend(&mut self, id: PermitId, free_at: Micros) {
        if let Some(open) = self.by_id.get_mut(&id) {
            open.free_at = open.free_at.max(free_at);
        }
    }

    /// Nothing more will be heard of this member: it comes back at `free_at` if not earlier.
    pub(crate) fn shorten(&mut self, id: PermitId, free_at: Micros) {
        if let Some(open) = self.by_id.get_mut(&id) {
            open.free_at = open.free_at.min(free_at);
            self.lapse_from = Some(self.lapse_from.map_or(free_at, |from| from.min(free_at)));
        }
    }

    /// Takes out every member whose time has come, oldest permit first.
    pub(crate) fn drain_lapsed(&mut self, now: Micros) -> Vec<PendingCall> {
        if self.lapse_from.is_none_or(|from| from > now) {
            return Vec::new();
        }
        let gone: Vec<PermitId> = self
            .by_id
            .iter()
            .filter(|(_, open)| open.free_at <= now)
            .map(|(id, _)| *id)
            .collect();
        let gone = gone.into_iter().filter_map(|id| self.remove(id)).collect();
        self.lapse_from = self.by_id.values().map(|open| open.free_at).min();
        gone
    }

    pub(crate) fn cost(&self) -> u64 {
        narrow(self.cost)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&PermitId, &PendingCall)> {
        self.by_id.iter()
    }

    /// When the first member comes back if nothing is heard of any.
    pub(crate) fn first_lapse(&self) -> Option<Micros> {
        self.by_id.values().map(|open| open.free_at).min()
    }

    /// Was any member granted at or after `at`?
    pub(crate) fn any_since(&self, at: Micros) -> bool {
        self.by_id.values().any(|open| open.granted >= at)
    }

    fn lengthen(&mut self, by: Span) {
        for open in self.by_id.values_mut() {
            open.free_at += by;
        }
    }
}

/// Slots that come back at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DoneSlot {
    pub(crate) free_at: Micros,
    pub(crate) cost: u64,
}

/// Everything that is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) pending: PendingCalls,
    /// Sorted by `free_at`.
    pub(crate) done: VecDeque<DoneSlot>,
    /// Wide as that of the calls on their way.
    done_cost: u128,
}

impl Holds {
    /// Rebuilds the sum after the queues were read from a store.
    pub(crate) fn from_parts(open: PendingCalls, done: VecDeque<DoneSlot>) -> Holds {
        let done_cost = done.iter().map(|slot| u128::from(slot.cost)).sum();
        Holds {
            pending: open,
            done,
            done_cost,
        }
    }

    /// What is taken now.
    pub(crate) fn held(&self) -> u64 {
        narrow(self.pending.cost + self.done_cost)
    }

    /// Gives back what has come free by itself. Returns what lapsed without a word.
    pub(crate) fn refresh(&mut self, now: Micros) -> u64 {
        // A lapsed call was held for its whole window already: it is simply free.
        let lapsed = sum_of(&self.pending.drain_lapsed(now));
        while self.pop_free(now).is_some() {}
        lapsed
    }

    /// Takes out the next slot that has come free by itself.
    pub(crate) fn pop_free(&mut self, now: Micros) -> Option<DoneSlot> {
        let slot = self.done.pop_front_if(|slot| slot.free_at <= now)?;
        self.done_cost -= u128::from(slot.cost);
        Some(slot)
    }

    /// The call was counted: its slot comes back at `free_at`, rounded up to the grain.
    pub(crate) fn settle(&mut self, id: PermitId, cost: u64, free_at: Micros, grain: Span) -> bool {
        let Some(open) = self.pending.remove(id) else {
            return false;
        };
        self.push_done(cost, free_at.min(open.free_at), grain);
        true
    }

    /// Takes a slot that comes back at a known time.
    pub(crate) fn push_done(&mut self, cost: u64, free_at: Micros, grain: Span) {
        if cost == 0 {
            return;
        }
        let free_at = Micros(
            free_at
                .0
                .div_ceil(grain.0.max(1))
                .saturating_mul(grain.0.max(1)),
        );
        self.done_cost += u128::from(cost);
        // Almost always the last one: answers come roughly in the order of the calls.
        let mut place = self.done.len();
        while place > 0 && self.done[place - 1].free_at > free_at {
            place -= 1;
        }
        let same = place.checked_sub(1).map(|last| &mut self.done[last]);
        let same = same.filter(|slot| slot.free_at == free_at);
        match same.and_then(|slot| Some((slot.cost.checked_add(cost)?, slot))) {
            Some((sum, slot)) => slot.cost = sum,
            None => self.done.insert(place, DoneSlot { free_at, cost }),
        }
    }

    /// When `need` more will have come back. `need` is at least 1 and at most what is held.
    pub(crate) fn wait_for(&self, need: u64, now: Micros) -> CellWait {
        let mut sum = 0_u64;
        for slot in &self.done {
            sum = sum.saturating_add(slot.cost);
            if sum >= need {
                return CellWait {
                    after: slot.free_at.since(now),
                    on: WakeOn::Time,
                };
            }
        }
        // The rest is on its way; only an answer, or its last instant, frees it.
        let lapse = self
            .pending
            .first_lapse()
            .or(self.done.back().map(|slot| slot.free_at));
        CellWait {
            after: lapse.map_or(Span::ZERO, |at| at.since(now)),
            on: WakeOn::Event,
        }
    }

    /// When each slot comes back, in order, counting a call on its way as answered at once.
    pub(crate) fn release_times(&self, hold: Span) -> Vec<(Micros, u64)> {
        let done = self.done.iter().map(|slot| (slot.free_at, slot.cost));
        let open = self.pending.iter();
        let open = open.map(|(_, open)| (open.granted + hold, open.cost));
        let mut slots: Vec<(Micros, u64)> = done.chain(open).collect();
        slots.sort_unstable();
        slots
    }

    /// Everything comes back later by this.
    pub(crate) fn lengthen(&mut self, by: Span) {
        for slot in &mut self.done {
            slot.free_at += by;
        }
        self.pending.lengthen(by);
    }
}

/// More than any limit has is enough to know.
fn narrow(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// What these calls took together.
pub(crate) fn sum_of(calls: &[PendingCall]) -> u64 {
    calls
        .iter()
        .fold(0, |sum, open| sum.saturating_add(open.cost))
}
