//! Which cell has taken over from which: settles of calls that went before a limit was changed are
//! forwarded to where the limit counts now.
//!
//! Promises: a response frees its call in both cells. Costs nothing while no limit has changed.
//!
//! Never: needed for safety. A settle that is not forwarded only keeps its call in the new cell until
//! the last instant at which it could still have arrived.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock_order::{RankedMutex, rank};
use tollgate_core::ask::{CellId, Settle, Term, Terms};
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};

/// Cells that are remembered: a hundred changed limits of forty keys each. Past this, calls lapse in
/// the new cells.
const FORWARDINGS_MAX: usize = 4_096;

/// Calls that are still on their way after this have lapsed in the new cell: longer than any
/// `timeout.first_byte` in use.
const EXPIRE_AFTER: Span = Span::from_secs(3_600);

/// Who has taken over, in this process.
#[derive(Debug, Default)]
pub(crate) struct CellForwarding {
    /// Is there any? Read by every settle.
    is_active: AtomicBool,
    forwardings: RankedMutex<{ rank::FORWARDINGS }, HashMap<CellId, Forwarding>>,
}

#[derive(Debug)]
struct Forwarding {
    to: CellId,
    rule: Arc<Rule>,
    since: Micros,
}

impl CellForwarding {
    /// Sees every settle before the store does; `Some` replaces it.
    pub(crate) fn forward(&self, settle: &Settle, now: impl Fn() -> Micros) -> Option<Settle> {
        match settle {
            Settle::Permit {
                id,
                terms,
                scopes,
                outcome,
            } if self.is_active.load(Ordering::Acquire) => Some(Settle::Permit {
                id: *id,
                terms: self.with_forwarded_terms(terms, now())?,
                scopes: scopes.clone(),
                outcome: outcome.clone(),
            }),
            Settle::Inherit { from, to, rule, .. } => {
                self.add(*from, *to, rule, now());
                None
            }
            Settle::Permit { .. }
            | Settle::Close { .. }
            | Settle::Limited { .. }
            | Settle::Open { .. }
            | Settle::Failed { .. }
            | Settle::Succeeded { .. } => None,
        }
    }

    fn add(&self, from: CellId, to: CellId, rule: &Arc<Rule>, now: Micros) {
        let mut forwardings = self.forwardings.lock();
        if forwardings.len() >= FORWARDINGS_MAX {
            forwardings.retain(|_, forwarding| now.since(forwarding.since) < EXPIRE_AFTER);
        }
        if forwardings.len() < FORWARDINGS_MAX {
            let forwarding = Forwarding {
                to,
                rule: rule.clone(),
                since: now,
            };
            forwardings.insert(from, forwarding);
            self.is_active.store(true, Ordering::Release);
        }
    }

    /// The same terms and those of the cells that took over, theirs too; `None` if there are none.
    fn with_forwarded_terms(&self, terms: &Terms, now: Micros) -> Option<Terms> {
        let mut forwardings = self.forwardings.lock();
        let mut all = terms.clone();
        let mut next = 0;
        while let Some(term) = all.get(next) {
            let (cell, cost) = (term.cell, term.cost);
            next += 1;
            let Some(forwarding) = forwardings.get(&cell) else {
                continue;
            };
            if now.since(forwarding.since) >= EXPIRE_AFTER {
                forwardings.remove(&cell);
                self.is_active
                    .store(!forwardings.is_empty(), Ordering::Release);
            } else if all.iter().all(|term| term.cell != forwarding.to) {
                all.push(Term {
                    cell: forwarding.to,
                    rule: forwarding.rule.clone(),
                    cost,
                    reserve: 0,
                });
            }
        }
        (all.len() > terms.len()).then_some(all)
    }
}
