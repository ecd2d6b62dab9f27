//! One scope of the provider: the limits of an entity or a key, their counters and their judge.
//!
//! Promises: what arrives is counted and judged in one step; what is told about a rule is read after the
//! request was counted, as real headers are.
//!
//! Never: named by a caller's key.

use tollgate_core::time::{Micros, Span};

use crate::judge::{Arrival, Judge};
use crate::rule::{CallId, Decision, LimitStatus, Provider, RuleSpec};

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

/// The part of a scope that a report is written from.
#[derive(Clone, Debug)]
pub(crate) struct ScopeRecord {
    pub(crate) name: String,
    pub(crate) judge: Judge,
    /// Most accepted calls in flight at a time.
    pub(crate) in_flight_most: u64,
}

/// The outcome of one arrival.
#[derive(Debug)]
pub(crate) struct CountOutcome {
    pub(crate) accepted: bool,
    /// How every rule stands, as it is told.
    pub(crate) limits: Vec<AdvertisedLimit>,
    /// Index of the rule that speaks: the one that refuses, else the one with the least left.
    pub(crate) binding: usize,
}

impl Scope {
    /// A scope in which nothing has been counted; `limits` are the numbers in force at `at`.
    pub(crate) fn new(name: String, specs: &[RuleSpec], limits: &[u64], at: Micros) -> Scope {
        let mut provider = Provider::new(specs.to_vec());
        for (rule, limit) in limits.iter().enumerate() {
            provider.change(rule, *limit, at);
        }
        let judged = ScopeRecord {
            name,
            judge: Judge::new(),
            in_flight_most: 0,
        };
        Scope {
            provider,
            record: judged,
            in_flight: 0,
        }
    }

    pub(crate) fn record(&self) -> &ScopeRecord {
        &self.record
    }

    /// A request meets the limiter. `attempt` names it for the counters, `call` for the judge; without
    /// the latter it is enforced and not judged. `told` are the lies, rule by rule.
    pub(crate) fn arrive(
        &mut self,
        asked: &SimRequest,
        (attempt, call): (CallId, Option<CallId>),
        told: &[Option<u64>],
        now: Reading,
    ) -> CountOutcome {
        let answer = self.provider.arrive(attempt, now.at(), asked.cost);
        let accepted = answer == Decision::Accepted;
        if let Some(call) = call {
            self.log(asked, call, accepted, now);
        }
        if accepted {
            self.in_flight += 1;
            self.record.in_flight_most = self.record.in_flight_most.max(self.in_flight);
        }
        let meters = self.advertised_limits(told, &answer, now);
        let binding = binding(&meters, &answer);
        CountOutcome {
            accepted,
            limits: meters,
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

    fn log(&mut self, asked: &SimRequest, id: CallId, accepted: bool, now: Reading) {
        let SimRequest { cost, priority, .. } = *asked;
        if let Some(submitted) = asked.submitted {
            // A caller whose clock is ahead did not wait at all.
            let at = Micros(submitted.0.min(now.wall.0));
            self.record.judge.record_submit(id, at, priority);
        }
        self.record.judge.record_arrival(Arrival {
            id,
            at: now.at(),
            cost,
            priority,
            accepted,
        });
    }

    fn advertised_limits(
        &mut self,
        told: &[Option<u64>],
        answer: &Decision,
        now: Reading,
    ) -> Vec<AdvertisedLimit> {
        let windows: Vec<Option<Span>> = self
            .provider
            .rules()
            .map(|spec| spec.counting.window())
            .collect();
        let mut meters = Vec::with_capacity(windows.len());
        for (rule, window) in windows.into_iter().enumerate() {
            let Some(standing) = self.provider.status(rule, now.at()) else {
                continue;
            };
            let (limit, left) = as_advertised(standing, told.get(rule).copied().flatten());
            let reset = match *answer {
                Decision::Limited {
                    rule: refusing,
                    retry_after: Some(wait),
                    ..
                } if refusing == rule => wait,
                Decision::Limited { .. } | Decision::Accepted => standing.reset_after,
            };
            meters.push(AdvertisedLimit {
                limit,
                remaining: left,
                window,
                reset,
            });
        }
        meters
    }
}

/// A lie about the limit is a lie about what is left: the same number has been used up.
fn as_advertised(standing: LimitStatus, lie: Option<u64>) -> (u64, u64) {
    let LimitStatus {
        limit, remaining, ..
    } = standing;
    match lie {
        None => (limit, remaining),
        Some(lie) => (lie, lie.saturating_sub(limit.saturating_sub(remaining))),
    }
}

fn binding(meters: &[AdvertisedLimit], answer: &Decision) -> usize {
    match *answer {
        Decision::Limited { rule, .. } => rule,
        Decision::Accepted => {
            let least = meters
                .iter()
                .enumerate()
                .min_by_key(|(_, meter)| meter.remaining);
            least.map_or(0, |(rule, _)| rule)
        }
    }
}
