//! The tables of the database: what they look like, whether they are ours, and older formats.
//!
//! Promises: what is found must be what was made, to the letter; anything else is refused and left
//! as it is.
//!
//! Never: reads or writes a count.

use std::path::Path;

use rusqlite::{Connection, params};
use tollgate_core::time::Now;

use crate::sqlite::error::OpenError;
use crate::sqlite::rows::{FIRST_EPOCH, clock_pair};

/// "Toll": marks the file as ours for every SQLite tool.
const APPLICATION: i64 = 0x546f_6c6c;

/// The tables as they are written today.
const SCHEMA: i64 = 4;

/// By name, as SQLite keeps their text: what is found must be this to the letter.
const TABLES: [&str; 3] = [
    "CREATE TABLE cells (id BLOB PRIMARY KEY, epoch INTEGER NOT NULL, state BLOB NOT NULL) \
     STRICT, WITHOUT ROWID",
    "CREATE TABLE meta (id INTEGER PRIMARY KEY CHECK (id = 1), boot TEXT NOT NULL, \
     epoch INTEGER NOT NULL, since INTEGER NOT NULL, at INTEGER NOT NULL, wall INTEGER NOT NULL, \
     pair INTEGER NOT NULL, ids BLOB NOT NULL, owners INTEGER NOT NULL, \
     generation INTEGER NOT NULL, unknown_epoch INTEGER NOT NULL, \
     unknown_at INTEGER NOT NULL) STRICT",
    "CREATE TABLE scopes (id BLOB PRIMARY KEY, state BLOB NOT NULL) STRICT, WITHOUT ROWID",
];

/// Format 3 had this beside them. It says nothing that outlives a second: those who wait are in the
/// rows of their cells now, and come again by themselves.
const WAITERS_3: &str = "CREATE TABLE waiters (cell BLOB NOT NULL, owner INTEGER NOT NULL, on_event INTEGER NOT NULL, \
     priority INTEGER NOT NULL, cost INTEGER NOT NULL, got INTEGER NOT NULL, \
     since INTEGER NOT NULL, due INTEGER NOT NULL, until INTEGER NOT NULL, \
     woken INTEGER NOT NULL, PRIMARY KEY (cell, owner)) STRICT, WITHOUT ROWID";

/// Formats 1 and 2 had this in its place.
const WAITERS_2: &str = "CREATE TABLE waiters (cell BLOB NOT NULL, owner INTEGER NOT NULL, \
     on_event INTEGER NOT NULL, \
     want INTEGER NOT NULL, got INTEGER NOT NULL, since INTEGER NOT NULL, \
     until INTEGER NOT NULL, woken INTEGER NOT NULL, PRIMARY KEY (cell, owner)) \
     STRICT, WITHOUT ROWID";

/// Format 1 had this in place of the second table, and everything else like format 2.
const META_1: &str = "CREATE TABLE meta (id INTEGER PRIMARY KEY CHECK (id = 1), \
     boot TEXT NOT NULL, \
     epoch INTEGER NOT NULL, since INTEGER NOT NULL, at INTEGER NOT NULL, wall INTEGER NOT NULL, \
     pair INTEGER NOT NULL, ids BLOB NOT NULL, owners INTEGER NOT NULL) STRICT";

/// Is the database whole and ours? Only a new one may be empty: to SQLite a file that was cut off
/// at its beginning is an empty database.
pub(super) fn check(conn: &Connection, path: &Path, is_new: bool) -> Result<(), OpenError> {
    let store = |error| OpenError::from_store(path, error);
    let read = |name: &str| -> rusqlite::Result<i64> {
        conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
    };
    let tables = tables(conn).map_err(store)?;
    if tables.is_empty() && !is_new {
        return Err(OpenError::Wiped(path.to_owned()));
    }
    let application = read("application_id").map_err(store)?;
    if !tables.is_empty() && application != APPLICATION {
        return Err(OpenError::Foreign(path.to_owned()));
    }
    let schema = read("user_version").map_err(store)?;
    if schema > SCHEMA {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found: schema,
            known: SCHEMA,
        });
    }
    let is_known = tables_of(schema).is_some_and(|known| tables == known);
    if !tables.is_empty() && !is_known {
        return Err(OpenError::Corrupt {
            path: path.to_owned(),
            what: "its tables are not the ones that were made".to_owned(),
        });
    }
    let check: String = conn
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(store)?;
    if check != "ok" {
        return Err(OpenError::Corrupt {
            path: path.to_owned(),
            what: check,
        });
    }
    Ok(())
}

/// How the tables were made, by name.
pub(super) fn tables(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    conn.prepare("SELECT sql FROM sqlite_schema ORDER BY name")?
        .query_map([], |row| row.get(0))?
        .collect()
}

/// The tables of a format.
fn tables_of(schema: i64) -> Option<Vec<&'static str>> {
    let mut tables = TABLES.to_vec();
    match schema {
        SCHEMA => {}
        3 => tables.push(WAITERS_3),
        2 => tables.push(WAITERS_2),
        1 => {
            tables[1] = META_1;
            tables.push(WAITERS_2);
        }
        _ => return None,
    }
    Some(tables)
}

/// From an older format to today's, inside a transaction. Rows stay as they are: they are read in
/// their own format, and written in today's when they change.
pub(super) fn migrate(conn: &Connection) -> rusqlite::Result<()> {
    let found = tables(conn)?;
    let is_of = |schema| tables_of(schema).is_some_and(|known| found == known);
    if is_of(1) {
        conn.execute_batch(&format!(
            "ALTER TABLE meta RENAME TO meta_1; {}; \
             INSERT INTO meta SELECT *, 0, 0, 0 FROM meta_1; DROP TABLE meta_1;",
            TABLES[1]
        ))?;
    }
    if is_of(1) || is_of(2) || is_of(3) {
        conn.execute_batch(&format!(
            "DROP TABLE waiters; PRAGMA user_version = {SCHEMA};"
        ))?;
    }
    Ok(())
}

/// The tables of a folder that is new, inside a transaction.
pub(super) fn create(conn: &Connection, boot: &str, now: Now) -> rusqlite::Result<()> {
    let [at, wall, sum] = clock_pair(now);
    conn.execute_batch(&TABLES.join(";"))?;
    conn.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA};"
    ))?;
    conn.execute(
        "INSERT INTO meta VALUES (1, ?1, ?5, ?2, ?2, ?3, ?4, zeroblob(16), 0, 0, 0, 0)",
        params![boot, at, wall, sum, FIRST_EPOCH],
    )?;
    Ok(())
}
