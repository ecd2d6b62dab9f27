//! What the machine remembers in each state.
//!
//! Promises: counts that belong to a state begin anew with it, because they live inside it.
//!
//! Never: decides. `answers`, `orders`, `shared` and `moves` do.

use super::State;
use super::class::Class;
use super::pace::Ramp;
use crate::time::Micros;

/// A state with its memory. Sleep by order is a phase of its own, because no timer ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Normal {
        /// Evaluations in a row with too high a ratio.
        over: Streak,
        ramp: Option<Ramp>,
    },
    Throttle(Throttled),
    Sleep {
        began: Micros,
        until: Micros,
    },
    Offline {
        held: Held,
    },
    HalfOpen(Probing),
    CacheOnly {
        held: Held,
        /// The end that the operator named.
        ends: Option<Micros>,
        /// When it ends as the ledger knows it; `None` = not before somebody opens it.
        closed_until: Option<Micros>,
    },
}

/// What Throttle remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Throttled {
    /// In total since it began.
    pub(super) successes: u32,
    /// Evaluations in a row with a ratio low enough to recover.
    pub(super) calm: Streak,
    /// Evaluations in a row with a ratio that leads to Sleep, and since when.
    pub(super) bad: Streak,
    pub(super) bad_since: Micros,
}

/// What HalfOpen remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probing {
    pub(super) successes: u32,
    /// Evaluations in a row with a ratio low enough to be Normal.
    pub(super) calm: Streak,
    pub(super) slot: Slot,
    /// Probes of this process on their way, as far as we were told.
    pub(super) on_their_way: u32,
}

/// What a hold will have to return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// The provider was well: it may go on at once.
    Well,
    /// It was not: probe first.
    Ailing,
}

/// Who sees to it that probes are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
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
pub(super) struct Runs {
    pub(super) refused: u32,
    pub(super) failed: u32,
}

impl Phase {
    pub(super) fn normal() -> Phase {
        Phase::Normal {
            over: Streak::default(),
            ramp: None,
        }
    }

    pub(super) fn state(&self) -> State {
        match self {
            Phase::Normal { .. } => State::Normal,
            Phase::Throttle(_) => State::Throttle,
            Phase::Sleep { .. } | Phase::Offline { .. } => State::Sleep,
            Phase::HalfOpen(_) => State::HalfOpen,
            Phase::CacheOnly { .. } => State::CacheOnly,
        }
    }

    /// Does the ledger keep calls back on our behalf?
    pub(super) fn holds_scope(&self) -> bool {
        match self {
            Phase::Sleep { .. } | Phase::Offline { .. } | Phase::CacheOnly { .. } => true,
            Phase::HalfOpen(probing) => probing.slot == Slot::Shared,
            Phase::Normal { .. } | Phase::Throttle(_) => false,
        }
    }

    /// Only somebody's word, or the end that it named, ends it.
    pub(super) fn is_held(&self) -> bool {
        match self {
            Phase::Offline { .. } | Phase::CacheOnly { .. } => true,
            Phase::Normal { .. }
            | Phase::Throttle(_)
            | Phase::Sleep { .. }
            | Phase::HalfOpen(_) => false,
        }
    }

    /// What a hold that begins now will have to return to.
    pub(super) fn before_hold(&self) -> Held {
        match self {
            Phase::Normal { .. } | Phase::Throttle(_) => Held::Well,
            Phase::Sleep { .. } | Phase::HalfOpen(_) => Held::Ailing,
            Phase::Offline { held } | Phase::CacheOnly { held, .. } => *held,
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

impl Runs {
    pub(super) fn note(&mut self, class: Class) {
        match class {
            Class::Success => *self = Runs::default(),
            Class::Refused => {
                self.refused = self.refused.saturating_add(1);
                self.failed = self.failed.saturating_add(1);
            }
            Class::ServerError | Class::Network => {
                self.refused = 0;
                self.failed = self.failed.saturating_add(1);
            }
            Class::Other => {}
        }
    }
}
