//! A provider in the catalog: its file is loaded, and its first call starts it.
//!
//! Most built-in providers are never called. One that is not called costs a file in memory and
//! neither a gate nor a task.
//!
//! Promises: starts once, whoever calls first. A reload before the start takes effect too.
//!
//! Never: stops a started provider; it ends with the catalog.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tollgate_config::Provider;
use tollgate_config::settings::OnStoreLoss;
use tollgate_core::ask::ScopeId;
use tollgate_core::feedback::Dialects;
use tollgate_core::health::Command;
use tollgate_core::problem::Problem;
use tollgate_ledger::Ledger;
use tollgate_ledger::lock_order::{RankedMutex, rank};

use super::active::ActiveProvider;
use super::callers::Callers;
use super::health::health_scope;
use super::local_share::StoreLossContext;
use super::loop_detection::Via;
use super::per_node;
use super::policy::CompiledPolicy;
use crate::event::{self, Events};
use crate::pool::Dialer;

/// What a provider needs to start.
#[derive(Debug)]
pub(super) struct ProviderDeps {
    pub(super) ledger: Ledger,
    pub(super) dialects: Dialects,
    pub(super) dialer: Arc<Dialer>,
    pub(super) loss: StoreLossContext,
    pub(super) callers: ArcSwap<Callers>,
    pub(super) via: Via,
    pub(super) events: Events,
    /// Providers start asleep, until an operator says `resume`.
    pub(super) offline: bool,
    /// The seed of all random delays.
    pub(super) dice: Option<u64>,
}

impl ProviderDeps {
    pub(super) fn start(&self, provider: Provider) -> Result<ActiveProvider, Vec<Problem>> {
        ActiveProvider::start(self.compile(provider), self)
    }

    /// Compiles a provider: whole limits where nodes share the ledger, else this node's part of
    /// them.
    fn compile(&self, mut provider: Provider) -> CompiledPolicy {
        let nodes = self.loss.share.nodes;
        let zero_limit = match self.ledger.is_shared_by_processes() {
            false if nodes > 1 => per_node::divide_limits(&mut provider, nodes),
            true | false => None,
        };
        let mut policy = CompiledPolicy::new(provider, &self.dialects);
        policy.zero_limit = zero_limit;
        policy
    }
}

/// A provider in the catalog that its first call starts.
#[derive(Debug)]
pub(super) struct LazyProvider {
    pub(super) name: String,
    /// The file, until the provider starts. Locked while it starts and while it is replaced.
    pending: RankedMutex<{ rank::LAZY_PROVIDER }, Option<Box<Provider>>>,
    /// Every call reads this, so it has no lock.
    active: OnceLock<Arc<ActiveProvider>>,
}

impl LazyProvider {
    /// An entry for a provider with valid settings.
    pub(super) fn new(provider: Provider) -> Result<LazyProvider, Vec<Problem>> {
        let problems = provider.health.check();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(LazyProvider {
            name: provider.name.clone(),
            pending: RankedMutex::new(Some(Box::new(provider))),
            active: OnceLock::new(),
        })
    }

    /// The running provider. The first call starts it, so the caller must be inside a tokio
    /// runtime.
    pub(super) fn get_or_start(&self, deps: &ProviderDeps) -> Arc<ActiveProvider> {
        if let Some(active) = self.active.get() {
            return active.clone();
        }
        let _deferred = event::defer_events();
        let mut pending = self.pending.lock();
        let active = self.active.get_or_init(|| {
            let provider = pending
                .take()
                .expect("the file stays until the provider starts");
            let started = deps.start(*provider);
            let active =
                Arc::new(started.expect("`LazyProvider::new` and `update` checked the settings"));
            deps.callers
                .load()
                .apply_shares(&active, &Callers::default());
            if deps.offline {
                active.apply_command(Command::Offline);
            }
            active
        });
        drop(pending);
        // A loss that was broadcast while it started found it in no list.
        active.check_store();
        active.clone()
    }

    /// The policy that its first call would start it with; `None` if it has started.
    pub(super) fn pending_policy(&self, deps: &ProviderDeps) -> Option<CompiledPolicy> {
        let pending = self.pending.lock().clone();
        Some(deps.compile(*pending?))
    }

    /// The running provider, if it has been called.
    pub(super) fn started(&self) -> Option<Arc<ActiveProvider>> {
        self.active.get().cloned()
    }

    /// Replaces the file. Its settings are valid.
    pub(super) fn update(
        &self,
        provider: Provider,
        deps: &ProviderDeps,
    ) -> Result<(), Vec<Problem>> {
        let mut pending = self.pending.lock();
        let Some(active) = self.active.get() else {
            *pending = Some(Box::new(provider));
            return Ok(());
        };
        let policy = deps.compile(provider);
        if active.policy().provider == policy.provider {
            return Ok(()); // waiting calls are not disturbed because another file changed
        }
        active.apply(policy)
    }

    /// Does Tollgate reject its calls while the store is lost?
    pub(super) fn rejects_on_loss(&self) -> bool {
        let closes = |provider: &Provider| {
            let is_limited = !provider.limits.is_empty() || provider.concurrency.is_some();
            let closed = provider.on_store_loss == OnStoreLoss::Closed;
            provider.enabled && is_limited && closed
        };
        match self.active.get() {
            Some(active) => active.ledger.loss().is_some() && closes(&active.policy().provider),
            None => self.pending.lock().as_deref().is_some_and(closes),
        }
    }

    /// The scope that its health closes and opens.
    pub(super) fn scope(&self) -> ScopeId {
        health_scope(&self.name)
    }
}
