//! Calls that can go in time only if a permit is returned: they hold nobody back.

use crate::ask::Outcome;
use crate::gate::test_gate::{TestCall, TestGate, cell};
use crate::gate::{Blocker, Resolution};
use crate::limit::Rule;
use crate::test_ledger::s;
use crate::time::Span;

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

/// How many of these calls got a permit.
fn count(test: &TestGate, calls: &[u64]) -> usize {
    let gone = calls.iter().filter(|&&seq| test.was_granted(seq));
    gone.count()
}

/// 100 an hour with one permit open: a call for 100 and 12 s can go only if that permit is returned. Symptom: it
/// closed the limit for everybody for its 12 s, although 99 were free, and each denial said to come back in an hour.
/// Cause: only a wait whose end was a known time counted as too long.
#[test]
fn a_call_that_only_a_returned_permit_can_serve_in_time_holds_nobody_back() {
    let mut test = TestGate::new();
    let rule = sliding(100, s(3_600));
    let open = test.call(TestCall::new(&rule));
    let large = test.call(TestCall::new(&rule).cost(100).max_wait(s(12)));
    let small = test.calls(3, &TestCall::new(&rule).no_wait());
    let waits = test.call(TestCall::new(&rule).low().max_wait(s(3)));
    assert_eq!((count(&test, &small), test.was_granted(waits)), (3, true));
    assert_eq!(test.resolution(large), None);
    let as_large = test.call(TestCall::new(&rule).cost(100).no_wait());
    assert!(matches!(
        test.resolution(as_large),
        Some(Resolution::Rejected { blocker, .. }) if *blocker == Blocker::Cell(cell("x"))
    ));
    for seq in small.into_iter().chain([waits, open]) {
        assert_eq!(test.resolution(large), None);
        test.settle(seq, Outcome::Unsent);
        test.run();
    }
    assert!(test.was_granted(large), "the permits were returned");
}

/// The same, in one offer and at its deadline.
#[test]
fn a_call_that_cannot_go_in_time_times_out_while_others_of_its_offer_go() {
    let mut test = TestGate::new();
    let rule = sliding(100, s(3_600));
    test.call(TestCall::new(&rule));
    let large = test.push(TestCall::new(&rule).cost(100).max_wait(s(12)));
    let small = test.calls(3, &TestCall::new(&rule));
    assert_eq!(count(&test, &small), 3);
    test.advance(s(12));
    let blocker = Some(Blocker::Cell(cell("x")));
    assert_eq!(
        test.resolution(large),
        Some(&Resolution::TimedOut { blocker })
    );
    test.gate.anything_changed();
    assert!(test.gate.is_idle(), "{:?}", test.gate);
}

/// Responses come in time here: what it needs is saved up, as before.
#[test]
fn a_large_cost_that_responses_can_serve_in_time_is_not_starved() {
    let mut test = TestGate::new();
    let rule = sliding(10, s(10));
    let first = test.call(TestCall::new(&rule));
    let large = test.call(TestCall::new(&rule).cost(10).max_wait(s(20)));
    let small = test.call(TestCall::new(&rule).max_wait(s(30)));
    assert_eq!(test.resolution(small), None);
    test.advance(s(1));
    test.arrive(first);
    test.advance(s(12));
    assert!(test.was_granted(large) && !test.was_granted(small));
}

/// One that needs as much and has more time is served when its time comes, and saved up for.
#[test]
fn a_patient_large_call_is_not_held_back_by_one_that_cannot_go_in_time() {
    let mut test = TestGate::new();
    let rule = sliding(10, s(60));
    let first = test.call(TestCall::new(&rule));
    let hasty = test.call(TestCall::new(&rule).cost(10).max_wait(s(5)));
    let patient = test.call(TestCall::new(&rule).cost(10).max_wait(s(100)));
    let small = test.call(TestCall::new(&rule).max_wait(s(200)));
    test.arrive(first);
    test.advance(s(62));
    assert!(!test.was_granted(hasty) && test.was_granted(patient));
    assert!(!test.was_granted(small), "it came later");
}

/// Symptom: a call for one unit that does not wait, behind a call for ten that does, was denied for as long as the
/// open permit of the ten's limit may last, although the one ahead gives up much earlier.
#[test]
fn who_needs_less_than_those_ahead_is_denied_for_their_patience_at_most() {
    let mut test = TestGate::new();
    let rule = sliding(10, s(10));
    test.call(TestCall::new(&rule));
    test.call(TestCall::new(&rule).cost(10).max_wait(s(20)));
    let retry_in = |test: &TestGate, seq| match test.resolution(seq) {
        Some(Resolution::Rejected { retry_in, .. }) => *retry_in,
        other => panic!("{other:?}"),
    };
    let small = test.call(TestCall::new(&rule).no_wait());
    assert_eq!(retry_in(&test, small), s(20));
    let large = test.call(TestCall::new(&rule).cost(10).no_wait());
    assert_eq!(retry_in(&test, large), s(30 + 5 + 10));
}
