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
use crate::path::fingerprints;

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
        let super::RegistryState {
            deps: means,
            catalog: shelf,
            ..
        } = &*self.shared;
        let started = shelf.load().names.get(name).and_then(|slot| slot.started());
        match started {
            Some(live) => live.status().state,
            None if means.offline => HealthState::Sleep,
            None => stored_state(&means.ledger, name).await,
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
        let plan = self.policy();
        let mut looks = Vec::new();
        for meter in &plan.limits {
            match meter.per {
                Per::Provider => looks.push(self.limit_status(meter, None, None, true).await),
                Per::Entity => {
                    let look = self.limit_status(meter, entity, None, entity.is_some());
                    looks.push(look.await);
                }
                // Without keys of our own it depends on the client's key.
                Per::ApiKey if fingerprints(&plan).next().is_none() => {
                    looks.push(self.limit_status(meter, None, None, false).await);
                }
                Per::ApiKey => {
                    for (index, mark) in fingerprints(&plan).enumerate() {
                        let mut look = self.limit_status(meter, None, Some(mark), true).await;
                        look.key = Some(index + 1);
                        looks.push(look);
                    }
                }
                Per::Caller | Per::Ip | Per::Host => {
                    looks.push(self.limit_status(meter, None, None, false).await);
                }
            }
        }
        looks
    }

    async fn limit_status(
        &self,
        meter: &LimitBinding,
        entity: Option<&str>,
        key: Option<&str>,
        is_known: bool,
    ) -> LimitStatus {
        let who = CallAttributes {
            entity,
            key,
            caller: "",
            ip: None,
            host: "",
            priority: Priority::Normal,
            costs: &[],
        };
        let cells = vec![(meter.cell_of(&who), meter.rule.clone())];
        let view = match is_known {
            true => self.ledger.peek(cells).await.pop(),
            false => None,
        };
        LimitStatus {
            name: meter.name.clone(),
            algorithm: match meter.rule.algorithm() {
                Algorithm::Sliding { .. } => "sliding-window",
                Algorithm::Bucket { .. } => "token-bucket",
                Algorithm::Fixed { .. } => "fixed-window",
                Algorithm::Calendar(_) => "calendar",
                Algorithm::Paced { .. } => "paced",
                Algorithm::InFlight => "concurrency",
            },
            limit: meter.rule.limit(),
            period: meter.rule.display_period(),
            reserve: meter.reserve(),
            per: meter.per,
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
        let plan = self.policy();
        let mark = fingerprints(&plan).next();
        let scope = plan.cooldown_scope(entity, mark);
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
            let plan = self.policy();
            let own = plan.degrade_scope(None).into_iter();
            let keys = fingerprints(&plan).map(Some);
            let cooling = keys.chain([None]).map(|key| plan.cooldown_scope(None, key));
            self.health
                .clear_scopes(&own.chain(cooling).collect::<Vec<ScopeId>>(), true);
        }
        // Waiting calls must check admission again.
        self.health.notify_waiting();
    }

    /// Ends the cool-down and the degrade mode that block one entity. Where keys cool down instead
    /// of entities, those block it: all of them are freed.
    pub fn reset_entity(&self, entity: &str) {
        let plan = self.policy();
        let keys = fingerprints(&plan).map(Some).chain([None]);
        let mut scopes: Vec<ScopeId> = keys
            .map(|key| plan.cooldown_scope(Some(entity), key))
            .collect();
        scopes.extend(plan.degrade_scope(Some(entity)));
        self.health.clear_scopes(&scopes, plan.cools_per_key());
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
        let shop = ProviderRegistry::build(providers, ledger.clone(), Options::default()).unwrap();
        let live: Arc<ActiveProvider> = shop.named("x").unwrap();
        let plan = live.policy();
        let scope = plan.cooldown_scope(None, None);
        let refused = AttemptResult {
            class: Class::Limited,
            granted: ledger.at(),
            retry_after: Some(Span::from_secs(3_600)),
        };
        live.health
            .on_response(scope, refused, Some(&plan.cooldown));
        for spare in [&live.ledger, &live.local_share.ledger] {
            assert_ne!(spare.peek_scope(scope).await, ScopeView::Open);
        }
        live.apply_command(Command::Reset);
        for spare in [&live.ledger, &live.local_share.ledger] {
            assert_eq!(spare.peek_scope(scope).await, ScopeView::Open);
        }
    }
}
