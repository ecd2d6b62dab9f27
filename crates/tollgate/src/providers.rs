//! The providers at run time: lookup by name and by domain, and replacement on a reload.
//!
//! Promises: a reload replaces all providers at once; a call sees either the old or the new ones.
//! Counts and learned state stay with the provider of that name.
//!
//! Never: reads a file. Providers arrive checked.

mod call_counters;
mod callers;
mod limit_inheritance;
mod cache_policy;
mod links;
mod active;
mod without_file;
mod connection_limit;
mod key_status;
mod limit_status;
mod status;
mod usage_state;
mod waiting;
mod eta;
mod arrivals;
mod report;
mod degrade_watch;
mod health;
mod failing_paths;
mod call_costs;
mod limit_binding;
mod per_node;
mod policy;
mod scope_capacity;
mod response_time;
mod retry_waits;
mod savings;
mod seen_entities;
mod gate_settings;
mod config_version;
mod lazy_provider;
mod options;
mod local_share;
mod loop_detection;
pub use active::ActiveProvider;
pub(crate) use call_costs::{BodyText, call_costs};
pub(crate) use call_counters::CountedCall;
pub use call_counters::{CALLERS_MAX, CallCounts, DEFAULT_CALLER, OTHER_CALLERS, WaitCounts};
pub(crate) use callers::{Callers, Claim, caller_id};
pub(crate) use config_version::ConfigVersion;
pub use connection_limit::set_upstream_connections_max;
pub(crate) use degrade_watch::DegradeWatch;
pub use eta::{CallerQueue, QueueEstimate};
pub(crate) use health::{HealthView, ProviderHealth, ThrottleRules};
pub use key_status::KeyStatus;
pub(crate) use limit_binding::{CallAttributes, CallCost, LimitBinding};
pub use links::{Links, map_links};
use local_share::StoreLossContext;
pub(crate) use local_share::{LossDecision, loss_since_now};
pub use options::{Options, Unknown};
pub(crate) use policy::CompiledPolicy;
pub use report::{EntityMetrics, UnknownEntity, share};
pub use savings::Savings;
pub use status::{
    CooldownStatus, EstimatedLimit, LearnedFrom429s, LimitStatus, PartStatus, ProviderOverview,
};
pub use usage_state::UsageState;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use tollgate_config::Provider;
use tollgate_config::config::Caller;
use tollgate_config::problem::nearest;
use tollgate_core::ask::ScopeId;
use tollgate_core::domain::{DomainTable, Host};
use tollgate_core::feedback::Dialects;
use tollgate_core::health::Command;
use tollgate_core::problem::Problem;
use tollgate_core::store_loss::NodeShare;
use tollgate_core::time::Micros;
use tollgate_ledger::lock_order::{RankedMutex, rank};
use tollgate_ledger::{Event as LedgerEvent, Ledger};

use crate::Error;
use crate::cache::Cache;
use crate::error::NotAllowed;
use crate::event::{self, Event, Events};
use crate::flights::Flights;
use crate::pool::{Dialer, TlsError};
use lazy_provider::{LazyProvider, ProviderDeps};
use without_file::unknown_provider;

/// The provider of every domain that no file names: no limits, no key, no cache.
pub const UNKNOWN: &str = "unknown";

/// Why the registry cannot use these providers.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Two providers have one name.
    #[error("there are two providers with the name `{0}`; give one of them another `name:`")]
    DuplicateName(String),
    /// Two providers have one domain.
    #[error("`{first}` and `{second}` both have the domain `{domain}`; remove it from one")]
    DuplicateDomain {
        /// The domain.
        domain: String,
        /// The provider that has it.
        first: String,
        /// The provider that claims it too.
        second: String,
    },
    /// Settings that the health rules reject.
    #[error("`{provider}`: {}", list(.problems))]
    InvalidSettings {
        /// The provider with these settings.
        provider: String,
        /// All problems.
        problems: Vec<Problem>,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[from] TlsError),
}

/// All providers. Clones share them.
#[derive(Clone, Debug)]
pub struct ProviderRegistry {
    shared: Arc<RegistryState>,
}

#[derive(Debug)]
struct RegistryState {
    deps: ProviderDeps,
    private: bool,
    /// Tollgate rejects calls to domains that no provider has.
    rejects_unknown: AtomicBool,
    catalog: ArcSwap<Catalog>,
    /// Allows one reload at a time; calls do not wait for it.
    reload_lock: RankedMutex<{ rank::RELOAD }, ()>,
    unknown: Arc<ActiveProvider>,
    /// For calls of our own, such as alerts to webhooks; started by the first one.
    own_calls: OnceLock<Arc<ActiveProvider>>,
    /// When the store was lost, if the loss was reported and the store is still lost.
    lost_at: RankedMutex<{ rank::STORE_LOSS }, Option<Micros>>,
    flights: Flights,
    cache: Cache,
}

#[derive(Debug, Default)]
struct Catalog {
    names: HashMap<String, Arc<LazyProvider>>,
    domains: DomainTable<Arc<LazyProvider>>,
    scopes: HashMap<ScopeId, Arc<LazyProvider>>,
}

impl Catalog {
    /// The existing name nearest to a wrong one, if any is near.
    fn nearest(&self, wrong: &str) -> Option<String> {
        let mut names: Vec<&str> = self.names.keys().map(String::as_str).collect();
        names.sort_unstable();
        nearest(wrong, &names).map(str::to_owned)
    }
}

impl ProviderRegistry {
    /// Creates a registry with these providers. Must be called inside a tokio runtime.
    pub fn build(
        providers: Vec<Provider>,
        ledger: Ledger,
        options: Options,
    ) -> Result<ProviderRegistry, BuildError> {
        let Options {
            unknown: of_unknown,
            private,
            roots,
            nodes,
            has_share,
            node_lease: lease,
            offline,
            dice,
            cache,
            events,
        } = options;
        let deps = ProviderDeps {
            dialer: Arc::new(Dialer::new(&roots, events.clone())?),
            dialects: Dialects::built_in(),
            offline,
            dice,
            loss: StoreLossContext {
                share: NodeShare { nodes, lease },
                has_share,
                uncounted: Arc::default(),
            },
            callers: ArcSwap::default(),
            via: loop_detection::Via::default(),
            events,
            ledger,
        };
        deps.events.set_clock(&deps.ledger);
        let unknown = deps
            .start(unknown_provider())
            .map_err(|problems| invalid_settings(UNKNOWN, problems))?;
        if deps.offline {
            unknown.apply_command(Command::Offline);
        }
        let mut events = deps.ledger.events();
        let registry = ProviderRegistry {
            shared: Arc::new(RegistryState {
                deps,
                private,
                rejects_unknown: AtomicBool::new(of_unknown == Unknown::Refuse),
                catalog: ArcSwap::default(),
                reload_lock: RankedMutex::new(()),
                unknown: Arc::new(unknown),
                own_calls: OnceLock::new(),
                lost_at: RankedMutex::default(),
                flights: Flights::default(),
                cache,
            }),
        };
        registry.replace(providers)?;
        registry.shared.check_store();
        let shared = Arc::downgrade(&registry.shared);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if !on_ledger_event(&shared, &event) {
                    return;
                }
            }
        });
        Ok(registry)
    }

    /// Replaces all providers at once. On an error nothing changes.
    pub fn replace(&self, providers: Vec<Provider>) -> Result<(), BuildError> {
        let providers = self.replace_all(providers)?;
        self.events().emit(Event::Reloaded { providers });
        Ok(())
    }

    /// Returns how many there are now.
    fn replace_all(&self, providers: Vec<Provider>) -> Result<usize, BuildError> {
        let RegistryState { deps, catalog, .. } = &*self.shared;
        let _deferred = event::defer_events();
        let _one_at_a_time = self.shared.reload_lock.lock();
        let old = catalog.load();
        let mut new = Catalog::default();
        let mut updates = Vec::new();
        for provider in providers {
            let name = provider.name.clone();
            let domains = provider.domains.clone();
            let invalid = |problems| invalid_settings(&name, problems);
            let lazy = match old.names.get(&name) {
                Some(lazy) => {
                    let problems = provider.health.check();
                    if !problems.is_empty() {
                        return Err(invalid(problems));
                    }
                    updates.push((lazy.clone(), provider));
                    lazy.clone()
                }
                None => Arc::new(LazyProvider::new(provider).map_err(invalid)?),
            };
            for domain in &domains {
                if let Err(first) = new.domains.insert(domain, lazy.clone()) {
                    return Err(BuildError::DuplicateDomain {
                        domain: domain.host().to_string(),
                        first: first.name.clone(),
                        second: name,
                    });
                }
            }
            new.scopes.insert(lazy.scope(), lazy.clone());
            if new.names.insert(name.clone(), lazy).is_some() {
                return Err(BuildError::DuplicateName(name));
            }
        }
        for (lazy, provider) in updates {
            let name = lazy.name.clone();
            lazy.update(provider, deps)
                .map_err(|problems| invalid_settings(&name, problems))?;
        }
        // Off the path of calls, so also in release builds: a provider that no name leads to would
        // never be governed.
        let providers = new.names.len();
        assert!(
            new.scopes.len() <= providers,
            "every scope belongs to a named provider"
        );
        let metrics = deps.events.metrics();
        metrics.retain(|name| name == UNKNOWN || new.names.contains_key(name));
        catalog.store(Arc::new(new));
        Ok(providers)
    }

    /// Replaces the callers: their guaranteed and maximum shares at every provider.
    pub fn set_callers(&self, callers: &[Caller]) {
        let new = Arc::new(Callers::new(callers));
        let former = self.shared.deps.callers.swap(new.clone());
        for active in self.started() {
            new.apply_shares(&active, &former);
        }
    }

    pub(crate) fn callers(&self) -> Arc<Callers> {
        self.shared.deps.callers.load_full()
    }

    /// Sets how Tollgate treats calls to domains that no provider has.
    pub fn set_unknown(&self, unknown: Unknown) {
        let rejects = unknown == Unknown::Refuse;
        self.shared
            .rejects_unknown
            .store(rejects, Ordering::Relaxed);
    }

    /// Adds an address of this process: a call to it would loop forever.
    pub fn add_own_address(&self, address: SocketAddr) {
        self.shared.deps.dialer.add_own_address(address);
    }

    /// Removes an address that this process no longer listens on.
    pub fn remove_own_address(&self, address: SocketAddr) {
        self.shared.deps.dialer.remove_own_address(address);
    }

    /// The provider of this name.
    pub fn named(&self, name: &str) -> Result<Arc<ActiveProvider>, Error> {
        let catalog = self.shared.catalog.load();
        let lazy = catalog
            .names
            .get(name)
            .ok_or_else(|| Error::UnknownProvider {
                name: name.chars().take(64).collect(),
                nearest: catalog.nearest(name),
            })?;
        Ok(lazy.get_or_start(&self.shared.deps))
    }

    /// The provider that an operator's command names. `unknown` means all domains that no provider
    /// has, unless a provider has that name.
    pub fn named_or_unknown(&self, name: &str) -> Result<Arc<ActiveProvider>, Error> {
        match self.named(name) {
            Err(_) if name == UNKNOWN => Ok(self.unknown()),
            found => found,
        }
    }

    /// Why Tollgate rejects valid calls: the ledger's store is lost, and some provider with limits
    /// must not run without it (`on_store_loss: closed`).
    #[must_use]
    pub fn closed_reason(&self) -> Option<String> {
        let ledger = self.ledger();
        ledger.loss()?;
        let catalog = self.shared.catalog.load();
        let closed = catalog.names.values().any(|lazy| lazy.rejects_on_loss());
        closed.then(|| ledger.loss_reason().unwrap_or_default())
    }

    /// The provider of this host; `None` if the host is unknown and unknown hosts are allowed.
    pub(crate) fn find_by_host(&self, host: &Host) -> Result<Option<Arc<ActiveProvider>>, Error> {
        if let Some(lazy) = self.shared.catalog.load().domains.find(host) {
            return Ok(Some(lazy.get_or_start(&self.shared.deps)));
        }
        if self.shared.rejects_unknown.load(Ordering::Relaxed) {
            return Err(Error::NotAllowed {
                host: host.to_string(),
                why: NotAllowed::Unknown,
            });
        }
        Ok(None)
    }

    /// The provider of a URL's host.
    #[must_use]
    pub fn find_by_authority(&self, authority: &str) -> Option<Arc<ActiveProvider>> {
        let host = Host::parse(authority).ok()?;
        self.find_by_host(&host).ok().flatten()
    }

    /// Is the host of a URL a domain of this provider?
    pub fn has_host(&self, name: &str, authority: &str) -> Result<bool, Error> {
        let host = Host::parse(authority)?;
        let catalog = self.shared.catalog.load();
        let found = catalog.domains.find(&host);
        Ok(found.is_some_and(|lazy| lazy.name == name))
    }

    /// Every provider that has been called or looked up, by name. The others are not started yet.
    #[must_use]
    pub fn started(&self) -> Vec<Arc<ActiveProvider>> {
        let catalog = self.shared.catalog.load();
        let mut all: Vec<_> = catalog
            .names
            .values()
            .filter_map(|lazy| lazy.started())
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The ledger that counts.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.shared.deps.ledger
    }

    /// The number of calls of all providers that ran uncounted because the ledger's store was lost.
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.shared.uncounted()
    }

    /// The bus on which the registry emits its events.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.shared.deps.events
    }

    /// The response cache.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// The flights of all providers.
    pub(crate) fn flights(&self) -> &Flights {
        &self.shared.flights
    }

    pub(crate) fn allows_private(&self) -> bool {
        self.shared.private
    }
}

/// Passes scope changes from the ledger to each provider's health. `false`: the registry is gone.
fn on_ledger_event(shared: &Weak<RegistryState>, event: &LedgerEvent) -> bool {
    let Some(shared) = shared.upgrade() else {
        return false;
    };
    let catalog = shared.catalog.load();
    match event {
        LedgerEvent::Scopes(scopes) => {
            let changed = scopes.iter().filter_map(|scope| catalog.scopes.get(scope));
            let started = changed.filter_map(|lazy| lazy.started());
            started.for_each(|active| active.health.on_scope_changed());
            let started = catalog.names.values().filter_map(|lazy| lazy.started());
            started.for_each(|active| active.health.on_scopes_changed(scopes));
        }
        LedgerEvent::Resync => {
            shared.check_store();
            let started = catalog.names.values().filter_map(|lazy| lazy.started());
            started.for_each(|active| active.health.on_resync());
        }
        LedgerEvent::Lost | LedgerEvent::Recovered => shared.check_store(),
        &LedgerEvent::Damaged { rows } => {
            shared.deps.events.emit(Event::LedgerDamaged { rows });
        }
        &LedgerEvent::LogHeld { bytes } => {
            shared.deps.events.emit(Event::LedgerLogHeld { bytes });
        }
        LedgerEvent::NotRemembered { why } => {
            let why = why.clone();
            shared.deps.events.emit(Event::StoreNotRemembered { why });
        }
        LedgerEvent::Freed(_) => {}
    }
    true
}

impl RegistryState {
    /// Reports once that the store is lost or back, and moves waiting calls accordingly.
    fn check_store(&self) {
        let ledger = &self.deps.ledger;
        self.all_started()
            .iter()
            .for_each(|active| active.check_store());
        let mut lost_at = self.lost_at.lock();
        let (was_lost, loss) = (*lost_at, ledger.loss());
        *lost_at = match (was_lost, loss) {
            (None, Some(loss)) => Some(loss.since),
            (Some(_), None) => None,
            (None, None) | (Some(_), Some(_)) => return,
        };
        drop(lost_at);
        match was_lost {
            None => {
                let why = ledger.loss_reason().unwrap_or_default().into();
                self.deps.events.emit(Event::StoreLost { why });
            }
            Some(since) => {
                let away = ledger.at().since(since);
                let uncounted = self.uncounted();
                self.deps.events.emit(Event::StoreBack { away, uncounted });
            }
        }
    }

    /// The started providers, and the one for unknown domains.
    fn all_started(&self) -> Vec<Arc<ActiveProvider>> {
        let catalog = self.catalog.load();
        let started = catalog.names.values().filter_map(|lazy| lazy.started());
        started.chain([self.unknown.clone()]).collect()
    }

    fn uncounted(&self) -> u64 {
        self.deps.loss.uncounted.load(Ordering::Relaxed)
    }
}

fn invalid_settings(provider: &str, problems: Vec<Problem>) -> BuildError {
    BuildError::InvalidSettings {
        provider: provider.to_owned(),
        problems,
    }
}

fn list(problems: &[Problem]) -> String {
    let each: Vec<String> = problems.iter().map(ToString::to_string).collect();
    each.join("; ")
}
