//! The counters of rare facts, from the same value as the log line.
//!
//! Facts of every call are not built while nobody listens: those are counted where they happen.
//!
//! Promises: every fact counts once.
//!
//! Never: decides what happened.

use tollgate_core::health::HealthState;

use super::Event;
use crate::metrics::Metrics;

impl Event {
    /// It happens with every call, or may: there can be thousands a second.
    pub(crate) fn is_of_call(&self) -> bool {
        matches!(
            self,
            Event::CallEnded(_)
                | Event::Request { .. }
                | Event::Decision { .. }
                | Event::Attempt { .. }
                | Event::Response { .. }
                | Event::CacheMiss { .. }
                | Event::AttemptFailed { .. }
                | Event::StalePermit { .. }
                | Event::FromCache { .. }
                | Event::NotStored { .. }
        )
    }

    /// Counts the fact, if it has a counter.
    pub(super) fn count(&self, metrics: &Metrics) {
        match self {
            Event::AttemptFailed {
                provider, fault, ..
            } => {
                if let Some(provider) = metrics.known(provider) {
                    provider.on_fault(*fault);
                }
            }
            Event::Transition {
                provider,
                to: HealthState::Sleep,
                status,
                ..
            } => {
                let provider = metrics.known(provider);
                if let Some((provider, sleep)) = provider.zip(status.sleep_remaining) {
                    provider.on_sleep(sleep);
                }
            }
            _ => {}
        }
    }
}
