//! Limits that change while calls wait: who is called back, and who goes first then.

use super::stage::{Stage, Want};
use super::{Order, Resolution, Settings};
use crate::drive::s;
use crate::limit::Rule;
use crate::time::Span;

/// As long as those who were called back are waited for.
const COME_BACK: Span = Span::from_millis(50);

fn rule(limit: u64) -> Rule {
    Rule::sliding(limit, s(10)).unwrap().drift_ppm(0)
}

/// A line behind a limit of one that is used up; those who wait are called back.
fn recalled(stage: &mut Stage, waiting: usize, want: &Want) -> Vec<u64> {
    stage.calls(1, &Want::new(&rule(1)));
    let old = stage.calls(waiting, want);
    stage.gate.recall();
    stage.run();
    let fates = old.iter().map(|seq| stage.fate(*seq));
    assert!(
        fates
            .into_iter()
            .all(|fate| fate == Some(&Resolution::Recalled))
    );
    old
}

/// The call of before asks again, with its seniority.
fn again(stage: &mut Stage, seq: u64, want: Want) -> u64 {
    let seniority = stage.seniorities[&seq];
    stage.push(want.senior(seniority))
}

/// Who arrives in the instant between the recall and the new asks does not get past those who were
/// called back, whatever order they come back in.
#[test]
fn a_newcomer_does_not_overtake_those_who_were_called_back() {
    for strict in [false, true] {
        let mut stage = if strict { Stage::fifo() } else { Stage::new() };
        let want = Want::new(&rule(4));
        let old = recalled(&mut stage, 3, &Want::new(&rule(1)));
        let newcomer = stage.call(want.clone());
        assert!(!stage.is_gone(newcomer));
        let mut back: Vec<u64> = Vec::new();
        for seq in old.into_iter().rev() {
            back.push(again(&mut stage, seq, want.clone()));
            stage.run();
        }
        back.reverse();
        assert_eq!(stage.went[1..], back, "all three, and in their order");
        stage.answer_all(s(20));
        assert!(stage.is_gone(newcomer));
    }
}

#[test]
fn a_newcomer_that_is_more_urgent_waits_for_nobody_who_was_called_back() {
    let mut stage = Stage::new();
    recalled(&mut stage, 3, &Want::new(&rule(1)));
    let urgent = stage.call(Want::new(&rule(4)).high());
    assert!(stage.is_gone(urgent));
}

/// One of those called back never comes: the others wait for it for a moment and no longer.
#[test]
fn one_who_does_not_come_back_holds_nobody_up_for_long() {
    let mut stage = Stage::new();
    let old = recalled(&mut stage, 2, &Want::new(&rule(1)));
    let newcomer = stage.call(Want::new(&rule(4)));
    let first = again(&mut stage, old[1], Want::new(&rule(4)));
    stage.run();
    assert!(!stage.is_gone(newcomer) && !stage.is_gone(first));
    stage.pass(COME_BACK - Span(1));
    assert!(!stage.is_gone(newcomer));
    stage.pass(Span(1));
    assert!(stage.is_gone(newcomer) && stage.is_gone(first));
    let at_once = stage.call(Want::new(&rule(4)).at_once());
    assert!(stage.is_gone(at_once), "nobody is expected any more");
}

/// A line that is full stays full for newcomers until those called back have their places again.
#[test]
fn a_newcomer_takes_no_place_of_one_who_was_called_back() {
    let mut stage = Stage::with(Settings {
        waiting_max: 3,
        order: Order::Priority,
        ..Settings::default()
    });
    let old = recalled(&mut stage, 3, &Want::new(&rule(1)));
    let newcomer = stage.call(Want::new(&rule(1)));
    assert_eq!(stage.fate(newcomer), Some(&Resolution::Full));
    for seq in old {
        let back = again(&mut stage, seq, Want::new(&rule(1)));
        stage.run();
        assert_eq!(stage.fate(back), None, "it waits");
    }
}

/// Everybody who waits is called back and asks anew for `rule`, in an order of its own.
fn change_limit(stage: &mut Stage, rule: &Rule) -> Vec<u64> {
    stage.gate.recall();
    stage.tick();
    let recalled = |(seq, (_, fate)): (&u64, &(_, Resolution))| {
        (*fate == Resolution::Recalled).then_some(*seq)
    };
    let mut back: Vec<u64> = stage.fates.iter().filter_map(recalled).collect();
    back.reverse();
    let again = |seq: u64, stage: &mut Stage| {
        let seniority = stage.seniorities[&seq];
        stage.push(Want::new(rule).senior(seniority))
    };
    let again: Vec<u64> = back.into_iter().map(|seq| again(seq, stage)).collect();
    stage.run();
    again
}

/// R-A13: 10 → 2 in the middle of a line: those who wait go two a window from then on, the oldest
/// first, and use made under the old limit counts.
#[test]
fn a_lower_limit_holds_for_those_who_wait() {
    let mut stage = Stage::new();
    stage.calls(30, &Want::new(&rule(10)));
    assert_eq!(stage.went.len(), 10);
    stage.answer_all(Span::ZERO);
    let again = change_limit(&mut stage, &rule(2));
    assert_eq!((again.len(), stage.went.len()), (20, 10));
    stage.answer_all(s(35));
    assert_eq!(
        stage.went.len(),
        10 + 3 * 2,
        "two for each of three windows"
    );
    let oldest: Vec<u64> = again.iter().rev().take(6).copied().collect();
    assert_eq!(stage.went[10..], oldest);
}

/// R-A13: the ledger grants under the old limit while it changes: nobody goes by that word.
#[test]
fn a_grant_under_a_limit_that_has_changed_goes_back() {
    let mut stage = Stage::new();
    let old: Vec<u64> = (0..4).map(|_| stage.push(Want::new(&rule(4)))).collect();
    let offer = stage.tick();
    let verdicts = stage.decide(&offer);
    stage.gate.recall();
    stage.gate.verdicts(verdicts, stage.now);
    stage.run();
    assert!(
        old.iter()
            .all(|seq| stage.fate(*seq) == Some(&Resolution::Recalled))
    );
    assert!(stage.went.is_empty());
    let new = stage.call(Want::new(&rule(1)));
    stage.pass(COME_BACK);
    assert!(stage.is_gone(new), "what was granted came back");
}

/// The pace changes, or somebody urgent joins: one steps out of a full line to ask anew. It is neither
/// overtaken nor does it lose its place.
#[test]
fn one_that_steps_out_to_ask_again_keeps_its_place() {
    for order in [Order::Priority, Order::Fifo] {
        let mut stage = Stage::with(Settings {
            waiting_max: 1,
            order,
            ..Settings::default()
        });
        stage.calls(1, &Want::new(&rule(1)));
        let seniority = 7;
        let old = stage.call(Want::new(&rule(1)).senior(seniority));
        stage.gate.cancel(Stage::id(old));
        stage.gate.returns(seniority, crate::ask::Priority::Normal);
        let newcomer = stage.call(Want::new(&rule(2)));
        assert_eq!(stage.fate(newcomer), Some(&Resolution::Full));
        let back = stage.call(Want::new(&rule(2)).senior(seniority));
        assert_eq!(stage.went[1..], [back]);
    }
}

#[test]
fn nobody_waits_for_one_that_stays_away() {
    let mut stage = Stage::fifo();
    stage.gate.returns(7, crate::ask::Priority::High);
    let newcomer = stage.call(Want::new(&rule(2)).senior(9));
    assert!(!stage.is_gone(newcomer));
    assert!(stage.gate.stays_away(7) && !stage.gate.stays_away(7));
    stage.run();
    assert!(stage.is_gone(newcomer));
}
