//! The thread that reads `cache.db`.
//!
//! Promises: inserts each response it finds into memory, unless something was removed meanwhile.
//! Applies the stores and purges of other processes within a second.
//!
//! Never: writes, or lets a lookup wait for a load of the whole file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;
use tollgate_core::time::Wall;

use super::disk::{RemovalBacklog, TOUCH_STEP, WriteCommand, report_failure, variants_max};
use super::index::IndexLoader;
use super::key::{UrlHash, Variant};
use super::memory::MemoryTier;
use super::object::VARIANT_SET_BYTES_MAX;
use super::{CacheKey, VariantSet, database};
use crate::event::Events;

/// How often the reader checks for stores and purges of other processes.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A lookup.
pub(super) struct ReadRequest {
    pub(super) key: CacheKey,
    pub(super) now: Wall,
    /// Variants that the requester has already seen.
    pub(super) exclude: Vec<Variant>,
    pub(super) reply: oneshot::Sender<Arc<VariantSet>>,
}

/// The state of the reading thread.
pub(super) struct CacheReader {
    pub(super) conn: Connection,
    pub(super) memory: Arc<MemoryTier>,
    /// The last purge that was applied.
    pub(super) last_purge: i64,
    pub(super) version: i64,
    pub(super) loader: IndexLoader,
    pub(super) backlog: Arc<RemovalBacklog>,
    pub(super) writes: SyncSender<WriteCommand>,
    pub(super) broken: Arc<AtomicBool>,
    pub(super) events: Events,
    pub(super) path: PathBuf,
}

impl CacheReader {
    pub(super) fn run(mut self, requests: &Receiver<ReadRequest>) {
        let mut has_more = true;
        loop {
            let wait = if has_more { Duration::ZERO } else { POLL_EVERY };
            match requests.recv_timeout(wait) {
                Ok(read) => self.serve(read),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            has_more = self.poll_changes().unwrap_or_else(|error| {
                report_failure(&self.broken, &self.path, &error, &self.events);
                false
            });
        }
    }

    fn serve(&self, read: ReadRequest) {
        if self.broken.load(Ordering::Acquire) {
            return;
        }
        let changes = self.memory.removals();
        match self.read(&read.key, &read.exclude) {
            // Purged responses may still be in the file.
            Ok(Some(_)) if self.backlog.is_purging() => {}
            Ok(Some((variants, used))) => {
                variants.record_use(read.now);
                let variants = Arc::new(variants);
                self.memory
                    .insert_from_disk(read.key, variants.clone(), changes);
                if read.now.since(used) > TOUCH_STEP {
                    // If this fails, the response looks a little older than it is.
                    let _noted = self
                        .writes
                        .try_send(WriteCommand::Touch(read.key, read.now));
                }
                let _gone = read.reply.send(variants);
            }
            Ok(None) if read.exclude.is_empty() => self.loader.remove(&read.key),
            Ok(None) => {}
            Err(error) => report_failure(&self.broken, &self.path, &error, &self.events),
        }
    }

    fn read(
        &self,
        key: &CacheKey,
        seen: &[Variant],
    ) -> rusqlite::Result<Option<(VariantSet, Wall)>> {
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
            let object = database::decode_row(row)?.map(Arc::new);
            weight += object.as_ref().map_or(0, |object| object.weight());
            objects.extend(object);
            if weight > VARIANT_SET_BYTES_MAX {
                break; // no variant set holds more
            }
        }
        let variants = VariantSet::new(objects);
        let variants = if seen.is_empty() {
            variants
        } else {
            variants.partial()
        };
        Ok((!variants.objects().is_empty()).then_some((variants, used)))
    }

    /// Applies what is new in the file. `true`: there is more.
    #[expect(clippy::disallowed_methods, reason = "the clock of this thread")]
    fn poll_changes(&mut self) -> rusqlite::Result<bool> {
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let version = number("PRAGMA data_version")?;
        let mut has_more = false;
        if version != self.version {
            self.apply_purges()?;
            has_more = self.loader.load_new(&self.conn)?;
        }
        if !has_more {
            self.version = version;
        }
        Ok(self.loader.load_step(&self.conn, Instant::now())? || has_more)
    }

    /// Applies the purges of all processes, including this one.
    fn apply_purges(&mut self) -> rusqlite::Result<()> {
        let number = |sql: &str| self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let first = number("SELECT ifnull(min(seq), 0) FROM purges")?;
        if first > self.last_purge + 1 {
            self.memory.purge(None, None);
            self.loader.request_reload();
        }
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, url, at, provider, entity FROM purges WHERE seq > ?1 ORDER BY seq",
        )?;
        let mut rows = statement.query([self.last_purge])?;
        while let Some(row) = rows.next()? {
            match row.get::<_, Option<[u8; 16]>>(1)? {
                Some(url) => {
                    let at = Wall(row.get::<_, i64>(2)?.unsigned_abs());
                    self.memory.invalidate(None, UrlHash(url), at);
                }
                None => {
                    let (provider, entity): (Option<String>, Option<String>) =
                        (row.get(3)?, row.get(4)?);
                    self.memory.purge(provider.as_deref(), entity.as_deref());
                    self.loader.request_reload();
                }
            }
            self.last_purge = row.get(0)?;
        }
        Ok(())
    }
}

/// The number of the last purge.
pub(super) fn last_purge(conn: &Connection) -> rusqlite::Result<i64> {
    let seq = conn.query_row("SELECT max(seq) FROM purges", [], |row| row.get(0));
    Ok(seq.optional()?.flatten().unwrap_or(0))
}
