//! The thread that writes `cache.db`.
//!
//! Promises: waiting commands share a transaction. The file is bounded: expired responses are
//! evicted first, then the least recently used. While another process holds the file or the disk is
//! full, removals wait and are retried, also during shutdown; if there is still no room then, the
//! file is deleted. Stores are not retried. While the disk has little room, the file does not grow.
//!
//! Never: makes a call wait.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;
use tollgate_core::time::Wall;

use super::disk::{RemovalBacklog, WRITES_MAX, WriteCommand, report_failure};
use super::statements::{self, EVICT_FRACTION, invalidate, is_full, put_or_evict, remove, signed};
use super::{admin, database};
use crate::event::{Event, Events};

/// Commands that share one transaction.
const BATCH_MAX: usize = 64;

/// Removals that may wait for a file that another process holds. Past that everything is purged.
const DEFERRED_MAX: usize = 4_096;

/// How soon a locked file is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How often removals are tried at shutdown: two seconds of pauses, plus the wait of each try.
const CLOSE_TRIES: u32 = 20;

/// The part of the disk that the cache leaves free: the log of the ledger takes up to 64 MiB, that
/// of the cache 16, and a ledger without room rejects calls.
const DISK_FREE_MIN: u64 = 96 * 1024 * 1024;

/// The state of the writing thread.
pub(super) struct CacheWriter {
    pub(super) conn: Connection,
    pub(super) bytes_max: u64,
    /// Bytes written since the last check of the size.
    pub(super) since_check: u64,
    pub(super) pending_bytes: Arc<AtomicU64>,
    /// Removals that did not fit in the queue.
    pub(super) backlog: Arc<RemovalBacklog>,
    pub(super) broken: Arc<AtomicBool>,
    pub(super) events: Events,
    pub(super) path: PathBuf,
    /// Removals that wait because the file could not be written.
    pub(super) deferred: Vec<WriteCommand>,
    /// The free bytes of a disk.
    pub(super) free_bytes: fn(&Path) -> Option<u64>,
    /// The disk has little room: new responses replace others.
    pub(super) is_growth_stopped: bool,
}

/// The free bytes of the disk with this file; `None`: unknown.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

impl CacheWriter {
    pub(super) fn run(mut self, commands: &Receiver<WriteCommand>) {
        loop {
            let first = if self.deferred.is_empty() {
                commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                commands.recv_timeout(RETRY_AFTER)
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
            // The backlog came after everything in the queue: it must not be executed earlier.
            let backlog = self.backlog.drain();
            let most = if backlog.is_empty() {
                BATCH_MAX
            } else {
                WRITES_MAX
            };
            batch.extend(commands.try_iter().take(most));
            batch.extend(backlog);
            self.run_batch(batch);
        }
    }

    fn run_batch(&mut self, batch: Vec<WriteCommand>) {
        if let Err(error) = self.execute(batch) {
            // The file may be full: the next batch evicts.
            self.since_check = self.bytes_max;
            report_failure(&self.broken, &self.path, &error, &self.events);
        }
    }

    /// No more commands come: executes the deferred removals, or the responses would come back.
    fn finish(&mut self, mut batch: Vec<WriteCommand>) {
        for _ in 0..CLOSE_TRIES {
            if batch.is_empty() {
                return;
            }
            // A `Close` without a requester has the same effect.
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
        for command in &batch {
            if let WriteCommand::Put(_, object, _) | WriteCommand::Replace(_, object, _) = command {
                self.pending_bytes
                    .fetch_sub(object.weight(), Ordering::AcqRel);
                self.since_check += object.weight();
            }
        }
        let adapted = self.adapt_to_disk();
        let (queries, now, mut failed) = self.commit(batch)?;
        failed = failed.or(adapted.err());
        if self.since_check >= self.bytes_max / EVICT_FRACTION {
            self.since_check = 0;
            failed = failed.or(statements::evict_excess(&self.conn, self.bytes_max, now).err());
        }
        let mut last = Vec::new();
        for command in queries {
            if matches!(command, WriteCommand::Close(_)) {
                last.push(command);
                continue;
            }
            if let Err((command, error)) = self.reply(command) {
                if is_transient(&error) {
                    let again = self.to_defer(vec![command]);
                    self.deferred.extend(again);
                }
                failed = failed.or(Some(error));
            }
        }
        self.close_with(last, failed.as_ref());
        failed.map_or(Ok(()), Err)
    }

    /// Stops the growth of the file while the disk has little room, and allows it again.
    fn adapt_to_disk(&mut self) -> rusqlite::Result<()> {
        let free = (self.free_bytes)(&self.path);
        let is_scarce = free.is_some_and(|free| free < DISK_FREE_MIN);
        if is_scarce != self.is_growth_stopped {
            if is_scarce {
                database::stop_growth(&self.conn)?;
            } else {
                database::limit_file_size(&self.conn, self.bytes_max)?;
            }
            self.is_growth_stopped = is_scarce;
        }
        Ok(())
    }

    /// Writes a batch in one transaction; returns the queries, the time, and the first error.
    fn commit(&mut self, batch: Vec<WriteCommand>) -> rusqlite::Result<BatchResult> {
        // Immediate: a transaction that begins with a read cannot wait for another writer.
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
        let (mut removals, replaced) = (invalidations(&batch), removals_of_replaced(&batch));
        let (queries, now, mut failed) = write(&change, batch, is_broken, self.bytes_max);
        // If there was no room, SQLite may already have rolled back everything.
        let mut is_undone = self.conn.is_autocommit();
        if !is_undone && let Err(error) = change.commit() {
            failed = failed.or(Some(error));
            is_undone = true;
        }
        if failed.is_some() {
            // Repeats the removals, without anything that takes room.
            removals.extend(replaced.into_iter().filter(|_| is_undone));
            self.deferred = self.to_defer(removals);
        }
        Ok((queries, now, failed))
    }

    /// Replies to `Close` once no removals remain.
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
        for command in last {
            let _answered = self.reply(command);
        }
    }

    /// There is no room even to record the removals, and without them the responses would come back
    /// with the next start. So the file is deleted, which costs only time.
    fn remove_file(&mut self) {
        self.deferred.clear();
        self.broken.store(true, Ordering::Release);
        let why = match database::remove(&self.path) {
            Ok(()) => {
                "the file was deleted, because the disk is full and purged responses stayed in it"
            }
            Err(_) => "the disk is full and purged responses stay in the file; delete it",
        };
        let why = format!("{}: {why}", self.path.display()).into();
        self.events.emit(Event::CacheOnlyInMemory { why });
    }

    /// Replies to the requester, or returns the command and the error.
    #[expect(
        clippy::result_large_err,
        reason = "once for each failed command, and the caller retries it"
    )]
    fn reply(&self, command: WriteCommand) -> Result<(), (WriteCommand, rusqlite::Error)> {
        // The requester may have left.
        match command {
            WriteCommand::Purge(purge) => {
                let (provider, entity) = (purge.provider.as_deref(), purge.entity.as_deref());
                match admin::purge_rows(&self.conn, provider, entity) {
                    Ok(gone) => purge.finish(gone),
                    Err(error) => return Err((WriteCommand::Purge(purge), error)),
                }
            }
            WriteCommand::Usage(reply) => match admin::query_usage(&self.conn) {
                Ok(rows) => {
                    let _receiver_gone = reply.send(rows);
                }
                Err(error) => return Err((WriteCommand::Usage(reply), error)),
            },
            WriteCommand::Flush(reply) | WriteCommand::Close(reply) => {
                let _receiver_gone = reply.send(());
            }
            WriteCommand::Put(..)
            | WriteCommand::Replace(..)
            | WriteCommand::Remove(..)
            | WriteCommand::Touch(..)
            | WriteCommand::Invalidate(..) => {}
        }
        Ok(())
    }

    /// The removals of a batch that must wait, with their requesters. Other requesters learn that
    /// their command was not executed.
    fn to_defer(&self, batch: Vec<WriteCommand>) -> Vec<WriteCommand> {
        let stays = |command: &WriteCommand| {
            matches!(
                command,
                WriteCommand::Remove(..)
                    | WriteCommand::Invalidate(..)
                    | WriteCommand::Purge(_)
                    | WriteCommand::Close(_)
            )
        };
        let replaced = removals_of_replaced(&batch);
        let mut remaining: Vec<WriteCommand> = batch.into_iter().filter(stays).collect();
        remaining.extend(replaced);
        if remaining.len() > DEFERRED_MAX {
            remaining.retain(|command| {
                !matches!(
                    command,
                    WriteCommand::Remove(..) | WriteCommand::Invalidate(..)
                )
            });
            remaining.push(self.backlog.purge_all());
        }
        remaining
    }
}

/// Queries, the time, and the first error.
type BatchResult = (Vec<WriteCommand>, Wall, Option<rusqlite::Error>);

/// Writes what can be written; returns the queries.
fn write(
    change: &Transaction<'_>,
    batch: Vec<WriteCommand>,
    is_broken: bool,
    bytes_max: u64,
) -> BatchResult {
    let (mut queries, mut now, mut failed) = (Vec::new(), Wall(0), None);
    for command in batch {
        let done = match command {
            WriteCommand::Put(key, object, at) | WriteCommand::Replace(key, object, at) => {
                now = at;
                if is_broken {
                    Ok(())
                } else {
                    // The response that it would have replaced must not come back.
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
            query @ (WriteCommand::Purge(_)
            | WriteCommand::Usage(_)
            | WriteCommand::Flush(_)
            | WriteCommand::Close(_)) => {
                queries.push(query);
                Ok(())
            }
        };
        failed = failed.or(done.err());
    }
    (queries, now, failed)
}

/// Does another process hold the file, or is the disk full?
fn is_transient(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    is_full(error)
        || matches!(
            code,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        )
}

/// The commands of a batch that invalidate or remove responses.
fn invalidations(batch: &[WriteCommand]) -> Vec<WriteCommand> {
    let each = batch.iter().filter_map(|command| match command {
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

/// Removals of the responses that a batch would have replaced: if the new response is not written,
/// the old one must not come back.
fn removals_of_replaced(batch: &[WriteCommand]) -> Vec<WriteCommand> {
    let each = batch.iter().filter_map(|command| match command {
        WriteCommand::Replace(key, object, _) => {
            Some(WriteCommand::Remove(*key, object.variant, object.stored))
        }
        _ => None,
    });
    each.collect()
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
