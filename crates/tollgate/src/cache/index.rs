//! Which keys `cache.db` has, in memory, so that a question about any other costs no disk.
//!
//! Promises: what this process keeps is known at once, what other processes keep within a second;
//! until then it is as if it were not there, and costs one call more. Until all keys have been read,
//! and past [`KEYS_MAX`] of them, every question goes to the disk. A key too many costs one look and
//! is then forgotten.
//!
//! Never: says that an answer is there, only that it may be. Reads more than [`STEP`] keys in a row
//! while questions wait.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::{Connection, params};

use super::Key;

/// Keys that are known: more than 1 GiB of the smallest answers. A set of so many takes 18 MiB, and
/// once more while it is read anew; one key more would double that.
const KEYS_MAX: usize = 2 * 1024 * 1024 / 8 * 7;

/// Keys that are read in one go, in some 300 µs: questions are answered in between.
const STEP: usize = 1_024;

/// All keys are read again not sooner than this, whatever happens. A million of them take a second of
/// a thread that has little else to do.
const AGAIN_AFTER: Duration = Duration::from_secs(300);

/// A part of each key: they are hashes with a secret salt, so that is enough to tell them apart.
type Keys = HashSet<u64, BuildHasherDefault<Same>>;

/// The keys of `cache.db`, for whoever asks.
#[derive(Debug, Default)]
pub(super) struct Index {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    keys: Keys,
    /// All of them are here.
    is_whole: bool,
    /// They have been read, or are being read.
    is_begun: bool,
    /// What takes their place when all have been read.
    next: Option<Keys>,
}

/// The hasher of what is a hash already.
#[derive(Debug, Default)]
struct Same(u64);

impl Hasher for Same {
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
    pub(super) fn may_have(&self, key: &Key) -> bool {
        let known = self.known.lock();
        !known.is_whole || known.keys.contains(&part(key))
    }

    /// It will have this key.
    pub(super) fn put(&self, key: &Key) {
        self.known.lock().add(part(key));
    }

    /// It was looked for and is not there.
    pub(super) fn is_not_there(&self, key: &Key) {
        let mut known = self.known.lock();
        known.keys.remove(&part(key));
        if let Some(next) = &mut known.next {
            next.remove(&part(key));
        }
    }

    #[cfg(test)]
    pub(super) fn is_whole(&self) -> bool {
        self.known.lock().is_whole
    }
}

impl Known {
    fn add(&mut self, key: u64) {
        if let Some(next) = &mut self.next {
            next.insert(key);
            if next.len() > KEYS_MAX {
                *self = Known {
                    is_begun: true,
                    ..Known::default()
                };
            }
        }
        // Before the first reading has begun too: what waits to be written is not seen by it.
        if self.is_whole || !self.is_begun {
            self.keys.insert(key);
            // Some may be gone from the file: another reading shows how many.
            if self.keys.len() > KEYS_MAX {
                (self.is_whole, self.keys) = (false, Keys::default());
            }
        }
    }
}

/// Keeps an index up with the file: first all of it, then what comes.
#[derive(Debug)]
pub(super) struct Census {
    index: Arc<Index>,
    /// The last row that was seen.
    seen: i64,
    /// All are being read: those behind this key are still to come.
    behind: Option<Vec<u8>>,
    /// When that began last.
    begun: Option<Instant>,
    /// Keys have gone, or may have come unseen.
    is_due: bool,
}

impl Census {
    pub(super) fn new(index: Arc<Index>) -> Census {
        Census {
            index,
            seen: 0,
            behind: None,
            begun: None,
            is_due: true,
        }
    }

    /// It was looked for and is not there.
    pub(super) fn is_not_there(&self, key: &Key) {
        self.index.is_not_there(key);
    }

    /// Much may be gone from the file.
    pub(super) fn doubt(&mut self) {
        self.is_due = true;
    }

    /// The file has changed: takes in what is new in it. `true`: there is more.
    pub(super) fn follow(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let last = last(conn)?;
        if last < self.seen {
            // The last rows are gone. Their numbers are not used again unless a clock is set back.
            (self.seen, self.is_due) = (last, true);
        }
        let mut statement =
            conn.prepare_cached("SELECT id, key FROM answers WHERE id > ?1 ORDER BY id LIMIT ?2")?;
        let mut rows = statement.query(params![self.seen, step()])?;
        let mut known = self.index.known.lock();
        let mut count = 0;
        while let Some(row) = rows.next()? {
            known.add(part(&Key(row.get(1)?)));
            self.seen = row.get(0)?;
            count += 1;
        }
        Ok(count == STEP)
    }

    /// Reads some of all keys, if they are to be read. `true`: there is more.
    pub(super) fn read(&mut self, conn: &Connection, now: Instant) -> rusqlite::Result<bool> {
        let Some(behind) = &self.behind else {
            return self.begin(conn, now);
        };
        let mut statement = conn.prepare_cached(
            "SELECT DISTINCT key FROM answers WHERE key > ?1 ORDER BY key LIMIT ?2",
        )?;
        let keys = statement.query_map(params![behind, step()], |row| row.get(0).map(Key))?;
        let keys = keys.collect::<rusqlite::Result<Vec<Key>>>()?;
        let mut known = self.index.known.lock();
        keys.iter().for_each(|key| known.add(part(key)));
        self.behind = keys.last().map(|key| key.0.to_vec());
        if keys.len() == STEP && known.next.is_some() {
            return Ok(true);
        }
        self.behind = None;
        // There were too many: once more, later.
        self.is_due |= known.next.is_none();
        if let Some(next) = known.next.take() {
            (known.keys, known.is_whole) = (next, true);
        }
        Ok(false)
    }

    fn begin(&mut self, conn: &Connection, now: Instant) -> rusqlite::Result<bool> {
        let is_due = self.is_due || !self.index.known.lock().is_whole;
        let is_time = |at| now.duration_since(at) >= AGAIN_AFTER;
        if !is_due || !self.begun.is_none_or(is_time) {
            return Ok(false);
        }
        // Whatever comes from here on is seen by following.
        self.seen = last(conn)?;
        (self.begun, self.is_due, self.behind) = (Some(now), false, Some(Vec::new()));
        let mut known = self.index.known.lock();
        let early = if known.is_begun {
            Keys::default()
        } else {
            std::mem::take(&mut known.keys)
        };
        (known.is_begun, known.next) = (true, Some(early));
        Ok(true)
    }
}

/// The last row.
fn last(conn: &Connection) -> rusqlite::Result<i64> {
    let mut statement = conn.prepare_cached("SELECT ifnull(max(id), 0) FROM answers")?;
    statement.query_row([], |row| row.get(0))
}

/// For SQL.
fn step() -> i64 {
    i64::try_from(STEP).unwrap_or(i64::MAX)
}

fn part(key: &Key) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = key.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
