//! What a dialect looks at, so that everything else of a response can be passed over.
//!
//! Promises: a header or JSON member that some row names is never passed over. Most lines of a
//! response are about other things; leaving them out first makes reading it cheap.
//!
//! Never: decides what anything means; a line too many only costs a comparison.

use super::dialect::{BodyFields, FieldPlace, Fields, Rows, Signature, WaitRule, WindowRule};

/// Headers that are read for every dialect, whatever its rows.
const ALWAYS: [&str; 2] = ["date", "age"];

/// The headers and JSON members that the rows of a dialect name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldFilter {
    /// Names of JSON members, sorted.
    pub(super) members: Vec<String>,
    /// Hashes of header names, sorted.
    headers: Vec<u64>,
    /// What stands before the `*` of header names that have one.
    prefixes: Vec<String>,
}

impl FieldFilter {
    pub(super) fn of(tables: &[&Rows]) -> FieldFilter {
        let mut interest = FieldFilter::default();
        tables
            .iter()
            .for_each(|rows| interest.add_rows(rows, |_| true));
        ALWAYS.iter().for_each(|name| interest.add_header(name));
        interest.sorted()
    }

    /// What those rows name that can say something of a response without a body, and nothing else.
    pub(super) fn without_body(tables: &[&Rows]) -> FieldFilter {
        let mut interest = FieldFilter::default();
        let bare = |signature: &Signature| !signature.needs_body();
        tables.iter().for_each(|rows| interest.add_rows(rows, bare));
        interest.sorted()
    }

    /// What the rows name that tell of windows, waits and scopes. A response that fits no signature
    /// and has none of these says nothing.
    pub(super) fn limits_only(tables: &[&Rows]) -> FieldFilter {
        let mut interest = FieldFilter::default();
        tables
            .iter()
            .for_each(|rows| interest.add_limit_fields(rows));
        interest.sorted()
    }

    fn sorted(mut self) -> FieldFilter {
        self.members.sort_unstable();
        self.members.dedup();
        self.headers.sort_unstable();
        self.headers.dedup();
        self.prefixes.sort_unstable();
        self.prefixes.dedup();
        self
    }

    /// Whether a header of this name, in any case, may matter.
    pub(super) fn has_header(&self, name: &str) -> bool {
        let starts = |prefix: &String| {
            let start = name.as_bytes().get(..prefix.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
        };
        self.headers.binary_search(&hash(name)).is_ok() || self.prefixes.iter().any(starts)
    }

    fn add_rows(&mut self, rows: &Rows, counts: impl Fn(&Signature) -> bool) {
        for signature in rows.signatures.iter().filter(|one| counts(one)) {
            signature
                .conditions
                .iter()
                .for_each(|condition| self.add_place(&condition.place));
            signature
                .scope_at
                .iter()
                .for_each(|place| self.add_place(place));
        }
        rows.shared_if
            .iter()
            .for_each(|condition| self.add_place(&condition.place));
        self.add_limit_fields(rows);
    }

    fn add_limit_fields(&mut self, rows: &Rows) {
        rows.scopes
            .iter()
            .for_each(|rule| self.add_place(&rule.place));
        rows.window_name
            .iter()
            .for_each(|name| self.add_header(name));
        for rule in &rows.waits {
            match rule {
                WaitRule::Field { place, .. } | WaitRule::AfterWords { place, .. } => {
                    self.add_place(place)
                }
                WaitRule::Refill {
                    cost,
                    available,
                    per_second,
                } => {
                    [cost, available, per_second]
                        .into_iter()
                        .for_each(|path| self.add_path(path));
                }
            }
        }
        rows.windows.iter().for_each(|rule| self.add_window(rule));
    }

    fn add_window(&mut self, rule: &WindowRule) {
        match rule {
            WindowRule::Fields(fields) => self.add_fields(fields),
            WindowRule::Body(fields) => self.add_body_fields(fields),
            WindowRule::Structured { rate: a, policy: b }
            | WindowRule::PerPeriod {
                limits: a,
                counts: b,
                ..
            } => {
                self.add_header(a);
                self.add_header(b);
            }
            WindowRule::UsedOfLimit { header }
            | WindowRule::NamedCounts { header }
            | WindowRule::Pairs { header }
            | WindowRule::JsonHeader { header } => self.add_header(header),
        }
    }

    fn add_fields(&mut self, fields: &Fields) {
        fields.names().for_each(|name| self.add_header(name));
        fields
            .period
            .iter()
            .for_each(|(name, _)| self.add_header(name));
    }

    fn add_body_fields(&mut self, fields: &BodyFields) {
        let BodyFields {
            root,
            name_at,
            limit,
            remaining,
            used,
            reset,
            ..
        } = fields;
        self.add_path(root);
        [name_at, limit, remaining, used]
            .into_iter()
            .flatten()
            .for_each(|path| self.add_path(path));
        reset.iter().for_each(|(path, _)| self.add_path(path));
    }

    fn add_place(&mut self, place: &FieldPlace) {
        match place {
            FieldPlace::Header(name) => self.add_header(name),
            FieldPlace::Body(path) => self.add_path(path),
            FieldPlace::Tag(_) | FieldPlace::Text => {}
        }
    }

    fn add_header(&mut self, name: &str) {
        match name.split_once('*') {
            Some((prefix, _)) => self.prefixes.push(prefix.to_owned()),
            None => self.headers.push(hash(name)),
        }
    }

    fn add_path(&mut self, path: &str) {
        self.members
            .extend(super::json::names(path).map(str::to_owned));
    }
}

/// FNV-1a of the name in lower case. Names are chosen by the provider, but a collision only lets
/// a line through to be compared in full.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feedback::table_builder::{body, header, when};

    #[test]
    fn every_header_that_a_row_names_passes_the_filter() {
        let rows = Rows::default()
            .limited(when(body("errors[].extensions.code").is(&["X"])))
            .scope_in(header("X-Reason"))
            .window(WindowRule::Pairs {
                header: "vendor-*".to_owned(),
            });
        let interest = FieldFilter::of(&[&rows]);
        assert_eq!(interest.members, ["code", "errors", "extensions"]);
        for name in ["x-reason", "X-REASON", "Date", "AGE", "Vendor-Anything"] {
            assert!(interest.has_header(name), "{name}");
        }
        assert!(!interest.has_header("etag") && !interest.has_header(""));
    }
}
