//! Usage at the end of a stream of an OpenAI-style provider: asked for, and removed again.
//!
//! Promises: a request that does not ask for usage asks for it afterwards and is the same
//! otherwise. Of the response only the event that has nothing but usage is removed; every other
//! byte passes unchanged and in order.
//!
//! Never: changes a request that is not a stream, that says itself what it wants, or whose endpoint
//! reports usage by itself and rejects the option (OpenAI's Responses API).

use bytes::Bytes;
use serde_json::{Value, json};

/// The longest event that is held back until it is complete. A usage event has some hundred bytes;
/// a longer event passes as it comes.
const EVENT_MAX: usize = 64 * 1024;

/// Do streams of this path take the option? Only chat and text completions do.
pub(crate) fn is_asked_at(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/completions")
}

/// Does this request ask for a stream, in its path (Gemini) or in its body?
pub(crate) fn is_stream(path: &str, body: &[u8]) -> bool {
    const NAME: &[u8] = b"\"stream\"";
    let is_true = |at: usize| {
        let value = body.get(at + NAME.len()..).unwrap_or_default();
        let value = value.trim_ascii_start().strip_prefix(b":");
        value.is_some_and(|value| value.trim_ascii_start().starts_with(b"true"))
    };
    let mut names = body.windows(NAME.len()).enumerate();
    path.contains(":stream") || names.any(|(at, part)| part == NAME && is_true(at))
}

/// The same request with usage asked for; `None` if it is no stream, or says what it wants.
pub(crate) fn ask_for_usage(body: &[u8]) -> Option<Bytes> {
    // Most requests are no streams: searching is cheaper than parsing.
    if !body.windows(8).any(|part| part == b"\"stream\"") {
        return None;
    }
    let mut json: Value = serde_json::from_slice(body).ok()?;
    if json.get("stream") != Some(&Value::Bool(true)) {
        return None;
    }
    let request = json.as_object_mut()?;
    let options = request.entry("stream_options").or_insert(Value::Null);
    match options {
        Value::Null => *options = json!({ "include_usage": true }),
        Value::Object(options) if !options.contains_key("include_usage") => {
            options.insert("include_usage".to_owned(), Value::Bool(true));
        }
        Value::Object(_)
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_) => return None,
    }
    serde_json::to_vec(&json).ok().map(Bytes::from)
}

/// Removes the event that has nothing but usage from a stream.
#[derive(Debug, Default)]
pub(crate) struct UsageFilter {
    /// The event that is not complete yet.
    held: Vec<u8>,
    /// An event that is too long to be held passes up to its end.
    is_passing: bool,
}

impl UsageFilter {
    /// What passes of a piece.
    pub(crate) fn push(&mut self, piece: &Bytes) -> Bytes {
        if self.held.is_empty() && !self.is_passing && ends_event(piece) && !names_usage(piece) {
            return piece.clone(); // whole events of text
        }
        let mut passed = Vec::with_capacity(piece.len());
        for &byte in piece {
            self.held.push(byte);
            if byte == b'\n' && ends_event(&self.held) {
                if self.is_passing || !is_usage(&self.held) {
                    passed.append(&mut self.held);
                }
                self.held.clear();
                self.is_passing = false;
            } else if self.held.len() > EVENT_MAX {
                self.is_passing = true;
                // The end of the event must still be recognized.
                let tail = self.held.split_off(self.held.len() - 3);
                passed.append(&mut self.held);
                self.held = tail;
            }
        }
        passed.into()
    }

    /// What is left at the end of the stream.
    pub(crate) fn rest(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held);
        match is_usage(&held) && !self.is_passing {
            true => Bytes::new(),
            false => held.into(),
        }
    }

    /// Nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

fn ends_event(text: &[u8]) -> bool {
    text.ends_with(b"\n\n") || text.ends_with(b"\n\r\n")
}

fn names_usage(text: &[u8]) -> bool {
    text.windows(7).any(|part| part == b"\"usage\"")
}

/// Has the event usage and nothing else?
fn is_usage(event: &[u8]) -> bool {
    if !names_usage(event) {
        return false;
    }
    let mut lines = event.split(|byte| *byte == b'\n');
    let Some(data) = lines.find_map(|line| line.strip_prefix(b"data:")) else {
        return false;
    };
    let Ok(json) = serde_json::from_slice::<Value>(data) else {
        return false;
    };
    let is_bare = json["choices"].as_array().is_some_and(Vec::is_empty);
    is_bare && json["usage"].is_object()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_asked_for_in_the_body_or_in_the_path() {
        for body in ["{\"stream\":true}", "{\"a\":1, \"stream\" : true }"] {
            assert!(is_stream("/v1/chat/completions", body.as_bytes()), "{body}");
        }
        for body in [
            "",
            "{\"stream\":false}",
            "{\"a\":\"\\\"stream\\\":true\"}",
            "{\"stream\"",
        ] {
            assert!(
                !is_stream("/v1/chat/completions", body.as_bytes()),
                "{body}"
            );
        }
        assert!(is_stream("/v1beta/models/m:streamGenerateContent", b"{}"));
    }

    #[test]
    fn only_a_stream_that_says_nothing_asks_for_usage() {
        let asked = |body: &str| {
            let body = ask_for_usage(body.as_bytes())?;
            Some(serde_json::from_slice::<Value>(&body).unwrap())
        };
        let usage = json!({"include_usage": true});
        assert_eq!(
            asked(r#"{"a":1,"stream":true}"#).unwrap(),
            json!({"a": 1, "stream": true, "stream_options": usage})
        );
        let options = asked(r#"{"stream":true,"stream_options":{"x":1}}"#).unwrap();
        assert_eq!(
            options["stream_options"],
            json!({"x": 1, "include_usage": true})
        );
        for other in [
            r#"{"stream":false}"#,
            r#"{"messages":["\"stream\":true"]}"#,
            r#"{"stream":true,"stream_options":{"include_usage":false}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":7}"#,
            r#"["stream"]"#,
            "\"stream\" no json",
            "",
        ] {
            assert_eq!(asked(other), None, "{other}");
        }
    }

    #[test]
    fn only_completions_take_the_option() {
        for path in [
            "/v1/chat/completions",
            "/v1/completions",
            "/openai/deployments/gpt/chat/completions",
            "/openai/v1/chat/completions/",
        ] {
            assert!(is_asked_at(path), "{path}");
        }
        for path in ["/v1/responses", "/v1/messages", "/v1/completions/x", "/"] {
            assert!(!is_asked_at(path), "{path}");
        }
    }

    const TEXT: &str = "data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"total_tokens\":9}}\n\n";

    fn filtered(pieces: &[&[u8]]) -> String {
        let mut filter = UsageFilter::default();
        let mut passed = Vec::new();
        for piece in pieces {
            passed.extend(filter.push(&Bytes::copy_from_slice(piece)));
        }
        passed.extend(filter.rest());
        String::from_utf8(passed).unwrap()
    }

    #[test]
    fn the_usage_event_is_removed_in_any_chunks() {
        let stream = format!("{TEXT}{TEXT}{USAGE}data: [DONE]\n\n");
        let wanted = format!("{TEXT}{TEXT}data: [DONE]\n\n");
        assert_eq!(filtered(&[stream.as_bytes()]), wanted);
        for size in 1..stream.len() {
            let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
            assert_eq!(filtered(&pieces), wanted, "chunks of {size}");
        }
        let crlf = stream.replace('\n', "\r\n");
        assert_eq!(filtered(&[crlf.as_bytes()]), wanted.replace('\n', "\r\n"));
    }

    #[test]
    fn everything_else_passes_unchanged() {
        let long = format!("data: {{\"usage\":\"{}\"}}\n\n", "x".repeat(2 * EVENT_MAX));
        let broken = "data: {\"choices\":[],\"usage\":{";
        let last = "data: {\"choices\":[{}],\"usage\":{\"total_tokens\":9}}\n\n";
        for text in [&long, broken, last, "", "\n\n\n\n"] {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(1_000).collect();
            assert_eq!(filtered(&pieces), *text);
        }
        let after = format!("{long}{USAGE}{TEXT}");
        assert_eq!(filtered(&[after.as_bytes()]), format!("{long}{TEXT}"));
    }
}
