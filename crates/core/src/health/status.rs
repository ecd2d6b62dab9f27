//! What the machine looks like from outside, in both vocabularies.
//!
//! Promises: the five states and the breaker's three words always agree: Throttle shows closed,
//! Sleep and CacheOnly show open. Lengths of time, never instants.
//!
//! Never: changes the machine.

use super::pace::Rate;
use super::phase::Phase;
use super::settings::{Mode, WhenBlocked};
use super::window::Counts;
use super::{Health, State};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// The breaker's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breaker {
    /// Calls flow.
    Closed,
    /// Calls are kept back.
    Open,
    /// A test call may go.
    HalfOpen,
}

/// Everything that status pages, metrics and log lines show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// One of the five states.
    pub state: State,
    /// The same in the breaker's words.
    pub breaker: Breaker,
    /// How long the state has lasted.
    pub since: Span,
    /// An operator ordered it, and only `resume` or the end that the order named ends it. Of CacheOnly
    /// without an end nobody remembers whose word it was: false.
    pub ordered: bool,
    /// The rest of a Sleep; `None` = it is not asleep, or only `resume` ends it.
    pub sleep_left: Option<Span>,
    /// 429s in a row.
    pub consec429: u32,
    /// The error ratio.
    pub err_rate: Ppm,
    /// The rate in force; `None` = no limit gives one.
    pub rate: Option<Rate>,
    /// The calls at a time in force; `None` = no limit gives one.
    pub sem: Option<u32>,
    /// Failures in a row.
    pub failure_count: u32,
    /// What the window holds.
    pub counts: Counts,
    /// How long until calls are let through again, as far as that is known; zero where it is not.
    pub reset_in: Span,
}

/// What a call meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// It may go.
    Open,
    /// It waits for its turn to probe.
    Probing,
    /// It may not go.
    Closed {
        /// Why.
        why: Why,
        /// For how long; `None` = until somebody says so.
        left: Option<Span>,
        /// Whether it may wait for that.
        blocked: WhenBlocked,
    },
}

/// Why a call may not go; the `reason` of the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// 503 `ProviderUnavailableError`.
    Sleep,
    /// 504 `NotInCache`.
    CacheOnly,
}

impl Health {
    /// What it looks like at `now`.
    #[must_use]
    pub fn status(&self, now: Micros) -> Status {
        let reach = self.settings.reach();
        let sleep_left = match &self.phase {
            Phase::Sleep { until, .. } => Some(until.since(now)),
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Offline { .. }
            | Phase::HalfOpen(_)
            | Phase::CacheOnly { .. } => None,
        };
        Status {
            state: self.state(),
            breaker: self.state().breaker(),
            since: now.since(self.since),
            ordered: match &self.phase {
                Phase::Offline { .. } => true,
                Phase::CacheOnly { ends, .. } => ends.is_some(),
                Phase::Normal { .. }
                | Phase::Throttle(_)
                | Phase::Sleep { .. }
                | Phase::HalfOpen(_) => false,
            },
            sleep_left,
            consec429: self.runs.refused,
            err_rate: self.window.ratio(reach, now),
            rate: self.pace.rate.or(self.base.rate),
            sem: self.pace.concurrency.or(self.base.concurrency),
            failure_count: self.runs.failed,
            counts: self.window.counts(reach, now),
            reset_in: self.left(now).unwrap_or(Span::ZERO),
        }
    }

    /// What a call meets at `now`.
    #[must_use]
    pub fn door(&self, now: Micros) -> Door {
        let left = self.left(now);
        match &self.phase {
            Phase::Normal { .. } | Phase::Throttle(_) => Door::Open,
            Phase::HalfOpen(_) => Door::Probing,
            Phase::Sleep { .. } => Door::Closed {
                why: Why::Sleep,
                left,
                blocked: match self.settings.mode {
                    Mode::Breaker => WhenBlocked::Reject,
                    Mode::Adaptive | Mode::Off => self.settings.when_blocked,
                },
            },
            Phase::Offline { .. } => Door::Closed {
                why: Why::Sleep,
                left,
                blocked: WhenBlocked::Reject,
            },
            Phase::CacheOnly { .. } => Door::Closed {
                why: Why::CacheOnly,
                left,
                blocked: WhenBlocked::Reject,
            },
        }
    }

    fn left(&self, now: Micros) -> Option<Span> {
        match &self.phase {
            Phase::Sleep { until, .. } => Some(until.since(now)),
            Phase::CacheOnly { .. } => self.next_tick().map(|tick| tick.since(now)),
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Offline { .. }
            | Phase::HalfOpen(_) => None,
        }
    }
}

impl State {
    /// The breaker's word for it.
    #[must_use]
    pub fn breaker(self) -> Breaker {
        match self {
            State::Normal | State::Throttle => Breaker::Closed,
            State::Sleep | State::CacheOnly => Breaker::Open,
            State::HalfOpen => Breaker::HalfOpen,
        }
    }
}

impl Breaker {
    /// As in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Breaker::Closed => "closed",
            Breaker::Open => "open",
            Breaker::HalfOpen => "half_open",
        }
    }

    /// M10: the message of a refusal.
    #[must_use]
    pub fn message(self, provider: &str) -> String {
        let word = match self {
            Breaker::Closed => "closed",
            Breaker::Open => "open",
            Breaker::HalfOpen => "half-open",
        };
        format!("Circuit breaker is {word} for {provider}")
    }
}
