//! The stored form of limits, scopes, providers and owners: any bytes are a row or damaged.
//!
//! The first byte of an input says what the rest is: bytes as they are, or a row, a cell or a scope
//! to which the right checksum is added. A fuzzer does not find checksums.
//!
//! Promises: what can be read is written and read back unchanged, and decisions on it neither panic
//! nor exceed the limit.
//!
//! Never: reads a row of a future version.

use std::sync::Arc;

use jiff::tz::TimeZone;
use smallvec::smallvec;
use tollgate_core::ask::{
    Ask, CellId, Evidence, OwnerId, PermitId, Priority, Scopes, Term, Verdict,
};
use tollgate_core::limit::{Calendar, CalendarPeriod, Cell, Rule};
use tollgate_core::row::{CellRow, OwnerRow, ProviderRow, ScopeRow, sealed};
use tollgate_core::scope::Scope;
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_core::turn::{CellStore, turn};

/// The limit of the decisions.
const LIMIT: u64 = 5;

/// Reads a row, and decides on it.
pub fn run(input: &[u8]) {
    let Some((&kind, body)) = input.split_first() else {
        return;
    };
    let bytes = bytes_of(kind, body);
    if let Ok(row) = CellRow::from_bytes(&bytes) {
        assert_eq!(CellRow::from_bytes(&row.to_bytes()).as_ref(), Ok(&row));
        decide_on(&row.cell, Micros(0));
    }
    if let Ok(row) = ScopeRow::from_bytes(&bytes) {
        assert_eq!(ScopeRow::from_bytes(&row.to_bytes()).as_ref(), Ok(&row));
    }
    if let Ok(row) = ProviderRow::from_bytes(&bytes) {
        assert_eq!(ProviderRow::from_bytes(&row.to_bytes()).as_ref(), Ok(&row));
    }
    if let Ok(row) = OwnerRow::from_bytes(&bytes) {
        assert_eq!(OwnerRow::from_bytes(&row.to_bytes()).as_ref(), Ok(&row));
    }
    let base = Micros(u64::from(kind) << 32);
    if let Ok(cell) = Cell::from_bytes(&bytes, base) {
        let again = Cell::from_bytes(&cell.to_bytes(base), base);
        assert_eq!(again.as_ref(), Ok(&cell), "it reads back as it was written");
        decide_on(&cell, base);
    }
    if let Ok(scope) = Scope::from_bytes(&bytes) {
        assert_eq!(Scope::from_bytes(&scope.to_bytes()), Ok(scope));
        let _view = scope.peek(base);
    }
}

/// An input as a store has it.
fn bytes_of(kind: u8, body: &[u8]) -> Vec<u8> {
    match kind % 3 {
        0 => body.to_vec(),
        _ => sealed(body.to_vec()),
    }
}

/// Asks under every kind of rule: whatever the row says, it grants no more than the limit at once, and what it says
/// afterwards can be read again. A limit that only responses state has no number to compare with.
fn decide_on(cell: &Cell, base: Micros) {
    let period = Span::from_secs(10);
    let rules = [
        Rule::sliding(LIMIT, period),
        Rule::bucket(LIMIT, period, LIMIT),
        Rule::fixed(LIMIT, period),
        Rule::paced(LIMIT, period),
        Rule::in_flight(LIMIT),
        Rule::calendar(LIMIT, Calendar::new(CalendarPeriod::Day, TimeZone::UTC)),
        Rule::learned(period),
    ];
    for rule in rules.into_iter().flatten().map(Arc::new) {
        let id = CellId::named(&["x"]);
        let mut table = Table::default();
        *table.cell(id) = cell.clone();
        let now = Now {
            at: base,
            wall: Wall(1_794_744_000_000_000),
        };
        let asks: Vec<Ask> = (0..=LIMIT).map(|seq| ask(seq, id, &rule)).collect();
        let decided = turn(&mut table, now, &[], &asks);
        let granted = decided.verdicts.iter();
        let granted = granted.filter(|verdict| matches!(verdict, Verdict::Go { .. }));
        let is_bounded = rule.is_learned() || granted.count() as u64 <= LIMIT;
        assert!(is_bounded, "{rule:?}");
        let after = table.cell(id).clone();
        assert_eq!(
            Cell::from_bytes(&after.to_bytes(base), base).as_ref(),
            Ok(&after),
            "{rule:?}"
        );
        let _view = table.peek(id, &rule, now);
    }
}

fn ask(seq: u64, cell: CellId, rule: &Arc<Rule>) -> Ask {
    Ask {
        id: PermitId {
            owner: OwnerId(1),
            seq,
        },
        terms: smallvec![Term {
            cell,
            rule: rule.clone(),
            cost: 1,
            reserve: 0,
        }],
        scopes: Scopes::new(),
        priority: Priority::Normal,
        evidence: Evidence::Report {
            timeout: Span::from_secs(30),
            late: Span::from_secs(5),
        },
        max_wait: Span::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Nothing of the present format is left to what a fuzzer finds: it finds no checksums and few versions.
    #[test]
    fn the_corpus_has_every_version_of_cells_and_every_kind_of_row() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/rows");
        let (mut versions, mut kinds) = (BTreeSet::new(), BTreeSet::new());
        for file in std::fs::read_dir(corpus).expect("a corpus").flatten() {
            let input = std::fs::read(file.path()).expect("a readable file");
            let Some((&kind, body)) = input.split_first() else {
                continue;
            };
            let bytes = bytes_of(kind, body);
            if Cell::from_bytes(&bytes, Micros(0)).is_ok() {
                versions.extend(bytes.first().copied());
            }
            for (kind, is_read) in [
                (1, CellRow::from_bytes(&bytes).is_ok()),
                (2, ScopeRow::from_bytes(&bytes).is_ok()),
                (3, ProviderRow::from_bytes(&bytes).is_ok()),
                (4, OwnerRow::from_bytes(&bytes).is_ok()),
            ] {
                kinds.extend(is_read.then_some(kind));
            }
        }
        assert!(
            versions.is_superset(&BTreeSet::from([2, 3, 4, 5, 6])),
            "{versions:?}"
        );
        assert_eq!(kinds, BTreeSet::from([1, 2, 3, 4]));
    }
}
