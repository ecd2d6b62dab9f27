//! Completions as each endpoint writes them: whole, and as a stream of events.
//!
//! Promises: pure; complete enough for the providers' own SDKs to read.
//!
//! Never: counts.

use serde_json::{Value, json};

use super::account::Usage;
use super::wire::{LlmDialect, Prompt};

/// How an endpoint writes its responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// OpenAI's chat completions, which others copy.
    Chat,
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Gemini's `generateContent`.
    Gemini,
}

impl Shape {
    /// The shape of an endpoint.
    #[must_use]
    pub fn of(dialect: LlmDialect, path: &str) -> Shape {
        match dialect {
            LlmDialect::Anthropic => Shape::Messages,
            LlmDialect::Gemini if path.contains("/models/") => Shape::Gemini,
            _ if path.ends_with("/responses") => Shape::Responses,
            _ => Shape::Chat,
        }
    }
}

/// The longest text of a whole response: usage says how long it was.
const WORDS_MAX: u64 = 64;

/// The body of a complete response.
#[must_use]
pub fn whole(prompt: &Prompt, used: Usage) -> Value {
    let words = usize::try_from(used.output.min(WORDS_MAX)).unwrap_or(0);
    let text = "word ".repeat(words);
    let (model, usage) = (&prompt.model, usage(prompt, used));
    match prompt.shape {
        Shape::Messages => {
            let content = match &prompt.tool {
                Some(tool) => {
                    json!({"type": "tool_use", "id": "toolu_1", "name": tool, "input": {}})
                }
                None => json!({"type": "text", "text": text}),
            };
            let reason = if prompt.tool.is_some() {
                "tool_use"
            } else {
                "end_turn"
            };
            json!({"id": "msg_1", "type": "message", "role": "assistant", "model": model,
                "content": [content], "stop_reason": reason, "stop_sequence": null, "usage": usage})
        }
        Shape::Gemini => {
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": text}]},
            "finishReason": "STOP", "index": 0}], "usageMetadata": usage})
        }
        Shape::Responses => response("completed", model, &text, &usage),
        Shape::Chat => {
            let message = match &prompt.tool {
                Some(tool) => {
                    json!({"role": "assistant", "content": null, "tool_calls": [tool_call(tool)]})
                }
                None => json!({"role": "assistant", "content": text}),
            };
            json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
                "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(prompt)}],
                "usage": usage})
        }
    }
}

fn response(status: &str, model: &str, text: &str, usage: &Value) -> Value {
    json!({"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": model,
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": status,
            "content": [{"type": "output_text", "text": text, "annotations": []}]}],
        "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "usage": usage})
}

fn tool_call(tool: &str) -> Value {
    json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": tool, "arguments": "{}"}})
}

fn finish_reason(prompt: &Prompt) -> &'static str {
    match prompt.tool {
        Some(_) => "tool_calls",
        None => "stop",
    }
}

fn usage(prompt: &Prompt, used: Usage) -> Value {
    let (total, cached) = (used.input + used.output, prompt.cached);
    match prompt.shape {
        Shape::Messages => json!({"input_tokens": used.input - cached.min(used.input),
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached, "output_tokens": used.output}),
        Shape::Gemini => {
            json!({"promptTokenCount": used.input, "candidatesTokenCount": used.output,
            "totalTokenCount": total})
        }
        Shape::Responses => {
            json!({"input_tokens": used.input, "output_tokens": used.output, "total_tokens": total,
            "input_tokens_details": {"cached_tokens": cached}, "output_tokens_details": {"reasoning_tokens": 0}})
        }
        Shape::Chat => {
            json!({"prompt_tokens": used.input, "completion_tokens": used.output, "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": cached}})
        }
    }
}

fn event(name: &str, data: &Value) -> String {
    match name {
        "" => format!("data: {data}\n\n"),
        name => format!("event: {name}\ndata: {data}\n\n"),
    }
}

fn chunk(prompt: &Prompt, delta: &Value, reason: &Value) -> String {
    let data = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": prompt.model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]});
    event("", &data)
}

/// The events before the first token.
#[must_use]
pub fn first_events(prompt: &Prompt, used: Usage) -> String {
    match prompt.shape {
        Shape::Messages => {
            let mut usage = usage(prompt, used);
            usage["output_tokens"] = json!(1);
            let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": prompt.model,
                "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage});
            let start = json!({"type": "message_start", "message": message});
            let block = match &prompt.tool {
                Some(tool) => {
                    json!({"type": "tool_use", "id": "toolu_1", "name": tool, "input": {}})
                }
                None => json!({"type": "text", "text": ""}),
            };
            let block = json!({"type": "content_block_start", "index": 0, "content_block": block});
            event("message_start", &start) + &event("content_block_start", &block)
        }
        Shape::Responses => {
            let mut created = response("in_progress", &prompt.model, "", &Value::Null);
            created["output"] = json!([]);
            let data =
                json!({"type": "response.created", "sequence_number": 0, "response": created});
            event("response.created", &data)
        }
        Shape::Chat if prompt.tool.is_some() => {
            let tool = prompt.tool.as_deref().unwrap_or_default();
            let delta =
                json!({"role": "assistant", "content": null, "tool_calls": [tool_call(tool)]});
            chunk(prompt, &delta, &Value::Null)
        }
        Shape::Chat | Shape::Gemini => String::new(),
    }
}

/// The event of one more token.
#[must_use]
pub fn token_event(prompt: &Prompt) -> String {
    let has_tool = prompt.tool.is_some();
    match prompt.shape {
        Shape::Messages => {
            let delta = match has_tool {
                true => json!({"type": "input_json_delta", "partial_json": ""}),
                false => json!({"type": "text_delta", "text": "word "}),
            };
            let data = json!({"type": "content_block_delta", "index": 0, "delta": delta});
            event("content_block_delta", &data)
        }
        Shape::Gemini => {
            let data = json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "word "}]}, "index": 0}]});
            event("", &data)
        }
        Shape::Responses => {
            let data = json!({"type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1",
                "output_index": 0, "content_index": 0, "delta": "word ", "logprobs": []});
            event("response.output_text.delta", &data)
        }
        Shape::Chat => {
            let delta = match has_tool {
                true => json!({}),
                false => json!({"content": "word "}),
            };
            chunk(prompt, &delta, &Value::Null)
        }
    }
}

/// The last events of a stream.
#[must_use]
pub fn last_events(dialect: LlmDialect, prompt: &Prompt, used: Usage) -> String {
    let usage = usage(prompt, used);
    match prompt.shape {
        Shape::Messages => {
            let reason = if prompt.tool.is_some() {
                "tool_use"
            } else {
                "end_turn"
            };
            let delta = json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null},
                "usage": {"output_tokens": used.output}});
            event(
                "content_block_stop",
                &json!({"type": "content_block_stop", "index": 0}),
            ) + &event("message_delta", &delta)
                + &event("message_stop", &json!({"type": "message_stop"}))
        }
        Shape::Gemini => event(
            "",
            &json!({"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]},
            "finishReason": "STOP", "index": 0}], "usageMetadata": usage}),
        ),
        Shape::Responses => {
            let done = response("completed", &prompt.model, "", &usage);
            let data =
                json!({"type": "response.completed", "sequence_number": 2, "response": done});
            event("response.completed", &data)
        }
        Shape::Chat => {
            let mut end = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
                "model": prompt.model, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason(prompt)}]});
            // Mistral sends usage with the last piece, asked or not.
            if dialect == LlmDialect::Mistral {
                end["usage"] = usage.clone();
            }
            let mut events = event("", &end);
            if prompt.include_usage {
                end["choices"] = json!([]);
                end["usage"] = usage;
                events += &event("", &end);
            }
            events + "data: [DONE]\n\n"
        }
    }
}
