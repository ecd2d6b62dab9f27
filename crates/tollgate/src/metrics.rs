//! Counters and histograms of what happens: plain atomics, incremented where the fact happens.
//!
//! Promises: counting takes no lock, except for a 429 or a quota that the provider reports, and
//! never allocates. Counters only grow, and start at zero with the process. Sets of labels are
//! closed: providers are configured, priorities, decisions, reasons, statuses and faults are fixed.
//!
//! Never: decides anything, or knows a caller.

mod histogram;
mod statuses;
pub use histogram::{Histogram, HistogramSnapshot};
pub use statuses::ResponseCounts;
use statuses::StatusCounters;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tollgate_core::alert::Recent429s;
use tollgate_core::ask::Priority;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::{Micros, Span, Wall};

use crate::error::Reason;

/// Upper bounds of `latency_ms`, in microseconds: from a cache nearby to a slow report.
const LATENCY_BOUNDS: &[u64] = &[
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000,
];

/// Upper bounds of `sleep_ms`, in microseconds: `sleep_min` is 2 s, `sleep_max` 300 s.
const SLEEP_BOUNDS: &[u64] = &[
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
];

/// Upper bounds of waits, in microseconds: those of C7.
pub const WAIT_BOUNDS: &[u64] = &[
    100_000, 500_000, 1_000_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

const FAULTS: [Fault; 4] = [Fault::Timeout, Fault::Dns, Fault::Connect, Fault::Reset];

/// All priorities, in the order of their counters.
pub const PRIORITIES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// The reasons of waits and rejections, in the order of their counters; `other`: what does not pass
/// by itself.
const REASONS: [&str; 13] = [
    "limit",
    "cooldown",
    "sleep",
    "degraded",
    "cache_only",
    "concurrency",
    "off_peak",
    "queue_full",
    "shutdown",
    "deadline",
    "store_lost",
    "too_costly",
    "other",
];

/// One permit stage has one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitResult {
    Allowed,
    Queued(Reason),
    Rejected(Option<Reason>),
}

/// The counters of a process. Providers share it through the bus of their events.
#[derive(Debug, Default)]
pub struct Metrics {
    /// One entry per configured provider; a reload removes the others.
    providers: RwLock<BTreeMap<Arc<str>, Arc<ProviderMetrics>>>,
}

/// The counters of one provider.
#[derive(Debug)]
pub struct ProviderMetrics {
    statuses: StatusCounters,
    faults: [AtomicU64; FAULTS.len()],
    permits: [PermitCounters; PRIORITIES.len()],
    latency: Histogram,
    sleep: Histogram,
    /// How long calls waited that had to.
    queue_wait: Histogram,
    violations: AtomicU64,
    quota: QuotaMetrics,
}

/// What the permit stage decided for calls of one priority.
#[derive(Debug)]
struct PermitCounters {
    allowed: AtomicU64,
    queued: [AtomicU64; REASONS.len()],
    rejected: [AtomicU64; REASONS.len()],
    /// How long granted calls waited.
    wait: Histogram,
}

/// What the responses of a provider, or of one of its entities, said about limits.
#[derive(Debug, Default)]
pub struct QuotaMetrics {
    limited: AtomicU64,
    recent_429s: Mutex<Recent429s>,
    reported: Mutex<Option<ReportedQuota>>,
}

/// The counters of an entity. Those of a whole provider are sums over its callers and its cache.
#[derive(Debug, Default)]
pub struct EntityCounters {
    calls: AtomicU64,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
    quota: QuotaMetrics,
}

/// What a provider has reported about its own limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedQuota {
    /// What remains.
    pub remaining: u64,
    /// Of how many.
    pub limit: Option<u64>,
    /// When it starts anew.
    pub reset_at: Option<Wall>,
}

/// A copy of the counters of a provider or of an entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// Calls, whoever responded.
    pub calls: u64,
    /// Responses that said that a limit is used up.
    pub limited: u64,
    /// Those of the last minute.
    pub limited_last_minute: u64,
    /// Calls that a cached response served.
    pub cache_hits: u64,
    /// Calls that the cache had no usable response for.
    pub cache_misses: u64,
    /// What the provider reported last.
    pub reported: Option<ReportedQuota>,
}

/// How often the permit stage decided so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitCount {
    /// How urgent the calls were.
    pub priority: Priority,
    /// `allow`, `queue` or `reject`.
    pub decision: &'static str,
    /// What they waited for, or why not; `none` for those that went at once.
    pub reason: &'static str,
    /// How many.
    pub count: u64,
}

impl Metrics {
    /// The counters of a provider.
    pub fn provider(&self, name: &str) -> Arc<ProviderMetrics> {
        if let Some(known) = self.known(name) {
            return known;
        }
        let mut providers = self.providers.write();
        providers.entry(name.into()).or_default().clone()
    }

    /// The counters of a provider that has been started.
    pub(crate) fn known(&self, name: &str) -> Option<Arc<ProviderMetrics>> {
        self.providers.read().get(name).cloned()
    }

    /// A reload has replaced the providers: forgets those that are gone.
    pub(crate) fn retain(&self, mut is_there: impl FnMut(&str) -> bool) {
        self.providers.write().retain(|name, _| is_there(name));
    }
}

impl Default for ProviderMetrics {
    fn default() -> ProviderMetrics {
        ProviderMetrics {
            statuses: StatusCounters::default(),
            faults: Default::default(),
            permits: Default::default(),
            latency: Histogram::new(LATENCY_BOUNDS),
            sleep: Histogram::new(SLEEP_BOUNDS),
            queue_wait: Histogram::new(WAIT_BOUNDS),
            violations: AtomicU64::new(0),
            quota: QuotaMetrics::default(),
        }
    }
}

impl Default for PermitCounters {
    fn default() -> PermitCounters {
        PermitCounters {
            allowed: AtomicU64::new(0),
            queued: Default::default(),
            rejected: Default::default(),
            wait: Histogram::new(WAIT_BOUNDS),
        }
    }
}

impl ProviderMetrics {
    /// The head of a response has arrived.
    pub(crate) fn on_response(&self, status: u16, class: Class, took: Span) {
        self.statuses.add(status, class);
        self.latency.observe(took.0);
    }

    /// An attempt got no response.
    pub(crate) fn on_fault(&self, fault: Fault) {
        add(&self.faults[match fault {
            Fault::Timeout => 0,
            Fault::Dns => 1,
            Fault::Connect => 2,
            Fault::Reset => 3,
        }]);
    }

    /// The provider sleeps for so long.
    pub(crate) fn on_sleep(&self, duration: Span) {
        self.sleep.observe(duration.0);
    }

    /// The provider limited a call for which the ledger had a permit.
    pub(crate) fn on_violation(&self) {
        add(&self.violations);
    }

    /// The permit stage has decided.
    pub(crate) fn on_permit(&self, priority: Priority, result: PermitResult, waited: Span) {
        let counters = &self.permits[priority_index(priority)];
        match result {
            PermitResult::Allowed => add(&counters.allowed),
            PermitResult::Queued(reason) => {
                add(&counters.queued[reason_index(Some(reason))]);
                self.queue_wait.observe(waited.0);
            }
            PermitResult::Rejected(reason) => {
                add(&counters.rejected[reason_index(reason)]);
                return;
            }
        }
        counters.wait.observe(waited.0);
    }

    /// What its responses said about limits.
    #[must_use]
    pub fn quota(&self) -> &QuotaMetrics {
        &self.quota
    }

    /// Responses by status and missing responses by fault, those that happened.
    #[must_use]
    pub fn requests(&self) -> Vec<(String, u64)> {
        let faults = FAULTS.map(|fault| fault.as_str().to_owned());
        let faults = faults.into_iter().zip(self.faults.iter().map(read));
        let happened = faults.filter(|(_, count)| *count > 0);
        self.statuses.by_status().chain(happened).collect()
    }

    /// The same by class.
    #[must_use]
    pub fn responses(&self) -> ResponseCounts {
        let mut counts = self.statuses.by_class();
        counts.network += self.faults.iter().map(read).sum::<u64>();
        counts
    }

    /// What the permit stage decided; every decision that happened, and `allow` in any case.
    #[must_use]
    pub fn permits(&self) -> Vec<PermitCount> {
        let mut all = Vec::new();
        for (priority, counters) in PRIORITIES.into_iter().zip(&self.permits) {
            let mut push = |decision, reason, count: &AtomicU64| {
                let count = read(count);
                if count > 0 || decision == "allow" {
                    all.push(PermitCount {
                        priority,
                        decision,
                        reason,
                        count,
                    });
                }
            };
            push("allow", "none", &counters.allowed);
            for (index, reason) in REASONS.into_iter().enumerate() {
                push("queue", reason, &counters.queued[index]);
                push("reject", reason, &counters.rejected[index]);
            }
        }
        all
    }

    /// Calls that the permit stage rejected.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        let all = self.permits.iter().flat_map(|one| &one.rejected);
        all.map(read).sum()
    }

    /// Calls that waited for a permit and got it.
    #[must_use]
    pub fn queued(&self) -> u64 {
        let all = self.permits.iter().flat_map(|one| &one.queued);
        all.map(read).sum()
    }

    /// How long calls of this priority waited for their permits, in microseconds; most of them not
    /// at all.
    #[must_use]
    pub fn waits(&self, priority: Priority) -> HistogramSnapshot {
        self.permits[priority_index(priority)].wait.snapshot()
    }

    /// How long calls waited that had to wait and got their permits, in microseconds.
    #[must_use]
    pub fn queue_waits(&self) -> HistogramSnapshot {
        self.queue_wait.snapshot()
    }

    /// From the permit to the head of the response, in microseconds.
    #[must_use]
    pub fn latency(&self) -> HistogramSnapshot {
        self.latency.snapshot()
    }

    /// How long it slept each time, in microseconds.
    #[must_use]
    pub fn sleeps(&self) -> HistogramSnapshot {
        self.sleep.snapshot()
    }

    /// 429s that the provider sent although the ledger had room.
    #[must_use]
    pub fn violations(&self) -> u64 {
        read(&self.violations)
    }
}

impl QuotaMetrics {
    /// The provider said that a limit is used up.
    pub(crate) fn on_limited(&self, now: Micros) {
        add(&self.limited);
        self.recent_429s.lock().record(now);
    }

    /// The provider reported what remains.
    pub(crate) fn on_reported(&self, reported: ReportedQuota) {
        *self.reported.lock() = Some(reported);
    }

    /// A copy; calls and look-ups are zero.
    #[must_use]
    pub fn counts(&self, now: Micros) -> PartCounts {
        PartCounts {
            limited: read(&self.limited),
            limited_last_minute: self.recent_429s.lock().count(now),
            reported: *self.reported.lock(),
            ..PartCounts::default()
        }
    }
}

impl EntityCounters {
    /// A call is for it.
    pub(crate) fn on_call(&self) {
        add(&self.calls);
    }

    /// The cache was asked.
    pub(crate) fn on_lookup(&self, is_hit: bool) {
        add(match is_hit {
            true => &self.cache_hits,
            false => &self.cache_misses,
        });
    }

    /// What its responses said about limits.
    #[must_use]
    pub fn quota(&self) -> &QuotaMetrics {
        &self.quota
    }

    /// A copy.
    #[must_use]
    pub fn counts(&self, now: Micros) -> PartCounts {
        PartCounts {
            calls: read(&self.calls),
            cache_hits: read(&self.cache_hits),
            cache_misses: read(&self.cache_misses),
            ..self.quota.counts(now)
        }
    }
}

fn priority_index(priority: Priority) -> usize {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

fn reason_index(reason: Option<Reason>) -> usize {
    match reason {
        Some(Reason::Limit | Reason::Spread | Reason::Ahead) => 0,
        Some(Reason::Cooldown) => 1,
        Some(Reason::Sleep | Reason::Paused) => 2,
        Some(Reason::Degraded) => 3,
        Some(Reason::CacheOnly | Reason::CacheRequested) => 4,
        Some(Reason::Concurrency) => 5,
        Some(Reason::OffPeak) => 6,
        Some(Reason::QueueFull | Reason::PermitsOpen | Reason::NoDescriptors) => 7,
        Some(Reason::ShuttingDown) => 8,
        Some(Reason::Deadline) => 9,
        Some(Reason::StoreLost) => 10,
        Some(Reason::TooCostly | Reason::NoShare) => 11,
        None => 12,
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The label is the word of rejections and headers.
    #[test]
    fn a_reason_counts_under_its_own_word() {
        for reason in [
            Reason::Limit,
            Reason::Spread,
            Reason::Ahead,
            Reason::Cooldown,
            Reason::Sleep,
            Reason::Paused,
            Reason::Degraded,
            Reason::CacheOnly,
            Reason::CacheRequested,
            Reason::Concurrency,
            Reason::OffPeak,
            Reason::QueueFull,
            Reason::PermitsOpen,
            Reason::NoDescriptors,
            Reason::ShuttingDown,
            Reason::Deadline,
            Reason::StoreLost,
            Reason::TooCostly,
            Reason::NoShare,
        ] {
            assert_eq!(REASONS[reason_index(Some(reason))], reason.as_str());
        }
        assert_eq!(REASONS[reason_index(None)], "other");
    }

    #[test]
    fn responses_are_counted_by_status_whatever_a_provider_sends() {
        let metrics = ProviderMetrics::default();
        for status in [100, 200, 200, 599, 600, 999, 0, 99] {
            let class = Class::of_status(status, None);
            metrics.on_response(status, class, Span::from_millis(7));
        }
        metrics.on_fault(Fault::Dns);
        let requests = metrics.requests();
        let requests: Vec<(&str, u64)> = requests.iter().map(|(code, n)| (&**code, *n)).collect();
        assert_eq!(
            requests,
            [("100", 1), ("200", 2), ("599", 1), ("other", 4), ("dns", 1)]
        );
        assert_eq!(metrics.latency().counts[1], 8, "between 5 and 10 ms");
    }

    #[test]
    fn a_rejection_is_no_wait() {
        let metrics = ProviderMetrics::default();
        let wait = Span::from_secs(2);
        metrics.on_permit(Priority::Low, PermitResult::Queued(Reason::Limit), wait);
        metrics.on_permit(Priority::Low, PermitResult::Rejected(None), wait);
        assert_eq!((metrics.queued(), metrics.rejected()), (1, 1));
        let waits = metrics.waits(Priority::Low);
        assert_eq!((waits.count(), waits.sum), (1, wait.0));
        let happened: Vec<_> = metrics.permits();
        let happened = happened.iter().filter(|one| one.count > 0);
        let words: Vec<_> = happened.map(|one| (one.decision, one.reason)).collect();
        assert_eq!(words, [("queue", "limit"), ("reject", "other")]);
    }
}
