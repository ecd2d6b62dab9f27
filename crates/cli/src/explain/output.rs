//! What was read from a response, as JSON.
//!
//! Promises: the field names and formats of the interface: times as RFC 3339 in UTC with
//! milliseconds only where there are some, seconds as a number, what is unknown as null.
//!
//! Never: shows a body or a header; providers echo keys in them.

use serde::Serialize;
use serde_json::{Number, Value};
use tollgate_core::feedback::{Feedback, LimitVerdict, Window, WindowUnit};
use tollgate_core::time::{Span, Wall};

/// One line of `--jsonl`.
#[derive(Debug, Serialize)]
pub(crate) struct JsonlLine<'a> {
    id: &'a Value,
    #[serde(flatten)]
    reading: Reading<'a>,
}

impl<'a> JsonlLine<'a> {
    pub(crate) fn new(id: &'a Value, feedback: &'a Feedback) -> JsonlLine<'a> {
        JsonlLine {
            id,
            reading: Reading::new(feedback),
        }
    }
}

/// The output for one response: the reading, and its parts.
#[derive(Debug, Serialize)]
pub(crate) struct Detail<'a> {
    provider: &'a str,
    #[serde(flatten)]
    reading: Reading<'a>,
    verdict: &'static str,
    windows: Vec<WindowJson<'a>>,
}

impl<'a> Detail<'a> {
    pub(crate) fn new(provider: &'a str, feedback: &'a Feedback, now: Wall) -> Detail<'a> {
        let verdict = match feedback.verdict {
            LimitVerdict::Passed => "passed",
            LimitVerdict::Limited => "limited",
            LimitVerdict::Spent => "spent",
            LimitVerdict::Overloaded => "overloaded",
        };
        let windows = feedback
            .windows
            .iter()
            .map(|window| WindowJson::new(window, now))
            .collect();
        Detail {
            provider,
            reading: Reading::new(feedback),
            verdict,
            windows,
        }
    }
}

#[derive(Debug, Serialize)]
struct Reading<'a> {
    limited: bool,
    remaining: Option<u64>,
    limit: Option<u64>,
    reset_at: Option<String>,
    wait_seconds: Option<Number>,
    scope: Option<&'a str>,
}

impl<'a> Reading<'a> {
    fn new(feedback: &'a Feedback) -> Reading<'a> {
        Reading {
            limited: feedback.limited(),
            remaining: feedback.remaining,
            limit: feedback.limit,
            reset_at: feedback.reset_at.map(rfc3339),
            wait_seconds: feedback.wait.and_then(seconds),
            scope: feedback.scope.as_deref(),
        }
    }
}

#[derive(Debug, Serialize)]
struct WindowJson<'a> {
    name: Option<&'a str>,
    unit: &'static str,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_at: Option<String>,
    period_seconds: Option<Number>,
}

impl<'a> WindowJson<'a> {
    fn new(window: &'a Window, now: Wall) -> WindowJson<'a> {
        let unit = match window.unit {
            WindowUnit::Requests => "requests",
            WindowUnit::Tokens => "tokens",
            WindowUnit::Points => "points",
            WindowUnit::Bytes => "bytes",
            WindowUnit::Concurrent => "concurrent",
        };
        WindowJson {
            name: window.name.as_deref(),
            unit,
            limit: window.limit,
            remaining: window.remaining,
            reset_at: window.reset.map(|reset| rfc3339(now + reset)),
            period_seconds: window.period.and_then(seconds),
        }
    }
}

/// Microseconds as milliseconds, to the nearest.
fn millis(micros: u64) -> u64 {
    micros.saturating_add(500) / 1_000
}

/// A whole number where it is one, so that 30 stays 30.
fn seconds(span: Span) -> Option<Number> {
    let millis = millis(span.0);
    if millis.is_multiple_of(1_000) {
        return Some((millis / 1_000).into());
    }
    // Through text: the nearest double to a decimal with three digits prints as that decimal.
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
        .parse()
        .ok()
        .and_then(Number::from_f64)
}

fn rfc3339(at: Wall) -> String {
    let millis = millis(at.0);
    let stamp = i64::try_from(millis)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let stamp = stamp.unwrap_or(jiff::Timestamp::MAX);
    let digits = if millis.is_multiple_of(1_000) { 0 } else { 3 };
    format!("{stamp:.digits$}")
}
