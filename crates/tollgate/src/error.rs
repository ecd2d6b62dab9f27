//! Why a call has no answer of its provider: whose fault it is, and when to come back.
//!
//! Promises: every way in which the path can end without an answer is one variant here, with what a
//! caller needs to act on it. Nothing in it is a key, a header value or a query.
//!
//! Never: becomes a status here. The gateway has the one place that does that.

use tollgate_core::domain::HostError;
use tollgate_core::entity::EntityError;
use tollgate_core::health::{Fault, HealthStatus};
use tollgate_core::time::Span;

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

/// What holds a call back. The words are those of `reason` in every refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A limit is used up.
    Limit,
    /// The provider asked for a pause.
    Cooldown,
    /// Little is left, so only the cache is used.
    Degraded,
    /// By order only the cache is used.
    CacheOnly,
    /// The call itself asked for the cache only.
    CacheRequested,
    /// As many calls as allowed are on their way.
    Concurrency,
    /// Background calls go in off-peak hours only.
    OffPeak,
    /// Too many wait already.
    QueueFull,
    /// This process has no descriptor left for another connection.
    NoDescriptors,
    /// This process ends.
    ShuttingDown,
    /// The caller's time is up.
    Deadline,
    /// The ledger cannot be reached.
    StoreLost,
    /// The call costs more than its limit ever has.
    TooCostly,
    /// The limit is smaller than the number of nodes that share it, so this one has no part of it.
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
            Reason::QueueFull | Reason::NoDescriptors | Reason::ShuttingDown => "queue_full",
            Reason::Deadline => "deadline",
            Reason::StoreLost => "store_lost",
            Reason::TooCostly | Reason::NoShare => "too_costly",
        }
    }
}

/// Why a call has no answer of its provider.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No permit in time.
    #[error("{}", no_permit(.provider, *.reason, .limit.as_deref(), *.retry_in))]
    NoPermit {
        /// Whose.
        provider: String,
        /// Of which part.
        entity: Option<String>,
        /// The limit that has nothing left, by name.
        limit: Option<String>,
        /// What holds the call back.
        reason: Reason,
        /// When to come back; `None` where waiting does not help or nobody knows.
        retry_in: Option<Span>,
    },
    /// The provider rests, because too many calls failed.
    #[error("{}", .status.breaker.message(.provider))]
    Asleep {
        /// Whose.
        provider: String,
        /// What its health looks like.
        status: Box<HealthStatus>,
    },
    /// Only the cache may answer, and it has nothing.
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
    TooLate {
        /// Whose.
        provider: String,
        /// Where.
        at: Stage,
    },
    /// There was no answer.
    #[error("no answer from `{provider}`: {}", words(*.fault))]
    NoResponse {
        /// Whose.
        provider: String,
        /// Why.
        fault: Fault,
    },
    /// A token is needed that cannot be had.
    #[error("no token for `{provider}`: {}", .why.words())]
    NoCredential {
        /// Whose.
        provider: String,
        /// Why not.
        why: NoToken,
        /// When the next one is asked for.
        retry_in: Option<Span>,
    },
    /// There is no such provider.
    #[error("{}", unknown(.name))]
    UnknownProvider {
        /// As it was called.
        name: String,
        /// The nearest name that exists.
        nearest: Option<String>,
    },
    /// A provider without a place to send calls to.
    #[error("{}", nowhere(.provider, .tenants.as_deref()))]
    NoUpstream {
        /// Which.
        provider: String,
        /// The domain of many hosts that is all it has: `*.example.org`.
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
    /// A page of another site has made a browser of this machine call.
    #[error("a page of another site may not call this gateway")]
    CrossSite,
    /// The caller did not show the token that proves its name.
    #[error("the caller `{caller}` is known by its token, and this call does not show it")]
    WrongCallerToken {
        /// As it calls itself.
        caller: String,
    },
    /// The call would come back to us, or has.
    #[error("calls to `{provider}` come back to this gateway")]
    Loop {
        /// Whose.
        provider: String,
    },
    /// The path can be read in two ways.
    #[error(transparent)]
    Path(#[from] EntityError),
    /// The host is no host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The call is malformed in another way.
    #[error("{0}")]
    Malformed(&'static str),
    /// The body of the request did not come.
    #[error("the body of the request broke off or did not come in time")]
    NoBody,
}

/// Why there is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoToken {
    /// The login refused the credentials, with this status.
    Rejected(u16),
    /// The login failed, with this status.
    Failed(u16),
    /// The login answered, but no token stood where the file says.
    Missing,
    /// The login did not answer.
    NoResponse(Fault),
}

impl NoToken {
    /// Waiting does not mend it.
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
                format!("its login refused the credentials (status {status})")
            }
            NoToken::Failed(status) => format!("its login failed (status {status})"),
            NoToken::Missing => "its login answered without one".to_owned(),
            NoToken::NoResponse(fault) => format!("its login gave no answer, {}", words(fault)),
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
    /// No provider has this domain, and unknown domains are refused.
    Unknown,
    /// It resolves to a private address that no provider file names.
    Private,
    /// The address that was called is another provider's alone.
    OtherProvider,
}

impl Stage {
    fn words(self) -> &'static str {
        match self {
            Stage::Waiting => "while it waited for a permit",
            Stage::Upstream => "before the provider had answered",
        }
    }
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
            | Error::Loop { .. } => Blame::Tollgate,
            Error::NoPermit { .. }
            | Error::TooLate {
                at: Stage::Waiting, ..
            }
            | Error::UnknownProvider { .. }
            | Error::NoUpstream { .. }
            | Error::NotAllowed { .. }
            | Error::WrongCallerToken { .. }
            | Error::Path(_)
            | Error::Host(_)
            | Error::Malformed(_)
            | Error::CrossSite
            | Error::NoBody => Blame::Caller,
            Error::Asleep { .. }
            | Error::NotInCache { .. }
            | Error::TooLate { .. }
            | Error::NoCredential { .. }
            | Error::NoResponse { .. } => Blame::Provider,
        }
    }
}

fn not_in_cache(provider: &str, reason: Reason) -> String {
    if reason == Reason::CacheRequested {
        return format!(
            "the call asked for the cache only, and there is no answer of `{provider}` in it"
        );
    }
    format!("`{provider}` is served from the cache only, and there is no answer in it")
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
            return format!("this process has no file descriptor left to call `{provider}`");
        }
        Reason::ShuttingDown => {
            return format!("tollgate is ending and no longer calls `{provider}`");
        }
        Reason::NoShare => {
            return format!(
                "{limit} of `{provider}` is smaller than the number of nodes, so this one has no part of it"
            );
        }
        Reason::TooCostly => {
            return format!("the call to `{provider}` costs more than {limit} ever has");
        }
        Reason::QueueFull => return format!("too many calls wait for `{provider}` already"),
        Reason::Limit => format!("{limit} is used up"),
        Reason::Concurrency => format!("{limit} of calls at a time is reached"),
        Reason::Cooldown => "the provider asked for a pause".to_owned(),
        Reason::OffPeak => "background calls go in off-peak hours only".to_owned(),
        Reason::Degraded | Reason::CacheOnly | Reason::CacheRequested => {
            "only the cache is used".to_owned()
        }
        Reason::Deadline => "the time is up".to_owned(),
    };
    match retry_in {
        Some(retry_in) => {
            let wait = retry_in.in_words();
            format!("no permit for `{provider}` in time: {why}; it may go on in {wait}")
        }
        None => format!("no permit for `{provider}` in time: {why}"),
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
                "`{provider}` is at `{tenants}`, and nobody has said which of these hosts is meant"
            )
        }
    }
}

fn words(fault: Fault) -> &'static str {
    match fault {
        Fault::Timeout => "it did not answer in time",
        Fault::Dns => "its name has no address",
        Fault::Connect => "no connection",
        Fault::Reset => "the connection broke before the answer was whole",
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
        let refused = text(Reason::Limit, Some("1000/1d"), Some(Span::from_secs(90)));
        assert!(refused.contains("`tmdb`") && refused.contains("the limit `1000/1d` is used up"));
        assert!(refused.ends_with("it may go on in 1 min 30 s"), "{refused}");
        assert!(text(Reason::Cooldown, None, None).contains("asked for a pause"));
        assert!(text(Reason::NoShare, Some("3/1s"), None).contains("number of nodes"));
    }
}
