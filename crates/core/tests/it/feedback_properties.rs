//! R-A14, A9: whatever a provider sends, the feedback stays within its bounds.

use crate::vector::instant;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::Value;
use tollgate_core::feedback::{
    COUNT_MAX, Dialects, Feedback, HORIZON, LimitVerdict, Response, read,
};
use tollgate_core::time::{Span, Wall};

const PUBLISHED: &str = include_str!("../data/rate_limit_responses.jsonl");
const NOW: Wall = Wall(1_794_744_000_000_000);

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 256,
        rng_seed: RngSeed::Fixed(0x70_11_6a_7e),
        ..Default::default()
    }
}

/// Names that some family reads, so that hostile values reach its code.
const NAMES: &[&str] = &[
    "Retry-After",
    "retry-after-ms",
    "x-amz-retry-after",
    "Date",
    "Age",
    "RateLimit",
    "RateLimit-Policy",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-RateLimit-Used",
    "X-RateLimit-Reset-After",
    "X-RateLimit-Limit-Tokens",
    "X-RateLimit-Remaining-Tokens",
    "X-RateLimit-Reset-Tokens",
    "anthropic-ratelimit-requests-remaining",
    "X-Ratelimit",
    "X-App-Rate-Limit",
    "X-App-Rate-Limit-Count",
    "zendesk-ratelimit-a",
    "Sforce-Limit-Info",
    "x-ms-ratelimit-remaining-resource",
    "X-MBX-USED-WEIGHT-1M",
    "X-RateLimit-Bucket",
    "Content-Type",
    "x-amzn-ErrorType",
];

/// Values that are realistic enough to pass the first check.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<Vec<u8>>(),
        "[0-9]{1,22}(\\.[0-9]{0,22})?".prop_map(String::into_bytes),
        "[-+0-9a-zA-Z:;=,./\" ]{0,60}".prop_map(String::into_bytes),
        "[A-Z][a-z]{2}, [0-9]{1,2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
            .prop_map(String::into_bytes),
        "[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\\.[0-9]{1,9})?)?(Z|[+-][0-9]{4})?"
            .prop_map(String::into_bytes),
        "([0-9]{1,9}(\\.[0-9]{1,9})?(h|m|s|ms|us|ns)){1,8}".prop_map(String::into_bytes),
        "(\"[a-z]{0,3}\";(r|t|q|w)=-?[0-9]{1,16}(;t=[0-9]{1,5})?,? ?){0,5}"
            .prop_map(String::into_bytes),
        "(limit|remaining|reset|total|resets)=[0-9]{0,20}[;,] ?".prop_map(String::into_bytes),
        "([0-9]{1,20}[:/;][0-9]{1,20},?){0,5}".prop_map(String::into_bytes),
    ]
}

fn status() -> impl Strategy<Value = u16> {
    const LIKELY: &[u16] = &[
        200, 301, 304, 400, 401, 403, 418, 420, 429, 500, 503, 509, 529,
    ];
    prop_oneof![9 => proptest::sample::select(LIKELY), 1 => any::<u16>()]
}

fn lines() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = prop_oneof![
        9 => proptest::sample::select(NAMES).prop_map(str::to_owned),
        1 => "[ -~]{0,40}",
    ];
    proptest::collection::vec((name, value()), 0..12)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let bodies: Vec<String> = PUBLISHED
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|vector| vector["body"].as_str().map(str::to_owned))
        .collect();
    let cut = proptest::sample::select(bodies);
    let cut = (
        cut,
        any::<proptest::sample::Index>(),
        any::<u8>(),
        any::<bool>(),
    );
    prop_oneof![
        any::<Vec<u8>>(),
        // A real body with one byte changed or the end cut off.
        cut.prop_map(|(body, at, byte, truncate)| {
            let mut body = body.into_bytes();
            if body.is_empty() {
                return body;
            }
            let at = at.index(body.len());
            if truncate {
                body.truncate(at);
            } else {
                body[at] = byte;
            }
            body
        }),
    ]
}

fn read_lines(name: &str, status: u16, lines: &[(String, Vec<u8>)], body: &[u8]) -> Feedback {
    let dialects = Dialects::built_in();
    let headers: Vec<(&str, &[u8])> = lines
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_slice()))
        .collect();
    read(
        &Response {
            status,
            headers: &headers,
            body,
        },
        dialects.get(name).unwrap(),
        NOW,
    )
}

/// Every promise about bounds.
fn assert_bounded(feedback: &Feedback) {
    assert!(
        feedback.wait.is_none_or(|wait| wait <= HORIZON),
        "{feedback:?}"
    );
    assert!(
        feedback
            .reset_at
            .is_none_or(|at| at >= NOW && at <= NOW + HORIZON),
        "{feedback:?}"
    );
    assert!(
        feedback.remaining.is_none_or(|count| count <= COUNT_MAX),
        "{feedback:?}"
    );
    assert!(
        feedback.limit.is_none_or(|count| count <= COUNT_MAX),
        "{feedback:?}"
    );
    for window in &feedback.windows {
        assert!(
            window.remaining.is_none_or(|count| count <= COUNT_MAX),
            "{feedback:?}"
        );
        assert!(
            window.limit.is_none_or(|count| count <= COUNT_MAX),
            "{feedback:?}"
        );
        assert!(
            window.reset.is_none_or(|reset| reset <= HORIZON),
            "{feedback:?}"
        );
    }
    let names = feedback
        .windows
        .iter()
        .filter_map(|window| window.name.as_ref());
    for name in names.chain(&feedback.scope) {
        assert!(
            name.len() <= 128 && name.chars().all(|c| (' '..='~').contains(&c)),
            "{feedback:?}"
        );
    }
    if let Some(wait) = feedback.wait {
        assert_eq!(feedback.reset_at, Some(NOW + wait), "{feedback:?}");
    }
    if feedback.verdict == LimitVerdict::Passed && feedback.wait.is_some() {
        assert_eq!(feedback.remaining, Some(0), "{feedback:?}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn r_a14_nothing_a_provider_sends_breaks_the_bounds(
        status in status(),
        lines in lines(),
        body in body(),
        provider in any::<proptest::sample::Index>(),
    ) {
        let dialects = Dialects::built_in();
        let names: Vec<&str> = dialects.names().collect();
        assert_bounded(&read_lines(names[provider.index(names.len())], status, &lines, &body));
    }

    #[test]
    fn a9_seconds_up_to_31_days_are_honoured_as_given(seconds in 0_u64..=2_678_400) {
        let lines = [("Retry-After".to_owned(), seconds.to_string().into_bytes())];
        let feedback = read_lines("generic", 429, &lines, b"");
        prop_assert_eq!(feedback.wait, Some(Span::from_secs(seconds)));
    }

    #[test]
    fn a9_longer_waits_and_signs_count_as_absent(seconds in 2_678_401_u64..1_000_000_000) {
        for text in [seconds.to_string(), format!("-{seconds}"), format!("+{}", seconds % 100)] {
            let lines = [("Retry-After".to_owned(), text.into_bytes())];
            prop_assert_eq!(read_lines("generic", 429, &lines, b"").wait, None);
        }
    }

    #[test]
    fn order_and_case_of_header_names_do_not_matter(
        vector in proptest::sample::select(vectors()),
        keys in proptest::collection::vec(any::<u64>(), 16),
        upper in any::<bool>(),
    ) {
        let (straight, mixed) = both_orders(&vector, &keys, upper);
        prop_assert_eq!(straight, mixed, "{}", vector["id"]);
    }

    #[test]
    fn a_repeated_value_counts_at_its_worst_in_either_order(a in 0_u64..99, b in 0_u64..99) {
        let line = |name: &str, value: u64| (name.to_owned(), value.to_string().into_bytes());
        let lines = |first, second| [
            line("X-RateLimit-Remaining", first), line("X-RateLimit-Remaining", second),
            line("Retry-After", first), line("Retry-After", second),
        ];
        let feedback = read_lines("generic", 429, &lines(a, b), b"");
        prop_assert_eq!(&feedback, &read_lines("generic", 429, &lines(b, a), b""));
        prop_assert_eq!((feedback.remaining, feedback.wait), (Some(a.min(b)), Some(Span::from_secs(a.max(b)))));
    }
}

fn vectors() -> Vec<Value> {
    PUBLISHED
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// One vector as published, and with names in another case and order (lines with the same name
/// stay in order: HTTP gives that order a meaning).
fn both_orders(vector: &Value, keys: &[u64], upper: bool) -> (Feedback, Feedback) {
    let dialects = Dialects::built_in();
    let dialect = dialects.get(vector["provider"].as_str().unwrap()).unwrap();
    let now = instant(vector["now"].as_str().unwrap());
    let status = u16::try_from(vector["status"].as_u64().unwrap()).unwrap();
    let body = vector["body"].as_str().unwrap_or("").as_bytes();
    let lines: Vec<(String, &[u8])> = vector["headers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            (
                line[0].as_str().unwrap().to_owned(),
                line[1].as_str().unwrap().as_bytes(),
            )
        })
        .collect();
    let mut mixed = lines.clone();
    let key = |name: &str| keys[name.len() % keys.len()] ^ u64::from(name.as_bytes()[0]);
    mixed.sort_by_key(|(name, _)| key(&name.to_ascii_lowercase()));
    for (name, _) in &mut mixed {
        *name = if upper {
            name.to_ascii_uppercase()
        } else {
            name.to_ascii_lowercase()
        };
    }
    let read_all = |lines: &[(String, &[u8])]| {
        let headers: Vec<(&str, &[u8])> = lines.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let mut feedback = read(
            &Response {
                status,
                headers: &headers,
                body,
            },
            dialect,
            now,
        );
        feedback.windows.sort_by_key(|window| format!("{window:?}"));
        feedback
    };
    (read_all(&lines), read_all(&mixed))
}
