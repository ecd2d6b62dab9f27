//! The steps of a call in plain sentences.
//!
//! Promises: one sentence per step, in the order in which they happened; the last one says what the caller got.
//!
//! Never: repeats a query, a header, a body or a key.

use tollgate::error::Reason;
use tollgate::event::{CallEnd, CallResult, DecisionVerdict, Step, StepKind};
use tollgate_core::ask::Priority;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::{Span, Wall};

/// A shorter time for a permit is none: a store on disk takes that long.
const NOTICEABLE: Span = Span::from_millis(10);

/// When, of which kind, in words.
pub(super) type StepInWords = (Wall, &'static str, String);

pub(super) fn steps(end: &CallEnd) -> Vec<StepInWords> {
    let provider = end.provider.as_deref().unwrap_or("the provider");
    let steps = end.steps.iter();
    let mut all: Vec<StepInWords> = steps
        .map(|Step { at, kind }| {
            let (word, text) = step(kind, provider);
            (*at, word, text)
        })
        .collect();
    all.push((end.at, "end", last(end)));
    all
}

fn step(kind: &StepKind, provider: &str) -> (&'static str, String) {
    match kind {
        StepKind::Cached { source, age, why } => {
            let age = age.in_words();
            let text = match *why {
                "fresh" => format!("The cache had a fresh response, {age} old."),
                why => format!("The cache served a response that is {age} old ({why})."),
            };
            (source, text)
        }
        StepKind::Joined => {
            let text = "The same request was already under way: the call waited for its response.";
            ("joined", text.to_owned())
        }
        StepKind::Queued { ahead: 0 } => {
            let text = format!(
                "It asked for a permit; no call of the same or a higher priority waited for {provider}."
            );
            ("queued", text)
        }
        StepKind::Queued { ahead } => {
            let calls = if *ahead == 1 { "call" } else { "calls" };
            let text = format!(
                "It asked for a permit; {ahead} {calls} of the same or a higher priority waited for {provider} already."
            );
            ("queued", text)
        }
        StepKind::Decided(verdict, waited) => decided(verdict, *waited, provider),
        StepKind::Sent { attempt } => {
            ("sent", format!("Attempt {attempt} was sent to {provider}."))
        }
        StepKind::Response { status, class } => {
            let meaning = match class {
                Class::Success => "",
                Class::Limited => ": the provider limits calls",
                Class::ServerError => ": a failure of the provider",
                Class::Network => ": no response",
                Class::Other => ": no failure of the provider",
            };
            (
                "response",
                format!("{provider} responded with {status}{meaning}."),
            )
        }
        StepKind::Failed(fault) => {
            let why = match fault {
                Fault::Timeout => "it took too long",
                Fault::Dns => "its name could not be resolved",
                Fault::Connect => "no connection could be opened",
                Fault::Reset => "the connection broke",
            };
            ("failed", format!("{provider} did not respond: {why}."))
        }
        StepKind::Cooldown {
            duration,
            retry_after,
        } => {
            let asked = match retry_after {
                Some(asked) => format!(" (it asked for {})", asked.in_words()),
                None => String::new(),
            };
            let text = format!("{provider} cools down for {}{asked}.", duration.in_words());
            ("cooldown", text)
        }
        StepKind::RetryWait(after) => (
            "retry",
            format!("The call tries again in {}.", measured(*after)),
        ),
    }
}

fn decided(verdict: &DecisionVerdict, waited: Span, provider: &str) -> (&'static str, String) {
    match verdict {
        DecisionVerdict::Allowed if waited < NOTICEABLE => {
            ("allow", "It got a permit at once.".to_owned())
        }
        DecisionVerdict::Allowed => {
            let text = format!(
                "It got a permit after {}: no limit held it, the store that counts permits took so long.",
                measured(waited)
            );
            ("allow", text)
        }
        DecisionVerdict::Queued { limit, reason } => {
            let cause = cause(*reason, limit.as_deref(), provider);
            let text = format!("It got a permit after {}: {cause}.", measured(waited));
            ("queue", text)
        }
        DecisionVerdict::Rejected { limit, reason } => {
            let cause = match reason {
                Some(reason) => cause(*reason, limit.as_deref(), provider),
                None => "it cannot be made".to_owned(),
            };
            ("reject", format!("It got no permit: {cause}."))
        }
    }
}

/// A time between two lines of a timeline, with one decimal below ten seconds: `in_words` rounds up, for callers that
/// must not come back early.
fn measured(span: Span) -> String {
    match span.0 {
        1_000_000..10_000_000 => {
            let tenths = (span.0 + 50_000) / 100_000;
            format!("{}.{} s", tenths / 10, tenths % 10)
        }
        _ => span.in_words(),
    }
}

fn limit_of(limit: Option<&str>, provider: &str) -> String {
    match limit {
        Some(limit) => format!("the limit {limit}"),
        None => format!("a limit of {provider}"),
    }
}

/// Why a call waits or is rejected.
fn cause(reason: Reason, limit: Option<&str>, provider: &str) -> String {
    match (reason, limit) {
        (Reason::Limit, Some(limit)) => format!("the limit {limit} was used up"),
        (Reason::Limit, None) => format!("a limit of {provider} was used up"),
        (Reason::Spread, limit) => format!(
            "urgent calls were made, so calls of low priority were spread over {}",
            limit_of(limit, provider)
        ),
        (Reason::Ahead, limit) => format!(
            "what remained of {} was saved for calls that waited",
            limit_of(limit, provider)
        ),
        (Reason::Cooldown, _) => {
            format!("{provider} had sent a 429, and calls went as it accepts them")
        }
        (Reason::Sleep, _) => format!("{provider} slept after failures"),
        (Reason::Paused, _) => format!("{provider} was paused by an operator"),
        (Reason::Degraded, _) => {
            format!("little remained of a limit of {provider}, so only the cache responds")
        }
        (Reason::CacheOnly, _) => format!("{provider} is cache only"),
        (Reason::CacheRequested, _) => "the call asked for the cache only".to_owned(),
        (Reason::Concurrency, Some(limit)) => {
            format!("the limit on calls at a time was reached ({limit})")
        }
        (Reason::Concurrency, None) => "the limit on calls at a time was reached".to_owned(),
        (Reason::OffPeak, _) => "calls of low priority run in off-peak hours only".to_owned(),
        (Reason::QueueFull, _) => format!("the queue of {provider} was full"),
        (Reason::PermitsOpen, _) => "too many permits were open and not reported".to_owned(),
        (Reason::NoDescriptors, _) => "this process had no file descriptor left".to_owned(),
        (Reason::ShuttingDown, _) => "the daemon was shutting down".to_owned(),
        (Reason::Deadline, _) => "its own time was up".to_owned(),
        (Reason::StoreLost, _) => "the ledger's store could not be reached".to_owned(),
        (Reason::TooCostly, Some(limit)) => {
            format!("it costs more than the limit {limit} ever grants")
        }
        (Reason::TooCostly, None) => "it costs more than a limit ever grants".to_owned(),
        (Reason::NoShare, _) => "this node has no share of a limit".to_owned(),
    }
}

/// What the caller got.
fn last(end: &CallEnd) -> String {
    let from = match end.source {
        "cache" => " from the cache",
        "stale" => " from the cache, stale",
        "shared" => ", shared with other callers",
        "merged" => ", as a part of a merged call",
        _ => "",
    };
    match &end.result {
        CallResult::Response { status, .. } => format!("The caller got {status}{from}."),
        CallResult::Rejected(error) => {
            let (status, why) = (error.status().as_u16(), error.to_string());
            let why = why.trim_end_matches('.');
            format!("The caller got {status} from Tollgate: {why}.")
        }
        CallResult::NoResponse(fault) => {
            format!(
                "The caller reported that there was no response: {}.",
                fault.as_str()
            )
        }
        CallResult::ClientGone => "The caller left before there was a response.".to_owned(),
        CallResult::Panicked => "A defect of Tollgate ended the call.".to_owned(),
        CallResult::Unused => "The caller did not use its permit.".to_owned(),
        CallResult::Unreported => "The caller did not report what came of it.".to_owned(),
    }
}

pub(super) fn priority(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "high",
        Priority::Normal => "normal",
        Priority::Low => "low",
    }
}
