//! Who goes next: priority, arrival, callers, and strict order.

use crate::ask::{Outcome, Priority};
use crate::drive::{ms, s};
use crate::gate::stage::{Stage, Want};
use crate::gate::{CallerId, Share};
use crate::limit::Rule;
use crate::time::Span;

/// One permit every 20 ms, none in store.
fn bucket() -> Rule {
    Rule::bucket(50, s(1), 1).unwrap().drift_ppm(0)
}

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

/// How many of the calls that went are among these.
fn count(stage: &Stage, calls: &[u64]) -> usize {
    let gone = calls.iter().filter(|&&seq| stage.is_gone(seq));
    gone.count()
}

/// M3: urgent calls overtake those that wait; inside one priority the first to come goes first.
#[test]
fn m3_priority_overtakes_and_arrival_decides_inside_it() {
    let mut stage = Stage::new();
    stage.call(Want::new(&bucket()));
    let low = stage.calls(3, &Want::new(&bucket()).low());
    let normal = stage.calls(3, &Want::new(&bucket()));
    let high = stage.calls(3, &Want::new(&bucket()).high());
    stage.answer_all(s(10));
    let expected: Vec<u64> = [&high[..], &normal[..], &low[..]].concat();
    assert_eq!(stage.went[1..], expected);
}

/// M2: a line that stands before the reserve does not keep urgent calls from it.
#[test]
fn m2_an_urgent_call_takes_the_reserve_while_others_wait() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(10, s(10))).leave(4);
    let calls = stage.calls(8, &want);
    assert_eq!(count(&stage, &calls), 6);
    let urgent = stage.calls(5, &want.clone().high());
    assert_eq!(count(&stage, &urgent), 4);
    // Refused to an urgent one, it is closed for all.
    let offers = stage.offers;
    stage.call(want);
    assert_eq!(stage.offers, offers);
}

/// R-C2: who may not be urgent gets neither the place nor the reserve of urgent calls.
#[test]
fn a_caller_is_only_as_urgent_as_it_may_be() {
    let mut stage = Stage::new();
    let share = Share {
        highest: Priority::Normal,
        ..Share::default()
    };
    stage.gate.set_share(CallerId(7), share);
    let want = Want::new(&sliding(2, s(10))).leave(1);
    stage.call(want.clone());
    let first = stage.call(want.clone());
    let claims = stage.call(want.high().by(7));
    assert_eq!((stage.fate(first), stage.fate(claims)), (None, None));
    assert_eq!(stage.gate.waiting(Priority::High), 0);
}

#[test]
fn a_call_raised_in_line_goes_before_the_others_and_may_use_the_reserve() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(2, s(10))).leave(1);
    stage.call(want.clone());
    let (first, second) = (stage.call(want.clone()), stage.call(want.clone()));
    let raised = stage.ask_anew(second, want.high());
    stage.run();
    assert_eq!((stage.fate(first), stage.is_gone(raised)), (None, true));
}

#[test]
fn a_call_raised_before_it_is_asked_for_goes_first() {
    let mut stage = Stage::new();
    let calls: Vec<u64> = (0..3).map(|_| stage.push(Want::new(&bucket()))).collect();
    let raised = stage.ask_anew(calls[2], Want::new(&bucket()).high());
    stage.answer_all(s(1));
    assert_eq!(stage.went, [raised, calls[0], calls[1]]);
}

/// The refusal was to the call as it was asked, not to what it has become.
#[test]
fn a_call_raised_while_the_ledger_has_it_is_asked_for_again_as_what_it_is_now() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(3, s(10))).leave(2);
    stage.call(want.clone());
    let waits = stage.push(want.clone());
    let offer = stage.tick();
    let raised = stage.ask_anew(waits, want.clone().high());
    let verdicts = stage.decide(&offer);
    stage.gate.verdicts(verdicts, stage.now);
    stage.run();
    assert!(stage.is_gone(raised));
    let urgent = stage.call(want.high());
    assert!(stage.is_gone(urgent));
}

/// R-C1: one caller floods, twenty others keep their part.
#[test]
fn permits_are_fair_between_one_flood_and_twenty_callers() {
    let mut stage = Stage::new();
    stage.calls(2_000, &Want::new(&bucket()).by(1));
    for caller in 2..22 {
        stage.calls(60, &Want::new(&bucket()).by(caller));
    }
    let mut got = [0_u32; 22];
    stage.answer_all(ms(20 * 1_049));
    let callers: Vec<usize> = (1..=1_000 * 2 + 20 * 60)
        .map(|seq| {
            if seq <= 2_000 {
                1
            } else {
                2 + (seq - 2_001) / 60
            }
        })
        .collect();
    for &seq in &stage.went {
        got[callers[usize::try_from(seq).unwrap() - 1]] += 1;
    }
    assert_eq!(stage.went.len(), 1_050);
    let sum: u32 = got.iter().sum();
    let squares: u32 = got.iter().map(|got| got * got).sum();
    let jain = f64::from(sum * sum) / (21.0 * f64::from(squares));
    assert!(jain >= 0.99, "Jain index {jain}: {got:?}");
}

/// In one batch as well as over time: a lump of permits is shared too.
#[test]
fn a_lump_of_permits_is_shared_between_callers() {
    let mut stage = Stage::new();
    let want = Want::new(&sliding(40, s(10)));
    let mut calls = Vec::new();
    for caller in 0..4 {
        calls.push((0..64).map(|_| want.clone().by(caller)).collect::<Vec<_>>());
    }
    let seqs: Vec<Vec<u64>> = calls
        .into_iter()
        .map(|wants| wants.into_iter().map(|want| stage.push(want)).collect())
        .collect();
    stage.run();
    for seqs in seqs {
        assert_eq!(count(&stage, &seqs), 10);
    }
}

/// Few large calls weigh as much as many small ones.
#[test]
fn a_caller_of_large_calls_gets_as_much_as_one_of_small_calls() {
    let mut stage = Stage::new();
    let rule = Rule::bucket(100, s(1), 10).unwrap().drift_ppm(0);
    let large = stage.calls(200, &Want::new(&rule).cost(10).by(1));
    let small = stage.calls(2_000, &Want::new(&rule).by(2));
    stage.answer_all(s(20));
    let (large, small) = (count(&stage, &large), count(&stage, &small));
    assert!((95..=106).contains(&large), "{large} large calls");
    assert!((950..=1_060).contains(&small), "{small} small calls");
}

fn promise(stage: &mut Stage, caller: u32, permille: u16) {
    let share = Share {
        at_least_permille: permille,
        ..Share::default()
    };
    stage.gate.set_share(CallerId(caller), share);
}

/// R-C2: what was promised is kept under a flood of urgent calls, and no more than that.
#[test]
fn a_promised_share_is_kept_under_a_flood_of_urgent_calls() {
    let mut stage = Stage::new();
    promise(&mut stage, 1, 100);
    let low = stage.calls(200, &Want::new(&bucket()).low().by(1));
    stage.calls(1_000, &Want::new(&bucket()).high().by(2));
    stage.answer_all(ms(20 * 499));
    let low = count(&stage, &low);
    assert_eq!(stage.went.len(), 500);
    assert!((49..=52).contains(&low), "{low} of 500");
}

#[test]
fn a_promised_share_does_not_fill_a_batch_before_urgent_calls() {
    let mut stage = Stage::new();
    promise(&mut stage, 1, 100);
    let want = Want::new(&sliding(40, s(10)));
    for _ in 0..100 {
        stage.push(want.clone().by(1));
    }
    for _ in 0..150 {
        stage.push(want.clone().high().by(2));
    }
    stage.answer_all(s(20));
    let normal = stage.went.iter().filter(|&&seq| seq <= 100).count();
    assert_eq!(stage.went.len(), 120);
    assert!((11..=14).contains(&normal), "{normal} of 120");
}

#[test]
fn what_a_caller_got_while_it_was_alone_is_no_debt() {
    let mut stage = Stage::new();
    promise(&mut stage, 1, 100);
    let low = stage.calls(400, &Want::new(&bucket()).low().by(1));
    stage.answer_all(ms(20 * 199));
    assert_eq!(count(&stage, &low), 200);
    stage.calls(1_000, &Want::new(&bucket()).high().by(2));
    stage.answer_all(s(2));
    let then = count(&stage, &low) - 200;
    assert!((9..=12).contains(&then), "{then} of 100");
}

#[test]
fn a_caller_that_comes_back_gets_no_arrears() {
    let mut stage = Stage::new();
    promise(&mut stage, 1, 200);
    stage.calls(2_000, &Want::new(&bucket()).by(2));
    let early = stage.calls(5, &Want::new(&bucket()).by(1));
    stage.answer_all(s(10));
    assert_eq!(count(&stage, &early), 5);
    let (before, late) = (
        stage.went.len(),
        stage.calls(200, &Want::new(&bucket()).by(1)),
    );
    stage.answer_all(s(2));
    let (of, late) = (stage.went.len() - before, count(&stage, &late));
    assert!(late <= of / 2 + 2, "{late} of {of}: more than half");
}

/// A cell that refuses keeps nobody who does not need it.
#[test]
fn a_refused_entity_does_not_keep_the_others() {
    let mut stage = Stage::new();
    let (slow, quick) = (sliding(1, s(3_600)), sliding(100, s(1)));
    let waiting = stage.calls(50, &Want::at("slow", &slow).patience(s(9_999)));
    let others = stage.calls(100, &Want::at("quick", &quick));
    assert_eq!(count(&stage, &waiting), 1);
    assert_eq!(count(&stage, &others), 100);
    let both = stage.call(Want::at("quick2", &quick).and("slow", &slow));
    assert_eq!(stage.fate(both), None);
}

#[test]
fn a_large_cost_is_not_starved_by_small_ones() {
    let mut stage = Stage::new();
    let rule = Rule::bucket(50, s(1), 25).unwrap().drift_ppm(0);
    stage.calls(25, &Want::new(&rule));
    stage.answer_all(Span::ZERO);
    let large = stage.call(Want::new(&rule).cost(25));
    for _ in 0..100 {
        stage.call(Want::new(&rule));
        stage.pass(ms(10));
    }
    assert_eq!(stage.went_after(large), Some(ms(500)));
}

/// Retries keep their place among those of their priority.
#[test]
fn a_retry_goes_before_those_who_came_after_it() {
    let mut stage = Stage::new();
    let first = stage.call(Want::new(&bucket()));
    stage.settle(first, Outcome::Finished { age: Span::ZERO });
    let waiting = stage.calls(3, &Want::new(&bucket()));
    let again = stage.call(Want::new(&bucket()).senior(stage.seniorities[&first]));
    stage.answer_all(s(1));
    assert_eq!(
        stage.went,
        [first, again, waiting[0], waiting[1], waiting[2]]
    );
    assert_eq!(stage.seniorities[&again], stage.seniorities[&first]);
}

/// M13: nobody overtakes, whatever its priority, its cost or its cell.
#[test]
fn m13_in_strict_order_nobody_overtakes() {
    let mut stage = Stage::fifo();
    let (slow, quick) = (sliding(1, s(10)), sliding(1_000, s(10)));
    let mut calls = vec![stage.call(Want::at("slow", &slow).low())];
    calls.push(stage.push(Want::at("slow", &slow).low()));
    calls.push(stage.push(Want::at("slow", &slow).high()));
    calls.push(stage.push(Want::at("quick", &quick).high().by(3)));
    calls.push(stage.push(Want::at("quick", &quick).low()));
    calls.push(stage.push(Want::at("slow", &slow)));
    stage.answer_all(s(100));
    assert_eq!(stage.went, calls);
    assert_eq!(stage.went_after(calls[3]), Some(s(20)));
}

#[test]
fn m13_in_strict_order_one_who_leaves_keeps_nobody() {
    let mut stage = Stage::fifo();
    let (slow, quick) = (sliding(1, s(10)), sliding(1_000, s(10)));
    let first = stage.call(Want::at("slow", &slow));
    stage.arrive(first);
    let leaves = stage.call(Want::at("slow", &slow));
    let next = stage.call(Want::at("quick", &quick));
    assert_eq!(stage.fate(next), None);
    stage.gate.cancel(Stage::id(leaves));
    stage.run();
    assert!(stage.is_gone(next));
    // One that does not wait at all keeps nobody either.
    stage.push(Want::at("slow", &slow).at_once());
    let next = stage.push(Want::at("quick", &quick).patience(s(1)));
    stage.run();
    assert!(stage.is_gone(next));
}

#[test]
fn m13_a_joiner_makes_a_call_no_earlier() {
    let mut stage = Stage::fifo();
    let calls: Vec<u64> = (0..3).map(|_| stage.push(Want::new(&bucket()))).collect();
    let raised = stage.ask_anew(calls[2], Want::new(&bucket()).high());
    stage.answer_all(s(1));
    assert_eq!(stage.went, [calls[0], calls[1], raised]);
}
