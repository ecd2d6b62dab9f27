//! When a source is fetched (H5, H6): its times, and which of the due ones may be queued.
//!
//! Promises: a time that was missed, by a stopped process or a clock that jumped ahead, is made up for once and
//! not once for each time. Times of `every` stay on the grid that the first one began. A clock that is set back
//! neither holds a source for longer than its own distance nor repeats a time of `cron` that it has just had.
//!
//! Never: reads a clock or a time zone; times of `cron` are UTC.

mod cron;
mod result_path;
mod run_plan;
#[cfg(test)]
mod tests;
pub use cron::Cron;
pub use result_path::{RESULT_PATH_FORM, ResultPath};
pub use run_plan::{PlanRules, RunEnd, RunPlan, RunState};

use crate::time::{Span, Wall};

/// How far back a clock may step before the times of `cron` follow it: as cron itself, which takes more for a
/// correction of the date and less for an adjustment, during which nothing should run twice.
pub const STEP_BACK_MAX: Span = Span::from_secs(3 * 3_600);

/// The times of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Once, when it is added.
    Once,
    /// At once, and then at this distance.
    Every(Span),
    /// At times of the calendar, in UTC.
    Cron(Cron),
}

impl Schedule {
    /// The first time of a source that is added now; `None` = never.
    #[must_use]
    pub fn first(&self, now: Wall) -> Option<Wall> {
        match self {
            Schedule::Once | Schedule::Every(_) => Some(now),
            Schedule::Cron(cron) => cron.after(now),
        }
    }

    /// The time that follows the one that was due, and lies ahead; `None` = never again.
    #[must_use]
    pub fn after(&self, due: Wall, now: Wall) -> Option<Wall> {
        match self {
            Schedule::Once => None,
            Schedule::Every(every) => {
                let step = every.0.max(1);
                let missed = now.since(due).0 / step;
                let ahead = step.saturating_mul(missed.saturating_add(1));
                Some((due + Span(ahead)).min(now + *every))
            }
            Schedule::Cron(cron) => cron.after(now.max(due)),
        }
    }

    /// The next time by a clock that may have been set back since it was stored. `last`: when the source was fetched
    /// last.
    #[must_use]
    pub fn corrected(&self, next: Option<Wall>, last: Option<Wall>, now: Wall) -> Option<Wall> {
        let next = next?;
        match self {
            Schedule::Once => Some(next),
            Schedule::Every(every) => Some(next.min(now + *every)),
            Schedule::Cron(cron) => {
                let is_set_back = last.is_some_and(|last| last > now + STEP_BACK_MAX);
                if is_set_back {
                    cron.after(now)
                } else {
                    Some(next)
                }
            }
        }
    }
}
