//! State that survives a restart, a reboot and a changed wall clock.

use std::sync::Arc;

use rusqlite::Connection;
use smallvec::smallvec;
use tollgate_core::ask::{Reopen, ScopeId, Settle};
use tollgate_core::limit::{Calendar, CalendarPeriod, Rule};
use tollgate_core::row::ScopeRow;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::ManualClock;

use crate::backend::{Backend, Owner, TAG, secs, sliding, term};
use crate::sqlite::{START, Sqlite};

const DAY: Span = Span::from_secs(86_400);

/// The same folder after the host was off for `off`, on a boot that is 20 s old.
fn reboot(backend: Sqlite, off: Span) -> Sqlite {
    let conn = Connection::open(backend.folder.path().join("ledger.db")).unwrap();
    conn.execute("UPDATE meta SET boot = 'another'", [])
        .unwrap();
    drop(conn);
    let now = Now {
        at: Micros(20_000_000),
        wall: START.wall + off,
    };
    Sqlite {
        clock: ManualClock::new(now),
        folder: backend.folder,
    }
}

#[tokio::test]
async fn m14_a_daily_count_goes_on_after_a_boot_for_the_rest_of_its_day() {
    let backend = Sqlite::new();
    let rule = sliding(300, DAY);
    let mut owner = Owner::new(&backend, 1);
    for _ in 0..5 {
        let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
        owner.settle(&permit, crate::backend::arrived());
    }
    drop(owner);
    let backend = reboot(backend, secs(3_600));
    let owner = Owner::new(&backend, 1);
    // With the three that may have been granted and not synced; those count from the boot on.
    assert_eq!(owner.peek("x", &rule).await.used, 5 + 3);
    backend.pass(DAY - secs(3_600) - Span(1));
    assert_eq!(owner.peek("x", &rule).await.used, 5 + 3);
    backend.pass(Span(1));
    assert_eq!(owner.peek("x", &rule).await.used, 3);
    backend.pass(secs(3_600));
    assert_eq!(owner.peek("x", &rule).await.used, 0);
}

#[tokio::test]
async fn after_a_boot_a_short_limit_is_closed_for_one_window() {
    let backend = Sqlite::new();
    let rule = sliding(5, secs(10));
    let mut owner = Owner::new(&backend, 1);
    owner.take(smallvec![term("x", &rule)]).await.unwrap();
    drop(owner);
    let backend = reboot(backend, secs(3_600));
    let mut owner = Owner::new(&backend, 1);
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_err());
    backend.pass(secs(10));
    assert_eq!(owner.take_all("x", &rule).await.len(), 5);
}

/// Rows of short limits are not synced, so a power failure may lose them.
#[tokio::test]
async fn after_a_boot_a_short_limit_whose_row_is_missing_is_closed_for_one_window_too() {
    let backend = Sqlite::new();
    drop(backend.ledger());
    let backend = reboot(backend, secs(1));
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(10));
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_err());
    backend.pass(secs(10));
    assert_eq!(owner.take_all("x", &rule).await.len(), 5);
    assert_eq!(owner.take_all("never used", &rule).await.len(), 5);
}

#[tokio::test]
async fn after_a_boot_no_call_is_in_flight() {
    let backend = Sqlite::new();
    let rule = Arc::new(Rule::in_flight(2).unwrap());
    let mut owner = Owner::new(&backend, 1);
    assert_eq!(owner.take_all("x", &rule).await.len(), 2);
    drop(owner);
    let backend = reboot(backend, secs(1));
    let mut owner = Owner::new(&backend, 1);
    assert_eq!(owner.take_all("x", &rule).await.len(), 2);
}

#[tokio::test]
async fn a_wall_clock_that_went_back_over_a_boot_frees_nothing() {
    let backend = Sqlite::new();
    let rule = sliding(1, secs(3_600));
    let mut owner = Owner::new(&backend, 1);
    let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    owner.settle(&permit, crate::backend::arrived());
    drop(owner);
    let backend = reboot(backend, Span::ZERO);
    backend.clock.set_wall(START.wall - DAY);
    let owner = Owner::new(&backend, 1);
    backend.pass(secs(3_600) - Span(1));
    assert_eq!(owner.peek("x", &rule).await.remaining, 0);
    backend.pass(Span(1));
    assert_eq!(owner.peek("x", &rule).await.remaining, 1);
}

#[tokio::test]
async fn a_cool_down_goes_on_after_a_restart_and_after_a_boot() {
    let backend = Sqlite::new();
    let scope = ScopeId::named(&["tmdb"]);
    let owner = Owner::new(&backend, 1);
    owner.ledger.settle(Settle::Close {
        scope,
        age: Span::ZERO,
        closed_for: Some(secs(300)),
        reopen: Reopen::All,
    });
    drop(owner);
    let view = async |backend: &Sqlite| backend.ledger().provider(TAG).peek_scope(scope).await;
    let closed = |secs_remaining| ScopeView::Closed {
        remaining: Some(secs(secs_remaining)),
    };
    assert_eq!(view(&backend).await, closed(300));
    let backend = reboot(backend, secs(100));
    assert_eq!(view(&backend).await, closed(200));
}

/// The state of the only cell, as bytes.
fn stored_state(conn: &Connection) -> Vec<u8> {
    let state = conn.query_row("SELECT state FROM cells", [], |row| row.get(0));
    state.unwrap()
}

/// A newer program wrote a field that must be understood. This one neither changes the row at a boot
/// nor believes it, and the newer one does not take its times for those of the new boot.
#[tokio::test]
async fn a_row_that_could_not_be_rebased_is_used_up_also_for_who_can_decode_it() {
    let backend = Sqlite::new();
    let rule = sliding(300, DAY);
    let mut owner = Owner::new(&backend, 1);
    let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    owner.settle(&permit, crate::backend::arrived());
    drop(owner);
    let database = backend.folder.path().join("ledger.db");
    let conn = Connection::open(&database).unwrap();
    let known = stored_state(&conn);
    // Field 13 of one byte, behind the others.
    let newer = tollgate_core::row::sealed([&known[..known.len() - 4], &[13, 1, 0]].concat());
    conn.execute("UPDATE cells SET state = ?1", [&newer])
        .unwrap();
    drop(conn);
    let backend = reboot(backend, secs(3_600));
    let owner = Owner::new(&backend, 1);
    assert_eq!(owner.peek("x", &rule).await.remaining, 0, "not understood");
    drop(owner);
    let conn = Connection::open(&database).unwrap();
    assert_eq!(stored_state(&conn), newer, "it is as it was");
    // A program that understands it.
    conn.execute("UPDATE cells SET state = ?1", [&known])
        .unwrap();
    drop(conn);
    let mut owner = Owner::new(&backend, 1);
    assert_eq!(owner.peek("x", &rule).await.remaining, 0, "of another boot");
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_err());
    backend.pass(DAY);
    assert_eq!(owner.take_all("x", &rule).await.len(), 300);
}

/// R-A7: a used-up day stays used up at any wall clock setting, also after a restart.
#[tokio::test]
async fn a_wall_clock_that_is_set_by_a_day_opens_no_calendar_day() {
    let backend = Sqlite::new();
    let calendar = Calendar::new(CalendarPeriod::Day, jiff::tz::TimeZone::UTC);
    let rule = Arc::new(Rule::calendar(5, calendar).unwrap());
    let mut owner = Owner::new(&backend, 1);
    assert_eq!(owner.take_all("x", &rule).await.len(), 5);
    for wall in [
        START.wall + DAY,
        START.wall - DAY,
        Wall(0),
        START.wall + DAY,
    ] {
        backend.clock.set_wall(wall);
        assert!(owner.take(smallvec![term("x", &rule)]).await.is_err());
        drop(owner);
        owner = Owner::new(&backend, 1);
        assert!(owner.take(smallvec![term("x", &rule)]).await.is_err());
    }
    backend.clock.set_wall(START.wall);
    backend.pass(DAY + secs(3));
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_ok());
}

/// Only cells were looked at: a scope whose times are of another boot would be closed for days, or
/// open too early.
#[tokio::test]
async fn a_scope_on_another_clock_is_closed() {
    let backend = Sqlite::new();
    let scope = ScopeId::named(&["x"]);
    let owner = Owner::new(&backend, 1);
    owner.ledger.settle(Settle::Close {
        scope,
        age: Span::ZERO,
        closed_for: Some(DAY),
        reopen: Reopen::All,
    });
    owner.wait_settled().await;
    drop(owner);
    let conn = Connection::open(backend.folder.path().join("ledger.db")).unwrap();
    let bytes: Vec<u8> = conn
        .query_row("SELECT state FROM scopes", [], |row| row.get(0))
        .unwrap();
    let mut row = ScopeRow::from_bytes(&bytes).unwrap();
    row.meta.scale += 7;
    conn.execute("UPDATE scopes SET state = ?1", [row.to_bytes()])
        .unwrap();
    drop(conn);
    let owner = Owner::new(&backend, 1);
    let seen = owner.ledger.peek_scope(scope).await;
    let ScopeView::Closed { remaining } = seen else {
        panic!("{seen:?}");
    };
    assert!(
        remaining.is_none_or(|remaining| remaining < DAY),
        "{remaining:?}"
    );
}
