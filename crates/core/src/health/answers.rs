//! What answers do to the machine: the results of attempts, and nothing else.
//!
//! Promises: every class has a meaning in every phase. Late answers (granted before the scope
//! closed) count in the ratio only.
//!
//! Never: looks at a timer or an operator's wish.

use super::class::Class;
use super::moves::middle;
use super::phase::{Phase, Probing, Slot, Throttled};
use super::settings::{HealthSettings, Mode};
use super::window::{Reach, Window};
use super::{Action, Actions, Answer, Health, Reason, State};
use crate::ask::Reopen;
use crate::backoff::heeded;
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// Where an answer leads.
type Step = Option<(State, Reason)>;

/// What an evaluation may look at beside the phase.
struct Facts<'a> {
    settings: &'a HealthSettings,
    window: &'a Window,
    reach: Reach,
    class: Class,
    /// The answer is about the present, so counts in a row may have reached a threshold.
    timely: bool,
    refused_in_a_row: u32,
    failed_in_a_row: u32,
    now: Micros,
}

impl Health {
    /// `current`: no cool-down has closed its scope since it was granted.
    pub(super) fn answered(
        &mut self,
        answer: Answer,
        current: bool,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.oversleep(answer.granted, now, actions);
        let reach = self.settings.reach();
        self.window.add(answer.class, reach, now);
        let timely = current && answer.granted >= self.fence;
        if answer.class == Class::Other {
            return self.probe_ended(answer.granted, now, actions);
        }
        let failed_before = self.runs.failed;
        if timely {
            self.runs.note(answer.class);
        }
        self.remember(answer, timely, now, actions);
        let facts = Facts {
            settings: &self.settings,
            window: &self.window,
            reach,
            class: answer.class,
            timely,
            refused_in_a_row: self.runs.refused,
            failed_in_a_row: self.runs.failed,
            now,
        };
        match self.phase.judge(&facts) {
            Some((to, reason)) => self.go(to, reason, now, actions),
            None => self.probe_ended(answer.granted, now, actions),
        }
        if timely {
            self.tell_others(answer.class, failed_before, now, actions);
        }
    }

    /// Failures in a row are counted by all processes together: each tells of its own, beside
    /// counting them itself, so that a store that is lost changes nothing for one process.
    fn tell_others(&self, class: Class, failed_before: u32, now: Micros, actions: &mut Actions) {
        match (&self.phase, self.settings.mode) {
            (Phase::Normal { .. } | Phase::Throttle(_), Mode::Adaptive | Mode::Breaker) => {}
            (
                Phase::Sleep { .. }
                | Phase::Offline { .. }
                | Phase::HalfOpen(_)
                | Phase::CacheOnly { .. },
                _,
            )
            | (_, Mode::Off) => return,
        }
        let Some(in_a_row) = self.settings.failure_threshold else {
            return;
        };
        if class.is_failure() {
            let rest = self.rest_after_failure(now);
            actions.push(Action::Failed { in_a_row, rest });
        } else if failed_before > 0 {
            actions.push(Action::Well);
        }
    }

    /// A permit was handed out. With several probes at a time the next may follow at once.
    pub(super) fn granted(&mut self, now: Micros, actions: &mut Actions) {
        self.oversleep(now, now, actions);
        let rest = Some(self.probe_gap());
        let Phase::HalfOpen(probing) = &mut self.phase else {
            return;
        };
        probing.on_their_way = probing.on_their_way.saturating_add(1);
        let has_room = probing.on_their_way < self.settings.probe_concurrency;
        if probing.slot == Slot::Shared && has_room {
            actions.push(Action::Close {
                age: Span::ZERO,
                rest,
                then: Reopen::Probe,
            });
        }
    }

    /// An attempt ended and nothing was learned.
    pub(super) fn dropped(&mut self, granted: Micros, now: Micros, actions: &mut Actions) {
        self.oversleep(granted, now, actions);
        self.probe_ended(granted, now, actions);
    }

    /// A probe that decided nothing gives its place to the next one, which goes `1 / probe_rate`
    /// after it went.
    fn probe_ended(&mut self, granted: Micros, now: Micros, actions: &mut Actions) {
        let rest = Some(self.probe_gap());
        let Phase::HalfOpen(probing) = &mut self.phase else {
            return;
        };
        if granted < self.fence {
            return;
        }
        probing.on_their_way = probing.on_their_way.saturating_sub(1);
        if probing.slot == Slot::Shared {
            actions.push(Action::Close {
                age: now.since(granted),
                rest,
                then: Reopen::Probe,
            });
        }
    }

    /// The ledger let a call go in the second half of our rest: by its clock the rest is over, and
    /// the call is the probe. Without this its place would stay taken until it was given up.
    fn oversleep(&mut self, granted: Micros, now: Micros, actions: &mut Actions) {
        if let Phase::Sleep { began, until } = self.phase
            && granted >= middle(began, until)
        {
            self.wake(began, until, now, actions);
        }
    }

    /// What a single answer tells beyond its class: when to return, and that the trouble is about
    /// limits.
    fn remember(&mut self, answer: Answer, timely: bool, now: Micros, actions: &mut Actions) {
        if answer.class == Class::Success {
            if timely {
                self.told_until = None;
            }
            return;
        }
        self.was_refused |= answer.class == Class::Refused;
        let Some(wait) = heeded(answer.retry_after, self.settings.retry_after_floor) else {
            return;
        };
        let told = now + wait;
        self.told_until = Some(self.told_until.map_or(told, |old| old.max(told)));
        if let Phase::Sleep { until, .. } = &mut self.phase
            && told > *until
        {
            *until = told;
            actions.push(Action::Close {
                age: Span::ZERO,
                rest: Some(wait),
                then: Reopen::Probe,
            });
        }
    }
}

impl Phase {
    /// One evaluation: the rules of A3, A4, A6 and M9.
    fn judge(&mut self, facts: &Facts<'_>) -> Step {
        match (self, facts.settings.mode) {
            (Phase::Normal { over, .. }, Mode::Adaptive) => {
                over.note(facts.reaches(facts.settings.p_throttle));
                let over = over.is_confirmed(facts.settings.confirm);
                facts
                    .failures_in_a_row()
                    .or_else(|| facts.refusals(facts.settings.n_throttle, State::Throttle))
                    .or(over.then_some((State::Throttle, Reason::ErrRatio)))
            }
            (Phase::Normal { .. }, Mode::Breaker) => facts.failures_in_a_row(),
            (Phase::Throttle(throttled), Mode::Adaptive | Mode::Breaker | Mode::Off) => {
                throttled.judge(facts)
            }
            (Phase::HalfOpen(probing), Mode::Adaptive | Mode::Breaker | Mode::Off) => {
                probing.judge(facts)
            }
            (Phase::Normal { .. }, Mode::Off)
            | (
                Phase::Sleep { .. } | Phase::Offline { .. } | Phase::CacheOnly { .. },
                Mode::Adaptive | Mode::Breaker | Mode::Off,
            ) => None,
        }
    }
}

impl Throttled {
    fn judge(&mut self, facts: &Facts<'_>) -> Step {
        let settings = facts.settings;
        self.successes += u32::from(facts.timely && facts.class == Class::Success);
        self.calm.note(!facts.reaches(settings.p_recover));
        self.bad.note(facts.reaches(settings.p_sleep));
        if self.bad.has_just_begun() {
            self.bad_since = facts.now;
        }
        let lasts = facts.now.since(self.bad_since) >= settings.p_sleep_for;
        let is_bad = self.bad.is_confirmed(settings.confirm) && lasts;
        let is_well =
            self.successes >= settings.s_recover && self.calm.is_confirmed(settings.confirm);
        facts
            .refusals(settings.n_cacheonly, State::Sleep)
            .or_else(|| facts.failures_in_a_row())
            .or(is_bad.then_some((State::Sleep, Reason::ErrRatio)))
            .or(is_well.then_some((State::HalfOpen, Reason::SuccessWindowOk)))
    }
}

impl Probing {
    fn judge(&mut self, facts: &Facts<'_>) -> Step {
        let settings = facts.settings;
        self.calm.note(!facts.reaches(settings.p_probe));
        if facts.timely && facts.class.is_failure() {
            return Some((State::Sleep, Reason::ProbeFailed));
        }
        self.successes += u32::from(facts.timely);
        let is_well = match settings.mode {
            Mode::Adaptive | Mode::Off => {
                self.successes >= settings.probe_success && self.calm.is_confirmed(settings.confirm)
            }
            Mode::Breaker => self.successes >= settings.success_threshold,
        };
        is_well.then_some((State::Normal, Reason::ProbeOk))
    }
}

impl Facts<'_> {
    fn reaches(&self, share: Ppm) -> bool {
        self.window.reaches(share, self.reach)
    }

    fn failures_in_a_row(&self) -> Step {
        let threshold = self.settings.failure_threshold?;
        (self.timely && self.failed_in_a_row >= threshold)
            .then_some((State::Sleep, Reason::Failures))
    }

    fn refusals(&self, threshold: u32, to: State) -> Step {
        (self.timely && self.refused_in_a_row >= threshold).then_some((to, Reason::Consec429))
    }
}
