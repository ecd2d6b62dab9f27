//! The disk tier: two threads, one that reads `cache.db` and one that writes it.
//!
//! Promises: the runtime never waits for a disk: requests and replies are messages. Pending writes
//! are bounded in bytes; past that a response is cached in memory only. The file is bounded too:
//! the least recently used responses are evicted first.
//!
//! Never: fails a call. When the database fails, reads and writes stop, and that is reported once;
//! a damaged file is moved aside, so that the next start creates a new one. A full disk or a locked
//! file is retried.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::lock_order::{RankedMutex, rank};

use super::CacheUsage;
use super::database::{self, DatabaseError};
use super::index::{Index, IndexLoader};
use super::key::{Salt, UrlHash, Variant};
use super::memory::MemoryTier;
use super::object::VARIANTS_MAX;
use super::reader::{CacheReader, ReadRequest, last_purge};
use super::writer::{self, CacheWriter};
use super::{CacheKey, CachedResponse, DATABASE, VariantSet};
use crate::event::{Event, Events};
use crate::timer::within;

/// Reads that may wait. A read takes some 50 µs, so these take a fraction of a second; past that a
/// call had better ask its provider.
const READS_MAX: usize = 1_024;

/// Commands that may wait for the writer.
pub(super) const WRITES_MAX: usize = 4_096;

/// Bytes that may wait to be written: a second of a slow disk.
const PENDING_MAX: u64 = 64 * 1024 * 1024;

/// How long closing waits for another process that holds the file: longer than a healthy process
/// holds it, and shorter than a service manager waits (systemd: 90 s).
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// The resolution of a response's last use: recording it costs a write.
pub(super) const TOUCH_STEP: Span = Span::from_secs(3_600);

/// How long a call waits for the disk: longer than a healthy disk ever takes, and shorter than
/// several responses of the provider. Tests wait as long as it takes: their disk is shared with
/// everything else that the machine does, and what they ask is whether a response is found.
const READ_WAIT_MAX: Span = if cfg!(any(test, feature = "failpoints")) {
    Span::from_secs(60)
} else {
    Span::from_millis(250)
};

/// Removals that may wait outside a full queue. Past that everything is purged.
const BACKLOG_MAX: usize = 4_096;

/// The disk tier.
#[derive(Debug)]
pub(super) struct Disk {
    reads: SyncSender<ReadRequest>,
    writes: SyncSender<WriteCommand>,
    pending_bytes: Arc<AtomicU64>,
    backlog: Arc<RemovalBacklog>,
    broken: Arc<AtomicBool>,
    index: Arc<Index>,
}

/// Removals that are not done yet.
#[derive(Debug, Default)]
pub(super) struct RemovalBacklog {
    /// Removals that did not fit in the queue.
    commands: RankedMutex<{ rank::CACHE_COMMANDS }, Vec<WriteCommand>>,
    is_overflowed: AtomicBool,
    /// Purges that are requested and not done.
    open_purges: AtomicUsize,
}

/// A command to purge the responses of a provider, of one of its entities, or all. While one is
/// open, nothing is read from the file.
#[derive(Debug)]
pub(super) struct PurgeCommand {
    pub(super) provider: Option<String>,
    pub(super) entity: Option<String>,
    reply: Option<oneshot::Sender<u64>>,
    backlog: Arc<RemovalBacklog>,
}

impl PurgeCommand {
    /// Replies with the number of removed responses.
    pub(super) fn finish(mut self: Box<PurgeCommand>, gone: u64) {
        let reply = self.reply.take();
        drop(self);
        // The requester may have left.
        let _receiver_gone = reply.map(|reply| reply.send(gone));
    }
}

impl Drop for PurgeCommand {
    fn drop(&mut self) {
        self.backlog.open_purges.fetch_sub(1, Ordering::AcqRel);
    }
}

impl RemovalBacklog {
    fn push(&self, command: WriteCommand) {
        let mut commands = self.commands.lock();
        if commands.len() < BACKLOG_MAX {
            commands.push(command);
        } else {
            self.is_overflowed.store(true, Ordering::Release);
        }
    }

    pub(super) fn purge(
        self: &Arc<RemovalBacklog>,
        provider: Option<String>,
        entity: Option<String>,
        reply: oneshot::Sender<u64>,
    ) -> WriteCommand {
        self.open_purges.fetch_add(1, Ordering::AcqRel);
        WriteCommand::Purge(Box::new(PurgeCommand {
            provider,
            entity,
            reply: Some(reply),
            backlog: self.clone(),
        }))
    }

    /// A command to purge everything, without a requester.
    pub(super) fn purge_all(self: &Arc<RemovalBacklog>) -> WriteCommand {
        let (reply, _nobody) = oneshot::channel();
        self.purge(None, None, reply)
    }

    /// May the file still hold purged responses?
    pub(super) fn is_purging(&self) -> bool {
        self.open_purges.load(Ordering::Acquire) > 0 || self.is_overflowed.load(Ordering::Acquire)
    }

    /// All removals that did not fit in the queue, as commands.
    pub(super) fn drain(self: &Arc<RemovalBacklog>) -> Vec<WriteCommand> {
        let mut commands = std::mem::take(&mut *self.commands.lock());
        if self.is_overflowed.load(Ordering::Acquire) {
            commands.push(self.purge_all());
            self.is_overflowed.store(false, Ordering::Release);
        }
        commands
    }
}

#[derive(Debug)]
pub(super) enum WriteCommand {
    Put(CacheKey, Arc<CachedResponse>, Wall),
    /// The same where a response may exist: the old one must not stay if the new one is not
    /// written.
    Replace(CacheKey, Arc<CachedResponse>, Wall),
    /// Removes one response if it was requested by then.
    Remove(CacheKey, Variant, Wall),
    Touch(CacheKey, Wall),
    Invalidate(UrlHash, Wall),
    Purge(Box<PurgeCommand>),
    Usage(oneshot::Sender<Vec<CacheUsage>>),
    Flush(oneshot::Sender<()>),
    /// The same, after all removals are done.
    Close(oneshot::Sender<()>),
}

impl Disk {
    pub(super) fn open(
        folder: &Path,
        memory: Arc<MemoryTier>,
        bytes_max: u64,
        events: &Events,
    ) -> Result<(Disk, Salt), DatabaseError> {
        let (writer, aside) = database::open(folder, bytes_max)?;
        aside
            .iter()
            .for_each(|aside| report_recreated(aside, events));
        let path = folder.join(DATABASE);
        let reader = database::connect(&path)?;
        let (salt, last_purge) =
            salt_and_last_purge(&reader).map_err(|source| DatabaseError::Sqlite {
                path: path.clone(),
                source,
            })?;
        let (reads, requests) = sync_channel(READS_MAX);
        let (writes, commands) = sync_channel(WRITES_MAX);
        let (pending, broken) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (backlog, index) = (Arc::<RemovalBacklog>::default(), Arc::<Index>::default());
        let cache_writer = CacheWriter {
            conn: writer,
            bytes_max,
            since_check: bytes_max,
            pending_bytes: pending.clone(),
            backlog: backlog.clone(),
            broken: broken.clone(),
            events: events.clone(),
            path: path.clone(),
            deferred: Vec::new(),
            free_bytes: writer::free_bytes,
            is_growth_stopped: false,
        };
        let cache_reader = CacheReader {
            conn: reader,
            memory,
            last_purge,
            version: -1,
            loader: IndexLoader::new(index.clone()),
            backlog: backlog.clone(),
            writes: writes.clone(),
            broken: broken.clone(),
            events: events.clone(),
            path: path.clone(),
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let fail = |source| DatabaseError::Folder {
            path: path.clone(),
            source,
        };
        thread("cache-write")
            .spawn(move || cache_writer.run(&commands))
            .map_err(fail)?;
        thread("cache-read")
            .spawn(move || cache_reader.run(&requests))
            .map_err(fail)?;
        let disk = Disk {
            reads,
            writes,
            pending_bytes: pending,
            backlog,
            broken,
            index,
        };
        Ok((disk, salt))
    }

    /// The responses on disk except those already seen; reads nothing if the index lacks the key.
    pub(super) async fn find(
        &self,
        key: CacheKey,
        seen: &[Variant],
        now: Wall,
    ) -> Option<Arc<VariantSet>> {
        let is_broken = self.broken.load(Ordering::Acquire);
        if is_broken || !self.index.may_have(&key) || self.backlog.is_purging() {
            return None;
        }
        let (reply, found) = oneshot::channel();
        let seen = seen.to_vec();
        let read = ReadRequest {
            key,
            now,
            exclude: seen,
            reply,
        };
        self.reads.try_send(read).ok()?;
        within(Some(READ_WAIT_MAX), found).await.ok()?.ok()
    }

    /// A response was used again from memory.
    pub(super) fn touch(&self, key: CacheKey, now: Wall) {
        // If this fails, the response looks a little older than it is.
        let _noted = self.writes.try_send(WriteCommand::Touch(key, now));
    }

    /// Writes a response. Returns whether there may be others under this key.
    pub(super) fn put(&self, key: CacheKey, object: &Arc<CachedResponse>, now: Wall) -> bool {
        let may_have_others = self.index.may_have(&key);
        let command = if may_have_others {
            WriteCommand::Replace
        } else {
            WriteCommand::Put
        };
        let weight = object.weight();
        if self.pending_bytes.fetch_add(weight, Ordering::AcqRel) + weight > PENDING_MAX
            || self
                .writes
                .try_send(command(key, object.clone(), now))
                .is_err()
        {
            self.pending_bytes.fetch_sub(weight, Ordering::AcqRel);
            // The response that it would have replaced must not come back.
            if may_have_others {
                self.remove(key, object.variant, object.stored);
            }
        } else {
            self.index.put(&key);
        }
        may_have_others
    }

    /// Are all keys of the file known?
    #[cfg(test)]
    pub(super) fn is_indexed(&self) -> bool {
        self.index.is_complete()
    }

    pub(super) fn invalidate(&self, url: UrlHash, now: Wall) {
        self.send_or_backlog(|| WriteCommand::Invalidate(url, now));
    }

    pub(super) fn remove(&self, key: CacheKey, variant: Variant, at: Wall) {
        self.send_or_backlog(|| WriteCommand::Remove(key, variant, at));
    }

    /// Sends a command that must not be lost: if the queue is full, it waits in the backlog.
    fn send_or_backlog(&self, removal: impl Fn() -> WriteCommand) {
        let command = || self.writes.try_send(removal());
        if command().is_err() {
            self.backlog.push(removal());
            // The queue may have drained meanwhile, and the writer must be woken. If it is still
            // full, the writer takes the backlog together with the queue.
            let _again = command();
        }
    }

    pub(super) async fn purge(&self, provider: Option<&str>, entity: Option<&str>) -> Option<u64> {
        let own = |name: &str| name.to_owned();
        let (provider, entity) = (provider.map(own), entity.map(own));
        self.request(|reply| self.backlog.purge(provider, entity, reply))
            .await
    }

    pub(super) async fn usage(&self) -> Option<Vec<CacheUsage>> {
        self.request(WriteCommand::Usage).await
    }

    pub(super) async fn flush(&self) {
        self.request(WriteCommand::Flush).await;
    }

    pub(super) async fn close(&self) {
        let last = self.request(WriteCommand::Close);
        let _late = tokio::time::timeout(CLOSE_MAX, last).await;
    }

    async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> WriteCommand,
    ) -> Option<T> {
        let (reply, done) = oneshot::channel();
        let (writes, command) = (self.writes.clone(), command(reply));
        let sent = tokio::task::spawn_blocking(move || writes.send(command).is_ok());
        if !sent.await.unwrap_or(false) {
            return None;
        }
        done.await.ok()
    }
}

/// The salt, and the last purge before the start.
fn salt_and_last_purge(reader: &Connection) -> rusqlite::Result<(Salt, i64)> {
    Ok((database::salt(reader)?, last_purge(reader)?))
}

fn report_recreated(aside: &Path, events: &Events) {
    let file = aside.display().to_string().into();
    events.emit(Event::CacheRecreated { file });
}

/// Reports once that the database has failed, if the failure is permanent.
pub(super) fn report_failure(
    broken: &AtomicBool,
    path: &Path,
    error: &rusqlite::Error,
    events: &Events,
) {
    let code = error.sqlite_error_code();
    // Another process is writing, the disk is full, or this row is invalid: the next one may work.
    let is_passing = matches!(
        code,
        None | Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull)
    );
    if is_passing || broken.swap(true, Ordering::AcqRel) {
        return;
    }
    let why = format!("{} failed: {error}", path.display());
    let is_damaged = matches!(
        code,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    );
    if !is_damaged {
        return emit_memory_only(events, &why);
    }
    // Checking a large file takes seconds, and calls wait for this thread.
    let (reason, path, bus) = (why.clone(), path.to_owned(), events.clone());
    let thread = std::thread::Builder::new().name("cache-check".to_owned());
    if thread
        .spawn(move || quarantine_if_damaged(&path, reason, &bus))
        .is_err()
    {
        emit_memory_only(events, &why);
    }
}

/// Moves a damaged file aside, unless another process has already created a new one.
fn quarantine_if_damaged(path: &Path, mut why: String, events: &Events) {
    if database::is_damaged(path)
        && let Ok(aside) = database::move_aside(path)
    {
        why = format!("{why}; the damaged file was moved to {}", aside.display());
    }
    emit_memory_only(events, &why);
}

fn emit_memory_only(events: &Events, why: &str) {
    events.emit(Event::CacheOnlyInMemory { why: why.into() });
}

/// For SQL.
pub(super) fn variants_max() -> i64 {
    i64::try_from(VARIANTS_MAX).unwrap_or(i64::MAX)
}
