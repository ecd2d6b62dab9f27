//! Counts of the calls of a provider, by caller, since the start: for the page, and as a sum for S9.
//!
//! Promises: counting a call costs a few additions without a lock; the caller of a call is looked up
//! once, and not at all for a call without a name. At most [`CALLERS_MAX`] names are counted on
//! their own, all further ones together.
//!
//! Never: decides anything, decreases, or keeps the name of more than that many callers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use tollgate_core::ask::Priority;
use tollgate_core::time::Span;

/// The most callers of a provider that are counted by name: more do not fit on a screen. With their
/// counters they take 64 x 0.4 KiB = 26 KiB.
pub const CALLERS_MAX: usize = 64;

/// The name of calls that say none.
pub const DEFAULT_CALLER: &str = "default";

/// The name under which all callers beyond [`CALLERS_MAX`] are counted.
pub const OTHER_CALLERS: &str = "(others)";

/// Waits are counted in classes whose bounds grow by the root of two: from 1 ms to 2^17 ms, which is
/// two minutes. A class is exact within a fifth.
const WAIT_CLASSES: usize = 36;

/// The counters of one provider.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    /// Calls without a name.
    unnamed: Arc<CallerCounters>,
    named: RwLock<HashMap<Box<str>, Arc<CallerCounters>>>,
    others: Arc<CallerCounters>,
}

/// The counters of one caller.
#[derive(Debug, Default)]
pub(crate) struct CallerCounters {
    begun: AtomicU64,
    calls: AtomicU64,
    rejected: AtomicU64,
    left: AtomicU64,
    sent: [AtomicU64; 3],
    waits: WaitCounters,
}

#[derive(Debug)]
struct WaitCounters([AtomicU64; WAIT_CLASSES]);

impl Default for WaitCounters {
    fn default() -> WaitCounters {
        WaitCounters(std::array::from_fn(|_| AtomicU64::default()))
    }
}

/// A call that is counted when it ends.
#[derive(Clone, Debug)]
pub(crate) struct CountedCall {
    caller: Arc<CallerCounters>,
    priority: Priority,
}

/// What became of the calls of a caller, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Calls that ended.
    pub calls: u64,
    /// Those that Tollgate rejected.
    pub rejected: u64,
    /// Those whose caller did not wait for the response.
    pub left: u64,
    /// Attempts by the priority of the call: high, normal, low.
    pub sent: [u64; 3],
    /// How long they waited for permits.
    pub waits: WaitCounts,
}

/// A distribution of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitCounts([u64; WAIT_CLASSES]);

impl CallCounters {
    /// A call of this caller begins.
    pub(crate) fn begin(&self, caller: Option<&str>, priority: Priority) -> CountedCall {
        let call = self.remember(caller, priority);
        add(&call.caller.begun, 1);
        call
    }

    /// Calls of this caller may come, which a response in memory serves.
    pub(crate) fn remember(&self, caller: Option<&str>, priority: Priority) -> CountedCall {
        CountedCall {
            caller: self.caller(caller),
            priority,
        }
    }

    /// Calls of all callers so far, also those that are not over.
    pub(crate) fn begun(&self) -> u64 {
        let read = |one: &Arc<CallerCounters>| one.begun.load(Ordering::Relaxed);
        let named: u64 = self.named.read().values().map(read).sum();
        named + read(&self.unnamed) + read(&self.others)
    }

    fn caller(&self, name: Option<&str>) -> Arc<CallerCounters> {
        let Some(name) = name else {
            return self.unnamed.clone();
        };
        if let Some(known) = self.named.read().get(name) {
            return known.clone();
        }
        let mut named = self.named.write();
        if named.len() >= CALLERS_MAX && !named.contains_key(name) {
            return self.others.clone();
        }
        named.entry(name.into()).or_default().clone()
    }

    /// Every caller that has called, by name; those without one first. A caller whose first call is not over has
    /// zeros: it waits, and must not be invisible.
    pub(crate) fn by_caller(&self) -> Vec<(String, CallCounts)> {
        let mut all = vec![(DEFAULT_CALLER.to_owned(), self.unnamed.snapshot())];
        let named = self.named.read();
        all.extend(
            named
                .iter()
                .map(|(name, one)| (name.to_string(), one.snapshot())),
        );
        drop(named);
        all[1..].sort_by(|one, other| one.0.cmp(&other.0));
        let others = self.others.snapshot();
        if others.calls > 0 {
            all.push((OTHER_CALLERS.to_owned(), others));
        }
        all
    }
}

impl CountedCall {
    /// A response in memory has served it.
    pub(crate) fn on_hit(&self) {
        add(&self.caller.begun, 1);
        add(&self.caller.calls, 1);
    }

    /// Its caller has a response that cost so many attempts.
    pub(crate) fn on_response(&self, waited: Span, attempts: u32) {
        add(&self.caller.calls, 1);
        if attempts > 0 {
            add(
                &self.caller.sent[priority_index(self.priority)],
                u64::from(attempts),
            );
            add(&self.caller.waits.0[wait_class(waited)], 1);
        }
    }

    /// Tollgate rejected it.
    pub(crate) fn on_rejected(&self, waited: Span, attempts: u32) {
        add(&self.caller.rejected, 1);
        self.on_response(waited, attempts);
    }

    /// Its caller has gone.
    pub(crate) fn on_left(&self, attempts: u32) {
        add(&self.caller.left, 1);
        add(&self.caller.calls, 1);
        add(
            &self.caller.sent[priority_index(self.priority)],
            u64::from(attempts),
        );
    }
}

impl CallerCounters {
    fn snapshot(&self) -> CallCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CallCounts {
            calls: read(&self.calls),
            rejected: read(&self.rejected),
            left: read(&self.left),
            sent: self.sent.each_ref().map(read),
            waits: WaitCounts(self.waits.0.each_ref().map(read)),
        }
    }
}

impl CallCounts {
    /// What was counted since an earlier time.
    #[must_use]
    pub fn since(&self, earlier: &CallCounts) -> CallCounts {
        let minus = |now: u64, before: u64| now.saturating_sub(before);
        CallCounts {
            calls: minus(self.calls, earlier.calls),
            rejected: minus(self.rejected, earlier.rejected),
            left: minus(self.left, earlier.left),
            sent: std::array::from_fn(|at| minus(self.sent[at], earlier.sent[at])),
            waits: WaitCounts(std::array::from_fn(|at| {
                minus(self.waits.0[at], earlier.waits.0[at])
            })),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &CallCounts) -> CallCounts {
        CallCounts {
            calls: self.calls + other.calls,
            rejected: self.rejected + other.rejected,
            left: self.left + other.left,
            sent: std::array::from_fn(|at| self.sent[at] + other.sent[at]),
            waits: WaitCounts(std::array::from_fn(|at| {
                self.waits.0[at] + other.waits.0[at]
            })),
        }
    }

    /// Attempts of all priorities.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.sent.iter().sum()
    }
}

impl Default for WaitCounts {
    fn default() -> WaitCounts {
        WaitCounts([0; WAIT_CLASSES])
    }
}

impl WaitCounts {
    /// The wait that so many thousandths of the calls did not exceed, as the bound of its class; `None`
    /// without calls.
    #[must_use]
    pub fn quantile(&self, permille: u64) -> Option<Span> {
        let all: u64 = self.0.iter().sum();
        let wanted = (all * permille).div_ceil(1_000).max(1);
        let mut seen = 0;
        let class = self.0.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        // Below a millisecond is no wait that anybody notices.
        Some(match class {
            0 => Span::ZERO,
            class => class_bound(class),
        })
    }
}

/// Class 0 is below 1 ms; class n ends at 2^(n/2) ms, the last one is open.
fn wait_class(waited: Span) -> usize {
    let bound = |class: &usize| waited < class_bound(*class);
    (0..WAIT_CLASSES - 1)
        .find(bound)
        .unwrap_or(WAIT_CLASSES - 1)
}

fn class_bound(class: usize) -> Span {
    let half = 1_000_u64 << (class / 2);
    match class {
        // The root of two, as a fraction that is exact enough.
        odd if odd % 2 == 1 => Span(half * 1_414 / 1_000),
        _ => Span(half),
    }
}

pub(super) fn priority_index(priority: Priority) -> usize {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_beyond_the_bound_are_counted_together() {
        let counters = CallCounters::default();
        counters.begin(None, Priority::Normal).on_hit();
        for number in 0..CALLERS_MAX + 5 {
            let call = counters.begin(Some(&format!("caller {number}")), Priority::Low);
            call.on_response(Span::ZERO, 2);
        }
        let all = counters.by_caller();
        assert_eq!(all.len(), CALLERS_MAX + 2);
        assert_eq!((all[0].0.as_str(), all[0].1.calls), (DEFAULT_CALLER, 1));
        let (name, others) = &all[CALLERS_MAX + 1];
        assert_eq!(name, OTHER_CALLERS);
        assert_eq!((others.calls, others.sent), (5, [0, 0, 10]));
    }

    #[test]
    fn quantiles_are_exact_within_the_width_of_a_class() {
        let counters = CallCounters::default();
        let call = counters.begin(None, Priority::High);
        for millis in 1..=1_000 {
            call.on_response(Span::from_millis(millis), 1);
        }
        let waits = counters.by_caller()[0].1.waits;
        let near = |permille, millis: u64| {
            let found = waits.quantile(permille).unwrap().0 / 1_000;
            assert!(found >= millis && found * 5 <= millis * 8, "{found}");
        };
        near(500, 500);
        near(990, 990);
        assert_eq!(WaitCounts::default().quantile(990), None);
        let long = counters.begin(Some("x"), Priority::High);
        long.on_response(Span::from_secs(86_400), 1);
        let bound = counters.by_caller()[1].1.waits.quantile(500).unwrap();
        assert!(bound > Span::from_secs(100));
    }

    #[test]
    fn a_difference_has_what_was_counted_in_between() {
        let counters = CallCounters::default();
        let call = counters.begin(None, Priority::High);
        call.on_rejected(Span::from_millis(5), 1);
        let before = counters.by_caller()[0].1;
        call.on_response(Span::from_millis(5), 1);
        call.on_left(0);
        let since = counters.by_caller()[0].1.since(&before);
        assert_eq!((since.calls, since.rejected, since.left), (2, 0, 1));
        assert_eq!(since.attempts(), 1);
        assert_eq!(since.plus(&before).calls, 3);
        assert_eq!(counters.begun(), 1);
    }
}
