//! The public status of a provider's health, as health state and as breaker state.
//!
//! Promises: the five health states and the three breaker states always agree: Throttle is closed,
//! Sleep and CacheOnly are open. Durations, never instants.
//!
//! Never: changes the state.

use super::pace::Rate;
use super::phase::HealthPhase;
use super::settings::{HealthMode, WhenBlocked};
use super::window::Counts;
use super::{Health, HealthState};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// The state of the circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breaker {
    /// Calls are sent.
    Closed,
    /// Calls are blocked.
    Open,
    /// A test call may go.
    HalfOpen,
}

/// Everything that status pages, metrics and log lines show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthStatus {
    /// One of the five states.
    pub state: HealthState,
    /// The same as a breaker state.
    pub breaker: Breaker,
    /// How long the state has lasted.
    pub since: Span,
    /// An operator set this state, and only `resume` or the operator's end time ends it. False for
    /// a CacheOnly without an end, because its cause is not stored.
    pub by_operator: bool,
    /// The remaining time of a Sleep; `None` = it is not asleep, or only `resume` ends it.
    pub sleep_remaining: Option<Span>,
    /// 429s in a row.
    pub consec429: u32,
    /// The error ratio.
    pub err_rate: Ppm,
    /// The current rate; `None` = no limit sets one.
    pub rate: Option<Rate>,
    /// The current concurrency limit; `None` = no limit sets one.
    pub sem: Option<u32>,
    /// Failures in a row.
    pub failure_count: u32,
    /// The counts of the window.
    pub counts: Counts,
    /// How long until calls are sent again, if known; otherwise zero.
    pub reset_in: Span,
}

/// Whether a call may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may go.
    Open,
    /// It waits for a probe slot.
    Probing,
    /// It may not go.
    Closed {
        /// Why.
        why: BlockReason,
        /// For how long; `None` = until an operator resumes it.
        remaining: Option<Span>,
        /// Whether it may wait for that.
        blocked: WhenBlocked,
    },
}

/// Why a call may not go; the `reason` of the rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    /// 503 `ProviderUnavailableError`.
    Sleep,
    /// 504 `NotInCache`.
    CacheOnly,
}

impl Health {
    /// The status at `now`.
    #[must_use]
    pub fn status(&self, now: Micros) -> HealthStatus {
        let bounds = self.settings.window_bounds();
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
            err_rate: self.window.ratio(bounds, now),
            rate: self.pace.rate.or(self.base.rate),
            sem: self.pace.concurrency.or(self.base.concurrency),
            failure_count: self.consecutive.failed,
            counts: self.window.counts(bounds, now),
            reset_in: self.remaining(now).unwrap_or(Span::ZERO),
        }
    }

    /// Whether a call may go at `now`.
    #[must_use]
    pub fn admission(&self, now: Micros) -> Admission {
        let remaining = self.remaining(now);
        match &self.phase {
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) => Admission::Open,
            HealthPhase::HalfOpen(_) => Admission::Probing,
            HealthPhase::Sleep { .. } => Admission::Closed {
                why: BlockReason::Sleep,
                remaining,
                blocked: match self.settings.mode {
                    HealthMode::Breaker => WhenBlocked::Reject,
                    HealthMode::Adaptive | HealthMode::Off => self.settings.when_blocked,
                },
            },
            HealthPhase::Offline { .. } => Admission::Closed {
                why: BlockReason::Sleep,
                remaining,
                blocked: WhenBlocked::Reject,
            },
            HealthPhase::CacheOnly { .. } => Admission::Closed {
                why: BlockReason::CacheOnly,
                remaining,
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
    /// The breaker state of this health state.
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

    /// M10: the message of a rejection.
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
