//! Each rule by hand, and the guarantee of the two references under any jitter.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::checker::ArrivalFilter;
use crate::clock::NodeClock;
use crate::latency::{Delay, Latency};
use crate::rule::{RuleSpec, Unit};
use crate::world::{Setup, World};

/// Sends as long as the rule allows it.
fn burst(pace: &mut impl Pace, first: u64, now: u64) -> u64 {
    let mut id = first;
    while pace.next(Micros(now)) == Next::Go {
        pace.on_sent(CallId(id), Micros(now));
        id += 1;
    }
    id - first
}

#[test]
fn an_own_window_restarts_after_its_length() {
    let mut pace = OwnWindow::new(3, Span(100));
    assert_eq!(burst(&mut pace, 0, 7), 3);
    assert_eq!(pace.next(Micros(106)), Next::At(Micros(107)));
    assert_eq!(burst(&mut pace, 3, 107), 3);
}

#[test]
fn a_log_of_sends_frees_each_slot_after_window_and_guard() {
    let mut pace = SendLog::new(2, Span(100), Span(5));
    assert_eq!(burst(&mut pace, 0, 0), 2);
    assert_eq!(pace.next(Micros(104)), Next::At(Micros(105)));
    assert_eq!(burst(&mut pace, 2, 105), 2);
}

#[test]
fn a_deep_bucket_bursts_and_then_paces() {
    let mut pace = SendBucket::new(4, Span(100), 4);
    assert_eq!(burst(&mut pace, 0, 0), 4);
    assert_eq!(pace.next(Micros(0)), Next::At(Micros(25)));
    assert_eq!(burst(&mut pace, 4, 25), 1);
    assert_eq!(burst(&mut pace, 5, 1_000), 4);
}

#[test]
fn even_pacing_never_sends_two_at_once() {
    let mut pace = SendBucket::new(4, Span(100), 1);
    assert_eq!(burst(&mut pace, 0, 0), 1);
    assert_eq!(pace.next(Micros(0)), Next::At(Micros(25)));
    assert_eq!(burst(&mut pace, 1, 1_000), 1);
}

#[test]
fn a_guarded_log_counts_from_the_response_if_it_is_earlier() {
    let mut pace = GuardedLog::new(2, Span(100), Span(20));
    assert_eq!(burst(&mut pace, 0, 0), 2);
    pace.on_response(CallId(0), Micros(5));
    assert_eq!(pace.next(Micros(5)), Next::At(Micros(105)));
    assert_eq!(burst(&mut pace, 2, 105), 1);
    assert_eq!(pace.next(Micros(105)), Next::At(Micros(120)));
    assert_eq!(burst(&mut pace, 3, 120), 1);
    pace.on_response(CallId(1), Micros(130));
    assert_eq!(pace.next(Micros(130)), Next::At(Micros(225)));
}

#[test]
fn an_rtt_adjusted_log_frees_a_slot_early_by_most_of_the_shortest_rtt() {
    let mut pace = RttAdjustedLog::new(2, Span(1_000));
    assert_eq!(burst(&mut pace, 0, 0), 2);
    pace.on_response(CallId(0), Micros(300));
    assert_eq!(pace.next(Micros(300)), Next::At(Micros(1_030)));
    pace.on_response(CallId(1), Micros(400));
    assert_eq!(burst(&mut pace, 2, 1_030), 1);
    assert_eq!(pace.next(Micros(1_030)), Next::At(Micros(1_130)));
}

#[test]
fn reference_a_holds_a_slot_for_a_window_after_the_response() {
    let mut pace = ReferenceA::new(2, Span(1_000));
    assert_eq!(burst(&mut pace, 0, 0), 2);
    assert_eq!(pace.next(Micros(9_000)), Next::OnResponse);
    pace.on_response(CallId(0), Micros(9_000));
    assert_eq!(
        pace.next(Micros(9_000)),
        Next::At(Micros(10_001)),
        "a window and 1/1000"
    );
    assert_eq!(burst(&mut pace, 2, 10_001), 1);
}

#[test]
fn reference_b_reserves_a_unit_per_call_in_flight() {
    let mut pace = ReferenceB::new(10, Span(9_990), 3);
    assert_eq!(burst(&mut pace, 0, 0), 3);
    assert_eq!(pace.next(Micros(0)), Next::OnResponse);
    pace.on_response(CallId(0), Micros(5_000));
    assert_eq!(
        pace.next(Micros(5_000)),
        Next::At(Micros(6_000)),
        "1/1000 slower than 999"
    );
    assert_eq!(burst(&mut pace, 3, 6_000), 1);
}

fn judged(rule: &str, pace: impl Pace, latency: Latency, seed: u64) -> (usize, u64) {
    let rule: RuleSpec = rule.parse().unwrap();
    let window = rule.counting.window().unwrap();
    let mut world = World::new(Setup::new(seed, vec![rule], latency), Saturating::new(pace));
    world.run_until(Micros(0) + Span::from_secs(20)).unwrap();
    let most = world
        .checker()
        .max_in_any_window(window, Unit::Calls, ArrivalFilter::Arrived);
    (world.checker().violations(), most)
}

/// A clock with the drift of slewing, started at any time.
fn clock(drift_ppm: i32, at_start: u64) -> NodeClock {
    NodeClock {
        drift_ppm,
        at_start: Micros(at_start),
        ..NodeClock::default()
    }
}

#[test]
fn nodes_with_wrong_clocks_share_a_ledger_exactly_and_fully() {
    let rule: RuleSpec = "sliding 50/1s".parse().unwrap();
    let pace = ReferenceA::new(50, Span::from_secs(1));
    let mut setup = Setup::new(1, vec![rule], Latency::LAN);
    setup.clocks = vec![clock(500, 7_000_000), clock(-500, 0), clock(0, 90_000_000)];
    let mut world = World::new(setup, Saturating::new(pace));
    let end = Micros(0) + Span::from_secs(60);
    world.run_until(end).unwrap();
    assert_eq!(world.checker().violations(), 0);
    let used = world.checker().quota_used(&rule, Micros(0), end).unwrap();
    assert!(used.percent() > 97.0, "{used:?}");
}

#[test]
fn a_ledger_clock_that_runs_faster_than_allowed_for_is_caught() {
    let rule: RuleSpec = "sliding 50/1s".parse().unwrap();
    let pace = ReferenceA::new(50, Span::from_secs(1));
    let latency = Latency::constant(Span(1), Span(1), Span(1));
    let mut setup = Setup::new(1, vec![rule], latency);
    setup.clocks = vec![clock(5_000, 0)];
    let mut world = World::new(setup, Saturating::new(pace));
    world.run_until(Micros(0) + Span::from_secs(60)).unwrap();
    assert!(world.checker().violations() > 0);
}

#[test]
fn a_rule_that_never_stops_sending_ends_the_run_with_an_error() {
    let latency = Latency::constant(Span(1), Span(1), Span(1));
    let pace = OwnWindow::new(u64::MAX, Span(1));
    let mut world = World::new(Setup::new(1, Vec::new(), latency), Saturating::new(pace));
    assert!(world.run_until(Micros(1)).is_err());
}

#[test]
fn a_limit_above_the_sends_per_wake_is_used_fully() {
    let rule: RuleSpec = "sliding 2500/1s".parse().unwrap();
    let pace = SendLog::new(2_500, Span::from_secs(1), Span::ZERO);
    let latency = Latency::constant(Span(1), Span(1), Span(1));
    let mut world = World::new(Setup::new(1, vec![rule], latency), Saturating::new(pace));
    world.run_until(Micros(1_000_000)).unwrap();
    assert_eq!(world.checker().accepted(), 2_500);
}

/// Any network from a cable to a bad radio.
fn any_latency() -> impl Strategy<Value = Latency> {
    let leg = || (0_u64..400, 0_u8..20);
    (leg(), leg(), leg()).prop_map(|legs| {
        let delay = |(ms, tenths): (u64, u8)| Delay::Lognormal {
            median: Span::from_millis(ms),
            sigma: f64::from(tenths) / 10.0,
        };
        Latency {
            up: delay(legs.0),
            work: delay(legs.1),
            down: delay(legs.2),
            ..Latency::LAN
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(0x7011_6a7e),
        ..ProptestConfig::default()
    })]

    #[test]
    fn reference_a_is_never_limited_by_the_countings_it_is_exact_for(
        latency in any_latency(),
        limit in 1_u64..30,
        phase in 1_u64..1_000,
        seed in any::<u64>(),
    ) {
        let window = Span::from_secs(1);
        let rules = [
            format!("sliding {limit}/1s"),
            format!("fixed {limit}/1s phase {phase}ms"),
            format!("first-use {limit}/1s"),
            format!("bucket {limit}/1s"),
        ];
        for rule in rules {
            let (limited, most) = judged(&rule, ReferenceA::new(limit, window), latency, seed);
            prop_assert_eq!(limited, 0, "{}", rule);
            prop_assert!(most <= limit, "{most} in a second under {rule}");
        }
    }

    #[test]
    fn reference_b_is_never_limited_by_its_bucket(
        latency in any_latency(),
        limit in 1_u64..60,
        burst in 1_u64..60,
        seed in any::<u64>(),
    ) {
        let pace = ReferenceB::new(limit, Span::from_secs(1), burst);
        let rule = format!("bucket {limit}/1s burst {burst}");
        prop_assert_eq!(judged(&rule, pace, latency, seed).0, 0);
    }
}
