//! How low priority keeps room for urgent calls.

use smallvec::smallvec;

use crate::ask::{Priority, Verdict, WakeOn};
use crate::limit::Rule;
use crate::test_ledger::{TestLedger, ms, s};
use crate::time::Span;

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period).unwrap().drift_ppm(0)
}

/// The free slots are spread over a time in which none frees.
#[test]
#[expect(clippy::result_large_err, reason = "tests ask a few times")]
fn low_priority_saves_slots_for_a_time_in_which_none_frees() {
    let mut ledger = TestLedger::new();
    let rule = sliding(4, s(10));
    let ask = |ledger: &mut TestLedger, priority| {
        ledger.try_terms(smallvec![TestLedger::term("x", &rule)], priority)
    };
    // Slots free after 10, 11 and 19 s.
    for then in [s(1), s(8), s(1)] {
        let permit = ask(&mut ledger, Priority::Normal).unwrap();
        ledger.arrive(&permit);
        ledger.advance(then);
    }
    // At 10 s two are free, one goes; the other one and that of 11 s must last from 10 to 19 s.
    assert!(ask(&mut ledger, Priority::High).is_ok());
    let verdict = ask(&mut ledger, Priority::Low).unwrap_err();
    assert!(
        matches!(verdict, Verdict::Wait { after, on: WakeOn::Time, .. } if after == s(3)),
        "{verdict:?}"
    );
}

#[test]
fn low_priority_is_paced_while_urgent_calls_are_seen() {
    let mut ledger = TestLedger::new();
    let rule = sliding(40, s(10));
    let term = TestLedger::term("x", &rule);
    ledger
        .try_terms(smallvec![term.clone()], Priority::High)
        .unwrap();
    let verdict = ledger
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
        ledger
            .try_terms(smallvec![term.clone()], Priority::Normal)
            .is_ok(),
        "only low is paced"
    );
    assert!(
        ledger
            .try_terms(smallvec![term.clone()], Priority::High)
            .is_ok()
    );
    ledger.advance(s(10));
    for _ in 0..5 {
        ledger
            .try_terms(smallvec![term.clone()], Priority::Low)
            .unwrap();
    }
}

/// One urgent call made low priority crawl for an hour: 7.2 s between two calls under 500 in 1 h, of which
/// 494 were free.
#[test]
fn low_priority_is_not_spread_over_long_windows() {
    for (rule, is_spread) in [(sliding(500, s(60)), true), (sliding(500, s(3_600)), false)] {
        let mut ledger = TestLedger::new();
        let term = TestLedger::term("x", &rule);
        let urgent = ledger.try_terms(smallvec![term.clone()], Priority::High);
        urgent.unwrap();
        let low = ledger.try_terms(smallvec![term], Priority::Low);
        assert_eq!(low.is_err(), is_spread, "{rule:?}");
    }
}
