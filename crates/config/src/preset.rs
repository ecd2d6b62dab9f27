//! Presets: built-in provider files, one for each provider with known limits.
//!
//! Promises: a preset is a provider file like the user's own, with a few more fields (`title`,
//! `tiers`, `batching`, `source`, …), so that a user can set whatever a preset sets. A known host
//! gets its preset with no file at all.
//!
//! Never: holds a key.

mod table;
mod show;
pub use show::{describe, limit_in_words, limits_in_short, list, show, table_of_presets};

use std::sync::LazyLock;

use tollgate_core::domain::{Domain, DomainTable, Host};

use crate::check::{Checked, ProviderFile};
use crate::problem::{Place, Problems};
use crate::raw::{self, Node, Value};
use crate::secret::Environment;

/// Fields that only presets have: texts for people, and how presets are selected.
pub const PRESET_FIELDS: &[&str] = &[
    "title",
    "tiers",
    "batching",
    "caching",
    "penalty",
    "notes",
    "source",
    "variant_of",
    "becomes",
];

/// A built-in provider file.
#[derive(Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    text: &'static str,
    tree: Node,
}

static ALL: LazyLock<Vec<Preset>> = LazyLock::new(|| {
    let parse = |&(name, text): &(&'static str, &'static str)| Preset {
        name,
        text,
        // A preset that cannot be read is empty; the tests read every preset.
        tree: raw::read(&format!("preset {name}"), text).unwrap_or_else(|_| Node {
            place: Place::whole(name),
            value: Value::Null,
        }),
    };
    table::FILES.iter().map(parse).collect()
});

static BY_DOMAIN: LazyLock<DomainTable<usize>> = LazyLock::new(|| {
    let mut table = DomainTable::default();
    for (index, preset) in ALL.iter().enumerate() {
        // A variant is selected by name; the domain belongs to its main preset.
        if preset.is_variant() {
            continue;
        }
        for domain in preset.domains() {
            // The tests reject two owners of one domain; here the first one wins.
            table.insert(&domain, index).ok();
        }
    }
    table
});

/// Every preset, by name.
#[must_use]
pub fn all() -> &'static [Preset] {
    &ALL
}

/// The preset of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Preset> {
    ALL.iter().find(|preset| preset.name == name)
}

/// The preset of a host.
#[must_use]
pub fn for_host(host: &Host) -> Option<&'static Preset> {
    BY_DOMAIN.find(host).and_then(|&index| ALL.get(index))
}

/// Removes the fields that only presets have, so that a provider file remains.
pub(crate) fn remove_preset_fields(tree: &mut Node) {
    for name in PRESET_FIELDS {
        tree.remove(name);
    }
}

impl Preset {
    /// The file as it is built in, for `provider show` and for copying.
    #[must_use]
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// The file as a tree.
    #[must_use]
    pub fn tree(&self) -> &Node {
        &self.tree
    }

    /// The names of its plans.
    pub fn tiers(&self) -> impl Iterator<Item = &str> {
        let entries = self.tree.get("tiers").and_then(Node::entries);
        entries
            .unwrap_or_default()
            .iter()
            .map(|entry| entry.name.as_str())
    }

    /// The hosts that belong to it.
    #[must_use]
    pub fn domains(&self) -> Vec<Domain> {
        let nodes = ["domain", "domains"]
            .into_iter()
            .filter_map(|name| self.tree.get(name));
        let items = nodes.flat_map(|node| match &node.value {
            Value::List(items) => items.iter().collect(),
            Value::Null | Value::Text(_) | Value::Map(_) => vec![node],
        });
        items
            .filter_map(|node| Domain::parse(node.text()?).ok())
            .collect()
    }

    /// The provider that this preset makes by itself, as `presets: auto` does.
    #[must_use]
    pub fn provider(&self, tier: Option<&str>, environment: &Environment<'_>) -> Checked {
        match self.provider_file(tier) {
            Ok(draft) => draft.check(environment),
            Err(problems) => Checked::rejected(problems),
        }
    }

    /// The variables that usually hold its key, the most common first.
    #[must_use]
    pub fn usual_variables(&self) -> Vec<String> {
        const ENDINGS: [&str; 6] = [
            "API_KEY",
            "API_TOKEN",
            "TOKEN",
            "KEY",
            "ACCESS_TOKEN",
            "SECRET_KEY",
        ];
        let main = self.text_of("variant_of").unwrap_or(self.name);
        let name = crate::overlay::env_name(main);
        ENDINGS
            .iter()
            .map(|ending| format!("{name}_{ending}"))
            .collect()
    }

    /// A provider file that only names this preset.
    pub(crate) fn provider_file(&self, tier: Option<&str>) -> Result<ProviderFile, Problems> {
        let tier = tier
            .map(|tier| format!("tier: {tier:?}\n"))
            .unwrap_or_default();
        let text = format!("preset: {}\n{tier}", self.name);
        ProviderFile::read(&format!("{}.yaml", self.name), &text)
    }

    /// The variant that a second key selects, or this preset.
    pub(crate) fn with_second_key(&'static self, is_set: impl Fn(&str) -> bool) -> &'static Preset {
        let becomes = self
            .tree
            .get("becomes")
            .and_then(Node::entries)
            .unwrap_or_default();
        let chosen = becomes.iter().find(|entry| is_set(&entry.name));
        chosen
            .and_then(|entry| find(entry.node.text()?))
            .unwrap_or(self)
    }

    /// Selected by name only; its domain belongs to its main preset.
    #[must_use]
    pub fn is_variant(&self) -> bool {
        self.tree.get("variant_of").is_some()
    }

    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        self.tree.get(name)?.text()
    }
}

/// Problems of the presets themselves; empty in every build that passed its tests.
#[must_use]
pub fn problems() -> Problems {
    let mut problems = Problems::default();
    for preset in all() {
        if let Err(problem) = raw::read(&format!("preset {}", preset.name), preset.text) {
            problems.push(problem);
        }
        for tier in std::iter::once(None).chain(preset.tiers().map(Some)) {
            problems.extend(preset.provider(tier, &Environment::empty()).problems);
        }
    }
    problems
}
