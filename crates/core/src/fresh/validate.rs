//! Validators: is the client's copy still current, and what does a 304 change?
//!
//! Promises: `If-None-Match` wins over `If-Modified-Since` (RFC 9110, 13.2.2); tags are compared
//! weakly, as for every GET.
//!
//! Never: calls the provider.

use super::fields::{Headers, date_of, has, is_connection_only, single_value};
use crate::time::Wall;

/// Does the client's copy equal the stored response? Then a 304 is enough.
#[must_use]
pub fn is_not_modified(
    request: &impl Headers,
    stored: &impl Headers,
    stored_date: Wall,
    now: Wall,
) -> bool {
    if has(request, "if-none-match") {
        let ours = single_value(stored, "etag");
        let ours = ours.as_deref().map(opaque);
        let mut is_same = false;
        request.each("if-none-match", &mut |line| {
            // `*` is any response, also one without a tag (RFC 9110, 13.1.2).
            is_same |= line.trim_ascii() == b"*" || tags(line).any(|tag| Some(opaque(tag)) == ours);
        });
        return is_same;
    }
    let Some(since) = date_of(request, "if-modified-since", now) else {
        return false;
    };
    let changed = date_of(stored, "last-modified", now)
        .or_else(|| date_of(stored, "date", now))
        .unwrap_or(stored_date);
    changed <= since
}

/// The tags of a list. A comma inside quotes is part of its tag.
fn tags(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    line.split(move |byte| {
        is_quoted ^= *byte == b'"';
        *byte == b',' && !is_quoted
    })
    .map(<[u8]>::trim_ascii)
}

/// A tag without its `W/` prefix.
fn opaque(tag: &[u8]) -> &[u8] {
    let tag = tag.trim_ascii();
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Is a 304 about another representation than the stored one? Two different strong tags say so
/// (RFC 9111, 4.3.4).
#[must_use]
pub fn is_other_representation(stored: &impl Headers, response: &impl Headers) -> bool {
    let strong = |tag: Option<Vec<u8>>| tag.filter(|tag| !tag.trim_ascii().starts_with(b"W/"));
    let tags = (
        strong(single_value(stored, "etag")),
        strong(single_value(response, "etag")),
    );
    matches!(tags, (Some(ours), Some(theirs)) if ours.trim_ascii() != theirs.trim_ascii())
}

/// Does this header of a 304 replace the stored one? Headers that describe the stored body stay
/// (RFC 9111, 3.2).
#[must_use]
pub fn is_replaced_by_304(name: &str) -> bool {
    !is_connection_only(name)
        && !matches!(
            name,
            "content-encoding" | "content-length" | "content-md5" | "content-range" | "etag"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall(1_794_700_000_000_000);

    fn same(request: &[(&str, &str)], stored: &[(&str, &str)]) -> bool {
        fn bytes<'a>(lines: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a [u8])> {
            let line = |(name, value): &(&'a str, &'a str)| (*name, value.as_bytes());
            lines.iter().map(line).collect()
        }
        let (request, stored) = (bytes(request), bytes(stored));
        is_not_modified(&request.as_slice(), &stored.as_slice(), NOW, NOW)
    }

    #[test]
    fn tags_are_compared_weakly_and_anywhere_in_a_list() {
        let stored = [("etag", "\"a,b\"")];
        for list in ["\"a,b\"", "W/\"a,b\"", "\"x\", \"a,b\" , \"y\"", "*"] {
            assert!(same(&[("if-none-match", list)], &stored), "{list}");
        }
        for list in ["\"a\"", "\"a,b", "", "a,b"] {
            assert!(!same(&[("if-none-match", list)], &stored), "{list}");
        }
        assert!(same(&[("if-none-match", "\"x\"")], &[("etag", "W/\"x\"")]));
        assert!(!same(&[("if-none-match", "\"x\"")], &[]));
        assert!(same(&[("if-none-match", "*")], &[]), "any response");
    }

    #[test]
    fn a_tag_wins_over_a_date() {
        let stored = [
            ("etag", "\"a\""),
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ];
        let since = ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(same(&[since], &stored));
        assert!(!same(&[since, ("if-none-match", "\"b\"")], &stored));
    }

    #[test]
    fn dates_are_read_in_three_forms() {
        let stored = [("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")];
        for (date, is_same) in [
            ("Sunday, 06-Nov-94 08:49:37 GMT", true),
            ("Sun Nov  6 08:49:37 1994", true),
            ("Sun, 06 Nov 1994 08:49:36 GMT", false),
            ("1994-11-06T08:49:37Z", false),
            ("yesterday", false),
        ] {
            assert_eq!(
                same(&[("if-modified-since", date)], &stored),
                is_same,
                "{date}"
            );
        }
    }

    #[test]
    fn different_strong_tags_mean_different_responses() {
        let differ = |stored: &str, response: &str| {
            let [stored, response] = [stored, response].map(|tag| vec![("etag", tag.as_bytes())]);
            is_other_representation(&stored.as_slice(), &response.as_slice())
        };
        assert!(differ("\"a\"", "\"b\""));
        for (stored, response) in [
            ("\"a\"", "\"a\""),
            ("\"a\"", "W/\"b\""),
            ("W/\"a\"", "\"b\""),
        ] {
            assert!(!differ(stored, response), "{stored} {response}");
        }
        let none: &[(&str, &[u8])] = &[];
        assert!(!is_other_representation(&none, &none));
    }

    #[test]
    fn a_304_does_not_replace_headers_about_the_body() {
        assert!(is_replaced_by_304("cache-control"));
        assert!(is_replaced_by_304("content-type"));
        assert!(!is_replaced_by_304("content-length"));
        assert!(!is_replaced_by_304("etag"));
        assert!(!is_replaced_by_304("connection"));
    }
}
