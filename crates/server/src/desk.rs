//! `desk.db`: what must survive a restart and is no permit: sources, the tasks of queues, and alerts.
//!
//! Promises: what a call has written is on disk when it returns. Names and rows are bounded. Only the
//! owner can read the file.
//!
//! Never: holds a payload of a task, or a key.

mod outbox;
mod run;
mod source;
mod task;
pub use outbox::{ActiveAlert, OUTBOX_MAX, OutboxMessage};
pub use run::{RunResult, SourceRun};
pub use source::Source;
pub use task::{QueueCounts, TaskEvent, TaskNoted};

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};

/// How long another daemon with the same state folder may hold the file: a write takes milliseconds.
const BUSY: Duration = Duration::from_secs(5);

/// The version of the file.
const FORMAT: i64 = 5;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS sources (
        name TEXT PRIMARY KEY, url TEXT NOT NULL, every TEXT, cron TEXT, priority TEXT, output TEXT
    ) STRICT;
    CREATE TABLE IF NOT EXISTS tasks (
        queue TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL,
        failures INTEGER NOT NULL DEFAULT 0, at INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (queue, id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS tasks_by_time ON tasks (at);
    CREATE TABLE IF NOT EXISTS ended (
        queue TEXT NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (queue, id)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS ended_by_time ON ended (at);
    CREATE TABLE IF NOT EXISTS queues (
        name TEXT PRIMARY KEY, active INTEGER NOT NULL DEFAULT 0,
        scheduled INTEGER NOT NULL DEFAULT 0, reserved INTEGER NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS outbox (
        event TEXT NOT NULL, webhook TEXT NOT NULL, body TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0, next_at INTEGER NOT NULL, daemon TEXT NOT NULL DEFAULT '',
        UNIQUE (event, webhook)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS alerts (
        name TEXT NOT NULL, kind TEXT NOT NULL, level TEXT NOT NULL,
        value INTEGER NOT NULL, threshold INTEGER NOT NULL,
        provider TEXT NOT NULL, entity TEXT, daemon TEXT NOT NULL, PRIMARY KEY (daemon, name, kind)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS source_runs (
        name TEXT PRIMARY KEY, next_at INTEGER, not_before INTEGER, last_at INTEGER,
        failures INTEGER NOT NULL DEFAULT 0, queued INTEGER NOT NULL DEFAULT 0,
        outcome TEXT, status INTEGER, bytes INTEGER, output TEXT, error TEXT
    ) STRICT, WITHOUT ROWID;
    PRAGMA user_version = 5;
";

/// Format 1 counted the tasks of a queue each time, and knew no failures.
const FROM_FORMAT_1: &str = "
    ALTER TABLE tasks ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN at INTEGER NOT NULL DEFAULT 0;
    UPDATE tasks SET at = unixepoch();
    CREATE TABLE queues (
        name TEXT PRIMARY KEY, active INTEGER NOT NULL DEFAULT 0,
        scheduled INTEGER NOT NULL DEFAULT 0, reserved INTEGER NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID;
    INSERT INTO queues SELECT queue, sum(state = 'active'), sum(state = 'scheduled'), sum(state = 'reserved')
        FROM tasks GROUP BY queue;
";

/// Up to format 4 nobody knew whose alerts and messages were: the first daemon that opens the file takes them.
const FROM_FORMAT_4: &str = "
    ALTER TABLE outbox ADD COLUMN daemon TEXT NOT NULL DEFAULT '';
    ALTER TABLE alerts RENAME TO alerts_4;
    CREATE TABLE alerts (
        name TEXT NOT NULL, kind TEXT NOT NULL, level TEXT NOT NULL,
        value INTEGER NOT NULL, threshold INTEGER NOT NULL,
        provider TEXT NOT NULL, entity TEXT, daemon TEXT NOT NULL, PRIMARY KEY (daemon, name, kind)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO alerts SELECT name, kind, level, value, threshold, name, NULL, '' FROM alerts_4;
    DROP TABLE alerts_4;
";

/// The desk.
#[derive(Debug)]
pub struct Desk {
    database: Mutex<Connection>,
    /// Where the file is; `None` = in memory.
    folder: Option<PathBuf>,
    /// Grows with every change of the sources by this process.
    sources_version: AtomicU64,
    /// Held while this process runs the sources.
    scheduling: Mutex<Option<File>>,
}

/// Why the desk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The folder or the file.
    #[error("desk.db cannot be opened")]
    File(#[from] std::io::Error),
    /// SQLite.
    #[error("desk.db cannot be read or written")]
    Database(#[from] rusqlite::Error),
    /// A newer version wrote it.
    #[error("desk.db was written by a newer version of Tollgate (format {0})")]
    Newer(i64),
    /// A bound. The message says what to do.
    #[error("{0}")]
    Full(&'static str),
}

impl DeskError {
    /// With its cause.
    pub(crate) fn in_words(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}

impl Desk {
    /// Opens the file in this folder, or makes it.
    pub fn open(folder: &Path) -> Result<Desk, DeskError> {
        fs::create_dir_all(folder)?;
        let path = folder.join("desk.db");
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        options.open(&path)?;
        let desk = Desk::prepare(Connection::open(&path)?)?;
        Ok(Desk {
            folder: Some(folder.to_owned()),
            ..desk
        })
    }

    /// A desk that ends with the process.
    pub fn in_memory() -> Result<Desk, DeskError> {
        Desk::prepare(Connection::open_in_memory()?)
    }

    fn prepare(mut database: Connection) -> Result<Desk, DeskError> {
        database.busy_timeout(BUSY)?;
        database.pragma_update(None, "journal_mode", "WAL")?;
        database.pragma_update(None, "synchronous", "FULL")?;
        let version = database.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version > FORMAT {
            return Err(DeskError::Newer(version));
        }
        let change = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have changed it since.
        let version: i64 = change.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == 1 {
            change.execute_batch(FROM_FORMAT_1)?;
        }
        if version < FORMAT && change.table_exists(None, "alerts")? {
            change.execute_batch(FROM_FORMAT_4)?;
        }
        change.execute_batch(SCHEMA)?;
        change.commit()?;
        Ok(Desk {
            database: Mutex::new(database),
            folder: None,
            sources_version: AtomicU64::new(0),
            scheduling: Mutex::new(None),
        })
    }

    /// Is there a file in this folder?
    pub(crate) fn exists(folder: &Path) -> bool {
        folder.join("desk.db").exists()
    }

    /// The folder of the file; `None` = in memory.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Another number than before if this process has changed the sources.
    pub(crate) fn sources_version(&self) -> u64 {
        self.sources_version.load(Ordering::Acquire)
    }

    fn on_sources_changed(&self) {
        self.sources_version.fetch_add(1, Ordering::AcqRel);
    }

    /// One process of a state folder runs the sources: `true` = this one. The kernel gives the place up with the
    /// process, however that ends.
    pub(crate) fn runs_sources(&self) -> Result<bool, DeskError> {
        let Some(folder) = &self.folder else {
            return Ok(true);
        };
        let mut held = self.scheduling.lock();
        if held.is_some() {
            return Ok(true);
        }
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(folder.join("scheduler.lock"))?;
        match file.try_lock() {
            Ok(()) => *held = Some(file),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        Ok(true)
    }
}
