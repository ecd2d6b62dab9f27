//! The thread that writes `cache.db`.
//!
//! Promises: what waits shares a transaction. The file is bounded: what nobody can use any more goes
//! first, then what was not used for longest.
//!
//! Never: is waited for by a call.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tollgate_core::time::Wall;

use super::disk::{Write, tell, variants_max};
use super::key::Url;
use super::{Key, Object, book, desk};

/// Orders that share one transaction.
const BATCH_MAX: usize = 64;

/// Room is made in steps of this part of the whole, so that it is not made for every answer.
const STEP_PART: u64 = 20;

/// Answers that are removed in one go; more follow with the next batch.
const EVICT_MAX: i64 = 4_096;

/// Writes.
pub(super) struct Scribe {
    pub(super) conn: Connection,
    pub(super) bytes_max: u64,
    /// Bytes written since the size was looked at.
    pub(super) since_check: u64,
    pub(super) pending: Arc<AtomicU64>,
    pub(super) broken: Arc<AtomicBool>,
    pub(super) path: PathBuf,
}

impl Scribe {
    pub(super) fn run(mut self, orders: &Receiver<Write>) {
        while let Ok(first) = orders.recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX {
                match orders.try_recv() {
                    Ok(order) => batch.push(order),
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                }
            }
            if let Err(error) = self.obey(batch) {
                tell(&self.broken, &self.path, &error);
            }
        }
    }

    fn obey(&mut self, batch: Vec<Write>) -> rusqlite::Result<()> {
        let mut asked = Vec::new();
        let mut now = Wall(0);
        let is_broken = self.broken.load(Ordering::Acquire);
        for order in &batch {
            if let Write::Put(_, object, _) = order {
                self.pending.fetch_sub(object.weight(), Ordering::AcqRel);
                self.since_check += object.weight();
            }
        }
        // Immediate: a transaction that begins by reading cannot wait for another writer.
        let change = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)?;
        let mut failed = None;
        for order in batch {
            let done = match order {
                Write::Put(key, object, at) => {
                    now = at;
                    if is_broken {
                        Ok(())
                    } else {
                        put(&change, &key, &object, at)
                    }
                }
                Write::Used(key, at) => change
                    .prepare_cached("UPDATE answers SET used = ?2 WHERE key = ?1")
                    .and_then(|mut statement| statement.execute(params![key.0, signed(at)]))
                    .map(drop),
                Write::Invalidate(url, at) => invalidate(&change, url, at),
                question @ (Write::Purge(..) | Write::Rows(_) | Write::Flush(_)) => {
                    asked.push(question);
                    Ok(())
                }
            };
            failed = failed.or(done.err());
        }
        change.commit()?;
        if self.since_check >= self.bytes_max / STEP_PART {
            self.since_check = 0;
            self.make_room(now)?;
        }
        asked.into_iter().try_for_each(|order| self.reply(order))?;
        failed.map_or(Ok(()), Err)
    }

    /// What whoever asked waits for.
    fn reply(&self, order: Write) -> rusqlite::Result<()> {
        match order {
            Write::Purge(provider, entity, answer) => {
                let gone = desk::forget(&self.conn, provider.as_deref(), entity.as_deref())?;
                let _left = answer.send(gone);
            }
            Write::Rows(answer) => {
                let _left = answer.send(desk::all(&self.conn)?);
            }
            Write::Flush(answer) => {
                let _left = answer.send(());
            }
            Write::Put(..) | Write::Used(..) | Write::Invalidate(..) => {}
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

fn put(conn: &Connection, key: &Key, object: &Object, now: Wall) -> rusqlite::Result<()> {
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

fn invalidate(conn: &Connection, url: Url, at: Wall) -> rusqlite::Result<()> {
    let gone = conn
        .prepare_cached("DELETE FROM answers WHERE url = ?1 AND stored <= ?2")?
        .execute(params![url.0, signed(at)])?;
    if gone > 0 {
        conn.prepare_cached("INSERT INTO purges (url, at) VALUES (?1, ?2)")?
            .execute(params![url.0, signed(at)])?;
        desk::shorten(conn)?;
    }
    Ok(())
}

fn signed(at: Wall) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}
