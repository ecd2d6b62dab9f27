//! The provider itself: several rules, all of which must allow a request.
//!
//! Promises: a request is charged to every rule or to none; a limited request names the rule with
//! the longest wait.
//!
//! Never: goes back in time. An instant earlier than the last one counts as the last one.

use tollgate_core::time::{Micros, Span};

use super::{Availability, CallId, Cost, Counter, LimitStatus, RuleDecision, RuleSpec};

/// The enforcing side: rules, all of which must allow a request.
#[derive(Debug)]
pub struct Provider {
    rules: Vec<Rule>,
    last: Micros,
}

#[derive(Debug)]
struct Rule {
    spec: RuleSpec,
    counter: Box<dyn Counter>,
}

impl Provider {
    /// A provider with these rules, none of them used yet. Without rules it accepts everything.
    #[must_use]
    pub fn new(specs: Vec<RuleSpec>) -> Provider {
        let rules = specs
            .into_iter()
            .map(|spec| Rule {
                spec,
                counter: spec.counting.counter(),
            })
            .collect();
        Provider {
            rules,
            last: Micros(0),
        }
    }

    /// A request has reached the limiter.
    pub fn arrive(&mut self, id: CallId, now: Micros, cost: Cost) -> RuleDecision {
        let now = self.forward(now);
        if let Some(limited) = self.limited_by(now, cost) {
            for rule in self
                .rules
                .iter_mut()
                .filter(|rule| rule.spec.counts_refused)
            {
                rule.counter
                    .charge_limited(id, cost.of(rule.spec.unit), now);
            }
            return limited;
        }
        for rule in &mut self.rules {
            rule.counter.charge(id, cost.of(rule.spec.unit), now);
        }
        RuleDecision::Accepted
    }

    /// The decision of [`Provider::arrive`], without counting anything.
    pub fn peek(&mut self, now: Micros, cost: Cost) -> RuleDecision {
        let now = self.forward(now);
        self.limited_by(now, cost).unwrap_or(RuleDecision::Accepted)
    }

    /// The response to an accepted request has been sent. Unknown ids are ignored.
    pub fn finish(&mut self, id: CallId, now: Micros) {
        let now = self.forward(now);
        for rule in &mut self.rules {
            rule.counter.finish(id, now);
        }
    }

    /// The provider changes a limit while it runs; counted requests stay counted. An index without
    /// a rule is ignored.
    pub fn change(&mut self, rule: usize, limit: u64, now: Micros) {
        let now = self.forward(now);
        if let Some(rule) = self.rules.get_mut(rule) {
            rule.counter.set_limit(limit, now);
            rule.spec.counting = rule.spec.counting.with_limit(limit);
        }
    }

    /// The rules as they are now.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &RuleSpec> {
        self.rules.iter().map(|rule| &rule.spec)
    }

    /// The status of a rule; `None` if it does not exist.
    pub fn status(&mut self, rule: usize, now: Micros) -> Option<LimitStatus> {
        let now = self.forward(now);
        self.rules
            .get_mut(rule)
            .map(|rule| rule.counter.status(now))
    }

    fn forward(&mut self, now: Micros) -> Micros {
        self.last = self.last.max(now);
        self.last
    }

    fn limited_by(&mut self, now: Micros, cost: Cost) -> Option<RuleDecision> {
        let mut worst: Option<(usize, Option<Span>)> = None;
        for (at, rule) in self.rules.iter_mut().enumerate() {
            let wait = match rule.counter.availability(cost.of(rule.spec.unit), now) {
                Availability::Now => continue,
                Availability::After(span) => Some(span),
                Availability::Unknown => None,
            };
            let longer = match (worst, wait) {
                (None, _) | (Some((_, Some(_))), None) => true,
                (Some((_, Some(longest))), Some(span)) => span > longest,
                (Some((_, None)), _) => false,
            };
            if longer {
                worst = Some((at, wait));
            }
        }
        let (rule, retry_after) = worst?;
        let status = self.rules[rule].counter.status(now);
        Some(RuleDecision::Limited {
            rule,
            retry_after,
            status,
        })
    }
}
