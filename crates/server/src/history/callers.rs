//! What each caller did in the last hour, per provider.
//!
//! Promises: bounded. A caller of a provider has 60 minutes of 16 bytes, 1 KiB with its last counts; at
//! most [`PAIRS_MAX`] of them are followed, 0.5 MiB; further ones show their counts since the start.
//!
//! Never: counts calls itself: the providers do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tollgate::providers::{ActiveProvider, CallCounts};

/// The most pairs of provider and caller that have a history.
const PAIRS_MAX: usize = 512;

/// Minutes that are shown.
const MINUTES: usize = 60;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CallerHistory {
    /// Provider, then caller.
    pairs: BTreeMap<(String, String), Minutes>,
    /// Seconds since the last minute was closed.
    seconds: u32,
}

#[derive(Debug, Default)]
struct Minutes {
    /// The counts at the end of each of the last minutes, oldest first.
    ends: VecDeque<CompactCounts>,
}

/// What is shown of a minute: a quarter of the full counts.
#[derive(Clone, Copy, Debug, Default)]
struct CompactCounts {
    calls: u32,
    sent: u32,
    rejected: u32,
    left: u32,
}

/// The calls of a caller within the last hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecentCalls {
    pub(crate) calls: u64,
    pub(crate) sent: u64,
    pub(crate) rejected: u64,
    pub(crate) left: u64,
}

impl CallerHistory {
    /// A second has passed.
    pub(super) fn record(&mut self, started: &[Arc<ActiveProvider>]) {
        self.seconds += 1;
        if self.seconds < 60 {
            return;
        }
        self.seconds = 0;
        for active in started {
            for (caller, counts) in active.calls_by_caller() {
                self.end_minute(active.name(), caller, &counts);
            }
        }
    }

    fn end_minute(&mut self, provider: &str, caller: String, counts: &CallCounts) {
        let full = self.pairs.len() >= PAIRS_MAX;
        let key = (provider.to_owned(), caller);
        if full && !self.pairs.contains_key(&key) {
            return;
        }
        let minutes = self.pairs.entry(key).or_default();
        minutes.ends.push_back(CompactCounts::of(counts));
        // One more than the minutes: the oldest is what is subtracted.
        if minutes.ends.len() > MINUTES {
            minutes.ends.pop_front();
        }
    }

    /// The calls of the last hour: those up to now without those before it.
    pub(crate) fn recent(&self, provider: &str, caller: &str, now: &CallCounts) -> RecentCalls {
        let key = (provider.to_owned(), caller.to_owned());
        let minutes = self.pairs.get(&key).filter(|one| one.ends.len() >= MINUTES);
        let before = minutes.and_then(|one| one.ends.front());
        let before = before.copied().unwrap_or_default();
        let now = CompactCounts::of(now);
        let since = |now: u32, before: u32| u64::from(now.wrapping_sub(before));
        RecentCalls {
            calls: since(now.calls, before.calls),
            sent: since(now.sent, before.sent),
            rejected: since(now.rejected, before.rejected),
            left: since(now.left, before.left),
        }
    }
}

impl CompactCounts {
    /// Wraps at 2^32, as the subtraction does.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it wraps, and so does the difference"
    )]
    fn of(counts: &CallCounts) -> CompactCounts {
        CompactCounts {
            calls: counts.calls as u32,
            sent: counts.attempts() as u32,
            rejected: counts.rejected as u32,
            left: counts.left as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(calls: u64) -> CallCounts {
        CallCounts {
            calls,
            sent: [calls, 0, 0],
            ..CallCounts::default()
        }
    }

    #[test]
    fn only_the_last_hour_is_shown_and_pairs_are_bounded() {
        let mut history = CallerHistory::default();
        for minute in 1..=200 {
            history.end_minute("x", "web".to_owned(), &counts(minute * 10));
        }
        let recent = history.recent("x", "web", &counts(2_005));
        assert_eq!((recent.calls, recent.sent), (595, 595));
        assert_eq!(history.recent("x", "new", &counts(7)).calls, 7);
        for number in 0..PAIRS_MAX + 9 {
            history.end_minute("y", number.to_string(), &counts(1));
        }
        assert_eq!(history.pairs.len(), PAIRS_MAX);
    }
}
