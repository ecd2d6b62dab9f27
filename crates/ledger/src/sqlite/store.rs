//! The store of one process while it is open: lock, database, log, checkpoints, wake-ups.
//!
//! Promises: one transaction is lock, decide, commit, unlock, and sync where it must be durable, in
//! this order. A folder that was replaced meanwhile and a disk that failed are not used again.
//!
//! Never: waits for the lock longer than it says.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_core::ask::{Ask, CellId, OwnerId, ScopeId};
use tollgate_core::time::{Micros, Span};

use crate::Clock;
use crate::failpoint;
use crate::sqlite::database::{CommitReport, Database, PeekQuery, PeekReply};
use crate::sqlite::error::{OpenError, StoreError};
use crate::sqlite::generation::{GenerationRecord, this_boot};
use crate::sqlite::inbox::QueuedSettle;
use crate::sqlite::lock::KernelLock;
use crate::sqlite::open::{DATABASE, Opened};
use crate::sqlite::wake::{self, Notifier};
use crate::sqlite::{Shared, checkpointer, spawn};

/// The lock is waited for this long; then the store is lost. A turn takes some 20 µs, so only a
/// process that is stopped in the middle of one keeps it so long.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(1);

/// While the store is lost, nobody waits longer than this to be told so again.
pub(super) const LOST_WAIT: Duration = Duration::from_millis(20);

/// Transactions between two checkpoints: the log grows by some 10 KiB with each, so it stays
/// around 4 MiB while others are not faster than that.
const CHECKPOINT_EVERY: u64 = 400;

/// Pages from which a checkpoint is made under the lock. Others may write faster than one can
/// clear up behind them; 32 MiB is the most that the log grows to.
const CHECKPOINT_LATE: i64 = 8_192;

/// How often the thread makes sure that the folder is still the one it opened.
const REPLACED_CHECK_EVERY: Span = Span::from_secs(1);

/// A folder at work.
pub(super) struct Store {
    shared: Arc<Shared>,
    db: Database,
    lock: KernelLock,
    log: File,
    database: (PathBuf, u64),
    checked: Micros,
    turns: u64,
    /// What is known of the database outside of it.
    generation_record: GenerationRecord,
    notifier: Notifier,
    /// Asks for a checkpoint.
    checkpointer: SyncSender<()>,
    /// Ends the thread that listens for wake-ups.
    is_closing: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Store {
    /// Starts the threads that an open folder needs.
    pub(super) fn start(
        opened: Opened,
        folder: &Path,
        shared: &Arc<Shared>,
    ) -> Result<Store, OpenError> {
        let Opened {
            conn,
            checkpoint_conn: keeper,
            lock,
            context: home,
            log,
            notifier: post,
            socket,
        } = opened;
        let fail = |source| OpenError::from_io(folder, source);
        let (checkpoint, asked) = sync_channel(1);
        let (listener, kept) = (shared.clone(), shared.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let threads = vec![
            spawn("tollgate-wake", move || {
                wake::listen(&socket, &listener.awaited_signals, &listener.events, &ends);
            })
            .map_err(fail)?,
            spawn("tollgate-keeper", move || {
                checkpointer::run(&keeper, &asked, &kept);
            })
            .map_err(fail)?,
        ];
        shared.owner.store(home.owner.0, Ordering::Release);
        let path = folder.join(DATABASE);
        let inode = inode(&path).unwrap_or_default();
        Ok(Store {
            db: Database::new(conn, home, shared.clock.clone()),
            shared: shared.clone(),
            lock,
            log,
            database: (path, inode),
            checked: Clock::System.now().at,
            turns: 0,
            generation_record: GenerationRecord {
                generation: 0,
                at: 0,
                boot: {
                    let (boot, clock) = this_boot();
                    format!("{boot} {clock}")
                },
            },
            notifier: post,
            checkpointer: checkpoint,
            is_closing: is_over,
            threads,
        })
    }

    /// Ends the threads. SQLite itself leaves alone what has been put in the place of its files.
    pub(super) fn close(self) {
        self.is_closing.store(true, Ordering::Release);
        self.notifier.close();
        drop(self.checkpointer);
        for thread in self.threads {
            drop(thread.join());
        }
    }

    /// Lock, decide, commit, unlock, sync.
    pub(super) fn commit(
        &mut self,
        left: &[CellId],
        settles: &[QueuedSettle],
        asks: &[Ask],
        is_lost: bool,
    ) -> Result<CommitReport, StoreError> {
        if self.shared.has_disk_failed.load(Ordering::Acquire) {
            let failed = io::Error::other("a checkpoint failed");
            return Err(StoreError::Sync(failed));
        }
        self.check_not_replaced()?;
        let longest = if is_lost { LOST_WAIT } else { LOCK_WAIT };
        failpoint::reached("before the lock");
        if !self.lock.acquire(longest).map_err(StoreError::Lock)? {
            return Err(StoreError::Busy);
        }
        self.db.set_busy_timeout(longest);
        let done = self.db.turn(left, settles, asks);
        if self.shared.log_pages.load(Ordering::Relaxed) > CHECKPOINT_LATE {
            self.move_log();
        }
        self.lock.release().map_err(StoreError::Lock)?;
        failpoint::reached("unlocked");
        let done = done?;
        self.shared
            .damaged_rows
            .fetch_add(done.damaged_rows, Ordering::Relaxed);
        if done.needs_sync {
            self.log.sync_data().map_err(StoreError::Sync)?;
            failpoint::reached("synced");
        }
        if let Some((generation, at)) = done.new_generation {
            self.generation_record.generation = generation;
            self.generation_record.at = at;
            // Permits that are committed are not wasted for it: without a note an old copy would
            // only be noticed later.
            drop(self.generation_record.write(self.lock.file()));
        }
        Ok(done)
    }

    /// What this process knows of the database, to be told from an older one.
    pub(super) fn generation_record(&self) -> &GenerationRecord {
        &self.generation_record
    }

    /// Reads without the lock.
    pub(super) fn peek(&self, question: &PeekQuery) -> rusqlite::Result<PeekReply> {
        self.db.peek(question)
    }

    /// Wakes another owner; `false`: it is dead, and nobody leaves anything to it any more.
    pub(super) fn wake(&mut self, owner: OwnerId, cell: CellId) -> bool {
        let lives = self.notifier.notify_freed(owner, &[cell]);
        if !lives {
            self.db.mark_dead(owner);
        }
        lives
    }

    /// Something is saved up for this owner: nobody leaves it anything if it is dead.
    pub(super) fn check_alive(&mut self, owner: OwnerId) {
        if !self.notifier.is_alive(owner) {
            self.db.mark_dead(owner);
        }
    }

    /// Tells every other owner that these have changed.
    pub(super) fn notify_scopes(&self, scopes: &[ScopeId]) {
        self.notifier.notify_scopes(scopes);
    }

    /// A turn is over: every so often the log is moved into the database.
    pub(super) fn checkpoint(&mut self) {
        self.turns += 1;
        if self.turns.is_multiple_of(CHECKPOINT_EVERY) {
            // Full means that it has been asked already.
            self.checkpointer.try_send(()).unwrap_or(());
        }
        let rest = &self.shared.is_log_nearly_moved;
        if rest.load(Ordering::Relaxed) && self.lock.take_if_free() {
            rest.store(false, Ordering::Relaxed);
            self.move_log();
            // Whether it could be unlocked shows with the next turn.
            drop(self.lock.release());
        }
    }

    /// With the lock held, so that nobody adds to the log.
    fn move_log(&self) {
        checkpointer::record_result(self.db.checkpoint(), &self.shared);
    }

    /// A folder that was removed and made again counts from nothing elsewhere: two ledgers would
    /// hand out the same quota.
    fn check_not_replaced(&mut self) -> Result<(), StoreError> {
        let now = Clock::System.now().at;
        if now.since(self.checked) < REPLACED_CHECK_EVERY {
            return Ok(());
        }
        self.checked = now;
        let (path, opened) = &self.database;
        if inode(path) == Some(*opened) {
            Ok(())
        } else {
            Err(StoreError::Replaced)
        }
    }
}

fn inode(path: &PathBuf) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| file.ino())
}
