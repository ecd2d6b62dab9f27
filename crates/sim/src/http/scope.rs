//! One scope of the provider: the limits of an entity or a key, their counters and their judge.
//!
//! Promises: a request is counted and judged in one step; the advertised status of a rule is read
//! after the request was counted, as in real headers.
//!
//! Never: named by a caller's key.

use tollgate_core::time::{Micros, Span};

use crate::checker::{Arrival, Checker};
use crate::rule::{CallId, LimitStatus, Provider, RuleDecision, RuleSpec};

use super::clock::Reading;
use super::request::SimRequest;
use super::style::AdvertisedLimit;

/// See the module.
#[derive(Debug)]
pub(crate) struct Scope {
    provider: Provider,
    record: ScopeRecord,
    in_flight: u64,
}

/// The part of a scope that the report needs.
#[derive(Clone, Debug)]
pub(crate) struct ScopeRecord {
    pub(crate) name: String,
    pub(crate) checker: Checker,
    /// Most accepted calls in flight at a time.
    pub(crate) in_flight_most: u64,
}

/// The outcome of one arrival.
#[derive(Debug)]
pub(crate) struct CountOutcome {
    pub(crate) accepted: bool,
    /// The advertised status of every rule.
    pub(crate) limits: Vec<AdvertisedLimit>,
    /// Index of the rule to report: the one that limits, otherwise the one with the least
    /// remaining.
    pub(crate) binding: usize,
}

impl Scope {
    /// A scope in which nothing has been counted; `limits` are the numbers enforced at `at`.
    pub(crate) fn new(name: String, specs: &[RuleSpec], limits: &[u64], at: Micros) -> Scope {
        let mut provider = Provider::new(specs.to_vec());
        for (rule, limit) in limits.iter().enumerate() {
            provider.change(rule, *limit, at);
        }
        let record = ScopeRecord {
            name,
            checker: Checker::new(),
            in_flight_most: 0,
        };
        Scope {
            provider,
            record,
            in_flight: 0,
        }
    }

    pub(crate) fn record(&self) -> &ScopeRecord {
        &self.record
    }

    /// A request reaches the limiter. `attempt` names it for the counters, `call` for the judge;
    /// without `call` it is enforced and not judged. `advertised` has the numbers that the headers
    /// show instead of the enforced ones, rule by rule.
    pub(crate) fn arrive(
        &mut self,
        request: &SimRequest,
        (attempt, call): (CallId, Option<CallId>),
        advertised: &[Option<u64>],
        now: Reading,
    ) -> CountOutcome {
        let decision = self.provider.arrive(attempt, now.at(), request.cost);
        let accepted = decision == RuleDecision::Accepted;
        if let Some(call) = call {
            self.log(request, call, accepted, now);
        }
        if accepted {
            self.in_flight += 1;
            self.record.in_flight_most = self.record.in_flight_most.max(self.in_flight);
        }
        let limits = self.advertised_limits(advertised, &decision, now);
        let binding = binding(&limits, &decision);
        CountOutcome {
            accepted,
            limits,
            binding,
        }
    }

    /// The provider is done with an accepted request.
    pub(crate) fn finish(&mut self, attempt: CallId, now: Reading) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.provider.finish(attempt, now.at());
    }

    pub(crate) fn change(&mut self, rule: usize, limit: u64, at: Micros) {
        self.provider.change(rule, limit, at);
    }

    fn log(&mut self, request: &SimRequest, id: CallId, accepted: bool, now: Reading) {
        let SimRequest { cost, priority, .. } = *request;
        if let Some(submitted) = request.submitted {
            // A caller whose clock is ahead did not wait at all.
            let at = Micros(submitted.0.min(now.wall.0));
            self.record.checker.record_submit(id, at, priority);
        }
        self.record.checker.record_arrival(Arrival {
            id,
            at: now.at(),
            cost,
            priority,
            accepted,
        });
    }

    fn advertised_limits(
        &mut self,
        advertised: &[Option<u64>],
        decision: &RuleDecision,
        now: Reading,
    ) -> Vec<AdvertisedLimit> {
        let windows: Vec<Option<Span>> = self
            .provider
            .rules()
            .map(|spec| spec.counting.window())
            .collect();
        let mut limits = Vec::with_capacity(windows.len());
        for (rule, window) in windows.into_iter().enumerate() {
            let Some(status) = self.provider.status(rule, now.at()) else {
                continue;
            };
            let (limit, remaining) = as_advertised(status, advertised.get(rule).copied().flatten());
            let reset = match *decision {
                RuleDecision::Limited {
                    rule: refusing,
                    retry_after: Some(wait),
                    ..
                } if refusing == rule => wait,
                RuleDecision::Limited { .. } | RuleDecision::Accepted => status.reset_after,
            };
            limits.push(AdvertisedLimit {
                limit,
                remaining,
                window,
                reset,
            });
        }
        limits
    }
}

/// A false limit also changes the advertised remaining count: the same number has been used.
fn as_advertised(status: LimitStatus, advertised: Option<u64>) -> (u64, u64) {
    let LimitStatus {
        limit, remaining, ..
    } = status;
    match advertised {
        None => (limit, remaining),
        Some(advertised) => (
            advertised,
            advertised.saturating_sub(limit.saturating_sub(remaining)),
        ),
    }
}

fn binding(limits: &[AdvertisedLimit], decision: &RuleDecision) -> usize {
    match *decision {
        RuleDecision::Limited { rule, .. } => rule,
        RuleDecision::Accepted => {
            let least = limits
                .iter()
                .enumerate()
                .min_by_key(|(_, meter)| meter.remaining);
            least.map_or(0, |(rule, _)| rule)
        }
    }
}
