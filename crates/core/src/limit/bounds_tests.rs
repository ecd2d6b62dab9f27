//! Two bounds of time: what frees uses the lower one, what stamps the upper one.
//!
//! A world in which every decision knows the store's time only within bounds: the provider counts
//! by the true time, with its own counting code. The same worlds with one bound used for both must
//! show violations, or the bounds would prove nothing.

use smallvec::smallvec;

use crate::ask::{Outcome, Priority, Scopes, Settle, Verdict};
use crate::limit::{Algorithm, Rule};
use crate::test_ledger::{TestLedger, ms, s};
use crate::time::{Micros, Span, TimeBounds, Wall};
use crate::turn::turn;

/// Worlds per rule. One takes about a millisecond.
const WORLDS: u64 = 200;

/// Decisions per world: a few windows.
const DECISIONS: u64 = 60;

/// How far the bounds are from the true time at most: half a window.
const ERROR_MAX: u64 = 500_000;

#[derive(Clone, Copy, Debug)]
enum Mutant {
    None,
    LowerForBoth,
    UpperForBoth,
}

/// Splitmix64: the same worlds on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

/// A granted call and what becomes of it, in true time.
struct SentCall {
    settle: Settle,
    arrives: u64,
    answered: u64,
}

/// Runs one world; returns when each call arrived and was answered.
fn run(rule: &Rule, seed: u64, mutant: Mutant) -> Vec<(u64, u64)> {
    let mut dice = Dice(seed);
    let mut ledger = TestLedger::new();
    let (mut truth, mut lo) = (7_000_000_000_u64, 0);
    let mut running: Vec<SentCall> = Vec::new();
    let mut log = Vec::new();
    for _ in 0..DECISIONS {
        truth += dice.below(120_000);
        lo = (truth - dice.below(ERROR_MAX)).max(lo);
        let hi = truth + dice.below(ERROR_MAX);
        let wall = Wall(lo);
        let now = match mutant {
            Mutant::None => TimeBounds::new(Micros(lo), Micros(hi), wall),
            Mutant::LowerForBoth => TimeBounds::exact(Micros(lo), wall),
            Mutant::UpperForBoth => TimeBounds::exact(Micros(hi), wall),
        };
        let settles: Vec<Settle> = running
            .extract_if(.., |call| call.answered <= truth)
            .map(|call| call.settled_after(Span(truth - call.answered)))
            .collect();
        let asks: Vec<_> = (0..dice.below(6))
            .map(|_| ledger.ask(smallvec![TestLedger::term("x", rule)], Priority::Normal))
            .collect();
        let verdicts = turn(&mut ledger.table, now, &settles, &asks).verdicts;
        for (ask, verdict) in asks.into_iter().zip(verdicts) {
            if let Verdict::Go { .. } = verdict {
                let arrives = truth + dice.below(80_000);
                let answered = arrives + dice.below(80_000);
                log.push((arrives, answered));
                let settle = Settle::Permit {
                    id: ask.id,
                    terms: ask.terms,
                    scopes: Scopes::new(),
                    outcome: Outcome::Unsent,
                };
                running.push(SentCall {
                    settle,
                    arrives,
                    answered,
                });
            }
        }
    }
    log.sort_unstable();
    log
}

impl SentCall {
    fn settled_after(&self, age: Span) -> Settle {
        assert!(self.arrives <= self.answered);
        let mut settle = self.settle.clone();
        if let Settle::Permit { outcome, .. } = &mut settle {
            *outcome = Outcome::Complete { age };
        }
        settle
    }
}

/// How many calls the provider finds above its limit.
fn violations(rule: &Rule, log: &[(u64, u64)]) -> usize {
    let limit = rule.limit();
    let is_above = |index: usize| {
        let (at, _) = log[index];
        let so_far = log[..=index].iter();
        match rule.algorithm() {
            Algorithm::Sliding { period } | Algorithm::Paced { period } => {
                so_far.filter(|(a, _)| a + period.0 > at).count() as u64 > limit
            }
            // In any interval at most the depth and the refill.
            Algorithm::Bucket { period, burst } => so_far.enumerate().any(|(first, (from, _))| {
                let count = (index - first + 1) as u64;
                count > burst + (at - from) * limit / period.0
            }),
            Algorithm::Fixed { .. } | Algorithm::Calendar(_) => false,
            Algorithm::InFlight => so_far.filter(|(_, end)| *end > at).count() as u64 > limit,
        }
    };
    let above = (0..log.len()).filter(|&index| is_above(index)).count();
    if let Algorithm::Fixed { period } = rule.algorithm() {
        above_first_use(limit, period.0, log)
    } else {
        above
    }
}

/// A window opens with the first arrival and ends one period later.
fn above_first_use(limit: u64, period: u64, log: &[(u64, u64)]) -> usize {
    let (mut end, mut used, mut above) = (0, 0, 0);
    for (at, _) in log {
        if *at >= end {
            (end, used) = (at + period, 0);
        }
        used += 1;
        above += usize::from(used > limit);
    }
    above
}

fn total(rule: &Rule, mutant: Mutant) -> (usize, usize) {
    (0..WORLDS).fold((0, 0), |(calls, above), seed| {
        let log = run(rule, seed, mutant);
        (calls + log.len(), above + violations(rule, &log))
    })
}

fn rules() -> Vec<Rule> {
    let exact = |rule: Result<Rule, _>| rule.expect("sane").drift_ppm(0);
    vec![
        exact(Rule::sliding(5, s(1))),
        exact(Rule::bucket(5, s(1), 5)),
        exact(Rule::bucket(20, s(1), 3)),
        exact(Rule::fixed(5, s(1))),
    ]
}

#[test]
fn no_limit_is_exceeded_while_the_time_is_known_only_within_bounds() {
    let spaced = [
        Rule::paced(12, s(1)).expect("sane"),
        Rule::in_flight(3).expect("sane"),
    ];
    for rule in rules().into_iter().chain(spaced) {
        let (calls, above) = total(&rule, Mutant::None);
        assert_eq!(above, 0, "{rule:?}");
        assert!(calls as u64 > WORLDS * 5, "{rule:?}: {calls}");
    }
}

/// The test above would notice if a bound were used where the other one belongs.
#[test]
fn one_bound_for_both_exceeds_every_limit() {
    for rule in rules() {
        for mutant in [Mutant::LowerForBoth, Mutant::UpperForBoth] {
            let (_, above) = total(&rule, mutant);
            assert!(above > 0, "{rule:?} {mutant:?}");
        }
    }
}

#[test]
fn a_debit_ahead_of_the_lower_bound_holds_back_its_refill() {
    let rule = Rule::bucket(10, s(1), 10).expect("sane").drift_ppm(0);
    let mut ledger = TestLedger::new();
    let start = ledger.now.at;
    let permits = ledger.take_all(&rule);
    assert_eq!(permits.len(), 10);
    // The responses are stamped half a second ahead.
    let bounds = TimeBounds::new(start, start + ms(500), Wall(0));
    let settle = |permit: &crate::test_ledger::Permit| Settle::Permit {
        id: permit.id,
        terms: permit.terms.clone(),
        scopes: Scopes::new(),
        outcome: Outcome::Complete { age: Span::ZERO },
    };
    let settles: Vec<Settle> = permits.iter().map(settle).collect();
    turn(&mut ledger.table, bounds, &settles, &[]);
    let remaining = |ledger: &mut TestLedger, after: Span| {
        ledger.now.at = start + after;
        ledger.peek(&rule).remaining
    };
    assert_eq!(remaining(&mut ledger, ms(500)), 0);
    assert_eq!(remaining(&mut ledger, ms(600)), 1);
    assert_eq!(remaining(&mut ledger, s(1)), 5);
}
