//! Slots that are taken: by pending calls, and by counted calls.
//!
//! Promises: no slot frees early. A call that is never settled frees by itself at the last instant
//! at which it can matter, so dead processes need no reaper. Large limits use sub-windows, rounded
//! so that slots free late, never early.
//!
//! Never: knows a limit's N. The algorithm compares with N, so a changed N is only another
//! comparison.

use std::collections::{BTreeMap, VecDeque};

use crate::ask::{PermitId, WakeOn};
use crate::limit::room::{CellWait, Grant};
use crate::time::{Micros, Span};

/// A pending call: granted and not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingCall {
    /// Its cost.
    pub(crate) cost: u64,
    /// When it was granted.
    pub(crate) granted: Micros,
    /// When it frees if it is never settled.
    pub(crate) free_at: Micros,
    /// Nobody waits for its response any more, so it frees then and not before.
    pub(crate) is_given_up: bool,
}

impl PendingCall {
    /// A call that was just granted, and frees then if it is never settled.
    pub(crate) fn new(grant: &Grant, free_at: Micros) -> PendingCall {
        PendingCall {
            cost: grant.cost,
            granted: grant.at,
            free_at,
            is_given_up: false,
        }
    }
}

/// Pending calls, by permit.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingCalls {
    by_id: BTreeMap<PermitId, PendingCall>,
    /// 128 bits, because costs come from outside: their sum must not overflow, nor be clipped and
    /// so free early when the calls are removed one by one.
    cost: u128,
    /// No member frees before this; saves the scan when nothing can have lapsed.
    lapse_from: Option<Micros>,
}

/// The same calls. When the first of them frees may be known less well: a call that was replaced counts
/// in it until the next scan.
impl PartialEq for PendingCalls {
    fn eq(&self, other: &PendingCalls) -> bool {
        (&self.by_id, self.cost) == (&other.by_id, other.cost)
    }
}

impl Eq for PendingCalls {}

impl PendingCalls {
    pub(crate) fn add(&mut self, id: PermitId, call: PendingCall) {
        self.cost += u128::from(call.cost);
        self.lapse_from = Some(
            self.lapse_from
                .map_or(call.free_at, |from| from.min(call.free_at)),
        );
        if let Some(old) = self.by_id.insert(id, call) {
            // The same permit twice is an owner's error; the newer one replaces the older.
            self.cost -= u128::from(old.cost);
        }
    }

    pub(crate) fn remove(&mut self, id: PermitId) -> Option<PendingCall> {
        let call = self.by_id.remove(&id)?;
        self.cost -= u128::from(call.cost);
        debug_assert!(
            self.cost == 0 || !self.by_id.is_empty(),
            "nothing pending costs nothing"
        );
        Some(call)
    }

    pub(crate) fn get(&self, id: PermitId) -> Option<&PendingCall> {
        self.by_id.get(&id)
    }

    /// Holds a running call longer.
    pub(crate) fn extend(&mut self, id: PermitId, free_at: Micros) {
        if let Some(call) = self.by_id.get_mut(&id) {
            call.free_at = call.free_at.max(free_at);
            call.is_given_up = false;
        }
    }

    /// This call will not be settled: it frees at `free_at` if not earlier.
    pub(crate) fn give_up(&mut self, id: PermitId, free_at: Micros) {
        if let Some(call) = self.by_id.get_mut(&id) {
            call.free_at = call.free_at.min(free_at);
            call.is_given_up = true;
            self.lapse_from = Some(self.lapse_from.map_or(free_at, |from| from.min(free_at)));
        }
    }

    /// Removes every call whose time has come, oldest permit first.
    pub(crate) fn drain_lapsed(&mut self, now: Micros) -> Vec<PendingCall> {
        if self.lapse_from.is_none_or(|from| from > now) {
            return Vec::new();
        }
        let gone: Vec<PermitId> = self
            .by_id
            .iter()
            .filter(|(_, call)| call.free_at <= now)
            .map(|(id, _)| *id)
            .collect();
        let gone = gone.into_iter().filter_map(|id| self.remove(id)).collect();
        self.lapse_from = self.by_id.values().map(|call| call.free_at).min();
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

    /// Marks a pending call as one whose end is not to come. `false`: there is no such call, or it is
    /// marked already.
    pub(crate) fn mark_given_up(&mut self, id: PermitId) -> bool {
        let call = self.by_id.get_mut(&id);
        call.is_some_and(|call| !std::mem::replace(&mut call.is_given_up, true))
    }

    /// The permits of calls whose end is not to come.
    pub(crate) fn given_up(&self) -> impl Iterator<Item = PermitId> {
        let calls = self.by_id.iter().filter(|(_, call)| call.is_given_up);
        calls.map(|(id, _)| *id)
    }

    /// When the first call frees if none is settled.
    pub(crate) fn first_lapse(&self) -> Option<Micros> {
        self.by_id.values().map(|call| call.free_at).min()
    }

    /// When the last call frees if none is settled.
    pub(crate) fn last_lapse(&self) -> Option<Micros> {
        self.by_id.values().map(|call| call.free_at).max()
    }

    /// May a response, or the news that nothing was sent, free a slot before its last instant?
    pub(crate) fn awaits_end(&self) -> bool {
        let mut calls = self.by_id.values();
        calls.any(|call| !call.is_given_up && call.cost > 0)
    }

    /// Was any member granted at or after `at`?
    pub(crate) fn any_since(&self, at: Micros) -> bool {
        self.by_id.values().any(|call| call.granted >= at)
    }

    fn lengthen(&mut self, by: Span) {
        for call in self.by_id.values_mut() {
            call.free_at += by;
        }
    }
}

/// Slots that free at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DoneSlot {
    pub(crate) free_at: Micros,
    pub(crate) cost: u64,
}

/// All taken slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) pending: PendingCalls,
    /// Sorted by `free_at`.
    pub(crate) done: VecDeque<DoneSlot>,
    /// 128 bits, like the cost of pending calls.
    done_cost: u128,
}

impl Holds {
    /// Rebuilds the sum after the queues were read from a store.
    pub(crate) fn from_parts(pending: PendingCalls, done: VecDeque<DoneSlot>) -> Holds {
        let done_cost = done.iter().map(|slot| u128::from(slot.cost)).sum();
        Holds {
            pending,
            done,
            done_cost,
        }
    }

    /// The cost held now.
    pub(crate) fn held(&self) -> u64 {
        narrow(self.pending.cost + self.done_cost)
    }

    /// Frees slots whose time has come. Returns the cost of calls that lapsed without a settle.
    pub(crate) fn refresh(&mut self, now: Micros) -> u64 {
        // A lapsed call was held for its whole window already: it is simply free.
        let lapsed = sum_of(&self.pending.drain_lapsed(now));
        while self.pop_free(now).is_some() {}
        lapsed
    }

    /// Removes the next slot whose time has come.
    pub(crate) fn pop_free(&mut self, now: Micros) -> Option<DoneSlot> {
        let slot = self.done.pop_front_if(|slot| slot.free_at <= now)?;
        self.done_cost -= u128::from(slot.cost);
        Some(slot)
    }

    /// The call was counted: its slot frees at `free_at`, rounded up to the grain.
    pub(crate) fn settle(&mut self, id: PermitId, cost: u64, free_at: Micros, grain: Span) -> bool {
        let Some(call) = self.pending.remove(id) else {
            return false;
        };
        self.push_done(cost, free_at.min(call.free_at), grain);
        true
    }

    /// Takes a slot that frees at a known time.
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
        // Almost always the last one: responses arrive roughly in the order of the calls.
        let mut index = self.done.len();
        while index > 0 && self.done[index - 1].free_at > free_at {
            index -= 1;
        }
        let same = index.checked_sub(1).map(|last| &mut self.done[last]);
        let same = same.filter(|slot| slot.free_at == free_at);
        match same.and_then(|slot| Some((slot.cost.checked_add(cost)?, slot))) {
            Some((sum, slot)) => slot.cost = sum,
            None => self.done.insert(index, DoneSlot { free_at, cost }),
        }
        debug_assert!(
            self.done
                .iter()
                .rev()
                .take(3)
                .is_sorted_by(|later, earlier| later.free_at >= earlier.free_at),
            "slots are sorted by when they free"
        );
    }

    /// How long until `need` more are free. `need` is at least 1 and at most the held cost.
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
        if !self.pending.awaits_end() {
            return self.wait_for_lapses(need, now);
        }
        // The rest is pending; only a response, or its last instant, frees it.
        let lapse = self
            .pending
            .first_lapse()
            .or(self.done.back().map(|slot| slot.free_at));
        CellWait {
            after: lapse.map_or(Span::ZERO, |at| at.since(now)),
            on: WakeOn::Event,
        }
    }

    /// The same where no end of a call is to come: every slot frees at its time and not before.
    fn wait_for_lapses(&self, need: u64, now: Micros) -> CellWait {
        let mut sum = 0_u64;
        let mut after = Span::ZERO;
        for (free_at, cost) in self.lapse_times() {
            if sum >= need {
                break;
            }
            sum = sum.saturating_add(cost);
            after = free_at.since(now);
        }
        CellWait {
            after,
            on: WakeOn::Time,
        }
    }

    /// When each slot frees, in order, if no pending call is settled.
    pub(crate) fn lapse_times(&self) -> Vec<(Micros, u64)> {
        let pending = self.pending.iter();
        self.in_order(pending.map(|(_, call)| (call.free_at, call.cost)))
    }

    /// When each slot frees, in order, as if pending calls got their response at once.
    pub(crate) fn release_times(&self, hold: Span) -> Vec<(Micros, u64)> {
        let pending = self.pending.iter();
        self.in_order(pending.map(|(_, call)| (call.granted + hold, call.cost)))
    }

    fn in_order(&self, pending: impl Iterator<Item = (Micros, u64)>) -> Vec<(Micros, u64)> {
        let done = self.done.iter().map(|slot| (slot.free_at, slot.cost));
        let mut slots: Vec<(Micros, u64)> = done.chain(pending).collect();
        slots.sort_unstable();
        slots
    }

    /// No counted slot frees before this.
    pub(crate) fn hold_done_until(&mut self, until: Micros) {
        for slot in &mut self.done {
            slot.free_at = slot.free_at.max(until);
        }
    }

    /// Every slot frees later by this.
    pub(crate) fn lengthen(&mut self, by: Span) {
        for slot in &mut self.done {
            slot.free_at += by;
        }
        self.pending.lengthen(by);
    }
}

/// Saturates: no limit is that large.
fn narrow(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// The total cost of these calls.
pub(crate) fn sum_of(calls: &[PendingCall]) -> u64 {
    calls
        .iter()
        .fold(0, |sum, call| sum.saturating_add(call.cost))
}
