//! The query of a URL: finds and sets keys in it, and compares two queries.
//!
//! Promises: parameters other than the key pass byte for byte. Two queries count as equal only if
//! every server reads them alike.
//!
//! Never: sorts, decodes or encodes what is sent.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use smallvec::SmallVec;

/// The characters that need no encoding in a value (RFC 3986, unreserved).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The decoded value of a parameter.
pub(crate) fn find(query: &str, name: &str) -> Option<String> {
    let (_, value) = pairs(query).find(|(found, _)| matches_name(found, name))?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// The query with this parameter at its end, in place of any earlier value.
pub(crate) fn with_parameter(query: Option<&str>, name: &str, value: &str) -> String {
    let mut rest = without_parameter(query.unwrap_or_default(), name);
    if !rest.is_empty() {
        rest.push('&');
    }
    rest.push_str(&encoded(name));
    rest.push('=');
    rest.push_str(&encoded(value));
    rest
}

/// A text, encoded for a query or a form.
pub(crate) fn encoded(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, UNRESERVED).into()
}

/// The query without this parameter, in any spelling.
pub(crate) fn without_parameter(query: &str, name: &str) -> String {
    let rest: Vec<&str> = query
        .split('&')
        .filter(|part| {
            !part.is_empty() && !matches_name(part.split('=').next().unwrap_or_default(), name)
        })
        .collect();
    rest.join("&")
}

fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query
        .split('&')
        .map(|part| part.split_once('=').unwrap_or((part, "")))
}

fn matches_name(written: &str, name: &str) -> bool {
    let decoded: Cow<'_, str> = percent_decode_str(written).decode_utf8_lossy();
    decoded == name
}

/// The parameters of a query in an order that does not depend on how they were written. Parameters
/// that some server may take for the same name keep their relative order. If the query contains
/// `;`, which may separate parameters too, nothing is reordered.
pub(crate) fn parameters(query: &str) -> SmallVec<[&str; 16]> {
    let mut parameters: SmallVec<[&str; 16]> =
        query.split('&').filter(|part| !part.is_empty()).collect();
    if !query.contains(';') {
        parameters.sort_by(|one, other| normalized_name(one).cmp(normalized_name(other)));
    }
    parameters
}

/// The name of a parameter as the most lenient server reads it: decoded, lower case, and all
/// characters except letters and digits equal. Brackets after the name may be list indexes, so all
/// parameters of such a list have one name.
fn normalized_name(parameter: &str) -> impl Iterator<Item = u8> {
    let name = parameter.split('=').next().unwrap_or(parameter);
    let name = percent_decode_str(name).take_while(|byte| *byte != b'[');
    name.map(|byte| match byte {
        byte if byte.is_ascii_alphanumeric() => byte.to_ascii_lowercase(),
        byte if byte.is_ascii() => b'_',
        byte => byte,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_replaces_every_spelling_of_its_parameter_and_nothing_else() {
        assert_eq!(
            with_parameter(Some("b=%2F&api%5fkey=x&a=1&api_key=y"), "api_key", "k/&"),
            "b=%2F&a=1&api_key=k%2F%26"
        );
        assert_eq!(with_parameter(None, "k", "v"), "k=v");
        assert_eq!(with_parameter(Some(""), "k", "v"), "k=v");
        assert_eq!(with_parameter(Some("flag"), "k", "v"), "flag&k=v");
    }

    #[test]
    fn a_parameter_value_is_decoded() {
        assert_eq!(find("a=1&key=x%20y", "key").as_deref(), Some("x y"));
        assert_eq!(find("a=1", "key"), None);
    }

    #[test]
    fn parameters_are_sorted_unless_a_server_may_merge_them() {
        let same = |one: &str, other: &str| parameters(one) == parameters(other);
        assert!(same("x=1&y=2", "y=2&&x=1"));
        assert!(!same("a[]=1&a[5]=2", "a[5]=2&a[]=1"));
        assert!(!same(
            "x[][a]=1&x[][b]=2&x%5B][a]=3",
            "x[][a]=1&x%5B][a]=3&x[][b]=2"
        ));
        assert!(same("page=2&language=de&id=7", "id=7&page=2&language=de"));
        for (one, other) in [
            ("a=1&a=2", "a=2&a=1"),
            ("%61=1&a=2", "a=2&%61=1"),
            ("A=1&a=2", "a=2&A=1"),
            ("a.b=1&a_b=2", "a_b=2&a.b=1"),
            ("a%20b=1&a+b=2", "a+b=2&a%20b=1"),
            ("a=1;b=2&b=3", "b=3&a=1;b=2"),
            ("a", "a="),
            ("a=%41", "a=A"),
            ("a=1%26b=2", "a=1&b=2"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
    }
}
