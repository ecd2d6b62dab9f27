//! The limits of one key, checked and compiled.
//!
//! Promises: a [`GuardPlan`] cannot hold a limit that never refills, and its limits are decided
//! together, all or none. Every plan belongs to the table that made it.
//!
//! Never: names a key; never changes after it was made (a change of limits is another plan).

use std::num::NonZeroU32;
use std::time::Duration;

use super::pace::Pace;

/// Limits in one plan: people combine a second, a minute and a day, and three fit with their key
/// into one cache line. A key with more takes several asks, decided as one.
pub const LIMITS_MAX: usize = 3;

/// At most `limit` per `period` in the long run, and at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Tokens gained per period.
    pub limit: NonZeroU32,
    /// The period; whole nanoseconds above zero.
    pub period: Duration,
    /// Capacity of the bucket.
    pub burst: NonZeroU32,
}

impl Limit {
    /// `limit` per `period` with a bucket of the same size.
    #[must_use]
    pub const fn new(limit: NonZeroU32, period: Duration) -> Limit {
        Limit {
            limit,
            period,
            burst: limit,
        }
    }

    /// The same limit with a bucket of `burst` tokens.
    #[must_use]
    pub const fn with_burst(self, burst: NonZeroU32) -> Limit {
        Limit { burst, ..self }
    }
}

/// Why limits could not become a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No limits were given.
    #[error("a guard needs at least one limit; write `limit` and `period`")]
    Empty,
    /// More than [`LIMITS_MAX`] limits were given.
    #[error("a guard has at most {LIMITS_MAX} limits, this one has {0}; split it into two guards")]
    TooMany(usize),
    /// A period of zero, or a burst that takes more than 73 years to fill.
    #[error(
        "limit {0} is impossible: its period is zero or its burst takes over 73 years to fill; use a longer period or a smaller burst"
    )]
    Impossible(usize),
    /// The table already has [`super::PLANS_MAX`] different plans.
    #[error(
        "too many different guard plans ({0}); use fewer combinations of limit, period and burst"
    )]
    TableFull(usize),
}

/// The limits of a key, compiled. Made by [`super::GuardTable::plan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardPlan {
    pub(crate) paces: [Pace; LIMITS_MAX],
    /// The largest cost that the fast path may decide: the smallest burst; 0 if a limit has parts,
    /// which the fast path does not handle.
    pub(crate) fast_max: u32,
    /// Position in the table's list of plans plus one; 0 marks an empty slot.
    pub(crate) id: u32,
    /// No limit has parts: the decision may skip them.
    pub(crate) whole: bool,
    limits: [Limit; LIMITS_MAX],
    count: usize,
}

impl GuardPlan {
    pub(crate) fn new(limits: &[Limit], id: u32) -> Result<GuardPlan, PlanError> {
        let first = *limits.first().ok_or(PlanError::Empty)?;
        if limits.len() > LIMITS_MAX {
            return Err(PlanError::TooMany(limits.len()));
        }
        let mut plan = GuardPlan {
            paces: [Pace::NONE; LIMITS_MAX],
            fast_max: u32::MAX,
            id,
            whole: true,
            limits: [first; LIMITS_MAX],
            count: limits.len(),
        };
        for (at, limit) in limits.iter().enumerate() {
            let pace = Pace::new(limit).ok_or(PlanError::Impossible(at))?;
            plan.paces[at] = pace;
            plan.limits[at] = *limit;
            plan.fast_max = plan.fast_max.min(pace.burst);
            plan.whole &= pace.is_whole();
        }
        if !plan.whole {
            plan.fast_max = 0;
        }
        Ok(plan)
    }

    /// The limits, in the order in which they were given.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        self.limits.get(..self.count).unwrap_or(&self.limits)
    }

    /// The compiled limits, in the same order.
    #[inline]
    pub(crate) fn paces(&self) -> &[Pace] {
        self.paces.get(..self.count).unwrap_or(&self.paces)
    }

    /// Whether there is one limit only.
    #[inline]
    pub(crate) fn is_single(&self) -> bool {
        self.count == 1
    }

    /// The limit of `old` that each limit of this plan continues: the one with the same period,
    /// else the one at the same position unless another limit has its period. A limit that
    /// continues none starts full.
    pub(crate) fn inherited_limits(&self, old: &GuardPlan) -> [Option<usize>; LIMITS_MAX] {
        let mut inherited = [None; LIMITS_MAX];
        let mut taken = [false; LIMITS_MAX];
        for (inherited_limit, limit) in inherited.iter_mut().zip(self.limits()) {
            *inherited_limit =
                (0..old.count).find(|&at| !taken[at] && old.limits[at].period == limit.period);
            if let Some(at) = *inherited_limit {
                taken[at] = true;
            }
        }
        for at in 0..self.count.min(old.count) {
            if inherited[at].is_none() && !taken[at] {
                inherited[at] = Some(at);
                taken[at] = true;
            }
        }
        inherited
    }
}
