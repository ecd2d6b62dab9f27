//! Opening a state folder: what is there, is it ours, and which boot wrote it.
//!
//! Promises: a folder with state that cannot be trusted is rejected with a message that names it
//! and the next step; nothing in it is changed then. After a boot, limits of a minute or longer
//! keep their counts at the distance that calendar time says, and what may have been granted without
//! being on disk counts as used; shorter ones start used up. A
//! database that is older than what the folder or this process remembers was restored from a copy:
//! everything that was counted since is unknown, so every limit is used up for one period.
//!
//! Never: starts anew over something that was there.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use tollgate_core::ask::OwnerId;
use tollgate_core::limit::PERIOD_MAX;
use tollgate_core::row::{CellRow, ScopeRow};
use tollgate_core::time::{Micros, Now, Wall};

use crate::failpoint;
use crate::sqlite::checkpointer::checkpoint;
use crate::sqlite::error::OpenError;
use crate::sqlite::generation::{GenerationRecord, MARK, this_boot};
use crate::sqlite::lock::KernelLock;
use crate::sqlite::reserve;
use crate::sqlite::rows::{BootContext, clock_pair, is_complete, to_sql_integer};
use crate::sqlite::tables::{check, create, migrate, tables};
use crate::sqlite::wake::Notifier;

/// Opening waits this long for the lock: a boot's first process may be reading every row.
pub(super) const OPEN_WAIT: Duration = Duration::from_secs(5);

/// The log is not cut below this when it begins anew: to write over what is there costs the disk
/// 100 µs, to make a file longer 170 µs. Under load it has 8 MiB between two checkpoints.
pub(super) const LOG_SIZE_MIN: u64 = 16 * 1_024 * 1_024;

/// The database file in a state folder.
pub(super) const DATABASE: &str = "ledger.db";

/// No folder comes to this generation; what says a higher one is damaged.
const GENERATION_MAX: i64 = 1 << 62;

/// A folder that is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) conn: Connection,
    /// Another connection, for checkpoints.
    pub(super) checkpoint_conn: Connection,
    pub(super) lock: KernelLock,
    pub(super) context: BootContext,
    /// The write-ahead log, to make it durable. SQLite takes no locks on it, so closing it is
    /// harmless; closing another handle on the database would drop SQLite's locks.
    pub(super) log: File,
    pub(super) notifier: Notifier,
    pub(super) socket: std::os::unix::net::UnixDatagram,
}

/// What is known of a database before it is read.
struct KnownRecords<'a> {
    /// By the folder, and by this process.
    records: [Option<&'a GenerationRecord>; 2],
    /// The database that was known is not there any more.
    is_gone: bool,
}

impl KnownRecords<'_> {
    fn is_later_than(&self, stored: &GenerationRecord) -> bool {
        let mut notes = self.records.iter().flatten();
        self.is_gone || notes.any(|note| stored.is_older_than(note))
    }

    /// The last generation that is remembered: no other commit may have its number.
    fn generation(&self) -> i64 {
        let notes = self.records.iter().flatten();
        let last = notes.map(|note| note.generation).max();
        last.unwrap_or_default().min(GENERATION_MAX)
    }
}

/// Opens the folder, and makes it if it is not there. The lock is waited for so long. `known` is
/// what this process remembers of it, if it had it open before.
pub(super) fn open(
    folder: &Path,
    now: Now,
    longest: Duration,
    known: Option<&GenerationRecord>,
) -> Result<Opened, OpenError> {
    let fail = |source| OpenError::from_io(folder, source);
    make_folder(folder).map_err(fail)?;
    reject_network(folder)?;
    let mut mark = lock_file(folder).map_err(fail)?;
    let mut lock = KernelLock::new(lock_file(folder).map_err(fail)?).map_err(fail)?;
    if !lock.acquire(longest).map_err(fail)? {
        return Err(OpenError::Busy(folder.to_owned()));
    }
    let mut found = Vec::new();
    mark.read_to_end(&mut found).map_err(fail)?;
    let database = folder.join(DATABASE);
    let is_new = !found.starts_with(MARK);
    let noted = GenerationRecord::read(found.get(MARK.len()..).unwrap_or_default());
    if !is_new && !database.exists() {
        return Err(OpenError::Wiped(database));
    }
    let conn = connect(&database)?;
    check(&conn, &database, is_new)?;
    configure(&conn, &database)?;
    let store = |error| OpenError::from_store(&database, error);
    let remembered = KnownRecords {
        records: [noted.as_ref(), known],
        // A folder that is new to a process that knew another one in its place.
        is_gone: is_new && known.is_some(),
    };
    let (mut context, is_other_clock) = begin_session(&conn, now, &remembered).map_err(store)?;
    let notifier =
        Notifier::open(File::open(folder).map_err(fail)?, context.owner).map_err(fail)?;
    let alive = notifier.0.alive();
    if is_other_clock && !alive.is_empty() {
        notifier.0.close();
        return Err(OpenError::OtherClock(folder.to_owned()));
    }
    context.alive_before = alive;
    failpoint::reached("opening");
    commit_session(&conn, folder, now, &remembered).map_err(store)?;
    failpoint::reached("opened");
    let log = File::open(folder.join("ledger.db-wal")).map_err(fail)?;
    make_durable(folder, &log, is_new.then_some(&mark)).map_err(fail)?;
    reserve::create(folder);
    lock.release().map_err(fail)?;
    let checkpoint_conn = connect(&database)?;
    configure(&checkpoint_conn, &database)?;
    Ok(Opened {
        conn,
        checkpoint_conn,
        lock,
        context,
        log,
        notifier: notifier.0,
        socket: notifier.1,
    })
}

/// Makes durable what was found and made. A new folder gets its mark once there is a database.
fn make_durable(folder: &Path, log: &File, mark: Option<&File>) -> io::Result<()> {
    if let Some(mark) = mark {
        mark.set_len(0)?;
        mark.write_all_at(MARK, 0)?;
    }
    log.sync_data()?;
    File::open(folder).and_then(|folder| folder.sync_all())
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
        .mode(0o600)
        .open(folder.join("ledger.lock"))
}

/// Locks and shared memory do not hold between hosts, so neither would the limits.
fn reject_network(folder: &Path) -> Result<(), OpenError> {
    let found =
        rustix::fs::statfs(folder).map_err(|error| OpenError::from_io(folder, error.into()))?;
    match network_kind(i128::from(found.f_type)) {
        Some(kind) => Err(OpenError::Network {
            folder: folder.to_owned(),
            kind,
        }),
        None => Ok(()),
    }
}

/// File systems, by the kernel's numbers, whose locks do not hold or cannot be trusted to.
fn network_kind(magic: i128) -> Option<&'static str> {
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

/// Creates a missing database: only the owner may read who calls what. SQLite gives its other files
/// the mode of this one. An existing file is not opened: closing it would drop SQLite's locks.
fn make_database(path: &Path) -> io::Result<()> {
    let mut options = File::options();
    match options.create_new(true).write(true).mode(0o600).open(path) {
        Ok(_new) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn connect(path: &Path) -> Result<Connection, OpenError> {
    let store = |error| OpenError::from_store(path, error);
    make_database(path).map_err(|error| OpenError::from_io(path, error))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(store)?;
    conn.busy_timeout(Duration::from_secs(1)).map_err(store)?;
    Ok(conn)
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
    conn.execute_batch(&format!(
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0; \
         PRAGMA journal_size_limit = {LOG_SIZE_MIN}; PRAGMA trusted_schema = OFF;",
    ))
    .map_err(store)
}

/// Ends the transaction. If the disk has no room for a longer log, the log that a killed process has
/// left is moved first: afterwards it is written over from its beginning, which needs no room. The
/// caller holds the kernel lock, so the session is the same the second time.
fn commit_session(
    conn: &Connection,
    folder: &Path,
    now: Now,
    remembered: &KnownRecords<'_>,
) -> rusqlite::Result<()> {
    match conn.execute_batch("COMMIT") {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
            // The failure may have ended the transaction already.
            drop(conn.execute_batch("ROLLBACK"));
            reserve::give_up(folder);
            checkpoint(conn)?;
            begin_session(conn, now, remembered)?;
            conn.execute_batch("COMMIT")
        }
        done => done,
    }
}

/// Begins a transaction in which this process gets its number, and the rows this boot's clock.
/// The second of the pair: other processes of this very boot may work on another clock.
fn begin_session(
    conn: &Connection,
    now: Now,
    remembered: &KnownRecords<'_>,
) -> rusqlite::Result<(BootContext, bool)> {
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let (boot, clock) = this_boot();
    let boot_now = format!("{boot} {clock}");
    let [at, wall, sum] = clock_pair(now);
    migrate(conn)?;
    if tables(conn)?.is_empty() {
        create(conn, &boot_now, now)?;
    }
    let (found, noted, generation, epoch): (String, [i64; 3], i64, i64) = conn.query_row(
        "SELECT boot, at, wall, pair, generation, epoch FROM meta",
        [],
        |row| {
            let pair = [row.get(1)?, row.get(2)?, row.get(3)?];
            Ok((row.get(0)?, pair, row.get(4)?, row.get(5)?))
        },
    )?;
    let then = Now {
        at: Micros(noted[0].cast_unsigned()),
        wall: Wall(noted[1].cast_unsigned()),
    };
    if clock_pair(then) != noted || !is_complete(conn)? {
        return Err(corrupt_error());
    }
    let stored = GenerationRecord {
        generation,
        at: noted[0],
        boot: found.clone(),
    };
    let is_older = remembered.is_later_than(&stored);
    if found != boot_now {
        rebase(conn, then, now, epoch + 1)?;
        conn.execute(
            "UPDATE meta SET boot = ?1, epoch = epoch + 1, since = ?2, at = ?2, wall = ?3, \
             pair = ?4, unknown_at = max(0, unknown_at + ?5)",
            params![
                boot_now,
                at,
                wall,
                sum,
                at - to_sql_integer(rebased_to(then, now))
            ],
        )?;
    }
    if is_older {
        conn.execute(
            "UPDATE meta SET epoch = epoch + 1, unknown_epoch = epoch + 1, unknown_at = ?1, \
             generation = max(generation, ?2) + 1",
            [at, remembered.generation()],
        )?;
    }
    let context = register(conn, now)?;
    Ok((context, found != boot_now && found.starts_with(&boot)))
}

/// Gives this process its number, and tells it where it is.
fn register(conn: &Connection, now: Now) -> rusqlite::Result<BootContext> {
    conn.query_row(
        "UPDATE meta SET owners = (owners + 1) & 0xffffffff \
         RETURNING owners, epoch, since, unknown_epoch, unknown_at, generation",
        [],
        |row| {
            let [since, unknown_at] =
                [row.get(2)?, row.get(4)?].map(|at: i64| Micros(at.cast_unsigned()).min(now.at));
            Ok(BootContext {
                owner: OwnerId(row.get(0)?),
                epoch: row.get(1)?,
                boot_started: since,
                unknown: (row.get(3)?, unknown_at),
                alive_before: Vec::new(),
                // Made durable before the folder is used.
                durable_generation: row.get(5)?,
            })
        },
    )
}

/// What is stored contradicts itself.
fn corrupt_error() -> rusqlite::Error {
    let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(corrupt, Some("rows are missing or changed".to_owned()))
}

/// Puts every row onto this boot's clock. Calendar time says how long ago the old one was read; a
/// calendar that went back says nothing, and then nothing has come free.
///
/// A row that this program cannot decode, because it is damaged or a newer program has written it
/// with a field that must be understood, stays as it is. Its times are of the former boot, and its
/// `scale` says so: for this program its limit is used up for one period, and for the newer one too,
/// unless it is used meanwhile.
fn rebase(conn: &Connection, pair: Now, now: Now, epoch: i64) -> rusqlite::Result<()> {
    let then = rebased_to(pair, now);
    let rebase_all = |table: &str, rebased: &dyn Fn(&[u8]) -> Option<Vec<u8>>| {
        let mut select = conn.prepare(&format!("SELECT id, state FROM {table}"))?;
        let mut update = conn.prepare(&format!("UPDATE {table} SET state = ?2 WHERE id = ?1"))?;
        let rows: Vec<(Vec<u8>, Vec<u8>)> = select
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (id, state) in &rows {
            // One that cannot be decoded stays as it is: whoever uses it closes its limit.
            if let Some(state) = rebased(state) {
                update.execute(params![id, state])?;
            }
        }
        Ok::<(), rusqlite::Error>(())
    };
    rebase_all("cells", &|state| {
        let mut row = CellRow::from_bytes(state).ok()?;
        row.cell = row.cell.rebased(then, now.at);
        // Whoever waited has gone with its boot.
        row.waiters.clear();
        row.reservation = row.reservation.after_boot(then, now.at);
        (row.meta.time, row.meta.scale) = (now.at, epoch.cast_unsigned());
        Some(row.to_bytes())
    })?;
    rebase_all("scopes", &|state| {
        let mut row = ScopeRow::from_bytes(state).ok()?;
        row.scope = row.scope.rebased(then, now.at);
        (row.meta.time, row.meta.scale) = (now.at, epoch.cast_unsigned());
        Some(row.to_bytes())
    })
}

/// What the old clock would read now.
fn rebased_to(pair: Now, now: Now) -> Micros {
    let mut elapsed = now.wall.since(pair.wall);
    elapsed.0 = elapsed.0.min(PERIOD_MAX.0);
    pair.at + elapsed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_with_unreliable_locks_are_recognised() {
        assert_eq!(network_kind(0x6969), Some("NFS"));
        assert_eq!(network_kind(0xff53_4d42), Some("CIFS"));
        assert_eq!(
            network_kind(i128::from(0xff53_4d42_u32.cast_signed())),
            Some("CIFS")
        );
        assert_eq!(network_kind(0x6573_5546), Some("FUSE"));
        assert_eq!(network_kind(0xef53), None, "ext4");
        assert_eq!(network_kind(0x0102_1994), None, "tmpfs");
    }
}
