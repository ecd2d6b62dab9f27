//! Changes: the differences after a reload.
//!
//! Promises: a provider that is removed, added, renamed or changed is reported by name, with its
//! changed fields.
//!
//! Never: shows the value of a key: only that it changed.

use crate::origin::EffectiveValue;
use crate::problem::Problems;

use super::Loaded;
use super::providers::previous;

/// The result of a reload.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// The new configuration.
    pub loaded: Loaded,
    /// The differences.
    pub changed: Vec<Change>,
    /// The errors of rejected files, whose old versions stay.
    pub rejected: Problems,
}

/// One difference after a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is a new provider.
    Added(String),
    /// A provider was removed.
    Removed(String),
    /// A file gives its provider another name. Its counts do not follow: they are stored by name.
    Renamed {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// A provider has other settings.
    Changed {
        /// Its name.
        provider: String,
        /// The fields, as far as they can be shown.
        fields: Vec<String>,
    },
    /// tollgate.yaml or its flags have other settings.
    Settings {
        /// The fields.
        fields: Vec<String>,
    },
}

/// The differences between two loads.
pub(super) fn changes(old: &Loaded, new: &Loaded) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut fields = differing(&old.values, &new.values);
    fields.extend(secrets(old, new));
    if !fields.is_empty() {
        changes.push(Change::Settings { fields });
    }
    for one in &new.providers {
        let name = &one.provider.name;
        let was = old.provider(name);
        let renamed = previous(&one.source, Some(old)).filter(|was| was.provider.name != *name);
        match (was, renamed) {
            (Some(was), _) if was.provider == one.provider => {}
            (Some(was), _) => changes.push(Change::Changed {
                provider: name.clone(),
                fields: differing(&was.values, &one.values),
            }),
            (None, Some(was)) => changes.push(Change::Renamed {
                from: was.provider.name.clone(),
                to: name.clone(),
            }),
            (None, None) => changes.push(Change::Added(name.clone())),
        }
    }
    for one in &old.providers {
        let name = &one.provider.name;
        let renamed =
            |change: &Change| matches!(change, Change::Renamed { from, .. } if from == name);
        if new.provider(name).is_none() && !changes.iter().any(renamed) {
            changes.push(Change::Removed(name.clone()));
        }
    }
    changes
}

/// Changed secrets. Their values are not shown, so the checked configurations are compared: a
/// changed token must apply at once, and a removed one must stop working.
fn secrets(old: &Loaded, new: &Loaded) -> Vec<String> {
    let (was, is) = (&old.config, &new.config);
    let tokens = |loaded: &Loaded| -> Vec<_> {
        let callers = loaded.config.callers.iter();
        let named = callers.filter_map(|caller| Some((caller.name.clone(), caller.token.clone()?)));
        named.collect()
    };
    let differ = [
        ("callers.token", tokens(old) != tokens(new)),
        ("metrics.token", was.metrics.token != is.metrics.token),
        ("alerts.webhooks", was.webhooks != is.webhooks),
    ];
    let differ = differ.into_iter().filter(|(_, differs)| *differs);
    differ.map(|(name, _)| name.to_owned()).collect()
}

/// Fields whose values differ. Fields without text are not compared here.
fn differing(old: &[EffectiveValue], new: &[EffectiveValue]) -> Vec<String> {
    let text = |values: &[EffectiveValue], path: &str| {
        let found = values.iter().find(|value| value.path == path);
        found.map(|value| value.text.clone())
    };
    let mut fields: Vec<String> = Vec::new();
    for value in new.iter().chain(old) {
        let path = &value.path;
        if text(old, path) != text(new, path) && !fields.contains(path) {
            fields.push(path.clone());
        }
    }
    fields
}
