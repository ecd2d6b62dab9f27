//! The current configuration, and how a new one replaces it while calls continue.
//!
//! Promises: each file or provider changes as a whole or not at all. An invalid version is
//! rejected, logged and shown until it is fixed, and the old one stays. Usage and learned state
//! stay. A setting made at run time wins over flag, environment and file until the process ends.
//!
//! Never: serves a socket, or knows who sent a request. The gateway's listeners open and close the
//! addresses of providers within the same change.

mod budgets;
mod desk_work;
mod list;
mod live;
mod open_alerts;
mod settings;
mod view;
mod warnings;
pub(crate) use budgets::budgets;
pub use list::ProviderSummary;
pub(crate) use live::LiveProvider;
pub(crate) use open_alerts::OpenAlert;
pub(crate) use view::Limit;
pub use view::ProviderDetails;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tollgate::event::{self, Event};
use tollgate::providers::{ActiveProvider, BuildError, Unknown};
use tollgate::{Error, ProviderRegistry};
use tollgate_config::config::UnknownDomain;
use tollgate_config::load::Change;
use tollgate_config::overlay::canonical_key;
use tollgate_config::{
    Config, Environment, Level, Loaded, Origin, Place, Problem, Problems, ProviderSetting, Sources,
};
use tollgate_config::{Reloaded, reload};
use tollgate_core::health::Command;
use tollgate_core::time::Wall;
use tollgate_ledger::lock_order::{RankedMutex, rank};

use crate::decision_log::DecisionLog;
use crate::decisions::Decisions;
use crate::desk::{Desk, DeskError};
use crate::gateway::{ListenError, Listeners};
use crate::guards::UncountableGuard;

/// The most settings per request and per process: a provider has some sixty, and nobody tunes a
/// thousand by hand.
pub const SETTINGS_MAX: usize = 1_000;

/// The current configuration. Clones share it.
#[derive(Clone, Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    registry: ProviderRegistry,
    decisions: Decisions,
    /// The last calls.
    decision_log: DecisionLog,
    /// Counts in memory begin here.
    started: Wall,
    /// Opened by the first request that needs it.
    desk: RankedMutex<{ rank::DESK }, Option<Arc<Desk>>>,
    /// Files and variables of this machine.
    world: fn() -> Environment<'static>,
    /// Serialises changes. Held while files are read, so only lock it where blocking is allowed.
    changing: RankedMutex<{ rank::DAEMON_CHANGE }, ()>,
    /// Held briefly.
    state: RankedMutex<{ rank::DAEMON_STATE }, DaemonState>,
    /// The gateway's listeners, once set.
    listeners: OnceLock<Listeners>,
    /// Held briefly, and no other lock within.
    open_alerts: Mutex<Arc<[OpenAlert]>>,
}

#[derive(Clone, Debug)]
struct DaemonState {
    sources: Sources,
    loaded: Arc<Loaded>,
    /// Why the last valid configuration could not be built.
    build_error: Option<String>,
    /// Addresses of providers that could not be opened.
    listen_errors: Vec<ListenError>,
}

/// The result of a change.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What changed.
    pub changed: Vec<Change>,
    /// What was rejected; its old version stays.
    pub rejected: Vec<String>,
    /// Warnings about what was applied.
    pub warnings: Vec<String>,
}

/// Why no setting was changed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// No such provider.
    #[error(transparent)]
    Provider(#[from] Error),
    /// The settings are invalid.
    #[error("nothing was changed")]
    Rejected(Vec<String>),
    /// More than [`SETTINGS_MAX`].
    #[error("more than {SETTINGS_MAX} settings; nothing was changed")]
    TooMany,
}

/// Why a checked configuration cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Guards(#[from] UncountableGuard),
    #[error(transparent)]
    Providers(#[from] BuildError),
}

impl Daemon {
    /// The configuration that this registry was built from.
    #[must_use]
    pub fn new(
        registry: ProviderRegistry,
        sources: Sources,
        loaded: Loaded,
        world: fn() -> Environment<'static>,
    ) -> Daemon {
        let decisions = Decisions::new(registry.clone(), &loaded.config);
        registry.events().log_calls(loaded.config.log.access);
        let state = DaemonState {
            sources,
            loaded: Arc::new(loaded),
            build_error: None,
            listen_errors: Vec::new(),
        };
        Daemon {
            shared: Arc::new(Shared {
                decision_log: DecisionLog::new(registry.events()),
                started: registry.ledger().wall(),
                registry,
                decisions,
                desk: RankedMutex::new(None),
                world,
                changing: RankedMutex::new(()),
                state: RankedMutex::new(state),
                listeners: OnceLock::new(),
                open_alerts: Mutex::new(Arc::default()),
            }),
        }
    }

    /// From now on these listeners follow the `listen` addresses of the providers.
    pub fn set_listeners(&self, listeners: Listeners) {
        // A daemon has one gateway; the first one stays.
        let _known = self.shared.listeners.set(listeners);
    }

    /// The gateway shuts down: it finishes running calls and accepts no more.
    pub(crate) fn is_draining(&self) -> bool {
        let listeners = self.shared.listeners.get();
        listeners.is_some_and(Listeners::is_draining)
    }

    /// The providers.
    #[must_use]
    pub fn registry(&self) -> &ProviderRegistry {
        &self.shared.registry
    }

    /// The decision service.
    #[must_use]
    pub fn decisions(&self) -> &Decisions {
        &self.shared.decisions
    }

    /// The last calls, and why.
    pub(crate) fn decision_log(&self) -> &DecisionLog {
        &self.shared.decision_log
    }

    /// The desk, in the state folder. Blocks on its file, so do not call it from an async task.
    pub fn desk(&self) -> Result<Arc<Desk>, DeskError> {
        let mut desk = self.shared.desk.lock();
        if let Some(desk) = &*desk {
            return Ok(desk.clone());
        }
        let opened = Arc::new(Desk::open(Path::new(&self.config().state_dir))?);
        *desk = Some(opened.clone());
        Ok(opened)
    }

    /// The desk, if it is open.
    pub(crate) fn open_desk(&self) -> Option<Arc<Desk>> {
        self.shared.desk.lock().clone()
    }

    /// Is the desk open?
    pub(crate) fn has_desk(&self) -> bool {
        self.open_desk().is_some()
    }

    /// Uses this desk instead of the one in the state folder.
    pub fn set_desk(&self, desk: Desk) {
        *self.shared.desk.lock() = Some(Arc::new(desk));
    }

    /// The current configuration, shared.
    pub(crate) fn loaded(&self) -> Arc<Loaded> {
        self.shared.state.lock().loaded.clone()
    }

    /// The current configuration.
    #[must_use]
    pub fn config(&self) -> Config {
        self.shared.state.lock().loaded.config.clone()
    }

    /// Files and folders whose change should cause a reload.
    #[must_use]
    pub fn watched(&self) -> Vec<String> {
        self.shared.state.lock().loaded.watched.clone()
    }

    /// Reads every file and variable again. Blocks on files, so do not call it from an async task.
    #[must_use]
    pub fn reload(&self) -> Outcome {
        let _deferred = event::defer_events();
        let _one_at_a_time = self.shared.changing.lock();
        let mut state = self.snapshot();
        let reloaded = reload(&state.loaded, &state.sources, &(self.shared.world)());
        let outcome = self.apply(&mut state, reloaded);
        *self.shared.state.lock() = state;
        outcome
    }

    /// Changes settings of one provider: all of them or none. `None` removes a setting.
    pub fn set(
        &self,
        provider: &str,
        settings: &[(String, Option<String>)],
    ) -> Result<Outcome, SetError> {
        let active = self.shared.registry.named(provider)?;
        let _deferred = event::defer_events();
        let _one_at_a_time = self.shared.changing.lock();
        let mut state = self.snapshot();
        let mut sources = state.sources.clone();
        let mut keys = Vec::new();
        for (key, value) in settings {
            let wanted = canonical_key(key)
                .map_err(|problem| SetError::Rejected(vec![problem.to_string()]))?;
            if let Some(problem) = not_at_run_time(&wanted) {
                return Err(SetError::Rejected(vec![problem]));
            }
            keys.push(wanted.clone());
            let same = |set: &ProviderSetting| {
                let is_it = |set: &str| canonical_key(set).is_ok_and(|set| set == wanted);
                set.provider == provider && is_it(&set.key)
            };
            sources.patched.retain(|set| !same(set));
            sources
                .patched
                .extend(value.as_ref().map(|value| ProviderSetting {
                    provider: provider.to_owned(),
                    key: key.clone(),
                    value: value.clone(),
                }));
        }
        if settings.len() > SETTINGS_MAX || sources.patched.len() > SETTINGS_MAX {
            return Err(SetError::TooMany);
        }
        let world = (self.shared.world)();
        let before = reload(&state.loaded, &state.sources, &world);
        let after = reload(&before.loaded, &sources, &world);
        let mut problems = new_problems(provider, &before, &after);
        problems.extend(self.listen_problems(provider, &state, &after.loaded.config));
        if !problems.is_empty() {
            return Err(SetError::Rejected(problems));
        }
        let loosened = loosened(provider, &before.loaded, &after.loaded);
        let events = self.shared.registry.events();
        events.emit(Event::OperatorCommand {
            provider: active.name().into(),
            command: "set",
            settings: Some(keys.join(",").into()),
        });
        let mut changed = before.changed;
        changed.extend(after.changed.clone());
        let outcome = self.apply(&mut state, Reloaded { changed, ..after });
        loosened.into_iter().for_each(|fact| events.emit(fact));
        state.sources = sources;
        *self.shared.state.lock() = state;
        Ok(outcome)
    }

    /// Why the newly set address of a provider cannot be opened.
    fn listen_problems(&self, provider: &str, state: &DaemonState, config: &Config) -> Vec<String> {
        let listen = |config: &Config| config.provider(provider).and_then(|one| one.listen);
        let listeners = self.shared.listeners.get();
        let listeners = listeners.filter(|_| listen(&state.loaded.config) != listen(config));
        let ready = listeners.map(|listeners| listeners.prepare(addresses(config)));
        let errors = ready.into_iter().flat_map(|ready| ready.problems);
        errors
            .filter(|error| error.provider == provider)
            .map(|error| error.message)
            .collect()
    }

    /// Before a command: waits until the provider's state is loaded from the ledger, otherwise the
    /// command would apply to a provider that looks new.
    pub async fn catch_up(&self, provider: &str) -> Result<(), Error> {
        self.shared
            .registry
            .named_or_unknown(provider)?
            .sync_health()
            .await;
        Ok(())
    }

    /// Runs an operator command on a provider; `reset` and `resume` also on one entity.
    pub fn command(
        &self,
        provider: &str,
        entity: Option<&str>,
        command: Command,
    ) -> Result<Arc<ActiveProvider>, Error> {
        let active = self.shared.registry.named_or_unknown(provider)?;
        let name = match command {
            Command::Offline => "offline",
            Command::Pause { .. } => "pause",
            Command::CacheOnly { .. } => "cache-only",
            Command::Resume => "resume",
            Command::Reset => "reset",
        };
        self.shared.registry.events().emit(Event::OperatorCommand {
            provider: provider.into(),
            command: name,
            settings: None,
        });
        match entity {
            Some(entity) => active.reset_entity(entity),
            None => active.apply_command(command),
        }
        Ok(active)
    }

    /// A copy of the current state. A change holds `changing` until it has stored the new state.
    fn snapshot(&self) -> DaemonState {
        self.shared.state.lock().clone()
    }

    /// Applies a loaded configuration as far as possible.
    fn apply(&self, state: &mut DaemonState, reloaded: Reloaded) -> Outcome {
        let Reloaded {
            mut loaded,
            mut changed,
            rejected,
        } = reloaded;
        let mut rejected: Vec<String> = rejected.iter().map(ToString::to_string).collect();
        // Also if nothing has changed: an address that was in use the last time may be free now.
        let listeners = self.shared.listeners.get();
        let ready =
            listeners.map(|listeners| (listeners, listeners.prepare(addresses(&loaded.config))));
        let open_listeners = || -> Vec<ListenError> {
            let ready = ready.into_iter();
            ready
                .flat_map(|(listeners, new)| listeners.apply(new))
                .collect()
        };
        if changed.is_empty() {
            state.listen_errors = open_listeners();
        } else {
            match self.build(&loaded.config) {
                Ok(()) => {
                    state.build_error = None;
                    state.listen_errors = open_listeners();
                }
                Err(error) => {
                    let problem = error.to_string();
                    rejected.push(problem.clone());
                    state.build_error = Some(problem);
                    // The table knows these guards already.
                    self.shared.decisions.replace(&state.loaded.config).ok();
                    changed.clear();
                    loaded = (*state.loaded).clone();
                }
            }
        }
        let listen_errors = state.listen_errors.iter();
        rejected.extend(listen_errors.map(|error| error.message.clone()));
        for problem in &rejected {
            let problem = problem.as_str().into();
            self.shared
                .registry
                .events()
                .emit(Event::ReloadRejected { problem });
        }
        let is_warning = |problem: &&Problem| problem.level == Level::Warning;
        let warnings = loaded.problems.iter().filter(is_warning);
        let mut warnings: Vec<String> = warnings.map(ToString::to_string).collect();
        for provider in &loaded.providers {
            let before = state.loaded.provider(&provider.provider.name);
            let before = before.map(|before| &*before.provider);
            warnings.extend(warnings::for_change(before, &provider.provider));
        }
        state.loaded = Arc::new(loaded);
        Outcome {
            changed,
            rejected,
            warnings,
        }
    }

    fn build(&self, config: &Config) -> Result<(), Unusable> {
        let providers = config.all_providers().map(|provider| (**provider).clone());
        // Guards first: no call passes between a provider that names one and the guard itself.
        self.shared.decisions.replace(config)?;
        self.shared.registry.replace(providers.collect())?;
        self.shared.registry.set_callers(&config.callers);
        self.shared.registry.set_unknown(unknown_domains(config));
        self.shared.registry.events().log_calls(config.log.access);
        Ok(())
    }
}

/// Why a setting that chooses what a provider is cannot be changed while it runs: other settings are
/// read from it once, so the change would be shown and have no effect.
fn not_at_run_time(key: &str) -> Option<String> {
    matches!(key, "preset" | "tier" | "name").then(|| {
        format!("error: set: `{key}` cannot be changed at run time; change the provider's file")
    })
}

/// What happens to calls to domains that no provider has.
#[must_use]
pub fn unknown_domains(config: &Config) -> Unknown {
    match config.unknown_domain {
        UnknownDomain::Allow => Unknown::Allow,
        UnknownDomain::Refuse => Unknown::Refuse,
    }
}

/// The fact that a setting lets more calls through than before.
fn loosened(provider: &str, before: &Loaded, after: &Loaded) -> Option<Event> {
    let (before, after) = (before.provider(provider)?, after.provider(provider)?);
    let change = warnings::loosened(&before.provider, &after.provider)?;
    Some(Event::LimitsLoosened {
        provider: provider.into(),
        change: change.into(),
    })
}

/// The providers' own addresses, those of built-in providers included.
fn addresses(config: &Config) -> Vec<(SocketAddr, String)> {
    config
        .all_providers()
        .filter_map(|provider| Some((provider.listen?, provider.name.clone())))
        .collect()
}

/// The problems that a change introduces: settings that are rejected or have no effect, and errors
/// of the provider.
fn new_problems(provider: &str, before: &Reloaded, after: &Reloaded) -> Vec<String> {
    let is_set = |problem: &&Problem| {
        let level = problem.level != Level::Note;
        level && Origin::of(&problem.place) == Origin::Set
    };
    let is_error = |problem: &&Problem| problem.level == Level::Error;
    let empty = Problems::default();
    let of = |reloaded: &Reloaded| -> Vec<String> {
        let loaded = reloaded.loaded.provider(provider);
        let own = loaded.map_or(&empty, |loaded| &loaded.problems);
        let all = [&reloaded.rejected, &reloaded.loaded.problems];
        let set = all
            .into_iter()
            .flat_map(|problems| problems.iter().filter(is_set));
        let own = own
            .iter()
            .filter(|problem| is_set(problem) || is_error(problem));
        set.chain(own).map(ToString::to_string).collect()
    };
    let known = of(before);
    let mut problems: Vec<String> = Vec::new();
    for problem in of(after) {
        if !known.contains(&problem) && !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    // An invalid file would hide the setting.
    let is_broken = |reloaded: &Reloaded| {
        let loaded = reloaded.loaded.provider(provider);
        loaded.is_some_and(|loaded| loaded.problems.has_errors())
    };
    if problems.is_empty() && is_broken(after) {
        problems.push(format!(
            "{}: the file of `{provider}` is invalid, so settings cannot be applied to it; fix the file first",
            Place::whole("set")
        ));
    }
    problems
}
