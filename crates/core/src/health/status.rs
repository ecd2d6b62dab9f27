//! What the machine looks like from outside, in both vocabularies.
//!
//! Promises: the five states and the breaker's three words always agree: Throttle shows closed,
//! Sleep and CacheOnly show open. Lengths of time, never instants.
//!
//! Never: changes the machine.

use super::pace::Rate;
use super::phase::HealthPhase;
use super::settings::{HealthMode, WhenBlocked};
use super::window::Counts;
use super::{Health, HealthState};
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
pub struct HealthStatus {
    /// One of the five states.
    pub state: HealthState,
    /// The same in the breaker's words.
    pub breaker: Breaker,
    /// How long the state has lasted.
    pub since: Span,
    /// An operator ordered it, and only `resume` or the end that the order named ends it. Of CacheOnly
    /// without an end nobody remembers whose word it was: false.
    pub by_operator: bool,
    /// The rest of a Sleep; `None` = it is not asleep, or only `resume` ends it.
    pub sleep_remaining: Option<Span>,
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
pub enum Admission {
    /// It may go.
    Open,
    /// It waits for its turn to probe.
    Probing,
    /// It may not go.
    Closed {
        /// Why.
        why: BlockReason,
        /// For how long; `None` = until somebody says so.
        remaining: Option<Span>,
        /// Whether it may wait for that.
        blocked: WhenBlocked,
    },
}

/// Why a call may not go; the `reason` of the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    /// 503 `ProviderUnavailableError`.
    Sleep,
    /// 504 `NotInCache`.
    CacheOnly,
}

impl Health {
    /// What it looks like at `now`.
    #[must_use]
    pub fn status(&self, now: Micros) -> HealthStatus {
        let reach = self.settings.window_bounds();
        let sleep_left = match &self.phase {
            HealthPhase::Sleep { until, .. } => Some(until.since(now)),
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Offline { .. }
            | HealthPhase::HalfOpen(_)
            | HealthPhase::CacheOnly { .. } => None,
        };
        HealthStatus {
            state: self.state(),
            breaker: self.state().breaker(),
            since: now.since(self.since),
            by_operator: match &self.phase {
                HealthPhase::Offline { .. } => true,
                HealthPhase::CacheOnly { ends, .. } => ends.is_some(),
                HealthPhase::Normal { .. }
                | HealthPhase::Throttle(_)
                | HealthPhase::Sleep { .. }
                | HealthPhase::HalfOpen(_) => false,
            },
            sleep_remaining: sleep_left,
            consec429: self.consecutive.limited,
            err_rate: self.window.ratio(reach, now),
            rate: self.pace.rate.or(self.base.rate),
            sem: self.pace.concurrency.or(self.base.concurrency),
            failure_count: self.consecutive.failed,
            counts: self.window.counts(reach, now),
            reset_in: self.remaining(now).unwrap_or(Span::ZERO),
        }
    }

    /// What a call meets at `now`.
    #[must_use]
    pub fn admission(&self, now: Micros) -> Admission {
        let left = self.remaining(now);
        match &self.phase {
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) => Admission::Open,
            HealthPhase::HalfOpen(_) => Admission::Probing,
            HealthPhase::Sleep { .. } => Admission::Closed {
                why: BlockReason::Sleep,
                remaining: left,
                blocked: match self.settings.mode {
                    HealthMode::Breaker => WhenBlocked::Reject,
                    HealthMode::Adaptive | HealthMode::Off => self.settings.when_blocked,
                },
            },
            HealthPhase::Offline { .. } => Admission::Closed {
                why: BlockReason::Sleep,
                remaining: left,
                blocked: WhenBlocked::Reject,
            },
            HealthPhase::CacheOnly { .. } => Admission::Closed {
                why: BlockReason::CacheOnly,
                remaining: left,
                blocked: WhenBlocked::Reject,
            },
        }
    }

    fn remaining(&self, now: Micros) -> Option<Span> {
        match &self.phase {
            HealthPhase::Sleep { until, .. } => Some(until.since(now)),
            HealthPhase::CacheOnly { .. } => self.next_tick().map(|tick| tick.since(now)),
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Offline { .. }
            | HealthPhase::HalfOpen(_) => None,
        }
    }
}

impl HealthState {
    /// The breaker's word for it.
    #[must_use]
    pub fn breaker(self) -> Breaker {
        match self {
            HealthState::Normal | HealthState::Throttle => Breaker::Closed,
            HealthState::Sleep | HealthState::CacheOnly => Breaker::Open,
            HealthState::HalfOpen => Breaker::HalfOpen,
        }
    }
}

impl Breaker {
    /// As in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
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
