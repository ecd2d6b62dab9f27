//! A part of an answer that was kept whole: which bytes does a request ask for?
//!
//! Promises: only one range is ever answered, and only of the very answer that the request means
//! (`If-Range`); whatever else it says, the whole answer is right too (RFC 9110, 14.2).
//!
//! Never: guesses. A range that cannot be read is none.

use super::fields::{Headers, has, http_date, only};
use crate::time::Wall;

/// What of an answer a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// From the first byte to the one after the last; never empty, never past the end.
    Bytes(u64, u64),
    /// Something that it does not have.
    Beyond,
}

/// What of an answer of this length a request asks for.
#[must_use]
pub fn part(request: &impl Headers, kept: &impl Headers, length: u64, now: Wall) -> Part {
    let Some(line) = only(request, "range") else {
        return Part::Whole;
    };
    if length == 0 || !is_meant(request, kept, now) {
        return Part::Whole;
    }
    match read(&line) {
        None => Part::Whole,
        Some(Written::From(first, _)) if first >= length => Part::Beyond,
        Some(Written::From(first, last)) => {
            let end = last.map_or(length, |last| last.saturating_add(1).min(length));
            Part::Bytes(first, end)
        }
        Some(Written::Last(0)) => Part::Beyond,
        Some(Written::Last(count)) => Part::Bytes(length.saturating_sub(count), length),
    }
}

/// A range as it is written.
enum Written {
    From(u64, Option<u64>),
    /// So many bytes at the end.
    Last(u64),
}

/// `bytes=0-99`, `bytes=100-`, `bytes=-100`. Several ranges, other units and nonsense are `None`.
fn read(line: &[u8]) -> Option<Written> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let (unit, set) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = set.trim().split_once('-')?;
    match (number(first)?, number(last)?) {
        (Some(first), Some(last)) if first > last => None,
        (Some(first), last) => Some(Written::From(first, last)),
        (None, Some(count)) => Some(Written::Last(count)),
        (None, None) => None,
    }
}

/// A number, or nothing; `None` = neither. More than can be counted is past every end.
fn number(digits: &str) -> Option<Option<u64>> {
    if digits.is_empty() {
        return Some(None);
    }
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Some(digits.parse().unwrap_or(u64::MAX)))
}

/// Is what we have the answer that `If-Range` names? Tags are compared strongly and dates exactly
/// (RFC 9110, 13.1.5); without the header every answer is meant.
fn is_meant(request: &impl Headers, kept: &impl Headers, now: Wall) -> bool {
    if !has(request, "if-range") {
        return true;
    }
    let Some(named) = only(request, "if-range") else {
        return false;
    };
    let named = named.trim_ascii();
    if named.starts_with(b"\"") {
        return only(kept, "etag").is_some_and(|tag| tag.trim_ascii() == named);
    }
    let changed = only(kept, "last-modified");
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

    fn asked(request: &[(&str, &str)], length: u64) -> Part {
        let bytes = |lines: &[(&'static str, &'static str)]| lines.to_vec();
        let kept = bytes(&[("etag", "\"a\""), ("last-modified", DATE)]);
        let kept: Vec<(&str, &[u8])> = kept.iter().map(|(n, v)| (*n, v.as_bytes())).collect();
        let request: Vec<(&str, &[u8])> = request.iter().map(|(n, v)| (*n, v.as_bytes())).collect();
        part(&request.as_slice(), &kept.as_slice(), length, NOW)
    }

    #[test]
    fn one_range_is_cut_at_the_end() {
        for (range, expected) in [
            ("bytes=0-0", Part::Bytes(0, 1)),
            ("bytes=2-5", Part::Bytes(2, 6)),
            ("bytes=2-99", Part::Bytes(2, 10)),
            ("bytes=9-", Part::Bytes(9, 10)),
            ("BYTES = 3-", Part::Bytes(3, 10)),
            ("bytes=-3", Part::Bytes(7, 10)),
            ("bytes=-99", Part::Bytes(0, 10)),
            ("bytes=0-99999999999999999999999", Part::Bytes(0, 10)),
            ("bytes=10-", Part::Beyond),
            ("bytes=99999999999999999999999-", Part::Beyond),
            ("bytes=-0", Part::Beyond),
        ] {
            assert_eq!(asked(&[("range", range)], 10), expected, "{range}");
        }
    }

    #[test]
    fn what_is_no_single_range_is_the_whole() {
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
            assert_eq!(asked(&[("range", range)], 10), Part::Whole, "{range}");
        }
        let twice = [("range", "bytes=0-1"), ("range", "bytes=0-1")];
        assert_eq!(asked(&twice, 10), Part::Whole);
        assert_eq!(asked(&[("range", "bytes=0-1")], 0), Part::Whole);
        assert_eq!(asked(&[], 10), Part::Whole);
    }

    #[test]
    fn a_range_is_of_the_answer_that_is_named() {
        for (named, is_meant) in [
            ("\"a\"", true),
            ("\"b\"", false),
            ("W/\"a\"", false),
            (DATE, true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("yesterday", false),
            ("", false),
        ] {
            let request = [("range", "bytes=1-2"), ("if-range", named)];
            let expected = if is_meant {
                Part::Bytes(1, 3)
            } else {
                Part::Whole
            };
            assert_eq!(asked(&request, 10), expected, "{named}");
        }
    }
}
