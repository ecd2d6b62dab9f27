//! The ledger thread: takes what waits, makes one transaction of it, and hands out.
//!
//! Promises: lock, decide, commit, unlock, sync where it must be durable, hand out, signal,
//! checkpoint: in this order. A permit is committed before it is handed out. A permit whose
//! decision is too old when it could be handed out is given back instead.
//!
//! Never: ends while somebody may still ask, and never waits without end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_core::ask::{Ask, BlockedBy, CellId, OwnerId, Verdict, WakeOn};
use tollgate_core::time::{Micros, Span};

use crate::failpoint;
use crate::offer::unsent_settles;
use crate::sqlite::Shared;
use crate::sqlite::database::CommitReport;
use crate::sqlite::error::StoreError;
use crate::sqlite::fairness::{Wake, will_wait};
use crate::sqlite::generation::GenerationRecord;
use crate::sqlite::inbox::{Batch, Offer, Pace, QueuedSettle};
use crate::sqlite::open;
use crate::sqlite::store::{LOST_WAIT, Store};
use crate::sqlite::wake::AwaitedSignals;
use crate::{Clock, Event, StoreLost};

/// A decision this old is not handed out: this process was stopped in between, and the sender must
/// not send later than 500 ms after the grant.
const STALE_AFTER: Span = Span::from_millis(250);

/// How often a folder that cannot be opened is tried again.
const OPEN_EVERY: Span = Span::from_secs(1);

pub(super) struct LedgerThread {
    shared: Arc<Shared>,
    folder: PathBuf,
    /// `None`: it could not be opened yet.
    store: Option<Store>,
    /// What the one before knew of the database.
    known_generation: Option<GenerationRecord>,
    /// When opening was tried last.
    last_open_attempt: Micros,
    is_lost: bool,
    has_failed: bool,
}

impl LedgerThread {
    /// With a store that is open, or with one that cannot be opened and is lost from the start.
    pub(super) fn new(shared: Arc<Shared>, folder: &Path, store: Option<Store>) -> LedgerThread {
        LedgerThread {
            is_lost: store.is_none(),
            last_open_attempt: Clock::System.now().at,
            known_generation: None,
            folder: folder.to_owned(),
            shared,
            store,
            has_failed: false,
        }
    }

    /// Works until the last handle is gone and everything told is written.
    pub(super) fn run(mut self) {
        loop {
            let pace = if self.is_lost {
                Pace::Slow
            } else if self.shared.awaited_signals.lock().is_empty() {
                Pace::Normal
            } else {
                Pace::Hurry
            };
            let batch = self.shared.inbox.next(pace);
            let is_last = batch.is_last;
            self.serve(batch);
            // With the store lost, what was told cannot be written; that only delays slots.
            if is_last || (self.is_lost && self.shared.is_closing.load(Ordering::Acquire)) {
                break;
            }
        }
        if let Some(store) = self.store {
            store.close();
        }
    }

    fn serve(&mut self, batch: Batch) {
        let Batch {
            mut offers,
            settles,
            stopped_waiting: left,
            peeks: questions,
            ..
        } = batch;
        // Whoever has gone already needs no permit.
        offers.retain(|offer| !offer.reply.is_closed());
        let idle = offers.is_empty() && settles.is_empty() && left.is_empty();
        if !idle || (self.is_lost && questions.is_empty()) {
            self.turn(offers, settles, &left);
        }
        let Some(store) = &self.store else {
            // Whoever asks hears at once that there is nothing to know.
            drop(questions);
            return self.try_open();
        };
        for asked in questions {
            if let Ok(reply) = store.peek(&asked.query) {
                (asked.on_reply)(reply);
            }
        }
    }

    /// Tries again to open the folder, now and then.
    fn try_open(&mut self) {
        let now = Clock::System.now().at;
        if now.since(self.last_open_attempt) < OPEN_EVERY {
            return;
        }
        let (now, known) = (self.shared.clock.now(), self.known_generation.as_ref());
        let opened = open::open(&self.folder, now, LOST_WAIT, known);
        let opened = opened.and_then(|opened| Store::start(opened, &self.folder, &self.shared));
        self.last_open_attempt = Clock::System.now().at;
        match opened {
            Ok(store) => {
                self.store = Some(store);
                self.turn(Vec::new(), Vec::new(), &[]);
            }
            Err(error) => *self.shared.loss_reason.lock() = Some(error.with_source()),
        }
    }

    /// One transaction and everything around it.
    fn turn(&mut self, offers: Vec<Offer>, settles: Vec<QueuedSettle>, left: &[CellId]) {
        let mut settles = settles;
        let told = settles.len();
        if self.is_lost {
            settles.extend(self.shared.recovery_settles());
        }
        let mut asks: Vec<Ask> = Vec::new();
        let mut answers = Vec::with_capacity(offers.len());
        for offer in offers {
            answers.push((offer.reply, offer.asks.len()));
            asks.extend(offer.asks);
        }
        match self.commit(left, &settles, &asks) {
            Ok(done) => {
                self.on_recovered();
                let CommitReport {
                    verdicts,
                    freed,
                    scopes,
                    wakes,
                    saved_for,
                    now,
                    ..
                } = done;
                let is_stale = self.shared.clock.now().at.since(now) > STALE_AFTER;
                self.record_waiting(&asks, &verdicts);
                let mut decided = asks.into_iter().zip(verdicts);
                for (answer, count) in answers {
                    let mut part: Vec<(Ask, Verdict)> = decided.by_ref().take(count).collect();
                    if is_stale {
                        self.give_back(part.clone());
                        part.iter_mut().for_each(expire_grant);
                    }
                    if let Err(Ok((_, part))) = answer.send(Ok((now, part))) {
                        self.give_back(part);
                    }
                }
                failpoint::reached("after handing out");
                self.wake(&wakes, &saved_for);
                self.notify_changes(freed, scopes);
                if let Some(store) = &mut self.store {
                    store.checkpoint();
                }
            }
            Err(trouble) => {
                self.on_lost(&trouble);
                settles.truncate(told);
                self.shared.inbox.requeue(settles);
                for (answer, _) in answers {
                    drop(answer.send(Err(StoreLost)));
                }
            }
        }
    }

    /// Wakes the first of those who wait, as many as there is room for; the dead are passed over, and
    /// nothing is saved up for them.
    fn wake(&mut self, wakes: &[Wake], saved_for: &[OwnerId]) {
        let Some(store) = &mut self.store else {
            return;
        };
        for wake in wakes {
            let mut left = wake.at_most;
            for &owner in &wake.owners {
                if left == 0 {
                    break;
                } else if store.wake(owner, wake.cell) {
                    left -= 1;
                }
            }
        }
        for &owner in saved_for {
            store.check_alive(owner);
        }
    }

    fn commit(
        &mut self,
        left: &[CellId],
        settles: &[QueuedSettle],
        asks: &[Ask],
    ) -> Result<CommitReport, StoreError> {
        match &mut self.store {
            Some(_) if self.has_failed => Err(StoreError::Closed),
            Some(store) => store.commit(left, settles, asks, self.is_lost),
            None => Err(StoreError::Closed),
        }
    }

    fn give_back(&self, part: Vec<(Ask, Verdict)>) {
        let at = self.shared.clock.now().at;
        for settle in unsent_settles(part) {
            self.shared.inbox.settle(QueuedSettle { settle, at });
        }
    }

    /// Remembers what of this process waits for a signal.
    fn record_waiting(&self, asks: &[Ask], verdicts: &[Verdict]) {
        let mut waiting = self.shared.awaited_signals.lock();
        let AwaitedSignals { cells, scopes } = &mut *waiting;
        for (ask, verdict) in asks.iter().zip(verdicts) {
            let Verdict::Wait {
                on: WakeOn::Event,
                by,
                after,
            } = verdict
            else {
                continue;
            };
            if !will_wait(ask, *after, WakeOn::Event) {
                continue;
            }
            match *by {
                BlockedBy::Term(index) => cells.extend(ask.terms.get(index).map(|term| term.cell)),
                BlockedBy::Scope(index) => scopes.extend(ask.scopes.get(index)),
            }
        }
    }

    fn notify_changes(&self, mut freed: Vec<CellId>, scopes: Vec<tollgate_core::ask::ScopeId>) {
        freed.sort_unstable();
        freed.dedup();
        if !freed.is_empty() {
            self.shared
                .awaited_signals
                .lock()
                .cells
                .retain(|cell| !freed.contains(cell));
            self.shared.send_event(Event::Freed(freed.into()));
        }
        if !scopes.is_empty() {
            if let Some(store) = &self.store {
                store.notify_scopes(&scopes);
            }
            self.shared.send_event(Event::Scopes(scopes.into()));
        }
    }

    /// Said before anybody is answered, so that whoever hears of it finds it said.
    fn on_lost(&mut self, trouble: &StoreError) {
        self.has_failed |= trouble.is_final();
        if let StoreError::Replaced = trouble
            && let Some(store) = self.store.take()
        {
            // What is there now is opened like any other folder, but it is not believed to be new.
            self.known_generation = Some(store.generation_record().clone());
            self.last_open_attempt = Clock::System.now().at;
            store.close();
        }
        if !self.is_lost {
            self.is_lost = true;
            let now = self.shared.clock.now().at;
            self.shared
                .mark_lost(now, trouble.to_string(), self.has_failed);
        } else if trouble.is_final() {
            self.shared.is_final.store(true, Ordering::Release);
        }
    }

    fn on_recovered(&mut self) {
        if self.is_lost {
            self.is_lost = false;
            self.shared.mark_recovered();
        }
    }
}

/// Granted too long ago to be used: ask again.
fn expire_grant((ask, verdict): &mut (Ask, Verdict)) {
    if let Verdict::Go { .. } = verdict {
        let by = if ask.terms.is_empty() {
            BlockedBy::Scope(0)
        } else {
            BlockedBy::Term(0)
        };
        *verdict = Verdict::Wait {
            after: Span::ZERO,
            on: WakeOn::Time,
            by,
        };
    }
}
