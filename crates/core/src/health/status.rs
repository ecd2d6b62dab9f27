//! The public status of a provider's health, as health state and as breaker state.
//!
//! Promises: the five health states and the three breaker states always agree: Throttle is closed,
//! Sleep and CacheOnly are open. Durations, never instants.
//!
//! Never: changes the state.

use super::phase::HealthPhase;
use super::settings::{HealthMode, WhenBlocked};
use super::window::Counts;
use super::{Health, HealthState};
use crate::ask::PathTag;
use crate::rate::Rate;
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
    /// Which command set it.
    pub hold: Option<OperatorHold>,
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

/// An operator's command that holds a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorHold {
    /// Calls wait.
    Paused,
    /// Calls are rejected.
    Offline,
    /// Responses come from the cache.
    CacheOnly,
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
    /// The status at `now`. If calls go to one path only and that is closed, it is the status of
    /// the provider.
    #[must_use]
    pub fn status(&self, now: Micros) -> HealthStatus {
        self.status_on(self.only_path, now)
    }

    /// The status that a call to this path meets.
    #[must_use]
    pub fn status_on(&self, path: Option<PathTag>, now: Micros) -> HealthStatus {
        let status = self.provider_status(now);
        match (status.breaker, self.closed_path(path, now)) {
            (Breaker::Closed, Some((state, remaining, failures))) => HealthStatus {
                state,
                breaker: state.breaker(),
                sleep_remaining: remaining,
                failure_count: failures,
                reset_in: remaining.unwrap_or(Span::ZERO),
                ..status
            },
            (Breaker::Closed, None) | (Breaker::Open | Breaker::HalfOpen, _) => status,
        }
    }

    fn provider_status(&self, now: Micros) -> HealthStatus {
        let bounds = self.settings.window_bounds();
        let sleep_remaining = match &self.phase {
            HealthPhase::Sleep { until, .. } => Some(until.since(now)),
            HealthPhase::Offline { pause, .. } => {
                let ends = pause.and_then(|pause| pause.ends);
                ends.map(|ends| ends.since(now))
            }
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::HalfOpen(_)
            | HealthPhase::CacheOnly { .. } => None,
        };
        HealthStatus {
            state: self.phase.state(),
            breaker: self.phase.state().breaker(),
            since: now.since(self.since),
            by_operator: self.hold().is_some(),
            hold: self.hold(),
            sleep_remaining,
            consec429: self.consecutive.limited,
            err_rate: self.window.ratio(bounds, now),
            rate: self.pace.rate.or(self.base.rate),
            sem: self.pace.concurrency.or(self.base.concurrency),
            failure_count: self.consecutive.failed,
            counts: self.window.counts(bounds, now),
            reset_in: self.remaining(now).unwrap_or(Span::ZERO),
        }
    }

    /// Whether a call to this path may go at `now`.
    #[must_use]
    pub fn admission_on(&self, path: Option<PathTag>, now: Micros) -> Admission {
        let provider = self.admission(now);
        match (provider, self.closed_path(path, now)) {
            (Admission::Open, Some((_, Some(remaining), _))) => Admission::Closed {
                why: BlockReason::Sleep,
                remaining: Some(remaining),
                blocked: self.settings.when_blocked,
            },
            (Admission::Open, Some((_, None, _))) => Admission::Probing,
            (Admission::Open, None) | (Admission::Probing | Admission::Closed { .. }, _) => {
                provider
            }
        }
    }

    /// Whether a call may go at `now`, as far as the whole provider decides.
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
            HealthPhase::Offline { pause, .. } => Admission::Closed {
                why: BlockReason::Sleep,
                remaining,
                blocked: match pause {
                    Some(_) => WhenBlocked::Wait,
                    None => WhenBlocked::Reject,
                },
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
            HealthPhase::CacheOnly { .. } | HealthPhase::Offline { .. } => {
                self.phase_tick().map(|tick| tick.since(now))
            }
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) | HealthPhase::HalfOpen(_) => {
                None
            }
        }
    }

    /// The command of an operator that holds it.
    fn hold(&self) -> Option<OperatorHold> {
        match &self.phase {
            HealthPhase::Offline { pause: Some(_), .. } => Some(OperatorHold::Paused),
            HealthPhase::Offline { pause: None, .. } => Some(OperatorHold::Offline),
            HealthPhase::CacheOnly { ends: Some(_), .. } => Some(OperatorHold::CacheOnly),
            HealthPhase::CacheOnly { ends: None, .. }
            | HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_) => None,
        }
    }
}

impl HealthStatus {
    /// The ledger rejects calls for this long, whatever this process knows: another one may have
    /// closed the scope.
    #[must_use]
    pub fn closed_for(self, remaining: Span) -> HealthStatus {
        match self.breaker {
            Breaker::Closed => HealthStatus {
                state: HealthState::Sleep,
                breaker: Breaker::Open,
                sleep_remaining: Some(remaining),
                reset_in: remaining,
                ..self
            },
            Breaker::Open | Breaker::HalfOpen => self,
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

impl OperatorHold {
    /// As in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            OperatorHold::Paused => "paused",
            OperatorHold::Offline => "offline",
            OperatorHold::CacheOnly => "cache_only",
        }
    }

    /// As in messages.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            OperatorHold::Paused => "paused by an operator",
            OperatorHold::Offline => "set offline by an operator",
            OperatorHold::CacheOnly => "set to the cache only by an operator",
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
