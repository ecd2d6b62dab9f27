//! Reads the real cost of a call from its response as it passes.
//!
//! Promises: reads JSON, or the last event of a stream that reports the cost. Bounded: for a larger
//! response the estimated cost stays.
//!
//! Never: delays or changes a byte.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tollgate_core::feedback::COUNT_MAX;

use crate::json_cost;

/// The largest JSON that is searched for a cost, as received: responses of language models, with
/// room.
const JSON_MAX: usize = 1024 * 1024;

/// The longest event that is buffered. Usage events come last and have some hundred bytes; a longer
/// event is skipped.
const EVENT_MAX: usize = 64 * 1024;

/// Searches a passing response for costs.
#[derive(Debug)]
pub(crate) struct CostReader {
    kind: BodyFormat,
    /// The index of a term, and the field that reports its real cost.
    wanted: Vec<(usize, String)>,
    buffer: Vec<u8>,
    is_too_long: bool,
    /// The last event that contained a field.
    last: Option<Value>,
    decoder: Decoder,
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
    pub(crate) fn new(
        kind: BodyFormat,
        wanted: Vec<(usize, String)>,
        decoder: Decoder,
    ) -> CostReader {
        CostReader {
            kind,
            wanted,
            buffer: Vec::new(),
            is_too_long: false,
            last: None,
            decoder,
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

    /// The line is complete: does it report a cost?
    fn read_event(&mut self) {
        let line = std::mem::take(&mut self.buffer);
        if std::mem::take(&mut self.is_too_long) {
            return;
        }
        let Some(data) = line.strip_prefix(b"data:") else {
            return;
        };
        // Most events are pieces of text: searching for the name is cheaper than parsing each.
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
    Some(json_cost::at(json, path)?.clamp(1, COUNT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(kind: BodyFormat, pieces: &[&str]) -> Vec<(usize, u64)> {
        let wanted = vec![(2, "usage.total_tokens".to_owned())];
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
