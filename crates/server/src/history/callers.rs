//! What each caller did in the current window of a limit, per provider: of at most a day.
//!
//! Promises: bounded. A caller of a provider has 60 minutes and 96 quarters of an hour of 16 bytes each, 2.5 KiB with
//! its last counts; at most [`PAIRS_MAX`] of them are followed, 1.3 MiB; further ones show their counts since the
//! start. What is shown begins at the end of a minute within the last hour, and of a quarter before: it says when.
//!
//! Never: counts calls itself: the providers do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tollgate::providers::{ActiveProvider, CallCounts};

/// The most pairs of provider and caller that have a history.
const PAIRS_MAX: usize = 512;

/// Minutes that are remembered.
const MINUTES: usize = 60;

/// Quarters of an hour that are remembered: a day.
const QUARTERS: usize = 96;

/// Seconds of a minute and of a quarter of an hour.
const MINUTE: u64 = 60;
const QUARTER: u64 = 900;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CallerHistory {
    /// Provider, then caller.
    pairs: BTreeMap<(String, String), Ends>,
    /// Seconds since the start.
    seconds: u64,
}

/// The counts at the end of each of the last minutes and quarters, oldest first.
#[derive(Debug, Default)]
struct Ends {
    minutes: VecDeque<CompactCounts>,
    quarters: VecDeque<CompactCounts>,
}

/// What is shown: a quarter of the full counts.
#[derive(Clone, Copy, Debug, Default)]
struct CompactCounts {
    calls: u32,
    sent: u32,
    rejected: u32,
    left: u32,
}

/// Where a window begins: at this end, counted from the newest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowStart {
    is_quarter: bool,
    back: usize,
    /// How long ago that is, in seconds; at most since the start.
    pub(crate) age: u64,
}

/// The calls of a caller within a window.
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
        if !self.seconds.is_multiple_of(MINUTE) {
            return;
        }
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
        let ends = self.pairs.entry(key).or_default();
        let counts = CompactCounts::of(counts);
        push(&mut ends.minutes, counts, MINUTES);
        if self.seconds.is_multiple_of(QUARTER) {
            push(&mut ends.quarters, counts, QUARTERS);
        }
    }

    /// The end of a minute or quarter that is nearest to so many seconds ago, of those that are remembered.
    pub(crate) fn start_of(&self, window: u64) -> WindowStart {
        let is_quarter = window > MINUTES as u64 * MINUTE;
        let (every, most) = match is_quarter {
            true => (QUARTER, QUARTERS),
            false => (MINUTE, MINUTES),
        };
        let newest = self.seconds % every;
        let back = (window.saturating_sub(newest) + every / 2) / every;
        let back = usize::try_from(back).unwrap_or(most).min(most - 1);
        let age = newest + back as u64 * every;
        WindowStart {
            is_quarter,
            back,
            age: age.min(self.seconds),
        }
    }

    /// The calls since the start of a window: those up to now without those before it.
    pub(crate) fn since(
        &self,
        start: WindowStart,
        provider: &str,
        caller: &str,
        now: &CallCounts,
    ) -> RecentCalls {
        let key = (provider.to_owned(), caller.to_owned());
        let ends = self.pairs.get(&key).map(|ends| match start.is_quarter {
            true => &ends.quarters,
            false => &ends.minutes,
        });
        // A caller that has no end so old called for the first time after it.
        let before = ends.and_then(|ends| ends.get(ends.len().checked_sub(start.back + 1)?));
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

fn push(ends: &mut VecDeque<CompactCounts>, counts: CompactCounts, most: usize) {
    if ends.len() >= most {
        ends.pop_front();
    }
    ends.push_back(counts);
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

    /// Ten calls a minute of one caller, for so many minutes and seconds.
    fn history(minutes: u64, seconds: u64) -> CallerHistory {
        let mut history = CallerHistory::default();
        for minute in 1..=minutes {
            history.seconds = minute * MINUTE;
            history.end_minute("x", "web".to_owned(), &counts(minute * 10));
        }
        history.seconds += seconds;
        history
    }

    #[test]
    fn only_the_last_hour_is_shown_and_pairs_are_bounded() {
        let mut history = history(200, 30);
        let hour = history.start_of(3_600);
        assert_eq!(hour.age, 59 * 60 + 30);
        let recent = history.since(hour, "x", "web", &counts(2_005));
        assert_eq!((recent.calls, recent.sent), (595, 595));
        assert_eq!(history.since(hour, "x", "new", &counts(7)).calls, 7);
        for number in 0..PAIRS_MAX + 9 {
            history.end_minute("y", number.to_string(), &counts(1));
        }
        assert_eq!(history.pairs.len(), PAIRS_MAX);
    }

    /// The page says "this window", and the counts were those of the last hour, whatever the window of the limit is.
    #[test]
    fn a_window_begins_within_minutes_of_its_start_and_is_a_day_at_most() {
        let history = history(3_000, 0);
        let now = counts(30_000);
        for (window, age, calls) in [
            (0, 0, 0),
            (90, 120, 20),
            (3_600, 3_540, 590),
            (5 * 3_600, 5 * 3_600, 3_000),
            (5 * 3_600 + 500, 5 * 3_600 + 900, 3_150),
            (86_400, 95 * 900, 14_250),
            (900_000, 95 * 900, 14_250),
        ] {
            let start = history.start_of(window);
            let since = history.since(start, "x", "web", &now);
            assert_eq!((start.age, since.sent), (age, calls), "{window}");
        }
        // Younger than the window: everything since the start.
        let young = super::tests::history(130, 20);
        let start = young.start_of(86_400);
        assert_eq!(start.age, 130 * 60 + 20);
        assert_eq!(young.since(start, "x", "web", &counts(1_303)).calls, 1_303);
    }
}
