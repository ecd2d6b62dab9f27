//! How long waiting calls wait: the last one of a provider, or of one caller.
//!
//! Promises: from the limits as the ledger counts them, the provider's cool-down and sleep, and its measured
//! latency where the number of calls at a time is what holds them.
//!
//! Never: takes a permit.

use tollgate_core::ask::Priority;
use tollgate_core::eta::{EtaLimit, Refill, calls_until_last, eta};
use tollgate_core::gate::CallerId;
use tollgate_core::health::{HealthState, OperatorHold};
use tollgate_core::time::Span;

use super::callers::caller_id;
use super::status::{LimitStatus, PartStatus};
use super::{ActiveProvider, ProviderRegistry};

/// How many calls of a caller wait, and how long the last of them does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerQueue {
    /// The name of the caller.
    pub caller: String,
    /// Its waiting calls.
    pub waiting: u64,
    /// How long the last of them waits; `None` = until an operator says otherwise.
    pub eta: Option<Span>,
}

impl ActiveProvider {
    /// How long the last waiting call waits; `None` = until an operator says otherwise.
    pub async fn eta(&self) -> Option<Span> {
        let calls = u64::try_from(self.waiting()).unwrap_or(u64::MAX);
        if calls == 0 {
            return Some(Span::ZERO);
        }
        self.eta_of(calls, self.whole().await.as_ref())
    }

    /// The same from limits that were read before: `whole` is the status of the provider as a whole.
    #[must_use]
    pub fn eta_from(&self, whole: Option<&PartStatus>) -> Option<Span> {
        match u64::try_from(self.waiting()).unwrap_or(u64::MAX) {
            0 => Some(Span::ZERO),
            calls => self.eta_of(calls, whole),
        }
    }

    /// The callers of this configuration that have waiting calls here, with the status of the provider as a whole.
    #[must_use]
    pub fn caller_queues(
        &self,
        registry: &ProviderRegistry,
        whole: Option<&PartStatus>,
    ) -> Vec<CallerQueue> {
        let waiting = self.waiting_by_caller();
        let mut queues = Vec::new();
        for caller in registry.callers().names() {
            let id = caller_id(&caller);
            let own = waiting.iter().filter(|(of, ..)| *of == id);
            let own: u64 = own.map(|(.., count)| count).sum();
            if own > 0 {
                let calls = calls_until_last(&waiting, &id);
                let eta = self.eta_of(calls, whole);
                queues.push(CallerQueue {
                    caller,
                    waiting: own,
                    eta,
                });
            }
        }
        queues
    }

    fn waiting_by_caller(&self) -> Vec<(CallerId, Priority, u64)> {
        let mut all = self.permits.waiting_by_caller();
        all.extend(self.local_share.permits.waiting_by_caller());
        all
    }

    /// The limits of the whole provider.
    async fn whole(&self) -> Option<PartStatus> {
        self.parts_and_429s(&[None]).await.0.pop()
    }

    /// How long the last of so many calls waits.
    fn eta_of(&self, calls: u64, whole: Option<&PartStatus>) -> Option<Span> {
        let status = self.status();
        let closed = match status.hold {
            Some(OperatorHold::Paused | OperatorHold::Offline)
                if status.sleep_remaining.is_none() =>
            {
                return None;
            }
            _ => status.sleep_remaining.unwrap_or(Span::ZERO),
        };
        let cools = whole.and_then(|part| part.cooldown_remaining);
        let closed = closed.max(cools.unwrap_or(Span::ZERO));
        let latency = self.metrics.latency();
        let mean = Span(latency.sum / latency.count().max(1));
        let limits = whole.into_iter().flat_map(|part| &part.limits);
        let limits: Vec<EtaLimit> = limits.filter_map(|limit| eta_limit(limit, mean)).collect();
        let is_slowed = matches!(status.state, HealthState::Throttle | HealthState::HalfOpen);
        let rate = status.rate.filter(|_| is_slowed);
        Some(eta(calls, &limits, closed, rate))
    }
}

/// A limit as calls of normal priority may use it.
fn eta_limit(limit: &LimitStatus, latency: Span) -> Option<EtaLimit> {
    let view = limit.view.filter(|_| limit.counts_calls)?;
    let refill = match limit.algorithm {
        "concurrency" => Refill::CallEnds(latency),
        "fixed-window" | "calendar" => Refill::AtOnce,
        "sliding-window" => Refill::Sliding,
        _ => Refill::Gradual,
    };
    // A bucket keeps its rate whatever is reserved in it; of a window the reserved part is gone. A paced limit never
    // grants two at once, and spaces them as if it were smaller by two (`core/src/limit/paced.rs`).
    let free = view.remaining.saturating_sub(limit.reserve);
    let (usable, remaining) = match limit.algorithm {
        "token-bucket" => (view.limit, free),
        "paced" if view.limit > 2 => (view.limit - 2, 0),
        "paced" => (view.limit, 0),
        _ => (view.limit.saturating_sub(limit.reserve), free),
    };
    Some(EtaLimit {
        limit: usable,
        remaining,
        period: limit.period,
        reset_after: view.reset_after,
        refill,
    })
}
