//! All terms or none, order within a batch, and when waiting cannot help.

use smallvec::smallvec;

use crate::ask::{
    Ask, BlockedBy, CellId, NeverReason, Outcome, PathTag, Priority, Reopen, ScopeId, Scopes,
    Settle, Term, Verdict, WakeOn,
};
use crate::limit::{AMOUNT_MAX, Rule};
use crate::test_ledger::{Permit, TestLedger, s};
use crate::time::{Micros, Span};

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

fn term(cell: &str, rule: &Rule, cost: u64) -> Term {
    Term {
        cost,
        ..TestLedger::term(cell, rule)
    }
}

fn used(ledger: &TestLedger, cell: &str, rule: &Rule) -> u64 {
    let cell = ledger.table.get(CellId::named(&[cell])).cloned();
    cell.unwrap_or_default().peek(rule, ledger.now).used
}

fn verdicts(ledger: &mut TestLedger, asks: &[Ask]) -> Vec<bool> {
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

fn scope() -> ScopeId {
    ScopeId::named(&["tmdb"])
}

fn scoped(ledger: &mut TestLedger) -> Ask {
    let rule = sliding(100, s(1));
    let mut ask = ledger.ask(smallvec![term("x", &rule, 1)], Priority::Normal);
    ask.scopes.push(scope());
    ask
}

fn close(ledger: &mut TestLedger, rest: Option<Span>, then: Reopen) {
    let close = Settle::Close {
        scope: scope(),
        age: Span::ZERO,
        closed_for: rest,
        reopen: then,
    };
    assert_eq!(ledger.turn(&[close], &[]).changed_scopes, [scope()]);
}

#[test]
fn a_closed_scope_rejects_without_charging_and_opens_by_itself() {
    let mut ledger = TestLedger::new();
    close(&mut ledger, Some(s(30)), Reopen::All);
    let ask = scoped(&mut ledger);
    let turn = ledger.turn(&[], std::slice::from_ref(&ask));
    assert_eq!(
        turn.verdicts,
        [Verdict::Wait {
            after: s(30),
            on: WakeOn::Time,
            by: BlockedBy::Scope(0)
        }]
    );
    assert_eq!(used(&ledger, "x", &sliding(100, s(1))), 0);
    ledger.advance(s(30));
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, true]);
}

#[test]
fn after_a_sleep_the_next_probe_waits_for_the_outcome_of_the_first() {
    let mut ledger = TestLedger::new();
    close(&mut ledger, Some(s(30)), Reopen::Probe);
    ledger.advance(s(30));
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, false]);
    ledger.advance(s(35) - Span(1));
    let ask = scoped(&mut ledger);
    assert_eq!(verdicts(&mut ledger, &[ask]), [false]);
    ledger.advance(Span(1));
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(
        verdicts(&mut ledger, &asks),
        [true, false],
        "the first probe has no outcome"
    );
}

#[test]
fn only_the_probe_itself_returns_its_place_when_it_was_not_sent() {
    let mut ledger = TestLedger::new();
    close(&mut ledger, Some(s(1)), Reopen::Probe);
    ledger.advance(s(1));
    let probe = scoped(&mut ledger);
    assert_eq!(verdicts(&mut ledger, std::slice::from_ref(&probe)), [true]);
    let unsent = |ask: &Ask| Settle::Permit {
        id: ask.id,
        terms: ask.terms.clone(),
        scopes: ask.scopes.clone(),
        outcome: Outcome::Unsent,
    };
    let other = scoped(&mut ledger);
    assert!(
        ledger
            .turn(&[unsent(&other)], &[])
            .changed_scopes
            .is_empty()
    );
    assert_eq!(
        ledger.turn(&[unsent(&probe)], &[]).changed_scopes,
        [scope()]
    );
    let next = scoped(&mut ledger);
    assert_eq!(verdicts(&mut ledger, &[next]), [true]);
}

/// Symptom: at the end of a sleep every process sent calls at once. Cause: a cool-down reported
/// meanwhile replaced the required probe.
#[test]
fn a_cool_down_during_a_sleep_or_a_probe_keeps_the_probe() {
    let mut ledger = TestLedger::new();
    close(&mut ledger, Some(s(30)), Reopen::Probe);
    close(&mut ledger, Some(s(5)), Reopen::All);
    ledger.advance(s(30));
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, false]);
    close(&mut ledger, Some(s(5)), Reopen::All);
    ledger.advance(s(5));
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, false]);
    let turn = ledger.turn(&[Settle::Open { scope: scope() }], &[]);
    assert_eq!(turn.changed_scopes, [scope()]);
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, true]);
}

fn failed(age: Span) -> Settle {
    Settle::Failed {
        scope: scope(),
        age,
        in_a_row: 3,
        closed_for: s(30),
        path: None,
    }
}

/// A4: failures of one path alone do not close the scope of the provider; one more of another path
/// does.
#[test]
fn a4_failures_of_one_path_do_not_close_the_scope_of_all() {
    let mut ledger = TestLedger::new();
    let of = |name: &str| Settle::Failed {
        scope: scope(),
        age: Span::ZERO,
        in_a_row: 3,
        closed_for: s(30),
        path: Some(PathTag::of(name)),
    };
    for _ in 0..9 {
        assert_eq!(ledger.turn(&[of("/a")], &[]).changed_scopes, []);
    }
    assert_eq!(ledger.turn(&[of("/b")], &[]).changed_scopes, [scope()]);
}

/// The closed time starts when the failure was seen, not when it was reported.
#[test]
fn failures_in_a_row_close_a_scope_and_a_probe_follows() {
    let mut ledger = TestLedger::new();
    ledger.advance(s(10));
    for _ in 0..2 {
        assert!(ledger.turn(&[failed(s(2))], &[]).changed_scopes.is_empty());
    }
    let ask = scoped(&mut ledger);
    assert_eq!(verdicts(&mut ledger, &[ask]), [true]);
    assert_eq!(ledger.turn(&[failed(s(2))], &[]).changed_scopes, [scope()]);
    let late = ledger.turn(&[failed(Span::ZERO)], &[]);
    let told = "whoever reports it must learn that the scope is closed";
    assert_eq!(late.changed_scopes, [scope()], "{told}");
    // An old failure does not extend the closed time.
    ledger.advance(s(28) - Span(1));
    let ask = scoped(&mut ledger);
    assert_eq!(verdicts(&mut ledger, &[ask]), [false]);
    ledger.advance(Span(1));
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, false]);
}

#[test]
fn a_counted_response_ends_a_row_of_failures_and_a_429_does_not() {
    let mut ledger = TestLedger::new();
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, true]);
    let arrived = |ask: &Ask, refused| Settle::Permit {
        id: ask.id,
        terms: ask.terms.clone(),
        scopes: ask.scopes.clone(),
        outcome: Outcome::Arrived {
            age: Span::ZERO,
            limited: refused,
            readings: Vec::new(),
        },
    };
    let (well, refused) = (arrived(&asks[0], false), arrived(&asks[1], true));
    let two = [failed(Span::ZERO), failed(Span::ZERO)];
    ledger.turn(&two, &[]);
    ledger.turn(&[well], &[]);
    assert!(ledger.turn(&two, &[]).changed_scopes.is_empty());
    ledger.turn(&[refused], &[]);
    assert_eq!(
        ledger.turn(&[failed(Span::ZERO)], &[]).changed_scopes,
        [scope()]
    );
}

#[test]
fn a_scope_closed_by_an_operator_opens_only_by_an_operator() {
    let mut ledger = TestLedger::new();
    close(&mut ledger, None, Reopen::All);
    close(&mut ledger, Some(s(1)), Reopen::Probe);
    ledger.advance(s(86_400));
    let ask = scoped(&mut ledger);
    assert_eq!(verdicts(&mut ledger, &[ask]), [false]);
    ledger.turn(&[Settle::Open { scope: scope() }], &[]);
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, true]);
}

#[test]
fn a_shorter_cool_down_never_ends_a_longer_one() {
    let mut ledger = TestLedger::new();
    close(&mut ledger, Some(s(30)), Reopen::All);
    close(&mut ledger, Some(s(5)), Reopen::All);
    ledger.advance(s(29));
    let ask = scoped(&mut ledger);
    assert_eq!(verdicts(&mut ledger, &[ask]), [false]);
}

#[test]
fn a_sweep_removes_open_scopes_and_keeps_closed_and_probing_ones() {
    let mut ledger = TestLedger::new();
    close(&mut ledger, Some(s(30)), Reopen::Probe);
    ledger.table.sweep(ledger.now.at, 10);
    let ask = scoped(&mut ledger);
    assert_eq!(verdicts(&mut ledger, &[ask]), [false]);
    ledger.advance(s(30));
    ledger.table.sweep(ledger.now.at, 10);
    let asks = [scoped(&mut ledger), scoped(&mut ledger)];
    assert_eq!(verdicts(&mut ledger, &asks), [true, false]);
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
