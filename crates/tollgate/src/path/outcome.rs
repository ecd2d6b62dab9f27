//! What became of a call: for its caller, and for everyone who waits for it.
//!
//! Promises: the trace is filled whether the call succeeded or not.
//!
//! Never: decides anything.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tollgate_core::time::Span;

use super::progress::{CallProgress, CallSpending};
use super::rates::Rates;
use crate::Error;
use crate::error::QueueCause;
use crate::event::CallDecision;
use crate::pool::Origin;
use crate::providers::ActiveProvider;
use crate::reply::Reply;

/// What happened to a call, whether it succeeded or not.
#[derive(Clone, Debug, Default)]
pub struct CallTrace {
    /// The provider, once it is known.
    pub provider: Option<Arc<ActiveProvider>>,
    /// The origin it was sent to.
    pub origin: Option<Origin>,
    /// Attempts whose bytes may have left.
    pub attempts: u32,
    /// Time spent waiting for permits.
    pub waited: Span,
    /// What remained of each limit at the decision.
    pub rates: Rates,
    /// An attempt had to wait for a limit, a scope or a time.
    pub was_queued: bool,
    /// What the last one of them waited for, while somebody listens.
    pub(crate) queue_cause: Option<QueueCause>,
    /// How far it has come, while somebody listens.
    pub(crate) progress: Option<Arc<CallProgress>>,
    /// Its end has been reported.
    pub(crate) has_ended: bool,
    /// `true` = the process ends: whoever drops the call rejects it, and emits its end.
    pub(crate) is_over: Option<Arc<AtomicBool>>,
}

/// The result of a call that went to the provider.
#[derive(Debug)]
pub(crate) struct CallOutcome {
    pub(crate) result: Result<Reply, Error>,
    /// The response, or the missing one, is a failure of the provider.
    pub(crate) is_failure: bool,
    /// Attempts whose bytes may have left.
    pub(crate) attempts: u32,
    /// Time spent waiting for permits.
    pub(crate) waited: Span,
    /// What remained of each limit at the decision.
    pub(crate) rates: Rates,
    /// An attempt had to wait.
    pub(crate) was_queued: bool,
    /// For what, while somebody listens.
    pub(crate) queue_cause: Option<QueueCause>,
}

impl CallOutcome {
    /// A response that cost this call no attempt.
    pub(crate) fn from_reply(reply: Reply) -> CallOutcome {
        CallOutcome::without_attempt(Ok(reply))
    }

    /// No response.
    pub(crate) fn from_error(error: Error) -> CallOutcome {
        CallOutcome::without_attempt(Err(error))
    }

    /// No response for this caller, while its call may go on for others: with what it has cost so far.
    pub(crate) fn for_departed_caller(
        error: Error,
        attempts: u32,
        progress: Option<&Arc<CallProgress>>,
    ) -> CallOutcome {
        let spent = progress
            .map(|progress| progress.spent())
            .unwrap_or_default();
        CallOutcome {
            attempts,
            waited: spent.waited,
            was_queued: spent.was_queued,
            queue_cause: spent.queue_cause,
            ..CallOutcome::from_error(error)
        }
    }

    fn without_attempt(result: Result<Reply, Error>) -> CallOutcome {
        CallOutcome {
            is_failure: result.is_err(),
            result,
            attempts: 0,
            waited: Span::ZERO,
            rates: Rates::default(),
            was_queued: false,
            queue_cause: None,
        }
    }
}

/// A call on the heap: every future above it would otherwise have its size, and be copied with it.
pub(crate) type BoxedCall = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

impl CallTrace {
    /// The trace of a call that its caller rejects once `is_over`, when the process ends.
    #[must_use]
    pub fn until(is_over: Arc<AtomicBool>) -> CallTrace {
        CallTrace {
            is_over: Some(is_over),
            ..CallTrace::default()
        }
    }

    /// The call has been routed.
    pub(crate) fn on_routed(&mut self, provider: &Arc<ActiveProvider>, origin: &Origin) {
        self.provider = Some(provider.clone());
        self.origin = Some(origin.clone());
    }

    /// The call is over. Returns what its caller gets.
    pub(crate) fn on_outcome(&mut self, outcome: CallOutcome) -> Result<Reply, Error> {
        (self.attempts, self.waited) = (outcome.attempts, outcome.waited);
        self.rates = outcome.rates;
        (self.was_queued, self.queue_cause) = (outcome.was_queued, outcome.queue_cause);
        outcome.result
    }

    /// What Tollgate decided about a call that it has not rejected.
    #[must_use]
    pub fn decision(&self) -> CallDecision {
        self.spent().decision()
    }

    /// What it has cost.
    pub(crate) fn spent(&self) -> CallSpending {
        CallSpending {
            attempts: self.attempts,
            waited: self.waited,
            was_queued: self.was_queued,
            queue_cause: self.queue_cause.clone(),
        }
    }
}
