//! The disk tier: two threads, one that reads `cache.db` and one that writes it.
//!
//! Promises: the runtime never waits for a disk: questions and answers travel by message. What
//! waits to be written is bounded in bytes; past that an answer is kept in memory only. The file
//! is bounded too: what was not used for longest goes first.
//!
//! Never: takes a call down. When the database fails, nothing more is read or written, and that is
//! told once; a damaged one is moved aside, so that the next start begins anew. A disk that is full
//! or a file that somebody holds is tried again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use tokio::sync::oneshot;
use tollgate_core::time::{Span, Wall};

use super::book::{self, BookError};
use super::desk::Row;
use super::key::{Salt, Url, Variant};
use super::memory::Memory;
use super::object::{SHELF_MAX, VARIANTS_MAX};
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

/// How often purges of other processes are looked for.
const LISTEN_EVERY: Duration = Duration::from_secs(1);

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
}

/// What must be forgotten and found no place in the queue.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    orders: Mutex<Vec<Write>>,
    is_all: AtomicBool,
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

    /// All of it, as orders.
    pub(super) fn take(&self) -> Vec<Write> {
        let mut orders = std::mem::take(&mut *self.orders.lock());
        if self.is_all.swap(false, Ordering::AcqRel) {
            let (answer, _nobody) = oneshot::channel();
            orders.push(Write::Purge(None, None, answer));
        }
        orders
    }
}

struct Read {
    key: Key,
    now: Wall,
    answer: oneshot::Sender<Arc<Shelf>>,
}

#[derive(Debug)]
pub(super) enum Write {
    Put(Key, Arc<Object>, Wall),
    /// One answer is not to be used again, if it was asked for by then.
    Forget(Key, Variant, Wall),
    Used(Key, Wall),
    Invalidate(Url, Wall),
    Purge(Option<String>, Option<String>, oneshot::Sender<u64>),
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
        let store = |source| BookError::Store {
            path: path.clone(),
            source,
        };
        let salt = book::salt(&reader).map_err(store)?;
        let heard = last_purge(&reader).map_err(store)?;
        let (reads, questions) = sync_channel(READS_MAX);
        let (writes, orders) = sync_channel(WRITES_MAX);
        let (pending, broken) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let overdue = Arc::<Overdue>::default();
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
        };
        Ok((disk, salt))
    }

    pub(super) async fn find(&self, key: Key, now: Wall) -> Option<Arc<Shelf>> {
        if self.broken.load(Ordering::Acquire) {
            return None;
        }
        let (answer, found) = oneshot::channel();
        self.reads.try_send(Read { key, now, answer }).ok()?;
        within(Some(LOOK_MAX), found).await.ok()?.ok()
    }

    /// It was used again, out of memory.
    pub(super) fn used(&self, key: Key, now: Wall) {
        // If it cannot be noted, it looks a little older than it is.
        let _noted = self.writes.try_send(Write::Used(key, now));
    }

    pub(super) fn put(&self, key: Key, object: &Arc<Object>, now: Wall) {
        let weight = object.weight();
        if self.pending.fetch_add(weight, Ordering::AcqRel) + weight > PENDING_MAX
            || self
                .writes
                .try_send(Write::Put(key, object.clone(), now))
                .is_err()
        {
            self.pending.fetch_sub(weight, Ordering::AcqRel);
            // What it would have replaced must not come back in its place.
            self.forget(key, object.variant, object.stored);
        }
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
        self.order(|answer| Write::Purge(provider, entity, answer))
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

/// Reads.
struct Finder {
    conn: Connection,
    memory: Arc<Memory>,
    /// The last purge that was heard of.
    heard: i64,
    version: i64,
    writes: SyncSender<Write>,
    broken: Arc<AtomicBool>,
    path: PathBuf,
}

impl Finder {
    fn run(mut self, questions: &Receiver<Read>) {
        loop {
            match questions.recv_timeout(LISTEN_EVERY) {
                Ok(read) => self.answer(read),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Err(error) = self.listen() {
                tell(&self.broken, &self.path, &error);
            }
        }
    }

    fn answer(&self, read: Read) {
        if self.broken.load(Ordering::Acquire) {
            return;
        }
        let changes = self.memory.changes();
        match self.read(&read.key) {
            Ok(Some((shelf, used))) => {
                shelf.note(read.now);
                let shelf = Arc::new(shelf);
                self.memory.fill(read.key, shelf.clone(), changes);
                if read.now.since(used) > USED_STEP {
                    // If it cannot be noted, it looks a little older than it is.
                    let _noted = self.writes.try_send(Write::Used(read.key, read.now));
                }
                let _gone = read.answer.send(shelf);
            }
            Ok(None) => {}
            Err(error) => tell(&self.broken, &self.path, &error),
        }
    }

    fn read(&self, key: &Key) -> rusqlite::Result<Option<(Shelf, Wall)>> {
        let mut statement = self.conn.prepare_cached(
            "SELECT variant, url, stored, provider, entity, used, head, body FROM answers WHERE key = ?1
             ORDER BY id DESC LIMIT ?2",
        )?;
        let mut rows = statement.query(params![key.0, variants_max()])?;
        let mut objects = Vec::new();
        let (mut used, mut weight) = (Wall(0), 0);
        while let Some(row) = rows.next()? {
            used = used.max(Wall(row.get::<_, i64>("used")?.unsigned_abs()));
            let object = book::object(row)?.map(Arc::new);
            weight += object.as_ref().map_or(0, |object| object.weight());
            objects.extend(object);
            if weight > SHELF_MAX {
                break; // no shelf holds more
            }
        }
        Ok((!objects.is_empty()).then(|| (Shelf::new(objects), used)))
    }

    /// What have other processes purged?
    fn listen(&mut self) -> rusqlite::Result<()> {
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let version = number("PRAGMA data_version")?;
        if version == self.version {
            return Ok(());
        }
        self.version = version;
        let first = number("SELECT ifnull(min(seq), 0) FROM purges")?;
        if first > self.heard + 1 {
            self.memory.purge(None, None);
        }
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, url, at, provider, entity FROM purges WHERE seq > ?1 ORDER BY seq",
        )?;
        let mut rows = statement.query([self.heard])?;
        while let Some(row) = rows.next()? {
            match row.get::<_, Option<[u8; 16]>>(1)? {
                Some(url) => {
                    let at = Wall(row.get::<_, i64>(2)?.unsigned_abs());
                    self.memory.invalidate(None, Url(url), at);
                }
                None => {
                    let (provider, entity): (Option<String>, Option<String>) =
                        (row.get(3)?, row.get(4)?);
                    self.memory.purge(provider.as_deref(), entity.as_deref());
                }
            }
            self.heard = row.get(0)?;
        }
        Ok(())
    }
}

/// For SQL.
pub(super) fn variants_max() -> i64 {
    i64::try_from(VARIANTS_MAX).unwrap_or(i64::MAX)
}

fn last_purge(conn: &Connection) -> rusqlite::Result<i64> {
    let seq = conn.query_row("SELECT max(seq) FROM purges", [], |row| row.get(0));
    Ok(seq.optional()?.flatten().unwrap_or(0))
}
