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
use tollgate_core::ask::{
    CellId, Evidence, NeverReason as Never, ScopeId, Scopes, Settle, Term, Terms,
};
use tollgate_core::gate::Blocker;
use tollgate_core::health::{Admission, BlockReason, WhenBlocked};
use tollgate_core::limit::Rule;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};
use tollgate_core::turn::too_costly;
use tollgate_ledger::{Ledger, StoreLoss};

use super::attempt_guard::AttemptGuard;
use super::credential::Credential;
use super::permit::{Denied, PermitRequest, Permits};
use super::rates::Rates;
use super::retry::RetryState;
use super::route::Route;
use crate::error::{Reason, Stage};
use crate::providers::{
    ActiveProvider, CallAttributes, CompiledPolicy, LossDecision, ThrottleRules, loss_since_now,
};
use crate::{Error, Permit};

/// The right to make one attempt.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) permit: Permit,
    pub(crate) attempt_guard: AttemptGuard,
}

/// Waits for a permit for one attempt.
pub(crate) async fn permit(
    route: &Route,
    credential: &Credential,
    tries: &mut RetryState,
) -> Result<Grant, Error> {
    let live = &route.provider;
    live.health.sync_once().await;
    let mut began = None;
    let place = tries.seniority(|| live.permits.new_seniority());
    let mut changes = live.health.changes();
    let mut told = None;
    let stays_away = || live.permits.cancel_return(place);
    loop {
        changes.mark_unchanged();
        let edition = live.permits.edition();
        let plan = live.policy();
        let look = live.health.view();
        let began = *began.get_or_insert(look.at);
        let (wanted, wants) =
            RequestedLimits::new(route, &plan, credential, &look.throttle, (place, edition));
        let priority = wanted.priority; // as asked for: it may be raised meanwhile
        let until = route.queue_deadline(plan.provider.queue.timeout);
        let loss = live.ledger.loss().or(told.take());
        if plan.provider.enabled {
            let scopes = loss.map_or(&live.ledger, |_| &live.local_share.ledger);
            let may = reject_if_closed(route, &plan, &look.admission, scopes).await;
            may.inspect_err(|_| stays_away())?;
        }
        let whom = choose_ledger(route, &plan, &wants, wanted, loss).inspect_err(|_| stays_away());
        let (permits, wanted, is_counted) = whom?;
        wants.inherit_counts(permits, edition);
        let Some(answer) = request_permit(route, permits, wanted, &mut changes).await else {
            continue;
        };
        if wants.continues_for_others(route, &plan, &answer, until, loss) {
            continue; // somebody more patient waits for it too
        }
        if answer.as_ref().is_err_and(|denied| *denied == Denied::Lost) {
            // Whoever was told so by the store does not ask it again, even if it is back already.
            told = loss.is_none().then(|| loss_since_now(live.ledger.at()));
            continue;
        }
        let decided = answer
            .as_ref()
            .map_or_else(|_| live.ledger.at(), Permit::granted);
        tries.waited = tries.waited + decided.since(began);
        let permit = answer.map_err(|denied| {
            tries.rates = Rates::rejected(&plan, priority, wants.exhausted_limit(denied));
            wants.to_error(route, &plan, denied, loss)
        })?;
        tries.rates = Rates::granted(&plan, priority, permit.marks());
        if !is_counted {
            live.local_share.record_uncounted();
        }
        return Ok(wants.grant(live, &plan, permit));
    }
}

/// Goes at once, as most calls may, or stands in line. `None`: it is to be asked for anew, in the old
/// place, because other limits hold or the pace has changed, or in the name of somebody more urgent.
async fn request_permit(
    route: &Route,
    permits: &Permits,
    wanted: PermitRequest,
    changes: &mut watch::Receiver<u64>,
) -> Option<Result<Permit, Denied>> {
    let answer = match permits.try_acquire(wanted) {
        Ok(answer) => Some(answer),
        // On the heap: its size would be that of every call.
        Err(wanted) => Box::pin(wait_in_queue(route, permits, wanted, changes)).await,
    };
    answer.filter(|answer| !matches!(answer, Err(Denied::Recalled)))
}

/// Stands in line.
async fn wait_in_queue(
    route: &Route,
    permits: &Permits,
    wanted: PermitRequest,
    changes: &mut watch::Receiver<u64>,
) -> Option<Result<Permit, Denied>> {
    let (place, who) = (wanted.seniority, (wanted.caller, wanted.priority));
    let returns = || place.map(|place| permits.expect_return(place, who));
    tokio::select! {
        biased;
        answer = permits.wait(wanted) => Some(answer),
        Ok(()) = changes.changed() => {
            returns();
            permits.recheck();
            None
        }
        () = route.queue_until_raised() => {
            returns();
            None
        }
    }
}

/// Who is asked, for what, and whether that counts: the ledger, or what stands in while it is lost.
/// What can never be had is not asked for: a full line would say "later" to it.
fn choose_ledger<'a>(
    route: &'a Route,
    plan: &CompiledPolicy,
    wants: &RequestedLimits,
    wanted: PermitRequest,
    loss: Option<StoreLoss>,
) -> Result<(&'a Permits, PermitRequest, bool), Error> {
    let live = &route.provider;
    if let Some(limit) = &plan.zero_limit {
        return Err(no_share(route, limit));
    }
    if let Some(why) = too_costly(&wanted.terms, wanted.priority) {
        return Err(wants.to_error(route, plan, Denied::Never(why), None));
    }
    let Some(loss) = loss else {
        return Ok((&live.permits, wanted, true));
    };
    match live
        .local_share
        .decide(plan, wanted, wants.local, &live.ledger, loss)
    {
        LossDecision::Reject(retry_in) => Err(store_lost(route, retry_in)),
        LossDecision::Ask { wanted, is_counted } => {
            Ok((&live.local_share.permits, *wanted, is_counted))
        }
    }
}

/// Is there a door that nobody may wait at?
async fn reject_if_closed(
    route: &Route,
    plan: &CompiledPolicy,
    door: &Admission,
    scopes: &Ledger,
) -> Result<(), Error> {
    let provider = || route.provider.name.clone();
    match *door {
        Admission::Closed {
            why: BlockReason::CacheOnly,
            remaining: left,
            ..
        } => {
            return Err(Error::NotInCache {
                provider: provider(),
                entity: route.entity.clone(),
                reason: Reason::CacheOnly,
                retry_in: left,
            });
        }
        Admission::Closed {
            why: BlockReason::Sleep,
            blocked: WhenBlocked::Reject,
            ..
        } => {
            return Err(Error::Asleep {
                provider: provider(),
                status: Box::new(route.provider.status()),
            });
        }
        Admission::Open
        | Admission::Probing
        | Admission::Closed {
            why: BlockReason::Sleep,
            blocked: WhenBlocked::Wait,
            ..
        } => {}
    }
    let Some(scope) = plan.degrade_scope(route.entity.as_deref()) else {
        return Ok(());
    };
    match scopes.peek_scope(scope).await {
        ScopeView::Closed { remaining: left } => Err(Error::NotInCache {
            provider: provider(),
            entity: route.entity.clone(),
            reason: Reason::Degraded,
            retry_in: left,
        }),
        ScopeView::Open | ScopeView::Probing | ScopeView::CacheOnly { .. } => Ok(()),
    }
}

/// What an attempt asks for, as far as it must be named if it is refused.
struct RequestedLimits {
    /// One per term.
    terms: SmallVec<[(CellId, TermKind); 4]>,
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
enum TermKind {
    /// The meter of the plan with this index.
    Limit(usize),
    /// The part of it that the caller may use.
    CallerShare(usize),
    /// One of this process's own.
    Local(Reason, &'static str),
}

impl RequestedLimits {
    fn new(
        route: &Route,
        plan: &CompiledPolicy,
        credential: &Credential,
        local: &ThrottleRules,
        (place, edition): (u64, u64),
    ) -> (PermitRequest, RequestedLimits) {
        let who = route.who(credential.fingerprint.as_deref());
        route.provider.seen_entities.record(plan, who.entity);
        let mut wants = RequestedLimits {
            terms: SmallVec::new(),
            limits: 0,
            local: 0,
            health: route.provider.health.scope(),
            cooldown: plan.cooldown_scope(who.entity, who.key),
            share: plan.share_scope,
            carries: plan.carry_settles(
                &who,
                route.at_most_permille.is_some(),
                &route.provider.ledger,
            ),
        };
        let mut terms = Terms::new();
        for (index, meter) in plan.limits.iter().enumerate() {
            if let Some(term) = meter.term(&who) {
                wants.terms.push((term.cell, TermKind::Limit(index)));
                terms.push(term);
            }
        }
        wants.limits = terms.len();
        if let Some(permille) = route.at_most_permille {
            wants.add_caller_shares(plan, &who, permille, &mut terms);
        }
        wants.add_local(route, plan, local, &mut terms);
        let wish = route.demand();
        let wanted = PermitRequest {
            terms,
            scopes: wants.scopes(plan, who.entity),
            priority: wish.priority,
            caller: wish.caller,
            patience: route.queue_patience(plan.provider.queue.timeout),
            evidence: Evidence::Report {
                timeout: plan.provider.timeouts.first_byte,
                late: plan.provider.late_arrival,
            },
            seniority: Some(place),
            edition,
        };
        (wanted, wants)
    }

    /// What was counted under former limits counts under these before anything is asked for.
    fn inherit_counts(&self, permits: &Permits, edition: u64) {
        if !self.carries.is_empty() {
            permits.carry(edition, &self.carries);
        }
    }

    /// The terms that concern this process alone: they stand last.
    fn add_local(
        &mut self,
        route: &Route,
        plan: &CompiledPolicy,
        local: &ThrottleRules,
        terms: &mut Terms,
    ) {
        for (rule, cell, name, reason) in local_limits(&route.provider, plan, local) {
            if let Some(rule) = rule {
                self.local += 1;
                self.terms.push((cell, TermKind::Local(reason, name)));
                terms.push(Term {
                    cell,
                    rule: rule.clone(),
                    cost: 1,
                    reserve: 0,
                });
            }
        }
    }

    /// Every scope that must be open.
    fn scopes(&self, plan: &CompiledPolicy, entity: Option<&str>) -> Scopes {
        let mut scopes = Scopes::new();
        if plan.provider.enabled {
            scopes.push(self.health);
            scopes.push(self.cooldown);
            scopes.extend(plan.degrade_scope(entity));
            scopes.extend(self.share);
        }
        scopes
    }

    fn grant(&self, live: &ActiveProvider, plan: &CompiledPolicy, permit: Permit) -> Grant {
        let watched = plan.provider.enabled.then(|| live.health.clone());
        let probe = watched.as_ref().is_some_and(|machine| machine.on_granted());
        Grant {
            attempt_guard: AttemptGuard {
                health: watched,
                granted: permit.granted(),
                cooldown: self.cooldown,
                probe,
            },
            permit: permit.with_parts(self.limits, self.local),
        }
    }

    /// A caller that may use only a part of every limit has that part as limits of its own.
    fn add_caller_shares(
        &mut self,
        plan: &CompiledPolicy,
        who: &CallAttributes<'_>,
        permille: u16,
        terms: &mut Terms,
    ) {
        for (index, meter) in plan.limits.iter().enumerate() {
            if let Some(term) = meter.caller_share(who, permille) {
                self.terms.push((term.cell, TermKind::CallerShare(index)));
                terms.push(term);
            }
        }
    }

    /// Why there is no permit, in the words of a refusal.
    fn to_error(
        &self,
        route: &Route,
        plan: &CompiledPolicy,
        denied: Denied,
        loss: Option<StoreLoss>,
    ) -> Error {
        let no_permit = |reason, limit, retry_in| Error::NoPermit {
            provider: route.provider.name.clone(),
            entity: route.entity.clone(),
            limit,
            reason,
            retry_in,
        };
        match denied {
            Denied::Rejected {
                blocker: place,
                retry_in,
            } => match place {
                Blocker::Cell(cell) => {
                    let index = self.terms.iter().position(|term| term.0 == cell);
                    let (reason, limit) = self.term_name(plan, index);
                    no_permit(reason, limit, Some(retry_in))
                }
                Blocker::Scope(scope) if scope == self.health => Error::Asleep {
                    provider: route.provider.name.clone(),
                    status: Box::new(route.provider.status()),
                },
                Blocker::Scope(scope) if Some(scope) == self.share => {
                    store_lost(route, Some(retry_in))
                }
                Blocker::Scope(scope) if scope == self.cooldown => {
                    no_permit(Reason::Cooldown, None, Some(retry_in))
                }
                Blocker::Scope(_) => Error::NotInCache {
                    provider: route.provider.name.clone(),
                    entity: route.entity.clone(),
                    reason: Reason::Degraded,
                    retry_in: Some(retry_in),
                },
                Blocker::OffPeak => no_permit(Reason::OffPeak, None, Some(retry_in)),
                Blocker::Front => no_permit(Reason::Limit, None, Some(retry_in)),
            },
            Denied::TimedOut { .. } => Error::TooLate {
                provider: route.provider.name.clone(),
                at: Stage::Waiting,
            },
            Denied::Full => no_permit(Reason::QueueFull, None, Some(Span::from_secs(1))),
            // More than this node's share ever has.
            Denied::Never(_) if loss.is_some() => store_lost(route, None),
            Denied::Never(Never::TooCostly { term, .. }) => {
                let (_, name) = self.term_name(plan, Some(term));
                no_permit(Reason::TooCostly, name, None)
            }
            // A recall is not seen here: whoever is recalled asks again.
            Denied::Lost | Denied::Recalled => store_lost(route, None),
            Denied::Closed => no_permit(Reason::ShuttingDown, None, None),
        }
    }

    /// Its caller's time in line is up. Does it go on for others who have more?
    fn continues_for_others(
        &self,
        route: &Route,
        plan: &CompiledPolicy,
        answer: &Result<Permit, Denied>,
        until: Micros,
        loss: Option<StoreLoss>,
    ) -> bool {
        let (Err(denied), Some(urgency)) = (answer, &route.shared_demand) else {
            return false;
        };
        let told = || self.to_error(route, plan, *denied, loss);
        denied.is_timeout()
            && !route.fallback
            && urgency.continues_after(until, plan.provider.queue.timeout, told)
    }

    /// The limit of the file that refused, by its place.
    fn exhausted_limit(&self, denied: Denied) -> Option<(usize, Span)> {
        let Denied::Rejected {
            blocker: Blocker::Cell(cell),
            retry_in,
        } = denied
        else {
            return None;
        };
        let index = self.terms.iter().position(|term| term.0 == cell)?;
        (index < self.limits).then_some((index, retry_in))
    }

    /// What this term is called, and what a refusal by it is about.
    fn term_name(&self, plan: &CompiledPolicy, term: Option<usize>) -> (Reason, Option<String>) {
        match term.and_then(|term| self.terms.get(term)) {
            Some((_, TermKind::Limit(index))) => match plan.limits.get(*index) {
                Some(meter) => (meter.reason(), Some(meter.name.clone())),
                None => (Reason::Limit, None),
            },
            Some((_, TermKind::CallerShare(index))) => match plan.limits.get(*index) {
                Some(meter) => {
                    let name = format!("{} (the caller's part)", meter.name);
                    (meter.reason(), Some(name))
                }
                None => (Reason::Limit, None),
            },
            Some((_, TermKind::Local(reason, name))) => (*reason, Some((*name).to_owned())),
            None => (Reason::Limit, None),
        }
    }
}

/// Of this limit the node has no part at all.
fn no_share(route: &Route, limit: &str) -> Error {
    Error::NoPermit {
        provider: route.provider.name.clone(),
        entity: route.entity.clone(),
        limit: Some(limit.to_owned()),
        reason: Reason::NoShare,
        retry_in: None,
    }
}

/// The limits of this process alone.
fn local_limits<'a>(
    live: &ActiveProvider,
    plan: &'a CompiledPolicy,
    local: &'a ThrottleRules,
) -> [(&'a Option<Arc<Rule>>, CellId, &'static str, Reason); 3] {
    let cells = &live.own_cells;
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
        provider: route.provider.name.clone(),
        entity: route.entity.clone(),
        limit: None,
        reason: Reason::StoreLost,
        retry_in,
    }
}
