//! The last results, and which part of them were failures (A2).
//!
//! Promises: exact over the last 30 s or the last 300 results, whichever is fewer (both are
//! settings); memory is bounded by those 300 whatever the rate. Results outside the ratio
//! (other 4xx) have a queue of their own, so that a flood of 404s cannot push failures out of
//! the window and so move the state.
//!
//! Never: divides to decide. Shares are compared exactly.

use std::collections::VecDeque;

use super::class::Class;
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// How far back the window reaches. Copied from the settings for each question, so a setting
/// changed while running holds from the next result on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub(super) age: Span,
    pub(super) results: usize,
    /// Fewer results than this say nothing: the ratio is 0.
    pub(super) min_results: u64,
}

/// What the window holds, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Successes.
    pub count_2xx: u64,
    /// Refusals.
    pub count_429: u64,
    /// Server errors.
    pub count_5xx: u64,
    /// Other 4xx. Outside the ratio, and so not in `total`.
    pub count_other: u64,
    /// Timeouts, DNS and connection errors.
    pub net_errors: u64,
    /// All results that the ratio is about: `(count_429 + count_5xx + net_errors) / total`.
    pub total: u64,
}

/// The results themselves, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    rated: VecDeque<(Micros, Class)>,
    others: VecDeque<Micros>,
    counts: Counts,
}

impl Counts {
    /// How many of `total` were failures.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.count_429 + self.count_5xx + self.net_errors
    }

    fn slot(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::Success => &mut self.count_2xx,
            Class::Refused => &mut self.count_429,
            Class::ServerError => &mut self.count_5xx,
            Class::Network => &mut self.net_errors,
            Class::Other => &mut self.count_other,
        }
    }

    fn add(&mut self, class: Class) {
        *self.slot(class) += 1;
        self.total += u64::from(class != Class::Other);
    }

    fn remove(&mut self, class: Class) {
        *self.slot(class) -= 1;
        self.total -= u64::from(class != Class::Other);
    }
}

impl Window {
    /// Takes in one result.
    pub(super) fn add(&mut self, class: Class, reach: Reach, now: Micros) {
        if class == Class::Other {
            self.others.push_back(now);
        } else {
            self.rated.push_back((now, class));
        }
        self.counts.add(class);
        self.forget(reach, now);
    }

    /// Forgets everything: what was before a probe says nothing about what it finds.
    pub(super) fn clear(&mut self) {
        *self = Window::default();
    }

    /// Is the ratio at least this share?
    pub(super) fn reaches(&self, share: Ppm, reach: Reach) -> bool {
        share.is_reached_by(self.rated_failures(reach), self.counts.total)
    }

    /// What it holds at `now`.
    pub(super) fn counts(&self, reach: Reach, now: Micros) -> Counts {
        let mut then = self.clone();
        then.forget(reach, now);
        then.counts
    }

    /// The ratio at `now`, for people to read.
    pub(super) fn ratio(&self, reach: Reach, now: Micros) -> Ppm {
        let mut then = self.clone();
        then.forget(reach, now);
        Ppm::of(then.rated_failures(reach), then.counts.total)
    }

    /// How many results are kept, for tests of the bound.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.rated.len() + self.others.len()
    }

    fn rated_failures(&self, reach: Reach) -> u64 {
        if self.counts.total < reach.min_results {
            0
        } else {
            self.counts.failures()
        }
    }

    fn forget(&mut self, reach: Reach, now: Micros) {
        let gone = |at: Micros| now.since(at) >= reach.age;
        while let Some(&(at, class)) = self.rated.front()
            && (gone(at) || self.rated.len() > reach.results)
        {
            self.rated.pop_front();
            self.counts.remove(class);
        }
        while let Some(&at) = self.others.front()
            && (gone(at) || self.others.len() > reach.results)
        {
            self.others.pop_front();
            self.counts.remove(Class::Other);
        }
    }
}
