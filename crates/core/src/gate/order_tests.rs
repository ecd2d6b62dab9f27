//! Who goes next: priority, arrival, callers, and strict order.

use crate::ask::{Outcome, Priority};
use crate::gate::test_gate::{TestCall, TestGate};
use crate::gate::{CallerId, CallerShare};
use crate::limit::Rule;
use crate::test_ledger::{ms, s};
use crate::time::Span;

/// One permit every 20 ms, none in store.
fn bucket() -> Rule {
    Rule::bucket(50, s(1), 1).unwrap().drift_ppm(0)
}

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

/// How many of the calls that went are among these.
fn count(stage: &TestGate, calls: &[u64]) -> usize {
    let gone = calls.iter().filter(|&&seq| stage.was_granted(seq));
    gone.count()
}

/// M3: urgent calls overtake those that wait; inside one priority the first to come goes first.
#[test]
fn m3_higher_priority_overtakes_and_equal_priority_goes_by_arrival() {
    let mut stage = TestGate::new();
    stage.call(TestCall::new(&bucket()));
    let low = stage.calls(3, &TestCall::new(&bucket()).low());
    let normal = stage.calls(3, &TestCall::new(&bucket()));
    let high = stage.calls(3, &TestCall::new(&bucket()).high());
    stage.respond_all(s(10));
    let expected: Vec<u64> = [&high[..], &normal[..], &low[..]].concat();
    assert_eq!(stage.granted[1..], expected);
}

/// M2: a line that stands before the reserve does not keep urgent calls from it.
#[test]
fn m2_an_urgent_call_takes_the_reserve_while_others_wait() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(10, s(10))).reserve(4);
    let calls = stage.calls(8, &want);
    assert_eq!(count(&stage, &calls), 6);
    let urgent = stage.calls(5, &want.clone().high());
    assert_eq!(count(&stage, &urgent), 4);
    // Refused to an urgent one, it is closed for all.
    let offers = stage.offers;
    stage.call(want);
    assert_eq!(stage.offers, offers);
}

/// R-C2: who may not be urgent gets neither the place nor the reserve of urgent calls.
#[test]
fn a_call_has_at_most_the_priority_its_caller_is_allowed() {
    let mut stage = TestGate::new();
    let share = CallerShare {
        max_priority: Priority::Normal,
        ..CallerShare::default()
    };
    stage.gate.set_share(CallerId(7), share);
    let want = TestCall::new(&sliding(2, s(10))).reserve(1);
    stage.call(want.clone());
    let first = stage.call(want.clone());
    let claims = stage.call(want.high().from_caller(7));
    assert_eq!(
        (stage.resolution(first), stage.resolution(claims)),
        (None, None)
    );
    assert_eq!(stage.gate.waiting(Priority::High), 0);
}

#[test]
fn a_queued_call_raised_in_priority_goes_first_and_may_use_the_reserve() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(2, s(10))).reserve(1);
    stage.call(want.clone());
    let (first, second) = (stage.call(want.clone()), stage.call(want.clone()));
    let raised = stage.ask_again(second, want.high());
    stage.run();
    assert_eq!(
        (stage.resolution(first), stage.was_granted(raised)),
        (None, true)
    );
}

#[test]
fn a_call_raised_in_priority_before_its_offer_goes_first() {
    let mut stage = TestGate::new();
    let calls: Vec<u64> = (0..3)
        .map(|_| stage.push(TestCall::new(&bucket())))
        .collect();
    let raised = stage.ask_again(calls[2], TestCall::new(&bucket()).high());
    stage.respond_all(s(1));
    assert_eq!(stage.granted, [raised, calls[0], calls[1]]);
}

/// The refusal was to the call as it was asked, not to what it has become.
#[test]
fn a_call_raised_while_it_is_offered_is_offered_again_at_the_new_priority() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(3, s(10))).reserve(2);
    stage.call(want.clone());
    let waits = stage.push(want.clone());
    let offer = stage.tick();
    let raised = stage.ask_again(waits, want.clone().high());
    let verdicts = stage.decide(&offer);
    stage.gate.verdicts(verdicts, stage.now);
    stage.run();
    assert!(stage.was_granted(raised));
    let urgent = stage.call(want.high());
    assert!(stage.was_granted(urgent));
}

/// R-C1: one caller floods, twenty others keep their part.
#[test]
fn permits_are_fair_between_a_flooding_caller_and_twenty_others() {
    let mut stage = TestGate::new();
    stage.calls(2_000, &TestCall::new(&bucket()).from_caller(1));
    for caller in 2..22 {
        stage.calls(60, &TestCall::new(&bucket()).from_caller(caller));
    }
    let mut got = [0_u32; 22];
    stage.respond_all(ms(20 * 1_049));
    let callers: Vec<usize> = (1..=1_000 * 2 + 20 * 60)
        .map(|seq| {
            if seq <= 2_000 {
                1
            } else {
                2 + (seq - 2_001) / 60
            }
        })
        .collect();
    for &seq in &stage.granted {
        got[callers[usize::try_from(seq).unwrap() - 1]] += 1;
    }
    assert_eq!(stage.granted.len(), 1_050);
    let sum: u32 = got.iter().sum();
    let squares: u32 = got.iter().map(|got| got * got).sum();
    let jain = f64::from(sum * sum) / (21.0 * f64::from(squares));
    assert!(jain >= 0.99, "Jain index {jain}: {got:?}");
}

/// In one batch as well as over time: a lump of permits is shared too.
#[test]
fn a_batch_of_permits_is_divided_between_callers() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(40, s(10)));
    let mut calls = Vec::new();
    for caller in 0..4 {
        calls.push(
            (0..64)
                .map(|_| want.clone().from_caller(caller))
                .collect::<Vec<_>>(),
        );
    }
    let seqs: Vec<Vec<u64>> = calls
        .into_iter()
        .map(|wants| wants.into_iter().map(|want| stage.push(want)).collect())
        .collect();
    stage.run();
    for seqs in seqs {
        assert_eq!(count(&stage, &seqs), 10);
    }
}

/// Few large calls weigh as much as many small ones.
#[test]
fn a_caller_of_large_calls_gets_as_much_as_one_of_small_calls() {
    let mut stage = TestGate::new();
    let rule = Rule::bucket(100, s(1), 10).unwrap().drift_ppm(0);
    let large = stage.calls(200, &TestCall::new(&rule).cost(10).from_caller(1));
    let small = stage.calls(2_000, &TestCall::new(&rule).from_caller(2));
    stage.respond_all(s(20));
    let (large, small) = (count(&stage, &large), count(&stage, &small));
    assert!((95..=106).contains(&large), "{large} large calls");
    assert!((950..=1_060).contains(&small), "{small} small calls");
}

fn set_share(stage: &mut TestGate, caller: u32, permille: u16) {
    let share = CallerShare {
        at_least_permille: permille,
        ..CallerShare::default()
    };
    stage.gate.set_share(CallerId(caller), share);
}

/// R-C2: what was promised is kept under a flood of urgent calls, and no more than that.
#[test]
fn a_guaranteed_share_holds_under_a_flood_of_urgent_calls() {
    let mut stage = TestGate::new();
    set_share(&mut stage, 1, 100);
    let low = stage.calls(200, &TestCall::new(&bucket()).low().from_caller(1));
    stage.calls(1_000, &TestCall::new(&bucket()).high().from_caller(2));
    stage.respond_all(ms(20 * 499));
    let low = count(&stage, &low);
    assert_eq!(stage.granted.len(), 500);
    assert!((49..=52).contains(&low), "{low} of 500");
}

#[test]
fn a_guaranteed_share_does_not_fill_a_batch_before_urgent_calls() {
    let mut stage = TestGate::new();
    set_share(&mut stage, 1, 100);
    let want = TestCall::new(&sliding(40, s(10)));
    for _ in 0..100 {
        stage.push(want.clone().from_caller(1));
    }
    for _ in 0..150 {
        stage.push(want.clone().high().from_caller(2));
    }
    stage.respond_all(s(20));
    let normal = stage.granted.iter().filter(|&&seq| seq <= 100).count();
    assert_eq!(stage.granted.len(), 120);
    assert!((11..=14).contains(&normal), "{normal} of 120");
}

#[test]
fn permits_a_caller_got_while_alone_are_no_debt() {
    let mut stage = TestGate::new();
    set_share(&mut stage, 1, 100);
    let low = stage.calls(400, &TestCall::new(&bucket()).low().from_caller(1));
    stage.respond_all(ms(20 * 199));
    assert_eq!(count(&stage, &low), 200);
    stage.calls(1_000, &TestCall::new(&bucket()).high().from_caller(2));
    stage.respond_all(s(2));
    let then = count(&stage, &low) - 200;
    assert!((9..=12).contains(&then), "{then} of 100");
}

#[test]
fn a_caller_that_comes_back_gets_no_arrears_of_its_pause() {
    let mut stage = TestGate::new();
    set_share(&mut stage, 1, 200);
    stage.calls(2_000, &TestCall::new(&bucket()).from_caller(2));
    let early = stage.calls(5, &TestCall::new(&bucket()).from_caller(1));
    stage.respond_all(s(10));
    assert_eq!(count(&stage, &early), 5);
    let (before, late) = (
        stage.granted.len(),
        stage.calls(200, &TestCall::new(&bucket()).from_caller(1)),
    );
    stage.respond_all(s(2));
    let (of, late) = (stage.granted.len() - before, count(&stage, &late));
    assert!(late <= of / 2 + 2, "{late} of {of}: more than half");
}

/// A cell that refuses keeps nobody who does not need it.
#[test]
fn a_blocked_entity_does_not_block_the_others() {
    let mut stage = TestGate::new();
    let (slow, quick) = (sliding(1, s(3_600)), sliding(100, s(1)));
    let waiting = stage.calls(50, &TestCall::at("slow", &slow).max_wait(s(9_999)));
    let others = stage.calls(100, &TestCall::at("quick", &quick));
    assert_eq!(count(&stage, &waiting), 1);
    assert_eq!(count(&stage, &others), 100);
    let both = stage.call(TestCall::at("quick2", &quick).and("slow", &slow));
    assert_eq!(stage.resolution(both), None);
}

#[test]
fn a_large_cost_is_not_starved_by_small_ones() {
    let mut stage = TestGate::new();
    let rule = Rule::bucket(50, s(1), 25).unwrap().drift_ppm(0);
    stage.calls(25, &TestCall::new(&rule));
    stage.respond_all(Span::ZERO);
    let large = stage.call(TestCall::new(&rule).cost(25));
    for _ in 0..100 {
        stage.call(TestCall::new(&rule));
        stage.advance(ms(10));
    }
    assert_eq!(stage.granted_after(large), Some(ms(500)));
}

/// Retries keep their place among those of their priority.
#[test]
fn a_retry_goes_before_calls_that_arrived_after_it() {
    let mut stage = TestGate::new();
    let first = stage.call(TestCall::new(&bucket()));
    stage.settle(first, Outcome::Finished { age: Span::ZERO });
    let waiting = stage.calls(3, &TestCall::new(&bucket()));
    let again = stage.call(TestCall::new(&bucket()).senior(stage.seniorities[&first]));
    stage.respond_all(s(1));
    assert_eq!(
        stage.granted,
        [first, again, waiting[0], waiting[1], waiting[2]]
    );
    assert_eq!(stage.seniorities[&again], stage.seniorities[&first]);
}

/// M13: nobody overtakes, whatever its priority, its cost or its cell.
#[test]
fn m13_in_fifo_order_nobody_overtakes() {
    let mut stage = TestGate::fifo();
    let (slow, quick) = (sliding(1, s(10)), sliding(1_000, s(10)));
    let mut calls = vec![stage.call(TestCall::at("slow", &slow).low())];
    calls.push(stage.push(TestCall::at("slow", &slow).low()));
    calls.push(stage.push(TestCall::at("slow", &slow).high()));
    calls.push(stage.push(TestCall::at("quick", &quick).high().from_caller(3)));
    calls.push(stage.push(TestCall::at("quick", &quick).low()));
    calls.push(stage.push(TestCall::at("slow", &slow)));
    stage.respond_all(s(100));
    assert_eq!(stage.granted, calls);
    assert_eq!(stage.granted_after(calls[3]), Some(s(20)));
}

#[test]
fn m13_in_fifo_order_a_waiter_that_leaves_blocks_nobody() {
    let mut stage = TestGate::fifo();
    let (slow, quick) = (sliding(1, s(10)), sliding(1_000, s(10)));
    let first = stage.call(TestCall::at("slow", &slow));
    stage.arrive(first);
    let leaves = stage.call(TestCall::at("slow", &slow));
    let next = stage.call(TestCall::at("quick", &quick));
    assert_eq!(stage.resolution(next), None);
    stage.gate.cancel(TestGate::id(leaves));
    stage.run();
    assert!(stage.was_granted(next));
    // One that does not wait at all keeps nobody either.
    stage.push(TestCall::at("slow", &slow).no_wait());
    let next = stage.push(TestCall::at("quick", &quick).max_wait(s(1)));
    stage.run();
    assert!(stage.was_granted(next));
}

#[test]
fn m13_in_fifo_order_a_follower_makes_a_call_no_earlier() {
    let mut stage = TestGate::fifo();
    let calls: Vec<u64> = (0..3)
        .map(|_| stage.push(TestCall::new(&bucket())))
        .collect();
    let raised = stage.ask_again(calls[2], TestCall::new(&bucket()).high());
    stage.respond_all(s(1));
    assert_eq!(stage.granted, [calls[0], calls[1], raised]);
}
