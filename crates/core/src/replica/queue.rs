//! What waits to be sent: settles and asks of one provider, in order.
//!
//! What is on its way stays at the front of the queue until a reply says what became of it, so that
//! nothing has to be put back. A batch whose reply was lost is remembered by its number and by how
//! much of the queue it had: if the owner's row says that it was stored after all, that much is
//! done, and nothing is applied twice.
//!
//! Promises: at most [`ASKS_MAX`] asks and [`SETTLES_MAX`] settles. An ask never goes before what
//! was settled before it.
//!
//! Never: decides.

use std::collections::VecDeque;

use crate::ask::{Ask, CellId, GRANT_AGE_MAX, PermitId, Settle, Verdict};
use crate::batch::QueuedSettle;
use crate::time::Micros;

/// Asks that wait: 16 full offers of a gate, some 500 KB. The driver holds back what comes on top.
pub const ASKS_MAX: usize = 1_024;

/// Settles that wait: 10 s of 6,000 calls per second while the store is away, at 300 bytes each
/// 20 MiB. What comes on top is lost: a permit's slot comes free late.
pub const SETTLES_MAX: usize = 65_536;

/// Asks in one request.
const ASKS_PER_BATCH: usize = 256;

/// Settles in one request: about as much work as its asks.
const SETTLES_PER_BATCH: usize = 1_024;

/// Cells of which the store has to hear that nobody waits for them here: one per limit.
const STOPPED_MAX: usize = 4_096;

/// Batches without a reply of which it is remembered what they decided: as many as fit into the
/// time in which a permit can be used, at deadlines of 30 ms and more.
const LOST_VERDICTS_MAX: usize = 16;

/// How far the settles of a replica are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettleCounts {
    /// So many were accepted so far.
    pub accepted: u64,
    /// So many of them, from the first on, are stored or change nothing.
    pub stored: u64,
}

/// What of the queue goes into one batch, from its front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchPart {
    pub(super) settles: usize,
    pub(super) asks: usize,
    pub(super) stopped: usize,
}

impl BatchPart {
    /// It cannot be divided.
    pub(super) fn is_small(self) -> bool {
        self.settles + self.asks + self.stopped <= 1
    }

    /// About half of it. An ask goes only with all that was settled before it.
    pub(super) fn smaller(self) -> BatchPart {
        match self {
            BatchPart { stopped: 2.., .. } => BatchPart {
                stopped: self.stopped / 2,
                ..self
            },
            BatchPart { asks: 2.., .. } => BatchPart {
                asks: self.asks / 2,
                ..self
            },
            BatchPart { settles, .. } => BatchPart {
                settles: settles.div_ceil(2),
                ..BatchPart::default()
            },
        }
    }
}

/// Batches without a reply that took the same settles from the queue.
#[derive(Clone, Copy, Debug)]
struct LostBatches {
    first: u64,
    last: u64,
    settles: usize,
}

/// What was decided by a batch without a reply.
#[derive(Clone, Debug)]
struct LostVerdicts {
    batch: u64,
    sent: Micros,
    verdicts: Vec<(PermitId, Verdict)>,
}

/// Of an ask: since when it waits, and what may have become of it.
#[derive(Clone, Copy, Debug)]
struct AskState {
    at: Micros,
    /// A request without a reply has granted it. It may have been stored.
    maybe_granted: bool,
    /// Nobody waits for its verdict.
    is_dropped: bool,
}

/// What waits to be sent.
#[derive(Debug, Default)]
pub(super) struct Queue {
    settles: VecDeque<QueuedSettle>,
    asks: Vec<Ask>,
    states: Vec<AskState>,
    stopped: Vec<CellId>,
    lost: Vec<LostBatches>,
    /// Of the last of them.
    lost_verdicts: VecDeque<LostVerdicts>,
    /// Settles that were accepted and that are done, counted from the first.
    accepted: u64,
    done: u64,
}

impl Queue {
    pub(super) fn room(&self) -> usize {
        ASKS_MAX.saturating_sub(self.asks.len())
    }

    pub(super) fn offer(&mut self, asks: Vec<Ask>, now: Micros) {
        let state = AskState {
            at: now,
            maybe_granted: false,
            is_dropped: false,
        };
        self.states.extend(asks.iter().map(|_| state));
        self.asks.extend(asks);
    }

    pub(super) fn settle(&mut self, queued: QueuedSettle) {
        let is_inherit = matches!(queued.settle, Settle::Inherit { .. });
        if self.settles.len() < SETTLES_MAX || is_inherit {
            self.accepted += 1;
            self.settles.push_back(queued);
        }
    }

    pub(super) fn stop_waiting(&mut self, cells: &[CellId]) {
        let room = STOPPED_MAX.saturating_sub(self.stopped.len());
        self.stopped.extend(cells.iter().take(room));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.settles.is_empty() && self.asks.is_empty() && self.stopped.is_empty()
    }

    /// Nothing but settles.
    pub(super) fn is_only_settles(&self) -> bool {
        self.asks.is_empty() && self.stopped.is_empty()
    }

    /// How far the settles are.
    pub(super) fn settled(&self) -> SettleCounts {
        SettleCounts {
            accepted: self.accepted,
            stored: self.done,
        }
    }

    /// The settles of the next batch.
    pub(super) fn settles(&self) -> impl Iterator<Item = &QueuedSettle> {
        self.settles.iter().take(SETTLES_PER_BATCH)
    }

    /// What goes into the next batch.
    pub(super) fn next(&self) -> BatchPart {
        let settles = self.settles.len().min(SETTLES_PER_BATCH);
        let is_all = settles == self.settles.len();
        BatchPart {
            settles,
            asks: if is_all {
                self.asks.len().min(ASKS_PER_BATCH)
            } else {
                0
            },
            stopped: if is_all { self.stopped.len() } else { 0 },
        }
    }

    /// The settles of a batch with their current ages, and permits that must be returned first:
    /// those that a request without a reply may have granted.
    pub(super) fn aged_settles(&self, taken: BatchPart, now: Micros) -> Vec<Settle> {
        let aged = self.settles.iter().take(taken.settles);
        let aged = aged.map(|queued| queued.aged(now));
        let both = self.asks.iter().zip(&self.states);
        let given_back = both.filter(|(_, state)| state.maybe_granted);
        aged.chain(given_back.map(|(ask, _)| ask.clone().into_unsent()))
            .collect()
    }

    pub(super) fn asks(&self, taken: BatchPart) -> &[Ask] {
        &self.asks[..taken.asks.min(self.asks.len())]
    }

    /// Since when the last ask of this batch waits.
    pub(super) fn asked_at(&self, taken: BatchPart) -> Micros {
        let states = self.states.iter().take(taken.asks);
        states.map(|state| state.at).max().unwrap_or_default()
    }

    pub(super) fn stopped(&self, taken: BatchPart) -> &[CellId] {
        &self.stopped[..taken.stopped.min(self.stopped.len())]
    }

    /// Is it open what became of an earlier request? Then the next one must write.
    pub(super) fn is_unclear(&self) -> bool {
        !self.lost.is_empty() || self.states.iter().any(|state| state.maybe_granted)
    }

    /// A batch is stored. Returns its asks, and for which of them nobody waits.
    pub(super) fn stored(&mut self, taken: BatchPart) -> Vec<(Ask, bool)> {
        self.lost.clear();
        self.lost_verdicts.clear();
        for state in &mut self.states {
            state.maybe_granted = false;
        }
        self.drop_settles(taken.settles);
        self.drop_stopped(taken.stopped);
        self.take_asks(taken)
    }

    /// The asks of a batch have their verdicts.
    pub(super) fn take_asks(&mut self, taken: BatchPart) -> Vec<(Ask, bool)> {
        let asks = taken.asks.min(self.asks.len());
        let states = self.states.drain(..asks).map(|state| state.is_dropped);
        self.asks.drain(..asks).zip(states).collect()
    }

    /// Nobody waits for the verdicts of these asks.
    pub(super) fn drop_asks(&mut self) {
        for state in &mut self.states {
            state.is_dropped = true;
        }
    }

    /// Removes asks for which nobody waits; none is on its way. What may have been granted comes
    /// back.
    pub(super) fn remove_dropped(&mut self, now: Micros) {
        if !self.states.iter().any(|state| state.is_dropped) {
            return;
        }
        let states = std::mem::take(&mut self.states);
        for (ask, state) in std::mem::take(&mut self.asks).into_iter().zip(states) {
            if !state.is_dropped {
                self.asks.push(ask);
                self.states.push(state);
            } else if state.maybe_granted {
                self.settle(unsent_at(&ask, now));
            }
        }
    }

    /// These settles change nothing.
    pub(super) fn drop_settles(&mut self, settles: usize) {
        let settles = settles.min(self.settles.len());
        self.settles.drain(..settles);
        self.done += settles as u64;
    }

    pub(super) fn drop_stopped(&mut self, stopped: usize) {
        self.stopped.drain(..stopped.min(self.stopped.len()));
    }

    /// No reply came: the batch may have been stored, with these verdicts, or may still be.
    pub(super) fn lost(
        &mut self,
        batch: u64,
        sent: Micros,
        taken: BatchPart,
        verdicts: &[Verdict],
    ) {
        let decided = self.asks.iter().zip(verdicts);
        let decided = decided
            .map(|(ask, verdict)| (ask.id, verdict.clone()))
            .collect();
        if self.lost_verdicts.len() >= LOST_VERDICTS_MAX {
            self.lost_verdicts.pop_front();
        }
        self.lost_verdicts.push_back(LostVerdicts {
            batch,
            sent,
            verdicts: decided,
        });
        for (state, verdict) in self.states.iter_mut().zip(verdicts) {
            state.maybe_granted |= matches!(verdict, Verdict::Go { .. });
        }
        match self.lost.last_mut() {
            // The queue only grows meanwhile, up to what a batch takes: this list ends.
            Some(last) if last.settles == taken.settles => last.last = batch,
            Some(_) | None => self.lost.push(LostBatches {
                first: batch,
                last: batch,
                settles: taken.settles,
            }),
        }
    }

    /// This batch is the last of this owner that was stored: if its reply was lost, its settles are
    /// done. Returns what it decided, if its permits can still be used; otherwise they come back.
    pub(super) fn learn_stored(&mut self, batch: u64, now: Micros) -> Vec<(Ask, Verdict, Micros)> {
        let mut lost = self.lost.iter();
        let found = lost.find(|lost| (lost.first..=lost.last).contains(&batch));
        let Some(settles) = found.map(|lost| lost.settles) else {
            return Vec::new();
        };
        self.drop_settles(settles);
        // No other of them can be stored any more: they all expected the row before it.
        self.lost.clear();
        let mut lost = std::mem::take(&mut self.lost_verdicts).into_iter();
        let stored = lost.find(|one| one.batch == batch);
        match stored.filter(|one| now.since(one.sent) <= GRANT_AGE_MAX) {
            Some(stored) => self.take_decided(&stored),
            None => Vec::new(),
        }
    }

    /// Removes the asks that a batch has decided. What other batches have granted was not stored.
    fn take_decided(&mut self, stored: &LostVerdicts) -> Vec<(Ask, Verdict, Micros)> {
        let states = std::mem::take(&mut self.states);
        let mut decided = Vec::new();
        for (ask, mut state) in std::mem::take(&mut self.asks).into_iter().zip(states) {
            let verdict = stored.verdicts.iter().find(|(id, _)| *id == ask.id);
            let verdict = verdict.map(|(_, verdict)| verdict);
            state.maybe_granted = matches!(verdict, Some(Verdict::Go { .. }));
            match verdict {
                Some(verdict) if !state.is_dropped => {
                    decided.push((ask, verdict.clone(), stored.sent));
                }
                Some(_) | None => {
                    self.asks.push(ask);
                    self.states.push(state);
                }
            }
        }
        decided
    }
}

/// A permit that was granted and not used, to be queued.
pub(super) fn unsent_at(ask: &Ask, at: Micros) -> QueuedSettle {
    QueuedSettle {
        settle: ask.clone().into_unsent(),
        at,
    }
}
