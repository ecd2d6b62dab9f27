//! How far a call has come, for its end event.
//!
//! Promises: what a call has cost so far is known at any moment, also while it waits.
//!
//! Never: kept while nobody listens, and never decides anything.

use parking_lot::Mutex;
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_ledger::ProviderLedger;

use crate::error::QueueCause;
use crate::event::{CallDecision, DecisionVerdict, Step, StepKind, Steps};

/// How far a call has come. Kept while somebody listens: its end is reported also if its caller leaves
/// in the middle, or gets an error while the call goes on for others.
#[derive(Debug)]
pub(crate) struct CallProgress {
    ledger: ProviderLedger,
    state: Mutex<ProgressState>,
}

#[derive(Debug, Default)]
struct ProgressState {
    spent: CallSpending,
    /// It waits for a permit since then.
    waiting_since: Option<Micros>,
    /// When it began to wait, and how many waited already: a step only if something held it, or if nobody knows yet.
    queued: Option<(Wall, usize)>,
    steps: Steps,
}

/// What a call has cost so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallSpending {
    /// Attempts whose bytes may have left.
    pub(crate) attempts: u32,
    /// Time spent waiting for permits.
    pub(crate) waited: Span,
    /// An attempt had to wait.
    pub(crate) was_queued: bool,
    /// For what, if that is known.
    pub(crate) queue_cause: Option<QueueCause>,
}

/// What the permit stage decided about an attempt.
#[derive(Debug)]
pub(crate) struct DecidedAttempt {
    /// Something held it, or it is rejected.
    pub(crate) is_held: bool,
    pub(crate) verdict: DecisionVerdict,
    /// How long it took.
    pub(crate) waited: Span,
}

impl CallProgress {
    pub(crate) fn new(ledger: ProviderLedger) -> CallProgress {
        CallProgress {
            ledger,
            state: Mutex::default(),
        }
    }

    /// The call is queued for a permit, behind so many others.
    pub(crate) fn on_queued(&self, ahead: usize) {
        let (now, wall) = (self.ledger.at(), self.ledger.wall());
        let mut state = self.state.lock();
        state.waiting_since.get_or_insert(now);
        state.queued.get_or_insert((wall, ahead));
    }

    /// Something happened to the call.
    pub(crate) fn add_step(&self, kind: StepKind) {
        let at = self.ledger.wall();
        self.state.lock().steps.push(Step { at, kind });
    }

    /// What happened to the call, for its end.
    pub(crate) fn take_steps(&self) -> Steps {
        let mut state = self.state.lock();
        state.note_queued();
        std::mem::take(&mut state.steps)
    }

    /// An attempt has its permit, or does not get one. All attempts together have waited so long, for this. If
    /// nothing held the attempt, it was in no queue: the store took its time.
    pub(crate) fn on_decided(
        &self,
        attempt: DecidedAttempt,
        waited: Span,
        was_queued: bool,
        cause: Option<&QueueCause>,
    ) {
        let at = self.ledger.wall();
        let mut state = self.state.lock();
        state.waiting_since = None;
        (state.spent.waited, state.spent.was_queued) = (waited, was_queued);
        state.spent.queue_cause = cause.cloned();
        match attempt.is_held {
            true => state.note_queued(),
            false => state.queued = None,
        }
        let kind = StepKind::Decided(attempt.verdict, attempt.waited);
        state.steps.push(Step { at, kind });
    }

    /// So many attempts were made.
    pub(crate) fn on_attempts(&self, made: u32) {
        self.state.lock().spent.attempts = made;
    }

    /// What it has cost so far.
    pub(crate) fn spent(&self) -> CallSpending {
        let now = self.ledger.at();
        let state = self.state.lock();
        let mut spent = state.spent.clone();
        if let Some(since) = state.waiting_since {
            spent.waited = spent.waited + now.since(since);
            spent.was_queued = true;
        }
        spent
    }
}

impl ProgressState {
    fn note_queued(&mut self) {
        if let Some((at, ahead)) = self.queued.take() {
            let kind = StepKind::Queued { ahead };
            self.steps.push(Step { at, kind });
        }
    }
}

impl CallSpending {
    /// What Tollgate decided about a call that it has not rejected.
    pub(crate) fn decision(&self) -> CallDecision {
        match self.was_queued {
            true => CallDecision::Queue,
            false => CallDecision::Allow,
        }
    }

    /// What it waited for, if it had to wait.
    pub(crate) fn cause(&self) -> Option<QueueCause> {
        let cause = self.queue_cause.clone();
        self.was_queued.then(|| cause.unwrap_or_default())
    }
}
