//! What remained of a provider's limits at the decision about a call, for its response headers.
//!
//! Promises: needs no ledger access. The remaining count comes with the grant. The reset time is a
//! bound that follows from the rule alone, so it may be late and is never early.
//!
//! Never: decides anything.

use std::sync::Arc;

use http::HeaderValue;
use tollgate_config::provider::Per;
use tollgate_core::ask::{CostUnit, Marks, Priority};
use tollgate_core::limit::{Algorithm, Rule};
use tollgate_core::time::{Span, Wall};

use crate::error::Reason;
use crate::providers::CompiledPolicy;

/// The limits of one decision. Empty where limits decided nothing.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// On the heap, because every response passes it from stage to stage.
    snapshot: Option<Box<RateSnapshot>>,
}

#[derive(Clone, Debug)]
struct RateSnapshot {
    policy: Arc<CompiledPolicy>,
    priority: Priority,
    decided: RateDecision,
}

#[derive(Clone, Debug)]
enum RateDecision {
    /// The counts at the grant, one per limit.
    Granted(Marks),
    /// The limit with this index has too little left.
    Rejected(ExhaustedLimit),
    /// Something else rejected the call.
    Other,
}

/// The limit that rejected a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExhaustedLimit {
    /// Its index among the limits that apply to the call.
    pub(crate) index: usize,
    /// When to come back.
    pub(crate) retry_in: Span,
    /// What remains of it: too little for this call, but not always nothing.
    pub(crate) remaining: u64,
    /// Whether that is really too little.
    pub(crate) reason: Reason,
}

/// One limit at the time of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate<'a> {
    /// Its name, as in every error.
    pub name: &'a str,
    /// N.
    pub limit: u64,
    /// The period; `None` for a concurrency limit.
    pub period: Option<Span>,
    /// What it counts.
    pub unit: CostUnit,
    /// What it counts per.
    pub per: Per,
    /// What remains, and until when; `None` where the decision did not include it.
    pub state: Option<RateState>,
    /// It is the exhausted limit that rejected the call.
    pub is_exhausted: bool,
}

/// What remains of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateState {
    /// In the limit's unit.
    pub remaining: u64,
    /// All of it is available again after this long at the latest. For the exhausted limit: when to
    /// come back. `None` for a concurrency limit.
    pub reset_after: Option<Span>,
}

impl Rates {
    pub(crate) fn granted(
        policy: &Arc<CompiledPolicy>,
        priority: Priority,
        marks: &Marks,
    ) -> Rates {
        Rates::new(policy, priority, RateDecision::Granted(marks.clone()))
    }

    /// Rejected by the term with this index; `None` = not by a limit of the provider file.
    pub(crate) fn rejected(
        policy: &Arc<CompiledPolicy>,
        priority: Priority,
        by: Option<ExhaustedLimit>,
    ) -> Rates {
        let decided = by.map_or(RateDecision::Other, RateDecision::Rejected);
        Rates::new(policy, priority, decided)
    }

    fn new(policy: &Arc<CompiledPolicy>, priority: Priority, decided: RateDecision) -> Rates {
        Rates {
            snapshot: Some(Box::new(RateSnapshot {
                policy: policy.clone(),
                priority,
                decided,
            })),
        }
    }

    /// `RateLimit-Policy` for these limits, which `write` writes unless it was written before.
    pub(crate) fn policy_header(
        &self,
        write: impl FnOnce() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        let snapshot = self.snapshot.as_deref()?;
        snapshot.policy.rate_policy(snapshot.priority, write)
    }

    /// Every limit of the provider file that applies to the call, in the file's order. `wall` is
    /// now.
    pub fn each(&self, wall: Wall) -> impl Iterator<Item = Rate<'_>> {
        self.snapshot.iter().flat_map(move |snapshot| {
            let holds =
                |limit: &&crate::providers::LimitBinding| limit.applies_to(snapshot.priority);
            let limits = snapshot.policy.limits.iter().filter(holds).enumerate();
            // What the provider states it states in its own headers.
            let limits = limits.filter(|(_, limit)| !limit.is_learned());
            limits.map(move |(index, limit)| {
                let rule = &*limit.rule;
                let (state, is_exhausted) = snapshot.decided.state(index, rule, wall);
                Rate {
                    name: &limit.name,
                    limit: rule.limit(),
                    period: Some(rule.display_period()).filter(|period| *period > Span::ZERO),
                    unit: rule.cost_unit(),
                    per: limit.per,
                    state,
                    is_exhausted,
                }
            })
        })
    }
}

impl RateDecision {
    fn state(&self, index: usize, rule: &Rule, wall: Wall) -> (Option<RateState>, bool) {
        match self {
            RateDecision::Granted(marks) => {
                let state = marks.get(index).map(|mark| RateState {
                    remaining: mark.remaining,
                    reset_after: full_after(rule, mark.used, wall),
                });
                (state, false)
            }
            RateDecision::Rejected(limit) if limit.index == index => {
                let state = RateState {
                    remaining: limit.remaining,
                    reset_after: Some(limit.retry_in),
                };
                (Some(state), true)
            }
            RateDecision::Rejected(_) | RateDecision::Other => (None, false),
        }
    }
}

/// When everything that is used now is available again, at the latest, if no more is used.
fn full_after(rule: &Rule, used: u64, wall: Wall) -> Option<Span> {
    let refill = |period: Span| {
        let spent = u128::from(used) * u128::from(period.0);
        let span = spent.div_ceil(u128::from(rule.limit().max(1)));
        Span(u64::try_from(span).unwrap_or(u64::MAX))
    };
    match rule.algorithm() {
        Algorithm::Sliding { period } | Algorithm::Fixed { period } => Some(*period),
        Algorithm::Bucket { period, .. } | Algorithm::Paced { period } => Some(refill(*period)),
        Algorithm::Calendar(calendar) => Some(calendar.window(wall).1.since(wall)),
        Algorithm::InFlight => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Environment, ProviderFile};
    use tollgate_core::ask::Mark;
    use tollgate_core::feedback::Dialects;

    fn policy(text: &str) -> Arc<CompiledPolicy> {
        let text = format!("name: x\ndomain: api.example.org\n{text}");
        let draft = ProviderFile::read("x.yaml", &text).unwrap();
        let provider = draft.check(&Environment::empty()).provider.unwrap();
        Arc::new(CompiledPolicy::new(provider, &Dialects::built_in()))
    }

    fn used(used: u64, remaining: u64) -> Mark {
        Mark {
            used,
            remaining,
            ..Mark::default()
        }
    }

    const MIDDAY: Wall = Wall(12 * 3_600_000_000);

    #[test]
    fn a_grant_reports_remaining_and_reset_of_each_limit() {
        let policy = policy(
            "limits: [35/1s, {limit: 10, period: 1s, algorithm: token-bucket, burst: 20}, \
             {limit: 1000, period: 1d, algorithm: calendar}]\nconcurrency: 4",
        );
        let marks = [used(3, 32), used(5, 15), used(990, 7), used(1, 3)];
        let marks = marks.into_iter().collect();
        let rates = Rates::granted(&policy, Priority::Normal, &marks);
        let state: Vec<_> = rates
            .each(MIDDAY)
            .map(|rate| {
                let state = rate.state.unwrap();
                (rate.limit, state.remaining, state.reset_after)
            })
            .collect();
        let expected = [
            (35, 32, Some(Span::from_secs(1))),
            (10, 15, Some(Span::from_millis(500))),
            (1_000, 7, Some(Span::from_secs(12 * 3_600))),
            (4, 3, None),
        ];
        assert_eq!(state, expected);
    }

    #[test]
    fn a_rejection_reports_only_the_exhausted_limit() {
        let policy = policy("limits: [35/1s, 100/1m]");
        let by = Some(ExhaustedLimit {
            index: 1,
            retry_in: Span::from_secs(7),
            remaining: 3,
            reason: Reason::Limit,
        });
        let rates = Rates::rejected(&policy, Priority::Normal, by);
        let each: Vec<_> = rates.each(MIDDAY).collect();
        assert_eq!((each[0].state, each[0].is_exhausted), (None, false));
        let state = RateState {
            remaining: 3,
            reset_after: Some(Span::from_secs(7)),
        };
        assert_eq!((each[1].state, each[1].is_exhausted), (Some(state), true));
    }

    /// It is written once per policy and priority: other priorities have other limits.
    #[test]
    fn the_policy_header_is_written_once_for_each_priority() {
        let policy = policy("limit: 5\nperiod: 1s\nconcurrency: {normal: 4, low: 2}");
        let header = |priority, text| {
            let rates = Rates::rejected(&policy, priority, None);
            rates.policy_header(|| Some(HeaderValue::from_static(text)))
        };
        assert_eq!(header(Priority::Normal, "first").unwrap(), "first");
        assert_eq!(header(Priority::Normal, "second").unwrap(), "first");
        assert_eq!(header(Priority::Low, "third").unwrap(), "third");
        assert_eq!(Rates::default().policy_header(|| unreachable!()), None);
    }

    /// Term indexes count only the limits that apply to the priority.
    #[test]
    fn limits_of_another_priority_are_left_out() {
        let policy = policy("limit: 5\nperiod: 1s\nconcurrency: {normal: 4, low: 2}");
        let count = |priority| {
            Rates::rejected(&policy, priority, None)
                .each(MIDDAY)
                .count()
        };
        assert_eq!((count(Priority::Normal), count(Priority::Low)), (2, 3));
    }
}
