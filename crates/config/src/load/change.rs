//! Changes: what is different after looking again.
//!
//! Promises: a provider that is gone, new, renamed or changed is told by name, with the fields.
//!
//! Never: shows the value of a key: that it is another one is all that is told.

use crate::origin::EffectiveValue;
use crate::problem::Problems;

use super::Loaded;
use super::providers::previous;

/// What came of looking again.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// What is to be obeyed from now on.
    pub loaded: Loaded,
    /// What is different.
    pub changed: Vec<Change>,
    /// What was refused; the old version of it stays.
    pub rejected: Problems,
}

/// One difference after a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is a new provider.
    Added(String),
    /// A provider is gone.
    Removed(String),
    /// A file has given its provider another name. Its counts do not follow: they are kept by name.
    Renamed {
        /// As it was.
        from: String,
        /// As it is.
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

/// What is different between two loads.
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

/// Settings of which no value is shown, so that only what is obeyed can say that they differ: a token
/// that was changed must hold at once, and one that was taken away must not.
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

/// Fields whose values differ. What has no text is not compared here.
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
