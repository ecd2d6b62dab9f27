//! Operators' commands (A5, A7).
//!
//! Promises: a command works in every state and every mode. Only `resume` ends `offline`; a pause
//! may also have an end time.
//!
//! Never: lets `resume` skip the probes of a failing provider: `resume` probes it now, `reset`
//! declares it healthy.

use super::phase::{BeforeHold, ConsecutiveCounts, HealthPhase, ProbeSlot};
use super::settings::HealthMode;
use super::{Action, Actions, Command, Health, Reason};
use crate::time::{Micros, Span};

impl Health {
    pub(super) fn on_command(&mut self, command: Command, now: Micros, actions: &mut Actions) {
        match command {
            Command::Offline => match self.phase {
                HealthPhase::Offline { pause: None, .. } => {}
                HealthPhase::Offline { pause: Some(_), .. }
                | HealthPhase::Normal { .. }
                | HealthPhase::Throttle(_)
                | HealthPhase::Sleep { .. }
                | HealthPhase::HalfOpen(_)
                | HealthPhase::CacheOnly { .. } => self.enter_offline(now, actions),
            },
            Command::Pause { lasts } => {
                let ends = lasts.map(|lasts| now + lasts.max(Span::from_millis(1)));
                self.enter_pause(ends, now, actions);
            }
            Command::CacheOnly { lasts } => {
                let ends = lasts.map(|lasts| now + lasts.max(Span::from_millis(1)));
                self.enter_cache_only(Reason::Operator, ends, now, actions);
            }
            Command::Resume => self.resume(now, actions),
            Command::Reset => self.reset(now, actions),
        }
    }

    pub(super) fn resume(&mut self, now: Micros, actions: &mut Actions) {
        self.open_paths(Reason::Operator, now, actions);
        let before = match &self.phase {
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) | HealthPhase::HalfOpen(_) => {
                return;
            }
            HealthPhase::Sleep { .. } => BeforeHold::Unhealthy,
            HealthPhase::Offline { before, .. } | HealthPhase::CacheOnly { before, .. } => *before,
        };
        match (before, self.settings.mode) {
            (BeforeHold::Healthy, HealthMode::Adaptive | HealthMode::Breaker)
            | (BeforeHold::Healthy | BeforeHold::Unhealthy, HealthMode::Off) => {
                self.enter_normal(Reason::Operator, now, actions);
            }
            (BeforeHold::Unhealthy, HealthMode::Adaptive | HealthMode::Breaker) => {
                self.auto_recovering = false;
                self.valid_from = now;
                // Open first: a shorter close never shortens the current one.
                actions.push(Action::Open);
                self.close(Some(Span::ZERO), actions);
                self.enter_half_open(ProbeSlot::Shared, Reason::Operator, now, actions);
            }
        }
    }

    fn reset(&mut self, now: Micros, actions: &mut Actions) {
        self.window.clear();
        self.failed_probes = 0;
        self.consecutive = ConsecutiveCounts::default();
        self.retry_after_until = None;
        self.open_paths(Reason::Operator, now, actions);
        match &mut self.phase {
            HealthPhase::Offline { before, .. } => *before = BeforeHold::Healthy,
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::CacheOnly { .. } => self.enter_normal(Reason::Operator, now, actions),
        }
    }
}
