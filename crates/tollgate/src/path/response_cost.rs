//! The real cost of a call, read from its response.
//!
//! Promises: a response that passes through the gateway and one that another process reports settle the
//! same cost.
//!
//! Never: reads the cost of a failure.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::response::Parts;
use tollgate_core::ask::CostUnit;
use tollgate_core::feedback;
use tollgate_core::limit::Rule;

use super::subject::Subject;
use crate::body::{BodyFormat, CostReader, Decoder, WantedCost};
use crate::decode;
use crate::providers::CompiledPolicy;

/// No call uses more tokens: twice what the longest context of a hosted model has.
const CALL_TOKENS_MAX: u64 = 1 << 22;

/// Does the content type contain this word?
pub(super) fn has_content_type(headers: &HeaderMap, word: &[u8]) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| {
        let mut parts = kind.as_bytes().windows(word.len());
        parts.any(|part| part.eq_ignore_ascii_case(word))
    })
}

/// The format of a response that may report its cost.
fn body_format(headers: &HeaderMap) -> Option<BodyFormat> {
    if has_content_type(headers, b"json") {
        Some(BodyFormat::Json)
    } else if has_content_type(headers, b"event-stream") {
        Some(BodyFormat::Events)
    } else {
        None
    }
}

/// The real costs, by term, of a call that another process made: those that the response states which it
/// reports. It may report the body without its headers, and has decompressed it.
pub(super) fn reported(
    subject: &Subject,
    policy: &CompiledPolicy,
    status: u16,
    body: &[u8],
) -> Vec<(usize, u64)> {
    if body.is_empty() || status >= 400 {
        return Vec::new();
    }
    let format = match body.trim_ascii_start() {
        [b'{' | b'[', ..] => BodyFormat::Json,
        // Only the last events say what was used; an earlier one says less, and what is held would be given back.
        events if has_ended(events) => BodyFormat::Events,
        _ => return Vec::new(),
    };
    let reader = cost_reader(subject, policy, &HeaderMap::new(), format);
    reader.map_or_else(Vec::new, |mut reader| {
        reader.push(&Bytes::copy_from_slice(body));
        reader.costs()
    })
}

/// Is the last event of a stream there? A report has the beginning of a body.
fn has_ended(events: &[u8]) -> bool {
    const LAST_EVENTS: [&[u8]; 3] = [b"[DONE]", b"message_stop", b"response.completed"];
    let last = events.trim_ascii_end();
    let last = last.split(|byte| *byte == b'\n').rev().take(3);
    let mut lines = last.flat_map(|line| LAST_EVENTS.map(|name| (line, name)));
    lines.any(|(line, name)| line.windows(name.len()).any(|part| part == name))
}

/// Reads the real cost of a call of the gateway while its response passes, where the provider file says that
/// the response reports it.
pub(super) fn reader(
    subject: &Subject,
    policy: &CompiledPolicy,
    head: &Parts,
) -> Option<CostReader> {
    let format = body_format(&head.headers).filter(|_| head.status.as_u16() < 400)?;
    cost_reader(subject, policy, &head.headers, format)
}

/// Reads the real cost of the call, where the provider file says that the response reports it.
fn cost_reader(
    subject: &Subject,
    policy: &CompiledPolicy,
    headers: &HeaderMap,
    format: BodyFormat,
) -> Option<CostReader> {
    let wanted = policy.true_costs(subject.joint_priority(), subject.at_most_permille.is_some());
    if wanted.is_empty() {
        return None;
    }
    let open = Decoder {
        headers: headers.clone(),
        decode: |headers, body| decode::decoded(headers, body, feedback::BODY_MAX).into_owned(),
    };
    let prompt = |unit: &str| {
        let price = subject.costs.iter().find(|price| price.unit == unit);
        price.map_or(0, |price| price.prompt)
    };
    let counts_output = |unit: &str| {
        let mut costs = policy.provider.costs.iter();
        costs.any(|cost| cost.unit == unit && !cost.before.is_empty())
    };
    let wanted = wanted.into_iter().map(|(term, cost, rule)| WantedCost {
        term,
        unit: cost.unit.clone(),
        prompt: prompt(&cost.unit),
        counts_output: counts_output(&cost.unit),
        most: Some(usage_max(rule)),
        is_stated: false,
        fields: cost.after.iter().map(|path| (path.clone(), None)).collect(),
    });
    let reader = CostReader::new(format, wanted.collect(), open);
    let entity = subject.entity.clone().unwrap_or_default();
    let reader = reader.learning(subject.provider.token_estimates.clone(), entity.to_string());
    Some(reader.doubting(subject.provider.cost_doubts.clone()))
}

/// More than that is no usage of one call: the whole limit, and for tokens [`CALL_TOKENS_MAX`].
fn usage_max(rule: &Rule) -> u64 {
    let whole = rule.max_cost().max(rule.limit());
    match rule.cost_unit() {
        CostUnit::Tokens => whole.min(CALL_TOKENS_MAX),
        CostUnit::Calls | CostUnit::Points | CostUnit::Bytes => whole,
    }
}
