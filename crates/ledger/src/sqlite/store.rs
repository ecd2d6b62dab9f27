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
use crate::sqlite::book::{Book, Done, Question, Reply};
use crate::sqlite::inbox::Told;
use crate::sqlite::lock::KernelLock;
use crate::sqlite::note::{Note, this_boot};
use crate::sqlite::open::{DATABASE, Opened};
use crate::sqlite::trouble::{OpenError, Trouble};
use crate::sqlite::wake::{self, Post};
use crate::sqlite::{Shared, keeper, spawn};

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
const STILL_THERE_EVERY: Span = Span::from_secs(1);

/// A folder at work.
pub(super) struct Store {
    shared: Arc<Shared>,
    book: Book,
    lock: KernelLock,
    log: File,
    database: (PathBuf, u64),
    checked: Micros,
    turns: u64,
    /// What is known of the database outside of it.
    note: Note,
    post: Post,
    /// Asks for a checkpoint.
    keeper: SyncSender<()>,
    /// Ends the thread that listens for wake-ups.
    is_over: Arc<AtomicBool>,
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
            keeper,
            lock,
            home,
            log,
            post,
            socket,
        } = opened;
        let fail = |source| OpenError::from_io(folder, source);
        let (checkpoint, asked) = sync_channel(1);
        let (listener, kept) = (shared.clone(), shared.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let threads = vec![
            spawn("tollgate-wake", move || {
                wake::listen(&socket, &listener.waiting, &listener.events, &ends);
            })
            .map_err(fail)?,
            spawn("tollgate-keeper", move || {
                keeper::keep(&keeper, &asked, &kept);
            })
            .map_err(fail)?,
        ];
        shared.owner.store(home.owner.0, Ordering::Release);
        let path = folder.join(DATABASE);
        let inode = inode(&path).unwrap_or_default();
        Ok(Store {
            book: Book::new(conn, home, shared.clock.clone()),
            shared: shared.clone(),
            lock,
            log,
            database: (path, inode),
            checked: Clock::System.now().at,
            turns: 0,
            note: Note {
                generation: 0,
                at: 0,
                boot: {
                    let (boot, clock) = this_boot();
                    format!("{boot} {clock}")
                },
            },
            post,
            keeper: checkpoint,
            is_over,
            threads,
        })
    }

    /// Ends the threads. SQLite itself leaves alone what has been put in the place of its files.
    pub(super) fn close(self) {
        self.is_over.store(true, Ordering::Release);
        self.post.close();
        drop(self.keeper);
        for thread in self.threads {
            drop(thread.join());
        }
    }

    /// Lock, decide, commit, unlock, sync.
    pub(super) fn commit(
        &mut self,
        left: &[CellId],
        settles: &[Told],
        asks: &[Ask],
        is_lost: bool,
    ) -> Result<Done, Trouble> {
        if self.shared.is_broken.load(Ordering::Acquire) {
            let failed = io::Error::other("a checkpoint failed");
            return Err(Trouble::Sync(failed));
        }
        self.still_there()?;
        let longest = if is_lost { LOST_WAIT } else { LOCK_WAIT };
        failpoint::reached("before the lock");
        if !self.lock.acquire(longest).map_err(Trouble::Lock)? {
            return Err(Trouble::Busy);
        }
        self.book.wait_for_others(longest);
        let done = self.book.turn(left, settles, asks);
        if self.shared.log_pages.load(Ordering::Relaxed) > CHECKPOINT_LATE {
            self.move_log();
        }
        self.lock.release().map_err(Trouble::Lock)?;
        failpoint::reached("unlocked");
        let done = done?;
        self.shared
            .damaged
            .fetch_add(done.damaged, Ordering::Relaxed);
        if done.is_long {
            self.log.sync_data().map_err(Trouble::Sync)?;
            failpoint::reached("synced");
        }
        if let Some((generation, at)) = done.noted {
            self.note.generation = generation;
            self.note.at = at;
            // Permits that are committed are not wasted for it: without a note an old copy would
            // only be noticed later.
            drop(self.note.write(self.lock.file()));
        }
        Ok(done)
    }

    /// What this process knows of the database, to be told from an older one.
    pub(super) fn note(&self) -> &Note {
        &self.note
    }

    /// Reads without the lock.
    pub(super) fn look(&self, question: &Question) -> rusqlite::Result<Reply> {
        self.book.look(question)
    }

    /// Wakes another owner; `false`: it is dead, and nobody leaves anything to it any more.
    pub(super) fn wake(&mut self, owner: OwnerId, cell: CellId) -> bool {
        let lives = self.post.freed(owner, &[cell]);
        if !lives {
            self.book.has_died(owner);
        }
        lives
    }

    /// Something is saved up for this owner: nobody leaves it anything if it is dead.
    pub(super) fn look_after(&mut self, owner: OwnerId) {
        if !self.post.is_alive(owner) {
            self.book.has_died(owner);
        }
    }

    /// Tells every other owner that these have changed.
    pub(super) fn tell_scopes(&self, scopes: &[ScopeId]) {
        self.post.scopes(scopes);
    }

    /// A turn is over: every so often the log is moved into the database.
    pub(super) fn checkpoint(&mut self) {
        self.turns += 1;
        if self.turns.is_multiple_of(CHECKPOINT_EVERY) {
            // Full means that it has been asked already.
            self.keeper.try_send(()).unwrap_or(());
        }
        let rest = &self.shared.is_nearly_moved;
        if rest.load(Ordering::Relaxed) && self.lock.take_if_free() {
            rest.store(false, Ordering::Relaxed);
            self.move_log();
            // Whether it could be unlocked shows with the next turn.
            drop(self.lock.release());
        }
    }

    /// With the lock held, so that nobody adds to the log.
    fn move_log(&self) {
        keeper::note(self.book.checkpoint(), &self.shared);
    }

    /// A folder that was removed and made again counts from nothing elsewhere: two ledgers would
    /// hand out the same quota.
    fn still_there(&mut self) -> Result<(), Trouble> {
        let now = Clock::System.now().at;
        if now.since(self.checked) < STILL_THERE_EVERY {
            return Ok(());
        }
        self.checked = now;
        let (path, opened) = &self.database;
        if inode(path) == Some(*opened) {
            Ok(())
        } else {
            Err(Trouble::Replaced)
        }
    }
}

fn inode(path: &PathBuf) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| file.ino())
}
