//! The permit stage of a call: what to ask the gate for, and what its answer means.
//!
//! Promises: limits, health, cool-down, degrade, concurrency, connections and this process's pace
//! are one ask. A call that must not wait is refused at once; one that waits asks again, in its old
//! place, when the limits or the pace have changed. A permit whose call is given up tells health.
//!
//! Never: counts or decides by itself.

use std::sync::Arc;

use smallvec::SmallVec;
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
    let began = live.ledger.at();
    let place = tries.place(|| live.permits.place());
    let mut changes = live.machine.changes();
    loop {
        changes.mark_unchanged();
        let plan = live.plan();
        let look = live.machine.look();
        let (wanted, wants) = Wants::new(route, &plan, credential, &look.local, place);
        if plan.provider.enabled {
            may_wait(route, &plan, &look.door)?;
        }
        let asked = live.permits.acquire(wanted);
        let answer = tokio::select! {
            biased;
            answer = asked => answer,
            Ok(()) = changes.changed() => {
                live.permits.look_again();
                continue;
            }
        };
        tries.waited = tries.waited + live.ledger.at().since(began);
        let permit = answer.map_err(|denied| {
            tries.rates = Rates::refused(&plan, route.said.priority, wants.refusing(denied));
            wants.explain(route, &plan, denied)
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

/// What an attempt asks for, as far as it must be named if it is refused.
struct Wants {
    /// One per term.
    terms: SmallVec<[(CellId, Limit); 4]>,
    /// So many of the last terms are this process's own.
    local: usize,
    health: ScopeId,
    cooldown: ScopeId,
}

/// Which limit a term is. Its name is needed only for a refusal.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// The meter of the plan with this index.
    Meter(usize),
    /// One of this process's own.
    Own(Reason, &'static str),
}

impl Wants {
    fn new(
        route: &Route,
        plan: &Plan,
        credential: &Credential,
        local: &Local,
        place: u64,
    ) -> (Wanted, Wants) {
        let who = route.who(credential.mark.as_deref());
        let mut wants = Wants {
            terms: SmallVec::new(),
            local: 0,
            health: route.live.machine.scope(),
            cooldown: plan.cooldown_scope(who.entity, who.key),
        };
        let mut terms = Terms::new();
        for (index, meter) in plan.meters.iter().enumerate() {
            if let Some(term) = meter.term(&who) {
                wants.terms.push((term.cell, Limit::Meter(index)));
                terms.push(term);
            }
        }
        let own = &route.live.own;
        for (rule, cell, name, reason) in [
            (
                &plan.connections,
                own.connections,
                "connections",
                Reason::Concurrency,
            ),
            (
                &local.concurrency,
                own.concurrency,
                "throttle",
                Reason::Concurrency,
            ),
            (&local.rate, own.rate, "throttle rate", Reason::Limit),
        ] {
            if let Some(rule) = rule {
                wants.local += 1;
                wants.terms.push((cell, Limit::Own(reason, name)));
                terms.push(Term {
                    cell,
                    rule: rule.clone(),
                    cost: 1,
                    leave: 0,
                });
            }
        }
        let mut scopes = Scopes::new();
        if plan.provider.enabled {
            scopes.push(wants.health);
            scopes.push(wants.cooldown);
            scopes.extend(plan.degrade_scope(who.entity));
        }
        let wanted = Wanted {
            terms,
            scopes,
            priority: route.said.priority,
            caller: route.caller(),
            patience: route.patience(plan.provider.queue.timeout),
            evidence: Evidence::Report {
                by: plan.provider.timeouts.first_byte,
                late: plan.provider.late_arrival,
            },
            seniority: Some(place),
        };
        (wanted, wants)
    }

    /// Why there is no permit, in the words of a refusal.
    fn explain(&self, route: &Route, plan: &Plan, denied: Denied) -> Error {
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
                    let index = self.terms.iter().position(|term| term.0 == cell);
                    let (reason, limit) = self.named(plan, index);
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
                let (_, name) = self.named(plan, Some(term));
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
        let index = self.terms.iter().position(|term| term.0 == cell)?;
        (index < self.terms.len() - self.local).then_some((index, retry_in))
    }

    /// What this term is called, and what a refusal by it is about.
    fn named(&self, plan: &Plan, term: Option<usize>) -> (Reason, Option<String>) {
        match term.and_then(|term| self.terms.get(term)) {
            Some((_, Limit::Meter(index))) => match plan.meters.get(*index) {
                Some(meter) if meter.is_concurrency() => {
                    (Reason::Concurrency, Some(meter.name.clone()))
                }
                meter => (Reason::Limit, meter.map(|meter| meter.name.clone())),
            },
            Some((_, Limit::Own(reason, name))) => (*reason, Some((*name).to_owned())),
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
