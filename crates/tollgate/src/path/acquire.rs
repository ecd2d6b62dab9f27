//! The permit stage of a call: what to request from the gate, and what its verdict means.
//!
//! Promises: limits, health, cool-down, degrade, concurrency, connections and this process's
//! throttle form one ask. A call that must not wait is rejected at once. A call that waits asks
//! again, with its seniority, when the limits or the throttle change. If a call with a permit is
//! given up, health learns of it. While the ledger's store is lost, `on_store_loss` decides.
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
use tollgate_ledger::{ProviderLedger, StoreLoss};

use super::attempt_guard::AttemptGuard;
use super::rates::Rates;
use super::retry::RetryState;
use super::route::Route;
use crate::credentials::Credential;
use crate::error::{Reason, Stage};
use crate::permits::{Denied, PermitRequest, Permits};
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
    retries: &mut RetryState,
) -> Result<Grant, Error> {
    let provider = &route.provider;
    provider.health.sync_once().await;
    let mut began = None;
    let seniority = retries.seniority(|| provider.permits.new_seniority());
    let mut changes = provider.health.changes();
    let mut reported_loss = None;
    let cancel_return = || provider.permits.cancel_return(seniority);
    loop {
        changes.mark_unchanged();
        let edition = provider.permits.edition();
        let policy = provider.policy();
        let view = provider.health.view();
        let began = *began.get_or_insert(view.at);
        let (request, requested) = RequestedLimits::new(
            route,
            &policy,
            credential,
            &view.throttle,
            (seniority, edition),
        );
        let priority = request.priority; // as requested: it may be raised meanwhile
        let until = route.queue_deadline(policy.provider.queue.timeout);
        let loss = provider.ledger.loss().or(reported_loss.take());
        if policy.provider.enabled {
            let scopes = loss.map_or(&provider.ledger, |_| &provider.local_share.ledger);
            let may = reject_if_closed(route, &policy, &view.admission, scopes).await;
            may.inspect_err(|_| cancel_return())?;
        }
        let chosen = choose_ledger(route, &policy, &requested, request, loss)
            .inspect_err(|_| cancel_return());
        let (permits, request, is_counted) = chosen?;
        requested.inherit_counts(permits, edition);
        let Some(result) = request_permit(route, permits, request, &mut changes).await else {
            continue;
        };
        if requested.continues_for_others(route, &policy, &result, until, loss) {
            continue; // another caller with more time still waits for it
        }
        if result.as_ref().is_err_and(|denied| *denied == Denied::Lost) {
            // The store reported the loss to this call, so it does not ask the store again, even if
            // that is back.
            reported_loss = loss.is_none().then(|| loss_since_now(provider.ledger.at()));
            continue;
        }
        let decided = result
            .as_ref()
            .map_or_else(|_| provider.ledger.at(), Permit::granted);
        retries.waited = retries.waited + decided.since(began);
        let permit = result.map_err(|denied| {
            retries.rates = Rates::rejected(&policy, priority, requested.exhausted_limit(denied));
            requested.to_error(route, &policy, denied, loss)
        })?;
        retries.rates = Rates::granted(&policy, priority, permit.marks());
        if !is_counted {
            provider.local_share.record_uncounted();
        }
        return Ok(requested.grant(provider, &policy, permit));
    }
}

/// Gets a permit at once, as most calls do, or waits in the queue. `None`: the call must ask again,
/// with its seniority, because the limits or the throttle have changed or a more urgent caller has
/// joined.
async fn request_permit(
    route: &Route,
    permits: &Permits,
    request: PermitRequest,
    changes: &mut watch::Receiver<u64>,
) -> Option<Result<Permit, Denied>> {
    let result = match permits.try_acquire(request) {
        Ok(result) => Some(result),
        // On the heap: its size would be that of every call.
        Err(request) => Box::pin(wait_in_queue(route, permits, request, changes)).await,
    };
    result.filter(|result| !matches!(result, Err(Denied::Recalled)))
}

/// Waits in the queue.
async fn wait_in_queue(
    route: &Route,
    permits: &Permits,
    request: PermitRequest,
    changes: &mut watch::Receiver<u64>,
) -> Option<Result<Permit, Denied>> {
    let (seniority, who) = (request.seniority, (request.caller, request.priority));
    let returns = || seniority.map(|seniority| permits.expect_return(seniority, who));
    tokio::select! {
        biased;
        result = permits.wait(request) => Some(result),
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

/// Chooses the ledger, the request, and whether the call counts: the provider's ledger, or the
/// local one while the store is lost. A request that can never be granted fails here: a full queue
/// would report "later".
fn choose_ledger<'a>(
    route: &'a Route,
    policy: &CompiledPolicy,
    requested: &RequestedLimits,
    request: PermitRequest,
    loss: Option<StoreLoss>,
) -> Result<(&'a Permits, PermitRequest, bool), Error> {
    let provider = &route.provider;
    if let Some(limit) = &policy.zero_limit {
        return Err(no_share(route, limit));
    }
    if let Some(why) = too_costly(&request.terms, request.priority) {
        return Err(requested.to_error(route, policy, Denied::Never(why), None));
    }
    let Some(loss) = loss else {
        return Ok((&provider.permits, request, true));
    };
    match provider
        .local_share
        .decide(policy, request, requested.local, &provider.ledger, loss)
    {
        LossDecision::Reject(retry_in) => Err(store_lost(route, retry_in)),
        LossDecision::Ask {
            wanted: request,
            is_counted,
        } => Ok((&provider.local_share.permits, *request, is_counted)),
    }
}

/// Rejects a call at once if the provider is closed and waiting is not allowed.
async fn reject_if_closed(
    route: &Route,
    policy: &CompiledPolicy,
    admission: &Admission,
    scopes: &ProviderLedger,
) -> Result<(), Error> {
    let provider = || route.provider.name.clone();
    match *admission {
        Admission::Closed {
            why: BlockReason::CacheOnly,
            remaining,
            ..
        } => {
            return Err(Error::NotInCache {
                provider: provider(),
                entity: route.entity.clone(),
                reason: Reason::CacheOnly,
                retry_in: remaining,
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
    let Some(scope) = policy.degrade_scope(route.entity.as_deref()) else {
        return Ok(());
    };
    match scopes.peek_scope(scope).await {
        ScopeView::Closed { remaining } => Err(Error::NotInCache {
            provider: provider(),
            entity: route.entity.clone(),
            reason: Reason::Degraded,
            retry_in: remaining,
        }),
        ScopeView::Open | ScopeView::Probing | ScopeView::CacheOnly { .. } => Ok(()),
    }
}

/// The limits and scopes of an attempt, so that a rejection can name them.
struct RequestedLimits {
    /// One per term.
    terms: SmallVec<[(CellId, TermKind); 4]>,
    /// The number of leading terms that are limits of the provider.
    limits: usize,
    /// The number of trailing terms that are local to this process.
    local: usize,
    health: ScopeId,
    cooldown: ScopeId,
    /// Closed after a store loss during which nodes used their shares.
    share: Option<ScopeId>,
    /// Counts to carry over first; empty except for a while after a reload.
    carries: Vec<Settle>,
}

/// Which limit a term belongs to. Only a rejection needs its name.
#[derive(Clone, Copy, Debug)]
enum TermKind {
    /// The limit of the policy with this index.
    Limit(usize),
    /// The caller's share of that limit.
    CallerShare(usize),
    /// A limit of this process.
    Local(Reason, &'static str),
}

impl RequestedLimits {
    fn new(
        route: &Route,
        policy: &CompiledPolicy,
        credential: &Credential,
        local: &ThrottleRules,
        (seniority, edition): (u64, u64),
    ) -> (PermitRequest, RequestedLimits) {
        let who = route.who(credential.fingerprint.as_deref());
        route.provider.seen_entities.record(policy, who.entity);
        let mut requested = RequestedLimits {
            terms: SmallVec::new(),
            limits: 0,
            local: 0,
            health: route.provider.health.scope(),
            cooldown: policy.cooldown_scope(who.entity, who.key),
            share: policy.share_scope,
            carries: policy.carry_settles(
                &who,
                route.at_most_permille.is_some(),
                &route.provider.ledger,
            ),
        };
        let mut terms = Terms::new();
        for (index, limit) in policy.limits.iter().enumerate() {
            if let Some(term) = limit.term(&who) {
                requested.terms.push((term.cell, TermKind::Limit(index)));
                terms.push(term);
            }
        }
        requested.limits = terms.len();
        if let Some(permille) = route.at_most_permille {
            requested.add_caller_shares(policy, &who, permille, &mut terms);
        }
        requested.add_local(route, policy, local, &mut terms);
        let demand = route.demand();
        let request = PermitRequest {
            terms,
            scopes: requested.scopes(policy, who.entity),
            priority: demand.priority,
            caller: demand.caller,
            patience: route.queue_patience(policy.provider.queue.timeout),
            evidence: Evidence::Report {
                timeout: policy.provider.timeouts.first_byte,
                late: policy.provider.late_arrival,
            },
            seniority: Some(seniority),
            edition,
        };
        (request, requested)
    }

    /// Carries counts of replaced limits over to the current ones before anything is requested.
    fn inherit_counts(&self, permits: &Permits, edition: u64) {
        if !self.carries.is_empty() {
            permits.carry(edition, &self.carries);
        }
    }

    /// Adds the terms of this process. They come last.
    fn add_local(
        &mut self,
        route: &Route,
        policy: &CompiledPolicy,
        local: &ThrottleRules,
        terms: &mut Terms,
    ) {
        for (rule, cell, name, reason) in local_limits(&route.provider, policy, local) {
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
    fn scopes(&self, policy: &CompiledPolicy, entity: Option<&str>) -> Scopes {
        let mut scopes = Scopes::new();
        if policy.provider.enabled {
            scopes.push(self.health);
            scopes.push(self.cooldown);
            scopes.extend(policy.degrade_scope(entity));
            scopes.extend(self.share);
        }
        scopes
    }

    fn grant(&self, provider: &ActiveProvider, policy: &CompiledPolicy, permit: Permit) -> Grant {
        let watched = policy.provider.enabled.then(|| provider.health.clone());
        let probe = watched.as_ref().is_some_and(|health| health.on_granted());
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

    /// A caller that may use only a share of every limit gets that share as limits of its own.
    fn add_caller_shares(
        &mut self,
        policy: &CompiledPolicy,
        who: &CallAttributes<'_>,
        permille: u16,
        terms: &mut Terms,
    ) {
        for (index, limit) in policy.limits.iter().enumerate() {
            if let Some(term) = limit.caller_share(who, permille) {
                self.terms.push((term.cell, TermKind::CallerShare(index)));
                terms.push(term);
            }
        }
    }

    /// Why there is no permit, as an error for the caller.
    fn to_error(
        &self,
        route: &Route,
        policy: &CompiledPolicy,
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
            Denied::Rejected { blocker, retry_in } => match blocker {
                Blocker::Cell(cell) => {
                    let index = self.terms.iter().position(|term| term.0 == cell);
                    let (reason, limit) = self.term_name(policy, index);
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
            // More than this node's share can ever hold.
            Denied::Never(_) if loss.is_some() => store_lost(route, None),
            Denied::Never(Never::TooCostly { term, .. }) => {
                let (_, name) = self.term_name(policy, Some(term));
                no_permit(Reason::TooCostly, name, None)
            }
            // Not reached for a recall: a recalled call asks again.
            Denied::Lost | Denied::Recalled => store_lost(route, None),
            Denied::Closed => no_permit(Reason::ShuttingDown, None, None),
        }
    }

    /// The caller's time in the queue is up. Does the call continue for others who have more time?
    fn continues_for_others(
        &self,
        route: &Route,
        policy: &CompiledPolicy,
        result: &Result<Permit, Denied>,
        until: Micros,
        loss: Option<StoreLoss>,
    ) -> bool {
        let (Err(denied), Some(demand)) = (result, &route.shared_demand) else {
            return false;
        };
        let error = || self.to_error(route, policy, *denied, loss);
        denied.is_timeout()
            && !route.fallback
            && demand.continues_after(until, policy.provider.queue.timeout, error)
    }

    /// The index of the exhausted limit, if it is one of the provider file.
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

    /// The name of a term, and the reason of a rejection by it.
    fn term_name(&self, policy: &CompiledPolicy, term: Option<usize>) -> (Reason, Option<String>) {
        match term.and_then(|term| self.terms.get(term)) {
            Some((_, TermKind::Limit(index))) => match policy.limits.get(*index) {
                Some(limit) => (limit.reason(), Some(limit.name.clone())),
                None => (Reason::Limit, None),
            },
            Some((_, TermKind::CallerShare(index))) => match policy.limits.get(*index) {
                Some(limit) => {
                    let name = format!("{} (the caller's share)", limit.name);
                    (limit.reason(), Some(name))
                }
                None => (Reason::Limit, None),
            },
            Some((_, TermKind::Local(reason, name))) => (*reason, Some((*name).to_owned())),
            None => (Reason::Limit, None),
        }
    }
}

/// The node has no share of this limit.
fn no_share(route: &Route, limit: &str) -> Error {
    Error::NoPermit {
        provider: route.provider.name.clone(),
        entity: route.entity.clone(),
        limit: Some(limit.to_owned()),
        reason: Reason::NoShare,
        retry_in: None,
    }
}

/// The limits of this process.
fn local_limits<'a>(
    provider: &ActiveProvider,
    policy: &'a CompiledPolicy,
    local: &'a ThrottleRules,
) -> [(&'a Option<Arc<Rule>>, CellId, &'static str, Reason); 3] {
    let cells = &provider.own_cells;
    let at_a_time = Reason::Concurrency;
    [
        (
            &policy.connections,
            cells.connections,
            "connections",
            at_a_time,
        ),
        (&local.concurrency, cells.concurrency, "throttle", at_a_time),
        (&local.rate, cells.rate, "throttle rate", Reason::Limit),
    ]
}

/// The store is lost, and `on_store_loss` rejects the call.
fn store_lost(route: &Route, retry_in: Option<Span>) -> Error {
    Error::NoPermit {
        provider: route.provider.name.clone(),
        entity: route.entity.clone(),
        limit: None,
        reason: Reason::StoreLost,
        retry_in,
    }
}
