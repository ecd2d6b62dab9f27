//! What the keys of a pool and the callers of a provider have: keys that are set aside, and budgets.
//!
//! Promises: a key is known by its number in the pool. One peek, however many callers there are.
//!
//! Never: shows a key, or takes a permit.

use tollgate_config::provider::Per;
use tollgate_core::time::Span;
use tollgate_ledger::PeekQuery;

use super::ActiveProvider;
use super::call_counters::DEFAULT_CALLER;
use super::limit_status::{PendingLimit, pending_caller_limit};
use super::status::LimitStatus;
use crate::event::KeyRejection;

/// A key of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStatus {
    /// Its number, from 1.
    pub key: usize,
    /// For how long it is still set aside, and why; `None`: it is used.
    pub set_aside: Option<(Span, KeyRejection)>,
}

impl ActiveProvider {
    /// The keys of its pool; none if there is but one, which is never set aside.
    #[must_use]
    pub fn keys(&self) -> Vec<KeyStatus> {
        let (policy, now) = (self.policy(), self.ledger.at());
        let keys = policy.fingerprints().enumerate();
        let status = |(index, fingerprint): (usize, &str)| {
            let suspended = self.suspended_keys.until(fingerprint);
            let suspended = suspended.filter(|(until, _)| *until > now);
            KeyStatus {
                key: index + 1,
                set_aside: suspended.map(|(until, why)| (until.since(now), why)),
            }
        };
        let keys: Vec<KeyStatus> = keys.map(status).collect();
        if keys.len() < 2 { Vec::new() } else { keys }
    }

    /// The limits `per: caller` of each of these callers, and what remains of them.
    pub async fn budgets(&self, callers: &[&str]) -> Vec<Vec<LimitStatus>> {
        let policy = self.policy();
        let budgets = policy
            .limits
            .iter()
            .filter(|limit| limit.per == Per::Caller);
        let budgets: Vec<_> = budgets.collect();
        if budgets.is_empty() {
            return callers.iter().map(|_| Vec::new()).collect();
        }
        let pending: Vec<Vec<PendingLimit>> = callers
            .iter()
            .map(|caller| {
                // Calls that name nobody have one budget together.
                let caller = if *caller == DEFAULT_CALLER {
                    ""
                } else {
                    caller
                };
                let of_caller = budgets.iter();
                of_caller
                    .map(|limit| pending_caller_limit(limit, caller))
                    .collect()
            })
            .collect();
        let mut query = PeekQuery::default();
        let cells = pending.iter().flatten();
        query
            .cells
            .extend(cells.filter_map(|limit| limit.cell.clone()));
        let mut views = self.ledger.peek_or_closed(query).await.cells.into_iter();
        // How many calls of a caller wait is shown beside its name, not beside its limits.
        let mut seen = |limit: PendingLimit| limit.seen(views.next(), 0);
        pending
            .into_iter()
            .map(|of_caller| of_caller.into_iter().filter_map(&mut seen).collect())
            .collect()
    }
}
