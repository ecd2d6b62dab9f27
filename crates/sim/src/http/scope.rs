//! One scope of the provider: the limits of an entity or a key, their counters and their judge.
//!
//! Promises: what arrives is counted and judged in one step; what is told about a rule is read after the
//! request was counted, as real headers are.
//!
//! Never: named by a caller's key.

use tollgate_core::time::{Micros, Span};

use crate::judge::{Arrival, Judge};
use crate::rule::{Answer, CallId, Provider, RuleSpec, Standing};

use super::asked::Asked;
use super::clock::Reading;
use super::style::Meter;

/// See the module.
#[derive(Debug)]
pub(crate) struct Scope {
    provider: Provider,
    judged: Judged,
    in_flight: u64,
}

/// The part of a scope that a report is written from.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) name: String,
    pub(crate) judge: Judge,
    /// Most accepted calls in flight at a time.
    pub(crate) in_flight_most: u64,
}

/// The outcome of one arrival.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) accepted: bool,
    /// How every rule stands, as it is told.
    pub(crate) meters: Vec<Meter>,
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
        let judged = Judged {
            name,
            judge: Judge::new(),
            in_flight_most: 0,
        };
        Scope {
            provider,
            judged,
            in_flight: 0,
        }
    }

    pub(crate) fn judged(&self) -> &Judged {
        &self.judged
    }

    /// A request meets the limiter. `attempt` names it for the counters, `call` for the judge; without
    /// the latter it is enforced and not judged. `told` are the lies, rule by rule.
    pub(crate) fn arrive(
        &mut self,
        asked: &Asked,
        (attempt, call): (CallId, Option<CallId>),
        told: &[Option<u64>],
        now: Reading,
    ) -> Outcome {
        let answer = self.provider.arrive(attempt, now.at(), asked.cost);
        let accepted = answer == Answer::Accepted;
        if let Some(call) = call {
            self.log(asked, call, accepted, now);
        }
        if accepted {
            self.in_flight += 1;
            self.judged.in_flight_most = self.judged.in_flight_most.max(self.in_flight);
        }
        let meters = self.meters(told, &answer, now);
        let binding = binding(&meters, &answer);
        Outcome {
            accepted,
            meters,
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

    fn log(&mut self, asked: &Asked, id: CallId, accepted: bool, now: Reading) {
        let Asked { cost, priority, .. } = *asked;
        if let Some(submitted) = asked.submitted {
            // A caller whose clock is ahead did not wait at all.
            let at = Micros(submitted.0.min(now.wall.0));
            self.judged.judge.submitted(id, at, priority);
        }
        self.judged.judge.arrived(Arrival {
            id,
            at: now.at(),
            cost,
            priority,
            accepted,
        });
    }

    fn meters(&mut self, told: &[Option<u64>], answer: &Answer, now: Reading) -> Vec<Meter> {
        let windows: Vec<Option<Span>> = self
            .provider
            .rules()
            .map(|spec| spec.counting.window())
            .collect();
        let mut meters = Vec::with_capacity(windows.len());
        for (rule, window) in windows.into_iter().enumerate() {
            let Some(standing) = self.provider.standing(rule, now.at()) else {
                continue;
            };
            let (limit, left) = as_told(standing, told.get(rule).copied().flatten());
            let reset = match *answer {
                Answer::Refused {
                    rule: refusing,
                    retry_after: Some(wait),
                    ..
                } if refusing == rule => wait,
                Answer::Refused { .. } | Answer::Accepted => standing.reset_after,
            };
            meters.push(Meter {
                limit,
                left,
                window,
                reset,
            });
        }
        meters
    }
}

/// A lie about the limit is a lie about what is left: the same number has been used up.
fn as_told(standing: Standing, lie: Option<u64>) -> (u64, u64) {
    let Standing {
        limit, remaining, ..
    } = standing;
    match lie {
        None => (limit, remaining),
        Some(lie) => (lie, lie.saturating_sub(limit.saturating_sub(remaining))),
    }
}

fn binding(meters: &[Meter], answer: &Answer) -> usize {
    match *answer {
        Answer::Refused { rule, .. } => rule,
        Answer::Accepted => {
            let least = meters
                .iter()
                .enumerate()
                .min_by_key(|(_, meter)| meter.left);
            least.map_or(0, |(rule, _)| rule)
        }
    }
}
