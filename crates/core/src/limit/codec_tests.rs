//! Cells as bytes, and cells that are forgotten.

use crate::limit::Rule;
use crate::limit::tests::{bucket, sliding};
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
        let mut drive = TestLedger::new();
        let permits = drive.take_all(&rule);
        drive.advance(s(1));
        drive.arrive_all(&permits[..3]);
        let expected = drive.wait(&rule);
        let snapshot = drive.table.snapshot(drive.now.at);
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
        drive.advance(s(4));
        assert_eq!(later.peek(&rule), drive.peek(&rule), "{rule}");
    }
}

#[test]
fn a_changed_byte_of_an_encoded_cell_is_detected() {
    let mut drive = TestLedger::new();
    let rule = sliding(5, s(10));
    let permits = drive.take_all(&rule);
    drive.arrive_all(&permits);
    let (id, bytes) = drive.table.snapshot(drive.now.at).remove(0);
    for place in 0..bytes.len() {
        let mut broken = bytes.clone();
        broken[place] ^= 0x10;
        let damaged = drive
            .table
            .restore(&[(id, broken)], drive.now.at, Span::ZERO);
        assert_eq!(damaged.len(), 1, "byte {place}");
        let short = bytes[..place].to_vec();
        assert_eq!(
            drive
                .table
                .restore(&[(id, short)], drive.now.at, Span::ZERO)
                .len(),
            1
        );
    }
}

#[test]
fn idle_cells_are_swept_and_busy_ones_are_not() {
    let mut drive = TestLedger::new();
    for rule in [
        sliding(5, s(10)),
        bucket(5, s(10), 5),
        Rule::fixed(5, s(10)).unwrap(),
    ] {
        let permits = drive.take_all(&rule);
        drive.arrive_all(&permits);
        drive.table.sweep(drive.now.at, 10);
        assert_eq!(drive.table.len(), 1);
        drive.advance(s(60));
        drive.table.sweep(drive.now.at, 10);
        assert!(drive.table.is_empty(), "{rule}");
    }
}
