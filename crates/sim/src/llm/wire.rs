//! Requests, limits and rejections of language models, in the words of each provider.
//!
//! Promises: pure; headers, bodies and events have the shape of their real models (public
//! documentation and recorded responses). What a request does not state is not guessed.
//!
//! Never: counts.

use serde_json::{Value, json};
use tollgate_core::time::{Span, Wall};

pub use super::completion::Shape;

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

impl LlmDialect {
    /// By the name of its preset.
    #[must_use]
    pub fn named(name: &str) -> Option<LlmDialect> {
        Some(match name {
            "openai" => LlmDialect::OpenAi,
            "azure_openai" => LlmDialect::AzureOpenAi,
            "groq" => LlmDialect::Groq,
            "anthropic" => LlmDialect::Anthropic,
            "mistral" => LlmDialect::Mistral,
            "gemini" => LlmDialect::Gemini,
            _ => return None,
        })
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The model.
    pub model: String,
    /// How its response is written.
    pub shape: Shape,
    /// Tokens of the prompt: a quarter of its characters.
    pub input: u64,
    /// How many of them the provider has in its cache: `sim_cached` in the request.
    pub cached: u64,
    /// The most that the completion may have.
    pub bound: Option<u64>,
    /// As a stream of events.
    pub stream: bool,
    /// How many completions it asks for: each has up to the bound.
    pub completions: u64,
    /// The stream breaks off after so many tokens: `sim_break` in the request.
    pub breaks_after: Option<u64>,
    /// With usage at the end of the stream.
    pub include_usage: bool,
    /// How long the completion gets: `sim_output` in the request, which only the provider reads.
    pub wanted: Option<u64>,
    /// The tool that is called in place of a text: the first one of a request that does not end with
    /// the result of one.
    pub tool: Option<String>,
}

/// A request that the provider does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRequest {
    /// The status of its response.
    pub status: u16,
    /// Why.
    pub message: &'static str,
}

impl Prompt {
    /// Reads a request. `path` names the model of some providers.
    ///
    /// # Errors
    /// If the provider would not take it.
    pub fn read(dialect: LlmDialect, path: &str, body: &[u8]) -> Result<Prompt, BadRequest> {
        let Ok(json) = serde_json::from_slice::<Value>(body) else {
            return Err(BadRequest {
                status: 400,
                message: "no JSON",
            });
        };
        let shape = Shape::of(dialect, path);
        reject_unknown(dialect, shape, &json)?;
        let number = |value: &Value| value.as_u64();
        let bounds = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
        let bound = bounds.iter().find_map(|name| number(&json[*name]));
        let bound = bound.or_else(|| number(&json["generationConfig"]["maxOutputTokens"]));
        let model = model_in_path(dialect, path).or_else(|| {
            let named = json["model"].as_str()?;
            Some(named.trim_start_matches("models/").to_owned())
        });
        let mut chars = 0;
        for field in ["messages", "contents", "system", "input", "prompt"] {
            chars += text_chars(&json[field]);
        }
        let input = chars.div_ceil(4);
        Ok(Prompt {
            model: model.unwrap_or_default(),
            shape,
            input,
            cached: number(&json["sim_cached"]).unwrap_or(0).min(input),
            bound,
            completions: completions(&json),
            breaks_after: number(&json["sim_break"]),
            stream: json["stream"] == json!(true) || path.contains(":stream"),
            include_usage: json["stream_options"]["include_usage"] == json!(true),
            wanted: number(&json["sim_output"]),
            tool: tool(&json),
        })
    }

    /// What it uses, once it is known; `otherwise` is the length of a completion whose request does not
    /// say.
    #[must_use]
    pub fn usage(&self, otherwise: u64) -> Usage {
        let wanted = self.wanted.unwrap_or(otherwise);
        Usage {
            input: self.input,
            output: wanted.min(self.bound.unwrap_or(u64::MAX)) * self.completions,
        }
    }

    /// What it holds until then; `unbounded`: a completion whose request states no bound.
    #[must_use]
    pub fn holds(&self, unbounded: u64) -> Usage {
        Usage {
            input: self.input,
            output: self
                .bound
                .unwrap_or(unbounded)
                .saturating_mul(self.completions),
        }
    }

    /// Of what it uses, what its provider counts.
    #[must_use]
    pub fn counted(&self, dialect: LlmDialect, used: Usage) -> Usage {
        let free = match dialect {
            LlmDialect::Groq | LlmDialect::Anthropic => self.cached,
            LlmDialect::OpenAi
            | LlmDialect::AzureOpenAi
            | LlmDialect::Mistral
            | LlmDialect::Gemini => 0,
        };
        Usage {
            input: used.input - free.min(used.input),
            ..used
        }
    }
}

/// The option of a stream that its endpoint does not know is an error, as at the real ones.
fn reject_unknown(dialect: LlmDialect, shape: Shape, json: &Value) -> Result<(), BadRequest> {
    let asks = !json["stream_options"]["include_usage"].is_null();
    let status = match (dialect, shape) {
        (LlmDialect::Mistral, _) => 422,
        (_, Shape::Responses) => 400,
        (LlmDialect::Anthropic, _) => 400,
        _ => return Ok(()),
    };
    if !asks {
        return Ok(());
    }
    Err(BadRequest {
        status,
        message: "Unknown parameter: 'stream_options.include_usage'.",
    })
}

/// `/v1beta/models/NAME:generateContent`, `/openai/deployments/NAME/chat/completions`.
fn model_in_path(dialect: LlmDialect, path: &str) -> Option<String> {
    let before = match dialect {
        LlmDialect::Gemini => "/models/",
        LlmDialect::AzureOpenAi => "/deployments/",
        LlmDialect::OpenAi | LlmDialect::Groq | LlmDialect::Anthropic | LlmDialect::Mistral => {
            return None;
        }
    };
    let (_, after) = path.split_once(before)?;
    let name = after.split(['/', ':']).next()?;
    Some(name.to_owned())
}

/// `n` of OpenAI, `candidateCount` of Gemini; as many as the real ones take.
fn completions(json: &Value) -> u64 {
    let stated = [
        &json["n"],
        &json["best_of"],
        &json["generationConfig"]["candidateCount"],
    ];
    let most = stated.iter().filter_map(|value| value.as_u64()).max();
    most.unwrap_or(1).clamp(1, 128)
}

fn tool(json: &Value) -> Option<String> {
    let last = json["messages"].as_array().and_then(|all| all.last());
    let is_result = last.is_some_and(|last| {
        last["role"] == json!("tool") || last["content"][0]["type"] == json!("tool_result")
    });
    let first = json["tools"].get(0).filter(|_| !is_result)?;
    let named = [&first["function"]["name"], &first["name"]];
    named
        .iter()
        .find_map(|name| name.as_str())
        .map(str::to_owned)
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

/// The response to a key whose account is empty.
#[must_use]
pub fn unpaid(dialect: LlmDialect) -> (u16, Value) {
    match dialect {
        LlmDialect::OpenAi | LlmDialect::AzureOpenAi | LlmDialect::Groq => (
            429,
            json!({"error": {"code": "insufficient_quota", "type": "insufficient_quota", "message": "You exceeded your current quota"}}),
        ),
        LlmDialect::Anthropic => (
            400,
            json!({"type": "error", "error": {"type": "invalid_request_error",
                "message": "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}),
        ),
        LlmDialect::Mistral => (402, json!({"message": "Payment required"})),
        LlmDialect::Gemini => (
            429,
            json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED",
                "message": "Your prepayment credits are depleted. Please go to AI Studio to manage your project and billing."}}),
        ),
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
            prompt.usage(16),
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
        assert!(Prompt::read(LlmDialect::OpenAi, "/", b"no json").is_err());
        let several = br#"{"messages":["1234"],"max_tokens":9,"n":3,"sim_output":4}"#;
        let prompt = Prompt::read(LlmDialect::OpenAi, "/v1/chat/completions", several).unwrap();
        assert_eq!(
            (prompt.holds(500).output, prompt.usage(16).output),
            (27, 12)
        );
    }

    /// As the real providers do: these endpoints send usage by themselves, and reject the option.
    #[test]
    fn the_option_of_streams_is_rejected_where_the_provider_does() {
        let body = br#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
        let status = |dialect, path| {
            Prompt::read(dialect, path, body)
                .err()
                .map(|bad| bad.status)
        };
        let chat = "/v1/chat/completions";
        assert_eq!(status(LlmDialect::OpenAi, chat), None);
        assert_eq!(status(LlmDialect::Groq, chat), None);
        assert_eq!(status(LlmDialect::OpenAi, "/v1/responses"), Some(400));
        assert_eq!(status(LlmDialect::Mistral, chat), Some(422));
        assert_eq!(status(LlmDialect::Anthropic, "/v1/messages"), Some(400));
    }

    #[test]
    fn a_model_is_named_by_the_path_or_the_body() {
        let model = |dialect, path: &str| {
            let body = br#"{"model":"models/b"}"#;
            Prompt::read(dialect, path, body).unwrap().model
        };
        let gemini = "/v1beta/models/p:streamGenerateContent";
        assert_eq!(model(LlmDialect::Gemini, gemini), "p");
        assert_eq!(
            model(LlmDialect::Gemini, "/v1beta/openai/chat/completions"),
            "b"
        );
        let azure = "/openai/deployments/d/chat/completions";
        assert_eq!(model(LlmDialect::AzureOpenAi, azure), "d");
        assert_eq!(model(LlmDialect::AzureOpenAi, "/openai/v1/responses"), "b");
    }

    #[test]
    fn resets_are_written_as_each_provider_does() {
        assert_eq!(go_duration(Span::from_millis(12)), "12ms");
        assert_eq!(go_duration(Span::from_millis(62_500)), "1m2.500s");
        assert_eq!(iso(Wall(1_763_208_007_000_000)), "2025-11-15T12:00:07Z");
    }
}
