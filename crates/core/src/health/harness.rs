//! A test harness for the health state machine: virtual time, a log of the transitions, and short
//! methods for events.

use super::{
    Action, Actions, AttemptResult, BasePace, Class, Command, Health, HealthCount, HealthEvent,
    HealthMode, HealthScope, HealthSettings, HealthState, Pace, RampAfter, Rate, WhenBlocked,
};
use crate::ratio::Ppm;
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// A provider of 35 calls per second, 4 at a time, as in the document.
pub(super) fn base() -> BasePace {
    BasePace {
        rate: Some(Rate::per_second(35)),
        concurrency: Some(4),
    }
}

/// The document's settings: no failure threshold, a ramp after any outage, blocked = rejected.
pub(super) fn profile_a() -> HealthSettings {
    let mut settings = HealthSettings {
        failure_threshold: None,
        when_blocked: WhenBlocked::Reject,
        scope: HealthScope::Provider,
        count: HealthCount::Attempt,
        sleep_first: Span::from_secs(30),
        cooldown_factor: Ppm(2_000_000),
        ..HealthSettings::default()
    };
    settings.ramp.after = RampAfter::Any;
    settings
}

/// The defaults, with the document's sleeps: 30 s, doubled.
pub(super) fn long_sleeps() -> HealthSettings {
    HealthSettings {
        sleep_first: Span::from_secs(30),
        cooldown_factor: Ppm(2_000_000),
        ..HealthSettings::default()
    }
}

pub(super) fn breaker() -> HealthSettings {
    HealthSettings {
        mode: HealthMode::Breaker,
        scope: HealthScope::Provider,
        count: HealthCount::Attempt,
        ..HealthSettings::default()
    }
}

pub(super) struct Harness {
    pub(super) health: Health,
    pub(super) now: Micros,
    /// `Normal -> Throttle (consec_429)`, one per transition.
    pub(super) log: Vec<String>,
    pub(super) last: Actions,
    /// All actions until now.
    pub(super) all: Vec<Action>,
}

impl Harness {
    pub(super) fn new(settings: HealthSettings) -> Harness {
        let now = Micros(1_000_000_000);
        Harness {
            health: Health::new(settings, base(), now).unwrap(),
            now,
            log: Vec::new(),
            last: Actions::new(),
            all: Vec::new(),
        }
    }

    pub(super) fn on(&mut self, event: HealthEvent) -> &mut Harness {
        let actions = self.health.on(event, self.now);
        self.record(actions);
        self
    }

    pub(super) fn record(&mut self, actions: Actions) {
        for action in &actions {
            if let Action::Transition { from, to, reason } = action {
                let line = format!("{} -> {} ({reason})", from.log_name(), to.log_name());
                self.log.push(line);
            }
        }
        self.all.extend(actions.iter().copied());
        self.last = actions;
    }

    /// Results of calls that were granted just now; 10 ms pass with each.
    pub(super) fn results(&mut self, class: Class, times: u32) -> &mut Harness {
        for _ in 0..times {
            self.now += Span::from_millis(10);
            self.result(class, self.now - Span::from_millis(10), None);
        }
        self
    }

    pub(super) fn result(
        &mut self,
        class: Class,
        granted: Micros,
        retry_after: Option<Span>,
    ) -> &mut Harness {
        self.on(HealthEvent::Completed(AttemptResult {
            retry_after,
            ..AttemptResult::new(class, granted)
        }))
    }

    pub(super) fn limited_for(&mut self, secs: u64) -> &mut Harness {
        let retry_after = Some(Span::from_secs(secs));
        self.result(Class::Limited, self.now, retry_after)
    }

    pub(super) fn command(&mut self, command: Command) -> &mut Harness {
        self.on(HealthEvent::Operator(command))
    }

    pub(super) fn view(&mut self, view: ScopeView) -> &mut Harness {
        self.on(HealthEvent::ScopeChanged(view))
    }

    /// Advances the time; the machine gets a tick when a timer is due, and never otherwise.
    pub(super) fn advance(&mut self, span: Span) -> &mut Harness {
        let end = self.now + span;
        while let Some(tick) = self.health.next_tick().filter(|&tick| tick <= end) {
            self.now = self.now.max(tick);
            self.on(HealthEvent::Tick);
        }
        self.now = end;
        self
    }

    pub(super) fn advance_secs(&mut self, secs: u64) -> &mut Harness {
        self.advance(Span::from_secs(secs))
    }

    pub(super) fn state(&self) -> HealthState {
        self.health.state()
    }

    pub(super) fn pace(&self) -> Pace {
        self.health.wanted_pace()
    }

    /// How long the last actions close the scope; `Some(None)` = until opened.
    pub(super) fn closed_for(&self) -> Option<Option<Span>> {
        self.last.iter().rev().find_map(|action| match action {
            Action::Close { closed_for, .. } => Some(*closed_for),
            Action::Open
            | Action::Failed { .. }
            | Action::PathFailed { .. }
            | Action::ClosePath { .. }
            | Action::OpenPath { .. }
            | Action::Succeeded
            | Action::Pace(_)
            | Action::Transition { .. } => None,
        })
    }

    pub(super) fn opens(&self) -> bool {
        self.last.contains(&Action::Open)
    }

    /// Sleep by five failures in a row.
    pub(super) fn asleep(settings: HealthSettings) -> Harness {
        let mut harness = Harness::new(settings);
        harness.results(Class::ServerError, 5);
        assert_eq!(harness.state(), HealthState::Sleep);
        harness
    }

    /// HalfOpen after such a Sleep.
    pub(super) fn half_open(settings: HealthSettings) -> Harness {
        let mut harness = Harness::asleep(settings);
        harness.advance(harness.health.status(harness.now).reset_in);
        assert_eq!(harness.state(), HealthState::HalfOpen);
        harness
    }

    /// Throttle by three 429s in a row.
    pub(super) fn throttled(settings: HealthSettings) -> Harness {
        let mut harness = Harness::new(settings);
        harness.results(Class::Limited, 3);
        assert_eq!(harness.state(), HealthState::Throttle);
        harness
    }
}
