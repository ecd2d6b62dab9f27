//! One cell: what has happened under one limit for one key.
//!
//! Promises: an algorithm's state is reached only through here, and always brought up to now first.
//!
//! Never: more than one cell at a time.

use crate::ask::{CellId, Evidence, Mark, On, OwnerId, PermitId, Priority};
use crate::limit::bucket::Bucket;
use crate::limit::calendar::Count;
use crate::limit::fixed::Fixed;
use crate::limit::holds::OpenSet;
use crate::limit::in_flight::InFlight;
use crate::limit::room::{Grant, Settled, Wait, Want};
use crate::limit::sliding::Log;
use crate::limit::told::{Taken, Told};
use crate::limit::{Algorithm, IN_FLIGHT_TAIL, Rule, Rung};
use crate::time::{Micros, Now, Span};

/// The state of one limit for one key. A new one is empty: nothing used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub(super) state: State,
    pub(super) told: Told,
    /// Everything ever granted, and the part of it that was settled. Both wrap: only their growth
    /// means anything.
    pub(super) granted: u64,
    pub(super) settled: u64,
    /// When nothing of what was granted so far can matter any more.
    pub(super) idle_from: Micros,
    pub(super) wanted: Wanted,
    /// Who has taken over what is counted here, because the limit was configured anew.
    pub(super) passed: Option<Passed>,
}

/// How much of a cell another one has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// The heir.
    pub(super) to: CellId,
    /// Everything granted here until then.
    pub(super) granted: u64,
    /// Everything granted there until then, this included.
    pub(super) theirs: u64,
}

/// Has somebody been refused since the last event?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wanted {
    #[default]
    No,
    /// Yes, and a timer wakes them.
    Time,
    /// Yes, and only an event wakes them.
    Event,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Empty,
    Log(Log),
    Bucket(Bucket),
    Fixed(Fixed),
    Calendar(Count),
    InFlight(InFlight),
}

/// How a settle changed a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// Somebody who was refused may be lucky now.
    pub(crate) freed: bool,
}

impl Cell {
    /// Brings the cell up to `now`. Every other call expects this first.
    pub(crate) fn refresh(&mut self, rule: &Rule, now: Now) {
        self.fit(rule, now.at);
        self.told.refresh(now.at);
        let (limit, most) = (self.limit(rule, now.at), self.most(rule, now.at));
        let lapsed = match (&mut self.state, rule.algorithm()) {
            (State::Calendar(count), Algorithm::Calendar(calendar)) => count.refresh(calendar, now),
            (State::Log(log), _) => log.refresh(now.at),
            (State::Bucket(bucket), _) => bucket.refresh(rule, limit, most, now.at),
            (State::Fixed(fixed), _) => fixed.refresh(rule, now.at),
            (State::InFlight(in_flight), _) => in_flight.refresh(now.at),
            (State::Empty | State::Calendar(_), _) => 0,
        };
        self.settled = self.settled.wrapping_add(lapsed);
    }

    /// Notes which N an owner works with: during a rolling reload the smallest one holds.
    pub(crate) fn publish(&mut self, owner: OwnerId, rule: &Rule, now: Micros) {
        self.told.publish(owner, rule.limit(), now);
        let (limit, most) = (self.limit(rule, now), self.most(rule, now));
        if let State::Bucket(bucket) = &mut self.state {
            bucket.follow(rule, limit, most, now);
        }
    }

    /// Is there room for this, leaving that much to others?
    pub(crate) fn room(
        &mut self,
        rule: &Rule,
        cost: u64,
        leave: u64,
        priority: Priority,
        now: Now,
    ) -> Result<(), (Span, On)> {
        if priority == Priority::High
            && let State::Log(log) = &mut self.state
        {
            log.note_urgent(now.at);
        }
        let verdict = self.ask(rule, cost, leave, priority, now.at);
        if let Err(wait) = verdict {
            self.wanted = match (wait.on, self.wanted) {
                (On::Event, _) | (_, Wanted::Event) => Wanted::Event,
                (On::Time, Wanted::No | Wanted::Time) => Wanted::Time,
            };
        }
        verdict.map_err(|wait| (wait.after, wait.on))
    }

    /// Takes what [`Cell::room`] has said is there.
    pub(crate) fn take(
        &mut self,
        rule: &Rule,
        cost: u64,
        id: PermitId,
        evidence: Evidence,
        now: Now,
    ) -> Mark {
        let grant = Grant {
            id,
            cost,
            limit: self.limit(rule, now.at),
            at: now.at,
            arrives_by: now.at + evidence.longest(),
        };
        self.granted = self.granted.wrapping_add(cost);
        self.idle_from = self.idle_from.max(grant.arrives_by + rule.longest_hold());
        match (&mut self.state, rule.algorithm()) {
            (State::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.take(rule, calendar, grant);
            }
            (State::Log(log), _) => log.take(rule, grant),
            (State::Bucket(bucket), _) => bucket.take(rule, grant),
            (State::Fixed(fixed), _) => fixed.take(rule, grant),
            (State::InFlight(in_flight), _) => in_flight.take(grant),
            (State::Empty | State::Calendar(_), _) => {}
        }
        let used = self.used(rule, now.at);
        let left = self.most(rule, now.at).saturating_sub(used);
        Mark {
            granted: self.granted,
            settled: self.settled,
            used,
            left: left.saturating_sub(self.told.taken(now.at)),
        }
    }

    /// What became of a call is known: when it was counted, and at which cost.
    pub(crate) fn settle(&mut self, rule: &Rule, settled: Settled, now: Micros) -> Change {
        let limit = self.limit(rule, now);
        let before = self.open(settled.id);
        let known = match (&mut self.state, rule.algorithm()) {
            (State::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.settle(rule, calendar, settled)
            }
            (State::Log(log), _) => log.settle(rule, settled, limit),
            (State::Bucket(bucket), _) => bucket.settle(rule, settled),
            (State::Fixed(fixed), _) => fixed.settle(rule, settled),
            (State::InFlight(in_flight), _) => in_flight.settle(settled.id, settled.at),
            (State::Empty | State::Calendar(_), _) => false,
        };
        let Some((held, _)) = before.filter(|_| known) else {
            return Change::default();
        };
        let cost = settled.cost;
        self.granted = self.granted.wrapping_add(cost).wrapping_sub(held);
        self.settled = self.settled.wrapping_add(cost);
        self.freed(cost < held)
    }

    /// No byte of the call left: as if it had never been granted.
    pub(crate) fn undo(&mut self, rule: &Rule, id: PermitId) -> Change {
        let Some((held, _)) = self.open(id) else {
            return Change::default();
        };
        match &mut self.state {
            State::Log(Log { holds, .. })
            | State::InFlight(InFlight { holds })
            | State::Bucket(Bucket { holds, .. }) => {
                holds.open.remove(id);
            }
            State::Fixed(fixed) => {
                fixed.undo(rule, id);
            }
            State::Calendar(count) => {
                count.undo(id);
            }
            State::Empty => {}
        }
        self.granted = self.granted.wrapping_sub(held);
        self.freed(true)
    }

    /// The call still runs: hold it for longer.
    pub(crate) fn extend(&mut self, rule: &Rule, id: PermitId, until: Micros) {
        self.idle_from = self.idle_from.max(until + rule.longest_hold());
        let tail = self.tail(rule);
        if let Some(open) = self.open_set_mut() {
            open.extend(id, until + tail);
        }
    }

    /// The call was given up; it may still arrive until then.
    pub(crate) fn give_up(&mut self, rule: &Rule, id: PermitId, until: Micros) -> Change {
        let tail = self.tail(rule) + rule.lag();
        let known = self.open(id).is_some();
        if let Some(open) = self.open_set_mut() {
            open.shorten(id, until + tail);
        }
        // Those who wait learn the new time by asking again.
        if known {
            self.freed(true)
        } else {
            Change::default()
        }
    }

    /// When a call on its way was granted, and what it holds.
    pub(crate) fn open(&self, id: PermitId) -> Option<(u64, Micros)> {
        let open = self.open_set()?.get(id)?;
        Some((open.cost, open.granted))
    }

    pub(super) fn open_set(&self) -> Option<&OpenSet> {
        match &self.state {
            State::Log(Log { holds, .. })
            | State::InFlight(InFlight { holds })
            | State::Bucket(Bucket { holds, .. }) => Some(&holds.open),
            State::Fixed(fixed) => Some(&fixed.phase.open),
            State::Calendar(count) => Some(&count.phase.open),
            State::Empty => None,
        }
    }

    fn open_set_mut(&mut self) -> Option<&mut OpenSet> {
        match &mut self.state {
            State::Log(Log { holds, .. })
            | State::InFlight(InFlight { holds })
            | State::Bucket(Bucket { holds, .. }) => Some(&mut holds.open),
            State::Fixed(fixed) => Some(&mut fixed.phase.open),
            State::Calendar(count) => Some(&mut count.phase.open),
            State::Empty => None,
        }
    }

    /// How long after its last instant a call on its way still takes its place here.
    pub(super) fn tail(&self, rule: &Rule) -> Span {
        match &self.state {
            State::Log(log) => log.hold(rule),
            State::InFlight(_) => IN_FLIGHT_TAIL,
            State::Bucket(_) | State::Fixed(_) | State::Calendar(_) | State::Empty => Span::ZERO,
        }
    }

    /// Nothing in it matters any more: forgetting it changes no answer.
    #[must_use]
    pub fn is_idle(&self, now: Micros) -> bool {
        let over = match &self.state {
            State::Log(log) => log.rung == Rung::Window,
            // True costs may be above what was held, and then no period bounds the debt.
            State::Bucket(bucket) => bucket.debt_at(now) == 0,
            State::Empty | State::Fixed(_) | State::Calendar(_) | State::InFlight(_) => true,
        };
        over && now >= self.idle_from && self.told.is_idle(now)
    }

    fn ask(
        &self,
        rule: &Rule,
        cost: u64,
        leave: u64,
        priority: Priority,
        now: Micros,
    ) -> Result<(), Wait> {
        if cost == 0 {
            // Nothing always fits, even where a lowered limit is overdrawn.
            return Ok(());
        }
        let limit = self.limit(rule, now);
        let room = self.most(rule, now).saturating_sub(leave);
        let taken = self.told.taken(now);
        let want = Want {
            cost,
            priority,
            room,
            limit,
        };
        self.fits(rule, want, now)?;
        if taken == 0 {
            return Ok(());
        }
        let want = Want {
            room: room.saturating_sub(taken),
            ..want
        };
        self.fits(rule, want, now).map_err(|wait| {
            // Without the strangers it would go: whichever frees first, ours or theirs, unless
            // the next answer says that they are gone.
            let theirs = self.told.taken_until().since(now);
            Wait {
                after: Span(theirs.0.min(wait.after.0)),
                on: On::Event,
            }
        })
    }

    fn fits(&self, rule: &Rule, want: Want, now: Micros) -> Result<(), Wait> {
        match (&self.state, rule.algorithm()) {
            (State::Calendar(count), Algorithm::Calendar(calendar)) => {
                count.room(calendar, want, now)
            }
            (State::Log(log), _) => log.room(rule, want, now),
            (State::Bucket(bucket), _) => bucket.room(rule, want, now),
            (State::Fixed(fixed), _) => fixed.room(rule, want, now),
            (State::InFlight(in_flight), _) => in_flight.room(want, now),
            (State::Empty | State::Calendar(_), _) => Ok(()),
        }
    }

    /// N as it is in force.
    pub(super) fn limit(&self, rule: &Rule, now: Micros) -> u64 {
        self.told.limit(rule.limit(), now)
    }

    /// The most that can be taken at once: N in force, or the depth of a bucket.
    fn most(&self, rule: &Rule, now: Micros) -> u64 {
        let limit = self.limit(rule, now);
        if limit < rule.limit() {
            rule.most().min(limit)
        } else {
            rule.most()
        }
    }

    pub(super) fn used(&self, rule: &Rule, now: Micros) -> u64 {
        match &self.state {
            State::Empty => 0,
            State::Log(Log { holds, .. }) | State::InFlight(InFlight { holds }) => holds.held(),
            State::Bucket(bucket) => rule.most() - bucket.left(rule, rule.most(), now),
            State::Fixed(fixed) => fixed.phase.used,
            State::Calendar(count) => count.phase.used,
        }
    }

    pub(super) fn left(&self, rule: &Rule, now: Micros) -> u64 {
        self.most(rule, now).saturating_sub(self.used(rule, now))
    }

    pub(super) fn freed(&mut self, by_more: bool) -> Change {
        let freed = match self.wanted {
            Wanted::No => false,
            Wanted::Time => by_more,
            Wanted::Event => true,
        };
        if freed {
            self.wanted = Wanted::No;
        }
        Change { freed }
    }

    /// Gives an empty cell the state its rule needs. A cell of another kind can only come from a
    /// damaged store; it is kept out of use for one window rather than believed to be empty.
    fn fit(&mut self, rule: &Rule, now: Micros) {
        let fits = match (&self.state, rule.algorithm()) {
            (State::Log(_), Algorithm::Sliding { .. } | Algorithm::Paced { .. })
            | (State::Bucket(_), Algorithm::Bucket { .. })
            | (State::Fixed(_), Algorithm::Fixed { .. })
            | (State::Calendar(_), Algorithm::Calendar(_))
            | (State::InFlight(_), Algorithm::InFlight) => true,
            (
                State::Empty
                | State::Log(_)
                | State::Bucket(_)
                | State::Fixed(_)
                | State::Calendar(_)
                | State::InFlight(_),
                _,
            ) => false,
        };
        if fits {
            return;
        }
        if self.state != State::Empty {
            let taken = Taken {
                cost: rule.most(),
                until: now + rule.stretched(rule.period()),
            };
            self.told.close(taken);
        }
        self.state = State::for_rule(rule);
    }
}

impl State {
    fn for_rule(rule: &Rule) -> State {
        match rule.algorithm() {
            Algorithm::Sliding { .. } | Algorithm::Paced { .. } => State::Log(Log::default()),
            Algorithm::Bucket { .. } => State::Bucket(Bucket::default()),
            Algorithm::Fixed { .. } => State::Fixed(Fixed::default()),
            Algorithm::Calendar(_) => State::Calendar(Count::default()),
            Algorithm::InFlight => State::InFlight(InFlight::default()),
        }
    }
}
