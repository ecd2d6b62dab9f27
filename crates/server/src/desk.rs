//! `desk.db`: what must survive a restart and is no permit: sources, and the tasks of queues.
//!
//! Promises: what a call has written is on disk when it returns. Names and rows are bounded. Only the
//! owner can read the file.
//!
//! Never: holds a payload of a task, or a key.

mod source;
mod task;
pub use source::{Source, SourceError};
pub use task::{QueueCounts, TaskEvent};

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::Connection;

/// How long another daemon with the same state folder may hold the file: a write takes milliseconds.
const BUSY: Duration = Duration::from_secs(5);

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS sources (
        name TEXT PRIMARY KEY, url TEXT NOT NULL, every TEXT, cron TEXT, priority TEXT, output TEXT
    ) STRICT;
    CREATE TABLE IF NOT EXISTS tasks (
        queue TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL, PRIMARY KEY (queue, id)
    ) STRICT, WITHOUT ROWID;
    PRAGMA user_version = 1;
";

/// The desk.
#[derive(Debug)]
pub struct Desk {
    database: Mutex<Connection>,
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
    /// A bound.
    #[error("{0}")]
    Full(&'static str),
}

impl Desk {
    /// Opens the file in this folder, or makes it.
    pub fn open(folder: &Path) -> Result<Desk, DeskError> {
        fs::create_dir_all(folder)?;
        let path = folder.join("desk.db");
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        options.open(&path)?;
        Desk::prepare(Connection::open(&path)?)
    }

    /// A desk that ends with the process.
    pub fn in_memory() -> Result<Desk, DeskError> {
        Desk::prepare(Connection::open_in_memory()?)
    }

    fn prepare(database: Connection) -> Result<Desk, DeskError> {
        database.busy_timeout(BUSY)?;
        database.pragma_update(None, "journal_mode", "WAL")?;
        database.pragma_update(None, "synchronous", "FULL")?;
        let version = database.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version > 1 {
            return Err(DeskError::Newer(version));
        }
        database.execute_batch(SCHEMA)?;
        Ok(Desk {
            database: Mutex::new(database),
        })
    }
}
