//! `Cache-Control`: the directives of requests and responses.
//!
//! Promises: a directive inside a quoted string is ignored; names are case-insensitive; an invalid
//! number is zero, because a response with invalid freshness should count as stale (RFC 9111,
//! 4.2.1); of two values the smaller counts.
//!
//! Never: fails. Unknown directives are ignored.

use super::fields::Headers;
use crate::time::Span;

/// The largest number of seconds; greater ones count as this (RFC 9111, 1.2.2): 68 years.
const SECONDS_MAX: u64 = 1 << 31;

/// Header names that one directive may list. More than any response has, and few enough to search.
const LISTED_MAX: usize = 32;

/// The directives that apply to a shared cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// The message has the header.
    pub is_present: bool,
    /// How long it is fresh.
    pub max_age: Option<Span>,
    /// How long it is fresh in shared caches.
    pub s_maxage: Option<Span>,
    /// Revalidate before each use.
    pub no_cache: bool,
    /// Do not store it.
    pub no_store: bool,
    /// Not for shared caches.
    pub private: bool,
    /// For every cache.
    pub public: bool,
    /// Never serve it stale.
    pub must_revalidate: bool,
    /// The same for shared caches.
    pub proxy_revalidate: bool,
    /// Only for caches that know the status.
    pub must_understand: bool,
    /// How long it may be served stale during a refresh.
    pub stale_while_revalidate: Option<Span>,
    /// How long it may be served stale if the provider fails.
    pub stale_if_error: Option<Span>,
    /// How stale the client accepts it.
    pub max_stale: Option<Span>,
    /// How much longer it must stay fresh.
    pub min_fresh: Option<Span>,
    /// Do not call the provider.
    pub only_if_cached: bool,
    /// Headers that must not be stored, in lower case.
    pub omit: Vec<String>,
}

impl CacheControl {
    /// Reads all lines of one header.
    #[must_use]
    pub fn read(name: &str, headers: &impl Headers) -> CacheControl {
        let mut control = CacheControl::default();
        headers.each(name, &mut |line| {
            control.is_present = true;
            let mut rest = line;
            while let Some(directive) = next_directive(&mut rest) {
                control.apply(&directive);
            }
        });
        control
    }

    fn apply(&mut self, directive: &Directive<'_>) {
        let name = directive.name.to_ascii_lowercase();
        let seconds = || directive.seconds();
        match name.as_slice() {
            b"max-age" => least(&mut self.max_age, seconds()),
            b"s-maxage" => least(&mut self.s_maxage, seconds()),
            b"stale-while-revalidate" => least(&mut self.stale_while_revalidate, seconds()),
            b"stale-if-error" => least(&mut self.stale_if_error, seconds()),
            b"min-fresh" => self.min_fresh = Some(seconds()),
            // Without a number any age is accepted.
            b"max-stale" => {
                let any = directive.value.is_none();
                self.max_stale = Some(if any { Span(u64::MAX) } else { seconds() });
            }
            b"no-cache" => self.listed(directive, |control| control.no_cache = true),
            b"private" => self.listed(directive, |control| control.private = true),
            b"no-store" => self.no_store = true,
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"only-if-cached" => self.only_if_cached = true,
            _ => {}
        }
    }

    /// A directive that applies to the headers it lists, or, without a valid list, to the whole
    /// response.
    fn listed(&mut self, directive: &Directive<'_>, all: impl Fn(&mut CacheControl)) {
        let text = directive.value.as_deref().and_then(|value| {
            let text = std::str::from_utf8(value).ok()?;
            Some(text.split(',').map(|name| name.trim().to_ascii_lowercase()))
        });
        let names: Vec<String> = text
            .into_iter()
            .flatten()
            .filter(|name| !name.is_empty())
            .collect();
        if names.is_empty() || self.omit.len() + names.len() > LISTED_MAX {
            all(self);
        } else {
            self.omit.extend(names);
        }
    }
}

/// One directive, its value without quotes.
struct Directive<'a> {
    name: &'a [u8],
    value: Option<Vec<u8>>,
}

impl Directive<'_> {
    fn seconds(&self) -> Span {
        let digits = self.value.as_deref().unwrap_or_default();
        Span::from_secs(seconds(digits).unwrap_or(0))
    }
}

/// Whole seconds, at most `SECONDS_MAX`.
pub(super) fn seconds(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let step = |sum: u64, digit: &u8| {
        let sum = sum.saturating_mul(10) + u64::from(digit - b'0');
        sum.min(SECONDS_MAX)
    };
    Some(digits.iter().fold(0, step))
}

fn least(slot: &mut Option<Span>, value: Span) {
    *slot = Some(slot.map_or(value, |old| old.min(value)));
}

/// Reads the next directive of a line: `name`, `name=value` or `name="value"`.
fn next_directive<'a>(rest: &mut &'a [u8]) -> Option<Directive<'a>> {
    let is_gap = |byte: &u8| matches!(byte, b' ' | b'\t' | b',');
    let start = rest.iter().position(|byte| !is_gap(byte))?;
    let line = &rest[start..];
    let end = line.iter().position(|byte| matches!(byte, b'=' | b','));
    let (name, mut after) = line.split_at(end.unwrap_or(line.len()));
    let mut value = None;
    if let Some((b'=', written)) = after.split_first() {
        let (read, tail) = value_of(written);
        value = Some(read);
        after = tail;
    }
    *rest = after;
    // A space before the `=` is not allowed, so the value is invalid.
    let trimmed = name.trim_ascii_end();
    if trimmed.len() != name.len() && value.is_some() {
        value = Some(b"?".to_vec());
    }
    Some(Directive {
        name: trimmed,
        value,
    })
}

/// A value up to the next comma outside quotes, and what follows it.
fn value_of(written: &[u8]) -> (Vec<u8>, &[u8]) {
    let Some((b'"', quoted)) = written.split_first() else {
        let end = written.iter().position(|byte| *byte == b',');
        let (value, after) = written.split_at(end.unwrap_or(written.len()));
        return (value.trim_ascii_end().to_vec(), after);
    };
    let mut value = Vec::new();
    let mut at = 0;
    while let Some(byte) = quoted.get(at) {
        match byte {
            b'"' => break,
            b'\\' => at += 1,
            _ => {}
        }
        value.extend(quoted.get(at));
        at += 1;
    }
    let after = quoted.get(at + 1..).unwrap_or_default();
    let end = after.iter().position(|byte| *byte == b',');
    (
        value,
        after.get(end.unwrap_or(after.len())..).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> CacheControl {
        let lines: Vec<(&str, &[u8])> = lines
            .iter()
            .map(|line| ("cache-control", line.as_bytes()))
            .collect();
        CacheControl::read("cache-control", &lines.as_slice())
    }

    fn max_age(line: &str) -> Option<u64> {
        read(&[line]).max_age.map(|span| span.0 / 1_000_000)
    }

    #[test]
    fn numbers_are_read_in_every_spelling_and_invalid_ones_are_zero() {
        for (line, seconds) in [
            ("max-age=60", 60),
            ("MaX-AgE=60", 60),
            ("max-age=0060", 60),
            ("max-age=\"60\"", 60),
            (" , ,max-age=60 ,", 60),
            ("max-age=99999999999999999999", 1 << 31),
            ("max-age='60'", 0),
            ("max-age=-1", 0),
            ("max-age=60.5", 0),
            ("max-age=6a", 0),
            ("max-age =60", 0),
            ("max-age= 60", 0),
            ("max-age", 0),
            ("max-age=", 0),
        ] {
            assert_eq!(max_age(line), Some(seconds), "{line}");
        }
        assert_eq!(max_age("public"), None);
    }

    #[test]
    fn the_smaller_of_two_values_counts() {
        assert_eq!(max_age("max-age=1, max-age=9"), Some(1));
        assert_eq!(
            read(&["max-age=9", "max-age=1"]).max_age,
            Some(Span::from_secs(1))
        );
    }

    #[test]
    fn a_directive_inside_quotes_is_ignored() {
        assert_eq!(max_age("x=\"max-age=9, no-store\", max-age=1"), Some(1));
        let control = read(&["x=\"a\\\", no-store\""]);
        assert!(!control.no_store);
        assert!(!read(&["x=\"no-store"]).no_store);
    }

    #[test]
    fn a_directive_with_a_header_list_applies_to_those_headers_only() {
        let control = read(&["no-cache=\"Set-Cookie, X-A\", private=x-b"]);
        assert!(!control.no_cache && !control.private);
        assert_eq!(control.omit, ["set-cookie", "x-a", "x-b"]);
        let bare = read(&["no-cache, private"]);
        assert!(bare.no_cache && bare.private);
        assert!(read(&["no-cache=\"\""]).no_cache);
    }

    #[test]
    fn max_stale_without_a_value_accepts_any_age() {
        assert_eq!(read(&["max-stale"]).max_stale, Some(Span(u64::MAX)));
        assert_eq!(read(&["max-stale=5"]).max_stale, Some(Span::from_secs(5)));
    }
}
