//! The thread that writes `cache.db`.
//!
//! Promises: what waits shares a transaction. The file is bounded: what nobody can use any more goes
//! first, then what was not used for longest. While somebody else holds the file or the disk is full,
//! what must be forgotten waits and is done as soon as it can, at the end too, and if there is no room
//! then either the file goes; what should be kept is not waited with.
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

use super::disk::{RemovalBacklog, WRITES_MAX, WriteCommand, report_failure, variants_max};
use super::key::{UrlHash, Variant};
use super::{CacheKey, CachedResponse, admin, database};
use crate::event::LogEvent;

/// How often room is made for one answer, each time for more.
const PUT_TRIES: u64 = 3;

/// Orders that share one transaction.
const BATCH_MAX: usize = 64;

/// Room is made in steps of this part of the whole, so that it is not made for every answer.
const EVICT_FRACTION: u64 = 20;

/// Answers that are removed in one go; more follow with the next batch.
const EVICT_MAX: i64 = 4_096;

/// Orders to forget that may wait for a file that somebody else holds. More of them are not one by
/// one worth keeping: everything is forgotten then.
const DEFERRED_MAX: usize = 4_096;

/// How soon a file that somebody else holds is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How often it is tried at the end, when nobody orders any more: two seconds, and as often the time
/// that each try waits.
const CLOSE_TRIES: u32 = 20;

/// Writes.
pub(super) struct CacheWriter {
    pub(super) conn: Connection,
    pub(super) bytes_max: u64,
    /// Bytes written since the size was looked at.
    pub(super) since_check: u64,
    pub(super) pending_bytes: Arc<AtomicU64>,
    /// What must be forgotten and found no place among the orders.
    pub(super) backlog: Arc<RemovalBacklog>,
    pub(super) broken: Arc<AtomicBool>,
    pub(super) path: PathBuf,
    /// What must be forgotten although the file could not be written.
    pub(super) deferred: Vec<WriteCommand>,
}

impl CacheWriter {
    pub(super) fn run(mut self, orders: &Receiver<WriteCommand>) {
        loop {
            let first = if self.deferred.is_empty() {
                orders.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                orders.recv_timeout(RETRY_AFTER)
            };
            let mut batch = std::mem::take(&mut self.deferred);
            match first {
                Ok(first) => batch.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    batch.extend(self.backlog.drain());
                    return self.finish(batch);
                }
            }
            // What is overdue came after all that is in the queue: it must not be done before.
            let overdue = self.backlog.drain();
            let most = if overdue.is_empty() {
                BATCH_MAX
            } else {
                WRITES_MAX
            };
            batch.extend(orders.try_iter().take(most));
            batch.extend(overdue);
            self.run_batch(batch);
        }
    }

    fn run_batch(&mut self, batch: Vec<WriteCommand>) {
        if let Err(error) = self.execute(batch) {
            // It may be full: room is made with the next batch.
            self.since_check = self.bytes_max;
            report_failure(&self.broken, &self.path, &error);
        }
    }

    /// Nobody orders any more: what was held back is done now, or it would come back.
    fn finish(&mut self, mut batch: Vec<WriteCommand>) {
        for _ in 0..CLOSE_TRIES {
            if batch.is_empty() {
                return;
            }
            // As for those who wait for the end, if nobody does any more.
            let (last, _nobody) = oneshot::channel();
            batch.push(WriteCommand::Close(last));
            self.run_batch(batch);
            batch = std::mem::take(&mut self.deferred);
            if !batch.is_empty() {
                std::thread::park_timeout(RETRY_AFTER);
            }
        }
    }

    fn execute(&mut self, batch: Vec<WriteCommand>) -> rusqlite::Result<()> {
        for order in &batch {
            if let WriteCommand::Put(_, object, _) | WriteCommand::Replace(_, object, _) = order {
                self.pending_bytes
                    .fetch_sub(object.weight(), Ordering::AcqRel);
                self.since_check += object.weight();
            }
        }
        let (asked, now, mut failed) = self.commit(batch)?;
        if self.since_check >= self.bytes_max / EVICT_FRACTION {
            self.since_check = 0;
            failed = failed.or(self.evict_excess(now).err());
        }
        let mut last = Vec::new();
        for order in asked {
            if matches!(order, WriteCommand::Close(_)) {
                last.push(order);
                continue;
            }
            if let Err((order, error)) = self.reply(order) {
                if is_transient(&error) {
                    let again = self.to_defer(vec![order]);
                    self.deferred.extend(again);
                }
                failed = failed.or(Some(error));
            }
        }
        self.close_with(last, failed.as_ref());
        failed.map_or(Ok(()), Err)
    }

    /// Writes a batch in one transaction; what is left are questions. Also when, and what went wrong.
    fn commit(&mut self, batch: Vec<WriteCommand>) -> rusqlite::Result<BatchResult> {
        // Immediate: a transaction that begins by reading cannot wait for another writer.
        let begun = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate);
        let change = match begun {
            Ok(change) => change,
            Err(error) => {
                if is_transient(&error) {
                    self.deferred = self.to_defer(batch);
                }
                return Err(error);
            }
        };
        let is_broken = self.broken.load(Ordering::Acquire);
        let (mut forgets, replaced) = (invalidations(&batch), removals_of_replaced(&batch));
        let (asked, now, mut failed) = write(&change, batch, is_broken, self.bytes_max);
        // Where there was no room, SQLite may have taken back all of it already.
        let mut is_undone = self.conn.is_autocommit();
        if !is_undone && let Err(error) = change.commit() {
            failed = failed.or(Some(error));
            is_undone = true;
        }
        if failed.is_some() {
            // What must be forgotten is said again, with nothing that takes room.
            forgets.extend(replaced.into_iter().filter(|_| is_undone));
            self.deferred = self.to_defer(forgets);
        }
        Ok((asked, now, failed))
    }

    /// Nobody orders anything after these, once nothing is left to be forgotten.
    fn close_with(&mut self, last: Vec<WriteCommand>, failed: Option<&rusqlite::Error>) {
        if last.is_empty() {
            return;
        }
        if failed.is_some_and(is_full) && !self.deferred.is_empty() {
            self.remove_file();
        }
        if !self.deferred.is_empty() {
            return self.deferred.extend(last);
        }
        for order in last {
            let _answered = self.reply(order);
        }
    }

    /// There is no room even to note what must be forgotten, and what is not forgotten now would come
    /// back with the next start: the file goes, which loses nothing but time.
    fn remove_file(&mut self) {
        self.deferred.clear();
        self.broken.store(true, Ordering::Release);
        let why = match database::remove(&self.path) {
            Ok(()) => {
                "it was removed, because what was purged could not be forgotten on a full disk"
            }
            Err(_) => "what was purged could not be forgotten on a full disk",
        };
        let why = &format!("{}: {why}", self.path.display());
        LogEvent::CacheOnlyInMemory { why }.emit();
    }

    /// What whoever asked waits for; or the question again, and why it has no answer.
    #[expect(
        clippy::result_large_err,
        reason = "once for each question that cannot be answered, and it is looked at again"
    )]
    fn reply(&self, order: WriteCommand) -> Result<(), (WriteCommand, rusqlite::Error)> {
        // Whoever asked may have left.
        match order {
            WriteCommand::Purge(purge) => {
                let (provider, entity) = (purge.provider.as_deref(), purge.entity.as_deref());
                match admin::purge_rows(&self.conn, provider, entity) {
                    Ok(gone) => purge.finish(gone),
                    Err(error) => return Err((WriteCommand::Purge(purge), error)),
                }
            }
            WriteCommand::Usage(answer) => match admin::query_usage(&self.conn) {
                Ok(rows) => {
                    let _left = answer.send(rows);
                }
                Err(error) => return Err((WriteCommand::Usage(answer), error)),
            },
            WriteCommand::Flush(answer) | WriteCommand::Close(answer) => {
                let _left = answer.send(());
            }
            WriteCommand::Put(..)
            | WriteCommand::Replace(..)
            | WriteCommand::Remove(..)
            | WriteCommand::Touch(..)
            | WriteCommand::Invalidate(..) => {}
        }
        Ok(())
    }

    /// What must be forgotten, if not now, and who waits for just that. Whoever waits for anything
    /// else hears that it was not done.
    fn to_defer(&self, batch: Vec<WriteCommand>) -> Vec<WriteCommand> {
        let stays = |order: &WriteCommand| {
            matches!(
                order,
                WriteCommand::Remove(..)
                    | WriteCommand::Invalidate(..)
                    | WriteCommand::Purge(_)
                    | WriteCommand::Close(_)
            )
        };
        let replaced = removals_of_replaced(&batch);
        let mut left: Vec<WriteCommand> = batch.into_iter().filter(stays).collect();
        left.extend(replaced);
        if left.len() > DEFERRED_MAX {
            left.retain(|order| {
                !matches!(
                    order,
                    WriteCommand::Remove(..) | WriteCommand::Invalidate(..)
                )
            });
            left.push(self.backlog.purge_all());
        }
        left
    }

    /// What nobody can use any more goes, then what was not used for longest.
    fn evict_excess(&self, now: Wall) -> rusqlite::Result<()> {
        self.conn.execute(
            "DELETE FROM answers WHERE id IN (SELECT id FROM answers WHERE until < ?1 LIMIT ?2)",
            params![signed(now), EVICT_MAX],
        )?;
        let total = "SELECT ifnull(sum(size), 0) FROM answers";
        let total: i64 = self.conn.query_row(total, [], |row| row.get(0))?;
        let most = self.bytes_max - self.bytes_max / EVICT_FRACTION;
        let excess = total.unsigned_abs().saturating_sub(most);
        if total.is_negative() || excess == 0 {
            return Ok(());
        }
        evict(&self.conn, excess)
    }
}

/// Questions, when, and what went wrong.
type BatchResult = (Vec<WriteCommand>, Wall, Option<rusqlite::Error>);

/// Writes what can be written; what is left are questions.
fn write(
    change: &Transaction<'_>,
    batch: Vec<WriteCommand>,
    is_broken: bool,
    bytes_max: u64,
) -> BatchResult {
    let (mut asked, mut now, mut failed) = (Vec::new(), Wall(0), None);
    for order in batch {
        let done = match order {
            WriteCommand::Put(key, object, at) | WriteCommand::Replace(key, object, at) => {
                now = at;
                if is_broken {
                    Ok(())
                } else {
                    // What it would have replaced must not come back in its place.
                    put_or_evict(change, &key, &object, at, bytes_max).inspect_err(|_| {
                        let _held = remove(change, &key, object.variant, object.stored);
                    })
                }
            }
            WriteCommand::Touch(key, at) => change
                .prepare_cached("UPDATE answers SET used = ?2 WHERE key = ?1")
                .and_then(|mut statement| statement.execute(params![key.0, signed(at)]))
                .map(drop),
            WriteCommand::Invalidate(url, at) => invalidate(change, url, at),
            WriteCommand::Remove(key, variant, at) => remove(change, &key, variant, at),
            question @ (WriteCommand::Purge(_)
            | WriteCommand::Usage(_)
            | WriteCommand::Flush(_)
            | WriteCommand::Close(_)) => {
                asked.push(question);
                Ok(())
            }
        };
        failed = failed.or(done.err());
    }
    (asked, now, failed)
}

/// Does somebody else hold the file, or is there no room just now?
fn is_transient(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    is_full(error)
        || matches!(
            code,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        )
}

/// Is there no room?
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// What of a batch makes answers invalid.
fn invalidations(batch: &[WriteCommand]) -> Vec<WriteCommand> {
    let each = batch.iter().filter_map(|order| match order {
        WriteCommand::Invalidate(url, at) => Some(WriteCommand::Invalidate(*url, *at)),
        WriteCommand::Remove(key, variant, at) => Some(WriteCommand::Remove(*key, *variant, *at)),
        WriteCommand::Put(..)
        | WriteCommand::Replace(..)
        | WriteCommand::Touch(..)
        | WriteCommand::Purge(_)
        | WriteCommand::Usage(_)
        | WriteCommand::Flush(_)
        | WriteCommand::Close(_) => None,
    });
    each.collect()
}

/// What a batch would have replaced: where the new answer is not written, the old one must not come
/// back in its place.
fn removals_of_replaced(batch: &[WriteCommand]) -> Vec<WriteCommand> {
    let each = batch.iter().filter_map(|order| match order {
        WriteCommand::Replace(key, object, _) => {
            Some(WriteCommand::Remove(*key, object.variant, object.stored))
        }
        _ => None,
    });
    each.collect()
}

/// Puts an answer in, in place of what was not used for longest if there is no room for both.
fn put_or_evict(
    conn: &Connection,
    key: &CacheKey,
    object: &CachedResponse,
    now: Wall,
    bytes_max: u64,
) -> rusqlite::Result<()> {
    let mut done = put(conn, key, object, now);
    // Pages are not full, and indexes need some too: what is as heavy may not be enough.
    for times in 1..=PUT_TRIES {
        match &done {
            Err(error)
                if is_full(error) && !conn.is_autocommit() && object.weight() < bytes_max =>
            {
                evict(
                    conn,
                    times * object.weight().max(bytes_max / EVICT_FRACTION),
                )?;
                done = put(conn, key, object, now);
            }
            _ => return done,
        }
    }
    done
}

/// Removes so many bytes of what was not used for longest.
fn evict(conn: &Connection, bytes: u64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "DELETE FROM answers WHERE id IN (SELECT id FROM (SELECT id, sum(size)
           OVER (ORDER BY used, id ROWS UNBOUNDED PRECEDING) - size AS before FROM answers
           ORDER BY used, id LIMIT ?2) WHERE before < ?1)",
    )?
    .execute(params![i64::try_from(bytes).unwrap_or(i64::MAX), EVICT_MAX])?;
    Ok(())
}

/// Has another process forgotten it since it was asked for, or does it have a newer one? What is in the
/// future was written by a clock that has been set back.
fn is_superseded(
    conn: &Connection,
    key: &CacheKey,
    object: &CachedResponse,
    now: Wall,
) -> rusqlite::Result<bool> {
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

fn put(
    conn: &Connection,
    key: &CacheKey,
    object: &CachedResponse,
    now: Wall,
) -> rusqlite::Result<()> {
    if is_superseded(conn, key, object, now)? {
        return Ok(());
    }
    let until = object
        .freshness
        .stale_until
        .max(object.freshness.fresh_until);
    // Numbers follow the clock: those of rows that are gone are not used again, so that whoever follows
    // them misses nothing.
    let last: i64 = conn
        .prepare_cached("SELECT ifnull(max(id), 0) FROM answers")?
        .query_row([], |row| row.get(0))?;
    let id = last.saturating_add(1).max(signed(now));
    conn.prepare_cached(
        "INSERT OR REPLACE INTO answers
           (key, variant, url, stored, provider, entity, size, used, until, head, body, id)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
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
        database::encode_head(object),
        &object.body[..],
        id,
    ])?;
    conn.prepare_cached(
        "DELETE FROM answers WHERE key = ?1 AND id NOT IN
           (SELECT id FROM answers WHERE key = ?1 ORDER BY id DESC LIMIT ?2)",
    )?
    .execute(params![key.0, variants_max()])?;
    Ok(())
}

fn remove(conn: &Connection, key: &CacheKey, variant: Variant, at: Wall) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM answers WHERE key = ?1 AND variant = ?2 AND stored <= ?3")?
        .execute(params![key.0, variant.0, signed(at)])
        .map(drop)
}

fn invalidate(conn: &Connection, url: UrlHash, at: Wall) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM answers WHERE url = ?1 AND stored <= ?2")?
        .execute(params![url.0, signed(at)])?;
    // Also where nothing was: others may have it in memory only, or on its way here.
    conn.prepare_cached("INSERT INTO purges (url, at) VALUES (?1, ?2)")?
        .execute(params![url.0, signed(at)])?;
    admin::trim_purges(conn)
}

fn signed(at: Wall) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
