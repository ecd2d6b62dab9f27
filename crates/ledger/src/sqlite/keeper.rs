//! The keeper thread: moves what was committed from the log into the database.
//!
//! Promises: a checkpoint waits for the disk, so it is made beside the ledger thread, on a
//! connection of its own, and no permit waits for it.
//!
//! Never: needed for safety. The log is complete without it; it would only grow.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::Receiver;

use rusqlite::Connection;

/// Checkpoints as often as it is asked to; `pages` is how long the log was then.
pub(super) fn keep(conn: &Connection, asked: &Receiver<()>, pages: &AtomicI64) {
    while asked.recv().is_ok() {
        // One that fails is tried again with the next.
        if let Ok(length) = checkpoint(conn) {
            pages.store(length, Ordering::Relaxed);
        }
    }
}

/// Moves the log as far as nobody else uses it. Returns how many pages of it were left.
pub(super) fn checkpoint(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?
        .query_row([], |row| Ok((row.get(1)?, row.get(2)?)))
        .map(|(length, moved): (i64, i64)| if length == moved { 0 } else { length })
}
