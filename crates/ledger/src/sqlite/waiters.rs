//! The rows of those who wait: which process was refused by which cell, and when it asks again.
//!
//! Promises: one row per cell and process, of the most urgent ask of that process that waits. A row
//! goes when its process is served or leaves, and says nothing any more once its time is long past.
//!
//! Never: decides who goes first. `share` does.

use rusqlite::{Connection, Result, params};
use tollgate_core::ask::{CellId, OwnerId, Priority, WakeOn};
use tollgate_core::time::{Micros, Span};

use crate::sqlite::fairness::{Tally, Wake};
use crate::sqlite::rows::to_sql_integer;

/// Waiters that have not come this long after their time have gone.
const GONE_AFTER: Span = Span::from_secs(10);

/// Another process, or this one, that was refused by a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) owner: OwnerId,
    pub(super) on: WakeOn,
    /// The most urgent one that it was refused, and what that one takes.
    pub(super) priority: Priority,
    pub(super) cost: u64,
    /// What it was granted since it waits: free units go to the least served.
    pub(super) granted: i64,
    pub(super) since: i64,
    /// When it asks again: at its time, or now that it was signalled.
    pub(super) due: Micros,
    /// Somebody has signalled it already.
    pub(super) is_woken: bool,
}

/// Does anybody wait for anything?
pub(super) fn any_waiting(conn: &Connection) -> Result<bool> {
    conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM waiters)")?
        .query_row([], |row| row.get(0))
}

/// Those whom this cell has refused and who may still come.
pub(super) fn read(conn: &Connection, cell: CellId, now: Micros) -> Result<Vec<Waiter>> {
    let mut rows = conn.prepare_cached(
        "SELECT owner, on_event, priority, cost, got, since, due, woken FROM waiters \
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
                granted: row.get(4)?,
                since: row.get(5)?,
                due: Micros(row.get::<_, i64>(6)?.cast_unsigned()),
                is_woken: row.get(7)?,
            })
        },
    )?;
    waiters.collect()
}

/// Writes down that this owner waits for a cell, or that it does so no longer. `waiters` are the
/// rows of the cell as they were.
pub(super) fn record(
    conn: &Connection,
    (cell, owner): (CellId, OwnerId),
    waiters: &[Waiter],
    tally: Tally,
    now: Micros,
) -> Result<()> {
    let known = waiters.iter().find(|waiter| waiter.owner == owner);
    let id = cell.0.to_le_bytes();
    if let Some(refused) = tally.waiting {
        // Who is new here has not been served less than the others.
        let served = || {
            waiters
                .iter()
                .map(|waiter| waiter.granted)
                .min()
                .unwrap_or(0)
        };
        let got = known.map_or_else(served, |known| known.granted);
        conn.prepare_cached(
            "INSERT OR REPLACE INTO waiters \
             (cell, owner, on_event, priority, cost, got, since, due, until, woken) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0)",
        )?
        .execute(params![
            &id[..],
            owner.0,
            refused.on == WakeOn::Event,
            refused.priority as i64,
            i64::try_from(refused.cost).unwrap_or(i64::MAX),
            got.saturating_add(tally.granted),
            known.map_or(to_sql_integer(now), |known| known.since),
            to_sql_integer(now + refused.after),
            to_sql_integer(now + refused.waits),
        ])?;
        return Ok(());
    }
    match (known, tally.served) {
        // Something more urgent of this process went past the one that waits.
        (Some(known), Some(served)) if served > known.priority => {
            conn.prepare_cached(
                "UPDATE waiters SET got = got + ?3 WHERE cell = ?1 AND owner = ?2",
            )?
            .execute(params![&id[..], owner.0, tally.granted])?;
        }
        (Some(_), Some(_)) => {
            remove(conn, cell, owner)?;
        }
        // Nobody was served: an ask that does not wait says nothing of one that does.
        (_, None) | (None, _) => {}
    }
    Ok(())
}

/// Those whom this transaction signals are expected from now on.
pub(super) fn mark_woken(conn: &Connection, wake: &Wake, now: Micros) -> Result<()> {
    let mut update = conn
        .prepare_cached("UPDATE waiters SET woken = 1, due = ?3 WHERE cell = ?1 AND owner = ?2")?;
    let id = wake.cell.0.to_le_bytes();
    for owner in wake.owners.iter().take(wake.at_most) {
        update.execute(params![&id[..], owner.0, to_sql_integer(now)])?;
    }
    Ok(())
}

/// Nobody of this owner waits for this cell any more. `true` if one did.
pub(super) fn remove(conn: &Connection, cell: CellId, owner: OwnerId) -> Result<bool> {
    let gone = conn
        .prepare_cached("DELETE FROM waiters WHERE cell = ?1 AND owner = ?2")?
        .execute(params![&cell.0.to_le_bytes()[..], owner.0])?;
    Ok(gone > 0)
}

/// This owner is dead: nobody leaves anything to it.
pub(super) fn remove_owner(conn: &Connection, owner: OwnerId) -> Result<()> {
    conn.prepare_cached("DELETE FROM waiters WHERE owner = ?1")?
        .execute([owner.0])?;
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
