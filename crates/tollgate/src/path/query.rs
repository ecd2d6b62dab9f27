//! The query of a URL, as far as a key may stand in it.
//!
//! Promises: parameters that are not about the key pass byte for byte.
//!
//! Never: sorts, decodes or encodes what a caller wrote.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What may stand in a value as it is (RFC 3986, unreserved).
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The value of a parameter, decoded.
pub(super) fn find(query: &str, name: &str) -> Option<String> {
    let (_, value) = pairs(query).find(|(found, _)| is(found, name))?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// The query with this parameter set, in place of any that it had, at its end.
pub(super) fn with(query: Option<&str>, name: &str, value: &str) -> String {
    let mut kept = without_parameter(query.unwrap_or_default(), name);
    if !kept.is_empty() {
        kept.push('&');
    }
    kept.push_str(&encoded(name));
    kept.push('=');
    kept.push_str(&encoded(value));
    kept
}

/// A text as it stands in a query or a form.
pub(super) fn encoded(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, PLAIN).into()
}

/// The query without any spelling of this parameter.
pub(crate) fn without_parameter(query: &str, name: &str) -> String {
    let kept: Vec<&str> = query
        .split('&')
        .filter(|part| !part.is_empty() && !is(part.split('=').next().unwrap_or_default(), name))
        .collect();
    kept.join("&")
}

fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query
        .split('&')
        .map(|part| part.split_once('=').unwrap_or((part, "")))
}

fn is(written: &str, name: &str) -> bool {
    let decoded: Cow<'_, str> = percent_decode_str(written).decode_utf8_lossy();
    decoded == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_replaces_every_spelling_of_its_parameter_and_nothing_else() {
        assert_eq!(
            with(Some("b=%2F&api%5fkey=x&a=1&api_key=y"), "api_key", "k/&"),
            "b=%2F&a=1&api_key=k%2F%26"
        );
        assert_eq!(with(None, "k", "v"), "k=v");
        assert_eq!(with(Some(""), "k", "v"), "k=v");
        assert_eq!(with(Some("flag"), "k", "v"), "flag&k=v");
    }

    #[test]
    fn a_value_is_found_decoded() {
        assert_eq!(find("a=1&key=x%20y", "key").as_deref(), Some("x y"));
        assert_eq!(find("a=1", "key"), None);
    }
}
