//! How the results of attempts change the state.
//!
//! Promises: every class is handled in every phase. Late results (granted before the scope closed)
//! count in the ratio only.
//!
//! Never: reads a timer or an operator's command.

use super::class::Class;
use super::phase::{HealthPhase, ProbeSlot, ProbeState, ThrottleState};
use super::settings::{HealthMode, HealthSettings};
use super::transitions::midpoint;
use super::window::{ResultWindow, WindowBounds};
use super::{Action, Actions, AttemptResult, Health, HealthState, Reason};
use crate::ask::{PathTag, Reopen};
use crate::backoff::effective_retry_after;
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// How much later than other paths the path that failed last is probed, at most: other calls that
/// wait go within this time, and if none waits, its own callers do not wait longer.
const HEAD_START_MAX: Span = Span::from_secs(1);

/// The next state after a result, if it changes.
type Step = Option<(HealthState, Reason)>;

/// The input of an evaluation, in addition to the phase.
struct Evaluation<'a> {
    settings: &'a HealthSettings,
    window: &'a ResultWindow,
    bounds: WindowBounds,
    class: Class,
    /// The path that the result is about.
    path: Option<PathTag>,
    /// The result is current, so consecutive counts may have reached a threshold.
    timely: bool,
    limited_in_a_row: u32,
    failed_in_a_row: u32,
    now: Micros,
}

impl Health {
    /// `current`: no cool-down has closed its scope since it was granted.
    pub(super) fn on_result(
        &mut self,
        result: AttemptResult,
        current: bool,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.wake_if_granted(result.granted, now, actions);
        let bounds = self.settings.window_bounds();
        let (path, counts) = (self.path_of(result), !self.is_counted_already(result));
        if counts {
            self.window.add(result.class, path, bounds, now);
        }
        let timely = current && counts && result.granted >= self.valid_from;
        if result.class == Class::Other {
            self.path_probe_ended(result.path, result.granted, actions);
            return self.probe_ended(result.granted, now, actions);
        }
        let failed_before = self.consecutive.failed;
        if timely {
            let enough = self.settings.failure_threshold;
            self.consecutive.note(result.class, path, enough);
        }
        self.note_retry_after(result, timely, now, actions);
        self.on_path_result(result, timely, now, actions);
        let input = Evaluation {
            settings: &self.settings,
            window: &self.window,
            bounds,
            class: result.class,
            path,
            timely,
            limited_in_a_row: self.consecutive.limited,
            failed_in_a_row: self.consecutive.failed,
            now,
        };
        match self.phase.evaluate(&input) {
            Some((to, reason)) => {
                self.enter(to, reason, now, actions);
                self.let_others_probe_first(path, now, actions);
            }
            None => self.probe_ended(result.granted, now, actions),
        }
        if timely {
            self.report_to_ledger((result.class, path), failed_before, now, actions);
        }
    }

    /// All processes count failures in a row together: each reports its own failures to the ledger.
    /// It also counts them itself, so that losing the store changes nothing for one process.
    fn report_to_ledger(
        &self,
        (class, path): (Class, Option<PathTag>),
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
            let closed_for = self.sleep_length(now);
            actions.push(Action::Failed {
                in_a_row,
                closed_for,
                path,
            });
        } else if failed_before > 0 {
            actions.push(Action::Succeeded);
        }
    }

    /// The provider sleeps because of this path and others: calls to other paths probe first, if
    /// there have been any (A6).
    fn let_others_probe_first(
        &mut self,
        path: Option<PathTag>,
        now: Micros,
        actions: &mut Actions,
    ) {
        if let (HealthPhase::Sleep { until, .. }, Some(path)) = (&self.phase, path)
            && self.window.has_other_path(path)
        {
            let head_start = (self.probe_gap() + self.probe_gap()).min(HEAD_START_MAX);
            self.close_path(path, until.since(now) + head_start, now, actions);
        }
    }

    /// A permit was granted. With several concurrent probes the next may follow at once.
    pub(super) fn on_granted(&mut self, now: Micros, actions: &mut Actions) {
        self.wake_if_granted(now, now, actions);
        let closed_for = Some(self.probe_gap());
        let HealthPhase::HalfOpen(probing) = &mut self.phase else {
            return;
        };
        probing.in_flight = probing.in_flight.saturating_add(1);
        let has_room = probing.in_flight < self.settings.probe_concurrency;
        if probing.slot == ProbeSlot::Shared && has_room {
            actions.push(Action::Close {
                age: Span::ZERO,
                closed_for,
                reopen: Reopen::Probe,
            });
        }
    }

    /// An attempt ended without a result.
    pub(super) fn on_dropped(
        &mut self,
        path: Option<PathTag>,
        granted: Micros,
        now: Micros,
        actions: &mut Actions,
    ) {
        self.wake_if_granted(granted, now, actions);
        self.path_probe_ended(path, granted, actions);
        self.probe_ended(granted, now, actions);
    }

    /// A probe that changed no state frees its slot for the next one, which goes `1 / probe_rate`
    /// after it.
    fn probe_ended(&mut self, granted: Micros, now: Micros, actions: &mut Actions) {
        let closed_for = Some(self.probe_gap());
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
                closed_for,
                reopen: Reopen::Probe,
            });
        }
    }

    /// The ledger granted a call in the second half of our sleep: by its clock the sleep is over,
    /// and the call is the probe. Otherwise its slot would stay occupied until it timed out.
    fn wake_if_granted(&mut self, granted: Micros, now: Micros, actions: &mut Actions) {
        if let HealthPhase::Sleep { began, until } = self.phase
            && granted >= midpoint(began, until)
        {
            self.start_probing(began, until, now, actions);
        }
    }

    /// Stores what a single result says beyond its class: its `Retry-After`, and that the outage is
    /// about limits.
    fn note_retry_after(
        &mut self,
        result: AttemptResult,
        timely: bool,
        now: Micros,
        actions: &mut Actions,
    ) {
        if result.class == Class::Success {
            if timely {
                self.retry_after_until = None;
            }
            return;
        }
        self.saw_429 |= result.class == Class::Limited;
        let Some(wait) = effective_retry_after(result.retry_after, self.settings.retry_after_floor)
        else {
            return;
        };
        let retry_at = now + wait;
        self.retry_after_until = Some(
            self.retry_after_until
                .map_or(retry_at, |old| old.max(retry_at)),
        );
        if let HealthPhase::Sleep { until, .. } = &mut self.phase
            && retry_at > *until
        {
            *until = retry_at;
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
    fn evaluate(&mut self, input: &Evaluation<'_>) -> Step {
        match (self, input.settings.mode) {
            (
                HealthPhase::Normal {
                    high_ratio: over, ..
                },
                HealthMode::Adaptive,
            ) => {
                over.note(input.reaches(input.settings.p_throttle));
                let over = over.is_confirmed(input.settings.confirm);
                input
                    .consecutive_failures()
                    .or_else(|| {
                        input.consecutive_429s(input.settings.n_throttle, HealthState::Throttle)
                    })
                    .or(over.then_some((HealthState::Throttle, Reason::ErrRatio)))
            }
            (HealthPhase::Normal { .. }, HealthMode::Breaker) => input.consecutive_failures(),
            (
                HealthPhase::Throttle(throttled),
                HealthMode::Adaptive | HealthMode::Breaker | HealthMode::Off,
            ) => throttled.evaluate(input),
            (
                HealthPhase::HalfOpen(probing),
                HealthMode::Adaptive | HealthMode::Breaker | HealthMode::Off,
            ) => probing.evaluate(input),
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
    fn evaluate(&mut self, input: &Evaluation<'_>) -> Step {
        let settings = input.settings;
        self.successes += u32::from(input.timely && input.class == Class::Success);
        self.low_ratio.note(!input.reaches(settings.p_recover));
        self.high_ratio.note(input.reaches(settings.p_sleep));
        if self.high_ratio.has_just_begun() {
            self.high_ratio_since = input.now;
        }
        let lasts = input.now.since(self.high_ratio_since) >= settings.p_sleep_for;
        let is_bad = self.high_ratio.is_confirmed(settings.confirm) && lasts;
        let is_well =
            self.successes >= settings.s_recover && self.low_ratio.is_confirmed(settings.confirm);
        input
            .consecutive_429s(settings.n_cacheonly, HealthState::Sleep)
            .or_else(|| input.consecutive_failures())
            .or(is_bad.then_some((HealthState::Sleep, Reason::ErrRatio)))
            .or(is_well.then_some((HealthState::HalfOpen, Reason::SuccessWindowOk)))
    }
}

impl ProbeState {
    fn evaluate(&mut self, input: &Evaluation<'_>) -> Step {
        let settings = input.settings;
        self.low_ratio.note(!input.reaches(settings.p_probe));
        if input.timely && input.class.is_failure() {
            // Other paths work: this one is closed on its own.
            let is_elsewhere = input.path.is_some() && self.succeeded_on.is_some();
            if is_elsewhere && self.succeeded_on != input.path {
                // Unless several fail.
                let several = input.consecutive_failures();
                return several.map(|(to, _)| (to, Reason::ProbeFailed));
            }
            return Some((HealthState::Sleep, Reason::ProbeFailed));
        }
        if input.timely {
            self.successes += 1;
            self.succeeded_on = input.path;
        }
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
        self.window.reaches(share, self.bounds)
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
