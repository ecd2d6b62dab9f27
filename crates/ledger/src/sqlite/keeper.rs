//! The keeper thread: moves what was committed from the log into the database.
//!
//! Promises: a checkpoint waits for the disk, so it is made beside the ledger thread, on a
//! connection of its own, and no permit waits for it.
//!
//! Never: needed for safety. The log is complete without it; it would only grow. But a disk that
//! fails here is not believed again: a sync that is tried twice may succeed over what was lost.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use rusqlite::{Connection, ErrorCode};

use crate::sqlite::Shared;

/// Checkpoints as often as it is asked to.
pub(super) fn keep(conn: &Connection, asked: &Receiver<()>, shared: &Shared) {
    while asked.recv().is_ok() {
        match checkpoint(conn) {
            Ok(pages) => shared.log_pages.store(pages, Ordering::Relaxed),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => {
                shared.is_broken.store(true, Ordering::Release);
            }
            // Busy, or full: tried again with the next.
            Err(_) => {}
        }
    }
}

/// Moves the log as far as nobody else uses it. Returns how many pages of it were left.
pub(super) fn checkpoint(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?
        .query_row([], |row| Ok((row.get(1)?, row.get(2)?)))
        .map(|(length, moved): (i64, i64)| if length == moved { 0 } else { length })
}
