//! The paths of a provider that fail: their scopes in the ledger, and their names for people.
//!
//! Promises: what another process does to a path that fails here is followed.
//!
//! Never: decides. The core does.

use std::sync::Arc;

use tollgate_core::ask::{PathTag, ScopeId};
use tollgate_core::health::{HealthEvent, HealthStatus, PathStatus, shown_path};

use super::health::ProviderHealth;

impl ProviderHealth {
    /// Another process may have changed the scopes of paths that fail here too. Must be called inside
    /// a tokio runtime.
    pub(crate) fn on_scopes_changed(self: &Arc<ProviderHealth>, scopes: &[ScopeId]) {
        let mut inner = self.inner.lock();
        let scope_of = |path: &PathTag| path.scope(self.scope);
        let open = inner.health.failing_tags();
        for path in open
            .filter(|path| scopes.contains(&scope_of(path)))
            .collect::<Vec<_>>()
        {
            if self.ledger.takes_time() {
                let health = self.clone();
                tokio::spawn(async move {
                    let view = health.ledger.try_peek_scope(path.scope(health.scope)).await;
                    if let Some(view) = view.filter(|_| health.ledger.loss().is_none()) {
                        health.on(HealthEvent::PathScopeChanged(path, view));
                    }
                });
            } else {
                let view = self.ledger.last_seen_scope(scope_of(&path));
                let event = HealthEvent::PathScopeChanged(path, view);
                let actions = inner.health.on(event, self.ledger.at());
                self.apply_actions(&mut inner, actions);
            }
        }
        self.release(inner);
    }

    /// Anything may have changed in the ledger: reads the health scope and those of the paths that
    /// fail here. Must be called inside a tokio runtime.
    pub(crate) fn on_resync(self: &Arc<ProviderHealth>) {
        self.on_scope_changed();
        let scopes: Vec<ScopeId> = {
            let inner = self.inner.lock();
            let tags = inner.health.failing_tags();
            tags.map(|path| path.scope(self.scope)).collect()
        };
        self.on_scopes_changed(&scopes);
    }

    /// A path has failed: people want to know which.
    pub(crate) fn name_path(&self, path: Option<PathTag>, text: &str) {
        if let Some(path) = path {
            self.inner
                .lock()
                .health
                .name_path(path, || shown_path(text));
        }
    }

    /// The paths that fail.
    pub(crate) fn failing_paths(&self) -> Vec<PathStatus> {
        let inner = self.inner.lock();
        inner.health.failing_paths(self.ledger.at())
    }

    /// The status that a call to this path meets, for people.
    pub(crate) fn status_on(&self, path: Option<PathTag>) -> HealthStatus {
        let inner = self.inner.lock();
        inner.health.status_on(path, self.ledger.at())
    }

    /// Is this the scope of the provider's health, or of a path of it?
    pub(crate) fn is_health_scope(&self, scope: ScopeId) -> bool {
        let inner = self.inner.lock();
        let mut paths = inner.health.failing_tags();
        scope == self.scope || paths.any(|path| path.scope(self.scope) == scope)
    }
}
