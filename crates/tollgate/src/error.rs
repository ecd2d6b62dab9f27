//! Why a call has no response from its provider: whose fault it is, and when to come back.
//!
//! Promises: each way in which the path can end without a response is one variant, with everything
//! a caller needs to act on it, and one status. No variant contains a key, a header value or a query.
//!
//! Never: writes a response. Only the gateway does.

mod class;
mod words;

use std::sync::Arc;

use http::Method;
use tollgate_core::domain::HostError;
use tollgate_core::entity::EntityError;
use tollgate_core::health::{Fault, HealthStatus};
use tollgate_core::time::Span;
use words::{method_not_allowed, no_permit, not_in_cache, nowhere, too_late, unknown, words};

/// The name of the limit on calls that the connections of a provider are.
pub const CONNECTIONS: &str = "connections";

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The call itself is wrong, or asks for more than it may have.
    Caller,
    /// The provider is down or out of reach.
    Provider,
    /// Tollgate cannot do its work.
    Tollgate,
}

impl Blame {
    /// As in log lines.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Blame::Caller => "caller",
            Blame::Provider => "provider",
            Blame::Tollgate => "tollgate",
        }
    }
}

/// What blocks a call. `as_str` gives the values of `reason` in every rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A limit is used up.
    Limit,
    /// A limit has room, but urgent calls were made, so those of low priority are spread over it.
    Spread,
    /// A limit has room, which is saved for calls that wait already.
    Ahead,
    /// The provider asked for a pause.
    Cooldown,
    /// The provider, or the path that is called, failed and sleeps.
    Sleep,
    /// An operator paused the provider.
    Paused,
    /// A limit is nearly used up, so only the cache is used.
    Degraded,
    /// Only the cache is used, by an operator.
    CacheOnly,
    /// The call itself asked for the cache only.
    CacheRequested,
    /// The concurrency limit is reached.
    Concurrency,
    /// Low-priority calls run in off-peak hours only.
    OffPeak,
    /// The queue is full.
    QueueFull,
    /// So many permits of other processes are open that there is no place for another.
    PermitsOpen,
    /// This process has no file descriptor left for another connection.
    NoDescriptors,
    /// This process is shutting down.
    ShuttingDown,
    /// The caller's time is up.
    Deadline,
    /// The ledger cannot be reached.
    StoreLost,
    /// The call costs more than its limit can ever grant.
    TooCostly,
    /// The limit is smaller than the number of nodes that share it, so this node has no share of
    /// it.
    NoShare,
}

impl Reason {
    /// As in JSON and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Limit | Reason::Spread | Reason::Ahead => "limit",
            Reason::Cooldown => "cooldown",
            Reason::Sleep | Reason::Paused => "sleep",
            Reason::Degraded => "degraded",
            Reason::CacheOnly | Reason::CacheRequested => "cache_only",
            Reason::Concurrency => "concurrency",
            Reason::OffPeak => "off_peak",
            Reason::QueueFull | Reason::PermitsOpen | Reason::NoDescriptors => "queue_full",
            Reason::ShuttingDown => "shutdown",
            Reason::Deadline => "deadline",
            Reason::StoreLost => "store_lost",
            Reason::TooCostly | Reason::NoShare => "too_costly",
        }
    }
}

/// What a call waited for in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueCause {
    /// The reason of a rejection for the same cause.
    pub reason: Reason,
    /// The limit, if it was a limit.
    pub limit: Option<Arc<str>>,
    /// When it is free, if that was asked for.
    pub retry_in: Option<Span>,
}

impl Default for QueueCause {
    /// It was recalled while it waited, because limits or health have changed.
    fn default() -> QueueCause {
        QueueCause {
            reason: Reason::Limit,
            limit: None,
            retry_in: None,
        }
    }
}

/// Why a call has no response from its provider.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No permit in time.
    #[error("{}", no_permit((.provider, .entity.as_deref()), *.reason, .limit.as_deref(), *.retry_in))]
    NoPermit {
        /// Whose.
        provider: String,
        /// Of which part.
        entity: Option<String>,
        /// The name of the exhausted limit.
        limit: Option<String>,
        /// What blocks the call.
        reason: Reason,
        /// When to come back; `None` where waiting does not help or nobody knows.
        retry_in: Option<Span>,
    },
    /// A guard on the callers of the user's own service rejected the call.
    #[error("{message}")]
    Guarded {
        /// The service.
        provider: String,
        /// The name of the guard.
        guard: String,
        /// Its limit: `10/1m`.
        limit: String,
        /// What callers are told.
        message: &'static str,
        /// When to come back; `None` = the call costs more than the guard ever grants.
        retry_in: Option<Span>,
        /// Not for want of tokens: the store of guards is lost, and the guard is closed meanwhile.
        is_store_lost: bool,
    },
    /// The provider is asleep, because too many calls failed.
    #[error("{}", .status.breaker.message(.provider))]
    ProviderUnavailable {
        /// Whose.
        provider: String,
        /// Its health.
        status: Box<HealthStatus>,
        /// Only this path of it, with ids as `*`; calls to other paths go on.
        path: Option<String>,
    },
    /// Only the cache may serve the call, and it has no response.
    #[error("{}", not_in_cache((.provider, .entity.as_deref()), *.reason, *.retry_in))]
    NotInCache {
        /// Whose.
        provider: String,
        /// Of which part.
        entity: Option<String>,
        /// Why only the cache: degraded or cache_only.
        reason: Reason,
        /// When that may end.
        retry_in: Option<Span>,
    },
    /// The caller's time ran out.
    #[error("the time for the call to `{provider}` ran out {}", too_late(.at))]
    DeadlineExceeded {
        /// Whose.
        provider: String,
        /// Where.
        at: Stage,
    },
    /// There was no response.
    #[error("no response from `{provider}`: {}", words(*.fault))]
    NoResponse {
        /// Whose.
        provider: String,
        /// Why.
        fault: Fault,
    },
    /// The provider's upstream is another one since the call was routed.
    #[error("the upstream of `{provider}` was changed while the call was under way")]
    Moved {
        /// Whose.
        provider: String,
    },
    /// The call needs a token, and there is none.
    #[error("no token for `{provider}`: {}", .why.words())]
    NoCredential {
        /// Whose.
        provider: String,
        /// Why not.
        why: NoToken,
        /// When the next login is made.
        retry_in: Option<Span>,
    },
    /// A value of the configuration cannot be sent or used.
    #[error("the setting `{setting}` of `{provider}` cannot be used: {why}")]
    Misconfigured {
        /// Whose.
        provider: String,
        /// The setting, as in the provider file; never its value.
        setting: String,
        /// What is wrong with the value.
        why: &'static str,
    },
    /// There is no such provider.
    #[error("{}", unknown(.name))]
    UnknownProvider {
        /// The name as requested.
        name: String,
        /// The nearest name that exists.
        nearest: Option<String>,
    },
    /// A provider without an upstream.
    #[error("{}", nowhere(.provider, .tenants.as_deref()))]
    NoUpstream {
        /// Which.
        provider: String,
        /// Its only domain, a wildcard: `*.example.org`.
        tenants: Option<String>,
    },
    /// The host may not be called.
    #[error("calls to `{host}` are not allowed")]
    NotAllowed {
        /// Which.
        host: String,
        /// Why not.
        why: NotAllowed,
    },
    /// A page of another site made a browser on this machine call.
    #[error("a page of another site may not call this gateway")]
    CrossSite,
    /// The caller did not send the token that proves its name.
    #[error("the caller `{caller}` needs its token, and this call did not send it")]
    WrongCallerToken {
        /// The name that it claims.
        caller: String,
    },
    /// The call would loop back to this gateway, or has.
    #[error("calls to `{provider}` loop back to this gateway")]
    Loop {
        /// Whose.
        provider: String,
    },
    /// The provider's file, or the gateway, does not allow the method.
    #[error("{}", method_not_allowed(.provider.as_deref(), .method))]
    MethodNotAllowed {
        /// Whose; `None` = no provider can be called with it.
        provider: Option<String>,
        /// The method of the call.
        method: Method,
        /// The allowed methods, as in `Allow`.
        allowed: String,
    },
    /// The path is ambiguous.
    #[error(transparent)]
    Path(#[from] EntityError),
    /// The host is invalid.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The call is malformed in another way.
    #[error("{0}")]
    Malformed(&'static str),
    /// The program's own client cannot build the request: what is wrong with it, and what to write.
    #[error("reqwest cannot build the request: {0}")]
    NotBuilt(String),
    /// The body of the request did not arrive.
    #[error("the request body broke off")]
    IncompleteBody,
    /// The body of the request arrives more slowly than the provider's file or the call's own time
    /// allows.
    #[error(
        "the request body did not arrive in time: the call's own timeout is over, or it was slower than `upload.min_rate` allows"
    )]
    SlowBody,
    /// The body of the request could not be stored until its permit is granted.
    #[error("the request body could not be written to a temporary file")]
    SpoolFailed,
}

/// Why there is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoToken {
    /// The login rejected the credentials, with this status.
    Rejected(u16),
    /// The login failed, with this status.
    Failed(u16),
    /// The login responded, but without a token where the provider file says.
    Missing,
    /// The login did not respond.
    NoResponse(Fault),
}

impl NoToken {
    /// Waiting does not fix it.
    #[must_use]
    pub fn is_permanent(self) -> bool {
        match self {
            NoToken::Rejected(_) => true,
            NoToken::Failed(_) | NoToken::Missing | NoToken::NoResponse(_) => false,
        }
    }

    fn words(self) -> String {
        match self {
            NoToken::Rejected(status) => {
                format!("its login rejected the credentials (status {status})")
            }
            NoToken::Failed(status) => format!("its login failed (status {status})"),
            NoToken::Missing => "its login responded without a token".to_owned(),
            NoToken::NoResponse(fault) => format!("its login did not respond: {}", words(fault)),
        }
    }
}

/// Where the time ran out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// While it waited for a permit, and what held it, if that is known.
    Waiting(Option<QueueCause>),
    /// While the provider worked on it.
    Upstream,
}

/// Why a host may not be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAllowed {
    /// No provider has this domain, and unknown domains are rejected.
    Unknown,
    /// It resolves to a private address that no provider file names.
    Private,
    /// The address that was called belongs to another provider.
    OtherProvider,
}

impl Error {
    /// Whose fault it is.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Error::NoPermit {
                reason:
                    Reason::StoreLost | Reason::NoDescriptors | Reason::ShuttingDown | Reason::NoShare,
                ..
            }
            | Error::NoCredential {
                why: NoToken::Rejected(_) | NoToken::Missing,
                ..
            }
            | Error::Misconfigured { .. }
            | Error::Moved { .. }
            | Error::SpoolFailed
            | Error::Loop { .. } => Blame::Tollgate,
            Error::NoPermit { .. }
            | Error::Guarded { .. }
            | Error::DeadlineExceeded {
                at: Stage::Waiting(_),
                ..
            }
            | Error::UnknownProvider { .. }
            | Error::NoUpstream { .. }
            | Error::NotAllowed { .. }
            | Error::MethodNotAllowed { .. }
            | Error::WrongCallerToken { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::NotBuilt(_)
            | Error::CrossSite
            | Error::SlowBody
            | Error::IncompleteBody => Blame::Caller,
            Error::ProviderUnavailable { .. }
            | Error::NotInCache { .. }
            | Error::DeadlineExceeded { .. }
            | Error::NoCredential { .. }
            | Error::NoResponse { .. } => Blame::Provider,
        }
    }
}
