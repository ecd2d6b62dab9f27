//! What one waiter is promised: its instant, its deadline, and a way out.

use crate::ask::{NeverReason, Outcome, Priority, Settle};
use crate::gate::test_gate::{TestCall, TestGate, cell};
use crate::gate::{Blocker, GateSettings, Resolution};
use crate::limit::Rule;
use crate::test_ledger::{ms, s};
use crate::time::{Micros, Span};

/// A window of exactly `period`, so that instants can be named.
fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

fn rejected(after: Span) -> Option<Resolution> {
    Some(Resolution::Rejected {
        blocker: Blocker::Cell(cell("x")),
        retry_in: after,
    })
}

/// M4: no polling, and the permit at exactly the instant it is free.
#[test]
fn m4_a_waiter_goes_at_the_instant_a_permit_is_free() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    stage.arrive(first);
    let second = stage.call(want);
    stage.advance(Span(s(10).0 - 1));
    assert_eq!(stage.resolution(second), None);
    assert_eq!(stage.timers, 0, "somebody polls");
    stage.advance(Span(1));
    assert_eq!(stage.granted_after(second), Some(s(10)));
    assert_eq!((stage.timers, stage.offers), (1, 3));
}

/// M4: in a long line every permit costs one timer, one transaction, and two asks in it.
#[test]
fn m4_a_long_queue_asks_once_per_permit() {
    let mut stage = TestGate::new();
    let rule = Rule::bucket(50, s(1), 50).unwrap().drift_ppm(0);
    stage.calls(10_000, &TestCall::new(&rule));
    stage.respond_all(s(300));
    assert_eq!(stage.granted.len(), 10_000);
    assert!(stage.granted.is_sorted(), "out of order");
    assert_eq!(stage.since_begin(), ms(20 * 9_950), "not on time");
    assert!(stage.timers <= 10_000, "{} timers", stage.timers);
    assert!(stage.offers <= 10_100, "{} offers", stage.offers);
    assert!(stage.asks <= 20_200, "{} asks", stage.asks);
}

#[test]
fn a_permit_that_frees_at_the_deadline_is_in_time() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    stage.arrive(first);
    let second = stage.call(want.max_wait(s(10)));
    stage.advance(s(10));
    assert_eq!(stage.granted_after(second), Some(s(10)));
}

#[test]
fn a_wait_known_to_pass_the_deadline_is_rejected_at_once() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    stage.arrive(first);
    stage.advance(s(1));
    let asked = stage.call(want.clone().max_wait(ms(8_999)));
    assert_eq!(stage.resolution(asked).cloned(), rejected(s(9)));
    let offers = stage.offers;
    let not_asked = stage.call(want.max_wait(ms(8_999)));
    assert_eq!(stage.resolution(not_asked).cloned(), rejected(s(9)));
    assert_eq!(stage.offers, offers, "what is known needs no ask");
}

#[test]
fn waiters_further_back_are_rejected_once_the_time_is_known() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    let patient = stage.call(want.clone());
    let hasty: Vec<u64> = (0..5)
        .map(|_| stage.call(want.clone().max_wait(s(5))))
        .collect();
    stage.advance(s(1));
    assert!(hasty.iter().all(|&seq| stage.resolution(seq).is_none()));
    // With the answer it is known that the place opens in ten seconds.
    stage.arrive(first);
    stage.gate.freed(&[cell("x")]);
    stage.run();
    for seq in hasty {
        assert_eq!(stage.resolution(seq).cloned(), rejected(s(10)));
    }
    stage.advance(s(10));
    assert_eq!(stage.granted_after(patient), Some(s(11)));
}

#[test]
fn a_call_that_does_not_wait_is_offered_once() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(2, s(10))).no_wait();
    let calls = stage.calls(3, &want);
    assert!(stage.was_granted(calls[0]) && stage.was_granted(calls[1]));
    assert!(matches!(
        stage.resolution(calls[2]),
        Some(Resolution::Rejected { .. })
    ));
}

#[test]
fn a_call_that_does_not_wait_is_resolved_even_if_the_ledger_was_busy() {
    let mut stage = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    stage.call(TestCall::new(&one));
    let patient = stage.push(TestCall::new(&one));
    let offer = stage.tick();
    let hasty = stage.push(TestCall::new(&one).no_wait());
    assert_eq!(stage.tick(), [], "one offer at a time");
    let verdicts = stage.decide(&offer);
    stage.advance(ms(5));
    stage.gate.verdicts(verdicts, stage.now);
    stage.run();
    assert_eq!(stage.resolution(patient), None);
    let place = Some(Blocker::Cell(cell("x")));
    assert_eq!(
        stage.resolution(hasty),
        Some(&Resolution::TimedOut { blocker: place })
    );
}

/// R-C6: nobody is asked for after its time.
#[test]
fn a_deadline_that_passes_in_the_queue_costs_no_permit() {
    let mut stage = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    let first = stage.call(TestCall::new(&one));
    let late = stage.call(TestCall::new(&one).max_wait(s(2)));
    assert_eq!(stage.wake_at, Some(stage.now.at + s(2)), "one timer");
    stage.advance(s(3));
    let place = Some(Blocker::Cell(cell("x")));
    assert_eq!(
        stage.resolutions[&late],
        (stage.now.at - s(1), Resolution::TimedOut { blocker: place })
    );
    let asks = stage.asks;
    stage.finish(first);
    assert_eq!(stage.asks, asks);
}

#[test]
fn an_offered_waiter_times_out_while_the_ledger_hangs() {
    let mut stage = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    let first = stage.call(TestCall::new(&one));
    let late = stage.call(TestCall::new(&one).max_wait(s(2)));
    stage.push(TestCall::at("y", &one));
    let offer = stage.tick();
    assert_eq!(offer.len(), 1, "the ledger is busy with another cell");
    stage.settle(first, Outcome::Finished { age: Span::ZERO });
    stage.advance(s(3));
    assert!(matches!(
        stage.resolution(late),
        Some(Resolution::TimedOut { .. })
    ));
}

#[test]
fn a_full_queue_rejects_and_a_place_that_empties_is_used_again() {
    let mut stage = TestGate::with(GateSettings {
        waiting_max: 2,
        ..GateSettings::default()
    });
    let one = Rule::in_flight(1).unwrap();
    stage.call(TestCall::new(&one));
    let waiting = stage.calls(2, &TestCall::new(&one));
    let third = stage.call(TestCall::new(&one).high());
    assert_eq!(stage.resolution(third), Some(&Resolution::Full));
    assert_eq!(stage.gate.waiting(Priority::Normal), 2);
    stage.gate.cancel(TestGate::id(waiting[0]));
    let fourth = stage.call(TestCall::new(&one));
    assert_eq!(stage.resolution(fourth), None);
}

#[test]
fn a_call_that_can_never_go_is_resolved_at_once() {
    let mut stage = TestGate::new();
    let call = stage.call(TestCall::new(&sliding(5, s(1))).cost(6));
    let why = NeverReason::TooCostly {
        term: 0,
        max_cost: 5,
    };
    assert_eq!(stage.resolution(call), Some(&Resolution::Never(why)));
}

#[test]
fn a_waiter_that_leaves_the_queue_is_never_offered() {
    let mut stage = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    stage.arrive(first);
    let (left, next) = (stage.call(want.clone()), stage.call(want));
    stage.gate.cancel(TestGate::id(left));
    stage.advance(s(10));
    assert_eq!(
        (stage.resolution(left), stage.was_granted(next)),
        (None, true)
    );
}

#[test]
fn a_permit_for_a_waiter_that_left_goes_to_the_next() {
    let mut stage = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    let left = stage.push(TestCall::new(&one));
    let next = stage.push(TestCall::new(&one));
    let offer = stage.tick();
    stage.gate.cancel(TestGate::id(left));
    let verdicts = stage.decide(&offer);
    stage.gate.verdicts(verdicts, stage.now);
    let effects = stage.gate.tick(stage.now);
    let [Settle::Permit { id, outcome, .. }] = &effects.settle[..] else {
        panic!("expected the permit back, got {effects:?}");
    };
    assert_eq!((id.seq, outcome), (left, &Outcome::Unsent));
    stage.turn(&effects.settle, &[]);
    stage.run();
    assert_eq!(
        (stage.resolution(left), stage.was_granted(next)),
        (None, true)
    );
}

/// Nobody is kept by one who was refused more than it needs and has left meanwhile.
#[test]
fn a_waiter_behind_a_large_cost_that_left_goes_at_once() {
    let mut stage = TestGate::new();
    let rule = sliding(10, s(10));
    let first = stage.call(TestCall::new(&rule).cost(8));
    stage.arrive(first);
    let large = stage.call(TestCall::new(&rule).cost(5));
    let small = stage.call(TestCall::new(&rule));
    assert_eq!(
        stage.resolution(small),
        None,
        "small ones do not starve large ones"
    );
    stage.gate.cancel(TestGate::id(large));
    stage.run();
    assert!(stage.was_granted(small));
}

#[test]
fn a_large_cost_that_does_not_wait_blocks_no_waiter_that_fits() {
    let mut stage = TestGate::new();
    let rule = sliding(10, s(10));
    let first = stage.call(TestCall::new(&rule).cost(8));
    stage.arrive(first);
    // Together in one batch, and one after the other.
    stage.push(TestCall::new(&rule).cost(5).no_wait());
    let small = stage.push(TestCall::new(&rule).max_wait(s(1)));
    stage.run();
    assert!(stage.was_granted(small));
    let large = stage.call(TestCall::new(&rule).cost(5).no_wait());
    assert_eq!(stage.resolution(large).cloned(), rejected(s(10)));
    let small = stage.call(TestCall::new(&rule).max_wait(s(1)));
    assert!(stage.was_granted(small));
}

#[test]
fn a_waiter_without_a_verdict_is_offered_again() {
    let mut stage = TestGate::new();
    let call = stage.push(TestCall::new(&sliding(1, s(10))));
    assert_eq!(stage.tick().len(), 1);
    stage.gate.verdicts(Vec::new(), stage.now);
    stage.run();
    assert!(stage.was_granted(call));
}

#[test]
fn a_wait_without_end_arms_no_timer() {
    let mut stage = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    stage.call(TestCall::new(&one));
    let forever = Span(u64::MAX);
    stage.push(TestCall::at("y", &one).scope("closed").max_wait(forever));
    stage.turn(&[close_for_good("closed")], &[]);
    stage.run();
    assert_eq!(stage.wake_at, None);
}

fn close_for_good(scope: &str) -> Settle {
    Settle::Close {
        scope: crate::ask::ScopeId::named(&[scope]),
        age: Span::ZERO,
        closed_for: None,
        reopen: crate::ask::Reopen::All,
    }
}

/// The timer is the earliest of all that can happen.
#[test]
fn one_timer_serves_the_earliest_event() {
    let mut stage = TestGate::new();
    for (name, secs) in [("a", 30), ("b", 20), ("c", 40)] {
        let want = TestCall::at(name, &sliding(1, s(secs)));
        let first = stage.call(want.clone());
        stage.arrive(first);
        stage.call(want);
    }
    let begin: Micros = stage.now.at;
    assert_eq!(stage.wake_at, Some(begin + s(20)));
    let one = Rule::in_flight(1).unwrap();
    stage.call(TestCall::at("d", &one));
    stage.call(TestCall::at("d", &one).max_wait(s(15)));
    assert_eq!(stage.wake_at, Some(begin + s(15)));
    stage.advance(s(15));
    assert_eq!(stage.wake_at, Some(begin + s(20)));
}
