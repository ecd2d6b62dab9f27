//! What the waiting calls of a provider wait for.
//!
//! Promises: reading changes nothing. The store is asked only if something waits for a scope that may be a pace
//! learned from 429s.
//!
//! Never: decides anything.

use std::collections::{BTreeMap, HashMap};

use tollgate_core::ask::{CellId, Priority, ScopeId};
use tollgate_core::gate::Blocker;
use tollgate_core::scope::ScopeView;
use tollgate_ledger::PeekQuery;

use super::ActiveProvider;
use crate::error::Reason;

impl ActiveProvider {
    /// What the waiting calls wait for, in the words of `reason`, and how many: `retry` is the time
    /// between two attempts, `estimated_limit` the pace that was learned from 429s, `store` the store that is about
    /// to decide.
    pub async fn waiting_for(&self) -> BTreeMap<&'static str, usize> {
        let mut reasons: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut blockers = self.permits.blockers();
        blockers.extend(self.local_share.permits.blockers());
        let paced = self.paced_scopes(&blockers).await;
        for blocker in blockers {
            let reason = match blocker {
                Some((Blocker::Scope(scope), _)) if paced.contains(&scope) => "estimated_limit",
                blocker => self.reason_of(blocker),
            };
            *reasons.entry(reason).or_default() += 1;
        }
        let priorities = [Priority::High, Priority::Normal, Priority::Low];
        let retries: usize = priorities
            .map(|one| self.retry_waits.count(one))
            .iter()
            .sum();
        if retries > 0 {
            reasons.insert("retry", retries);
        }
        reasons
    }

    /// How many calls each limit holds.
    pub(super) fn held_by_limits(&self) -> HashMap<CellId, usize> {
        let mut held = HashMap::new();
        for blocker in self.permits.blockers() {
            if let Some((Blocker::Cell(cell), _)) = blocker {
                *held.entry(cell).or_default() += 1;
            }
        }
        held
    }

    /// How many calls wait for nothing longer than for a connection, and how many connections there
    /// may be.
    #[must_use]
    pub fn waiting_for_connections(&self) -> (usize, usize) {
        let blockers = self.permits.blockers();
        let is_connection = |blocker: &&Option<(Blocker, bool)>| matches!(blocker, Some((Blocker::Cell(cell), _)) if *cell == self.own_cells.connections);
        let waiting = blockers.iter().filter(is_connection).count();
        (waiting, self.connections.max())
    }

    /// The scopes among these blockers that let calls through at an estimated pace: they do not cool down.
    async fn paced_scopes(&self, blockers: &[Option<(Blocker, bool)>]) -> Vec<ScopeId> {
        let scopes = blockers.iter().filter_map(|blocker| match blocker {
            Some((Blocker::Scope(scope), _)) if !self.health.is_health_scope(*scope) => {
                Some(*scope)
            }
            _ => None,
        });
        let mut scopes: Vec<ScopeId> = scopes.collect();
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() {
            return scopes;
        }
        let query = PeekQuery {
            cells: Vec::new(),
            scopes: scopes.clone(),
        };
        let views = self.ledger.peek_or_closed(query).await.scopes;
        let paced = scopes.into_iter().zip(views);
        let paced = paced.filter(|(_, view)| matches!(view, ScopeView::Paced { .. }));
        paced.map(|(scope, _)| scope).collect()
    }

    fn reason_of(&self, blocker: Option<(Blocker, bool)>) -> &'static str {
        match blocker {
            Some((Blocker::Scope(scope), _)) if self.health.is_health_scope(scope) => {
                match self.status().hold {
                    Some(hold) => hold.as_str(),
                    None => Reason::Sleep.as_str(),
                }
            }
            Some((Blocker::Scope(scope), _)) if Some(scope) == self.policy().share_scope => {
                Reason::StoreLost.as_str()
            }
            Some((Blocker::Scope(_), _)) => Reason::Cooldown.as_str(),
            Some((Blocker::Cell(_), true)) => Reason::Concurrency.as_str(),
            Some((Blocker::OffPeak, _)) => Reason::OffPeak.as_str(),
            Some((Blocker::Cell(_) | Blocker::Front | Blocker::Release(_), _)) => {
                Reason::Limit.as_str()
            }
            None => "store",
        }
    }
}
