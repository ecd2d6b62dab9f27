//! Says in the log that a provider rejected calls because of what they asked for (A11): 401, 403, 404, 422.
//!
//! Promises: at most one line a second for each provider, with how many there were since the line before.
//!
//! Never: says what a call asked for. Paths and queries hold keys and names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::time::{Micros, Span};

use crate::event::{ClientErrors, Event, Events};

/// The least time between two lines.
const PAUSE: Span = Span::from_secs(1);

/// The client errors of one provider.
#[derive(Debug)]
pub(crate) struct ClientErrorTally {
    provider: Arc<str>,
    events: Events,
    /// How many no line has reported yet.
    count: AtomicU64,
    /// The next line is written from then on.
    quiet_until: AtomicU64,
}

impl ClientErrorTally {
    pub(crate) fn new(provider: &str, events: &Events) -> ClientErrorTally {
        ClientErrorTally {
            provider: provider.into(),
            events: events.clone(),
            count: AtomicU64::default(),
            quiet_until: AtomicU64::default(),
        }
    }

    /// The provider has responded to this call with a status that is no limit and no failure of its own.
    pub(crate) fn report(&self, call: &Arc<str>, status: u16, now: Micros) {
        // A 429 here is an account without credit, which has a line of its own.
        if !(400..=499).contains(&status) || status == 429 {
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let until = self.quiet_until.load(Ordering::Relaxed);
        let next = now.0.saturating_add(PAUSE.0);
        // Of several threads one writes it.
        let is_mine = now.0 >= until
            && self
                .quiet_until
                .compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_mine {
            self.events.emit(Event::ClientErrors(Box::new(ClientErrors {
                id: call.clone(),
                provider: self.provider.clone(),
                status,
                count: self.count.swap(0, Ordering::Relaxed),
            })));
        }
    }
}
