//! What a node grants by itself while it has lost the networked store.
//!
//! Promises: asks of `store_loss` what it may use, and counts that in a table of its own.
//!
//! Never: decides. The core does.

use std::collections::BTreeMap;

use tollgate_core::ask::{Ask, BlockedBy, CellId, PermitId, Settle, Terms, Verdict, WakeOn};
use tollgate_core::store_loss::Allowance;
use tollgate_core::table::Table;
use tollgate_core::time::{Micros, Now, Span};
use tollgate_core::turn::turn;

use super::Governed;
use crate::world::NodeId;

/// One node's counts, and the terms of its permits.
#[derive(Debug, Default)]
pub(super) struct LocalLedger {
    table: Table,
    permits: BTreeMap<PermitId, Terms>,
}

impl LocalLedger {
    /// The end of a permit that was granted here; `None`: it was not. Returns what has come free.
    pub(super) fn settle(&mut self, settle: &Settle, now: Now) -> Option<Vec<CellId>> {
        let Settle::Permit { id, terms, .. } = settle else {
            return None;
        };
        let mut own = self.permits.get(id)?.clone();
        for (own, term) in own.iter_mut().zip(terms) {
            own.cost = term.cost;
        }
        let mut settle = settle.clone();
        if let Settle::Permit { terms, .. } = &mut settle {
            *terms = own;
        }
        Some(turn(&mut self.table, now, &[settle], &[]).freed)
    }
}

impl Governed {
    /// Since when this node has lost the store, and whether it may use its share.
    pub(super) fn loss(&self, node: NodeId, now: Now) -> Option<(Micros, bool)> {
        self.plan.local_share?;
        self.network.as_ref()?.loss(node, now.at)
    }

    /// Decides asks of a node that has lost the store.
    pub(super) fn decide_locally(
        &mut self,
        node: NodeId,
        offer: Vec<Ask>,
        now: Now,
        (since, may_use): (Micros, bool),
    ) {
        let share = self.plan.local_share;
        let state = self.node(node);
        let mut verdicts = Vec::new();
        for ask in offer {
            let id = ask.id;
            let allowed = share.filter(|_| may_use).map(|share| {
                let lost_for = now.at.since(since);
                share.allowance(&ask.terms, ask.evidence, lost_for)
            });
            let after = match allowed {
                Some(Allowance::Reduced { terms, .. }) => {
                    let terms = *terms;
                    let reduced = Ask {
                        terms: terms.clone(),
                        ..ask
                    };
                    let decided = turn(&mut state.local.table, now, &[], &[reduced]);
                    match decided.verdicts.into_iter().next() {
                        Some(verdict @ Verdict::Go { .. }) => {
                            state.local.permits.insert(id, terms);
                            verdicts.push((id, verdict));
                            continue;
                        }
                        Some(verdict @ Verdict::Wait { .. }) => {
                            verdicts.push((id, verdict));
                            continue;
                        }
                        // Its cost is above the share: it waits for the store.
                        Some(Verdict::Never(_)) | None => Span::from_secs(1),
                    }
                }
                Some(Allowance::Closed { remaining }) => remaining,
                Some(Allowance::Nothing) | None => Span::from_secs(1),
            };
            let verdict = Verdict::Wait {
                after,
                on: WakeOn::Time,
                by: BlockedBy::Term(0),
            };
            verdicts.push((id, verdict));
        }
        state.gate.verdicts(verdicts, now);
    }
}
