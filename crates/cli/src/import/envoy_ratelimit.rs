//! Files of envoyproxy/ratelimit: their tree of descriptors becomes a list of rules.
//!
//! Promises: the rules are those of the tree's nodes with a limit, in the order of the file. What the service itself
//! would reject is an error.
//!
//! Never: writes a value of a file into a message.

use std::collections::HashSet;
use std::fmt::Write;

use tollgate_config::raw::{self, Entry, Node, Value};
use tollgate_config::{Level, Place, Problem, Problems};

use super::envoy_rule::{EnvoyRule, RuleSource};
use super::yaml_text::{is_printable, name_text};

/// The fields of a descriptor. Those after `descriptors` concern statistics only.
const DESCRIPTOR: [&str; 9] = [
    "key",
    "value",
    "rate_limit",
    "shadow_mode",
    "share_threshold",
    "quota_mode",
    "descriptors",
    "detailed_metric",
    "value_to_metric",
];

/// The fields of a descriptor that are true or false.
const FLAGS: [&str; 5] = [
    "shadow_mode",
    "share_threshold",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
];

/// The fields of a limit.
const RATE_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The rules of some files, and what cannot be represented.
#[derive(Debug, Default)]
pub(super) struct Imported {
    files: Vec<(String, String)>,
    rules: Vec<EnvoyRule>,
    problems: Problems,
}

/// The way from the top to a node: each key with its value, `*` where it has none.
type KeyPath = Vec<(String, String)>;

impl Imported {
    /// Adds the rules of a file.
    pub(super) fn add(&mut self, file: &str, text: &str) {
        let tree = match raw::read(file, text) {
            Ok(tree) => tree,
            Err(problem) => return self.problems.push(problem),
        };
        self.check_fields(&tree, &["domain", "descriptors"]);
        match tree.get("domain").and_then(Node::text) {
            Some(domain) => self.files.push((file.to_owned(), domain.to_owned())),
            None => self.error(&tree.place, "`domain` is missing", "write `domain: NAME`"),
        }
        self.descriptors(&tree, &mut Vec::new());
    }

    pub(super) fn problems(&self) -> &Problems {
        &self.problems
    }

    /// The guards, each with a name of its own.
    pub(super) fn to_yaml(&self) -> String {
        let mut text = String::new();
        for (file, domain) in &self.files {
            // A line break would end the comment.
            let plain = |text: &str| text.replace(|letter: char| !is_printable(letter), " ");
            let (file, domain) = (plain(file), plain(domain));
            let _written = writeln!(
                text,
                "# From {file}, domain {domain}, of envoyproxy/ratelimit."
            );
        }
        text.push_str("# Set `domain: guards` in Envoy's rate limit filter, and start `tollgate serve --grpc ADDR`.\n");
        if self.rules.is_empty() {
            text.push_str("guards: {}\n");
            return text;
        }
        text.push_str("guards:\n");
        let mut names: HashSet<String> = HashSet::new();
        for rule in &self.rules {
            let mut name = rule.name();
            // There are fewer names than rules, so one of these numbers is free.
            for number in 2..=self.rules.len() + 1 {
                if names.insert(name.clone()) {
                    break;
                }
                name = format!("{}-{number}", rule.name());
            }
            let _written = writeln!(text, "  {}: {}", name_text(&name), rule.to_yaml());
        }
        text
    }

    /// The children of a node.
    fn descriptors(&mut self, node: &Node, above: &mut KeyPath) {
        let Some(list) = node.get("descriptors") else {
            return;
        };
        let children = match &list.value {
            Value::List(children) => children,
            Value::Null => return,
            Value::Text(_) | Value::Map(_) => {
                return self.error(
                    &list.place,
                    "`descriptors` is no list",
                    "write `- key: NAME`",
                );
            }
        };
        for child in children {
            self.descriptor(child, above);
        }
        self.warn_about_fallbacks(children);
    }

    fn descriptor(&mut self, node: &Node, above: &mut KeyPath) {
        self.check_fields(node, &DESCRIPTOR);
        self.check_flags(node, &FLAGS);
        let Some(key) = text(node, "key").filter(|key| !key.is_empty()) else {
            return self.error(
                &node.place,
                "a descriptor has no `key`",
                "write `key: NAME`",
            );
        };
        let value = text(node, "value").filter(|value| !value.is_empty());
        above.push((key.to_owned(), value.unwrap_or("*").to_owned()));
        let limit = node.get("rate_limit");
        if let Some(limit) = limit {
            self.check_fields(limit, &RATE_LIMIT);
            self.check_flags(limit, &["unlimited"]);
        }
        let has_children = node.get("descriptors").is_some();
        // Without a limit and without children a value is exempt from the rule for all values.
        if limit.is_some() || (!has_children && value.is_some()) {
            let source = RuleSource {
                node,
                limit,
                path: above,
            };
            let (rule, problems) = EnvoyRule::read(&source);
            self.problems.extend(problems);
            self.push(rule, &node.place);
        }
        self.descriptors(node, above);
        above.pop();
    }

    /// Two rules for the same descriptors: one file rejects them, two domains may have them.
    fn push(&mut self, rule: Option<EnvoyRule>, place: &Place) {
        let Some(rule) = rule else {
            return;
        };
        if self.rules.iter().any(|other| other.has_same_match(&rule)) {
            self.problems.push(problem(
                Level::Warning,
                place,
                "another rule has the same descriptors, and both apply: Tollgate has one domain for all guards",
                "remove one, or let Envoy send other keys for one of them",
            ));
        }
        self.rules.push(rule);
    }

    /// The service looks below the most specific node only; Tollgate compares whole rules.
    fn warn_about_fallbacks(&mut self, siblings: &[Node]) {
        for specific in siblings.iter().filter(|node| text(node, "value").is_some()) {
            let key = text(specific, "key");
            let has_more = |other: &&Node| {
                text(other, "key") == key
                    && text(other, "value").is_none()
                    && below(other).any(|key| below(specific).all(|known| known != key))
            };
            if siblings.iter().any(|other| has_more(&other)) {
                self.problems.push(problem(
                    Level::Warning,
                    &specific.place,
                    "nested keys of the rule for all values also apply to this value; envoyproxy/ratelimit stops here",
                    "write the same nested keys below it, with `unlimited: true` where it has no limit",
                ));
            }
        }
    }

    fn check_fields(&mut self, node: &Node, known: &[&str]) {
        let Some(entries) = node.entries() else {
            return self.error(&node.place, "is no block", "write `name: value`");
        };
        let unknown = |entry: &&Entry| !known.contains(&entry.name.as_str());
        for entry in entries.iter().filter(unknown) {
            let remedy = format!("known are {}", known.join(", "));
            self.error(&entry.place, "the field is unknown", &remedy);
        }
    }

    /// A word that is neither true nor false would be read as false, and the limit would differ.
    fn check_flags(&mut self, node: &Node, names: &[&str]) {
        for name in names {
            let Some(value) = node.get(name) else {
                continue;
            };
            if !matches!(value.value, Value::Null) && flag(node, name).is_none() {
                let what = format!("`{name}` is neither true nor false");
                self.error(&value.place, &what, "write `true` or `false`");
            }
        }
    }

    fn error(&mut self, place: &Place, what: &str, remedy: &str) {
        self.problems
            .push(problem(Level::Error, place, what, remedy));
    }
}

/// The keys of a node's children.
fn below(node: &Node) -> impl Iterator<Item = &str> {
    let children = match node.get("descriptors").map(|list| &list.value) {
        Some(Value::List(children)) => children.as_slice(),
        _ => &[],
    };
    children.iter().filter_map(|child| text(child, "key"))
}

/// The text of a field.
pub(super) fn text<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.get(name).and_then(Node::text)
}

/// A field that is true or false, in every way that the service's YAML reads.
pub(super) fn flag(node: &Node, name: &str) -> Option<bool> {
    match text(node, name)? {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            Some(true)
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            Some(false)
        }
        _ => None,
    }
}

pub(super) fn problem(level: Level, place: &Place, what: &str, remedy: &str) -> Problem {
    Problem {
        level,
        place: place.clone(),
        path: String::new(),
        what: what.to_owned(),
        remedy: remedy.to_owned(),
    }
}
