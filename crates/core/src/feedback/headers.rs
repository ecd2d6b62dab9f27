//! The header lines of one response, by name.
//!
//! Promises: names match case-insensitively, values are trimmed, lines with the same name stay in
//! order. A value that is not text, or longer than any rate-limit field, counts as absent.
//!
//! Never: decides what a header means.

use super::field_filter::FieldFilter;

/// The most lines stored of those that a dialect reads; other lines do not count. More cannot
/// arrive: HTTP stacks accept heads of 16 KiB, and HTTP/2 counts 32 bytes for a line on top of its
/// text; under HTTP/1 they stop at about 100.
pub const LINES_MAX: usize = 512;

/// The longest value that is read. The longest known field, a structured list of a dozen policies,
/// stays below 1 KiB; common servers reject heads above 8 KiB.
pub const VALUE_MAX: usize = 4 * 1024;

/// The most items read from one list. No provider is known to send more than ten windows.
pub const ITEMS_MAX: usize = 64;

/// The lines of one response.
#[derive(Debug)]
pub(super) struct HeaderLines<'a> {
    lines: Vec<(&'a str, &'a str)>,
}

impl<'a> HeaderLines<'a> {
    /// The lines that pass the filter.
    pub(super) fn new(lines: &[(&'a str, &'a [u8])], filter: &FieldFilter) -> HeaderLines<'a> {
        let known = lines
            .iter()
            .filter(|(name, _)| filter.has_header(name))
            .take(LINES_MAX);
        let lines = known.filter_map(|(name, value)| {
            let value = std::str::from_utf8(value)
                .ok()
                .filter(|value| value.len() <= VALUE_MAX)?;
            Some((*name, value.trim_matches([' ', '\t'])))
        });
        HeaderLines {
            lines: lines.collect(),
        }
    }

    /// Is there a line whose name satisfies `is`?
    pub(super) fn any(&self, is: impl Fn(&str) -> bool) -> bool {
        self.lines.iter().any(|line| is(line.0))
    }

    /// Every value of `name`, in the order sent.
    pub(super) fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a str> + 's {
        self.lines
            .iter()
            .filter(|line| line.0.eq_ignore_ascii_case(name))
            .map(|line| line.1)
    }

    /// The first value of `name`.
    pub(super) fn first(&self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// The values of a list field as one list, however they were split over lines.
    pub(super) fn joined(&self, name: &str) -> Option<String> {
        let lines: Vec<&str> = self.all(name).take(ITEMS_MAX).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// What the `*` matches in the names that fit `pattern`: lower case, sorted, no duplicates.
    pub(super) fn wildcard_values(&self, pattern: &str) -> Vec<String> {
        let matches = self
            .lines
            .iter()
            .filter_map(|line| wildcard_match(line.0, pattern));
        let mut stars: Vec<String> = matches.map(str::to_ascii_lowercase).collect();
        stars.sort_unstable();
        stars.dedup();
        stars.truncate(ITEMS_MAX);
        stars
    }
}

/// The part of `name` that the one `*` of `pattern` matches; never empty.
fn wildcard_match<'n>(name: &'n str, pattern: &str) -> Option<&'n str> {
    let (before, after) = pattern.split_once('*')?;
    let end = name.len().checked_sub(after.len())?;
    let middle = name
        .get(before.len()..end)
        .filter(|middle| !middle.is_empty())?;
    let fits = name.get(..before.len())?.eq_ignore_ascii_case(before)
        && name.get(end..)?.eq_ignore_ascii_case(after);
    fits.then_some(middle)
}

/// The items of a comma list, trimmed. A number with thousands separators (`1,000`) is one
/// malformed item: reading it as 1 and 0 would turn a thousand into zero remaining.
pub(super) fn items(value: &str) -> impl Iterator<Item = &str> {
    let separator = if is_grouped_number(value) { '\n' } else { ',' };
    value
        .split(separator)
        .take(ITEMS_MAX)
        .map(|item| item.trim_matches([' ', '\t']))
}

/// Whether this is a list of more than one item.
pub(super) fn is_list(value: &str) -> bool {
    value.contains(',') && !is_grouped_number(value)
}

fn is_grouped_number(value: &str) -> bool {
    let mut groups = value.split(',');
    let first = groups
        .next()
        .is_some_and(|first| is_digits(first) && first.len() <= 3);
    let mut rest = groups.peekable();
    first && rest.peek().is_some() && rest.all(|group| is_digits(group) && group.len() == 3)
}

fn is_digits(text: &str) -> bool {
    super::number::digits(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feedback::dialect::DialectRows;
    use crate::feedback::table_builder::header;

    /// A filter that passes every name that the tests use.
    fn filter() -> FieldFilter {
        let rows = DialectRows::default()
            .scope_in(header("x-a"))
            .scope_in(header("x-b"));
        FieldFilter::of(&[&rows.scope_in(header("a-*"))])
    }

    #[test]
    fn names_match_without_case_and_values_are_trimmed() {
        let headers = HeaderLines::new(
            &[("X-A", b" 1\t"), ("x-a", b"2"), ("X-B", b"\xff")],
            &filter(),
        );
        assert_eq!(headers.all("x-A").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(headers.joined("X-a").as_deref(), Some("1, 2"));
        assert_eq!(headers.first("x-b"), None, "not text");
    }

    #[test]
    fn other_headers_do_not_count_against_the_bound() {
        let mut lines: Vec<(&str, &[u8])> = vec![("etag", b"x"); 4 * LINES_MAX];
        lines.extend([("x-a", b"1".as_slice()); LINES_MAX]);
        lines.push(("x-b", b"2"));
        let headers = HeaderLines::new(&lines[1..], &filter());
        assert_eq!(headers.all("x-a").count(), LINES_MAX);
        assert_eq!(headers.first("x-b"), None, "beyond the bound");
        let headers = HeaderLines::new(&lines[4 * LINES_MAX + 1..], &filter());
        assert_eq!(headers.first("x-b"), Some("2"));
    }

    #[test]
    fn a_wildcard_matches_the_middle_of_a_name() {
        let lines: [(&str, &[u8]); 4] = [
            ("A-Input-Tokens-Limit", b"1"),
            ("a-input-tokens-LIMIT", b"2"),
            ("a--limit", b"3"),
            ("a-limit", b"4"),
        ];
        let headers = HeaderLines::new(&lines, &filter());
        assert_eq!(headers.wildcard_values("a-*-limit"), ["input-tokens"]);
    }

    #[test]
    fn thousands_separators_are_not_a_list() {
        assert!(!is_list("1,000") && !is_list("12,345,678"));
        assert!(is_list("1, 000") && is_list("60,10") && is_list("1,15000") && is_list("1000,200"));
        assert_eq!(items("1,000").collect::<Vec<_>>(), ["1,000"]);
        assert_eq!(items("60 ,10").collect::<Vec<_>>(), ["60", "10"]);
    }
}
