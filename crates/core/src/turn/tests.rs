//! All terms or none, order within a batch, and when waiting cannot help.

use smallvec::smallvec;

use crate::ask::{
    Ask, BlockedBy, CellId, NeverReason, Outcome, Priority, ScopeId, Scopes, Settle, Term, Verdict,
    WakeOn,
};
use crate::limit::{AMOUNT_MAX, Rule};
use crate::test_ledger::{Permit, TestLedger, s};
use crate::time::{Micros, Span};

pub(super) fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

pub(super) fn term(cell: &str, rule: &Rule, cost: u64) -> Term {
    Term {
        cost,
        ..TestLedger::term(cell, rule)
    }
}

pub(super) fn used(ledger: &TestLedger, cell: &str, rule: &Rule) -> u64 {
    let cell = ledger.table.get(CellId::named(&[cell])).cloned();
    cell.unwrap_or_default().peek(rule, ledger.now).used
}

pub(super) fn verdicts(ledger: &mut TestLedger, asks: &[Ask]) -> Vec<bool> {
    let turn = ledger.turn(&[], asks);
    let went = |verdict: &Verdict| matches!(verdict, Verdict::Go { .. });
    turn.verdicts.iter().map(went).collect()
}

/// C11: if one limit rejects, no other is charged.
#[test]
fn c11_a_limit_that_agreed_is_not_charged_when_another_rejects() {
    let mut ledger = TestLedger::new();
    let (ip, global) = (sliding(5, s(10)), sliding(1, s(10)));
    let terms = smallvec![term("ip", &ip, 1), term("global", &global, 1)];
    ledger
        .try_terms(terms, Priority::Normal)
        .expect("both have room");
    for order in [["ip", "global"], ["global", "ip"]] {
        let rules = order.map(|name| if name == "ip" { &ip } else { &global });
        let terms = smallvec![term(order[0], rules[0], 1), term(order[1], rules[1], 1)];
        let verdict = ledger.try_terms(terms, Priority::Normal).unwrap_err();
        let index = usize::from(order[1] == "global");
        assert!(
            matches!(verdict, Verdict::Wait { by: BlockedBy::Term(by), .. } if by == index),
            "{verdict:?}"
        );
    }
    assert_eq!(used(&ledger, "ip", &ip), 1);
}

/// `Complete` has the same effect as `Arrived` and `Finished`.
#[test]
fn a_complete_response_counts_as_arrived_and_finished() {
    for rule in [
        sliding(3, s(10)),
        Rule::fixed(3, s(10)).unwrap(),
        Rule::bucket(3, s(10), 3).unwrap(),
        Rule::paced(3, s(10)).unwrap(),
        Rule::in_flight(3).unwrap(),
    ] {
        let after = |outcomes: &[Outcome]| {
            let mut ledger = TestLedger::new();
            let terms = smallvec![term("x", &rule, 2)];
            let permit = ledger.try_terms(terms, Priority::Normal).unwrap();
            ledger.advance(s(1));
            for outcome in outcomes {
                ledger.settle(&permit, outcome.clone());
            }
            ledger.table.get(CellId::named(&["x"])).cloned()
        };
        let age = Span::ZERO;
        let arrived = Outcome::Arrived {
            age,
            limited: false,
            readings: Vec::new(),
        };
        let in_two = after(&[arrived, Outcome::Finished { age }]);
        assert_eq!(after(&[Outcome::Complete { age }]), in_two, "{rule}");
    }
}

/// Symptom: one over the limit. Cause: a cell named by two terms was checked for each term alone,
/// and a permit is held once per cell.
#[test]
fn a_cell_named_by_two_terms_is_charged_their_sum_once() {
    for rule in [
        sliding(3, s(10)),
        Rule::fixed(3, s(10)).unwrap(),
        Rule::bucket(3, s(10), 3).unwrap(),
        Rule::in_flight(3).unwrap(),
    ] {
        let mut ledger = TestLedger::new();
        let twice = || smallvec![term("x", &rule, 1), term("x", &rule, 1)];
        let permit = ledger.try_terms(twice(), Priority::Normal).unwrap();
        assert_eq!(used(&ledger, "x", &rule), 2, "{rule}");
        assert_eq!(permit.marks.len(), 2);
        assert!(ledger.try_terms(twice(), Priority::Normal).is_err());
        ledger.settle(&permit, Outcome::Unsent);
        assert_eq!(used(&ledger, "x", &rule), 0, "{rule}");
        let permit = ledger.try_terms(twice(), Priority::Normal).unwrap();
        ledger.arrive(&permit);
        ledger.settle(&permit, Outcome::Finished { age: Span::ZERO });
        assert_eq!(used(&ledger, "x", &rule), 2, "{rule}");
    }
    let mut ledger = TestLedger::new();
    let rule = sliding(3, s(10));
    let terms = smallvec![term("x", &rule, 2), term("x", &rule, 2)];
    let verdict = ledger.try_terms(terms, Priority::Normal).unwrap_err();
    assert_eq!(
        verdict,
        Verdict::Never(NeverReason::TooCostly {
            term: 0,
            max_cost: 3
        })
    );
}

#[test]
fn a_rejected_cost_blocks_smaller_costs_behind_it_in_its_cell() {
    let mut ledger = TestLedger::new();
    let rule = sliding(5, s(10));
    for _ in 0..3 {
        ledger.try_one(&rule).unwrap();
    }
    let large = ledger.ask(smallvec![term("x", &rule, 4)], Priority::Normal);
    let small = ledger.ask(smallvec![term("x", &rule, 1)], Priority::Normal);
    let elsewhere = ledger.ask(smallvec![term("y", &rule, 1)], Priority::Normal);
    let urgent = ledger.ask(smallvec![term("x", &rule, 1)], Priority::High);
    let low = ledger.ask(smallvec![term("x", &rule, 1)], Priority::Low);
    let went = verdicts(&mut ledger, &[large, small, elsewhere, urgent, low]);
    assert_eq!(went, [false, false, true, true, false]);
}

/// A transaction grants at most 1 % of a limit of a minute or longer; the rest goes with the next.
#[test]
fn a_long_limit_grants_one_percent_in_one_turn() {
    let mut ledger = TestLedger::new();
    let rule = sliding(200, s(60));
    let asks: Vec<Ask> = (0..4)
        .map(|_| ledger.ask(smallvec![term("x", &rule, 1)], Priority::Normal))
        .collect();
    let turn = ledger.turn(&[], &asks);
    let went = |verdict: &&Verdict| matches!(verdict, Verdict::Go { .. });
    assert_eq!(turn.verdicts.iter().filter(went).count(), 2);
    assert!(matches!(
        turn.verdicts[2],
        Verdict::Wait {
            after: Span::ZERO,
            on: WakeOn::Time,
            ..
        }
    ));
    let whole = ledger.ask(smallvec![term("y", &rule, 200)], Priority::Normal);
    assert_eq!(
        verdicts(&mut ledger, &[whole]),
        [true],
        "a larger cost goes alone"
    );
}

/// A cost that does not fit beside the reserve is never granted, not later: waiting cannot help.
#[test]
fn never_only_where_waiting_cannot_help() {
    let mut ledger = TestLedger::new();
    let rule = sliding(10, s(1));
    let mut reserved = term("x", &rule, 3);
    reserved.reserve = 8;
    let verdict = ledger
        .try_terms(smallvec![reserved.clone()], Priority::Normal)
        .unwrap_err();
    assert_eq!(
        verdict,
        Verdict::Never(NeverReason::TooCostly {
            term: 0,
            max_cost: 2
        })
    );
    reserved.cost = 2;
    ledger
        .try_terms(smallvec![reserved.clone()], Priority::Normal)
        .unwrap();
    let verdict = ledger
        .try_terms(smallvec![reserved], Priority::Normal)
        .unwrap_err();
    assert!(matches!(verdict, Verdict::Wait { .. }), "{verdict:?}");
}

#[test]
fn the_verdict_names_the_longest_of_several_waits() {
    let mut ledger = TestLedger::new();
    let (short, long) = (sliding(1, s(1)), sliding(1, s(10)));
    let both = || smallvec![term("a", &short, 1), term("b", &long, 1)];
    let permit = ledger.try_terms(both(), Priority::Normal).unwrap();
    ledger.arrive(&permit);
    let verdict = ledger.try_terms(both(), Priority::Normal).unwrap_err();
    assert_eq!(
        verdict,
        Verdict::Wait {
            after: s(10),
            on: WakeOn::Time,
            by: BlockedBy::Term(1)
        }
    );
}

/// Settles of a turn are applied before its asks are decided.
#[test]
fn settles_come_before_asks() {
    let mut ledger = TestLedger::new();
    let rule = sliding(1, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    let settle = Settle::Permit {
        id: permit.id,
        terms: permit.terms,
        scopes: Scopes::new(),
        outcome: Outcome::Unsent,
    };
    let ask = ledger.ask(smallvec![term("x", &rule, 1)], Priority::Normal);
    let turn = ledger.turn(&[settle], &[ask]);
    assert!(matches!(turn.verdicts[0], Verdict::Go { .. }));
}

/// A settle for an unknown permit changes nothing, whatever it says.
#[test]
fn a_settle_for_an_unknown_permit_changes_nothing() {
    let mut ledger = TestLedger::new();
    let rule = sliding(2, s(10));
    let permit = ledger.try_one(&rule).unwrap();
    let stranger = Permit {
        id: crate::ask::PermitId {
            seq: 999,
            ..permit.id
        },
        ..permit
    };
    let before = ledger.peek(&rule);
    for outcome in [
        Outcome::Unsent,
        Outcome::Failed { age: Span::ZERO },
        Outcome::Finished { age: Span::ZERO },
        Outcome::Alive { extend_by: s(100) },
        Outcome::Unknown {
            age: Span::ZERO,
            late: Span::ZERO,
        },
    ] {
        assert!(ledger.settle(&stranger, outcome).freed.is_empty());
    }
    assert_eq!(ledger.peek(&rule), before);
    assert_eq!(ledger.now.at, Micros(7_000_000_000));
}

/// A batch keeps its order also for less urgent asks behind a rejected one.
#[test]
fn a_rejected_cost_blocks_less_urgent_smaller_costs_behind_it() {
    let mut ledger = TestLedger::new();
    let rule = Rule::bucket(3, s(10), 3).unwrap().drift_ppm(0);
    let used = smallvec![term("x", &rule, 2)];
    ledger.try_terms(used, Priority::Normal).expect("room");
    let high = ledger.ask(smallvec![term("x", &rule, 2)], Priority::High);
    let low = ledger.ask(smallvec![term("x", &rule, 1)], Priority::Low);
    assert_eq!(verdicts(&mut ledger, &[high, low]), [false, false]);
}

/// A 429 to a call from before the last 429 says nothing new.
#[test]
fn a_429_to_a_call_from_before_the_last_429_keeps_the_slow_start() {
    let mut ledger = TestLedger::new();
    let scope = ScopeId::named(&["cool-down"]);
    let rule = sliding(100, s(10));
    let limited = |granted| Settle::Limited {
        scope,
        age: Span::ZERO,
        granted,
        closed_for: s(2),
    };
    let ask = |ledger: &mut TestLedger| Ask {
        scopes: smallvec![scope],
        ..ledger.ask(smallvec![term("x", &rule, 1)], Priority::Normal)
    };
    ledger.turn(&[limited(s(1))], &[]);
    ledger.advance(s(2));
    let first = ask(&mut ledger);
    assert_eq!(verdicts(&mut ledger, std::slice::from_ref(&first)), [true]);
    let accepted = Settle::Permit {
        id: first.id,
        terms: first.terms,
        scopes: first.scopes,
        outcome: crate::test_ledger::arrived(),
    };
    ledger.turn(&[accepted], &[]);
    ledger.turn(&[limited(s(5))], &[]);
    ledger.advance(s(2));
    let both = [ask(&mut ledger), ask(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &both), [true, true]);
}

/// Connections of one process grew although a rate limit was what calls waited for: the worst case of a
/// running call is longer than the wait for the rate.
#[test]
fn a_limit_of_one_process_blocks_only_if_nothing_else_does() {
    let mut ledger = TestLedger::new();
    let (rate, own) = (
        sliding(1, s(2)),
        Rule::in_flight(1).unwrap().of_one_process(),
    );
    let both = || smallvec![term("own", &own, 1), term("rate", &rate, 1)];
    let running = ledger.try_terms(both(), Priority::Normal).expect("room");
    ledger.arrive(&running);
    let by = |verdict: Verdict| match verdict {
        Verdict::Wait { by, .. } => by,
        other @ (Verdict::Go { .. } | Verdict::Never(_)) => panic!("{other:?}"),
    };
    let blocked = ledger.try_terms(both(), Priority::Normal).unwrap_err();
    assert_eq!(by(blocked), BlockedBy::Term(1));
    let alone = smallvec![term("own", &own, 1)];
    let blocked = ledger.try_terms(alone, Priority::Normal).unwrap_err();
    assert_eq!(by(blocked), BlockedBy::Term(0));
}

/// No row has an amount above 2⁵³: what a call has cost in the end, and what a limit in shadow counts,
/// may be any number and count as that.
#[test]
fn no_cell_counts_a_cost_above_two_to_the_53() {
    let mut ledger = TestLedger::new();
    let (rule, shadow) = (sliding(5, s(10)), sliding(5, s(10)).shadow(true));
    let terms = smallvec![term("x", &rule, 1), term("shadow", &shadow, u64::MAX)];
    let permit = ledger.try_terms(terms, Priority::Normal).unwrap();
    assert_eq!(used(&ledger, "shadow", &shadow), AMOUNT_MAX);
    let corrected = Permit {
        terms: smallvec![term("x", &rule, u64::MAX), term("shadow", &shadow, 7)],
        ..permit
    };
    ledger.settle(&corrected, Outcome::Complete { age: Span::ZERO });
    assert_eq!(used(&ledger, "x", &rule), AMOUNT_MAX);
    assert_eq!(used(&ledger, "shadow", &shadow), 7);
}
