//! Assembles one configuration from everything gathered, with the old one as a fallback.
//!
//! Promises: without an old configuration every error fails the load; with one, each invalid file
//! is rejected and its old version stays. The result never mixes two versions of one file.
//!
//! Never: changes the old configuration.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::config::{Config, UnknownDomain};
use crate::origin::{EffectiveValue, Origin};
use crate::problem::{Level, Place, Problem, Problems};
use crate::provider::{AuthStyle, Provider};
use crate::raw::Node;
use crate::secret::{Environment, FileContent, Secret};

use super::base::base_config;
use super::providers::{built_in, load_providers, notes_of, unknown_sets, without_conflicts};
use super::{Loaded, Sources, env_file, gather, hints};

pub(super) struct Assembled {
    pub(super) loaded: Loaded,
    pub(super) rejected: Problems,
}

/// Reads everything; `old` is the fallback.
pub(super) fn assemble(
    sources: &Sources,
    environment: &Environment<'_>,
    old: Option<&Loaded>,
) -> Assembled {
    let mut rejected = Problems::default();
    let mut notes = Problems::default();
    let env = variables(sources, environment, &mut notes).unwrap_or_else(|problems| {
        rejected.extend(problems);
        old.map(|old| old.env.clone()).unwrap_or_default()
    });
    let of_file = |name: &str| env.get(name).map(|value| value.expose().to_owned());
    let get = |name: &str| of_file(name).or_else(|| (environment.env)(name));
    let all = || {
        env.keys()
            .cloned()
            .chain((environment.env_names)())
            .collect()
    };
    let read = RefCell::default();
    let key_file = record_reads(&read, environment);
    let environment = Environment {
        env: &get,
        env_names: &all,
        read_file: &key_file,
        ..*environment
    };
    let (path, base) = base_config(sources, &environment, old, &mut notes, &mut rejected);
    let config = path.as_deref().map(|path| (path, &base.tree));
    let gathered = gather::providers(sources, config, &environment);
    rejected.extend(gathered.problems.clone());
    let mut config = base.settings.config;
    let loaded = load_providers(
        &gathered,
        sources,
        &config,
        &environment,
        old,
        &mut rejected,
    );
    let mut loaded = without_conflicts(loaded, &config, old, &mut rejected);
    for one in &loaded {
        notes.extend(notes_of(one));
    }
    config.providers = loaded.iter().map(|one| one.provider.clone()).collect();
    warn_if_exposed(&config, &base.tree, &mut notes);
    if is_default(&base.values, "unknown_domain") {
        config.unknown_domain = unknown_domain(&config);
    }
    let presets = base.settings.presets;
    let built_in = built_in(sources, presets, &config, &environment, old, &mut notes);
    config.built_in = built_in.iter().map(|one| one.provider.clone()).collect();
    loaded.extend(built_in);
    unknown_sets(sources, &loaded, &mut rejected);
    if !sources.only_named {
        hints::mistyped(&config.env_prefix, &loaded, &environment, &mut notes);
    }
    notes.sort();
    rejected.sort();
    let loaded = Loaded {
        config,
        problems: notes,
        providers: loaded,
        watched: watched(gathered.watched, read.take()),
        values: base.values,
        presets,
        tree: base.tree,
        env,
    };
    Assembled { loaded, rejected }
}

/// tollgate.yaml with variables and flags over it; an invalid field has its default.
pub(super) fn without_providers(sources: &Sources, environment: &Environment<'_>) -> Config {
    let (mut notes, mut rejected) = (Problems::default(), Problems::default());
    let env = variables(sources, environment, &mut notes).unwrap_or_default();
    let of_file = |name: &str| env.get(name).map(|value| value.expose().to_owned());
    let get = |name: &str| of_file(name).or_else(|| (environment.env)(name));
    let environment = Environment {
        env: &get,
        ..*environment
    };
    let (_, base) = base_config(sources, &environment, None, &mut notes, &mut rejected);
    base.settings.config
}

/// Records which files are read: a file that holds a key is part of the configuration and is
/// watched like the others.
fn record_reads<'a>(
    read: &'a RefCell<Vec<String>>,
    environment: &'a Environment<'_>,
) -> impl Fn(&str) -> Result<FileContent, String> + 'a {
    |path| {
        read.borrow_mut().push(path.to_owned());
        (environment.read_file)(path)
    }
}

/// The named files and the files that were read, once each.
fn watched(mut named: Vec<String>, read: Vec<String>) -> Vec<String> {
    for path in read {
        if !named.contains(&path) {
            named.push(path);
        }
    }
    named
}

/// Whether the value is the default.
fn is_default(values: &[EffectiveValue], path: &str) -> bool {
    let found = values.iter().find(|value| value.path == path);
    found.is_none_or(|value| value.origin == Origin::Default)
}

/// If every address is loopback, calls to hosts of no provider are allowed. One address that other
/// hosts can reach is enough to reject them: the gateway must not become an open proxy.
fn unknown_domain(config: &Config) -> UnknownDomain {
    let own = config.providers.iter().filter_map(|one| one.listen);
    if own.chain([config.listen]).all(|at| at.ip().is_loopback()) {
        UnknownDomain::Allow
    } else {
        UnknownDomain::Refuse
    }
}

/// H3: every client that reaches the gateway can call with the configured keys. Tokens of callers
/// do not change that: they authenticate a name, and a call without a name is accepted.
fn warn_if_exposed(config: &Config, tree: &Node, notes: &mut Problems) {
    let has_key = |one: &Provider| {
        !one.keys.is_empty() || matches!(one.auth.style, AuthStyle::OAuth2(_) | AuthStyle::Login(_))
    };
    let with_keys = || config.providers.iter().filter(|one| has_key(one));
    let own = with_keys().filter_map(|one| Some((one.listen?, format!("listen of {}", one.name))));
    let all = with_keys()
        .next()
        .map(|_| (config.listen, "listen".to_owned()));
    for (address, path) in all.into_iter().chain(own) {
        if address.ip().is_loopback() {
            continue;
        }
        let written = tree.get("listen").filter(|_| path == "listen");
        notes.push(Problem {
            level: Level::Warning,
            place: written.map_or_else(|| Place::whole("--listen"), |node| node.place.clone()),
            path,
            what: format!("other hosts can reach {address} and call with the keys configured here"),
            remedy: "listen on 127.0.0.1, or restrict access by a firewall or a proxy".to_owned(),
        });
    }
}

/// The variables of `--env-file`, as secrets.
fn variables(
    sources: &Sources,
    environment: &Environment<'_>,
    notes: &mut Problems,
) -> Result<BTreeMap<String, Secret>, Problems> {
    let Some(path) = &sources.env_file else {
        return Ok(BTreeMap::new());
    };
    let file = (environment.read_file)(path).map_err(|why| gather::unreadable(path, &why))?;
    if file.readable_by_others {
        notes.push(Problem {
            level: Level::Warning,
            place: Place::whole(path),
            path: String::new(),
            what: "others can read this file of variables".to_owned(),
            remedy: "run `chmod 600` on it".to_owned(),
        });
    }
    env_file::parse(path, &file.text)
}
