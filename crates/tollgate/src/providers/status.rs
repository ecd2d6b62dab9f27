//! The status of a provider (limits, waiting, pauses) and the operator's commands to it.
//!
//! Promises: reading the status changes nothing and takes no permit. A command works at once and
//! for every process that shares the ledger.
//!
//! Never: shows a key; keys are identified by their number in the pool.

use tollgate_config::provider::Per;
use tollgate_core::ask::{Priority, ScopeId};
use tollgate_core::health::{Command, HealthEvent, HealthState};
use tollgate_core::limit::{Algorithm, CellView};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Now, Span};
use tollgate_ledger::Ledger;

use super::health::health_scope;
use super::limit_binding::{CallAttributes, LimitBinding};
use super::{ActiveProvider, ProviderRegistry};

/// One limit and what remains of it.
#[derive(Clone, Debug)]
pub struct LimitStatus {
    /// Its name in every error.
    pub name: String,
    /// Its algorithm, in the word of the file; `concurrency` limits concurrent calls.
    pub algorithm: &'static str,
    /// N.
    pub limit: u64,
    /// The period; zero for concurrency.
    pub period: Span,
    /// The part that only urgent calls may use.
    pub reserve: u64,
    /// What it counts per.
    pub per: Per,
    /// The number of the key in the pool, from 1.
    pub key: Option<usize>,
    /// The count; `None` if it depends on the caller.
    pub view: Option<CellView>,
}

impl ProviderRegistry {
    /// The health state of a provider, started or not: one that sleeps, by an operator's command or
    /// by the ledger's record, is asleep before its first call.
    pub async fn state_of(&self, name: &str) -> HealthState {
        let super::RegistryState { deps, catalog, .. } = &*self.shared;
        let started = catalog
            .load()
            .names
            .get(name)
            .and_then(|lazy| lazy.started());
        match started {
            Some(active) => active.status().state,
            None if deps.offline => HealthState::Sleep,
            None => stored_state(&deps.ledger, name).await,
        }
    }
}

impl ActiveProvider {
    /// Both clocks, as its ledger reads them.
    #[must_use]
    pub fn now(&self) -> Now {
        self.ledger.now()
    }

    /// Every limit and what remains of it; of limits per entity, those of this one.
    pub async fn limits(&self, entity: Option<&str>) -> Vec<LimitStatus> {
        let policy = self.policy();
        let mut statuses = Vec::new();
        for binding in &policy.limits {
            match binding.per {
                Per::Provider => statuses.push(self.limit_status(binding, None, None, true).await),
                Per::Entity => {
                    let status = self.limit_status(binding, entity, None, entity.is_some());
                    statuses.push(status.await);
                }
                // Without keys of our own it depends on the client's key.
                Per::ApiKey if policy.fingerprints().next().is_none() => {
                    statuses.push(self.limit_status(binding, None, None, false).await);
                }
                Per::ApiKey => {
                    for (index, fingerprint) in policy.fingerprints().enumerate() {
                        let mut status = self
                            .limit_status(binding, None, Some(fingerprint), true)
                            .await;
                        status.key = Some(index + 1);
                        statuses.push(status);
                    }
                }
                Per::Caller | Per::Ip | Per::Host => {
                    statuses.push(self.limit_status(binding, None, None, false).await);
                }
            }
        }
        statuses
    }

    async fn limit_status(
        &self,
        binding: &LimitBinding,
        entity: Option<&str>,
        key: Option<&str>,
        is_known: bool,
    ) -> LimitStatus {
        let call = CallAttributes {
            entity,
            key,
            caller: "",
            ip: None,
            host: "",
            priority: Priority::Normal,
            costs: &[],
        };
        let cells = vec![(binding.cell_of(&call), binding.rule.clone())];
        let view = match is_known {
            true => self.ledger.peek(cells).await.pop(),
            false => None,
        };
        LimitStatus {
            name: binding.name.clone(),
            algorithm: match binding.rule.algorithm() {
                Algorithm::Sliding { .. } => "sliding-window",
                Algorithm::Bucket { .. } => "token-bucket",
                Algorithm::Fixed { .. } => "fixed-window",
                Algorithm::Calendar(_) => "calendar",
                Algorithm::Paced { .. } => "paced",
                Algorithm::InFlight => "concurrency",
            },
            limit: binding.rule.limit(),
            period: binding.rule.display_period(),
            reserve: binding.reserve(),
            per: binding.per,
            key: None,
            view,
        }
    }

    /// Entities that calls of this process have named, if limits or cool-downs are per entity.
    #[must_use]
    pub fn entities(&self) -> Vec<String> {
        self.seen_entities.names()
    }

    /// The remaining time of its cool-down; of an entity's, if the entity has its own.
    pub async fn cooldown_remaining(&self, entity: Option<&str>) -> Option<Span> {
        let policy = self.policy();
        let fingerprint = policy.fingerprints().next();
        let scope = policy.cooldown_scope(entity, fingerprint);
        match self.ledger.peek_scope(scope).await {
            ScopeView::Closed { remaining: left } => left,
            ScopeView::Open | ScopeView::Probing | ScopeView::CacheOnly { .. } => None,
        }
    }

    /// Only the cache responds, because few permits remain.
    pub async fn is_degraded(&self, entity: Option<&str>) -> bool {
        match self.policy().degrade_scope(entity) {
            Some(scope) => matches!(
                self.ledger.peek_scope(scope).await,
                ScopeView::Closed { .. }
            ),
            None => false,
        }
    }

    /// Waits until the health that the ledger remembers is applied: a provider that has just
    /// started would otherwise look new.
    pub async fn sync_health(&self) {
        self.health.sync().await;
    }

    /// Applies an operator's command. `reset` also ends every cool-down and degrade mode.
    pub fn apply_command(&self, command: Command) {
        self.health.on(HealthEvent::Operator(command));
        if command == Command::Reset {
            let policy = self.policy();
            let own = policy.degrade_scope(None).into_iter();
            let keys = policy.fingerprints().map(Some);
            let cooling = keys
                .chain([None])
                .map(|key| policy.cooldown_scope(None, key));
            self.health
                .clear_scopes(&own.chain(cooling).collect::<Vec<ScopeId>>(), true);
        }
        // Waiting calls must check admission again.
        self.health.notify_waiting();
    }

    /// Ends the cool-down and the degrade mode that block one entity. Where keys cool down instead
    /// of entities, those block it: all of them are freed.
    pub fn reset_entity(&self, entity: &str) {
        let policy = self.policy();
        let keys = policy.fingerprints().map(Some).chain([None]);
        let mut scopes: Vec<ScopeId> = keys
            .map(|key| policy.cooldown_scope(Some(entity), key))
            .collect();
        scopes.extend(policy.degrade_scope(Some(entity)));
        self.health.clear_scopes(&scopes, policy.cools_per_key());
        self.health.notify_waiting();
    }
}

/// The state in which a provider would start: the health that the ledger remembers.
async fn stored_state(ledger: &Ledger, provider: &str) -> HealthState {
    let known = ledger.provider(provider);
    let view = known.try_peek_scope(health_scope(provider)).await;
    match view.filter(|_| ledger.loss().is_none()) {
        None | Some(ScopeView::Open) => HealthState::Normal,
        Some(ScopeView::Closed { .. }) => HealthState::Sleep,
        Some(ScopeView::CacheOnly { .. }) => HealthState::CacheOnly,
        Some(ScopeView::Probing) => HealthState::HalfOpen,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_config::{Environment, ProviderFile};
    use tollgate_core::health::{AttemptResult, Class};
    use tollgate_ledger::Clock;

    use super::*;
    use crate::providers::Options;

    /// The local ledger received the cool-down, and it receives its end.
    #[tokio::test]
    async fn a_reset_reaches_the_local_share_ledger_too() {
        let file = "name: x\ndomain: api.example.org\nlimits: [5/1s]\nhealth: off\n";
        let checked = ProviderFile::read("x.yaml", file)
            .unwrap()
            .check(&Environment::empty());
        let ledger = Ledger::memory(Clock::System);
        let providers = vec![checked.provider.unwrap()];
        let registry =
            ProviderRegistry::build(providers, ledger.clone(), Options::default()).unwrap();
        let active: Arc<ActiveProvider> = registry.named("x").unwrap();
        let policy = active.policy();
        let scope = policy.cooldown_scope(None, None);
        let limited = AttemptResult {
            class: Class::Limited,
            granted: ledger.at(),
            retry_after: Some(Span::from_secs(3_600)),
        };
        active
            .health
            .on_response(scope, limited, Some(&policy.cooldown));
        for each_ledger in [&active.ledger, &active.local_share.ledger] {
            assert_ne!(each_ledger.peek_scope(scope).await, ScopeView::Open);
        }
        active.apply_command(Command::Reset);
        for each_ledger in [&active.ledger, &active.local_share.ledger] {
            assert_eq!(each_ledger.peek_scope(scope).await, ScopeView::Open);
        }
    }
}
