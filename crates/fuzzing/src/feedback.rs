//! R-A14: no response exceeds the bounds of the feedback read from it.
//!
//! An input is a response as text: `provider status`, header lines, an empty line, the body. So a
//! crash is readable, and the responses of the test vectors are the seeds.
//!
//! Promises: every built-in dialect can be reached by its name.
//!
//! Never: judges what a response means; the vectors of `core` do.

use std::sync::LazyLock;

use tollgate_core::feedback::{
    COUNT_MAX, Dialects, Feedback, HORIZON, LimitVerdict, Response, read,
};
use tollgate_core::time::Wall;

use crate::split;

const NOW: Wall = Wall(1_794_744_000_000_000);

static DIALECTS: LazyLock<Dialects> = LazyLock::new(Dialects::built_in);

/// Reads the response.
pub fn run(input: &[u8]) {
    let (head, body) = split(input, b"\n\n");
    let (first, lines) = split(head, b"\n");
    let first = String::from_utf8_lossy(first);
    let (provider, status) = first.split_once(' ').unwrap_or((&first, "429"));
    let dialect = DIALECTS.get(provider).unwrap_or(DIALECTS.generic());
    let headers: Vec<(&str, &[u8])> = lines
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let (name, value) = split(line, b":");
            Some((std::str::from_utf8(name).ok()?, value))
        })
        .collect();
    let status = status.parse().unwrap_or(429);
    let response = Response {
        status,
        headers: &headers,
        body,
    };
    check(&read(&response, dialect, NOW));
}

fn check(feedback: &Feedback) {
    assert!(feedback.wait.is_none_or(|wait| wait <= HORIZON));
    assert!(
        feedback
            .reset_at
            .is_none_or(|at| at >= NOW && at <= NOW + HORIZON)
    );
    assert!(feedback.remaining.is_none_or(|count| count <= COUNT_MAX));
    assert!(feedback.limit.is_none_or(|count| count <= COUNT_MAX));
    assert!(
        feedback
            .windows
            .iter()
            .all(|window| window.reset.is_none_or(|reset| reset <= HORIZON))
    );
    let scope = feedback.scope.as_ref();
    assert!(scope.is_none_or(|scope| scope.len() <= 128));
    assert!(
        feedback.verdict != LimitVerdict::Passed
            || feedback.wait.is_none()
            || feedback.remaining == Some(0)
    );
}
