//! What one waiter is promised: its instant, its deadline, and a way out.

use crate::ask::{Outcome, Priority, Settle, Why};
use crate::drive::{ms, s};
use crate::gate::stage::{Stage, Want, cell};
use crate::gate::{Place, Resolution, Settings};
use crate::limit::Rule;
use crate::time::{Micros, Span};

/// A window of exactly `period`, so that instants can be named.
fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

fn refused(after: Span) -> Option<Resolution> {
    Some(Resolution::Refused {
        place: Place::Cell(cell("x")),
        retry_in: after,
    })
}

/// M4: no polling, and the permit at exactly the instant it is free.
#[test]
fn m4_a_waiter_goes_at_the_instant_a_permit_is_free() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    stage.arrive(first);
    let second = stage.call(want);
    stage.pass(Span(s(10).0 - 1));
    assert_eq!(stage.fate(second), None);
    assert_eq!(stage.timers, 0, "somebody polls");
    stage.pass(Span(1));
    assert_eq!(stage.went_after(second), Some(s(10)));
    assert_eq!((stage.timers, stage.offers), (1, 3));
}

/// M4: in a long line every permit costs one timer, one transaction, and two asks in it.
#[test]
fn m4_a_long_line_asks_once_per_permit() {
    let mut stage = Stage::new();
    let rule = Rule::bucket(50, s(1), 50).unwrap().drift_ppm(0);
    stage.calls(10_000, &Want::new(&rule));
    stage.answer_all(s(300));
    assert_eq!(stage.went.len(), 10_000);
    assert!(stage.went.is_sorted(), "out of order");
    assert_eq!(stage.since_begin(), ms(20 * 9_950), "not on time");
    assert!(stage.timers <= 10_000, "{} timers", stage.timers);
    assert!(stage.offers <= 10_100, "{} offers", stage.offers);
    assert!(stage.asks <= 20_200, "{} asks", stage.asks);
}

#[test]
fn a_permit_that_frees_at_the_deadline_is_in_time() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    stage.arrive(first);
    let second = stage.call(want.patience(s(10)));
    stage.pass(s(10));
    assert_eq!(stage.went_after(second), Some(s(10)));
}

#[test]
fn a_wait_known_to_pass_the_deadline_is_refused_at_once() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    stage.arrive(first);
    stage.pass(s(1));
    let asked = stage.call(want.clone().patience(ms(8_999)));
    assert_eq!(stage.fate(asked).cloned(), refused(s(9)));
    let offers = stage.offers;
    let not_asked = stage.call(want.patience(ms(8_999)));
    assert_eq!(stage.fate(not_asked).cloned(), refused(s(9)));
    assert_eq!(stage.offers, offers, "what is known needs no ask");
}

#[test]
fn those_further_back_are_refused_once_the_time_is_known() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    let patient = stage.call(want.clone());
    let hasty: Vec<u64> = (0..5)
        .map(|_| stage.call(want.clone().patience(s(5))))
        .collect();
    stage.pass(s(1));
    assert!(hasty.iter().all(|&seq| stage.fate(seq).is_none()));
    // With the answer it is known that the place opens in ten seconds.
    stage.arrive(first);
    stage.gate.freed(&[cell("x")]);
    stage.run();
    for seq in hasty {
        assert_eq!(stage.fate(seq).cloned(), refused(s(10)));
    }
    stage.pass(s(10));
    assert_eq!(stage.went_after(patient), Some(s(11)));
}

#[test]
fn a_call_that_does_not_wait_gets_one_chance() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(2, s(10))).at_once();
    let calls = stage.calls(3, &want);
    assert!(stage.is_gone(calls[0]) && stage.is_gone(calls[1]));
    assert!(matches!(
        stage.fate(calls[2]),
        Some(Resolution::Refused { .. })
    ));
}

#[test]
fn a_call_that_does_not_wait_is_told_so_even_if_the_ledger_was_busy() {
    let mut stage = Stage::new();
    let one = Rule::in_flight(1).unwrap();
    stage.call(Want::new(&one));
    let patient = stage.push(Want::new(&one));
    let offer = stage.tick();
    let hasty = stage.push(Want::new(&one).at_once());
    assert_eq!(stage.tick(), [], "one offer at a time");
    let verdicts = stage.decide(&offer);
    stage.pass(ms(5));
    stage.gate.verdicts(verdicts, stage.now);
    stage.run();
    assert_eq!(stage.fate(patient), None);
    let place = Some(Place::Cell(cell("x")));
    assert_eq!(stage.fate(hasty), Some(&Resolution::TimedOut { place }));
}

/// R-C6: nobody is asked for after its time.
#[test]
fn a_deadline_that_passes_in_line_costs_no_permit() {
    let mut stage = Stage::new();
    let one = Rule::in_flight(1).unwrap();
    let first = stage.call(Want::new(&one));
    let late = stage.call(Want::new(&one).patience(s(2)));
    assert_eq!(stage.arm, Some(stage.now.at + s(2)), "one timer");
    stage.pass(s(3));
    let place = Some(Place::Cell(cell("x")));
    assert_eq!(
        stage.fates[&late],
        (stage.now.at - s(1), Resolution::TimedOut { place })
    );
    let asks = stage.asks;
    stage.finish(first);
    assert_eq!(stage.asks, asks);
}

#[test]
fn a_waiter_that_was_asked_and_passes_its_deadline_while_the_ledger_hangs_is_told() {
    let mut stage = Stage::new();
    let one = Rule::in_flight(1).unwrap();
    let first = stage.call(Want::new(&one));
    let late = stage.call(Want::new(&one).patience(s(2)));
    stage.push(Want::at("y", &one));
    let offer = stage.tick();
    assert_eq!(offer.len(), 1, "the ledger is busy with another cell");
    stage.settle(first, Outcome::Finished { age: Span::ZERO });
    stage.pass(s(3));
    assert!(matches!(
        stage.fate(late),
        Some(Resolution::TimedOut { .. })
    ));
}

#[test]
fn one_more_than_may_wait_is_refused_and_a_place_that_empties_is_used_again() {
    let mut stage = Stage::with(Settings {
        waiting_max: 2,
        ..Settings::default()
    });
    let one = Rule::in_flight(1).unwrap();
    stage.call(Want::new(&one));
    let waiting = stage.calls(2, &Want::new(&one));
    let third = stage.call(Want::new(&one).high());
    assert_eq!(stage.fate(third), Some(&Resolution::Full));
    assert_eq!(stage.gate.waiting(Priority::Normal), 2);
    stage.gate.cancel(Stage::id(waiting[0]));
    let fourth = stage.call(Want::new(&one));
    assert_eq!(stage.fate(fourth), None);
}

#[test]
fn what_can_never_go_is_told_at_once() {
    let mut stage = Stage::new();
    let call = stage.call(Want::new(&sliding(5, s(1))).cost(6));
    let why = Why::TooCostly { term: 0, most: 5 };
    assert_eq!(stage.fate(call), Some(&Resolution::Never(why)));
}

#[test]
fn one_who_leaves_the_line_is_never_asked_for() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(1, s(10)));
    let first = stage.call(want.clone());
    stage.arrive(first);
    let (left, next) = (stage.call(want.clone()), stage.call(want));
    stage.gate.cancel(Stage::id(left));
    stage.pass(s(10));
    assert_eq!((stage.fate(left), stage.is_gone(next)), (None, true));
}

#[test]
fn a_permit_for_one_who_left_goes_to_the_next() {
    let mut stage = Stage::new();
    let one = Rule::in_flight(1).unwrap();
    let left = stage.push(Want::new(&one));
    let next = stage.push(Want::new(&one));
    let offer = stage.tick();
    stage.gate.cancel(Stage::id(left));
    let verdicts = stage.decide(&offer);
    stage.gate.verdicts(verdicts, stage.now);
    let effects = stage.gate.tick(stage.now);
    let [Settle::Permit { id, outcome, .. }] = &effects.settle[..] else {
        panic!("expected the permit back, got {effects:?}");
    };
    assert_eq!((id.seq, outcome), (left, &Outcome::Unsent));
    stage.turn(&effects.settle, &[]);
    stage.run();
    assert_eq!((stage.fate(left), stage.is_gone(next)), (None, true));
}

/// Nobody is kept by one who was refused more than it needs and has left meanwhile.
#[test]
fn one_behind_a_large_cost_that_left_goes_at_once() {
    let mut stage = Stage::new();
    let rule = sliding(10, s(10));
    let first = stage.call(Want::new(&rule).cost(8));
    stage.arrive(first);
    let large = stage.call(Want::new(&rule).cost(5));
    let small = stage.call(Want::new(&rule));
    assert_eq!(
        stage.fate(small),
        None,
        "small ones do not starve large ones"
    );
    stage.gate.cancel(Stage::id(large));
    stage.run();
    assert!(stage.is_gone(small));
}

#[test]
fn a_large_cost_that_does_not_wait_keeps_nobody_who_fits() {
    let mut stage = Stage::new();
    let rule = sliding(10, s(10));
    let first = stage.call(Want::new(&rule).cost(8));
    stage.arrive(first);
    // Together in one batch, and one after the other.
    stage.push(Want::new(&rule).cost(5).at_once());
    let small = stage.push(Want::new(&rule).patience(s(1)));
    stage.run();
    assert!(stage.is_gone(small));
    let large = stage.call(Want::new(&rule).cost(5).at_once());
    assert_eq!(stage.fate(large).cloned(), refused(s(10)));
    let small = stage.call(Want::new(&rule).patience(s(1)));
    assert!(stage.is_gone(small));
}

#[test]
fn without_a_verdict_one_is_asked_for_again() {
    let mut stage = Stage::new();
    let call = stage.push(Want::new(&sliding(1, s(10))));
    assert_eq!(stage.tick().len(), 1);
    stage.gate.verdicts(Vec::new(), stage.now);
    stage.run();
    assert!(stage.is_gone(call));
}

#[test]
fn a_wait_without_end_arms_no_timer() {
    let mut stage = Stage::new();
    let one = Rule::in_flight(1).unwrap();
    stage.call(Want::new(&one));
    let forever = Span(u64::MAX);
    stage.push(Want::at("y", &one).scope("closed").patience(forever));
    stage.turn(&[close_for_good("closed")], &[]);
    stage.run();
    assert_eq!(stage.arm, None);
}

fn close_for_good(scope: &str) -> Settle {
    Settle::Close {
        scope: crate::ask::ScopeId::named(&[scope]),
        age: Span::ZERO,
        rest: None,
        then: crate::ask::Reopen::All,
    }
}

/// The timer is the earliest of all that can happen.
#[test]
fn one_timer_for_the_earliest_of_all() {
    let mut stage = Stage::new();
    for (name, secs) in [("a", 30), ("b", 20), ("c", 40)] {
        let want = Want::at(name, &sliding(1, s(secs)));
        let first = stage.call(want.clone());
        stage.arrive(first);
        stage.call(want);
    }
    let begin: Micros = stage.now.at;
    assert_eq!(stage.arm, Some(begin + s(20)));
    let one = Rule::in_flight(1).unwrap();
    stage.call(Want::at("d", &one));
    stage.call(Want::at("d", &one).patience(s(15)));
    assert_eq!(stage.arm, Some(begin + s(15)));
    stage.pass(s(15));
    assert_eq!(stage.arm, Some(begin + s(20)));
}
