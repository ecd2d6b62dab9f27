//! A provider file compiled for run time: everything that a reload replaces at once.
//!
//! Promises: built once per reload, so that a call only reads it.
//!
//! Never: holds counts or learned state. Those survive a reload.

use std::sync::{Arc, OnceLock};

use http::{HeaderName, HeaderValue};
use tollgate_config::provider::{AuthStyle, Cost, Per};
use tollgate_config::settings::OnStoreLoss;
use tollgate_config::{Provider, Secret};
use tollgate_core::ask::{CellId, OwnerId, Priority, ScopeId, Settle};
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::degrade::DegradeSettings;
use tollgate_core::feedback::{Dialect, Dialects};
use tollgate_core::health::{BasePace, HealthSettings};
use tollgate_core::limit::Rule;
use tollgate_core::retry::RetrySettings;
use tollgate_core::time::Micros;
use tollgate_ledger::{Ledger, ProviderLedger};

use super::cache_policy::CachePolicy;
use super::gate_settings;
use super::limit_binding::{CallAttributes, LimitBinding};
use super::limit_inheritance;
use crate::credentials::{Account, Unsendable, auth_headers, fingerprint, unsendable_settings};

/// One provider's file, compiled.
#[derive(Debug)]
pub(crate) struct CompiledPolicy {
    pub(crate) provider: Provider,
    pub(crate) limits: Vec<LimitBinding>,
    /// The concurrency that the connections allow, unless another limit is lower anyway.
    pub(crate) connections: Option<Arc<Rule>>,
    pub(crate) connections_max: usize,
    pub(crate) dialect: Arc<Dialect>,
    pub(crate) keys: Vec<ApiKey>,
    /// Settings whose values cannot be sent; empty for every file that `check` accepts.
    pub(crate) unsendable: Vec<Unsendable>,
    /// The sources of tokens, if calls carry tokens: one for each key.
    pub(crate) accounts: Vec<Arc<Account>>,
    pub(crate) retry: RetrySettings,
    pub(crate) cooldown: CooldownSettings,
    pub(crate) degrade: Option<DegradeSettings>,
    pub(crate) health: HealthSettings,
    /// A limit whose part for this node is zero.
    pub(crate) zero_limit: Option<String>,
    /// The scope that is closed after nodes ran on their shares.
    pub(crate) share_scope: Option<ScopeId>,
    pub(crate) cache: CachePolicy,
    /// The part of a provider that a 429 closes.
    cooldown_per: CooldownPer,
    /// The scopes of the whole provider, computed once.
    provider_scopes: ProviderScopes,
    /// `RateLimit-Policy` for calls of each priority, written with the first response to one.
    rate_policies: [OnceLock<Option<HeaderValue>>; 3],
}

/// Scopes that are the same for every call: computing one takes a hash.
#[derive(Clone, Copy, Debug)]
struct ProviderScopes {
    cooldown: ScopeId,
    degrade: ScopeId,
}

/// An API key of the provider's key pool.
#[derive(Clone, Debug)]
pub(crate) struct ApiKey {
    pub(crate) secret: Secret,
    /// Its name in cells.
    pub(crate) fingerprint: Arc<str>,
    /// The key and its companions as headers, built once; `None` if they are not sent as headers.
    pub(crate) headers: Option<Vec<(HeaderName, HeaderValue)>>,
}

/// The part of a provider that a 429 closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CooldownPer {
    Provider,
    Entity,
    ApiKey,
    KeyAndEntity,
}

impl CompiledPolicy {
    /// `RateLimit-Policy` for calls of this priority: it only says what the limits are.
    pub(crate) fn rate_policy(
        &self,
        priority: Priority,
        write: impl FnOnce() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        let [low, normal, high] = &self.rate_policies;
        let written = match priority {
            Priority::Low => low,
            Priority::Normal => normal,
            Priority::High => high,
        };
        written.get_or_init(write).clone()
    }

    pub(crate) fn new(provider: Provider, dialects: &Dialects) -> CompiledPolicy {
        let dialect = dialects
            .get(&provider.dialect)
            .unwrap_or_else(|| dialects.generic());
        let mut bindings = if provider.enabled {
            LimitBinding::all(&provider)
        } else {
            Vec::new()
        };
        if provider.enabled && provider.learn {
            bindings.extend(LimitBinding::learned(&provider, dialect));
        }
        let has = |per| bindings.iter().any(|binding| binding.per == per);
        let cooldown_per = if bindings.iter().any(LimitBinding::is_learned) {
            CooldownPer::KeyAndEntity
        } else if has(Per::Entity) {
            CooldownPer::Entity
        } else if has(Per::ApiKey) {
            CooldownPer::ApiKey
        } else {
            CooldownPer::Provider
        };
        let key = |secret: &Secret| ApiKey {
            secret: secret.clone(),
            fingerprint: fingerprint(secret.expose()).into(),
            headers: auth_headers(&provider.auth, secret),
        };
        CompiledPolicy {
            rate_policies: Default::default(),
            connections: connections(&provider, &bindings),
            connections_max: usize::try_from(provider.connections).unwrap_or(usize::MAX),
            dialect: Arc::new(dialect.clone()),
            keys: provider.keys.iter().map(key).collect(),
            unsendable: unsendable_settings(&provider),
            accounts: if provider.withholds_keys {
                Vec::new() // no login at a host that a run-time change names
            } else {
                Account::all(&provider)
            },
            retry: provider.retry,
            cooldown: provider.cooldown,
            degrade: provider.degrade,
            health: provider.health,
            cache: CachePolicy::of(&provider),
            cooldown_per,
            provider_scopes: ProviderScopes {
                cooldown: ScopeId::named(&[&provider.name, "cooldown"]),
                degrade: ScopeId::named(&[&provider.name, "degrade"]),
            },
            share_scope: share_scope(&provider),
            zero_limit: None,
            limits: bindings,
            provider,
        }
    }

    /// Inherits the counts of the old policy.
    pub(super) fn inherit(&mut self, old: &CompiledPolicy, now: Micros) {
        let late = |policy: &CompiledPolicy| {
            policy.provider.timeouts.first_byte + policy.provider.late_arrival
        };
        let on_its_way = late(old).max(late(self));
        limit_inheritance::inherit(&mut self.limits, &old.limits, now, on_its_way);
    }

    /// The settles that must precede a call's ask; none except for a while after a reload.
    pub(crate) fn inherit_settles(
        &self,
        call: &CallAttributes<'_>,
        has_shares: bool,
        ledger: &ProviderLedger,
    ) -> Vec<Settle> {
        if self
            .limits
            .iter()
            .all(|binding| binding.predecessor.is_none())
        {
            return Vec::new();
        }
        let (bindings, now) = (self.limits.iter(), ledger.at());
        let each = bindings.map(|binding| binding.inherit_settles(call, has_shares, now));
        each.flatten().collect()
    }

    /// The settles that need no call.
    pub(super) fn shared_inherit_settles(&self, now: Micros) -> Vec<Settle> {
        let bindings = self.limits.iter();
        bindings
            .flat_map(|binding| binding.shared_inherit_settles(now))
            .collect()
    }

    /// What the limits allow in normal health.
    pub(crate) fn base(&self) -> BasePace {
        let known = self.limits.iter().filter(|binding| !binding.is_learned());
        BasePace::of(known.map(|binding| &*binding.rule))
    }

    /// The settings of the gate.
    pub(crate) fn gate_settings(&self) -> tollgate_core::gate::GateSettings {
        gate_settings::for_provider(&self.provider)
    }

    /// The scope that a 429 to this call closes.
    pub(crate) fn cooldown_scope(&self, entity: Option<&str>, key: Option<&str>) -> ScopeId {
        let name = &self.provider.name;
        match self.cooldown_per {
            CooldownPer::Provider => self.provider_scopes.cooldown,
            CooldownPer::Entity => {
                ScopeId::named(&[name, "cooldown", "entity", entity.unwrap_or("")])
            }
            CooldownPer::ApiKey => ScopeId::named(&[name, "cooldown", "key", key.unwrap_or("")]),
            CooldownPer::KeyAndEntity => {
                let (key, entity) = (key.unwrap_or(""), entity.unwrap_or(""));
                ScopeId::named(&[name, "cooldown", "key and entity", key, entity])
            }
        }
    }

    /// Which terms of a call learn their true cost from its response, from which fields, and under
    /// which rule. The order is that of the ask: limits, then the caller's shares of them.
    pub(crate) fn true_costs(
        &self,
        priority: Priority,
        has_shares: bool,
    ) -> Vec<(usize, &Cost, &Rule)> {
        let costs = &self.provider.costs;
        if costs.iter().all(|cost| cost.after.is_empty()) {
            return Vec::new();
        }
        let applied = self
            .limits
            .iter()
            .filter(|binding| binding.applies_to(priority));
        let fields: Vec<Option<(&Cost, &Rule)>> = applied
            .map(|binding| {
                let mut reported = costs.iter().filter(|cost| !cost.after.is_empty());
                let cost = reported.find(|cost| cost.unit == binding.unit)?;
                Some((cost, &*binding.rule))
            })
            .collect();
        // Learned limits come last, and nobody has a share of them.
        let own = self.limits.iter().filter(|binding| !binding.is_learned());
        let own = own.filter(|binding| binding.applies_to(priority)).count();
        let shared = if has_shares { own } else { 0 };
        let all = fields.iter().chain(&fields[..shared]);
        all.enumerate()
            .filter_map(|(term, found)| found.map(|(cost, rule)| (term, cost, rule)))
            .collect()
    }

    /// The unit of each term of a call. The order is that of the ask: limits, then the caller's
    /// shares of them.
    pub(crate) fn term_units(&self, priority: Priority, has_shares: bool) -> Vec<&str> {
        let applied = self
            .limits
            .iter()
            .filter(|binding| binding.applies_to(priority));
        let units: Vec<&str> = applied
            .clone()
            .map(|binding| binding.unit.as_str())
            .collect();
        let own = applied.filter(|binding| !binding.is_learned());
        let shares: Vec<&str> = match has_shares {
            true => own.map(|binding| binding.unit.as_str()).collect(),
            false => Vec::new(),
        };
        units.into_iter().chain(shares).collect()
    }

    /// The fingerprints of all our keys and accounts.
    pub(crate) fn fingerprints(&self) -> impl Iterator<Item = &str> {
        (0..self.key_count()).filter_map(|index| Some(&**self.key_fingerprint(index)?))
    }

    /// How many keys there are to choose from.
    pub(crate) fn key_count(&self) -> usize {
        self.accounts.len().max(match self.provider.auth.style {
            // Keys without an account cannot be used.
            AuthStyle::OAuth2(_) | AuthStyle::Login(_) => 0,
            AuthStyle::None
            | AuthStyle::Query { .. }
            | AuthStyle::Header { .. }
            | AuthStyle::Bearer
            | AuthStyle::Basic => self.keys.len(),
        })
    }

    /// The fingerprint of a key.
    pub(crate) fn key_fingerprint(&self, index: usize) -> Option<&Arc<str>> {
        let of_source = self.accounts.get(index).map(|account| &account.fingerprint);
        of_source.or_else(|| self.keys.get(index).map(|key| &key.fingerprint))
    }

    /// Are limits or cool-downs per entity?
    pub(crate) fn counts_by_entity(&self) -> bool {
        matches!(
            self.cooldown_per,
            CooldownPer::Entity | CooldownPer::KeyAndEntity
        )
    }

    /// Does a 429 concern the key alone?
    pub(crate) fn cools_per_key(&self) -> bool {
        matches!(
            self.cooldown_per,
            CooldownPer::ApiKey | CooldownPer::KeyAndEntity
        )
    }

    /// The scope that degrade mode closes.
    pub(crate) fn degrade_scope(&self, entity: Option<&str>) -> Option<ScopeId> {
        self.degrade?;
        let name = &self.provider.name;
        Some(match self.cooldown_per {
            CooldownPer::Entity | CooldownPer::KeyAndEntity => {
                ScopeId::named(&[name, "degrade", "entity", entity.unwrap_or("")])
            }
            CooldownPer::Provider | CooldownPer::ApiKey => self.provider_scopes.degrade,
        })
    }
}

/// The scope that is closed after nodes ran on their shares of the limits.
fn share_scope(provider: &Provider) -> Option<ScopeId> {
    let shares = provider.on_store_loss == OnStoreLoss::LocalShare;
    shares.then(|| ScopeId::named(&[&provider.name, "share"]))
}

/// The cells of a provider that belong to this process alone. Computed once: the names only have to
/// be unique, even if the store later gives this process another number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnCells {
    pub(crate) connections: CellId,
    pub(crate) concurrency: CellId,
    pub(crate) rate: CellId,
}

impl OwnCells {
    pub(crate) fn new(provider: &str, ledger: &Ledger) -> OwnCells {
        let owner = match ledger.owner() {
            // A store that is lost at the start has assigned no number yet.
            OwnerId::UNKNOWN => format!("{} {}", std::process::id(), ledger.at().0),
            owner => owner.0.to_string(),
        };
        let cell = |what| CellId::named(&[provider, "local", what, &owner]);
        OwnCells {
            connections: cell("connections"),
            concurrency: cell("throttle"),
            rate: cell("throttle rate"),
        }
    }
}

/// Connections limit concurrency too. Asking for them in the same decision keeps order and
/// priority: otherwise calls with a permit would queue for a connection in any order.
fn connections(provider: &Provider, bindings: &[LimitBinding]) -> Option<Arc<Rule>> {
    let most = provider.connections.max(1);
    // A limit per entity, or for one priority only, does not bound all calls together.
    let is_lower = |binding: &LimitBinding| {
        let holds_for_all = binding.only_priority().is_none() && binding.per == Per::Provider;
        binding.is_concurrency() && holds_for_all && binding.rule.limit() <= most
    };
    if bindings.iter().any(is_lower) {
        return None;
    }
    connections_rule(most)
}

/// So many calls at a time in this process, for its connections.
pub(super) fn connections_rule(most: u64) -> Option<Arc<Rule>> {
    let rule = Rule::in_flight(most).ok()?;
    Some(Arc::new(rule.of_one_process()))
}
