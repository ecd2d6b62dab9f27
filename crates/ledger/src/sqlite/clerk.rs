//! The ledger thread: takes what waits, makes one transaction of it, and hands out.
//!
//! Promises: lock, decide, commit, unlock, sync where it must be durable, hand out, signal,
//! checkpoint: in this order. A permit is committed before it is handed out. A permit whose
//! decision is too old when it could be handed out is given back instead.
//!
//! Never: ends while somebody may still ask, and never waits without end.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tollgate_core::ask::{Ask, By, CellId, On, Verdict};
use tollgate_core::time::{Micros, Span};

use crate::failpoint;
use crate::offered::unsent;
use crate::sqlite::Shared;
use crate::sqlite::book::{Book, Done};
use crate::sqlite::inbox::{Batch, Offer, Pace, Told};
use crate::sqlite::lock::KernelLock;
use crate::sqlite::open::DATABASE;
use crate::sqlite::share::Wake;
use crate::sqlite::trouble::Trouble;
use crate::sqlite::wake::Waiting;
use crate::{Clock, Event, Lost};

/// The lock is waited for this long; then the store is lost. A turn takes some 20 µs, so only a
/// process that is stopped in the middle of one keeps it so long.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// While the store is lost, an offer waits only this long before it is told so again.
const LOST_WAIT: Duration = Duration::from_millis(20);

/// A decision this old is not handed out: this process was stopped in between, and the sender must
/// not send later than 500 ms after the grant.
const STALE: Span = Span::from_millis(250);

/// Transactions between two checkpoints: the log grows by some 10 KiB with each, so it stays
/// around 4 MiB while others are not faster than that.
const CHECKPOINT_EVERY: u64 = 400;

/// Pages from which a checkpoint is made under the lock. Others may write faster than one can
/// clear up behind them; 32 MiB is the most that the log grows to.
const CHECKPOINT_LATE: i64 = 8_192;

/// How often the thread makes sure that the folder is still the one it opened.
const STILL_THERE_EVERY: Span = Span::from_secs(1);

pub(super) struct Clerk {
    shared: Arc<Shared>,
    book: Book,
    lock: KernelLock,
    log: File,
    database: (PathBuf, u64),
    checked: Micros,
    is_lost: bool,
    is_over: bool,
    turns: u64,
    keeper: SyncSender<()>,
}

impl Clerk {
    pub(super) fn new(
        shared: Arc<Shared>,
        book: Book,
        lock: KernelLock,
        log: File,
        folder: &Path,
        keeper: SyncSender<()>,
    ) -> Clerk {
        let path = folder.join(DATABASE);
        let inode = inode(&path).unwrap_or_default();
        Clerk {
            shared,
            book,
            lock,
            log,
            database: (path, inode),
            checked: Clock::System.now().at,
            is_lost: false,
            is_over: false,
            turns: 0,
            keeper,
        }
    }

    /// Works until the last handle is gone and everything told is written.
    pub(super) fn run(mut self) {
        loop {
            let pace = if self.is_lost {
                Pace::Slow
            } else if self.shared.waiting.lock().is_empty() {
                Pace::Normal
            } else {
                Pace::Hurry
            };
            let batch = self.shared.inbox.next(pace);
            let is_last = batch.is_last;
            self.serve(batch);
            // With the store lost, what was told cannot be written; that only delays slots.
            if is_last || (self.is_lost && self.shared.is_over.load(Ordering::Acquire)) {
                return;
            }
        }
    }

    fn serve(&mut self, batch: Batch) {
        let Batch {
            mut offers,
            settles,
            questions,
            ..
        } = batch;
        // Whoever has gone already needs no permit.
        offers.retain(|offer| !offer.answer.is_closed());
        let idle = offers.is_empty() && settles.is_empty();
        if !idle || (self.is_lost && questions.is_empty()) {
            self.turn(offers, settles);
        }
        for asked in questions {
            if let Ok(reply) = self.book.look(&asked.question) {
                drop(asked.reply.try_send(reply));
            }
        }
    }

    /// One transaction and everything around it.
    fn turn(&mut self, offers: Vec<Offer>, settles: Vec<Told>) {
        let mut asks: Vec<Ask> = Vec::new();
        let mut answers = Vec::with_capacity(offers.len());
        for offer in offers {
            answers.push((offer.answer, offer.asks.len()));
            asks.extend(offer.asks);
        }
        match self.commit(&settles, &asks) {
            Ok(done) => {
                self.found();
                let Done {
                    verdicts,
                    freed,
                    scopes,
                    wakes,
                    now,
                    ..
                } = done;
                let is_stale = self.shared.clock.now().at.since(now) > STALE;
                self.note_waiting(&asks, &verdicts);
                let mut decided = asks.into_iter().zip(verdicts);
                for (answer, count) in answers {
                    let mut part: Vec<(Ask, Verdict)> = decided.by_ref().take(count).collect();
                    if is_stale {
                        self.give_back(part.clone());
                        part.iter_mut().for_each(retry);
                    }
                    if let Err(Ok(part)) = answer.send(Ok(part)) {
                        self.give_back(part);
                    }
                }
                failpoint::reached("after handing out");
                self.wake(&wakes);
                self.tell(freed, scopes);
                self.checkpoint();
            }
            Err(trouble) => {
                self.lost(&trouble);
                self.shared.inbox.put_back(settles);
                for (answer, _) in answers {
                    drop(answer.send(Err(Lost)));
                }
            }
        }
    }

    /// Wakes the first of those who wait, as many as there is room for; the dead are passed over.
    fn wake(&mut self, wakes: &[Wake]) {
        for wake in wakes {
            let mut left = wake.at_most;
            for &owner in &wake.owners {
                if left == 0 {
                    break;
                } else if self.shared.post.freed(owner, &[wake.cell]) {
                    left -= 1;
                } else {
                    self.book.has_died(owner);
                }
            }
        }
    }

    /// Lock, decide, commit, unlock, sync.
    fn commit(&mut self, settles: &[Told], asks: &[Ask]) -> Result<Done, Trouble> {
        if self.is_over {
            return Err(Trouble::Replaced);
        }
        if self.shared.is_broken.load(Ordering::Acquire) {
            let failed = io::Error::other("a checkpoint failed");
            return Err(Trouble::Sync(failed));
        }
        self.still_there()?;
        let longest = if self.is_lost { LOST_WAIT } else { LOCK_WAIT };
        if !self.lock.acquire(longest).map_err(Trouble::Lock)? {
            return Err(Trouble::Busy);
        }
        let done = self.book.turn(settles, asks);
        if self.shared.log_pages.load(Ordering::Relaxed) > CHECKPOINT_LATE {
            // One that fails is tried again with the next turn.
            if let Ok(pages) = self.book.checkpoint() {
                self.shared.log_pages.store(pages, Ordering::Relaxed);
            }
        }
        self.lock.release().map_err(Trouble::Lock)?;
        let done = done?;
        self.shared
            .damaged
            .fetch_add(done.damaged, Ordering::Relaxed);
        if done.is_long {
            self.log.sync_data().map_err(Trouble::Sync)?;
        }
        Ok(done)
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

    fn give_back(&self, part: Vec<(Ask, Verdict)>) {
        let at = self.shared.clock.now().at;
        for settle in unsent(part) {
            self.shared.inbox.settle(Told { settle, at });
        }
    }

    /// Remembers what of this process waits for a signal.
    fn note_waiting(&self, asks: &[Ask], verdicts: &[Verdict]) {
        let mut waiting = self.shared.waiting.lock();
        let Waiting { cells, scopes } = &mut *waiting;
        for (ask, verdict) in asks.iter().zip(verdicts) {
            let Verdict::Wait {
                on: On::Event, by, ..
            } = verdict
            else {
                continue;
            };
            match *by {
                By::Term(index) => cells.extend(ask.terms.get(index).map(|term| term.cell)),
                By::Scope(index) => scopes.extend(ask.scopes.get(index)),
            }
        }
    }

    fn tell(&self, mut freed: Vec<CellId>, scopes: Vec<tollgate_core::ask::ScopeId>) {
        freed.sort_unstable();
        freed.dedup();
        if !freed.is_empty() {
            self.shared
                .waiting
                .lock()
                .cells
                .retain(|cell| !freed.contains(cell));
            self.shared.tell(Event::Freed(freed.into()));
        }
        if !scopes.is_empty() {
            self.shared.post.scopes(&scopes);
            self.shared.tell(Event::Scopes(scopes.into()));
        }
    }

    fn checkpoint(&mut self) {
        self.turns += 1;
        if self.turns.is_multiple_of(CHECKPOINT_EVERY) {
            // Full means that it has been asked already.
            self.keeper.try_send(()).unwrap_or(());
        }
    }

    fn lost(&mut self, trouble: &Trouble) {
        self.is_over |= trouble.is_final();
        if !self.is_lost {
            self.is_lost = true;
            *self.shared.trouble.lock() = Some(trouble.to_string());
            self.shared.tell(Event::Lost);
        }
    }

    fn found(&mut self) {
        if self.is_lost {
            self.is_lost = false;
            *self.shared.trouble.lock() = None;
            self.shared.tell(Event::Back);
        }
    }
}

/// Granted too long ago to be used: ask again.
fn retry((ask, verdict): &mut (Ask, Verdict)) {
    if let Verdict::Go { .. } = verdict {
        let by = if ask.terms.is_empty() {
            By::Scope(0)
        } else {
            By::Term(0)
        };
        *verdict = Verdict::Wait {
            after: Span::ZERO,
            on: On::Time,
            by,
        };
    }
}

fn inode(path: &PathBuf) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| file.ino())
}
