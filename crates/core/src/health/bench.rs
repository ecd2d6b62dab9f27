//! A machine on the test bench: virtual time, a log of its transitions, words instead of structs.

use super::{
    Action, Actions, Answer, Base, Class, Command, Event, Health, HealthSettings, Mode, Pace,
    RampAfter, Rate, State, WhenBlocked,
};
use crate::scope::ScopeView;
use crate::time::{Micros, Span};

/// A provider of 35 calls per second, 4 at a time, as in the document.
pub(super) fn base() -> Base {
    Base {
        rate: Some(Rate::per_second(35)),
        concurrency: Some(4),
    }
}

/// The document's settings: no failure threshold, a ramp after any trouble, blocked = refused.
pub(super) fn profile_a() -> HealthSettings {
    let mut settings = HealthSettings {
        failure_threshold: None,
        when_blocked: WhenBlocked::Reject,
        ..HealthSettings::default()
    };
    settings.ramp.after = RampAfter::Any;
    settings
}

pub(super) fn breaker() -> HealthSettings {
    HealthSettings {
        mode: Mode::Breaker,
        ..HealthSettings::default()
    }
}

pub(super) struct Bench {
    pub(super) health: Health,
    pub(super) now: Micros,
    /// `Normal -> Throttle (consec_429)`, one per transition.
    pub(super) log: Vec<String>,
    pub(super) last: Actions,
    /// Everything it wanted done.
    pub(super) all: Vec<Action>,
}

impl Bench {
    pub(super) fn new(settings: HealthSettings) -> Bench {
        let now = Micros(1_000_000_000);
        Bench {
            health: Health::new(settings, base(), now).unwrap(),
            now,
            log: Vec::new(),
            last: Actions::new(),
            all: Vec::new(),
        }
    }

    pub(super) fn on(&mut self, event: Event) -> &mut Bench {
        let actions = self.health.on(event, self.now);
        self.note(actions);
        self
    }

    pub(super) fn note(&mut self, actions: Actions) {
        for action in &actions {
            if let Action::Transition { from, to, reason } = action {
                let line = format!("{} -> {} ({reason})", from.name(), to.name());
                self.log.push(line);
            }
        }
        self.all.extend(actions.iter().copied());
        self.last = actions;
    }

    /// Results of calls that were granted just now; 10 ms pass with each.
    pub(super) fn answers(&mut self, class: Class, times: u32) -> &mut Bench {
        for _ in 0..times {
            self.now += Span::from_millis(10);
            self.answer(class, self.now - Span::from_millis(10), None);
        }
        self
    }

    pub(super) fn answer(
        &mut self,
        class: Class,
        granted: Micros,
        retry_after: Option<Span>,
    ) -> &mut Bench {
        self.on(Event::Answered(Answer {
            class,
            granted,
            retry_after,
        }))
    }

    pub(super) fn refused_for(&mut self, secs: u64) -> &mut Bench {
        let retry_after = Some(Span::from_secs(secs));
        self.answer(Class::Refused, self.now, retry_after)
    }

    pub(super) fn order(&mut self, command: Command) -> &mut Bench {
        self.on(Event::Operator(command))
    }

    pub(super) fn saw(&mut self, view: ScopeView) -> &mut Bench {
        self.on(Event::Shared(view))
    }

    /// Time passes; the machine is ticked when it wants to be, and never otherwise.
    pub(super) fn pass(&mut self, span: Span) -> &mut Bench {
        let end = self.now + span;
        while let Some(tick) = self.health.next_tick().filter(|&tick| tick <= end) {
            self.now = self.now.max(tick);
            self.on(Event::Tick);
        }
        self.now = end;
        self
    }

    pub(super) fn secs(&mut self, secs: u64) -> &mut Bench {
        self.pass(Span::from_secs(secs))
    }

    pub(super) fn state(&self) -> State {
        self.health.state()
    }

    pub(super) fn pace(&self) -> Pace {
        self.health.wanted_pace()
    }

    /// How long the last actions close the scope; `Some(None)` = until opened.
    pub(super) fn rest(&self) -> Option<Option<Span>> {
        self.last.iter().rev().find_map(|action| match action {
            Action::Close { rest, .. } => Some(*rest),
            Action::Open
            | Action::Failed { .. }
            | Action::Well
            | Action::Pace(_)
            | Action::Transition { .. } => None,
        })
    }

    pub(super) fn opens(&self) -> bool {
        self.last.contains(&Action::Open)
    }

    /// Sleep by five failures in a row.
    pub(super) fn asleep(settings: HealthSettings) -> Bench {
        let mut bench = Bench::new(settings);
        bench.answers(Class::ServerError, 5);
        assert_eq!(bench.state(), State::Sleep);
        bench
    }

    /// HalfOpen after such a Sleep.
    pub(super) fn half_open(settings: HealthSettings) -> Bench {
        let mut bench = Bench::asleep(settings);
        bench.pass(bench.health.status(bench.now).reset_in);
        assert_eq!(bench.state(), State::HalfOpen);
        bench
    }

    /// Throttle by three refusals in a row.
    pub(super) fn throttled(settings: HealthSettings) -> Bench {
        let mut bench = Bench::new(settings);
        bench.answers(Class::Refused, 3);
        assert_eq!(bench.state(), State::Throttle);
        bench
    }
}
