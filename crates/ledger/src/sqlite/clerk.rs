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

use tollgate_core::ask::{Ask, By, CellId, On, OwnerId, Verdict};
use tollgate_core::time::{Micros, Span};

use crate::failpoint;
use crate::offered::unsent;
use crate::sqlite::Shared;
use crate::sqlite::book::Done;
use crate::sqlite::inbox::{Batch, Offer, Pace, Told};
use crate::sqlite::note::Note;
use crate::sqlite::open;
use crate::sqlite::share::{Wake, stays};
use crate::sqlite::store::{LOST_WAIT, Store};
use crate::sqlite::trouble::Trouble;
use crate::sqlite::wake::Waiting;
use crate::{Clock, Event, Lost};

/// A decision this old is not handed out: this process was stopped in between, and the sender must
/// not send later than 500 ms after the grant.
const STALE: Span = Span::from_millis(250);

/// How often a folder that cannot be opened is tried again.
const OPEN_EVERY: Span = Span::from_secs(1);

pub(super) struct Clerk {
    shared: Arc<Shared>,
    folder: PathBuf,
    /// `None`: it could not be opened yet.
    store: Option<Store>,
    /// What the one before knew of the database.
    known: Option<Note>,
    /// When opening was tried last.
    tried: Micros,
    is_lost: bool,
    is_over: bool,
}

impl Clerk {
    /// With a store that is open, or with one that cannot be opened and is lost from the start.
    pub(super) fn new(shared: Arc<Shared>, folder: &Path, store: Option<Store>) -> Clerk {
        Clerk {
            is_lost: store.is_none(),
            tried: Clock::System.now().at,
            known: None,
            folder: folder.to_owned(),
            shared,
            store,
            is_over: false,
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
            left,
            questions,
            ..
        } = batch;
        // Whoever has gone already needs no permit.
        offers.retain(|offer| !offer.answer.is_closed());
        let idle = offers.is_empty() && settles.is_empty() && left.is_empty();
        if !idle || (self.is_lost && questions.is_empty()) {
            self.turn(offers, settles, &left);
        }
        let Some(store) = &self.store else {
            // Whoever asks hears at once that there is nothing to know.
            drop(questions);
            return self.open();
        };
        for asked in questions {
            if let Ok(reply) = store.look(&asked.question) {
                (asked.reply)(reply);
            }
        }
    }

    /// Tries again to open the folder, now and then.
    fn open(&mut self) {
        let now = Clock::System.now().at;
        if now.since(self.tried) < OPEN_EVERY {
            return;
        }
        let (now, known) = (self.shared.clock.now(), self.known.as_ref());
        let opened = open::open(&self.folder, now, LOST_WAIT, known);
        let opened = opened.and_then(|opened| Store::start(opened, &self.folder, &self.shared));
        self.tried = Clock::System.now().at;
        match opened {
            Ok(store) => {
                self.store = Some(store);
                self.turn(Vec::new(), Vec::new(), &[]);
            }
            Err(error) => *self.shared.trouble.lock() = Some(error.in_full()),
        }
    }

    /// One transaction and everything around it.
    fn turn(&mut self, offers: Vec<Offer>, settles: Vec<Told>, left: &[CellId]) {
        let mut settles = settles;
        let told = settles.len();
        if self.is_lost {
            settles.extend(self.shared.on_return());
        }
        let mut asks: Vec<Ask> = Vec::new();
        let mut answers = Vec::with_capacity(offers.len());
        for offer in offers {
            answers.push((offer.answer, offer.asks.len()));
            asks.extend(offer.asks);
        }
        match self.commit(left, &settles, &asks) {
            Ok(done) => {
                self.found();
                let Done {
                    verdicts,
                    freed,
                    scopes,
                    wakes,
                    saved_for,
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
                    if let Err(Ok((_, part))) = answer.send(Ok((now, part))) {
                        self.give_back(part);
                    }
                }
                failpoint::reached("after handing out");
                self.wake(&wakes, &saved_for);
                self.tell(freed, scopes);
                if let Some(store) = &mut self.store {
                    store.checkpoint();
                }
            }
            Err(trouble) => {
                self.lost(&trouble);
                settles.truncate(told);
                self.shared.inbox.put_back(settles);
                for (answer, _) in answers {
                    drop(answer.send(Err(Lost)));
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
            store.look_after(owner);
        }
    }

    fn commit(&mut self, left: &[CellId], settles: &[Told], asks: &[Ask]) -> Result<Done, Trouble> {
        match &mut self.store {
            Some(_) if self.is_over => Err(Trouble::Closed),
            Some(store) => store.commit(left, settles, asks, self.is_lost),
            None => Err(Trouble::Closed),
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
                on: On::Event,
                by,
                after,
            } = verdict
            else {
                continue;
            };
            if !stays(ask, *after, On::Event) {
                continue;
            }
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
            if let Some(store) = &self.store {
                store.tell_scopes(&scopes);
            }
            self.shared.tell(Event::Scopes(scopes.into()));
        }
    }

    /// Said before anybody is answered, so that whoever hears of it finds it said.
    fn lost(&mut self, trouble: &Trouble) {
        self.is_over |= trouble.is_final();
        if let Trouble::Replaced = trouble
            && let Some(store) = self.store.take()
        {
            // What is there now is opened like any other folder, but it is not believed to be new.
            self.known = Some(store.note().clone());
            self.tried = Clock::System.now().at;
            store.close();
        }
        if !self.is_lost {
            self.is_lost = true;
            let now = self.shared.clock.now().at;
            self.shared.lost(now, trouble.to_string(), self.is_over);
        } else if trouble.is_final() {
            self.shared.is_final.store(true, Ordering::Release);
        }
    }

    fn found(&mut self) {
        if self.is_lost {
            self.is_lost = false;
            self.shared.found();
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
