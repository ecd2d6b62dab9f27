//! The true cost of a call, read from its answer as it passes.
//!
//! Promises: from JSON, or from the last event of a stream that names it. Bounded: of an answer that
//! is larger the cost stays what was held for it.
//!
//! Never: holds a byte back, or changes one.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tollgate_core::feedback::COUNT_MAX;

/// The largest JSON in which a cost is looked for, as it comes: answers of models, with room.
const JSON_MAX: usize = 1024 * 1024;

/// The longest event that is kept. Those that tell the usage are the last and have some hundred
/// bytes; a longer one is passed over.
const EVENT_MAX: usize = 64 * 1024;

/// Looks for costs in an answer that passes.
#[derive(Debug)]
pub(crate) struct CostReader {
    kind: BodyFormat,
    /// The index of a term, and the field that tells what it really cost.
    wanted: Vec<(usize, String)>,
    buffer: Vec<u8>,
    is_too_long: bool,
    /// The last event that named a field.
    last: Option<Value>,
    decoder: Decoder,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Json,
    Events,
}

/// Makes what came readable: a compressed body is opened.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    pub(crate) headers: HeaderMap,
    pub(crate) decode: fn(&HeaderMap, &[u8]) -> Vec<u8>,
}

impl CostReader {
    pub(crate) fn new(kind: BodyFormat, wanted: Vec<(usize, String)>, open: Decoder) -> CostReader {
        CostReader {
            kind,
            wanted,
            buffer: Vec::new(),
            is_too_long: false,
            last: None,
            decoder: open,
        }
    }

    /// A piece of the answer passes.
    pub(super) fn push(&mut self, piece: &Bytes) {
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

    /// What a term really cost, now that the answer is whole.
    pub(super) fn costs(mut self) -> Vec<(usize, u64)> {
        let json = match self.kind {
            BodyFormat::Json if self.is_too_long => None,
            BodyFormat::Json => {
                let Decoder {
                    headers,
                    decode: by,
                } = &self.decoder;
                serde_json::from_slice(&by(headers, &self.buffer)).ok()
            }
            BodyFormat::Events => {
                self.read_event();
                self.last
            }
        };
        let Some(json) = json else {
            return Vec::new();
        };
        let cost = |(term, path): &(usize, String)| Some((*term, find(&json, path)?));
        self.wanted.iter().filter_map(cost).collect()
    }

    fn append(&mut self, bytes: &[u8], most: usize) {
        if self.buffer.len() + bytes.len() > most {
            self.is_too_long = true;
            self.buffer = Vec::new();
        }
        if !self.is_too_long {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The line is whole: does it tell a cost?
    fn read_event(&mut self) {
        let line = std::mem::take(&mut self.buffer);
        if std::mem::take(&mut self.is_too_long) {
            return;
        }
        let Some(data) = line.strip_prefix(b"data:") else {
            return;
        };
        // Most events are pieces of text: a look for the name is cheaper than reading each.
        let names = |path: &String| {
            let name = path.rsplit('.').next().unwrap_or_default().as_bytes();
            !name.is_empty() && data.windows(name.len()).any(|part| part == name)
        };
        if !self.wanted.iter().any(|(_, path)| names(path)) {
            return;
        }
        if let Ok(json) = serde_json::from_slice::<Value>(data)
            && self
                .wanted
                .iter()
                .any(|(_, path)| find(&json, path).is_some())
        {
            self.last = Some(json);
        }
    }
}

/// A number at `usage.total_tokens`. At least 1: the call was made.
fn find(json: &Value, path: &str) -> Option<u64> {
    let mut levels = path.split('.');
    let found = levels.try_fold(json, |at, level| at.get(level))?.as_u64()?;
    Some(found.clamp(1, COUNT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(kind: BodyFormat, pieces: &[&str]) -> Vec<(usize, u64)> {
        let wanted = vec![(2, "usage.total_tokens".to_owned())];
        let open = Decoder {
            headers: HeaderMap::new(),
            decode: |_, body| body.to_vec(),
        };
        let mut tally = CostReader::new(kind, wanted, open);
        for piece in pieces {
            tally.push(&Bytes::from((*piece).to_owned()));
        }
        tally.costs()
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
        let long = format!(
            "{{\"x\":\"{}\",\"usage\":{{\"total_tokens\":5}}}}",
            "x".repeat(JSON_MAX)
        );
        assert_eq!(costs(BodyFormat::Json, &[&long]), []);
        let line = format!(
            "data: {{\"x\":\"{}\",\"usage\":{{\"total_tokens\":5}}}}\n",
            "x".repeat(EVENT_MAX)
        );
        let next = "data: {\"usage\":{\"total_tokens\":6}}\n";
        assert_eq!(costs(BodyFormat::Events, &[&line, next]), [(2, 6)]);
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
}
