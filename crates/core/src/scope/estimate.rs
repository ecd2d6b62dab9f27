//! The estimated limit of a scope: what Tollgate learns from 429s that no limit foresaw.
//!
//! The end of a cool-down must not be a starting gun: whoever waited would go at once, and be
//! limited at once. So one call goes first, and the others follow as the provider accepts them:
//!
//! ```text
//! the first 429    one call; each one accepted lets two more go, up to 8 at a time, then one more
//!                  per round. Without another 429 this ends after a minute
//! the next 429     paced: what the provider accepted between both, per second
//! then             + 1/32 with a call accepted, at most once a second; × 0.95 with each 429
//! ```
//!
//! A 429 is quick, so a call without any outcome after five seconds counts as accepted here.
//!
//! At each 429 the provider's count is at its limit, so what it accepted between two of them is its
//! rate, whatever its algorithm. All owners of a ledger share the estimate, because it is part of the
//! scope that a 429 closes.
//!
//! Promises: integers only, bounded state. Nothing is estimated before the first 429, nor a quarter
//! of an hour after the last one. Only calls that are held back by the estimate raise it.
//!
//! Never: lets more go than the limits do. It holds calls back beside them.

use crate::ask::{PermitId, WakeOn};
use crate::rate::Rate;
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// A rate that no 429 has confirmed for this long is dropped: limits and other users of a key change.
const FORGET_AFTER: Span = Span::from_secs(900);

/// A slow start lasts this long after the cool-down. A 429 that comes later starts another one: in a
/// minute every call has had its turn, so the two say nothing about a rate.
const SLOW_START: Span = Span::from_secs(60);

/// The slow start doubles up to this many calls at a time: at most so many are limited when it
/// overshoots. At 50 ms a call they are 160 a second.
const DOUBLED_MAX: u32 = 8;

/// The rate rises at most this often, so that a fast provider is not overrun before its 429 is back.
const RAISE_EVERY: Span = Span::from_secs(1);

/// Each rise adds this part of the rate at the last 429: small, because each overshoot costs a
/// cool-down.
const STEPS: u64 = 32;

/// The factor of a further 429.
const LOWERED: Ppm = Ppm::percent(95);

/// A call that goes this late is made up for: timers and stores are late by milliseconds, and at 100
/// calls a second each of those is a tenth of the rate.
const CATCH_UP: Span = Span::from_millis(50);

/// Whoever got a 429 reports it with its cool-down within this time, or another call goes first.
const REPORT_WITHIN: Span = Span::from_secs(1);

/// A 429 is quick. A call that has none after this time was accepted, however long its response takes:
/// the responses of language models take minutes, and those of killed processes never come.
pub const LIMITED_WITHIN: Span = Span::from_secs(5);

/// A slow start without a call for this long was idle: what it accepted before is no measure of a
/// rate.
const IDLE_AFTER: Span = Span::from_secs(1);

/// What is known of the limit of a scope since its last 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateEstimate {
    /// When the last 429 came. Calls granted before it say nothing new.
    pub(crate) limited_at: Micros,
    /// When the cool-down of that 429 ends.
    pub(crate) reopens_at: Micros,
    /// The 429 since which calls are counted: the last one before which any was accepted.
    pub(crate) since: Micros,
    /// What the provider has accepted since then, and how many calls went: responses to calls from
    /// before the 429 are not counted.
    pub(crate) accepted: u64,
    pub(crate) taken: u64,
    pub(crate) first: FirstCall,
    pub(crate) phase: EstimatePhase,
}

/// The call that goes before all others after a 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstCall {
    /// None has gone.
    Needed,
    /// This one. If no outcome is reported until then, it was accepted.
    Sent { permit: PermitId, until: Micros },
    /// The provider has accepted one.
    Accepted,
}

/// What holds the others back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EstimatePhase {
    /// After one 429.
    SlowStart(SlowStart),
    /// After several.
    Paced(PacedRate),
}

/// More and more calls at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlowStart {
    pub(crate) at_a_time: u32,
    /// How many of them may go now.
    pub(crate) free: u32,
    /// Calls accepted since it last grew.
    pub(crate) accepted: u32,
    /// When the last one went: a place without an outcome is free some time after that.
    pub(crate) taken_at: Micros,
    /// The last call took the last place: a 429 is about the rate.
    pub(crate) was_full: bool,
}

/// One call after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacedRate {
    pub(crate) rate: Rate,
    /// What each rise adds.
    pub(crate) step: Rate,
    pub(crate) raised_at: Micros,
    /// The next call may go then.
    pub(crate) next_at: Micros,
    /// The last call went as soon as it might: it was held back.
    pub(crate) is_tight: bool,
}

impl RateEstimate {
    /// The first 429.
    pub(crate) fn new(limited_at: Micros, reopens_at: Micros) -> RateEstimate {
        RateEstimate {
            limited_at,
            reopens_at,
            since: limited_at,
            accepted: 0,
            taken: 0,
            first: FirstCall::Needed,
            phase: EstimatePhase::SlowStart(SlowStart::default()),
        }
    }

    /// A further 429, to a call that was granted at `granted`.
    pub(crate) fn on_limited(&mut self, granted: Micros, at: Micros, reopens_at: Micros) {
        self.reopens_at = self.reopens_at.max(reopens_at);
        if granted < self.limited_at {
            return; // sent before the last 429 was known
        }
        if self.accepted > 0 {
            let measured = Rate::of(self.accepted, at.since(self.since));
            self.phase = match self.phase {
                EstimatePhase::SlowStart(start) if start.was_full => {
                    EstimatePhase::Paced(PacedRate::new(measured, at))
                }
                EstimatePhase::SlowStart(_) => EstimatePhase::SlowStart(SlowStart::default()),
                EstimatePhase::Paced(pace) => EstimatePhase::Paced(pace.lowered(measured, at)),
            };
            (self.since, self.accepted, self.taken) = (at, 0, 0);
        }
        self.limited_at = at;
        self.first = FirstCall::Needed;
    }

    /// It holds nobody back any more.
    pub(crate) fn is_over(&self, now: Micros) -> bool {
        now >= self.ends_at()
    }

    /// When it ends without another 429.
    pub(crate) fn ends_at(&self) -> Micros {
        match self.phase {
            EstimatePhase::SlowStart(_) => self.reopens_at + SLOW_START,
            // Also after a cool-down that is longer than that.
            EstimatePhase::Paced(_) => {
                (self.reopens_at + SLOW_START).max(self.limited_at + FORGET_AFTER)
            }
        }
    }

    /// The estimated rate; `None` = not known yet.
    pub(crate) fn rate(&self) -> Option<Rate> {
        match self.phase {
            EstimatePhase::SlowStart(_) => None,
            EstimatePhase::Paced(pace) => Some(pace.rate),
        }
    }

    /// May a call go? `Err` says how long to wait.
    pub(crate) fn check(&self, id: PermitId, now: Micros) -> Result<(), (Span, WakeOn)> {
        let (until, on) = match (self.first, self.phase) {
            (FirstCall::Needed, _) => return Ok(()),
            (FirstCall::Sent { permit, .. }, _) if permit == id => return Ok(()),
            (FirstCall::Sent { until, .. }, EstimatePhase::SlowStart(_)) => (until, WakeOn::Event),
            (FirstCall::Sent { until, .. }, EstimatePhase::Paced(pace)) => {
                (until.max(pace.next_at), WakeOn::Event)
            }
            (FirstCall::Accepted, EstimatePhase::SlowStart(start)) => match start.free {
                0 => (start.taken_at + LIMITED_WITHIN, WakeOn::Event),
                1.. => return Ok(()),
            },
            (FirstCall::Accepted, EstimatePhase::Paced(pace)) => (pace.next_at, WakeOn::Time),
        };
        match until.min(self.ends_at()).since(now) {
            Span::ZERO => Ok(()),
            wait => Err((wait, on)),
        }
    }

    /// A call goes, and its response may come until `arrives_by`.
    pub(crate) fn take(&mut self, id: PermitId, now: Micros, arrives_by: Micros) {
        self.accept_late(now);
        let is_first = self.first != FirstCall::Accepted;
        if is_first {
            let until = arrives_by.min(now + LIMITED_WITHIN);
            self.first = FirstCall::Sent { permit: id, until };
        }
        match &mut self.phase {
            EstimatePhase::SlowStart(start) => {
                if start.is_idle(now) {
                    (self.since, self.accepted, self.taken) = (now, 0, 0);
                }
                start.take(now);
            }
            EstimatePhase::Paced(pace) => {
                if is_first {
                    pace.next_at = now; // the pace starts again with it
                }
                pace.take(now);
                pace.is_tight &= !is_first;
            }
        }
        self.taken = self.taken.saturating_add(1);
    }

    /// The calls that went have no 429 by now, so they were accepted, although nothing says so.
    fn accept_late(&mut self, now: Micros) {
        let is_first_late = matches!(self.first, FirstCall::Sent { until, .. } if until <= now);
        if is_first_late {
            self.first = FirstCall::Accepted;
        }
        if let EstimatePhase::SlowStart(start) = &mut self.phase
            && self.first == FirstCall::Accepted
            && start.free == 0
            && now >= start.taken_at + LIMITED_WITHIN
        {
            start.grow();
        }
    }

    /// The provider accepted a call. `true` if others may go now that had to wait for it.
    pub(crate) fn on_accepted(&mut self, id: PermitId, now: Micros) -> bool {
        let is_first = match self.first {
            FirstCall::Needed => return false, // of a call from before the 429
            FirstCall::Sent { permit, .. } if permit != id => return false,
            FirstCall::Sent { .. } => true,
            FirstCall::Accepted if self.accepted >= self.taken => return false, // as above
            FirstCall::Accepted => false,
        };
        self.first = FirstCall::Accepted;
        self.accepted = self.accepted.saturating_add(1);
        let has_room = match &mut self.phase {
            EstimatePhase::SlowStart(start) => start.grow(),
            EstimatePhase::Paced(pace) => {
                pace.raise(now);
                false
            }
        };
        is_first || has_room
    }

    /// A call ended, and nobody knows whether the provider's limit accepted it. `true` if others may go
    /// now.
    pub(crate) fn on_unproved(&mut self, id: PermitId) -> bool {
        match (self.first, &mut self.phase) {
            (FirstCall::Sent { permit, .. }, _) if permit == id => {
                self.first = FirstCall::Needed;
                true
            }
            (FirstCall::Accepted, EstimatePhase::SlowStart(start)) => start.give_back(),
            (FirstCall::Needed | FirstCall::Sent { .. } | FirstCall::Accepted, _) => false,
        }
    }

    /// A call was not sent. `true` if another one may go in its place.
    pub(crate) fn on_unsent(&mut self, id: PermitId) -> bool {
        if let (FirstCall::Accepted, EstimatePhase::Paced(pace)) = (self.first, &mut self.phase) {
            pace.next_at = pace.next_at - pace.rate.gap();
            return true;
        }
        self.on_unproved(id)
    }

    /// The provider limited this call; the cool-down is reported next.
    pub(crate) fn on_rejected(&mut self, id: PermitId, now: Micros) {
        if let FirstCall::Sent { permit, until } = &mut self.first
            && *permit == id
        {
            *until = (*until).min(now + REPORT_WITHIN);
        }
    }

    /// The same after a reboot: a first call ended with its host.
    pub(crate) fn restarted(mut self) -> RateEstimate {
        if let FirstCall::Sent { .. } = self.first {
            self.first = FirstCall::Needed;
        }
        self
    }

    /// The same on a clock that has stepped: `then` before the step is `now` after it.
    pub(crate) fn moved(mut self, then: Micros, now: Micros) -> RateEstimate {
        let moved = |at: Micros| match at < then {
            true => now - then.since(at),
            false => now + at.since(then),
        };
        self.limited_at = moved(self.limited_at);
        self.reopens_at = moved(self.reopens_at);
        self.since = moved(self.since);
        if let FirstCall::Sent { until, .. } = &mut self.first {
            *until = moved(*until);
        }
        match &mut self.phase {
            EstimatePhase::SlowStart(start) => start.taken_at = moved(start.taken_at),
            EstimatePhase::Paced(pace) => {
                pace.raised_at = moved(pace.raised_at);
                pace.next_at = moved(pace.next_at);
            }
        }
        self
    }
}

impl SlowStart {
    fn take(&mut self, now: Micros) {
        self.free = self.free.saturating_sub(1);
        self.taken_at = now;
        self.was_full = self.free == 0 && self.at_a_time > 0;
    }

    /// Nobody has called for a while.
    fn is_idle(&self, now: Micros) -> bool {
        let is_unused = self.at_a_time > 0 && self.free == self.at_a_time;
        is_unused && now.since(self.taken_at) >= IDLE_AFTER
    }

    /// A call was accepted: its place is free, and there is room for more. `true` if there was none.
    fn grow(&mut self) -> bool {
        let was_full = self.free == 0;
        self.accepted = self.accepted.saturating_add(1);
        if self.at_a_time < DOUBLED_MAX || self.accepted >= self.at_a_time {
            // The first one was alone: two follow it.
            let more = if self.at_a_time == 0 { 2 } else { 1 };
            self.at_a_time = self.at_a_time.saturating_add(more);
            self.free = self.free.saturating_add(1);
            self.accepted = 0;
        }
        self.give_back();
        was_full
    }

    /// A place is free. `true` if there was none.
    fn give_back(&mut self) -> bool {
        let was_full = self.free == 0;
        self.free = self.free.saturating_add(1).min(self.at_a_time);
        was_full
    }
}

impl PacedRate {
    fn new(rate: Rate, now: Micros) -> PacedRate {
        PacedRate {
            rate,
            step: rate.divided(STEPS),
            raised_at: now,
            next_at: now,
            is_tight: false,
        }
    }

    /// A further 429: what the provider accepted since the last one is its rate if calls were held
    /// back all the time, but an estimate falls by half at most.
    fn lowered(self, measured: Rate, now: Micros) -> PacedRate {
        let known = match self.is_tight {
            true => measured.max(self.rate.divided(2)).min(self.rate),
            false => self.rate,
        };
        PacedRate::new(known.times(LOWERED).max(Rate::from_millionths(1)), now)
    }

    fn take(&mut self, now: Micros) {
        let gap = self.rate.gap();
        self.is_tight = now.since(self.next_at) <= gap.max(CATCH_UP);
        self.next_at = self.next_at.max(now - CATCH_UP) + gap;
    }

    fn raise(&mut self, now: Micros) {
        if self.is_tight && now.since(self.raised_at) >= RAISE_EVERY {
            self.raised_at = now;
            // A rate that has risen by a quarter without a 429 was measured wrong, or the limit has
            // changed: from there it grows with itself.
            let is_far =
                self.rate.millionths() / 5 * 4 >= self.step.millionths().saturating_mul(STEPS);
            let step = if is_far {
                self.rate.divided(STEPS)
            } else {
                self.step
            };
            self.rate = self.rate.plus(step);
        }
    }
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
