//! What a provider's limits had left when a call was decided, for the headers of its answer.
//!
//! Promises: costs no question to the ledger. What is left comes from the counts that the grant
//! carries; when all of it is back is a bound that holds by the rule alone, so it may be late and is
//! never early.
//!
//! Never: decides anything.

use std::sync::Arc;

use tollgate_core::ask::{Marks, Priority, Unit};
use tollgate_core::limit::{Algorithm, Rule};
use tollgate_core::time::{Span, Wall};

use crate::shop::Plan;

/// The limits of one decision. Empty where nothing was decided by limits.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// On the heap, because every answer carries it from stage to stage.
    known: Option<Box<Known>>,
}

#[derive(Clone, Debug)]
struct Known {
    plan: Arc<Plan>,
    priority: Priority,
    decided: Decided,
}

#[derive(Clone, Debug)]
enum Decided {
    /// The counts at the grant, one per limit.
    Granted(Marks),
    /// The limit with this place has nothing for so long.
    Refused { index: usize, retry_in: Span },
    /// Something else was in the way.
    Elsewhere,
}

/// One limit at the time of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate<'a> {
    /// Its name in every error.
    pub name: &'a str,
    /// N.
    pub limit: u64,
    /// Per how long; `None` = at a time.
    pub period: Option<Span>,
    /// What it counts.
    pub unit: Unit,
    /// What is left, and for how long that is all there is; `None` where the decision did not say.
    pub left: Option<Left>,
    /// It is the one that refused.
    pub is_refusing: bool,
}

/// What is left of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// In the limit's unit.
    pub remaining: u64,
    /// All of it is back after this long, at the latest. For the one that refused: when to come
    /// back. `None` for calls at a time.
    pub reset_after: Option<Span>,
}

impl Rates {
    pub(crate) fn granted(plan: &Arc<Plan>, priority: Priority, marks: &Marks) -> Rates {
        Rates::new(plan, priority, Decided::Granted(marks.clone()))
    }

    /// Refused by the term with this index; `None` = not by a limit of the file.
    pub(crate) fn refused(
        plan: &Arc<Plan>,
        priority: Priority,
        by: Option<(usize, Span)>,
    ) -> Rates {
        let decided = match by {
            Some((index, retry_in)) => Decided::Refused { index, retry_in },
            None => Decided::Elsewhere,
        };
        Rates::new(plan, priority, decided)
    }

    fn new(plan: &Arc<Plan>, priority: Priority, decided: Decided) -> Rates {
        Rates {
            known: Some(Box::new(Known {
                plan: plan.clone(),
                priority,
                decided,
            })),
        }
    }

    /// Every limit of the file that holds for the call, in the file's order. `wall` is now.
    pub fn each(&self, wall: Wall) -> impl Iterator<Item = Rate<'_>> {
        self.known.iter().flat_map(move |known| {
            let holds = |meter: &&crate::shop::Meter| meter.holds_for(known.priority);
            let meters = known.plan.meters.iter().filter(holds).enumerate();
            meters.map(move |(index, meter)| {
                let rule = &*meter.rule;
                let (left, is_refusing) = known.decided.left(index, rule, wall);
                Rate {
                    name: &meter.name,
                    limit: rule.limit(),
                    period: Some(rule.spoken_period()).filter(|period| *period > Span::ZERO),
                    unit: rule.counts(),
                    left,
                    is_refusing,
                }
            })
        })
    }
}

impl Decided {
    fn left(&self, index: usize, rule: &Rule, wall: Wall) -> (Option<Left>, bool) {
        match self {
            Decided::Granted(marks) => {
                let left = marks.get(index).map(|mark| Left {
                    remaining: mark.left,
                    reset_after: full_after(rule, mark.used, wall),
                });
                (left, false)
            }
            Decided::Refused {
                index: refusing,
                retry_in,
            } if *refusing == index => {
                let left = Left {
                    remaining: 0,
                    reset_after: Some(*retry_in),
                };
                (Some(left), true)
            }
            Decided::Refused { .. } | Decided::Elsewhere => (None, false),
        }
    }
}

/// When everything that is used now is back, at the latest, if no more is used.
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
    use tollgate_config::{Draft, World};
    use tollgate_core::ask::Mark;
    use tollgate_core::feedback::Dialects;

    fn plan(text: &str) -> Arc<Plan> {
        let text = format!("name: x\ndomain: api.example.org\n{text}");
        let draft = Draft::read("x.yaml", &text).unwrap();
        let provider = draft.check(&World::empty()).provider.unwrap();
        Arc::new(Plan::new(provider, &Dialects::built_in()))
    }

    fn used(used: u64, left: u64) -> Mark {
        Mark {
            used,
            left,
            ..Mark::default()
        }
    }

    const MIDDAY: Wall = Wall(12 * 3_600_000_000);

    #[test]
    fn a_grant_says_what_is_left_of_each_limit_and_when_it_is_back() {
        let plan = plan(
            "limits: [35/1s, {limit: 10, period: 1s, algorithm: token-bucket, burst: 20}, \
             {limit: 1000, period: 1d, algorithm: calendar}]\nconcurrency: 4",
        );
        let marks = [used(3, 32), used(5, 15), used(990, 7), used(1, 3)];
        let marks = marks.into_iter().collect();
        let rates = Rates::granted(&plan, Priority::Normal, &marks);
        let left: Vec<_> = rates
            .each(MIDDAY)
            .map(|rate| {
                let left = rate.left.unwrap();
                (rate.limit, left.remaining, left.reset_after)
            })
            .collect();
        let expected = [
            (35, 32, Some(Span::from_secs(1))),
            (10, 15, Some(Span::from_millis(500))),
            (1_000, 7, Some(Span::from_secs(12 * 3_600))),
            (4, 3, None),
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn a_refusal_knows_only_the_limit_that_refused() {
        let plan = plan("limits: [35/1s, 100/1m]");
        let by = Some((1, Span::from_secs(7)));
        let rates = Rates::refused(&plan, Priority::Normal, by);
        let each: Vec<_> = rates.each(MIDDAY).collect();
        assert_eq!((each[0].left, each[0].is_refusing), (None, false));
        let left = Left {
            remaining: 0,
            reset_after: Some(Span::from_secs(7)),
        };
        assert_eq!((each[1].left, each[1].is_refusing), (Some(left), true));
    }

    /// The places of terms are those of the limits that hold for the priority.
    #[test]
    fn limits_of_another_priority_are_left_out() {
        let plan = plan("limit: 5\nperiod: 1s\nconcurrency: {normal: 4, low: 2}");
        let count = |priority| Rates::refused(&plan, priority, None).each(MIDDAY).count();
        assert_eq!((count(Priority::Normal), count(Priority::Low)), (2, 3));
    }
}
