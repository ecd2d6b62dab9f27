//! Loads every provider with all overrides of its file.
//!
//! Promises: a provider with errors is rejected and its old version stays; an unchanged provider is
//! the same object as before.
//!
//! Never: lets a setting for all providers make a built-in provider unusable.

use std::sync::Arc;

use tollgate_core::domain::Domain;

use crate::check::{Checked, ProviderFile};
use crate::config::guard::GUARDS_MAX;
use crate::config::{Config, Presets};
use crate::origin::Origin;
use crate::preset;
use crate::problem::{Level, Place, Problem, Problems, nearest};
use crate::provider::Provider;
use crate::raw::Node;
use crate::secret::Environment;
use crate::settings::OnStoreLoss;

use super::gather::{FoundProvider, Gathered, problem};
use super::{Loaded, LoadedProvider, ProviderSetting, Sources, conflict, hints};

/// Checks every gathered provider. A provider with errors is rejected, and its old version stays.
pub(super) fn load_providers(
    gathered: &Gathered,
    sources: &Sources,
    config: &Config,
    environment: &Environment<'_>,
    old: Option<&Loaded>,
    rejected: &mut Problems,
) -> Vec<LoadedProvider> {
    let mut loaded = Vec::new();
    for found in &gathered.found {
        let checked = match &found.file {
            Ok(draft) => {
                let prefix = &config.env_prefix;
                let checked = check_with_overrides(draft.clone(), sources, prefix, environment);
                require_guards(require_nodes(checked, config), draft.tree(), config)
            }
            Err(problems) => Checked::rejected(problems.clone()),
        };
        loaded.extend(new_or_previous(found, checked, old, rejected));
    }
    // If a folder cannot be read now, its providers stay.
    for folder in &gathered.unreadable_dirs {
        let inside = format!("{}/", folder.trim_end_matches('/'));
        let held = old.into_iter().flat_map(|old| &old.providers);
        loaded.extend(
            held.filter(|one| one.source.starts_with(&inside))
                .map(as_unchanged),
        );
    }
    loaded
}

/// Rejects `local-share` without the number of nodes: each node would use the whole limit, and all
/// nodes together would exceed it.
fn require_nodes(checked: Checked, config: &Config) -> Checked {
    let mut checked = checked;
    let shares = |provider: &Provider| provider.on_store_loss == OnStoreLoss::LocalShare;
    let alone = config.nodes == 1 && config.store.is_shared();
    if alone && checked.provider.as_ref().is_some_and(shares) {
        let place = checked.places.on_store_loss.clone();
        let place = place.unwrap_or_else(|| Place::whole("tollgate.yaml"));
        let what = "`local-share` needs the number of nodes that share the limits";
        let mut problem = problem(&place, what, "add `nodes: 4` to tollgate.yaml");
        "on_store_loss".clone_into(&mut problem.path);
        checked.problems.push(problem);
        checked.provider = None;
    }
    checked
}

/// Rejects guards that tollgate.yaml does not have: their callers would be let through.
fn require_guards(checked: Checked, tree: &Node, config: &Config) -> Checked {
    let mut checked = checked;
    let names: Vec<&str> = config
        .guards
        .iter()
        .map(|guard| guard.name.as_str())
        .collect();
    let guards = checked.provider.as_ref().map(|provider| &provider.guards);
    let Some(guards) = guards.filter(|guards| !guards.is_empty()) else {
        return checked;
    };
    let unknown = guards.iter().find(|name| !names.contains(&name.as_str()));
    let (what, remedy) = match unknown {
        Some(unknown) => (
            "names a guard that tollgate.yaml does not have".to_owned(),
            match nearest(unknown, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "write it under `guards:` in tollgate.yaml".to_owned(),
            },
        ),
        None if guards.len() > GUARDS_MAX => (
            format!("names more than {GUARDS_MAX} guards"),
            "name fewer: they are decided as one".to_owned(),
        ),
        None => return checked,
    };
    let place = tree.get("guards").map(|node| node.place.clone());
    let place = place.unwrap_or_else(|| Place::whole("--set"));
    let mut problem = problem(&place, &what, &remedy);
    "guards".clone_into(&mut problem.path);
    checked.problems.push(problem);
    checked.provider = None;
    checked
}

/// Checks a provider file with all overrides.
fn check_with_overrides(
    draft: ProviderFile,
    sources: &Sources,
    prefix: &str,
    environment: &Environment<'_>,
) -> Checked {
    let mut draft = draft;
    if !sources.only_named {
        draft = draft.with_environment(prefix);
    }
    let name = draft.name().to_owned();
    let mut problems = Problems::default();
    for (key, value) in &sources.for_all_providers {
        let flag = format!("--{}", key.replace('_', "-"));
        if let Err(wrong) = draft.set(key, value, &flag) {
            problems.extend(wrong);
        }
    }
    let flags = sources.set.iter().map(|set| (set, Place::whole("--set")));
    let later = sources.patched.iter().map(|set| (set, Origin::set()));
    for (ProviderSetting { key, value, .. }, place) in
        flags.chain(later).filter(|(set, _)| set.provider == name)
    {
        if let Err(wrong) = draft.set(key, value, &place.file) {
            problems.extend(wrong);
        }
    }
    let mut checked = draft.check(environment);
    hints::note_not_used_yet(
        draft.tree(),
        hints::PROVIDER_NOT_USED_YET,
        &mut checked.problems,
    );
    checked.problems.extend(problems);
    if checked.problems.has_errors() {
        checked.provider = None;
    }
    checked
}

/// The new version if it has no errors, else the old version if there is one.
fn new_or_previous(
    found: &FoundProvider,
    checked: Checked,
    old: Option<&Loaded>,
    rejected: &mut Problems,
) -> Option<LoadedProvider> {
    let before = previous(&found.source, old);
    let mut problems = found.warnings.clone();
    problems.extend(checked.problems);
    let Some(provider) = checked.provider else {
        rejected.extend(problems.clone());
        return before.map(|one| LoadedProvider {
            problems,
            ..as_unchanged(one)
        });
    };
    let same = before.filter(|one| *one.provider == provider);
    Some(LoadedProvider {
        // An unchanged provider is the same object, so that nothing is rebuilt for it.
        provider: same.map_or_else(|| Arc::new(provider), |one| one.provider.clone()),
        source: found.source.clone(),
        values: checked.values,
        problems,
        places: checked.places,
        is_changed: same.is_none(),
    })
}

pub(super) fn previous<'a>(source: &str, old: Option<&'a Loaded>) -> Option<&'a LoadedProvider> {
    old?.providers.iter().find(|one| one.source == source)
}

/// The previous version, marked as unchanged.
fn as_unchanged(one: &LoadedProvider) -> LoadedProvider {
    LoadedProvider {
        is_changed: false,
        ..one.clone()
    }
}

/// Rejects providers that conflict with another one. Each round removes one provider or restores
/// its old version, so the loop ends.
pub(super) fn without_conflicts(
    loaded: Vec<LoadedProvider>,
    config: &Config,
    old: Option<&Loaded>,
    rejected: &mut Problems,
) -> Vec<LoadedProvider> {
    let mut loaded = loaded;
    while let Some((loser, problem)) = conflict::first(&loaded, config) {
        rejected.push(problem.clone());
        let lost = loaded.remove(loser);
        let before = previous(&lost.source, old).filter(|_| lost.is_changed);
        if let Some(before) = before {
            let mut problems = lost.problems;
            problems.push(problem);
            let unchanged = LoadedProvider {
                problems,
                ..as_unchanged(before)
            };
            loaded.insert(loser, unchanged);
        }
    }
    loaded
}

/// The warnings and notes of a provider. Errors are reported with the rejected file.
pub(super) fn notes_of(one: &LoadedProvider) -> Problems {
    let mut notes = Problems::default();
    for problem in one
        .problems
        .iter()
        .filter(|problem| problem.level != Level::Error)
    {
        notes.push(problem.clone());
    }
    notes.extend(wildcard_warnings(one));
    if let Some(problem) = learn_only_warning(one) {
        notes.push(problem);
    }
    notes
}

/// Warns about a preset without limits: its provider reports limits only in responses, and no file
/// sets one.
fn learn_only_warning(one: &LoadedProvider) -> Option<Problem> {
    let provider = &one.provider;
    let is_bare = provider.learn
        && provider.learned_limits().is_empty()
        && provider.limits.is_empty()
        && provider.concurrency.is_none();
    let is_reported = one
        .problems
        .iter()
        .any(|known| known.what.starts_with("there is no limit"));
    let preset = provider.preset.filter(|_| is_bare && !is_reported)?;
    Some(Problem {
        level: Level::Warning,
        place: Place::whole(&one.source),
        path: provider.name.clone(),
        what: "there is no limit: the provider reports its limits only in responses, and its dialect names none to learn, so calls slow down only after a 429".to_owned(),
        remedy: format!("add the `limits:` of your plan; `tollgate provider show {preset}` shows how"),
    })
}

/// Warns about `*.example.org`. It matches many hosts, and Tollgate does not know which host is the
/// user's: a call by the provider's name has no target, and the key is sent to none of these hosts.
fn wildcard_warnings(one: &LoadedProvider) -> Problems {
    let mut problems = Problems::default();
    if let Some(domain) = one.provider.wildcard_only_domain() {
        let host = domain.host();
        problems.push(Problem {
            level: Level::Warning,
            place: Place::whole(&one.source),
            path: one.provider.name.clone(),
            what: format!(
                "`{domain}` matches many hosts, so calls by provider name fail, and the key is sent to none of these hosts"
            ),
            remedy: format!("write your own host, such as `upstream: https://YOURS.{host}`"),
        });
    }
    problems
}

/// Built-in providers, for domains that no file names.
pub(super) fn built_in(
    sources: &Sources,
    presets: Presets,
    config: &Config,
    environment: &Environment<'_>,
    old: Option<&Loaded>,
    notes: &mut Problems,
) -> Vec<LoadedProvider> {
    if presets == Presets::Off || sources.only_named {
        return Vec::new();
    }
    let taken = |name: &str| config.providers.iter().any(|one| one.name == name);
    let claimed = |domain: &Domain| {
        config
            .providers
            .iter()
            .any(|one| one.domains.contains(domain))
    };
    let mut loaded = Vec::new();
    let presets = preset::all()
        .iter()
        .filter(|preset| !preset.is_variant() && !taken(preset.name));
    for preset in presets {
        let Ok(draft) = preset.provider_file(None) else {
            continue;
        };
        let mut checked =
            check_with_overrides(draft.clone(), sources, &config.env_prefix, environment);
        if checked.provider.is_none() {
            // A setting for all providers is invalid for this preset: warn, and load it without.
            for problem in checked.problems.iter() {
                let level = Level::Warning;
                notes.push(Problem {
                    level,
                    ..problem.clone()
                });
            }
            checked = draft.check(environment);
        }
        let Some(mut provider) = checked.provider else {
            continue;
        };
        let had_domains = !provider.domains.is_empty();
        provider.domains.retain(|domain| !claimed(domain));
        if had_domains && provider.domains.is_empty() {
            continue;
        }
        let source = format!("preset {}", preset.name);
        let same = previous(&source, old).filter(|one| *one.provider == provider);
        loaded.push(LoadedProvider {
            provider: same.map_or_else(|| Arc::new(provider), |one| one.provider.clone()),
            source,
            values: checked.values,
            problems: Problems::default(),
            places: checked.places,
            is_changed: false,
        });
    }
    loaded
}

/// Rejects `--set` and `tollgate set` for unknown providers.
pub(super) fn unknown_sets(sources: &Sources, loaded: &[LoadedProvider], rejected: &mut Problems) {
    let names: Vec<&str> = loaded
        .iter()
        .map(|one| one.provider.name.as_str())
        .collect();
    let flags = sources.set.iter().map(|set| (set, Place::whole("--set")));
    let later = sources.patched.iter().map(|set| (set, Origin::set()));
    for (set, place) in flags.chain(later) {
        if set.provider.is_empty() {
            let remedy = "write PROVIDER.KEY=VALUE, such as tmdb.sleep_max=60";
            rejected.push(problem(&place, "is not a setting", remedy));
        } else if !names.contains(&set.provider.as_str()) {
            rejected.push(hints::unknown_provider(&set.provider, &place, &names));
        }
    }
}
