//! Untrusted state folders: rejected with a message, or all limits used up; never counted as
//! unused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use smallvec::smallvec;
use tollgate_core::ask::{Verdict, WakeOn};
use tollgate_core::limit::Rule;
use tollgate_ledger::{Clock, Event, Ledger, OpenError};
use tollgate_sim::test_host::TempFolder;

use crate::backend::{Backend, Owner, secs, sliding, term};
use crate::sqlite::Sqlite;

const LIMIT: u64 = 5;
const USED: usize = 3;

fn hour() -> Arc<Rule> {
    sliding(LIMIT, secs(3_600))
}

/// A properly closed folder in which a few permits of an hourly limit are used.
async fn used_folder() -> Sqlite {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    for cell in ["x", "y", "z"] {
        for _ in 0..USED {
            owner.take(smallvec![term(cell, &hour())]).await.unwrap();
        }
    }
    backend
}

fn database(backend: &Sqlite) -> PathBuf {
    backend.folder.path().join("ledger.db")
}

fn open(backend: &Sqlite) -> Result<Ledger, OpenError> {
    let clock = Clock::Manual(backend.clock.clone());
    Ledger::sqlite(backend.folder.path(), clock)
}

fn open_error(backend: &Sqlite) -> OpenError {
    open(backend).expect_err("such a folder must be rejected")
}

/// Either the folder is rejected, or no used permit is free.
async fn check_no_used_permit_is_free(backend: &Sqlite, what: &str) {
    match open(backend) {
        Err(OpenError::Corrupt { .. } | OpenError::Foreign(_) | OpenError::Newer { .. }) => {}
        Err(OpenError::Wiped(_)) => {}
        Err(error) => panic!("{what}: {error:?} is the wrong error"),
        Ok(ledger) => {
            let mut owner = Owner::of(&ledger);
            for cell in ["x", "y", "z"] {
                // A store that fails in use returns `StoreLost`, which is no permit either.
                let ask = owner.ask(smallvec![term(cell, &hour())]);
                if owner.ledger.offer(vec![ask]).await.is_ok() {
                    let remaining = owner.peek(cell, &hour()).await.remaining;
                    assert!(
                        remaining <= LIMIT - USED as u64,
                        "{what}: {remaining} of `{cell}` remain"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn a_closed_folder_is_opened_again_with_its_counts() {
    let backend = used_folder().await;
    let owner = Owner::new(&backend, 2);
    assert_eq!(owner.peek("x", &hour()).await.used, USED as u64);
}

#[tokio::test]
async fn damaged_bytes_never_free_used_permits() {
    let backend = used_folder().await;
    let whole = std::fs::read(database(&backend)).unwrap();
    // Empty ranges of pages are alike; ranges with data are tested densely.
    let is_worth_it = |place: &usize| {
        let end = (place + 8).min(whole.len());
        let is_empty = whole[*place..end].iter().all(|byte| *byte == 0);
        place.is_multiple_of(if is_empty { 509 } else { 5 })
    };
    for place in (0..whole.len()).filter(is_worth_it) {
        let mut damaged = whole.clone();
        let end = (place + 8).min(whole.len());
        damaged[place..end]
            .iter_mut()
            .for_each(|byte| *byte ^= 0x5a);
        std::fs::write(database(&backend), &damaged).unwrap();
        check_no_used_permit_is_free(&backend, &format!("byte {place}")).await;
        remove_log(backend.folder.path());
    }
}

#[tokio::test]
async fn a_truncated_file_never_frees_used_permits() {
    let backend = used_folder().await;
    let whole = std::fs::read(database(&backend)).unwrap();
    let lengths = [
        0,
        1,
        99,
        100,
        511,
        512,
        4_095,
        4_096,
        4_097,
        whole.len() / 2,
    ];
    for length in lengths
        .into_iter()
        .chain([whole.len() - 4_096, whole.len() - 1])
    {
        std::fs::write(database(&backend), &whole[..length]).unwrap();
        check_no_used_permit_is_free(&backend, &format!("cut at {length}")).await;
        remove_log(backend.folder.path());
    }
}

fn remove_log(folder: &Path) {
    for file in ["ledger.db-wal", "ledger.db-shm"] {
        drop(std::fs::remove_file(folder.join(file)));
    }
}

#[tokio::test]
async fn garbage_is_rejected_and_not_modified() {
    let backend = used_folder().await;
    std::fs::write(
        database(&backend),
        b"not a database at all, but long enough".repeat(99),
    )
    .unwrap();
    let before = std::fs::read(database(&backend)).unwrap();
    assert!(matches!(open_error(&backend), OpenError::Corrupt { .. }));
    assert_eq!(std::fs::read(database(&backend)).unwrap(), before);
}

#[tokio::test]
async fn a_removed_database_is_not_recreated() {
    let backend = used_folder().await;
    std::fs::remove_file(database(&backend)).unwrap();
    assert!(matches!(open_error(&backend), OpenError::Wiped(_)));
}

#[tokio::test]
async fn a_newer_format_is_rejected_with_both_numbers() {
    let backend = used_folder().await;
    let conn = Connection::open(database(&backend)).unwrap();
    conn.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(conn);
    let error = open_error(&backend);
    assert!(matches!(error, OpenError::Newer { found: 99, .. }));
    assert!(error.to_string().contains("upgrade"), "{error}");
}

#[test]
fn another_programs_database_is_rejected() {
    let folder = TempFolder::unmade("ledger");
    std::fs::create_dir_all(folder.path()).unwrap();
    let conn = Connection::open(folder.path().join("ledger.db")).unwrap();
    conn.execute_batch("CREATE TABLE accounts (id INTEGER PRIMARY KEY)")
        .unwrap();
    drop(conn);
    let error = Ledger::sqlite(folder.path(), Clock::System).unwrap_err();
    assert!(matches!(error, OpenError::Foreign(_)), "{error:?}");
}

#[test]
fn a_folder_that_cannot_be_written_is_rejected() {
    // The kernel's own tree: not even root can create folders there.
    let error = Ledger::sqlite("/sys/kernel/tollgate", Clock::System).unwrap_err();
    assert!(matches!(error, OpenError::ReadOnly(_)), "{error:?}");
    let folder = TempFolder::unmade("ledger");
    std::fs::write(folder.path(), b"a file").unwrap();
    let error = Ledger::sqlite(folder.path(), Clock::System).unwrap_err();
    assert!(matches!(error, OpenError::Folder { .. }), "{error:?}");
    std::fs::remove_file(folder.path()).unwrap();
}

/// R-A5: an unreadable cell counts as used up for one period, and is usable after it.
#[tokio::test]
async fn a_damaged_cell_is_used_up_for_one_period() {
    let backend = used_folder().await;
    let conn = Connection::open(database(&backend)).unwrap();
    conn.execute("UPDATE cells SET state = zeroblob(30)", [])
        .unwrap();
    drop(conn);
    let mut owner = Owner::new(&backend, 2);
    assert!(owner.take(smallvec![term("x", &hour())]).await.is_err());
    assert_eq!(owner.ledger.ledger().damaged_rows(), 1);
    backend.pass(secs(3_600));
    assert_eq!(owner.take_all("x", &hour()).await.len() as u64, LIMIT);
}

/// R-A5: the folder is removed while a process runs. The process checks once a second; until then
/// it uses the old files. The new folder does not contain the permits that the process has granted,
/// so everything counts as used.
#[tokio::test]
async fn limits_of_a_removed_folder_are_used_up_for_one_period() {
    let backend = used_folder().await;
    let mut owner = Owner::new(&backend, 1);
    let mut events = owner.ledger.events();
    std::fs::remove_dir_all(backend.folder.path()).unwrap();
    loop {
        let ask = owner.ask(smallvec![term("other", &sliding(1_000_000, secs(10)))]);
        if owner.ledger.offer(vec![ask]).await.is_err() {
            break;
        }
    }
    assert_eq!(events.next().await, Some(tollgate_ledger::Event::Lost));
    assert_eq!(events.next().await, Some(tollgate_ledger::Event::Recovered));
    for cell in ["x", "never used"] {
        assert!(owner.take(smallvec![term(cell, &hour())]).await.is_err());
    }
    let short = sliding(5, secs(10));
    assert!(owner.take(smallvec![term("short", &short)]).await.is_err());
    let own = Arc::new(Rule::in_flight(3).unwrap().of_one_process());
    assert_eq!(owner.take_all("own", &own).await.len(), 3);
    backend.pass(secs(10));
    assert_eq!(owner.take_all("short", &short).await.len(), 5);
    backend.pass(secs(3_590));
    assert_eq!(owner.take_all("x", &hour()).await.len() as u64, LIMIT);
}

/// The same where no limit is long: then no generation is counted, and only the folder itself tells.
#[tokio::test]
async fn short_limits_of_a_removed_folder_are_used_up_for_one_period() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(10));
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    let mut events = owner.ledger.events();
    std::fs::remove_dir_all(backend.folder.path()).unwrap();
    loop {
        let ask = owner.ask(smallvec![term("other", &sliding(1_000_000, secs(10)))]);
        if owner.ledger.offer(vec![ask]).await.is_err() {
            break;
        }
    }
    while events.next().await != Some(tollgate_ledger::Event::Recovered) {}
    for cell in ["x", "never used"] {
        assert!(owner.take(smallvec![term(cell, &rule)]).await.is_err());
    }
    backend.pass(secs(10));
    assert_eq!(owner.take_all("x", &rule).await.len(), 5);
}

fn copy(backend: &Sqlite) -> Vec<u8> {
    std::fs::read(database(backend)).unwrap()
}

fn restore_copy(backend: &Sqlite, copy: &[u8]) {
    remove_log(backend.folder.path());
    std::fs::write(database(backend), copy).unwrap();
}

/// R-A5: an old copy lacks permits that were used later. Every limit counts as used up, also limits
/// that the copy does not contain.
#[tokio::test]
async fn limits_of_a_restored_old_copy_are_used_up_for_one_period() {
    let backend = used_folder().await;
    let old = copy(&backend);
    let mut owner = Owner::new(&backend, 1);
    owner.take(smallvec![term("x", &hour())]).await.unwrap();
    drop(owner);
    restore_copy(&backend, &old);
    let mut owner = Owner::new(&backend, 2);
    for cell in ["x", "y", "never used"] {
        assert!(owner.take(smallvec![term(cell, &hour())]).await.is_err());
    }
    drop(owner);
    // This also holds for processes that open the folder later.
    let mut owner = Owner::new(&backend, 3);
    assert!(owner.take(smallvec![term("z", &hour())]).await.is_err());
    backend.pass(secs(3_600));
    for cell in ["x", "y", "never used"] {
        assert_eq!(owner.take_all(cell, &hour()).await.len() as u64, LIMIT);
    }
}

/// For short limits the time of the last transaction is enough to detect an old copy.
#[tokio::test]
async fn an_old_copy_is_detected_if_only_short_limits_were_used_since() {
    let backend = used_folder().await;
    let old = copy(&backend);
    backend.pass(secs(2));
    let mut owner = Owner::new(&backend, 1);
    let short = sliding(5, secs(10));
    owner.take(smallvec![term("short", &short)]).await.unwrap();
    drop(owner);
    restore_copy(&backend, &old);
    let mut owner = Owner::new(&backend, 2);
    assert!(owner.take(smallvec![term("short", &short)]).await.is_err());
    backend.pass(secs(10));
    assert_eq!(owner.take_all("short", &short).await.len(), 5);
}

#[tokio::test]
async fn a_copy_of_the_latest_state_is_trusted() {
    let backend = used_folder().await;
    let latest = copy(&backend);
    restore_copy(&backend, &latest);
    let owner = Owner::new(&backend, 2);
    assert_eq!(owner.peek("x", &hour()).await.used, USED as u64);
}

/// The table of waiters in formats 1 and 2.
const WAITERS_2: &str = "DROP TABLE IF EXISTS waiters; \
     CREATE TABLE waiters (cell BLOB NOT NULL, owner INTEGER NOT NULL, on_event INTEGER NOT NULL, \
     want INTEGER NOT NULL, got INTEGER NOT NULL, since INTEGER NOT NULL, \
     until INTEGER NOT NULL, woken INTEGER NOT NULL, PRIMARY KEY (cell, owner)) \
     STRICT, WITHOUT ROWID; PRAGMA user_version = 2;";

/// Folders from before waiters were stored with their priority.
#[tokio::test]
async fn a_folder_of_format_2_is_opened_with_its_counts() {
    let backend = used_folder().await;
    let conn = Connection::open(database(&backend)).unwrap();
    conn.execute_batch(WAITERS_2).unwrap();
    drop(conn);
    for _ in 0..2 {
        let owner = Owner::new(&backend, 2);
        assert_eq!(owner.peek("x", &hour()).await.used, USED as u64);
    }
}

/// Folders from before the generation was stored.
#[tokio::test]
async fn a_folder_of_format_1_is_opened_with_its_counts() {
    let backend = used_folder().await;
    let conn = Connection::open(database(&backend)).unwrap();
    conn.execute_batch(WAITERS_2).unwrap();
    conn.execute_batch(
        "ALTER TABLE meta RENAME TO meta_2;
         CREATE TABLE meta (id INTEGER PRIMARY KEY CHECK (id = 1), boot TEXT NOT NULL, \
         epoch INTEGER NOT NULL, since INTEGER NOT NULL, at INTEGER NOT NULL, wall INTEGER NOT NULL, \
         pair INTEGER NOT NULL, ids BLOB NOT NULL, owners INTEGER NOT NULL) STRICT;
         INSERT INTO meta SELECT id, boot, epoch, since, at, wall, pair, ids, owners FROM meta_2;
         DROP TABLE meta_2; PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(conn);
    std::fs::write(
        backend.folder.path().join("ledger.lock"),
        b"tollgate ledger\n",
    )
    .unwrap();
    for _ in 0..2 {
        let owner = Owner::new(&backend, 2);
        assert_eq!(owner.peek("x", &hour()).await.used, USED as u64);
    }
}

/// Who calls what is nobody else's business: the files had the mode that the umask left.
#[tokio::test]
async fn only_the_owner_may_read_the_state() {
    use std::os::unix::fs::PermissionsExt;
    let backend = used_folder().await;
    let _open = open(&backend).unwrap();
    let folder = backend.folder.path();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
            files.push(path);
        }
    }
    assert!(files.len() >= 3, "{files:?}");
}

/// R-A5: those who wait for it learn the time, and everybody hears that a row was damaged.
#[tokio::test]
async fn a_damaged_cell_is_reported_and_the_time_of_its_end_is_known() {
    let backend = used_folder().await;
    let conn = Connection::open(database(&backend)).unwrap();
    conn.execute("UPDATE cells SET state = zeroblob(30)", [])
        .unwrap();
    drop(conn);
    let mut owner = Owner::new(&backend, 2);
    let mut events = owner.ledger.ledger().events();
    let ask = owner.ask(smallvec![term("x", &hour())]);
    let offered = owner.ledger.offer(vec![ask]).await.unwrap();
    let Verdict::Wait { after, on, .. } = offered.verdicts[0].1 else {
        panic!("{offered:?}");
    };
    assert_eq!(on, WakeOn::Time);
    assert!((secs(3_600)..secs(3_610)).contains(&after), "{after:?}");
    assert_eq!(events.next().await, Some(Event::Damaged { rows: 1 }));
}
