//! State transitions: which values are reset, which values stay, and what is sent to the ledger.
//!
//! Promises: each state is entered in one place, so the same steps follow for every cause.
//!
//! Never: decides whether to change the state.

use super::pace::{Pace, Ramp};
use super::phase::{
    BeforeHold, ConsecutiveCounts, HealthPhase, ProbeSlot, ProbeState, Streak, ThrottleState,
};
use super::settings::{HealthMode, RampAfter};
use super::{Action, Actions, Health, HealthState, Reason};
use crate::ask::Reopen;
use crate::backoff::exponential;
use crate::time::{Micros, Span};

impl Health {
    /// Enters the state that a result leads to.
    pub(super) fn enter(
        &mut self,
        to: HealthState,
        reason: Reason,
        now: Micros,
        actions: &mut Actions,
    ) {
        match to {
            HealthState::Normal => self.enter_normal(reason, now, actions),
            HealthState::Throttle => self.enter_throttle(reason, now, actions),
            HealthState::Sleep => self.enter_sleep(reason, now, actions),
            HealthState::HalfOpen => {
                // Calls in flight were granted at the old pace, so they do not count as probes.
                self.valid_from = now;
                self.enter_half_open(ProbeSlot::Local, reason, now, actions);
            }
            HealthState::CacheOnly => self.enter_cache_only(reason, None, now, actions),
        }
    }

    /// The next due timer fires.
    pub(super) fn fire_timer(&mut self, now: Micros, actions: &mut Actions) {
        match self.phase {
            HealthPhase::Normal {
                high_ratio: over,
                ramp,
            } => {
                let ramp = ramp.and_then(|ramp| ramp.next_step(self.base, &self.settings));
                self.phase = HealthPhase::Normal {
                    high_ratio: over,
                    ramp,
                };
            }
            HealthPhase::Sleep { began, until } => {
                if self.cache_only_at().is_some_and(|at| at <= now) {
                    return self.enter_cache_only(Reason::Policy, None, now, actions);
                }
                self.start_probing(began, until, now, actions);
            }
            HealthPhase::CacheOnly {
                ends, closed_until, ..
            } => {
                if ends.is_some_and(|ends| ends <= now) {
                    return self.resume(now, actions);
                }
                self.auto_recovering = true;
                let is_over = closed_until.is_some_and(|until| until <= now);
                // Open first: a close with an earlier end does not change a closed scope.
                if !is_over {
                    actions.push(Action::Open);
                }
                self.sleep_for(self.settings.sleep_min, Reason::AutoRecover, now, actions);
            }
            HealthPhase::Throttle(_) | HealthPhase::Offline { .. } | HealthPhase::HalfOpen(_) => {}
        }
    }

    /// The sleep from `began` to `until` is over: all processes probe.
    pub(super) fn start_probing(
        &mut self,
        began: Micros,
        until: Micros,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.valid_from = midpoint(began, until);
        self.enter_half_open(ProbeSlot::Shared, Reason::SleepOver, now, actions);
    }

    /// When a long outage leads to CacheOnly (A7). This is checked in Sleep only: in HalfOpen
    /// without calls there are no errors, so the state must not become CacheOnly overnight.
    pub(super) fn cache_only_at(&self) -> Option<Micros> {
        let lasts = self.settings.cache_only_after?;
        self.trouble_since.map(|since| since + lasts)
    }

    pub(super) fn enter_normal(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        if self.phase.holds_scope() {
            actions.push(Action::Open);
        }
        self.follow_to_normal(reason, now, actions);
    }

    /// Enters Normal because another process has opened the scope.
    pub(super) fn follow_to_normal(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        let ramp = self.ramp_after(reason, now);
        self.consecutive = ConsecutiveCounts::default();
        self.failed_probes = 0;
        self.retry_after_until = None;
        self.trouble_since = None;
        self.saw_429 = false;
        self.auto_recovering = false;
        let over = Streak::default();
        self.change_to(
            HealthPhase::Normal {
                high_ratio: over,
                ramp,
            },
            reason,
            now,
            actions,
        );
    }

    /// Sleeps for `max(Retry-After, cool-down)`. A failed probe makes the cool-down longer. A
    /// failed automatic recovery returns to CacheOnly until the next automatic recovery.
    pub(super) fn enter_sleep(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        if reason == Reason::ProbeFailed {
            self.failed_probes = self.failed_probes.saturating_add(1);
        }
        self.sleep_for(self.sleep_length(now), reason, now, actions);
        if self.auto_recovering {
            self.enter_cache_only(Reason::Policy, None, now, actions);
        }
    }

    /// How long a Sleep that begins now lasts.
    pub(super) fn sleep_length(&self, now: Micros) -> Span {
        self.sleep_after(self.failed_probes, now)
    }

    /// How long a Sleep after this many failed probes lasts, if it begins now.
    pub(super) fn sleep_after(&self, failed_probes: u32, now: Micros) -> Span {
        let stated = self
            .retry_after_until
            .map_or(Span::ZERO, |until| until.since(now));
        self.cooldown(failed_probes).max(stated)
    }

    pub(super) fn enter_half_open(
        &mut self,
        slot: ProbeSlot,
        reason: Reason,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.note_429s(now);
        self.window.clear();
        self.trouble_since = self.trouble_since.or(Some(now));
        let probing = ProbeState {
            successes: 0,
            low_ratio: Streak::default(),
            succeeded_on: None,
            slot,
            in_flight: 0,
        };
        self.change_to(HealthPhase::HalfOpen(probing), reason, now, actions);
    }

    pub(super) fn enter_cache_only(
        &mut self,
        reason: Reason,
        ends: Option<Micros>,
        now: Micros,
        actions: &mut Actions,
    ) {
        let closed_for = ends
            .map(|ends| ends.since(now))
            .or(self.settings.auto_recover);
        // Open first: a close with an earlier end does not change a closed scope.
        if closed_for.is_some() && self.phase.is_held() {
            actions.push(Action::Open);
        }
        match (ends, closed_for) {
            // Other processes see an automatic recovery as an ordinary sleep.
            (None, Some(_)) => self.close(closed_for, actions),
            (Some(_), _) | (None, None) => self.close_by_operator(closed_for, actions),
        }
        let phase = HealthPhase::CacheOnly {
            before: self.begin_hold(now),
            ends,
            closed_until: closed_for.map(|closed_for| now + closed_for),
        };
        self.change_to(phase, reason, now, actions);
    }

    pub(super) fn enter_offline(&mut self, now: Micros, actions: &mut Actions) {
        self.close(None, actions);
        self.follow_offline(now, actions);
    }

    /// Enters CacheOnly because an operator set it in another process, or here before a restart.
    pub(super) fn follow_cache_only(
        &mut self,
        ends: Option<Micros>,
        now: Micros,
        actions: &mut Actions,
    ) {
        let phase = HealthPhase::CacheOnly {
            before: self.begin_hold(now),
            ends,
            closed_until: ends,
        };
        self.change_to(phase, Reason::Operator, now, actions);
    }

    /// Goes offline because an operator set it in another process.
    pub(super) fn follow_offline(&mut self, now: Micros, actions: &mut Actions) {
        let before = self.begin_hold(now);
        self.change_to(
            HealthPhase::Offline { before },
            Reason::Operator,
            now,
            actions,
        );
    }

    /// Sleeps for exactly this long, in all processes.
    pub(super) fn sleep_for(
        &mut self,
        closed_for: Span,
        reason: Reason,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.close(Some(closed_for), actions);
        self.follow_to_sleep(closed_for, reason, now, actions);
    }

    /// Sleeps because another process sleeps.
    pub(super) fn follow_to_sleep(
        &mut self,
        closed_for: Span,
        reason: Reason,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.note_429s(now);
        self.valid_from = now;
        self.trouble_since = self.trouble_since.or(Some(now));
        let phase = HealthPhase::Sleep {
            began: now,
            until: now + closed_for,
        };
        self.change_to(phase, reason, now, actions);
    }

    /// The pace of the current state.
    pub(super) fn wanted_pace(&self) -> Pace {
        match &self.phase {
            HealthPhase::Normal { ramp, .. } => Pace {
                // The base may have been lowered during the ramp.
                rate: ramp
                    .map(|ramp| ramp.rate)
                    .filter(|&rate| self.base.rate.is_none_or(|base| rate < base)),
                concurrency: None,
            },
            HealthPhase::Throttle(_) => self.base.throttled(&self.settings),
            HealthPhase::HalfOpen(_) => match self.settings.mode {
                HealthMode::Adaptive | HealthMode::Off => Pace {
                    rate: Some(self.base.probe_rate(&self.settings)),
                    concurrency: Some(self.settings.probe_concurrency),
                },
                // A breaker limits the concurrency of probes, but not their rate.
                HealthMode::Breaker => Pace {
                    rate: None,
                    concurrency: Some(self.settings.probe_concurrency),
                },
            },
            HealthPhase::Sleep { .. }
            | HealthPhase::Offline { .. }
            | HealthPhase::CacheOnly { .. } => Pace::default(),
        }
    }

    /// The time from one probe to the next.
    pub(super) fn probe_gap(&self) -> Span {
        match self.settings.mode {
            HealthMode::Adaptive | HealthMode::Off => self.base.probe_rate(&self.settings).gap(),
            HealthMode::Breaker => Span::ZERO,
        }
    }

    fn enter_throttle(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        self.note_429s(now);
        self.change_to(
            HealthPhase::Throttle(ThrottleState::default()),
            reason,
            now,
            actions,
        );
    }

    /// Closes the scope for all processes. The ledger also stores when the closed time ends: if
    /// this process has ended by then, other processes probe.
    pub(super) fn close(&mut self, closed_for: Option<Span>, actions: &mut Actions) {
        self.seen_closed = false;
        actions.push(Action::Close {
            age: Span::ZERO,
            closed_for,
            reopen: Reopen::Probe,
        });
    }

    /// Closes the scope until an operator opens it, or until the operator's end time, and marks it
    /// as cache only: a process that starts later must find CacheOnly and not Sleep.
    fn close_by_operator(&mut self, closed_for: Option<Span>, actions: &mut Actions) {
        self.seen_closed = false;
        actions.push(Action::Close {
            age: Span::ZERO,
            closed_for,
            reopen: Reopen::ByOperator,
        });
    }

    /// Starts a hold. Results of permits that were granted before it no longer count.
    fn begin_hold(&mut self, now: Micros) -> BeforeHold {
        self.valid_from = now;
        self.trouble_since = None;
        self.auto_recovering = false;
        self.phase.before_hold()
    }

    /// Changes the phase, and reports the new state.
    fn change_to(
        &mut self,
        phase: HealthPhase,
        reason: Reason,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.phase = phase;
        self.since = now;
        self.announce(reason, actions);
    }

    /// Reports a changed state.
    pub(super) fn announce(&mut self, reason: Reason, actions: &mut Actions) {
        let to = self.state();
        let from = std::mem::replace(&mut self.announced, to);
        if from != to {
            actions.push(Action::Transition { from, to, reason });
        }
    }

    /// A5: `sleep_first × factorⁿ` within its bounds; for a breaker it is constant (M9).
    fn cooldown(&self, failed_probes: u32) -> Span {
        let settings = &self.settings;
        match settings.mode {
            HealthMode::Adaptive | HealthMode::Off => exponential(
                settings.sleep_first.max(settings.sleep_min),
                settings.cooldown_factor,
                failed_probes,
                settings.sleep_max,
            ),
            HealthMode::Breaker => settings.reset_timeout,
        }
    }

    /// A15: the ramp after probes have led to Normal. After an operator's reset there is no ramp.
    fn ramp_after(&self, reason: Reason, now: Micros) -> Option<Ramp> {
        let wanted = match (self.settings.mode, self.settings.ramp.after) {
            (HealthMode::Adaptive, RampAfter::Any) => true,
            (HealthMode::Adaptive, RampAfter::Limited) => self.saw_429,
            (HealthMode::Breaker | HealthMode::Off, RampAfter::Any | RampAfter::Limited) => false,
        };
        let rate = self.base.throttle_rate(&self.settings)?;
        (reason == Reason::ProbeOk && wanted).then_some(Ramp {
            rate,
            next: now + self.settings.ramp.every,
        })
    }

    /// Records whether an outage that begins in Normal comes from limits: whether the window
    /// contains a 429.
    fn note_429s(&mut self, now: Micros) {
        if matches!(self.phase, HealthPhase::Normal { .. }) {
            let counts = self.window.counts(self.settings.window_bounds(), now);
            self.saw_429 = counts.count_429 > 0;
        }
    }
}

/// The time from which permits count after a sleep. A permit from the first half of the sleep was
/// granted before all processes knew of the sleep. A permit from the second half is a probe by a
/// process whose clock is slightly ahead of ours.
pub(super) fn midpoint(began: Micros, ended: Micros) -> Micros {
    began + Span(ended.since(began).0 / 2)
}
