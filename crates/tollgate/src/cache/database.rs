//! `cache.db`: its tables, and responses as rows.
//!
//! Promises: a file that is damaged or belongs to another program is moved aside and recreated; one
//! that a newer version wrote stays untouched. A row that cannot be read counts as missing.
//!
//! Never: holds the only copy of anything important: deleting it costs time, not data.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row};
use tollgate_core::time::Wall;

use super::key::{Salt, UrlHash, Variant};
use super::stored_form::decode_head;
use super::{CachedResponse, DATABASE, WireForm};

/// "TolC": marks the file as ours for every SQLite tool.
const APPLICATION: i64 = 0x546f_6c43;

/// The current version of the tables.
const SCHEMA: i64 = 1;

/// How long to wait for another process that writes; a write takes milliseconds.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// The pages of an empty file: its tables and indexes.
const PAGES_MIN: u64 = 64;

const TABLES: &str = "
    CREATE TABLE meta (id INTEGER PRIMARY KEY CHECK (id = 1), salt BLOB NOT NULL) STRICT;
    INSERT INTO meta VALUES (1, randomblob(32));
    CREATE TABLE answers (id INTEGER PRIMARY KEY, key BLOB NOT NULL, variant BLOB NOT NULL,
      url BLOB NOT NULL, stored INTEGER NOT NULL, provider TEXT NOT NULL, entity TEXT, size INTEGER NOT NULL, used INTEGER NOT NULL,
      until INTEGER NOT NULL, head BLOB NOT NULL, body BLOB NOT NULL, UNIQUE (key, variant)) STRICT;
    CREATE INDEX answers_used ON answers (used, size);
    CREATE INDEX answers_url ON answers (url);
    CREATE INDEX answers_until ON answers (until);
    CREATE INDEX answers_whose ON answers (provider, entity, size);
    CREATE TABLE purges (seq INTEGER PRIMARY KEY AUTOINCREMENT, url BLOB, at INTEGER,
      provider TEXT, entity TEXT) STRICT;";

/// Why `cache.db` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The folder cannot be created or written.
    #[error("{path} cannot be used: {source}")]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A newer version wrote it.
    #[error("{0} was written by a newer version of Tollgate")]
    Newer(PathBuf),
    /// SQLite cannot use it.
    #[error("{path} cannot be used: {source}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
}

impl DatabaseError {
    /// Is the file itself damaged, so that a new one would work?
    fn is_damage(&self) -> bool {
        match self {
            DatabaseError::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
            DatabaseError::Folder { .. } | DatabaseError::Newer(_) => false,
        }
    }
}

/// Opens `cache.db` in a folder for writing, up to this many bytes of responses, and creates it if
/// it is missing. The second value is the file that a damaged one was moved to.
pub(super) fn open(
    folder: &Path,
    bytes_max: u64,
) -> Result<(Connection, Option<PathBuf>), DatabaseError> {
    let path = folder.join(DATABASE);
    let fail = |source| DatabaseError::Folder {
        path: folder.to_owned(),
        source,
    };
    let mut make = DirBuilder::new();
    make.recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(fail)?;
    make_file(&path).map_err(fail)?;
    let (conn, aside) = match connect(&path) {
        Err(error) if error.is_damage() => {
            let aside = move_aside(&path).map_err(fail)?;
            make_file(&path).map_err(fail)?;
            (connect(&path)?, Some(aside))
        }
        opened => (opened?, None),
    };
    match limit_file_size(&conn, bytes_max) {
        Ok(()) => Ok((conn, aside)),
        Err(source) => Err(DatabaseError::Sqlite { path, source }),
    }
}

/// Only the owner may read responses.
fn make_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path)
}

/// A connection to an existing file. It creates none, because others could read that.
pub(super) fn connect(path: &Path) -> Result<Connection, DatabaseError> {
    let store = |source| DatabaseError::Sqlite {
        path: path.to_owned(),
        source,
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(store)?;
    conn.busy_timeout(BUSY_WAIT).map_err(store)?;
    prepare(&conn, path)?;
    Ok(conn)
}

fn prepare(conn: &Connection, path: &Path) -> Result<(), DatabaseError> {
    let store = |source| DatabaseError::Sqlite {
        path: path.to_owned(),
        source,
    };
    // Before the first table: purged pages go back to the disk.
    conn.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = 16777216;")
        .map_err(store)?;
    conn.execute_batch("BEGIN IMMEDIATE").map_err(store)?;
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let found = number("PRAGMA user_version").map_err(store)?;
    if found > SCHEMA {
        return Err(DatabaseError::Newer(path.to_owned()));
    }
    let application = number("PRAGMA application_id").map_err(store)?;
    let tables = number("SELECT count(*) FROM sqlite_schema").map_err(store)?;
    if tables == 0 {
        conn.execute_batch(TABLES).map_err(store)?;
        conn.pragma_update(None, "application_id", APPLICATION)
            .map_err(store)?;
        conn.pragma_update(None, "user_version", SCHEMA)
            .map_err(store)?;
    } else if application != APPLICATION {
        // Another program's file is not our cache.
        return Err(store(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_NOTADB),
            Some("it belongs to another program".to_owned()),
        )));
    }
    // Files of earlier versions lack this index.
    conn.execute_batch("CREATE INDEX IF NOT EXISTS purges_at ON purges (at); COMMIT")
        .map_err(store)?;
    // Unreadable tables are damage too; detect it now.
    salt(conn).map_err(store)?;
    conn.query_row("SELECT count(*) FROM purges", [], |_| Ok(()))
        .map_err(store)
}

/// Bounds the file: eviction keeps the responses within so many bytes, and this bounds the file
/// itself, whatever eviction does.
pub(super) fn limit_file_size(conn: &Connection, bytes_max: u64) -> rusqlite::Result<()> {
    let page: i64 = conn.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    // Half as much again for pages that are not full, and some for the tables themselves.
    let bytes = bytes_max.saturating_add(bytes_max / 2);
    let pages = bytes / page.unsigned_abs().max(1) + PAGES_MIN;
    set_pages_max(conn, pages)
}

/// Keeps the file at its size; a small one may still get its tables.
pub(super) fn stop_growth(conn: &Connection) -> rusqlite::Result<()> {
    let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    set_pages_max(conn, pages.unsigned_abs().max(PAGES_MIN))
}

fn set_pages_max(conn: &Connection, pages: u64) -> rusqlite::Result<()> {
    conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
}

/// Is the current file damaged?
pub(super) fn is_damaged(path: &Path) -> bool {
    match connect(path) {
        Err(error) => error.is_damage(),
        Ok(conn) => conn
            .query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0))
            .map_or(true, |found| found != "ok"),
    }
}

/// Moves a damaged file away, over an older one: one is enough for inspection. Processes that have
/// it open keep using it.
pub(super) fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_extension("db.damaged");
    fs::rename(path, &aside)?;
    remove_all(path, &["db-wal", "db-shm"])?;
    Ok(aside)
}

/// Removes the file. Processes that have it open keep using it.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    remove_all(path, &["db", "db-wal", "db-shm"])
}

fn remove_all(path: &Path, ends: &[&str]) -> io::Result<()> {
    for end in ends {
        match fs::remove_file(path.with_extension(end)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// The salt of its keys.
pub(super) fn salt(conn: &Connection) -> rusqlite::Result<Salt> {
    conn.query_row("SELECT salt FROM meta", [], |row| row.get(0))
        .map(Salt)
}

/// A response from its row: head, body, variant, provider, entity.
pub(super) fn decode_row(row: &Row<'_>) -> rusqlite::Result<Option<CachedResponse>> {
    let head: Vec<u8> = row.get("head")?;
    let body: Vec<u8> = row.get("body")?;
    let variant = Variant(row.get("variant")?);
    let url = UrlHash(row.get("url")?);
    let stored = Wall(row.get::<_, i64>("stored")?.unsigned_abs());
    let (provider, entity) = (row.get("provider")?, row.get("entity")?);
    Ok(
        decode_head(&head).map(|(status, freshness, names, headers)| CachedResponse {
            url,
            stored,
            vary_names: names,
            variant,
            freshness,
            status,
            headers,
            body: Bytes::from(body),
            provider,
            entity,
            wire_form: WireForm::default(),
        }),
    )
}
