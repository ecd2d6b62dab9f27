//! Guards at run time: the configured limits on callers, above one table of keys.
//!
//! Promises: all guards of a decision agree, or none is charged (C11). A guard in shadow is counted
//! and never rejects. A new configuration resets no key. Memory is bounded by [`KEYS_MAX`] keys:
//! beyond it new keys share one strict bucket per guard, and full buckets are evicted as decisions
//! are made. Limits that clients bring along have a table of their own, so that they cannot crowd out guards.
//! With `guard_store: redis://…` buckets are in Redis (`shared.rs`); the table has the part of this node then, for
//! the time without Redis.
//!
//! Never: uses the ledger's store. Callers' names are held only where a guard denied them, for metrics, and
//! few of them (`tally.rs`).

mod bucket_key;
mod class;
mod client_ip;
mod deciding;
mod denials;
mod denied;
mod descriptor;
mod identifier;
mod overrides;
mod request;
#[cfg(feature = "redis")]
mod shared;
#[cfg(not(feature = "redis"))]
#[path = "guards/not_shared.rs"]
mod shared;
#[cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "no bucket is in Redis in such a build")
)]
mod shared_bucket;
#[cfg(feature = "redis")]
mod shared_deciding;
mod tally;
mod throttle;
mod waiting;
pub use class::{GuardClass, GuardStatus};
pub use client_ip::client_ip;
pub use descriptor::{Descriptor, LimitOverride};
pub use request::GuardedRequest;
pub use tally::{GuardCounts, GuardMetrics};
pub use throttle::{Throttle, ThrottleError, ThrottleLimit, Throttled};

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::event::{Event, Events};
use parking_lot::RwLock;
use smallvec::{SmallVec, smallvec};
use tokio::sync::watch;
use tollgate_config::Config;
use tollgate_config::config::{Guard, Limiting, Network, Task};
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_guard::{ASKS_MAX, Ask, GuardTable, KeyView, PlanError, Seed, Tick};
use tollgate_ledger::Ledger;

use bucket_key::BucketKey;
use denials::Denials;
use descriptor::{DescriptorIndex, framed};
use identifier::Identifier;
use overrides::Overrides;

/// The most keys: at 96 bytes each 100 MB. Ten requests a minute of a million callers are 170,000
/// requests per second, more than one process serves.
pub const KEYS_MAX: usize = 1 << 20;

/// After this many decisions a part of the table is swept.
const SWEEP_EVERY: u64 = 256;

/// How much of it: four slots for each decision, which adds one key at most, so that the sweep is
/// faster than any flood of new keys.
const SWEEP_SLOTS: usize = 1_024;

/// Guards and their keys.
#[derive(Debug)]
pub struct Guards {
    /// Made for the first guard.
    table: OnceLock<GuardTable>,
    /// Where guards count, if it is not the table.
    shared: Option<Arc<shared::SharedGuards>>,
    /// Limits that descriptors bring along: in a table of their own.
    overrides: Overrides,
    rules: RwLock<Arc<GuardRules>>,
    /// There is a guard, a provider that names one, or a trusted proxy: only then do calls pay.
    is_active: AtomicBool,
    /// Set at run time; it wins over the configuration.
    limiting: RwLock<Option<Limiting>>,
    /// Those who wait decide again when the rules or `limiting` change.
    changed: watch::Sender<()>,
    decisions: AtomicU64,
    /// Its clock is the guards' clock.
    ledger: Ledger,
    /// Hears of denials.
    events: Events,
    denials: Denials,
}

/// What the configuration says about guards.
#[derive(Debug, Default)]
struct GuardRules {
    classes: Vec<Arc<GuardClass>>,
    by_descriptor: DescriptorIndex,
    limiting: Limiting,
    exempt_paths: Vec<String>,
    trusted_proxies: Vec<Network>,
}

/// Tokens of one guard for one key.
#[derive(Clone, Debug)]
pub struct GuardAsk {
    class: Arc<GuardClass>,
    key: BucketKey,
    /// For whom, in metrics.
    identifier: Identifier,
    /// 0 only asks whether a token is left, a negative number puts tokens back.
    cost: i64,
}

/// What guards have decided.
#[derive(Clone, Debug, Default)]
pub struct GuardVerdict {
    /// Why not.
    pub denied: Option<GuardDenied>,
    /// The state of each guard that was asked, in the order of the asks.
    pub views: Vec<GuardView>,
    /// How long it waited for tokens.
    pub waited: Span,
    /// It had to wait for tokens.
    pub was_queued: bool,
}

/// The guard that rejected.
#[derive(Clone, Debug)]
pub struct GuardDenied {
    /// Which.
    pub class: Arc<GuardClass>,
    /// Which of the asks; its view has the same place.
    pub at: usize,
    /// When the same ask would be granted; `None` = it costs more than the guard ever grants.
    pub retry_in: Option<Span>,
    /// Not for want of tokens: the store of guards is lost, and the guard is closed meanwhile.
    pub is_store_lost: bool,
    /// Its id among the last decisions; `None` = it is not kept there.
    pub id: Option<Arc<str>>,
}

/// One guard after a decision.
#[derive(Clone, Debug)]
pub struct GuardView {
    /// Which.
    pub class: Arc<GuardClass>,
    /// Whole tokens that remain.
    pub remaining: u64,
    /// How long until its bucket is full.
    pub full_in: Span,
    /// It had no tokens, and let the request pass because it is in shadow.
    pub would_deny: bool,
}

/// Why a guard cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// No such guard.
    #[error("there is no guard `{name}`")]
    Unknown {
        /// The name as it was sent: at most 64 characters of it, without control characters.
        name: String,
        /// The nearest name that exists.
        nearest: Option<String>,
    },
    /// The guard counts by something, and the ask does not say for whom.
    #[error("the guard `{0}` needs an `identifier`, such as an address, a user or a queue")]
    NoIdentifier(String),
    /// More guards than can be decided as one.
    #[error("{0} guards in one decision; at most {ASKS_MAX} can be decided as one")]
    TooMany(usize),
    /// The limit of a descriptor cannot be counted.
    #[error("the limit of a descriptor cannot be counted: {0}")]
    Limit(#[from] PlanError),
}

/// A guard that the table cannot count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guard `{guard}` cannot be counted: {reason}; if the file is right, restart Tollgate")]
pub struct UncountableGuard {
    /// Which.
    pub guard: String,
    /// Why not.
    pub reason: PlanError,
}

impl Guards {
    /// The guards of a configuration. The clock is the ledger's; `events` hear of denials.
    #[must_use]
    pub fn new(ledger: Ledger, events: Events, config: &Config) -> Guards {
        let guards = Guards {
            table: OnceLock::new(),
            shared: shared::SharedGuards::of(config, &ledger, &events).map(Arc::new),
            overrides: Overrides::default(),
            rules: RwLock::default(),
            is_active: AtomicBool::new(false),
            limiting: RwLock::default(),
            changed: watch::Sender::default(),
            decisions: AtomicU64::new(0),
            denials: Denials::new(ledger.wall()),
            ledger,
            events,
        };
        // A checked configuration always fits into a new table; if it does not, the log says so.
        if let Err(error) = guards.replace(config) {
            let problem = error.to_string().into();
            guards.events.emit(Event::ReloadRejected { problem });
        }
        guards
    }

    /// A new configuration: keys keep their tokens. If one of its guards cannot be counted, all former
    /// rules stay.
    pub fn replace(&self, config: &Config) -> Result<(), UncountableGuard> {
        let former = self.rules();
        let class = |guard: &Guard| {
            let mut known = former.classes.iter();
            let known = known.find(|known| known.name() == guard.name);
            let tally = known.map(|known| known.tally()).unwrap_or_default();
            GuardClass::new(guard, self.table(), self.nodes(), tally).map(Arc::new)
        };
        let classes = config.guards.iter().map(class);
        let classes = classes.collect::<Result<Vec<_>, _>>()?;
        let rules = GuardRules {
            by_descriptor: DescriptorIndex::new(&classes),
            classes,
            limiting: config.limiting,
            exempt_paths: config.exempt_paths.clone(),
            trusted_proxies: config.trusted_proxies.clone(),
        };
        // A provider may still name a guard that is gone: its calls must be rejected, not let through.
        let is_named = config.all_providers().any(|one| !one.guards.is_empty());
        let is_active = is_named || !rules.classes.is_empty() || !rules.trusted_proxies.is_empty();
        *self.rules.write() = Arc::new(rules);
        self.is_active.store(is_active, Ordering::Release);
        self.changed.send_replace(());
        Ok(())
    }

    /// Whether there is any guard, provider that names one, or trusted proxy.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Whether guards reject.
    #[must_use]
    pub fn limiting(&self) -> Limiting {
        let set = *self.limiting.read();
        set.unwrap_or_else(|| self.rules().limiting)
    }

    /// From now on, until the process ends; `None` = as configured.
    pub fn set_limiting(&self, limiting: Option<Limiting>) {
        *self.limiting.write() = limiting;
        self.changed.send_replace(());
    }

    /// Tokens of the guard of this name. `identifier` says for whom; a global guard needs none.
    pub fn ask(
        &self,
        name: &str,
        identifier: Option<&str>,
        cost: u64,
    ) -> Result<GuardAsk, GuardError> {
        let class = self.class(name)?;
        let key = class.key_of(identifier);
        let key = key.ok_or_else(|| GuardError::NoIdentifier(name.to_owned()))?;
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        let identifier = identifier.filter(|_| !class.is_global());
        let identifier = identifier.map(|text| Identifier::of_text(text.as_bytes()));
        Ok(GuardAsk {
            class,
            key,
            identifier: identifier.unwrap_or_default(),
            cost,
        })
    }

    /// The asks that a descriptor makes; none if no guard applies to it.
    pub fn asks_of_descriptor(
        &self,
        descriptor: &Descriptor<'_>,
    ) -> Result<SmallVec<[GuardAsk; 2]>, GuardError> {
        let matching = self.rules().by_descriptor.matching(descriptor.entries);
        let cost = descriptor.cost;
        let Some(limit) = descriptor.limit else {
            let asks = matching.into_iter();
            let identifier = descriptor_identifier(descriptor);
            let asks = asks.map(|(class, key)| GuardAsk {
                class,
                key,
                identifier,
                cost,
            });
            return Ok(asks.collect());
        };
        let name = matching
            .first()
            .map_or("descriptor", |(class, _)| class.name());
        let class = self.overrides.class(name, limit, self.nodes())?;
        let entries = descriptor.entries.iter();
        let texts = entries.flat_map(|(key, value)| [*key, *value]);
        let key = class.key_of_bytes(&framed(texts));
        let cost = if limit.limit == 0 { i64::MAX } else { cost };
        let class = Arc::new(class);
        let identifier = descriptor_identifier(descriptor);
        Ok(smallvec![GuardAsk {
            class,
            key,
            identifier,
            cost
        }])
    }

    /// The tokens of one key, without taking any (C2). While the store of guards is lost, those of this node.
    pub async fn status(
        &self,
        name: &str,
        identifier: Option<&str>,
    ) -> Result<GuardStatus, GuardError> {
        let ask = self.ask(name, identifier, 0)?;
        match &self.shared {
            None => Ok(self.local_status(&ask)),
            Some(shared) => Ok(self.shared_status(shared, &ask).await),
        }
    }

    fn local_status(&self, ask: &GuardAsk) -> GuardStatus {
        let table = self.table_of(ask);
        let view = table.peek(ask.key.local, ask.class.plan(), self.now());
        ask.class.status(&view, self.wall())
    }

    /// Why the store of guards is lost, if they have one and it is.
    #[must_use]
    pub fn store_loss(&self) -> Option<Arc<str>> {
        self.shared.as_ref()?.loss_reason()
    }

    /// Requests that went on uncounted because the store of guards was lost (`on_store_loss: open`).
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.uncounted())
    }

    /// How many nodes share guards through Redis, if they do.
    fn nodes(&self) -> Option<u32> {
        self.shared.as_ref().map(|shared| shared.nodes())
    }

    /// Every guard, with what it has denied since the start.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<GuardClass>> {
        self.rules().classes.clone()
    }

    /// The asks that a request makes: those of its guards that apply to it.
    pub fn asks_of(&self, request: &GuardedRequest<'_>) -> Result<Vec<GuardAsk>, GuardError> {
        let rules = self.rules();
        if rules.exempts(request) {
            return Ok(Vec::new());
        }
        let classes: Vec<Arc<GuardClass>> = match request.guards {
            Some(names) => {
                let each = names.iter().map(|name| self.class(name));
                each.collect::<Result<_, _>>()?
            }
            None => rules.classes.clone(),
        };
        let asks = classes.into_iter().filter_map(|class| {
            let key = class.key_in(request)?;
            let identifier = class.identifier_in(request);
            Some(GuardAsk {
                class,
                key,
                identifier,
                cost: 1,
            })
        });
        Ok(asks.collect())
    }

    /// The address of the caller behind trusted proxies.
    #[must_use]
    pub fn client_ip(&self, peer: IpAddr, headers: &http::HeaderMap) -> IpAddr {
        client_ip(peer, headers, &self.rules().trusted_proxies)
    }

    /// Keys held now.
    #[must_use]
    pub fn keys(&self) -> usize {
        let of_guards = self.table.get().map_or(0, GuardTable::len);
        of_guards + self.overrides.keys()
    }

    /// The wall clock, for headers.
    #[must_use]
    pub fn wall(&self) -> Wall {
        self.ledger.wall()
    }

    fn class(&self, name: &str) -> Result<Arc<GuardClass>, GuardError> {
        let rules = self.rules();
        let found = rules.classes.iter().find(|class| class.name() == name);
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = rules.classes.iter().map(|class| class.name()).collect();
            let nearest = tollgate_config::problem::nearest(name, &names);
            let shown = name.chars().filter(|letter| !letter.is_control());
            GuardError::Unknown {
                name: shown.take(64).collect(),
                nearest: nearest.map(str::to_owned),
            }
        })
    }

    fn table(&self) -> &GuardTable {
        self.table.get_or_init(new_table)
    }

    fn rules(&self) -> Arc<GuardRules> {
        self.rules.read().clone()
    }

    fn now(&self) -> Tick {
        let Micros(micros) = self.ledger.at();
        Tick::from_nanos(micros.saturating_mul(1_000))
    }
}

/// A descriptor as metrics name it: its last value, which is the most specific one.
fn descriptor_identifier(descriptor: &Descriptor<'_>) -> Identifier {
    let last = descriptor.entries.last();
    last.map_or(Identifier::Global, |(_, value)| {
        Identifier::of_text(value.as_bytes())
    })
}

/// An empty table. Nobody who does not know its seed can aim at another caller's key.
fn new_table() -> GuardTable {
    let seed = [0_u8, 1].map(|half| RandomState::new().hash_one(half));
    GuardTable::new(KEYS_MAX, Seed(seed))
}

impl GuardRules {
    /// Paths under a prefix are not guarded, unless the service may read another path in them.
    fn exempts(&self, request: &GuardedRequest<'_>) -> bool {
        let mut prefixes = self.exempt_paths.iter();
        request.has_plain_path() && prefixes.any(|prefix| request.path.starts_with(&**prefix))
    }
}

impl GuardAsk {
    /// The name of the guard.
    #[must_use]
    pub fn guard(&self) -> &str {
        self.class.name()
    }

    /// How long it waits if nobody says.
    #[must_use]
    pub fn wait(&self) -> Span {
        self.class.wait()
    }

    /// What its guard means for tasks; `None` if it does not count names.
    #[must_use]
    pub fn task(&self) -> Option<Task> {
        self.class.task()
    }

    fn plain(&self) -> Ask<'_> {
        Ask {
            key: self.key.local,
            plan: self.class.plan(),
            cost: self.cost,
        }
    }

    /// The tokens that it needs to be granted.
    #[must_use]
    pub fn needs(&self) -> u64 {
        u64::try_from(self.cost).map_or(0, |cost| cost.max(1))
    }
}

impl GuardView {
    fn new(class: Arc<GuardClass>, seen: &KeyView) -> GuardView {
        let full_in = seen.buckets().first().map_or(0, |bucket| {
            u64::try_from(bucket.full_in.as_nanos()).unwrap_or(u64::MAX)
        });
        GuardView {
            class,
            remaining: seen.remaining(),
            full_in: Span(full_in.div_ceil(1_000)),
            would_deny: false,
        }
    }
}

#[cfg(test)]
#[path = "guards/tests.rs"]
mod tests;
#[cfg(all(test, feature = "redis"))]
#[path = "guards/shared_tests.rs"]
mod shared_tests;
