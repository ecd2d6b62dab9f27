//! Scopes in a turn: closed, probed, opened, and what ends a row of failures.

use smallvec::smallvec;

use crate::ask::{
    Ask, BlockedBy, Outcome, PathTag, Priority, Reopen, ScopeId, Settle, Verdict, WakeOn,
};
use crate::test_ledger::{TestLedger, s};
use crate::time::Span;
use crate::turn::tests::{sliding, term, used, verdicts};

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
