//! How often each guard has denied: counters, and rare events.
//!
//! Promises: every denial is counted, in shadow or not, whichever endpoint received the request. A flood of denials makes
//! one event a second for each guard and kind. Of those whom a guard denied at most [`IDENTIFIERS_MAX`] are counted
//! one by one; the others together.
//!
//! Never: decides.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::time::{Micros, Span};

use super::identifier::Identifier;
use crate::event::{Event, Events};
use crate::metrics::{Histogram, HistogramSnapshot, WAIT_BOUNDS};

/// The least time between two events of one kind.
const PAUSE: Span = Span::from_secs(1);

/// The counts of one guard since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardCounts {
    /// Requests that it denied.
    pub denied: u64,
    /// Requests that it would have denied, had it not been in shadow.
    pub shadow_denied: u64,
}

/// How many callers of a guard have a counter of their own: each is a time series in whatever reads metrics.
pub(crate) const IDENTIFIERS_MAX: usize = 32;

/// The counters of one guard for metrics.
#[derive(Clone, Debug)]
pub struct GuardMetrics {
    /// Whom it denied, and how often; `other` for all who have no counter of their own.
    pub hits: Vec<(String, u64)>,
    /// How long requests waited for tokens before they got them, in microseconds.
    pub waits: HistogramSnapshot,
}

/// The counters of one guard.
#[derive(Debug)]
pub(super) struct GuardTally {
    denied: Counter,
    shadow_denied: Counter,
    /// The first [`IDENTIFIERS_MAX`] whom it denied.
    hits: Mutex<HashMap<Identifier, u64>>,
    other_hits: AtomicU64,
    waits: Histogram,
}

impl Default for GuardTally {
    fn default() -> GuardTally {
        GuardTally {
            denied: Counter::default(),
            shadow_denied: Counter::default(),
            hits: Mutex::default(),
            other_hits: AtomicU64::new(0),
            waits: Histogram::new(WAIT_BOUNDS),
        }
    }
}

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    /// How many of them events have told.
    told: AtomicU64,
    /// No event before this instant.
    next_event: AtomicU64,
}

impl GuardTally {
    /// It denied this caller.
    pub(super) fn on_hit(&self, identifier: Identifier) {
        let mut hits = self.hits.lock();
        if hits.len() < IDENTIFIERS_MAX || hits.contains_key(&identifier) {
            *hits.entry(identifier).or_default() += 1;
        } else {
            self.other_hits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request waited so long for its tokens.
    pub(super) fn on_wait(&self, waited: Span) {
        self.waits.observe(waited.0);
    }

    pub(super) fn metrics(&self) -> GuardMetrics {
        let hits = self.hits.lock().clone();
        let other = self.other_hits.load(Ordering::Relaxed);
        // Two texts may be shown alike: a time series has one value.
        let mut all = BTreeMap::from([("other".to_owned(), other)]);
        for (identifier, count) in hits {
            *all.entry(identifier.to_string()).or_default() += count;
        }
        GuardMetrics {
            hits: all.into_iter().collect(),
            waits: self.waits.snapshot(),
        }
    }

    pub(super) fn counts(&self) -> GuardCounts {
        GuardCounts {
            denied: self.denied.count.load(Ordering::Relaxed),
            shadow_denied: self.shadow_denied.count.load(Ordering::Relaxed),
        }
    }

    /// Counts one denial, and emits an event if it is time.
    pub(super) fn on_denial(&self, guard: &str, shadow: bool, now: Micros, events: &Events) {
        let counter = if shadow {
            &self.shadow_denied
        } else {
            &self.denied
        };
        if let Some(count) = counter.add(now) {
            let guard = Arc::from(guard);
            events.emit(Event::GuardDenied {
                guard,
                shadow,
                count,
            });
        }
    }
}

impl Counter {
    /// How many an event has to tell now; `None` = it is too early.
    fn add(&self, now: Micros) -> Option<u64> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let due = self.next_event.load(Ordering::Relaxed);
        let next = (now + PAUSE).0;
        // Of several threads one emits it.
        let is_mine = now.0 >= due
            && self
                .next_event
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        is_mine.then(|| count.saturating_sub(self.told.swap(count, Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C7: the identifier label has a bound.
    #[test]
    fn c7_callers_beyond_the_bound_are_counted_together() {
        let tally = GuardTally::default();
        for number in 0..IDENTIFIERS_MAX + 5 {
            tally.on_hit(Identifier::of_text(format!("user-{number}").as_bytes()));
        }
        tally.on_hit(Identifier::of_text(b"user-0"));
        let hits = tally.metrics().hits;
        assert_eq!(hits.len(), IDENTIFIERS_MAX + 1);
        let of = |name: &str| hits.iter().find(|(of, _)| of == name).map(|(_, n)| *n);
        assert_eq!((of("other"), of("user-0")), (Some(5), Some(2)));
    }

    #[test]
    fn every_denial_is_reported_in_one_event_a_second() {
        let counter = Counter::default();
        let told: Vec<Option<u64>> = [0, 1, 999_999, 1_000_000, 1_000_001, 5_000_000]
            .into_iter()
            .map(|at| counter.add(Micros(at)))
            .collect();
        assert_eq!(told, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
