//! The last results and their error ratio (A2).
//!
//! Promises: exact over the last 30 s or the last 300 results, whichever is fewer (both are
//! settings); memory is bounded by those 300 whatever the rate. Results outside the ratio
//! (other 4xx) have a queue of their own, so that a flood of 404s cannot push failures out of
//! the window and so move the state.
//!
//! If failures close paths, one path alone does not move the ratio of a provider that has several:
//! its worst path is left out.
//!
//! Never: divides to decide. Ratios are compared exactly.

use std::collections::{BTreeMap, VecDeque};

use super::class::Class;
use crate::ask::PathTag;
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

/// How far back the window reaches. Copied from the settings for each use, so a changed setting
/// applies from the next result on.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowBounds {
    pub(super) age: Span,
    pub(super) results: usize,
    /// With fewer results than this the ratio is 0.
    pub(super) min_results: u64,
}

/// The number of results in the window, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Successes.
    pub count_2xx: u64,
    /// Limited calls (429s).
    pub count_429: u64,
    /// Server errors.
    pub count_5xx: u64,
    /// Other 4xx. Outside the ratio, and so not in `total`.
    pub count_other: u64,
    /// Timeouts, DNS and connection errors.
    pub net_errors: u64,
    /// All results in the ratio, which is `(count_429 + count_5xx + net_errors) / total`.
    pub total: u64,
}

/// The results themselves, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResultWindow {
    rated: VecDeque<RatedResult>,
    others: VecDeque<Micros>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RatedResult {
    at: Micros,
    class: Class,
    path: Option<PathTag>,
}

impl Counts {
    /// How many of `total` were failures.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.count_429 + self.count_5xx + self.net_errors
    }

    fn counter(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::Success => &mut self.count_2xx,
            Class::Limited => &mut self.count_429,
            Class::ServerError => &mut self.count_5xx,
            Class::Network => &mut self.net_errors,
            Class::Other => &mut self.count_other,
        }
    }

    fn add(&mut self, class: Class) {
        *self.counter(class) += 1;
        self.total += u64::from(class != Class::Other);
    }

    fn remove(&mut self, class: Class) {
        *self.counter(class) -= 1;
        self.total -= u64::from(class != Class::Other);
    }
}

impl ResultWindow {
    /// Adds one result.
    pub(super) fn add(
        &mut self,
        class: Class,
        path: Option<PathTag>,
        bounds: WindowBounds,
        now: Micros,
    ) {
        if class == Class::Other {
            self.others.push_back(now);
        } else {
            let at = now;
            self.rated.push_back(RatedResult { at, class, path });
        }
        self.counts.add(class);
        self.evict(bounds, now);
    }

    /// Removes everything: results from before a probe say nothing about the provider now.
    pub(super) fn clear(&mut self) {
        *self = ResultWindow::default();
    }

    /// Is the ratio at least this value?
    pub(super) fn reaches(&self, ratio: Ppm, bounds: WindowBounds) -> bool {
        ratio.is_reached_by(rated_failures(self.counts, bounds), self.counts.total)
            && self.without_worst_path().is_none_or(|counts| {
                ratio.is_reached_by(rated_failures(counts, bounds), counts.total)
            })
    }

    /// The path of every result in the ratio, if it is one.
    pub(super) fn only_path(&self) -> Option<PathTag> {
        let path = self.rated.front()?.path?;
        let is_only = self.rated.iter().all(|result| result.path == Some(path));
        is_only.then_some(path)
    }

    /// Calls to another path are in the window.
    pub(super) fn has_other_path(&self, path: PathTag) -> bool {
        let mut paths = self.rated.iter().filter_map(|result| result.path);
        paths.any(|other| other != path)
    }

    /// Removes the results of one path.
    pub(super) fn remove_path(&mut self, path: PathTag) {
        let counts = &mut self.counts;
        self.rated.retain(|result| {
            let stays = result.path != Some(path);
            if !stays {
                counts.remove(result.class);
            }
            stays
        });
    }

    /// The counts of all paths but the one with the most failures; `None` if fewer than two paths are
    /// known, or no path has failed. Results without a path (429s, failures to connect) are not a
    /// path. A walk over the window, made only while the whole ratio is too
    /// high.
    fn without_worst_path(&self) -> Option<Counts> {
        let mut by_path: BTreeMap<Option<PathTag>, Counts> = BTreeMap::new();
        for result in &self.rated {
            by_path.entry(result.path).or_default().add(result.class);
        }
        let paths = by_path.iter().filter(|(path, _)| path.is_some());
        let (worst, counts) = paths.clone().max_by_key(|(_, counts)| counts.failures())?;
        if paths.count() < 2 || counts.failures() == 0 {
            return None;
        }
        let mut rest = Counts::default();
        for result in self.rated.iter().filter(|one| one.path != *worst) {
            rest.add(result.class);
        }
        Some(rest)
    }

    /// The counts at `now`.
    pub(super) fn counts(&self, bounds: WindowBounds, now: Micros) -> Counts {
        let mut counts = self.counts;
        self.expired(bounds, now)
            .for_each(|class| counts.remove(class));
        counts
    }

    /// The ratio at `now`, for people to read.
    pub(super) fn ratio(&self, bounds: WindowBounds, now: Micros) -> Ppm {
        let counts = self.counts(bounds, now);
        Ppm::of(rated_failures(counts, bounds), counts.total)
    }

    /// How many results are stored, for tests of the bound.
    #[cfg(test)]
    pub(super) fn stored(&self) -> usize {
        self.rated.len() + self.others.len()
    }

    /// The results that [`ResultWindow::evict`] would remove.
    fn expired(&self, bounds: WindowBounds, now: Micros) -> impl Iterator<Item = Class> {
        let gone = move |at: Micros| now.since(at) >= bounds.age;
        let rated_over = self.rated.len().saturating_sub(bounds.results);
        let others_over = self.others.len().saturating_sub(bounds.results);
        let rated = self.rated.iter().enumerate();
        let rated = rated.take_while(move |&(index, one)| gone(one.at) || index < rated_over);
        let others = self.others.iter().enumerate();
        let others = others.take_while(move |&(index, &at)| gone(at) || index < others_over);
        let rated = rated.map(|(_, one)| one.class);
        rated.chain(others.map(|_| Class::Other))
    }

    fn evict(&mut self, bounds: WindowBounds, now: Micros) {
        let gone = |at: Micros| now.since(at) >= bounds.age;
        while let Some(&RatedResult { at, class, .. }) = self.rated.front()
            && (gone(at) || self.rated.len() > bounds.results)
        {
            self.rated.pop_front();
            self.counts.remove(class);
        }
        while let Some(&at) = self.others.front()
            && (gone(at) || self.others.len() > bounds.results)
        {
            self.others.pop_front();
            self.counts.remove(Class::Other);
        }
    }
}

/// The failures, if there are enough results for a ratio.
fn rated_failures(counts: Counts, bounds: WindowBounds) -> u64 {
    if counts.total < bounds.min_results {
        0
    } else {
        counts.failures()
    }
}
