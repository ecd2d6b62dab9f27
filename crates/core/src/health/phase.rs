//! What the machine remembers in each state.
//!
//! Promises: counts that belong to a state begin anew with it, because they live inside it.
//!
//! Never: decides. `answers`, `orders`, `shared` and `moves` do.

use super::HealthState;
use super::class::Class;
use super::pace::Ramp;
use crate::time::Micros;

/// A state with its memory. Sleep by order is a phase of its own, because no timer ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HealthPhase {
    Normal {
        /// Evaluations in a row with too high a ratio.
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
        /// The end that the operator named.
        ends: Option<Micros>,
        /// When it ends as the ledger knows it; `None` = not before somebody opens it.
        closed_until: Option<Micros>,
    },
}

/// What Throttle remembers.
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

/// What HalfOpen remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeState {
    pub(super) successes: u32,
    /// Evaluations in a row with a ratio low enough to be Normal.
    pub(super) low_ratio: Streak,
    pub(super) slot: ProbeSlot,
    /// Probes of this process on their way, as far as we were told.
    pub(super) in_flight: u32,
}

/// What a hold will have to return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeforeHold {
    /// The provider was well: it may go on at once.
    Healthy,
    /// It was not: probe first.
    Unhealthy,
}

/// Who sees to it that probes are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeSlot {
    /// The scope in the ledger: all processes together probe once.
    Shared,
    /// The local pace: Throttle is local, and so is the way out of it.
    Local,
}

/// How often a condition held in a row (A8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streak(u32);

/// Results in a row, as far as they count (late answers and other 4xx do not).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConsecutiveCounts {
    pub(super) limited: u32,
    pub(super) failed: u32,
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

    /// Does the ledger keep calls back on our behalf?
    pub(super) fn holds_scope(&self) -> bool {
        match self {
            HealthPhase::Sleep { .. }
            | HealthPhase::Offline { .. }
            | HealthPhase::CacheOnly { .. } => true,
            HealthPhase::HalfOpen(probing) => probing.slot == ProbeSlot::Shared,
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) => false,
        }
    }

    /// Only somebody's word, or the end that it named, ends it.
    pub(super) fn is_held(&self) -> bool {
        match self {
            HealthPhase::Offline { .. } | HealthPhase::CacheOnly { .. } => true,
            HealthPhase::Normal { .. }
            | HealthPhase::Throttle(_)
            | HealthPhase::Sleep { .. }
            | HealthPhase::HalfOpen(_) => false,
        }
    }

    /// What a hold that begins now will have to return to.
    pub(super) fn before_hold(&self) -> BeforeHold {
        match self {
            HealthPhase::Normal { .. } | HealthPhase::Throttle(_) => BeforeHold::Healthy,
            HealthPhase::Sleep { .. } | HealthPhase::HalfOpen(_) => BeforeHold::Unhealthy,
            HealthPhase::Offline { before: held } | HealthPhase::CacheOnly { before: held, .. } => {
                *held
            }
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

    /// The condition holds since the last evaluation, and did not before.
    pub(super) fn has_just_begun(self) -> bool {
        self.0 == 1
    }
}

impl ConsecutiveCounts {
    pub(super) fn note(&mut self, class: Class) {
        match class {
            Class::Success => *self = ConsecutiveCounts::default(),
            Class::Limited => {
                self.limited = self.limited.saturating_add(1);
                self.failed = self.failed.saturating_add(1);
            }
            Class::ServerError | Class::Network => {
                self.limited = 0;
                self.failed = self.failed.saturating_add(1);
            }
            Class::Other => {}
        }
    }
}
