//! What kind of error it is: the lists of variants that decide something, in one place.
//!
//! Promises: each list names every variant, so that a new one is decided here or does not compile.
//!
//! Never: writes a response.

use http::{Method, StatusCode};
use tollgate_core::time::Span;

use super::{Error, Reason, Stage};

impl Error {
    /// What blocks the call, as in JSON and metrics; `error` for what does not pass by itself.
    #[must_use]
    pub fn reason_str(&self) -> &'static str {
        self.reason().map_or("error", Reason::as_str)
    }

    /// What blocks the call, if something does that may pass.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Error::NoPermit { reason, .. } | Error::NotInCache { reason, .. } => Some(*reason),
            Error::ProviderUnavailable { .. } => Some(Reason::Sleep),
            Error::DeadlineExceeded { at, .. } => Some(match at {
                Stage::Waiting(Some(cause)) => cause.reason,
                Stage::Waiting(None) | Stage::Upstream => Reason::Deadline,
            }),
            Error::Guarded {
                retry_in,
                is_store_lost,
                ..
            } => Some(match retry_in {
                _ if *is_store_lost => Reason::StoreLost,
                Some(_) => Reason::Limit,
                None => Reason::TooCostly,
            }),
            Error::NoResponse { .. }
            | Error::Moved { .. }
            | Error::NoCredential { .. }
            | Error::Misconfigured { .. }
            | Error::UnknownProvider { .. }
            | Error::NoUpstream { .. }
            | Error::NotAllowed { .. }
            | Error::CrossSite
            | Error::WrongCallerToken { .. }
            | Error::Loop { .. }
            | Error::MethodNotAllowed { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::NotBuilt(_)
            | Error::SlowBody
            | Error::SpoolFailed
            | Error::IncompleteBody => None,
        }
    }

    /// The name of the limit that blocks the call, if a limit does.
    #[must_use]
    pub fn limit(&self) -> Option<&str> {
        match self {
            Error::NoPermit { limit, .. } => limit.as_deref(),
            Error::Guarded { limit, .. } => Some(limit),
            Error::DeadlineExceeded { at, .. } => match at {
                Stage::Waiting(Some(cause)) => cause.limit.as_deref(),
                Stage::Waiting(None) | Stage::Upstream => None,
            },
            Error::ProviderUnavailable { .. }
            | Error::NotInCache { .. }
            | Error::NoResponse { .. }
            | Error::Moved { .. }
            | Error::NoCredential { .. }
            | Error::Misconfigured { .. }
            | Error::UnknownProvider { .. }
            | Error::NoUpstream { .. }
            | Error::NotAllowed { .. }
            | Error::CrossSite
            | Error::WrongCallerToken { .. }
            | Error::Loop { .. }
            | Error::MethodNotAllowed { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::NotBuilt(_)
            | Error::SlowBody
            | Error::SpoolFailed
            | Error::IncompleteBody => None,
        }
    }

    /// When to come back, if that is known.
    #[must_use]
    pub fn retry_in(&self) -> Option<Span> {
        match self {
            Error::NoPermit { retry_in, .. }
            | Error::Guarded { retry_in, .. }
            | Error::NotInCache { retry_in, .. }
            | Error::NoCredential { retry_in, .. } => *retry_in,
            Error::ProviderUnavailable { status, .. } => status.sleep_remaining,
            Error::DeadlineExceeded { at, .. } => match at {
                Stage::Waiting(Some(cause)) => cause.retry_in,
                Stage::Waiting(None) | Stage::Upstream => None,
            },
            Error::NoResponse { .. }
            | Error::Moved { .. }
            | Error::Misconfigured { .. }
            | Error::UnknownProvider { .. }
            | Error::NoUpstream { .. }
            | Error::NotAllowed { .. }
            | Error::CrossSite
            | Error::WrongCallerToken { .. }
            | Error::Loop { .. }
            | Error::MethodNotAllowed { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::NotBuilt(_)
            | Error::IncompleteBody
            | Error::SlowBody
            | Error::SpoolFailed => None,
        }
    }

    /// The provider, if the call got that far.
    #[must_use]
    pub fn provider(&self) -> Option<&str> {
        match self {
            Error::NoPermit { provider, .. }
            | Error::Guarded { provider, .. }
            | Error::ProviderUnavailable { provider, .. }
            | Error::NotInCache { provider, .. }
            | Error::DeadlineExceeded { provider, .. }
            | Error::NoResponse { provider, .. }
            | Error::Moved { provider }
            | Error::NoCredential { provider, .. }
            | Error::Misconfigured { provider, .. }
            | Error::NoUpstream { provider, .. }
            | Error::Loop { provider } => Some(provider),
            Error::MethodNotAllowed { provider, .. } => provider.as_deref(),
            Error::UnknownProvider { .. }
            | Error::NotAllowed { .. }
            | Error::CrossSite
            | Error::WrongCallerToken { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::NotBuilt(_)
            | Error::SlowBody
            | Error::SpoolFailed
            | Error::IncompleteBody => None,
        }
    }

    /// The status of the response to the caller.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Error::NoPermit { reason, .. } => match reason {
                Reason::QueueFull
                | Reason::PermitsOpen
                | Reason::NoDescriptors
                | Reason::ShuttingDown
                | Reason::Sleep
                | Reason::Paused
                | Reason::StoreLost => StatusCode::SERVICE_UNAVAILABLE,
                Reason::Deadline
                | Reason::Degraded
                | Reason::CacheOnly
                | Reason::CacheRequested => StatusCode::GATEWAY_TIMEOUT,
                Reason::Limit
                | Reason::Spread
                | Reason::Ahead
                | Reason::Cooldown
                | Reason::Concurrency
                | Reason::OffPeak
                | Reason::TooCostly
                | Reason::NoShare => StatusCode::TOO_MANY_REQUESTS,
            },
            Error::Guarded {
                is_store_lost: true,
                ..
            } => StatusCode::SERVICE_UNAVAILABLE,
            Error::Guarded { .. } => StatusCode::TOO_MANY_REQUESTS,
            Error::ProviderUnavailable { .. } | Error::SpoolFailed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Error::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Error::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Error::NotInCache { .. } | Error::DeadlineExceeded { .. } => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Error::NoResponse { .. } | Error::Moved { .. } | Error::NoCredential { .. } => {
                StatusCode::BAD_GATEWAY
            }
            Error::UnknownProvider { .. } => StatusCode::NOT_FOUND,
            Error::NotAllowed { .. } | Error::WrongCallerToken { .. } | Error::CrossSite => {
                StatusCode::FORBIDDEN
            }
            Error::Misconfigured { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Error::Loop { .. } => StatusCode::LOOP_DETECTED,
            Error::NoUpstream { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::NotBuilt(_)
            | Error::IncompleteBody => StatusCode::BAD_REQUEST,
        }
    }

    /// The request itself is ambiguous: two servers may disagree about the bytes that follow, so its
    /// connection closes.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        match self {
            Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::NotBuilt(_)
            | Error::IncompleteBody
            | Error::SlowBody
            | Error::SpoolFailed => true,
            // What follows a CONNECT is not HTTP.
            Error::MethodNotAllowed { method, .. } => *method == Method::CONNECT,
            Error::NoPermit { .. }
            | Error::Guarded { .. }
            | Error::ProviderUnavailable { .. }
            | Error::NotInCache { .. }
            | Error::DeadlineExceeded { .. }
            | Error::NoResponse { .. }
            | Error::Moved { .. }
            | Error::NoCredential { .. }
            | Error::UnknownProvider { .. }
            | Error::NoUpstream { .. }
            | Error::NotAllowed { .. }
            | Error::WrongCallerToken { .. }
            | Error::CrossSite
            | Error::Misconfigured { .. }
            | Error::Loop { .. } => false,
        }
    }

    /// Does a stale response help? Not where the call itself is wrong.
    pub(crate) fn allows_stale(&self) -> bool {
        match self {
            Error::NoPermit { .. }
            | Error::ProviderUnavailable { .. }
            | Error::NotInCache { .. }
            | Error::DeadlineExceeded { .. }
            | Error::NoResponse { .. }
            | Error::Moved { .. }
            | Error::NoCredential { .. }
            | Error::Misconfigured { .. } => true,
            Error::Guarded { .. }
            | Error::UnknownProvider { .. }
            | Error::NoUpstream { .. }
            | Error::NotAllowed { .. }
            | Error::WrongCallerToken { .. }
            | Error::CrossSite
            | Error::Loop { .. }
            | Error::MethodNotAllowed { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::NotBuilt(_)
            | Error::SlowBody
            | Error::SpoolFailed
            | Error::IncompleteBody => false,
        }
    }
}
