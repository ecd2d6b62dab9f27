//! `docs/dialects.md` is correct: its examples are run, and no dialect is missing.

use crate::vector::instant;
use tollgate_core::feedback::{Dialects, Feedback, LimitVerdict, Response, read};
use tollgate_core::time::Wall;

const PAGE: &str = include_str!("../../../../docs/dialects.md");

/// One row of an example table: provider, status, header lines and body, the claimed feedback.
struct Example {
    provider: String,
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    claim: String,
}

impl Example {
    /// Reads `| provider | status | `Name: value`<br>`body: …` | read as |`; other lines are prose.
    fn parse(line: &str) -> Option<Example> {
        let cells: Vec<&str> = line
            .strip_prefix("| ")?
            .strip_suffix(" |")?
            .split(" | ")
            .collect();
        let [provider, status, response, claim] = cells.as_slice() else {
            return None;
        };
        let mut example = Example {
            provider: (*provider).to_owned(),
            status: status.parse().ok()?,
            headers: Vec::new(),
            body: String::new(),
            claim: (*claim).to_owned(),
        };
        for part in response.split("<br>") {
            let (name, value) = part.trim_matches('`').split_once(": ")?;
            if name == "body" {
                value.clone_into(&mut example.body);
            } else {
                example.headers.push((name.to_owned(), value.to_owned()));
            }
        }
        Some(example)
    }
}

/// The feedback in the format of the page.
fn describe(feedback: &Feedback, now: Wall) -> String {
    let verdict = match feedback.verdict {
        LimitVerdict::Passed => "passed",
        LimitVerdict::Limited => "limited",
        LimitVerdict::Spent => "spent",
        LimitVerdict::Overloaded => "overloaded",
    };
    let seconds = |micros: u64| {
        let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let remaining = match (feedback.remaining, feedback.limit) {
        (Some(remaining), Some(limit)) => Some(format!("{remaining} of {limit} left")),
        (Some(remaining), None) => Some(format!("{remaining} left")),
        (None, Some(limit)) => Some(format!("limit {limit}")),
        (None, None) => None,
    };
    let reset = feedback
        .reset_at
        .map(|at| format!("resets in {} s", seconds(at.since(now).0)));
    let time = feedback
        .wait
        .map(|wait| format!("wait {} s", seconds(wait.0)))
        .or(reset);
    let scope = feedback
        .scope
        .as_ref()
        .map(|scope| format!("scope {scope}"));
    let parts = [Some(verdict.to_owned()), remaining, time, scope];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[test]
fn s4_a9_every_example_of_the_page_is_read_as_it_says() {
    let dialects = Dialects::built_in();
    let now = instant("2026-11-15T12:00:00Z");
    let mut examples = 0;
    for example in PAGE.lines().filter_map(Example::parse) {
        let headers: Vec<(&str, &[u8])> = example
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let body = example.body.as_bytes();
        let response = Response {
            status: example.status,
            headers: &headers,
            body,
        };
        let feedback = read(&response, dialects.get(&example.provider).unwrap(), now);
        assert_eq!(
            describe(&feedback, now),
            example.claim,
            "{} {:?}",
            example.provider,
            headers
        );
        examples += 1;
    }
    assert!(examples > 80, "the tables were not found: {examples}");
}

#[test]
fn every_built_in_dialect_is_named_on_the_page() {
    for name in Dialects::built_in().names() {
        assert!(PAGE.contains(&format!("\n| `{name}` | ")), "{name}");
    }
}
