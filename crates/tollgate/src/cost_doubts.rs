//! Says in the log that the cost of a call is not certain.
//!
//! Promises: at most one line a second for each reason and provider, whatever clients send.
//!
//! Never: decides what counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::time::Span;
use tollgate_ledger::ProviderLedger;

use crate::event::{CostDoubt, Event, Events};

/// The least time between two lines for one reason.
const PAUSE: Span = Span::from_secs(1);

/// The doubts of one provider.
#[derive(Debug)]
pub(crate) struct CostDoubts {
    provider: Arc<str>,
    events: Events,
    ledger: ProviderLedger,
    /// By reason: the next line is written from then on.
    quiet_until: [AtomicU64; CostDoubt::COUNT],
}

impl CostDoubts {
    pub(crate) fn new(provider: &str, events: &Events, ledger: &ProviderLedger) -> CostDoubts {
        CostDoubts {
            provider: provider.into(),
            events: events.clone(),
            ledger: ledger.clone(),
            quiet_until: Default::default(),
        }
    }

    /// The cost of a call is not certain.
    pub(crate) fn report(&self, doubt: CostDoubt) {
        let now = self.ledger.at().0;
        let Some(quiet_until) = self.quiet_until.get(doubt as usize) else {
            return;
        };
        let until = quiet_until.load(Ordering::Relaxed);
        let next = now.saturating_add(PAUSE.0);
        let is_first = |until| {
            let swapped =
                quiet_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed);
            swapped.is_ok()
        };
        if now >= until && is_first(until) {
            let event = Event::CostInDoubt(self.provider.clone(), doubt);
            self.events.emit(event);
        }
    }
}
