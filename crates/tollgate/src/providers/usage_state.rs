//! The use of each provider's first limit, for a snapshot and from one (H8).
//!
//! Promises: one state per domain: how much is used, and when the window began in which it is. What is restored is
//! charged again until one period after that beginning, and never more than the limit. The beginning is that of the
//! newest call, so a restored count never frees a slot early.
//!
//! Never: raises what is free.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::smallvec;
use tollgate_core::ask::{
    Ask, Evidence, Outcome, PermitId, Priority, Settle, Term, Terms, Verdict,
};
use tollgate_core::time::{Span, Wall};

use super::ProviderRegistry;
use super::active::ActiveProvider;

/// Numbers of restored permits: far above those of calls.
static RESTORED: AtomicU64 = AtomicU64::new(1 << 52);

/// How long a restored permit waits for its settle, which follows at once: one that lapsed first would
/// count from now on, and not from when its window began.
const SETTLED_WITHIN: Span = Span::from_secs(10);

/// The use of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageState {
    /// Its first domain.
    pub domain: String,
    /// What its first limit counts now.
    pub used: u64,
    /// When the window began.
    pub window_start: Wall,
}

impl ProviderRegistry {
    /// The use of every started provider's first limit. One that was not called since the start has none.
    pub async fn usage_states(&self) -> Vec<UsageState> {
        let mut states = Vec::new();
        for active in self.started() {
            states.extend(self.usage_state(&active).await);
        }
        states
    }

    async fn usage_state(&self, active: &ActiveProvider) -> Option<UsageState> {
        let domain = active.policy().provider.domains.first()?.to_string();
        let limits = active.limits(None).await;
        let first = limits.first().filter(|limit| limit.period > Span::ZERO)?;
        let view = first.view?;
        let wall = self.ledger().wall();
        // Everything that is used now is free a period after the window began.
        let began = view.window_age.unwrap_or_else(|| match view.reset_after {
            Some(reset) => first.period - reset,
            None => Span::ZERO,
        });
        Some(UsageState {
            domain,
            used: view.used,
            window_start: wall - began,
        })
    }

    /// Charges what a snapshot says, if its window is not over. Returns how many domains it was.
    pub async fn restore_usage(&self, states: &[UsageState]) -> usize {
        let mut restored = 0;
        for state in states {
            let Some(active) = self.find_by_authority(&state.domain) else {
                continue; // no provider has this domain any more
            };
            restored += usize::from(self.charge(&active, state).await);
        }
        restored
    }

    async fn charge(&self, active: &ActiveProvider, state: &UsageState) -> bool {
        let policy = active.policy();
        let Some(binding) = policy.limits.first() else {
            return false;
        };
        let Some(cell) = binding.shared_cell() else {
            return false;
        };
        let age = self.ledger().wall().since(state.window_start);
        let cost = state.used.min(binding.rule.limit());
        if cost == 0 || age >= binding.rule.period() {
            return false;
        }
        let terms: Terms = smallvec![Term {
            cell,
            rule: binding.rule.clone(),
            cost,
            reserve: 0,
        }];
        let ledger = self.ledger().provider(active.name());
        let ask = Ask {
            id: PermitId {
                owner: ledger.owner(),
                seq: RESTORED.fetch_add(1, Ordering::Relaxed),
            },
            terms: terms.clone(),
            scopes: smallvec![],
            priority: Priority::High,
            evidence: Evidence::Report {
                timeout: SETTLED_WITHIN,
                late: Span::ZERO,
            },
            max_wait: Span::ZERO,
        };
        let id = ask.id;
        let Ok(offered) = ledger.offer(vec![ask]).await else {
            return false;
        };
        let is_granted = |(_, verdict): &(PermitId, Verdict)| matches!(verdict, Verdict::Go { .. });
        if !offered.verdicts.iter().any(is_granted) {
            return false;
        }
        ledger.settle(Settle::Permit {
            id,
            terms,
            scopes: smallvec![],
            outcome: Outcome::Complete { age },
        });
        true
    }
}
