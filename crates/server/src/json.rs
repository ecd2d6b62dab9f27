//! JSON as the server writes it.
//!
//! Promises: no number above 2^53, which a reader whose numbers are doubles (a browser, `jq`) would
//! change without a word. A larger one is written as 2^53.
//!
//! Never: fails. Our own structs of texts and numbers always serialise.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use tollgate_core::time::Wall;

/// The largest integer up to which every one is exact as a double.
const EXACT_MAX: u64 = 1 << 53;

/// Most bodies have fewer bytes: a decision has about 300.
const USUAL_MAX: usize = 512;

/// The bytes of a body.
pub(crate) fn to_bytes(body: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(USUAL_MAX);
    let mut out = Serializer::with_formatter(&mut bytes, ExactNumbers);
    match body.serialize(&mut out) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

/// A time in seconds with three decimals.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of 285 000 years are exact"
)]
pub(crate) fn epoch(wall: Wall) -> f64 {
    (wall.0 / 1_000) as f64 / 1_000.0
}

/// Compact, with numbers that every reader has exactly.
struct ExactNumbers;

impl Formatter for ExactNumbers {
    fn write_u64<W: ?Sized + Write>(&mut self, writer: &mut W, value: u64) -> io::Result<()> {
        let mut digits = itoa::Buffer::new();
        writer.write_all(digits.format(value.min(EXACT_MAX)).as_bytes())
    }

    fn write_i64<W: ?Sized + Write>(&mut self, writer: &mut W, value: i64) -> io::Result<()> {
        let most = EXACT_MAX.cast_signed();
        let mut digits = itoa::Buffer::new();
        writer.write_all(digits.format(value.clamp(-most, most)).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_number_above_two_to_the_53_leaves() {
        let body =
            json!({ "a": [u64::MAX, EXACT_MAX + 1, EXACT_MAX, 7], "b": i64::MIN, "c": -1.5 });
        let text = String::from_utf8(to_bytes(&body)).unwrap();
        let expected = "{\"a\":[9007199254740992,9007199254740992,9007199254740992,7],\
                        \"b\":-9007199254740992,\"c\":-1.5}";
        assert_eq!(text, expected);
    }

    #[test]
    fn everything_else_is_as_usual() {
        let body = json!({ "text": "a \"b\" \n", "list": [null, true, { "n": 0 }] });
        assert_eq!(to_bytes(&body), serde_json::to_vec(&body).unwrap());
    }
}
