//! The rows of those who wait: which process was rejected by which cell, and when it asks again.
//!
//! Promises: one row per cell and process. What is long past says nothing any more.
//!
//! Never: decides who goes first. `tollgate_core::fairness` does.

use rusqlite::{Connection, Result, params};
use tollgate_core::ask::{CellId, OwnerId, Priority, WakeOn};
use tollgate_core::fairness::Waiter;
use tollgate_core::time::{Micros, Span};

use crate::sqlite::rows::to_sql_integer;

/// Waiters that have not come this long after their time have gone.
const GONE_AFTER: Span = Span::from_secs(10);

/// Does anybody wait for anything?
pub(super) fn any_waiting(conn: &Connection) -> Result<bool> {
    conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM waiters)")?
        .query_row([], |row| row.get(0))
}

/// Those whom this cell has refused and who may still come.
pub(super) fn read(conn: &Connection, cell: CellId, now: Micros) -> Result<Vec<Waiter>> {
    let mut rows = conn.prepare_cached(
        "SELECT owner, on_event, priority, cost, got, since, due, woken, until FROM waiters \
         WHERE cell = ?1 AND until > ?2",
    )?;
    let waiters = rows.query_map(
        params![&cell.0.to_le_bytes()[..], to_sql_integer(now)],
        |row| {
            let on = if row.get(1)? {
                WakeOn::Event
            } else {
                WakeOn::Time
            };
            Ok(Waiter {
                owner: OwnerId(row.get(0)?),
                on,
                priority: priority(row.get(2)?),
                cost: row.get::<_, i64>(3)?.cast_unsigned(),
                granted: row.get::<_, i64>(4)?.cast_unsigned(),
                since: Micros(row.get::<_, i64>(5)?.cast_unsigned()),
                due: Micros(row.get::<_, i64>(6)?.cast_unsigned()),
                is_woken: row.get(7)?,
                until: Micros(row.get::<_, i64>(8)?.cast_unsigned()),
            })
        },
    )?;
    waiters.collect()
}

/// Writes what has changed of those who wait for a cell.
pub(super) fn write(
    conn: &Connection,
    cell: CellId,
    stored: &[Waiter],
    waiters: &[Waiter],
) -> Result<()> {
    let id = cell.0.to_le_bytes();
    let mut delete = conn.prepare_cached("DELETE FROM waiters WHERE cell = ?1 AND owner = ?2")?;
    for gone in stored {
        if waiters.iter().all(|waiter| waiter.owner != gone.owner) {
            delete.execute(params![&id[..], gone.owner.0])?;
        }
    }
    let mut insert = conn.prepare_cached(
        "INSERT OR REPLACE INTO waiters \
         (cell, owner, on_event, priority, cost, got, since, due, until, woken) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    for waiter in waiters.iter().filter(|waiter| !stored.contains(waiter)) {
        insert.execute(params![
            &id[..],
            waiter.owner.0,
            waiter.on == WakeOn::Event,
            waiter.priority as i64,
            i64::try_from(waiter.cost).unwrap_or(i64::MAX),
            i64::try_from(waiter.granted).unwrap_or(i64::MAX),
            to_sql_integer(waiter.since),
            to_sql_integer(waiter.due),
            to_sql_integer(waiter.until),
            waiter.is_woken,
        ])?;
    }
    Ok(())
}

/// Forgets those who have not come.
pub(super) fn sweep(conn: &Connection, now: Micros) -> Result<()> {
    conn.prepare_cached("DELETE FROM waiters WHERE until < ?1")?
        .execute([to_sql_integer(now - GONE_AFTER)])?;
    Ok(())
}

/// A priority as it is stored; what nobody wrote is in no hurry.
fn priority(stored: i64) -> Priority {
    let all = [Priority::High, Priority::Normal];
    let found = all.into_iter().find(|one| *one as i64 == stored);
    found.unwrap_or(Priority::Low)
}
