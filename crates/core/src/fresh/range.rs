//! Range requests on a stored response: which bytes does a request want?
//!
//! Promises: only a single range is served, and only of the response that `If-Range` names. In
//! every other case the whole response is correct too (RFC 9110, 14.2).
//!
//! Never: guesses. A range that cannot be parsed is ignored.

use super::fields::{Headers, has, http_date, single_value};
use crate::time::Wall;

/// The part of a response that a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// All of it.
    Whole,
    /// From the first byte to the one after the last; never empty, never past the end.
    Bytes(u64, u64),
    /// A range outside the response.
    Unsatisfiable,
}

/// The part that a request wants of a response of this length.
#[must_use]
pub fn requested_range(
    request: &impl Headers,
    stored: &impl Headers,
    length: u64,
    now: Wall,
) -> ByteRange {
    let Some(line) = single_value(request, "range") else {
        return ByteRange::Whole;
    };
    if length == 0 || !if_range_matches(request, stored, now) {
        return ByteRange::Whole;
    }
    match read(&line) {
        None => ByteRange::Whole,
        Some(RangeSpec::From(first, _)) if first >= length => ByteRange::Unsatisfiable,
        Some(RangeSpec::From(first, last)) => {
            let end = last.map_or(length, |last| last.saturating_add(1).min(length));
            ByteRange::Bytes(first, end)
        }
        Some(RangeSpec::Last(0)) => ByteRange::Unsatisfiable,
        Some(RangeSpec::Last(count)) => ByteRange::Bytes(length.saturating_sub(count), length),
    }
}

/// A range as written in the header.
enum RangeSpec {
    From(u64, Option<u64>),
    /// This many bytes at the end.
    Last(u64),
}

/// `bytes=0-99`, `bytes=100-`, `bytes=-100`. Several ranges, other units and invalid text are
/// `None`.
fn read(line: &[u8]) -> Option<RangeSpec> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let (unit, set) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = set.trim().split_once('-')?;
    match (number(first)?, number(last)?) {
        (Some(first), Some(last)) if first > last => None,
        (Some(first), last) => Some(RangeSpec::From(first, last)),
        (None, Some(count)) => Some(RangeSpec::Last(count)),
        (None, None) => None,
    }
}

/// A number, or nothing; `None` = neither. A number that overflows is past every end.
fn number(digits: &str) -> Option<Option<u64>> {
    if digits.is_empty() {
        return Some(None);
    }
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Some(digits.parse().unwrap_or(u64::MAX)))
}

/// Is the stored response the one that `If-Range` names? Tags are compared strongly and dates
/// exactly (RFC 9110, 13.1.5); without the header every response matches.
fn if_range_matches(request: &impl Headers, stored: &impl Headers, now: Wall) -> bool {
    if !has(request, "if-range") {
        return true;
    }
    let Some(named) = single_value(request, "if-range") else {
        return false;
    };
    let named = named.trim_ascii();
    if named.starts_with(b"\"") {
        return single_value(stored, "etag").is_some_and(|tag| tag.trim_ascii() == named);
    }
    let changed = single_value(stored, "last-modified");
    let same = |changed: &Vec<u8>| {
        let date = http_date(named, now);
        date.is_some() && date == http_date(changed, now)
    };
    !named.starts_with(b"W/") && changed.as_ref().is_some_and(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall(1_794_700_000_000_000);
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn requested(request: &[(&str, &str)], length: u64) -> ByteRange {
        let bytes = |lines: &[(&'static str, &'static str)]| lines.to_vec();
        let stored = bytes(&[("etag", "\"a\""), ("last-modified", DATE)]);
        let stored: Vec<(&str, &[u8])> = stored.iter().map(|(n, v)| (*n, v.as_bytes())).collect();
        let request: Vec<(&str, &[u8])> = request.iter().map(|(n, v)| (*n, v.as_bytes())).collect();
        requested_range(&request.as_slice(), &stored.as_slice(), length, NOW)
    }

    #[test]
    fn a_range_is_clamped_to_the_length() {
        for (range, expected) in [
            ("bytes=0-0", ByteRange::Bytes(0, 1)),
            ("bytes=2-5", ByteRange::Bytes(2, 6)),
            ("bytes=2-99", ByteRange::Bytes(2, 10)),
            ("bytes=9-", ByteRange::Bytes(9, 10)),
            ("BYTES = 3-", ByteRange::Bytes(3, 10)),
            ("bytes=-3", ByteRange::Bytes(7, 10)),
            ("bytes=-99", ByteRange::Bytes(0, 10)),
            ("bytes=0-99999999999999999999999", ByteRange::Bytes(0, 10)),
            ("bytes=10-", ByteRange::Unsatisfiable),
            ("bytes=99999999999999999999999-", ByteRange::Unsatisfiable),
            ("bytes=-0", ByteRange::Unsatisfiable),
        ] {
            assert_eq!(requested(&[("range", range)], 10), expected, "{range}");
        }
    }

    #[test]
    fn an_invalid_or_multiple_range_means_the_whole_body() {
        for range in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-2",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1-2,4-5",
            "items=0-1",
            "bytes=0x1-2",
            "bytes=1 -2",
        ] {
            assert_eq!(
                requested(&[("range", range)], 10),
                ByteRange::Whole,
                "{range}"
            );
        }
        let twice = [("range", "bytes=0-1"), ("range", "bytes=0-1")];
        assert_eq!(requested(&twice, 10), ByteRange::Whole);
        assert_eq!(requested(&[("range", "bytes=0-1")], 0), ByteRange::Whole);
        assert_eq!(requested(&[], 10), ByteRange::Whole);
    }

    #[test]
    fn if_range_must_match_the_stored_response() {
        for (named, matches) in [
            ("\"a\"", true),
            ("\"b\"", false),
            ("W/\"a\"", false),
            (DATE, true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("yesterday", false),
            ("", false),
        ] {
            let request = [("range", "bytes=1-2"), ("if-range", named)];
            let expected = if matches {
                ByteRange::Bytes(1, 3)
            } else {
                ByteRange::Whole
            };
            assert_eq!(requested(&request, 10), expected, "{named}");
        }
    }
}
