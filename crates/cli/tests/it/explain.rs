//! `tollgate explain`: S4, A9 from the outside.

use crate::{text, tollgate};
use serde_json::{Value, json};

const VECTORS: &str = include_str!("../../../core/tests/data/rate_limit_responses.jsonl");

#[test]
fn s4_a9_jsonl_output_matches_every_vector() {
    let output = tollgate(&["explain", "--jsonl"], VECTORS);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    let results: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected: Vec<Value> = VECTORS
        .lines()
        .map(|line| {
            let mut vector: Value = serde_json::from_str(line).unwrap();
            let mut expect = vector["expect"].take();
            expect["id"] = vector["id"].take();
            expect
        })
        .collect();
    assert_eq!(results, expected);
}

#[test]
fn jsonl_writes_the_fields_in_the_order_of_the_interface() {
    let line =
        r#"{"id":"a","now":"2026-11-15T12:00:00Z","status":429,"headers":[["Retry-After","1.5"]]}"#;
    let output = tollgate(&["explain", "--jsonl"], line);
    let expected = r#"{"id":"a","limited":true,"remaining":null,"limit":null,"reset_at":"2026-11-15T12:00:01.500Z","wait_seconds":1.5,"scope":null}"#;
    assert_eq!(text(&output.stdout).trim_end(), expected);
}

#[test]
fn a_bad_line_is_reported_with_its_fix_and_the_others_are_still_printed() {
    let good = r#"{"id":1,"status":429,"headers":{"retry-after":"30"}}"#;
    let bad = [
        r#"{"id":2,"status":"x"}"#,
        "nonsense",
        "[]",
        r#"{"status":200,"headers":[["a"]]}"#,
    ];
    let input = format!("{good}\n{}\n\n{good}", bad.join("\n"));
    let output = tollgate(&["explain", "--jsonl"], &input);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout).lines().count(), 2);
    let errors: Vec<&str> = text(&output.stderr).lines().collect();
    assert_eq!(
        errors,
        [
            "error: line 2: `status` is missing or no HTTP status; write a number like 429",
            "error: line 3: is not JSON from column 2 on; write one object per line",
            r#"error: line 4: is not an object; write {"status": 429, "headers": []}"#,
            r#"error: line 5: `headers` is not a list of pairs; write [["Retry-After", "30"]]"#,
        ]
    );
}

#[test]
fn jsonl_reads_a_provider_without_a_dialect_by_the_standard_rules() {
    let line = r#"{"id":1,"provider":"nobody","status":429,"headers":[["Retry-After","3"]]}"#;
    let output = tollgate(&["explain", "--jsonl"], line);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&result["limited"], &result["wait_seconds"]),
        (&json!(true), &json!(3))
    );
}

#[test]
fn one_response_from_options_shows_its_windows() {
    let args = [
        "explain",
        "--provider",
        "Sportmonks",
        "--status",
        "200",
        "--now",
        "2026-11-15T12:00:00Z",
        "--header",
        "x-ratelimit-remaining: 7",
        "-H",
        "X-RateLimit-Limit:10",
        "--body",
        "-",
    ];
    let body = r#"{"rate_limit":{"remaining":0,"resets_in_seconds":60,"requested_entity":"Odds"}}"#;
    let output = tollgate(&args, body);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["provider"], "sportmonks");
    assert_eq!(result["wait_seconds"], 60);
    assert_eq!(result["reset_at"], "2026-11-15T12:01:00Z");
    assert_eq!(result["scope"], "Odds");
    assert_eq!(result["verdict"], "passed");
    assert_eq!(result["windows"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_mistyped_provider_is_rejected_with_the_nearest_name() {
    let output = tollgate(&["explain", "--provider", "githbu", "--status", "429"], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("did you mean `github`?"),
        "{}",
        text(&output.stderr)
    );
    let output = tollgate(
        &["explain", "--provider", "something-else", "--status", "429"],
        "",
    );
    assert!(
        text(&output.stderr).contains("use `generic`"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn wrong_usage_exits_with_2_and_a_missing_body_with_1() {
    let code = |args: &[&str]| tollgate(args, "").status.code();
    assert_eq!(code(&["explain"]), Some(2), "no status");
    assert_eq!(
        code(&["explain", "--status", "429", "--header", "no colon"]),
        Some(2)
    );
    assert_eq!(
        code(&["explain", "--status", "429", "--now", "yesterday"]),
        Some(2)
    );
    assert_eq!(code(&["explain", "--jsonl", "--status", "429"]), Some(2));
    assert_eq!(
        code(&["explain", "--status", "429", "--body", "no/such/file"]),
        Some(1)
    );
}

#[test]
fn a_response_without_a_time_counts_as_received_now() {
    let output = tollgate(&["explain", "--status", "429", "-H", "Retry-After: 30"], "");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["wait_seconds"], 30);
    assert!(
        result["reset_at"]
            .as_str()
            .is_some_and(|at| at > "2026-01-01")
    );
}

#[test]
fn help_shows_an_example() {
    let output = tollgate(&["explain", "--help"], "");
    assert!(text(&output.stdout).contains("tollgate explain --jsonl < responses.jsonl"));
}
