//! The paths of a provider that fail: their scopes in the ledger, and their names for people.
//!
//! Promises: what another process does to a path that fails here is followed.
//!
//! Never: decides. The core does.

use std::sync::Arc;

use tollgate_core::ask::{PathTag, ScopeId, Settle};
use tollgate_core::health::{Breaker, HealthEvent, HealthStatus, PathStatus, shown_path};

use super::health::{Inner, ProviderHealth};
use crate::event::Event;

impl ProviderHealth {
    /// Another process may have changed the scopes of paths that fail here too. Must be called inside
    /// a tokio runtime.
    pub(crate) fn on_scopes_changed(self: &Arc<ProviderHealth>, scopes: &[ScopeId]) {
        if scopes.contains(&self.resume_scope()) {
            self.on(HealthEvent::PathsResumed);
        }
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

    /// An operator resumes the provider: every process opens the paths that it knows to be closed.
    pub(crate) fn resume_paths(&self) {
        let scope = self.resume_scope();
        self.ledger.settle(Settle::Open { scope });
    }

    /// Never closed: a settle that opens it reaches all processes.
    fn resume_scope(&self) -> ScopeId {
        ScopeId::named(&[&self.provider, "resume"])
    }

    /// A path has failed: people want to know which.
    pub(crate) fn name_path(&self, path: Option<PathTag>, text: &str) {
        if let Some(path) = path {
            let mut inner = self.inner.lock();
            inner.health.name_path(path, || shown_path(text));
            self.note_closed_paths(&mut inner);
            self.release(inner);
        }
    }

    /// Tells which paths were closed and opened since the last time, whoever did it.
    pub(super) fn note_closed_paths(&self, inner: &mut Inner) {
        if inner.closed_paths.is_empty() && !inner.health.has_failing_paths() {
            return;
        }
        let now = inner.health.closed_paths(self.ledger.at());
        let known = std::mem::take(&mut inner.closed_paths);
        for (tag, path) in &known {
            if now.iter().all(|(closed, _)| closed != tag) {
                inner.deferred_events.push(Event::PathOpened {
                    provider: self.provider.clone(),
                    path: path.clone(),
                });
            }
        }
        for (tag, status) in now {
            let path: Option<Arc<str>> = status.path.as_deref().map(Arc::from);
            if known.iter().all(|(closed, _)| *closed != tag) {
                inner.deferred_events.push(Event::PathClosed {
                    provider: self.provider.clone(),
                    path: path.clone(),
                    failures: status.failures,
                    sleep: status.sleep_remaining,
                });
            }
            inner.closed_paths.push((tag, path));
        }
    }

    /// The closed path that rejects a call to this path, by name, if the provider itself is awake.
    pub(crate) fn closed_path_name(&self, path: Option<PathTag>) -> Option<String> {
        let inner = self.inner.lock();
        let tag = inner.health.failing_path(path)?;
        let is_awake = inner.health.status_on(None, self.ledger.at()).breaker == Breaker::Closed;
        let closed = inner.health.closed_paths(self.ledger.at());
        let (_, status) = closed.into_iter().find(|(closed, _)| *closed == tag)?;
        is_awake.then(|| status.path.unwrap_or_else(|| "other paths".to_owned()))
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
