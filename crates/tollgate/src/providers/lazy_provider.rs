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
use parking_lot::Mutex;
use tollgate_config::Provider;
use tollgate_config::settings::OnStoreLoss;
use tollgate_core::ask::ScopeId;
use tollgate_core::feedback::Dialects;
use tollgate_core::health::Command;
use tollgate_core::problem::Problem;
use tollgate_ledger::Ledger;

use super::active::ActiveProvider;
use super::callers::Callers;
use super::health::health_scope;
use super::local_share::StoreLossContext;
use super::loop_detection::Via;
use super::per_node;
use super::policy::CompiledPolicy;
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
    /// Providers start asleep, until an operator says `resume`.
    pub(super) offline: bool,
}

impl ProviderDeps {
    pub(super) fn start(&self, provider: Provider) -> Result<ActiveProvider, Vec<Problem>> {
        ActiveProvider::start(
            self.compile(provider),
            &self.ledger,
            &self.dialer,
            &self.loss,
            &self.via,
        )
    }

    /// Compiles a provider: whole limits where nodes share the ledger, else this node's part of
    /// them.
    fn compile(&self, mut provider: Provider) -> CompiledPolicy {
        let nodes = self.loss.share.nodes;
        let nothing = match self.ledger.is_shared_by_processes() {
            false if nodes > 1 => per_node::divide_limits(&mut provider, nodes),
            true | false => None,
        };
        let mut plan = CompiledPolicy::new(provider, &self.dialects);
        plan.zero_limit = nothing;
        plan
    }
}

/// A provider in the catalog that its first call starts.
#[derive(Debug)]
pub(super) struct LazyProvider {
    pub(super) name: String,
    /// The file, until the provider starts. Locked while it starts and while it is replaced.
    pending: Mutex<Option<Box<Provider>>>,
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
            pending: Mutex::new(Some(Box::new(provider))),
            active: OnceLock::new(),
        })
    }

    /// The running provider. The first call starts it, so the caller must be inside a tokio
    /// runtime.
    pub(super) fn get_or_start(&self, means: &ProviderDeps) -> Arc<ActiveProvider> {
        if let Some(live) = self.active.get() {
            return live.clone();
        }
        let mut known = self.pending.lock();
        let live = self.active.get_or_init(|| {
            let provider = known.take().expect("it is there until it is started");
            let started = means.start(*provider);
            let live = Arc::new(started.expect("its settings were checked when it came here"));
            means
                .callers
                .load()
                .apply_shares(&live, &Callers::default());
            if means.offline {
                live.apply_command(Command::Offline);
            }
            live
        });
        live.clone()
    }

    /// The running provider, if it has been called.
    pub(super) fn started(&self) -> Option<Arc<ActiveProvider>> {
        self.active.get().cloned()
    }

    /// Replaces the file. Its settings are valid.
    pub(super) fn update(
        &self,
        provider: Provider,
        means: &ProviderDeps,
    ) -> Result<(), Vec<Problem>> {
        let mut known = self.pending.lock();
        let Some(live) = self.active.get() else {
            *known = Some(Box::new(provider));
            return Ok(());
        };
        let plan = means.compile(provider);
        if live.policy().provider == plan.provider {
            return Ok(()); // nobody who waits is troubled because another file changed
        }
        live.apply(plan)
    }

    /// Does Tollgate reject its calls while the store is lost?
    pub(super) fn rejects_on_loss(&self) -> bool {
        let closes = |provider: &Provider| {
            let is_limited = !provider.limits.is_empty() || provider.concurrency.is_some();
            let closed = provider.on_store_loss == OnStoreLoss::Closed;
            provider.enabled && is_limited && closed
        };
        match self.active.get() {
            Some(live) => closes(&live.policy().provider),
            None => self.pending.lock().as_deref().is_some_and(closes),
        }
    }

    /// The scope that its health closes and opens.
    pub(super) fn scope(&self) -> ScopeId {
        health_scope(&self.name)
    }
}
