//! What a provider looks like from outside: limits, waiting, pauses; and what operators want of it.
//!
//! Promises: looking changes nothing and takes no permit. An order works at once and for every
//! process that shares the ledger.
//!
//! Never: shows a key; keys are told apart by their number in the pool.

use tollgate_config::provider::Per;
use tollgate_core::ask::{Priority, ScopeId};
use tollgate_core::health::{Command, Event};
use tollgate_core::limit::{Algorithm, View};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Now, Span};

use super::Live;
use super::meter::{Meter, Who};

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

impl Live {
    /// Both clocks, as its ledger reads them.
    #[must_use]
    pub fn now(&self) -> Now {
        self.ledger.now()
    }

    /// Every limit and what is left of it; of limits per entity, those of this one.
    #[must_use]
    pub fn limits(&self, entity: Option<&str>) -> Vec<LimitLook> {
        let plan = self.plan();
        let mut looks = Vec::new();
        for meter in &plan.meters {
            match meter.per {
                Per::Provider => looks.push(self.limit(meter, None, None, true)),
                Per::Entity => looks.push(self.limit(meter, entity, None, entity.is_some())),
                Per::ApiKey if plan.keys.is_empty() => {
                    looks.push(self.limit(meter, None, None, true));
                }
                Per::ApiKey => {
                    for (index, key) in plan.keys.iter().enumerate() {
                        let mut look = self.limit(meter, None, Some(&key.mark), true);
                        look.key = Some(index + 1);
                        looks.push(look);
                    }
                }
                Per::Caller | Per::Ip | Per::Host => {
                    looks.push(self.limit(meter, None, None, false));
                }
            }
        }
        looks
    }

    fn limit(
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
        let seen = is_known.then(|| {
            self.ledger
                .look(&[(meter.cell_of(&who), meter.rule.clone())])
        });
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
            period: meter.rule.period(),
            reserve: meter.reserve(),
            per: meter.per,
            key: None,
            view: seen.and_then(|views| views.first().copied()),
        }
    }

    /// Entities that calls of this process were about, as far as something is counted by entity.
    #[must_use]
    pub fn entities(&self) -> Vec<String> {
        self.seen.names()
    }

    /// How long its cool-down lasts; of an entity, if it has one of its own.
    #[must_use]
    pub fn cooling(&self, entity: Option<&str>) -> Option<Span> {
        let plan = self.plan();
        let mark = plan.keys.first().map(|key| &*key.mark);
        match self.ledger.look_scope(plan.cooldown_scope(entity, mark)) {
            ScopeView::Closed { left } => left,
            ScopeView::Open | ScopeView::Probing | ScopeView::CacheOnly { .. } => None,
        }
    }

    /// Only the cache answers, because little is left.
    #[must_use]
    pub fn is_degraded(&self, entity: Option<&str>) -> bool {
        let scope = self.plan().degrade_scope(entity);
        let view = scope.map(|scope| self.ledger.look_scope(scope));
        matches!(view, Some(ScopeView::Closed { .. }))
    }

    /// An operator wants something. `reset` also ends every cool-down and degrade mode.
    pub fn order(&self, command: Command) {
        self.machine.on(Event::Operator(command));
        if command == Command::Reset {
            let plan = self.plan();
            let own = plan.degrade_scope(None).into_iter();
            let keys = plan.keys.iter().map(|key| Some(&*key.mark));
            let cooling = keys.chain([None]).map(|key| plan.cooldown_scope(None, key));
            self.machine
                .forget(&own.chain(cooling).collect::<Vec<ScopeId>>(), true);
        }
        // Whoever waits at a door that has changed must look at it.
        self.machine.tell_waiting();
    }

    /// Ends the cool-down and the degrade mode of one entity.
    pub fn reset_entity(&self, entity: &str) {
        let plan = self.plan();
        let mut scopes = vec![plan.cooldown_scope(Some(entity), None)];
        scopes.extend(plan.degrade_scope(Some(entity)));
        self.machine.forget(&scopes, false);
        self.machine.tell_waiting();
    }
}
