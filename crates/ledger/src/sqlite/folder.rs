//! A folder while it is open: lock, database, log, checkpoints, wake-ups.
//!
//! Promises: one transaction is lock, decide, commit, unlock, in this order; what must be durable is
//! synced after that, by another thread. A folder that was replaced meanwhile and a disk that failed
//! are not used again.
//!
//! Never: waits for the lock longer than it says.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::ErrorCode;
use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::batch::{Batch, BatchResult};
use tollgate_core::time::{Micros, Span};

use crate::Clock;
use crate::failpoint;
use crate::sqlite::checkpointer::{self, Checkpoint, LogHealth};
use crate::sqlite::database::{CommitReport, Database};
use crate::sqlite::error::{FolderError, OpenError};
use crate::sqlite::generation::{GenerationRecord, this_boot};
use crate::sqlite::lock::KernelLock;
use crate::sqlite::open::{DATABASE, LOG_SIZE_MIN, Opened};
use crate::sqlite::reserve;
use crate::sqlite::wake::{self, Notifier};
use crate::store::{EventSink, Liveness, PeekQuery, PeekReply};
use crate::threads::spawn;

/// The lock is waited for this long; then the store is lost. A turn takes some 20 µs, so only a
/// process that is stopped in the middle of one keeps it so long.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(1);

/// While the store is lost, no transaction waits longer than this for the lock.
pub(super) const LOST_WAIT: Duration = Duration::from_millis(20);

/// Transactions between two checkpoints: the log grows by some 10 KiB with each, so it stays
/// around 4 MiB while others are not faster than that.
const CHECKPOINT_EVERY: u64 = 400;

/// From this length on a checkpoint is made under the lock: processes may write faster than their
/// checkpoint threads move the log. The log is at most this long, and one transaction (8 MiB if it
/// touches a thousand rows) longer, unless another program reads the database in a transaction
/// that stays open: what such a reader may need cannot be written over, and the log grows.
const LOG_LATE: u64 = 32 * 1_024 * 1_024;

/// A log of this length that a reader holds is reported: no load makes one as long without a reader.
const LOG_HELD: u64 = 64 * 1_024 * 1_024;

/// How often, and for how long each time, a checkpoint under the lock waits for one that another
/// thread or process is making. Nobody writes meanwhile, so that one ends: 32 MiB are moved within
/// half a second on a slow disk. A process that is stopped in the middle of one is not waited for
/// longer; the next transaction tries again.
const CHECKPOINT_TRIES: u32 = 250;
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(2);

/// How often the thread makes sure that the folder is still the one it opened.
const REPLACED_CHECK_EVERY: Span = Span::from_secs(1);

/// A folder at work.
#[derive(Debug)]
pub(super) struct Folder {
    db: Database,
    lock: KernelLock,
    log_health: Arc<LogHealth>,
    durable: Arc<DurableLog>,
    database: (PathBuf, u64),
    checked: Micros,
    turns: u64,
    notifier: Notifier,
    /// Asks for a checkpoint.
    checkpointer: SyncSender<()>,
    /// Ends the thread that listens for wake-ups.
    is_closing: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The log and the note of its generation: what the sync thread uses while others commit.
#[derive(Debug)]
pub(super) struct DurableLog {
    log: File,
    lock_file: Arc<File>,
    /// Which boot and which clock notes of this process are of.
    boot: String,
    /// The last generation that is known to be on disk.
    generation: AtomicI64,
    state: Mutex<DurableState>,
}

#[derive(Debug)]
struct DurableState {
    /// What is known of the database outside of it, as of the last commit.
    record: GenerationRecord,
    /// Commits that must be durable and are not known to be.
    unsynced: u64,
    /// A sync has failed: one that is tried again may succeed over what was lost.
    has_failed: bool,
}

impl Folder {
    /// Starts the threads that an open folder needs.
    pub(super) fn start(
        opened: Opened,
        folder: &Path,
        clock: &Clock,
        sink: &EventSink,
    ) -> Result<Folder, OpenError> {
        let Opened {
            conn,
            checkpoint_conn,
            lock,
            context,
            log,
            notifier,
            socket,
        } = opened;
        let fail = |source| OpenError::from_io(folder, source);
        let (checkpointer, asked) = sync_channel(1);
        let (sink, log_health) = (sink.clone(), Arc::new(LogHealth::default()));
        let checkpoint_health = log_health.clone();
        let checkpoint_log = log.try_clone().map_err(fail)?;
        let is_closing = Arc::new(AtomicBool::new(false));
        let ends = is_closing.clone();
        let threads = vec![
            spawn("tollgate-wake", move || wake::listen(&socket, &sink, &ends)).map_err(fail)?,
            spawn("tollgate-wal", move || {
                checkpointer::run(
                    &checkpoint_conn,
                    &checkpoint_log,
                    &asked,
                    &checkpoint_health,
                );
            })
            .map_err(fail)?,
        ];
        let path = folder.join(DATABASE);
        let inode = inode(&path).unwrap_or_default();
        let (boot, boot_clock) = this_boot();
        let record = GenerationRecord {
            generation: 0,
            at: 0,
            boot: format!("{boot} {boot_clock}"),
        };
        Ok(Folder {
            durable: Arc::new(DurableLog {
                log,
                boot: record.boot.clone(),
                generation: AtomicI64::new(context.durable_generation),
                lock_file: lock.file().clone(),
                state: Mutex::new(DurableState {
                    record,
                    unsynced: 0,
                    has_failed: false,
                }),
            }),
            db: Database::new(conn, context, clock.clone()),
            lock,
            log_health,
            database: (path, inode),
            checked: Clock::System.now().at,
            turns: 0,
            notifier,
            checkpointer,
            is_closing,
            threads,
        })
    }

    pub(super) fn owner(&self) -> OwnerId {
        self.db.owner()
    }

    pub(super) fn durable(&self) -> Arc<DurableLog> {
        self.durable.clone()
    }

    /// Ends the threads. SQLite itself leaves alone what has been put in the place of its files.
    pub(super) fn close(self) {
        self.is_closing.store(true, Ordering::Release);
        self.notifier.close();
        // Held only after a panic; then others would wait until the process ends.
        drop(self.lock.release());
        drop(self.checkpointer);
        for thread in self.threads {
            drop(thread.join());
        }
    }

    /// Lock, decide, commit, unlock. Also how many rows could not be believed.
    pub(super) fn commit(
        &mut self,
        batches: &[Batch<'_>],
        longest: Duration,
    ) -> Result<(Vec<BatchResult>, u64), FolderError> {
        if self.log_health.has_disk_failed.load(Ordering::Acquire) {
            let failed = io::Error::other("a checkpoint failed");
            return Err(FolderError::Sync(failed));
        }
        self.check_not_replaced()?;
        failpoint::reached("before the lock");
        if !self.lock.acquire(longest).map_err(FolderError::Lock)? {
            return Err(FolderError::Busy);
        }
        self.db.set_busy_timeout(longest);
        // The kernel lock and SQLite's are other processes' too: a panic must not keep them.
        let turn = catch_unwind(AssertUnwindSafe(|| {
            let done = self
                .db
                .turn(batches, &|commit| self.durable.generation(commit));
            self.bound_log(&done);
            done
        }));
        if turn.is_err() {
            self.db.abort_turn();
        }
        let released = self.lock.release().map_err(FolderError::Lock);
        let done = turn.unwrap_or_else(|panic| resume_unwind(panic));
        released?;
        failpoint::reached("unlocked");
        let CommitReport {
            decisions,
            damaged_rows,
            needs_sync,
            new_generation,
        } = done?;
        self.durable.committed(needs_sync, new_generation);
        Ok((decisions, damaged_rows))
    }

    /// What this process knows of the database, to be told from an older one.
    pub(super) fn generation_record(&self) -> GenerationRecord {
        self.durable.state.lock().record.clone()
    }

    /// Reads without the lock.
    pub(super) fn peek(&self, query: &PeekQuery) -> rusqlite::Result<PeekReply> {
        self.db.peek(query)
    }

    /// Wakes another owner.
    pub(super) fn wake(&self, owner: OwnerId, cell: CellId) -> Liveness {
        self.notifier.notify_freed(owner, &[cell])
    }

    pub(super) fn liveness(&self, owner: OwnerId) -> Liveness {
        self.notifier.liveness(owner)
    }

    /// Tells every other owner that these have changed.
    pub(super) fn notify_scopes(&self, scopes: &[ScopeId]) {
        self.notifier.notify_scopes(scopes);
    }

    /// A turn is over: every so often the log is moved into the database.
    pub(super) fn maintain(&mut self) {
        self.turns += 1;
        if self.turns.is_multiple_of(CHECKPOINT_EVERY) || self.durable.log_bytes() > LOG_SIZE_MIN {
            // Full means that it has been asked already.
            self.checkpointer.try_send(()).unwrap_or(());
        }
        let rest = &self.log_health.is_nearly_moved;
        if rest.load(Ordering::Relaxed) && self.lock.take_if_free() {
            rest.store(false, Ordering::Relaxed);
            // What it could not move, or why, is recorded.
            drop(self.move_log());
            // Whether it could be unlocked shows with the next turn.
            drop(self.lock.release());
        }
    }

    /// With the lock held, so that nobody adds to the log.
    fn move_log(&self) -> rusqlite::Result<Checkpoint> {
        let done = self.db.checkpoint();
        checkpointer::record_result(&done, &self.log_health);
        done
    }

    /// Moves a log that is too long, and one for which the disk has no more room: afterwards it is
    /// written over from its beginning, which needs none. With the lock held.
    fn bound_log(&self, done: &rusqlite::Result<CommitReport>) {
        let is_full = done
            .as_ref()
            .is_err_and(|error| error.sqlite_error_code() == Some(ErrorCode::DiskFull));
        let bytes = self.durable.log_bytes();
        let held = &self.log_health.held_bytes;
        if !is_full && bytes <= LOG_LATE {
            held.store(0, Ordering::Relaxed);
            return;
        }
        if is_full && let Some(folder) = self.database.0.parent() {
            reserve::give_up(folder);
        }
        for _ in 0..CHECKPOINT_TRIES {
            match self.move_log() {
                Ok(Checkpoint::Busy) => std::thread::park_timeout(CHECKPOINT_PAUSE),
                // Nobody writes now, so only a reader keeps what is left.
                Ok(Checkpoint::Moved { remaining }) => {
                    let is_held = remaining > 0 && bytes > LOG_HELD;
                    held.store(if is_held { bytes } else { 0 }, Ordering::Relaxed);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// The length of a log that a reader keeps from being shortened; 0 = there is none.
    pub(super) fn held_log_bytes(&self) -> u64 {
        self.log_health.held_bytes.load(Ordering::Relaxed)
    }

    /// A folder that was removed and made again counts from nothing elsewhere: two ledgers would
    /// hand out the same quota.
    fn check_not_replaced(&mut self) -> Result<(), FolderError> {
        let now = Clock::System.now().at;
        if now.since(self.checked) < REPLACED_CHECK_EVERY {
            return Ok(());
        }
        self.checked = now;
        let (path, opened) = &self.database;
        if inode(path) == Some(*opened) {
            Ok(())
        } else {
            Err(FolderError::Replaced)
        }
    }
}

impl DurableLog {
    /// How long the log is as a file. What cannot be read looks short: it would be moved for
    /// nothing.
    fn log_bytes(&self) -> u64 {
        self.log.metadata().map_or(0, |file| file.len())
    }

    /// A transaction is committed. Its generation is noted outside of the database once it is
    /// durable, so that no power cut makes the note newer than the database.
    fn committed(&self, needs_sync: bool, new_generation: Option<(i64, i64)>) {
        let mut state = self.state.lock();
        state.unsynced += u64::from(needs_sync);
        let Some((generation, at)) = new_generation else {
            return;
        };
        (state.record.generation, state.record.at) = (generation, at);
        if state.unsynced == 0 {
            let mut record = state.record.clone();
            drop(state);
            // Another process may not have synced its last one.
            record.generation = self.generation.load(Ordering::Acquire).min(generation);
            self.note(&record);
        }
    }

    /// The last generation that is known to be on disk. What others have synced is looked up if
    /// something before `commit` is not known to be.
    fn generation(&self, commit: i64) -> i64 {
        let known = self.generation.load(Ordering::Acquire);
        if known + 1 >= commit {
            return known;
        }
        let noted = GenerationRecord::durable(&self.lock_file, &self.boot);
        let noted = noted.filter(|noted| *noted < commit).unwrap_or(0);
        self.generation
            .fetch_max(noted, Ordering::AcqRel)
            .max(noted)
    }

    /// Makes everything durable that was committed before and must be. One sync serves all processes:
    /// if another one has synced since, there is nothing to do.
    pub(super) fn sync(&self) -> Result<(), FolderError> {
        let (record, count) = {
            let state = self.state.lock();
            if state.has_failed {
                let failed = io::Error::other("an earlier sync failed");
                return Err(FolderError::Sync(failed));
            }
            (state.record.clone(), state.unsynced)
        };
        failpoint::reached("syncing");
        let is_synced = count > 0 && self.generation(record.generation + 1) >= record.generation;
        if !is_synced && let Err(error) = self.log.sync_data() {
            self.state.lock().has_failed = true;
            return Err(FolderError::Sync(error));
        }
        self.generation
            .fetch_max(record.generation, Ordering::AcqRel);
        self.state.lock().unsynced -= count;
        self.note(&record);
        Ok(())
    }

    /// Permits that are committed are not wasted for it: without a note an old copy would only be
    /// noticed later.
    fn note(&self, record: &GenerationRecord) {
        drop(record.write(&self.lock_file));
    }
}

fn inode(path: &PathBuf) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| file.ino())
}
