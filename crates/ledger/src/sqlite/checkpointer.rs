//! The checkpoint thread: moves what was committed from the log into the database.
//!
//! Promises: a checkpoint waits for the disk, so it is made beside the ledger thread, on a
//! connection of its own, and no permit waits for it. Under load something is written meanwhile;
//! that little is left to the ledger thread, which moves it between two transactions.
//!
//! Never: needed for safety. The log is complete without it; it would only grow. But a disk that
//! fails here is not believed again: a sync that is tried twice may succeed over what was lost.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::Receiver;

use rusqlite::{Connection, ErrorCode};

/// Pages that a checkpoint may leave for the ledger thread to move: some 20 transactions that came
/// while it was made. Moving them takes well under a millisecond.
const FEW_PAGES: i64 = 128;

/// How the log is, as the last checkpoint found it.
#[derive(Debug, Default)]
pub(super) struct LogHealth {
    /// How long it was at the last checkpoint that could not move all of it.
    pub(super) pages: AtomicI64,
    /// Little of it is left to be moved: the ledger thread does it.
    pub(super) is_nearly_moved: AtomicBool,
    /// The disk has failed a checkpoint.
    pub(super) has_disk_failed: AtomicBool,
}

/// What a checkpoint has left in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogStatus {
    pages: i64,
    remaining: i64,
}

impl LogStatus {
    /// Only what came meanwhile is left: once that is moved, the log is written over from its
    /// beginning, which the disk does faster than making it longer.
    fn is_nearly_moved(self) -> bool {
        (1..=FEW_PAGES).contains(&self.remaining)
    }
}

/// Checkpoints as often as it is asked to.
pub(super) fn run(conn: &Connection, asked: &Receiver<()>, health: &LogHealth) {
    while asked.recv().is_ok() {
        record_result(checkpoint(conn), health);
    }
}

/// Notes how a checkpoint went.
pub(super) fn record_result(log: rusqlite::Result<LogStatus>, health: &LogHealth) {
    match log {
        Ok(log) => {
            let pages = if log.remaining == 0 { 0 } else { log.pages };
            health.pages.store(pages, Ordering::Relaxed);
            let rest = log.is_nearly_moved();
            health.is_nearly_moved.store(rest, Ordering::Relaxed);
        }
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => {
            health.has_disk_failed.store(true, Ordering::Release);
        }
        // Busy, or full: tried again with the next.
        Err(_) => {}
    }
}

/// Moves the log as far as nobody else uses it.
pub(super) fn checkpoint(conn: &Connection) -> rusqlite::Result<LogStatus> {
    conn.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?
        .query_row([], |row| {
            let (pages, moved): (i64, i64) = (row.get(1)?, row.get(2)?);
            let left = pages - moved;
            Ok(LogStatus {
                pages,
                remaining: left,
            })
        })
}
