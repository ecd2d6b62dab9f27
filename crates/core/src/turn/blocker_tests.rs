//! What a rejected ask is told to wait for.

use smallvec::smallvec;

use crate::ask::{BlockedBy, Priority, Verdict};
use crate::limit::Rule;
use crate::test_ledger::{TestLedger, s};

/// Connections of one process grew although a rate limit was what calls waited for: the worst case of a
/// running call is longer than the wait for the rate.
#[test]
fn a_limit_of_one_process_blocks_only_if_nothing_else_does() {
    let mut ledger = TestLedger::new();
    let (rate, own) = (
        Rule::sliding(1, s(2)).unwrap(),
        Rule::in_flight(1).unwrap().of_one_process(),
    );
    let both = || {
        smallvec![
            TestLedger::term("own", &own),
            TestLedger::term("rate", &rate)
        ]
    };
    let running = ledger.try_terms(both(), Priority::Normal).expect("room");
    ledger.arrive(&running);
    let by = |verdict: Verdict| match verdict {
        Verdict::Wait { by, .. } => by,
        other @ (Verdict::Go { .. } | Verdict::Never(_)) => panic!("{other:?}"),
    };
    let blocked = ledger.try_terms(both(), Priority::Normal).unwrap_err();
    assert_eq!(by(blocked), BlockedBy::Term(1));
    let alone = smallvec![TestLedger::term("own", &own)];
    let blocked = ledger.try_terms(alone, Priority::Normal).unwrap_err();
    assert_eq!(by(blocked), BlockedBy::Term(0));
}
