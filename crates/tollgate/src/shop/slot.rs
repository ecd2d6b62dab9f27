//! A provider's place on the shelf: known by its file, started by its first call.
//!
//! Most of the built-in providers are never called. What is not called costs a file in memory and
//! neither a gate nor a task.
//!
//! Promises: started once, whoever asks first. A reload before the start is a reload all the same.
//!
//! Never: ends what was started; that goes with the shelf.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tollgate_config::Provider;
use tollgate_core::ask::ScopeId;
use tollgate_core::feedback::Dialects;
use tollgate_core::health::Command;
use tollgate_core::problem::Problem;
use tollgate_ledger::Ledger;

use super::live::Live;
use super::machine::health_scope;
use super::plan::Plan;
use crate::pool::Dialer;

/// What starting a provider takes.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) ledger: Ledger,
    pub(super) dialects: Dialects,
    pub(super) dialer: Arc<Dialer>,
    /// Providers begin asleep, until somebody says `resume`.
    pub(super) offline: bool,
}

impl Means {
    pub(super) fn start(&self, provider: Provider) -> Result<Live, Vec<Problem>> {
        let plan = Plan::new(provider, &self.dialects);
        Live::start(plan, &self.ledger, &self.dialer)
    }
}

/// A provider's place on the shelf.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    /// Its file, until it is started. Held while it starts and while it is replaced.
    known: Mutex<Option<Box<Provider>>>,
    /// Read by every call, so without a lock.
    live: OnceLock<Arc<Live>>,
}

impl Slot {
    /// A place for a provider whose settings are sane.
    pub(super) fn new(provider: Provider) -> Result<Slot, Vec<Problem>> {
        let problems = provider.health.check();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Slot {
            name: provider.name.clone(),
            known: Mutex::new(Some(Box::new(provider))),
            live: OnceLock::new(),
        })
    }

    /// The provider at work. The first caller starts it, so it must be inside a tokio runtime.
    pub(super) fn live(&self, means: &Means) -> Arc<Live> {
        if let Some(live) = self.live.get() {
            return live.clone();
        }
        let mut known = self.known.lock();
        let live = self.live.get_or_init(|| {
            let provider = known.take().expect("it is there until it is started");
            let started = means.start(*provider);
            let live = Arc::new(started.expect("its settings were checked when it came here"));
            if means.offline {
                live.order(Command::Offline);
            }
            live
        });
        live.clone()
    }

    /// The provider at work, if anybody has called it.
    pub(super) fn started(&self) -> Option<Arc<Live>> {
        self.live.get().cloned()
    }

    /// Another version of the file from now on. Its settings are sane.
    pub(super) fn follow(
        &self,
        provider: Provider,
        dialects: &Dialects,
    ) -> Result<(), Vec<Problem>> {
        let mut known = self.known.lock();
        match self.live.get() {
            None => *known = Some(Box::new(provider)),
            // Nobody who waits is troubled because another file changed.
            Some(live) if live.plan().provider == provider => {}
            Some(live) => live.follow(Plan::new(provider, dialects))?,
        }
        Ok(())
    }

    /// The scope that its health closes and opens.
    pub(super) fn scope(&self) -> ScopeId {
        health_scope(&self.name)
    }
}
