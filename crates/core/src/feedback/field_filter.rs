//! The fields that a dialect reads, so that the rest of a response can be skipped.
//!
//! Promises: a header or JSON member that some row names is never skipped. Most lines of a response
//! are unrelated to limits; skipping them first makes reading cheap.
//!
//! Never: interprets a field; an unneeded line only costs a comparison.

use super::dialect::{
    BodyFields, DialectRows, FieldPlace, Fields, Signature, WaitRule, WindowRule,
};

/// Headers that are read for every dialect, whatever its rows.
const ALWAYS: [&str; 2] = ["date", "age"];

/// The headers and JSON members that the rows of a dialect name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldFilter {
    /// Names of JSON members, sorted.
    pub(super) members: Vec<String>,
    /// Hashes of header names, sorted.
    headers: Vec<u64>,
    /// The text before the `*` of header names that have one.
    prefixes: Vec<String>,
}

impl FieldFilter {
    pub(super) fn of(tables: &[&DialectRows]) -> FieldFilter {
        let mut filter = FieldFilter::default();
        tables
            .iter()
            .for_each(|rows| filter.add_rows(rows, |_| true));
        ALWAYS.iter().for_each(|name| filter.add_header(name));
        filter.sorted()
    }

    /// The fields of the rows that can match a response without a body.
    pub(super) fn without_body(tables: &[&DialectRows]) -> FieldFilter {
        let mut filter = FieldFilter::default();
        let bare = |signature: &Signature| !signature.needs_body();
        tables.iter().for_each(|rows| filter.add_rows(rows, bare));
        filter.sorted()
    }

    /// The fields that the rows read windows, waits and scopes from. A response that matches no
    /// signature and has none of these says nothing about limits.
    pub(super) fn limits_only(tables: &[&DialectRows]) -> FieldFilter {
        let mut filter = FieldFilter::default();
        tables.iter().for_each(|rows| filter.add_limit_fields(rows));
        filter.sorted()
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

    /// Whether a row may read a header of this name, in any case.
    pub(super) fn has_header(&self, name: &str) -> bool {
        let starts = |prefix: &String| {
            let start = name.as_bytes().get(..prefix.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
        };
        self.headers.binary_search(&hash(name)).is_ok() || self.prefixes.iter().any(starts)
    }

    fn add_rows(&mut self, rows: &DialectRows, counts: impl Fn(&Signature) -> bool) {
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

    fn add_limit_fields(&mut self, rows: &DialectRows) {
        rows.scopes
            .iter()
            .for_each(|rule| self.add_place(&rule.place));
        rows.window_name
            .iter()
            .for_each(|name| self.add_header(name));
        for rule in &rows.waits {
            match rule {
                WaitRule::Field { place, .. } | WaitRule::AfterWords { place, .. } => {
                    self.add_place(place);
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

/// FNV-1a of the name in lower case. The provider chooses the names, but a collision only lets a
/// line through to the full comparison.
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
        let rows = DialectRows::default()
            .limited(when(body("errors[].extensions.code").is(&["X"])))
            .scope_in(header("X-Reason"))
            .window(WindowRule::Pairs {
                header: "vendor-*".to_owned(),
            });
        let filter = FieldFilter::of(&[&rows]);
        assert_eq!(filter.members, ["code", "errors", "extensions"]);
        for name in ["x-reason", "X-REASON", "Date", "AGE", "Vendor-Anything"] {
            assert!(filter.has_header(name), "{name}");
        }
        assert!(!filter.has_header("etag") && !filter.has_header(""));
    }
}
