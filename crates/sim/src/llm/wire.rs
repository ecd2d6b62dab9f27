//! Requests and responses of language models, in the words of each provider.
//!
//! Promises: pure; headers, bodies and events have the shape of their real models (public
//! documentation and recorded responses). What a request does not state is not guessed.
//!
//! Never: counts.

use serde_json::{Value, json};
use tollgate_core::time::{Span, Wall};

use super::account::{Advertised, Usage};

/// Whose words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LlmDialect {
    /// `x-ratelimit-*-requests`, `-tokens`, resets as durations.
    OpenAi,
    /// As OpenAI, resets in seconds.
    AzureOpenAi,
    /// As OpenAI.
    Groq,
    /// `anthropic-ratelimit-*`, resets as dates; input and output apart.
    Anthropic,
    /// `x-ratelimit-*-req-minute`, `-tokens-minute`.
    Mistral,
    /// No headers; a rejection names the quota.
    Gemini,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The model.
    pub model: String,
    /// Tokens of the prompt: a quarter of its characters.
    pub input: u64,
    /// The most that the completion may have.
    pub bound: Option<u64>,
    /// As a stream of events.
    pub stream: bool,
    /// With usage at the end of the stream.
    pub include_usage: bool,
    /// How long the completion gets: `sim_output` in the request, which only the provider reads.
    pub wanted: u64,
}

impl Prompt {
    /// Reads a request. `path` names the model of some providers.
    #[must_use]
    pub fn read(dialect: LlmDialect, path: &str, body: &[u8]) -> Option<Prompt> {
        let json: Value = serde_json::from_slice(body).ok()?;
        let number = |value: &Value| value.as_u64();
        let bounds = ["max_completion_tokens", "max_tokens"];
        let bound = bounds.iter().find_map(|name| number(&json[*name]));
        let bound = bound.or_else(|| number(&json["generationConfig"]["maxOutputTokens"]));
        let in_path = path
            .rsplit('/')
            .next()
            .and_then(|last| last.split(':').next());
        let model = match dialect {
            LlmDialect::Gemini => in_path.map(str::to_owned),
            _ => json["model"].as_str().map(str::to_owned),
        };
        let mut chars = 0;
        for field in ["messages", "contents", "system", "input", "prompt"] {
            chars += text_chars(&json[field]);
        }
        Some(Prompt {
            model: model.unwrap_or_default(),
            input: chars.div_ceil(4),
            bound,
            stream: json["stream"] == json!(true) || path.contains(":stream"),
            include_usage: json["stream_options"]["include_usage"] == json!(true),
            wanted: number(&json["sim_output"]).unwrap_or(16),
        })
    }

    /// What it uses, once it is known.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            input: self.input,
            output: self.wanted.min(self.bound.unwrap_or(u64::MAX)),
        }
    }
}

/// The characters of all texts in a value.
fn text_chars(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.chars().count() as u64,
        Value::Array(items) => items.iter().map(text_chars).sum(),
        Value::Object(fields) => fields.values().map(text_chars).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The headers that advertise limits.
#[must_use]
pub fn headers(
    dialect: LlmDialect,
    limits: &[(&str, Advertised)],
    wall: Wall,
) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for (name, limit) in limits {
        let (kinds, reset) = match dialect {
            LlmDialect::Gemini => continue,
            LlmDialect::OpenAi | LlmDialect::Groq => (openai(name), go_duration(limit.reset)),
            LlmDialect::AzureOpenAi => {
                (openai(name), limit.reset.0.div_ceil(1_000_000).to_string())
            }
            LlmDialect::Mistral => (mistral(name), String::new()),
            LlmDialect::Anthropic => (anthropic(name), iso(wall + limit.reset)),
        };
        let [of_limit, of_remaining, of_reset] = kinds;
        headers.push((of_limit, limit.limit.to_string()));
        headers.push((of_remaining, limit.remaining.to_string()));
        if !reset.is_empty() {
            headers.push((of_reset, reset));
        }
    }
    headers
}

fn openai(name: &str) -> [String; 3] {
    ["limit", "remaining", "reset"].map(|what| format!("x-ratelimit-{what}-{name}"))
}

fn mistral(name: &str) -> [String; 3] {
    let name = if name == "requests" {
        "req-minute"
    } else {
        "tokens-minute"
    };
    openai(name)
}

fn anthropic(name: &str) -> [String; 3] {
    ["limit", "remaining", "reset"].map(|what| format!("anthropic-ratelimit-{name}-{what}"))
}

/// `1m2.5s`, `12ms`.
fn go_duration(span: Span) -> String {
    let (minutes, micros) = (span.0 / 60_000_000, span.0 % 60_000_000);
    match (minutes, micros) {
        (0, micros) if micros < 1_000_000 => format!("{}ms", micros.div_ceil(1_000)),
        (0, micros) => format!("{}.{:03}s", micros / 1_000_000, micros / 1_000 % 1_000),
        (minutes, micros) => format!(
            "{minutes}m{}.{:03}s",
            micros / 1_000_000,
            micros / 1_000 % 1_000
        ),
    }
}

fn iso(wall: Wall) -> String {
    // Anthropic sends whole seconds, rounded up here so that nobody is early.
    let seconds = wall.0.div_ceil(1_000_000);
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let http = httpdate::fmt_http_date(at);
    // `Sun, 15 Nov 2026 12:00:07 GMT`
    let parts: Vec<&str> = http.split(' ').collect();
    let months = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    match parts.as_slice() {
        [_, day, month, year, time, _] => {
            let month = months
                .iter()
                .position(|name| name == month)
                .map_or(1, |at| at + 1);
            format!("{year}-{month:02}-{day}T{time}Z")
        }
        _ => String::new(),
    }
}

/// The body of a rejection.
#[must_use]
pub fn rejection(dialect: LlmDialect, limits: &[(&str, Advertised)], wait: Span) -> Value {
    match dialect {
        LlmDialect::Anthropic => {
            json!({"type": "error", "error": {"type": "rate_limit_error", "message": "too many"}})
        }
        LlmDialect::Mistral => json!({"message": "Requests rate limit exceeded"}),
        LlmDialect::Gemini => {
            let id = |name: &str| match name {
                "requests" => "GenerateRequestsPerMinutePerProjectPerModel",
                _ => "GenerateContentInputTokensPerMinutePerProjectPerModel",
            };
            let tight = limits.iter().min_by_key(|(_, limit)| limit.remaining);
            let violations: Vec<Value> = tight
                .map(|(name, limit)| json!({"quotaId": id(name), "quotaValue": limit.limit.to_string()}))
                .into_iter()
                .collect();
            let delay = format!("{}.{:06}s", wait.0 / 1_000_000, wait.0 % 1_000_000);
            json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded", "details": [
                {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations},
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]}})
        }
        LlmDialect::OpenAi | LlmDialect::AzureOpenAi | LlmDialect::Groq => {
            json!({"error": {"code": "rate_limit_exceeded", "type": "requests", "message": "Rate limit reached"}})
        }
    }
}

/// The body of a complete response.
#[must_use]
pub fn completion(dialect: LlmDialect, model: &str, used: Usage) -> Value {
    let text = "word ".repeat(usize::try_from(used.output.min(64)).unwrap_or(64));
    match dialect {
        LlmDialect::Anthropic => json!({"type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
            "usage": {"input_tokens": used.input, "output_tokens": used.output}}),
        LlmDialect::Gemini => json!({"candidates": [{"content": {"parts": [{"text": text}]}}],
            "usageMetadata": {"promptTokenCount": used.input, "candidatesTokenCount": used.output, "totalTokenCount": used.input + used.output}}),
        LlmDialect::OpenAi | LlmDialect::AzureOpenAi | LlmDialect::Groq | LlmDialect::Mistral => {
            json!({"id": "chatcmpl-1", "object": "chat.completion", "model": model,
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": used.input, "completion_tokens": used.output, "total_tokens": used.input + used.output}})
        }
    }
}

/// The event of one more token, and the events of the end.
#[must_use]
pub fn token_event(dialect: LlmDialect) -> String {
    match dialect {
        LlmDialect::Anthropic => "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"word \"}}\n\n".to_owned(),
        LlmDialect::Gemini => "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"word \"}]}}]}\n\n".to_owned(),
        _ => "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"}}]}\n\n".to_owned(),
    }
}

/// The first event of a stream, if it has one of its own.
#[must_use]
pub fn first_event(dialect: LlmDialect, used: Usage) -> String {
    match dialect {
        LlmDialect::Anthropic => format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"usage\":{{\"input_tokens\":{},\"output_tokens\":1}}}}}}\n\n",
            used.input
        ),
        _ => String::new(),
    }
}

/// The last events of a stream.
#[must_use]
pub fn last_events(dialect: LlmDialect, used: Usage, include_usage: bool) -> String {
    let total = used.input + used.output;
    match dialect {
        LlmDialect::Anthropic => format!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{{\"output_tokens\":{}}}}}\n\nevent: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n",
            used.output
        ),
        LlmDialect::Gemini => format!(
            "data: {{\"usageMetadata\":{{\"promptTokenCount\":{},\"candidatesTokenCount\":{},\"totalTokenCount\":{total}}}}}\n\n",
            used.input, used.output
        ),
        _ if include_usage => format!(
            "data: {{\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{total}}}}}\n\ndata: [DONE]\n\n",
            used.input, used.output
        ),
        _ => "data: [DONE]\n\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_in_each_dialect() {
        let chat = br#"{"model":"m","messages":[{"role":"u","content":"1234567"}],"max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"sim_output":40}"#;
        let prompt = Prompt::read(LlmDialect::OpenAi, "/v1/chat/completions", chat).unwrap();
        assert_eq!(
            (
                prompt.input,
                prompt.bound,
                prompt.stream,
                prompt.include_usage
            ),
            (2, Some(9), true, true)
        );
        assert_eq!(
            prompt.usage(),
            Usage {
                input: 2,
                output: 9
            }
        );
        let gemini = br#"{"contents":[{"parts":[{"text":"12345678"}]}],"generationConfig":{"maxOutputTokens":7}}"#;
        let prompt = Prompt::read(
            LlmDialect::Gemini,
            "/v1beta/models/pro:generateContent",
            gemini,
        )
        .unwrap();
        assert_eq!(
            (prompt.model.as_str(), prompt.input, prompt.bound),
            ("pro", 2, Some(7))
        );
        assert_eq!(Prompt::read(LlmDialect::OpenAi, "/", b"no json"), None);
    }

    #[test]
    fn resets_are_written_as_each_provider_does() {
        assert_eq!(go_duration(Span::from_millis(12)), "12ms");
        assert_eq!(go_duration(Span::from_millis(62_500)), "1m2.500s");
        assert_eq!(iso(Wall(1_763_208_007_000_000)), "2025-11-15T12:00:07Z");
    }
}
