//! The checkpoint thread: moves what was committed from the log into the database.
//!
//! Promises: a checkpoint waits for the disk, so it is made beside the ledger thread, on a
//! connection of its own, and no permit waits for it. Under load something is written meanwhile;
//! that little is left to the ledger thread, which moves it between two transactions. When nobody
//! has written for a while, the log is moved and cut to nothing.
//!
//! Never: needed for safety. The log is complete without it; it would only grow. But a disk that
//! fails here is not believed again: a sync that is tried twice may succeed over what was lost.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, ErrorCode};

/// Pages that a checkpoint may leave for the ledger thread to move: some 20 transactions that came
/// while it was made. Moving them takes well under a millisecond.
const FEW_PAGES: i64 = 128;

/// The log is cut when nobody has written for this long. To write over what is there is faster than
/// to make the file longer, so a pause of a few seconds between two bursts must not cut it.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// How the log is, as the last checkpoint found it.
#[derive(Debug, Default)]
pub(super) struct LogHealth {
    /// Little of it is left to be moved: the ledger thread does it.
    pub(super) is_nearly_moved: AtomicBool,
    /// The disk has failed a checkpoint.
    pub(super) has_disk_failed: AtomicBool,
    /// The length of a log that is too long and cannot be shortened, because a reader of the
    /// database uses it; 0 = there is none.
    pub(super) held_bytes: AtomicU64,
}

/// What a checkpoint has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checkpoint {
    /// It has moved what it could; this many pages are left.
    Moved { remaining: i64 },
    /// Another thread or process is making one. Nothing is known about what is left.
    Busy,
}

/// Checkpoints as often as it is asked to, and when nobody writes.
pub(super) fn run(conn: &Connection, log: &File, asked: &Receiver<()>, health: &LogHealth) {
    let mut idle = IdleLog::default();
    loop {
        let done = match asked.recv_timeout(IDLE_AFTER) {
            Ok(()) => checkpoint(conn),
            Err(RecvTimeoutError::Timeout) => idle.truncate(conn, log),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        record_result(&done, health);
    }
}

/// Notes how a checkpoint went.
pub(super) fn record_result(done: &rusqlite::Result<Checkpoint>, health: &LogHealth) {
    match done {
        Ok(Checkpoint::Moved { remaining }) => {
            // Once the rest is moved, the log is written over from its beginning, which the disk
            // does faster than making it longer.
            let is_nearly_moved = (1..=FEW_PAGES).contains(remaining);
            health
                .is_nearly_moved
                .store(is_nearly_moved, Ordering::Relaxed);
        }
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => {
            health.has_disk_failed.store(true, Ordering::Release);
        }
        // Busy, or full: tried again with the next.
        Ok(Checkpoint::Busy) | Err(_) => {}
    }
}

/// Moves the log as far as nobody else uses it.
pub(super) fn checkpoint(conn: &Connection) -> rusqlite::Result<Checkpoint> {
    run_checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)")
}

fn run_checkpoint(conn: &Connection, how: &str) -> rusqlite::Result<Checkpoint> {
    conn.prepare_cached(how)?.query_row([], |row| {
        let (is_busy, pages, moved): (bool, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        // While another one is being made, SQLite counts −1 of −1 pages.
        Ok(if is_busy && pages < 0 {
            Checkpoint::Busy
        } else {
            Checkpoint::Moved {
                remaining: pages - moved,
            }
        })
    })
}

/// The log as it was when nobody had asked for a checkpoint for a while.
#[derive(Debug, Default)]
struct IdleLog {
    seen: Option<(u64, SystemTime)>,
}

impl IdleLog {
    /// Cuts the log to nothing if nobody, in any process, has written since the last look.
    fn truncate(&mut self, conn: &Connection, log: &File) -> rusqlite::Result<Checkpoint> {
        let nothing = Ok(Checkpoint::Moved { remaining: 0 });
        let found = log
            .metadata()
            .ok()
            .and_then(|file| Some((file.len(), file.modified().ok()?)));
        let is_idle = found.is_some_and(|(bytes, _)| bytes > 0) && found == self.seen;
        self.seen = found;
        if !is_idle {
            return nothing;
        }
        // First without SQLite's write lock: a call that comes now does not wait for the disk.
        match checkpoint(conn)? {
            Checkpoint::Moved { remaining: 0 } => {
                run_checkpoint(conn, "PRAGMA wal_checkpoint(TRUNCATE)")
            }
            other => Ok(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_sim::test_host::TempFolder;

    use super::*;

    struct Database {
        folder: TempFolder,
        conn: Connection,
    }

    impl Database {
        fn new(name: &str) -> Database {
            let folder = TempFolder::new(&format!("log-{name}"));
            let conn = Connection::open(folder.path().join("x.db")).unwrap();
            conn.execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (x)",
            )
            .unwrap();
            Database { folder, conn }
        }

        fn other(&self) -> Connection {
            Connection::open(self.folder.path().join("x.db")).unwrap()
        }

        fn log(&self) -> File {
            File::open(self.folder.path().join("x.db-wal")).unwrap()
        }
    }

    /// Set by [`wait_for_reader`] once the truncating checkpoint holds SQLite's checkpoint lock.
    static IS_WAITING: AtomicBool = AtomicBool::new(false);

    /// SQLite calls it only while the checkpoint waits for a reader, never when it failed to get
    /// the checkpoint lock: without this signal a passive checkpoint could win the race for that
    /// lock and end the other one at once.
    fn wait_for_reader(_attempt: i32) -> bool {
        IS_WAITING.store(true, Ordering::Release);
        std::thread::park_timeout(Duration::from_millis(1));
        true
    }

    /// SQLite reports (1, −1, −1) then; it was once taken for "all moved", and the log grew to 372
    /// MB in ten seconds.
    #[test]
    fn a_busy_checkpoint_says_nothing_about_what_is_left() {
        let database = Database::new("busy");
        let (health, mut other) = (LogHealth::default(), database.other());
        health.is_nearly_moved.store(true, Ordering::Relaxed);
        // A reader of an older snapshot, and a checkpoint that waits for it to end.
        let reader = database.other();
        reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
        database
            .conn
            .execute_batch("INSERT INTO t VALUES (1)")
            .unwrap();
        other.busy_handler(Some(wait_for_reader)).unwrap();
        let truncation =
            std::thread::spawn(move || run_checkpoint(&other, "PRAGMA wal_checkpoint(TRUNCATE)"));
        while !IS_WAITING.load(Ordering::Acquire) && !truncation.is_finished() {
            std::thread::yield_now();
        }
        let done = checkpoint(&database.conn);
        assert_eq!(done, Ok(Checkpoint::Busy));
        record_result(&done, &health);
        assert!(
            health.is_nearly_moved.load(Ordering::Relaxed),
            "nothing was learned"
        );
        reader.execute_batch("COMMIT").unwrap();
        assert_eq!(
            truncation.join().unwrap(),
            Ok(Checkpoint::Moved { remaining: 0 })
        );
    }

    #[test]
    fn an_idle_log_is_cut_to_nothing_and_a_busy_one_is_not() {
        let database = Database::new("idle");
        let (keeper, log) = (database.other(), database.log());
        let mut idle = IdleLog::default();
        let length = || log.metadata().unwrap().len();
        let write = || {
            database
                .conn
                .execute_batch("INSERT INTO t VALUES (1)")
                .unwrap();
        };
        write();
        idle.truncate(&keeper, &log).unwrap();
        let before = length();
        write();
        idle.truncate(&keeper, &log).unwrap();
        assert!(length() > before, "somebody has written in between");
        idle.truncate(&keeper, &log).unwrap();
        assert_eq!(length(), 0);
        write();
        assert!(length() > 0);
    }

    /// A disk that failed once may have dropped what it was given: it is not believed again. A log
    /// that is in use is no failure.
    #[test]
    fn a_disk_that_fails_a_checkpoint_is_not_believed_again() {
        let error = |code| {
            let error = rusqlite::ffi::Error::new(code);
            Err(rusqlite::Error::SqliteFailure(error, None))
        };
        let health = LogHealth::default();
        record_result(&error(rusqlite::ffi::SQLITE_BUSY), &health);
        assert!(!health.has_disk_failed.load(Ordering::Acquire));
        record_result(&error(rusqlite::ffi::SQLITE_IOERR), &health);
        assert!(health.has_disk_failed.load(Ordering::Acquire));
        record_result(&Ok(Checkpoint::Moved { remaining: 0 }), &health);
        assert!(health.has_disk_failed.load(Ordering::Acquire));
    }
}
