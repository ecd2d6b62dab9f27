//! The permit stage of a call: what to ask the gate for, and what its answer means.
//!
//! Promises: limits, health, cool-down, degrade, concurrency, connections and this process's pace
//! are one ask. A call that must not wait is refused at once; one that waits asks again, in its old
//! place, when the limits or the pace have changed. A permit whose call is given up tells health.
//! While the ledger's store is lost, what follows is what `on_store_loss` says.
//!
//! Never: counts or decides by itself.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::watch;
use tollgate_core::ask::{CellId, Evidence, ScopeId, Scopes, Settle, Term, Terms, Why as Never};
use tollgate_core::gate::Place;
use tollgate_core::health::{Door, WhenBlocked, Why};
use tollgate_core::limit::Rule;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};
use tollgate_core::turn::hopeless;
use tollgate_ledger::{Ledger, Loss};

use super::credential::Credential;
use super::on_its_way::OnItsWay;
use super::permit::{Denied, Permits, Wanted};
use super::rates::Rates;
use super::retry::Tries;
use super::route::Route;
use crate::error::{Reason, Stage};
use crate::shop::{Instead, Live, Local, Plan, Who, just_now};
use crate::{Error, Permit};

/// The right to make one attempt.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) permit: Permit,
    pub(crate) watch: OnItsWay,
}

/// Waits for a permit for one attempt.
pub(crate) async fn admit(
    route: &Route,
    credential: &Credential,
    tries: &mut Tries,
) -> Result<Granted, Error> {
    let live = &route.live;
    live.machine.meet().await;
    let mut began = None;
    let place = tries.place(|| live.permits.place());
    let mut changes = live.machine.changes();
    let mut told = None;
    let stays_away = || live.permits.stays_away(place);
    loop {
        changes.mark_unchanged();
        let edition = live.permits.edition();
        let plan = live.plan();
        let look = live.machine.look();
        let began = *began.get_or_insert(look.at);
        let (wanted, wants) = Wants::new(route, &plan, credential, &look.local, (place, edition));
        let priority = wanted.priority; // as asked for: it may be raised meanwhile
        let until = route.in_line_until(plan.provider.queue.timeout);
        let loss = live.ledger.loss().or(told.take());
        if plan.provider.enabled {
            let scopes = loss.map_or(&live.ledger, |_| &live.spare.ledger);
            let may = may_wait(route, &plan, &look.door, scopes).await;
            may.inspect_err(|_| stays_away())?;
        }
        let whom = whom(route, &plan, &wants, wanted, loss).inspect_err(|_| stays_away());
        let (permits, wanted, is_counted) = whom?;
        wants.take_over(permits, edition);
        let Some(answer) = ask(route, permits, wanted, &mut changes).await else {
            continue;
        };
        if wants.goes_on(route, &plan, &answer, until, loss) {
            continue; // somebody more patient waits for it too
        }
        if answer.as_ref().is_err_and(|denied| *denied == Denied::Lost) {
            // Whoever was told so by the store does not ask it again, even if it is back already.
            told = loss.is_none().then(|| just_now(live.ledger.at()));
            continue;
        }
        let decided = answer
            .as_ref()
            .map_or_else(|_| live.ledger.at(), Permit::granted);
        tries.waited = tries.waited + decided.since(began);
        let permit = answer.map_err(|denied| {
            tries.rates = Rates::refused(&plan, priority, wants.refusing(denied));
            wants.explain(route, &plan, denied, loss)
        })?;
        tries.rates = Rates::granted(&plan, priority, permit.marks());
        if !is_counted {
            live.spare.went_on();
        }
        return Ok(wants.granted(live, &plan, permit));
    }
}

/// Goes at once, as most calls may, or stands in line. `None`: it is to be asked for anew, in the old
/// place, because other limits hold or the pace has changed, or in the name of somebody more urgent.
async fn ask(
    route: &Route,
    permits: &Permits,
    wanted: Wanted,
    changes: &mut watch::Receiver<u64>,
) -> Option<Result<Permit, Denied>> {
    let answer = match permits.at_once(wanted) {
        Ok(answer) => Some(answer),
        // On the heap: its size would be that of every call.
        Err(wanted) => Box::pin(stand(route, permits, wanted, changes)).await,
    };
    answer.filter(|answer| !matches!(answer, Err(Denied::Recalled)))
}

/// Stands in line.
async fn stand(
    route: &Route,
    permits: &Permits,
    wanted: Wanted,
    changes: &mut watch::Receiver<u64>,
) -> Option<Result<Permit, Denied>> {
    let (place, who) = (wanted.seniority, (wanted.caller, wanted.priority));
    let returns = || place.map(|place| permits.returns(place, who));
    tokio::select! {
        biased;
        answer = permits.wait(wanted) => Some(answer),
        Ok(()) = changes.changed() => {
            returns();
            permits.look_again();
            None
        }
        () = route.raised() => {
            returns();
            None
        }
    }
}

/// Who is asked, for what, and whether that counts: the ledger, or what stands in while it is lost.
/// What can never be had is not asked for: a full line would say "later" to it.
fn whom<'a>(
    route: &'a Route,
    plan: &Plan,
    wants: &Wants,
    wanted: Wanted,
    loss: Option<Loss>,
) -> Result<(&'a Permits, Wanted, bool), Error> {
    let live = &route.live;
    if let Some(limit) = &plan.nothing {
        return Err(nothing(route, limit));
    }
    if let Some(why) = hopeless(&wanted.terms, wanted.priority) {
        return Err(wants.explain(route, plan, Denied::Never(why), None));
    }
    let Some(loss) = loss else {
        return Ok((&live.permits, wanted, true));
    };
    match live
        .spare
        .instead(plan, wanted, wants.local, &live.ledger, loss)
    {
        Instead::Refuse(retry_in) => Err(store_lost(route, retry_in)),
        Instead::Ask { wanted, is_counted } => Ok((&live.spare.permits, *wanted, is_counted)),
    }
}

/// Is there a door that nobody may wait at?
async fn may_wait(route: &Route, plan: &Plan, door: &Door, scopes: &Ledger) -> Result<(), Error> {
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
    let Some(scope) = plan.degrade_scope(route.entity.as_deref()) else {
        return Ok(());
    };
    match scopes.look_scope(scope).await {
        ScopeView::Closed { left } => Err(Error::NotInCache {
            provider: provider(),
            entity: route.entity.clone(),
            reason: Reason::Degraded,
            retry_in: left,
        }),
        ScopeView::Open | ScopeView::Probing | ScopeView::CacheOnly { .. } => Ok(()),
    }
}

/// What an attempt asks for, as far as it must be named if it is refused.
struct Wants {
    /// One per term.
    terms: SmallVec<[(CellId, Limit); 4]>,
    /// So many of the first terms are limits of the provider.
    limits: usize,
    /// So many of the last terms are this process's own.
    local: usize,
    health: ScopeId,
    cooldown: ScopeId,
    /// Closed after a loss during which nodes had their shares.
    share: Option<ScopeId>,
    /// What must be taken over first; nothing but for a while after a reload.
    carries: Vec<Settle>,
}

/// Which limit a term is. Its name is needed only for a refusal.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// The meter of the plan with this index.
    Meter(usize),
    /// The part of it that the caller may use.
    Share(usize),
    /// One of this process's own.
    Own(Reason, &'static str),
}

impl Wants {
    fn new(
        route: &Route,
        plan: &Plan,
        credential: &Credential,
        local: &Local,
        (place, edition): (u64, u64),
    ) -> (Wanted, Wants) {
        let who = route.who(credential.mark.as_deref());
        route.live.seen.note(plan, who.entity);
        let mut wants = Wants {
            terms: SmallVec::new(),
            limits: 0,
            local: 0,
            health: route.live.machine.scope(),
            cooldown: plan.cooldown_scope(who.entity, who.key),
            share: plan.share,
            carries: plan.carries(&who, route.at_most_permille.is_some(), &route.live.ledger),
        };
        let mut terms = Terms::new();
        for (index, meter) in plan.meters.iter().enumerate() {
            if let Some(term) = meter.term(&who) {
                wants.terms.push((term.cell, Limit::Meter(index)));
                terms.push(term);
            }
        }
        wants.limits = terms.len();
        if let Some(permille) = route.at_most_permille {
            wants.add_shares(plan, &who, permille, &mut terms);
        }
        wants.add_own(route, plan, local, &mut terms);
        let wish = route.wish();
        let wanted = Wanted {
            terms,
            scopes: wants.scopes(plan, who.entity),
            priority: wish.priority,
            caller: wish.caller,
            patience: route.patience_in_line(plan.provider.queue.timeout),
            evidence: Evidence::Report {
                by: plan.provider.timeouts.first_byte,
                late: plan.provider.late_arrival,
            },
            seniority: Some(place),
            edition,
        };
        (wanted, wants)
    }

    /// What was counted under former limits counts under these before anything is asked for.
    fn take_over(&self, permits: &Permits, edition: u64) {
        if !self.carries.is_empty() {
            permits.carry(edition, &self.carries);
        }
    }

    /// The terms that concern this process alone: they stand last.
    fn add_own(&mut self, route: &Route, plan: &Plan, local: &Local, terms: &mut Terms) {
        for (rule, cell, name, reason) in own(&route.live, plan, local) {
            if let Some(rule) = rule {
                self.local += 1;
                self.terms.push((cell, Limit::Own(reason, name)));
                terms.push(Term {
                    cell,
                    rule: rule.clone(),
                    cost: 1,
                    leave: 0,
                });
            }
        }
    }

    /// Every scope that must be open.
    fn scopes(&self, plan: &Plan, entity: Option<&str>) -> Scopes {
        let mut scopes = Scopes::new();
        if plan.provider.enabled {
            scopes.push(self.health);
            scopes.push(self.cooldown);
            scopes.extend(plan.degrade_scope(entity));
            scopes.extend(self.share);
        }
        scopes
    }

    fn granted(&self, live: &Live, plan: &Plan, permit: Permit) -> Granted {
        let watched = plan.provider.enabled.then(|| live.machine.clone());
        let probe = watched.as_ref().is_some_and(|machine| machine.granted());
        Granted {
            watch: OnItsWay {
                machine: watched,
                granted: permit.granted(),
                cooldown: self.cooldown,
                probe,
            },
            permit: permit.with_parts(self.limits, self.local),
        }
    }

    /// A caller that may use only a part of every limit has that part as limits of its own.
    fn add_shares(&mut self, plan: &Plan, who: &Who<'_>, permille: u16, terms: &mut Terms) {
        for (index, meter) in plan.meters.iter().enumerate() {
            if let Some(term) = meter.share(who, permille) {
                self.terms.push((term.cell, Limit::Share(index)));
                terms.push(term);
            }
        }
    }

    /// Why there is no permit, in the words of a refusal.
    fn explain(&self, route: &Route, plan: &Plan, denied: Denied, loss: Option<Loss>) -> Error {
        let no_permit = |reason, limit, retry_in| Error::NoPermit {
            provider: route.live.name.clone(),
            entity: route.entity.clone(),
            limit,
            reason,
            retry_in,
        };
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
                Place::Scope(scope) if Some(scope) == self.share => {
                    store_lost(route, Some(retry_in))
                }
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
            // More than this node's share ever has.
            Denied::Never(_) if loss.is_some() => store_lost(route, None),
            Denied::Never(Never::TooCostly { term, .. }) => {
                let (_, name) = self.named(plan, Some(term));
                no_permit(Reason::TooCostly, name, None)
            }
            // A recall is not seen here: whoever is recalled asks again.
            Denied::Lost | Denied::Recalled => store_lost(route, None),
            Denied::Closed => no_permit(Reason::Ending, None, None),
        }
    }

    /// Its caller's time in line is up. Does it go on for others who have more?
    fn goes_on(
        &self,
        route: &Route,
        plan: &Plan,
        answer: &Result<Permit, Denied>,
        until: Micros,
        loss: Option<Loss>,
    ) -> bool {
        let (Err(denied), Some(urgency)) = (answer, &route.urgency) else {
            return false;
        };
        let told = || self.explain(route, plan, *denied, loss);
        denied.is_for_time()
            && !route.fallback
            && urgency.goes_on_after(until, plan.provider.queue.timeout, told)
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
        (index < self.limits).then_some((index, retry_in))
    }

    /// What this term is called, and what a refusal by it is about.
    fn named(&self, plan: &Plan, term: Option<usize>) -> (Reason, Option<String>) {
        match term.and_then(|term| self.terms.get(term)) {
            Some((_, Limit::Meter(index))) => match plan.meters.get(*index) {
                Some(meter) => (meter.reason(), Some(meter.name.clone())),
                None => (Reason::Limit, None),
            },
            Some((_, Limit::Share(index))) => match plan.meters.get(*index) {
                Some(meter) => {
                    let name = format!("{} (the caller's part)", meter.name);
                    (meter.reason(), Some(name))
                }
                None => (Reason::Limit, None),
            },
            Some((_, Limit::Own(reason, name))) => (*reason, Some((*name).to_owned())),
            None => (Reason::Limit, None),
        }
    }
}

/// Of this limit the node has no part at all.
fn nothing(route: &Route, limit: &str) -> Error {
    Error::NoPermit {
        provider: route.live.name.clone(),
        entity: route.entity.clone(),
        limit: Some(limit.to_owned()),
        reason: Reason::NoPart,
        retry_in: None,
    }
}

/// The limits of this process alone.
fn own<'a>(
    live: &Live,
    plan: &'a Plan,
    local: &'a Local,
) -> [(&'a Option<Arc<Rule>>, CellId, &'static str, Reason); 3] {
    let cells = &live.own;
    let at_a_time = Reason::Concurrency;
    [
        (
            &plan.connections,
            cells.connections,
            "connections",
            at_a_time,
        ),
        (&local.concurrency, cells.concurrency, "throttle", at_a_time),
        (&local.rate, cells.rate, "throttle rate", Reason::Limit),
    ]
}

/// The store is lost, and `on_store_loss` says no.
fn store_lost(route: &Route, retry_in: Option<Span>) -> Error {
    Error::NoPermit {
        provider: route.live.name.clone(),
        entity: route.entity.clone(),
        limit: None,
        reason: Reason::StoreLost,
        retry_in,
    }
}
