//! Permits while the ledger's store is lost: a queue and counts of this process alone.
//!
//! Promises: applies the current `on_store_loss`. `closed` rejects at once. `local-share` is closed
//! until no count in the store can matter, then grants this node's part of each limit; once the store
//! is back the others leave that part alone for as long, or, where they cannot know of it, it is
//! closed for all. `open` lets calls pass and counts them as
//! uncounted. Pauses, sleep and this process's own bounds still hold. Calls without a limit need no
//! store.
//!
//! Never: reports to the store what was granted without it. If the process is killed meanwhile, its
//! local counts are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::settings::OnStoreLoss;
use tollgate_core::store_loss::{Allowance, NodeShare};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{LOST_RETRY, Ledger, ProviderLedger, StoreLoss};

use super::policy::CompiledPolicy;
use crate::permits::{PermitRequest, Permits};

/// The queue and counts of this process alone.
#[derive(Debug)]
pub(crate) struct LocalShare {
    pub(crate) ledger: ProviderLedger,
    pub(crate) permits: Permits,
    context: StoreLossContext,
    /// Calls that ran uncounted.
    uncounted: AtomicU64,
}

/// What the local shares of all providers have in common.
#[derive(Clone, Debug)]
pub(super) struct StoreLossContext {
    pub(super) share: NodeShare,
    /// This process may use it.
    pub(super) has_share: bool,
    /// Uncounted calls of all providers, including removed ones.
    pub(super) uncounted: Arc<AtomicU64>,
}

/// How Tollgate treats a call while the store is lost.
#[derive(Debug)]
pub(crate) enum LossDecision {
    /// Tollgate rejects it; it may come back after this time, if that is known.
    Reject(Option<Span>),
    /// It asks the local ledger for this.
    Ask {
        wanted: Box<PermitRequest>,
        /// `false`: no limit is asked, so the call is reported as uncounted.
        is_counted: bool,
    },
}

impl LocalShare {
    pub(super) fn new(
        store: &Ledger,
        policy: &CompiledPolicy,
        common: &StoreLossContext,
    ) -> LocalShare {
        let ledger = store.empty_in_memory().provider(&policy.provider.name);
        LocalShare {
            permits: Permits::new(ledger.clone(), policy.gate_settings()),
            ledger,
            context: common.clone(),
            uncounted: AtomicU64::new(0),
        }
    }

    /// Tells the other nodes whether this one may use its share: they leave it alone while it is away.
    pub(super) fn register(&self, policy: &CompiledPolicy, store: &ProviderLedger) {
        let provider = &policy.provider;
        let has_share = self.context.has_share && provider.on_store_loss == OnStoreLoss::LocalShare;
        let has_share = has_share && !policy.limits.is_empty();
        store.register_share(has_share.then_some(self.context.share));
    }

    /// Decides about a call that wanted this from the store. The last `local` terms belong to this
    /// process in any case.
    pub(crate) fn decide(
        &self,
        policy: &CompiledPolicy,
        wanted: PermitRequest,
        local: usize,
        store: &ProviderLedger,
        loss: StoreLoss,
    ) -> LossDecision {
        let mut wanted = wanted;
        let own = wanted.terms.len() - local;
        if policy.limits.is_empty() {
            return LossDecision::Ask {
                wanted: Box::new(wanted),
                is_counted: true,
            };
        }
        match policy.provider.on_store_loss {
            OnStoreLoss::Closed => LossDecision::Reject((!loss.is_final).then_some(LOST_RETRY)),
            OnStoreLoss::Open => {
                wanted.terms.drain(..own);
                LossDecision::Ask {
                    wanted: Box::new(wanted),
                    is_counted: false,
                }
            }
            OnStoreLoss::LocalShare if !store.may_use_share() => {
                // The others do not leave a share alone for this process.
                LossDecision::Reject((!loss.is_final).then_some(LOST_RETRY))
            }
            OnStoreLoss::LocalShare => {
                let lost_for = store.at().since(loss.since);
                let limits = wanted.terms.get(..own).unwrap_or_default();
                match self
                    .context
                    .share
                    .allowance(limits, wanted.evidence, lost_for)
                {
                    Allowance::Closed { remaining } => LossDecision::Reject(Some(remaining)),
                    Allowance::Nothing => LossDecision::Reject(None),
                    Allowance::Reduced {
                        terms,
                        closed_after,
                    } => {
                        if let Some(scope) = policy.share_scope {
                            store.close_on_recovery(scope, closed_after);
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

    /// Counts a call that runs uncounted.
    pub(crate) fn record_uncounted(&self) {
        self.uncounted.fetch_add(1, Ordering::Relaxed);
        self.context.uncounted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted.load(Ordering::Relaxed)
    }
}

/// The loss as known to a call that has just received the error.
pub(crate) fn loss_since_now(at: Micros) -> StoreLoss {
    StoreLoss {
        since: at,
        is_final: false,
    }
}
