//! The built-in dialects.
//!
//! Promises: every provider that has a preset has a dialect here, even if it only follows the
//! standard rows. So an unknown name is a mistake.
//!
//! Never: limits. How much a provider allows is in its preset, not in its dialect.

use super::dialect::{Dialect, DialectRows};
use super::{builtin_ai, builtin_data, builtin_web, standard};
use std::sync::Arc;

/// The name of the dialect with nothing but the standard rows.
const GENERIC: &str = "generic";

/// Known providers that send standard fields only.
const STANDARD_ONLY: &[&str] = &[
    "arxiv",
    "coinbase",
    "cosmosdb",
    "crossref",
    "fanart",
    "jira",
    "lemlist",
    "mailerlite",
    "newsapi",
    "openweather",
    "oracle",
    "reddit",
    "riot",
    "semanticscholar",
    "shopify_rest",
    "steam",
    "tmdb",
    "tvdb",
    "twitch",
    "x",
    "zendesk",
];

/// All built-in dialects, by name. Built once and owned by the code that reads responses.
#[derive(Clone, Debug)]
pub struct Dialects {
    generic: Dialect,
    /// Sorted by name.
    named: Vec<Dialect>,
}

impl Dialects {
    /// Every built-in dialect.
    #[must_use]
    pub fn built_in() -> Dialects {
        let standard = Arc::new(standard::rows());
        let mut tables = STANDARD_ONLY
            .iter()
            .map(|name| (*name, DialectRows::default()))
            .collect();
        builtin_ai::add(&mut tables);
        builtin_data::add(&mut tables);
        builtin_web::add(&mut tables);
        let dialect = |(name, rows)| Dialect::new(name, rows, Arc::clone(&standard));
        let mut named: Vec<Dialect> = tables.into_iter().map(dialect).collect();
        named.sort_by(|a, b| a.name().cmp(b.name()));
        Dialects {
            generic: dialect((GENERIC, DialectRows::default())),
            named,
        }
    }

    /// The standard rows alone, for a provider without a dialect.
    #[must_use]
    pub fn generic(&self) -> &Dialect {
        &self.generic
    }

    /// The dialect of a provider. `-` equals `_`, and case does not matter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Dialect> {
        let name = name.to_ascii_lowercase().replace('-', "_");
        if name == GENERIC {
            return Some(&self.generic);
        }
        let index = self
            .named
            .binary_search_by(|dialect| dialect.name().cmp(&name))
            .ok()?;
        self.named.get(index)
    }

    /// Every name, sorted, the generic one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(GENERIC).chain(self.named.iter().map(Dialect::name))
    }

    /// The rows that apply to every provider, for a dialect that a provider file adds.
    #[must_use]
    pub fn standard(&self) -> Arc<DialectRows> {
        self.generic.standard()
    }
}

/// The tables under construction.
pub(super) type Tables = Vec<(&'static str, DialectRows)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found_in_any_spelling() {
        let dialects = Dialects::built_in();
        let names: Vec<&str> = dialects.names().collect();
        let mut unique = names.clone();
        unique.dedup();
        assert_eq!(names, unique);
        for name in names {
            assert_eq!(dialects.get(name).map(Dialect::name), Some(name));
        }
        assert_eq!(
            dialects.get("Azure-OpenAI").map(Dialect::name),
            Some("azure_openai")
        );
        assert!(dialects.get("nobody").is_none());
    }

    #[test]
    fn success_bodies_are_read_only_where_a_dialect_needs_them() {
        let dialects = Dialects::built_in();
        let reads = |name| {
            dialects
                .get(name)
                .is_some_and(Dialect::reads_success_bodies)
        };
        assert!(reads("sportmonks") && reads("alphavantage") && reads("shopify_graphql"));
        assert!(!reads("generic") && !reads("tmdb") && !reads("gemini") && !reads("airtable"));
    }
}
