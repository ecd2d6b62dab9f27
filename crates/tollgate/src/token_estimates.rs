//! How many tokens a call will use: the size of its prompt, and what completions of its model used.
//!
//! Promises: a prompt is never estimated lower than a quarter of its characters, which is what
//! providers count with. An estimate rises at once to what a call has used and falls slowly. It also
//! rises where the provider rejects calls that it was held for, because that one holds more.
//! Bounded in memory. A body that is not JSON counts with its size.
//!
//! Never: trusts a number below zero, or a completion beyond [`COMPLETION_MAX`].

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::Value;
use tollgate_core::feedback::COUNT_MAX;
use tollgate_core::learned::next_estimate;

/// Bytes of text per token, at least: English has four characters per token, and other languages
/// have more bytes per character.
const BYTES_PER_TOKEN: u64 = 3;

/// What a message adds beside its text.
pub(crate) const MESSAGE_TOKENS: u64 = 4;

/// An image or a file: the tokens of a large image at every provider that documents them.
pub(crate) const MEDIA_TOKENS: u64 = 1_600;

/// No model writes more in one completion: the longest that a provider documents has 128 Ki tokens.
const COMPLETION_MAX: u64 = 1 << 20;

/// Each 429 raises what is held by a quarter: five of them hold three times what calls use.
const RAISED_PERCENT: u64 = 125;

/// At most four times what calls use is held: a provider that holds more is to be told a bound.
const MARGIN_MAX: u64 = 3_000;

/// With each completion the margin falls by this part: with a 429 in 300 calls it stays where it is.
const MARGIN_FALL: u64 = 1_024;

/// How many models a provider may have here: more than any account uses. The one that has not been
/// used for longest goes.
const MODELS_MAX: usize = 256;

/// The fields of a request that make up its prompt, whichever provider it is for.
const PROMPT_FIELDS: [&str; 14] = [
    "messages",
    "contents",
    "system",
    "systemInstruction",
    "instructions",
    "input",
    "prompt",
    "tools",
    "response_format",
    "functions",
    "system_instruction",
    "tool_config",
    "toolConfig",
    "suffix",
];

/// The completions of each model, by unit and entity.
#[derive(Debug, Default)]
pub(crate) struct TokenEstimates {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    models: BTreeMap<(String, String), Completion>,
    turn: u64,
}

/// What completions of one model use.
#[derive(Debug)]
struct Completion {
    used: u64,
    /// So much more is held than they use, in thousandths of it: providers hold more for a call without a bound.
    margin: u64,
    /// A completion has ended since the margin was raised: several rejections at a time say the same.
    may_rise: bool,
    /// The turn in which it was last used.
    used_in: u64,
}

impl TokenEstimates {
    /// What a completion of this model will use; `None`: none has ended so far.
    pub(crate) fn completion(&self, unit: &str, entity: &str) -> Option<u64> {
        let mut known = self.known.lock();
        let Known { models, turn } = &mut *known;
        let known = models.get_mut(&(unit.to_owned(), entity.to_owned()))?;
        *turn += 1;
        known.used_in = *turn;
        let margin = known.used.saturating_mul(known.margin) / 1_000;
        Some((known.used + margin).min(COMPLETION_MAX))
    }

    /// The provider had no room for a call that was held with this estimate: it holds more than calls use.
    pub(crate) fn on_limited(&self, unit: &str, entity: &str) {
        let mut known = self.known.lock();
        let name = (unit.to_owned(), entity.to_owned());
        if let Some(completion) = known.models.get_mut(&name)
            && std::mem::take(&mut completion.may_rise)
        {
            let raised = (1_000 + completion.margin) * RAISED_PERCENT / 100 - 1_000;
            completion.margin = raised.min(MARGIN_MAX);
        }
    }

    /// A completion has used so much.
    pub(crate) fn learn(&self, unit: &str, entity: &str, used: u64) {
        let mut known = self.known.lock();
        let Known { models, turn } = &mut *known;
        *turn += 1;
        let name = (unit.to_owned(), entity.to_owned());
        if models.len() >= MODELS_MAX && !models.contains_key(&name) {
            let oldest = models.iter().min_by_key(|(_, known)| known.used_in);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                models.remove(&oldest);
            }
        }
        let used = used.min(COMPLETION_MAX);
        let known = models.entry(name).or_insert(Completion {
            used,
            margin: 0,
            may_rise: true,
            used_in: *turn,
        });
        known.may_rise = true;
        known.used = next_estimate(Some(known.used), used);
        known.margin -= known.margin.div_ceil(MARGIN_FALL);
        known.used_in = *turn;
    }
}

/// The size of a prompt in tokens, rounded up; `json` is the body, if it is JSON.
pub(crate) fn prompt_tokens(json: Option<&Value>, body: &[u8]) -> u64 {
    let Some(json) = json else {
        return tokens_of(body.len() as u64);
    };
    let fields = PROMPT_FIELDS.iter().filter_map(|name| json.get(*name));
    let sum = fields.fold(Size::default(), |sum, field| sum.plus(size(field)));
    let of_text = tokens_of(sum.bytes as u64);
    of_text.saturating_add(sum.other).min(COUNT_MAX)
}

/// Text of so many bytes, rounded up.
pub(crate) fn tokens_of(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Bytes of text, and tokens of everything else.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: usize,
    other: u64,
}

impl Size {
    fn plus(self, more: Size) -> Size {
        Size {
            bytes: self.bytes.saturating_add(more.bytes),
            other: self.other.saturating_add(more.other),
        }
    }
}

/// serde_json ends at 128 levels, so the recursion does too.
fn size(value: &Value) -> Size {
    match value {
        Value::String(text) if is_media(text) => Size {
            bytes: 0,
            other: MEDIA_TOKENS,
        },
        Value::String(text) => Size {
            bytes: text.len(),
            other: 0,
        },
        Value::Array(items) => items.iter().map(size).fold(Size::default(), Size::plus),
        Value::Object(fields) => {
            let own = Size {
                bytes: 0,
                other: MESSAGE_TOKENS,
            };
            fields.values().map(size).fold(own, Size::plus)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Size { bytes: 4, other: 0 },
    }
}

/// A longer text in the letters of base64 is data: no word has so many letters.
pub(crate) const WORD_MAX: usize = 4_096;

/// Data in base64, not text. Text without spaces has other letters: Chinese, minified code.
pub(crate) fn is_media(text: &str) -> bool {
    let is_base64 = |text: &str| text.bytes().all(is_base64_byte);
    match text
        .strip_prefix("data:")
        .and_then(|url| url.split_once(";base64,"))
    {
        Some((_, data)) => is_base64(data),
        None => text.len() > WORD_MAX && is_base64(text),
    }
}

/// A letter of base64, in either alphabet, and what folds its lines.
pub(crate) fn is_base64_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/=_-\r\n".contains(&byte)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokens(body: &Value) -> u64 {
        prompt_tokens(Some(body), b"")
    }

    #[test]
    fn a_prompt_counts_with_a_third_of_its_bytes_and_each_message_adds_some() {
        let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "123456"}]});
        assert_eq!(
            tokens(&body),
            4 + 4,
            "10 bytes of role and content, and a message"
        );
        assert_eq!(tokens(&json!({"input": "123"})), 1);
        assert_eq!(
            tokens(&json!({"contents": [{"parts": [{"text": "123456789"}]}]})),
            3 + 8
        );
    }

    #[test]
    fn images_count_as_images_and_not_by_their_bytes() {
        let image = format!("data:image/png;base64,{}", "A".repeat(3_000_000));
        let bare = "A".repeat(3_000_000);
        for text in [image, bare] {
            assert_eq!(tokens(&json!({"messages": [text]})), MEDIA_TOKENS);
        }
    }

    /// A former bug: a long text without an ASCII space counted as one image, 1,600 tokens.
    #[test]
    fn text_without_spaces_counts_as_text() {
        let chinese = json!({"messages": ["漢".repeat(100_000)]});
        assert_eq!(tokens(&chinese), 100_000);
        let code = json!({"messages": ["f(a){return(b);}".repeat(10_000)]});
        assert!(tokens(&code) > 50_000);
        let text = json!({"messages": [format!("data:{}", "some words ".repeat(10_000))]});
        assert!(tokens(&text) > 30_000);
    }

    #[test]
    fn every_part_of_a_prompt_counts() {
        for field in PROMPT_FIELDS {
            let body = Value::Object(
                [(field.to_owned(), json!("x".repeat(300)))]
                    .into_iter()
                    .collect(),
            );
            assert_eq!(tokens(&body), 100, "{field}");
        }
        for field in ["functions", "system_instruction", "tool_config", "suffix"] {
            assert!(PROMPT_FIELDS.contains(&field), "{field}");
        }
    }

    #[test]
    fn a_body_that_is_not_json_counts_with_its_size() {
        assert_eq!(prompt_tokens(None, b""), 0);
        assert_eq!(prompt_tokens(None, &[b'x'; 30]), 10);
    }

    #[test]
    fn estimates_are_per_model_and_bounded() {
        let estimates = TokenEstimates::default();
        assert_eq!(estimates.completion("tokens", "a"), None);
        estimates.learn("tokens", "a", 100);
        estimates.learn("tokens", "b", u64::MAX);
        assert_eq!(estimates.completion("tokens", "a"), Some(100));
        assert_eq!(estimates.completion("tokens", "b"), Some(COMPLETION_MAX));
        for index in 0..1_000 {
            estimates.learn("tokens", &format!("m{index}"), 1);
        }
        assert_eq!(estimates.known.lock().models.len(), MODELS_MAX);
    }

    /// A provider that holds more for a call without a bound than it uses rejected four in a hundred for ever.
    #[test]
    fn an_estimate_grows_while_the_provider_rejects_and_falls_slowly() {
        let estimates = TokenEstimates::default();
        estimates.on_limited("tokens", "m");
        assert_eq!(estimates.completion("tokens", "m"), None);
        let held = || estimates.completion("tokens", "m").unwrap();
        estimates.learn("tokens", "m", 200);
        (0..4).for_each(|_| estimates.on_limited("tokens", "m"));
        assert_eq!(held(), 250, "four at the same time");
        let again = || {
            estimates.learn("tokens", "m", 200);
            estimates.on_limited("tokens", "m");
        };
        (0..3).for_each(|_| again());
        assert!((480..490).contains(&held()), "{}", held());
        (0..100).for_each(|_| again());
        assert_eq!(held(), 800);
        (0..300).for_each(|_| estimates.learn("tokens", "m", 200));
        assert!((600..700).contains(&held()), "{}", held());
        (0..10_000).for_each(|_| estimates.learn("tokens", "m", 200));
        assert_eq!(held(), 200);
    }

    /// A former bug: the first in the alphabet went, which may be the one that is used most.
    #[test]
    fn the_model_that_was_not_used_for_longest_is_evicted() {
        let estimates = TokenEstimates::default();
        estimates.learn("tokens", "a", 100);
        estimates.learn("tokens", "b", 100);
        for index in 0..1_000 {
            estimates.completion("tokens", "a");
            estimates.learn("tokens", &format!("m{index}"), 1);
        }
        assert_eq!(estimates.completion("tokens", "a"), Some(100));
        assert_eq!(estimates.completion("tokens", "b"), None);
    }
}
