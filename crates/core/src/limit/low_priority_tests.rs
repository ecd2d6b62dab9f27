//! How low priority leaves room for urgent calls.

use smallvec::smallvec;

use crate::ask::{Priority, Verdict, WakeOn};
use crate::limit::Rule;
use crate::test_ledger::{TestLedger, ms, s};
use crate::time::Span;

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

/// A time in which nothing comes back is provided for: what is free now is spread over it.
#[test]
#[expect(clippy::result_large_err, reason = "tests ask a few times")]
fn low_priority_saves_slots_for_a_time_in_which_none_frees() {
    let mut drive = TestLedger::new();
    let rule = sliding(4, s(10));
    let ask = |drive: &mut TestLedger, priority| {
        drive.try_terms(smallvec![TestLedger::term("x", &rule)], priority)
    };
    // Slots come back after 10, 11 and 19 s.
    for then in [s(1), s(8), s(1)] {
        let permit = ask(&mut drive, Priority::Normal).unwrap();
        drive.arrive(&permit);
        drive.advance(then);
    }
    // At 10 s two are free, one goes; the other one and that of 11 s must last from 10 to 19 s.
    assert!(ask(&mut drive, Priority::High).is_ok());
    let verdict = ask(&mut drive, Priority::Low).unwrap_err();
    assert!(
        matches!(verdict, Verdict::Wait { after, on: WakeOn::Time, .. } if after == s(3)),
        "{verdict:?}"
    );
}

#[test]
fn low_priority_is_paced_while_urgent_calls_are_seen() {
    let mut drive = TestLedger::new();
    let rule = sliding(40, s(10));
    let term = TestLedger::term("x", &rule);
    drive
        .try_terms(smallvec![term.clone()], Priority::High)
        .unwrap();
    let verdict = drive
        .try_terms(smallvec![term.clone()], Priority::Low)
        .unwrap_err();
    let Verdict::Wait {
        after,
        on: WakeOn::Time,
        ..
    } = verdict
    else {
        panic!("{verdict:?}")
    };
    assert_eq!(after, ms(250), "39 slots in 10 s");
    assert!(
        drive
            .try_terms(smallvec![term.clone()], Priority::Normal)
            .is_ok(),
        "only low is paced"
    );
    assert!(
        drive
            .try_terms(smallvec![term.clone()], Priority::High)
            .is_ok()
    );
    drive.advance(s(10));
    for _ in 0..5 {
        drive
            .try_terms(smallvec![term.clone()], Priority::Low)
            .unwrap();
    }
}
