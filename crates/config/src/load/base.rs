//! The settings of tollgate.yaml, with the program's variables and flags over it.
//!
//! Promises: an invalid file is rejected as a whole and the old settings stay. A setting that needs
//! a restart stays as it is until then, and a warning says so.
//!
//! Never: reads the providers.

use crate::config::check::{Settings, settings};
use crate::config::{CONFIG, Config};
use crate::expand::expand_variables;
use crate::field::{At, Fields};
use crate::origin::{EffectiveValue, Origin, effective_values};
use crate::problem::{Level, Place, Problem, Problems};
use crate::raw::{Node, Value};
use crate::secret::Environment;
use crate::shape::names;

use super::{Loaded, Sources, gather, hints};

/// tollgate.yaml with flags and variables over it.
pub(super) struct BaseConfig {
    pub(super) tree: Node,
    pub(super) settings: Settings,
    pub(super) values: Vec<EffectiveValue>,
}

pub(super) fn base_config(
    sources: &Sources,
    environment: &Environment<'_>,
    old: Option<&Loaded>,
    notes: &mut Problems,
    rejected: &mut Problems,
) -> (Option<String>, BaseConfig) {
    let mut about = Problems::default();
    let found = gather::config_file(sources, environment, &mut about)
        .and_then(|found| reject_if_vanished(found, old));
    let path = match &found {
        Ok(found) => found.as_ref().map(|(path, _)| path.clone()),
        // The file cannot be read now, but it is still configured; the old tree has its name.
        Err(_) => old.map(|old| old.tree.place.file.to_string()),
    };
    let tree = match found {
        Ok(found) => found.map_or_else(empty, |(_, tree)| tree),
        Err(problems) => {
            rejected.extend(problems);
            old.map_or_else(empty, |old| old.tree.clone())
        }
    };
    let mut problems = Problems::default();
    let base = check(&tree, sources, environment, &mut problems);
    notes.extend(about);
    if !problems.has_errors() {
        notes.extend(problems);
        let mut base = base;
        if let Some(old) = old {
            retain_until_restart(
                &mut base.settings.config,
                &old.config,
                &base.tree.place.file,
                notes,
            );
        }
        return (path, base);
    }
    rejected.extend(problems);
    let base = match old {
        Some(old) => BaseConfig {
            tree: old.tree.clone(),
            settings: Settings {
                config: old.config.clone(),
                presets: old.presets,
            },
            values: old.values.clone(),
        },
        None => base,
    };
    (path, base)
}

/// Rejects a file that is missing or empty, because an editor may be writing it: the old settings
/// stay.
fn reject_if_vanished(
    found: Option<(String, Node)>,
    old: Option<&Loaded>,
) -> Result<Option<(String, Node)>, Problems> {
    let has_entries = |tree: &Node| tree.entries().is_none_or(|entries| !entries.is_empty());
    let is_silent = found.as_ref().is_none_or(|(_, tree)| !has_entries(tree));
    match old.filter(|old| is_silent && has_entries(&old.tree)) {
        None => Ok(found),
        Some(old) => {
            let place = Place::whole(&old.tree.place.file);
            let remedy = "restore it; to remove all settings, restart";
            Err(gather::problem(
                &place,
                "the file is missing or empty, so the old settings stay",
                remedy,
            )
            .into())
        }
    }
}

/// Sockets, stores and the log are opened once. A change of them waits for the next restart.
fn retain_until_restart(new: &mut Config, old: &Config, file: &str, notes: &mut Problems) {
    macro_rules! keep {
        ($( $field:ident ),*) => { $( if new.$field != old.$field {
            new.$field = old.$field.clone();
            notes.push(Problem {
                level: Level::Warning,
                place: Place::whole(file),
                path: stringify!($field).to_owned(),
                what: "has changed, but takes effect only after a restart".to_owned(),
                remedy: "restart when it suits you".to_owned(),
            });
        } )* };
    }
    keep!(
        listen,
        admin,
        resp,
        state_dir,
        store,
        postgres,
        cache_store,
        cache_size,
        guard_store,
        nodes,
        node_lease,
        connections_max,
        body_memory,
        log
    );
}

fn empty() -> Node {
    Node {
        place: Place::whole("tollgate.yaml"),
        value: Value::Map(Vec::new()),
    }
}

fn check(
    tree: &Node,
    sources: &Sources,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> BaseConfig {
    let mut whole = tree.clone();
    hints::note_not_used_yet(&whole, hints::CONFIG_NOT_USED_YET, problems);
    for (name, path) in [
        ("TOLLGATE_STORE", "store"),
        ("TOLLGATE_ADMIN", "admin.listen"),
        ("TOLLGATE_ADMIN_TOKEN", "admin.token"),
        ("TOLLGATE_LIMITING", "limiting"),
        ("TOLLGATE_CACHE_MEMORY", "cache_size.memory"),
        ("TOLLGATE_CACHE_DISK", "cache_size.disk"),
    ] {
        if let Some(value) =
            (environment.env)(name).filter(|value| !value.is_empty() && !sources.only_named)
        {
            set_value(&mut whole, path, &value, &Origin::environment(name));
        }
    }
    for flag in &sources.flags {
        set_value(&mut whole, flag.path, &flag.value, &Place::whole(flag.name));
    }
    expand_variables(&mut whole, CONFIG, environment, problems);
    let root = At {
        node: &whole,
        path: String::new(),
    };
    let fields = Fields::open(&root, &names(CONFIG), problems).unwrap_or(Fields { at: root });
    let settings = settings(&fields, environment, problems);
    let mut values = effective_values(&whole, CONFIG);
    values.retain(|value| !value.path.starts_with("providers"));
    for (path, store) in [
        ("store", Some(&settings.config.store)),
        ("cache_store", settings.config.cache_store.as_ref()),
        ("guard_store", Some(&settings.config.guard_store)),
    ] {
        // The address may contain a password.
        let value = values.iter_mut().find(|value| value.path == path);
        if let (Some(value), Some(store)) = (value, store) {
            value.text = Some(store.redacted());
        }
    }
    BaseConfig {
        tree: tree.clone(),
        settings,
        values,
    }
}

/// One value over tollgate.yaml.
fn set_value(tree: &mut Node, path: &str, value: &str, place: &Place) {
    let node = Node {
        place: place.clone(),
        value: Value::Text(value.to_owned()),
    };
    crate::check::layers::set_path(tree, path, node);
}
