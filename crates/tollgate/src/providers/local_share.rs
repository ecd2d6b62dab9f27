//! What goes on while the ledger's store is lost: a line and a count of this process alone.
//!
//! Promises: `on_store_loss` is obeyed as it is written now. `closed` refuses at once; `local-share`
//! is closed until nothing counted in the store can matter, then keeps to this node's part, and
//! has the store closed for as long once it is back; `open` goes on, and every such call is counted.
//! Pauses, sleep and this process's own bounds hold meanwhile. Calls without a limit need no store.
//!
//! Never: tells the store afterwards what was granted without it. A process that is killed on its
//! share takes what it knew with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::settings::OnStoreLoss;
use tollgate_core::store_loss::{Allowance, NodeShare};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{Ledger, StoreLoss};

use super::policy::CompiledPolicy;
use crate::path::permit::{PermitRequest, Permits};

/// The ledger looks this often whether its store is back; earlier than that nothing can change.
const STORE_RETRY: Span = Span::from_secs(1);

/// The line and the count of this process alone.
#[derive(Debug)]
pub(crate) struct LocalShare {
    pub(crate) ledger: Ledger,
    pub(crate) permits: Permits,
    context: StoreLossContext,
    /// Calls that went on uncounted.
    uncounted: AtomicU64,
}

/// What the spares of all providers have in common.
#[derive(Clone, Debug)]
pub(super) struct StoreLossContext {
    pub(super) share: NodeShare,
    /// Calls of all providers that went on uncounted, those of providers that are gone included.
    pub(super) uncounted: Arc<AtomicU64>,
}

/// What becomes of a call while the store is lost.
#[derive(Debug)]
pub(crate) enum LossDecision {
    /// It is refused; it may come back after this time, if that is known.
    Reject(Option<Span>),
    /// It asks here for this.
    Ask {
        wanted: Box<PermitRequest>,
        /// `false`: the limits are not asked, so it is to be reported.
        is_counted: bool,
    },
}

impl LocalShare {
    pub(super) fn new(
        store: &Ledger,
        plan: &CompiledPolicy,
        common: &StoreLossContext,
    ) -> LocalShare {
        let ledger = store.empty_in_memory();
        LocalShare {
            permits: Permits::new(ledger.clone(), plan.gate_settings()),
            ledger,
            context: common.clone(),
            uncounted: AtomicU64::new(0),
        }
    }

    /// What becomes of a call that wanted this of the store. The last `local` terms are this
    /// process's own in any case.
    pub(crate) fn decide(
        &self,
        plan: &CompiledPolicy,
        wanted: PermitRequest,
        local: usize,
        store: &Ledger,
        loss: StoreLoss,
    ) -> LossDecision {
        let mut wanted = wanted;
        let own = wanted.terms.len() - local;
        if plan.limits.is_empty() {
            return LossDecision::Ask {
                wanted: Box::new(wanted),
                is_counted: true,
            };
        }
        match plan.provider.on_store_loss {
            OnStoreLoss::Closed => LossDecision::Reject((!loss.is_final).then_some(STORE_RETRY)),
            OnStoreLoss::Open => {
                wanted.terms.drain(..own);
                LossDecision::Ask {
                    wanted: Box::new(wanted),
                    is_counted: false,
                }
            }
            OnStoreLoss::LocalShare => {
                let lost_for = store.at().since(loss.since);
                let limits = wanted.terms.get(..own).unwrap_or_default();
                match self
                    .context
                    .share
                    .allowance(limits, wanted.evidence, lost_for)
                {
                    Allowance::Closed { remaining: left } => LossDecision::Reject(Some(left)),
                    Allowance::Nothing => LossDecision::Reject(None),
                    Allowance::Reduced {
                        terms,
                        closed_after: rest,
                    } => {
                        if let Some(scope) = plan.share_scope {
                            store.close_on_recovery(scope, rest);
                        }
                        let local = wanted.terms.drain(..).skip(own).collect::<Vec<_>>();
                        wanted.terms = *terms;
                        wanted.terms.extend(local);
                        LossDecision::Ask {
                            wanted: Box::new(wanted),
                            is_counted: true,
                        }
                    }
                }
            }
        }
    }

    /// A call goes on uncounted.
    pub(crate) fn record_uncounted(&self) {
        self.uncounted.fetch_add(1, Ordering::Relaxed);
        self.context.uncounted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }
}

/// Since when the store was lost as far as a call knows that has just been told so.
pub(crate) fn loss_since_now(at: Micros) -> StoreLoss {
    StoreLoss {
        since: at,
        is_final: false,
    }
}
