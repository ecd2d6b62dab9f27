//! The retry stage: may a failed attempt be made again, and when?
//!
//! Promises: the core decides (method, Retry-After, backoff, budget, deadline); a call keeps its
//! place in the order of arrival. A failed probe uses up nothing of its call.
//!
//! Never: repeats what may act twice, or a body that is gone.

use tollgate_core::health::{Class, Fault};
use tollgate_core::retry::{Decision, FailedAttempt, Safety};
use tollgate_core::time::Span;

use super::learn::UpstreamResponse;
use super::rates::Rates;
use super::route::Route;
use crate::error::Stage;
use crate::providers::CompiledPolicy;
use crate::{Error, timer};

/// How often a call asks again because a permit went stale or its connection was just closed. Both
/// cost nothing; this bounds the loop if a machine is so slow that they never fit.
pub(super) const FREE_RETRIES_MAX: u32 = 16;

/// How long the end of an unwanted answer is read. Closing its connection costs less than this.
const DISCARD_MAX: Span = Span::from_secs(1);

/// The attempts of one call so far.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// Attempts whose bytes may have left.
    pub(crate) made: u32,
    /// Time spent waiting for permits.
    pub(crate) waited: Span,
    /// What the limits had left at the last decision.
    pub(crate) rates: Rates,
    /// Retries used up.
    retries_used: u32,
    /// Attempts that cost nothing.
    free_retries: u32,
    /// It was made again with a new token.
    pub(crate) token_renewed: bool,
    /// How often it was made again with another key.
    pub(crate) key_switches: usize,
    /// The call's place in the order of arrival.
    seniority: Option<u64>,
}

/// An attempt without an answer.
#[derive(Debug)]
pub(crate) enum AttemptError {
    /// The call is over.
    Stop(Error),
    /// Nothing left, nothing was learned: ask again at once.
    Again,
    /// Its credential was refused, and there is another: at most once for each.
    OtherKey,
    /// The network failed.
    Fault {
        /// How.
        fault: Fault,
        /// Bytes of it may have left.
        sent: bool,
        /// It was a probe.
        probe: bool,
    },
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> AttemptError {
        AttemptError::Stop(error)
    }
}

/// What follows an attempt.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// Another one, after this long. The answer to the last one, if there was one, is not wanted.
    Again(Span, Option<UpstreamResponse>),
    /// The answer is the answer.
    Done(Result<UpstreamResponse, Error>),
}

impl RetryState {
    /// The call's place in the order of arrival, the same for all its attempts.
    pub(crate) fn seniority(&mut self, new: impl FnOnce() -> u64) -> u64 {
        *self.seniority.get_or_insert_with(new)
    }

    /// What follows an attempt?
    pub(crate) fn next(
        &mut self,
        route: &Route,
        plan: &CompiledPolicy,
        attempt: Result<UpstreamResponse, AttemptError>,
    ) -> NextStep {
        let (class, sent, probe, retry_after) = match &attempt {
            Ok(answered) => (answered.class, true, answered.probe, answered.retry_after),
            Err(AttemptError::Stop(_)) => return RetryState::stop(route, attempt),
            Err(AttemptError::Again) => {
                self.free_retries += 1;
                if self.free_retries > FREE_RETRIES_MAX {
                    return RetryState::stop(route, attempt);
                }
                return NextStep::Again(Span::ZERO, None);
            }
            // Bounded by the keys there are (`credential::heed`), however many.
            Err(AttemptError::OtherKey) => return NextStep::Again(Span::ZERO, None),
            Err(AttemptError::Fault { fault, sent, probe }) => {
                (Class::of_fault(*fault), *sent, *probe, None)
            }
        };
        if !class.is_failure() || route.fallback {
            return RetryState::stop(route, attempt);
        }
        let failed = FailedAttempt {
            priority: route.priority(),
            used: self.retries_used,
            class,
            retry_after,
            safety: safety(route, sent),
            probe,
            time_remaining: route.remaining(),
        };
        match route.provider.health.decide_retry(&plan.retry, &failed) {
            Decision::Again { after, counts } => {
                self.retries_used += u32::from(counts);
                NextStep::Again(after, attempt.ok())
            }
            Decision::Stop(_) => RetryState::stop(route, attempt),
        }
    }

    fn stop(route: &Route, attempt: Result<UpstreamResponse, AttemptError>) -> NextStep {
        let provider = || route.provider.name.clone();
        NextStep::Done(attempt.map_err(|ended| match ended {
            AttemptError::Stop(error) => error,
            AttemptError::Again | AttemptError::OtherKey => Error::NoResponse {
                provider: provider(),
                fault: Fault::Reset,
            },
            AttemptError::Fault { .. } if route.remaining() == Some(Span::ZERO) => Error::TooLate {
                provider: provider(),
                at: Stage::Upstream,
            },
            AttemptError::Fault { fault, .. } => Error::NoResponse {
                provider: provider(),
                fault,
            },
        }))
    }
}

/// May it be repeated? What is gone cannot.
fn safety(route: &Route, sent: bool) -> Safety {
    if !route.payload.is_resendable() {
        return Safety::MayHaveActed;
    }
    let has_key = route.headers.contains_key("idempotency-key");
    Safety::of(route.method.as_str(), has_key, sent)
}

/// Rests until the next attempt. The end of an answer that nobody wants is read meanwhile, so that
/// its connection can be used again.
pub(crate) async fn wait_and_discard(after: Span, unwanted: Option<UpstreamResponse>) {
    let discarded = async {
        if let Some(answered) = unwanted {
            // Boxed: rare, and large inside every call's future.
            Box::pin(discard(answered)).await;
        }
    };
    tokio::join!(timer::sleep(Some(after)), discarded);
}

/// Reads the end of an answer that nobody wants, if it comes soon.
pub(crate) async fn discard(answered: UpstreamResponse) {
    let _late = timer::within(Some(DISCARD_MAX), answered.discard()).await;
}
