//! One cost that a response reports, and whether it is believed.
//!
//! Promises: a usage that lies low counts with what was seen of the completion. One that lies high is
//! reported, and nothing is learned from it.
//!
//! Never: bounds what is settled. The limit does.

use serde_json::Value;
use tollgate_core::feedback::COUNT_MAX;

use crate::event::CostDoubt;
use crate::json_cost;
use crate::token_estimates::is_media;

/// Events of a stream that are no text: its start, its end, and what is in between.
const EVENTS_BESIDE: u64 = 16;

/// Bytes of text per token of a completion, at most: four times what English has.
const BYTES_PER_TOKEN_MAX: u64 = 16;

/// Where the completion is in a response, whichever provider it is from.
const COMPLETIONS: [&str; 4] = ["choices", "content", "output", "candidates"];

/// What in it is text that the model has written. Its probabilities, sources and results of tools
/// are something else.
const TEXTS: [&str; 7] = [
    "text",
    "content",
    "arguments",
    "refusal",
    "reasoning_content",
    "reasoning",
    "thinking",
];

/// What in it repeats text, or holds the text of others.
const NO_TEXTS: [&str; 5] = [
    "logprobs",
    "logprobsResult",
    "annotations",
    "results",
    "citations",
];

/// What was seen of a completion.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Produced {
    /// Events with data: about one token each.
    pub(super) events: u64,
    /// Bytes of text in a response that came as a whole.
    text: u64,
}

impl Produced {
    /// A response that came as a whole.
    pub(super) fn read(&mut self, json: &Value) {
        let parts = COMPLETIONS.iter().filter_map(|name| json.get(*name));
        self.text = parts.fold(self.text, |sum, part| {
            sum.saturating_add(written(part, false))
        });
    }
}

/// Bytes of text in a part of a completion, without spaces. serde_json ends at 128 levels, so the
/// recursion does too.
fn written(part: &Value, is_text: bool) -> u64 {
    match part {
        Value::String(text) if is_text && !is_media(text) => {
            let bytes = text.bytes().filter(|byte| !byte.is_ascii_whitespace());
            bytes.count() as u64
        }
        Value::Array(items) => items.iter().map(|item| written(item, is_text)).sum(),
        Value::Object(fields) => {
            let read = fields
                .iter()
                .filter(|(name, _)| !NO_TEXTS.contains(&name.as_str()));
            read.map(|(name, field)| written(field, TEXTS.contains(&name.as_str())))
                .sum()
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// A cost that the response reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedCost {
    /// The index of its term.
    pub(crate) term: usize,
    /// Its unit.
    pub(crate) unit: String,
    /// What the prompt was estimated at.
    pub(crate) prompt: u64,
    /// Completions count: an event of a stream is at least half a token on average.
    pub(crate) counts_output: bool,
    /// More than that is no usage of one call. `None`: any number is one.
    pub(crate) most: Option<u64>,
    /// The fields whose sum is the cost, each with its last value; one with `-` in front is
    /// subtracted.
    pub(crate) fields: Vec<(String, Option<u64>)>,
    /// A field has something that is no number of tokens.
    pub(crate) is_stated: bool,
}

impl WantedCost {
    /// At least 1: the call was made. A completion of nothing is not believed.
    fn reported(&self) -> Option<u64> {
        let sum_of = |is_subtracted: bool| {
            let fields = self.fields.iter();
            let fields = fields.filter(|field| field.0.starts_with('-') == is_subtracted);
            fields
                .filter_map(|field| field.1)
                .reduce(u64::saturating_add)
        };
        let sum = sum_of(false)?.saturating_sub(sum_of(true).unwrap_or(0));
        let is_believed = sum > 0 || !self.counts_output;
        is_believed.then(|| sum.clamp(1, COUNT_MAX))
    }

    /// What counts, given what was seen: no less than half a token for each event, and than a token
    /// for each 16 bytes of text.
    pub(super) fn settled(&self, produced: Produced) -> Option<u64> {
        let of_events = produced.events.saturating_sub(EVENTS_BESIDE) / 2;
        let of_text = match self.unit.ends_with("tokens") {
            true => produced.text / BYTES_PER_TOKEN_MAX,
            false => 0,
        };
        let least = match self.counts_output {
            true => of_events.max(of_text),
            false => 0,
        };
        self.reported().map(|reported| reported.max(least))
    }

    /// What is learned as what such calls use; `None`: nothing, because it is a lie.
    pub(super) fn believed(&self, produced: Produced) -> Option<u64> {
        match self.doubt(produced) {
            Some(CostDoubt::AbsurdUsage) => None,
            Some(_) | None => self.settled(produced),
        }
    }

    /// Why the cost is not certain.
    pub(super) fn doubt(&self, produced: Produced) -> Option<CostDoubt> {
        let mut found = self.fields.iter().filter_map(|field| field.1);
        let most = self.most.unwrap_or(COUNT_MAX);
        match self.reported() {
            _ if found.any(|value| value >= COUNT_MAX) => Some(CostDoubt::AbsurdUsage),
            None if self.fields.iter().any(|field| field.1.is_some()) => Some(CostDoubt::LowUsage),
            None if self.is_stated => Some(CostDoubt::AbsurdUsage),
            // A call without a prompt, such as one for a list, has none to report.
            None => (self.prompt > 0).then_some(CostDoubt::MissingUsage),
            Some(reported) if reported > most => Some(CostDoubt::AbsurdUsage),
            Some(reported) => {
                (self.settled(produced) > Some(reported)).then_some(CostDoubt::LowUsage)
            }
        }
    }

    pub(super) fn read(&mut self, json: &Value) {
        for (path, value) in &mut self.fields {
            let path = path.trim_start_matches('-');
            self.is_stated |= json_cost::is_stated(json, path);
            *value = find(json, path).or(*value);
        }
    }
}

/// Events wrap what a response has at its top: Anthropic in `message`, OpenAI in `response`.
const WRAPPERS: [&str; 2] = ["message", "response"];

/// A number at `usage.total_tokens`.
fn find(json: &Value, path: &str) -> Option<u64> {
    let wrapped = WRAPPERS.iter().filter_map(|name| json.get(*name));
    let mut places = std::iter::once(json).chain(wrapped);
    let found = places.find_map(|place| json_cost::at(place, path))?;
    Some(found.min(COUNT_MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text_of(response: &Value) -> u64 {
        let mut produced = Produced::default();
        produced.read(response);
        produced.text
    }

    fn of_output(unit: &str, used: u64) -> WantedCost {
        WantedCost {
            unit: unit.to_owned(),
            counts_output: true,
            most: Some(1_000),
            fields: vec![("usage.x".to_owned(), Some(used))],
            ..WantedCost::default()
        }
    }

    #[test]
    fn text_of_every_provider_is_seen_and_what_is_no_text_is_not() {
        let tool = json!({"function": {"name": "f", "arguments": "{\"x\":1}"}});
        for (response, bytes) in [
            (json!({"choices": [{"message": {"content": "a b c"}}]}), 3),
            (json!({"choices": [{"text": "abc"}, {"text": "de"}]}), 5),
            (json!({"choices": [{"message": {"tool_calls": [tool]}}]}), 7),
            (json!({"content": [{"type": "text", "text": "abc"}]}), 3),
            (
                json!({"output": [{"content": [{"text": "abc", "annotations": [{"text": "x"}]}]}]}),
                3,
            ),
            (
                json!({"candidates": [{"content": {"parts": [{"text": "abc"}]}}]}),
                3,
            ),
            (
                json!({"choices": [{"logprobs": {"content": [{"text": "abc"}]}}]}),
                0,
            ),
            (
                json!({"content": [{"type": "image", "data": "abc"}], "text": "abc"}),
                0,
            ),
            (
                json!({"data": [{"embedding": [1.0, 2.0]}], "model": "m"}),
                0,
            ),
            (json!({"content": [{"text": "A".repeat(9_000)}]}), 0),
        ] {
            assert_eq!(text_of(&response), bytes, "{response}");
        }
    }

    /// A former bug: a response as a whole that reported one token was believed, whatever it said.
    #[test]
    fn a_usage_below_a_token_for_each_16_bytes_of_text_is_not_believed() {
        let mut produced = Produced::default();
        produced.read(&json!({"content": [{"text": "word ".repeat(160)}]}));
        let low = of_output("tokens", 1);
        assert_eq!(low.settled(produced), Some(40));
        assert_eq!(low.doubt(produced), Some(CostDoubt::LowUsage));
        for certain in [of_output("tokens", 40), of_output("points", 1)] {
            assert_eq!(certain.settled(produced), certain.reported());
            assert_eq!(certain.doubt(produced), None);
        }
    }

    /// A former bug: it was learned, and each call without a bound then held all that there was.
    #[test]
    fn a_usage_beyond_the_limit_is_doubted_and_not_learned() {
        let produced = Produced::default();
        for used in [1_001, 10_000_000, COUNT_MAX] {
            let absurd = of_output("tokens", used);
            assert_eq!(absurd.doubt(produced), Some(CostDoubt::AbsurdUsage));
            assert_eq!(absurd.believed(produced), None);
            assert_eq!(absurd.settled(produced), Some(used), "the limit bounds it");
        }
        assert_eq!(of_output("tokens", 1_000).believed(produced), Some(1_000));
    }
}
