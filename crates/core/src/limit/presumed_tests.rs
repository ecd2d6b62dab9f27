//! Calls that count as arrived before their response (`hold_until: arrived`).

use crate::ask::{CostUnit, Outcome, WakeOn};
use crate::limit::tests::{bucket, sliding};
use crate::limit::{Calendar, CalendarPeriod, HoldUntil, Rule, STRICT_FOR};
use crate::test_ledger::{Permit, TestLedger, s};
use crate::time::Span;

fn arrived(rule: Rule) -> Rule {
    rule.hold_until(HoldUntil::Arrived)
}

fn presume(ledger: &mut TestLedger, permits: &[Permit]) {
    for permit in permits {
        ledger.settle(permit, Outcome::Presumed { age: Span::ZERO });
    }
}

fn limited() -> Outcome {
    Outcome::Arrived {
        age: Span::ZERO,
        limited: true,
        readings: vec![],
    }
}

#[test]
fn a_slot_frees_one_period_after_the_call_must_have_arrived() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(2, s(10)));
    let permits = ledger.take_all(&rule);
    assert_eq!(ledger.wait(&rule).1, WakeOn::Event);
    ledger.advance(s(2));
    presume(&mut ledger, &permits);
    assert_eq!(ledger.wait(&rule), (s(10), WakeOn::Time));
    // The response comes later, and changes nothing.
    ledger.advance(s(9));
    ledger.arrive_all(&permits);
    assert_eq!(ledger.wait(&rule), (s(1), WakeOn::Time));
    ledger.advance(s(1));
    assert_eq!(ledger.take_all(&rule).len(), 2);
}

#[test]
fn waiting_calls_learn_the_new_time() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(1, s(10)));
    let permit = ledger.try_one(&rule).unwrap();
    assert_eq!(ledger.wait(&rule).1, WakeOn::Event);
    let turn = ledger.settle(&permit, Outcome::Presumed { age: Span::ZERO });
    assert_eq!(turn.freed.len(), 1);
}

#[test]
fn a_response_that_comes_sooner_counts_as_before() {
    for hold in [HoldUntil::Response, HoldUntil::Arrived] {
        let mut ledger = TestLedger::new();
        let rule = sliding(1, s(10)).hold_until(hold);
        let permit = ledger.try_one(&rule).unwrap();
        ledger.advance(s(1));
        ledger.arrive(&permit);
        ledger.settle(&permit, Outcome::Presumed { age: Span::ZERO });
        assert_eq!(ledger.wait(&rule), (s(10), WakeOn::Time), "{hold:?}");
    }
}

#[test]
fn a_limit_that_holds_until_the_response_presumes_nothing() {
    let strict = [
        sliding(1, s(10)),
        arrived(sliding(1, s(10)).unit(CostUnit::Tokens)),
        arrived(Rule::in_flight(1).unwrap()),
    ];
    for rule in strict {
        let mut ledger = TestLedger::new();
        let permit = ledger.try_one(&rule).unwrap();
        let before = ledger.wait(&rule);
        presume(&mut ledger, &[permit]);
        assert_eq!(ledger.wait(&rule), before, "{rule:?}");
    }
}

#[test]
fn a_bucket_refills_while_responses_are_awaited() {
    let mut ledger = TestLedger::new();
    let rule = arrived(bucket(2, s(1), 10));
    let permits = ledger.take_all(&rule);
    assert_eq!(permits.len(), 10);
    ledger.advance(s(2));
    presume(&mut ledger, &permits);
    ledger.advance(s(3));
    assert_eq!(ledger.take_all(&rule).len(), 6);
}

#[test]
fn a_window_ends_one_period_after_its_first_call_must_have_arrived() {
    let mut ledger = TestLedger::new();
    let rule = arrived(Rule::fixed(2, s(60)).unwrap().drift_ppm(0));
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(s(2));
    presume(&mut ledger, std::slice::from_ref(&first));
    ledger.advance(s(10));
    let second = ledger.try_one(&rule).unwrap();
    ledger.advance(s(2));
    presume(&mut ledger, std::slice::from_ref(&second));
    // Either may have opened it, so it ends with the later one …
    assert_eq!(ledger.wait(&rule), (s(60), WakeOn::Time));
    // … until the response to the first proves that it had arrived.
    ledger.arrive(&first);
    assert_eq!(ledger.wait(&rule), (s(48), WakeOn::Time));
}

/// A provider that delays requests for seconds before it counts them is detected at its first 429.
#[test]
fn an_unforeseen_429_makes_a_limit_hold_until_the_response_for_a_day() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(4, s(10)));
    let early = ledger.take_all(&rule);
    ledger.advance(s(2));
    presume(&mut ledger, &early);
    ledger.advance(s(10));
    let late = ledger.take_all(&rule);
    assert_eq!(late.len(), 4, "the slots were freed early");
    ledger.settle(&late[0], limited());
    ledger.arrive_all(&late[1..]);
    ledger.advance(s(12));
    assert!(
        ledger.try_one(&rule).is_err(),
        "the early ones are held until their response"
    );
    ledger.arrive_all(&early);
    ledger.advance(s(10));
    let strict = ledger.take_all(&rule);
    assert_eq!(strict.len(), 4);
    presume(&mut ledger, &strict);
    assert_eq!(ledger.wait(&rule).1, WakeOn::Event, "nothing is presumed");
    ledger.arrive_all(&strict);
    ledger.advance(STRICT_FOR);
    let later = ledger.take_all(&rule);
    presume(&mut ledger, &later);
    assert_eq!(ledger.wait(&rule), (s(10), WakeOn::Time), "a day later");
    assert_eq!(
        ledger.peek(&rule).strictness,
        crate::limit::Strictness::Window,
        "the assumption was the reason, not the window"
    );
}

/// A 429 without any early slot climbs the next rung instead.
#[test]
fn a_429_while_nothing_is_presumed_tightens_the_window() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(4, s(10)));
    let permits = ledger.take_all(&rule);
    ledger.settle(&permits[0], limited());
    assert_eq!(
        ledger.peek(&rule).strictness,
        crate::limit::Strictness::Eighth
    );
}

#[test]
fn presumed_calls_are_stored_with_their_cell() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(4, s(10)));
    let early = ledger.take_all(&rule);
    ledger.advance(s(2));
    presume(&mut ledger, &early);
    ledger.advance(s(10));
    let late = ledger.take_all(&rule);
    let snapshot = ledger.table.snapshot(ledger.now.at);
    let mut restored = TestLedger::new();
    let damaged = restored
        .table
        .restore(&snapshot, restored.now.at, Span::ZERO);
    assert!(damaged.is_empty());
    restored.settle(&late[0], limited());
    restored.arrive_all(&late[1..]);
    restored.advance(s(12));
    assert!(restored.try_one(&rule).is_err(), "it knows the early ones");
}

/// The owner of a presumed call was killed: the call leaves when it could no longer have arrived.
#[test]
fn a_presumed_call_without_an_owner_is_forgotten() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(1, s(10)));
    let permits = ledger.take_all(&rule);
    presume(&mut ledger, &permits);
    ledger.advance(s(46));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.settle(&permit, limited());
    assert_eq!(
        ledger.peek(&rule).strictness,
        crate::limit::Strictness::Eighth,
        "nothing early explains this 429"
    );
}

/// Symptom: presumed calls counted once as used and once as presumed, so a 429 of another limit made a
/// limit strict of which a quarter was used.
#[test]
fn a_429_while_a_quarter_is_used_is_not_about_this_limit() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(8, s(10)));
    let early = [(); 2].map(|()| ledger.try_one(&rule).unwrap());
    ledger.advance(s(2));
    presume(&mut ledger, &early);
    ledger.settle(&early[0], limited());
    ledger.arrive(&early[1]);
    let more = ledger.try_one(&rule).unwrap();
    presume(&mut ledger, std::slice::from_ref(&more));
    ledger.advance(s(10));
    assert_eq!(ledger.peek(&rule).used, 0, "it still presumes");
}

/// The rule of windows with edges: a call that was presumed before a 429 counts again, in the window
/// that has begun since, until its response has come.
#[test]
fn after_an_unforeseen_429_presumed_calls_count_again_in_windows_with_edges() {
    let calendar = Calendar::new(CalendarPeriod::Minute, jiff::tz::TimeZone::UTC);
    for (rule, into_window) in [
        (Rule::fixed(4, s(20)).unwrap().drift_ppm(0), s(0)),
        (Rule::calendar(4, calendar).unwrap(), s(50)),
    ] {
        let rule = arrived(rule);
        let mut ledger = TestLedger::new();
        ledger.advance(into_window);
        let early = ledger.take_all(&rule);
        assert_eq!(early.len(), 4);
        ledger.advance(s(2));
        presume(&mut ledger, &early);
        ledger.advance(s(20));
        let late = [(); 2].map(|()| ledger.try_one(&rule).unwrap());
        ledger.settle(&late[0], limited());
        ledger.arrive(&late[1]);
        assert!(ledger.try_one(&rule).is_err(), "2 and the 4 early ones");
        ledger.advance(s(1));
        ledger.arrive_all(&early);
        assert!(ledger.try_one(&rule).is_err(), "they have arrived only now");
        ledger.advance(s(62));
        assert_eq!(ledger.take_all(&rule).len(), 4, "the next window");
    }
}

/// A cell does not keep for ever what came of its presumed calls: its row would stay larger.
#[test]
fn what_came_of_presumed_calls_is_forgotten() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(1, s(10)));
    let permit = ledger.try_one(&rule).unwrap();
    presume(&mut ledger, std::slice::from_ref(&permit));
    ledger.arrive(&permit);
    let length = |ledger: &TestLedger| ledger.table.snapshot(ledger.now.at)[0].1.len();
    let before = length(&ledger);
    ledger.advance(s(4_000));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive(&permit);
    assert!(length(&ledger) < before, "{} < {before}", length(&ledger));
}

/// A 429 disproves that calls arrive as soon as presumed: slots that would free early are held until
/// the latest response that came late is a period old.
#[test]
fn slots_that_would_free_early_are_held_until_late_responses_are_over() {
    let mut ledger = TestLedger::new();
    let rule = arrived(sliding(3, s(10)));
    let permits: Vec<Permit> = (0..2).map(|_| ledger.try_one(&rule).unwrap()).collect();
    presume(&mut ledger, &permits);
    ledger.advance(s(8));
    // They free at 10 s, but the provider may have counted them only now, so until 18 s.
    ledger.arrive_all(&permits);
    let third = ledger.try_one(&rule).unwrap();
    ledger.advance(s(1));
    ledger.settle(&third, limited());
    ledger.advance(s(2));
    assert_eq!(ledger.take_all(&rule).len(), 0, "at 11 s");
    ledger.advance(s(7));
    assert_eq!(ledger.take_all(&rule).len(), 2, "at 18 s");
}
