//! The independent checker: it has its own log of the requests that reached the provider, and it
//! judges a run only by that log.
//!
//! Promises: uses no counters, neither those of the sender nor those of the rules. Each figure has
//! one definition, stated at its function. Windows are counted again by brute force.
//!
//! Never: shares code with the code under test. It is simple and slow, which is enough for the log
//! of a test.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_core::time::{Micros, Span};

use crate::rule::{CallId, Cost, Unit};

mod quota;
#[cfg(test)]
mod tests;

pub use quota::{QuotaUse, allowance};

/// How urgent a call is, in order from most to least urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A person waits for the response.
    High,
    /// The default.
    #[default]
    Normal,
    /// Background.
    Low,
}

/// One request at the provider's limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The call that this request is an attempt of.
    pub id: CallId,
    /// When it reached the limiter.
    pub at: Micros,
    /// Its cost.
    pub cost: Cost,
    /// How urgent it was.
    pub priority: Priority,
    /// Whether every rule allowed it.
    pub accepted: bool,
}

/// Which arrivals to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalFilter {
    /// All requests that reached the provider, limited or not.
    Arrived,
    /// Only requests that the provider accepted.
    Accepted,
}

/// Which order to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderBy {
    /// The order of sending.
    Sent,
    /// The order of arrival at the limiter; the network may have changed the order.
    Arrived,
}

/// How long calls waited, from submission to the first accepted arrival. Percentiles use the
/// nearest rank: the smallest wait that at least p % of the calls did not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Calls measured.
    pub calls: usize,
    /// Half of the calls waited no longer than this.
    pub p50: Span,
    /// 99 % of the calls waited no longer than this.
    pub p99: Span,
    /// The longest wait.
    pub max: Span,
}

#[derive(Clone, Copy, Debug)]
struct Submitted {
    seq: usize,
    at: Micros,
    priority: Priority,
    answered: bool,
}

/// The log of a run and the figures computed from it.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    arrivals: Vec<Arrival>,
    sent: Vec<CallId>,
    submitted: BTreeMap<CallId, Submitted>,
}

impl Checker {
    /// An empty log.
    #[must_use]
    pub fn new() -> Checker {
        Checker::default()
    }

    /// A caller has submitted a call. Submissions are recorded in order. A second submission with
    /// the same id is ignored, because it is the same call.
    pub fn record_submit(&mut self, id: CallId, at: Micros, priority: Priority) {
        let seq = self.submitted.len();
        self.submitted.entry(id).or_insert(Submitted {
            seq,
            at,
            priority,
            answered: false,
        });
    }

    /// The sender has sent an attempt. Attempts are recorded in order, for [`OrderBy::Sent`] only.
    pub fn record_send(&mut self, id: CallId) {
        self.sent.push(id);
    }

    /// A request has reached the limiter.
    pub fn record_arrival(&mut self, arrival: Arrival) {
        self.arrivals.push(arrival);
    }

    /// The caller has its response, whatever its status.
    pub fn record_response(&mut self, id: CallId) {
        if let Some(call) = self.submitted.get_mut(&id) {
            call.answered = true;
        }
    }

    /// The log, in recording order.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// Requests the provider limited: each is one violation.
    #[must_use]
    pub fn violations(&self) -> usize {
        self.arrivals
            .iter()
            .filter(|arrival| !arrival.accepted)
            .count()
    }

    /// Requests the provider accepted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.arrivals.len() - self.violations()
    }

    /// Violations per 1000 requests that reached the provider; 0 if none did.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a figure for people; logs are far below 2^52"
    )]
    pub fn violations_per_1000(&self) -> f64 {
        1000.0 * self.violations() as f64 / self.arrivals.len().max(1) as f64
    }

    /// The most units in any window `[t, t + window)`. The maximum occurs in a window that starts
    /// with an arrival, so only such windows are counted.
    #[must_use]
    pub fn max_in_any_window(&self, window: Span, unit: Unit, which: ArrivalFilter) -> u64 {
        let mut log: Vec<&Arrival> = self.filtered(which).collect();
        log.sort_by_key(|arrival| arrival.at);
        let units_from = |first: usize| -> u64 {
            let end = log[first].at + window;
            log[first..]
                .iter()
                .take_while(|arrival| arrival.at < end)
                .fold(0, |sum, arrival| sum.saturating_add(arrival.cost.of(unit)))
        };
        (0..log.len()).map(units_from).max().unwrap_or(0)
    }

    /// How long the calls of a priority waited; `None` if none of them was accepted.
    #[must_use]
    pub fn waits(&self, priority: Priority) -> Option<Waits> {
        let mut first: BTreeMap<CallId, Micros> = BTreeMap::new();
        for arrival in self.filtered(ArrivalFilter::Accepted) {
            let at = first.entry(arrival.id).or_insert(arrival.at);
            *at = (*at).min(arrival.at);
        }
        let mut waits: Vec<Span> = first
            .iter()
            .filter_map(|(id, at)| Some(at.since(self.submitted_call(*id, priority)?.at)))
            .collect();
        waits.sort_unstable();
        let max = *waits.last()?;
        Some(Waits {
            calls: waits.len(),
            p50: rank(&waits, 50),
            p99: rank(&waits, 99),
            max,
        })
    }

    /// Calls that were accepted more than once, in order of id. A retry of a limited attempt is no
    /// duplicate.
    #[must_use]
    pub fn duplicates(&self) -> Vec<CallId> {
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<CallId> = self
            .filtered(ArrivalFilter::Accepted)
            .filter(|arrival| !seen.insert(arrival.id))
            .map(|arrival| arrival.id)
            .collect();
        twice.into_iter().collect()
    }

    /// Calls that were submitted and never got a response, in order of id.
    #[must_use]
    pub fn lost(&self) -> Vec<CallId> {
        let lost = self.submitted.iter().filter(|(_, call)| !call.answered);
        lost.map(|(id, _)| *id).collect()
    }

    /// Calls that were overtaken by a call of the same priority that was submitted later. Only the
    /// first occurrence of a call counts. Calls that do not occur are left out.
    #[must_use]
    pub fn overtaken(&self, seen: OrderBy) -> Vec<CallId> {
        let order: Vec<CallId> = match seen {
            OrderBy::Sent => self.sent.clone(),
            OrderBy::Arrived => self.by_arrival(),
        };
        let mut once = BTreeSet::new();
        let mut newest: BTreeMap<Priority, usize> = BTreeMap::new();
        let mut overtaken = Vec::new();
        for id in order {
            let Some(call) = self.submitted.get(&id).filter(|_| once.insert(id)) else {
                continue;
            };
            let newest = newest.entry(call.priority).or_insert(call.seq);
            if call.seq < *newest {
                overtaken.push(id);
            }
            *newest = call.seq.max(*newest);
        }
        overtaken
    }

    fn by_arrival(&self) -> Vec<CallId> {
        let mut log: Vec<&Arrival> = self.arrivals.iter().collect();
        log.sort_by_key(|arrival| arrival.at);
        log.into_iter().map(|arrival| arrival.id).collect()
    }

    fn filtered(&self, which: ArrivalFilter) -> impl Iterator<Item = &Arrival> {
        self.arrivals
            .iter()
            .filter(move |arrival| which == ArrivalFilter::Arrived || arrival.accepted)
    }

    fn submitted_call(&self, id: CallId, priority: Priority) -> Option<&Submitted> {
        self.submitted
            .get(&id)
            .filter(|call| call.priority == priority)
    }
}

/// The percentile by nearest rank, in a sorted, non-empty list.
fn rank(sorted: &[Span], percent: usize) -> Span {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}
