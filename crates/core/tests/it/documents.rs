//! What two of the documents say about responses, sentence by sentence: where limits are read from
//! (S4), and how a `Retry-After` is bounded (A9).

use std::sync::Arc;

use smallvec::smallvec;
use tollgate_core::ask::{
    Ask, CellId, Evidence, LimitReading, Outcome, OwnerId, PermitId, Priority, Scopes, Settle,
    Term, Verdict,
};
use tollgate_core::backoff::{RETRY_AFTER_FLOOR, effective_retry_after};
use tollgate_core::feedback::{Dialects, Feedback, Response, read};
use tollgate_core::limit::Rule;
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_core::turn::turn;

use crate::vector::instant;

const NOW: &str = "2026-11-15T12:00:00Z";

fn feedback_for(provider: &str, status: u16, headers: &[(&str, &str)], body: &str) -> Feedback {
    let dialects = Dialects::built_in();
    let headers: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    let response = Response {
        status,
        headers: &headers,
        body: body.as_bytes(),
    };
    let dialect = dialects.get(provider).unwrap_or(dialects.generic());
    read(&response, dialect, instant(NOW))
}

/// S4: remaining, limit and reset from `X-RateLimit-*` headers and from both forms of the body.
#[test]
fn s4_limits_are_read_from_headers_and_from_both_bodies() {
    let reset = instant("2026-11-15T12:10:00Z");
    let headers = [
        ("X-RateLimit-Remaining", "150"),
        ("X-RateLimit-Limit", "3000"),
        ("X-RateLimit-Reset", "1794744600"),
    ];
    let from_headers = feedback_for("sportmonks", 200, &headers, "{}");
    let document =
        r#"{"data":[],"rate_limit":{"remaining":150,"limit":3000,"reset_at":1794744600}}"#;
    let from_body = feedback_for("sportmonks", 200, &[], document);
    for feedback in [&from_headers, &from_body] {
        assert_eq!(
            (feedback.remaining, feedback.limit),
            (Some(150), Some(3_000))
        );
        assert_eq!(feedback.reset_at, Some(reset));
    }
    let provider =
        r#"{"rate_limit":{"resets_in_seconds":600,"remaining":150,"requested_entity":"Fixture"}}"#;
    let feedback = feedback_for("sportmonks", 200, &[], provider);
    assert_eq!(feedback.remaining, Some(150));
    assert_eq!(feedback.reset_at, Some(reset));
    assert_eq!(feedback.scope.as_deref(), Some("Fixture"));
}

/// S4: the local count follows the provider's count down, and never up.
#[test]
fn s4_the_local_count_follows_the_provider_down() {
    let left_after = |said: u64| {
        let mut table = Table::default();
        let rule = Arc::new(Rule::sliding(3_000, Span::from_secs(3_600)).unwrap());
        let cell = CellId::named(&["sports", "fixtures"]);
        let now = Now {
            at: Micros(1_000_000_000),
            wall: Wall(0),
        };
        let ask = Ask {
            id: PermitId {
                owner: OwnerId(1),
                seq: 1,
            },
            terms: smallvec![Term {
                cell,
                rule: rule.clone(),
                cost: 1,
                reserve: 0,
            }],
            scopes: Scopes::new(),
            priority: Priority::Normal,
            max_wait: Span::ZERO,
            evidence: Evidence::Report {
                timeout: Span::from_secs(30),
                late: Span::from_secs(5),
            },
        };
        let granted = turn(&mut table, now, &[], std::slice::from_ref(&ask)).verdicts;
        let Verdict::Go { marks } = &granted[0] else {
            panic!("{granted:?}");
        };
        let reading = LimitReading {
            mark: marks[0],
            remaining: Some(said),
            reset_after: Some(Span::from_secs(600)),
            ..LimitReading::default()
        };
        let arrived = Settle::Permit {
            id: ask.id,
            terms: ask.terms,
            scopes: Scopes::new(),
            outcome: Outcome::Arrived {
                age: Span::ZERO,
                limited: false,
                readings: vec![reading],
            },
        };
        turn(&mut table, now, &[arrived], &[]);
        table.peek(cell, &rule, now).remaining
    };
    assert_eq!(left_after(150), 150);
    assert_eq!(left_after(2_999), 2_999);
    assert_eq!(left_after(9_000), 2_999, "never up");
}

/// A9: how a `Retry-After` is bounded, from the header to the wait.
#[test]
fn a9_retry_after_is_honoured_floored_or_absent() {
    let waits = |value: &str| {
        let wait = feedback_for("tmdb", 429, &[("Retry-After", value)], "").wait;
        effective_retry_after(wait, RETRY_AFTER_FLOOR).map(|wait| wait.0 / 1_000)
    };
    assert_eq!(waits("2"), Some(2_000));
    assert_eq!(waits("Sun, 15 Nov 2026 12:00:30 GMT"), Some(30_000));
    assert_eq!(waits("0"), Some(1_000));
    assert_eq!(waits("Sun, 15 Nov 2026 11:00:00 GMT"), Some(1_000));
    assert_eq!(waits("2678400"), Some(2_678_400_000), "31 days");
    for absent in [
        "2678401",
        "-5",
        "+5",
        "soon",
        "",
        "1e3",
        "Sun, 99 Nov 2026 12:00:30 GMT",
    ] {
        assert_eq!(waits(absent), None, "{absent:?}");
    }
}

/// A9: the provider's own `Date` corrects clock skew: our clock is ten minutes ahead of its.
#[test]
fn a9_the_providers_date_corrects_skew() {
    let headers = [
        ("Date", "Sun, 15 Nov 2026 11:50:00 GMT"),
        ("Retry-After", "Sun, 15 Nov 2026 11:50:30 GMT"),
    ];
    let wait = feedback_for("tmdb", 429, &headers, "").wait;
    assert_eq!(wait, Some(Span::from_secs(30)));
}
