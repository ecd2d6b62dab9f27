//! Reports the end of an attempt to health.
//!
//! Promises: health receives exactly one report per attempt: its result, or that nothing was
//! learned.
//!
//! Never: decides what a response means; `learn` does.

use std::sync::Arc;

use tollgate_core::ask::{PathTag, ScopeId};
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::health::{AttemptResult, Class, Fault, HealthEvent};
use tollgate_core::time::{Micros, Span};

use crate::providers::ProviderHealth;

/// An attempt that health waits for. Dropped, it reports that nothing was learned.
#[derive(Debug)]
pub(crate) struct AttemptGuard {
    pub(super) health: Option<Arc<ProviderHealth>>,
    pub(super) granted: Micros,
    /// The scope that cools down if the attempt is limited.
    pub(super) cooldown: ScopeId,
    /// The path that it is sent to.
    pub(super) path: Option<PathTag>,
    /// An earlier attempt of the same call has failed.
    pub(super) repeated: bool,
    /// It probes whether the provider has recovered.
    pub(crate) probe: bool,
}

impl AttemptGuard {
    /// No response arrived.
    pub(crate) fn failed(self, fault: Fault) {
        self.finish(Class::of_fault(fault), None, None);
    }

    /// There was no connection: no path is to blame.
    pub(super) fn unreached(mut self, fault: Fault) {
        self.path = None;
        self.failed(fault);
    }

    /// The attempt has ended. Returns the cool-down of its scope that begins with it.
    pub(crate) fn finish(
        mut self,
        class: Class,
        retry_after: Option<Span>,
        settings: Option<&CooldownSettings>,
    ) -> Option<Span> {
        let result = AttemptResult {
            class,
            granted: self.granted,
            retry_after,
            path: self.path,
            repeated: self.repeated,
        };
        self.health
            .take()?
            .on_response(self.cooldown, result, settings)
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        if let Some(health) = self.health.take() {
            health.on(HealthEvent::Dropped {
                granted: self.granted,
                path: self.path,
            });
        }
    }
}
