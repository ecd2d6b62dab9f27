//! Layers: the file over the tier, the tier over the preset.
//!
//! Promises: fields that are two forms of one setting replace each other as a group. A file that
//! names no preset but a known domain gets that preset's auth method and dialect, never its limits.
//!
//! Never: checks a value. Only names of presets and tiers are looked up here.

use tollgate_core::domain::Host;

use super::auth;
use crate::field::{At, Fields};
use crate::preset::{self, Preset};
use crate::problem::{Problems, nearest};
use crate::raw::{Entry, Node, Value};

/// The tree with its preset and tier below it.
pub(super) fn with_preset(
    root: &At<'_>,
    problems: &mut Problems,
) -> (Node, Option<&'static Preset>) {
    let mut own = root.node.clone();
    expand_short_forms(&mut own);
    let fields = Fields { at: root.clone() };
    let chosen = fields.get("preset");
    let (mut base, preset) = match &chosen {
        Some(at) if at.node.text() == Some("none") => (empty_map(&own), None),
        Some(at) => match named_preset(at, &own, problems) {
            Some(preset) => (preset.tree().clone(), Some(preset)),
            None => (empty_map(&own), None),
        },
        None => (defaults_of_domain(&own), None),
    };
    expand_short_forms(&mut base);
    if let Some(tier) = fields.get("tier") {
        merge_tier(&mut base, &tier, preset, problems);
    }
    preset::remove_preset_fields(&mut base);
    merge_over(&mut base, own, None);
    (base, preset)
}

/// Expands short forms to blocks, so that a block can be merged over them.
pub(super) fn expand_short_forms(tree: &mut Node) {
    let Value::Map(entries) = &mut tree.value else {
        return;
    };
    for entry in entries {
        let long = match entry.name.as_str() {
            "health" => "mode",
            "timeout" => "first_byte",
            "concurrency" => "normal",
            _ => continue,
        };
        if entry.node.text().is_some() {
            let inner = Entry {
                name: long.to_owned(),
                place: entry.place.clone(),
                node: entry.node.clone(),
            };
            entry.node.value = Value::Map(vec![inner]);
        }
    }
}

/// Merges a file over the layers below. Fields that are two forms of one setting belong together: a
/// file that sets any of them replaces all of them. So do the auth methods; `same_auth` is one of which
/// only a part is set: the rest of it stays.
fn merge_over(below: &mut Node, over: Node, same_auth: Option<&str>) {
    const LIMITS: &[&str] = &["limit", "period", "algorithm", "limits"];
    const KEYS: &[&str] = &["api_key", "api_keys"];
    const DOMAINS: &[&str] = &["domain", "domains"];
    const PLACE: &[&str] = &["domain", "domains", "upstream"];
    for (set, replaced) in [(LIMITS, LIMITS), (KEYS, KEYS), (DOMAINS, PLACE)] {
        if set.iter().any(|name| over.get(name).is_some()) {
            for name in replaced {
                below.remove(name);
            }
        }
    }
    let style = |auth: &Node| auth::STYLES.iter().any(|name| auth.get(name).is_some());
    if over.get("auth").is_some_and(style)
        && let Value::Map(entries) = &mut below.value
        && let Some(auth) = entries.iter_mut().find(|entry| entry.name == "auth")
    {
        let replaced = auth::STYLES.iter().chain(&["prefix"]);
        for name in replaced.filter(|name| same_auth != Some(**name)) {
            auth.node.remove(name);
        }
    }
    below.merge(over);
}

/// Sets the field of a path such as `health.sleep_max`.
pub(crate) fn set_path(tree: &mut Node, path: &str, node: Node) {
    let mut node = node;
    for name in path.rsplit('.') {
        let entry = Entry {
            name: name.to_owned(),
            place: node.place.clone(),
            node,
        };
        node = Node {
            place: entry.place.clone(),
            value: Value::Map(vec![entry]),
        };
    }
    expand_short_forms(tree);
    expand_short_forms(&mut node);
    let at_a_time = |tree: &Node, name: &str| {
        let text = tree.get("concurrency")?.get(name)?.text()?;
        crate::amount::number(text)
    };
    // Background work may not have more calls at a time than all calls together.
    let low = at_a_time(tree, "low").zip(at_a_time(&node, "normal"));
    if low.is_some_and(|(low, normal)| low > normal)
        && let Value::Map(entries) = &mut tree.value
        && let Some(concurrency) = entries.iter_mut().find(|entry| entry.name == "concurrency")
    {
        concurrency.node.remove("low");
    }
    let below_auth = path.strip_prefix("auth.");
    let same_auth = below_auth.and_then(|path| path.split_once('.'));
    merge_over(tree, node, same_auth.map(|(method, _)| method));
}

/// `limit`, `period` and `algorithm` at the top become a list of one limit.
pub(crate) fn expand_short_limit(tree: &mut Node) {
    if tree.get("limit").is_none() || tree.get("limits").is_some() {
        return;
    }
    let place = tree.place.clone();
    let taken = ["limit", "period", "algorithm"].iter().filter_map(|name| {
        let node = tree.remove(name)?;
        Some(Entry {
            name: (*name).to_owned(),
            place: node.place.clone(),
            node,
        })
    });
    let at = |value| Node {
        place: place.clone(),
        value,
    };
    let entry = at(Value::Map(taken.collect()));
    let limits = Entry {
        name: "limits".to_owned(),
        place: place.clone(),
        node: at(Value::List(vec![entry])),
    };
    tree.merge(at(Value::Map(vec![limits])));
}

fn empty_map(tree: &Node) -> Node {
    Node {
        place: tree.place.clone(),
        value: Value::Map(Vec::new()),
    }
}

fn named_preset(at: &At<'_>, own: &Node, problems: &mut Problems) -> Option<&'static Preset> {
    let name = at.text(problems)?;
    let Some(preset) = preset::find(name) else {
        let names: Vec<&str> = preset::all().iter().map(|preset| preset.name).collect();
        let remedy = match nearest(name, &names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "`tollgate provider list` shows them all; write `none` for nothing built in"
                .to_owned(),
        };
        problems.push(at.error("there is no preset of this name", &remedy));
        return None;
    };
    let also = own.get("auth").and_then(|auth| auth.get("also"));
    Some(preset.with_second_key(|key| also.is_some_and(|also| also.get(key).is_some())))
}

/// H1: a known domain brings its auth method and its dialect, never limits.
fn defaults_of_domain(own: &Node) -> Node {
    let mut base = empty_map(own);
    let written = |node: &Node| node.text().and_then(|text| Host::parse(text).ok());
    let list = own.get("domains").map(|node| match &node.value {
        Value::List(items) => items.iter().filter_map(written).collect::<Vec<_>>(),
        Value::Null | Value::Text(_) | Value::Map(_) => written(node).into_iter().collect(),
    });
    let hosts: Vec<Host> = own
        .get("domain")
        .and_then(written)
        .into_iter()
        .chain(list.unwrap_or_default())
        .collect();
    let Some(preset) = hosts.iter().find_map(preset::for_host) else {
        return base;
    };
    let mut tree = preset.tree().clone();
    let inherited = ["auth", "dialect"].iter().filter_map(|name| {
        let node = tree.remove(name)?;
        Some(Entry {
            name: (*name).to_owned(),
            place: node.place.clone(),
            node,
        })
    });
    base.value = Value::Map(inherited.collect());
    base
}

fn merge_tier(
    base: &mut Node,
    tier: &At<'_>,
    preset: Option<&'static Preset>,
    problems: &mut Problems,
) {
    let Some(name) = tier.text(problems) else {
        return;
    };
    let Some(preset) = preset else {
        problems.push(tier.error(
            "a tier needs a preset",
            "add `preset: NAME`, or remove this line",
        ));
        return;
    };
    let Some(mut layer) = base.get("tiers").and_then(|tiers| tiers.get(name)).cloned() else {
        let names: Vec<&str> = preset.tiers().collect();
        let remedy = match (nearest(name, &names), names.is_empty()) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, true) => "this preset has none; remove the line".to_owned(),
            (None, false) => format!("its tiers are {}", names.join(", ")),
        };
        problems.push(tier.error("the preset has no tier of this name", &remedy));
        return;
    };
    layer.remove("note");
    expand_short_forms(&mut layer);
    merge_over(base, layer, None);
}
