//! From one state to the next: what is forgotten, what is kept, what the ledger is told.
//!
//! Promises: each state is entered in one place, so its entry is the same whoever asked for it.
//!
//! Never: decides whether to move.

use super::pace::{Pace, Ramp};
use super::phase::{Held, Phase, Probing, Runs, Slot, Streak, Throttled};
use super::settings::{Mode, RampAfter};
use super::{Action, Actions, Health, Reason, State};
use crate::ask::Reopen;
use crate::backoff::grown;
use crate::time::{Micros, Span};

impl Health {
    /// Goes where an answer leads.
    pub(super) fn go(&mut self, to: State, reason: Reason, now: Micros, actions: &mut Actions) {
        match to {
            State::Normal => self.enter_normal(reason, now, actions),
            State::Throttle => self.enter_throttle(reason, now, actions),
            State::Sleep => self.enter_sleep(reason, now, actions),
            State::HalfOpen => {
                // Calls on their way were granted at the old pace: they are no probes.
                self.fence = now;
                self.enter_half_open(Slot::Local, reason, now, actions);
            }
            State::CacheOnly => self.enter_cache_only(reason, None, now, actions),
        }
    }

    /// The next due timer fires.
    pub(super) fn fire(&mut self, now: Micros, actions: &mut Actions) {
        match self.phase {
            Phase::Normal { over, ramp } => {
                let ramp = ramp.and_then(|ramp| ramp.climbed(self.base, &self.settings));
                self.phase = Phase::Normal { over, ramp };
            }
            Phase::Sleep { began, until } => {
                if self.gives_up_at().is_some_and(|at| at <= now) {
                    return self.enter_cache_only(Reason::Policy, None, now, actions);
                }
                self.wake(began, until, now, actions);
            }
            Phase::CacheOnly {
                ends, closed_until, ..
            } => {
                if ends.is_some_and(|ends| ends <= now) {
                    return self.resume(now, actions);
                }
                self.on_trial = true;
                let is_over = closed_until.is_some_and(|until| until <= now);
                // Open first: a hold never ends earlier because a shorter rest begins.
                if !is_over {
                    actions.push(Action::Open);
                }
                self.rest_for(self.settings.sleep_min, Reason::AutoRecover, now, actions);
            }
            Phase::Throttle(_) | Phase::Offline { .. } | Phase::HalfOpen(_) => {}
        }
    }

    /// The rest from `began` to `until` is over: everybody probes.
    pub(super) fn wake(
        &mut self,
        began: Micros,
        until: Micros,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.fence = middle(began, until);
        self.enter_half_open(Slot::Shared, Reason::SleepOver, now, actions);
    }

    /// When lasting trouble becomes CacheOnly (A7). Looked at in Sleep only: a HalfOpen that
    /// nobody calls shows no errors, and must not lock itself away over night.
    pub(super) fn gives_up_at(&self) -> Option<Micros> {
        let lasts = self.settings.cache_only_after?;
        self.trouble_since.map(|since| since + lasts)
    }

    pub(super) fn enter_normal(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        if self.phase.holds_scope() {
            actions.push(Action::Open);
        }
        self.follow_to_normal(reason, now, actions);
    }

    /// Normal because another process has opened the scope.
    pub(super) fn follow_to_normal(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        let ramp = self.ramp_after(reason, now);
        self.runs = Runs::default();
        self.failed_probes = 0;
        self.told_until = None;
        self.trouble_since = None;
        self.was_refused = false;
        self.on_trial = false;
        let over = Streak::default();
        self.change_to(Phase::Normal { over, ramp }, reason, now, actions);
    }

    /// Sleep for `max(Retry-After, cool-down)`. A failed probe makes the cool-down longer, and a
    /// failed trial goes back to CacheOnly until the next one.
    pub(super) fn enter_sleep(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        if reason == Reason::ProbeFailed {
            self.failed_probes = self.failed_probes.saturating_add(1);
        }
        self.rest_for(self.rest_after_failure(now), reason, now, actions);
        if self.on_trial {
            self.enter_cache_only(Reason::Policy, None, now, actions);
        }
    }

    /// How long a Sleep that begins now lasts.
    pub(super) fn rest_after_failure(&self, now: Micros) -> Span {
        let told = self.told_until.map_or(Span::ZERO, |until| until.since(now));
        self.cooldown().max(told)
    }

    pub(super) fn enter_half_open(
        &mut self,
        slot: Slot,
        reason: Reason,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.note_refusals(now);
        self.window.clear();
        self.trouble_since = self.trouble_since.or(Some(now));
        let probing = Probing {
            successes: 0,
            calm: Streak::default(),
            slot,
            on_their_way: 0,
        };
        self.change_to(Phase::HalfOpen(probing), reason, now, actions);
    }

    pub(super) fn enter_cache_only(
        &mut self,
        reason: Reason,
        ends: Option<Micros>,
        now: Micros,
        actions: &mut Actions,
    ) {
        let rest = ends
            .map(|ends| ends.since(now))
            .or(self.settings.auto_recover);
        // Open first: a hold never ends earlier because a shorter one begins.
        if rest.is_some() && self.phase.is_held() {
            actions.push(Action::Open);
        }
        match (ends, rest) {
            // A try to recover is a rest like others to those who find it.
            (None, Some(_)) => self.close(rest, actions),
            (Some(_), _) | (None, None) => self.close_by_hand(rest, actions),
        }
        let phase = Phase::CacheOnly {
            held: self.hold(now),
            ends,
            closed_until: rest.map(|rest| now + rest),
        };
        self.change_to(phase, reason, now, actions);
    }

    pub(super) fn enter_offline(&mut self, now: Micros, actions: &mut Actions) {
        self.close(None, actions);
        self.follow_offline(now, actions);
    }

    /// From the cache only because another process's operator said so, or ours before a restart.
    pub(super) fn follow_cache_only(
        &mut self,
        ends: Option<Micros>,
        now: Micros,
        actions: &mut Actions,
    ) {
        let phase = Phase::CacheOnly {
            held: self.hold(now),
            ends,
            closed_until: ends,
        };
        self.change_to(phase, Reason::Operator, now, actions);
    }

    /// Offline because another process's operator said so.
    pub(super) fn follow_offline(&mut self, now: Micros, actions: &mut Actions) {
        let held = self.hold(now);
        self.change_to(Phase::Offline { held }, Reason::Operator, now, actions);
    }

    /// Sleeps for exactly this long, and everybody with us.
    pub(super) fn rest_for(
        &mut self,
        rest: Span,
        reason: Reason,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.close(Some(rest), actions);
        self.follow_to_sleep(rest, reason, now, actions);
    }

    /// Sleeps because another process does.
    pub(super) fn follow_to_sleep(
        &mut self,
        rest: Span,
        reason: Reason,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.note_refusals(now);
        self.fence = now;
        self.trouble_since = self.trouble_since.or(Some(now));
        let phase = Phase::Sleep {
            began: now,
            until: now + rest,
        };
        self.change_to(phase, reason, now, actions);
    }

    /// The pace that the present state asks for.
    pub(super) fn wanted_pace(&self) -> Pace {
        match &self.phase {
            Phase::Normal { ramp, .. } => Pace {
                // The base may have been lowered during the climb.
                rate: ramp
                    .map(|ramp| ramp.rate)
                    .filter(|&rate| self.base.rate.is_none_or(|base| rate < base)),
                concurrency: None,
            },
            Phase::Throttle(_) => self.base.throttled(&self.settings),
            Phase::HalfOpen(_) => match self.settings.mode {
                Mode::Adaptive | Mode::Off => Pace {
                    rate: Some(self.base.probe_rate(&self.settings)),
                    concurrency: Some(self.settings.probe_concurrency),
                },
                // A breaker tests with one call at a time, as fast as they come.
                Mode::Breaker => Pace {
                    rate: None,
                    concurrency: Some(self.settings.probe_concurrency),
                },
            },
            Phase::Sleep { .. } | Phase::Offline { .. } | Phase::CacheOnly { .. } => {
                Pace::default()
            }
        }
    }

    /// From one probe to the next.
    pub(super) fn probe_gap(&self) -> Span {
        match self.settings.mode {
            Mode::Adaptive | Mode::Off => self.base.probe_rate(&self.settings).gap(),
            Mode::Breaker => Span::ZERO,
        }
    }

    fn enter_throttle(&mut self, reason: Reason, now: Micros, actions: &mut Actions) {
        self.note_refusals(now);
        self.change_to(Phase::Throttle(Throttled::default()), reason, now, actions);
    }

    /// Closes the scope for everybody. A hold that has an end has it in the ledger too: if this
    /// process is gone by then, others probe.
    pub(super) fn close(&mut self, rest: Option<Span>, actions: &mut Actions) {
        self.seen_closed = false;
        actions.push(Action::Close {
            age: Span::ZERO,
            rest,
            then: Reopen::Probe,
        });
    }

    /// Closes the scope until somebody opens it, or until the end that was named, and says that it is
    /// the cache that answers: a process that starts later must find CacheOnly and not Sleep.
    fn close_by_hand(&mut self, rest: Option<Span>, actions: &mut Actions) {
        self.seen_closed = false;
        actions.push(Action::Close {
            age: Span::ZERO,
            rest,
            then: Reopen::ByHand,
        });
    }

    /// From now on only somebody's word counts.
    fn hold(&mut self, now: Micros) -> Held {
        self.fence = now;
        self.trouble_since = None;
        self.on_trial = false;
        self.phase.before_hold()
    }

    /// The one place where the phase changes.
    fn change_to(&mut self, phase: Phase, reason: Reason, now: Micros, actions: &mut Actions) {
        let from = self.phase.state();
        self.phase = phase;
        self.since = now;
        let to = self.phase.state();
        if from != to {
            actions.push(Action::Transition { from, to, reason });
        }
    }

    /// A5: `sleep_first × factorⁿ` within its bounds; a breaker's is always the same (M9).
    fn cooldown(&self) -> Span {
        let settings = &self.settings;
        match settings.mode {
            Mode::Adaptive | Mode::Off => grown(
                settings.sleep_first.max(settings.sleep_min),
                settings.cooldown_factor,
                self.failed_probes,
                settings.sleep_max,
            ),
            Mode::Breaker => settings.reset_timeout,
        }
    }

    /// A15: the ramp into a Normal that probes have led to. An operator who resets wants the full
    /// rate.
    fn ramp_after(&self, reason: Reason, now: Micros) -> Option<Ramp> {
        let wanted = match (self.settings.mode, self.settings.ramp.after) {
            (Mode::Adaptive, RampAfter::Any) => true,
            (Mode::Adaptive, RampAfter::Refusals) => self.was_refused,
            (Mode::Breaker | Mode::Off, RampAfter::Any | RampAfter::Refusals) => false,
        };
        let rate = self.base.throttle_rate(&self.settings)?;
        (reason == Reason::ProbeOk && wanted).then_some(Ramp {
            rate,
            next: now + self.settings.ramp.every,
        })
    }

    /// Trouble that begins in Normal is about limits if a 429 is among its results.
    fn note_refusals(&mut self, now: Micros) {
        if matches!(self.phase, Phase::Normal { .. }) {
            let counts = self.window.counts(self.settings.reach(), now);
            self.was_refused = counts.count_429 > 0;
        }
    }
}

/// The fence after a rest. A permit of its first half slipped through before everybody had heard
/// of it; one of its second half is a probe on a clock slightly ahead of ours.
pub(super) fn middle(began: Micros, ended: Micros) -> Micros {
    began + Span(ended.since(began).0 / 2)
}
