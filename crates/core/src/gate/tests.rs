//! What one waiter is guaranteed: its instant, its deadline, and cancellation.

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
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = test.call(want.clone());
    test.arrive(first);
    let second = test.call(want);
    test.advance(Span(s(10).0 - 1));
    assert_eq!(test.resolution(second), None);
    assert_eq!(test.timers, 0, "the gate polls");
    test.advance(Span(1));
    assert_eq!(test.granted_after(second), Some(s(10)));
    assert_eq!((test.timers, test.offers), (1, 3));
}

/// M4: in a long queue every permit costs one timer, one transaction, and two asks in it.
#[test]
fn m4_a_long_queue_asks_once_per_permit() {
    let mut test = TestGate::new();
    let rule = Rule::bucket(50, s(1), 50).unwrap().drift_ppm(0);
    test.calls(10_000, &TestCall::new(&rule));
    test.respond_all(s(300));
    assert_eq!(test.granted.len(), 10_000);
    assert!(test.granted.is_sorted(), "out of order");
    assert_eq!(test.since_begin(), ms(20 * 9_950), "not on time");
    assert!(test.timers <= 10_000, "{} timers", test.timers);
    assert!(test.offers <= 10_100, "{} offers", test.offers);
    assert!(test.asks <= 20_200, "{} asks", test.asks);
}

#[test]
fn a_permit_that_frees_at_the_deadline_is_in_time() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = test.call(want.clone());
    test.arrive(first);
    let second = test.call(want.max_wait(s(10)));
    test.advance(s(10));
    assert_eq!(test.granted_after(second), Some(s(10)));
}

#[test]
fn a_wait_known_to_pass_the_deadline_is_rejected_at_once() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = test.call(want.clone());
    test.arrive(first);
    test.advance(s(1));
    let asked = test.call(want.clone().max_wait(ms(8_999)));
    assert_eq!(test.resolution(asked).cloned(), rejected(s(9)));
    let offers = test.offers;
    let not_asked = test.call(want.max_wait(ms(8_999)));
    assert_eq!(test.resolution(not_asked).cloned(), rejected(s(9)));
    assert_eq!(test.offers, offers, "a known wait needs no ask");
}

#[test]
fn waiters_further_back_are_rejected_once_the_time_is_known() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = test.call(want.clone());
    let patient = test.call(want.clone());
    let hasty: Vec<u64> = (0..5)
        .map(|_| test.call(want.clone().max_wait(s(5))))
        .collect();
    test.advance(s(1));
    assert!(hasty.iter().all(|&seq| test.resolution(seq).is_none()));
    // With the response it is known that the cell opens in ten seconds.
    test.arrive(first);
    test.gate.freed(&[cell("x")]);
    test.run();
    for seq in hasty {
        assert_eq!(test.resolution(seq).cloned(), rejected(s(10)));
    }
    test.advance(s(10));
    assert_eq!(test.granted_after(patient), Some(s(11)));
}

#[test]
fn a_call_that_does_not_wait_is_offered_once() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(2, s(10))).no_wait();
    let calls = test.calls(3, &want);
    assert!(test.was_granted(calls[0]) && test.was_granted(calls[1]));
    assert!(matches!(
        test.resolution(calls[2]),
        Some(Resolution::Rejected { .. })
    ));
}

#[test]
fn a_call_that_does_not_wait_is_resolved_even_if_the_ledger_was_busy() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    test.call(TestCall::new(&one));
    let patient = test.push(TestCall::new(&one));
    let offer = test.tick();
    let hasty = test.push(TestCall::new(&one).no_wait());
    assert_eq!(test.tick(), [], "one offer at a time");
    let verdicts = test.decide(&offer);
    test.advance(ms(5));
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert_eq!(test.resolution(patient), None);
    let blocker = Blocker::Cell(cell("x"));
    let rejected = test.resolution(hasty);
    assert!(
        matches!(rejected, Some(Resolution::Rejected { blocker: by, retry_in }) if *by == blocker && *retry_in > s(30)),
        "{rejected:?}"
    );
}

/// R-C6: no waiter is offered after its deadline.
#[test]
fn a_deadline_that_passes_in_the_queue_costs_no_permit() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    let first = test.call(TestCall::new(&one));
    let late = test.call(TestCall::new(&one).max_wait(s(2)));
    assert_eq!(test.wake_at, Some(test.now.at + s(2)), "one timer");
    test.advance(s(3));
    let blocker = Some(Blocker::Cell(cell("x")));
    assert_eq!(
        test.resolutions[&late],
        (test.now.at - s(1), Resolution::TimedOut { blocker })
    );
    let asks = test.asks;
    test.finish(first);
    assert_eq!(test.asks, asks);
}

#[test]
fn an_offered_waiter_times_out_while_the_ledger_hangs() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    let first = test.call(TestCall::new(&one));
    let late = test.call(TestCall::new(&one).max_wait(s(2)));
    test.push(TestCall::at("y", &one));
    let offer = test.tick();
    assert_eq!(offer.len(), 1, "the ledger is busy with another cell");
    test.settle(first, Outcome::Finished { age: Span::ZERO });
    test.advance(s(3));
    assert!(matches!(
        test.resolution(late),
        Some(Resolution::TimedOut { .. })
    ));
}

/// It was never offered, and cannot be while the ledger has the offer before it.
#[test]
fn a_waiter_behind_a_pending_offer_times_out_at_its_deadline() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(9).unwrap();
    test.push(TestCall::new(&one).max_wait(s(30)));
    let offer = test.tick();
    assert_eq!(offer.len(), 1);
    let late = test.push(TestCall::new(&one).max_wait(s(1)));
    let now_or_never = test.push(TestCall::new(&one).no_wait());
    test.tick();
    test.advance(s(2));
    assert!(matches!(
        test.resolution(late),
        Some(Resolution::TimedOut { .. })
    ));
    let verdicts = test.decide(&offer);
    test.gate.verdicts(verdicts, test.now);
    test.run();
    assert!(test.was_granted(now_or_never), "it asks once");
}

/// M4: before, it heard nothing until the ledger had decided. One with next to no time asks for the
/// verdict.
#[test]
fn a_waiter_that_the_ledger_has_times_out_at_its_deadline_and_its_permit_is_returned() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(9).unwrap();
    let waits = test.push(TestCall::new(&one).max_wait(s(1)));
    let asks_once = test.push(TestCall::new(&one).max_wait(ms(5)));
    let offer = test.tick();
    assert_eq!(offer.len(), 2);
    assert_eq!(test.gate.waiting(Priority::Normal), 2);
    test.advance(s(1));
    assert!(matches!(
        test.resolution(waits),
        Some(Resolution::TimedOut { blocker: None })
    ));
    assert_eq!(test.gate.waiting(Priority::Normal), 1);
    let verdicts = test.decide(&offer);
    test.gate.verdicts(verdicts, test.now);
    let returned = test.gate.tick(test.now);
    assert_eq!(returned.settle.len(), 1, "the permit of the one that left");
    assert_eq!(returned.resolve.len(), 1);
    assert_eq!(returned.resolve[0].ask.id, TestGate::id(asks_once));
}

#[test]
fn a_full_queue_rejects_and_a_place_that_empties_is_used_again() {
    let mut test = TestGate::with(GateSettings {
        waiting_max: 2,
        ..GateSettings::default()
    });
    let one = Rule::in_flight(1).unwrap();
    test.call(TestCall::new(&one));
    let waiting = test.calls(2, &TestCall::new(&one));
    let third = test.call(TestCall::new(&one).high());
    assert_eq!(test.resolution(third), Some(&Resolution::Full));
    assert_eq!(test.gate.waiting(Priority::Normal), 2);
    test.gate.cancel(TestGate::id(waiting[0]));
    let fourth = test.call(TestCall::new(&one));
    assert_eq!(test.resolution(fourth), None);
}

/// A former bug: calls that waited only for their verdict filled the queue, and a burst that the
/// limit allows was rejected.
#[test]
fn a_burst_that_the_limit_allows_does_not_fill_the_queue() {
    let mut test = TestGate::with(GateSettings {
        waiting_max: 2,
        ..GateSettings::default()
    });
    let ten = Rule::in_flight(10).unwrap();
    // More than one offer.
    let burst: Vec<_> = (0..200).map(|_| test.push(TestCall::new(&ten))).collect();
    test.run();
    let full = |seq: &&u64| test.resolution(**seq) == Some(&Resolution::Full);
    assert_eq!(
        burst.iter().filter(|&&seq| test.was_granted(seq)).count(),
        10
    );
    assert_eq!(burst.iter().filter(full).count(), 188);
    assert_eq!(test.gate.waiting(Priority::Normal), 2);
}

#[test]
fn a_call_that_can_never_go_is_resolved_at_once() {
    let mut test = TestGate::new();
    let call = test.call(TestCall::new(&sliding(5, s(1))).cost(6));
    let why = NeverReason::TooCostly {
        term: 0,
        max_cost: 5,
    };
    assert_eq!(test.resolution(call), Some(&Resolution::Never(why)));
}

#[test]
fn a_waiter_that_leaves_the_queue_is_never_offered() {
    let mut test = TestGate::new();
    let want = TestCall::new(&sliding(1, s(10)));
    let first = test.call(want.clone());
    test.arrive(first);
    let (left, next) = (test.call(want.clone()), test.call(want));
    test.gate.cancel(TestGate::id(left));
    test.advance(s(10));
    assert_eq!(
        (test.resolution(left), test.was_granted(next)),
        (None, true)
    );
}

#[test]
fn a_permit_for_a_waiter_that_left_goes_to_the_next() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    let left = test.push(TestCall::new(&one));
    let next = test.push(TestCall::new(&one));
    let offer = test.tick();
    test.gate.cancel(TestGate::id(left));
    let verdicts = test.decide(&offer);
    test.gate.verdicts(verdicts, test.now);
    let effects = test.gate.tick(test.now);
    let [Settle::Permit { id, outcome, .. }] = &effects.settle[..] else {
        panic!("expected the permit back, got {effects:?}");
    };
    assert_eq!((id.seq, outcome), (left, &Outcome::Unsent));
    test.turn(&effects.settle, &[]);
    test.run();
    assert_eq!(
        (test.resolution(left), test.was_granted(next)),
        (None, true)
    );
}

/// A waiter that was rejected for a larger cost and has left blocks nobody.
#[test]
fn a_waiter_behind_a_large_cost_that_left_goes_at_once() {
    let mut test = TestGate::new();
    let rule = sliding(10, s(10));
    let first = test.call(TestCall::new(&rule).cost(8));
    test.arrive(first);
    let large = test.call(TestCall::new(&rule).cost(5));
    let small = test.call(TestCall::new(&rule));
    assert_eq!(
        test.resolution(small),
        None,
        "small costs do not starve large ones"
    );
    test.gate.cancel(TestGate::id(large));
    test.run();
    assert!(test.was_granted(small));
}

#[test]
fn a_large_cost_that_does_not_wait_blocks_no_waiter_that_fits() {
    let mut test = TestGate::new();
    let rule = sliding(10, s(10));
    let first = test.call(TestCall::new(&rule).cost(8));
    test.arrive(first);
    // Together in one batch, and one after the other.
    test.push(TestCall::new(&rule).cost(5).no_wait());
    let small = test.push(TestCall::new(&rule).max_wait(s(1)));
    test.run();
    assert!(test.was_granted(small));
    let large = test.call(TestCall::new(&rule).cost(5).no_wait());
    assert_eq!(test.resolution(large).cloned(), rejected(s(10)));
    let small = test.call(TestCall::new(&rule).max_wait(s(1)));
    assert!(test.was_granted(small));
}

#[test]
fn a_waiter_without_a_verdict_is_offered_again() {
    let mut test = TestGate::new();
    let call = test.push(TestCall::new(&sliding(1, s(10))));
    assert_eq!(test.tick().len(), 1);
    test.gate.verdicts(Vec::new(), test.now);
    test.run();
    assert!(test.was_granted(call));
}

#[test]
fn a_wait_without_end_arms_no_timer() {
    let mut test = TestGate::new();
    let one = Rule::in_flight(1).unwrap();
    test.call(TestCall::new(&one));
    let forever = Span(u64::MAX);
    test.push(TestCall::at("y", &one).scope("closed").max_wait(forever));
    test.turn(&[close_for_good("closed")], &[]);
    test.run();
    assert_eq!(test.wake_at, None);
}

fn close_for_good(scope: &str) -> Settle {
    Settle::Close {
        scope: crate::ask::ScopeId::named(&[scope]),
        age: Span::ZERO,
        closed_for: None,
        reopen: crate::ask::Reopen::All,
    }
}

/// The timer is set to the earliest event.
#[test]
fn one_timer_serves_the_earliest_event() {
    let mut test = TestGate::new();
    for (name, secs) in [("a", 30), ("b", 20), ("c", 40)] {
        let want = TestCall::at(name, &sliding(1, s(secs)));
        let first = test.call(want.clone());
        test.arrive(first);
        test.call(want);
    }
    let begin: Micros = test.now.at;
    assert_eq!(test.wake_at, Some(begin + s(20)));
    let one = Rule::in_flight(1).unwrap();
    test.call(TestCall::at("d", &one));
    test.call(TestCall::at("d", &one).max_wait(s(15)));
    assert_eq!(test.wake_at, Some(begin + s(15)));
    test.advance(s(15));
    assert_eq!(test.wake_at, Some(begin + s(20)));
}

/// Symptom: of 100 calls without time, only two got one of five permits per hour, and the others were told to retry in
/// 0 ms. Cause: one transaction grants few permits of a long limit, and "ask again" was taken for a rejection.
#[test]
fn calls_without_time_get_every_permit_of_a_long_limit() {
    for fifo in [false, true] {
        let mut test = if fifo {
            TestGate::fifo()
        } else {
            TestGate::new()
        };
        let rule = Rule::sliding(5, s(3_600)).unwrap();
        let calls = test.calls(100, &TestCall::new(&rule).no_wait());
        assert_eq!(test.granted.len(), 5, "fifo: {fifo}");
        for call in calls
            .into_iter()
            .filter(|call| !test.granted.contains(call))
        {
            match test.resolution(call) {
                Some(Resolution::Rejected { retry_in, .. }) => assert!(*retry_in >= s(3_600)),
                other => panic!("fifo: {fifo}: {other:?}"),
            }
        }
    }
}
