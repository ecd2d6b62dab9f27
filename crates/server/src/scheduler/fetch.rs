//! One fetch of a source, by a worker.
//!
//! Promises: takes the path of every call (permit, retries, cache, health, credentials) and does not wait for its permit: a
//! denial is `RateLimitExceeded`, which is no failure. Time and size of a response are bounded.
//!
//! Never: decides what follows; `core::schedule::RunPlan` does.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use tokio::time::timeout;
use tollgate::path::{self, CallOptions, CallTrace, HttpCall, Target};
use tollgate::{Error, Reason};
use tollgate_core::schedule::RunEnd;
use tollgate_core::time::Span;

use super::output::{Fetched, Output};
use crate::call_words;
use crate::daemon::Daemon;
use crate::desk::{RunResult, Source};

/// The largest response: four workers, the default, hold 64 MiB at most.
const BODY_MAX: usize = 16 << 20;

/// How long a fetch with its delivery may take: a response that drips must not hold a worker for ever.
const FETCH_MAX: Duration = Duration::from_secs(600);

/// The caller of all sources: `callers: { scheduler: … }` gives them a priority and a share.
pub(super) const CALLER: &str = "scheduler";

/// How a fetch ended, and what it has brought.
#[derive(Debug)]
pub(super) struct FetchEnd {
    pub(super) end: RunEnd,
    /// Of a denial nothing.
    pub(super) result: Option<RunResult>,
    /// Where the response came from.
    pub(super) from: &'static str,
    /// Why a permit was denied.
    pub(super) reason: &'static str,
}

impl FetchEnd {
    pub(super) fn failed(status: Option<u16>, why: String) -> FetchEnd {
        FetchEnd {
            end: RunEnd::Failed,
            result: Some(RunResult {
                outcome: "failed".to_owned(),
                status,
                error: Some(why),
                ..RunResult::default()
            }),
            from: "",
            reason: "",
        }
    }

    fn denied(reason: &'static str, retry_in: Option<Span>) -> FetchEnd {
        FetchEnd {
            end: RunEnd::Denied(retry_in),
            result: None,
            from: "",
            reason,
        }
    }
}

/// What a call for this source is, for its capacity and for itself.
pub(super) fn call_of(source: &Source, id: Arc<str>) -> Option<(Target, CallOptions)> {
    let target = call_words::url(&source.url)?;
    let priority = source.priority.as_deref().and_then(call_words::priority);
    let options = CallOptions {
        id,
        priority: priority.unwrap_or_default(),
        uses_default_priority: priority.is_none(),
        caller: Some(CALLER.to_owned()),
        is_operator: true,
        no_wait: true,
        ..CallOptions::default()
    };
    Some((target, options))
}

/// Fetches a source and delivers what it has brought.
pub(super) async fn fetch(daemon: &Daemon, source: &Source, id: Arc<str>) -> FetchEnd {
    let fetched = timeout(FETCH_MAX, fetch_and_deliver(daemon, source, id));
    fetched.await.unwrap_or_else(|_late| {
        FetchEnd::failed(None, "the fetch took more than 10 minutes".to_owned())
    })
}

async fn fetch_and_deliver(daemon: &Daemon, source: &Source, id: Arc<str>) -> FetchEnd {
    let Some((target, options)) = call_of(source, id) else {
        return FetchEnd::failed(None, "the URL is not valid".to_owned());
    };
    let Some(output) = Output::parse(source.output.as_deref()) else {
        return FetchEnd::failed(None, "the output is not valid".to_owned());
    };
    let fetched = match response(daemon, target, options).await {
        Ok(fetched) => fetched,
        Err(end) => return end,
    };
    let mut result = RunResult {
        outcome: "ok".to_owned(),
        status: Some(fetched.status),
        bytes: fetched.body.len() as u64,
        ..RunResult::default()
    };
    let from = fetched.from;
    let end = match output.deliver(daemon, &source.name, fetched).await {
        Ok(place) => {
            result.output = place;
            RunEnd::Done
        }
        Err(why) => {
            result.outcome = "undelivered".to_owned();
            result.error = Some(why);
            RunEnd::Undelivered
        }
    };
    FetchEnd {
        end,
        result: Some(result),
        from,
        reason: "",
    }
}

async fn response(
    daemon: &Daemon,
    target: Target,
    options: CallOptions,
) -> Result<Fetched, FetchEnd> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(USER_AGENT, HeaderValue::from_static("tollgate"));
    let call = HttpCall {
        target,
        method: Method::GET,
        headers,
        body: Full::new(Bytes::new()),
        options,
    };
    let registry = daemon.registry();
    let mut trace = CallTrace::default();
    let reply = Box::pin(path::call(registry, call, &mut trace)).await;
    let reply = reply.map_err(|error| match denial(&error) {
        Some(reason) => FetchEnd::denied(reason.as_str(), error.retry_in()),
        None => FetchEnd::failed(None, error.to_string()),
    })?;
    let (status, from) = (reply.head.status, reply.source.as_str());
    if status == StatusCode::TOO_MANY_REQUESTS {
        // The path has closed what the provider closed, so the next look at its capacity says until when.
        return Err(FetchEnd::denied("provider", None));
    }
    if !status.is_success() {
        let why = format!("the provider responded with {}", status.as_u16());
        return Err(FetchEnd::failed(Some(status.as_u16()), why));
    }
    let body = Limited::new(reply.body, BODY_MAX).collect().await;
    let body = body.map_err(|error| {
        let why = match error.downcast_ref::<LengthLimitError>() {
            Some(_) => "the response is larger than 16 MiB",
            None => "the response broke off",
        };
        FetchEnd::failed(Some(status.as_u16()), why.to_owned())
    })?;
    Ok(Fetched {
        status: status.as_u16(),
        content_type: reply.head.headers.get(CONTENT_TYPE).cloned(),
        body: body.to_bytes(),
        from,
        at: registry.ledger().wall(),
    })
}

/// Why there is no permit, if waiting helps.
fn denial(error: &Error) -> Option<Reason> {
    error.reason().filter(|reason| match reason {
        Reason::Limit
        | Reason::Spread
        | Reason::Ahead
        | Reason::Cooldown
        | Reason::Concurrency
        | Reason::OffPeak
        | Reason::QueueFull
        | Reason::Sleep
        | Reason::Paused
        | Reason::Degraded
        | Reason::CacheOnly
        | Reason::StoreLost
        | Reason::NoDescriptors
        | Reason::PermitsOpen
        | Reason::ShuttingDown => true,
        Reason::Deadline | Reason::TooCostly | Reason::NoShare | Reason::CacheRequested => false,
    })
}
