//! What answers do to the machine: the results of attempts, and nothing else.
//!
//! Promises: every class has a meaning in every phase. Late answers (granted before the scope
//! closed) count in the ratio only.
//!
//! Never: looks at a timer or an operator's wish.

use super::class::Class;
use super::phase::{HealthPhase, ProbeSlot, ProbeState, ThrottleState};
use super::settings::{HealthMode, HealthSettings};
use super::transitions::midpoint;
use super::window::{ResultWindow, WindowBounds};
use super::{Action, Actions, AttemptResult, Health, HealthState, Reason};
use crate::ask::Reopen;
use crate::backoff::effective_retry_after;
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// Where an answer leads.
type Step = Option<(HealthState, Reason)>;

/// What an evaluation may look at beside the phase.
struct Evaluation<'a> {
    settings: &'a HealthSettings,
    window: &'a ResultWindow,
    reach: WindowBounds,
    class: Class,
    /// The answer is about the present, so counts in a row may have reached a threshold.
    timely: bool,
    limited_in_a_row: u32,
    failed_in_a_row: u32,
    now: Micros,
}

impl Health {
    /// `current`: no cool-down has closed its scope since it was granted.
    pub(super) fn on_result(
        &mut self,
        answer: AttemptResult,
        current: bool,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.wake_if_granted(answer.granted, now, actions);
        let reach = self.settings.window_bounds();
        self.window.add(answer.class, reach, now);
        let timely = current && answer.granted >= self.valid_from;
        if answer.class == Class::Other {
            return self.probe_ended(answer.granted, now, actions);
        }
        let failed_before = self.consecutive.failed;
        if timely {
            self.consecutive.note(answer.class);
        }
        self.note_retry_after(answer, timely, now, actions);
        let facts = Evaluation {
            settings: &self.settings,
            window: &self.window,
            reach,
            class: answer.class,
            timely,
            limited_in_a_row: self.consecutive.limited,
            failed_in_a_row: self.consecutive.failed,
            now,
        };
        match self.phase.evaluate(&facts) {
            Some((to, reason)) => self.enter(to, reason, now, actions),
            None => self.probe_ended(answer.granted, now, actions),
        }
        if timely {
            self.report_to_ledger(answer.class, failed_before, now, actions);
        }
    }

    /// Failures in a row are counted by all processes together: each tells of its own, beside
    /// counting them itself, so that a store that is lost changes nothing for one process.
    fn report_to_ledger(
        &self,
        class: Class,
        failed_before: u32,
        now: Micros,
        actions: &mut Actions,
    ) {
        match (&self.phase, self.settings.mode) {
            (
                HealthPhase::Normal { .. } | HealthPhase::Throttle(_),
                HealthMode::Adaptive | HealthMode::Breaker,
            ) => {}
            (
                HealthPhase::Sleep { .. }
                | HealthPhase::Offline { .. }
                | HealthPhase::HalfOpen(_)
                | HealthPhase::CacheOnly { .. },
                _,
            )
            | (_, HealthMode::Off) => return,
        }
        let Some(in_a_row) = self.settings.failure_threshold else {
            return;
        };
        if class.is_failure() {
            let rest = self.sleep_length(now);
            actions.push(Action::Failed {
                in_a_row,
                closed_for: rest,
            });
        } else if failed_before > 0 {
            actions.push(Action::Succeeded);
        }
    }

    /// A permit was handed out. With several probes at a time the next may follow at once.
    pub(super) fn on_granted(&mut self, now: Micros, actions: &mut Actions) {
        self.wake_if_granted(now, now, actions);
        let rest = Some(self.probe_gap());
        let HealthPhase::HalfOpen(probing) = &mut self.phase else {
            return;
        };
        probing.in_flight = probing.in_flight.saturating_add(1);
        let has_room = probing.in_flight < self.settings.probe_concurrency;
        if probing.slot == ProbeSlot::Shared && has_room {
            actions.push(Action::Close {
                age: Span::ZERO,
                closed_for: rest,
                reopen: Reopen::Probe,
            });
        }
    }

    /// An attempt ended and nothing was learned.
    pub(super) fn on_dropped(&mut self, granted: Micros, now: Micros, actions: &mut Actions) {
        self.wake_if_granted(granted, now, actions);
        self.probe_ended(granted, now, actions);
    }

    /// A probe that decided nothing gives its place to the next one, which goes `1 / probe_rate`
    /// after it went.
    fn probe_ended(&mut self, granted: Micros, now: Micros, actions: &mut Actions) {
        let rest = Some(self.probe_gap());
        let HealthPhase::HalfOpen(probing) = &mut self.phase else {
            return;
        };
        if granted < self.valid_from {
            return;
        }
        probing.in_flight = probing.in_flight.saturating_sub(1);
        if probing.slot == ProbeSlot::Shared {
            actions.push(Action::Close {
                age: now.since(granted),
                closed_for: rest,
                reopen: Reopen::Probe,
            });
        }
    }

    /// The ledger let a call go in the second half of our rest: by its clock the rest is over, and
    /// the call is the probe. Without this its place would stay taken until it was given up.
    fn wake_if_granted(&mut self, granted: Micros, now: Micros, actions: &mut Actions) {
        if let HealthPhase::Sleep { began, until } = self.phase
            && granted >= midpoint(began, until)
        {
            self.start_probing(began, until, now, actions);
        }
    }

    /// What a single answer tells beyond its class: when to return, and that the trouble is about
    /// limits.
    fn note_retry_after(
        &mut self,
        answer: AttemptResult,
        timely: bool,
        now: Micros,
        actions: &mut Actions,
    ) {
        if answer.class == Class::Success {
            if timely {
                self.retry_after_until = None;
            }
            return;
        }
        self.saw_429 |= answer.class == Class::Limited;
        let Some(wait) = effective_retry_after(answer.retry_after, self.settings.retry_after_floor)
        else {
            return;
        };
        let told = now + wait;
        self.retry_after_until = Some(self.retry_after_until.map_or(told, |old| old.max(told)));
        if let HealthPhase::Sleep { until, .. } = &mut self.phase
            && told > *until
        {
            *until = told;
            actions.push(Action::Close {
                age: Span::ZERO,
                closed_for: Some(wait),
                reopen: Reopen::Probe,
            });
        }
    }
}

impl HealthPhase {
    /// One evaluation: the rules of A3, A4, A6 and M9.
    fn evaluate(&mut self, facts: &Evaluation<'_>) -> Step {
        match (self, facts.settings.mode) {
            (
                HealthPhase::Normal {
                    high_ratio: over, ..
                },
                HealthMode::Adaptive,
            ) => {
                over.note(facts.reaches(facts.settings.p_throttle));
                let over = over.is_confirmed(facts.settings.confirm);
                facts
                    .consecutive_failures()
                    .or_else(|| {
                        facts.consecutive_429s(facts.settings.n_throttle, HealthState::Throttle)
                    })
                    .or(over.then_some((HealthState::Throttle, Reason::ErrRatio)))
            }
            (HealthPhase::Normal { .. }, HealthMode::Breaker) => facts.consecutive_failures(),
            (
                HealthPhase::Throttle(throttled),
                HealthMode::Adaptive | HealthMode::Breaker | HealthMode::Off,
            ) => throttled.evaluate(facts),
            (
                HealthPhase::HalfOpen(probing),
                HealthMode::Adaptive | HealthMode::Breaker | HealthMode::Off,
            ) => probing.evaluate(facts),
            (HealthPhase::Normal { .. }, HealthMode::Off)
            | (
                HealthPhase::Sleep { .. }
                | HealthPhase::Offline { .. }
                | HealthPhase::CacheOnly { .. },
                HealthMode::Adaptive | HealthMode::Breaker | HealthMode::Off,
            ) => None,
        }
    }
}

impl ThrottleState {
    fn evaluate(&mut self, facts: &Evaluation<'_>) -> Step {
        let settings = facts.settings;
        self.successes += u32::from(facts.timely && facts.class == Class::Success);
        self.low_ratio.note(!facts.reaches(settings.p_recover));
        self.high_ratio.note(facts.reaches(settings.p_sleep));
        if self.high_ratio.has_just_begun() {
            self.high_ratio_since = facts.now;
        }
        let lasts = facts.now.since(self.high_ratio_since) >= settings.p_sleep_for;
        let is_bad = self.high_ratio.is_confirmed(settings.confirm) && lasts;
        let is_well =
            self.successes >= settings.s_recover && self.low_ratio.is_confirmed(settings.confirm);
        facts
            .consecutive_429s(settings.n_cacheonly, HealthState::Sleep)
            .or_else(|| facts.consecutive_failures())
            .or(is_bad.then_some((HealthState::Sleep, Reason::ErrRatio)))
            .or(is_well.then_some((HealthState::HalfOpen, Reason::SuccessWindowOk)))
    }
}

impl ProbeState {
    fn evaluate(&mut self, facts: &Evaluation<'_>) -> Step {
        let settings = facts.settings;
        self.low_ratio.note(!facts.reaches(settings.p_probe));
        if facts.timely && facts.class.is_failure() {
            return Some((HealthState::Sleep, Reason::ProbeFailed));
        }
        self.successes += u32::from(facts.timely);
        let is_well = match settings.mode {
            HealthMode::Adaptive | HealthMode::Off => {
                self.successes >= settings.probe_success
                    && self.low_ratio.is_confirmed(settings.confirm)
            }
            HealthMode::Breaker => self.successes >= settings.success_threshold,
        };
        is_well.then_some((HealthState::Normal, Reason::ProbeOk))
    }
}

impl Evaluation<'_> {
    fn reaches(&self, share: Ppm) -> bool {
        self.window.reaches(share, self.reach)
    }

    fn consecutive_failures(&self) -> Step {
        let threshold = self.settings.failure_threshold?;
        (self.timely && self.failed_in_a_row >= threshold)
            .then_some((HealthState::Sleep, Reason::Failures))
    }

    fn consecutive_429s(&self, threshold: u32, to: HealthState) -> Step {
        (self.timely && self.limited_in_a_row >= threshold).then_some((to, Reason::Consec429))
    }
}
