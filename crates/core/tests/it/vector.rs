//! A response and the expected feedback, as the vector files write them.
//!
//! Promises: the same comparison for the published vectors and for the variants in the tests:
//! counts, scope and verdict exactly, times to the millisecond.

use serde_json::Value;
use tollgate_core::feedback::{Dialects, Feedback, Response, read};
use tollgate_core::time::Wall;

/// How far a time may be off: vectors are rounded to the millisecond.
const TOLERANCE_US: u64 = 1_000;

pub(crate) fn instant(text: &str) -> Wall {
    let at: jiff::Timestamp = text.parse().unwrap();
    Wall(u64::try_from(at.as_microsecond()).unwrap())
}

/// Reads the response of one vector.
pub(crate) fn feedback(dialects: &Dialects, vector: &Value) -> Feedback {
    let provider = vector["provider"].as_str().unwrap_or("generic");
    let dialect = dialects.get(provider).unwrap_or(dialects.generic());
    let headers: Vec<(&str, &[u8])> = vector["headers"]
        .as_array()
        .map(|lines| lines.iter().map(text_pair).collect())
        .unwrap_or_default();
    let response = Response {
        status: u16::try_from(vector["status"].as_u64().unwrap()).unwrap(),
        headers: &headers,
        body: vector["body"].as_str().unwrap_or("").as_bytes(),
    };
    read(&response, dialect, instant(now(vector)))
}

fn text_pair(line: &Value) -> (&str, &[u8]) {
    (
        line[0].as_str().unwrap(),
        line[1].as_str().unwrap().as_bytes(),
    )
}

fn now(vector: &Value) -> &str {
    vector["now"].as_str().unwrap_or("2026-11-15T12:00:00Z")
}

/// Every difference between the feedback and the vector's expectation.
pub(crate) fn differences(got: &Feedback, vector: &Value) -> Vec<String> {
    let expect = &vector["expect"];
    let mut wrong = Vec::new();
    let mut compare = |what: &str, same: bool, got: String| {
        if !same {
            wrong.push(format!("{what}: expected {}, got {got}", expect[what]));
        }
    };
    let at = expect["reset_at"].as_str().map(|text| instant(text).0);
    let seconds = expect["wait_seconds"].as_f64();
    let wait = seconds.map(|seconds| format!("{:.0}", seconds * 1e6).parse().unwrap());
    compare(
        "limited",
        expect["limited"] == got.limited(),
        format!("{:?}", got.verdict),
    );
    compare(
        "remaining",
        expect["remaining"].as_u64() == got.remaining,
        text(got.remaining),
    );
    compare(
        "limit",
        expect["limit"].as_u64() == got.limit,
        text(got.limit),
    );
    compare(
        "reset_at",
        near(at, got.reset_at.map(|at| at.0)),
        text(got.reset_at),
    );
    compare(
        "wait_seconds",
        near(wait, got.wait.map(|wait| wait.0)),
        text(got.wait),
    );
    compare(
        "scope",
        expect["scope"].as_str() == got.scope.as_deref(),
        text(&got.scope),
    );
    wrong
}

fn near(a: Option<u64>, b: Option<u64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= TOLERANCE_US,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn text(value: impl std::fmt::Debug) -> String {
    format!("{value:?}")
}
