//! Administration of `cache.db`: usage and purge.
//!
//! Promises: works while other processes run; they apply a purge within a second.
//!
//! Never: creates a `cache.db`, or shows a response or its URL.

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::database::{self, DatabaseError};
use super::{CacheUsage, DATABASE};

/// Purges that are remembered for other processes. A process that missed more of them drops
/// everything it holds in memory.
const PURGES_MAX: i64 = 16_384;

/// Why `cache.db` cannot be read.
pub type CacheAdminError = DatabaseError;

/// The cached responses in a folder.
pub fn usage(folder: &Path) -> Result<Vec<CacheUsage>, CacheAdminError> {
    match connect_existing(folder)? {
        Some(conn) => query_usage(&conn).map_err(|source| sqlite_error(folder, source)),
        None => Ok(Vec::new()),
    }
}

/// Purges the responses of a provider, of one of its entities, or all. Returns how many there were.
pub fn purge(
    folder: &Path,
    provider: Option<&str>,
    entity: Option<&str>,
) -> Result<u64, CacheAdminError> {
    match connect_existing(folder)? {
        Some(conn) => {
            purge_rows(&conn, provider, entity).map_err(|source| sqlite_error(folder, source))
        }
        None => Ok(0),
    }
}

fn connect_existing(folder: &Path) -> Result<Option<Connection>, CacheAdminError> {
    let path = folder.join(DATABASE);
    if !path.exists() {
        return Ok(None);
    }
    database::connect(&path).map(Some)
}

fn sqlite_error(folder: &Path, source: rusqlite::Error) -> CacheAdminError {
    DatabaseError::Sqlite {
        path: folder.join(DATABASE),
        source,
    }
}

pub(super) fn query_usage(conn: &Connection) -> rusqlite::Result<Vec<CacheUsage>> {
    let mut statement = conn.prepare(
        "SELECT provider, entity, count(*), sum(size) FROM answers
         GROUP BY provider, entity ORDER BY provider, entity",
    )?;
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let rows = statement.query_map([], |row| {
        Ok(CacheUsage {
            provider: row.get(0)?,
            entity: row.get(1)?,
            responses: number(row.get(2)?),
            bytes: number(row.get(3)?),
        })
    })?;
    rows.collect()
}

pub(super) fn purge_rows(
    conn: &Connection,
    provider: Option<&str>,
    entity: Option<&str>,
) -> rusqlite::Result<u64> {
    let change = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    let gone = change.execute(
        "DELETE FROM answers WHERE (?1 IS NULL OR provider = ?1) AND (?2 IS NULL OR entity = ?2)",
        (provider, entity),
    )?;
    // By the wall clock, like the responses: other processes may still store some that were
    // requested before.
    change.execute(
        "INSERT INTO purges (provider, entity, at)
         VALUES (?1, ?2, CAST(unixepoch('subsec') * 1000000 AS INTEGER))",
        (provider, entity),
    )?;
    trim_purges(&change)?;
    change.commit()?;
    // Returns free pages to the disk; if another process is reading now, the next purge does it.
    let _later = conn.execute_batch("PRAGMA incremental_vacuum");
    Ok(gone as u64)
}

/// Bounds the number of remembered purges.
pub(super) fn trim_purges(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute(
        "DELETE FROM purges WHERE seq <= (SELECT max(seq) FROM purges) - ?1",
        [PURGES_MAX],
    )?;
    Ok(())
}
