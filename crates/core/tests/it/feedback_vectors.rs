//! S4, A9: every published response is read as its vector says.

use crate::vector::{differences, feedback};
use serde_json::Value;
use tollgate_core::feedback::Dialects;

const VECTORS: &str = include_str!("../data/rate_limit_responses.jsonl");

#[test]
fn s4_a9_every_vector_is_read_as_expected() {
    let dialects = Dialects::built_in();
    let mut wrong = Vec::new();
    let mut read = 0;
    for line in VECTORS.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        read += 1;
        for difference in differences(&feedback(&dialects, &vector), &vector) {
            wrong.push(format!("{} {difference}", vector["id"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(read, 172);
}

#[test]
fn every_provider_of_the_vectors_has_a_dialect() {
    let dialects = Dialects::built_in();
    for line in VECTORS.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        let provider = vector["provider"].as_str().unwrap();
        assert!(dialects.get(provider).is_some(), "{provider}");
    }
}
