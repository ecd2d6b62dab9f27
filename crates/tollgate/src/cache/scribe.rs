//! The thread that writes `cache.db`.
//!
//! Promises: what waits shares a transaction. The file is bounded: what nobody can use any more goes
//! first, then what was not used for longest. While somebody else holds the file, what must be
//! forgotten waits and is done as soon as it can, at the end too; what should be kept is not waited
//! with.
//!
//! Never: is waited for by a call.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;
use tollgate_core::time::Wall;

use super::disk::{Overdue, WRITES_MAX, Write, tell, variants_max};
use super::key::{Url, Variant};
use super::{Key, Object, book, desk};

/// Orders that share one transaction.
const BATCH_MAX: usize = 64;

/// Room is made in steps of this part of the whole, so that it is not made for every answer.
const STEP_PART: u64 = 20;

/// Answers that are removed in one go; more follow with the next batch.
const EVICT_MAX: i64 = 4_096;

/// Orders to forget that may wait for a file that somebody else holds. More of them are not one by
/// one worth keeping: everything is forgotten then.
const HELD_BACK_MAX: usize = 4_096;

/// How soon a file that somebody else holds is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How often it is tried at the end, when nobody orders any more: two seconds, and as often the time
/// that each try waits.
const LAST_TRIES: u32 = 20;

/// Writes.
pub(super) struct Scribe {
    pub(super) conn: Connection,
    pub(super) bytes_max: u64,
    /// Bytes written since the size was looked at.
    pub(super) since_check: u64,
    pub(super) pending: Arc<AtomicU64>,
    /// What must be forgotten and found no place among the orders.
    pub(super) overdue: Arc<Overdue>,
    pub(super) broken: Arc<AtomicBool>,
    pub(super) path: PathBuf,
    /// What must be forgotten although the file could not be written.
    pub(super) held_back: Vec<Write>,
}

impl Scribe {
    pub(super) fn run(mut self, orders: &Receiver<Write>) {
        loop {
            let first = if self.held_back.is_empty() {
                orders.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                orders.recv_timeout(AGAIN_AFTER)
            };
            let mut batch = std::mem::take(&mut self.held_back);
            match first {
                Ok(first) => batch.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    batch.extend(self.overdue.take());
                    return self.end(batch);
                }
            }
            // What is overdue came after all that is in the queue: it must not be done before.
            let overdue = self.overdue.take();
            let most = if overdue.is_empty() {
                BATCH_MAX
            } else {
                WRITES_MAX
            };
            batch.extend(orders.try_iter().take(most));
            batch.extend(overdue);
            self.try_to(batch);
        }
    }

    fn try_to(&mut self, batch: Vec<Write>) {
        if let Err(error) = self.obey(batch) {
            // It may be full: room is made with the next batch.
            self.since_check = self.bytes_max;
            tell(&self.broken, &self.path, &error);
        }
    }

    /// Nobody orders any more: what was held back is done now, or it would come back.
    fn end(&mut self, mut batch: Vec<Write>) {
        for _ in 0..LAST_TRIES {
            if batch.is_empty() {
                return;
            }
            self.try_to(batch);
            batch = std::mem::take(&mut self.held_back);
            if !batch.is_empty() {
                std::thread::park_timeout(AGAIN_AFTER);
            }
        }
    }

    fn obey(&mut self, batch: Vec<Write>) -> rusqlite::Result<()> {
        for order in &batch {
            if let Write::Put(_, object, _) = order {
                self.pending.fetch_sub(object.weight(), Ordering::AcqRel);
                self.since_check += object.weight();
            }
        }
        // Immediate: a transaction that begins by reading cannot wait for another writer.
        let begun = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate);
        let change = match begun {
            Ok(change) => change,
            Err(error) => {
                if is_held(&error) {
                    self.held_back = held_back(batch);
                }
                return Err(error);
            }
        };
        let is_broken = self.broken.load(Ordering::Acquire);
        let forgets = invalidations(&batch);
        let (asked, now, mut failed) = write(&change, batch, is_broken);
        // Where there was no room, SQLite has taken back all of it already.
        let is_undone = self.conn.is_autocommit();
        let committed = if is_undone { Ok(()) } else { change.commit() };
        if is_undone || committed.is_err() {
            // What must be forgotten is said again, with nothing that takes room.
            self.held_back = held_back(forgets);
        }
        failed = failed.or(committed.err());
        if self.since_check >= self.bytes_max / STEP_PART {
            self.since_check = 0;
            failed = failed.or(self.make_room(now).err());
        }
        for order in asked {
            if matches!(order, Write::Last(_)) && !self.held_back.is_empty() {
                self.held_back.push(order);
                continue;
            }
            if let Err((order, error)) = self.reply(order) {
                if is_held(&error) {
                    self.held_back.extend(held_back(vec![order]));
                }
                failed = failed.or(Some(error));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// What whoever asked waits for; or the question again, and why it has no answer.
    #[expect(
        clippy::result_large_err,
        reason = "once for each question that cannot be answered, and it is looked at again"
    )]
    fn reply(&self, order: Write) -> Result<(), (Write, rusqlite::Error)> {
        // Whoever asked may have left.
        match order {
            Write::Purge(provider, entity, answer) => {
                match desk::forget(&self.conn, provider.as_deref(), entity.as_deref()) {
                    Ok(gone) => {
                        let _left = answer.send(gone);
                    }
                    Err(error) => return Err((Write::Purge(provider, entity, answer), error)),
                }
            }
            Write::Rows(answer) => match desk::all(&self.conn) {
                Ok(rows) => {
                    let _left = answer.send(rows);
                }
                Err(error) => return Err((Write::Rows(answer), error)),
            },
            Write::Flush(answer) | Write::Last(answer) => {
                let _left = answer.send(());
            }
            Write::Put(..) | Write::Forget(..) | Write::Used(..) | Write::Invalidate(..) => {}
        }
        Ok(())
    }

    /// What nobody can use any more goes, then what was not used for longest.
    fn make_room(&self, now: Wall) -> rusqlite::Result<()> {
        self.conn.execute(
            "DELETE FROM answers WHERE id IN (SELECT id FROM answers WHERE until < ?1 LIMIT ?2)",
            params![signed(now), EVICT_MAX],
        )?;
        let total = "SELECT ifnull(sum(size), 0) FROM answers";
        let total: i64 = self.conn.query_row(total, [], |row| row.get(0))?;
        let most = self.bytes_max - self.bytes_max / STEP_PART;
        let excess = total.unsigned_abs().saturating_sub(most);
        if total.is_negative() || excess == 0 {
            return Ok(());
        }
        self.conn.execute(
            "DELETE FROM answers WHERE id IN (SELECT id FROM (SELECT id, sum(size)
               OVER (ORDER BY used, id ROWS UNBOUNDED PRECEDING) - size AS before FROM answers
               ORDER BY used, id LIMIT ?2) WHERE before < ?1)",
            params![i64::try_from(excess).unwrap_or(i64::MAX), EVICT_MAX],
        )?;
        Ok(())
    }
}

/// Writes what can be written; what is left are questions. Also when, and what went wrong.
fn write(
    change: &Transaction<'_>,
    batch: Vec<Write>,
    is_broken: bool,
) -> (Vec<Write>, Wall, Option<rusqlite::Error>) {
    let (mut asked, mut now, mut failed) = (Vec::new(), Wall(0), None);
    for order in batch {
        let done = match order {
            Write::Put(key, object, at) => {
                now = at;
                if is_broken {
                    Ok(())
                } else {
                    // What it would have replaced must not come back in its place.
                    put(change, &key, &object, at).inspect_err(|_| {
                        let _held = forget(change, &key, object.variant, object.stored);
                    })
                }
            }
            Write::Used(key, at) => change
                .prepare_cached("UPDATE answers SET used = ?2 WHERE key = ?1")
                .and_then(|mut statement| statement.execute(params![key.0, signed(at)]))
                .map(drop),
            Write::Invalidate(url, at) => invalidate(change, url, at),
            Write::Forget(key, variant, at) => forget(change, &key, variant, at),
            question @ (Write::Purge(..) | Write::Rows(_) | Write::Flush(_) | Write::Last(_)) => {
                asked.push(question);
                Ok(())
            }
        };
        failed = failed.or(done.err());
    }
    (asked, now, failed)
}

/// Does somebody else hold the file?
fn is_held(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// What of a batch makes answers invalid.
fn invalidations(batch: &[Write]) -> Vec<Write> {
    let each = batch.iter().filter_map(|order| match order {
        Write::Invalidate(url, at) => Some(Write::Invalidate(*url, *at)),
        Write::Forget(key, variant, at) => Some(Write::Forget(*key, *variant, *at)),
        // Where the new one is not written, the old one is not to come back in its place.
        Write::Put(key, object, _) => Some(Write::Forget(*key, object.variant, object.stored)),
        Write::Used(..) | Write::Purge(..) | Write::Rows(_) | Write::Flush(_) | Write::Last(_) => {
            None
        }
    });
    each.collect()
}

/// What must be forgotten, if not now, and who waits for just that. Whoever waits for anything else
/// hears that it was not done.
fn held_back(batch: Vec<Write>) -> Vec<Write> {
    let stays = |order: &Write| {
        matches!(
            order,
            Write::Forget(..) | Write::Invalidate(..) | Write::Purge(..) | Write::Last(_)
        )
    };
    let left = batch.into_iter().map(|order| match order {
        Write::Put(key, object, _) => Write::Forget(key, object.variant, object.stored),
        other => other,
    });
    let mut left: Vec<Write> = left.filter(stays).collect();
    if left.len() > HELD_BACK_MAX {
        left.retain(|order| !matches!(order, Write::Forget(..) | Write::Invalidate(..)));
        let (all, _nobody) = oneshot::channel();
        left.push(Write::Purge(None, None, all));
    }
    left
}

/// Has another process forgotten it since it was asked for, or does it have a newer one? What is in the
/// future was written by a clock that has been set back.
fn is_late(conn: &Connection, key: &Key, object: &Object, now: Wall) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM purges WHERE at BETWEEN ?1 AND ?2 AND (url = ?3 OR (url IS NULL
             AND ifnull(provider, ?4) = ?4 AND (entity IS NULL OR entity IS ?5))))
           OR EXISTS (SELECT 1 FROM answers WHERE key = ?6 AND variant = ?7 AND stored > ?1
             AND stored <= ?2)",
    )?
    .query_row(
        params![
            signed(object.stored),
            signed(now),
            object.url.0,
            object.provider,
            object.entity,
            key.0,
            object.variant.0,
        ],
        |row| row.get(0),
    )
}

fn put(conn: &Connection, key: &Key, object: &Object, now: Wall) -> rusqlite::Result<()> {
    if is_late(conn, key, object, now)? {
        return Ok(());
    }
    let until = object.kept.stale_until.max(object.kept.fresh_until);
    conn.prepare_cached(
        "INSERT OR REPLACE INTO answers
           (key, variant, url, stored, provider, entity, size, used, until, head, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute(params![
        key.0,
        object.variant.0,
        object.url.0,
        signed(object.stored),
        object.provider,
        object.entity,
        i64::try_from(object.weight()).unwrap_or(i64::MAX),
        signed(now),
        signed(until),
        book::head(object),
        &object.body[..],
    ])?;
    conn.prepare_cached(
        "DELETE FROM answers WHERE key = ?1 AND id NOT IN
           (SELECT id FROM answers WHERE key = ?1 ORDER BY id DESC LIMIT ?2)",
    )?
    .execute(params![key.0, variants_max()])?;
    Ok(())
}

fn forget(conn: &Connection, key: &Key, variant: Variant, at: Wall) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM answers WHERE key = ?1 AND variant = ?2 AND stored <= ?3")?
        .execute(params![key.0, variant.0, signed(at)])
        .map(drop)
}

fn invalidate(conn: &Connection, url: Url, at: Wall) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM answers WHERE url = ?1 AND stored <= ?2")?
        .execute(params![url.0, signed(at)])?;
    // Also where nothing was: others may have it in memory only, or on its way here.
    conn.prepare_cached("INSERT INTO purges (url, at) VALUES (?1, ?2)")?
        .execute(params![url.0, signed(at)])?;
    desk::shorten(conn)
}

fn signed(at: Wall) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "scribe_tests.rs"]
mod tests;
