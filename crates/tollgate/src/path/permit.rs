//! The permit stage of a call: what to request from the gate, and what its verdict means.
//!
//! Promises: limits, health, cool-down, degrade, concurrency, connections and this process's
//! throttle form one ask. A call that must not wait is rejected at once. A call that waits asks
//! again, with its seniority, when the limits or the throttle change. If a call with a permit is
//! given up, health learns of it. While the ledger's store is lost, `on_store_loss` decides.
//!
//! Never: counts or decides by itself.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate_core::ask::Priority;
use tollgate_core::gate::Blocker;
use tollgate_core::health::{Admission, BlockReason, WhenBlocked};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Span;
use tollgate_core::turn::too_costly;
use tollgate_ledger::{ProviderLedger, StoreLoss};

use super::progress::DecidedAttempt;
use super::rates::{ExhaustedLimit, Rates};
use super::requested_limits::{Grant, RequestedLimits, no_share, store_lost};
use super::subject::Subject;
use crate::error::{QueueCause, Reason, Stage};
use crate::event::{DecisionVerdict, Event};
use crate::metrics::PermitResult;
use crate::permits::{Denied, PermitRequest, Permits};
use crate::providers::{CompiledPolicy, LossDecision, loss_since_now};
use crate::{Error, Permit};

/// A wait so long has no end: an operator has closed the provider until further notice.
const NO_END: Span = Span(u64::MAX / 2);

/// What the permits of one call have cost it so far.
#[derive(Debug, Default)]
pub(crate) struct PermitHistory {
    /// Time spent waiting.
    pub(crate) waited: Span,
    /// A limit, a scope or a time has held an attempt. The time spent does not tell: on a
    /// real clock even an immediate decision takes microseconds, and a store takes milliseconds.
    pub(crate) was_queued: bool,
    /// What the last one of them waited for.
    pub(crate) queue_cause: Option<QueueCause>,
    /// What remained of each limit at the last decision.
    pub(crate) rates: Rates,
    /// The call's position in the order of arrival, the same for all its attempts.
    seniority: Option<u64>,
    /// An attempt of the call has failed.
    pub(super) has_failed: bool,
}

impl PermitHistory {
    /// Remembers whether something held the call, and what.
    fn on_held(
        &mut self,
        subject: &Subject,
        policy: &CompiledPolicy,
        requested: &RequestedLimits,
        held_by: Option<Blocker>,
    ) {
        let Some(blocker) = held_by else {
            return;
        };
        self.was_queued = true;
        self.queue_cause = Some(requested.queue_cause(subject, policy, blocker));
    }
}

/// Waits for a permit for one attempt with the key of this fingerprint.
pub(crate) async fn permit(
    subject: &Subject,
    key: Option<&str>,
    history: &mut PermitHistory,
) -> Result<Grant, Error> {
    // An attempt that is recalled may not learn what it waited for: not what an earlier one did.
    let waited = history.waited;
    let was_queued = std::mem::take(&mut history.was_queued);
    let cause = history.queue_cause.take();
    let result = decide(subject, key, history).await;
    let attempt_waited = history.waited - waited;
    report_decision(subject, &result, history, attempt_waited);
    let decided = subject.progress.as_ref().map(|_| DecidedAttempt {
        is_held: history.was_queued || result.is_err(),
        verdict: verdict(&result, history),
        waited: attempt_waited,
    });
    if !history.was_queued {
        (history.was_queued, history.queue_cause) = (was_queued, cause);
    }
    if let Some((progress, decided)) = subject.progress.as_ref().zip(decided) {
        let cause = history.queue_cause.as_ref();
        progress.on_decided(decided, history.waited, history.was_queued, cause);
    }
    result
}

/// What was decided about an attempt.
fn verdict(result: &Result<Grant, Error>, history: &PermitHistory) -> DecisionVerdict {
    match result {
        Ok(_) if !history.was_queued => DecisionVerdict::Allowed,
        Ok(_) => {
            let cause = history.queue_cause.clone();
            let QueueCause { reason, limit, .. } = cause.unwrap_or_default();
            DecisionVerdict::Queued { limit, reason }
        }
        Err(error) => DecisionVerdict::Rejected {
            limit: error.limit().map(Arc::from),
            reason: error.reason(),
        },
    }
}

/// Counts what was decided, and reports it to whoever wants to hear it.
fn report_decision(
    subject: &Subject,
    result: &Result<Grant, Error>,
    history: &PermitHistory,
    waited: Span,
) {
    let counted = match result {
        Ok(_) if !history.was_queued => PermitResult::Allowed,
        Ok(_) => {
            let cause = history.queue_cause.as_ref();
            PermitResult::Queued(cause.map_or(Reason::Limit, |cause| cause.reason))
        }
        Err(error) => PermitResult::Rejected(error.reason()),
    };
    let metrics = &subject.provider.metrics;
    metrics.on_permit(subject.joint_priority(), counted, waited);
    if result.is_ok()
        && subject.entity_metrics.is_some()
        && let Some(entity) = subject.entity.as_deref()
    {
        let (caller, priority) = (subject.caller.as_deref(), subject.joint_priority());
        subject
            .provider
            .entity_demand
            .on_permit(entity, caller, priority);
    }
    subject.provider.events.emit_with(|| {
        let (id, provider, entity) = subject.labels();
        Event::Decision {
            id,
            provider,
            entity,
            caller: subject.caller.as_deref().map(Arc::from),
            priority: subject.joint_priority(),
            verdict: verdict(result, history),
            waited,
        }
    });
}

/// As [`permit`], without an event: for those who only ask.
pub(super) async fn decide(
    subject: &Subject,
    key: Option<&str>,
    history: &mut PermitHistory,
) -> Result<Grant, Error> {
    let provider = &subject.provider;
    provider.health.sync_once().await;
    let mut began = None;
    let seniority = *history
        .seniority
        .get_or_insert_with(|| provider.permits.new_seniority());
    let mut changes = provider.health.changes();
    let mut reported_loss = None;
    let cancel_return = || provider.permits.cancel_return(seniority);
    loop {
        changes.mark_unchanged();
        let edition = provider.permits.edition();
        let policy = provider.policy();
        let view = provider.health.view(subject.path);
        let began = *began.get_or_insert(view.at);
        let (request, requested) =
            RequestedLimits::new(subject, &policy, key, &view, (seniority, edition));
        let priority = request.priority; // as requested: it may be raised meanwhile
        let until = subject.queue_deadline(policy.provider.queue.timeout);
        let loss = provider.ledger.loss().or(reported_loss.take());
        if policy.provider.enabled {
            let scopes = loss.map_or(&provider.ledger, |_| &provider.local_share.ledger);
            let may = reject_if_closed(subject, &policy, &view.admission, scopes).await;
            let is_known = may.inspect_err(|_| cancel_return())?;
            if !is_known && loss.is_none() {
                // The store cannot be read: `on_store_loss` decides.
                reported_loss = Some(loss_since_now(provider.ledger.at()));
                continue;
            }
        }
        let chosen = choose_ledger(subject, &policy, &requested, request, loss)
            .inspect_err(|_| cancel_return());
        let (permits, request, is_counted) = chosen?;
        requested.inherit_counts(permits, edition);
        let mut held_by = None;
        let requesting = request_permit(subject, permits, request, &mut changes, &mut held_by);
        let Some(result) = requesting.await else {
            // It asks again. What held it meanwhile is what it waited for, also if it gets a permit at once then.
            history.on_held(subject, &policy, &requested, held_by);
            continue;
        };
        if requested.continues_for_others(subject, &policy, &result, until, loss) {
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
        history.waited = history.waited + decided.since(began);
        let permit = match result {
            Ok(permit) => permit,
            Err(denied) => {
                let of = (key, priority);
                let exhausted = requested.exhausted_limit(subject, &policy, of, denied);
                let exhausted = Box::pin(exhausted).await;
                history.rates = Rates::rejected(&policy, priority, exhausted);
                let error = requested.to_error(subject, &policy, denied, loss);
                let error = with_reason(error, exhausted);
                let error = Box::pin(with_time(subject, key, error)).await;
                return Err(Box::pin(behind_the_queue(subject, error)).await);
            }
        };
        history.on_held(subject, &policy, &requested, permit.waited_for());
        history.rates = Rates::granted(&policy, priority, permit.marks());
        if !is_counted {
            provider.local_share.record_uncounted();
        }
        return Ok(requested.grant(subject, &policy, history.has_failed, permit));
    }
}

/// A limit that has room did not reject for want of it.
fn with_reason(mut error: Error, exhausted: Option<ExhaustedLimit>) -> Error {
    if let (Error::NoPermit { reason, .. }, Some(exhausted)) = (&mut error, exhausted)
        && *reason == Reason::Limit
    {
        *reason = exhausted.reason;
    }
    error
}

/// A call whose time ran out in the queue learns when to come back: it asks once more, without waiting.
/// Should something be free just now, the permit is returned unused.
async fn with_time(subject: &Subject, key: Option<&str>, mut error: Error) -> Error {
    let Error::DeadlineExceeded {
        at: Stage::Waiting(Some(cause)),
        ..
    } = &mut error
    else {
        return error;
    };
    let provider = &subject.provider;
    let (policy, health) = (provider.policy(), provider.health.view(subject.path));
    let order = (0, provider.permits.edition());
    let (request, _) = RequestedLimits::new(subject, &policy, key, &health, order);
    let request = PermitRequest {
        patience: Span::ZERO,
        seniority: None,
        ..request
    };
    let asked = match provider.permits.try_acquire(request) {
        Ok(asked) => asked,
        Err(request) => provider.permits.wait(request).await,
    };
    cause.retry_in = match asked {
        Ok(_unused) => Some(Span::ZERO),
        Err(Denied::Rejected { retry_in, .. }) => Some(retry_in).filter(|wait| *wait < NO_END),
        Err(_) => None,
    };
    error
}

/// A call that was rejected because of a limit, a pause of the provider, or a full queue need not come back before
/// those that wait have been served that go before it.
async fn behind_the_queue(subject: &Subject, mut error: Error) -> Error {
    let retry_in = match &mut error {
        Error::NoPermit {
            reason:
                Reason::Limit
                | Reason::Ahead
                | Reason::QueueFull
                | Reason::Cooldown
                | Reason::Concurrency
                | Reason::Sleep,
            retry_in,
            ..
        } => Some(retry_in),
        Error::DeadlineExceeded {
            at: Stage::Waiting(Some(cause)),
            ..
        } if cause.reason == Reason::Limit => Some(&mut cause.retry_in),
        _ => None,
    };
    if let Some(retry_in) = retry_in
        && subject.provider.waiting() > 0
        && let demand = subject.demand()
        && let Some(eta) = subject
            .provider
            .recent_eta(demand.caller, demand.priority)
            .await
    {
        *retry_in = Some(retry_in.unwrap_or(Span::ZERO).max(eta));
    }
    error
}

/// Gets a permit at once, as most calls do, or waits in the queue. `None`: the call must ask again,
/// with its seniority, because the limits or the throttle have changed or a more urgent caller has
/// joined.
async fn request_permit(
    subject: &Subject,
    permits: &Permits,
    request: PermitRequest,
    changes: &mut watch::Receiver<u64>,
    held_by: &mut Option<Blocker>,
) -> Option<Result<Permit, Denied>> {
    let result = match permits.try_acquire(request) {
        Ok(result) => Some(result),
        // On the heap: its size would be that of every call.
        Err(request) => Box::pin(wait_in_queue(subject, permits, request, changes, held_by)).await,
    };
    result.filter(|result| !matches!(result, Err(Denied::Recalled)))
}

/// How many waiting calls are at least as urgent.
fn ahead(subject: &Subject, priority: Priority) -> usize {
    let levels = [Priority::High, Priority::Normal, Priority::Low];
    let levels = levels.into_iter().filter(|level| *level >= priority);
    levels.map(|level| subject.provider.waiting_at(level)).sum()
}

/// Waits in the queue.
async fn wait_in_queue(
    subject: &Subject,
    permits: &Permits,
    request: PermitRequest,
    changes: &mut watch::Receiver<u64>,
    held_by: &mut Option<Blocker>,
) -> Option<Result<Permit, Denied>> {
    let (seniority, who) = (request.seniority, (request.caller, request.priority));
    if let Some(progress) = &subject.progress {
        progress.on_queued(ahead(subject, request.priority));
    }
    let returns = || seniority.map(|seniority| permits.expect_return(seniority, who));
    tokio::select! {
        biased;
        result = permits.wait_noting(request, held_by) => Some(result),
        Ok(()) = changes.changed() => {
            returns();
            permits.recheck();
            None
        }
        () = subject.queue_until_raised() => {
            returns();
            None
        }
    }
}

/// Chooses the ledger, the request, and whether the call counts: the provider's ledger, or the
/// local one while the store is lost. A request that can never be granted fails here: a full queue
/// would report "later".
fn choose_ledger<'a>(
    subject: &'a Subject,
    policy: &CompiledPolicy,
    requested: &RequestedLimits,
    request: PermitRequest,
    loss: Option<StoreLoss>,
) -> Result<(&'a Permits, PermitRequest, bool), Error> {
    let provider = &subject.provider;
    if let Some(limit) = &policy.zero_limit {
        return Err(no_share(subject, limit));
    }
    if let Some(why) = too_costly(&request.terms, request.priority) {
        return Err(requested.to_error(subject, policy, Denied::Never(why), None));
    }
    let Some(loss) = loss else {
        return Ok((&provider.permits, request, true));
    };
    match provider
        .local_share
        .decide(policy, request, requested.local, &provider.ledger, loss)
    {
        LossDecision::Reject(retry_in) => Err(store_lost(subject, retry_in)),
        LossDecision::Ask {
            wanted: request,
            is_counted,
        } => Ok((&provider.local_share.permits, *request, is_counted)),
    }
}

/// Rejects a call at once if the provider is closed and waiting is not allowed. `Ok(false)`: whether it
/// is cannot be known now.
async fn reject_if_closed(
    subject: &Subject,
    policy: &CompiledPolicy,
    admission: &Admission,
    scopes: &ProviderLedger,
) -> Result<bool, Error> {
    let provider = || subject.provider.name.clone();
    match *admission {
        Admission::Closed {
            why: BlockReason::CacheOnly,
            remaining,
            ..
        } => {
            return Err(Error::NotInCache {
                provider: provider(),
                entity: subject.entity_name(),
                reason: Reason::CacheOnly,
                retry_in: remaining,
            });
        }
        Admission::Closed {
            why: BlockReason::Sleep,
            blocked: WhenBlocked::Reject,
            ..
        } => {
            let health = &subject.provider.health;
            return Err(Error::ProviderUnavailable {
                provider: provider(),
                status: Box::new(health.status_on(subject.path)),
                path: health.closed_path_name(subject.path),
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
    let Some(scope) = policy.degrade_scope(subject.entity.as_deref()) else {
        return Ok(true);
    };
    match scopes.try_peek_scope(scope).await {
        Some(ScopeView::Closed { remaining }) => Err(Error::NotInCache {
            provider: provider(),
            entity: subject.entity_name(),
            reason: Reason::Degraded,
            retry_in: remaining,
        }),
        Some(
            ScopeView::Open
            | ScopeView::Paced { .. }
            | ScopeView::Probing
            | ScopeView::CacheOnly { .. }
            | ScopeView::Paused { .. },
        ) => Ok(true),
        None => Ok(false),
    }
}
