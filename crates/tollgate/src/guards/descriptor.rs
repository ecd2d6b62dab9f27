//! Which guards a descriptor of Envoy's rate limit service means.
//!
//! | the guard has | it applies to a descriptor with exactly |
//! |---|---|
//! | `match.descriptor: {key: value, …}` | these keys, in any order, whose values match: a text, `text*` or `*` |
//! | `by: ip` without `match` | the entry `remote_address` |
//! | `by: header:NAME` without `match` | the entry NAME |
//! | no `match.descriptor` | an entry with the guard's own name; the value is the identifier |
//!
//! Promises: of several guards the most specific ones apply: values are compared entry by entry, a text before
//! a prefix, a longer prefix before a shorter one. Two that are equally specific both apply. A lookup
//! depends on the guards with the same keys only, not on all of them.
//!
//! Never: remembers a value; only its fingerprint.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_config::config::GuardKey as CountedBy;
use tollgate_core::time::Span;

use super::bucket_key::BucketKey;
use super::class::GuardClass;

/// The key of Envoy's action `remote_address`.
const REMOTE_ADDRESS: &str = "remote_address";

/// Entries of a descriptor in place; more move to the heap.
const ENTRIES: usize = 4;

/// A descriptor: what Envoy says about a request.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// Keys and values, in the order of Envoy's actions.
    pub entries: &'a [(&'a str, &'a str)],
    /// Tokens: 0 only asks whether one is left, a negative number puts tokens back.
    pub cost: i64,
    /// Replaces the limits of guards.
    pub limit: Option<LimitOverride>,
}

/// A limit that a descriptor brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// Requests per period; 0 rejects everything.
    pub limit: u32,
    /// The period.
    pub period: Span,
}

/// Guards by the keys of the descriptors that they apply to.
#[derive(Debug, Default)]
pub(super) struct DescriptorIndex {
    by_keys: HashMap<String, Vec<DescriptorRule>>,
}

/// One way in which a guard is meant.
#[derive(Debug)]
struct DescriptorRule {
    class: Arc<GuardClass>,
    /// In the order of the guard's file.
    patterns: Vec<(String, Pattern)>,
}

/// What the value of an entry must be.
#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    Exact(String),
    /// Any value that begins so; any at all if it is empty.
    Prefix(String),
}

/// How well a value matches: the more specific, the smaller.
type Rank = Reverse<usize>;

impl DescriptorIndex {
    pub(super) fn new(classes: &[Arc<GuardClass>]) -> DescriptorIndex {
        let mut index = DescriptorIndex::default();
        for class in classes {
            for patterns in patterns_of(class) {
                let keys = joined(patterns.iter().map(|(key, _)| &**key));
                index.by_keys.entry(keys).or_default().push(DescriptorRule {
                    class: class.clone(),
                    patterns,
                });
            }
        }
        index
    }

    /// The guards of a descriptor, with the keys that they count.
    pub(super) fn matching(
        &self,
        entries: &[(&str, &str)],
    ) -> SmallVec<[(Arc<GuardClass>, BucketKey); 2]> {
        let rules = match entries {
            [(key, _)] => self.by_keys.get(*key),
            _ => {
                let keys = joined(entries.iter().map(|(key, _)| *key));
                self.by_keys.get(&keys)
            }
        };
        let ranked = rules.into_iter().flatten();
        let ranked: SmallVec<[_; 4]> = ranked
            .filter_map(|rule| Some((rule.rank(entries)?, rule)))
            .collect();
        let best = ranked.iter().map(|(rank, _)| rank).min();
        let chosen = ranked.iter().filter(|(rank, _)| Some(rank) == best);
        chosen
            .filter_map(|(_, rule)| Some((rule.class.clone(), rule.key(entries)?)))
            .collect()
    }
}

impl DescriptorRule {
    /// Entry by entry; `None` if one does not match.
    fn rank(&self, entries: &[(&str, &str)]) -> Option<SmallVec<[Rank; ENTRIES]>> {
        let rank = |(key, value): &(&str, &str)| {
            let (_, pattern) = self.patterns.iter().find(|(known, _)| known == key)?;
            pattern.rank(value)
        };
        entries.iter().map(rank).collect()
    }

    /// A global guard counts all together, any other each combination of values.
    fn key(&self, entries: &[(&str, &str)]) -> Option<BucketKey> {
        match entries {
            // A header that is there and empty counts like any other value.
            [(_, "")] if !self.class.is_global() => Some(self.class.key_of_bytes(b"")),
            [(_, value)] => self.class.key_of(Some(value)),
            _ if self.class.is_global() => self.class.key_of(None),
            _ => {
                let value = |(key, _): &(String, Pattern)| {
                    let entry = entries.iter().find(|(known, _)| known == key);
                    entry.map(|(_, value)| *value)
                };
                let values = self.patterns.iter().filter_map(value);
                Some(self.class.key_of_bytes(&framed(values)))
            }
        }
    }
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        match text.strip_suffix('*') {
            Some(prefix) => Pattern::Prefix(prefix.to_owned()),
            None => Pattern::Exact(text.to_owned()),
        }
    }

    fn rank(&self, value: &str) -> Option<Rank> {
        match self {
            Pattern::Exact(text) => (text == value).then_some(Reverse(usize::MAX)),
            Pattern::Prefix(prefix) => value
                .starts_with(&**prefix)
                .then_some(Reverse(prefix.len())),
        }
    }
}

/// The ways in which descriptors can mean a guard.
fn patterns_of(class: &GuardClass) -> Vec<Vec<(String, Pattern)>> {
    let guard = class.guard();
    if !guard.matches.descriptor.is_empty() {
        let patterns = guard.matches.descriptor.iter();
        let patterns = patterns.map(|(key, value)| (key.clone(), Pattern::new(value)));
        return vec![patterns.collect()];
    }
    let any = |key: &str| vec![(key.to_owned(), Pattern::new("*"))];
    let counted = match &guard.by {
        // Envoy does not say which path it is.
        _ if guard.matches.path.is_some() => None,
        CountedBy::Ip => Some(REMOTE_ADDRESS),
        CountedBy::Header(name) => Some(&**name),
        CountedBy::Global | CountedBy::Name => None,
    };
    let counted = counted.filter(|key| *key != guard.name);
    let keys = [Some(&*guard.name), counted];
    keys.into_iter().flatten().map(any).collect()
}

/// A set of keys as one text: sorted, because order does not matter. Keys have no newline in practice;
/// one that has matches nothing else than itself.
fn joined<'a>(keys: impl Iterator<Item = &'a str>) -> String {
    let mut keys: SmallVec<[&str; ENTRIES]> = keys.collect();
    keys.sort_unstable();
    keys.join("\n")
}

/// Texts as bytes that no other texts have: each behind its length.
pub(super) fn framed<'a>(texts: impl Iterator<Item = &'a str>) -> SmallVec<[u8; 128]> {
    let mut bytes = SmallVec::new();
    for text in texts {
        bytes.extend_from_slice(&text.len().to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

#[cfg(test)]
#[path = "descriptor_tests.rs"]
mod tests;
