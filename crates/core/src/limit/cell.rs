//! One cell: the history of one limit for one key.
//!
//! Promises: other modules reach an algorithm's state only through here, and it is always brought
//! up to `now` first.
//!
//! Never: more than one cell at a time.

use crate::ask::{CellId, Evidence, Mark, OwnerId, PermitId, Priority, WakeOn};
use crate::learned::LearnedLimit;
use crate::limit::bucket::Bucket;
use crate::limit::calendar::CalendarCount;
use crate::limit::fixed::Fixed;
use crate::limit::holds::PendingCalls;
use crate::limit::in_flight::InFlight;
use crate::limit::presumed::PresumedCalls;
use crate::limit::reported::{OutsideUse, Reported};
use crate::limit::room::{CellRequest, CellWait, Grant, RETRY_INTERVAL, Settled};
use crate::limit::sliding::Log;
use crate::limit::{AMOUNT_MAX, Algorithm, IN_FLIGHT_TAIL, LentShares, Rule, Strictness};
use crate::time::{Micros, Span, TimeBounds};

/// The state of one limit for one key. A new one is empty: nothing used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub(super) state: CellState,
    pub(super) reported: Reported,
    /// Everything ever granted, and the settled part of it. Both wrap: only their growth is
    /// meaningful.
    pub(super) granted: u64,
    pub(super) settled: u64,
    /// When no grant made until now can matter any more.
    pub(super) idle_from: Micros,
    pub(super) pending_wake: PendingWake,
    /// The cell that has taken over this one's usage, because the limit was replaced.
    pub(super) hand_over: Option<HandOver>,
    /// Calls that count as arrived before their response.
    pub(super) presumed: PresumedCalls,
    /// What responses have stated, where the limit is learned from them.
    pub(super) learned: Option<LearnedLimit>,
    /// What nodes without the store may use of it. Not stored: whoever decides knows it.
    pub(super) lent: LentShares,
}

/// How much of a cell another one has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandOver {
    /// The cell that took over.
    pub(super) to: CellId,
    /// Everything granted here at that time.
    pub(super) granted: u64,
    /// Everything granted there at that time, this usage included.
    pub(super) granted_there: u64,
}

/// Has an ask been rejected since the last event?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PendingWake {
    #[default]
    No,
    /// Yes, and a timer wakes them.
    Time,
    /// Yes, and only an event wakes them.
    Event,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum CellState {
    #[default]
    Empty,
    Log(Log),
    Bucket(Bucket),
    Fixed(Fixed),
    Calendar(CalendarCount),
    InFlight(InFlight),
}

/// How a settle changed a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellChange {
    /// A rejected ask may succeed now.
    pub(crate) freed: bool,
}

impl Cell {
    /// Brings the cell up to `now`. Call this before every other method.
    pub(crate) fn refresh(&mut self, rule: &Rule, now: TimeBounds) {
        self.forget_learned(now.lo);
        let rule = &*self.effective(rule);
        self.fit(rule, now.hi);
        self.reported.refresh(now.lo);
        self.presumed.refresh(now.lo);
        let (limit, most) = self.of_bucket(rule, now.lo);
        let lapsed = match (&mut self.state, rule.algorithm()) {
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.refresh(calendar, now.freeing())
            }
            (CellState::Log(log), _) => log.refresh(now.lo),
            (CellState::Bucket(bucket), _) => bucket.refresh(rule, limit, most, now.lo),
            (CellState::Fixed(fixed), _) => fixed.refresh(rule, now.lo),
            (CellState::InFlight(in_flight), _) => in_flight.refresh(now.lo),
            (CellState::Empty | CellState::Calendar(_), _) => 0,
        };
        self.settled = self.settled.wrapping_add(lapsed);
    }

    /// The current N and the most that a call may cost, for a bucket; zeros for others, which look at neither
    /// here.
    fn of_bucket(&self, rule: &Rule, now: Micros) -> (u64, u64) {
        match self.state {
            CellState::Bucket(_) => (self.limit(rule, now), self.max_cost(rule, now)),
            CellState::Empty
            | CellState::Calendar(_)
            | CellState::Log(_)
            | CellState::Fixed(_)
            | CellState::InFlight(_) => (0, 0),
        }
    }

    /// Records which N an owner uses: during a rolling reload the smallest one applies.
    pub(crate) fn set_owner_limit(&mut self, owner: OwnerId, rule: &Rule, now: TimeBounds) {
        let rule = &*self.effective(rule);
        if !rule.is_learned() {
            self.reported.set_owner_limit(owner, rule.limit(), now.hi);
        }
        let (limit, most) = self.of_bucket(rule, now.lo);
        if let CellState::Bucket(bucket) = &mut self.state {
            bucket.set_rate(rule, limit, most, now.lo);
        }
    }

    /// So much of it is used by nodes that may have lost the store. Until the next call.
    pub(crate) fn lend(&mut self, lent: LentShares) {
        self.lent = lent;
    }

    /// Is there room for this cost without using the reserve?
    pub(crate) fn room(
        &mut self,
        rule: &Rule,
        cost: u64,
        leave: u64,
        priority: Priority,
        now: TimeBounds,
    ) -> Result<(), (Span, WakeOn)> {
        let rule = &*self.effective(rule);
        if priority == Priority::High
            && let CellState::Log(log) = &mut self.state
        {
            log.note_urgent(now.hi);
        }
        let verdict = self.check_room(rule, cost, leave, priority, now.lo);
        // When lent shares come back is not known here.
        let verdict = verdict.map_err(|wait| match self.lent == LentShares::default() {
            true => wait,
            false => CellWait {
                after: Span(wait.after.0.min(RETRY_INTERVAL.0)),
                ..wait
            },
        });
        if let Err(wait) = verdict {
            self.pending_wake = match (wait.on, self.pending_wake) {
                (WakeOn::Event | WakeOn::Release, _) | (_, PendingWake::Event) => {
                    PendingWake::Event
                }
                (WakeOn::Time, PendingWake::No | PendingWake::Time) => PendingWake::Time,
            };
        }
        verdict.map_err(|wait| (wait.after, wait.on))
    }

    /// What was granted so far, in the unit of the limit.
    #[cfg(debug_assertions)]
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Takes what [`Cell::room`] has found free.
    pub(crate) fn take(
        &mut self,
        rule: &Rule,
        cost: u64,
        id: PermitId,
        evidence: Evidence,
        now: TimeBounds,
    ) -> Mark {
        debug_assert!(cost <= AMOUNT_MAX, "a cost of {cost}");
        let rule = &*self.effective(rule);
        let grant = Grant {
            id,
            cost,
            limit: self.limit(rule, now.lo),
            at: now.lo,
            latest: now.hi,
            arrives_by: now.hi + evidence.latest_arrival(),
        };
        self.granted = self.granted.wrapping_add(cost);
        self.idle_from = self.idle_from.max(grant.arrives_by + rule.longest_hold());
        match (&mut self.state, rule.algorithm()) {
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.take(rule, calendar, grant);
            }
            (CellState::Log(log), _) => log.take(rule, grant),
            (CellState::Bucket(bucket), _) => bucket.take(rule, grant),
            (CellState::Fixed(fixed), _) => fixed.take(rule, grant),
            (CellState::InFlight(in_flight), _) => in_flight.take(grant),
            (CellState::Empty | CellState::Calendar(_), _) => {}
        }
        let used = self.used(rule, now.lo);
        // What `room` promised: the count is within N after every grant. A limit in shadow grants
        // without room, and a cost of zero fits an overdrawn limit.
        debug_assert!(
            rule.is_shadow() || cost == 0 || used <= self.max_cost(rule, now.lo),
            "{used} are used of {rule:?}"
        );
        let remaining = self.max_cost(rule, now.lo).saturating_sub(used);
        Mark {
            granted: self.granted,
            settled: self.settled,
            used,
            remaining: remaining.saturating_sub(self.reported.outside_use(now.lo)),
        }
    }

    /// The outcome of a call is known: when it was counted, and at which cost.
    pub(crate) fn settle(&mut self, rule: &Rule, settled: Settled, now: Micros) -> CellChange {
        debug_assert!(settled.cost <= AMOUNT_MAX, "a cost of {}", settled.cost);
        let settled = Settled {
            cost: self.believed_cost(rule, settled.cost),
            ..settled
        };
        let rule = &*self.effective(rule);
        let limit = self.limit(rule, now);
        let before = self.pending_call(settled.id);
        let known = match (&mut self.state, rule.algorithm()) {
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.settle(rule, calendar, settled)
            }
            (CellState::Log(log), _) => log.settle(rule, settled, limit),
            (CellState::Bucket(bucket), _) => bucket.settle(rule, settled),
            (CellState::Fixed(fixed), _) => fixed.settle(rule, settled),
            (CellState::InFlight(in_flight), _) => in_flight.settle(settled.id, settled.at),
            (CellState::Empty | CellState::Calendar(_), _) => false,
        };
        let Some((held, _)) = before.filter(|_| known) else {
            return CellChange::default();
        };
        let cost = settled.cost;
        self.granted = self.granted.wrapping_add(cost).wrapping_sub(held);
        self.settled = self.settled.wrapping_add(cost);
        self.freed(cost < held)
    }

    /// No byte of the call was sent: as if it had never been granted.
    pub(crate) fn undo(&mut self, rule: &Rule, id: PermitId) -> CellChange {
        let Some((held, _)) = self.pending_call(id) else {
            return CellChange::default();
        };
        match &mut self.state {
            CellState::Log(Log { holds, .. })
            | CellState::InFlight(InFlight { holds })
            | CellState::Bucket(Bucket { holds, .. }) => {
                holds.pending.remove(id);
            }
            CellState::Fixed(fixed) => {
                fixed.undo(rule, id);
            }
            CellState::Calendar(count) => {
                count.undo(id);
            }
            CellState::Empty => {}
        }
        self.granted = self.granted.wrapping_sub(held);
        self.freed(true)
    }

    /// The call is still running: hold it longer.
    pub(crate) fn extend(&mut self, rule: &Rule, id: PermitId, until: Micros) {
        let rule = &*self.effective(rule);
        self.idle_from = self.idle_from.max(until + rule.longest_hold());
        let tail = self.tail(rule);
        if let Some(calls) = self.state.pending_calls_mut() {
            calls.extend(id, until + tail);
        }
    }

    /// The call was abandoned; it may still arrive until then.
    pub(crate) fn give_up(&mut self, rule: &Rule, id: PermitId, until: Micros) -> CellChange {
        let tail = self.tail(rule) + rule.lag();
        let known = self.pending_call(id).is_some();
        if let Some(calls) = self.state.pending_calls_mut() {
            calls.give_up(id, until + tail);
        }
        // Waiters learn the new time by asking again.
        if known {
            self.freed(true)
        } else {
            CellChange::default()
        }
    }

    /// The cost of a pending call, and when it was granted.
    pub(crate) fn pending_call(&self, id: PermitId) -> Option<(u64, Micros)> {
        let call = self.pending_calls()?.get(id)?;
        Some((call.cost, call.granted))
    }

    /// A response to one of its calls may still come.
    fn awaits_response(&self) -> bool {
        let pending = self.pending_calls();
        pending.is_some_and(PendingCalls::awaits_end) || !self.presumed.calls().is_empty()
    }

    /// When a call was granted that is pending, or that was presumed to have arrived.
    pub(crate) fn granted_at(&self, id: PermitId) -> Option<Micros> {
        let pending = self.pending_call(id).map(|(_, granted)| granted);
        pending.or_else(|| self.presumed.granted_at(id))
    }

    pub(super) fn pending_calls(&self) -> Option<&PendingCalls> {
        match &self.state {
            CellState::Log(Log { holds, .. })
            | CellState::InFlight(InFlight { holds })
            | CellState::Bucket(Bucket { holds, .. }) => Some(&holds.pending),
            CellState::Fixed(fixed) => Some(&fixed.counter.pending),
            CellState::Calendar(count) => Some(&count.counter.pending),
            CellState::Empty => None,
        }
    }

    /// How long a pending call still occupies this cell after its last instant.
    pub(super) fn tail(&self, rule: &Rule) -> Span {
        match &self.state {
            CellState::Log(log) => log.hold(rule),
            CellState::InFlight(_) => IN_FLIGHT_TAIL,
            CellState::Bucket(_)
            | CellState::Fixed(_)
            | CellState::Calendar(_)
            | CellState::Empty => Span::ZERO,
        }
    }

    /// Nothing in it matters any more: removing it changes no decision.
    #[must_use]
    pub fn is_idle(&self, now: Micros) -> bool {
        let over = match &self.state {
            CellState::Log(log) => log.strictness == Strictness::Window,
            // Actual costs may exceed the held ones, each by up to the depth: no period bounds the debt.
            CellState::Bucket(bucket) => bucket.debt_at(now) == 0,
            CellState::Empty
            | CellState::Fixed(_)
            | CellState::Calendar(_)
            | CellState::InFlight(_) => true,
        };
        let forgotten = self.learned.is_none_or(|known| known.is_forgotten(now));
        over && forgotten
            && now >= self.idle_from
            && self.reported.is_idle(now)
            && self.presumed.is_idle(now)
    }

    fn check_room(
        &self,
        rule: &Rule,
        cost: u64,
        leave: u64,
        priority: Priority,
        now: Micros,
    ) -> Result<(), CellWait> {
        if cost == 0 {
            // A cost of 0 always fits, even where a lowered limit is overdrawn.
            return Ok(());
        }
        self.check_alone(rule, now)?;
        let limit = self.limit(rule, now);
        let room = self.max_cost(rule, now).saturating_sub(leave);
        let outside = self.reported.outside_use(now);
        let want = CellRequest {
            cost,
            priority,
            room,
            limit,
        };
        self.fits(rule, want, now)?;
        if outside == 0 {
            return Ok(());
        }
        let want = CellRequest {
            room: room.saturating_sub(outside),
            ..want
        };
        self.fits(rule, want, now).map_err(|wait| {
            // Without use outside Tollgate it would go. It is free when our calls or the outside
            // use expire, whichever is first, unless the next response says that the outside use is
            // gone. Where none is to come, as in a cell that was lost, the time is known.
            let theirs = self.reported.outside_until().since(now);
            let on = match self.awaits_response() {
                true => WakeOn::Event,
                false => WakeOn::Time,
            };
            CellWait {
                after: Span(theirs.0.min(wait.after.0)),
                on,
            }
        })
    }

    fn fits(&self, rule: &Rule, want: CellRequest, now: Micros) -> Result<(), CellWait> {
        match (&self.state, rule.algorithm()) {
            (CellState::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.room(calendar, want, now)
            }
            (CellState::Log(log), _) => log.room(rule, want, now),
            (CellState::Bucket(bucket), _) => bucket.room(rule, want, now),
            (CellState::Fixed(fixed), _) => fixed.room(rule, want, now),
            (CellState::InFlight(in_flight), _) => in_flight.room(want, now),
            (CellState::Empty | CellState::Calendar(_), _) => Ok(()),
        }
    }

    /// The current N.
    pub(super) fn limit(&self, rule: &Rule, now: Micros) -> u64 {
        self.shared_limit(rule, now).saturating_sub(self.lent.limit)
    }

    /// The same with what is lent.
    fn shared_limit(&self, rule: &Rule, now: Micros) -> u64 {
        let limit = self.reported.limit(rule.limit(), now);
        debug_assert!(limit <= rule.limit(), "nothing reported raises a limit");
        limit
    }

    /// The most that can be taken at once: the current N, or the depth of a bucket.
    pub(super) fn max_cost(&self, rule: &Rule, now: Micros) -> u64 {
        let limit = self.shared_limit(rule, now);
        let most = if limit < rule.limit() {
            rule.max_cost().min(limit)
        } else {
            rule.max_cost()
        };
        most.saturating_sub(self.lent.depth)
    }

    pub(super) fn used(&self, rule: &Rule, now: Micros) -> u64 {
        match &self.state {
            CellState::Empty => 0,
            CellState::Log(Log { holds, .. }) | CellState::InFlight(InFlight { holds }) => {
                holds.held()
            }
            // Where no number is stated, only what is held is known.
            CellState::Bucket(bucket) if rule.is_learned() && rule.limit() == AMOUNT_MAX => {
                bucket.holds.held()
            }
            CellState::Bucket(bucket) => {
                rule.max_cost() - bucket.remaining(rule, rule.max_cost(), now)
            }
            CellState::Fixed(fixed) => fixed.counter.used,
            CellState::Calendar(count) => count.counter.used,
        }
    }

    pub(super) fn remaining(&self, rule: &Rule, now: Micros) -> u64 {
        self.max_cost(rule, now)
            .saturating_sub(self.used(rule, now))
    }

    pub(super) fn freed(&mut self, by_more: bool) -> CellChange {
        let freed = match self.pending_wake {
            PendingWake::No => false,
            PendingWake::Time => by_more,
            PendingWake::Event => true,
        };
        if freed {
            self.pending_wake = PendingWake::No;
        }
        CellChange { freed }
    }

    /// Gives an empty cell the state of its rule's algorithm. A cell of another algorithm can only
    /// come from a damaged store; it is closed for one window rather than treated as empty.
    fn fit(&mut self, rule: &Rule, now: Micros) {
        let fits = match (&self.state, rule.algorithm()) {
            (CellState::Log(_), Algorithm::Sliding { .. } | Algorithm::Paced { .. })
            | (CellState::Bucket(_), Algorithm::Bucket { .. })
            | (CellState::Fixed(_), Algorithm::Fixed { .. })
            | (CellState::Calendar(_), Algorithm::Calendar(_))
            | (CellState::InFlight(_), Algorithm::InFlight) => true,
            (
                CellState::Empty
                | CellState::Log(_)
                | CellState::Bucket(_)
                | CellState::Fixed(_)
                | CellState::Calendar(_)
                | CellState::InFlight(_),
                _,
            ) => false,
        };
        if fits {
            return;
        }
        if self.state != CellState::Empty {
            let outside = OutsideUse {
                cost: rule.max_cost(),
                until: now + rule.stretched(rule.period()),
            };
            self.reported.close(outside);
        }
        self.state = CellState::for_rule(rule);
    }
}

impl CellState {
    pub(super) fn pending_calls_mut(&mut self) -> Option<&mut PendingCalls> {
        match self {
            CellState::Log(Log { holds, .. })
            | CellState::InFlight(InFlight { holds })
            | CellState::Bucket(Bucket { holds, .. }) => Some(&mut holds.pending),
            CellState::Fixed(fixed) => Some(&mut fixed.counter.pending),
            CellState::Calendar(count) => Some(&mut count.counter.pending),
            CellState::Empty => None,
        }
    }

    fn for_rule(rule: &Rule) -> CellState {
        match rule.algorithm() {
            Algorithm::Sliding { .. } | Algorithm::Paced { .. } => CellState::Log(Log::default()),
            Algorithm::Bucket { .. } => CellState::Bucket(Bucket::default()),
            Algorithm::Fixed { .. } => CellState::Fixed(Fixed::default()),
            Algorithm::Calendar(_) => CellState::Calendar(CalendarCount::default()),
            Algorithm::InFlight => CellState::InFlight(InFlight::default()),
        }
    }
}
