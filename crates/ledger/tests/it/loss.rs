//! A lost store: what its handle reports meanwhile, and how it recovers by itself.

use std::fs::File;

use rusqlite::Connection;
use smallvec::smallvec;
use tollgate_core::ask::{OwnerId, ScopeId, Verdict};
use tollgate_core::scope::ScopeView;
use tollgate_ledger::{Clock, Event, EventReceiver, Ledger, OpenError};
use tollgate_sim::test_host::TempFolder;

use crate::backend::{Backend, Owner, secs, sliding, term};
use crate::sqlite::Sqlite;

async fn wait_for_recovery(events: &mut EventReceiver) {
    while events.next().await.unwrap() != Event::Recovered {}
}

/// The folder cannot be opened, for this reason. After `fix` the ledger opens it by itself.
async fn starts_lost(folder: &TempFolder, why: impl Fn(&OpenError) -> bool, fix: impl Fn()) {
    let (ledger, error) = Ledger::sqlite_or_lost(folder.path(), Clock::System).unwrap();
    let error = error.expect("such a folder must be rejected");
    assert!(why(&error), "{error:?}");
    assert!(ledger.loss().is_some_and(|loss| !loss.is_final));
    assert_eq!(ledger.loss_reason(), Some(error.with_source()));
    assert_eq!(ledger.owner(), OwnerId::UNKNOWN);
    let mut events = ledger.events();
    let mut owner = Owner::of(&ledger);
    let ask = owner.ask(smallvec![term("x", &sliding(5, secs(10)))]);
    assert!(owner.ledger.offer(vec![ask]).await.is_err());
    fix();
    wait_for_recovery(&mut events).await;
    assert_eq!((ledger.loss(), ledger.loss_reason()), (None, None));
    let mut owner = Owner::of(&ledger);
    assert_ne!(owner.ledger.owner(), OwnerId::UNKNOWN);
    owner
        .take(smallvec![term("x", &sliding(5, secs(10)))])
        .await
        .unwrap();
}

fn database(folder: &TempFolder) -> std::path::PathBuf {
    folder.path().join("ledger.db")
}

#[tokio::test]
async fn a_damaged_folder_is_lost_from_the_start_until_it_is_fixed() {
    let folder = TempFolder::unmade("ledger");
    std::fs::create_dir_all(folder.path()).unwrap();
    std::fs::write(
        database(&folder),
        b"no database, but long enough".repeat(99),
    )
    .unwrap();
    let is_corrupt = |error: &OpenError| matches!(error, OpenError::Corrupt { .. });
    let fix = || std::fs::remove_file(database(&folder)).unwrap();
    starts_lost(&folder, is_corrupt, fix).await;
}

#[tokio::test]
async fn a_newer_folder_is_lost_from_the_start_until_it_is_fixed() {
    let folder = TempFolder::unmade("ledger");
    drop(Ledger::sqlite(folder.path(), Clock::System).unwrap());
    let version = |number: i64| {
        let conn = Connection::open(database(&folder)).unwrap();
        conn.execute_batch(&format!("PRAGMA user_version = {number}"))
            .unwrap();
    };
    let known: i64 = Connection::open(database(&folder))
        .unwrap()
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    version(99);
    let is_newer = |error: &OpenError| matches!(error, OpenError::Newer { found: 99, .. });
    starts_lost(&folder, is_newer, || version(known)).await;
}

#[tokio::test]
async fn a_locked_folder_is_lost_from_the_start_until_it_is_unlocked() {
    let folder = TempFolder::unmade("ledger");
    drop(Ledger::sqlite(folder.path(), Clock::System).unwrap());
    let lock = File::open(folder.path().join("ledger.lock")).unwrap();
    lock.lock().unwrap();
    let is_busy = |error: &OpenError| matches!(error, OpenError::Busy(_));
    starts_lost(&folder, is_busy, || lock.unlock().unwrap()).await;
}

/// A peek at a lost store returns without waiting for the store.
#[tokio::test]
async fn a_lost_store_shows_everything_as_used_up() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(10));
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    let lock = File::open(backend.folder.path().join("ledger.lock")).unwrap();
    lock.lock().unwrap();
    let ask = owner.ask(smallvec![term("x", &rule)]);
    assert!(owner.ledger.offer(vec![ask]).await.is_err());
    assert!(owner.ledger.loss().is_some());
    assert_eq!(owner.peek("x", &rule).await.remaining, 0);
    let mut events = owner.ledger.events();
    lock.unlock().unwrap();
    wait_for_recovery(&mut events).await;
    assert_eq!(owner.peek("x", &rule).await.remaining, 4);
}

/// Nodes used their local shares meanwhile: nothing is granted between recovery and cool-down.
#[tokio::test]
async fn a_scope_is_closed_on_recovery_before_anything_is_granted() {
    let backend = Sqlite::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(10));
    let scope = ScopeId::named(&["share"]);
    let mut ask = owner.ask(smallvec![term("x", &rule)]);
    ask.scopes.push(scope);
    let lock = File::open(backend.folder.path().join("ledger.lock")).unwrap();
    lock.lock().unwrap();
    assert!(owner.ledger.offer(vec![ask.clone()]).await.is_err());
    owner.ledger.close_on_recovery(scope, secs(99));
    // Tried in vain: what was to be closed first is not closed for itself later.
    assert!(owner.ledger.offer(vec![ask.clone()]).await.is_err());
    owner.ledger.close_on_recovery(scope, secs(30));
    lock.unlock().unwrap();
    let rejected = loop {
        match owner.ledger.offer(vec![ask.clone()]).await {
            Ok(mut offered) => break offered.verdicts.remove(0).1,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert!(
        matches!(rejected, Verdict::Wait { after, .. } if after == secs(30)),
        "{rejected:?}"
    );
    backend.pass(secs(30));
    assert!(owner.take_ask(ask).await.is_ok());
    assert_eq!(owner.ledger.peek_scope(scope).await, ScopeView::Open);
}
