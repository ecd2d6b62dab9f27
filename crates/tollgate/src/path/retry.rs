//! The retry stage: may a failed attempt be repeated, and when?
//!
//! Promises: `core` decides (method, Retry-After, backoff, budget, deadline). A call keeps its
//! position in the order of arrival. A failed probe uses none of its call's retries. The wait for
//! a retry counts against the call's time like the wait for a permit: if it does not fit, the call
//! ends now, and its 429 or 503 says when to come back. A call that waits for its retry counts as
//! waiting. A failure of the provider is forwarded if the limits leave no room for a further attempt.
//!
//! Never: repeats a call that may act twice, or one whose body is gone.

use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use tollgate_core::health::{Class, Fault};
use tollgate_core::retry::{FailedAttempt, RetryDecision, Safety, StopReason};
use tollgate_core::time::Span;

use super::permit::PermitHistory;
use super::response::{AttemptError, UpstreamResponse, keep};
use super::route::Route;
use super::subject::Subject;
use crate::error::{Reason, Stage};
use crate::event::StepKind;
use crate::providers::CompiledPolicy;
use crate::{Error, timer};

/// How often a call asks again because its permit was too old or its connection just closed. Both
/// cost nothing; this bounds the loop on a host that is too slow to ever succeed.
pub(super) const FREE_RETRIES_MAX: u32 = 16;

/// The state of one call's attempts.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// Attempts whose bytes may have left.
    pub(crate) made: u32,
    /// The last attempt that was reported. A connection may give an attempt back unsent: the next one
    /// has its number and is not reported again.
    pub(super) reported: u32,
    /// What its permits have cost.
    pub(crate) permits: PermitHistory,
    /// Retries used.
    retries_used: u32,
    /// Attempts that got no response in time.
    timeouts: u32,
    /// Repetitions that cost nothing.
    free_retries: u32,
    /// The call was repeated with a new token.
    pub(crate) token_renewed: bool,
    /// How often the call was repeated with another key.
    pub(crate) key_switches: usize,
}

/// What follows an attempt.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// Another attempt, after this delay. The last response, if any, is not wanted.
    Again(Span, Option<UpstreamResponse>),
    /// The final result.
    Done(Result<UpstreamResponse, Error>),
}

impl RetryState {
    /// The call makes its first attempt.
    pub(crate) fn begin(&self, subject: &Subject) {
        let provider = &subject.provider;
        provider.health.on_call(&provider.policy().retry.budget);
    }

    /// So many attempts were made, whose bytes may have left.
    pub(super) fn set_made(&mut self, subject: &Subject, made: u32) {
        self.made = made;
        if let Some(progress) = &subject.progress {
            progress.on_attempts(made);
        }
        if let Some(demand) = &subject.shared_demand {
            demand.set_attempts(made);
        }
    }

    /// An attempt of the call has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.permits.has_failed
    }

    /// Decides what follows an attempt.
    pub(crate) fn next(
        &mut self,
        route: &Route,
        policy: &CompiledPolicy,
        attempt: Result<UpstreamResponse, AttemptError>,
    ) -> NextStep {
        let mut timeouts = None;
        let (class, sent, probe, retry_after) = match &attempt {
            Ok(response) => (response.class, true, response.probe, response.retry_after),
            Err(AttemptError::Stop(_)) => return RetryState::stop(route, attempt),
            Err(AttemptError::Again) => {
                self.free_retries += 1;
                if self.free_retries > FREE_RETRIES_MAX {
                    return RetryState::stop(route, attempt);
                }
                return NextStep::Again(Span::ZERO, None);
            }
            // The number of keys bounds this (`credential::on_response`).
            Err(AttemptError::OtherKey) => return NextStep::Again(Span::ZERO, None),
            Err(AttemptError::Fault { fault, sent, probe }) => {
                if *sent && *fault == Fault::Timeout {
                    self.timeouts += 1;
                    timeouts = Some(self.timeouts);
                }
                (Class::of_fault(*fault), *sent, *probe, None)
            }
        };
        if !class.is_failure() || route.subject.fallback {
            return RetryState::stop(route, attempt);
        }
        self.permits.has_failed = true;
        let (path, name) = (route.subject.path, &route.request.path);
        route.subject.provider.health.name_path(path, name);
        let failed = FailedAttempt {
            priority: route.subject.joint_priority(),
            used: self.retries_used,
            class,
            timeouts,
            retry_after,
            safety: safety(route, sent),
            probe,
            caller_retries: caller_retries(route),
            time_remaining: Some(route.subject.wait_remaining(policy.provider.queue.timeout)),
        };
        match route
            .subject
            .provider
            .health
            .decide_retry(&policy.retry, &failed)
        {
            RetryDecision::Again { after, counts } => {
                self.retries_used += u32::from(counts);
                leave_leader(&route.subject, policy, &attempt, after);
                NextStep::Again(after, attempt.ok())
            }
            RetryDecision::Stop(StopReason::Deadline { after }) => {
                RetryState::stop(route, attempt.map(|response| with_time(response, after)))
            }
            RetryDecision::Stop(_) => RetryState::stop(route, attempt),
        }
    }

    fn stop(route: &Route, attempt: Result<UpstreamResponse, AttemptError>) -> NextStep {
        let provider = || route.subject.provider.name.clone();
        NextStep::Done(attempt.map_err(|ended| match ended {
            AttemptError::Stop(error) => error,
            AttemptError::Again | AttemptError::OtherKey => Error::NoResponse {
                provider: provider(),
                fault: Fault::Reset,
            },
            AttemptError::Fault { .. } if route.subject.remaining() == Some(Span::ZERO) => {
                Error::DeadlineExceeded {
                    provider: provider(),
                    at: Stage::Upstream,
                }
            }
            AttemptError::Fault { fault, .. } => Error::NoResponse {
                provider: provider(),
                fault,
            },
        }))
    }
}

/// The response of a call whose retry would come too late says when that is, unless the provider
/// says it.
fn with_time(mut response: UpstreamResponse, after: Span) -> UpstreamResponse {
    let head = &mut response.head;
    let has_time = [RETRY_AFTER.as_str(), "retry-after-ms"]
        .iter()
        .any(|name| head.headers.contains_key(*name));
    let is_busy = matches!(
        head.status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    if is_busy && !has_time && after > Span::ZERO {
        let seconds = HeaderValue::from(after.0.div_ceil(1_000_000));
        head.headers.insert(RETRY_AFTER, seconds);
        let millis = HeaderValue::from(after.0.div_ceil(1_000));
        head.headers.insert("retry-after-ms", millis);
    }
    response
}

/// The SDKs of OpenAI, Anthropic and others number the attempts of a call that they repeat
/// themselves, also the first one.
fn caller_retries(route: &Route) -> bool {
    route
        .request
        .headers
        .contains_key("x-stainless-retry-count")
}

/// May it be repeated? A body that is gone cannot.
fn safety(route: &Route, sent: bool) -> Safety {
    if !route.request.payload.is_resendable() {
        return Safety::MayHaveActed;
    }
    let has_key = route.request.headers.contains_key("idempotency-key");
    Safety::of(route.request.method.as_str(), has_key, sent)
}

/// The leader's own time ends before the retry, and followers have more: they go on without it.
/// The leader responds with the failure that it has.
fn leave_leader(
    subject: &Subject,
    policy: &CompiledPolicy,
    failed: &Result<UpstreamResponse, AttemptError>,
    after: Span,
) {
    let Some(shared) = &subject.shared_demand else {
        return;
    };
    let queue = policy.provider.queue.timeout;
    let own = subject.own_demand().queue_deadline(queue);
    if subject.provider.ledger.at() + after < own {
        return;
    }
    let provider = || subject.provider.name.clone();
    shared.continues_after(own, queue, || match failed {
        Ok(response) if response.class == Class::Limited => Error::NoPermit {
            provider: provider(),
            entity: subject.entity_name(),
            limit: None,
            reason: Reason::Cooldown,
            retry_in: Some(after),
        },
        Err(AttemptError::Fault { fault, .. }) => Error::NoResponse {
            provider: provider(),
            fault: *fault,
        },
        // The followers' call still holds the response.
        Ok(_) | Err(_) => Error::DeadlineExceeded {
            provider: provider(),
            at: Stage::Waiting(None),
        },
    });
}

/// Waits until the next attempt. Meanwhile the rest of an unwanted response is read, so that its
/// connection can be reused, and so that it can be forwarded if there is no next attempt.
pub(crate) async fn wait_and_keep(
    subject: &Subject,
    after: Span,
    unwanted: Option<UpstreamResponse>,
) -> Option<Box<UpstreamResponse>> {
    if after > Span::ZERO {
        subject.add_step(|| StepKind::RetryWait(after));
    }
    let _waits =
        (after > Span::ZERO).then(|| subject.provider.retry_waits.enter(subject.joint_priority()));
    let kept = async {
        match unwanted {
            // Boxed: rare, and large inside every call's future.
            Some(response) => Box::pin(keep(response)).await,
            None => None,
        }
    };
    tokio::join!(timer::sleep(Some(after)), kept).1
}

/// The result of a call whose last attempt had failed with this response. A failure of the provider stays one: a limit that
/// leaves no room for a further attempt is no reason to blame the caller. The response says when there is room.
pub(crate) fn or_failure(
    done: Result<UpstreamResponse, Error>,
    failure: Option<Box<UpstreamResponse>>,
) -> Result<UpstreamResponse, Error> {
    match (done, failure) {
        (
            Err(Error::NoPermit {
                reason: Reason::Limit,
                retry_in,
                ..
            }),
            Some(failure),
        ) if failure.class != Class::Limited => {
            Ok(with_time(*failure, retry_in.unwrap_or(Span::ZERO)))
        }
        (done, _) => done,
    }
}
