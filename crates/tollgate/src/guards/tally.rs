//! How often each guard has denied: counters, and rare events.
//!
//! Promises: every denial is counted, in shadow or not, whichever endpoint received the request. A flood of denials makes
//! one event a second for each guard and kind.
//!
//! Never: knows whom a guard denied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::event::{Event, Events};
use tollgate_core::time::{Micros, Span};

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

/// The counters of one guard.
#[derive(Debug, Default)]
pub(super) struct GuardTally {
    denied: Counter,
    shadow_denied: Counter,
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
