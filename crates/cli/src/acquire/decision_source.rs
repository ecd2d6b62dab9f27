//! Who decides: a running daemon, or this process with the store itself.
//!
//! Promises: a daemon on the admin address decides if no `--store` is given; otherwise the ledger is
//! opened directly, so that several processes share one quota either way.
//!
//! Never: opens a store that a named daemon was to be asked about.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use hyper::Method;
use serde_json::Value;
use tokio::runtime::Runtime;
use tollgate::ProviderRegistry;
use tollgate::providers::Options as RegistryOptions;
use tollgate_config::{Config, disk};
use tollgate_ledger::Ledger;
use tollgate_server::{Decisions, unknown_domains};

use super::into_reply;
use crate::admin_client::{AdminClient, NoDaemon};
use crate::open_ledger::{flush, try_open_ledger};
use crate::options::Options;

/// Who decides.
#[derive(Debug)]
pub(super) enum DecisionSource {
    /// A running daemon.
    Daemon(AdminClient),
    /// This process.
    Local(Box<LocalDecisions>),
}

/// The decision service in this process. Permits that are open at its end count as used.
#[derive(Debug)]
pub(super) struct LocalDecisions {
    // Dropped before the runtime that its tasks run on.
    decisions: Decisions,
    ledger: Ledger,
    runtime: Runtime,
}

impl Drop for LocalDecisions {
    fn drop(&mut self) {
        self.runtime.block_on(flush(&self.ledger));
    }
}

impl DecisionSource {
    /// The daemon if one responds, else the store.
    pub(super) fn find(options: &Options) -> anyhow::Result<DecisionSource> {
        if options.store.is_some() {
            return LocalDecisions::open(options);
        }
        let client = AdminClient::find(options)?;
        match client.request(Method::GET, "/health", None) {
            Ok(_) => Ok(DecisionSource::Daemon(client)),
            // No daemon on a named address is a mistake; on the default address it is not.
            Err(error) if error.is::<NoDaemon>() && options.admin.is_none() => {
                LocalDecisions::open(options)
            }
            Err(error) => Err(error),
        }
    }

    /// The daemon: only the process that handed a permit out can settle it.
    pub(super) fn daemon(options: &Options) -> anyhow::Result<DecisionSource> {
        if options.store.is_some() {
            bail!(
                "a permit is settled by the daemon that handed it out; leave --store out. Without a daemon, use `tollgate acquire PROVIDER -- CMD`"
            );
        }
        Ok(DecisionSource::Daemon(AdminClient::find(options)?))
    }

    /// One question and its reply; an error of the service is an error here, a denial is not.
    pub(super) fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> anyhow::Result<Value> {
        let (status, reply) = match self {
            DecisionSource::Daemon(client) => {
                let (status, reply) = client.exchange_within(method, path, body, patience)?;
                (status.as_u16(), reply)
            }
            DecisionSource::Local(local) => {
                let asked = local.decisions.ask_over_http(method, path, body);
                local.runtime.block_on(asked)
            }
        };
        into_reply(status, reply)
    }
}

impl LocalDecisions {
    fn open(options: &Options) -> anyhow::Result<DecisionSource> {
        let loaded = match Config::load(&options.sources(), &disk::environment()) {
            Ok(loaded) => loaded,
            Err(problems) => bail!("the configuration has errors:\n{problems}"),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime could not start")?;
        let config = loaded.config;
        let (ledger, why) = runtime.block_on(try_open_ledger(&config))?;
        if let Some(why) = why {
            writeln!(crate::out::err(), "error: {why}")?;
        }
        let providers = config.all_providers().map(|provider| (**provider).clone());
        let registry_options = RegistryOptions {
            unknown: unknown_domains(&config),
            nodes: config.nodes,
            node_lease: config.node_lease,
            ..RegistryOptions::default()
        };
        let registry = {
            let _runtime = runtime.enter();
            ProviderRegistry::build(providers.collect(), ledger.clone(), registry_options)?
        };
        registry.set_callers(&config.callers);
        let decisions = Decisions::new(registry, &config);
        Ok(DecisionSource::Local(Box::new(LocalDecisions {
            decisions,
            ledger,
            runtime,
        })))
    }
}
