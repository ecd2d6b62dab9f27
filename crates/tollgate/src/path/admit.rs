//! The permit stage of a call: what to ask the gate for, and what its answer means.
//!
//! Promises: limits, health, cool-down, degrade, concurrency, connections and this process's pace
//! are one ask. A call that must not wait is refused at once; one that waits asks again, in its old
//! place, when the limits or the pace have changed. A permit whose call is given up tells health.
//!
//! Never: counts or decides by itself.

use std::sync::Arc;

use tollgate_core::ask::{CellId, Evidence, ScopeId, Scopes, Term, Terms, Why as Never};
use tollgate_core::gate::Place;
use tollgate_core::health::{Answer as Result_, Door, Event, WhenBlocked, Why};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};

use super::credential::Credential;
use super::permit::{Denied, Wanted};
use super::rates::Rates;
use super::retry::Tries;
use super::route::Route;
use crate::error::{Reason, Stage};
use crate::shop::{Local, Machine, Plan};
use crate::{Error, Permit};

/// When to come back if the store cannot be reached: those who wait ask again as often.
const STORE_RETRY: Span = Span::from_secs(1);

/// The right to make one attempt.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) permit: Permit,
    pub(crate) watch: OnItsWay,
}

/// An attempt that health waits to hear of. Dropped, it says that nothing was learned.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    machine: Option<Arc<Machine>>,
    granted: Micros,
    /// It tries whether the provider has recovered.
    pub(crate) probe: bool,
}

/// Waits for a permit for one attempt.
pub(crate) async fn admit(
    route: &Route,
    credential: &Credential,
    tries: &mut Tries,
) -> Result<Granted, Error> {
    let live = &route.live;
    let began = live.ledger.now().at;
    let place = tries.place(|| live.permits.place());
    let mut changes = live.machine.changes();
    loop {
        changes.mark_unchanged();
        let plan = live.plan();
        let look = live.machine.look();
        let wants = Wants::new(route, &plan, credential, &look.local);
        if plan.provider.enabled {
            may_wait(route, &plan, &look.door)?;
        }
        let asked = live.permits.acquire(wants.wanted(route, &plan, place));
        let answer = tokio::select! {
            biased;
            answer = asked => answer,
            Ok(()) = changes.changed() => {
                live.permits.look_again();
                continue;
            }
        };
        tries.waited = tries.waited + live.ledger.now().at.since(began);
        let permit = answer.map_err(|denied| {
            tries.rates = Rates::refused(&plan, route.said.priority, wants.refusing(denied));
            wants.explain(route, denied)
        })?;
        tries.rates = Rates::granted(&plan, route.said.priority, permit.marks());
        let watched = plan.provider.enabled.then(|| live.machine.clone());
        let probe = watched.as_ref().is_some_and(|machine| machine.granted());
        return Ok(Granted {
            watch: OnItsWay {
                machine: watched,
                granted: permit.granted(),
                probe,
            },
            permit: permit.with_local(wants.local),
        });
    }
}

/// Is there a door that nobody may wait at?
fn may_wait(route: &Route, plan: &Plan, door: &Door) -> Result<(), Error> {
    let provider = || route.live.name.clone();
    match *door {
        Door::Closed {
            why: Why::CacheOnly,
            left,
            ..
        } => {
            return Err(Error::NotInCache {
                provider: provider(),
                entity: route.entity.clone(),
                reason: Reason::CacheOnly,
                retry_in: left,
            });
        }
        Door::Closed {
            why: Why::Sleep,
            blocked: WhenBlocked::Reject,
            ..
        } => {
            return Err(Error::Asleep {
                provider: provider(),
                status: Box::new(route.live.status()),
            });
        }
        Door::Open
        | Door::Probing
        | Door::Closed {
            why: Why::Sleep,
            blocked: WhenBlocked::Wait,
            ..
        } => {}
    }
    let scope = plan.degrade_scope(route.entity.as_deref());
    match scope.map(|scope| route.live.ledger.look_scope(scope)) {
        Some(ScopeView::Closed { left }) => Err(Error::NotInCache {
            provider: provider(),
            entity: route.entity.clone(),
            reason: Reason::Degraded,
            retry_in: left,
        }),
        Some(ScopeView::Open | ScopeView::Probing) | None => Ok(()),
    }
}

/// What an attempt asks for, and the names of it.
struct Wants {
    terms: Terms,
    /// One per term.
    names: Vec<(Reason, String)>,
    /// So many of the last terms are this process's own.
    local: usize,
    scopes: Scopes,
    health: ScopeId,
    cooldown: ScopeId,
}

impl Wants {
    fn new(route: &Route, plan: &Plan, credential: &Credential, local: &Local) -> Wants {
        let who = route.who(credential.mark.as_deref());
        let cooldown = plan.cooldown_scope(who.entity, who.key);
        let mut wants = Wants {
            terms: Terms::new(),
            names: Vec::new(),
            local: 0,
            scopes: Scopes::new(),
            health: route.live.machine.scope(),
            cooldown,
        };
        for meter in &plan.meters {
            if let Some(term) = meter.term(&who) {
                let reason = if meter.is_concurrency() {
                    Reason::Concurrency
                } else {
                    Reason::Limit
                };
                wants.terms.push(term);
                wants.names.push((reason, meter.name.clone()));
            }
        }
        for (rule, name, reason) in [
            (&plan.connections, "connections", Reason::Concurrency),
            (&local.concurrency, "throttle", Reason::Concurrency),
            (&local.rate, "throttle rate", Reason::Limit),
        ] {
            if let Some(rule) = rule {
                wants.local += 1;
                wants.names.push((reason, name.to_owned()));
                wants.terms.push(Term {
                    cell: plan.local_cell(name, route.live.owner),
                    rule: rule.clone(),
                    cost: 1,
                    leave: 0,
                });
            }
        }
        if plan.provider.enabled {
            wants.scopes.push(wants.health);
            wants.scopes.push(cooldown);
            wants.scopes.extend(plan.degrade_scope(who.entity));
        }
        wants
    }

    fn wanted(&self, route: &Route, plan: &Plan, place: u64) -> Wanted {
        Wanted {
            terms: self.terms.clone(),
            scopes: self.scopes.clone(),
            priority: route.said.priority,
            caller: route.caller(),
            patience: route.patience(plan.provider.queue.timeout),
            evidence: Evidence::Report {
                by: plan.provider.timeouts.first_byte,
                late: plan.provider.late_arrival,
            },
            seniority: Some(place),
        }
    }

    /// Why there is no permit, in the words of a refusal.
    fn explain(&self, route: &Route, denied: Denied) -> Error {
        let no_permit = |reason, limit, retry_in| Error::NoPermit {
            provider: route.live.name.clone(),
            entity: route.entity.clone(),
            limit,
            reason,
            retry_in,
        };
        // While the store cannot be asked, no limit has refused anything.
        if self.waits_for_ledger(denied) && route.live.ledger.trouble().is_some() {
            return no_permit(Reason::StoreLost, None, Some(STORE_RETRY));
        }
        match denied {
            Denied::Refused { place, retry_in } => match place {
                Place::Cell(cell) => {
                    let (reason, limit) = self.named(cell);
                    no_permit(reason, limit, Some(retry_in))
                }
                Place::Scope(scope) if scope == self.health => Error::Asleep {
                    provider: route.live.name.clone(),
                    status: Box::new(route.live.status()),
                },
                Place::Scope(scope) if scope == self.cooldown => {
                    no_permit(Reason::Cooldown, None, Some(retry_in))
                }
                Place::Scope(_) => Error::NotInCache {
                    provider: route.live.name.clone(),
                    entity: route.entity.clone(),
                    reason: Reason::Degraded,
                    retry_in: Some(retry_in),
                },
                Place::OffPeak => no_permit(Reason::OffPeak, None, Some(retry_in)),
                Place::Front => no_permit(Reason::Limit, None, Some(retry_in)),
            },
            Denied::TimedOut { .. } => Error::TooLate {
                provider: route.live.name.clone(),
                at: Stage::Waiting,
            },
            Denied::Full => no_permit(Reason::QueueFull, None, Some(Span::from_secs(1))),
            Denied::Never(Never::TooCostly { term, .. }) => {
                let name = self.names.get(term).map(|(_, name)| name.clone());
                no_permit(Reason::TooCostly, name, None)
            }
            Denied::Closed => no_permit(Reason::StoreLost, None, None),
        }
    }

    /// Would the ledger have had to agree?
    fn waits_for_ledger(&self, denied: Denied) -> bool {
        match denied {
            Denied::Refused {
                place: Place::Cell(_),
                ..
            }
            | Denied::TimedOut { .. } => true,
            Denied::Refused {
                place: Place::Scope(_) | Place::OffPeak | Place::Front,
                ..
            }
            | Denied::Full
            | Denied::Never(_)
            | Denied::Closed => false,
        }
    }

    /// The limit of the file that refused, by its place.
    fn refusing(&self, denied: Denied) -> Option<(usize, Span)> {
        let Denied::Refused {
            place: Place::Cell(cell),
            retry_in,
        } = denied
        else {
            return None;
        };
        let index = self.terms.iter().position(|term| term.cell == cell)?;
        (index < self.terms.len() - self.local).then_some((index, retry_in))
    }

    fn named(&self, cell: CellId) -> (Reason, Option<String>) {
        let index = self.terms.iter().position(|term| term.cell == cell);
        match index.and_then(|index| self.names.get(index)) {
            Some((reason, name)) => (*reason, Some(name.clone())),
            None => (Reason::Limit, None),
        }
    }
}

impl OnItsWay {
    /// The attempt has come to its end.
    pub(crate) fn ended(mut self, class: tollgate_core::health::Class, retry_after: Option<Span>) {
        if let Some(machine) = self.machine.take() {
            machine.on(Event::Answered(Result_ {
                class,
                granted: self.granted,
                retry_after,
            }));
        }
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        if let Some(machine) = self.machine.take() {
            let granted = self.granted;
            machine.on(Event::Dropped { granted });
        }
    }
}
