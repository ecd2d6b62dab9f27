//! Limits that change while calls wait: who is called back, and who goes first then.

use super::test_gate::{TestCall, TestGate};
use super::{GateSettings, Order, Resolution};
use crate::limit::Rule;
use crate::test_ledger::s;
use crate::time::Span;

/// As long as those who were called back are waited for.
const RETURN_TIMEOUT: Span = Span::from_millis(50);

fn rule(limit: u64) -> Rule {
    Rule::sliding(limit, s(10)).unwrap().drift_ppm(0)
}

/// A line behind a limit of one that is used up; those who wait are called back.
fn recalled(stage: &mut TestGate, waiting: usize, want: &TestCall) -> Vec<u64> {
    stage.calls(1, &TestCall::new(&rule(1)));
    let old = stage.calls(waiting, want);
    stage.gate.recall();
    stage.run();
    let fates = old.iter().map(|seq| stage.resolution(*seq));
    assert!(
        fates
            .into_iter()
            .all(|fate| fate == Some(&Resolution::Recalled))
    );
    old
}

/// The call of before asks again, with its seniority.
fn again(stage: &mut TestGate, seq: u64, want: TestCall) -> u64 {
    let seniority = stage.seniorities[&seq];
    stage.push(want.senior(seniority))
}

/// Who arrives in the instant between the recall and the new asks does not get past those who were
/// called back, whatever order they come back in.
#[test]
fn a_new_call_does_not_overtake_recalled_waiters() {
    for strict in [false, true] {
        let mut stage = if strict {
            TestGate::fifo()
        } else {
            TestGate::new()
        };
        let want = TestCall::new(&rule(4));
        let old = recalled(&mut stage, 3, &TestCall::new(&rule(1)));
        let newcomer = stage.call(want.clone());
        assert!(!stage.was_granted(newcomer));
        let mut back: Vec<u64> = Vec::new();
        for seq in old.into_iter().rev() {
            back.push(again(&mut stage, seq, want.clone()));
            stage.run();
        }
        back.reverse();
        assert_eq!(stage.granted[1..], back, "all three, and in their order");
        stage.respond_all(s(20));
        assert!(stage.was_granted(newcomer));
    }
}

#[test]
fn a_more_urgent_new_call_does_not_wait_for_recalled_waiters() {
    let mut stage = TestGate::new();
    recalled(&mut stage, 3, &TestCall::new(&rule(1)));
    let urgent = stage.call(TestCall::new(&rule(4)).high());
    assert!(stage.was_granted(urgent));
}

/// One of those called back never comes: the others wait for it for a moment and no longer.
#[test]
fn a_recalled_waiter_that_does_not_return_blocks_nobody_for_long() {
    let mut stage = TestGate::new();
    let old = recalled(&mut stage, 2, &TestCall::new(&rule(1)));
    let newcomer = stage.call(TestCall::new(&rule(4)));
    let first = again(&mut stage, old[1], TestCall::new(&rule(4)));
    stage.run();
    assert!(!stage.was_granted(newcomer) && !stage.was_granted(first));
    stage.advance(RETURN_TIMEOUT - Span(1));
    assert!(!stage.was_granted(newcomer));
    stage.advance(Span(1));
    assert!(stage.was_granted(newcomer) && stage.was_granted(first));
    let at_once = stage.call(TestCall::new(&rule(4)).no_wait());
    assert!(stage.was_granted(at_once), "nobody is expected any more");
}

/// A line that is full stays full for newcomers until those called back have their places again.
#[test]
fn a_new_call_takes_no_queue_place_of_a_recalled_waiter() {
    let mut stage = TestGate::with(GateSettings {
        waiting_max: 3,
        order: Order::Priority,
        ..GateSettings::default()
    });
    let old = recalled(&mut stage, 3, &TestCall::new(&rule(1)));
    let newcomer = stage.call(TestCall::new(&rule(1)));
    assert_eq!(stage.resolution(newcomer), Some(&Resolution::Full));
    for seq in old {
        let back = again(&mut stage, seq, TestCall::new(&rule(1)));
        stage.run();
        assert_eq!(stage.resolution(back), None, "it waits");
    }
}

/// Everybody who waits is called back and asks anew for `rule`, in an order of its own.
fn change_limit(stage: &mut TestGate, rule: &Rule) -> Vec<u64> {
    stage.gate.recall();
    stage.tick();
    let recalled = |(seq, (_, fate)): (&u64, &(_, Resolution))| {
        (*fate == Resolution::Recalled).then_some(*seq)
    };
    let mut back: Vec<u64> = stage.resolutions.iter().filter_map(recalled).collect();
    back.reverse();
    let again = |seq: u64, stage: &mut TestGate| {
        let seniority = stage.seniorities[&seq];
        stage.push(TestCall::new(rule).senior(seniority))
    };
    let again: Vec<u64> = back.into_iter().map(|seq| again(seq, stage)).collect();
    stage.run();
    again
}

/// R-A13: 10 → 2 in the middle of a line: those who wait go two a window from then on, the oldest
/// first, and use made under the old limit counts.
#[test]
fn a_lower_limit_applies_to_waiting_calls() {
    let mut stage = TestGate::new();
    stage.calls(30, &TestCall::new(&rule(10)));
    assert_eq!(stage.granted.len(), 10);
    stage.respond_all(Span::ZERO);
    let again = change_limit(&mut stage, &rule(2));
    assert_eq!((again.len(), stage.granted.len()), (20, 10));
    stage.respond_all(s(35));
    assert_eq!(
        stage.granted.len(),
        10 + 3 * 2,
        "two for each of three windows"
    );
    let oldest: Vec<u64> = again.iter().rev().take(6).copied().collect();
    assert_eq!(stage.granted[10..], oldest);
}

/// R-A13: the ledger grants under the old limit while it changes: nobody goes by that word.
#[test]
fn a_grant_under_a_replaced_limit_is_returned() {
    let mut stage = TestGate::new();
    let old: Vec<u64> = (0..4)
        .map(|_| stage.push(TestCall::new(&rule(4))))
        .collect();
    let offer = stage.tick();
    let verdicts = stage.decide(&offer);
    stage.gate.recall();
    stage.gate.verdicts(verdicts, stage.now);
    stage.run();
    assert!(
        old.iter()
            .all(|seq| stage.resolution(*seq) == Some(&Resolution::Recalled))
    );
    assert!(stage.granted.is_empty());
    let new = stage.call(TestCall::new(&rule(1)));
    stage.advance(RETURN_TIMEOUT);
    assert!(stage.was_granted(new), "what was granted came back");
}

/// The pace changes, or somebody urgent joins: one steps out of a full line to ask anew. It is neither
/// overtaken nor does it lose its place.
#[test]
fn a_waiter_that_leaves_to_ask_again_keeps_its_place() {
    for order in [Order::Priority, Order::Fifo] {
        let mut stage = TestGate::with(GateSettings {
            waiting_max: 1,
            order,
            ..GateSettings::default()
        });
        stage.calls(1, &TestCall::new(&rule(1)));
        let seniority = 7;
        let old = stage.call(TestCall::new(&rule(1)).senior(seniority));
        stage.gate.cancel(TestGate::id(old));
        stage
            .gate
            .expect_return(seniority, crate::ask::Priority::Normal);
        let newcomer = stage.call(TestCall::new(&rule(2)));
        assert_eq!(stage.resolution(newcomer), Some(&Resolution::Full));
        let back = stage.call(TestCall::new(&rule(2)).senior(seniority));
        assert_eq!(stage.granted[1..], [back]);
    }
}

#[test]
fn a_cancelled_return_blocks_nobody() {
    let mut stage = TestGate::fifo();
    stage.gate.expect_return(7, crate::ask::Priority::High);
    let newcomer = stage.call(TestCall::new(&rule(2)).senior(9));
    assert!(!stage.was_granted(newcomer));
    assert!(stage.gate.cancel_return(7) && !stage.gate.cancel_return(7));
    stage.run();
    assert!(stage.was_granted(newcomer));
}
