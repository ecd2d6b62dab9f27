//! The thread that reads `cache.db`.
//!
//! Promises: what is found comes into memory, unless something was forgotten meanwhile. What other
//! processes keep and purge is heard of within a second.
//!
//! Never: writes, or lets a question wait for all that the file has.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;
use tollgate_core::time::Wall;

use super::disk::{Overdue, USED_STEP, Write, tell, variants_max};
use super::index::Census;
use super::key::{Url, Variant};
use super::memory::Memory;
use super::object::SHELF_MAX;
use super::{Key, Shelf, book};

/// How often it is looked for what other processes keep and purge.
const LISTEN_EVERY: Duration = Duration::from_secs(1);

/// A question.
pub(super) struct Read {
    pub(super) key: Key,
    pub(super) now: Wall,
    /// Answers that whoever asks has seen: it wants the others.
    pub(super) seen: Vec<Variant>,
    pub(super) answer: oneshot::Sender<Arc<Shelf>>,
}

/// Reads.
pub(super) struct Finder {
    pub(super) conn: Connection,
    pub(super) memory: Arc<Memory>,
    /// The last purge that was heard of.
    pub(super) heard: i64,
    pub(super) version: i64,
    pub(super) census: Census,
    pub(super) overdue: Arc<Overdue>,
    pub(super) writes: SyncSender<Write>,
    pub(super) broken: Arc<AtomicBool>,
    pub(super) path: PathBuf,
}

impl Finder {
    pub(super) fn run(mut self, questions: &Receiver<Read>) {
        let mut has_more = true;
        loop {
            let wait = if has_more {
                Duration::ZERO
            } else {
                LISTEN_EVERY
            };
            match questions.recv_timeout(wait) {
                Ok(read) => self.answer(read),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            has_more = self.listen().unwrap_or_else(|error| {
                tell(&self.broken, &self.path, &error);
                false
            });
        }
    }

    fn answer(&self, read: Read) {
        if self.broken.load(Ordering::Acquire) {
            return;
        }
        let changes = self.memory.changes();
        match self.read(&read.key, &read.seen) {
            // What was purged may be there still.
            Ok(Some(_)) if self.overdue.is_purging() => {}
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
            Ok(None) if read.seen.is_empty() => self.census.is_not_there(&read.key),
            Ok(None) => {}
            Err(error) => tell(&self.broken, &self.path, &error),
        }
    }

    fn read(&self, key: &Key, seen: &[Variant]) -> rusqlite::Result<Option<(Shelf, Wall)>> {
        let mut statement = self.conn.prepare_cached(
            "SELECT variant, url, stored, provider, entity, used, head, body FROM answers WHERE key = ?1
             ORDER BY id DESC LIMIT ?2",
        )?;
        let mut rows = statement.query(params![key.0, variants_max()])?;
        let mut objects = Vec::new();
        let (mut used, mut weight) = (Wall(0), 0);
        while let Some(row) = rows.next()? {
            used = used.max(Wall(row.get::<_, i64>("used")?.unsigned_abs()));
            if seen.contains(&Variant(row.get("variant")?)) {
                continue;
            }
            let object = book::object(row)?.map(Arc::new);
            weight += object.as_ref().map_or(0, |object| object.weight());
            objects.extend(object);
            if weight > SHELF_MAX {
                break; // no shelf holds more
            }
        }
        let shelf = Shelf::new(objects);
        let shelf = if seen.is_empty() {
            shelf
        } else {
            shelf.partial()
        };
        Ok((!shelf.objects().is_empty()).then_some((shelf, used)))
    }

    /// What is new in the file? `true`: there is more.
    #[expect(clippy::disallowed_methods, reason = "the clock of this thread")]
    fn listen(&mut self) -> rusqlite::Result<bool> {
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let version = number("PRAGMA data_version")?;
        let mut has_more = false;
        if version != self.version {
            self.hear_purges()?;
            has_more = self.census.follow(&self.conn)?;
        }
        if !has_more {
            self.version = version;
        }
        Ok(self.census.read(&self.conn, Instant::now())? || has_more)
    }

    /// What have processes purged? Others, and this one.
    fn hear_purges(&mut self) -> rusqlite::Result<()> {
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let first = number("SELECT ifnull(min(seq), 0) FROM purges")?;
        if first > self.heard + 1 {
            self.memory.purge(None, None);
            self.census.doubt();
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
                    self.census.doubt();
                }
            }
            self.heard = row.get(0)?;
        }
        Ok(())
    }
}

/// The last purge.
pub(super) fn last_purge(conn: &Connection) -> rusqlite::Result<i64> {
    let seq = conn.query_row("SELECT max(seq) FROM purges", [], |row| row.get(0));
    Ok(seq.optional()?.flatten().unwrap_or(0))
}
