//! What operators want (A5, A7).
//!
//! Promises: an order works in every state and every mode. Only `resume` ends `offline`.
//!
//! Never: trusts a provider that was failing just because somebody is impatient: `resume` probes
//! it now, `reset` is the way to say "I know better".

use super::phase::{Held, Phase, Runs, Slot};
use super::settings::Mode;
use super::{Action, Actions, Command, Health, Reason};
use crate::time::{Micros, Span};

impl Health {
    pub(super) fn ordered(&mut self, command: Command, now: Micros, actions: &mut Actions) {
        match command {
            Command::Offline => match self.phase {
                Phase::Offline { .. } => {}
                Phase::Normal { .. }
                | Phase::Throttle(_)
                | Phase::Sleep { .. }
                | Phase::HalfOpen(_)
                | Phase::CacheOnly { .. } => self.enter_offline(now, actions),
            },
            Command::CacheOnly { lasts } => {
                let ends = lasts.map(|lasts| now + lasts.max(Span::from_millis(1)));
                self.enter_cache_only(Reason::Operator, ends, now, actions);
            }
            Command::Resume => self.resume(now, actions),
            Command::Reset => self.reset(now, actions),
        }
    }

    pub(super) fn resume(&mut self, now: Micros, actions: &mut Actions) {
        let held = match &self.phase {
            Phase::Normal { .. } | Phase::Throttle(_) | Phase::HalfOpen(_) => return,
            Phase::Sleep { .. } => Held::Ailing,
            Phase::Offline { held } | Phase::CacheOnly { held, .. } => *held,
        };
        match (held, self.settings.mode) {
            (Held::Well, Mode::Adaptive | Mode::Breaker)
            | (Held::Well | Held::Ailing, Mode::Off) => {
                self.enter_normal(Reason::Operator, now, actions);
            }
            (Held::Ailing, Mode::Adaptive | Mode::Breaker) => {
                self.on_trial = false;
                self.fence = now;
                // Open first: a rest never ends earlier because a shorter one begins.
                actions.push(Action::Open);
                self.close(Some(Span::ZERO), actions);
                self.enter_half_open(Slot::Shared, Reason::Operator, now, actions);
            }
        }
    }

    fn reset(&mut self, now: Micros, actions: &mut Actions) {
        self.window.clear();
        self.failed_probes = 0;
        self.runs = Runs::default();
        self.told_until = None;
        match &mut self.phase {
            Phase::Offline { held } => *held = Held::Well,
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Sleep { .. }
            | Phase::HalfOpen(_)
            | Phase::CacheOnly { .. } => self.enter_normal(Reason::Operator, now, actions),
        }
    }
}
