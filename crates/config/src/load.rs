//! Loading: from files, flags and environment to one configuration, with every problem at once.
//!
//! Promises: the order of settings is set/PATCH > flag > environment > file > preset, and each
//! effective value knows who set it. Two providers never share a name, a domain or an address: the
//! problem names both places. [`reload`] is a pure function and atomic: an invalid file is rejected
//! and its old version stays; valid files take effect.
//!
//! Never: reads the environment or a file by itself; [`Environment`] does.

mod assemble;
mod base;
mod change;
mod conflict;
mod env_file;
pub(crate) mod gather;
mod providers;
mod hints;
pub use hints::{CONFIG_NOT_USED_YET, PROVIDER_NOT_USED_YET};

pub use change::{Change, Reloaded};
pub use env_file::parse as parse_env_file;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::check::Places;
use crate::config::{Config, Presets};
use crate::origin::EffectiveValue;
use crate::problem::{Level, Problem, Problems, nearest};
use crate::provider::Provider;
use crate::raw::Node;
use crate::secret::{Environment, Secret};

/// The most providers: each has limits, a gate and metrics of its own; a thousand are a large
/// fleet.
pub const PROVIDERS_MAX: usize = 4_096;

/// Where the configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--config`. Without it: TOLLGATE_CONFIG, else `tollgate.yaml` here, if there is one.
    pub config: Option<String>,
    /// No tollgate.yaml unless [`Sources::config`] names one, and no built-in providers: only named
    /// files are loaded. For `tollgate check` and for embedding.
    pub only_named: bool,
    /// `--provider`.
    pub providers: Vec<String>,
    /// `--provider-dir`: all *.yaml and *.yml in it.
    pub provider_dirs: Vec<String>,
    /// `--env-file`: variables that take precedence over those of the process.
    pub env_file: Option<String>,
    /// Flags that set a field of tollgate.yaml.
    pub flags: Vec<Flag>,
    /// Settings of every provider that have a flag of their own (`--auto-recover`): key and value.
    /// `--set` takes precedence.
    pub for_all_providers: Vec<(&'static str, String)>,
    /// `--set`.
    pub set: Vec<ProviderSetting>,
    /// Settings changed at run time; they take precedence over everything.
    pub patched: Vec<ProviderSetting>,
}

/// A flag that sets a field of tollgate.yaml.
#[derive(Clone)]
pub struct Flag {
    /// The flag: `--listen`.
    pub name: &'static str,
    /// The field: `listen`.
    pub path: &'static str,
    /// Its value.
    pub value: String,
}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value may be a token.
        f.write_str(self.name)
    }
}

/// One setting of one provider: `tmdb.sleep_max=60`.
#[derive(Clone)]
pub struct ProviderSetting {
    /// The provider.
    pub provider: String,
    /// The setting: `sleep_max`, `health.sleep_max` or `SLEEP_MAX`.
    pub key: String,
    /// The value.
    pub value: String,
}

impl fmt::Debug for ProviderSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.provider, self.key)
    }
}

impl ProviderSetting {
    /// Reads `PROVIDER.KEY=VALUE`. An invalid text gives an empty provider, and loading reports it:
    /// the command-line parser would repeat the text, which may be a key.
    #[must_use]
    pub fn parse(text: &str) -> ProviderSetting {
        let parts = text.split_once('=').and_then(|(way, value)| {
            let (provider, key) = way.split_once('.')?;
            Some((provider.trim(), key.trim(), value.trim()))
        });
        let whole = parts.filter(|(provider, key, _)| !provider.is_empty() && !key.is_empty());
        let (provider, key, value) = whole.unwrap_or_default();
        ProviderSetting {
            provider: provider.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }
}

/// A loaded provider and its sources.
#[derive(Clone, Debug)]
pub struct LoadedProvider {
    /// The provider.
    pub provider: Arc<Provider>,
    /// Its file, as the user named it; `preset NAME` for a built-in one.
    pub source: String,
    /// Every effective value, and who set it.
    pub values: Vec<EffectiveValue>,
    /// Its problems. If there are errors, a newer version was rejected and this is the old one.
    pub problems: Problems,
    pub(crate) places: Places,
    pub(crate) is_changed: bool,
}

/// The loaded configuration.
#[derive(Clone)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// All warnings and notes; after a [`reload`] also the errors of rejected files.
    pub problems: Problems,
    /// The files' providers, in their order, then the built-in ones.
    pub providers: Vec<LoadedProvider>,
    /// Files and folders whose change triggers a reload.
    pub watched: Vec<String>,
    /// Every effective value of tollgate.yaml, and who set it.
    pub values: Vec<EffectiveValue>,
    pub(crate) presets: Presets,
    pub(crate) tree: Node,
    pub(crate) env: BTreeMap<String, Secret>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Loaded");
        shown.field("config", &self.config);
        shown.field("problems", &self.problems);
        shown.finish_non_exhaustive()
    }
}

impl Loaded {
    /// The loaded provider of this name.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&LoadedProvider> {
        self.providers
            .iter()
            .find(|loaded| loaded.provider.name == name)
    }

    /// The nearest provider name, to suggest for an unknown one.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Option<&str> {
        let names: Vec<&str> = self
            .providers
            .iter()
            .map(|loaded| loaded.provider.name.as_str())
            .collect();
        nearest(name, &names)
    }
}

/// Reads and checks everything.
pub(crate) fn load(sources: &Sources, environment: &Environment<'_>) -> Result<Loaded, Problems> {
    let assembled = assemble::assemble(sources, environment, None);
    if !assembled.rejected.has_errors() {
        return Ok(assembled.loaded);
    }
    let mut problems = assembled.rejected;
    problems.extend(assembled.loaded.problems);
    problems.sort();
    Err(dedup(&problems))
}

/// The valid settings of tollgate.yaml alone.
pub(crate) fn without_providers(sources: &Sources, environment: &Environment<'_>) -> Config {
    assemble::without_providers(sources, environment)
}

/// Loads again: valid files take effect, an invalid file is rejected and its old version stays.
#[must_use]
pub fn reload(old: &Loaded, sources: &Sources, environment: &Environment<'_>) -> Reloaded {
    let mut assembled = assemble::assemble(sources, environment, Some(old));
    let mut rejected = Problems::default();
    for problem in dedup(&assembled.rejected).iter() {
        if problem.level == Level::Error {
            rejected.push(problem.clone());
        }
    }
    // Errors of rejected files stay visible until the files are fixed.
    assembled.loaded.problems.extend(rejected.clone());
    assembled.loaded.problems.sort();
    assembled.loaded.problems = dedup(&assembled.loaded.problems);
    let changed = change::changes(old, &assembled.loaded);
    Reloaded {
        loaded: assembled.loaded,
        changed,
        rejected,
    }
}

/// Removes repeated problems.
fn dedup(problems: &Problems) -> Problems {
    let mut once = Problems::default();
    let mut printed: Vec<&Problem> = Vec::new();
    for problem in problems.iter() {
        if !printed.contains(&problem) {
            printed.push(problem);
            once.push(problem.clone());
        }
    }
    once
}
