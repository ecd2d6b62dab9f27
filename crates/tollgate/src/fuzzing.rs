//! What fuzz targets need of this crate; built with the feature `fuzzing` only.
//!
//! Promises: calls the code of the path, and adds nothing to it.
//!
//! Never: is part of a program.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, HeaderValue};

use crate::body::{BodyFormat, CostReader, Decoder, WantedCost};
use crate::decode::decoded;

/// The costs that a response reports, as it passes in these pieces.
#[must_use]
pub fn costs<'a>(
    is_stream: bool,
    encoding: Option<&'static str>,
    wanted: &[(usize, String)],
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Vec<(usize, u64)> {
    let kind = if is_stream {
        BodyFormat::Events
    } else {
        BodyFormat::Json
    };
    let mut headers = HeaderMap::new();
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    let decoder = Decoder {
        headers,
        decode: |headers, body| decoded(headers, body, 1024 * 1024).into_owned(),
    };
    let wanted = wanted.iter().map(|(term, path)| WantedCost {
        term: *term,
        fields: vec![(path.clone(), None)],
        ..WantedCost::default()
    });
    let mut reader = CostReader::new(kind, wanted.collect(), decoder);
    for piece in pieces {
        reader.push(&Bytes::copy_from_slice(piece));
    }
    reader.costs()
}
