//! The cost of a call before it is sent.
//!
//! Promises: as its caller states, else as its body states, else what calls of its model used, else
//! the default of the file. A body of any size counts; what cannot be read counts with its size.
//!
//! Never: caps. The limit does (`limit_binding.rs`).

use tollgate_config::provider::Cost;

use super::limit_binding::CallCost;
use crate::body_scan::LargeBody;
use crate::event::CostDoubt;
use crate::json_cost;
use crate::token_estimates::{self, TokenEstimates};

/// The body of a call, as far as its costs read it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyText<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// One that was read as it passed.
    Large(&'a LargeBody),
    /// One that is a file, not a request in JSON, and too large to be read.
    File,
}

impl BodyText<'_> {
    /// What is parsed.
    fn json(&self) -> &[u8] {
        match self {
            BodyText::Whole(body) => body,
            BodyText::Large(large) => &large.json,
            BodyText::File => &[],
        }
    }

    /// There is a body, and it cannot be read, or not all of it.
    fn is_unreadable(&self, json: Option<&serde_json::Value>) -> bool {
        match self {
            BodyText::Whole(body) => json.is_none() && !body.is_empty(),
            BodyText::Large(large) => json.is_none() || !large.is_whole,
            BodyText::File => true,
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, BodyText::Whole([]))
    }

    /// The tokens of the prompt. A file counts as one: its bytes are no text.
    fn prompt_tokens(&self, json: Option<&serde_json::Value>) -> u64 {
        match self {
            BodyText::Whole(body) => token_estimates::prompt_tokens(json, body),
            BodyText::Large(large) if self.is_unreadable(json) => {
                token_estimates::tokens_of(large.size)
            }
            BodyText::Large(large) => {
                token_estimates::prompt_tokens(json, &[]).saturating_add(large.tokens)
            }
            BodyText::File => token_estimates::MEDIA_TOKENS,
        }
    }
}

/// How a request asks for several completions, each as long as its bound: OpenAI's, and Gemini's.
const COMPLETIONS: [&str; 3] = ["n", "best_of", "generationConfig.candidateCount"];

/// How many completions a request asks for; 1 if what it says is no number of them. And whether it
/// is none.
fn completions(json: Option<&serde_json::Value>) -> (u64, bool) {
    let Some(json) = json else {
        return (1, false);
    };
    let stated = COMPLETIONS
        .iter()
        .filter_map(|name| json_cost::at(json, name));
    let is_absurd = COMPLETIONS
        .iter()
        .any(|name| json_cost::is_absurd(json, name));
    (stated.max().unwrap_or(1).max(1), is_absurd)
}

/// The costs of a call before it is sent: as its caller states, else as its body states, else what
/// calls of its entity used, else the default of the file. And why they are not certain, if so.
pub(crate) fn call_costs(
    costs: &[Cost],
    stated: &[(String, u64)],
    body: BodyText<'_>,
    (estimates, entity): (&TokenEstimates, Option<&str>),
) -> (Vec<CallCost>, Option<CostDoubt>) {
    let explicit = stated.iter().map(|(unit, amount)| CallCost {
        unit: unit.clone(),
        amount: *amount,
        prompt: 0,
        explicit: true,
        is_from_usage: false,
    });
    let mut prices: Vec<CallCost> = explicit.collect();
    let reads_body = costs
        .iter()
        .any(|cost| !cost.before.is_empty() || cost.prompt);
    let json: Option<serde_json::Value> = reads_body
        .then(|| serde_json::from_slice(body.json()).ok())
        .flatten();
    let is_unread = reads_body && body.is_unreadable(json.as_ref());
    let (completions, is_absurd_count) = completions(json.as_ref());
    let mut doubt = is_unread.then_some(CostDoubt::UnreadableBody);
    let mut prompt_size = None; // the same for all units
    for cost in costs {
        if prices.iter().any(|price| price.unit == cost.unit) {
            continue;
        }
        let bound = json.as_ref().and_then(|json| first_of(json, &cost.before));
        let mut before = cost.before.iter().zip(json.iter().cycle());
        if before.any(|(name, json)| json_cost::is_absurd(json, name)) {
            doubt = Some(CostDoubt::AbsurdBound);
        }
        let prompt = match cost.prompt {
            true => *prompt_size.get_or_insert_with(|| body.prompt_tokens(json.as_ref())),
            false => 0,
        };
        if cost.prompt && is_absurd_count {
            doubt = Some(CostDoubt::AbsurdBound);
        }
        // A call without a body asks for no completion.
        let is_from_usage = bound.is_none() && cost.prompt && !body.is_empty();
        let used = || estimates.completion(&cost.unit, entity.unwrap_or_default());
        let completion = match bound {
            Some(bound) => bound,
            None if is_from_usage => used().unwrap_or(cost.otherwise),
            None if cost.prompt => 0,
            None => cost.otherwise,
        };
        // Only a cost with a prompt is one of a language model.
        let completion = match cost.prompt {
            true => completion.saturating_mul(completions),
            false => completion,
        };
        prices.push(CallCost {
            unit: cost.unit.clone(),
            amount: prompt.saturating_add(completion),
            prompt,
            explicit: false,
            is_from_usage,
        });
    }
    (prices, doubt)
}

fn first_of(json: &serde_json::Value, names: &[String]) -> Option<u64> {
    names.iter().find_map(|name| json_cost::at(json, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_comes_from_the_caller_the_body_or_the_default() {
        let cost = Cost {
            unit: "tokens".to_owned(),
            before: vec!["max_completion_tokens".to_owned(), "max_tokens".to_owned()],
            prompt: false,
            otherwise: 1_000,
            after: Vec::new(),
        };
        let estimates = TokenEstimates::default();
        let price = |stated: &[(String, u64)], body: &[u8]| {
            let known = (&estimates, None);
            call_costs(
                std::slice::from_ref(&cost),
                stated,
                BodyText::Whole(body),
                known,
            )
            .0[0]
                .amount
        };
        assert_eq!(price(&[], b"{\"max_tokens\": 64}"), 64);
        assert_eq!(price(&[], b"no json"), 1_000);
        assert_eq!(
            price(&[("tokens".to_owned(), 7)], b"{\"max_tokens\": 64}"),
            7
        );
    }
    /// Bad input counts on the safe side: the size of the body, and what calls of the model used.
    #[test]
    fn a_prompt_is_added_and_an_absent_or_absurd_bound_is_estimated() {
        let cost = Cost {
            unit: "tokens".to_owned(),
            before: vec!["max_tokens".to_owned()],
            prompt: true,
            otherwise: 1_000,
            after: Vec::new(),
        };
        let estimates = TokenEstimates::default();
        let price = |body: &str, entity| {
            let known = (&estimates, Some(entity));
            call_costs(
                std::slice::from_ref(&cost),
                &[],
                BodyText::Whole(body.as_bytes()),
                known,
            )
            .0[0]
                .amount
        };
        let input = |rest: &str| format!("{{\"input\":\"123456789\"{rest}}}");
        assert_eq!(price(&input(",\"max_tokens\":50"), "a"), 53);
        assert_eq!(price(&input(""), "a"), 1_003);
        assert_eq!(price(&input(",\"max_tokens\":-5"), "a"), 1_003);
        assert_eq!(price(&input(",\"max_tokens\":\"x\""), "a"), 1_003);
        assert_eq!(price(&input(",\"max_tokens\":1e300"), "a"), u64::MAX);
        // Each of several completions may be as long as the bound.
        assert_eq!(price(&input(",\"max_tokens\":50,\"n\":3"), "a"), 153);
        assert_eq!(
            price(&input(",\"max_tokens\":50,\"n\":1,\"best_of\":4"), "a"),
            203
        );
        let gemini = input(",\"max_tokens\":50,\"generationConfig\":{\"candidateCount\":2}");
        assert_eq!(price(&gemini, "a"), 103);
        for absurd in ["0", "-4", "\"x\"", "null"] {
            let body = input(&format!(",\"max_tokens\":50,\"n\":{absurd}"));
            assert_eq!(price(&body, "a"), 53, "{absurd}");
        }
        assert_eq!(
            price(&input(",\"max_tokens\":50,\"n\":1e300"), "a"),
            u64::MAX
        );
        assert_eq!(price("no json at all", "a"), 1_005);
        assert_eq!(price("", "a"), 0);
        estimates.learn("tokens", "a", 70);
        assert_eq!(price(&input(""), "a"), 73);
        assert_eq!(price(&input(",\"n\":2"), "a"), 143);
        assert_eq!(price(&input(""), "b"), 1_003);
    }

    /// A former bug: a body above 1 MiB held nothing at all.
    #[test]
    fn a_large_body_is_held_by_what_it_states_or_by_its_size() {
        let cost = Cost {
            unit: "tokens".to_owned(),
            before: vec!["max_tokens".to_owned()],
            prompt: true,
            otherwise: 1_000,
            after: Vec::new(),
        };
        let estimates = TokenEstimates::default();
        let held = |body: BodyText<'_>| {
            let known = (&estimates, None);
            let (prices, doubt) = call_costs(std::slice::from_ref(&cost), &[], body, known);
            (prices[0].amount, doubt)
        };
        let scanned = |body: &str| {
            let mut scan = crate::body_scan::BodyScan::default();
            scan.push(body.as_bytes());
            scan.finish(0, false)
        };
        let image = "A".repeat(2 << 20);
        let large = scanned(&format!("{{\"max_tokens\":50,\"messages\":[\"{image}\"]}}"));
        assert_eq!(held(BodyText::Large(&large)), (1_650, None));
        let wrong = scanned(&"no json ".repeat(3_000));
        let doubt = Some(CostDoubt::UnreadableBody);
        assert_eq!(held(BodyText::Large(&wrong)), (9_000, doubt));
        assert_eq!(held(BodyText::File), (2_600, doubt));
    }
}
