//! What a limit takes over from the limit that it replaces.

use std::sync::Arc;

use smallvec::smallvec;

use crate::ask::{CellId, Outcome, Priority, Settle, Verdict};
use crate::limit::tests::{bucket, sliding};
use crate::limit::{Calendar, CalendarPeriod, Rule};
use crate::test_ledger::{Permit, TestLedger, arrived, ms, s};
use crate::time::{Micros, Span};

fn inherit(ledger: &mut TestLedger, (from, former): (&str, &Rule), (to, rule): (&str, &Rule)) {
    let settle = Settle::Inherit {
        from: CellId::named(&[from]),
        old_rule: Arc::new(former.clone()),
        to: CellId::named(&[to]),
        rule: Arc::new(rule.clone()),
    };
    ledger.turn(&[settle], &[]);
}

/// Takes all permits that are free now in this cell.
fn take_all(ledger: &mut TestLedger, cell: &str, rule: &Rule) -> Vec<Permit> {
    let mut permits = Vec::new();
    while let Ok(permit) =
        ledger.try_terms(smallvec![TestLedger::term(cell, rule)], Priority::Normal)
    {
        permits.push(permit);
        assert!(permits.len() < 10_000, "the rule never rejects");
    }
    permits
}

fn wait(ledger: &mut TestLedger, cell: &str, rule: &Rule) -> Span {
    match ledger.try_terms(smallvec![TestLedger::term(cell, rule)], Priority::Normal) {
        Err(Verdict::Wait { after, .. }) => after,
        other => panic!("expected a wait, got {other:?}"),
    }
}

/// Settles a call under both of its cells, as the forwarding of settles does.
fn settle_both(ledger: &mut TestLedger, permit: &Permit, rule: &Rule, outcome: Outcome) {
    let mut permit = permit.clone();
    permit.terms.push(TestLedger::term("new", rule));
    ledger.settle(&permit, outcome);
}

fn kinds() -> Vec<Rule> {
    vec![
        sliding(5, s(10)),
        sliding(5, s(3)),
        bucket(5, s(10), 5),
        Rule::fixed(5, s(10)).unwrap(),
        Rule::fixed(5, s(60)).unwrap(),
        Rule::paced(5, s(10)).unwrap(),
        Rule::calendar(
            5,
            Calendar::new(CalendarPeriod::Day, jiff::tz::TimeZone::UTC),
        )
        .unwrap(),
    ]
}

#[test]
fn a_limit_used_up_before_a_change_is_used_up_after_it() {
    for former in kinds() {
        for rule in kinds() {
            let mut ledger = TestLedger::new();
            let permits = take_all(&mut ledger, "old", &former);
            ledger.arrive_all(&permits);
            inherit(&mut ledger, ("old", &former), ("new", &rule));
            let used = permits.len();
            let got = take_all(&mut ledger, "new", &rule).len();
            assert!(got + used <= 5, "{former:?} to {rule:?}: {used} and {got}");
        }
    }
}

#[test]
fn a_limit_that_took_over_opens_again_within_its_period() {
    for former in kinds() {
        for rule in kinds() {
            let mut ledger = TestLedger::new();
            let permits = take_all(&mut ledger, "old", &former);
            ledger.arrive_all(&permits);
            inherit(&mut ledger, ("old", &former), ("new", &rule));
            ledger.advance(rule.period() + rule.period().scale_up(1, 500) + s(5));
            let got = take_all(&mut ledger, "new", &rule).len();
            assert!(got >= 1, "{former:?} to {rule:?}");
        }
    }
}

#[test]
fn a_log_keeps_when_each_call_was_counted() {
    let (former, rule) = (
        sliding(5, s(60)).drift_ppm(0),
        sliding(3, s(10)).drift_ppm(0),
    );
    // Counted 16, 12, 8 and 4 s ago.
    let mut quiet = TestLedger::new();
    for _ in 0..4 {
        let one = quiet.try_terms(
            smallvec![TestLedger::term("old", &former)],
            Priority::Normal,
        );
        quiet.arrive(&one.unwrap());
        quiet.advance(s(4));
    }
    inherit(&mut quiet, ("old", &former), ("new", &rule));
    assert_eq!(take_all(&mut quiet, "new", &rule).len(), 1);
    assert_eq!(wait(&mut quiet, "new", &rule), s(2));
}

#[test]
fn a_pending_call_counts_until_one_period_after_its_response() {
    let (former, rule) = (sliding(2, s(1)).drift_ppm(0), sliding(2, s(3)).drift_ppm(0));
    let mut ledger = TestLedger::new();
    let permits = take_all(&mut ledger, "old", &former);
    inherit(&mut ledger, ("old", &former), ("new", &rule));
    ledger.advance(s(2));
    assert!(take_all(&mut ledger, "new", &rule).is_empty());
    settle_both(&mut ledger, &permits[0], &rule, arrived());
    settle_both(&mut ledger, &permits[1], &rule, Outcome::Unsent);
    assert_eq!(take_all(&mut ledger, "new", &rule).len(), 1);
    ledger.advance(s(3) - ms(1));
    assert!(take_all(&mut ledger, "new", &rule).is_empty());
    ledger.advance(ms(1));
    assert_eq!(take_all(&mut ledger, "new", &rule).len(), 1);
}

#[test]
fn taking_over_twice_adds_only_what_was_granted_since() {
    for rule in kinds() {
        let former = sliding(5, s(60));
        let mut ledger = TestLedger::new();
        let call = |ledger: &mut TestLedger| {
            let one = ledger.try_terms(
                smallvec![TestLedger::term("old", &former)],
                Priority::Normal,
            );
            ledger.arrive(&one.unwrap());
        };
        call(&mut ledger);
        inherit(&mut ledger, ("old", &former), ("new", &rule));
        inherit(&mut ledger, ("old", &former), ("new", &rule));
        call(&mut ledger);
        inherit(&mut ledger, ("old", &former), ("new", &rule));
        let cell = ledger.table.get(CellId::named(&["new"])).unwrap();
        assert_eq!(cell.peek(&rule, ledger.now).remaining, 3, "{rule:?}");
    }
}

#[test]
fn an_undone_change_carries_only_what_was_granted_in_between() {
    let day = Rule::calendar(
        10,
        Calendar::new(CalendarPeriod::Day, jiff::tz::TimeZone::UTC),
    )
    .unwrap();
    let window = sliding(10, s(86_400));
    let mut ledger = TestLedger::new();
    let call = |ledger: &mut TestLedger, cell: &str, rule: &Rule| {
        let one = ledger.try_terms(smallvec![TestLedger::term(cell, rule)], Priority::Normal);
        ledger.arrive(&one.unwrap());
    };
    for _ in 0..4 {
        call(&mut ledger, "day", &day);
    }
    inherit(&mut ledger, ("day", &day), ("window", &window));
    call(&mut ledger, "window", &window);
    inherit(&mut ledger, ("window", &window), ("day", &day));
    let left = |ledger: &TestLedger, cell: &str, rule: &Rule| {
        let cell = ledger.table.get(CellId::named(&[cell])).unwrap();
        cell.peek(rule, ledger.now).remaining
    };
    assert_eq!(left(&ledger, "day", &day), 5);
    call(&mut ledger, "day", &day);
    inherit(&mut ledger, ("day", &day), ("window", &window));
    assert_eq!(left(&ledger, "window", &window), 4);
}

#[test]
fn a_cell_that_was_handed_over_is_the_same_after_a_restart() {
    let (former, rule) = (sliding(5, s(60)), bucket(5, s(60), 5));
    let mut ledger = TestLedger::new();
    let permits = take_all(&mut ledger, "old", &former);
    ledger.arrive_all(&permits);
    inherit(&mut ledger, ("old", &former), ("new", &rule));
    let snapshot = ledger.table.snapshot(ledger.now.at);
    let mut later = TestLedger::new();
    let damaged = later.table.restore(&snapshot, later.now.at, Span::ZERO);
    assert!(damaged.is_empty());
    for (id, _) in &snapshot {
        let image =
            |ledger: &TestLedger| ledger.table.get(*id).map(|cell| cell.to_bytes(Micros(0)));
        assert_eq!(image(&later), image(&ledger));
    }
}
