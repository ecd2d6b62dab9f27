//! The status of a provider (limits, waiting, pauses) and the operator's commands to it.
//!
//! Promises: reading the status changes nothing and takes no permit. A command works at once and
//! for every process that shares the ledger; `resume` and `reset` open the closed paths that this
//! process knows, and other processes probe theirs.
//!
//! Never: shows a key; keys are identified by their number in the pool.

use tollgate_config::provider::Per;
use tollgate_core::ask::ScopeId;
use tollgate_core::health::{Command, HealthEvent, HealthState, OperatorHold};
use tollgate_core::limit::CellView;
use tollgate_core::rate::Rate;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Now, Span};
use tollgate_ledger::{Ledger, PeekQuery};

use super::health::health_scope;
use super::limit_status::{PendingLimit, pending_limit, pending_limits};
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
    /// What remains of it when nothing is used: the burst of a bucket, N of everything else.
    pub depth: u64,
    /// The period; zero for concurrency.
    pub period: Span,
    /// The part that only urgent calls may use.
    pub reserve: u64,
    /// It counts calls, not tokens or other costs.
    pub counts_calls: bool,
    /// What it counts, in the provider's word: `calls`, `input_tokens`.
    pub unit: String,
    /// What it counts per.
    pub per: Per,
    /// The number of the key in the pool, from 1.
    pub key: Option<usize>,
    /// The count; `None` if it depends on the caller.
    pub view: Option<CellView>,
    /// How many calls of this process it holds in the queue.
    pub waiting: usize,
}

/// The limits and pauses of a provider or of one of its entities.
#[derive(Clone, Debug)]
pub struct PartStatus {
    /// Every limit of it.
    pub limits: Vec<LimitStatus>,
    /// The remaining time of its cool-down; of an entity's, if the entity has its own.
    pub cooldown_remaining: Option<Span>,
    /// Only the cache responds, because few permits remain.
    pub is_degraded: bool,
}

/// A cool-down, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CooldownStatus {
    /// What cools down: `None` = the whole provider; an entity, or a key by its number.
    pub of: Option<String>,
    /// How long it lasts.
    pub remaining: Span,
    /// The wait that the provider asked for, if this process saw it.
    pub retry_after: Option<Span>,
}

/// A limit that is estimated from 429s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstimatedLimit {
    /// What it limits, as in [`CooldownStatus::of`].
    pub of: Option<String>,
    /// `None` = not known yet: more calls go as the provider accepts them.
    pub rate: Option<Rate>,
}

/// What the 429s of a provider say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedFrom429s {
    /// What cools down.
    pub cooldowns: Vec<CooldownStatus>,
    /// What goes at an estimated pace.
    pub limits: Vec<EstimatedLimit>,
}

/// A provider in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderOverview {
    /// Its health.
    pub state: HealthState,
    /// The operator's command that holds it.
    pub hold: Option<OperatorHold>,
    /// What cools down; empty for a provider that this process has not called.
    pub cooldowns: Vec<CooldownStatus>,
    /// Only the cache responds, because little remains.
    pub is_degraded: bool,
    /// A limit of a minute or longer of which nothing remains, and how long it takes until it starts anew.
    pub used_up: Option<(String, Option<Span>)>,
}

impl ProviderRegistry {
    /// The state of a provider, started or not: one that sleeps, by an operator's command or by the
    /// ledger's record, is asleep before its first call.
    pub async fn overview_of(&self, name: &str) -> ProviderOverview {
        let super::RegistryState { deps, catalog, .. } = &*self.shared;
        let started = catalog
            .load()
            .names
            .get(name)
            .and_then(|lazy| lazy.started());
        let (state, hold) = match &started {
            Some(active) => (active.status().state, active.status().hold),
            None if deps.offline => (HealthState::Sleep, Some(OperatorHold::Offline)),
            None => stored_state(&deps.ledger, name).await,
        };
        let Some(active) = &started else {
            return ProviderOverview {
                state,
                hold,
                cooldowns: Vec::new(),
                is_degraded: false,
                used_up: None,
            };
        };
        let (parts, learned) = active.parts_and_429s(&[None]).await;
        let mut limits = parts.iter().flat_map(|part| &part.limits);
        let used_up = limits.find_map(|limit| {
            let view = limit.view.filter(|view| view.remaining == 0)?;
            let is_long = limit.period >= Span::from_secs(60);
            is_long.then(|| (limit.name.clone(), view.reset_after))
        });
        ProviderOverview {
            state,
            hold,
            cooldowns: learned.cooldowns,
            is_degraded: parts.iter().any(|part| part.is_degraded),
            used_up,
        }
    }
}

impl ActiveProvider {
    /// Both clocks, as its ledger reads them.
    #[must_use]
    pub fn now(&self) -> Now {
        self.ledger.now()
    }

    /// The limits, cool-downs and degrade modes of the whole provider (`None`, every limit) and of
    /// entities (their own limits), and what was learned from 429s: one peek, however many they are.
    pub async fn parts_and_429s(
        &self,
        entities: &[Option<&str>],
    ) -> (Vec<PartStatus>, LearnedFrom429s) {
        let (mut query, parts) = self.parts_query(entities);
        let scopes_of_parts = query.scopes.len();
        let cooling = self.cooldown_parts(entities);
        query.scopes.extend(cooling.iter().map(|(_, scope)| *scope));
        let held = self.held_by_limits();
        let mut reply = self.ledger.peek_or_closed(query).await;
        let views = reply
            .scopes
            .split_off(scopes_of_parts.min(reply.scopes.len()));
        let (mut cells, mut scopes) = (reply.cells.into_iter(), reply.scopes.into_iter());
        let mut part = |(limits, has_degrade): (Vec<PendingLimit>, bool)| PartStatus {
            cooldown_remaining: scopes.next().and_then(closed_for),
            is_degraded: has_degrade && matches!(scopes.next(), Some(ScopeView::Closed { .. })),
            limits: limits
                .into_iter()
                .filter_map(|limit| {
                    let view = limit.cell.as_ref().and_then(|_| cells.next());
                    let waiting = limit.cell.as_ref().and_then(|(cell, _)| held.get(cell));
                    limit.seen(view, waiting.copied().unwrap_or(0))
                })
                .collect(),
        };
        let parts = parts.into_iter().map(&mut part).collect();
        (parts, self.learned(cooling, views))
    }

    /// What to read for these parts: a cool-down and maybe a degrade mode of each, and its limits.
    fn parts_query(
        &self,
        entities: &[Option<&str>],
    ) -> (PeekQuery, Vec<(Vec<PendingLimit>, bool)>) {
        let policy = self.policy();
        let (mut query, mut parts) = (PeekQuery::default(), Vec::new());
        for &entity in entities {
            let cooldown = policy.cooldown_scope(entity, policy.fingerprints().next());
            query.scopes.push(cooldown);
            let degrade = policy.degrade_scope(entity);
            query.scopes.extend(degrade);
            let bindings = policy.limits.iter();
            let of_part = bindings.filter(|one| entity.is_none() || one.per == Per::Entity);
            let limits: Vec<PendingLimit> = of_part
                .flat_map(|binding| pending_limits(&policy, binding, entity))
                .collect();
            query
                .cells
                .extend(limits.iter().filter_map(|limit| limit.cell.clone()));
            parts.push((limits, degrade.is_some()));
        }
        (query, parts)
    }

    /// Everything that may cool down, and its scope: the provider, keys, entities that were called
    /// and those that are named here.
    fn cooldown_parts(&self, named: &[Option<&str>]) -> Vec<(Option<String>, ScopeId)> {
        let policy = self.policy();
        let mut entities = self.entities();
        entities.extend(named.iter().flatten().map(|&entity| entity.to_owned()));
        let mut parts: Vec<(Option<String>, ScopeId)> = Vec::new();
        let mut add = |of: Option<String>, scope: ScopeId| {
            if parts.iter().all(|(_, known)| *known != scope) {
                parts.push((of, scope));
            }
        };
        if policy.cools_per_key() {
            for (index, key) in policy.fingerprints().enumerate() {
                let of = format!("key {}", index + 1);
                add(Some(of), policy.cooldown_scope(None, Some(key)));
            }
        }
        let keys = policy.fingerprints().filter(|_| policy.cools_per_key());
        let keys: Vec<Option<&str>> = keys.map(Some).chain([None]).collect();
        for (entity, key) in entities
            .iter()
            .flat_map(|one| keys.iter().map(move |key| (one, *key)))
        {
            let scope = policy.cooldown_scope(Some(entity), key);
            add(Some(entity.clone()), scope);
        }
        add(None, policy.cooldown_scope(None, None));
        let has_parts = policy.counts_by_entity() || policy.cools_per_key();
        let parts = parts.into_iter();
        parts
            .map(|(of, scope)| (of.filter(|_| has_parts), scope))
            .collect()
    }

    /// What cools down after a 429, and the limits that are estimated from 429s.
    fn learned(
        &self,
        parts: Vec<(Option<String>, ScopeId)>,
        views: Vec<ScopeView>,
    ) -> LearnedFrom429s {
        let mut learned = LearnedFrom429s::default();
        for ((of, scope), view) in parts.into_iter().zip(views) {
            match view {
                ScopeView::Closed {
                    remaining: Some(remaining),
                } => learned.cooldowns.push(CooldownStatus {
                    of,
                    remaining,
                    retry_after: self.health.cooldown_stated(scope),
                }),
                ScopeView::Paced { rate, .. } => {
                    learned.limits.push(EstimatedLimit { of, rate });
                }
                ScopeView::Closed { remaining: None }
                | ScopeView::Open
                | ScopeView::Probing
                | ScopeView::CacheOnly { .. }
                | ScopeView::Paused { .. } => {}
            }
        }
        learned
    }

    /// Every limit of the whole provider, or those of an entity, and what remains of it.
    pub async fn limits(&self, entity: Option<&str>) -> Vec<LimitStatus> {
        let part = self.parts_and_429s(&[entity]).await.0.pop();
        part.map_or_else(Vec::new, |part| part.limits)
    }

    /// The limit of this name, without its count.
    #[must_use]
    pub fn limit_named(&self, name: &str) -> Option<LimitStatus> {
        let policy = self.policy();
        let binding = policy.limits.iter().find(|limit| limit.name == name)?;
        Some(pending_limit(binding, None, None, false).status)
    }

    /// Entities that calls of this process have named, if limits or cool-downs are per entity.
    #[must_use]
    pub fn entities(&self) -> Vec<String> {
        self.seen_entities.names()
    }

    /// Waits until the health that the ledger remembers is applied: a provider that has just
    /// started would otherwise look new.
    pub async fn sync_health(&self) {
        self.health.sync().await;
    }

    /// Applies an operator's command. `resume` also ends every cool-down, `reset` every cool-down
    /// and degrade mode.
    pub fn apply_command(&self, command: Command) {
        self.health.on(HealthEvent::Operator(command));
        let policy = self.policy();
        let keys = policy.fingerprints().map(Some).chain([None]);
        let mut entities: Vec<Option<String>> = self.entities().into_iter().map(Some).collect();
        entities.push(None);
        let cooling = keys.flat_map(|key| {
            let scopes = entities.iter();
            scopes.map(move |entity| (entity.as_deref(), key))
        });
        let cooling = cooling.map(|(entity, key)| policy.cooldown_scope(entity, key));
        match command {
            Command::Reset => {
                let own = policy.degrade_scope(None).into_iter();
                let scopes: Vec<ScopeId> = own.chain(cooling).collect();
                self.health.clear_scopes(&scopes, true);
                self.health.resume_paths();
            }
            Command::Resume => {
                self.health.clear_cooldowns(cooling);
                self.health.resume_paths();
            }
            Command::Offline | Command::Pause { .. } | Command::CacheOnly { .. } => {}
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

fn closed_for(view: ScopeView) -> Option<Span> {
    match view {
        ScopeView::Closed { remaining } => remaining,
        ScopeView::Open
        | ScopeView::Paced { .. }
        | ScopeView::Probing
        | ScopeView::CacheOnly { .. }
        | ScopeView::Paused { .. } => None,
    }
}

/// The state in which a provider would start: the health that the ledger remembers.
async fn stored_state(ledger: &Ledger, provider: &str) -> (HealthState, Option<OperatorHold>) {
    let known = ledger.provider(provider);
    let view = known.try_peek_scope(health_scope(provider)).await;
    match view.filter(|_| ledger.loss().is_none()) {
        None | Some(ScopeView::Open | ScopeView::Paced { .. }) => (HealthState::Normal, None),
        Some(ScopeView::Closed { remaining: Some(_) }) => (HealthState::Sleep, None),
        // Health closes for a time; only an operator closes without an end.
        Some(ScopeView::Closed { remaining: None }) => {
            (HealthState::Sleep, Some(OperatorHold::Offline))
        }
        Some(ScopeView::Paused { .. }) => (HealthState::Sleep, Some(OperatorHold::Paused)),
        Some(ScopeView::CacheOnly { remaining }) => {
            let hold = remaining.map(|_| OperatorHold::CacheOnly);
            (HealthState::CacheOnly, hold)
        }
        Some(ScopeView::Probing) => (HealthState::HalfOpen, None),
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
            retry_after: Some(Span::from_secs(3_600)),
            ..AttemptResult::new(Class::Limited, ledger.at())
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

    /// Before, each limit and each pause of each entity was a request of its own.
    #[tokio::test]
    async fn the_status_of_256_entities_is_one_peek() {
        let file = "name: x\ndomain: api.example.org\nhealth: off\n\
                    limits: [5/1s, {limit: 9, period: 1h, per: entity}]\n";
        let checked = ProviderFile::read("x.yaml", file)
            .unwrap()
            .check(&Environment::empty());
        let ledger = Ledger::memory(Clock::System);
        let providers = vec![checked.provider.unwrap()];
        let registry =
            ProviderRegistry::build(providers, ledger.clone(), Options::default()).unwrap();
        let active = registry.named("x").unwrap();
        let names: Vec<String> = (0..256).map(|number| number.to_string()).collect();
        let entities = names.iter().map(|name| Some(&**name));
        let asked: Vec<Option<&str>> = entities.chain([None]).collect();
        let before = ledger.peeks_sent();
        let (parts, _) = active.parts_and_429s(&asked).await;
        assert_eq!(ledger.peeks_sent() - before, 1);
        let limits = |part: &PartStatus| part.limits.len();
        assert_eq!(
            (parts.len(), limits(&parts[7]), limits(&parts[256])),
            (257, 1, 2)
        );
        let view = parts[7].limits[0].view.unwrap();
        assert_eq!((view.limit, view.used), (9, 0));
    }
}
