//! Cells as bytes, and cells that are swept.

use crate::limit::tests::{bucket, sliding};
use crate::limit::{Cell, Damaged, Rule};
use crate::test_ledger::{TestLedger, s};
use crate::time::{Micros, Span};

#[test]
fn an_encoded_cell_is_the_same_on_any_clock() {
    let rules = [
        sliding(5, s(10)),
        bucket(5, s(10), 5),
        Rule::fixed(5, s(10)).unwrap(),
    ];
    for rule in rules {
        let mut ledger = TestLedger::new();
        let permits = ledger.take_all(&rule);
        ledger.advance(s(1));
        ledger.arrive_all(&permits[..3]);
        let expected = ledger.wait(&rule);
        let snapshot = ledger.table.snapshot(ledger.now.at);
        let mut other = TestLedger::new();
        other.now.at = Micros(90_000_000);
        assert!(
            other
                .table
                .restore(&snapshot, other.now.at, Span::ZERO)
                .is_empty()
        );
        assert_eq!(other.wait(&rule), expected, "{rule}");
        let mut later = TestLedger::new();
        later.table.restore(&snapshot, later.now.at, s(4));
        ledger.advance(s(4));
        assert_eq!(later.peek(&rule), ledger.peek(&rule), "{rule}");
    }
}

#[test]
fn a_changed_byte_of_an_encoded_cell_is_detected() {
    let mut ledger = TestLedger::new();
    let rule = sliding(5, s(10));
    let permits = ledger.take_all(&rule);
    ledger.arrive_all(&permits);
    let (id, bytes) = ledger.table.snapshot(ledger.now.at).remove(0);
    for place in 0..bytes.len() {
        let mut broken = bytes.clone();
        broken[place] ^= 0x10;
        let damaged = ledger
            .table
            .restore(&[(id, broken)], ledger.now.at, Span::ZERO);
        assert_eq!(damaged.len(), 1, "byte {place}");
        let short = bytes[..place].to_vec();
        assert_eq!(
            ledger
                .table
                .restore(&[(id, short)], ledger.now.at, Span::ZERO)
                .len(),
            1
        );
    }
}

#[test]
fn idle_cells_are_swept_and_busy_ones_are_not() {
    let mut ledger = TestLedger::new();
    for rule in [
        sliding(5, s(10)),
        bucket(5, s(10), 5),
        Rule::fixed(5, s(10)).unwrap(),
    ] {
        let permits = ledger.take_all(&rule);
        ledger.arrive_all(&permits);
        ledger.table.sweep(ledger.now.at, 10);
        assert_eq!(ledger.table.len(), 1);
        ledger.advance(s(60));
        ledger.table.sweep(ledger.now.at, 10);
        assert!(ledger.table.is_empty(), "{rule}");
    }
}

/// Found by the fuzz target `rows`: the second entry replaced the first, whose end was still
/// remembered, so the cell did not read back as it was written.
#[test]
fn a_cell_with_a_permit_twice_is_damaged() {
    let permit = [0, 0, 0, 0, 0];
    let cell = |permits: &[u8]| {
        let head = [2, 0, 0, 0, 0, 0, 0x40, 0x2c, 0, 0, 1];
        let tail = [0, 0, 0, 0, 0, 0, 0];
        let bytes = crate::row::sealed([&head[..], permits, &tail[..]].concat());
        Cell::from_bytes(&bytes, Micros(0))
    };
    assert!(cell(&[&[1][..], &permit[..]].concat()).is_ok());
    let twice = [&[2][..], &permit[..], &permit[..]].concat();
    assert_eq!(cell(&twice), Err(Damaged::Bytes));
}
