//! The disk tier: two threads, one that reads `cache.db` and one that writes it.
//!
//! Promises: the runtime never waits for a disk: questions and answers travel by message. What
//! waits to be written is bounded in bytes; past that an answer is kept in memory only. The file
//! is bounded too: what was not used for longest goes first.
//!
//! Never: takes a call down. When the database fails, nothing more is read or written, and that is
//! told once; a damaged one is moved aside, so that the next start begins anew. A disk that is full
//! or a file that somebody holds is tried again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;
use tollgate_core::time::{Span, Wall};

use super::book::{self, BookError};
use super::desk::Row;
use super::finder::{Finder, Read, last_purge};
use super::index::{Census, Index};
use super::key::{Salt, Url, Variant};
use super::memory::Memory;
use super::object::VARIANTS_MAX;
use super::scribe::Scribe;
use super::{DATABASE, Key, Object, Shelf};
use crate::event::Fact;
use crate::timer::within;

/// Questions that may wait. A read takes some 50 µs, so these are a fraction of a second; past
/// that a call had better ask its provider.
const READS_MAX: usize = 1_024;

/// Orders that may wait to be written.
pub(super) const WRITES_MAX: usize = 4_096;

/// Bytes that may wait to be written: a second of a slow disk.
const PENDING_MAX: u64 = 64 * 1024 * 1024;

/// How long the end waits for somebody else who holds the file: longer than a healthy process does,
/// and less than it takes until whoever ends us loses patience (systemd: 90 s).
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// How exactly it is known when an answer was last used: writing it down costs a write.
pub(super) const USED_STEP: Span = Span::from_secs(3_600);

/// How long a call waits for the disk: longer than a healthy one ever takes, and not so long that the
/// provider would have answered several times.
const LOOK_MAX: Span = Span::from_millis(250);

/// Orders to forget that may wait beside a full queue. Past that everything is forgotten.
const OVERDUE_MAX: usize = 4_096;

/// The disk tier.
#[derive(Debug)]
pub(super) struct Disk {
    reads: SyncSender<Read>,
    writes: SyncSender<Write>,
    pending: Arc<AtomicU64>,
    overdue: Arc<Overdue>,
    broken: Arc<AtomicBool>,
    index: Arc<Index>,
}

/// What must be forgotten and is not yet.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// What found no place in the queue.
    orders: Mutex<Vec<Write>>,
    is_all: AtomicBool,
    /// Purges that are ordered and not done.
    purges: AtomicUsize,
}

/// An order to forget the answers of a provider, of one of its entities, or all. While there is one,
/// nothing is read from the file.
#[derive(Debug)]
pub(super) struct Purge {
    pub(super) provider: Option<String>,
    pub(super) entity: Option<String>,
    answer: Option<oneshot::Sender<u64>>,
    overdue: Arc<Overdue>,
}

impl Purge {
    /// So many are gone.
    pub(super) fn finish(mut self: Box<Purge>, gone: u64) {
        let answer = self.answer.take();
        drop(self);
        // Whoever asked may have left.
        let _left = answer.map(|answer| answer.send(gone));
    }
}

impl Drop for Purge {
    fn drop(&mut self) {
        self.overdue.purges.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Overdue {
    fn push(&self, order: Write) {
        let mut orders = self.orders.lock();
        if orders.len() < OVERDUE_MAX {
            orders.push(order);
        } else {
            self.is_all.store(true, Ordering::Release);
        }
    }

    pub(super) fn purge(
        self: &Arc<Overdue>,
        provider: Option<String>,
        entity: Option<String>,
        answer: oneshot::Sender<u64>,
    ) -> Write {
        self.purges.fetch_add(1, Ordering::AcqRel);
        Write::Purge(Box::new(Purge {
            provider,
            entity,
            answer: Some(answer),
            overdue: self.clone(),
        }))
    }

    /// An order to forget everything, that nobody waits for.
    pub(super) fn purge_all(self: &Arc<Overdue>) -> Write {
        let (answer, _nobody) = oneshot::channel();
        self.purge(None, None, answer)
    }

    /// Is there anything in the file that has been purged?
    pub(super) fn is_purging(&self) -> bool {
        self.purges.load(Ordering::Acquire) > 0 || self.is_all.load(Ordering::Acquire)
    }

    /// All that found no place, as orders.
    pub(super) fn take(self: &Arc<Overdue>) -> Vec<Write> {
        let mut orders = std::mem::take(&mut *self.orders.lock());
        if self.is_all.load(Ordering::Acquire) {
            orders.push(self.purge_all());
            self.is_all.store(false, Ordering::Release);
        }
        orders
    }
}

#[derive(Debug)]
pub(super) enum Write {
    Put(Key, Arc<Object>, Wall),
    /// The same, where there may be one already: it must not stay if this one is not written.
    Replace(Key, Arc<Object>, Wall),
    /// One answer is not to be used again, if it was asked for by then.
    Forget(Key, Variant, Wall),
    Used(Key, Wall),
    Invalidate(Url, Wall),
    Purge(Box<Purge>),
    Rows(oneshot::Sender<Vec<Row>>),
    Flush(oneshot::Sender<()>),
    /// The same, and nothing is left to be forgotten.
    Last(oneshot::Sender<()>),
}

impl Disk {
    pub(super) fn open(
        folder: &Path,
        memory: Arc<Memory>,
        bytes_max: u64,
    ) -> Result<(Disk, Salt), BookError> {
        let (writer, aside) = book::open(folder, bytes_max)?;
        aside.iter().for_each(|aside| begun_anew(aside));
        let path = folder.join(DATABASE);
        let reader = book::connect(&path)?;
        let (salt, heard) = begin(&reader).map_err(|source| BookError::Store {
            path: path.clone(),
            source,
        })?;
        let (reads, questions) = sync_channel(READS_MAX);
        let (writes, orders) = sync_channel(WRITES_MAX);
        let (pending, broken) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (overdue, index) = (Arc::<Overdue>::default(), Arc::<Index>::default());
        let scribe = Scribe {
            conn: writer,
            bytes_max,
            since_check: bytes_max,
            pending: pending.clone(),
            overdue: overdue.clone(),
            broken: broken.clone(),
            path: path.clone(),
            held_back: Vec::new(),
        };
        let finder = Finder {
            conn: reader,
            memory,
            heard,
            version: -1,
            census: Census::new(index.clone()),
            overdue: overdue.clone(),
            writes: writes.clone(),
            broken: broken.clone(),
            path: path.clone(),
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let fail = |source| BookError::Folder {
            path: path.clone(),
            source,
        };
        thread("cache-write")
            .spawn(move || scribe.run(&orders))
            .map_err(fail)?;
        thread("cache-read")
            .spawn(move || finder.run(&questions))
            .map_err(fail)?;
        let disk = Disk {
            reads,
            writes,
            pending,
            overdue,
            broken,
            index,
        };
        Ok((disk, salt))
    }

    /// What is on disk, but those that were seen; without a look at it where there is nothing.
    pub(super) async fn find(&self, key: Key, seen: &[Variant], now: Wall) -> Option<Arc<Shelf>> {
        let is_broken = self.broken.load(Ordering::Acquire);
        if is_broken || !self.index.may_have(&key) || self.overdue.is_purging() {
            return None;
        }
        let (answer, found) = oneshot::channel();
        let seen = seen.to_vec();
        let read = Read {
            key,
            now,
            seen,
            answer,
        };
        self.reads.try_send(read).ok()?;
        within(Some(LOOK_MAX), found).await.ok()?.ok()
    }

    /// It was used again, out of memory.
    pub(super) fn used(&self, key: Key, now: Wall) {
        // If it cannot be noted, it looks a little older than it is.
        let _noted = self.writes.try_send(Write::Used(key, now));
    }

    /// Writes an answer down. Says whether there may be others under this key already.
    pub(super) fn put(&self, key: Key, object: &Arc<Object>, now: Wall) -> bool {
        let may_have_others = self.index.may_have(&key);
        let order = if may_have_others {
            Write::Replace
        } else {
            Write::Put
        };
        let weight = object.weight();
        if self.pending.fetch_add(weight, Ordering::AcqRel) + weight > PENDING_MAX
            || self
                .writes
                .try_send(order(key, object.clone(), now))
                .is_err()
        {
            self.pending.fetch_sub(weight, Ordering::AcqRel);
            // What it would have replaced must not come back in its place.
            if may_have_others {
                self.forget(key, object.variant, object.stored);
            }
        } else {
            self.index.put(&key);
        }
        may_have_others
    }

    /// Are all keys of the file known?
    #[cfg(test)]
    pub(super) fn is_indexed(&self) -> bool {
        self.index.is_whole()
    }

    pub(super) fn invalidate(&self, url: Url, now: Wall) {
        self.insist(|| Write::Invalidate(url, now));
    }

    pub(super) fn forget(&self, key: Key, variant: Variant, at: Wall) {
        self.insist(|| Write::Forget(key, variant, at));
    }

    /// An order that must not be lost: where the queue is full, it waits beside it.
    fn insist(&self, forget: impl Fn() -> Write) {
        let order = || self.writes.try_send(forget());
        if order().is_err() {
            self.overdue.push(forget());
            // The queue may have been emptied meanwhile, and who waits for orders must be woken. If
            // it is full still, what waits beside it is seen with what is in it.
            let _again = order();
        }
    }

    pub(super) async fn purge(&self, provider: Option<&str>, entity: Option<&str>) -> Option<u64> {
        let own = |name: &str| name.to_owned();
        let (provider, entity) = (provider.map(own), entity.map(own));
        self.order(|answer| self.overdue.purge(provider, entity, answer))
            .await
    }

    pub(super) async fn rows(&self) -> Option<Vec<Row>> {
        self.order(Write::Rows).await
    }

    pub(super) async fn flush(&self) {
        self.order(Write::Flush).await;
    }

    pub(super) async fn close(&self) {
        let last = self.order(Write::Last);
        let _late = tokio::time::timeout(CLOSE_MAX, last).await;
    }

    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Write) -> Option<T> {
        let (answer, done) = oneshot::channel();
        let (writes, order) = (self.writes.clone(), order(answer));
        let sent = tokio::task::spawn_blocking(move || writes.send(order).is_ok());
        if !sent.await.unwrap_or(false) {
            return None;
        }
        done.await.ok()
    }
}

/// The salt, and the last purge that was made before.
fn begin(reader: &Connection) -> rusqlite::Result<(Salt, i64)> {
    Ok((book::salt(reader)?, last_purge(reader)?))
}

fn begun_anew(aside: &Path) {
    let file = &aside.display().to_string();
    Fact::CacheBegunAnew { file }.tell();
}

/// Says once that the database has failed, if that was for good.
pub(super) fn tell(broken: &AtomicBool, path: &Path, error: &rusqlite::Error) {
    let code = error.sqlite_error_code();
    // Somebody else is writing, there is no room just now, or this row is odd: the next one may do.
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
        return Fact::CacheOnlyInMemory { why: &why }.tell();
    }
    // To read all of a large file takes seconds, and calls wait for this thread.
    let (told, path) = (why.clone(), path.to_owned());
    let thread = std::thread::Builder::new().name("cache-check".to_owned());
    if thread.spawn(move || examine(&path, told)).is_err() {
        Fact::CacheOnlyInMemory { why: &why }.tell();
    }
}

/// Moves a damaged file aside, unless another process has begun a new one already.
fn examine(path: &Path, mut why: String) {
    if book::is_damaged(path)
        && let Ok(aside) = book::move_aside(path)
    {
        why = format!("{why}; it is now {}", aside.display());
    }
    Fact::CacheOnlyInMemory { why: &why }.tell();
}

/// For SQL.
pub(super) fn variants_max() -> i64 {
    i64::try_from(VARIANTS_MAX).unwrap_or(i64::MAX)
}
