//! Header fields as a cache reads them.
//!
//! Promises: a list may stand on one line or on many; dates are read in the three forms that HTTP
//! has.
//!
//! Never: keeps a header; it only looks.

use super::control::seconds;
use crate::feedback::date;
use crate::time::{Span, Wall};

/// The headers of a message. Names are asked for in lower case.
pub trait Headers {
    /// Shows every value of a header, in order.
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

/// Headers between two neighbours, never passed on (RFC 9110, 7.6.1), and those that only a proxy is
/// meant to read or to send (11.7). In lower case.
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

/// What is not kept of an answer (RFC 9111, 3.1): what is between two neighbours, and the names of
/// trailers, because those are not kept either.
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

/// The only value of a header; `None` if there is none, or several.
pub(super) fn single_value(headers: &impl Headers, name: &str) -> Option<Vec<u8>> {
    let mut values = Vec::new();
    headers.each(name, &mut |value| {
        if values.len() < 2 {
            values.push(value.to_vec());
        }
    });
    values.pop().filter(|_| values.is_empty())
}

/// A date that stands once.
pub(super) fn date_of(headers: &impl Headers, name: &str, now: Wall) -> Option<Wall> {
    http_date(&single_value(headers, name)?, now)
}

/// Has a list this word?
pub(super) fn has_token(headers: &impl Headers, name: &str, token: &str) -> bool {
    let mut found = false;
    headers.each(name, &mut |line| {
        let mut words = line.split(|byte| *byte == b',');
        found |= words.any(|word| word.trim_ascii().eq_ignore_ascii_case(token.as_bytes()));
    });
    found
}

/// What caches before us say of the answer's age: of a list its first member, and several lines are
/// one list (RFC 9111, 5.1; RFC 9110, 5.3). What cannot be read is as old as can be: an answer of
/// unknown age had better be asked for again.
pub(super) fn age(headers: &impl Headers) -> Span {
    let mut first: Option<Option<u64>> = None;
    headers.each("age", &mut |line| {
        first.get_or_insert_with(|| {
            let member = line.split(|byte| *byte == b',').next()?;
            seconds(member.trim_ascii())
        });
    });
    let told = first.map_or(0, |read| read.unwrap_or(u64::from(u32::MAX)));
    Span::from_secs(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_several_age_values_counts() {
        let told = |lines: &[&str]| {
            let lines: Vec<(&str, &[u8])> =
                lines.iter().map(|line| ("age", line.as_bytes())).collect();
            age(&lines.as_slice())
        };
        let old = Span::from_secs(u64::from(u32::MAX));
        assert_eq!(told(&[]), Span::ZERO);
        assert_eq!(told(&["7"]), Span::from_secs(7));
        assert_eq!(told(&["0,7200"]), Span::ZERO);
        assert_eq!(told(&["7200, 0"]), Span::from_secs(7_200));
        for odd in ["", "-1", "1.5", "x, 0", ",0"] {
            assert_eq!(told(&[odd]), old, "{odd}");
        }
        assert_eq!(told(&["0", "7200"]), Span::ZERO);
        assert_eq!(told(&["7200", "0"]), Span::from_secs(7_200));
        assert_eq!(told(&["x", "0"]), old);
    }
}
