//! The ledger's table, which a run may write as bytes and read back on another clock at any time.
//!
//! Promises: a restore loses neither state nor time: it reads exactly what was written, `elapsed`
//! later, on a clock with any reading.
//!
//! Never: changes anything but the ledger's clock: nodes do not notice.

use fastrand::Rng;
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Span};

/// How far ahead of node 0's clock the ledger's may be set: years of uptime.
const OFFSET_MAX: u64 = 1 << 47;

/// A table and its clock: node 0's clock plus an offset that each restore draws again.
#[derive(Debug)]
pub(super) struct RestoringTable {
    table: Table,
    offset: Span,
    /// The ledger's clock at the last transaction.
    last: Micros,
    restore_ppm: u32,
    dice: Rng,
}

impl RestoringTable {
    pub(super) fn new(restore_ppm: u32, seed: u64) -> RestoringTable {
        RestoringTable {
            table: Table::default(),
            offset: Span::ZERO,
            last: Micros(0),
            restore_ppm,
            dice: Rng::with_seed(seed ^ 0x7ab1e),
        }
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// The reading of the ledger's clock.
    pub(super) fn ledger_now(&self, now: Now) -> Now {
        Now {
            at: now.at + self.offset,
            wall: now.wall,
        }
    }

    /// The table for one transaction, and the reading of its clock.
    pub(super) fn open(&mut self, now: Now) -> (&mut Table, Now) {
        if self.restore_ppm > 0 && self.dice.u32(0..1_000_000) < self.restore_ppm {
            self.restore(now);
        }
        let now = self.ledger_now(now);
        self.last = now.at;
        (&mut self.table, now)
    }

    /// Writes the table as of its last use and reads it back now, sometimes on another clock.
    fn restore(&mut self, now: Now) {
        let snapshot = self.table.snapshot(self.last);
        let elapsed = self.ledger_now(now).at.since(self.last);
        if self.dice.bool() {
            self.offset = Span(self.dice.u64(0..=OFFSET_MAX));
        }
        self.table = Table::default();
        let now = self.ledger_now(now);
        let damaged = self.table.restore(&snapshot, now.at, elapsed);
        assert!(damaged.is_empty(), "{damaged:?}");
    }
}
