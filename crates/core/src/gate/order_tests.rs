//! Who goes next: priority, arrival, callers, and FIFO order.

use crate::ask::{Outcome, Priority, Reopen, ScopeId, Settle};
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

/// How many of these calls got a permit.
fn count(test: &TestGate, calls: &[u64]) -> usize {
    let gone = calls.iter().filter(|&&seq| test.was_granted(seq));
    gone.count()
}

/// M3: urgent calls overtake waiting ones; within one priority the first to arrive goes first.
#[test]
fn m3_higher_priority_overtakes_and_equal_priority_goes_by_arrival() {
    let mut test = TestGate::new();
    test.call(TestCall::new(&bucket()));
    let low = test.calls(3, &TestCall::new(&bucket()).low());
    let normal = test.calls(3, &TestCall::new(&bucket()));
    let high = test.calls(3, &TestCall::new(&bucket()).high());
    test.respond_all(s(10));
    let expected: Vec<u64> = [&high[..], &normal[..], &low[..]].concat();
    assert_eq!(test.granted[1..], expected);
}

/// M2: waiters that may not use the reserve do not block urgent calls from it.
#[test]
fn m2_an_urgent_call_takes_the_reserve_while_others_wait() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(10, s(10))).reserve(4);
    let calls = test.calls(8, &want);
    assert_eq!(count(&test, &calls), 6);
    let urgent = test.calls(5, &want.clone().high());
    assert_eq!(count(&test, &urgent), 4);
    // After an urgent call is rejected, it is closed for all.
    let offers = test.offers;
    test.call(want);
    assert_eq!(test.offers, offers);
}

/// R-C2: a caller that may not send high priority gets neither the order nor the reserve of high.
#[test]
fn a_call_has_at_most_the_priority_its_caller_is_allowed() {
    let mut test = TestGate::new();
    let share = CallerShare {
        max_priority: Priority::Normal,
        ..CallerShare::default()
    };
    test.gate.set_share(CallerId(7), share);
    let want = TestCall::new(&sliding(2, s(10))).reserve(1);
    test.call(want.clone());
    let first = test.call(want.clone());
    let claims = test.call(want.high().with_caller(7));
    assert_eq!(
        (test.resolution(first), test.resolution(claims)),
        (None, None)
    );
    assert_eq!(test.gate.waiting(Priority::High), 0);
}

#[test]
fn a_queued_call_raised_in_priority_goes_first_and_may_use_the_reserve() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(2, s(10))).reserve(1);
    test.call(want.clone());
    let (first, second) = (test.call(want.clone()), test.call(want.clone()));
    let raised = test.ask_again(second, want.high());
    test.run();
    assert_eq!(
        (test.resolution(first), test.was_granted(raised)),
        (None, true)
    );
}

#[test]
fn a_call_raised_in_priority_before_its_offer_goes_first() {
    let mut test = TestGate::new();
    let calls: Vec<u64> = (0..3)
        .map(|_| test.push(TestCall::new(&bucket())))
        .collect();
    let raised = test.ask_again(calls[2], TestCall::new(&bucket()).high());
    test.respond_all(s(1));
    assert_eq!(test.granted, [raised, calls[0], calls[1]]);
}

/// The rejection was for the ask at its old priority, not for the raised one.
#[test]
fn a_call_raised_while_it_is_offered_is_offered_again_at_the_new_priority() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(3, s(10))).reserve(2);
    test.call(want.clone());
    let waits = test.push(want.clone());
    let offer = test.tick();
    let raised = test.ask_again(waits, want.clone().high());
    let verdicts = test.decide(&offer);
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert!(test.was_granted(raised));
    let urgent = test.call(want.high());
    assert!(test.was_granted(urgent));
}

/// R-C1: one caller floods, twenty others get their fair part.
#[test]
fn permits_are_fair_between_a_flooding_caller_and_twenty_others() {
    let mut test = TestGate::new();
    test.calls(2_000, &TestCall::new(&bucket()).with_caller(1));
    for caller in 2..22 {
        test.calls(60, &TestCall::new(&bucket()).with_caller(caller));
    }
    let mut got = [0_u32; 22];
    test.respond_all(ms(20 * 1_049));
    let callers: Vec<usize> = (1..=1_000 * 2 + 20 * 60)
        .map(|seq| {
            if seq <= 2_000 {
                1
            } else {
                2 + (seq - 2_001) / 60
            }
        })
        .collect();
    for &seq in &test.granted {
        got[callers[usize::try_from(seq).unwrap() - 1]] += 1;
    }
    assert_eq!(test.granted.len(), 1_050);
    let sum: u32 = got.iter().sum();
    let squares: u32 = got.iter().map(|got| got * got).sum();
    let jain = f64::from(sum * sum) / (21.0 * f64::from(squares));
    assert!(jain >= 0.99, "Jain index {jain}: {got:?}");
}

/// Permits of one batch are divided between callers too.
#[test]
fn a_batch_of_permits_is_divided_between_callers() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(40, s(10)));
    let mut calls = Vec::new();
    for caller in 0..4 {
        calls.push(
            (0..64)
                .map(|_| want.clone().with_caller(caller))
                .collect::<Vec<_>>(),
        );
    }
    let seqs: Vec<Vec<u64>> = calls
        .into_iter()
        .map(|wants| wants.into_iter().map(|want| test.push(want)).collect())
        .collect();
    test.run();
    for seqs in seqs {
        assert_eq!(count(&test, &seqs), 10);
    }
}

/// Few large calls weigh as much as many small ones.
#[test]
fn a_caller_of_large_calls_gets_as_much_as_one_of_small_calls() {
    let mut test = TestGate::new();
    let rule = Rule::bucket(100, s(1), 10).unwrap().drift_ppm(0);
    let large = test.calls(200, &TestCall::new(&rule).cost(10).with_caller(1));
    let small = test.calls(2_000, &TestCall::new(&rule).with_caller(2));
    test.respond_all(s(20));
    let (large, small) = (count(&test, &large), count(&test, &small));
    assert!((95..=106).contains(&large), "{large} large calls");
    assert!((950..=1_060).contains(&small), "{small} small calls");
}

fn set_share(test: &mut TestGate, caller: u32, permille: u16) {
    let share = CallerShare {
        at_least_permille: permille,
        ..CallerShare::default()
    };
    test.gate.set_share(CallerId(caller), share);
}

/// R-C2: a guaranteed share holds under a flood of urgent calls, and is not exceeded.
#[test]
fn a_guaranteed_share_holds_under_a_flood_of_urgent_calls() {
    let mut test = TestGate::new();
    set_share(&mut test, 1, 100);
    let low = test.calls(200, &TestCall::new(&bucket()).low().with_caller(1));
    test.calls(1_000, &TestCall::new(&bucket()).high().with_caller(2));
    test.respond_all(ms(20 * 499));
    let low = count(&test, &low);
    assert_eq!(test.granted.len(), 500);
    assert!((49..=52).contains(&low), "{low} of 500");
}

#[test]
fn a_guaranteed_share_does_not_fill_a_batch_before_urgent_calls() {
    let mut test = TestGate::new();
    set_share(&mut test, 1, 100);
    let want = TestCall::new(&sliding(40, s(10)));
    for _ in 0..100 {
        test.push(want.clone().with_caller(1));
    }
    for _ in 0..150 {
        test.push(want.clone().high().with_caller(2));
    }
    test.respond_all(s(20));
    let normal = test.granted.iter().filter(|&&seq| seq <= 100).count();
    assert_eq!(test.granted.len(), 120);
    assert!((11..=14).contains(&normal), "{normal} of 120");
}

#[test]
fn permits_a_caller_got_while_alone_are_no_debt() {
    let mut test = TestGate::new();
    set_share(&mut test, 1, 100);
    let low = test.calls(400, &TestCall::new(&bucket()).low().with_caller(1));
    test.respond_all(ms(20 * 199));
    assert_eq!(count(&test, &low), 200);
    test.calls(1_000, &TestCall::new(&bucket()).high().with_caller(2));
    test.respond_all(s(2));
    let then = count(&test, &low) - 200;
    assert!((9..=12).contains(&then), "{then} of 100");
}

#[test]
fn a_caller_that_comes_back_gets_no_arrears_of_its_pause() {
    let mut test = TestGate::new();
    set_share(&mut test, 1, 200);
    test.calls(2_000, &TestCall::new(&bucket()).with_caller(2));
    let early = test.calls(5, &TestCall::new(&bucket()).with_caller(1));
    test.respond_all(s(10));
    assert_eq!(count(&test, &early), 5);
    let (before, late) = (
        test.granted.len(),
        test.calls(200, &TestCall::new(&bucket()).with_caller(1)),
    );
    test.respond_all(s(2));
    let (of, late) = (test.granted.len() - before, count(&test, &late));
    assert!(late <= of / 2 + 2, "{late} of {of}: more than half");
}

/// A closed cell blocks only calls that need it.
#[test]
fn a_blocked_entity_does_not_block_the_others() {
    let mut test = TestGate::new();
    let (slow, quick) = (sliding(1, s(3_600)), sliding(100, s(1)));
    let waiting = test.calls(50, &TestCall::at("slow", &slow).max_wait(s(9_999)));
    let others = test.calls(100, &TestCall::at("quick", &quick));
    assert_eq!(count(&test, &waiting), 1);
    assert_eq!(count(&test, &others), 100);
    let both = test.call(TestCall::at("quick2", &quick).and("slow", &slow));
    assert_eq!(test.resolution(both), None);
}

#[test]
fn a_large_cost_is_not_starved_by_small_ones() {
    let mut test = TestGate::new();
    let rule = Rule::bucket(50, s(1), 25).unwrap().drift_ppm(0);
    test.calls(25, &TestCall::new(&rule));
    test.respond_all(Span::ZERO);
    let large = test.call(TestCall::new(&rule).cost(25));
    for _ in 0..100 {
        test.call(TestCall::new(&rule));
        test.advance(ms(10));
    }
    assert_eq!(test.granted_after(large), Some(ms(500)));
}

/// Retries keep their place within their priority.
#[test]
fn a_retry_goes_before_calls_that_arrived_after_it() {
    let mut test = TestGate::new();
    let first = test.call(TestCall::new(&bucket()));
    test.settle(first, Outcome::Finished { age: Span::ZERO });
    let waiting = test.calls(3, &TestCall::new(&bucket()));
    let again = test.call(TestCall::new(&bucket()).senior(test.seniorities[&first]));
    test.respond_all(s(1));
    assert_eq!(
        test.granted,
        [first, again, waiting[0], waiting[1], waiting[2]]
    );
    assert_eq!(test.seniorities[&again], test.seniorities[&first]);
}

/// M13: no call overtakes, whatever its priority, its cost or its cell.
#[test]
fn m13_in_fifo_order_nobody_overtakes() {
    let mut test = TestGate::fifo();
    let (slow, quick) = (sliding(1, s(10)), sliding(1_000, s(10)));
    let mut calls = vec![test.call(TestCall::at("slow", &slow).low())];
    calls.push(test.push(TestCall::at("slow", &slow).low()));
    calls.push(test.push(TestCall::at("slow", &slow).high()));
    calls.push(test.push(TestCall::at("quick", &quick).high().with_caller(3)));
    calls.push(test.push(TestCall::at("quick", &quick).low()));
    calls.push(test.push(TestCall::at("slow", &slow)));
    test.respond_all(s(100));
    assert_eq!(test.granted, calls);
    assert_eq!(test.granted_after(calls[3]), Some(s(20)));
}

#[test]
fn m13_in_fifo_order_a_waiter_that_leaves_blocks_nobody() {
    let mut test = TestGate::fifo();
    let (slow, quick) = (sliding(1, s(10)), sliding(1_000, s(10)));
    let first = test.call(TestCall::at("slow", &slow));
    test.arrive(first);
    let leaves = test.call(TestCall::at("slow", &slow));
    let next = test.call(TestCall::at("quick", &quick));
    assert_eq!(test.resolution(next), None);
    test.gate.cancel(TestGate::id(leaves));
    test.run();
    assert!(test.was_granted(next));
    // A call that does not wait blocks nobody either.
    test.push(TestCall::at("slow", &slow).no_wait());
    let next = test.push(TestCall::at("quick", &quick).max_wait(s(1)));
    test.run();
    assert!(test.was_granted(next));
}

#[test]
fn m13_in_fifo_order_a_follower_makes_a_call_no_earlier() {
    let mut test = TestGate::fifo();
    let calls: Vec<u64> = (0..3)
        .map(|_| test.push(TestCall::new(&bucket())))
        .collect();
    let raised = test.ask_again(calls[2], TestCall::new(&bucket()).high());
    test.respond_all(s(1));
    assert_eq!(test.granted, [calls[0], calls[1], raised]);
}

/// M3: in FIFO order a call to a closed path waits under its scope, and calls to other paths go on.
#[test]
fn m3_a_call_to_a_closed_path_does_not_hold_up_the_others_in_fifo_order() {
    let mut test = TestGate::fifo();
    let close = Settle::Close {
        scope: ScopeId::named(&["/a"]),
        age: Span::ZERO,
        closed_for: Some(s(5)),
        reopen: Reopen::Probe,
    };
    test.turn(&[close], &[]);
    let want = TestCall::new(&sliding(10, s(1))).scope("p");
    let closed = test.calls(2, &want.clone().scope("/a"));
    let others = test.calls(3, &want);
    assert_eq!((count(&test, &closed), count(&test, &others)), (0, 3));
    test.advance(s(5));
    assert_eq!(count(&test, &closed), 1, "one call probes");
}

/// What a caller was owed in a wait that it gave up is not paid later.
#[test]
fn credit_of_a_wait_that_was_given_up_is_not_kept() {
    let mut test = TestGate::new();
    set_share(&mut test, 1, 100);
    let slow = sliding(1, s(3_600));
    test.call(TestCall::at("slow", &slow).with_caller(3));
    let gone = test.call(
        TestCall::at("slow", &slow)
            .with_caller(1)
            .max_wait(s(9_999)),
    );
    test.calls(100, &TestCall::new(&bucket()).with_caller(2));
    test.respond_all(s(2));
    test.gate.cancel(TestGate::id(gone));
    test.run();
    test.calls(40, &TestCall::new(&bucket()).high().with_caller(2));
    let late = test.calls(40, &TestCall::new(&bucket()).with_caller(1));
    test.respond_all(ms(20 * 10));
    let late = count(&test, &late);
    assert!(late <= 3, "{late} of 10 at a share of a tenth");
}
