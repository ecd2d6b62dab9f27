//! What a provider looks like from outside: limits, waiting, pauses; and what operators want of it.
//!
//! Promises: looking changes nothing and takes no permit. An order works at once and for every
//! process that shares the ledger.
//!
//! Never: shows a key; keys are told apart by their number in the pool.

use tollgate_config::provider::Per;
use tollgate_core::ask::{Priority, ScopeId};
use tollgate_core::health::{Command, Event, State};
use tollgate_core::limit::{Algorithm, View};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Now, Span};
use tollgate_ledger::Ledger;

use super::machine::health_scope;
use super::meter::{Meter, Who};
use super::{Live, Shop};
use crate::path::marks;

/// One limit and what is left of it.
#[derive(Clone, Debug)]
pub struct LimitLook {
    /// Its name in every error.
    pub name: String,
    /// Its algorithm, in the word of the file; `concurrency` counts calls at a time.
    pub algorithm: &'static str,
    /// N.
    pub limit: u64,
    /// The period; zero for calls at a time.
    pub period: Span,
    /// The part that only urgent calls may use.
    pub reserve: u64,
    /// Per what it counts.
    pub per: Per,
    /// Which key of the pool, from 1.
    pub key: Option<usize>,
    /// What is counted; `None` where that depends on who calls.
    pub view: Option<View>,
}

impl Shop {
    /// The state of a provider's health, whether it was started or not: one that sleeps, by an order or
    /// by what the ledger remembers, is asleep before anybody calls it.
    pub async fn state_of(&self, name: &str) -> State {
        let super::Shared { means, shelf, .. } = &*self.shared;
        let started = shelf.load().names.get(name).and_then(|slot| slot.started());
        match started {
            Some(live) => live.status().state,
            None if means.offline => State::Sleep,
            None => remembered(&means.ledger, name).await,
        }
    }
}

impl Live {
    /// Both clocks, as its ledger reads them.
    #[must_use]
    pub fn now(&self) -> Now {
        self.ledger.now()
    }

    /// Every limit and what is left of it; of limits per entity, those of this one.
    pub async fn limits(&self, entity: Option<&str>) -> Vec<LimitLook> {
        let plan = self.plan();
        let mut looks = Vec::new();
        for meter in &plan.meters {
            match meter.per {
                Per::Provider => looks.push(self.limit(meter, None, None, true).await),
                Per::Entity => {
                    let look = self.limit(meter, entity, None, entity.is_some());
                    looks.push(look.await);
                }
                // Without keys of ours it depends on what the client shows.
                Per::ApiKey if marks(&plan).next().is_none() => {
                    looks.push(self.limit(meter, None, None, false).await);
                }
                Per::ApiKey => {
                    for (index, mark) in marks(&plan).enumerate() {
                        let mut look = self.limit(meter, None, Some(mark), true).await;
                        look.key = Some(index + 1);
                        looks.push(look);
                    }
                }
                Per::Caller | Per::Ip | Per::Host => {
                    looks.push(self.limit(meter, None, None, false).await);
                }
            }
        }
        looks
    }

    async fn limit(
        &self,
        meter: &Meter,
        entity: Option<&str>,
        key: Option<&str>,
        is_known: bool,
    ) -> LimitLook {
        let who = Who {
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
            true => self.ledger.look(cells).await.pop(),
            false => None,
        };
        LimitLook {
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
            period: meter.rule.spoken_period(),
            reserve: meter.reserve(),
            per: meter.per,
            key: None,
            view,
        }
    }

    /// Entities that calls of this process were about, as far as something is counted by entity.
    #[must_use]
    pub fn entities(&self) -> Vec<String> {
        self.seen.names()
    }

    /// How long its cool-down lasts; of an entity, if it has one of its own.
    pub async fn cooling(&self, entity: Option<&str>) -> Option<Span> {
        let plan = self.plan();
        let mark = marks(&plan).next();
        let scope = plan.cooldown_scope(entity, mark);
        match self.ledger.look_scope(scope).await {
            ScopeView::Closed { left } => left,
            ScopeView::Open | ScopeView::Probing | ScopeView::CacheOnly { .. } => None,
        }
    }

    /// Only the cache answers, because little is left.
    pub async fn is_degraded(&self, entity: Option<&str>) -> bool {
        match self.plan().degrade_scope(entity) {
            Some(scope) => matches!(
                self.ledger.look_scope(scope).await,
                ScopeView::Closed { .. }
            ),
            None => false,
        }
    }

    /// What the ledger remembers of its health is known when this returns: who has just started it
    /// would otherwise see it as new.
    pub async fn caught_up(&self) {
        self.machine.catch_up().await;
    }

    /// An operator wants something. `reset` also ends every cool-down and degrade mode.
    pub fn order(&self, command: Command) {
        self.machine.on(Event::Operator(command));
        if command == Command::Reset {
            let plan = self.plan();
            let own = plan.degrade_scope(None).into_iter();
            let keys = marks(&plan).map(Some);
            let cooling = keys.chain([None]).map(|key| plan.cooldown_scope(None, key));
            self.machine
                .forget(&own.chain(cooling).collect::<Vec<ScopeId>>(), true);
        }
        // Whoever waits at a door that has changed must look at it.
        self.machine.tell_waiting();
    }

    /// Ends the cool-down and the degrade mode that hold one entity back. Where keys cool down, not
    /// entities, it is held back by those: all of them are free again.
    pub fn reset_entity(&self, entity: &str) {
        let plan = self.plan();
        let keys = marks(&plan).map(Some).chain([None]);
        let mut scopes: Vec<ScopeId> = keys
            .map(|key| plan.cooldown_scope(Some(entity), key))
            .collect();
        scopes.extend(plan.degrade_scope(Some(entity)));
        self.machine.forget(&scopes, plan.cools_by_key());
        self.machine.tell_waiting();
    }
}

/// The state in which a provider would be started: what the ledger remembers of its health.
async fn remembered(ledger: &Ledger, provider: &str) -> State {
    let view = ledger.known_scope(health_scope(provider)).await;
    match view.filter(|_| ledger.loss().is_none()) {
        None | Some(ScopeView::Open) => State::Normal,
        Some(ScopeView::Closed { .. }) => State::Sleep,
        Some(ScopeView::CacheOnly { .. }) => State::CacheOnly,
        Some(ScopeView::Probing) => State::HalfOpen,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_config::{Draft, World};
    use tollgate_core::health::{Answer, Class};
    use tollgate_ledger::Clock;

    use super::*;
    use crate::shop::Options;

    /// What stands in while the store is lost was told of the cool-down, and is told of its end.
    #[tokio::test]
    async fn a_reset_reaches_the_ledger_that_stands_in_too() {
        let file = "name: x\ndomain: api.example.org\nlimits: [5/1s]\nhealth: off\n";
        let checked = Draft::read("x.yaml", file).unwrap().check(&World::empty());
        let ledger = Ledger::memory(Clock::System);
        let providers = vec![checked.provider.unwrap()];
        let shop = Shop::build(providers, ledger.clone(), Options::default()).unwrap();
        let live: Arc<Live> = shop.named("x").unwrap();
        let plan = live.plan();
        let scope = plan.cooldown_scope(None, None);
        let refused = Answer {
            class: Class::Refused,
            granted: ledger.at(),
            retry_after: Some(Span::from_secs(3_600)),
        };
        live.machine.answered(scope, refused, Some(&plan.cooldown));
        for spare in [&live.ledger, &live.spare.ledger] {
            assert_ne!(spare.look_scope(scope).await, ScopeView::Open);
        }
        live.order(Command::Reset);
        for spare in [&live.ledger, &live.spare.ledger] {
            assert_eq!(spare.look_scope(scope).await, ScopeView::Open);
        }
    }
}
