//! Rows as bytes: what is written is read, and nothing else.

use proptest::prelude::*;
use smallvec::smallvec;

use super::{CellRow, FORMAT, RowMeta, RowVersion, ScopeRow, sealed};
use crate::ask::{CellId, OwnerId, Priority, Reopen, WakeOn};
use crate::fairness::{WAITERS_MAX, Waiter};
use crate::limit::{Cell, Damaged, Rule};
use crate::reservation::Reservation;
use crate::scope::Scope;
use crate::test_ledger::{TestLedger, s};
use crate::time::Micros;

fn used_cell() -> Cell {
    let mut ledger = TestLedger::new();
    let rule = Rule::sliding(5, s(10)).unwrap();
    for _ in 0..3 {
        let terms = smallvec![TestLedger::term("x", &rule)];
        let permit = ledger.try_terms(terms, Priority::Normal).unwrap();
        ledger.arrive(&permit);
    }
    let used = ledger.table.get(CellId::named(&["x"])).unwrap();
    // As a store has it: without what is only remembered to be quick.
    Cell::from_bytes(&used.to_bytes(Micros(0)), Micros(0)).unwrap()
}

fn waiter(number: u32) -> Waiter {
    Waiter {
        owner: OwnerId(number),
        on: [WakeOn::Time, WakeOn::Event][number as usize % 2],
        priority: [Priority::Low, Priority::Normal, Priority::High][number as usize % 3],
        cost: u64::from(number) << 20,
        granted: 7,
        since: Micros(1 << 40),
        due: Micros(1 << 53),
        until: Micros(1 << 53),
        is_woken: number.is_multiple_of(5),
    }
}

fn meta() -> RowMeta {
    RowMeta {
        version: RowVersion {
            owner: OwnerId(9),
            nonce: u64::MAX,
            batch: 12,
        },
        time: Micros(1 << 50),
        scale: 3,
        epoch: 0,
        revision: 0,
        unknown: Vec::new(),
    }
}

fn cell_row() -> CellRow {
    CellRow {
        cell: used_cell(),
        waiters: (0..7).map(waiter).collect(),
        reservation: Reservation::of_numbers([10, 7, 3, 6, 2, 1 << 50, 0, u64::MAX]),
        losses: 300,
        meta: meta(),
    }
}

fn scope_row() -> ScopeRow {
    let mut scope = Scope::default();
    scope.close(Some(Micros(77)), Reopen::Probe);
    ScopeRow {
        scope,
        meta: meta(),
    }
}

/// A field as it is written.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap();
    [&[tag, length], bytes].concat()
}

/// The bytes of a row with this field behind its others.
fn with_field(row: &[u8], tag: u8, bytes: &[u8]) -> Vec<u8> {
    let body = &row[..row.len() - 4];
    sealed([body, &field(tag, bytes)].concat())
}

/// Costs are a caller's, and sums of them grow without end. A row that says more was not written by
/// this program.
#[test]
fn no_amount_or_time_above_two_to_the_53_is_written_or_read() {
    let mut row = cell_row();
    row.waiters[0].cost = u64::MAX;
    row.waiters[0].until = Micros((1 << 53) + 1);
    row.meta.time = Micros(u64::MAX);
    let read = CellRow::from_bytes(&row.to_bytes()).unwrap();
    let first = read.waiters[0];
    assert_eq!((first.cost, first.until), (1 << 53, Micros(1 << 53)));
    assert_eq!(read.meta.time, Micros(1 << 53));
    let mut above = vec![0; 1];
    for amount in [1, (1 << 53) + 1, 0, 0, 0, 0] {
        super::fields::number(&mut above, amount);
    }
    let waiters = with_field(&CellRow::default().to_bytes(), 4, &above);
    assert_eq!(CellRow::from_bytes(&waiters), Err(Damaged::Bytes));
}

#[test]
fn a_row_reads_back_as_it_was_written() {
    let (cell, scope) = (cell_row(), scope_row());
    assert_eq!(CellRow::from_bytes(&cell.to_bytes()), Ok(cell));
    assert_eq!(ScopeRow::from_bytes(&scope.to_bytes()), Ok(scope));
    let empty = CellRow::default();
    assert_eq!(CellRow::from_bytes(&empty.to_bytes()), Ok(empty));
    let mut full = cell_row();
    full.waiters = (0..300).map(waiter).collect();
    let read = CellRow::from_bytes(&full.to_bytes()).unwrap();
    assert_eq!(read.waiters[..], full.waiters[..WAITERS_MAX]);
}

/// What stores wrote before rows had this format.
#[test]
fn a_cell_and_a_scope_that_were_stored_alone_are_read() {
    let (cell, scope) = (used_cell(), scope_row().scope);
    let read = CellRow::from_bytes(&cell.to_bytes(Micros(0))).unwrap();
    assert_eq!((read.cell, read.waiters.len()), (cell, 0));
    let read = ScopeRow::from_bytes(&scope.to_bytes()).unwrap();
    assert_eq!(read.scope, scope);
}

#[test]
fn an_unknown_optional_field_is_kept_and_an_unknown_required_one_is_not_read_past() {
    let newer = with_field(&cell_row().to_bytes(), 100, b"from a newer program");
    let mut read = CellRow::from_bytes(&newer).unwrap();
    assert_eq!(read.cell, used_cell());
    read.waiters.clear();
    let written = CellRow::from_bytes(&read.to_bytes()).unwrap();
    assert_eq!(written.meta.unknown, read.meta.unknown);
    assert_eq!(written.meta.unknown.len(), 1);
    let required = with_field(&cell_row().to_bytes(), 101, b"x");
    assert_eq!(
        CellRow::from_bytes(&required),
        Err(Damaged::UnknownField(101))
    );
    let required = with_field(&scope_row().to_bytes(), 7, b"x");
    assert_eq!(
        ScopeRow::from_bytes(&required),
        Err(Damaged::UnknownField(7))
    );
}

#[test]
fn a_row_is_damaged_that_is_of_another_kind_or_has_a_field_twice_or_none() {
    let (cell, scope) = (cell_row().to_bytes(), scope_row().to_bytes());
    assert_eq!(CellRow::from_bytes(&scope), Err(Damaged::Bytes));
    assert_eq!(ScopeRow::from_bytes(&cell), Err(Damaged::Bytes));
    let twice = with_field(&cell, 4, b"");
    assert_eq!(CellRow::from_bytes(&twice), Err(Damaged::Bytes));
    assert_eq!(
        CellRow::from_bytes(&sealed(vec![FORMAT, 1])),
        Err(Damaged::Bytes)
    );
}

#[test]
fn every_changed_bit_and_every_cut_is_detected() {
    for (bytes, is_cell) in [
        (cell_row().to_bytes(), true),
        (scope_row().to_bytes(), false),
    ] {
        let is_read = |bytes: &[u8]| match is_cell {
            true => CellRow::from_bytes(bytes).is_ok(),
            false => ScopeRow::from_bytes(bytes).is_ok(),
        };
        assert!(is_read(&bytes));
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[place] ^= 1 << bit;
                assert!(!is_read(&changed), "bit {bit} of byte {place}");
            }
            assert!(!is_read(&bytes[..place]), "cut at {place}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(16), ..ProptestConfig::with_cases(256) })]

    /// With a right checksum, as a hostile or a newer writer could make them.
    #[test]
    fn any_bytes_are_a_row_or_damaged(
        kind in 1_u8..=2,
        fields in proptest::collection::vec(
            (1_u8..12, proptest::collection::vec(any::<u8>(), 0..64)),
            0..6,
        ),
        start in any::<bool>(),
    ) {
        let mut bytes = vec![FORMAT, kind];
        if start {
            let row = cell_row().to_bytes();
            bytes.extend_from_slice(&row[2..row.len() - 4]);
        }
        for (tag, value) in &fields {
            bytes.extend(field(*tag, value));
        }
        let bytes = sealed(bytes);
        if let Ok(row) = CellRow::from_bytes(&bytes) {
            prop_assert_eq!(CellRow::from_bytes(&row.to_bytes()), Ok(row));
        }
        if let Ok(row) = ScopeRow::from_bytes(&bytes) {
            prop_assert_eq!(ScopeRow::from_bytes(&row.to_bytes()), Ok(row));
        }
    }
}

/// A row of the first epoch that nobody has written since.
#[test]
fn an_epoch_without_a_revision_is_written_as_it_was_read() {
    let meta = RowMeta { epoch: 7, ..meta() };
    let row = CellRow { meta, ..cell_row() };
    assert_eq!(CellRow::from_bytes(&row.to_bytes()), Ok(row));
}
