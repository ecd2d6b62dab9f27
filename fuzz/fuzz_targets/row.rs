//! Any bytes are a row of a store or damaged; what is read is written and read again the same.
//!
//! The first byte of an input chooses the kind; the rest is the fields, which get a right checksum,
//! as a hostile or a newer program could write them.
//!
//! Run: `cargo +nightly fuzz run row -- -max_total_time=60`
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::row::{CellRow, FORMAT, ScopeRow, sealed};

fuzz_target!(|input: &[u8]| {
    drop((CellRow::from_bytes(input), ScopeRow::from_bytes(input)));
    let Some((kind, fields)) = input.split_first() else {
        return;
    };
    let bytes = sealed([&[FORMAT, 1 + kind % 2], fields].concat());
    if let Ok(row) = CellRow::from_bytes(&bytes) {
        assert_eq!(CellRow::from_bytes(&row.to_bytes()), Ok(row));
    }
    if let Ok(row) = ScopeRow::from_bytes(&bytes) {
        assert_eq!(ScopeRow::from_bytes(&row.to_bytes()), Ok(row));
    }
});
