//! Limits as they are shown: which cells to read for them, once per key where keys are counted apart.
//!
//! Promises: a learned limit is shown with what was learned, and not at all before that.
//!
//! Never: reads a cell itself.

use std::sync::Arc;

use tollgate_config::provider::Per;
use tollgate_core::ask::{CellId, Priority};
use tollgate_core::limit::{Algorithm, CellView, Rule};

use super::limit_binding::{CallAttributes, LimitBinding};
use super::policy::CompiledPolicy;
use super::status::LimitStatus;

/// A limit and the cell to read for it, if that does not depend on the caller.
pub(super) struct PendingLimit {
    pub(super) status: LimitStatus,
    pub(super) cell: Option<(CellId, Arc<Rule>)>,
}

impl PendingLimit {
    /// The limit with its count; `None` if it is learned, and no response has stated it.
    pub(super) fn seen(self, view: Option<CellView>, waiting: usize) -> Option<LimitStatus> {
        let mut status = LimitStatus {
            view,
            waiting,
            ..self.status
        };
        if self.cell.is_some_and(|(_, rule)| rule.is_learned()) {
            let learned = view?.learned?;
            (status.limit, status.period) = (learned.limit?, learned.period);
            status.depth = status.limit;
        }
        // A provider that reports less than N grants no more at once.
        let current = view.filter(|view| view.limit < status.limit);
        status.depth = current.map_or(status.depth, |view| status.depth.min(view.limit));
        Some(status)
    }
}

/// One limit as it is shown: per key, once for each key of the pool.
pub(super) fn pending_limits(
    policy: &CompiledPolicy,
    binding: &LimitBinding,
    entity: Option<&str>,
) -> Vec<PendingLimit> {
    if binding.is_learned() {
        return learned_limits(policy, binding, entity);
    }
    match binding.per {
        Per::Provider => vec![pending_limit(binding, None, None, true)],
        Per::Entity => vec![pending_limit(binding, entity, None, entity.is_some())],
        // Without keys of our own it depends on the client's key.
        Per::ApiKey if policy.fingerprints().next().is_none() => {
            vec![pending_limit(binding, None, None, false)]
        }
        Per::ApiKey => {
            let keys = policy.fingerprints().enumerate();
            let of_key = |(index, fingerprint)| {
                let mut limit = pending_limit(binding, None, Some(fingerprint), true);
                limit.status.key = Some(index + 1);
                limit
            };
            keys.map(of_key).collect()
        }
        Per::Caller | Per::Ip | Per::Host => vec![pending_limit(binding, None, None, false)],
    }
}

/// A learned limit: once for each key of the pool; without an entity it is that of calls that name none.
fn learned_limits(
    policy: &CompiledPolicy,
    binding: &LimitBinding,
    entity: Option<&str>,
) -> Vec<PendingLimit> {
    let keys: Vec<&str> = policy.fingerprints().collect();
    if keys.is_empty() {
        return vec![pending_limit(binding, entity, None, true)];
    }
    let of_key = |(index, key): (usize, &&str)| {
        let mut limit = pending_limit(binding, entity, Some(*key), true);
        limit.status.key = Some(index + 1).filter(|_| keys.len() > 1);
        limit
    };
    keys.iter().enumerate().map(of_key).collect()
}

/// A limit per caller, for this caller.
pub(super) fn pending_caller_limit(binding: &LimitBinding, caller: &str) -> PendingLimit {
    let mut limit = pending_limit(binding, None, None, false);
    let call = CallAttributes { caller, ..NO_CALL };
    limit.cell = Some((binding.cell_of(&call), binding.rule.clone()));
    limit
}

/// A call that nothing is known of.
const NO_CALL: CallAttributes<'static> = CallAttributes {
    entity: None,
    key: None,
    caller: "",
    ip: None,
    host: "",
    priority: Priority::Normal,
    costs: &[],
};

pub(super) fn pending_limit(
    binding: &LimitBinding,
    entity: Option<&str>,
    key: Option<&str>,
    is_known: bool,
) -> PendingLimit {
    let call = CallAttributes {
        entity,
        key,
        ..NO_CALL
    };
    let status = LimitStatus {
        name: binding.name.clone(),
        algorithm: match binding.rule.algorithm() {
            Algorithm::Sliding { .. } => "sliding-window",
            Algorithm::Bucket { .. } => "token-bucket",
            Algorithm::Fixed { .. } => "fixed-window",
            Algorithm::Calendar(_) => "calendar",
            Algorithm::Paced { .. } => "paced",
            Algorithm::InFlight => "concurrency",
        },
        limit: binding.rule.limit(),
        depth: binding.rule.max_cost(),
        period: binding.rule.display_period(),
        reserve: binding.reserve(),
        counts_calls: binding.counts_calls(),
        unit: binding.unit.clone(),
        per: binding.per,
        key: None,
        view: None,
        waiting: 0,
    };
    let cell = is_known.then(|| (binding.cell_of(&call), binding.rule.clone()));
    PendingLimit { status, cell }
}
