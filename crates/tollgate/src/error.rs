//! Why a call has no response from its provider: whose fault it is, and when to come back.
//!
//! Promises: each way in which the path can end without a response is one variant, with everything
//! a caller needs to act on it, and one status. No variant contains a key, a header value or a query.
//!
//! Never: writes a response. Only the gateway does.

mod class;

use http::Method;
use tollgate_core::domain::HostError;
use tollgate_core::entity::EntityError;
use tollgate_core::health::{Fault, HealthStatus};
use tollgate_core::time::Span;

/// How much of a method is shown: the longest registered one has 17 letters.
const METHOD_SHOWN_MAX: usize = 24;

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
    /// The provider asked for a pause.
    Cooldown,
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
            Reason::Limit => "limit",
            Reason::Cooldown => "cooldown",
            Reason::Degraded => "degraded",
            Reason::CacheOnly | Reason::CacheRequested => "cache_only",
            Reason::Concurrency => "concurrency",
            Reason::OffPeak => "off_peak",
            Reason::QueueFull | Reason::NoDescriptors => "queue_full",
            Reason::ShuttingDown => "shutdown",
            Reason::Deadline => "deadline",
            Reason::StoreLost => "store_lost",
            Reason::TooCostly | Reason::NoShare => "too_costly",
        }
    }
}

/// Why a call has no response from its provider.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No permit in time.
    #[error("{}", no_permit(.provider, *.reason, .limit.as_deref(), *.retry_in))]
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
    #[error("{}", not_in_cache(.provider, *.reason))]
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
    #[error("the time for the call to `{provider}` ran out {}", .at.words())]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// While it waited for a permit.
    Waiting,
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

impl Stage {
    fn words(self) -> &'static str {
        match self {
            Stage::Waiting => "while it waited for a permit",
            Stage::Upstream => "before the provider responded",
        }
    }
}

impl Error {
    /// What blocks the call, if something does that may pass.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Error::NoPermit { reason, .. } | Error::NotInCache { reason, .. } => Some(*reason),
            Error::DeadlineExceeded { .. } => Some(Reason::Deadline),
            Error::Guarded { retry_in, .. } => Some(match retry_in {
                Some(_) => Reason::Limit,
                None => Reason::TooCostly,
            }),
            _ => None,
        }
    }

    /// The name of the exhausted limit, if a limit blocks the call.
    #[must_use]
    pub fn limit(&self) -> Option<&str> {
        match self {
            Error::NoPermit { limit, .. } => limit.as_deref(),
            Error::Guarded { limit, .. } => Some(limit),
            _ => None,
        }
    }

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
                at: Stage::Waiting, ..
            }
            | Error::UnknownProvider { .. }
            | Error::NoUpstream { .. }
            | Error::NotAllowed { .. }
            | Error::MethodNotAllowed { .. }
            | Error::WrongCallerToken { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
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

fn not_in_cache(provider: &str, reason: Reason) -> String {
    if reason == Reason::CacheRequested {
        return format!(
            "the call asked for the cache only, and `{provider}` has no cached response for it"
        );
    }
    format!(
        "`{provider}` is served from the cache only, and it has no cached response for this call"
    )
}

fn no_permit(
    provider: &str,
    reason: Reason,
    limit: Option<&str>,
    retry_in: Option<Span>,
) -> String {
    let limit = limit.map_or_else(
        || "its limit".to_owned(),
        |name| format!("the limit `{name}`"),
    );
    let why = match reason {
        Reason::StoreLost => {
            return format!("the ledger that counts the calls to `{provider}` cannot be reached");
        }
        Reason::NoDescriptors => {
            return format!("this process has no free file descriptor to call `{provider}`");
        }
        Reason::ShuttingDown => {
            return format!("tollgate is shutting down and no longer calls `{provider}`");
        }
        Reason::NoShare => {
            return format!(
                "{limit} of `{provider}` is smaller than the number of nodes, so this node has no share of it"
            );
        }
        Reason::TooCostly => {
            return format!("the call to `{provider}` costs more than {limit} can ever grant");
        }
        Reason::QueueFull => return format!("too many calls already wait for `{provider}`"),
        // Not "used up": a call that costs more than one may find some of it left.
        Reason::Limit => format!("{limit} has too little remaining for this call"),
        Reason::Concurrency => format!("{limit} on concurrent calls is reached"),
        Reason::Cooldown => "the provider asked for a pause".to_owned(),
        Reason::OffPeak => "calls of this priority run in off-peak hours only".to_owned(),
        Reason::Degraded | Reason::CacheOnly | Reason::CacheRequested => {
            "only the cache is used".to_owned()
        }
        Reason::Deadline => "the deadline has passed".to_owned(),
    };
    match retry_in {
        Some(retry_in) => {
            let wait = retry_in.in_words();
            format!("no permit for `{provider}` in time: {why}; retry in {wait}")
        }
        None => format!("no permit for `{provider}` in time: {why}"),
    }
}

fn method_not_allowed(provider: Option<&str>, method: &Method) -> String {
    // A method is up to the caller and may be long.
    let method = method.as_str();
    let method = method.get(..METHOD_SHOWN_MAX).unwrap_or(method);
    match provider {
        Some(provider) => format!("calls to `{provider}` may not have the method {method}"),
        None => format!("this gateway does not support {method}"),
    }
}

fn unknown(name: &str) -> String {
    match name {
        "" => "the path names no provider".to_owned(),
        name => format!("there is no provider `{name}`"),
    }
}

fn nowhere(provider: &str, tenants: Option<&str>) -> String {
    match tenants {
        None => format!(
            "`{provider}` has neither a domain nor an upstream, so calls cannot be sent to it"
        ),
        Some(tenants) => {
            format!(
                "`{provider}` has only the wildcard domain `{tenants}`; set its upstream to one of these hosts"
            )
        }
    }
}

fn words(fault: Fault) -> &'static str {
    match fault {
        Fault::Timeout => "it did not respond in time",
        Fault::Dns => "DNS has no address for its name",
        Fault::Connect => "the connection failed",
        Fault::Reset => {
            "the connection broke before the response was complete, or the response is not valid HTTP"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reason: Reason, limit: Option<&str>, retry_in: Option<Span>) -> String {
        Error::NoPermit {
            provider: "tmdb".to_owned(),
            entity: None,
            limit: limit.map(str::to_owned),
            reason,
            retry_in,
        }
        .to_string()
    }

    #[test]
    fn a_rejection_names_reason_limit_and_time() {
        let rejected = text(Reason::Limit, Some("1000/1d"), Some(Span::from_secs(90)));
        assert!(
            rejected.contains("`tmdb`")
                && rejected.contains("the limit `1000/1d` has too little remaining for this call"),
            "{rejected}"
        );
        assert!(rejected.ends_with("retry in 1 min 30 s"), "{rejected}");
        assert!(text(Reason::Cooldown, None, None).contains("asked for a pause"));
        assert!(text(Reason::NoShare, Some("3/1s"), None).contains("number of nodes"));
    }
}
