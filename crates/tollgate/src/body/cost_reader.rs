//! Reads the real cost of a call from its response as it passes.
//!
//! Promises: reads JSON, or the last event of a stream that reports the cost. Bounded: of a larger
//! response its end is searched, where every provider writes the usage; if it is not there or is
//! compressed, the estimated cost stays.
//!
//! Never: delays or changes a byte.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use serde_json::Value;

use super::wanted_cost::{Produced, WantedCost};
use crate::cost_doubts::CostDoubts;
use crate::event::CostDoubt;
use crate::token_estimates::TokenEstimates;

/// The largest JSON that is parsed for a cost, as received: responses of language models, with
/// room. Embeddings and images are larger.
const JSON_MAX: usize = 1024 * 1024;

/// The longest event that is parsed. Usage events come last and have some hundred bytes; of a longer
/// one (the whole response at the end of a stream) the end is searched.
const EVENT_MAX: usize = 64 * 1024;

/// How much of the end of a longer response or event is searched. A usage has some hundred bytes, and
/// little comes after it.
const END_MAX: usize = 64 * 1024;

/// Searches a passing response for costs.
#[derive(Debug)]
pub(crate) struct CostReader {
    kind: BodyFormat,
    wanted: Vec<WantedCost>,
    buffer: Vec<u8>,
    is_too_long: bool,
    /// What was seen of the completion so far.
    produced: Produced,
    decoder: Decoder,
    /// Learns what calls of an entity used.
    estimates: Option<(Arc<TokenEstimates>, String)>,
    /// Says that a cost is not certain.
    doubts: Option<Arc<CostDoubts>>,
}

/// The format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Json,
    Events,
}

/// Decompresses a body.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    pub(crate) headers: HeaderMap,
    pub(crate) decode: fn(&HeaderMap, &[u8]) -> Vec<u8>,
}

impl CostReader {
    pub(crate) fn new(kind: BodyFormat, wanted: Vec<WantedCost>, decoder: Decoder) -> CostReader {
        CostReader {
            kind,
            wanted,
            buffer: Vec::new(),
            is_too_long: false,
            produced: Produced::default(),
            decoder,
            estimates: None,
            doubts: None,
        }
    }

    /// What the call used is learned as what calls of this entity use.
    pub(crate) fn learning(mut self, estimates: Arc<TokenEstimates>, entity: String) -> CostReader {
        self.estimates = Some((estimates, entity));
        self
    }

    /// A cost that is not certain is reported.
    pub(crate) fn doubting(mut self, doubts: Arc<CostDoubts>) -> CostReader {
        self.doubts = Some(doubts);
        self
    }

    /// The response broke off: what was held counts.
    pub(crate) fn broke_off(self) {
        if let Some(doubts) = self.doubts {
            doubts.report(CostDoubt::BrokenOff);
        }
    }

    /// Adds a piece of the response.
    pub(crate) fn push(&mut self, piece: &Bytes) {
        match self.kind {
            BodyFormat::Json => self.append(piece, JSON_MAX),
            BodyFormat::Events => {
                let mut lines = piece.split(|byte| *byte == b'\n');
                let last = lines.next_back().unwrap_or_default();
                for line in lines {
                    self.append(line, EVENT_MAX);
                    self.read_event();
                }
                self.append(last, EVENT_MAX);
            }
        }
    }

    /// The real cost per term, once the response is complete.
    pub(crate) fn costs(mut self) -> Vec<(usize, u64)> {
        match self.kind {
            BodyFormat::Json if self.is_too_long => {
                if !self.decoder.headers.contains_key(CONTENT_ENCODING) {
                    self.search_end();
                }
            }
            BodyFormat::Json => {
                let Decoder {
                    headers,
                    decode: by,
                } = &self.decoder;
                if let Ok(json) = serde_json::from_slice(&by(headers, &self.buffer)) {
                    self.wanted.iter_mut().for_each(|one| one.read(&json));
                    self.produced.read(&json);
                }
            }
            BodyFormat::Events => self.read_event(),
        }
        let produced = self.produced;
        if let Some((estimates, entity)) = &self.estimates {
            for one in &self.wanted {
                if let Some(used) = one.believed(produced) {
                    estimates.learn(&one.unit, entity, used.saturating_sub(one.prompt));
                }
            }
        }
        if let Some(doubts) = &self.doubts {
            let doubt = self.wanted.iter().find_map(|one| one.doubt(produced));
            doubt.into_iter().for_each(|doubt| doubts.report(doubt));
        }
        let cost = |one: &WantedCost| Some((one.term, one.settled(produced)?));
        self.wanted.iter().filter_map(cost).collect()
    }

    /// The cost per term of a stream whose reader has left: what was reported, else the prompt and
    /// a token for each event. Empty where nothing was seen to be produced.
    pub(crate) fn costs_so_far(mut self) -> Vec<(usize, u64)> {
        if self.kind != BodyFormat::Events || self.produced.events == 0 {
            return Vec::new();
        }
        self.read_event();
        let produced = self.produced;
        let seen = |one: &WantedCost| {
            one.settled(produced)
                .unwrap_or(one.prompt.saturating_add(produced.events))
        };
        self.wanted
            .iter()
            .map(|one| (one.term, seen(one)))
            .collect()
    }

    fn append(&mut self, bytes: &[u8], most: usize) {
        let most = if self.is_too_long { 2 * END_MAX } else { most };
        if self.buffer.len() + bytes.len() > most {
            self.is_too_long = true;
            // Seldom enough that moving the end costs less than what is read.
            let excess = self.buffer.len().saturating_sub(END_MAX);
            self.buffer.drain(..excess);
            self.buffer.shrink_to(2 * END_MAX);
            let own = bytes.len().saturating_sub(END_MAX);
            self.buffer
                .extend_from_slice(bytes.get(own..).unwrap_or_default());
            return;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Reads what the end of a long response reports, from the last place that names it.
    fn search_end(&mut self) {
        let end = std::mem::take(&mut self.buffer);
        let tops = |one: &WantedCost| -> Vec<String> {
            let paths = one
                .fields
                .iter()
                .map(|(path, _)| path.trim_start_matches('-'));
            let tops = paths.filter_map(|path| Some(path.split_once('.')?.0.to_owned()));
            tops.collect()
        };
        let mut names: Vec<String> = self.wanted.iter().flat_map(tops).collect();
        names.sort();
        names.dedup();
        for name in names {
            if let Some(found) = last_named(&end, &name) {
                let json = serde_json::json!({ name: found });
                self.wanted.iter_mut().for_each(|one| one.read(&json));
            }
        }
    }

    /// The line is complete: does it report a cost?
    fn read_event(&mut self) {
        if std::mem::take(&mut self.is_too_long) {
            self.search_end();
            return;
        }
        let line = std::mem::take(&mut self.buffer);
        let Some(data) = line.strip_prefix(b"data:") else {
            return;
        };
        self.produced.events = self.produced.events.saturating_add(1);
        // Most events are pieces of text: searching for the name is cheaper than parsing each.
        let names = |path: &String| {
            let name = path.rsplit('.').next().unwrap_or_default().as_bytes();
            !name.is_empty() && data.windows(name.len()).any(|part| part == name)
        };
        let mut fields = self.wanted.iter().flat_map(|one| &one.fields);
        if !fields.any(|(path, _)| names(path)) {
            return;
        }
        if let Ok(json) = serde_json::from_slice::<Value>(data) {
            self.wanted.iter_mut().for_each(|one| one.read(&json));
        }
    }
}

/// The last object with this name in the end of a JSON text.
fn last_named(end: &[u8], name: &str) -> Option<Value> {
    let quoted = format!("\"{name}\"");
    let quoted = quoted.as_bytes();
    let names = end.windows(quoted.len()).enumerate().rev();
    let mut places = names.filter(|(_, part)| *part == quoted);
    places.find_map(|(at, _)| {
        // Behind a backslash it is in a text.
        if at.checked_sub(1).and_then(|before| end.get(before)) == Some(&b'\\') {
            return None;
        }
        let after = end.get(at + quoted.len()..)?.trim_ascii_start();
        let value = after.strip_prefix(b":")?;
        let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Value>();
        values.next()?.ok().filter(Value::is_object)
    })
}

#[cfg(test)]
mod tests {
    use tollgate_core::feedback::COUNT_MAX;

    use super::*;

    fn costs(kind: BodyFormat, pieces: &[&str]) -> Vec<(usize, u64)> {
        let wanted = vec![WantedCost {
            term: 2,
            fields: vec![("usage.total_tokens".to_owned(), None)],
            ..WantedCost::default()
        }];
        let decoder = Decoder {
            headers: HeaderMap::new(),
            decode: |_, body| body.to_vec(),
        };
        let mut reader = CostReader::new(kind, wanted, decoder);
        for piece in pieces {
            reader.push(&Bytes::from((*piece).to_owned()));
        }
        reader.costs()
    }

    #[test]
    fn the_cost_is_read_from_json_in_any_chunks() {
        let pieces = ["{\"a\": 1, \"us", "age\": {\"total_tok", "ens\": 412}}"];
        assert_eq!(costs(BodyFormat::Json, &pieces), [(2, 412)]);
    }

    #[test]
    fn the_last_event_with_a_cost_counts() {
        let stream = [
            "event: x\ndata: {\"usage\":{\"total_tokens\":1}}\n\nda",
            "ta: {\"text\":\"total_tokens\"}\r\n\ndata: {\"usage\":{\"total_tokens\":77}}\r",
            "\n\ndata: {\"usage\":null,\"total_tokens\":3}\n\ndata: [DONE]\n\n",
        ];
        assert_eq!(costs(BodyFormat::Events, &stream), [(2, 77)]);
        assert_eq!(
            costs(
                BodyFormat::Events,
                &["data: {\"usage\":{\"total_tokens\":9}}"]
            ),
            [(2, 9)]
        );
    }

    #[test]
    fn an_absent_wrong_or_too_long_cost_is_ignored() {
        for body in [
            "",
            "no json",
            "{\"usage\":{\"total_tokens\":-4}}",
            "{\"usage\":{}}",
        ] {
            assert_eq!(costs(BodyFormat::Json, &[body]), [], "{body}");
        }
        let cut = format!(
            "{{\"x\":\"{}\",\"usage\":{{\"total_tokens",
            "x".repeat(JSON_MAX)
        );
        assert_eq!(costs(BodyFormat::Json, &[&cut]), []);
        let line = format!(
            "data: {{\"x\":\"{}\",\"usage\":{{\"total_tokens\":5}}}}\n",
            "x".repeat(EVENT_MAX)
        );
        let next = "data: {\"usage\":{\"total_tokens\":6}}\n";
        assert_eq!(costs(BodyFormat::Events, &[&line, next]), [(2, 6)]);
    }

    /// A former bug: JSON above 1 MiB (embeddings, images) was never settled, nor was the last event of
    /// a stream that repeats a long response.
    #[test]
    fn the_end_of_a_long_response_is_searched() {
        let long = format!(
            "{{\"data\":\"{}\",\"text\":\"\\\"usage\\\":{{}}\",\"usage\" : {{\"total_tokens\":5,\"x\":{{}}}}, \"id\":\"{}\"}}",
            "x".repeat(JSON_MAX),
            "y".repeat(1_000)
        );
        for size in [9_000, 70_000, 200_000, 2 << 20] {
            let pieces: Vec<&str> = long
                .as_bytes()
                .chunks(size)
                .map(|part| std::str::from_utf8(part).unwrap())
                .collect();
            assert_eq!(costs(BodyFormat::Json, &pieces), [(2, 5)], "{size}");
        }
        let event = format!("data: {long}\n\n");
        assert_eq!(costs(BodyFormat::Events, &[&event]), [(2, 5)]);
        let beyond = format!(
            "{{\"usage\":{{\"total_tokens\":5}},\"x\":\"{}\"}}",
            "x".repeat(JSON_MAX)
        );
        assert_eq!(costs(BodyFormat::Json, &[&beyond]), []);
    }

    #[test]
    fn absurd_costs_are_bounded() {
        let body = format!("{{\"usage\":{{\"total_tokens\":{}}}}}", u64::MAX);
        assert_eq!(costs(BodyFormat::Json, &[&body]), [(2, COUNT_MAX)]);
        assert_eq!(
            costs(BodyFormat::Json, &["{\"usage\":{\"total_tokens\":0}}"]),
            [(2, 1)]
        );
    }
    fn anthropic() -> CostReader {
        let of = |term: usize, prompt, fields: &[&str]| WantedCost {
            term,
            unit: format!("u{term}"),
            prompt,
            counts_output: term == 2,
            fields: fields
                .iter()
                .map(|name| ((*name).to_owned(), None))
                .collect(),
            ..WantedCost::default()
        };
        let input = &["usage.input_tokens", "usage.cache_creation_input_tokens"];
        let wanted = vec![of(1, 900, input), of(2, 0, &["usage.output_tokens"])];
        let decoder = Decoder {
            headers: HeaderMap::new(),
            decode: |_, body| body.to_vec(),
        };
        CostReader::new(BodyFormat::Events, wanted, decoder)
    }

    const START: &str = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"cache_creation_input_tokens\":5,\"cache_read_input_tokens\":900,\"output_tokens\":1}}}\n\n";

    /// Reads of the prompt cache are not counted, and writes are, as Anthropic does.
    #[test]
    fn fields_of_several_events_are_added_and_each_keeps_its_last_value() {
        let mut reader = anthropic();
        reader.push(&Bytes::from_static(START.as_bytes()));
        let end = "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":42}}\n\n";
        reader.push(&Bytes::from_static(end.as_bytes()));
        assert_eq!(reader.costs(), [(1, 15), (2, 42)]);
    }

    /// Groq does not count the cached tokens of a prompt.
    #[test]
    fn a_field_with_a_minus_is_subtracted() {
        let cost = |body: &'static str| {
            let fields = ["usage.total_tokens", "-usage.cached"];
            let wanted = vec![WantedCost {
                term: 1,
                fields: fields.map(|name| (name.to_owned(), None)).into(),
                ..WantedCost::default()
            }];
            let decoder = Decoder {
                headers: HeaderMap::new(),
                decode: |_, body| body.to_vec(),
            };
            let mut reader = CostReader::new(BodyFormat::Json, wanted, decoder);
            reader.push(&Bytes::from_static(body.as_bytes()));
            reader.costs()
        };
        assert_eq!(
            cost(r#"{"usage":{"total_tokens":1000,"cached":900}}"#),
            [(1, 100)]
        );
        assert_eq!(cost(r#"{"usage":{"total_tokens":1000}}"#), [(1, 1_000)]);
        assert_eq!(
            cost(r#"{"usage":{"total_tokens":1000,"cached":5000}}"#),
            [(1, 1)],
            "never below the call itself"
        );
        assert_eq!(cost(r#"{"usage":{"cached":900}}"#), [], "no sum, no cost");
    }

    #[test]
    fn a_reader_that_leaves_pays_for_what_was_seen() {
        let delta = Bytes::from_static(b"data: {\"delta\":1}\n\n");
        let mut reader = anthropic();
        for _ in 0..7 {
            reader.push(&delta);
        }
        assert_eq!(reader.costs_so_far(), [(1, 907), (2, 7)]);
        let mut reader = anthropic();
        reader.push(&Bytes::from_static(START.as_bytes()));
        reader.push(&delta);
        assert_eq!(reader.costs_so_far(), [(1, 15), (2, 1)]);
        assert_eq!(
            anthropic().costs_so_far(),
            [],
            "nothing was seen: the estimate stays"
        );
    }

    /// A usage that is too low is not believed: half a token for each event is the least.
    #[test]
    fn a_usage_that_lies_low_costs_what_was_seen() {
        let stream = |output: u64| {
            let mut reader = anthropic();
            reader.push(&Bytes::from_static(START.as_bytes()));
            for _ in 0..99 {
                reader.push(&Bytes::from_static(b"data: {\"delta\":1}\n\n"));
            }
            let end = format!("data: {{\"usage\":{{\"output_tokens\":{output}}}}}\n\n");
            reader.push(&Bytes::from(end));
            let doubts = reader.wanted.iter().map(|one| one.doubt(reader.produced));
            let doubt = doubts.flatten().next();
            (doubt, reader.costs())
        };
        assert_eq!(
            stream(3),
            (Some(CostDoubt::LowUsage), vec![(1, 15), (2, 42)])
        );
        assert_eq!(stream(90), (None, vec![(1, 15), (2, 90)]));
        let zero = (Some(CostDoubt::LowUsage), vec![(1, 15)]);
        assert_eq!(stream(0), zero, "what was held counts");
    }

    #[test]
    fn what_calls_used_is_learned() {
        let estimates = Arc::new(TokenEstimates::default());
        let mut reader = anthropic().learning(estimates.clone(), "m".to_owned());
        reader.push(&Bytes::from_static(
            b"data: {\"usage\":{\"input_tokens\":950,\"output_tokens\":42}}\n",
        ));
        reader.costs();
        assert_eq!(estimates.completion("u1", "m"), Some(50));
        assert_eq!(estimates.completion("u2", "m"), Some(42));
    }
}
