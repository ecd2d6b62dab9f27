//! The retry stage: may a failed attempt be made again, and when?
//!
//! Promises: the core decides (method, Retry-After, backoff, budget, deadline); a call keeps its
//! place in the order of arrival. A failed probe uses up nothing of its call.
//!
//! Never: repeats what may act twice, or a body that is gone.

use tollgate_core::health::{Class, Fault};
use tollgate_core::retry::{Decision, Failed, Safety};
use tollgate_core::time::Span;

use super::learn::Answered;
use super::rates::Rates;
use super::route::Route;
use crate::error::Stage;
use crate::shop::Plan;
use crate::{Error, timer};

/// How often a call asks again because a permit went stale or its connection was just closed. Both
/// cost nothing; this bounds the loop if a machine is so slow that they never fit.
pub(super) const AGAIN_MAX: u32 = 16;

/// How long the end of an unwanted answer is read. Closing its connection costs less than this.
const DISCARD_MAX: Span = Span::from_secs(1);

/// The attempts of one call so far.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    /// Attempts whose bytes may have left.
    pub(crate) made: u32,
    /// Time spent waiting for permits.
    pub(crate) waited: Span,
    /// What the limits had left at the last decision.
    pub(crate) rates: Rates,
    /// Retries used up.
    used: u32,
    /// Attempts that cost nothing.
    again: u32,
    /// It was made again with a new token.
    pub(crate) renewed: bool,
    /// How often it was made again with another key.
    pub(crate) moved: usize,
    /// The call's place in the order of arrival.
    place: Option<u64>,
}

/// An attempt without an answer.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The call is over.
    Refused(Error),
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

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::Refused(error)
    }
}

/// What follows an attempt.
#[derive(Debug)]
pub(crate) enum Next {
    /// Another one, after this long. The answer to the last one, if there was one, is not wanted.
    Again(Span, Option<Answered>),
    /// The answer is the answer.
    Done(Result<Answered, Error>),
}

impl Tries {
    /// The call's place in the order of arrival, the same for all its attempts.
    pub(crate) fn place(&mut self, new: impl FnOnce() -> u64) -> u64 {
        *self.place.get_or_insert_with(new)
    }

    /// What follows an attempt?
    pub(crate) fn next(
        &mut self,
        route: &Route,
        plan: &Plan,
        attempt: Result<Answered, Ended>,
    ) -> Next {
        let (class, sent, probe, retry_after) = match &attempt {
            Ok(answered) => (answered.class, true, answered.probe, answered.retry_after),
            Err(Ended::Refused(_)) => return Tries::stop(route, attempt),
            Err(Ended::Again) => {
                self.again += 1;
                if self.again > AGAIN_MAX {
                    return Tries::stop(route, attempt);
                }
                return Next::Again(Span::ZERO, None);
            }
            // Bounded by the keys there are (`credential::heed`), however many.
            Err(Ended::OtherKey) => return Next::Again(Span::ZERO, None),
            Err(Ended::Fault { fault, sent, probe }) => {
                (Class::of_fault(*fault), *sent, *probe, None)
            }
        };
        if !class.is_failure() || route.fallback {
            return Tries::stop(route, attempt);
        }
        let failed = Failed {
            priority: route.priority(),
            used: self.used,
            class,
            retry_after,
            safety: safety(route, sent),
            probe,
            left: route.left(),
        };
        match route.live.machine.decide(&plan.retry, &failed) {
            Decision::Again { after, counts } => {
                self.used += u32::from(counts);
                Next::Again(after, attempt.ok())
            }
            Decision::Stop(_) => Tries::stop(route, attempt),
        }
    }

    fn stop(route: &Route, attempt: Result<Answered, Ended>) -> Next {
        let provider = || route.live.name.clone();
        Next::Done(attempt.map_err(|ended| match ended {
            Ended::Refused(error) => error,
            Ended::Again | Ended::OtherKey => Error::NoAnswer {
                provider: provider(),
                fault: Fault::Reset,
            },
            Ended::Fault { .. } if route.left() == Some(Span::ZERO) => Error::TooLate {
                provider: provider(),
                at: Stage::Upstream,
            },
            Ended::Fault { fault, .. } => Error::NoAnswer {
                provider: provider(),
                fault,
            },
        }))
    }
}

/// May it be repeated? What is gone cannot.
fn safety(route: &Route, sent: bool) -> Safety {
    if !route.payload.is_left() {
        return Safety::MayHaveActed;
    }
    let has_key = route.headers.contains_key("idempotency-key");
    Safety::of(route.method.as_str(), has_key, sent)
}

/// Rests until the next attempt. The end of an answer that nobody wants is read meanwhile, so that
/// its connection can be used again.
pub(crate) async fn rest(after: Span, unwanted: Option<Answered>) {
    let discarded = async {
        if let Some(answered) = unwanted {
            // Boxed: rare, and large inside every call's future.
            Box::pin(discard(answered)).await;
        }
    };
    tokio::join!(timer::rest(Some(after)), discarded);
}

/// Reads the end of an answer that nobody wants, if it comes soon.
pub(crate) async fn discard(answered: Answered) {
    let _late = timer::within(Some(DISCARD_MAX), answered.discard()).await;
}
