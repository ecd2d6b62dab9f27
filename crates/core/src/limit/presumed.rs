//! Calls that count as arrived before their response (`hold_until: arrived`).
//!
//! A request whose bytes the peer has acknowledged meets the limiter by A, `arrive_within` after its
//! last byte or half of that after the acknowledgement was seen. So A takes
//! the place of the response in every proof of this folder, where the response comes later.
//!
//! Promises: exact for uplinks within the bound, and the same as `hold_until: response` wherever
//! responses come sooner. A provider that delays requests before it counts them breaks the
//! assumption; its first 429 that our count did not foresee ends it: for a day this limit holds
//! until the response, and so do the calls that were presumed when it came.
//!
//! Never: grows beyond the calls in flight; a call whose owner died leaves when it can no longer
//! matter. Never presumes for a limit on calls at a time, or for a cost that is known at the end.

use std::collections::BTreeMap;

use crate::ask::PermitId;
use crate::limit::bucket::Bucket;
use crate::limit::cell::{Cell, CellChange, CellState};
use crate::limit::holds::PendingCall;
use crate::limit::in_flight::InFlight;
use crate::limit::room::Settled;
use crate::limit::rule::Rule;
use crate::limit::sliding::Log;
use crate::time::{Micros, Span, TimeBounds};

/// How long a limit holds until the response after the provider has disproved the assumption. A
/// provider that delays requests under load does so again the same day; one that had a bad hour is
/// used fully again tomorrow.
pub const STRICT_FOR: Span = Span::from_secs(86_400);

/// A response that comes this long after its call was granted explains nothing: no call takes so long.
const LONGEST_CALL: Span = Span::from_secs(3_600);

/// The presumed calls of one cell, and what came of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PresumedCalls {
    /// Those without a response, by permit.
    calls: BTreeMap<PermitId, PresumedCall>,
    /// No member is forgotten before this; saves the scan when none can be.
    lapse_from: Option<Micros>,
    /// Until when a response that came later than presumed would still hold a slot.
    pub(super) matters_until: Micros,
    /// Until then nothing is presumed.
    pub(super) strict_until: Micros,
}

/// One presumed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PresumedCall {
    /// The call as it was held before.
    pub(super) call: PendingCall,
    /// When it had arrived, if the assumption is true.
    pub(super) arrived_by: Micros,
}

impl PresumedCalls {
    /// Forgets calls that can no longer matter, because their owner has died, and times that have
    /// passed.
    pub(super) fn refresh(&mut self, now: Micros) {
        if self.lapse_from.is_some_and(|from| from <= now) {
            self.calls.retain(|_, call| call.call.free_at > now);
            self.lapse_from = self.calls.values().map(|call| call.call.free_at).min();
        }
        if now >= self.strict_until {
            self.strict_until = Micros::default();
        }
        if now >= self.matters_until + LONGEST_CALL {
            self.matters_until = Micros::default();
        }
    }

    /// Adds a call. `false`: it is there already.
    pub(super) fn add(&mut self, id: PermitId, presumed: PresumedCall) -> bool {
        let free_at = presumed.call.free_at;
        self.lapse_from = Some(self.lapse_from.map_or(free_at, |from| from.min(free_at)));
        self.calls.insert(id, presumed).is_none()
    }

    fn remove(&mut self, id: PermitId) -> Option<PresumedCall> {
        let presumed = self.calls.remove(&id)?;
        self.lapse_from = self.lapse_from.filter(|_| !self.calls.is_empty());
        Some(presumed)
    }

    pub(super) fn calls(&self) -> &BTreeMap<PermitId, PresumedCall> {
        &self.calls
    }

    pub(super) fn granted_at(&self, id: PermitId) -> Option<Micros> {
        self.calls.get(&id).map(|call| call.call.granted)
    }

    /// The cost of the calls without a response whose slots are free again, `held` after they must
    /// have arrived. The slots of the others are in use.
    fn freed_cost(&self, held: Span, now: Micros) -> u64 {
        let freed = self.calls.values();
        let freed = freed.filter(|call| call.arrived_by + held <= now);
        freed.fold(0, |sum, call| sum.saturating_add(call.call.cost))
    }

    /// Would a call that was granted at `granted` have been rejected without the assumption?
    pub(super) fn explains(&self, granted: Micros, now: Micros) -> bool {
        let is_in_use = !self.calls.is_empty() || self.matters_until > granted;
        is_in_use && now >= self.strict_until
    }

    /// Nothing is disproved. The calls are over when the cell is.
    pub(super) fn is_idle(&self, now: Micros) -> bool {
        now >= self.strict_until
    }

    /// What the provider has disproved under another period stays disproved.
    pub(super) fn inherit(&mut self, old: &PresumedCalls) {
        self.strict_until = self.strict_until.max(old.strict_until);
    }
}

impl Cell {
    /// The call has arrived by `at`, unless its connection is dead.
    pub(crate) fn presume(
        &mut self,
        rule: &Rule,
        id: PermitId,
        at: Micros,
        now: TimeBounds,
    ) -> CellChange {
        let is_strict = now.lo < self.presumed.strict_until;
        let pending = self
            .pending_calls()
            .and_then(|calls| calls.get(id))
            .copied();
        let Some(call) = pending.filter(|_| rule.presumes_arrival() && !is_strict) else {
            return CellChange::default();
        };
        let arrived_by = at;
        let call = PendingCall {
            is_given_up: false,
            ..call
        };
        let presumed = PresumedCall { call, arrived_by };
        self.presumed.add(id, presumed);
        // A response may still say that it was not counted, so it proves no window to be open.
        let settled = Settled {
            id,
            cost: call.cost,
            at,
            proven: false,
        };
        self.settle(rule, settled, now.lo)
    }

    /// The response to a presumed call has come, or it never will.
    pub(crate) fn end_presumption(&mut self, rule: &Rule, settled: Settled) {
        let Some(presumed) = self.presumed.remove(settled.id) else {
            return;
        };
        let until = settled.at + self.held_after_arrival(rule);
        self.presumed.matters_until = self.presumed.matters_until.max(until);
        if let CellState::Fixed(fixed) = &mut self.state
            && settled.proven
        {
            fixed.prove(rule, &presumed.call, presumed.arrived_by);
        }
    }

    /// How long a call holds its slot after it has arrived. A bucket's debt is the same once both have
    /// counted it and neither was full since.
    fn held_after_arrival(&self, rule: &Rule) -> Span {
        rule.lag() + self.tail(rule).max(rule.stretched(rule.period()))
    }

    /// The cost of calls that are presumed to have arrived and hold no slot any more: they may be in
    /// use at the provider only now.
    pub(super) fn presumed_without_slot(&self, rule: &Rule, now: Micros) -> u64 {
        self.presumed.freed_cost(self.held_after_arrival(rule), now)
    }

    /// The provider has counted a call later than presumed: from now on, and for the calls in
    /// flight too, only a response frees a slot.
    pub(super) fn stop_presuming(&mut self, now: Micros) {
        self.presumed.strict_until = now + STRICT_FOR;
        let matters_until = self.presumed.matters_until;
        if let CellState::Log(log) = &mut self.state {
            // Which of the counted slots were freed early is not known any more.
            log.holds.hold_done_until(matters_until);
            log.tightened_at = now;
        }
        self.presumed.lapse_from = None;
        for (id, presumed) in std::mem::take(&mut self.presumed.calls) {
            self.settled = self.settled.wrapping_sub(presumed.call.cost);
            match &mut self.state {
                // A window that began since counts it again: `used` includes what is pending.
                CellState::Fixed(fixed) => fixed.counter.take(id, presumed.call),
                CellState::Calendar(calendar) => calendar.counter.take(id, presumed.call),
                CellState::Log(Log { holds, .. })
                | CellState::InFlight(InFlight { holds })
                | CellState::Bucket(Bucket { holds, .. }) => holds.pending.add(id, presumed.call),
                CellState::Empty => {}
            }
        }
    }
}
