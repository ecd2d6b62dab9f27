//! The sentences of errors: what happened, the number, and when to come back.
//!
//! Promises: one cause has one sentence, whether a call is rejected for it or runs out of time.
//!
//! Never: contains a key, a header value or a query.

use http::Method;
use tollgate_core::health::Fault;
use tollgate_core::time::Span;

use super::{CONNECTIONS, Reason, Stage};

/// Of the pause and of the time after it: an error does not know in which of them it arises.
const ASKED_FOR_A_PAUSE: &str =
    "the provider asked for a pause, and after it calls go one by one until it accepts them again";

/// How much of a method is shown: the longest registered one has 17 letters.
const METHOD_SHOWN_MAX: usize = 24;

pub(super) fn not_in_cache(
    (provider, entity): (&str, Option<&str>),
    reason: Reason,
    retry_in: Option<Span>,
) -> String {
    let scope = scope_words(provider, entity);
    let until = until_words(retry_in, "until an operator ends it");
    match reason {
        Reason::CacheRequested => format!(
            "the call asked for the cache only, and `{provider}` has no cached response for it"
        ),
        Reason::Degraded => {
            let until = until_words(retry_in, "until more remains");
            format!(
                "{scope} is in degrade mode {until}: little of its quota remains, so it is served from the cache only, and it has no cached response for this call"
            )
        }
        _by_operator => format!(
            "{scope} is served from the cache only {until}, and it has no cached response for this call"
        ),
    }
}

/// The part of a provider that is closed.
fn scope_words(provider: &str, entity: Option<&str>) -> String {
    match entity {
        Some(entity) => format!("`{entity}` of `{provider}`"),
        None => format!("`{provider}`"),
    }
}

/// How long a scope is closed.
fn until_words(retry_in: Option<Span>, otherwise: &str) -> String {
    match retry_in.filter(|span| *span > Span::ZERO) {
        Some(span) => format!("for another {}", span.in_words()),
        None => otherwise.to_owned(),
    }
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
        Reason::Spread => {
            let limit = limit_words(limit);
            return format!(
                "{limit} has room, but urgent calls were made, so calls of low priority are spread over it"
            );
        }
        Reason::Ahead => {
            let limit = limit_words(limit);
            return format!("what remains of {limit} is saved for calls that wait already");
        }
        Reason::Concurrency if limit == Some(CONNECTIONS) => {
            "all connections to the provider are in use (`connections`)"
        }
        Reason::Concurrency => {
            return format!("{} on concurrent calls is reached", limit_words(limit));
        }
        Reason::Cooldown => ASKED_FOR_A_PAUSE,
        Reason::Sleep => "the provider failed and sleeps",
        Reason::Paused => "an operator has paused the provider",
        Reason::OffPeak => "calls of this priority run in off-peak hours only",
        Reason::Degraded | Reason::CacheOnly | Reason::CacheRequested => "only the cache is used",
        Reason::StoreLost => "the ledger that counts the calls cannot be reached",
        Reason::QueueFull => "too many calls already wait",
        Reason::PermitsOpen => "too many permits are open",
        Reason::NoDescriptors => "this process has no free file descriptor",
        Reason::ShuttingDown => "tollgate is shutting down",
        Reason::TooCostly | Reason::NoShare => "it costs more than its limit can ever grant",
        Reason::Deadline => "the deadline has passed",
    };
    fixed.to_owned()
}

pub(super) fn no_permit(
    (provider, entity): (&str, Option<&str>),
    reason: Reason,
    limit: Option<&str>,
    retry_in: Option<Span>,
) -> String {
    match reason {
        Reason::StoreLost => {
            let until = until_words(retry_in, "until it is back");
            return format!(
                "the ledger that counts the calls to `{provider}` cannot be reached, and `on_store_loss` rejects them {until}"
            );
        }
        Reason::NoDescriptors => {
            return format!("this process has no free file descriptor to call `{provider}`");
        }
        // Before the call was routed.
        Reason::ShuttingDown if provider.is_empty() => {
            return "tollgate is shutting down and takes no more calls".to_owned();
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
        Reason::PermitsOpen => {
            let until = until_words(retry_in, "until one is reported or released");
            return format!(
                "too many permits of this caller, or of all callers, are open and neither reported nor released; no other one is given {until}"
            );
        }
        Reason::Cooldown => {
            let scope = scope_words(provider, entity);
            let until = until_words(retry_in, "until the provider accepts calls again");
            return format!("{scope} cools down {until}: {ASKED_FOR_A_PAUSE}");
        }
        Reason::Sleep | Reason::Paused => {
            let scope = scope_words(provider, entity);
            let until = until_words(retry_in, "until `tollgate resume`");
            let why = blocked_by(reason, limit);
            return format!("{scope} is closed {until}: {why}");
        }
        Reason::Limit
        | Reason::Spread
        | Reason::Ahead
        | Reason::Concurrency
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

    /// A denial without a limit named only a reason: not which part is closed, nor until when.
    #[test]
    fn a_rejection_without_a_limit_names_scope_state_and_end() {
        let closed = |reason, retry_in| {
            let entity = Some("fixtures".to_owned());
            let provider = "tmdb".to_owned();
            match reason {
                Reason::Degraded | Reason::CacheOnly => Error::NotInCache {
                    provider,
                    entity,
                    reason,
                    retry_in,
                },
                _ => Error::NoPermit {
                    provider,
                    entity,
                    limit: None,
                    reason,
                    retry_in,
                },
            }
            .to_string()
        };
        let minute = Some(Span::from_secs(90));
        for (reason, retry_in, parts) in [
            (
                Reason::Cooldown,
                minute,
                ["`fixtures` of `tmdb` cools down", "1 min 30 s"],
            ),
            (
                Reason::Degraded,
                minute,
                ["`fixtures` of `tmdb` is in degrade mode", "1 min 30 s"],
            ),
            (
                Reason::Degraded,
                None,
                ["degrade mode", "until more remains"],
            ),
            (
                Reason::CacheOnly,
                None,
                ["cache only", "until an operator ends it"],
            ),
            (
                Reason::Paused,
                minute,
                ["an operator has paused", "1 min 30 s"],
            ),
            (
                Reason::StoreLost,
                None,
                ["the calls to `tmdb`", "until it is back"],
            ),
        ] {
            let text = closed(reason, retry_in);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}
