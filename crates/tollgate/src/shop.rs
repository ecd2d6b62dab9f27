//! The providers at run time: who they are, whose domain it is, and how they are replaced.
//!
//! Promises: a reload replaces all providers at once; a call sees either the old or the new ones.
//! What was counted and learned stays with the provider of that name.
//!
//! Never: reads a file. Providers come in checked.

mod callers;
mod former;
mod keeping;
mod keys;
mod links;
mod live;
mod look;
mod machine;
mod meter;
mod part;
mod plan;
mod room;
mod savings;
mod seen;
mod settings;
mod setup;
mod slot;
mod spare;
mod via;
pub(crate) use callers::{Callers, Claim, account};
pub(crate) use keys::is_in;
pub use links::{Links, each_link};
pub use live::Live;
pub use look::LimitLook;
pub(crate) use machine::{Local, Machine};
pub(crate) use meter::{Meter, Price, Who, prices};
pub(crate) use plan::{Plan, mark};
pub use savings::Savings;
pub(crate) use setup::Setup;
use spare::Common;
pub(crate) use spare::{Instead, just_now};

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate_config::config::Caller;
use tollgate_config::problem::nearest;
use tollgate_config::{Draft, Provider, World};
use tollgate_core::ask::ScopeId;
use tollgate_core::domain::{DomainTable, Host};
use tollgate_core::feedback::Dialects;
use tollgate_core::health::Command;
use tollgate_core::loss::Share;
use tollgate_core::problem::Problem;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{Event, Ledger};

use crate::Error;
use crate::cache::Cache;
use crate::error::NotAllowed;
use crate::event::Fact;
use crate::path::Flights;
use crate::pool::{Dialer, Roots};
use slot::{Means, Slot};

/// The provider of every domain that no file names: no limits, no key, no memory.
pub const UNKNOWN: &str = "unknown";

/// What becomes of calls to domains that no provider has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// They run without limits.
    #[default]
    Allow,
    /// They are refused.
    Refuse,
}

/// How a shop works.
#[derive(Clone, Debug)]
pub struct Options {
    /// What becomes of calls to domains that no provider has.
    pub unknown: Unknown,
    /// URLs may lead to private addresses even where no file names them.
    pub private: bool,
    /// Whose certificates are believed.
    pub roots: Roots,
    /// How many share the limits. Each has this part of them if its ledger is its own, and under
    /// `on_store_loss: local-share`.
    pub nodes: u32,
    /// Within this time all of them have noticed that the store is lost, or is back.
    pub node_lease: Span,
    /// Every provider begins asleep, until somebody says `resume` (A5).
    pub offline: bool,
    /// Where answers are kept.
    pub cache: Cache,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            unknown: Unknown::default(),
            private: false,
            roots: Roots::default(),
            nodes: 1,
            node_lease: Span::from_secs(5),
            offline: false,
            cache: Cache::default(),
        }
    }
}

/// Why providers cannot be obeyed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Two providers have one name.
    #[error("there are two providers with the name `{0}`; give one of them another `name:`")]
    Twice(String),
    /// Two providers have one domain.
    #[error("`{first}` and `{second}` both have the domain `{domain}`; leave it to one of them")]
    Domain {
        /// The domain.
        domain: String,
        /// Who has it.
        first: String,
        /// Who wants it too.
        second: String,
    },
    /// Settings that the machines refuse.
    #[error("`{provider}`: {}", list(.problems))]
    Settings {
        /// Whose.
        provider: String,
        /// All of them.
        problems: Vec<Problem>,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
}

/// All providers. Clones share them.
#[derive(Clone, Debug)]
pub struct Shop {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    means: Means,
    private: bool,
    /// Calls to domains that no provider has are refused.
    refuses_unknown: AtomicBool,
    shelf: ArcSwap<Shelf>,
    /// One reload at a time; calls do not wait for it.
    replacing: Mutex<()>,
    unknown: Arc<Live>,
    /// When the store was lost, if that was told and is still so.
    lost_at: Mutex<Option<Micros>>,
    flights: Flights,
    cache: Cache,
}

#[derive(Debug, Default)]
struct Shelf {
    names: HashMap<String, Arc<Slot>>,
    domains: DomainTable<Arc<Slot>>,
    scopes: HashMap<ScopeId, Arc<Slot>>,
}

impl Shelf {
    /// The nearest name that exists, if one is near.
    fn nearest(&self, wrong: &str) -> Option<String> {
        let mut names: Vec<&str> = self.names.keys().map(String::as_str).collect();
        names.sort_unstable();
        nearest(wrong, &names).map(str::to_owned)
    }
}

impl Shop {
    /// Opens a shop with these providers. Must be called inside a tokio runtime.
    pub fn build(
        providers: Vec<Provider>,
        ledger: Ledger,
        options: Options,
    ) -> Result<Shop, BuildError> {
        let Options {
            unknown: of_unknown,
            private,
            roots,
            nodes,
            node_lease: lease,
            offline,
            cache,
        } = options;
        let means = Means {
            dialer: Arc::new(Dialer::new(&roots)?),
            dialects: Dialects::built_in(),
            offline,
            common: Common {
                share: Share { nodes, lease },
                uncounted: Arc::default(),
            },
            callers: ArcSwap::default(),
            via: via::Via::default(),
            ledger,
        };
        let unknown = means
            .start(nobody())
            .map_err(|problems| settings_refused(UNKNOWN, problems))?;
        if means.offline {
            unknown.order(Command::Offline);
        }
        let mut events = means.ledger.events();
        let shop = Shop {
            shared: Arc::new(Shared {
                means,
                private,
                refuses_unknown: AtomicBool::new(of_unknown == Unknown::Refuse),
                shelf: ArcSwap::default(),
                replacing: Mutex::new(()),
                unknown: Arc::new(unknown),
                lost_at: Mutex::default(),
                flights: Flights::default(),
                cache,
            }),
        };
        shop.replace(providers)?;
        shop.shared.look_at_store();
        let shared = Arc::downgrade(&shop.shared);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if !hear(&shared, &event) {
                    return;
                }
            }
        });
        Ok(shop)
    }

    /// Other providers from now on, all at once. On an error nothing changes.
    pub fn replace(&self, providers: Vec<Provider>) -> Result<(), BuildError> {
        let Shared { means, shelf, .. } = &*self.shared;
        let _one_at_a_time = self.shared.replacing.lock();
        let old = shelf.load();
        let mut new = Shelf::default();
        let mut followers = Vec::new();
        for provider in providers {
            let name = provider.name.clone();
            let domains = provider.domains.clone();
            let refused = |problems| settings_refused(&name, problems);
            let slot = match old.names.get(&name) {
                Some(slot) => {
                    let problems = provider.health.check();
                    if !problems.is_empty() {
                        return Err(refused(problems));
                    }
                    followers.push((slot.clone(), provider));
                    slot.clone()
                }
                None => Arc::new(Slot::new(provider).map_err(refused)?),
            };
            for domain in &domains {
                if let Err(first) = new.domains.insert(domain, slot.clone()) {
                    return Err(BuildError::Domain {
                        domain: domain.host().to_string(),
                        first: first.name.clone(),
                        second: name,
                    });
                }
            }
            new.scopes.insert(slot.scope(), slot.clone());
            if new.names.insert(name.clone(), slot).is_some() {
                return Err(BuildError::Twice(name));
            }
        }
        for (slot, provider) in followers {
            let name = slot.name.clone();
            slot.follow(provider, means)
                .map_err(|problems| settings_refused(&name, problems))?;
        }
        let providers = new.names.len();
        shelf.store(Arc::new(new));
        Fact::Reloaded { providers }.tell();
        Ok(())
    }

    /// Other callers from now on: what they are promised and allowed at every provider.
    pub fn know(&self, callers: &[Caller]) {
        let new = Arc::new(Callers::new(callers));
        let former = self.shared.means.callers.swap(new.clone());
        for live in self.started() {
            new.tell(&live, &former);
        }
    }

    pub(crate) fn callers(&self) -> Arc<Callers> {
        self.shared.means.callers.load_full()
    }

    /// What becomes of calls to domains that no provider has, from now on.
    pub fn set_unknown(&self, unknown: Unknown) {
        let refuses = unknown == Unknown::Refuse;
        self.shared
            .refuses_unknown
            .store(refuses, Ordering::Relaxed);
    }

    /// An address of ours: a call to it would come back to us for ever.
    pub fn add_own_address(&self, address: SocketAddr) {
        self.shared.means.dialer.add_own_address(address);
    }

    /// An address that was ours once: somebody else may have it now.
    pub fn is_no_longer_ours(&self, address: SocketAddr) {
        self.shared.means.dialer.is_no_longer_ours(address);
    }

    /// The provider of this name.
    pub fn named(&self, name: &str) -> Result<Arc<Live>, Error> {
        let shelf = self.shared.shelf.load();
        let slot = shelf
            .names
            .get(name)
            .ok_or_else(|| Error::UnknownProvider {
                name: name.chars().take(64).collect(),
                nearest: shelf.nearest(name),
            })?;
        Ok(slot.live(&self.shared.means))
    }

    /// The provider that an order is for. All domains that no provider has are `unknown` together, if
    /// no provider has that name.
    pub fn ordered(&self, name: &str) -> Result<Arc<Live>, Error> {
        match self.named(name) {
            Err(_) if name == UNKNOWN => Ok(self.unknown()),
            found => found,
        }
    }

    /// Why calls are refused although nothing is wrong with them: the ledger's store is lost, and some
    /// provider with limits must not go on without it (`on_store_loss: closed`).
    #[must_use]
    pub fn why_closed(&self) -> Option<String> {
        let ledger = self.ledger();
        ledger.loss()?;
        let shelf = self.shared.shelf.load();
        let closed = shelf.names.values().any(|slot| slot.closes_on_loss());
        closed.then(|| ledger.trouble().unwrap_or_default())
    }

    /// The provider of this host; `None` = unknown, and that is allowed.
    pub(crate) fn of_host(&self, host: &Host) -> Result<Option<Arc<Live>>, Error> {
        if let Some(slot) = self.shared.shelf.load().domains.find(host) {
            return Ok(Some(slot.live(&self.shared.means)));
        }
        if self.shared.refuses_unknown.load(Ordering::Relaxed) {
            return Err(Error::NotAllowed {
                host: host.to_string(),
                why: NotAllowed::Unknown,
            });
        }
        Ok(None)
    }

    /// Is the host of a URL a domain of this provider?
    pub fn is_at(&self, name: &str, authority: &str) -> Result<bool, Error> {
        let host = Host::parse(authority)?;
        let shelf = self.shared.shelf.load();
        let found = shelf.domains.find(&host);
        Ok(found.is_some_and(|slot| slot.name == name))
    }

    /// Every provider that has been called or asked for, by name. The others are known and not yet
    /// started.
    #[must_use]
    pub fn started(&self) -> Vec<Arc<Live>> {
        let shelf = self.shared.shelf.load();
        let mut all: Vec<_> = shelf
            .names
            .values()
            .filter_map(|slot| slot.started())
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The ledger that counts.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.shared.means.ledger
    }

    /// How many calls went on uncounted because the ledger's store was lost, all providers together.
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.shared.uncounted()
    }

    /// The answers that are kept.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// What is on its way, of all providers.
    pub(crate) fn flights(&self) -> &Flights {
        &self.shared.flights
    }

    pub(crate) fn unknown(&self) -> Arc<Live> {
        self.shared.unknown.clone()
    }

    pub(crate) fn allows_private(&self) -> bool {
        self.shared.private
    }
}

/// Tells the health machines what the ledger says of their scopes. `false`: the shop is closed.
fn hear(shared: &Weak<Shared>, event: &Event) -> bool {
    let Some(shared) = shared.upgrade() else {
        return false;
    };
    let shelf = shared.shelf.load();
    match event {
        Event::Scopes(scopes) => {
            let changed = scopes.iter().filter_map(|scope| shelf.scopes.get(scope));
            let started = changed.filter_map(|slot| slot.started());
            started.for_each(|live| live.machine.scope_changed());
        }
        Event::Anything => {
            shared.look_at_store();
            let started = shelf.names.values().filter_map(|slot| slot.started());
            started.for_each(|live| live.machine.scope_changed());
        }
        Event::Lost | Event::Back => shared.look_at_store(),
        Event::Freed(_) => {}
    }
    true
}

impl Shared {
    /// Tells once that the store is lost or back, and moves those who wait.
    fn look_at_store(&self) {
        let mut lost_at = self.lost_at.lock();
        let ledger = &self.means.ledger;
        match (*lost_at, ledger.loss()) {
            (None, Some(loss)) => {
                *lost_at = Some(loss.since);
                let why = ledger.trouble().unwrap_or_default();
                Fact::StoreLost { why: &why }.tell();
                self.everybody().iter().for_each(|live| live.store_lost());
            }
            (Some(since), None) => {
                *lost_at = None;
                let away = ledger.at().since(since);
                let uncounted = self.uncounted();
                Fact::StoreBack { away, uncounted }.tell();
                self.everybody().iter().for_each(|live| live.store_back());
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// Those who have been called.
    fn everybody(&self) -> Vec<Arc<Live>> {
        let shelf = self.shelf.load();
        let started = shelf.names.values().filter_map(|slot| slot.started());
        started.chain([self.unknown.clone()]).collect()
    }

    fn uncounted(&self) -> u64 {
        self.means.common.uncounted.load(Ordering::Relaxed)
    }
}

/// Neither limits nor retries: what nobody described is passed on as it is.
fn nobody() -> Provider {
    const FILE: &str = "name: unknown\nacquire_only: true\nhealth: off\nconnections: 256\n\
                        retry: {retries: {high: 0, normal: 0, low: 0}}\n";
    let checked = Draft::read("unknown", FILE).map(|draft| draft.check(&World::empty()));
    let provider = checked.ok().and_then(|checked| checked.provider);
    provider.expect("a test builds a shop from it")
}

fn settings_refused(provider: &str, problems: Vec<Problem>) -> BuildError {
    BuildError::Settings {
        provider: provider.to_owned(),
        problems,
    }
}

fn list(problems: &[Problem]) -> String {
    let each: Vec<String> = problems.iter().map(ToString::to_string).collect();
    each.join("; ")
}
