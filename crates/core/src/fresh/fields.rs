//! Header fields as a cache reads them.
//!
//! Promises: a list may be on one line or on several; dates are read in the three forms of HTTP.
//!
//! Never: stores a header.

use super::control::seconds;
use crate::feedback::date;
use crate::time::{Span, Wall};

/// The headers of a message. Callers pass names in lower case.
pub trait Headers {
    /// Visits every value of a header, in order.
    fn each(&self, name: &str, visit: &mut dyn FnMut(&[u8]));
}

impl Headers for &[(&str, &[u8])] {
    fn each(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for (found, value) in *self {
            if found.eq_ignore_ascii_case(name) {
                visit(value);
            }
        }
    }
}

/// Hop-by-hop headers, which are never forwarded (RFC 9110, 7.6.1), and headers that only a proxy
/// reads or sends (11.7). In lower case.
#[must_use]
pub fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authentication-info"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Headers of a response that are not stored (RFC 9111, 3.1): hop-by-hop headers, and `Trailer`,
/// because trailers are not stored either.
#[must_use]
pub fn is_connection_only(name: &str) -> bool {
    name == "trailer" || is_hop_by_hop(name)
}

/// A date in one of the three forms of HTTP; `now` decides the century of a two-digit year.
#[must_use]
pub fn http_date(text: &[u8], now: Wall) -> Option<Wall> {
    let text = std::str::from_utf8(text).ok()?.trim();
    // Other forms begin with a digit, or end with a zone that is not GMT.
    if !text.starts_with(|first: char| first.is_ascii_alphabetic()) || text.contains(['+', '(']) {
        return None;
    }
    let micros = date::parse(text, now)?;
    Some(Wall(u64::try_from(micros).unwrap_or(0)))
}

/// Is a header there?
pub(super) fn has(headers: &impl Headers, name: &str) -> bool {
    let mut found = false;
    headers.each(name, &mut |_| found = true);
    found
}

/// The single value of a header; `None` if there is none, or several.
pub(super) fn single_value(headers: &impl Headers, name: &str) -> Option<Vec<u8>> {
    let mut values = Vec::new();
    headers.each(name, &mut |value| {
        if values.len() < 2 {
            values.push(value.to_vec());
        }
    });
    values.pop().filter(|_| values.is_empty())
}

/// The date in a header that is sent once.
pub(super) fn date_of(headers: &impl Headers, name: &str, now: Wall) -> Option<Wall> {
    http_date(&single_value(headers, name)?, now)
}

/// Does a list contain this token?
pub(super) fn has_token(headers: &impl Headers, name: &str, token: &str) -> bool {
    let mut found = false;
    headers.each(name, &mut |line| {
        let mut words = line.split(|byte| *byte == b',');
        found |= words.any(|word| word.trim_ascii().eq_ignore_ascii_case(token.as_bytes()));
    });
    found
}

/// The age that upstream caches report: the first member of a list; several lines are one list
/// (RFC 9111, 5.1; RFC 9110, 5.3). An invalid value counts as the maximum age: a response of
/// unknown age should be fetched again.
pub(super) fn age(headers: &impl Headers) -> Span {
    let mut first: Option<Option<u64>> = None;
    headers.each("age", &mut |line| {
        first.get_or_insert_with(|| {
            let member = line.split(|byte| *byte == b',').next()?;
            seconds(member.trim_ascii())
        });
    });
    let reported = first.map_or(0, |read| read.unwrap_or(u64::from(u32::MAX)));
    Span::from_secs(reported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_several_age_values_counts() {
        let reported = |lines: &[&str]| {
            let lines: Vec<(&str, &[u8])> =
                lines.iter().map(|line| ("age", line.as_bytes())).collect();
            age(&lines.as_slice())
        };
        let old = Span::from_secs(u64::from(u32::MAX));
        assert_eq!(reported(&[]), Span::ZERO);
        assert_eq!(reported(&["7"]), Span::from_secs(7));
        assert_eq!(reported(&["0,7200"]), Span::ZERO);
        assert_eq!(reported(&["7200, 0"]), Span::from_secs(7_200));
        for odd in ["", "-1", "1.5", "x, 0", ",0"] {
            assert_eq!(reported(&[odd]), old, "{odd}");
        }
        assert_eq!(reported(&["0", "7200"]), Span::ZERO);
        assert_eq!(reported(&["7200", "0"]), Span::from_secs(7_200));
        assert_eq!(reported(&["x", "0"]), old);
    }
}
