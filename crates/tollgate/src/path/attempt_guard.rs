//! An attempt under way, as health sees it.
//!
//! Promises: health hears of every attempt exactly once: how it ended, or that nothing was learned.
//!
//! Never: decides what an answer means; `learn` does.

use std::sync::Arc;

use tollgate_core::ask::ScopeId;
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::health::{AttemptResult, Class, Fault, HealthEvent};
use tollgate_core::time::{Micros, Span};

use crate::providers::ProviderHealth;

/// An attempt that health waits to hear of. Dropped, it says that nothing was learned.
#[derive(Debug)]
pub(crate) struct AttemptGuard {
    pub(super) health: Option<Arc<ProviderHealth>>,
    pub(super) granted: Micros,
    /// The scope that rests if it is refused.
    pub(super) cooldown: ScopeId,
    /// It tries whether the provider has recovered.
    pub(crate) probe: bool,
}

impl AttemptGuard {
    /// No answer came.
    pub(crate) fn failed(self, fault: Fault) {
        self.finish(Class::of_fault(fault), None, None);
    }

    /// The attempt has come to its end. Returns the rest of its scope that begins with it.
    pub(crate) fn finish(
        mut self,
        class: Class,
        retry_after: Option<Span>,
        rests: Option<&CooldownSettings>,
    ) -> Option<Span> {
        let answer = AttemptResult {
            class,
            granted: self.granted,
            retry_after,
        };
        self.health
            .take()?
            .on_response(self.cooldown, answer, rests)
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        if let Some(machine) = self.health.take() {
            let granted = self.granted;
            machine.on(HealthEvent::Dropped { granted });
        }
    }
}
