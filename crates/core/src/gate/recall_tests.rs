//! Limits that change while calls wait: which waiters are recalled, and who goes first then.

use super::test_gate::{TestCall, TestGate};
use super::{GateSettings, Order, Resolution};
use crate::limit::Rule;
use crate::test_ledger::s;
use crate::time::Span;

/// How long recalled waiters are waited for.
const RETURN_TIMEOUT: Span = Span::from_millis(50);

fn rule(limit: u64) -> Rule {
    Rule::sliding(limit, s(10)).unwrap().drift_ppm(0)
}

/// A queue behind a used-up limit of one; its waiters are recalled.
fn recalled(test: &mut TestGate, waiting: usize, want: &TestCall) -> Vec<u64> {
    test.calls(1, &TestCall::new(&rule(1)));
    let old = test.calls(waiting, want);
    test.gate.recall();
    test.run();
    let fates = old.iter().map(|seq| test.resolution(*seq));
    assert!(
        fates
            .into_iter()
            .all(|fate| fate == Some(&Resolution::Recalled))
    );
    old
}

/// A recalled call asks again, with its seniority.
fn again(test: &mut TestGate, seq: u64, want: TestCall) -> u64 {
    let seniority = test.seniorities[&seq];
    test.push(want.senior(seniority))
}

/// A call that arrives between the recall and the new asks does not overtake the recalled waiters,
/// in whatever order they return.
#[test]
fn a_new_call_does_not_overtake_recalled_waiters() {
    for strict in [false, true] {
        let mut test = if strict {
            TestGate::fifo()
        } else {
            TestGate::new()
        };
        let want = TestCall::new(&rule(4));
        let old = recalled(&mut test, 3, &TestCall::new(&rule(1)));
        let newcomer = test.call(want.clone());
        assert!(!test.was_granted(newcomer));
        let mut back: Vec<u64> = Vec::new();
        for seq in old.into_iter().rev() {
            back.push(again(&mut test, seq, want.clone()));
            test.run();
        }
        back.reverse();
        assert_eq!(test.granted[1..], back, "all three, and in their order");
        test.respond_all(s(20));
        assert!(test.was_granted(newcomer));
    }
}

#[test]
fn a_more_urgent_new_call_does_not_wait_for_recalled_waiters() {
    let mut test = TestGate::new();
    recalled(&mut test, 3, &TestCall::new(&rule(1)));
    let urgent = test.call(TestCall::new(&rule(4)).high());
    assert!(test.was_granted(urgent));
}

/// One recalled waiter never returns: the others wait for it for a short time only.
#[test]
fn a_recalled_waiter_that_does_not_return_blocks_nobody_for_long() {
    let mut test = TestGate::new();
    let old = recalled(&mut test, 2, &TestCall::new(&rule(1)));
    let newcomer = test.call(TestCall::new(&rule(4)));
    let first = again(&mut test, old[1], TestCall::new(&rule(4)));
    test.run();
    assert!(!test.was_granted(newcomer) && !test.was_granted(first));
    test.advance(RETURN_TIMEOUT - Span(1));
    assert!(!test.was_granted(newcomer));
    test.advance(Span(1));
    assert!(test.was_granted(newcomer) && test.was_granted(first));
    let at_once = test.call(TestCall::new(&rule(4)).no_wait());
    assert!(test.was_granted(at_once), "no recalled waiter is expected");
}

/// A full queue stays full for new calls until the recalled waiters have their places again.
#[test]
fn a_new_call_takes_no_queue_place_of_a_recalled_waiter() {
    let mut test = TestGate::with(GateSettings {
        waiting_max: 3,
        order: Order::Priority,
        ..GateSettings::default()
    });
    let old = recalled(&mut test, 3, &TestCall::new(&rule(1)));
    let newcomer = test.call(TestCall::new(&rule(1)));
    assert_eq!(test.resolution(newcomer), Some(&Resolution::Full));
    for seq in old {
        let back = again(&mut test, seq, TestCall::new(&rule(1)));
        test.run();
        assert_eq!(test.resolution(back), None, "it waits");
    }
}

/// Every waiter is recalled and asks again for `rule`, in another order.
fn change_limit(test: &mut TestGate, rule: &Rule) -> Vec<u64> {
    test.gate.recall();
    test.tick();
    let recalled = |(seq, (_, fate)): (&u64, &(_, Resolution))| {
        (*fate == Resolution::Recalled).then_some(*seq)
    };
    let mut back: Vec<u64> = test.resolutions.iter().filter_map(recalled).collect();
    back.reverse();
    let again = |seq: u64, test: &mut TestGate| {
        let seniority = test.seniorities[&seq];
        test.push(TestCall::new(rule).senior(seniority))
    };
    let again: Vec<u64> = back.into_iter().map(|seq| again(seq, test)).collect();
    test.run();
    again
}

/// R-A13: 10 → 2 while calls wait: from then on two waiters go per window, the oldest first, and
/// usage under the old limit counts.
#[test]
fn a_lower_limit_applies_to_waiting_calls() {
    let mut test = TestGate::new();
    test.calls(30, &TestCall::new(&rule(10)));
    assert_eq!(test.granted.len(), 10);
    test.respond_all(Span::ZERO);
    let again = change_limit(&mut test, &rule(2));
    assert_eq!((again.len(), test.granted.len()), (20, 10));
    test.respond_all(s(35));
    assert_eq!(
        test.granted.len(),
        10 + 3 * 2,
        "two for each of three windows"
    );
    let oldest: Vec<u64> = again.iter().rev().take(6).copied().collect();
    assert_eq!(test.granted[10..], oldest);
}

/// R-A13: the ledger grants under the old limit while it changes: no call uses that grant.
#[test]
fn a_grant_under_a_replaced_limit_is_returned() {
    let mut test = TestGate::new();
    let old: Vec<u64> = (0..4).map(|_| test.push(TestCall::new(&rule(4)))).collect();
    let offer = test.tick();
    let verdicts = test.decide(&offer);
    test.gate.recall();
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert!(
        old.iter()
            .all(|seq| test.resolution(*seq) == Some(&Resolution::Recalled))
    );
    assert!(test.granted.is_empty());
    let new = test.call(TestCall::new(&rule(1)));
    test.advance(RETURN_TIMEOUT);
    assert!(test.was_granted(new), "the old grant was returned");
}

/// The pace changes, or an urgent call joins: a waiter leaves a full queue to ask again. It is not
/// overtaken and does not lose its place.
#[test]
fn a_waiter_that_leaves_to_ask_again_keeps_its_place() {
    for order in [Order::Priority, Order::Fifo] {
        let mut test = TestGate::with(GateSettings {
            waiting_max: 1,
            order,
            ..GateSettings::default()
        });
        test.calls(1, &TestCall::new(&rule(1)));
        let seniority = 7;
        let old = test.call(TestCall::new(&rule(1)).senior(seniority));
        test.gate.cancel(TestGate::id(old));
        test.gate
            .expect_return(seniority, crate::ask::Priority::Normal);
        let newcomer = test.call(TestCall::new(&rule(2)));
        assert_eq!(test.resolution(newcomer), Some(&Resolution::Full));
        let back = test.call(TestCall::new(&rule(2)).senior(seniority));
        assert_eq!(test.granted[1..], [back]);
    }
}

#[test]
fn a_cancelled_return_blocks_nobody() {
    let mut test = TestGate::fifo();
    test.gate.expect_return(7, crate::ask::Priority::High);
    let newcomer = test.call(TestCall::new(&rule(2)).senior(9));
    assert!(!test.was_granted(newcomer));
    assert!(test.gate.cancel_return(7) && !test.gate.cancel_return(7));
    test.run();
    assert!(test.was_granted(newcomer));
}

/// A former bug: a change of the limits gave a place in the queue to calls that waited only for their
/// verdict, and then the queue was full.
#[test]
fn a_recalled_burst_does_not_fill_the_queue() {
    let mut test = TestGate::with(GateSettings {
        waiting_max: 2,
        ..GateSettings::default()
    });
    let many = TestCall::new(&rule(50));
    let burst: Vec<_> = (0..10).map(|_| test.push(many.clone())).collect();
    test.gate.recall();
    let newcomer = test.push(many.clone());
    let back: Vec<_> = burst
        .iter()
        .map(|&seq| test.push(many.clone().senior(seq - burst[0])))
        .collect();
    test.run();
    test.advance(RETURN_TIMEOUT);
    assert!(
        test.was_granted(newcomer),
        "{:?}",
        test.resolution(newcomer)
    );
    assert!(back.iter().all(|&seq| test.was_granted(seq)));
}
