//! A cost that a JSON body states: `max_tokens` of a request, `usage.total_tokens` of a response.
//!
//! Promises: reads every way in which JSON can write a number (`300`, `300.0`, `3e2`), also as text;
//! rounds up, and never below what is written. A number that is too large is the largest.
//!
//! Never: reads a negative number or anything else as a cost.

use serde_json::Value;
use tollgate_core::feedback::COUNT_MAX;

/// The number at a path such as `usage.total_tokens`.
pub(crate) fn at(json: &Value, path: &str) -> Option<u64> {
    let mut levels = path.split('.');
    let found = levels.try_fold(json, |at, level| at.get(level))?;
    match found {
        Value::Number(number) => number
            .as_u64()
            .or_else(|| number.as_f64().and_then(rounded_up)),
        Value::String(text) => text
            .parse()
            .ok()
            .or_else(|| text.parse().ok().and_then(rounded_up)),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Is something at that path that is no cost?
pub(crate) fn is_absurd(json: &Value, path: &str) -> bool {
    match at(json, path) {
        Some(stated) => stated > COUNT_MAX,
        None => is_stated(json, path),
    }
}

/// Is anything at that path, a number or not?
pub(crate) fn is_stated(json: &Value, path: &str) -> bool {
    let mut levels = path.split('.');
    let found = levels.try_fold(json, |at, level| at.get(level));
    found.is_some_and(|found| !found.is_null())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and the cast saturates"
)]
fn rounded_up(number: f64) -> Option<u64> {
    (number >= 0.0).then(|| number.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A former bug: a caller who wrote `300.0` paid the cost of a call that states none.
    #[test]
    fn every_way_to_write_a_number_is_read() {
        let cost = |text: &str| at(&serde_json::from_str(text).unwrap(), "usage.tokens");
        for (text, cost_read) in [
            (r#"{"usage": {"tokens": 300}}"#, Some(300)),
            (r#"{"usage": {"tokens": 300.0}}"#, Some(300)),
            (r#"{"usage": {"tokens": 3e2}}"#, Some(300)),
            (r#"{"usage": {"tokens": 300.2}}"#, Some(301)),
            (r#"{"usage": {"tokens": "300"}}"#, Some(300)),
            (r#"{"usage": {"tokens": "3e2"}}"#, Some(300)),
            (
                r#"{"usage": {"tokens": 99999999999999999999}}"#,
                Some(u64::MAX),
            ),
            (r#"{"usage": {"tokens": "inf"}}"#, Some(u64::MAX)),
            (r#"{"usage": {"tokens": -1}}"#, None),
            (r#"{"usage": {"tokens": "NaN"}}"#, None),
            (r#"{"usage": {"tokens": null}}"#, None),
            (r#"{"usage": {}}"#, None),
        ] {
            assert_eq!(cost(text), cost_read, "{text}");
        }
        assert_eq!(at(&json!([1]), "usage"), None);
    }
}
