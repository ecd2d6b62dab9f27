//! An in-memory index of the keys in `cache.db`, so that a lookup of any other key costs no disk
//! read.
//!
//! Promises: contains this process's own keys at once and those of other processes within a second;
//! until then such a key counts as missing, which costs one extra call. Until all keys are loaded,
//! and past [`KEYS_MAX`] of them, every lookup goes to the disk. A key that is no longer in the
//! file costs one read and is then removed.
//!
//! Never: guarantees that a response exists, only that it may. Reads at most [`STEP`] keys in a row
//! while lookups wait.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

use tollgate_ledger::lock_order::{RankedMutex, rank};

use super::CacheKey;

/// The number of indexed keys: more than 1 GiB of the smallest responses. Such a set takes 18 MiB,
/// and twice that during a reload; one key more would double that.
const KEYS_MAX: usize = 2 * 1024 * 1024 / 8 * 7;

/// Keys loaded in one step, in some 300 µs: lookups are served in between.
const STEP: usize = 1_024;

/// The shortest time between two loads of all keys. A million keys take one second of a thread that
/// has little else to do.
const RELOAD_AFTER: Duration = Duration::from_secs(300);

/// A part of each key: keys are hashes with a secret salt, so a part is enough to distinguish them.
type ShortKeys = HashSet<u64, BuildHasherDefault<IdentityHasher>>;

/// The keys of `cache.db`.
#[derive(Debug, Default)]
pub(super) struct Index {
    state: RankedMutex<{ rank::CACHE_INDEX }, IndexState>,
}

#[derive(Debug, Default)]
struct IndexState {
    keys: ShortKeys,
    /// All keys are loaded.
    is_complete: bool,
    /// A load has started.
    has_started: bool,
    /// The set that replaces `keys` when the load is complete.
    loading: Option<ShortKeys>,
}

/// A hasher for values that are already hashes.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl Index {
    /// May the file have this key?
    pub(super) fn may_have(&self, key: &CacheKey) -> bool {
        let state = self.state.lock();
        !state.is_complete || state.keys.contains(&short_key(key))
    }

    /// Adds a key that is about to be written.
    pub(super) fn put(&self, key: &CacheKey) {
        self.state.lock().add(short_key(key));
    }

    /// Removes a key that a read did not find.
    pub(super) fn remove(&self, key: &CacheKey) {
        let mut state = self.state.lock();
        state.keys.remove(&short_key(key));
        if let Some(next) = &mut state.loading {
            next.remove(&short_key(key));
        }
    }

    #[cfg(test)]
    pub(super) fn is_complete(&self) -> bool {
        self.state.lock().is_complete
    }
}

impl IndexState {
    fn add(&mut self, key: u64) {
        if let Some(next) = &mut self.loading {
            next.insert(key);
            if next.len() > KEYS_MAX {
                *self = IndexState {
                    has_started: true,
                    ..IndexState::default()
                };
            }
        }
        // Also before the first load starts: it does not see writes that are still pending.
        if self.is_complete || !self.has_started {
            self.keys.insert(key);
            // Some keys may be gone from the file: a reload shows how many remain.
            if self.keys.len() > KEYS_MAX {
                (self.is_complete, self.keys) = (false, ShortKeys::default());
            }
        }
    }
}

/// Keeps an index up to date with the file: first loads all keys, then the new ones.
#[derive(Debug)]
pub(super) struct IndexLoader {
    index: Arc<Index>,
    /// The last row that was seen.
    last_row: i64,
    /// A load is running: keys after this one are still to come.
    after_key: Option<Vec<u8>>,
    /// When the last load started.
    started_at: Option<Instant>,
    /// Keys have been removed, or may have been added unseen.
    is_reload_due: bool,
}

impl IndexLoader {
    pub(super) fn new(index: Arc<Index>) -> IndexLoader {
        IndexLoader {
            index,
            last_row: 0,
            after_key: None,
            started_at: None,
            is_reload_due: true,
        }
    }

    /// Removes a key that a read did not find.
    pub(super) fn remove(&self, key: &CacheKey) {
        self.index.remove(key);
    }

    /// Requests a reload, because many keys may be gone from the file.
    pub(super) fn request_reload(&mut self) {
        self.is_reload_due = true;
    }

    /// The file has changed: adds its new keys. `true`: there is more.
    pub(super) fn load_new(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let last = last_row_id(conn)?;
        if last < self.last_row {
            // The last rows are gone. Their ids are not reused unless a clock is set back.
            (self.last_row, self.is_reload_due) = (last, true);
        }
        let mut statement =
            conn.prepare_cached("SELECT id, key FROM answers WHERE id > ?1 ORDER BY id LIMIT ?2")?;
        let mut rows = statement.query(params![self.last_row, step_limit()])?;
        let mut state = self.index.state.lock();
        let mut count = 0;
        while let Some(row) = rows.next()? {
            state.add(short_key(&CacheKey(row.get(1)?)));
            self.last_row = row.get(0)?;
            count += 1;
        }
        Ok(count == STEP)
    }

    /// Loads the next keys if a load is due. `true`: there is more.
    pub(super) fn load_step(&mut self, conn: &Connection, now: Instant) -> rusqlite::Result<bool> {
        let Some(after_key) = &self.after_key else {
            return self.start_load(conn, now);
        };
        let mut statement = conn.prepare_cached(
            "SELECT DISTINCT key FROM answers WHERE key > ?1 ORDER BY key LIMIT ?2",
        )?;
        let keys = statement.query_map(params![after_key, step_limit()], |row| {
            row.get(0).map(CacheKey)
        })?;
        let keys = keys.collect::<rusqlite::Result<Vec<CacheKey>>>()?;
        let mut state = self.index.state.lock();
        keys.iter().for_each(|key| state.add(short_key(key)));
        self.after_key = keys.last().map(|key| key.0.to_vec());
        if keys.len() == STEP && state.loading.is_some() {
            return Ok(true);
        }
        self.after_key = None;
        // There were too many keys: load again later.
        self.is_reload_due |= state.loading.is_none();
        if let Some(next) = state.loading.take() {
            (state.keys, state.is_complete) = (next, true);
        }
        Ok(false)
    }

    fn start_load(&mut self, conn: &Connection, now: Instant) -> rusqlite::Result<bool> {
        let is_due = self.is_reload_due || !self.index.state.lock().is_complete;
        let is_time = |at| now.duration_since(at) >= RELOAD_AFTER;
        if !is_due || !self.started_at.is_none_or(is_time) {
            return Ok(false);
        }
        // `load_new` sees everything that is written from here on.
        self.last_row = last_row_id(conn)?;
        (self.started_at, self.is_reload_due, self.after_key) =
            (Some(now), false, Some(Vec::new()));
        let mut state = self.index.state.lock();
        let early = if state.has_started {
            ShortKeys::default()
        } else {
            std::mem::take(&mut state.keys)
        };
        (state.has_started, state.loading) = (true, Some(early));
        Ok(true)
    }
}

/// The id of the last row.
fn last_row_id(conn: &Connection) -> rusqlite::Result<i64> {
    let mut statement = conn.prepare_cached("SELECT ifnull(max(id), 0) FROM answers")?;
    statement.query_row([], |row| row.get(0))
}

/// For SQL.
fn step_limit() -> i64 {
    i64::try_from(STEP).unwrap_or(i64::MAX)
}

fn short_key(key: &CacheKey) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = key.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
