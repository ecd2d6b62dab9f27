//! The limits and scopes that one attempt needs, and what a verdict on them means to its caller.
//!
//! Promises: limits, health, cool-down, degrade, concurrency, connections and this process's
//! throttle form one ask. A rejection names the limit that rejected the call.
//!
//! Never: counts or decides by itself.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::ask::{
    CellId, Evidence, NeverReason as Never, Priority, ScopeId, Scopes, Settle, Term, Terms,
};
use tollgate_core::gate::Blocker;
use tollgate_core::health::OperatorHold;
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{PeekQuery, StoreLoss};

use super::attempt_guard::AttemptGuard;
use super::rates::ExhaustedLimit;
use super::subject::Subject;
use crate::error::{CONNECTIONS, QueueCause, Reason, Stage};
use crate::permits::{Denied, PermitRequest, Permits};
use crate::providers::{ActiveProvider, CallAttributes, CompiledPolicy, HealthView, ThrottleRules};
use crate::{Error, Permit};

/// When to come back while this process shuts down: calls in flight have ten seconds to finish.
const RESTART: Span = Span::from_secs(10);

/// The right to make one attempt.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) permit: Permit,
    pub(crate) attempt_guard: AttemptGuard,
}

/// The limits and scopes of an attempt, so that a rejection can name them.
pub(crate) struct RequestedLimits {
    /// One per term.
    terms: SmallVec<[(CellId, TermKind); 4]>,
    /// The number of leading terms that are limits of the provider.
    limits: usize,
    /// The number of trailing terms that are local to this process.
    pub(crate) local: usize,
    health: ScopeId,
    cooldown: ScopeId,
    /// The path, if it fails.
    path: Option<ScopeId>,
    /// Closed after a store loss during which nodes used their shares.
    share: Option<ScopeId>,
    /// Counts to carry over first; empty except for a while after a reload.
    inherits: Vec<Settle>,
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
    pub(crate) fn new(
        subject: &Subject,
        policy: &CompiledPolicy,
        key: Option<&str>,
        health: &HealthView,
        (seniority, edition): (u64, u64),
    ) -> (PermitRequest, RequestedLimits) {
        let attributes = subject.attributes(key);
        let mut requested = RequestedLimits {
            terms: SmallVec::new(),
            limits: 0,
            local: 0,
            health: subject.provider.health.scope(),
            cooldown: policy.cooldown_scope(attributes.entity, attributes.key),
            path: health.path_scope,
            share: policy.share_scope,
            inherits: policy.inherit_settles(
                &attributes,
                subject.at_most_permille.is_some(),
                &subject.provider.ledger,
            ),
        };
        let mut terms = Terms::new();
        for (index, limit) in policy.limits.iter().enumerate() {
            if let Some(term) = limit.term(&attributes) {
                requested.terms.push((term.cell, TermKind::Limit(index)));
                terms.push(term);
            }
        }
        requested.limits = terms.len();
        if let Some(permille) = subject.at_most_permille {
            requested.add_caller_shares(policy, &attributes, permille, &mut terms);
        }
        requested.add_local(subject, policy, &health.throttle, &mut terms);
        let demand = subject.demand();
        let request = PermitRequest {
            terms,
            scopes: requested.scopes(policy, attributes.entity),
            priority: demand.priority,
            caller: demand.caller,
            patience: subject.queue_patience(policy.provider.queue.timeout),
            evidence: Evidence::Report {
                timeout: policy.provider.timeouts.first_byte + subject.use_within,
                late: policy.provider.late_arrival,
            },
            seniority: Some(seniority),
            edition,
        };
        (request, requested)
    }

    /// The number of leading terms that are limits of the provider.
    pub(super) fn limits(&self) -> usize {
        self.limits
    }

    /// Carries counts of replaced limits over to the current ones before anything is requested.
    pub(crate) fn inherit_counts(&self, permits: &Permits, edition: u64) {
        if !self.inherits.is_empty() {
            permits.inherit(edition, &self.inherits);
        }
    }

    /// Adds the terms of this process. They come last.
    fn add_local(
        &mut self,
        subject: &Subject,
        policy: &CompiledPolicy,
        local: &ThrottleRules,
        terms: &mut Terms,
    ) {
        let all = local_limits(&subject.provider, policy, local);
        // Another process sends it, over connections of its own.
        let is_sent_elsewhere = subject.use_within > Span::ZERO;
        let own = all.into_iter().skip(usize::from(is_sent_elsewhere));
        for (rule, cell, name, reason) in own {
            if let Some(rule) = rule {
                self.local += 1;
                self.terms.push((cell, TermKind::Local(reason, name)));
                terms.push(Term {
                    cell,
                    rule,
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
            scopes.extend(self.path);
            scopes.extend(policy.degrade_scope(entity));
            scopes.extend(self.share);
        }
        scopes
    }

    pub(crate) fn grant(
        &self,
        subject: &Subject,
        policy: &CompiledPolicy,
        repeated: bool,
        permit: Permit,
    ) -> Grant {
        let (provider, path) = (&subject.provider, subject.path);
        let watched = policy.provider.enabled.then(|| provider.health.clone());
        let probe = watched
            .as_ref()
            .is_some_and(|health| health.on_granted(path));
        Grant {
            attempt_guard: AttemptGuard {
                health: watched,
                granted: permit.granted(),
                cooldown: self.cooldown,
                path,
                repeated,
                probe,
            },
            permit: permit.with_parts(self.limits, self.local),
        }
    }

    /// A caller that may use only a share of every limit gets that share as limits of its own.
    fn add_caller_shares(
        &mut self,
        policy: &CompiledPolicy,
        attributes: &CallAttributes<'_>,
        permille: u16,
        terms: &mut Terms,
    ) {
        for (index, limit) in policy.limits.iter().enumerate() {
            if let Some(term) = limit.caller_share(attributes, permille) {
                self.terms.push((term.cell, TermKind::CallerShare(index)));
                terms.push(term);
            }
        }
    }

    /// Why there is no permit, as an error for the caller.
    pub(crate) fn to_error(
        &self,
        subject: &Subject,
        policy: &CompiledPolicy,
        denied: Denied,
        loss: Option<StoreLoss>,
    ) -> Error {
        let no_permit = |reason, limit, retry_in| Error::NoPermit {
            provider: subject.provider.name.clone(),
            entity: subject.entity_name(),
            limit,
            reason,
            retry_in,
        };
        match denied {
            Denied::Rejected { blocker, retry_in } => {
                match self.blocked_by(subject, policy, blocker) {
                    (Reason::Sleep | Reason::Paused, _) => {
                        let health = &subject.provider.health;
                        let status = health.status_on(subject.path);
                        Error::ProviderUnavailable {
                            provider: subject.provider.name.clone(),
                            status: Box::new(status.closed_for(retry_in)),
                            path: health.closed_path_name(subject.path),
                        }
                    }
                    (Reason::Degraded, _) => Error::NotInCache {
                        provider: subject.provider.name.clone(),
                        entity: subject.entity_name(),
                        reason: Reason::Degraded,
                        retry_in: Some(retry_in),
                    },
                    (reason, limit) => no_permit(reason, limit, Some(retry_in)),
                }
            }
            Denied::TimedOut { blocker } => Error::DeadlineExceeded {
                provider: subject.provider.name.clone(),
                at: Stage::Waiting(
                    blocker.map(|blocker| self.queue_cause(subject, policy, blocker)),
                ),
            },
            Denied::Full => no_permit(Reason::QueueFull, None, Some(Span::from_secs(1))),
            // More than this node's share can ever hold.
            Denied::Never(_) if loss.is_some() => store_lost(subject, None),
            Denied::Never(Never::TooCostly { term, .. }) => {
                let (_, name) = self.term_name(policy, Some(term));
                no_permit(Reason::TooCostly, name, None)
            }
            // Not reached for a recall: a recalled call asks again.
            Denied::Lost | Denied::Recalled => store_lost(subject, None),
            Denied::Closed => no_permit(Reason::ShuttingDown, None, Some(RESTART)),
        }
    }

    /// What a call waited for, by the names of a rejection.
    pub(crate) fn queue_cause(
        &self,
        subject: &Subject,
        policy: &CompiledPolicy,
        blocker: Blocker,
    ) -> QueueCause {
        let (reason, limit) = self.blocked_by(subject, policy, blocker);
        QueueCause {
            reason,
            limit: limit.map(Arc::from),
            retry_in: None,
        }
    }

    /// What blocks the call, and its name if it is a limit.
    fn blocked_by(
        &self,
        subject: &Subject,
        policy: &CompiledPolicy,
        blocker: Blocker,
    ) -> (Reason, Option<String>) {
        let reason = match blocker {
            Blocker::Cell(cell) | Blocker::Release(cell) => {
                let index = self.terms.iter().position(|term| term.0 == cell);
                return self.term_name(policy, index);
            }
            Blocker::Scope(scope) if scope == self.health || Some(scope) == self.path => {
                match subject.provider.health.status().hold {
                    Some(OperatorHold::Paused) => Reason::Paused,
                    Some(OperatorHold::Offline | OperatorHold::CacheOnly) | None => Reason::Sleep,
                }
            }
            Blocker::Scope(scope) if Some(scope) == self.share => Reason::StoreLost,
            Blocker::Scope(scope) if scope == self.cooldown => Reason::Cooldown,
            Blocker::Scope(_) => Reason::Degraded,
            Blocker::OffPeak => Reason::OffPeak,
            // In order of arrival all wait for the first, and the only limit is the one that holds it.
            Blocker::Front if policy.limits.len() == 1 => return self.term_name(policy, Some(0)),
            Blocker::Front => Reason::Limit,
        };
        (reason, None)
    }

    /// The caller's time in the queue is up. Does the call continue for others who have more time?
    pub(crate) fn continues_for_others(
        &self,
        subject: &Subject,
        policy: &CompiledPolicy,
        result: &Result<Permit, Denied>,
        until: Micros,
        loss: Option<StoreLoss>,
    ) -> bool {
        let (Err(denied), Some(demand)) = (result, &subject.shared_demand) else {
            return false;
        };
        let error = || self.to_error(subject, policy, *denied, loss);
        denied.is_timeout()
            && !subject.fallback
            && demand.continues_after(until, policy.provider.queue.timeout, error)
    }

    /// The exhausted limit, if it is one of the provider file.
    pub(crate) async fn exhausted_limit(
        &self,
        subject: &Subject,
        policy: &CompiledPolicy,
        (key, priority): (Option<&str>, Priority),
        denied: Denied,
    ) -> Option<ExhaustedLimit> {
        let Denied::Rejected {
            blocker: Blocker::Cell(cell),
            retry_in,
        } = denied
        else {
            return None;
        };
        let index = self.terms.iter().position(|term| term.0 == cell)?;
        let (_, TermKind::Limit(limit)) = self.terms.get(index)? else {
            return None;
        };
        let limit = policy.limits.get(*limit)?;
        let term = limit.term(&subject.attributes(key))?;
        let is_behind = subject.provider.waiting() > 0;
        let exhausted = ExhaustedLimit {
            index,
            retry_in,
            remaining: 0,
            reason: limit.reason(),
        };
        // A call that costs one, that nobody is before and that is not spread, finds nothing.
        if limit.counts_calls() && term.cost <= 1 && priority > Priority::Low && !is_behind {
            return Some(exhausted);
        }
        let query = PeekQuery {
            cells: vec![(cell, limit.rule.clone())],
            ..PeekQuery::default()
        };
        let seen = subject.provider.ledger.peek_or_closed(query).await;
        let seen = seen.cells.first()?;
        let usable = seen.remaining.saturating_sub(term.reserve_for(priority));
        let has_room = exhausted.reason == Reason::Limit && usable >= term.cost;
        Some(ExhaustedLimit {
            remaining: match limit.counts_calls() {
                true => usable,
                false => seen.remaining,
            },
            reason: match exhausted.reason {
                _ if has_room && priority == Priority::Low && seen.spreads_low => Reason::Spread,
                _ if has_room && is_behind => Reason::Ahead,
                reason => reason,
            },
            ..exhausted
        })
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
pub(crate) fn no_share(subject: &Subject, limit: &str) -> Error {
    Error::NoPermit {
        provider: subject.provider.name.clone(),
        entity: subject.entity_name(),
        limit: Some(limit.to_owned()),
        reason: Reason::NoShare,
        retry_in: None,
    }
}

/// The limits of this process, its connections first.
fn local_limits(
    provider: &ActiveProvider,
    policy: &CompiledPolicy,
    local: &ThrottleRules,
) -> [(Option<Arc<Rule>>, CellId, &'static str, Reason); 3] {
    let cells = &provider.own_cells;
    let at_a_time = Reason::Concurrency;
    [
        (
            provider.connections.rule(policy),
            cells.connections,
            CONNECTIONS,
            at_a_time,
        ),
        (
            local.concurrency.clone(),
            cells.concurrency,
            "throttle",
            at_a_time,
        ),
        (
            local.rate.clone(),
            cells.rate,
            "throttle rate",
            Reason::Limit,
        ),
    ]
}

/// The store is lost, and `on_store_loss` rejects the call.
pub(crate) fn store_lost(subject: &Subject, retry_in: Option<Span>) -> Error {
    Error::NoPermit {
        provider: subject.provider.name.clone(),
        entity: subject.entity_name(),
        limit: None,
        reason: Reason::StoreLost,
        retry_in,
    }
}
