//! Hints: settings that are probably mistyped, and fields that are not used yet.
//!
//! Promises: a variable that resembles a setting is reported with the nearest one. A field that is
//! checked but not used yet is reported, so that nobody relies on it.
//!
//! Never: prevents a load.

use crate::origin::Origin;
use crate::overlay::{env_name, keys};
use crate::preset;
use crate::problem::{Level, Place, Problem, Problems, nearest};
use crate::raw::Node;
use crate::secret::Environment;

use super::LoadedProvider;

/// Variables of the program itself; their prefix is always TOLLGATE_.
pub(super) const PROGRAM_VARIABLES: [&str; 9] = [
    "CONFIG",
    "LOG",
    "STORE",
    "ADMIN",
    "ADMIN_TOKEN",
    "STATE_DIR",
    "LIMITING",
    "CACHE_MEMORY",
    "CACHE_DISK",
];

/// Fields of tollgate.yaml that are checked but not used yet.
pub const CONFIG_NOT_USED_YET: &[&str] = &["intercept"];

/// Fields of a provider file that are checked but not used yet.
pub const PROVIDER_NOT_USED_YET: &[&str] = &[];

/// Adds notes for the fields of a file that are not used yet.
pub(super) fn note_not_used_yet(tree: &Node, paths: &[&str], problems: &mut Problems) {
    for path in paths {
        let mut found = vec![(String::new(), tree)];
        for name in path.split('.') {
            found = found
                .into_iter()
                .flat_map(|(above, node)| below(&above, node, name))
                .collect();
        }
        for (path, node) in found {
            problems.push(Problem {
                level: Level::Note,
                place: node.place.clone(),
                path,
                what: "is checked but not used yet".to_owned(),
                remedy: "it has no effect in this version".to_owned(),
            });
        }
    }
}

/// The fields of this name below a field.
fn below<'a>(above: &str, node: &'a Node, name: &str) -> Vec<(String, &'a Node)> {
    let entries = node.entries().unwrap_or_default().iter();
    let matching = entries.filter(|entry| entry.name == name);
    let dot = if above.is_empty() { "" } else { "." };
    matching
        .map(|entry| (format!("{above}{dot}{}", entry.name), &entry.node))
        .collect()
}

/// Warns of variables that look like a mistyped setting.
pub(super) fn mistyped(
    prefix: &str,
    governed: &[LoadedProvider],
    environment: &Environment<'_>,
    problems: &mut Problems,
) {
    let settings: Vec<&str> = keys().iter().map(|key| key.name.as_str()).collect();
    let lower: Vec<String> = settings
        .iter()
        .map(|name| name.to_ascii_lowercase())
        .collect();
    let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
    let own = governed.iter().map(|one| one.provider.name.as_str());
    let built_in = preset::all().iter().map(|preset| preset.name);
    let mut providers: Vec<String> = own
        .chain(built_in)
        .map(|name| format!("{}_", env_name(name)))
        .collect();
    // The longest first: `OMDB_PAID_` before `OMDB_`.
    providers.sort_by_key(|name| std::cmp::Reverse(name.len()));
    let mut names = (environment.env_names)();
    names.sort();
    for name in &names {
        let Some(rest) = name.strip_prefix(prefix) else {
            continue;
        };
        let of_one = providers
            .iter()
            .find_map(|provider| rest.strip_prefix(provider.as_str()));
        let setting = of_one.unwrap_or(rest);
        if settings.contains(&setting) || (of_one.is_none() && PROGRAM_VARIABLES.contains(&rest)) {
            continue;
        }
        // Other programs may use the same prefix; only names that resemble a setting are reported.
        if let Some(meant) = nearest(setting, &lower) {
            let head = name.strip_suffix(setting).unwrap_or(prefix);
            problems.push(Problem {
                level: Level::Warning,
                place: Origin::environment(name),
                path: String::new(),
                what: "there is no setting of this name, so nothing is changed".to_owned(),
                remedy: format!("did you mean {head}{}?", meant.to_ascii_uppercase()),
            });
        }
    }
}

/// The problem of a setting for an unknown provider.
pub(super) fn unknown_provider(name: &str, place: &Place, names: &[&str]) -> Problem {
    Problem {
        level: Level::Error,
        place: place.clone(),
        path: String::new(),
        what: "there is no provider of this name".to_owned(),
        remedy: match nearest(name, names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "`tollgate provider list` shows them all".to_owned(),
        },
    }
}
