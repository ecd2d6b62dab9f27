//! A provider's place on the shelf: known by its file, started by its first call.
//!
//! Most of the built-in providers are never called. What is not called costs a file in memory and
//! neither a gate nor a task.
//!
//! Promises: started once, whoever asks first. A reload before the start is a reload all the same.
//!
//! Never: ends what was started; that goes with the shelf.

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

use super::callers::Callers;
use super::live::Live;
use super::machine::health_scope;
use super::part;
use super::plan::Plan;
use super::spare::Common;
use super::via::Via;
use crate::pool::Dialer;

/// What starting a provider takes.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) ledger: Ledger,
    pub(super) dialects: Dialects,
    pub(super) dialer: Arc<Dialer>,
    pub(super) common: Common,
    pub(super) callers: ArcSwap<Callers>,
    pub(super) via: Via,
    /// Providers begin asleep, until somebody says `resume`.
    pub(super) offline: bool,
}

impl Means {
    pub(super) fn start(&self, provider: Provider) -> Result<Live, Vec<Problem>> {
        Live::start(
            self.plan(provider),
            &self.ledger,
            &self.dialer,
            &self.common,
            &self.via,
        )
    }

    /// A provider as it is obeyed: as a whole where the ledger is common, else this node's part.
    fn plan(&self, mut provider: Provider) -> Plan {
        let nothing = match self.ledger {
            Ledger::Memory(_) if self.common.share.nodes > 1 => {
                part::cut(&mut provider, self.common.share.nodes)
            }
            _ => None,
        };
        let mut plan = Plan::new(provider, &self.dialects);
        plan.nothing = nothing;
        plan
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
            means.callers.load().tell(&live, &Callers::default());
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
    pub(super) fn follow(&self, provider: Provider, means: &Means) -> Result<(), Vec<Problem>> {
        let mut known = self.known.lock();
        let Some(live) = self.live.get() else {
            *known = Some(Box::new(provider));
            return Ok(());
        };
        let plan = means.plan(provider);
        if live.plan().provider == plan.provider {
            return Ok(()); // nobody who waits is troubled because another file changed
        }
        live.follow(plan)
    }

    /// Are its calls refused while the store is lost?
    pub(super) fn closes_on_loss(&self) -> bool {
        let closes = |provider: &Provider| {
            let is_limited = !provider.limits.is_empty() || provider.concurrency.is_some();
            let closed = provider.on_store_loss == OnStoreLoss::Closed;
            provider.enabled && is_limited && closed
        };
        match self.live.get() {
            Some(live) => closes(&live.plan().provider),
            None => self.known.lock().as_deref().is_some_and(closes),
        }
    }

    /// The scope that its health closes and opens.
    pub(super) fn scope(&self) -> ScopeId {
        health_scope(&self.name)
    }
}
