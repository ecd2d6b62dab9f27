//! Origins: who set each effective value.
//!
//! Promises: every effective value of a provider has the place that set it, so that a user finds
//! the file, variable or command behind a number.
//!
//! Never: shows a key. For fields that hold keys only their origin is shown.

use std::fmt;

use crate::problem::Place;
use crate::raw::{Node, Value};
use crate::shape::{Field, Shape};

/// Prefix of the name of an environment variable in a [`Place`].
const ENVIRONMENT: &str = "environment ";
/// Prefix of the name of a preset in a [`Place`].
const PRESET: &str = "preset ";
/// The name in a [`Place`] for settings changed at run time.
const SET: &str = "set";

/// Who set a value, from the weakest to the strongest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The default.
    Default,
    /// A preset.
    Preset(String),
    /// A file.
    File(Place),
    /// An environment variable, of the process or of the file of `--env-file`.
    Environment(String),
    /// A command-line flag.
    Flag(String),
    /// `tollgate set`, or the API.
    Set,
}

impl Origin {
    /// The origin that a place stands for.
    #[must_use]
    pub fn of(place: &Place) -> Origin {
        let file: &str = &place.file;
        if let Some(name) = file.strip_prefix(PRESET) {
            Origin::Preset(name.to_owned())
        } else if let Some(name) = file.strip_prefix(ENVIRONMENT) {
            Origin::Environment(name.to_owned())
        } else if file.starts_with("--") {
            Origin::Flag(file.to_owned())
        } else if file == SET {
            Origin::Set
        } else {
            Origin::File(place.clone())
        }
    }

    /// The place of an environment variable.
    pub(crate) fn environment(name: &str) -> Place {
        Place::whole(&format!("{ENVIRONMENT}{name}"))
    }

    /// The place of settings changed at run time.
    pub(crate) fn set() -> Place {
        Place::whole(SET)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Preset(name) => write!(f, "{PRESET}{name}"),
            Origin::File(place) => write!(f, "{place}"),
            Origin::Environment(name) => write!(f, "{ENVIRONMENT}{name}"),
            Origin::Flag(flag) => f.write_str(flag),
            Origin::Set => f.write_str(SET),
        }
    }
}

/// An effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveValue {
    /// The field, from the top: `health.sleep_max`.
    pub path: String,
    /// Its value as a user would write it; `None` for keys.
    pub text: Option<String>,
    /// Who set it.
    pub origin: Origin,
}

/// Every effective value of a tree, in the order of its table.
pub(crate) fn effective_values(tree: &Node, table: &'static [Field]) -> Vec<EffectiveValue> {
    let mut values = Vec::new();
    block(Some(tree), table, "", &mut values);
    // A breaker rejects by default, so the table's default does not apply to it (M9).
    let is_breaker = values
        .iter()
        .any(|value| value.path == "health.mode" && value.text.as_deref() == Some("breaker"));
    let blocked = values
        .iter_mut()
        .find(|value| value.path == "health.when_blocked" && value.origin == Origin::Default);
    if let (true, Some(blocked)) = (is_breaker, blocked) {
        blocked.text = Some("reject".to_owned());
    }
    values
}

fn block(
    tree: Option<&Node>,
    table: &'static [Field],
    path: &str,
    values: &mut Vec<EffectiveValue>,
) {
    for field in table {
        let path = match path {
            "" => field.name.to_owned(),
            path => format!("{path}.{}", field.name),
        };
        let node = tree
            .and_then(|tree| tree.get(field.name))
            .filter(|node| node.value != Value::Null);
        let default = (field.default)();
        // A block that is off by default has no defaults to show.
        let below = field
            .shape
            .fields()
            .filter(|_| !matches!(field.shape, Shape::OrOff(_)));
        match (node, below) {
            (Some(node), _) => value(node, &field.shape, &path, values),
            (None, Some(fields)) => block(None, fields, &path, values),
            (None, None) if default.is_empty() => {}
            (None, None) => values.push(EffectiveValue {
                path,
                text: Some(default),
                origin: Origin::Default,
            }),
        }
    }
}

fn value(node: &Node, shape: &Shape, path: &str, values: &mut Vec<EffectiveValue>) {
    let hidden = may_be_secret(shape);
    match &node.value {
        Value::Null => {}
        Value::Text(text) => values.push(EffectiveValue {
            path: path.to_owned(),
            text: match shape {
                Shape::KeyedUrl => Some(without_path(text)),
                _ => (!hidden).then(|| text.clone()),
            },
            origin: Origin::of(&node.place),
        }),
        Value::List(items) => {
            let inner = match shape {
                Shape::List(inner) => inner,
                other => other,
            };
            for (index, item) in items.iter().enumerate() {
                value(item, inner, &format!("{path}[{index}]"), values);
            }
        }
        Value::Map(entries) => match shape.fields() {
            Some(fields) => block(Some(node), fields, path, values),
            None => {
                let inner = match shape {
                    Shape::Map(inner) => inner,
                    // An unexpected block: nothing of it is shown.
                    _ => &Shape::Secret,
                };
                for entry in entries {
                    value(
                        &entry.node,
                        inner,
                        &format!("{path}.{}", entry.name),
                        values,
                    );
                }
            }
        },
    }
}

/// Scheme and host: what follows may be a key.
fn without_path(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "***".to_owned(); // not an address; nobody knows what it is
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://***@{host}/***"),
        None if host.len() == rest.len() => url.to_owned(),
        None => format!("{scheme}://{host}/***"),
    }
}

/// Whether the value may be a key.
pub(crate) fn may_be_secret(shape: &Shape) -> bool {
    match shape {
        Shape::Secret => true,
        Shape::OrOff(inner) | Shape::List(inner) | Shape::Map(inner) => may_be_secret(inner),
        Shape::Either(shapes) => shapes.iter().any(may_be_secret),
        Shape::Block(fields) => fields.iter().any(|field| may_be_secret(&field.shape)),
        Shape::Text
        | Shape::KeyedUrl
        | Shape::Integer
        | Shape::Decimal
        | Shape::Boolean
        | Shape::Duration
        | Shape::Minutes
        | Shape::Lifetime
        | Shape::Part
        | Shape::Size
        | Shape::Address
        | Shape::Words(_) => false,
    }
}

/// Keys that are written out in a tree: not as `${ENV}`, not as `file:`.
pub(crate) fn literal_keys<'a>(tree: &'a Node, table: &'static [Field]) -> Vec<(&'a Node, String)> {
    /// Treated as secrets for safety only: a user agent is no key, a login's body is a template.
    const HARMLESS: [&str; 3] = ["headers", "client_id", "body"];
    let mut found = Vec::new();
    for field in table.iter().filter(|field| !HARMLESS.contains(&field.name)) {
        if let Some(node) = tree.get(field.name) {
            collect(node, &field.shape, field.name, &mut found);
        }
    }
    found
}

fn collect<'a>(node: &'a Node, shape: &Shape, path: &str, found: &mut Vec<(&'a Node, String)>) {
    match (&node.value, shape) {
        (Value::Text(text), shape) => {
            let elsewhere = text.starts_with("file:") || text.contains("${");
            if matches!(shape, Shape::Secret) && !elsewhere {
                found.push((node, path.to_owned()));
            }
        }
        (Value::List(items), Shape::List(inner)) => {
            for item in items {
                collect(item, inner, path, found);
            }
        }
        (Value::Map(entries), Shape::Map(inner)) => {
            for entry in entries {
                collect(&entry.node, inner, path, found);
            }
        }
        (Value::Map(_), shape) => {
            for (inner, name) in literal_keys_of(node, shape) {
                found.push((inner, format!("{path}.{name}")));
            }
        }
        (Value::Null | Value::List(_), _) => {}
    }
}

fn literal_keys_of<'a>(node: &'a Node, shape: &Shape) -> Vec<(&'a Node, String)> {
    shape
        .fields()
        .map(|fields| literal_keys(node, fields))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H3: the path of a webhook's address is often its key.
    #[test]
    fn h3_only_scheme_and_host_of_a_webhook_are_shown() {
        for (url, shown) in [
            (
                "https://hooks.example.org/canary-hook-key",
                "https://hooks.example.org/***",
            ), // tidy:canary
            (
                "https://hooks.example.org:8443/a?token=canary-hook-key",
                "https://hooks.example.org:8443/***",
            ), // tidy:canary
            ("http://user:canary-hook-key@host", "http://***@host/***"), // tidy:canary
            ("http://127.0.0.1:9", "http://127.0.0.1:9"),
            ("canary-hook-key", "***"), // tidy:canary
        ] {
            assert_eq!(without_path(url), shown);
        }
    }
}
