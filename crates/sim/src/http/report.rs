//! The provider's report: the judge's figures as JSON.
//!
//! Promises: figures come from the judge's log and the state's tally, nothing is estimated; a scope
//! is named by its entity and by the number of its key, never by the key.
//!
//! Never: rounds a violation away.

use std::collections::HashMap;

use serde::Serialize;
use tollgate_core::time::{Micros, Span};

use crate::checker::{ArrivalFilter, Checker, Priority, QuotaUse, Waits};
use crate::rule::{CallId, Counting, RuleSpec};

use super::clock::Reading;
use super::scope::ScopeRecord;
use super::state::{ProviderState, RecordedChange, Tally};

/// Duplicates named in a report; their count is always complete.
const DUPLICATES_NAMED_MAX: usize = 100;

/// The report since the start or the last reset.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seconds since the provider started.
    pub seconds: f64,
    /// Requests that reached the limiter.
    pub arrivals: usize,
    /// Those that every rule allowed.
    pub accepted: usize,
    /// Those that a rule limited: each is one violation.
    pub violations: usize,
    /// Calls accepted more than once, by `X-Call-Id`.
    pub duplicates: usize,
    /// Their ids, at most a hundred.
    pub duplicate_calls: Vec<String>,
    /// Requests whose response was sent to the last byte.
    pub answered: usize,
    /// Requests counted whose response broke off or was never sent.
    pub unanswered: usize,
    /// Requests counted whose response is not complete yet.
    pub in_flight: usize,
    /// Requests read and not counted yet.
    pub on_the_way: usize,
    /// Requests that a planned fault has affected.
    pub struck: usize,
    /// Requests enforced after the log was full; the figures below do not include them.
    pub unjudged: usize,
    /// One entry per entity and key that has limits of its own.
    pub scopes: Vec<ScopeReport>,
}

/// The report of one scope.
#[derive(Clone, Debug, Serialize)]
pub struct ScopeReport {
    /// `all`, the entity, `key1`, or `entity/key1`.
    pub scope: String,
    /// Requests that reached the limiter.
    pub arrivals: usize,
    /// Those that every rule allowed.
    pub accepted: usize,
    /// Those that a rule limited.
    pub violations: usize,
    /// Rule by rule.
    pub rules: Vec<RuleReport>,
    /// Waits by priority, of calls with `X-Submitted-At`.
    pub waits: WaitsReport,
}

/// The report of one rule of one scope.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// The rule as in the settings.
    pub rule: String,
    /// The number that it enforces now.
    pub limit: u64,
    /// Most units that arrived in any window, 429s included; for a limit on calls in flight `null`,
    /// since a limited call is never in flight.
    pub most_arrived: Option<u64>,
    /// Most units accepted in any window; most accepted calls at a time.
    pub most_accepted: u64,
    /// Accepted units and the units the rule would have allowed, from the first arrival to the
    /// last.
    pub quota: Option<QuotaReport>,
}

/// How much of a quota was used.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QuotaReport {
    /// Units accepted.
    pub accepted: u64,
    /// Units the rule would have allowed; each stretch between two changes of the limit counts as
    /// if the rule were unused at its start, so it is an upper bound.
    pub allowed: u64,
    /// The first in percent of the second.
    pub percent: f64,
}

/// Waits by priority.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WaitsReport {
    /// Of `X-Priority: high`.
    pub high: Option<WaitReport>,
    /// Of all other calls.
    pub normal: Option<WaitReport>,
    /// Of `X-Priority: low`.
    pub low: Option<WaitReport>,
}

/// From `X-Submitted-At` to the first accepted arrival.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WaitReport {
    /// Calls measured.
    pub calls: usize,
    /// Half of them waited no longer.
    pub p50_ms: f64,
    /// 99 % of them waited no longer.
    pub p99_ms: f64,
    /// None waited longer.
    pub max_ms: f64,
}

/// A copy of the state, taken under its lock.
#[derive(Debug)]
pub(crate) struct ReportInput {
    specs: Vec<RuleSpec>,
    limits: Vec<u64>,
    changes: Vec<RecordedChange>,
    records: Vec<ScopeRecord>,
    names: HashMap<CallId, String>,
    tally: Tally,
    on_the_way: usize,
    since_start: Span,
}

impl ReportInput {
    pub(crate) fn take(state: &ProviderState, now: Reading, on_the_way: usize) -> ReportInput {
        ReportInput {
            specs: state.specs().to_vec(),
            limits: state.limits().to_vec(),
            changes: state.changes().to_vec(),
            records: state.scope_records(),
            names: state.call_names(),
            tally: state.tally(),
            on_the_way,
            since_start: now.since_start.since(Micros(0)),
        }
    }
}

impl Report {
    /// The report as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a report has string keys and finite numbers only")
    }

    pub(crate) fn checker(input: &ReportInput) -> Report {
        let scopes: Vec<ScopeReport> = input
            .records
            .iter()
            .map(|record| ScopeReport::checker(record, input))
            .collect();
        let duplicates = duplicates(&input.records);
        let named = duplicates
            .iter()
            .filter_map(|id| input.names.get(id).cloned());
        let Tally {
            arrivals,
            answered,
            struck,
            in_flight,
        } = input.tally;
        let judged: usize = scopes.iter().map(|scope| scope.arrivals).sum();
        Report {
            seconds: millis(input.since_start) / 1_000.0,
            arrivals,
            accepted: scopes.iter().map(|scope| scope.accepted).sum(),
            violations: scopes.iter().map(|scope| scope.violations).sum(),
            duplicates: duplicates.len(),
            duplicate_calls: named.take(DUPLICATES_NAMED_MAX).collect(),
            answered,
            unanswered: arrivals.saturating_sub(answered + in_flight),
            in_flight,
            on_the_way: input.on_the_way,
            struck,
            unjudged: arrivals - judged,
            scopes,
        }
    }
}

impl ScopeReport {
    fn checker(record: &ScopeRecord, input: &ReportInput) -> ScopeReport {
        let checker = &record.checker;
        let waits = |priority| checker.waits(priority).map(WaitReport::from);
        let rules = input.specs.iter().enumerate();
        ScopeReport {
            scope: record.name.clone(),
            arrivals: checker.arrivals().len(),
            accepted: checker.accepted(),
            violations: checker.violations(),
            rules: rules
                .map(|(index, spec)| rule(index, spec, record, input))
                .collect(),
            waits: WaitsReport {
                high: waits(Priority::High),
                normal: waits(Priority::Normal),
                low: waits(Priority::Low),
            },
        }
    }
}

impl From<Waits> for WaitReport {
    fn from(waits: Waits) -> WaitReport {
        WaitReport {
            calls: waits.calls,
            p50_ms: millis(waits.p50),
            p99_ms: millis(waits.p99),
            max_ms: millis(waits.max),
        }
    }
}

fn rule(index: usize, spec: &RuleSpec, record: &ScopeRecord, input: &ReportInput) -> RuleReport {
    let changes: Vec<&RecordedChange> = input
        .changes
        .iter()
        .filter(|change| change.rule == index)
        .collect();
    let most = |which| {
        spec.counting
            .window()
            .map(|w| record.checker.max_in_any_window(w, spec.unit, which))
    };
    RuleReport {
        rule: spec.to_string(),
        limit: input.limits.get(index).copied().unwrap_or_default(),
        most_arrived: most(ArrivalFilter::Arrived),
        most_accepted: most(ArrivalFilter::Accepted).unwrap_or(record.in_flight_most),
        quota: quota(spec, &record.checker, &changes),
    }
}

/// Adds up the stretches between two changes of the limit.
fn quota(spec: &RuleSpec, checker: &Checker, changes: &[&RecordedChange]) -> Option<QuotaReport> {
    let instants = checker.arrivals().iter().map(|arrival| arrival.at);
    let (first, last) = (instants.clone().min()?, instants.max()? + Span(1));
    let mut sum = QuotaUse {
        accepted: 0,
        allowed: 0,
    };
    let mut from = first;
    let mut counting: Counting = spec.counting;
    let ends = changes.iter().map(|change| (change.at, Some(change.limit)));
    for (end, next) in ends.chain([(last, None)]) {
        let to = end.clamp(from, last);
        let part = checker.quota_used(&RuleSpec { counting, ..*spec }, from, to)?;
        sum.accepted = sum.accepted.saturating_add(part.accepted);
        sum.allowed = sum.allowed.saturating_add(part.allowed);
        from = to;
        counting = next.map_or(counting, |limit| spec.counting.with_limit(limit));
    }
    let QuotaUse { accepted, allowed } = sum;
    Some(QuotaReport {
        accepted,
        allowed,
        percent: sum.percent(),
    })
}

/// Over all scopes: a retry under another key is a duplicate too.
fn duplicates(records: &[ScopeRecord]) -> Vec<CallId> {
    let mut all = Checker::new();
    for arrival in records.iter().flat_map(|record| record.checker.arrivals()) {
        all.record_arrival(*arrival);
    }
    all.duplicates()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a figure for people; runs are far below 2^52 µs"
)]
fn millis(span: Span) -> f64 {
    span.0 as f64 / 1_000.0
}
