//! One behaviour of the estimated limit each.

use super::*;
use crate::ask::OwnerId;

const START: Micros = Micros(1_000_000_000);
const WAIT: Span = Span::from_secs(2);

fn at(millis: u64) -> Micros {
    START + Span::from_millis(millis)
}

fn call(seq: u64) -> PermitId {
    PermitId {
        owner: OwnerId(1),
        seq,
    }
}

fn take(estimate: &mut RateEstimate, seq: u64, millis: u64) {
    estimate.take(call(seq), at(millis), at(millis) + Span::from_secs(35));
}

fn accept(estimate: &mut RateEstimate, seq: u64, millis: u64) -> bool {
    estimate.on_accepted(call(seq), at(millis))
}

fn limited(estimate: &mut RateEstimate, millis: u64) {
    estimate.on_limited(at(millis), at(millis), at(millis) + WAIT);
}

/// How many calls may go at this time.
fn room(estimate: RateEstimate, millis: u64) -> usize {
    let mut estimate = estimate;
    let goes = (100..200).take_while(|&seq| {
        let may_go = estimate.check(call(seq), at(millis)).is_ok();
        take(&mut estimate, seq, millis);
        may_go
    });
    goes.count()
}

/// A 429, then a slow start that ends with another one, after eight accepted calls in eight seconds.
fn paced() -> RateEstimate {
    let mut estimate = RateEstimate::new(at(0), at(2_000));
    for seq in 0..8 {
        take(&mut estimate, seq, 2_000 + 800 * seq);
        accept(&mut estimate, seq, 2_050 + 800 * seq);
    }
    for seq in 8..20 {
        take(&mut estimate, seq, 7_900);
    }
    limited(&mut estimate, 8_000);
    estimate
}

#[test]
fn one_call_goes_first_and_each_accepted_one_lets_two_go() {
    let mut estimate = RateEstimate::new(at(0), at(2_000));
    assert_eq!(room(estimate, 2_000), 1);
    take(&mut estimate, 1, 2_000);
    assert_eq!(room(estimate, 2_001), 0);
    assert!(accept(&mut estimate, 1, 2_050), "others hear of it");
    assert_eq!(room(estimate, 2_050), 2);
    take(&mut estimate, 2, 2_050);
    take(&mut estimate, 3, 2_050);
    assert!(accept(&mut estimate, 2, 2_100));
    assert!(!accept(&mut estimate, 3, 2_100), "there was room");
    assert_eq!(room(estimate, 2_100), 4);
}

/// Up to eight at a time, then one more per round: an overshoot costs few rejections.
#[test]
fn the_slow_start_doubles_up_to_eight() {
    let mut estimate = RateEstimate::new(at(0), at(2_000));
    let mut rounds = Vec::new();
    let mut seq = 0;
    for round in 0..7 {
        let millis = 2_000 + round * 50;
        let count = room(estimate, millis) as u64;
        rounds.push(count);
        for one in seq..seq + count {
            take(&mut estimate, one, millis);
        }
        for one in seq..seq + count {
            accept(&mut estimate, one, millis + 40);
        }
        seq += count;
    }
    assert_eq!(rounds, [1, 2, 4, 8, 9, 10, 11]);
}

/// Without another 429 all calls may go again after a minute.
#[test]
fn a_slow_start_ends_after_a_minute() {
    let estimate = RateEstimate::new(at(0), at(2_000));
    assert!(!estimate.is_over(at(61_999)));
    assert!(estimate.is_over(at(62_000)));
}

/// Symptom: a first call with a slow response, or of a process that was killed, held up all others until
/// it could no longer arrive: 35 s, or ten minutes for a language model.
#[test]
fn a_first_call_without_an_outcome_holds_the_others_for_five_seconds() {
    let mut estimate = RateEstimate::new(at(0), at(2_000));
    take(&mut estimate, 1, 2_000);
    assert_eq!(room(estimate, 6_999), 0);
    assert_eq!(room(estimate, 7_000), 2, "a 429 would be here");
    take(&mut estimate, 2, 7_000);
    take(&mut estimate, 3, 7_000);
    assert_eq!(room(estimate, 11_999), 0);
    assert_eq!(room(estimate, 12_000), 2, "nor those");
    let mut estimate = paced();
    take(&mut estimate, 20, 10_000);
    assert_eq!(room(estimate, 14_999), 0);
    assert_eq!(room(estimate, 15_000), 1);
    assert!(accept(&mut estimate, 20, 100_000), "its head came late");
}

#[test]
fn a_first_call_that_fails_or_is_not_sent_is_replaced() {
    let mut estimate = RateEstimate::new(at(0), at(2_000));
    take(&mut estimate, 1, 2_000);
    assert!(estimate.on_unproved(call(1)), "a 5xx proves nothing");
    assert_eq!(room(estimate, 2_100), 1);
    take(&mut estimate, 2, 2_100);
    assert!(estimate.on_unsent(call(2)));
    assert_eq!(room(estimate, 2_100), 1);
    take(&mut estimate, 3, 2_200);
    estimate.on_rejected(call(3), at(2_300));
    assert_eq!(room(estimate, 3_299), 0, "the 429 is reported next");
    assert_eq!(room(estimate, 3_300), 1, "or it is not");
}

/// Calls in flight when the 429 came say nothing new: ten at once are one.
#[test]
fn concurrent_429s_count_as_one() {
    let mut estimate = paced();
    let before = estimate;
    estimate.on_limited(at(7_950), at(8_100), at(8_100) + WAIT);
    assert_eq!(estimate.reopens_at, at(10_100), "the cool-down is longer");
    assert_eq!(estimate.rate(), before.rate());
    assert!(!accept(&mut estimate, 12, 8_200));
    assert_eq!(room(estimate, 10_100), 1, "one still goes first");
}

#[test]
fn between_two_429s_the_rate_is_measured() {
    let mut estimate = paced();
    assert_eq!(estimate.rate(), Some(Rate::per_second(1)), "8 in 8 s");
    take(&mut estimate, 20, 10_000);
    assert_eq!(room(estimate, 10_500), 0);
    accept(&mut estimate, 20, 10_100);
    assert_eq!(room(estimate, 10_999), 0);
    assert_eq!(room(estimate, 11_000), 1, "one a second");
}

/// Only calls that are held back raise the rate, in small steps; a 429 lowers it.
#[test]
fn the_rate_climbs_while_calls_are_held_back_and_falls_with_a_429() {
    let mut estimate = paced();
    let (one, step) = (Rate::per_second(1), Rate::per_second(1).divided(STEPS));
    take(&mut estimate, 20, 10_000);
    accept(&mut estimate, 20, 10_000);
    assert_eq!(estimate.rate(), Some(one), "it was not held back");
    take(&mut estimate, 21, 11_000);
    accept(&mut estimate, 21, 11_000);
    assert_eq!(estimate.rate(), Some(one.plus(step)));
    accept(&mut estimate, 21, 11_500);
    assert_eq!(estimate.rate(), Some(one.plus(step)), "once a second");
    take(&mut estimate, 22, 12_000);
    limited(&mut estimate, 12_000);
    let half = one.plus(step).divided(2);
    assert_eq!(estimate.rate(), Some(half.times(LOWERED)), "half at most");
}

/// A first call that is limited says nothing about the rate: the next measure covers both cool-downs.
#[test]
fn a_limited_first_call_keeps_the_rate() {
    let mut estimate = paced();
    take(&mut estimate, 20, 10_000);
    limited(&mut estimate, 10_000);
    assert_eq!(estimate.rate(), Some(Rate::per_second(1)));
    assert_eq!(estimate.since, at(8_000));
}

/// A stray 429 while calls are few is no measure of the limit: another slow start follows.
#[test]
fn a_429_to_calls_that_were_not_held_back_is_no_measure() {
    let mut estimate = RateEstimate::new(at(0), at(2_000));
    for seq in 0..10 {
        take(&mut estimate, seq, 2_000 + 500 * seq);
        accept(&mut estimate, seq, 2_050 + 500 * seq);
    }
    limited(&mut estimate, 8_000);
    assert_eq!(estimate.rate(), None);
    assert_eq!(room(estimate, 10_000), 1);
}

/// What was accepted while nobody was held back is no measure of a known rate either.
#[test]
fn a_429_to_calls_that_were_not_held_back_lowers_a_known_rate_by_its_factor_only() {
    let mut estimate = paced();
    take(&mut estimate, 20, 10_000);
    accept(&mut estimate, 20, 10_100);
    take(&mut estimate, 21, 30_000);
    accept(&mut estimate, 21, 30_100);
    limited(&mut estimate, 30_200);
    let one = Rate::per_second(1);
    assert_eq!(estimate.rate(), Some(one.times(LOWERED)));
}

#[test]
fn an_old_rate_is_dropped() {
    let estimate = paced();
    assert!(!estimate.is_over(at(8_000 + 899_999)));
    assert!(estimate.is_over(at(8_000 + 900_000)));
}

/// Calls that go late are made up for, but idle time is not saved.
#[test]
fn lateness_is_made_up_for_and_idle_time_is_not_saved() {
    let mut pace = PacedRate::new(Rate::per_second(100), at(0));
    for millis in [3, 13, 23] {
        pace.take(at(millis));
    }
    assert_eq!(pace.next_at, at(30), "three calls in 30 ms");
    pace.take(at(10_000));
    assert_eq!(pace.next_at, at(9_960), "five at most");
}

#[test]
fn an_estimate_keeps_its_times_on_another_clock() {
    let estimate = paced().moved(at(8_500), Micros(10_000_000));
    assert_eq!(estimate.limited_at, Micros(9_500_000));
    assert_eq!(estimate.reopens_at, Micros(11_500_000));
}

/// Symptom: each failed first call moved the next slot by one gap, so that after an outage everybody
/// waited for minutes.
#[test]
fn failed_first_calls_do_not_move_the_pace() {
    let mut estimate = paced();
    for seq in 20..120 {
        take(&mut estimate, seq, 10_000 + seq);
        assert!(estimate.on_unproved(call(seq)));
    }
    take(&mut estimate, 120, 10_200);
    accept(&mut estimate, 120, 10_250);
    assert_eq!(room(estimate, 11_199), 0);
    assert_eq!(room(estimate, 11_200), 1, "one gap after the first");
}

/// Symptom: the backlog after the first 429 filled the slow start once; a 429 a minute of few calls later
/// was then taken as a measure, 0.26 a second.
#[test]
fn two_429s_with_idle_time_between_them_measure_nothing() {
    let mut estimate = RateEstimate::new(at(0), at(2_000));
    for seq in 0..5 {
        take(&mut estimate, seq, 2_000);
    }
    for seq in 0..5 {
        accept(&mut estimate, seq, 2_050);
    }
    for seq in 5..15 {
        take(&mut estimate, seq, 5_000 * seq - 20_000);
        accept(&mut estimate, seq, 5_000 * seq - 19_950);
    }
    take(&mut estimate, 15, 55_000);
    limited(&mut estimate, 55_050);
    assert_eq!(estimate.rate(), None, "another slow start");
}

/// A cool-down of an hour is longer than an estimate lives, but its end is no starting gun.
#[test]
fn an_estimate_outlives_a_long_cool_down() {
    let mut estimate = paced();
    take(&mut estimate, 20, 10_000);
    accept(&mut estimate, 20, 10_050);
    let reopens = at(11_000) + Span::from_secs(3_600);
    estimate.on_limited(at(11_000), at(11_000), reopens);
    assert!(!estimate.is_over(reopens));
    assert_eq!(room(estimate, 3_611_000), 1);
}

/// Heads of calls from before the 429 come for as long as responses take: they prove nothing.
#[test]
fn late_responses_to_earlier_calls_are_not_counted() {
    let mut estimate = RateEstimate::new(at(0), at(2_000));
    take(&mut estimate, 1, 2_000);
    accept(&mut estimate, 1, 2_050);
    for seq in 500..800 {
        accept(&mut estimate, seq, 2_060);
    }
    assert_eq!((estimate.accepted, room(estimate, 2_100)), (1, 2));
}

/// A wrong, low measure is undone while calls are held back and no 429 comes.
#[test]
fn a_rate_that_rises_without_a_429_grows_with_itself() {
    let mut pace = PacedRate::new(Rate::per_second(1), at(0));
    pace.is_tight = true;
    for second in 1..=120 {
        pace.raise(at(1_000 * second));
    }
    assert!(pace.rate > Rate::per_second(20), "{}", pace.rate);
}
