//! Every algorithm, one behaviour per test, in virtual time.

use smallvec::smallvec;

use crate::ask::{CostUnit, NeverReason, Outcome, Priority, Verdict, WakeOn};
use crate::limit::{HoldUntil, Rule, SUB_WINDOWS};
use crate::test_ledger::{Permit, TestLedger, arrived, ms, s};
use crate::time::Span;

pub(super) fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

pub(super) fn bucket(limit: u64, period: Span, burst: u64) -> Rule {
    Rule::bucket(limit, period, burst).unwrap().drift_ppm(0)
}

/// M1: a sliding window counts real calls of the last period, and expired ones drop out.
#[test]
fn m1_a_slot_frees_one_period_after_its_response() {
    let mut ledger = TestLedger::new();
    let rule = sliding(2, s(10));
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(s(1));
    let second = ledger.try_one(&rule).unwrap();
    ledger.arrive(&first);
    ledger.advance(s(1));
    ledger.arrive(&second);
    assert_eq!(
        ledger.wait(&rule),
        (s(9), WakeOn::Time),
        "the first response was one second ago"
    );
    ledger.advance(s(9) - Span(1));
    assert_eq!(ledger.wait(&rule), (Span(1), WakeOn::Time));
    ledger.advance(Span(1));
    assert!(ledger.try_one(&rule).is_ok());
    assert_eq!(ledger.peek(&rule).used, 2);
}

#[test]
fn a_pending_slot_frees_only_by_its_response_or_its_last_instant() {
    let mut ledger = TestLedger::new();
    let rule = sliding(1, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    assert_eq!(
        ledger.wait(&rule),
        (s(30 + 5 + 10), WakeOn::Event),
        "give-up, late arrival, window"
    );
    let turn = ledger.arrive(&permit);
    assert_eq!(
        turn.freed,
        [permit.terms[0].cell],
        "the waiter must be woken"
    );
    assert_eq!(ledger.wait(&rule), (s(10), WakeOn::Time));
}

#[test]
fn a_response_reported_late_counts_from_when_it_arrived() {
    let mut ledger = TestLedger::new();
    let rule = sliding(1, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.advance(s(3));
    ledger.settle(
        &permit,
        Outcome::Arrived {
            age: s(2),
            limited: false,
            readings: vec![],
        },
    );
    assert_eq!(ledger.wait(&rule), (s(8), WakeOn::Time));
}

#[test]
fn an_unsent_permit_frees_at_once_and_reports_it() {
    let mut ledger = TestLedger::new();
    for rule in [
        sliding(1, s(10)),
        bucket(1, s(10), 1),
        Rule::in_flight(1).unwrap(),
    ] {
        let mut drive_one = TestLedger::new();
        let permit = drive_one.try_one(&rule).unwrap();
        assert!(drive_one.try_one(&rule).is_err());
        assert_eq!(drive_one.settle(&permit, Outcome::Unsent).freed.len(), 1);
        assert!(drive_one.try_one(&rule).is_ok(), "{rule}");
    }
    let rule = Rule::fixed(1, s(10)).unwrap();
    let permit = ledger.try_one(&rule).unwrap();
    ledger.settle(&permit, Outcome::Unsent);
    assert!(ledger.try_one(&rule).is_ok());
}

#[test]
fn a_call_that_was_given_up_may_still_arrive() {
    let mut ledger = TestLedger::new();
    let rule = sliding(1, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.advance(s(2));
    ledger.settle(
        &permit,
        Outcome::Unknown {
            age: Span::ZERO,
            late: s(5),
        },
    );
    assert_eq!(
        ledger.wait(&rule),
        (s(15), WakeOn::Time),
        "late arrival and window"
    );
    ledger.advance(s(15));
    assert!(ledger.try_one(&rule).is_ok());
}

/// A call after one that was given up waited until its own deadline, because the cell said that a
/// response may free the slot sooner. None is to come, so the time is known.
#[test]
fn the_wait_after_calls_that_were_given_up_is_a_known_time() {
    let rules = [
        sliding(2, s(10)),
        bucket(2, s(20), 2),
        Rule::fixed(2, s(10)).unwrap().drift_ppm(0),
        Rule::paced(2, s(10)).unwrap().drift_ppm(0),
        Rule::in_flight(2).unwrap(),
    ];
    for rule in rules {
        let mut ledger = TestLedger::new();
        let permits = ledger.take_all(&rule);
        for (place, permit) in permits.iter().enumerate() {
            assert_eq!(ledger.wait(&rule).1, WakeOn::Event, "{rule}, {place}");
            ledger.advance(s(1));
            let late = s(5);
            let age = Span::ZERO;
            ledger.settle(permit, Outcome::Unknown { age, late });
        }
        let (after, on) = ledger.wait(&rule);
        assert_eq!(on, WakeOn::Time, "{rule}");
        let snapshot = ledger.table.snapshot(ledger.now.at);
        let mut stored = TestLedger::new();
        stored.table.restore(&snapshot, stored.now.at, Span::ZERO);
        assert_eq!(stored.wait(&rule), (after, on), "{rule} as bytes");
        ledger.advance(after - Span(1));
        assert!(ledger.try_one(&rule).is_err(), "{rule} frees no sooner");
        ledger.advance(Span(1));
        assert!(ledger.try_one(&rule).is_ok(), "{rule} frees then");
    }
}

#[test]
fn a_call_that_is_under_way_may_end_before_those_that_were_given_up() {
    for rule in [sliding(2, s(10)), Rule::in_flight(2).unwrap()] {
        let mut ledger = TestLedger::new();
        let permits = ledger.take_all(&rule);
        let (age, late) = (Span::ZERO, s(5));
        ledger.settle(&permits[0], Outcome::Unknown { age, late });
        assert_eq!(ledger.wait(&rule).1, WakeOn::Event, "{rule}");
        let turn = ledger.settle(&permits[1], Outcome::Unsent);
        assert_eq!(turn.freed.len(), 1, "{rule}");
        assert!(ledger.try_one(&rule).is_ok(), "{rule}");
    }
}

/// A response that comes although its call was given up counts from when it came, as before.
#[test]
fn a_settle_after_a_call_was_given_up_still_counts() {
    let mut ledger = TestLedger::new();
    let rule = sliding(1, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    let (age, late) = (Span::ZERO, s(5));
    ledger.settle(&permit, Outcome::Unknown { age, late });
    assert_eq!(ledger.wait(&rule), (s(15), WakeOn::Time));
    ledger.settle(&permit, Outcome::Alive { extend_by: s(60) });
    assert_eq!(ledger.wait(&rule), (s(70), WakeOn::Event));
    ledger.arrive(&permit);
    assert_eq!(ledger.wait(&rule), (s(10), WakeOn::Time));
}

#[test]
fn settling_twice_or_an_unknown_permit_changes_nothing() {
    let mut ledger = TestLedger::new();
    let rule = sliding(2, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    ledger.arrive(&permit);
    let before = ledger.peek(&rule);
    ledger.arrive(&permit);
    ledger.settle(&permit, Outcome::Unsent);
    assert_eq!(ledger.peek(&rule), before);
}

/// M2: others stop at limit − reserve; high priority may use it all.
#[test]
fn m2_only_high_priority_may_use_the_reserve() {
    let mut ledger = TestLedger::new();
    for rule in [
        sliding(50, s(10)),
        bucket(50, s(10), 50),
        Rule::fixed(50, s(10)).unwrap(),
    ] {
        let mut term = TestLedger::term(&rule.to_string(), &rule);
        term.cell.0 ^= u128::from(rule.max_cost());
        term.reserve = 40;
        let mut normal = 0;
        while ledger
            .try_terms(smallvec![term.clone()], Priority::Normal)
            .is_ok()
        {
            normal += 1;
        }
        let mut high = 0;
        while ledger
            .try_terms(smallvec![term.clone()], Priority::High)
            .is_ok()
        {
            high += 1;
        }
        assert_eq!((normal, high), (10, 40), "{rule}");
        ledger = TestLedger::new();
    }
}

#[test]
fn a_large_limit_keeps_sub_windows_and_errs_to_the_safe_side() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10_000, s(10));
    let permits = ledger.take_all(&rule);
    assert_eq!(permits.len(), 10_000);
    for permit in &permits {
        ledger.advance(Span(37));
        ledger.arrive(permit);
    }
    let last_answer = ledger.now.at;
    let (after, on) = ledger.wait(&rule);
    assert_eq!(on, WakeOn::Time);
    let first_answer_age = Span(37 * 9_999);
    assert!(
        after + first_answer_age >= s(10),
        "not before one period after the first response"
    );
    let grain = Span(10_000_000_u64.div_ceil(SUB_WINDOWS));
    assert!(after + first_answer_age <= s(10) + grain);
    ledger.advance(s(10) + grain);
    assert!(ledger.now.at.since(last_answer) > s(10));
    assert_eq!(ledger.peek(&rule).used, 0);
}

#[test]
fn a_concurrency_slot_frees_two_milliseconds_after_the_end() {
    let mut ledger = TestLedger::new();
    let rule = Rule::in_flight(2).unwrap();
    let permits = ledger.take_all(&rule);
    assert_eq!(permits.len(), 2);
    ledger.arrive(&permits[0]);
    assert_eq!(
        ledger.wait(&rule).1,
        WakeOn::Event,
        "the head is not the end"
    );
    ledger.settle(&permits[0], Outcome::Finished { age: Span::ZERO });
    assert_eq!(ledger.wait(&rule), (ms(2), WakeOn::Time));
    ledger.advance(ms(2));
    assert!(ledger.try_one(&rule).is_ok());
}

#[test]
fn a_stream_that_is_alive_keeps_its_slot() {
    let mut ledger = TestLedger::new();
    let rule = Rule::in_flight(1).unwrap();
    let permit = ledger.try_one(&rule).unwrap();
    ledger.advance(s(30));
    ledger.settle(&permit, Outcome::Alive { extend_by: s(60) });
    ledger.advance(s(60));
    assert!(ledger.try_one(&rule).is_err());
    ledger.advance(ms(2));
    assert!(ledger.try_one(&rule).is_ok(), "it was not extended again");
}

#[test]
fn paced_calls_keep_the_grid_when_timers_are_late() {
    let mut ledger = TestLedger::new();
    let rule = Rule::paced(12, s(1)).unwrap().drift_ppm(0);
    let first = ledger.try_one(&rule).unwrap();
    ledger.arrive(&first);
    assert_eq!(
        ledger.wait(&rule),
        (ms(100), WakeOn::Time),
        "ten gaps for twelve"
    );
    ledger.advance(ms(130));
    let second = ledger.try_one(&rule).unwrap();
    ledger.arrive(&second);
    assert_eq!(
        ledger.wait(&rule),
        (ms(70), WakeOn::Time),
        "the next point of the grid"
    );
    ledger.advance(s(1));
    ledger.try_one(&rule).unwrap();
    assert_eq!(
        ledger.wait(&rule).0,
        ms(100),
        "after a pause a new grid starts"
    );
}

/// M13: never two inside one second, one at a time.
#[test]
fn m13_one_call_a_second_goes_one_second_after_the_response() {
    let mut ledger = TestLedger::new();
    let rule = Rule::paced(1, s(1)).unwrap().drift_ppm(0);
    let first = ledger.try_one(&rule).unwrap();
    ledger.advance(ms(300));
    assert_eq!(ledger.wait(&rule).1, WakeOn::Event);
    ledger.arrive(&first);
    assert_eq!(ledger.wait(&rule), (s(1), WakeOn::Time));
}

#[test]
fn a_cost_is_held_before_and_settled_after() {
    let mut ledger = TestLedger::new();
    let rule = sliding(1_000, s(60)).unit(CostUnit::Tokens);
    let mut term = TestLedger::term("x", &rule);
    term.cost = 800;
    let mut permit = ledger
        .try_terms(smallvec![term.clone()], Priority::Normal)
        .unwrap();
    assert_eq!(ledger.peek(&rule).used, 800);
    ledger.settle(&permit, arrived());
    assert_eq!(
        ledger.peek(&rule).used,
        800,
        "tokens are counted at the end of the body"
    );
    permit.terms[0].cost = 350;
    ledger.settle(&permit, Outcome::Finished { age: Span::ZERO });
    assert_eq!(ledger.peek(&rule).used, 350);
    term.cost = 651;
    assert!(
        ledger
            .try_terms(smallvec![term.clone()], Priority::Normal)
            .is_err()
    );
    term.cost = 650;
    assert!(ledger.try_terms(smallvec![term], Priority::Normal).is_ok());
}

#[test]
fn a_cost_above_the_limit_is_never_and_one_above_remaining_waits() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(1));
    let mut term = TestLedger::term("x", &rule);
    term.cost = 11;
    let verdict = ledger
        .try_terms(smallvec![term.clone()], Priority::Normal)
        .unwrap_err();
    assert_eq!(
        verdict,
        Verdict::Never(NeverReason::TooCostly {
            term: 0,
            max_cost: 10
        })
    );
    ledger.try_one(&rule).unwrap();
    term.cost = 10;
    let verdict = ledger
        .try_terms(smallvec![term], Priority::Normal)
        .unwrap_err();
    assert!(matches!(verdict, Verdict::Wait { .. }), "{verdict:?}");
}

#[test]
fn a_changed_limit_causes_no_reset_and_no_burst() {
    let mut ledger = TestLedger::new();
    for (old, new) in [
        (sliding(35, s(60)), sliding(40, s(60))),
        (
            Rule::fixed(35, s(60)).unwrap(),
            Rule::fixed(40, s(60)).unwrap(),
        ),
    ] {
        let mut permits: Vec<Permit> = ledger.take_all(&old);
        assert_eq!(permits.len(), 35);
        ledger.arrive_all(&permits);
        let more = ledger.take_all(&new);
        assert_eq!(more.len(), 5, "{new}: only what the new limit has more");
        ledger.arrive_all(&more);
        permits.extend(more);
        assert!(ledger.try_one(&old).is_err(), "{old}: lowered at once");
        assert_eq!(ledger.peek(&old).remaining, 0);
        ledger = TestLedger::new();
    }
}

#[test]
fn hold_until_send_counts_from_the_grant() {
    let mut ledger = TestLedger::new();
    let rule = sliding(1, s(10)).hold_until(HoldUntil::Send);
    let permit = ledger.try_one(&rule).unwrap();
    ledger.advance(s(4));
    ledger.arrive(&permit);
    assert_eq!(ledger.wait(&rule), (s(6), WakeOn::Time));
}

#[test]
fn a_shadow_limit_counts_but_never_rejects() {
    let mut ledger = TestLedger::new();
    let rule = sliding(1, s(10)).shadow(true);
    ledger.try_one(&rule).unwrap();
    ledger.try_one(&rule).unwrap();
    assert_eq!(ledger.peek(&rule).used, 2);
}
