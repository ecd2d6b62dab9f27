//! S4, A9, A11: every response of the data files gives the feedback that its vector expects.
//!
//! `rate_limit_responses.jsonl` are the vectors that the rules were published with;
//! `variants.jsonl` are more of every family: other numbers and cases, repeated, missing and
//! hostile parts.

use crate::vector::{differences, feedback};
use serde_json::Value;
use std::collections::BTreeMap;
use tollgate_core::feedback::Dialects;

const PUBLISHED: &str = include_str!("../data/rate_limit_responses.jsonl");
const VARIANTS: &str = include_str!("../data/variants.jsonl");

fn vectors(file: &str) -> Vec<Value> {
    file.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// `ra-delta-01` and `ra-delta-v2` are both of the family `ra-delta`.
fn families(file: &str) -> BTreeMap<String, usize> {
    let mut families = BTreeMap::new();
    for vector in vectors(file) {
        let (family, _) = vector["id"].as_str().unwrap().rsplit_once('-').unwrap();
        *families.entry(family.to_owned()).or_default() += 1;
    }
    families
}

fn assert_all(file: &str) {
    let dialects = Dialects::built_in();
    let mut wrong = Vec::new();
    for vector in vectors(file) {
        for difference in differences(&feedback(&dialects, &vector), &vector) {
            wrong.push(format!("{} {difference}", vector["id"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn s4_a9_a11_every_published_vector_is_read_as_expected() {
    assert_all(PUBLISHED);
    assert_eq!(vectors(PUBLISHED).len(), 172);
}

#[test]
fn s4_a9_a11_every_variant_is_read_as_expected() {
    assert_all(VARIANTS);
}

#[test]
fn every_family_has_at_least_three_variants() {
    let variants = families(VARIANTS);
    for family in families(PUBLISHED).keys() {
        assert!(
            variants.get(family).is_some_and(|count| *count >= 3),
            "{family}"
        );
    }
}

#[test]
fn every_provider_of_the_vectors_has_a_dialect() {
    let dialects = Dialects::built_in();
    for vector in vectors(PUBLISHED) {
        let provider = vector["provider"].as_str().unwrap();
        assert!(dialects.get(provider).is_some(), "{provider}");
    }
}
