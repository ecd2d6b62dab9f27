//! The data of each state.
//!
//! Promises: counts that belong to a state restart with it, because they are stored inside it.
//!
//! Never: decides. `results`, `commands`, `ledger_view` and `transitions` do.

use super::HealthState;
use super::class::Class;
use super::pace::Ramp;
use crate::ask::PathTag;
use crate::scope::FailureRun;
use crate::time::Micros;

/// A state with its data. Sleep by an operator (offline) is a phase of its own, because no timer
/// ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HealthPhase {
    Normal {
        /// Evaluations in a row with a ratio that leads to Throttle.
        high_ratio: Streak,
        ramp: Option<Ramp>,
    },
    Throttle(ThrottleState),
    Sleep {
        began: Micros,
        until: Micros,
    },
    Offline {
        before: BeforeHold,
    },
    HalfOpen(ProbeState),
    CacheOnly {
        before: BeforeHold,
        /// The operator's end time.
        ends: Option<Micros>,
        /// The end time in the ledger; `None` = not before an operator opens it.
        closed_until: Option<Micros>,
    },
}

/// The data of Throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThrottleState {
    /// In total since it began.
    pub(super) successes: u32,
    /// Evaluations in a row with a ratio low enough to recover.
    pub(super) low_ratio: Streak,
    /// Evaluations in a row with a ratio that leads to Sleep, and since when.
    pub(super) high_ratio: Streak,
    pub(super) high_ratio_since: Micros,
}

/// The data of HalfOpen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeState {
    pub(super) successes: u32,
    /// Evaluations in a row with a ratio low enough to be Normal.
    pub(super) low_ratio: Streak,
    /// The path of the last probe that succeeded.
    pub(super) succeeded_on: Option<PathTag>,
    pub(super) slot: ProbeSlot,
    /// Probes of this process in flight.
    pub(super) in_flight: u32,
}

/// The provider's health before an operator's hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeforeHold {
    /// The provider was healthy: calls may continue at once after the hold.
    Healthy,
    /// It was not: probe first.
    Unhealthy,
}

/// What limits the number of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeSlot {
    /// The scope in the ledger: all processes together probe once.
    Shared,
    /// The local pace: Throttle is local, and so is the HalfOpen that follows it.
    Local,
}

/// How often a condition held in a row (A8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streak(u32);

/// Results in a row that count (late results and other 4xx do not).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConsecutiveCounts {
    pub(super) limited: u32,
    pub(super) failed: u32,
    /// The paths of the failures.
    pub(super) run: FailureRun,
}

impl HealthPhase {
    pub(super) fn normal() -> HealthPhase {
        HealthPhase::Normal {
            high_ratio: Streak::default(),
            ramp: None,
        }
    }

    pub(super) fn state(&self) -> HealthState {
        match self {
            HealthPhase::Normal { .. } => HealthState::Normal,
            HealthPhase::Throttle(_) => HealthState::Throttle,
            HealthPhase::Sleep { .. } | HealthPhase::Offline { .. } => HealthState::Sleep,
            HealthPhase::HalfOpen(_) => HealthState::HalfOpen,
            HealthPhase::CacheOnly { .. } => HealthState::CacheOnly,
        }
    }

    /// Does the ledger block calls because of this state?
    pub(super) fn holds_scope(&self) -> bool {
        match self {
            HealthPhase::Sleep { .. }
            | HealthPhase::Offline { .. }
            | HealthPhase::CacheOnly { .. } => true,
            HealthPhase::HalfOpen(probing) => probing.slot == ProbeSlot::Shared,
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) => false,
        }
    }

    /// Only an operator's command or end time ends it.
    pub(super) fn is_held(&self) -> bool {
        match self {
            HealthPhase::Offline { .. } | HealthPhase::CacheOnly { .. } => true,
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_) => false,
        }
    }

    /// The provider's health before a hold that begins now.
    pub(super) fn before_hold(&self) -> BeforeHold {
        match self {
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) => BeforeHold::Healthy,
            HealthPhase::Sleep { .. } | HealthPhase::HalfOpen(_) => BeforeHold::Unhealthy,
            HealthPhase::Offline { before } | HealthPhase::CacheOnly { before, .. } => *before,
        }
    }
}

impl Streak {
    /// One more evaluation.
    pub(super) fn note(&mut self, holds: bool) {
        self.0 = if holds { self.0.saturating_add(1) } else { 0 };
    }

    pub(super) fn is_confirmed(self, confirm: u32) -> bool {
        self.0 >= confirm
    }

    /// The condition began to hold with the last evaluation.
    pub(super) fn has_just_begun(self) -> bool {
        self.0 == 1
    }
}

impl ConsecutiveCounts {
    /// One more result, on this path; `in_a_row` failures are enough for Sleep.
    pub(super) fn note(&mut self, class: Class, path: Option<PathTag>, in_a_row: Option<u32>) {
        match class {
            Class::Success => *self = ConsecutiveCounts::default(),
            Class::Limited => {
                self.limited = self.limited.saturating_add(1);
                self.add_failure(None, in_a_row);
            }
            Class::ServerError | Class::Network => {
                self.limited = 0;
                self.add_failure(path, in_a_row);
            }
            Class::Other => {}
        }
    }

    fn add_failure(&mut self, path: Option<PathTag>, in_a_row: Option<u32>) {
        self.run = self.run.add(path, self.failed);
        let failed = self.failed.saturating_add(1);
        self.failed = in_a_row.map_or(failed, |enough| self.run.capped(failed, enough));
    }
}
