//! Keys that are set aside, and budgets of callers, as JSON.
//!
//! Promises: a key is its number in the pool.
//!
//! Never: shows a key.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tollgate::providers::{ActiveProvider, KeyStatus, OTHER_CALLERS};
use tollgate_config::config::Caller;

use super::view::{Limit, epoch_after, limits};

/// A key of a pool.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Key {
    key: usize,
    /// `null`: it is used.
    set_aside_until: Option<f64>,
    reason: Option<String>,
}

/// The keys of a provider's pool.
pub(super) fn keys(active: &ActiveProvider) -> Vec<Key> {
    let now = active.now();
    let key = |one: KeyStatus| Key {
        key: one.key,
        set_aside_until: one
            .set_aside
            .map(|(remaining, _)| epoch_after(now, remaining)),
        reason: one.set_aside.map(|(_, why)| why.to_string()),
    };
    active.keys().into_iter().map(key).collect()
}

/// What the callers of this process and those of the configuration have of their budgets; callers without
/// one are left out. At most [`CALLERS_MAX`](tollgate::providers::CALLERS_MAX) and the configured ones.
pub(crate) async fn budgets(
    active: &ActiveProvider,
    configured: &[Caller],
) -> BTreeMap<String, Vec<Limit>> {
    let counts = active.calls_by_caller();
    let names = counts.iter().map(|(name, _)| name.as_str());
    // Callers beyond the bound are counted together, and each still has a budget of its own.
    let seen = names.filter(|name| *name != OTHER_CALLERS);
    // Others may have called another process of the same ledger.
    let known = configured.iter().map(|caller| caller.name.as_str());
    let names: Vec<&str> = seen
        .chain(known)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let (now, found) = (active.now(), active.budgets(&names).await);
    let named = names.into_iter().zip(found);
    let shown = named.filter(|(_, budgets)| !budgets.is_empty());
    shown
        .map(|(name, budgets)| (name.to_owned(), limits(budgets, now)))
        .collect()
}
