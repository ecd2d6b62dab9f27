//! The ledger thread: takes what waits, has the store decide it, and hands out. For stores that block.
//!
//! Promises: decide, commit, make durable what must be, hand out. A permit is committed before it is
//! handed out. What must be durable and is not covered by a durable reservation is synced and handed out by a thread of its own, so that nobody
//! waits for a disk that only others need. A permit whose decision is too old when it could be handed
//! out is given back instead.
//!
//! If the store or a thread panics, the store is lost until a restart, and every waiting call gets
//! `StoreLost`.
//!
//! Never: ends while somebody may still ask, and never waits without end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tollgate_core::ask::{Ask, CellId, OwnerId, Verdict};
use tollgate_core::batch::{Batch, BatchResult, QueuedSettle, Settles, grants_long_limit};

use crate::StoreLost;
use crate::failpoint;
use crate::former_owners::FormerOwners;
use crate::hand_out::HandOut;
use crate::hub::TagId;
use crate::inbox::{FailedDependents, PeekRequest, SettleDelay, TagWork, Work};
use crate::offer::OfferResult;
use crate::shared::{RecoveryClose, Shared};
use crate::store::{PeekReply, Store, StoreError, check_verdicts, saved_in, wake_owners};
use crate::sync_thread::SyncThread;
use crate::threads::{catch_panic, spawn};

/// Rows that one peek reads in one turn: some 250 µs on SQLite.
const PEEK_ROWS_PER_TURN: usize = 128;

/// Drives a store that blocks. Ends the ledger's threads when the last handle goes.
#[derive(Debug)]
pub(crate) struct ThreadDriver {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    pid: u32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ThreadDriver {
    /// Starts the threads.
    pub(crate) fn start(
        shared: Arc<Shared>,
        store: Arc<dyn Store>,
    ) -> std::io::Result<ThreadDriver> {
        let sync = SyncThread::start(shared.clone(), store.clone())?;
        let worker = LedgerThread {
            shared: shared.clone(),
            store: store.clone(),
            sync,
        };
        let thread = spawn("tollgate-ledger", move || worker.run())?;
        Ok(ThreadDriver {
            shared,
            store,
            pid: std::process::id(),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// As if this were a child process.
    #[cfg(test)]
    fn fork(&mut self) {
        self.pid = self.pid.wrapping_add(1);
    }
}

impl Drop for ThreadDriver {
    /// Waits until every queued settle is written. Every wait of the threads has an end, and so has
    /// this one.
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.inbox.close();
        // The last handle may be dropped on a ledger thread itself: that thread cannot join itself.
        let is_elsewhere =
            |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        let is_sync_thread = std::thread::current().name() == Some(crate::sync_thread::NAME);
        let thread = self.thread.lock().take().filter(is_elsewhere);
        if let Some(thread) = thread.filter(|_| !is_sync_thread) {
            drop(thread.join());
        }
    }
}

struct LedgerThread {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    sync: SyncThread,
}

/// The batch of one provider, and where its verdicts go.
struct TagBatch {
    tag: TagId,
    settles: Vec<QueuedSettle>,
    /// So many of the settles were queued; the others are added anew if this fails.
    queued: usize,
    asks: Vec<Ask>,
    replies: Vec<(oneshot::Sender<OfferResult>, usize)>,
    stopped_waiting: Vec<CellId>,
}

impl TagBatch {
    fn of(work: TagWork) -> TagBatch {
        let mut batch = TagBatch {
            tag: work.tag,
            queued: work.settles.len(),
            settles: work.settles,
            asks: Vec::new(),
            replies: Vec::with_capacity(work.offers.len()),
            stopped_waiting: work.stopped_waiting,
        };
        // Whoever has gone already needs no permit.
        let offers = work.offers.into_iter();
        for offer in offers.filter(|offer| !offer.reply.is_closed()) {
            batch.replies.push((offer.reply, offer.asks.len()));
            if batch.asks.is_empty() {
                batch.asks = offer.asks;
            } else {
                batch.asks.extend(offer.asks);
            }
        }
        batch
    }

    fn is_empty(&self) -> bool {
        self.settles.is_empty() && self.replies.is_empty() && self.stopped_waiting.is_empty()
    }

    /// Takes out what belongs to a database that was replaced.
    fn drop_former(&mut self, former: &FormerOwners) {
        self.settles
            .retain(|queued| !former.has_settled(&queued.settle));
        self.queued = self.settles.len();
        if !self.asks.iter().any(|ask| former.has_asked(ask)) {
            return;
        }
        let mut asks = std::mem::take(&mut self.asks).into_iter();
        for (reply, count) in std::mem::take(&mut self.replies) {
            let offered: Vec<Ask> = asks.by_ref().take(count).collect();
            if offered.iter().any(|ask| former.has_asked(ask)) {
                drop(reply.send(Err(StoreLost)));
            } else {
                self.replies.push((reply, count));
                self.asks.extend(offered);
            }
        }
    }
}

impl LedgerThread {
    /// Works until the last handle is gone. After a panic every waiting call gets `StoreLost`.
    fn run(mut self) {
        if let Err(error) = catch_panic("the ledger thread", || self.work()) {
            self.shared.mark_lost(&error);
            self.shared.inbox.abandon();
            self.sync.finish();
        }
        // One that panics here does no harm: nothing is asked any more.
        drop(catch_panic("the store", || self.store.close()));
    }

    /// Works until the last handle is gone and every queued settle is written.
    fn work(&mut self) {
        loop {
            let pace = if self.is_lost() {
                SettleDelay::Slow
            } else if self.shared.hub.is_signal_awaited() {
                SettleDelay::Hurry
            } else {
                SettleDelay::Normal
            };
            let work = self.shared.inbox.next(pace);
            let is_last = work.is_last;
            self.serve(work);
            // While the store is lost, queued settles cannot be written; that only delays slots.
            if is_last || (self.is_lost() && self.shared.is_closing.load(Ordering::Acquire)) {
                break;
            }
        }
        self.sync.finish();
        // What came back unsent while it ended is written too.
        let remaining = self.shared.inbox.next(SettleDelay::Hurry);
        self.serve(remaining);
    }

    fn is_lost(&self) -> bool {
        self.shared.loss().is_some()
    }

    fn serve(&mut self, mut work: Work) {
        let mut peeks = Vec::new();
        for tag_work in &mut work.tags {
            let tag = tag_work.tag;
            peeks.extend(tag_work.peeks.drain(..).map(|asked| (tag, asked)));
        }
        let batches = work.tags.into_iter().map(TagBatch::of);
        let batches: Vec<TagBatch> = batches.filter(|batch| !batch.is_empty()).collect();
        if !batches.is_empty() || (self.is_lost() && peeks.is_empty()) {
            self.turn(batches);
        }
        // The settles before a peek may have failed with the store: then its rows are not known.
        for (tag, request) in peeks {
            if self.is_lost() {
                break;
            }
            self.peek(tag, request);
        }
    }

    /// Reads a part of what was asked; the rest waits for the next turn, so that nobody's permit
    /// waits for a long peek.
    fn peek(&self, tag: TagId, mut asked: PeekRequest) {
        let part = asked.query.split_off_rows(PEEK_ROWS_PER_TURN);
        let read = match catch_panic("the store", || self.store.peek(&part)).flatten() {
            Ok(read) => read,
            // Dropped, the peek ends without a reply.
            Err(error) => return self.shared.mark_lost(&error),
        };
        if asked.query.is_empty() && asked.reply == PeekReply::default() {
            return (asked.on_reply)(read);
        }
        asked.reply.cells.extend(read.cells);
        asked.reply.scopes.extend(read.scopes);
        if asked.query.is_empty() {
            (asked.on_reply)(asked.reply);
        } else {
            self.shared.inbox.peek(tag, asked);
        }
    }

    /// One transaction and everything around it.
    fn turn(&mut self, mut batches: Vec<TagBatch>) {
        let was_lost = self.is_lost();
        if was_lost && !self.shared.has_failed() {
            self.reopen();
        }
        let former = &self.shared.former;
        former.set_current(self.store.owner());
        if !former.is_empty() {
            batches
                .iter_mut()
                .for_each(|batch| batch.drop_former(former));
        }
        let mut closed = Vec::new();
        if was_lost {
            closed = self.add_recovery_settles(&mut batches);
        }
        let decisions = self.commit(&batches);
        let mut is_back = was_lost && decisions.iter().all(Result::is_ok);
        if was_lost && batches.is_empty() {
            // Nobody wants anything: is it there again?
            let result = self.commit_nothing();
            is_back = result.is_ok();
            if let Err(error) = result {
                self.shared.mark_lost(&error);
            }
        }
        if is_back {
            self.shared.mark_recovered(&closed);
        }
        for (batch, decision) in batches.into_iter().zip(decisions) {
            match decision {
                Ok(decision) => self.hand_out(batch, decision),
                Err(error) => self.fail(batch, &error),
            }
        }
        failpoint::reached("after handing out");
        if !self.shared.has_failed() {
            self.store.maintain();
        }
    }

    fn reopen(&self) {
        // Numbers count only in the database that gave them, and this may be another one.
        self.shared.dead.clear();
        if let Err(panicked) = catch_panic("the store", || self.store.reopen()) {
            self.shared.mark_lost(&panicked);
        }
    }

    /// What is to be closed when the store is back goes before its provider's asks.
    fn add_recovery_settles(&self, batches: &mut Vec<TagBatch>) -> Vec<RecoveryClose> {
        let closes = self.shared.recovery_closes();
        for &close in &closes {
            let tag = close.tag;
            let settle = close.settle(self.shared.clock.at());
            let known = batches.iter().position(|batch| batch.tag == tag);
            let index = known.unwrap_or_else(|| {
                batches.push(TagBatch {
                    tag,
                    settles: Vec::new(),
                    queued: 0,
                    asks: Vec::new(),
                    replies: Vec::new(),
                    stopped_waiting: Vec::new(),
                });
                batches.len() - 1
            });
            batches[index].settles.push(settle);
        }
        closes
    }

    /// One result per batch, whatever the store does.
    fn commit(&self, batches: &[TagBatch]) -> Vec<Result<BatchResult, StoreError>> {
        let fail_all = |error: StoreError| batches.iter().map(|_| Err(error.clone())).collect();
        if self.shared.has_failed() {
            return fail_all(self.shared.failure());
        }
        let owner = self.store.owner();
        let dead = self.shared.dead.get(owner);
        let committed: Vec<Batch<'_>> = batches
            .iter()
            .map(|batch| Batch {
                owner,
                stopped_waiting: &batch.stopped_waiting,
                settles: Settles::Queued(&batch.settles),
                asks: &batch.asks,
                dead: &dead,
            })
            .collect();
        let committing = || self.store.commit_together(&committed);
        let mut decisions = match catch_panic("the store", committing) {
            Ok(decisions) => decisions,
            Err(panicked) => return fail_all(panicked),
        };
        for (batch, result) in committed.iter().zip(&mut decisions) {
            if let Ok(decision) = result {
                self.shared.dead.on_committed(batch);
                if let Err(error) = check_verdicts(decision, batch.asks.len()) {
                    *result = Err(error);
                }
            }
        }
        decisions.resize_with(batches.len(), || Err(no_result()));
        decisions
    }

    fn commit_nothing(&self) -> Result<BatchResult, StoreError> {
        if self.shared.has_failed() {
            return Err(self.shared.failure());
        }
        let nothing = Batch::now(self.store.owner(), &[], &[]);
        catch_panic("the store", || self.store.commit(&nothing)).flatten()
    }

    /// Delivers the verdicts; those whose permits must be durable after the sync.
    fn hand_out(&self, batch: TagBatch, mut decision: BatchResult) {
        let TagBatch {
            tag,
            settles,
            asks,
            replies,
            ..
        } = batch;
        let saved_in = saved_in(&decision, &asks);
        let verdicts = std::mem::take(&mut decision.verdicts);
        let hub = &self.shared.hub;
        hub.record_waiting(tag, &asks, &verdicts);
        let inherits = Batch {
            settles: Settles::Queued(&settles),
            ..Batch::now(OwnerId::default(), &[], &[])
        };
        if inherits.must_be_durable(&[]) {
            self.sync.request();
        }
        let ahead = decision.sync_ahead.take();
        let is_due = ahead.as_ref().is_some_and(|ahead| ahead.is_due);
        let mut first = 0;
        let mut is_covered = false;
        let mut decided = asks.into_iter().zip(verdicts);
        for (reply, count) in replies {
            let decided: Vec<(Ask, Verdict)> = decided.by_ref().take(count).collect();
            let is_long = decided
                .iter()
                .any(|(ask, verdict)| grants_long_limit((ask, verdict)));
            let waits = is_long
                && ahead.as_ref().is_none_or(|ahead| {
                    let offered = first..first + count;
                    ahead.waiting.iter().any(|index| offered.contains(index))
                });
            first += count;
            is_covered |= is_long && !waits;
            let hand_out = HandOut {
                tag,
                reply,
                decided,
                at: decision.at,
            };
            if waits {
                self.sync.hand_out_when_durable(hand_out);
            } else {
                hand_out.deliver(&self.shared);
            }
        }
        match is_due {
            true => self.sync.request(),
            false if is_covered => self.sync.request_later(),
            false => {}
        }
        let dead = wake_owners(&*self.store, &decision, &saved_in);
        self.shared.dead.add(self.store.owner(), dead);
        if !decision.changed_scopes.is_empty() {
            self.store.notify_scopes(&decision.changed_scopes);
        }
        self.shared.hub.decided_for_tag(tag, &mut decision);
    }

    fn fail(&self, batch: TagBatch, error: &StoreError) {
        let TagBatch {
            tag,
            mut settles,
            queued,
            replies,
            ..
        } = batch;
        self.shared.mark_lost(error);
        settles.truncate(queued);
        let FailedDependents { offers, peeks } = self.shared.inbox.requeue(tag, settles);
        let replies = replies.into_iter().map(|(reply, _)| reply);
        for reply in replies.chain(offers.into_iter().map(|offer| offer.reply)) {
            drop(reply.send(Err(StoreLost)));
        }
        // Dropped, a peek ends without a reply.
        drop(peeks);
    }
}

/// A store that says nothing of a batch.
fn no_result() -> StoreError {
    StoreError {
        message:
            "the store said nothing of a batch, which is an error in Tollgate; restart it and \
                  report this"
                .into(),
        is_final: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;
    use crate::memory::SharedMemory;
    use crate::store::EventSink;

    /// A child has none of the threads: one that waited for them when it dropped its ledger would
    /// wait for ever.
    #[test]
    fn a_forked_child_that_drops_its_ledger_waits_for_nobody() {
        let shared = Shared::new(Clock::System);
        let sink = EventSink::new(shared.hub.clone());
        let store = Arc::new(SharedMemory::new(Clock::System).join(sink));
        let mut driver = ThreadDriver::start(shared.clone(), store).unwrap();
        let thread = driver.thread.lock().take().expect("it runs");
        driver.fork();
        drop(driver);
        assert!(!shared.is_closing.load(Ordering::Acquire));
        assert!(!thread.is_finished());
        // The parent's handle ends it.
        shared.is_closing.store(true, Ordering::Release);
        shared.inbox.close();
        thread.join().unwrap();
    }
}
