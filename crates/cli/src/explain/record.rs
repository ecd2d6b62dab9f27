//! One line of `--jsonl`: a response as a JSON object.
//!
//! Promises: a line is read or rejected with a remedy. Members that are not needed (`expect`,
//! `note`, …) are ignored, so that a file of test vectors is valid input.
//!
//! Never: repeats the line in an error; bodies may hold keys.

use serde_json::Value;
use tollgate_core::feedback::{Dialects, Feedback, Response, read};
use tollgate_core::time::Wall;

/// The response in one line.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: Value,
    pub(crate) now: Option<Wall>,
    provider: String,
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Record {
    /// Reads one line; the error says what is wrong with it and what to write.
    pub(crate) fn parse(line: &[u8]) -> Result<Record, String> {
        let line: Value = serde_json::from_slice(line).map_err(|error| {
            format!(
                "is not JSON from column {} on; write one object per line",
                error.column()
            )
        })?;
        if !line.is_object() {
            return Err("is not an object; write {\"status\": 429, \"headers\": []}".to_owned());
        }
        let status = line["status"]
            .as_u64()
            .and_then(|status| u16::try_from(status).ok());
        let status = status.filter(|status| (100..=999).contains(status));
        let now = match &line["now"] {
            Value::Null => None,
            Value::String(text) => Some(instant(text).map_err(|hint| format!("`now` {hint}"))?),
            other => Some(instant(&other.to_string()).map_err(|hint| format!("`now` {hint}"))?),
        };
        let provider = match &line["provider"] {
            Value::Null => "generic".to_owned(),
            Value::String(name) => name.clone(),
            _ => return Err("`provider` is not a text; write a name or leave it out".to_owned()),
        };
        Ok(Record {
            id: line["id"].clone(),
            now,
            provider,
            status: status
                .ok_or("`status` is missing or no HTTP status; write a number like 429")?,
            headers: headers(&line["headers"])
                .ok_or("`headers` is not a list of pairs; write [[\"Retry-After\", \"30\"]]")?,
            body: body(&line["body"]),
        })
    }

    /// What the response says. A provider without a dialect follows the standard rules.
    pub(crate) fn read(&self, dialects: &Dialects, now: Wall) -> Feedback {
        let lines = self.headers.iter();
        let headers: Vec<(&str, &[u8])> = lines
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let response = Response {
            status: self.status,
            headers: &headers,
            body: &self.body,
        };
        read(
            &response,
            dialects.get(&self.provider).unwrap_or(dialects.generic()),
            now,
        )
    }
}

/// RFC 3339, or seconds since 1970.
pub(crate) fn instant(text: &str) -> Result<Wall, String> {
    let seconds = || {
        text.parse()
            .ok()
            .and_then(|s| jiff::Timestamp::from_second(s).ok())
    };
    let stamp = text.parse::<jiff::Timestamp>().ok().or_else(seconds);
    let micros = stamp.and_then(|stamp| u64::try_from(stamp.as_microsecond()).ok());
    micros.map(Wall).ok_or_else(|| {
        "is not a time; write RFC 3339 (2026-11-15T12:00:00Z) or seconds since 1970".to_owned()
    })
}

/// Pairs in a list, or an object of names; a value may be a text, a number or a list of them.
fn headers(value: &Value) -> Option<Vec<(String, String)>> {
    let mut lines = Vec::new();
    match value {
        Value::Null => {}
        Value::Array(pairs) => {
            for pair in pairs {
                let [name, value] = pair.as_array()?.as_slice() else {
                    return None;
                };
                lines.push((name.as_str()?.to_owned(), text(value)?));
            }
        }
        Value::Object(members) => {
            for (name, value) in members {
                let values = value
                    .as_array()
                    .map_or(std::slice::from_ref(value), Vec::as_slice);
                for value in values {
                    lines.push((name.clone(), text(value)?));
                }
            }
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
    }
    Some(lines)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The body as text, or as the JSON it is.
fn body(value: &Value) -> Vec<u8> {
    match value {
        Value::Null => Vec::new(),
        Value::String(text) => text.clone().into_bytes(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string().into_bytes()
        }
    }
}
