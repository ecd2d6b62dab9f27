//! Every setting and who set it, and every problem with its place: `GET /v1/config`.
//!
//! Promises: each value says its origin: `default`, `preset NAME`, `FILE:LINE:COLUMN`, `environment NAME`, a flag,
//! or `set`. Problems come first, errors before warnings.
//!
//! Never: shows a key: values that contain one have no text.

use serde::Serialize;
use tollgate::Error;
use tollgate::providers::{ActiveProvider, PartStatus};
use tollgate_config::{Level, Problem};

use super::Daemon;
use super::view::{Limit, Setting, StoreState, limits, setting};
use crate::gateway::ListenerKind;
use crate::json::epoch;

/// The whole configuration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ConfigView {
    problems: Vec<ProblemView>,
    /// Problems of the process that have no place in a file.
    notes: Vec<String>,
    store: StoreState,
    gateway: Option<String>,
    nodes: u32,
    /// When this process began to count, in seconds.
    started: f64,
    /// Of tollgate.yaml.
    settings: Vec<Setting>,
    providers: Vec<ProviderSettings>,
}

#[derive(Clone, Debug, Serialize)]
struct ProviderSettings {
    name: String,
    source: String,
    settings: Vec<Setting>,
    /// The limits that were learned from its responses.
    learned: Vec<LearnedLimit>,
}

/// A learned limit, and the entity that it is for.
#[derive(Clone, Debug, Serialize)]
struct LearnedLimit {
    entity: Option<String>,
    #[serde(flatten)]
    limit: Limit,
}

/// A problem of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ProblemView {
    level: &'static str,
    provider: Option<String>,
    /// `FILE:LINE:COLUMN`.
    place: String,
    path: String,
    message: String,
    hint: String,
}

impl Daemon {
    /// The whole configuration: providers with a file, and built-in ones that were called.
    pub(crate) async fn config_view(&self) -> ConfigView {
        let mut view = self.settings_view();
        for active in self.shared.registry.started() {
            let mut shown = view.providers.iter_mut();
            if let Some(provider) = shown.find(|one| one.name == active.name()) {
                provider.learned = learned(&active).await;
            }
        }
        view
    }

    fn settings_view(&self) -> ConfigView {
        let state = self.snapshot();
        let loaded = &state.loaded;
        let own = loaded.config.providers.len();
        let started = self.shared.registry.started();
        let is_shown = |index: usize, name: &str| {
            index < own || started.iter().any(|active| active.name() == name)
        };
        let shown = loaded.providers.iter().enumerate();
        let shown = shown.filter(|(index, one)| is_shown(*index, &one.provider.name));
        let mut problems: Vec<ProblemView> = Vec::new();
        let mut add = |problem: &Problem, provider: Option<&str>| {
            let view = problem_view(problem, provider);
            let is_same = |known: &ProblemView| {
                (&known.place, &known.path, &known.message)
                    == (&view.place, &view.path, &view.message)
            };
            if !problems.iter().any(is_same) {
                problems.push(view);
            }
        };
        let mut providers = Vec::new();
        for (_, one) in shown {
            let name = one.provider.name.as_str();
            one.problems
                .iter()
                .for_each(|problem| add(problem, Some(name)));
            providers.push(ProviderSettings {
                name: name.to_owned(),
                source: one.source.clone(),
                settings: one.values.iter().map(setting).collect(),
                learned: Vec::new(),
            });
        }
        loaded
            .problems
            .iter()
            .for_each(|problem| add(problem, None));
        problems.sort_by_key(|problem| match problem.level {
            "error" => 0,
            "warning" => 1,
            _ => 2,
        });
        let listen_errors = state
            .listen_errors
            .iter()
            .map(|error| error.message.clone());
        ConfigView {
            problems,
            notes: state
                .build_error
                .iter()
                .cloned()
                .chain(listen_errors)
                .collect(),
            store: self.store_state(),
            gateway: self.gateway_address(),
            nodes: loaded.config.nodes,
            started: epoch(self.shared.started),
            settings: loaded.values.iter().map(setting).collect(),
            providers,
        }
    }

    /// Whether there is such a provider, called or not.
    pub(crate) fn knows(&self, name: &str) -> Result<(), Error> {
        match self.snapshot().loaded.provider(name) {
            Some(_) => Ok(()),
            None => self.shared.registry.named_or_unknown(name).map(drop),
        }
    }

    /// Where the gateway can be called from this machine.
    pub(crate) fn gateway_address(&self) -> Option<String> {
        let listeners = self.shared.listeners.get()?;
        let addresses = listeners.addresses().into_iter();
        let mut all = addresses.filter(|one| one.kind == ListenerKind::All);
        all.next().map(|one| one.address.to_string())
    }
}

fn problem_view(problem: &Problem, provider: Option<&str>) -> ProblemView {
    ProblemView {
        level: match problem.level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "note",
        },
        provider: provider.map(str::to_owned),
        place: problem.place.to_string(),
        path: problem.path.clone(),
        message: problem.what.clone(),
        hint: problem.remedy.clone(),
    }
}

/// The limits that a provider has learned, of calls without an entity and of each entity.
async fn learned(active: &ActiveProvider) -> Vec<LearnedLimit> {
    let entities = active.entities();
    let names = || std::iter::once(None).chain(entities.iter().map(|name| Some(name.as_str())));
    let asked: Vec<Option<&str>> = names().collect();
    let (parts, _) = active.parts_and_429s(&asked).await;
    let now = active.now();
    let of_part = |(entity, part): (Option<&str>, PartStatus)| {
        let limits = limits(part.limits, now).into_iter();
        let learned = limits.filter(Limit::is_learned);
        let entity = entity.map(str::to_owned);
        learned
            .map(move |limit| LearnedLimit {
                entity: entity.clone(),
                limit,
            })
            .collect::<Vec<_>>()
    };
    names().zip(parts).flat_map(of_part).collect()
}
