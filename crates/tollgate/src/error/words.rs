//! The sentences of errors: what happened, the number, and when to come back.
//!
//! Promises: one cause has one sentence, whether a call is rejected for it or runs out of time.
//!
//! Never: contains a key, a header value or a query.

use http::Method;
use tollgate_core::health::Fault;
use tollgate_core::time::Span;

use super::{CONNECTIONS, Reason, Stage};

/// How much of a method is shown: the longest registered one has 17 letters.
const METHOD_SHOWN_MAX: usize = 24;

pub(super) fn not_in_cache(provider: &str, reason: Reason) -> String {
    if reason == Reason::CacheRequested {
        return format!(
            "the call asked for the cache only, and `{provider}` has no cached response for it"
        );
    }
    format!(
        "`{provider}` is served from the cache only, and it has no cached response for this call"
    )
}

/// The limit in a sentence.
fn limit_words(limit: Option<&str>) -> String {
    limit.map_or_else(
        || "its limit".to_owned(),
        |name| format!("the limit `{name}`"),
    )
}

/// Where the time ran out, and what held the call.
pub(super) fn too_late(at: &Stage) -> String {
    match at {
        Stage::Upstream => "before the provider responded".to_owned(),
        Stage::Waiting(None) => "while it waited for a permit".to_owned(),
        Stage::Waiting(Some(cause)) => {
            let why = blocked_by(cause.reason, cause.limit.as_deref());
            format!("while it waited for a permit: {why}")
        }
    }
}

/// What blocks a call that may go later.
fn blocked_by(reason: Reason, limit: Option<&str>) -> String {
    let fixed = match reason {
        // Not "used up": a call that costs more than one may find some of it left.
        Reason::Limit => {
            let limit = limit_words(limit);
            return format!("{limit} has too little remaining for this call");
        }
        Reason::Concurrency if limit == Some(CONNECTIONS) => {
            "all connections to the provider are in use (`connections`)"
        }
        Reason::Concurrency => {
            return format!("{} on concurrent calls is reached", limit_words(limit));
        }
        Reason::Cooldown => "the provider asked for a pause",
        Reason::Sleep => "the provider failed and sleeps",
        Reason::Paused => "an operator has paused the provider",
        Reason::OffPeak => "calls of this priority run in off-peak hours only",
        Reason::Degraded | Reason::CacheOnly | Reason::CacheRequested => "only the cache is used",
        Reason::StoreLost => "the ledger that counts the calls cannot be reached",
        Reason::QueueFull => "too many calls already wait",
        Reason::NoDescriptors => "this process has no free file descriptor",
        Reason::ShuttingDown => "tollgate is shutting down",
        Reason::TooCostly | Reason::NoShare => "it costs more than its limit can ever grant",
        Reason::Deadline => "the deadline has passed",
    };
    fixed.to_owned()
}

pub(super) fn no_permit(
    provider: &str,
    reason: Reason,
    limit: Option<&str>,
    retry_in: Option<Span>,
) -> String {
    match reason {
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
            let limit = limit_words(limit);
            return format!(
                "{limit} of `{provider}` is smaller than the number of nodes, so this node has no share of it"
            );
        }
        Reason::TooCostly => {
            let limit = limit_words(limit);
            return format!("the call to `{provider}` costs more than {limit} can ever grant");
        }
        Reason::QueueFull => return format!("too many calls already wait for `{provider}`"),
        Reason::Limit
        | Reason::Concurrency
        | Reason::Cooldown
        | Reason::Sleep
        | Reason::Paused
        | Reason::OffPeak
        | Reason::Degraded
        | Reason::CacheOnly
        | Reason::CacheRequested
        | Reason::Deadline => {}
    }
    let why = blocked_by(reason, limit);
    match retry_in {
        Some(retry_in) => {
            let wait = retry_in.in_words();
            format!("no permit for `{provider}` in time: {why}; retry in {wait}")
        }
        None => format!("no permit for `{provider}` in time: {why}"),
    }
}

pub(super) fn method_not_allowed(provider: Option<&str>, method: &Method) -> String {
    // A method is up to the caller and may be long.
    let method = method.as_str();
    let method = method.get(..METHOD_SHOWN_MAX).unwrap_or(method);
    match provider {
        Some(provider) => format!("calls to `{provider}` may not have the method {method}"),
        None => format!("this gateway does not support {method}"),
    }
}

pub(super) fn unknown(name: &str) -> String {
    match name {
        "" => "the path names no provider".to_owned(),
        name => format!("there is no provider `{name}`"),
    }
}

pub(super) fn nowhere(provider: &str, tenants: Option<&str>) -> String {
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

pub(super) fn words(fault: Fault) -> &'static str {
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
    use super::super::Error;
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
