//! Every rule against a recount of the whole log by brute force.
//!
//! Promises: the recount sees only which requests were accepted and when; it has no state between
//! calls, so a counter that drifts from the log is caught at the first difference.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

#[derive(Clone, Copy, Debug)]
struct AcceptedEntry {
    at: u64,
    cost: u64,
    /// When its response was sent.
    done: Option<u64>,
}

/// Whether `cost` would be accepted at `now`, given everything accepted before.
fn recount(rule: Counting, log: &[AcceptedEntry], cost: u64, now: u64) -> bool {
    if cost == 0 {
        return true;
    }
    match rule {
        Counting::Sliding { limit, window } => {
            sum(log, |entry| (entry.at..entry.at + window.0).contains(&now)) + cost <= limit
        }
        Counting::Binned {
            limit,
            window,
            bins,
        } => {
            let width = window.0.div_ceil(bins);
            let bin_end = |at: u64| (1..).map(|k| k * width).find(|end| *end > at);
            sum(log, |entry| {
                bin_end(entry.at).is_some_and(|end| end + window.0 > now)
            }) + cost
                <= limit
        }
        Counting::Fixed {
            limit,
            window,
            phase,
        } => {
            let here = number(now, window, phase);
            sum(log, |entry| number(entry.at, window, phase) == here) + cost <= limit
        }
        Counting::FirstUse { limit, window } => first_use(log, window.0, now) + cost <= limit,
        Counting::TwoCounter {
            limit,
            window,
            phase,
        } => {
            let here = number(now, window, phase);
            let before = sum(log, |entry| number(entry.at, window, phase) + 1 == here);
            let count = sum(log, |entry| number(entry.at, window, phase) == here);
            let fades = (1..=window.0).find(|on| number(now + on, window, phase) != here);
            before * fades.unwrap() + (count + cost) * window.0 <= limit * window.0
        }
        Counting::Bucket {
            limit,
            window,
            burst,
            tick,
        } => {
            // A bucket (ρ, B) is the bound B + ρ·t over every interval that ends now.
            let tick = tick.map_or(1, |tick| tick.0);
            let inflow = |from: u64| (now / tick - from / tick) * tick * limit;
            cost <= burst
                && (0..log.len()).all(|first| {
                    let used: u64 = log[first..].iter().map(|entry| entry.cost).sum();
                    (used + cost) * window.0 <= burst * window.0 + inflow(log[first].at)
                })
        }
        Counting::InFlight { limit, lag } => {
            sum(log, |entry| {
                entry.done.is_none_or(|done| done + lag.0 > now)
            }) + cost
                <= limit
        }
    }
}

fn sum(log: &[AcceptedEntry], counts: impl Fn(&AcceptedEntry) -> bool) -> u64 {
    log.iter()
        .filter(|entry| counts(entry))
        .map(|entry| entry.cost)
        .sum()
}

/// The number of an aligned window: how many edges lie at or before `at`.
fn number(at: u64, window: Span, phase: Span) -> usize {
    let first = phase.0 % window.0;
    (0..).take_while(|k| first + k * window.0 <= at).count()
}

/// The count of the first-use window that is open at `now`.
fn first_use(log: &[AcceptedEntry], window: u64, now: u64) -> u64 {
    let mut opened: Option<u64> = None;
    let mut count = 0;
    for entry in log.iter().filter(|entry| entry.cost > 0) {
        if opened.is_none_or(|open| open + window <= entry.at) {
            (opened, count) = (Some(entry.at), 0);
        }
        count += entry.cost;
    }
    if opened.is_some_and(|open| now < open + window) {
        count
    } else {
        0
    }
}

fn any_counting() -> impl Strategy<Value = Counting> {
    let numbers = (
        0_u64..7,
        1_u64..40,
        0_u64..60,
        1_u64..9,
        1_u64..7,
        any::<bool>(),
    );
    (0_u8..7, numbers).prop_map(|(kind, (limit, window, other, bins, burst, ticks))| {
        let (window, phase) = (Span(window), Span(other));
        match kind {
            0 => Counting::Sliding { limit, window },
            1 => Counting::TwoCounter {
                limit,
                window,
                phase,
            },
            2 => Counting::Binned {
                limit,
                window,
                bins,
            },
            3 => Counting::Fixed {
                limit,
                window,
                phase,
            },
            4 => Counting::FirstUse { limit, window },
            5 => {
                let tick = ticks.then_some(Span(bins));
                Counting::Bucket {
                    limit,
                    window,
                    burst,
                    tick,
                }
            }
            _ => Counting::InFlight {
                limit,
                lag: Span(other % 5),
            },
        }
    })
}

/// Gap before the arrival, its cost, and whether one response is sent first.
fn any_arrivals() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    prop::collection::vec((0_u64..15, 0_u64..4, any::<bool>()), 1..60)
}

fn fixed(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(0x7011_6a7e),
        ..ProptestConfig::default()
    }
}

fn check_decision(
    rule: Counting,
    log: &[AcceptedEntry],
    cost: u64,
    now: u64,
    decision: RuleDecision,
) -> Result<(), TestCaseError> {
    let accepted = recount(rule, log, cost, now);
    prop_assert_eq!(
        decision == RuleDecision::Accepted,
        accepted,
        "at {} with {:?}",
        now,
        log
    );
    if let RuleDecision::Limited {
        retry_after: Some(after),
        ..
    } = decision
    {
        prop_assert!(
            recount(rule, log, cost, now + after.0),
            "not free after {after:?}"
        );
        prop_assert!(
            !recount(rule, log, cost, now + after.0 - 1),
            "free before {after:?}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(fixed(256))]

    #[test]
    fn a_rule_accepts_what_a_recount_of_its_log_allows(
        rule in any_counting(),
        arrivals in any_arrivals(),
    ) {
        let mut provider = Provider::new(vec![rule.into()]);
        let mut log: Vec<AcceptedEntry> = Vec::new();
        let mut now = 0;
        for (gap, cost, answered) in arrivals {
            now += gap;
            let open = log.iter().position(|entry| entry.done.is_none());
            if let Some(first) = open.filter(|_| answered) {
                log[first].done = Some(now);
                provider.finish(CallId(first as u64), Micros(now));
            }
            let id = CallId(log.len() as u64);
            let decision = provider.arrive(id, Micros(now), Cost::CALL.with(Unit::Calls, cost));
            check_decision(rule, &log, cost, now, decision)?;
            if decision == RuleDecision::Accepted {
                log.push(AcceptedEntry { at: now, cost, done: None });
            }
            let status = provider.status(0, Micros(now)).unwrap();
            let remaining = status.remaining;
            prop_assert!(recount(rule, &log, remaining, now), "{remaining} remain and are not accepted");
            prop_assert!(!recount(rule, &log, remaining + 1, now), "more than {remaining} remain");
        }
    }

    #[test]
    fn several_rules_accept_what_each_recount_allows(
        rules in prop::collection::vec(any_counting(), 1..4),
        arrivals in any_arrivals(),
    ) {
        let mut provider = Provider::new(rules.iter().map(|rule| (*rule).into()).collect());
        let mut log: Vec<AcceptedEntry> = Vec::new();
        let mut now = 0;
        for (gap, cost, _) in arrivals {
            now += gap;
            let id = CallId(log.len() as u64);
            let decision = provider.arrive(id, Micros(now), Cost::CALL.with(Unit::Calls, cost));
            let accepted = rules.iter().all(|rule| recount(*rule, &log, cost, now));
            prop_assert_eq!(decision == RuleDecision::Accepted, accepted);
            if accepted {
                log.push(AcceptedEntry { at: now, cost, done: None });
            }
        }
    }

    /// Buckets are excluded: a bucket does not log the cost it could not charge, so its log alone
    /// does not determine its status.
    #[test]
    fn counted_429s_and_changed_limits_match_the_recount(
        rule in any_counting().prop_filter("no bucket", |rule| {
            !matches!(rule, Counting::Bucket { .. })
        }),
        arrivals in any_arrivals(),
        limits in prop::collection::vec(prop::option::weighted(0.1, 0_u64..9), 60),
    ) {
        let mut rule = rule;
        let spec = RuleSpec { counts_refused: true, ..rule.into() };
        let mut provider = Provider::new(vec![spec]);
        let mut log: Vec<AcceptedEntry> = Vec::new();
        let mut now = 0;
        for ((gap, cost, _), limit) in arrivals.into_iter().zip(limits) {
            now += gap;
            if let Some(limit) = limit {
                provider.change(0, limit, Micros(now));
                rule = rule.with_limit(limit);
            }
            let id = CallId(log.len() as u64);
            let decision = provider.arrive(id, Micros(now), Cost::CALL.with(Unit::Calls, cost));
            check_decision(rule, &log, cost, now, decision)?;
            let slot = matches!(rule, Counting::InFlight { .. });
            if decision == RuleDecision::Accepted || !slot {
                log.push(AcceptedEntry { at: now, cost, done: None });
            }
        }
    }
}
