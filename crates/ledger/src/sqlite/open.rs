//! Opening a state folder: what is there, is it ours, and which boot wrote it.
//!
//! Promises: a folder that cannot be believed is refused with a message that names it and the next
//! step; nothing in it is changed then. After a boot, limits of a minute or longer keep their
//! counts at the distance that calendar time says, and shorter ones start used up.
//!
//! Never: starts anew over something that was there.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};
use tollgate_core::ask::OwnerId;
use tollgate_core::limit::{Cell, PERIOD_MAX};
use tollgate_core::scope::Scope;
use tollgate_core::time::{Micros, Now, Wall};

use crate::sqlite::lock::KernelLock;
use crate::sqlite::page::{FIRST_EPOCH, Home, is_complete, pair};
use crate::sqlite::trouble::OpenError;
use crate::sqlite::wake::Post;

/// "Toll": marks the file as ours for every SQLite tool.
const APPLICATION: i64 = 0x546f_6c6c;

/// The tables as they are written today.
const SCHEMA: i64 = 1;

/// Written into the lock file once there is a database: without it an empty folder is new, with it
/// somebody has taken the database away.
const MARK: &[u8] = b"tollgate ledger\n";

/// Opening waits this long for the lock: a boot's first process may be reading every row.
const OPEN_WAIT: Duration = Duration::from_secs(5);

/// The database file in a state folder.
pub(super) const DATABASE: &str = "ledger.db";

/// By name, as SQLite keeps their text: what is found must be this to the letter.
const TABLES: [&str; 4] = [
    "CREATE TABLE cells (id BLOB PRIMARY KEY, epoch INTEGER NOT NULL, state BLOB NOT NULL) \
     STRICT, WITHOUT ROWID",
    "CREATE TABLE meta (id INTEGER PRIMARY KEY CHECK (id = 1), boot TEXT NOT NULL, \
     epoch INTEGER NOT NULL, since INTEGER NOT NULL, at INTEGER NOT NULL, wall INTEGER NOT NULL, \
     pair INTEGER NOT NULL, ids BLOB NOT NULL, owners INTEGER NOT NULL) STRICT",
    "CREATE TABLE scopes (id BLOB PRIMARY KEY, state BLOB NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE waiters (cell BLOB NOT NULL, owner INTEGER NOT NULL, on_event INTEGER NOT NULL, \
     want INTEGER NOT NULL, got INTEGER NOT NULL, since INTEGER NOT NULL, \
     until INTEGER NOT NULL, woken INTEGER NOT NULL, PRIMARY KEY (cell, owner)) \
     STRICT, WITHOUT ROWID",
];

/// A folder that is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) conn: Connection,
    /// Another connection, for checkpoints.
    pub(super) keeper: Connection,
    pub(super) lock: KernelLock,
    pub(super) home: Home,
    /// The write-ahead log, to make it durable. SQLite takes no locks on it, so closing it is
    /// harmless; closing another handle on the database would drop SQLite's locks.
    pub(super) log: File,
    pub(super) post: Post,
    pub(super) socket: std::os::unix::net::UnixDatagram,
}

/// Opens the folder, and makes it if it is not there.
pub(super) fn open(folder: &Path, now: Now) -> Result<Opened, OpenError> {
    let fail = |source| OpenError::from_io(folder, source);
    make_folder(folder).map_err(fail)?;
    refuse_network(folder)?;
    let mut mark = lock_file(folder).map_err(fail)?;
    let mut lock = KernelLock::new(lock_file(folder).map_err(fail)?).map_err(fail)?;
    if !lock.acquire(OPEN_WAIT).map_err(fail)? {
        return Err(OpenError::Busy(folder.to_owned()));
    }
    let mut found = Vec::new();
    mark.read_to_end(&mut found).map_err(fail)?;
    let database = folder.join(DATABASE);
    let is_new = found != MARK;
    if !is_new && !database.exists() {
        return Err(OpenError::Wiped(database));
    }
    let conn = connect(&database)?;
    check(&conn, &database, is_new)?;
    configure(&conn, &database)?;
    let store = |error| OpenError::from_store(&database, error);
    let (home, is_other_clock) = enter(&conn, now).map_err(store)?;
    let post = Post::open(File::open(folder).map_err(fail)?, home.owner).map_err(fail)?;
    let alive = post.0.alive();
    if is_other_clock && !alive.is_empty() {
        post.0.close();
        return Err(OpenError::OtherClock(folder.to_owned()));
    }
    forget_dead(&conn, &alive).map_err(store)?;
    conn.execute_batch("COMMIT").map_err(store)?;
    let log = File::open(folder.join("ledger.db-wal")).map_err(fail)?;
    if is_new {
        mark.set_len(0).map_err(fail)?;
        mark.write_all(MARK).map_err(fail)?;
    }
    log.sync_data().map_err(fail)?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(fail)?;
    lock.release().map_err(fail)?;
    let keeper = connect(&database)?;
    configure(&keeper, &database)?;
    Ok(Opened {
        conn,
        keeper,
        lock,
        home,
        log,
        post: post.0,
        socket: post.1,
    })
}

fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn lock_file(folder: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(folder.join("ledger.lock"))
}

/// Locks and shared memory do not hold between hosts, so neither would the limits.
fn refuse_network(folder: &Path) -> Result<(), OpenError> {
    let found =
        rustix::fs::statfs(folder).map_err(|error| OpenError::from_io(folder, error.into()))?;
    match network(i128::from(found.f_type)) {
        Some(kind) => Err(OpenError::Network {
            folder: folder.to_owned(),
            kind,
        }),
        None => Ok(()),
    }
}

/// File systems, by the kernel's numbers, whose locks do not hold or cannot be trusted to.
fn network(magic: i128) -> Option<&'static str> {
    match magic & 0xffff_ffff {
        0x6969 => Some("NFS"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => Some("CIFS"),
        0x6573_5546 => Some("FUSE"),
        0x0102_1997 => Some("9P"),
        0x00c3_6400 => Some("Ceph"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        _ => None,
    }
}

fn connect(path: &Path) -> Result<Connection, OpenError> {
    let store = |error| OpenError::from_store(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(store)?;
    conn.busy_timeout(Duration::from_secs(1)).map_err(store)?;
    Ok(conn)
}

/// Is the database whole and ours? Only a new one may be empty: to SQLite a file that was cut off
/// at its beginning is an empty database.
fn check(conn: &Connection, path: &Path, is_new: bool) -> Result<(), OpenError> {
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
    if !tables.is_empty() && tables != TABLES {
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

/// A commit is in the kernel's hands when it returns, so it survives the process; what must survive
/// the power as well is synced by ourselves, after the lock is given up.
fn configure(conn: &Connection, path: &Path) -> Result<(), OpenError> {
    let store = |error| OpenError::from_store(path, error);
    let mode: String = conn
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(store)?;
    if mode != "wal" {
        return Err(OpenError::NoLog(path.to_owned()));
    }
    conn.execute_batch(
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; \
         PRAGMA journal_size_limit = 4194304; PRAGMA trusted_schema = OFF;",
    )
    .map_err(store)
}

/// How the tables were made, by name.
fn tables(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    conn.prepare("SELECT sql FROM sqlite_schema ORDER BY name")?
        .query_map([], |row| row.get(0))?
        .collect()
}

/// Begins a transaction in which this process gets its number, and the rows this boot's clock.
/// The second of the pair: other processes of this very boot may work on another clock.
fn enter(conn: &Connection, now: Now) -> rusqlite::Result<(Home, bool)> {
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let (boot, clock) = this_boot();
    let boot_now = format!("{boot} {clock}");
    let [at, wall, sum] = pair(now);
    if tables(conn)?.is_empty() {
        conn.execute_batch(&TABLES.join(";"))?;
        conn.execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA};"
        ))?;
        conn.execute(
            "INSERT INTO meta VALUES (1, ?1, ?5, ?2, ?2, ?3, ?4, zeroblob(16), 0)",
            params![boot_now, at, wall, sum, FIRST_EPOCH],
        )?;
    }
    let (found, noted): (String, [i64; 3]) =
        conn.query_row("SELECT boot, at, wall, pair FROM meta", [], |row| {
            Ok((row.get(0)?, [row.get(1)?, row.get(2)?, row.get(3)?]))
        })?;
    let then = Now {
        at: Micros(noted[0].cast_unsigned()),
        wall: Wall(noted[1].cast_unsigned()),
    };
    if pair(then) != noted || !is_complete(conn)? {
        return Err(damaged());
    }
    if found != boot_now {
        rebase(conn, then, now)?;
        conn.execute(
            "UPDATE meta SET boot = ?1, epoch = epoch + 1, since = ?2, at = ?2, wall = ?3, \
             pair = ?4",
            params![boot_now, at, wall, sum],
        )?;
    }
    let (owner, epoch, since): (u32, i64, i64) = conn.query_row(
        "UPDATE meta SET owners = (owners + 1) & 0xffffffff RETURNING owners, epoch, since",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let home = Home {
        owner: OwnerId(owner),
        epoch,
        since: Micros(since.cast_unsigned()).min(now.at),
    };
    Ok((home, found != boot_now && found.starts_with(&boot)))
}

/// Those who were killed wait for nothing any more.
fn forget_dead(conn: &Connection, alive: &[OwnerId]) -> rusqlite::Result<()> {
    let waiting: Vec<u32> = conn
        .prepare("SELECT DISTINCT owner FROM waiters")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for owner in waiting {
        if !alive.contains(&OwnerId(owner)) {
            conn.execute("DELETE FROM waiters WHERE owner = ?1", [owner])?;
        }
    }
    Ok(())
}

/// What is stored contradicts itself.
fn damaged() -> rusqlite::Error {
    let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(corrupt, Some("rows are missing or changed".to_owned()))
}

/// Which boot this is, and which view of its clock this process has.
fn this_boot() -> (String, String) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let clock = std::fs::read_link("/proc/self/ns/time")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default();
    (boot.trim().to_owned(), clock)
}

/// Puts every row onto this boot's clock. Calendar time says how long ago the old one was read; a
/// calendar that went back says nothing, and then nothing has come free.
fn rebase(conn: &Connection, pair: Now, now: Now) -> rusqlite::Result<()> {
    let mut elapsed = now.wall.since(pair.wall);
    elapsed.0 = elapsed.0.min(PERIOD_MAX.0);
    let then = pair.at + elapsed;
    let rebase_all = |table: &str, rebased: &dyn Fn(&[u8]) -> Option<Vec<u8>>| {
        let mut select = conn.prepare(&format!("SELECT id, state FROM {table}"))?;
        let mut update = conn.prepare(&format!("UPDATE {table} SET state = ?2 WHERE id = ?1"))?;
        let rows: Vec<(Vec<u8>, Vec<u8>)> = select
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (id, state) in &rows {
            // A damaged row stays as it is: whoever uses it finds out and closes its limit.
            if let Some(state) = rebased(state) {
                update.execute(params![id, state])?;
            }
        }
        Ok::<(), rusqlite::Error>(())
    };
    rebase_all("cells", &|state| {
        let cell = Cell::from_bytes(state, Micros(0)).ok()?;
        Some(cell.rebased(then, now.at).to_bytes(Micros(0)))
    })?;
    rebase_all("scopes", &|state| {
        let scope = Scope::from_bytes(state).ok()?;
        Some(scope.rebased(then, now.at).to_bytes().to_vec())
    })?;
    conn.execute("DELETE FROM waiters", [])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_whose_locks_do_not_hold_are_known() {
        assert_eq!(network(0x6969), Some("NFS"));
        assert_eq!(network(0xff53_4d42), Some("CIFS"));
        assert_eq!(
            network(i128::from(0xff53_4d42_u32.cast_signed())),
            Some("CIFS")
        );
        assert_eq!(network(0x6573_5546), Some("FUSE"));
        assert_eq!(network(0xef53), None, "ext4");
        assert_eq!(network(0x0102_1994), None, "tmpfs");
    }
}
