//! The SQLite ledger: conformance with one and several processes, and recovery.

use std::fs::File;
use std::sync::Arc;

use rusqlite::Connection;
use smallvec::smallvec;
use tollgate_core::ask::{BlockedBy, Outcome, Reopen, ScopeId, Settle, Verdict, WakeOn};
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Event, Ledger, ManualClock, StoreLost};
use tollgate_sim::test_host::TempFolder;

use crate::backend::{Backend, Owner, arrived, secs, sliding, term};
use crate::conformance::conformance;
use crate::fairness::fairness;

/// A Sunday in 2026, some days after boot.
pub(crate) const START: Now = Now {
    at: Micros(500_000_000_000),
    wall: Wall(1_772_323_200_000_000),
};

/// One folder; every handle acts like a separate process.
pub(crate) struct Sqlite {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) folder: TempFolder,
}

impl Sqlite {
    pub(crate) fn new() -> Sqlite {
        Sqlite {
            clock: ManualClock::new(START),
            folder: TempFolder::unmade("ledger"),
        }
    }
}

impl Backend for Sqlite {
    fn ledger(&self) -> Ledger {
        Ledger::sqlite(self.folder.path(), Clock::Manual(self.clock.clone())).unwrap()
    }

    fn pass(&self, span: Span) {
        self.clock.pass(span);
    }
}

conformance!(Sqlite::new());
fairness!(Sqlite::new());

/// M3, between processes.
#[tokio::test]
async fn m3_an_urgent_call_goes_before_background_calls_of_another_process() {
    let backend = Sqlite::new();
    crate::fairness::an_urgent_call_goes_before_background_calls_of_another_process(&backend).await;
}

/// M3, between processes.
#[tokio::test]
async fn m3_a_costly_urgent_call_does_not_starve_behind_cheap_calls_of_another_process() {
    let backend = Sqlite::new();
    crate::fairness::a_costly_urgent_call_does_not_starve_behind_cheap_calls_of_another_process(
        &backend,
    )
    .await;
}

/// Another process is stopped while it holds the lock.
#[tokio::test]
async fn a_locked_store_is_lost_and_recovers_when_unlocked() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(10));
    let held = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    let mut events = owner.ledger.events();
    let lock = File::open(backend.folder.path().join("ledger.lock")).unwrap();
    lock.lock().unwrap();
    let ask = owner.ask(smallvec![term("x", &rule)]);
    assert_eq!(owner.ledger.offer(vec![ask]).await, Err(StoreLost));
    assert_eq!(events.next().await, Some(Event::Lost));
    assert!(owner.ledger.loss_reason().unwrap().contains("lock"));
    // A settle sent meanwhile is not lost.
    owner.settle(&held, Outcome::Unsent);
    lock.unlock().unwrap();
    assert_eq!(events.next().await, Some(Event::Recovered));
    assert_eq!(owner.ledger.loss_reason(), None);
    assert_eq!(owner.take_all("x", &rule).await.len(), 5);
}

/// The age of a queued settle grows, so queueing frees nothing late.
#[tokio::test]
async fn a_slot_is_freed_by_response_time_not_by_transaction_time() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(1, secs(10));
    let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    let lock = File::open(backend.folder.path().join("ledger.lock")).unwrap();
    lock.lock().unwrap();
    owner.settle(&permit, arrived());
    backend.pass(secs(10));
    lock.unlock().unwrap();
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_ok());
}

/// A process stopped between decision and hand-out must not treat its permit as new.
#[tokio::test]
async fn a_permit_is_as_old_as_its_decision_however_late_it_is_taken() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let ask = owner.ask(smallvec![term("x", &sliding(5, secs(10)))]);
    let offered = owner.ledger.offer(vec![ask]);
    owner.wait_settled().await;
    backend.pass(Span::from_millis(200));
    assert_eq!(offered.await.unwrap().at, START.at);
}

/// While another process waits, a process takes only its share of the free permits, and the rest
/// right after.
#[tokio::test]
async fn processes_that_wait_for_one_limit_share_freed_permits() {
    let backend = Sqlite::new();
    let (mut one, mut two) = (Owner::new(&backend, 1), Owner::new(&backend, 2));
    let rule = sliding(10, secs(10));
    for permit in one.take_all("x", &rule).await {
        one.settle(&permit, arrived());
    }
    one.wait_settled().await;
    assert!(two.take(smallvec![term("x", &rule)]).await.is_err());
    backend.pass(secs(10));
    let take = async |owner: &mut Owner| {
        let asks = (0..10).map(|_| owner.ask(smallvec![term("x", &rule)]));
        let asks = asks.collect();
        let granted = |verdict: &Verdict| matches!(verdict, Verdict::Go { .. });
        let verdicts = owner.offer(asks).await;
        let come_back = Verdict::Wait {
            after: Span::from_millis(1),
            on: WakeOn::Time,
            by: BlockedBy::Term(0),
        };
        assert_eq!(*verdicts.last().unwrap(), come_back);
        verdicts.iter().filter(|verdict| granted(verdict)).count()
    };
    assert_eq!(take(&mut one).await, 5);
    assert_eq!(take(&mut two).await, 3);
    assert_eq!(take(&mut one).await, 1);
}

#[tokio::test]
async fn nothing_is_held_back_when_nobody_else_waits() {
    let backend = Sqlite::new();
    let (mut one, two) = (Owner::new(&backend, 1), Owner::new(&backend, 2));
    let rule = sliding(50, secs(10));
    let asks = (0..50).map(|_| one.ask(smallvec![term("x", &rule)]));
    let asks = asks.collect();
    let verdicts = one.offer(asks).await;
    assert!(
        verdicts
            .iter()
            .all(|verdict| matches!(verdict, Verdict::Go { .. }))
    );
    assert_eq!(two.peek("x", &rule).await.remaining, 0);
}

/// H7: idle state is swept in the background.
#[tokio::test]
async fn idle_rows_are_deleted_while_others_are_in_use() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(1));
    for entity in 0..100 {
        let cell = entity.to_string();
        let permit = owner.take(smallvec![term(&cell, &rule)]).await.unwrap();
        owner.settle(&permit, arrived());
    }
    backend.pass(secs(300));
    for _ in 0..100 {
        drop(owner.take(smallvec![term("busy", &rule)]).await);
        backend.pass(secs(60));
    }
    let conn = Connection::open(backend.folder.path().join("ledger.db")).unwrap();
    let rows: i64 = conn
        .query_row("SELECT count(*) FROM cells", [], |row| row.get(0))
        .unwrap();
    assert!(rows <= 2, "{rows} rows are stored");
    drop((conn, owner));
    assert_eq!(Owner::new(&backend, 2).peek("busy", &rule).await.limit, 5);
}

/// A row that was deleted while it was idle is written anew when it is used again. The folder has a
/// checksum of its rows: with a deleted row among those that this process remembers, the checksum
/// would not fit, and the next process would reject the folder as damaged.
#[tokio::test]
async fn a_deleted_row_that_is_used_again_is_counted_again() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(1));
    let permit = owner.take(smallvec![term("idle", &rule)]).await.unwrap();
    owner.settle(&permit, arrived());
    backend.pass(secs(300));
    let stored = |cells: &str| -> i64 {
        let conn = Connection::open(backend.folder.path().join("ledger.db")).unwrap();
        conn.query_row(cells, [], |row| row.get(0)).unwrap()
    };
    for _ in 0..200 {
        drop(owner.take(smallvec![term("busy", &rule)]).await);
        backend.pass(secs(1));
    }
    assert_eq!(
        stored("SELECT count(*) FROM cells"),
        1,
        "the idle row is deleted"
    );
    drop(owner.take(smallvec![term("idle", &rule)]).await.unwrap());
    assert_eq!(stored("SELECT count(*) FROM cells"), 2);
    drop(owner);
    let mut next = Owner::new(&backend, 2);
    assert_eq!(next.peek("idle", &rule).await.remaining, 4);
    assert!(next.take(smallvec![term("idle", &rule)]).await.is_ok());
}

/// One limit per entity, and entities that nobody has seen before: every transaction writes pages
/// all over the database, faster than the keeper moves them. The log grew by 37 MB each second.
#[tokio::test]
async fn the_log_is_bounded_at_any_load() {
    const MOST: u64 = 64 * 1_024 * 1_024;
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(10));
    let log = backend.folder.path().join("ledger.db-wal");
    let mut longest = 0;
    for batch in 0..400 {
        // The id of a cell is a hash, so neighbours in name are far apart in the table.
        let entity = |index: u32| format!("entity {batch} {index}");
        let asks: Vec<_> = (0..256)
            .map(|index| owner.ask(smallvec![term(&entity(index), &rule)]))
            .collect();
        owner.ledger.offer(asks).await.unwrap();
        longest = longest.max(std::fs::metadata(&log).unwrap().len());
    }
    assert!(longest > 16 * 1_024 * 1_024, "{longest}: too little load");
    assert!(longest <= MOST, "the log has grown to {longest} bytes");
}

/// A reader that stays open needs the old pages, so the log cannot be written over: it grows, and that
/// is reported once. It passed in silence.
#[tokio::test]
async fn a_log_that_a_reader_holds_is_reported() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(10));
    let mut events = owner.ledger.events();
    let mut batch = 0;
    let mut write = async |owner: &mut Owner| {
        batch += 1;
        let entity = |index: u32| format!("entity {batch} {index}");
        let asks: Vec<_> = (0..256)
            .map(|index| owner.ask(smallvec![term(&entity(index), &rule)]))
            .collect();
        owner.ledger.offer(asks).await.unwrap();
    };
    write(&mut owner).await;
    let reader = Connection::open(backend.folder.path().join("ledger.db")).unwrap();
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM cells")
        .unwrap();
    for _ in 0..2_000 {
        write(&mut owner).await;
        if owner.ledger.ledger().held_log_bytes().is_some() {
            break;
        }
    }
    let held = owner
        .ledger
        .ledger()
        .held_log_bytes()
        .expect("the log grows");
    assert!(held > 64 * 1_024 * 1_024, "{held}");
    write(&mut owner).await;
    let is_report = |event: &Event| matches!(event, Event::LogHeld { .. });
    let reports = std::iter::from_fn(|| events.try_next()).filter(is_report);
    assert_eq!(reports.count(), 1, "once");
    drop(reader);
    write(&mut owner).await;
    assert_eq!(
        owner.ledger.ledger().held_log_bytes(),
        None,
        "the reader is gone"
    );
}

/// Every path that has failed has a scope: those that nobody probes or calls any more are deleted, and
/// those that an operator has closed stay.
#[tokio::test]
async fn unused_scopes_are_deleted() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(1));
    let scope = |number: usize| ScopeId::named(&["path", &number.to_string()]);
    for number in 0..100 {
        owner.ledger.settle(Settle::Failed {
            scope: scope(number),
            age: Span::ZERO,
            in_a_row: if number % 2 == 0 { 1 } else { 5 },
            closed_for: secs(2),
            path: None,
        });
    }
    owner.ledger.settle(Settle::Close {
        scope: scope(100),
        age: Span::ZERO,
        closed_for: None,
        reopen: Reopen::Probe,
    });
    drop(owner.take(smallvec![term("busy", &rule)]).await);
    let stored = |backend: &Sqlite| -> i64 {
        let conn = Connection::open(backend.folder.path().join("ledger.db")).unwrap();
        conn.query_row("SELECT count(*) FROM scopes", [], |row| row.get(0))
            .unwrap()
    };
    assert_eq!(stored(&backend), 101);
    backend.pass(secs(300));
    for _ in 0..100 {
        drop(owner.take(smallvec![term("busy", &rule)]).await);
        backend.pass(secs(60));
    }
    assert_eq!(stored(&backend), 1);
}
